"""What each mechanism is worth: problems of the net without it, one mechanism at a time.

    the net with all of them, calls counted  ->  for each mechanism, the problems on which it was consulted, without it

On other problems nothing changes, so they are not solved again. Slow problems are solved without those mechanisms that
few of the quick ones consult. `benchmarks.mechanisms` lists the mechanisms and what replaces them.

A problem is decided by a mechanism if without it the value is worse by more than 0.5 %, or the share of points matched
right by more than 0.02. A mechanism stays if it decides the value of more than 2 % of the problems, or if a suite of
larger problems requires it; otherwise it merges where the planned house names what into, or it goes.

``python -m benchmarks ablation`` measures what is not stored for this code, so that a run that was stopped goes on;
names of mechanisms measure these anew. Each process has one thread, and a problem one process.
"""

from __future__ import annotations

import hashlib
import math
import os
import signal
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.common import QUICK, RESULTS, kept, show, write
from benchmarks.threads import pinned

Row = dict[str, Any]
BASELINE = ""  # in place of a mechanism's name: all are on
KEPT = ("value", "right", "seconds", "gradients", "error")
WORSE, LESS_RIGHT, STAYS = 0.005, 0.02, 0.02
TINY = 1e-6  # of scaled squared distances: a value below is compared as if it were this
QUICK_EVERY = 12  # problems of the net, one of which a quick run takes
WARMED = 3.0  # seconds of a first solve of a kind
LONGEST = 20.0  # seconds of a problem with all mechanisms; a longer one is left out
FEW = 6  # quick problems, below which slow ones count as well
PATIENCE = 20.0  # times the seconds with a mechanism, after which a solve is given up,
LEAST_PATIENCE = 30.0  # but after so many seconds at the earliest
ROOT = Path(__file__).parent.parent
CODE = ("torchgw/**/*.py", "benchmarks/net.py")


def code() -> str:
    """A hash of what decides the rows: the library and the net."""
    found = hashlib.sha256()
    for path in sorted(path for pattern in CODE for path in ROOT.glob(pattern)):
        found.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return found.hexdigest()


def places(quick: bool = False) -> list[int]:
    """Positions in the net of all problems; of a quick run, of a few that are not slow."""
    from benchmarks import net

    every = net.problems()
    found = [place for place, problem in enumerate(every) if not problem.slow]
    return found[::QUICK_EVERY] if quick else [*range(len(every))]


def measured(place: int, name: str, limit: float = math.inf) -> Row:
    """One problem with all mechanisms on, and how often each was consulted, or without the one of that name. A solve
    that fails, or that takes longer than a ``limit`` in seconds, has an infinite value and says why."""
    from benchmarks import mechanisms, net

    problem = net.problems()[place]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began, counts = time.perf_counter(), Counter[str]()
        on = mechanisms.observed() if name == BASELINE else mechanisms.switched_off(mechanisms.named(name))
        try:
            with on as counts, limited(limit):
                found = net.measure(problem)
        except (AttributeError, NameError, TypeError):  # a replacement that no longer fits the library
            raise
        except Exception as error:
            spent, why = time.perf_counter() - began, f"{type(error).__name__}: {error}".splitlines()[0]
            found = {"value": math.inf, "right": None, "seconds": spent, "gradients": 0, "error": why}
        known = {"problem": problem.name, "kind": problem.kind, "place": place, "slow": problem.slow}
        return known | {key: found[key] for key in KEPT if key in found} | {"consulted": dict(counts)}


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Within it the main thread is interrupted after so many seconds."""

    def interrupt(number: int, frame: object) -> None:
        raise TimeoutError(f"given up after {seconds:.0f} s")

    if math.isinf(seconds):
        yield
        return
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def warm_up() -> None:
    """In a new process: one thread, and the first solve of each kind, which imports what others need."""
    import torch

    from benchmarks import net

    torch.set_num_threads(1)
    every = net.problems()
    firsts = {every[place].kind: place for place in reversed(places()) if not every[place].slow}
    for place in firsts.values():
        measured(place, BASELINE, WARMED)


@contextmanager
def workers(jobs: int) -> Iterator[Executor]:
    """Processes of one thread each, in which no pool has been made yet."""
    before = {name: os.environ.get(name) for name in pinned(1)}
    os.environ.update(pinned(1))
    try:
        with ProcessPoolExecutor(jobs, get_context("spawn"), warm_up) as pool:
            yield pool
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def rows_of(pool: Executor, name: str, baseline: Sequence[Row]) -> list[Row]:
    """The rows without a mechanism of the problems on which it was consulted, the longest problem first, in order."""
    asked = sorted(consulted(name, baseline), key=lambda row: -row["seconds"])
    limits = [max(PATIENCE * row["seconds"], LEAST_PATIENCE) for row in asked]
    found = pool.map(measured, [row["place"] for row in asked], [name] * len(asked), limits)
    return sorted(found, key=lambda row: row["place"])


def consulted(name: str, baseline: Sequence[Row]) -> list[Row]:
    """The problems on which a mechanism was consulted, of those that were solved; slow ones where few others are."""
    every = [row for row in baseline if row["consulted"].get(name) and "error" not in row]
    quick = [row for row in every if not row["slow"]]
    return quick if len(quick) >= FEW else every


def loss(row: Row, without: Row) -> float:
    """By how much a value is higher without a mechanism, relative to it."""
    return float((without["value"] - row["value"]) / max(abs(row["value"]), TINY))


def less_right(row: Row, without: Row) -> float:
    """By how much the share of points matched right is lower without a mechanism; zero where no truth is known."""
    return 0.0 if None in (row["right"], without["right"]) else float(row["right"] - without["right"])


def judged(name: str, baseline: Sequence[Row], without: Sequence[Row]) -> tuple[Row, list[Row]]:
    """The line of a mechanism, and what changed on which problem."""
    from benchmarks import mechanisms

    mechanism, known = mechanisms.named(name), {row["place"]: row for row in baseline}
    pairs = [(known[row["place"]], row) for row in without]
    losses = [loss(row, other) for row, other in pairs]
    fewer = [less_right(row, other) for row, other in pairs]
    in_value = [each > WORSE for each in losses]
    decided = [value or each > LESS_RIGHT for value, each in zip(in_value, fewer, strict=True)]
    better = [
        not worse and (each < -WORSE or right < -LESS_RIGHT)
        for worse, each, right in zip(decided, losses, fewer, strict=True)
    ]
    lost = sorted(each for each, worse in zip(losses, in_value, strict=True) if worse)
    finite = [pair for pair in pairs if "error" not in pair[1]]
    kinds = Counter(row["kind"] for (row, _), worse in zip(pairs, decided, strict=True) if worse)
    verdict = "merges" if mechanism.merges else "goes"
    solved = sum("error" not in row and not row["slow"] for row in baseline)
    if sum(in_value) > STAYS * solved or mechanism.required:
        verdict = "stays"
    said = {
        "mechanism": name,
        "what": mechanism.what,
        "files": ", ".join(mechanisms.files(mechanism)),
        "lines": mechanisms.lines(mechanism),
        "consulted": len(pairs),
        "decided": sum(decided),
        "in value": sum(in_value),
        "better": sum(better),
        "failed": len(pairs) - len(finite),
        "largest loss": _percent(lost[-1]) if lost else "-",
        "median loss": _percent(statistics.median(lost)) if lost else "-",
        "seconds": _ratio(finite, "seconds"),
        "gradients": _ratio(finite, "gradients"),
        "on": ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()) or "-",
        "verdict": verdict,
        "becomes": mechanism.becomes if verdict in ("stays", "merges") else "-",
        "required by": mechanism.required or "-",
    }
    changed = [
        {
            "problem": row["problem"],
            "value": row["value"],
            "without": other.get("error", other["value"]),
            "right": row["right"],
            "right without": other["right"],
        }
        for (row, other), worse, best in zip(pairs, decided, better, strict=True)
        if worse or best
    ]
    return said, changed


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 10 else f"{share + 1:.2g} times" if share < math.inf else "no plan"


def _ratio(pairs: Sequence[tuple[Row, Row]], column: str) -> float | str:
    """Of sums, with the mechanism over without it."""
    one, other = (sum(pair[side][column] for pair in pairs) for side in (0, 1))
    return one / other if other else "-"


def run(mechanisms: list[str] | None = None, jobs: int = 2, quick: bool = False) -> None:
    """Measure the named mechanisms, or all that are not stored for this code, and store each as it ends."""
    from benchmarks.mechanisms import MECHANISMS, core_rows

    every = [each.name for each in MECHANISMS]
    if unknown := set(mechanisms or ()) - set(every):
        raise SystemExit(f"mechanisms must be among {', '.join(every)}, got {', '.join(sorted(unknown))}")
    stored = kept((QUICK if quick else RESULTS) / "ablation.json", mechanisms or None)
    stored = stored if stored.get("code") == code() else {}
    baseline: list[Row] = stored.get("baseline", [])
    rows = {row["mechanism"]: row for row in stored.get("rows", []) if row["mechanism"] in every}
    changed: dict[str, list[Row]] = stored.get("changed", {})
    left = mechanisms or [name for name in every if name not in rows]

    def store() -> None:
        known = [rows[name] for name in every if name in rows]
        more = {"core": core_rows(), "code": code(), "baseline": baseline, "changed": changed}
        write("ablation", known, quick=quick, partial=bool(stored), **more)

    with workers(jobs) as pool:
        if len(baseline) != len(places(quick)):
            found = places(quick)
            baseline = list(pool.map(measured, found, [BASELINE] * len(found), [LONGEST] * len(found)))
            store()
        for row in baseline:
            if "error" in row:
                print(f"# left out: {row['problem']}, {row['error']}", file=sys.stderr, flush=True)
        told = sum(row["seconds"] for name in left for row in consulted(name, baseline)) / jobs
        print(f"# {len(left)} mechanisms take about {told / 60:.0f} minutes", file=sys.stderr, flush=True)
        for name in left:
            began = time.perf_counter()
            rows[name], changed[name] = judged(name, baseline, rows_of(pool, name, baseline))
            store()
            spent = time.perf_counter() - began
            print(f"# {name}: {spent:.0f} s, {rows[name]}", file=sys.stderr, flush=True)
    show([{key: row[key] for key in SHOWN} for row in (rows[name] for name in every if name in rows)])


SHOWN = ("mechanism", "lines", "consulted", "decided", "in value", "better", "largest loss", "seconds", "verdict")

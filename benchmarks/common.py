"""What every suite shares: a description of the machine, repeated timing, tables and result files.

A comparison holds when both sides ran in the same minutes: `interleaved` runs them in rounds, each warmed up apart, and
`paired` takes the ratio within each round before the median, so that what else a shared machine does cancels. Within a
`rehearsal` everything runs once and nothing is stored.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmarks.threads import cores
from benchmarks.verify import require_green

HERE = Path(__file__).parent
RESULTS = HERE / "results"
QUICK = HERE / "quick"
_REHEARSED: ContextVar[bool] = ContextVar("rehearsed", default=False)
MACHINE = ("cpu", "cores", "gpu")  # of an environment; rows of one table have these in common
PACKAGES = ("torch", "triton", "numpy", "scipy", "scikit-learn", "joblib")


def environment() -> dict[str, Any]:
    """Hardware, versions and commit."""
    commit, dirty = _git("rev-parse", "HEAD"), _git("status", "--porcelain")
    return {
        "cpu": _cpu_name(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load": os.getloadavg()[0],
        "system": platform.platform(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "commit": commit.strip() if commit else "unknown",
        "uncommitted_changes": None if dirty is None else any(map(is_code, dirty.splitlines())),
        "date": time.strftime("%Y-%m-%d"),
    }


def _git(*words: str) -> str | None:
    """What git says of this directory; None where there is no git, or no repository."""
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return None if done.returncode else done.stdout


@contextmanager
def rehearsal() -> Iterator[None]:
    """Within it every timing is of one run, and `write` stores nothing: whether a suite comes to its end, no more."""
    before = _REHEARSED.set(True)
    try:
        yield
    finally:
        _REHEARSED.reset(before)


def rehearsed() -> bool:
    """Whether this is a rehearsal, whose figures mean nothing."""
    return _REHEARSED.get()


def is_code(line: str) -> bool:
    """Whether a line of ``git status --porcelain`` is of what a measurement depends on."""
    name = line[3:].strip('"')
    return name.startswith(("torchgw/", "tests/", "benchmarks/")) and name.endswith((".py", "measured.json", "/"))


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def seconds(call: Callable[[], object], repeats: int = 5) -> float:
    """Median time of ``call`` after one run that does not count; waits for the GPU where there is one."""
    once(call)
    return statistics.median(once(call) for _ in range(repeats))


def fastest(calls: Mapping[str, Callable[[], object]], least: int = 9, budget: float = 0.5) -> dict[str, float]:
    """The least time of each call over rounds of all of them: at least ``least``, more while the ``budget`` lasts.

    In rounds, so that what else a shared machine does falls on all of them alike.
    """
    if rehearsed():
        return {name: once(call) for name, call in calls.items()}
    for call in calls.values():
        once(call)
    found: dict[str, list[float]] = {name: [] for name in calls}
    began, rounds = time.perf_counter(), 0
    while rounds < least or (rounds < 200 and time.perf_counter() - began < budget):
        rounds += 1
        for name, call in calls.items():
            found[name].append(once(call))
    return {name: min(times) for name, times in found.items()}


def interleaved(
    calls: Mapping[str, Callable[[], object]], rounds: int = 5, warm: bool = True
) -> dict[str, list[float]]:
    """Seconds of each call in each of ``rounds`` rounds of all of them, after one run of each that does not count."""
    if rehearsed():
        return {name: [once(call)] for name, call in calls.items()}
    if warm:
        for call in calls.values():
            once(call)
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            found[name].append(once(call))
    return found


def paired(slow: Sequence[float], fast: Sequence[float]) -> float:
    """How many times longer ``slow`` takes than ``fast``: the median of the ratios within the rounds."""
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def once(call: Callable[[], object]) -> float:
    """Seconds of one run."""
    began = time.perf_counter()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def write(
    name: str,
    rows: list[dict[str, Any]],
    *,
    quick: bool = False,
    partial: bool = False,
    made: dict[str, Any] | None = None,
    **more: Any,
) -> Path:
    """Store a suite's rows with the environment they were measured in: this one, or the one that they were ``made`` in.

    Only where the tests have passed on this very code. What a ``quick`` run finds goes to a folder of its own, which no
    document reads and nothing commits. A ``partial`` run keeps rows of an earlier one on the same machine, whose
    environment stays beside its own.
    """
    folder = QUICK if quick else RESULTS
    path = folder / f"{name}.json"
    content = {"environment": made or environment(), "rows": rows} | more
    if rehearsed():
        json.dumps(content)  # what cannot be stored is found now
        return path
    if not quick:
        require_green()
    folder.mkdir(exist_ok=True)
    if partial and (before := kept(path, [name], made)):
        content["environment_of_kept_rows"] = before.get("environment_of_kept_rows", before["environment"])
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def kept(path: Path, groups: Sequence[str] | None, made: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The stored results whose rows may stay beside new ones, of named ``groups`` or of the whole suite; {} for none.
    The new ones are of this machine, or of the one that they were ``made`` on.

    One table is of one machine. On another one a whole run begins anew, and a run of named groups ends with the reason.
    """
    if not path.exists():
        return {}
    stored: dict[str, Any] = json.loads(path.read_text())
    if not (why := other_machine(stored, made or environment())):
        return stored
    if groups is None:
        return {}
    raise SystemExit(f"{path.name} {why}: run the whole suite, without naming groups")


def other_machine(stored: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """How the machine of some stored rows differs from the one ``here``; empty where it does not."""
    for made in (stored["environment"], stored.get("environment_of_kept_rows", {})):
        for name in MACHINE:
            if made.get(name) != here.get(name) and name in made:
                return f"has rows that were measured with {name} = {made[name]}, and here it is {here.get(name)}"
    return ""


def run_groups(
    name: str,
    made: Mapping[str, Callable[[], list[dict[str, Any]]]],
    groups: Sequence[str] | None = None,
    *,
    quick: bool = False,
) -> None:
    """Measure the named groups of a suite (all by default), print the table, and store it after each of them.

    Lines have a "detail", what each rests on, which is stored by group and not shown. The stored rows of the other
    groups are kept, but for a ``quick`` run.
    """
    warnings.simplefilter("ignore")
    path = RESULTS / f"{name}.json"
    before = kept(path, groups) if groups is not None and not quick else {}
    found: dict[str, list[dict[str, Any]]] = before.get("groups", {})
    rows: list[dict[str, Any]] = []
    for key in groups or made:
        began = time.perf_counter()
        found[key] = made[key]()
        print(f"# {key}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        show([without_detail(line) for line in found[key]])
        rows = [without_detail(line) for each in made for line in found.get(each, [])]
        write(name, rows, quick=quick, partial=bool(before), groups=found)
    print()
    show(rows)


def without_detail(line: dict[str, Any]) -> dict[str, Any]:
    """A line as it is shown."""
    return {key: value for key, value in line.items() if key != "detail"}


def show(rows: list[dict[str, Any]]) -> None:
    """Print rows as an aligned table."""
    columns = list(rows[0])
    cells = [columns, *([_text(row[column]) for column in columns] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    for row in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

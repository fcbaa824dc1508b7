"""``python -m benchmarks sides FOLDER``: the same calls on this checkout and on another one, side by side in one run.

Either checkout has a process of its own, which waits while the other one solves. Rounds alternate which goes first,
and ratios are within rounds, so that what else a shared machine does falls on both. Nothing is stored but where
``--json`` says so. The exit code is 1 where a case takes more than `MOST` times as long as in the other folder.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from json import dumps
from pathlib import Path
from typing import Any

MOST = 1.1
Side = Callable[[str], float]  # what runs a case, and returns its seconds
HERE = Path(__file__).parent.parent
WORKER = f"import runpy; runpy.run_path({__file__!r})['work']()"
IMPORT = "import torchgw.align"
CASES = {  # rounds of each, the fewer the longer it takes
    "spiral 400 x 500": 9,
    "dense 2000 x 2500": 5,
    "streaming 20000 x 25000": 3,
    "epsilon 0, 100 x 100": 9,
    "pairwise, 10 spaces": 5,
    "partial 500 x 500": 7,
    "unbalanced 500 x 500": 7,
    "low rank 2000 x 2000": 5,
    "loss, Implicit, 200 x 200": 7,
    IMPORT: 9,
}


def calls() -> dict[str, Callable[[], object]]:
    """What each case calls, in whatever checkout this process has imported; public names alone."""
    import torch

    from torchgw import GWOptions, Implicit, Partial, Unbalanced, gw_align, gw_loss, gw_pairwise
    from torchgw.datasets import make_spiral, make_swiss_roll

    def align(n: int, k: int, **keywords: Any) -> Callable[[], object]:
        X, Y = make_spiral(n)[0], make_swiss_roll(k, random_state=1)[0]
        return lambda: gw_align(X, Y, random_state=0, **keywords)

    def loss() -> object:
        X, Y = (torch.from_numpy(make(200)[0]).requires_grad_() for make in (make_spiral, make_swiss_roll))
        return gw_loss(X, Y, distances="euclidean", gradient_mode=Implicit(), random_state=0).backward()

    spaces = [make_spiral(50 + 15 * i, random_state=i)[0] for i in range(10)]
    fresh = [sys.executable, "-c", IMPORT]  # in this folder, that of the checkout
    found = (
        align(400, 500),
        align(2000, 2500, options=GWOptions(strategy="dense")),
        align(20_000, 25_000, distances="landmark"),
        align(100, 100, epsilon=0.0),
        lambda: gw_pairwise(spaces, random_state=0),
        align(500, 500, marginals=Partial(0.8)),
        align(500, 500, marginals=Unbalanced(1.0, 1.0)),
        align(2000, 2000, options=GWOptions(strategy="low-rank")),
        loss,
        lambda: subprocess.run(fresh, check=True),
    )
    return dict(zip(CASES, found, strict=True))


def work() -> None:
    """Run the cases that are named on stdin, one a line, and print the seconds of each: the process of one checkout."""
    warnings.simplefilter("ignore")
    answers, sys.stdout = sys.stdout, sys.stderr
    known = calls()
    print(sys.modules["torchgw"].__file__, file=answers, flush=True)  # which one was imported
    for line in sys.stdin:
        began = time.perf_counter()
        known[line.rstrip("\n")]()
        print(time.perf_counter() - began, file=answers, flush=True)


@contextmanager
def checkout(folder: Path) -> Iterator[Side]:
    """A process that imports the checkout in a folder."""
    where: Any = {"cwd": folder, "env": os.environ | {"PYTHONPATH": str(folder)}}
    command, pipe = [sys.executable, "-c", WORKER], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, **where) as process:
        asked, answers = process.stdin, process.stdout
        assert asked is not None
        assert answers is not None

        def answer() -> str:
            if line := answers.readline():
                return line.rstrip("\n")
            raise SystemExit(f"the checkout in {folder} broke off")

        def seconds(case: str) -> float:
            print(case, file=asked, flush=True)
            return float(answer())

        if folder.resolve() not in (imported := Path(answer()).resolve()).parents:
            raise SystemExit(f"{folder} must hold a checkout, but torchgw is imported from {imported.parent}")
        yield seconds
        asked.close()


def rounds(sides: Sequence[Side], case: str, count: int) -> list[list[float]]:
    """Seconds of either side in each round, after one run of each that does not count; rounds alternate the order."""
    for side in sides:
        side(case)
    found: list[list[float]] = [[], []]
    for turn in range(count):
        for at in (0, 1)[:: 1 - 2 * (turn % 2)]:
            found[at].append(sides[at](case))
    return found


def row(case: str, here: Sequence[float], there: Sequence[float]) -> dict[str, Any]:
    """Medians, and how many times as long this checkout takes: the median of the ratios, and their range."""
    ratios = sorted(a / b for a, b in zip(here, there, strict=True))
    ratio = statistics.median(ratios)
    return {
        "case": case,
        "rounds": len(ratios),
        "here s": statistics.median(here),
        "there s": statistics.median(there),
        "ratio": ratio,
        "range": f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
        "met": ratio <= MOST,
    }


def run(folder: str, cases: Sequence[str] = (), factor: float = 1.0, json: str | None = None) -> None:
    """Measure, print; leave with 1 where this checkout is slower."""
    from benchmarks.common import environment, show

    chosen = [name for name in CASES if not cases or any(word in name for word in cases)]
    if not chosen:
        raise SystemExit(f"cases must be words of {', '.join(CASES)}, got {' '.join(cases)}")
    measured: list[dict[str, Any]] = []
    with ExitStack() as both:
        sides = [both.enter_context(checkout(path)) for path in (HERE, Path(folder).resolve())]
        for name in chosen:
            measured += [row(name, *rounds(sides, name, max(1, round(factor * CASES[name]))))]
            print(f"{name}: {measured[-1]['ratio']:.3f} ({measured[-1]['range']})", file=sys.stderr, flush=True)
    show(measured)
    if json is not None:
        Path(json).write_text(dumps({"environment": environment(), "there": folder, "rows": measured}, indent=1) + "\n")
    if not all(entry["met"] for entry in measured):
        raise SystemExit(1)

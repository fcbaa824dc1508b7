"""What a busy torch program on the same cores costs a solve, with the threads that the library takes and with all.

Each round solves alone, beside one and beside two such programs, which are stopped in between; ratios are within a
round. With all threads, beside one program at most and on small problems alone, for that takes long enough.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

from benchmarks.common import once, paired, show, write
from benchmarks.threads import pinned
from torchgw import gw_align
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.runtime import threads

# Points, epsilon, and rounds.
CASES: tuple[tuple[int, int, float | str, int], ...] = (
    (100, 130, 0.0, 5),
    (400, 500, "auto", 5),
    (1000, 1200, "auto", 5),
    (1000, 1200, 0.0, 3),
    (2000, 2500, "auto", 5),
    (4000, 5000, "auto", 3),
    (45_000, 45_000, "auto", 1),
)
MOST, ALL_TO = 3.0, 400 * 500
BUSY = """
import os, torch
parent, A, B = os.getppid(), torch.rand(600, 600), torch.rand(1000, 1000)
print("ready", flush=True)
while os.getppid() == parent:
    A @ A
    for _ in range(10):
        B.exp()
"""

Key = tuple[str, int]
Times = dict[Key, list[float]]


@contextmanager
def programs(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Busy torch programs with a thread for each core, all of them stopped."""
    command = [sys.executable, "-c", BUSY]
    begun = [subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | pinned()) for _ in range(count)]
    try:
        for program in begun:
            assert program.stdout is not None
            program.stdout.readline()
            program.send_signal(signal.SIGSTOP)
        yield begun
    finally:
        for program in begun:
            program.kill()
            program.communicate()


@contextmanager
def going(some: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """These programs run in this context."""
    for program in some:
        program.send_signal(signal.SIGCONT)
    try:
        yield
    finally:
        for program in some:
            program.send_signal(signal.SIGSTOP)


@contextmanager
def all_threads() -> Iterator[None]:
    """Solves in this context have all threads, whatever their size and whoever waits."""
    with patch.object(threads, "SEVERAL_PAY", 0), patch.object(threads, "_waiting_seconds", lambda: 0.0):
        yield


def timed(solve: Callable[[], object], others: Sequence[subprocess.Popen[bytes]], rounds: int, with_all: bool) -> Times:
    """Seconds in each round, with the "chosen" threads and perhaps with "all" in any case, beside so many programs."""
    keys: list[Key] = [("chosen", 0), ("chosen", 1), ("chosen", 2)]
    if with_all:
        keys += [("all", 0), ("all", 1)]
    found: Times = {key: [] for key in keys}
    solve()
    for _ in range(rounds):
        for name, count in keys:
            with all_threads() if name == "all" else nullcontext(), going(others[:count]):
                found[name, count].append(once(solve))
    return found


def rows(n: int, k: int, epsilon: float | str, found: Times) -> list[dict[str, Any]]:
    """Medians, and how many times longer a solve takes than alone with the chosen threads."""
    alone = found["chosen", 0]
    return [
        {
            "size": f"{n} x {k}",
            "epsilon": epsilon,
            "threads": name,
            "beside": count,
            "rounds": len(seconds),
            "seconds": statistics.median(seconds),
            "times_alone": (ratio := paired(seconds, alone)),
            "required": f"<= {MOST:g}" if (required := name == "chosen" and count == 1) else "-",
            "met": ratio <= MOST if required else "-",
        }
        for (name, count), seconds in found.items()
    ]


def run() -> None:
    """Measure, print, store."""
    warnings.simplefilter("ignore")
    measured: list[dict[str, Any]] = []
    with programs(2) as others:
        for n, k, epsilon, rounds in CASES:
            X, Y = make_spiral(n)[0], make_swiss_roll(k, random_state=1)[0]
            found = timed(
                lambda: gw_align(X, Y, epsilon=epsilon, random_state=0), others, rounds, with_all=n * k <= ALL_TO
            )
            measured += rows(n, k, epsilon, found)
            show(measured[-len(found) :])
    write("beside", measured)

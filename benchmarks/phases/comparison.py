"""One comparison: the same work before and after, in turns, with the quality of both."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.common import once, paired
from benchmarks.phases.work import Answer, Problem, Quality, Run

ROUNDS = 5  # that count, at most
RHO_SLACK, VALUE_SLACK = 0.005, 0.05
PAYS = 1.1
Row = dict[str, Any]


def compare(
    phase: str,
    how: str,
    problem: Problem,
    before: Run,
    after: Run,
    budget: float,
) -> Row:
    """One row: both sides in turns while the seconds last, without the first round where there are others."""
    held: dict[str, Callable[[], Answer]] = {}

    def keep(name: str, call: Run) -> Callable[[], None]:
        return lambda: held.update({name: call()})

    calls = keep("before", before), keep("after", after)
    times: list[tuple[float, float]] = []
    began = time.perf_counter()
    while not times or (len(times) <= ROUNDS and time.perf_counter() - began < budget):
        times.append((once(calls[0]), once(calls[1])))
    counted = times[1:] or times
    slow, fast = zip(*counted, strict=True)
    judged = {name: problem.quality(answer()) for name, answer in held.items()}
    ratio, equal = paired(slow, fast), as_good(judged["before"], judged["after"])
    return row(phase, how, problem.name, slow, fast, judged["before"], judged["after"], said(ratio, equal))


def row(
    phase: str,
    how: str,
    problem: str,
    slow: Sequence[float],
    fast: Sequence[float],
    before: Quality,
    after: Quality,
    verdict: str,
    memory: tuple[float, float] | None = None,
) -> Row:
    """The columns of every phase."""
    return {
        "phase": phase,
        "how": how,
        "problem": problem,
        "before_s": statistics.median(slow),
        "after_s": statistics.median(fast),
        "ratio": paired(slow, fast),
        "runs": len(slow),
        "before_mib": "-" if memory is None else memory[0],
        "after_mib": "-" if memory is None else memory[1],
        "before_rho": before[0],
        "after_rho": after[0],
        "before_value": _shown(before[1]),
        "after_value": _shown(after[1]),
        "verdict": verdict,
    }


def _shown(value: float | None) -> float | str:
    return "-" if value is None else value


def as_good(before: Quality, after: Quality) -> bool:
    """Whether the quality after is no worse than before."""
    better = after[0] >= before[0] - RHO_SLACK
    if before[1] is not None and after[1] is not None:
        better = better and after[1] <= (1 + VALUE_SLACK) * before[1]
    return better


def said(ratio: float, equal: bool) -> str:
    """What a row means."""
    if not equal:
        return "worse quality"
    if ratio >= PAYS:
        return "pays"
    return "level here" if ratio > 1 / PAYS else "does not pay here"

"""One comparison: the same work before and after, in turns, with the quality of both."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.common import once, paired
from benchmarks.phases.work import Answer, Problem, Quality, Run

ROUNDS = 5
RHO_SLACK, VALUE_SLACK = 0.005, 0.05
PAYS = 1.1
Row = dict[str, Any]


@dataclass(frozen=True)
class Measured:
    """What one side of a comparison came to, round by round."""

    seconds: list[float] = field(default_factory=list)
    quality: list[Quality] = field(default_factory=list)
    iterations: list[tuple[int, int]] = field(default_factory=list)

    def add(self, seconds: float, quality: Quality, answer: Answer) -> None:
        """One more round."""
        self.seconds.append(seconds)
        self.quality.append(quality)
        self.iterations.append(answer.iterations)

    @property
    def middle(self) -> Quality:
        """The medians of signed correlation and value; no value where a round has none."""
        values = [value for _, value in self.quality if value is not None]
        rho = statistics.median(rho for rho, _ in self.quality)
        return rho, statistics.median(values) if len(values) == len(self.quality) else None


def in_turns(problem: Problem, runs: Mapping[str, Run], budget: float, least: int = 1) -> dict[str, Measured]:
    """All runs, warmed up apart, in rounds while the seconds of the budget last.

    Each round has a seed of its own, and every other one goes through the runs backwards.
    """
    for run in runs.values():
        run.warm()
    found, spent = {name: Measured() for name in runs}, 0.0
    for seed in range(max(ROUNDS, least)):
        for name in reversed(runs) if seed % 2 else runs:
            held: list[Any] = []
            seconds = once(lambda name=name, seed=seed, held=held: held.append(runs[name].call(seed)))  # type: ignore[misc]
            answer = held[0]()
            found[name].add(seconds, problem.quality(answer), answer)
            spent += seconds
        if spent > budget and seed + 1 >= least:
            break
    return found


def compare(phase: str, how: str, problem: Problem, before: Run, after: Run, budget: float, least: int = 1) -> Row:
    """One row."""
    found = in_turns(problem, {"before": before, "after": after}, budget, least)
    return row(phase, how, problem.name, found["before"], found["after"])


def row(
    phase: str,
    how: str,
    problem: str,
    before: Measured,
    after: Measured,
    verdict: str | None = None,
    memory: tuple[float, float] | None = None,
) -> Row:
    """The columns of every phase; the verdict follows from ratio and quality where none is given."""
    ratio = paired(before.seconds, after.seconds)
    return {
        "phase": phase,
        "how": how,
        "problem": problem,
        "before_s": statistics.median(before.seconds),
        "after_s": statistics.median(after.seconds),
        "ratio": ratio,
        "runs": len(after.seconds),
        "before_iterations": _counts(before),
        "after_iterations": _counts(after),
        "before_mib": "-" if memory is None else memory[0],
        "after_mib": "-" if memory is None else memory[1],
        "before_rho": before.middle[0],
        "after_rho": after.middle[0],
        "before_value": _shown(before.middle[1]),
        "after_value": _shown(after.middle[1]),
        "verdict": verdict or said(ratio, as_good(before.middle, after.middle)),
    }


def _counts(side: Measured) -> str:
    """Outer and inner iterations, medians."""
    return " / ".join(f"{statistics.median(each):.0f}" for each in zip(*side.iterations, strict=True))


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

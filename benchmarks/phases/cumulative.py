"""The phases one after the other on one problem."""

from __future__ import annotations

import statistics
from dataclasses import replace

from benchmarks.baselines.sampled import Switches
from benchmarks.common import paired
from benchmarks.phases.bench import SWITCHES, Bench, only
from benchmarks.phases.comparison import Row, in_turns
from benchmarks.phases.groups import SAMPLED
from benchmarks.phases.work import Problem, Run, spiral
from torchgw import GWOptions

FIRST = tuple(name for key, names in SWITCHES.items() if key.startswith("1") for name in names)


def cumulative(bench: Bench) -> list[Row]:
    """The phases one after the other, on each kind of distances."""
    n, k = (200, 250) if bench.quick else (400, 500)
    found: list[Row] = []
    for kind in ("landmark",) if bench.quick else ("dijkstra", "precomputed", "landmark"):
        problem, searched = spiral(n, k, kind), spiral(n, k, "uncached" if kind == "dijkstra" else kind)
        steps: dict[str, Run] = {"0 plain": bench.loop(searched, Switches())}
        names: tuple[str, ...] = FIRST
        steps["1 device draws to arrays"] = bench.loop(searched, only(names))
        if kind == "dijkstra":
            steps["2 Dijkstra row cache"] = bench.loop(problem, only(names))
        for phase, more in SWITCHES.items():
            if not phase.startswith("1"):
                names = (*names, *more)
                steps[phase] = bench.loop(problem, only(names))
        steps["9 landmark starts, lifted potentials"] = bench.library(problem, SAMPLED)
        steps["10 exact gradient"] = bench.library(problem, replace(SAMPLED, gradient="exact"))
        if kind == "landmark":
            steps["11 streaming score"] = bench.library(problem, GWOptions(strategy="streaming"))
        found += _steps(problem, steps, bench)
    return found


def _steps(problem: Problem, steps: dict[str, Run], bench: Bench) -> list[Row]:
    """All steps in turns; ratios within the rounds."""
    found = in_turns(problem, steps, 0.0, least=1 if bench.quick else 2)
    names, rows = list(steps), []
    for last, name in zip([names[0], *names], names, strict=False):
        rho, value = found[name].middle
        rows.append(
            {
                "problem": problem.name,
                "step": name,
                "seconds": statistics.median(found[name].seconds),
                "ratio_to_last": paired(found[last].seconds, found[name].seconds),
                "ratio_to_first": paired(found[names[0]].seconds, found[name].seconds),
                "rho": rho,
                "value": value,
            }
        )
    return rows

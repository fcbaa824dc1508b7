"""The phases one after the other on one problem."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

from benchmarks.baselines.sampled import Switches
from benchmarks.phases.bench import SWITCHES, Bench, only
from benchmarks.phases.comparison import Row
from benchmarks.phases.groups import SAMPLED
from benchmarks.phases.work import Problem, Run, spiral
from torchgw import GWOptions

FIRST = tuple(name for key, names in SWITCHES.items() if key.startswith("1") for name in names)


def cumulative(bench: Bench) -> list[Row]:
    """The phases one after the other on one problem; each step once warmed up, then timed."""
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
        steps["10 exact factored gradient"] = bench.library(problem, replace(SAMPLED, gradient="exact"))
        if kind == "landmark":
            steps["11 streaming score"] = bench.library(problem, GWOptions(strategy="streaming"))
        found += _steps(problem, steps, bench)
    return found


def _steps(problem: Problem, steps: dict[str, Run], bench: Bench) -> list[Row]:
    rows: list[Row] = []
    for name, call in steps.items():
        times: list[float] = []
        began = time.perf_counter()
        while not times or (len(times) < 4 and time.perf_counter() - began < bench.budget / 2):
            start = time.perf_counter()
            answer = call()
            times.append(time.perf_counter() - start)
        rho, value = problem.quality(answer())
        seconds = statistics.median(times[1:] or times)
        first, last = (rows[0]["seconds"], rows[-1]["seconds"]) if rows else (seconds, seconds)
        rows.append(
            {
                "problem": problem.name,
                "step": name,
                "seconds": seconds,
                "ratio_to_last": last / seconds,
                "ratio_to_first": first / seconds,
                "rho": rho,
                "value": value,
            }
        )
        print(f"{problem.name}: {name} {seconds:.3g} s", flush=True)
    return rows

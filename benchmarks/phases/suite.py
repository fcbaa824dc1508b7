"""The groups of phases, and the suite that runs them."""

from __future__ import annotations

import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from benchmarks.baselines import plain
from benchmarks.baselines.sampled import ALL_ON, Switches, solve
from benchmarks.common import RESULTS, interleaved, show, write
from benchmarks.phases.comparison import Row, compare, row, said
from benchmarks.phases.work import Answer, Problem, Run, emptied, graphs, random, spiral
from torchgw import GWOptions, LadderOptions, PrecomputedDistances, SamplingOptions, gw_align

EPSILON = 5e-3
RIGHT = 0.9  # signed Spearman correlation above which a run is in the right basin
STORED = 4e7  # pairs up to which a plan is fetched, to judge it on exact distances

SWITCHES: dict[str, tuple[str, ...]] = {
    "1a draws on the device": ("device_draws",),
    "1b logsumexp check": ("logsumexp_check",),
    "1c balanced fast path": ("balanced",),
    "1d preallocation": ("preallocated",),
    "1e distances kept on the device": ("device_copies",),
    "1f pairs as arrays": ("index_arrays",),
    "3 mixed precision": ("mixed_precision",),
    "4 early stop": ("early_stop",),
    "5 fewer syncs": ("fewer_syncs",),
    "6 fused kernels": ("fused",),
    "7 warm start": ("warm_start",),
}
FIRST = tuple(name for key, names in SWITCHES.items() if key.startswith("1") for name in names)
SAMPLED = GWOptions(gradient="sampled", strategy="dense")
CRUDE = replace(SAMPLED, sampling=SamplingOptions(n_control=0))


@dataclass(frozen=True)
class Bench:
    """Where and how much: the device and its kernel, the iterations of loops that do not stop early, seconds a row."""

    device: str = "cpu"
    backend: str = "eager"
    max_iter: int = 100
    budget: float = 40.0
    quick: bool = False

    def loop(self, problem: Problem, switches: Switches) -> Run:
        """The sampled loop with these switches."""

        def call() -> Callable[[], Answer]:
            found = solve(
                *emptied(problem.spaces),
                problem.pairs,
                switches,
                epsilon=EPSILON,
                max_iter=self.max_iter,
                device=self.device,
                backend=self.backend,
            )

            def answer() -> Answer:
                plan = found.plan().cpu()
                return Answer(plan.argmax(1).numpy(), plan)

            return answer

        return call

    def library(self, problem: Problem, options: GWOptions, **more: Any) -> Run:
        """The library with these options, at the same entropy unless told otherwise."""

        def call() -> Callable[[], Answer]:
            given = {"epsilon": EPSILON, "random_state": 0} | more
            result = gw_align(*emptied(problem.spaces), options=options, device=self.device, **given)

            def answer() -> Answer:
                n, k = (space.size for space in problem.spaces)
                plan = result.plan.cpu() if n * k <= STORED else None
                return Answer(np.asarray(result.argmax()), plan, result.value)

            return answer

        return call

    def compared(self, phase: str, how: str, problem: Problem, before: Run, after: Run) -> Row:
        """One row."""
        return compare(phase, how, problem, before, after, self.budget)


def without(names: Iterable[str]) -> Switches:
    """Everything but these switches."""
    return replace(ALL_ON, **dict.fromkeys(names, False))


def only(names: Iterable[str]) -> Switches:
    """Nothing but these switches."""
    return Switches(**dict.fromkeys(names, True))


def alone(bench: Bench) -> list[Row]:
    """Each switch on top of the plain loop."""
    problem = spiral(200, 250, "landmark") if bench.quick else spiral(400, 500, "landmark")
    base = bench.loop(problem, Switches())
    return [
        bench.compared(phase, "alone", problem, base, bench.loop(problem, only(names)))
        for phase, names in SWITCHES.items()
    ]


def all_but_it(bench: Bench) -> list[Row]:
    """Each switch taken out of the loop that has them all."""
    made = [lambda: spiral(400, 500, "landmark")]
    if not bench.quick:
        made += [lambda: spiral(400, 500, "precomputed"), lambda: random(2000, 2500)]
        made += [lambda: spiral(4000, 5000, "landmark"), lambda: random(5000, 6000)]
    found = []
    for make in made:
        problem = make()
        best = bench.loop(problem, ALL_ON)
        for phase, names in SWITCHES.items():
            found.append(bench.compared(phase, "all but it", problem, bench.loop(problem, without(names)), best))
            show(found[-1:])
    return found


def cache(bench: Bench) -> list[Row]:
    """The whole loop with rows of shortest paths searched anew, and kept."""
    sizes = [(400, 500)] if bench.quick else [(400, 500), (500, 600), (1000, 1200), (2000, 2500)]
    found = []
    for n, k in sizes:
        searched, kept = spiral(n, k, "uncached"), spiral(n, k, "dijkstra")
        calls = bench.loop(searched, ALL_ON), bench.loop(kept, ALL_ON)
        found.append(bench.compared("2 Dijkstra row cache", "all but it", kept, *calls))
    return found


def preparation(bench: Bench) -> list[Row]:
    """All pairs of shortest paths of both spaces in this process, and as the library has them made."""
    found = []
    for n, k in [(400, 500)] if bench.quick else [(2000, 2500), (5000, 6000)]:
        pair = list(graphs(n, k)[:2])
        calls = {
            "before": lambda pair=pair: plain.all_pairs_one_by_one(pair),
            "after": lambda pair=pair: PrecomputedDistances.from_graphs(pair),
        }
        times = interleaved(calls, 3)
        serial, shared = plain.all_pairs_one_by_one(pair), PrecomputedDistances.from_graphs(pair)
        gaps = [abs(one / other.scale - other.matrix.numpy()).max() for one, other in zip(serial, shared, strict=True)]
        same = max(gaps) < 1e-12
        problem = spiral(n, k, "precomputed")
        quality = problem.quality(bench.library(problem, GWOptions())()())
        verdict = said(statistics.median(times["before"]) / statistics.median(times["after"]), same)
        name = f"all pairs, spiral {n} x {k}"
        timed = times["before"], times["after"]
        found.append(row("8 parallel all-pairs preparation", "library", name, *timed, quality, quality, verdict))
    return found


def starts(bench: Bench) -> list[Row]:
    """The sampled loop of the library from the product plan, annealed, and from landmarks; over seeds."""
    found = []
    for n, k, seeds in [(400, 500, 3)] if bench.quick else [(400, 500, 10), (1000, 1200, 10), (4000, 5000, 3)]:
        problem = spiral(n, k, "landmark")
        runs = {"before": replace(CRUDE, coarse=None), "after": CRUDE}
        times: dict[str, list[float]] = {name: [] for name in runs}
        quality: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
        for seed in range(seeds):
            for name, options in runs.items():
                began = time.perf_counter()
                answer = bench.library(problem, options, random_state=seed)()
                times[name].append(time.perf_counter() - began)
                rho, value = problem.quality(answer())
                quality[name].append((rho, value or 0.0))
        right = {name: sum(rho > RIGHT for rho, _ in each) for name, each in quality.items()}
        middle = {name: tuple(map(statistics.median, zip(*each, strict=True))) for name, each in quality.items()}
        verdict = f"right basin {right['before']} of {seeds} before, {right['after']} of {seeds} after"
        phase, timed = "9 landmark starts, lifted potentials", (times["before"], times["after"])
        found.append(row(phase, "library", problem.name, *timed, middle["before"], middle["after"], verdict))
    return found


def gradient(bench: Bench) -> list[Row]:
    """Sampled against exact gradients, both from landmark starts."""
    made = [lambda: spiral(400, 500, "landmark")]
    if not bench.quick:
        made += [lambda: spiral(4000, 5000, "landmark"), lambda: random(2000, 2500)]
    found = []
    for make in made:
        problem = make()
        calls = bench.library(problem, SAMPLED), bench.library(problem, replace(SAMPLED, gradient="exact"))
        found.append(bench.compared("10 exact factored gradient", "library", problem, *calls))
    return found


MEMORY = """
import re, sys
from pathlib import Path
import torchgw
from torchgw.spaces.graph import neighbour_graph
n, k, strategy = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
X, Y = torchgw.datasets.make_spiral(n)[0], torchgw.datasets.make_swiss_roll(k, random_state=1)[0]
spaces = [torchgw.LandmarkDistances(neighbour_graph(points)) for points in (X, Y)]
torchgw.gw_align(X[::10], Y[::10], random_state=0)
def read(name):
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 2**10
Path("/proc/self/clear_refs").write_text("5")
before = read("VmRSS")
torchgw.gw_align(*spaces, epsilon=5e-3, options=torchgw.GWOptions(strategy=strategy), random_state=0).argmax()
print(read("VmHWM") - before)
"""


def streaming(bench: Bench) -> list[Row]:
    """Score and plan stored against neither."""
    from benchmarks.scale import isolated

    found = []
    for n, k in [(400, 500)] if bench.quick else [(2000, 2500), (4000, 5000)]:
        problem = spiral(n, k, "landmark")
        options = [GWOptions(strategy=name) for name in ("dense", "streaming")]
        measured = bench.compared(
            "11 streaming score", "library", problem, *(bench.library(problem, chosen) for chosen in options)
        )
        if bench.device == "cpu":
            measured["before_mib"], measured["after_mib"] = (isolated(MEMORY, n, k, o.strategy) for o in options)
        found.append(measured)
    return found


def tiles(bench: Bench) -> list[Row]:
    """A streamed solve over all pairs of points, and without the tiles that hold no mass."""
    found = []
    for n, k in [(4000, 5000)] if bench.quick else [(4000, 5000), (20_000, 25_000)]:
        problem = spiral(n, k, "landmark")
        calls = [
            bench.library(
                problem, GWOptions(strategy="streaming", ladder=LadderOptions(omitted_mass=mass)), epsilon=1e-3
            )
            for mass in (0.0, None)
        ]
        found.append(bench.compared("12 tile skipping", "library", problem, *calls))
    return found


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
        show(rows[-1:])
    return rows


GROUPS: dict[str, Callable[[Bench], list[Row]]] = {
    "alone": alone,
    "all_but_it": all_but_it,
    "cache": cache,
    "preparation": preparation,
    "starts": starts,
    "gradient": gradient,
    "streaming": streaming,
    "tiles": tiles,
    "cumulative": cumulative,
}


def run(groups: list[str] | None = None, quick: bool = False, device: str = "cpu") -> None:
    """Run the groups, keep the stored rows of the others, and store the results."""
    unknown = set(groups or ()) - set(GROUPS)
    if unknown:
        raise SystemExit(f"groups must be among {', '.join(GROUPS)}, got {', '.join(sorted(unknown))}")
    on_gpu = device != "cpu"
    bench = Bench(device=device, backend="triton" if on_gpu else "eager", quick=quick)
    if quick:
        bench = replace(bench, max_iter=60, budget=2.0)
    name = "phases_gpu" if on_gpu else "phases"
    path = RESULTS / f"{name}.json"
    keep = groups is not None and not quick and path.exists()
    held: dict[str, list[Row]] = json.loads(path.read_text())["groups"] if keep else {}
    warnings.simplefilter("ignore")
    for group in groups or GROUPS:
        torch.manual_seed(0)
        held[group] = GROUPS[group](bench)
        print(f"\n# {group}", flush=True)
        show(held[group])
        rows = [entry for key in GROUPS if key != "cumulative" for entry in held.get(key, [])]
        write(name, rows, quick=quick, cumulative=held.get("cumulative", []), groups=held)

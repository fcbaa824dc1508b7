"""The groups of phases, one function each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.baselines import plain
from benchmarks.baselines.sampled import ALL_ON, Switches
from benchmarks.common import interleaved
from benchmarks.phases.bench import SWITCHES, Bench, only, without
from benchmarks.phases.comparison import Measured, Row, in_turns, row
from benchmarks.phases.work import graphs, random, spiral
from benchmarks.scale import isolated
from torchgw import GWOptions, LadderOptions, PrecomputedDistances, SamplingOptions

RIGHT = 0.9  # signed Spearman correlation above which a run is in the right basin
LARGE, LARGEST = 2000, 5000
FEW = 10  # outer iterations of large problems
SMALL = "1e", "1f", "4"  # phases left out there: work that does not grow with N K, and what needs many iterations
AT_MOST = "1c", "3", "6", "7"  # those that matter at the largest
SAMPLED = GWOptions(gradient="sampled", strategy="dense")
CRUDE = replace(SAMPLED, sampling=SamplingOptions(n_control=0))


def alone(bench: Bench) -> list[Row]:
    """Each switch on top of the plain loop."""
    problem = spiral(200, 250, "landmark") if bench.quick else spiral(400, 500, "landmark")
    base = bench.loop(problem, Switches())
    return [
        bench.compared(phase, "alone", problem, base, bench.loop(problem, only(names)), least=3)
        for phase, names in SWITCHES.items()
    ]


def all_but_it(bench: Bench) -> list[Row]:
    """Each switch taken out of the loop that has them all."""
    made = [lambda: spiral(200, 250, "landmark")]
    if not bench.quick:
        made = [lambda: spiral(400, 500, "landmark"), lambda: spiral(400, 500, "precomputed")]
        made += [lambda: random(2000, 2500)]
        made += [lambda: spiral(4000, 5000, "landmark"), lambda: random(5000, 6000)]
    found = []
    for make in made:
        problem = make()
        large, largest = (problem.spaces[0].size >= least for least in (LARGE, LARGEST))
        used = replace(bench, max_iter=FEW) if large else bench
        best = used.loop(problem, ALL_ON)
        for phase, names in SWITCHES.items():
            left_out = (large and phase.startswith(SMALL)) or (largest and not phase.startswith(AT_MOST))
            if not left_out:
                found.append(used.compared(phase, "all but it", problem, used.loop(problem, without(names)), best))
                print(f"{problem.name}: {phase} {found[-1]['ratio']:.2f}x", flush=True)
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
        pair, problem = list(graphs(n, k)[:2]), spiral(n, k, "precomputed")
        ways = {
            "before": lambda pair=pair: list(map(PrecomputedDistances, plain.all_pairs_one_by_one(pair))),
            "after": lambda pair=pair: PrecomputedDistances.from_graphs(pair),
        }
        times = interleaved(ways, 3)
        sides = {}
        for name, way in ways.items():
            one, other = way()
            answer = replace(bench, max_iter=FEW).loop(replace(problem, spaces=(one, other)), ALL_ON).call(0)()
            quality = problem.quality(answer)
            sides[name] = Measured(times[name], [quality] * 3, [answer.iterations] * 3)
        name = f"all pairs, spiral {n} x {k}"
        found.append(row("8 parallel all-pairs preparation", "library", name, sides["before"], sides["after"]))
    return found


def starts(bench: Bench) -> list[Row]:
    """The sampled loop of the library from the product plan, annealed, and from landmarks; a seed each round."""
    found = []
    for n, k, seeds in [(400, 500, 3)] if bench.quick else [(400, 500, 10), (1000, 1200, 5), (4000, 5000, 2)]:
        problem = spiral(n, k, "landmark")
        runs = {"before": replace(CRUDE, coarse=None), "after": CRUDE}
        sides = in_turns(problem, {name: bench.library(problem, o) for name, o in runs.items()}, 0.0, least=seeds)
        right = {name: sum(rho > RIGHT for rho, _ in side.quality) for name, side in sides.items()}
        verdict = f"right basin {right['before']} of {seeds} before, {right['after']} of {seeds} after"
        phase = "9 landmark starts, lifted potentials"
        found.append(row(phase, "library", problem.name, sides["before"], sides["after"], verdict))
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
        found.append(bench.compared("10 exact gradient", "library", problem, *calls))
    return found


MEMORY = """
import re, sys
from pathlib import Path
import torchgw
from torchgw.spaces.graph import neighbour_graph
n, k, strategy = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
X, Y = torchgw.datasets.make_spiral(n)[0], torchgw.datasets.make_swiss_roll(k, random_state=1)[0]
spaces = [torchgw.LandmarkDistances(neighbour_graph(points)) for points in (X, Y)]
torchgw.gw_align(X[::10], Y[::10], device="cpu", random_state=0)
def read(name):
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 2**10
Path("/proc/self/clear_refs").write_text("5")
before = read("VmRSS")
options = torchgw.GWOptions(strategy=strategy)
torchgw.gw_align(*spaces, epsilon=5e-3, options=options, device="cpu", random_state=0).argmax()
print(read("VmHWM") - before)
"""


def streaming(bench: Bench) -> list[Row]:
    """Score and plan stored against neither."""
    found = []
    for n, k in [(400, 500)] if bench.quick else [(2000, 2500), (4000, 5000)]:
        problem = spiral(n, k, "landmark")
        names = {"before": "dense", "after": "streaming"}
        runs = {side: bench.library(problem, GWOptions(strategy=name)) for side, name in names.items()}
        sides = in_turns(problem, runs, bench.budget)
        memory = None
        if bench.device == "cpu" and Path("/proc/self/clear_refs").exists():
            memory = isolated(MEMORY, n, k, "dense"), isolated(MEMORY, n, k, "streaming")
        both = sides["before"], sides["after"]
        found.append(row("11 streaming score", "library", problem.name, *both, memory=memory))
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

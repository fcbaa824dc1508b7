"""The groups of problems, each judged in a few lines of the table."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from scipy.stats import spearmanr

from benchmarks import problems
from benchmarks.common import run_groups
from benchmarks.kinds import graphs
from benchmarks.kinds.solve import (
    CLOSE,
    EPSILONS,
    EQUAL,
    FROM_TRUTH,
    GRADIENT,
    MOST,
    OURS,
    PROXIMAL,
    TRUTH,
    Contest,
    Found,
    Right,
    by_adjacency,
    conditional_gradient,
    matching,
    ours,
    own,
    peer,
    proximal_point,
    ratio,
    scaled,
    value_of,
)
from benchmarks.quality import Row, clouds, geodesics, objective, row
from benchmarks.scale import isolated
from torchgw import AmbiguityWarning, ConvergenceWarning, RegularizationWarning

SEEDS = 20
NOISE = (0.0, 0.01, 0.03)  # of clouds, in standard deviations
DESCENDED = 1000  # points of a cloud up to which the descent from the truth is made
LIMIT = 300.0  # seconds for a problem by itself
EXCUSES = {
    each.__name__ for each in (AmbiguityWarning, RegularizationWarning, ConvergenceWarning)
}  # of a plan that is not it
SMALL = 150  # points of a problem, at most, in a quick run


def say(line: str) -> None:
    """One line about a problem, while the others run."""
    print(line, file=sys.stderr, flush=True)


def report(contest: Contest) -> Contest:
    """Say what was found."""
    found = ", ".join(f"{name} {f.value:.4g} ({f.right:.3f}, {f.seconds:.1f} s)" for name, f in contest.found.items())
    say(f"{contest.name}: {contest.over():.3g}x; {found} {' '.join(contest.warned)}")
    return contest


def of_graphs(pair: graphs.GraphPair) -> Contest:
    """A pair of graphs by all solvers."""
    A, B = scaled(pair.A), scaled(pair.B)
    truth = matching(pair.match)
    result, seconds, warned = by_adjacency(pair.A, pair.B)
    descent, descent_seconds, _ = by_adjacency(pair.A, pair.B, epsilon=0, init=truth.toarray())
    found = {
        TRUTH: Found(objective(A, B, truth), 1.0, 0.0),
        OURS: own(A, B, result, seconds, pair.right),
        FROM_TRUTH: own(A, B, descent, descent_seconds, pair.right),
        GRADIENT: peer(A, B, conditional_gradient, pair.right),
        PROXIMAL: peer(A, B, proximal_point, pair.right),
    }
    return report(Contest(pair.name, len(A), found, warned))


def times(contests: Sequence[Contest]) -> str:
    """Median seconds of ours and of the peers."""
    names = [name for name in (OURS, GRADIENT, PROXIMAL) if name in contests[0].found]
    medians = (statistics.median(c.found[name].seconds for c in contests if name in c.found) for name in names)
    return ", ".join(f"{name} {seconds:.2g} s" for name, seconds in zip(names, medians, strict=True))


def share(count: int, of: int, least: float) -> tuple[str, bool]:
    """How many of how many, and whether that is at least the share ``least``."""
    return f"{count} of {of}", count >= least * of


def graph_rows(what: str, contests: list[Contest], least: float) -> list[Row]:
    """Three lines for all pairs, and one for each kind of graph."""
    of = len(contests)
    worst = max(contests, key=Contest.over)
    good, good_met = share(sum(c.as_good for c in contests), of, least)
    beside, beside_met = share(sum(c.no_worse_than_peers for c in contests), of, 1)
    right, right_met = share(sum(c.finds_the_points for c in contests), of, least)
    others = [c for c in contests if not c.as_many_right]
    lower = sum(c.over(FROM_TRUTH) < 1 - EQUAL for c in others)
    equal = sum(c.finds_the_points for c in others) - lower
    text = f"{good} (worst {worst.over():.3g}x: {worst.name}); median seconds: {times(contests)}"
    above = max(c.over(GRADIENT, PROXIMAL) for c in contests)
    return [
        row(
            f"{what}: value over the lowest known",
            f"<= {CLOSE} in {least:.0%}",
            text,
            good_met,
            contests=[c.detail() for c in contests],
        ),
        row(
            f"{what}: value over POT's",
            f"never above 1; its proximal point has one epsilon of {len(EPSILONS)} beyond {MOST} nodes",
            f"{beside} (worst {above:.3g}x)",
            beside_met,
        ),
        row(
            f"{what}: nodes right",
            f"as for the descent from the truth, within 0.02, or a value no higher, in {least:.0%}",
            f"{right} ({lower} by a lower value, {equal} by an equal one)",
            right_met,
        ),
    ]


def kind_row(kind: str, contests: list[Contest]) -> Row:
    """One line for a kind of graph."""
    good = sum(c.as_good for c in contests)
    worst = max(contests, key=Contest.over)
    points = [c.points for c in contests]
    case = f"{kind}, {min(points)}-{max(points)} nodes" if min(points) < max(points) else f"{kind}, {points[0]} nodes"
    text = f"{good} of {len(contests)} (worst {worst.over():.3g}x), {times(contests)}"
    return row(case, f"value <= {CLOSE} x the lowest known in 90 %", text, good >= 0.9 * len(contests))


def pairs_of(pairs: Iterable[graphs.GraphPair], what: str, least: float, quick: bool) -> list[Row]:
    """All pairs, or the small ones."""
    contests: dict[str, list[Contest]] = {}
    for pair in pairs:
        if not quick or len(pair.A) <= SMALL:
            contests.setdefault(pair.kind, []).append(of_graphs(pair))
    all_of_them = [contest for group in contests.values() for contest in group]
    rows = graph_rows(f"{what} by adjacency, {len(all_of_them)} pairs", all_of_them, least)
    return rows + [kind_row(kind, group) for kind, group in contests.items()]


def undirected(quick: bool) -> list[Row]:
    """A hundred pairs of graphs."""
    return pairs_of(graphs.undirected_pairs(), "graphs", 0.95, quick)


def directed(quick: bool) -> list[Row]:
    """Twenty pairs of directed graphs; POT by its solvers for asymmetric matrices."""
    return pairs_of(graphs.directed_pairs(), "directed graphs", 0.95, quick)


def of_cloud(n: int, d: int, noise: float) -> Contest:
    """A Gaussian cloud and its copy, on the distances that our default takes of them."""
    rng = np.random.default_rng(1000 * d + n)
    X = rng.normal(size=(n, d))
    Y, place = problems.rotated_copy(X, noise, rng)
    truth = matching(place)
    result, seconds, warned = ours(X, Y)
    assert result.known is not None
    spaces = [known.space for known in result.known]
    A, B = (scaled(space.rows(torch.arange(n)).numpy()) for space in spaces)

    def right(matched: np.ndarray) -> float:
        return float((matched == place).mean())

    found = {TRUTH: Found(objective(A, B, truth), 1.0, 0.0), OURS: own(A, B, result, seconds, right)}
    if n <= DESCENDED:
        descent, descent_seconds, _ = ours(*spaces, epsilon=0, init=truth.toarray())
        found[FROM_TRUTH] = own(A, B, descent, descent_seconds, right)
    if n <= 300:
        found[GRADIENT] = peer(A, B, conditional_gradient, right)
    return report(Contest(f"Gaussian cloud in R^{d}, N = {n}, noise {noise:.0%}", n, found, warned))


def truth_is_lowest(contest: Contest) -> bool:
    """Whether nothing that was tried has a lower value than the true matching."""
    return ratio(contest.lowest(), contest.found[TRUTH].value) >= 1 - EQUAL


def cloud_is_met(contest: Contest) -> bool:
    """Matched where the truth is the lowest known plan; elsewhere a value as low as the truth's, or a warning that
    speaks of it, and where the descent from the truth is known too, within 1 % of the lowest."""
    if truth_is_lowest(contest):
        return contest.found[OURS].right >= 0.99
    excused = contest.over(TRUTH) <= 1 + EQUAL or not EXCUSES.isdisjoint(contest.warned)
    return excused and (contest.as_good or FROM_TRUTH not in contest.found)


def gaussian(quick: bool) -> list[Row]:
    """Clouds of five dimensions, four sizes and three levels of noise (one at 6000 points), and `gw_align(X, Y)`."""
    found = []
    sizes = (300,) if quick else (300, 1000, 3000, 6000)
    for at, d in enumerate((2, 3, 10, 50, 200)):
        levels = {n: NOISE if n < 6000 else NOISE[at % 3 :][:1] for n in sizes}
        contests = [of_cloud(n, d, noise) for n in sizes for noise in levels[n]]
        met = [cloud_is_met(c) for c in contests]
        certain = [c for c in contests if truth_is_lowest(c)]
        least = f"matched >= {min(c.found[OURS].right for c in certain):.3f}" if certain else "nothing to match"
        peers = sum(c.found[GRADIENT].right >= 0.99 for c in certain if GRADIENT in c.found)
        text = (
            f"{sum(met)} of {len(met)}; {least} in the {len(certain)} where it is, slowest "
            f"{max(c.found[OURS].seconds for c in contests):.1f} s; POT of those of 300 points: {peers}"
        )
        required = (
            ">= 99 % matched where the truth is the lowest known plan, else a lower value or a warning of it, "
            f"<= {CLOSE} x the lowest known up to {DESCENDED} points"
        )
        case = f"Gaussian clouds in R^{d}, N = {', '.join(map(str, sizes))}, noise 0, 1, 3 %, from points"
        found.append(row(case, required, text, all(met), contests=[c.detail() for c in contests]))
    return found


Data = tuple[np.ndarray, np.ndarray, np.ndarray]  # two matrices, and where each point went


def others_on(A: np.ndarray, B: np.ndarray, data: Data, right: Right) -> dict[str, Found]:
    """What the truth, the descents from it and from our own search, and POT reach."""
    DX, DY, place = data
    truth = matching(place)
    descent, descent_seconds, _ = ours(DX, DY, epsilon=0, init=truth.toarray())
    searched, searched_seconds, _ = ours(DX, DY, epsilon=0, random_state=1000)
    return {
        TRUTH: Found(objective(A, B, truth), 1.0, 0.0),
        FROM_TRUTH: own(A, B, descent, descent_seconds, right),
        f"{OURS}, epsilon 0": own(A, B, searched, searched_seconds, right),
        GRADIENT: peer(A, B, conditional_gradient, right),
    }


def over_seeds(what: str, cases: Mapping[str, Data], quick: bool) -> list[Row]:
    """Our default from twenty seeds, dealt to the cases in turns, over the lowest that anything reaches on a case.

    One of the twenty may end above it, so at most one of any case.
    """
    ratios: dict[str, list[float]] = {}
    contests = []
    for number, (case, data) in enumerate(cases.items()):
        A, B = scaled(data[0]), scaled(data[1])

        def right(matched: np.ndarray, place: np.ndarray = data[2]) -> float:
            return float((matched == place).mean())

        others = others_on(A, B, data, right)
        defaults = []
        for seed in range(number, len(cases) if quick else SEEDS, len(cases)):
            result, seconds, warned = ours(*data[:2], random_state=seed)
            found = {OURS: own(A, B, result, seconds, right)} | others
            defaults.append(report(Contest(f"{what}, {case}, seed {seed}", len(A), found, warned)))
        lowest = min(contest.lowest() for contest in defaults)
        ratios[case] = [ratio(contest.found[OURS].value, lowest) for contest in defaults]
        contests += defaults
    every = [each for group in ratios.values() for each in group]
    good = sum(each <= CLOSE for each in every)
    groups = ", ".join(
        f"{case} {sum(each <= CLOSE for each in group)} of {len(group)} (worst {max(group):.3f}x)"
        for case, group in ratios.items()
    )
    above = statistics.median(1 / contest.over(GRADIENT) for contest in contests)
    text = (
        f"{good} of {len(every)}: {groups}; right {statistics.median(c.found[OURS].right for c in contests):.3f}; "
        f"POT's value {above:.3g}x ours; {times(contests)}"
    )
    required = (
        f"value <= {CLOSE} x the lowest of all starts, seeds and POT from 95 % of {len(every)} seeds, "
        f"dealt to the cases in turns: {', '.join(str(len(group)) for group in ratios.values())}"
    )
    detail = {"ratios": ratios, "contests": [contest.detail() for contest in contests]}
    return [row(what, required, text, good >= 0.95 * len(every), **detail)]


def cosine(quick: bool) -> list[Row]:
    """Power-law vectors against a rotated noisy copy, cosine distances given."""
    n, cases = 300 if quick else 2000, {}
    for noise in (0.1, 0.3, 0.5):
        X = problems.power_law_vectors(n, np.random.default_rng(0))
        Y, place = problems.rotated_copy(X, noise, np.random.default_rng(1))
        cases[f"noise {noise:g}"] = (problems.cosine_distances(X), problems.cosine_distances(Y), place)
    return over_seeds(f"cosine distances of power-law vectors in R^300, N = {n}", cases, quick)


def splits(quick: bool) -> list[Row]:
    """Two halves of the pixels of the same digits: of a checkerboard, or alternate columns."""
    cases = {}
    for name, (X, Y) in problems.pixel_splits(300 if quick else None).items():
        order = np.random.default_rng(0).permutation(len(X))
        cases[name] = (problems.distances(X), problems.distances(Y[order]), np.argsort(order))
    return over_seeds(f"halves of the pixels of {len(order)} digits", cases, quick)


def hops(quick: bool) -> list[Row]:
    """Hop counts on correlation graphs of two noisy views along a branching curve."""
    n, cases = 300 if quick else 1000, {}
    for seed, k in enumerate((5, 20, 50, 110)):
        X, Y, _, order = problems.branching_views(n, seed)
        cases[f"k = {k}"] = (problems.hop_distances(X, k), problems.hop_distances(Y, k), np.argsort(order))
    return over_seeds(f"hop counts, {n} points in 4 clusters", cases, quick)


def matrix(quick: bool) -> list[Row]:
    """Two distance matrices of 5000 points: of clouds, and of curves."""
    n = 500 if quick else 5000
    X = np.random.default_rng(0).normal(size=(n, 3))
    Y, place = problems.rotated_copy(X, 0.01, np.random.default_rng(1))
    DX, DY = problems.distances(X), problems.distances(Y)
    result, seconds, _ = ours(DX, DY)
    matched = np.asarray(result.argmax())
    value = value_of(scaled(DX), scaled(DY), result)
    truth = objective(scaled(DX), scaled(DY), matching(place))
    cloud = {"seconds": seconds, "right": float((matched == place).mean()), "value": value, "truth": truth}
    X, x, Y, y = clouds(n, n, 0)
    result, seconds, _ = ours(*geodesics(X, Y))
    curve = {"seconds": seconds, "rho": float(spearmanr(x, y[np.asarray(result.argmax())])[0]), "value": result.value}
    return [
        row(
            f"distance matrices of clouds in R^3, {n} x {n}, noise 1 %",
            f"value <= {CLOSE} x the truth's, <= 10 s",
            f"{value / truth:.3f}x, {cloud['right']:.3f} matched, {cloud['seconds']:.1f} s",
            value <= CLOSE * truth and cloud["seconds"] <= 10,
            **cloud,
        ),
        row(
            f"distance matrices of spiral and roll, {n} x {n}",
            "signed rho >= 0.998, <= 10 s",
            f"rho {curve['rho']:.4f}, {curve['seconds']:.1f} s",
            curve["rho"] >= 0.998 and curve["seconds"] <= 10,
            **curve,
        ),
    ]


SPARSE = """
import sys, time
import json
import numpy as np
import networkx as nx
from scipy import sparse
from torchgw import gw_align
from benchmarks.kinds.solve import matching
from benchmarks.quality import objective
kind, n = sys.argv[1], int(sys.argv[2])
rng = np.random.default_rng(0)
if kind == "power law":
    graph = nx.powerlaw_cluster_graph(n, 5, 0.3, seed=0)
else:
    graph = nx.random_geometric_graph(n, float(np.sqrt(10 / (np.pi * n))), seed=0)
A = sparse.csr_array(nx.to_scipy_sparse_array(graph, weight=None, dtype=float))
edges = np.array(graph.edges)
other = edges[rng.random(len(edges)) >= 0.025]
added = rng.integers(0, n, (len(edges) - len(other), 2))
order = rng.permutation(n)
match = np.argsort(order)
rows, columns = match[np.concatenate((other, added[added[:, 0] != added[:, 1]]))].T
B = sparse.csr_array(sparse.coo_array((np.ones(len(rows)), (rows, columns)), shape=(n, n)))
B = ((B + B.T) > 0).astype(float).tocsr()
del graph
before = peak()
began = time.perf_counter()
result = gw_align(A, B, distances="adjacency", random_state=0)
matched = np.asarray(result.argmax())
seconds = time.perf_counter() - began
print(json.dumps({
    "seconds": seconds, "gib": peak(), "before": before, "right": float((matched == match).mean()),
    "value": result.value, "matching": objective(A, B, matching(matched)), "truth": objective(A, B, matching(match)),
    "edges": len(edges), "status": result.status.name, "strategy": result.strategy,
}))
"""


def large_graphs(quick: bool) -> list[Row]:
    """Sparse graphs of 20000 nodes and 100000 edges, 2.5 % of them gone and as many others there; each by itself."""
    found = []
    for kind in ("power law", "geometric"):
        n = 1000 if quick else 20_000
        case = f"sparse {kind} graph, {n} nodes, about {5 * n} edges, 5 % of them other"
        required = f"value <= {CLOSE} x the truth's, <= 60 s, <= 4 GiB"
        try:
            got = isolated(SPARSE, kind, n, limit=LIMIT)
        except subprocess.TimeoutExpired:
            found.append(row(case, required, f"not done after {LIMIT:g} s", False))
            continue
        above = ratio(got["value"], got["truth"])
        text = f"{above:.3f}x, {got['right']:.3f} of nodes right, {got['seconds']:.1f} s, {got['gib']:.2f} GiB"
        found.append(row(case, required, text, above <= CLOSE and got["seconds"] <= 60 and got["gib"] <= 4, **got))
    return found


GROUPS: dict[str, Callable[[bool], list[Row]]] = {
    "matrix": matrix,
    "sparse": large_graphs,
    "graphs": undirected,
    "directed": directed,
    "clouds": gaussian,
    "cosine": cosine,
    "splits": splits,
    "hops": hops,
}


def run(groups: list[str] | None = None, quick: bool = False) -> None:
    """Measure the named groups (all by default), print the table and store it."""
    run_groups("kinds", {name: partial(group, quick) for name, group in GROUPS.items()}, groups, quick=quick)

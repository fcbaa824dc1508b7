"""Problems of 30 to 2000 points without entropy, from their matrices, against POT's conditional gradient.

Sixty problems of nine kinds; sizes and masses of their spaces are equal, or differ, in turns. Either side is given the
same matrices and masses and is timed in alternating rounds. POT starts from the product plan, and, apart from that,
from it and fifteen random plans, of whose ends the lowest counts; where that takes long, from as many as end in two
minutes and one more, so that all sixteen take longer still.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse.csgraph import dijkstra
from scipy.spatial.distance import cdist

from benchmarks import problems
from benchmarks.common import interleaved, paired, run_groups
from benchmarks.quality import geodesics, objective, row, timed
from torchgw import gw_align

Row = dict[str, Any]
Array = np.ndarray
MOST = {30: 5.0, 60: 5.0, 100: 2.0, 200: 1.0, 400: 0.5, 1000: 0.5, 2000: 0.5}  # times POT's seconds
OF_SIXTEEN = 0.5  # times the seconds of POT's sixteen starts
STARTS, LONG = 16, 120.0  # seconds, after which no further start is made
ROUNDS = {30: 15, 60: 15, 100: 9, 200: 5, 400: 3, 1000: 1, 2000: 1}
LOWER = 1 + 1e-6
ABSENT = {2000: ("trees", "blocks", "hops")}  # sixty problems in all


@dataclass(frozen=True)
class Small:
    """One problem: matrices (N, N), (K, K) over their largest entries, masses, and how the matrices are to be taken."""

    name: str
    DX: Array
    DY: Array
    p: Array
    q: Array
    distances: str = "precomputed"

    def ours(self) -> Any:
        """Our plan."""
        return gw_align(self.DX, self.DY, p=self.p, q=self.q, distances=self.distances, epsilon=0.0, random_state=0)

    def peer(self, plan: Array | None = None) -> Array:
        """POT's, from a plan."""
        import ot

        found = ot.gromov.gromov_wasserstein(self.DX, self.DY, self.p, self.q, "square_loss", G0=plan)
        return np.asarray(found)

    def starts(self) -> Iterator[Array]:
        """Random plans with the masses as marginals."""
        import ot

        rng = np.random.default_rng(len(self.p))
        for _ in range(STARTS - 1):
            yield np.asarray(ot.emd(self.p, self.q, rng.uniform(size=(len(self.p), len(self.q)))))

    def value(self, plan: Array) -> float:
        """The objective of a plan, by its own marginals."""
        return objective(self.DX, self.DY, plan)


def cloud(d: int, n: int, rng: np.random.Generator, squared: bool = False) -> Array:
    """Points of one skewed density in d dimensions."""
    D = cdist(x := rng.exponential(size=(n, d)), x)
    return D**2 if squared else D


def ring(n: int, rng: np.random.Generator) -> Array:
    """Distances along a noisy ring of uneven density."""
    angle = np.sort(rng.beta(1.5, 3.0, size=n)) * 2 * np.pi
    points = np.stack((np.cos(angle), np.sin(angle)), 1) + 0.02 * rng.normal(size=(n, 2))
    return geodesics(points)[0]


def tree(n: int, rng: np.random.Generator) -> Array:
    """Path lengths in a random tree with random lengths of edges."""
    lengths = np.zeros((n, n))
    for node in range(1, n):
        lengths[node, rng.integers(node)] = rng.uniform(0.5, 1.5)
    return np.asarray(dijkstra(lengths + lengths.T, directed=False))


def blocks(n: int, rng: np.random.Generator) -> Array:
    """Adjacency of a graph of four communities."""
    block = np.sort(rng.choice(4, size=n, p=(0.4, 0.3, 0.2, 0.1)))
    inside = min(20 / n, 0.5)
    edges = np.triu(rng.uniform(size=(n, n)) < np.where(block[:, None] == block, inside, inside / 10), 1)
    return (edges | edges.T).astype(float)


def hops(n: int, rng: np.random.Generator) -> Array:
    """Hop counts between points of clusters along a branching curve."""
    return problems.hop_distances(problems.branching_views(n, int(rng.integers(2**31)))[0], max(n // 20, 5))


def weights(n: int, rng: np.random.Generator) -> Array:
    """Random symmetric weights."""
    W = np.triu(rng.uniform(size=(n, n)), 1)
    return W + W.T


KINDS: dict[str, Callable[[int, np.random.Generator], Array]] = {
    "cloud in R^2": partial(cloud, 2),
    "cloud in R^3": partial(cloud, 3),
    "cloud in R^10": partial(cloud, 10),
    "ring": ring,
    "trees": tree,
    "blocks": blocks,
    "hops": hops,
    "weights": weights,
    "squared": partial(cloud, 3, squared=True),
}
ADJACENCY = ("blocks", "weights")


def problem(kind: str, n: int) -> Small:
    """Two spaces of a kind: of n points each, or n and a fifth more, or with unequal masses."""
    place = list(KINDS).index(kind)
    turn = (place + list(MOST).index(n)) % 3
    rng = np.random.default_rng((n, place))
    k = n + n // 5 if turn == 1 else n
    DX, DY = (KINDS[kind](size, rng) for size in (n, k))
    p, q = (rng.uniform(0.2, 1.0, size) if turn == 2 else np.ones(size) for size in (n, k))
    how = "adjacency" if kind in ADJACENCY else "precomputed"
    return Small(kind, DX / DX.max(), DY / DY.max(), p / p.sum(), q / q.sum(), how)


def measured(kind: str, n: int) -> Row:
    """Both sides on one problem."""
    case, last = problem(kind, n), dict[str, Any]()
    calls = {"ours": lambda: last.update(ours=case.ours()), "POT": lambda: last.update(POT=case.peer())}
    times = interleaved(calls, ROUNDS[n], warm=n < 1000)
    ours, spent = (statistics.median(times[side]) for side in ("ours", "POT"))
    first = {"ours": last["ours"].value, "POT": case.value(last["POT"])}
    found = {"kind": kind, "ratio": paired(times["ours"], times["POT"]), "ours": ours, "POT": spent}
    ends = [first["POT"]]
    for start in case.starts():
        if spent > LONG:
            break
        plan, seconds = timed(partial(case.peer, start))
        ends.append(case.value(plan))
        spent += seconds
    return found | {
        "starts": len(ends),
        "of sixteen": ours / spent,
        "value": first["ours"] / first["POT"],
        "value of sixteen": first["ours"] / min(ends),
    }


def of_size(n: int) -> list[Row]:
    """The line of one size."""
    runs = [measured(kind, n) for kind in KINDS if kind not in ABSENT.get(n, ())]
    worst = max(runs, key=lambda run: run["ratio"])
    slow = [run for run in runs if run["ratio"] > MOST[n] or run["of sixteen"] > OF_SIXTEEN]
    high = [run for run in runs if run["value"] > LOWER or run["value of sixteen"] > LOWER]
    median = statistics.median(run["ratio"] for run in runs)
    above = max(run["value of sixteen"] for run in runs)
    fewest = min(run["starts"] for run in runs)
    starts = "the sixteen" if fewest == STARTS else f"{fewest} to sixteen starts, in two minutes"
    measured_text = (
        f"median {median:.2g}x, longest {worst['ratio']:.2g}x ({worst['kind']}), {len(slow)} of {len(runs)} longer; "
        f"values above {len(high)} (highest {above:.4f} of {starts})"
    )
    required = f"<= {MOST[n]:g}x POT's time, <= {OF_SIXTEEN:g}x of sixteen starts', no value above"
    return [row(f"{n} points, {len(runs)} kinds", required, measured_text, not slow and not high, runs=runs)]


GROUPS = {str(n): partial(of_size, n) for n in MOST}


def run(groups: list[str] | None = None) -> None:
    """Measure, print, store."""
    run_groups("small", GROUPS, groups)

"""The work that phases are measured on: pairs of spaces with a known matching, and judges of a plan between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from scipy.spatial.distance import cdist
from scipy.stats import spearmanr
from torch import Tensor

from benchmarks import problems
from benchmarks.baselines import plain
from torchgw import DijkstraDistances, LandmarkDistances, PrecomputedDistances
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.spaces.graph import neighbour_graph
from torchgw.types import DistanceProvider


class Answer(NamedTuple):
    """The matching (N,) of a run, its plan (N, K) where that can be stored, the value that the run itself found, and
    its outer and inner iterations."""

    match: np.ndarray
    plan: Tensor | None
    value: float | None = None
    iterations: tuple[int, int] = (0, 0)


Quality = tuple[float, float | None]  # signed Spearman correlation, value


@dataclass(frozen=True)
class Run:
    """What is timed, given a seed; it returns what its outcome amounts to, which is not. ``warm`` goes before."""

    call: Callable[[int], Callable[[], Answer]]
    warm: Callable[[], object] = lambda: None


@dataclass(frozen=True, eq=False)
class Problem:
    """Two spaces with the place of each point along what they share, and exact distances to judge plans by."""

    name: str
    spaces: tuple[DistanceProvider, DistanceProvider]
    places: tuple[np.ndarray, np.ndarray]
    exact: Callable[[], tuple[Tensor, Tensor]]
    pairs: np.ndarray

    def quality(self, answer: Answer) -> Quality:
        """Signed Spearman correlation of the matching, and value."""
        x, y = self.places
        return float(spearmanr(x, y[answer.match])[0]), self.value(answer)

    def value(self, answer: Answer) -> float | None:
        """The objective of a plan on exact distances, by its own marginals; what the run says where none is stored."""
        if answer.plan is None:
            return answer.value
        plan, (DX, DY) = answer.plan, self.exact()
        p, q = plan.sum(1), plan.sum(0)
        cross = ((DX @ plan @ DY) * plan).sum()
        return float(p @ DX.square() @ p + q @ DY.square() @ q - 2 * cross)


KINDS: dict[str, Callable[[Any], DistanceProvider]] = {
    "landmark": LandmarkDistances,
    "dijkstra": DijkstraDistances,
    "uncached": plain.UncachedDijkstra,
    "precomputed": lambda graph: PrecomputedDistances.from_graphs([graph])[0],
}


@cache
def graphs(n: int, k: int) -> tuple[Any, Any, np.ndarray, np.ndarray]:
    """Neighbour graphs of spiral and roll, with the angles."""
    X, x = make_spiral(n)
    Y, y = make_swiss_roll(k, random_state=1)
    return neighbour_graph(X), neighbour_graph(Y), x, y


@cache
def geodesics(n: int, k: int) -> tuple[Tensor, Tensor]:
    """All pairs of exact distances, scaled."""
    one, other = PrecomputedDistances.from_graphs(graphs(n, k)[:2])
    return one.matrix, other.matrix


def spiral(n: int, k: int, kind: str) -> Problem:
    """Spiral to Swiss roll on one kind of distances."""
    first, second, x, y = graphs(n, k)
    spaces = KINDS[kind](first), KINDS[kind](second)
    orders = np.argsort(x), np.argsort(y)
    pairs = np.array([[order[int(t * (len(order) - 1))] for order in orders] for t in (0, 0.5, 1)])
    return Problem(f"spiral {n} x {k}, {kind}", spaces, (x, y), partial(geodesics, n, k), pairs)


def random(n: int, k: int) -> Problem:
    """Two skewed clouds with Euclidean distance matrices."""
    X, Y, x, y = problems.skewed_clouds(n, k, seed=0)
    spaces = PrecomputedDistances(cdist(X, X)), PrecomputedDistances(cdist(Y, Y))
    known = np.random.default_rng(1).choice(n, 4, replace=False)
    pairs = np.stack((known, cdist(x[known], y).argmin(1)), 1)
    places = x[:, 0], y[:, 0]
    return Problem(
        f"random {n} x {k}, precomputed", spaces, places, lambda: (spaces[0].matrix, spaces[1].matrix), pairs
    )


def emptied(spaces: tuple[DistanceProvider, DistanceProvider]) -> tuple[DistanceProvider, DistanceProvider]:
    """The same spaces, whose caches have forgotten the last run."""
    for space in spaces:
        if isinstance(space, DijkstraDistances):
            space.cache.clear()
    return spaces

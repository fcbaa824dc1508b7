"""One problem solved by us and by peers: values of the plans by an evaluation of our own, points right, seconds.

All plans of a problem are judged on the same two matrices, each divided by its largest entry as the library divides
them. Peers get these matrices, uniform masses and the product plan to start from.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

from benchmarks.quality import objective
from torchgw import GWResult, gw_align

TRUTH, OURS, FROM_TRUTH = "truth", "ours", "ours from the truth"
GRADIENT, PROXIMAL = "POT conditional gradient", "POT proximal point"
EPSILONS = (5e-3, 2e-2, 1e-1)  # of proximal point steps on matrices whose largest entry is 1: the lowest plan counts
STEPS, INNER = 100, 50  # proximal point steps, and Sinkhorn iterations in each
MOST = 700  # points up to which all of them are tried, beyond the first alone
LARGE = 500  # points from which on peers have all threads
EQUAL, CLOSE = 1e-6, 1.01  # relative difference of equal values; how far above the lowest known value one may end
TINY = 1e-12  # what sums of numbers up to 1 leave of a value of 0, that of an exact copy

GRAPHS = "adjacency"

Right = Callable[[np.ndarray], float]


@dataclass(frozen=True)
class Found:
    """What a solver found.

    value : of the plan, without entropy
    right : share of points that the plan sends most mass from to the right ones
    seconds : of the call
    """

    value: float
    right: float
    seconds: float


@dataclass(frozen=True)
class Contest:
    """One problem and what each solver found, by the names above.

    name : which problem
    points : how many there are on the first side
    found : by name of the solver
    warned : classes of warnings of our default call
    """

    name: str
    points: int
    found: dict[str, Found]
    warned: list[str]

    def lowest(self, *names: str) -> float:
        """The lowest value of these solvers, of all when none is named."""
        return min(self.found[name].value for name in names or self.found if name in self.found)

    def over(self, *names: str) -> float:
        """How many times the lowest value of these solvers ours is."""
        return ratio(self.found[OURS].value, self.lowest(*names))

    @property
    def as_good(self) -> bool:
        """Whether ours is within 1 % of the lowest that is known."""
        return self.over() <= CLOSE

    @property
    def no_worse_than_peers(self) -> bool:
        """Whether ours is no higher than any peer's."""
        return self.over(GRADIENT, PROXIMAL) <= 1 + EQUAL

    @property
    def finds_the_points(self) -> bool:
        """Whether as many points are right as for the descent from the truth, within 2 %; or the plan found is as good
        or better, so that nothing in the matrices tells which of the two is right."""
        return self.as_many_right or self.over(FROM_TRUTH) <= 1 + EQUAL

    @property
    def as_many_right(self) -> bool:
        """Whether as many points are right as for the descent from the truth, within 2 %."""
        return self.found[OURS].right >= self.found[FROM_TRUTH].right - 0.02

    def detail(self) -> dict[str, Any]:
        """What is stored."""
        return asdict(self)


def ratio(value: float, other: float) -> float:
    """How many times the other a value is; two values that are nothing but rounding are equal."""
    return (abs(value) + TINY) / (abs(other) + TINY)


def scaled(D: np.ndarray) -> np.ndarray:
    """A matrix by its largest entry, as the library takes it."""
    return np.asarray(D, dtype=np.float64) / np.abs(D).max()


def matching(match: np.ndarray) -> sparse.csr_array:
    """The plan (N, N) of a matching with uniform masses."""
    n = len(match)
    return sparse.csr_array((np.full(n, 1 / n), (np.arange(n), match)), shape=(n, n))


def thinned(T: np.ndarray) -> Any:
    """A plan without entries that cannot matter, sparse where few are left: a matching costs N^2 then, not N^3."""
    kept = 1e-16 * T.max() < T
    return sparse.csr_array(np.where(kept, T, 0)) if kept.mean() < 0.02 else T


def ours(X: Any, Y: Any, **given: Any) -> tuple[GWResult, float, list[str]]:
    """Our result, its seconds, and which warnings it gave."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        began = time.perf_counter()
        result = gw_align(X, Y, **({"random_state": 0} | given))
        seconds = time.perf_counter() - began
    return result, seconds, sorted({warning.category.__name__ for warning in caught})


def value_of(A: np.ndarray, B: np.ndarray, result: GWResult) -> float:
    """The value of our plan on two scaled matrices; beyond 2000 points that of a blurred plan is the library's own."""
    T = thinned(result.plan)
    return result.value if len(A) > 2000 and not sparse.issparse(T) else objective(A, B, T)


def by_adjacency(A: np.ndarray, B: np.ndarray, **given: Any) -> tuple[GWResult, float, list[str]]:
    """Our result on two graphs by their adjacency."""
    return ours(A, B, distances=GRAPHS, **given)


def rounded(T: np.ndarray) -> np.ndarray:
    """A plan with exact uniform marginals beside one that nearly has them (Altschuler et al., 2017, algorithm 2)."""
    p, q = (np.full(size, 1 / size) for size in T.shape)
    T = T * np.minimum(1, p / T.sum(1))[:, None]
    T = T * np.minimum(1, q / T.sum(0))
    row, column = p - T.sum(1), q - T.sum(0)
    return T + np.outer(row, column) / row.sum() if row.sum() > 1e-15 else T


def conditional_gradient(gromov: Any, A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """POT's Frank-Wolfe from the product plan."""
    p, q = (np.full(len(D), 1 / len(D)) for D in (A, B))
    symmetric = bool((A == A.T).all() and (B == B.T).all())
    return np.asarray(gromov.gromov_wasserstein(A, B, p, q, "square_loss", symmetric=symmetric))


def proximal_point(gromov: Any, A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """The lowest of POT's proximal point iterations from the product plan, over `EPSILONS`, of which the first alone
    beyond `MOST` points."""
    p, q = (np.full(len(D), 1 / len(D)) for D in (A, B))
    settings = {
        "solver": "PPA",
        "max_iter": STEPS,
        "numItermax": INNER,
        "symmetric": bool((A == A.T).all() and (B == B.T).all()),
    }
    plans = []
    for epsilon in EPSILONS if len(A) <= MOST else EPSILONS[:1]:
        T = gromov.entropic_gromov_wasserstein(A, B, p, q, "square_loss", epsilon=epsilon, **settings)
        if np.isfinite(T).all() and T.sum() > 0.5:
            plans.append(rounded(np.asarray(T)))
    if not plans:
        raise RuntimeError("no proximal point iteration ended in a plan")
    return min(plans, key=lambda T: objective(A, B, T))


def peer(
    A: np.ndarray, B: np.ndarray, call: Callable[[Any, np.ndarray, np.ndarray], np.ndarray], right: Right
) -> Found:
    """What a method of POT's finds between two scaled matrices; small products with one thread, as ours have."""
    from ot import gromov

    with warnings.catch_warnings(), threadpool_limits(1 if len(A) < LARGE else None):
        warnings.simplefilter("ignore")
        began = time.perf_counter()
        T = call(gromov, A, B)
        seconds = time.perf_counter() - began
    return Found(objective(A, B, thinned(T)), right(T.argmax(1)), seconds)


def own(A: np.ndarray, B: np.ndarray, result: GWResult, seconds: float, right: Right) -> Found:
    """What our result is on two scaled matrices."""
    return Found(value_of(A, B, result), right(np.asarray(result.argmax())), seconds)

"""A lower bound of every plan's value, and the lowest plan, of spaces whose
centred distances have few directions.

With D_X = A + u 1^T + 1 u^T, A p = 0, A = P diag(alpha) P^T, likewise D_Y =
B + v 1^T + 1 v^T, B = Q diag(beta) Q^T, and the cross-covariance W = P^T T
Q (r, t) of a plan T with marginals p and q,

    F(T) = const - 4 <u v^T, T> - sum_kl c_kl W_kl^2,    c_kl = 2 alpha_k beta_l.

In a box of W with centre m and half widths h a square is at most 2 m w -
m^2 + h^2, by its chord, so that where no c_kl is negative the value is at
least that of a linear transport problem, whose dual potentials prove it:

    F(T) >= const + <-4 u v^T - 2 P (c m) Q^T, T> + sum_kl c_kl (m_kl^2 - h_kl^2).

Boxes are halved, the lowest first, until the lowest bound is near the
lowest value; the ends of linear problems are plans. Squared Euclidean
distances in d dimensions have d directions, c_kl > 0.

What is left of small eigenvalues moves F by at most twice their sums times
the largest of the other space, because no row and no column of W, whose
norm is at most one, has squares that sum to more.

F is concave then: between few points of equal masses the best permutation
is the optimum.

Memoli's third bound holds for all spaces: points by the distributions of
their distances, transported.

    F(T) >= min over plans S of <Omega, S>,    Omega_ij = W_2(D_X[i, .], D_Y[j, .])^2 = int (quantile_i - quantile_j)^2
         >= min over plans S of sum_ij |mean_i - mean_j|^2 S_ij / parts,

the means of quantile functions over equal parts of [0, 1], by Jensen's
inequality. Column potentials of the linear problem prove the bound, optimal
or not.

Sources: A. Land, A. Doig, "An automatic method of solving discrete
programming problems", 1960; J. Falk, R. Soland, "An algorithm for separable
nonconvex programming problems", 1969 (chords); H. Maron, Y. Lipman,
"(Probably) concave graph matching", 2018; F. Memoli, "Gromov-Wasserstein
distances and the metric approach to object matching", 2011, section 6.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import time
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from torchgw.objective.bounds import PARTS, lowest_cost, monotone_coupling, quantiles
from torchgw.objective.exact import mean_squares
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.solvers.assignment import AssignmentProblem
from torchgw.solvers.linear_oracle import equal_masses, solve_transport
from torchgw.solvers.minimum_cost_flow import TransportError
from torchgw.solvers.transport_costs import DenseCost
from torchgw.spaces.low_rank import centred_eigenpairs
from torchgw.types import Array, DistanceProvider

logger = logging.getLogger("torchgw")

# Of the largest eigenvalue, and of the root mean square distance: float32
# leaves that.
SMALL = 1e-6
ROUNDING = 1e-12  # of mean squared distances, in bounds
QUANTILE_ROUNDING = 1e-9  # of the largest squared distance
SETTLED = 1e-9  # of mean squared distances: values are known no better
FEW = 8  # points, of which all permutations are tried


class Directions:
    """Symmetric distances between points of masses p (N,), of sum one,
    centred by these.

    O(N r^2) work for distances with factors, else O(N^3).

    values, vectors : eigenvalues (r,) and P (N, r), orthonormal by the
        masses.
    linear : u (N,).
    mean : u . p.
    square : mean squared distance.
    remainder : sum of the absolute eigenvalues that were left out.
    """

    def __init__(self, space: DistanceProvider, p: Tensor) -> None:
        space = space.to(p.device, p.dtype)
        values, vectors, u = centred_eigenpairs(space, p)
        size = values.abs()
        self.linear, self.mean = u.cpu().numpy(), float(u @ p)
        self.square = max(float(mean_squares(space, p) @ p), 0.0)
        kept = size > SMALL * max(float(size.max()), math.sqrt(self.square))
        self.values, self.vectors = values[kept].cpu().numpy(), vectors[:, kept].cpu().numpy()
        self.remainder = float(size[~kept].sum())


@dataclass(frozen=True)
class GlobalBound:
    """What is known of all plans.

    lower : no plan has a lower value.
    value : of the lowest plan that was found.
    plan : that one (N, K), in SciPy's CSR format; None where none lower
        than the one known was.
    """

    lower: float
    value: float
    plan: csr_array | None

    def add(self, cross: CrossCovariance, plan: csr_array) -> GlobalBound:
        """With one more plan of a linear problem."""
        value = cross.value(plan)
        return replace(self, value=value, plan=plan) if value < self.value else self


class CrossCovariance:
    """F as a function of W, see above, between symmetric distances and
    masses (N,), (K,), all positive. Boxes of W are bounded, no plans: so this
    is no `Problem`, which is linearised at plans.

    x, y : directions of both spaces.
    p, q : masses, of sum one.
    weights : c (r, t).
    constant : const.
    square : mean squared distances of both.
    slack : by how much a value may be off, by what is left out and by
        rounding.
    negligible : no value up to this is told from zero.
    is_concave : whether F is, but for what is left out.
    is_enumerable : whether the optimum is one of few permutations.
    """

    def __init__(self, source: DistanceProvider, target: DistanceProvider, p: Tensor, q: Tensor) -> None:
        self.spaces, p, q = (source, target), p / p.sum(), q / q.sum()
        self.p, self.q = p.numpy(), q.numpy()
        x, y = self.x, self.y = Directions(source, p), Directions(target, q)
        self.weights = 2 * np.outer(x.values, y.values)
        self.square = x.square + y.square
        self.constant = self.square - 4 * x.mean * y.mean
        largest = [max(np.abs(side.values).max(initial=0), side.remainder) for side in (y, x)]
        left = x.remainder * largest[0] + y.remainder * largest[1]
        self.slack = ROUNDING * self.square + 2 * float(left)
        self.negligible = SETTLED * self.square + self.slack
        self.is_concave = bool((self.weights >= 0).all())
        few = len(p) <= FEW and equal_masses(self.p, self.q)
        self.is_enumerable = few and self.is_concave

    def cost(self, middle: Array) -> Array:
        """Of the linear problem around W = ``middle`` (r, t): (N, K)."""
        found: Array = self.x.vectors @ (-2 * self.weights * middle) @ self.y.vectors.T
        found -= 4 * np.outer(self.x.linear, self.y.linear)
        return found

    def covariance(self, plan: csr_array) -> Array:
        """W (r, t) of a plan."""
        return np.asarray(self.x.vectors.T @ (plan @ self.y.vectors))

    def value(self, plan: csr_array) -> float:
        """F of a plan, as far as it is by W."""
        linear = -4 * float(self.x.linear @ (plan @ self.y.linear))
        return self.constant + linear - float((self.weights * self.covariance(plan) ** 2).sum())

    def ranges(self) -> tuple[Array, Array]:
        """The least and the largest that each W_kl can be, (r, t): the
        masses of both in order, or against it."""
        low = -_largest_means(self.x.vectors, -self.y.vectors, self.p, self.q)
        return low, _largest_means(self.x.vectors, self.y.vectors, self.p, self.q)


def bound_globally(cross: CrossCovariance, known: float, gap: float, seconds: float) -> GlobalBound:
    """A bound within a share ``gap`` of the lowest value, where F is
    concave, or as near as some ``seconds`` allow; ``known`` is the value of
    a plan. Ctrl-C ends it as they do."""
    began, made, best = time.perf_counter(), itertools.count(), GlobalBound(0.0, known, None)
    if cross.is_enumerable:
        source, target = (space.rows(torch.arange(space.size)) for space in cross.spaces)
        match = AssignmentProblem(source, target, True).best_order()
        best = best.add(cross, csr_array((cross.p.copy(), match, np.arange(len(match) + 1))))
        return replace(best, lower=max(best.value - cross.slack, 0.0))

    def make_box(low: Array, high: Array, above: float, dual: Array) -> tuple[float, int, Array, Array, Array]:
        nonlocal best
        lower, dual, plan = bound_box(cross, low, high, dual, (1 - gap) * best.value)
        best = best if plan is None else best.add(cross, plan)
        return max(lower, above), next(made), low, high, dual

    # The box of the lowest bound is the first of the heap.
    boxes = [make_box(*cross.ranges(), -math.inf, np.zeros(len(cross.q)))]
    try:
        while boxes[0][0] < (1 - gap) * best.value and time.perf_counter() - began < seconds:
            lower, _, low, high, dual = boxes[0]
            wide = cross.weights * (high - low) ** 2
            at = np.unravel_index(wide.argmax(), wide.shape)
            first, second = high.copy(), low.copy()
            first[at] = second[at] = (low[at] + high[at]) / 2
            halves = make_box(low, first, lower, dual), make_box(second, high, lower, dual)
            heapq.heapreplace(boxes, halves[0])
            heapq.heappush(boxes, halves[1])
    except KeyboardInterrupt:
        logger.info("interrupted: the bound so far is kept")
    # F is a sum of squares, and so not negative.
    return replace(best, lower=min(max(boxes[0][0], 0.0), best.value))


def bound_box(
    cross: CrossCovariance, low: Array, high: Array, dual: Array, enough: float
) -> tuple[float, Array, csr_array | None]:
    """What plans with W in a box (r, t) have at least, by column potentials
    (K,), and the plan that leads to these; none where given ones say
    ``enough``."""
    middle, half = (low + high) / 2, (high - low) / 2
    constant = cross.constant - cross.slack + float((cross.weights * (middle**2 - half**2)).sum())
    cost, masses = cross.cost(middle), (cross.p, cross.q)
    C, p, q = map(torch.from_numpy, (cost, *masses))
    lower = constant + float(lowest_cost(C, p, q, torch.from_numpy(dual)))
    if lower >= enough:
        return lower, dual, None
    try:
        plan, (_, dual), _ = solve_transport(DenseCost(cost, *masses), *masses, dual)
    except TransportError:
        return lower, dual, None
    return max(lower, constant + float(lowest_cost(C, p, q, torch.from_numpy(dual)))), dual, plan


def third_bound(source: DistanceProvider, target: DistanceProvider, p: Tensor, q: Tensor) -> float:
    """Memoli's third: no plan with the positive masses p (N,), q (K,),
    float64 and of sum one, has a lower value; at least zero. O(N^2 log N +
    K^2 log K) work, O(N^2 + K^2) memory, and a linear program."""
    sides = [
        quantiles(space.rows(torch.arange(len(mass))).to(mass), mass, PARTS) / PARTS**0.5
        for space, mass in ((source, p), (target, q))
    ]
    C, masses = FactoredCost.squared_distance(*sides).rows(slice(None)), (p.numpy(), q.numpy())
    try:
        _, (_, dual), _ = solve_transport(DenseCost(C.numpy(), *masses), *masses, np.zeros(len(q)))
    except TransportError:
        return 0.0
    largest = max(float(side.square().mean(1).max()) for side in sides) * PARTS
    return max(float(lowest_cost(C, p, q, torch.from_numpy(dual))) - QUANTILE_ROUNDING * largest, 0.0)


def _largest_means(x: Array, y: Array, p: Array, q: Array) -> Array:
    """The largest means (r, t) of x_ik y_jm over plans with marginals p
    (N,), q (K,)."""
    found = np.empty((x.shape[1], y.shape[1]))
    for k, m in np.ndindex(*found.shape):
        i, j = np.argsort(x[:, k], kind="stable"), np.argsort(y[:, m], kind="stable")
        row, column, share = monotone_coupling(p[i], q[j])
        found[k, m] = share @ (x[i[row], k] * y[j[column], m])
    return found

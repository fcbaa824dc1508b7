"""A lower bound of every plan's value, and the lowest plan, of spaces whose centred distances have few directions.

With D_X = A + u 1^T + 1 u^T, A p = 0, A = P diag(alpha) P^T, likewise D_Y = B + v 1^T + 1 v^T, B = Q diag(beta) Q^T,
and the cross-covariance W = P^T T Q (r, t) of a plan T with marginals p and q,

    F(T) = const - 4 <u v^T, T> - sum_kl c_kl W_kl^2,    c_kl = 2 alpha_k beta_l.

In a box of W with centre m and half widths h a square is at most 2 m w - m^2 + h^2, by its chord, so that where no c_kl
is negative the value is at least that of a linear transport problem, whose dual potentials prove it:

    F(T) >= const + <-4 u v^T - 2 P (c m) Q^T, T> + sum_kl c_kl (m_kl^2 - h_kl^2).

Boxes are halved, the lowest first, until the lowest bound is near the lowest value; the ends of linear problems are
plans, from which a few conditional gradients go down. Squared Euclidean distances in d dimensions have d directions,
c_kl > 0.

What is left of small eigenvalues moves F by at most twice their sums times the largest of the other space, because no
row and no column of W, whose norm is at most one, has squares that sum to more.

F is concave then: between few points of equal masses the best permutation is the optimum.

Sources: A. Land, A. Doig, "An automatic method of solving discrete programming problems", 1960; J. Falk, R. Soland, "An
algorithm for separable nonconvex programming problems", 1969 (chords); H. Maron, Y. Lipman, "(Probably) concave graph
matching", 2018.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from torchgw.diagnostics.status import History
from torchgw.kernels.blocks import parts
from torchgw.objective.bounds import c_transform, dual_bound, monotone_coupling
from torchgw.objective.exact import ExactGradient, dense, mean_squares
from torchgw.persist.watch import Watch
from torchgw.solvers.conditional_gradient import DenseProgram, conditional_gradient
from torchgw.solvers.iterate import Loop
from torchgw.solvers.linear_oracle import equal_masses, solve_transport
from torchgw.solvers.minimum_cost_flow import TransportError
from torchgw.solvers.transport_costs import DenseCost
from torchgw.types import Array, DistanceProvider

logger = logging.getLogger("torchgw")

SMALL = 1e-6  # of the largest eigenvalue, and of the root mean square distance: float32 leaves that
ROUNDING = 1e-12  # of mean squared distances, in bounds
SETTLED = 1e-9  # of mean squared distances: values are known no better
FEW = 8  # points, of which all permutations are tried
NEAR, STEPS = 1.05, 5  # of the lowest value: what steps are tried from, and how many


class Directions(NamedTuple):
    """Distances between points with mass, centred by their masses.

    values, vectors : eigenvalues (r,) and P (N, r), orthonormal by the masses.
    linear : u (N,).
    mean : u . p.
    square : mean squared distance.
    remainder : sum of the absolute eigenvalues that were left out.
    """

    values: Array
    vectors: Array
    linear: Array
    mean: float
    square: float
    remainder: float


@dataclass(frozen=True)
class GlobalBound:
    """What is known of all plans.

    lower : no plan has a lower value.
    value : of the lowest plan that was found.
    plan : that one (N, K), in SciPy's CSR format; None where none lower than the one known was.
    solved : linear problems that were solved.
    """

    lower: float
    value: float
    plan: csr_array | None
    solved: int


@dataclass(frozen=True)
class CrossCovariance:
    """F as a function of W, see above.

    spaces : of symmetric distances.
    x, y : their directions.
    p, q : masses (N,), (K,), positive, of sum one.
    """

    spaces: tuple[DistanceProvider, DistanceProvider]
    x: Directions
    y: Directions
    p: Array
    q: Array

    @classmethod
    def of(cls, source: DistanceProvider, target: DistanceProvider, p: Tensor, q: Tensor) -> CrossCovariance:
        """Of symmetric distances; the masses are positive."""
        p, q = p / p.sum(), q / q.sum()
        source, target = (space.to(p.device, p.dtype) for space in (source, target))
        x, y = find_directions(source, p), find_directions(target, q)
        return cls((source, target), x, y, p.cpu().numpy(), q.cpu().numpy())

    @property
    def weights(self) -> Array:
        """c (r, t)."""
        return 2 * self.x.values[:, None] * self.y.values

    @property
    def constant(self) -> float:
        """const."""
        return self.x.square + self.y.square - 4 * self.x.mean * self.y.mean

    @property
    def slack(self) -> float:
        """By how much a value may be off, by what is left out and by rounding."""
        largest = (max(np.abs(side.values).max(initial=0), side.remainder) for side in (self.y, self.x))
        left = self.x.remainder * next(largest) + self.y.remainder * next(largest)
        return ROUNDING * (self.x.square + self.y.square) + 2 * float(left)

    def is_negligible(self, value: float) -> bool:
        """Whether a value is no more than what it may be off by."""
        return value <= SETTLED * (self.x.square + self.y.square) + self.slack

    @property
    def is_concave(self) -> bool:
        """Whether F is, but for what is left out."""
        return bool((self.weights >= 0).all())

    @property
    def is_enumerable(self) -> bool:
        """Whether the optimum is one of few permutations."""
        return len(self.p) <= FEW and self.is_concave and equal_masses(self.p, self.q)

    def cost(self, middle: Array) -> Array:
        """Of the linear problem around W = ``middle`` (r, t): (N, K)."""
        found: Array = self.x.vectors @ (-2 * self.weights * middle) @ self.y.vectors.T
        found -= 4 * np.outer(self.x.linear, self.y.linear)
        return found

    def covariance(self, plan: csr_array) -> Array:
        """W (r, t) of a plan."""
        found: Array = self.x.vectors.T @ (plan @ self.y.vectors)
        return found

    def value(self, plan: csr_array, W: Array) -> float:
        """F of a plan, as far as it is by W."""
        linear = -4 * float(self.x.linear @ (plan @ self.y.linear))
        return self.constant + linear - float((self.weights * W**2).sum())

    def ranges(self) -> tuple[Array, Array]:
        """The least and the largest that each W_kl can be, (r, t): the masses of both in order, or against it."""
        shape = len(self.x.values), len(self.y.values)
        low, high = np.empty(shape), np.empty(shape)
        for at in np.ndindex(*shape):
            one, other = self.x.vectors[:, at[0]], self.y.vectors[:, at[1]]
            high[at] = _monotone_mean(one, other, self.p, self.q)
            low[at] = -_monotone_mean(one, -other, self.p, self.q)
        return low, high


class _Box(NamedTuple):
    """A box of W, first in line where its bound is lowest.

    lower : bound of the values in it.
    number : in order of their making.
    low, high : its ends (r, t).
    dual : column potentials (K,) near those of its linear problem.
    """

    lower: float
    number: int
    low: Array
    high: Array
    dual: Array


def find_directions(space: DistanceProvider, p: Tensor) -> Directions:
    """Of a space with symmetric distances and masses p (N,) of sum one. O(N r^2) with factors, else O(N^3)."""
    space, factors, root = space.to(p.device, p.dtype), space.factors(), p.sqrt()[:, None]
    if factors is None:
        D = dense(space)
        row = D @ p
        values, vectors = torch.linalg.eigh(root * (D - row[:, None] - row + p @ row) * root.T)
    else:
        F, signs = factors
        mean = p @ F
        row = (F * signs) @ mean
        basis, inner = torch.linalg.qr(root * (F - mean))
        values, turned = torch.linalg.eigh((inner * signs) @ inner.T)
        vectors = basis @ turned
    u, size = row - p @ row / 2, values.abs()
    square = max(float(mean_squares(space, p) @ p), 0.0)
    kept = size > SMALL * max(float(size.max()), math.sqrt(square))
    return Directions(
        values=values[kept].cpu().numpy(),
        vectors=(vectors[:, kept] / root).cpu().numpy(),
        linear=u.cpu().numpy(),
        mean=float(u @ p),
        square=square,
        remainder=float(size[~kept].sum()),
    )


def bound_globally(cross: CrossCovariance, known: float, gap: float, seconds: float) -> GlobalBound:
    """A bound within a share ``gap`` of the lowest value, where F is concave, or as near as some ``seconds`` allow;
    ``known`` is the value of a plan. Ctrl-C ends it as they do."""
    if cross.is_enumerable:
        return _enumerate_permutations(cross, known)
    began, made, search = time.perf_counter(), itertools.count(), _BoundSearch(cross, known)
    boxes = [search.make_box(*cross.ranges(), -math.inf, np.zeros(len(cross.q)), next(made), gap)]
    try:
        while boxes[0].lower < (1 - gap) * search.value and time.perf_counter() - began < seconds:
            box = boxes[0]
            wide = cross.weights * (box.high - box.low) ** 2
            at = np.unravel_index(wide.argmax(), wide.shape)
            first, second = box.high.copy(), box.low.copy()
            first[at] = second[at] = (box.low[at] + box.high[at]) / 2
            halves = [
                search.make_box(low, high, box.lower, box.dual, next(made), gap)
                for low, high in ((box.low, first), (second, box.high))
            ]
            heapq.heapreplace(boxes, halves[0])
            heapq.heappush(boxes, halves[1])
    except KeyboardInterrupt:
        logger.info("interrupted: the bound so far is kept")
    lower = min(max(boxes[0].lower, 0.0), search.value)  # a sum of squares
    return GlobalBound(lower, search.value, search.plan, search.solved)


class _BoundSearch:
    """What a search has found: the lowest plan, its value, and how many linear problems that took."""

    def __init__(self, cross: CrossCovariance, known: float) -> None:
        self.cross, self.value, self.solved = cross, known, 0
        p, q = torch.from_numpy(cross.p), torch.from_numpy(cross.q)
        self.program = DenseProgram(ExactGradient(*cross.spaces, p, q), p, q, exact=True)
        self.plan: csr_array | None = None

    def make_box(self, low: Array, high: Array, above: float, dual: Array, number: int, gap: float) -> _Box:
        """A box with its bound, which is at least that of the box it is a half of."""
        cross, middle, half = self.cross, (low + high) / 2, (high - low) / 2
        constant = cross.constant - cross.slack + float((cross.weights * middle**2).sum())
        constant -= float((cross.weights * half**2).sum())
        cost = cross.cost(middle)
        lower = max(above, constant + self._bound(cost, dual))
        if lower < (1 - gap) * self.value:
            try:
                vertex = solve_transport(DenseCost(cost, cross.p, cross.q), cross.p, cross.q, dual)
            except TransportError:
                return _Box(lower, number, low, high, dual)
            self.solved += 1
            dual = vertex.duals[1]
            lower = max(lower, constant + self._bound(cost, dual))
            self._descend(vertex.plan, dual)
        return _Box(lower, number, low, high, dual)

    def _bound(self, cost: Array, dual: Array) -> float:
        """What every plan costs at least, by column potentials (K,)."""
        (C, b), (p, q) = map(torch.from_numpy, (cost, dual)), map(torch.from_numpy, (self.cross.p, self.cross.q))
        return float(dual_bound(c_transform(C, b, q), b, p, q))

    def _descend(self, plan: csr_array, dual: Array) -> None:
        """A few conditional gradients from a plan that is nearly as low as the lowest."""
        if not self._keep_lower(plan):
            return
        loop = Loop(Watch(), History(), STEPS)
        found, _ = conditional_gradient(self.program, torch.from_numpy(plan.toarray()), torch.from_numpy(dual), loop)
        self.solved += found.n_iter
        self._keep_lower(csr_array(found.plan.numpy()))

    def _keep_lower(self, plan: csr_array) -> bool:
        """Whether a plan is nearly as low as the lowest, which it becomes where it is lower."""
        value = self.cross.value(plan, self.cross.covariance(plan))
        if value < self.value:
            self.value, self.plan = value, plan
        return value <= NEAR * self.value


def _enumerate_permutations(cross: CrossCovariance, known: float) -> GlobalBound:
    """The best of all permutations, where F is concave."""
    n = len(cross.p)
    orders = torch.tensor(list(itertools.permutations(range(n))))
    P, Q, c = (torch.from_numpy(part) for part in (cross.x.vectors, cross.y.vectors, cross.weights))
    u, v = torch.from_numpy(cross.x.linear), torch.from_numpy(cross.y.linear)
    values = torch.cat(
        [
            -(c * torch.einsum("ik,bil->bkl", P, Q[some] / n).square()).sum((1, 2)) - 4 * (v[some] @ u) / n
            for some in (orders[part] for part in parts(torch.arange(len(orders)), n * n))
        ]
    )
    best = int(values.argmin())
    lowest, match = cross.constant + float(values[best]), orders[best].numpy()
    plan = csr_array((cross.p.copy(), match, np.arange(n + 1)), shape=(n, n)) if lowest < known else None
    return GlobalBound(min(max(lowest - cross.slack, 0.0), known), min(lowest, known), plan, len(orders))


def _monotone_mean(one: Array, other: Array, p: Array, q: Array) -> float:
    """The largest mean of x_i y_j over plans with marginals p (N,), q (K,)."""
    i, j = np.argsort(one, kind="stable"), np.argsort(other, kind="stable")
    row, column, share = monotone_coupling(p[i], q[j])
    return float(share @ (one[i][row] * other[j][column]))

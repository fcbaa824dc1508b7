"""A local optimum between few points of equal masses: conditional gradients
from a plan, then exchanges of its matches.

A plan of equal masses is a permutation pi where it is sharp, and its value
falls with E = sum X_ik Y_pi(i)pi(k). Exchanging the matches of r and s
changes it, with B = Y in the order of pi and G = X B^T + X^T B, by

    G_rs + G_sr - G_rr - G_ss - [what of these sums comes from r and s themselves] + [what those give afterwards],

so that one product says it of all pairs. Conditional gradients stop where
no plan is better to first order; among nodes that a graph nearly takes for
each other, an exchange still finds what is better.

Sources: J. Vogelstein et al., "Fast approximate quadratic programming for
graph matching", 2015; E. Taillard, "Robust taboo search for the quadratic
assignment problem", 1991.
"""

from __future__ import annotations

import itertools
import math
import warnings
from functools import partial

import numpy as np
import torch
from torch import Tensor

from torchgw.couplings.sparse import SparseCoupling
from torchgw.diagnostics.status import History
from torchgw.objective.exact import directed_product, matrix_product
from torchgw.persist.watch import Watch
from torchgw.solvers.conditional_gradient import DenseProgram, DescentState, Vertex, conditional_gradient
from torchgw.solvers.iterate import Loop
from torchgw.solvers.linear_oracle import linear_assignment
from torchgw.types import Array

STEPS, TOLERANCE = 60, 1e-7  # the latter of the Frank-Wolfe gap, over the value
PASSES = 30
TRIED = 4  # pairs for each point, in one pass
SPARSE = 0.1  # of the entries, up to which products skip zeros
ROUNDING = 1e-12  # of the largest sum
# Points, from which potentials of a little entropy make assignments of dense
# costs faster.
SMOOTHED = 200


class Cross:
    """T -> (X T Y^T + X^T T Y) / 2 (..., N, K) of plans (..., N, K): of a cost
    C(T) the term that depends on the plan alone, as the others would break ties
    of graphs by their rounding, and by sparse products where these pay.

    X, Y : matrices (N, N), (K, K), kept as sparse ones where most entries
        are zero.
    symmetric, is_dense : whether both are symmetric, and whether none is
        sparse.
    """

    def __init__(self, X: Tensor, Y: Tensor, symmetric: bool) -> None:
        self.X, self.Y = map(_skip_zeros, (X, Y))
        self.symmetric, self.is_dense = symmetric, self.X.layout == self.Y.layout == torch.strided

    def __call__(self, T: Tensor) -> Tensor:
        source, target = partial(_times, self.X), partial(_times, self.Y)
        return target(source(T, 1).mT, 1).mT if self.symmetric else directed_product(source, target, T)

    def of_permutation(self, order: Tensor) -> Tensor:
        """The same of the plan of a permutation (N,), with one product
        where that is enough."""
        if self.is_dense and self.symmetric:
            return (self.X @ self.Y[order]).div_(len(order))
        return self(plan_of_order(order).to(self.X))


def plan_of_order(order: Array | Tensor) -> Tensor:
    """The plan (N, N) of a permutation (N,)."""
    every = torch.eye(len(order), dtype=torch.float64)
    return every[torch.as_tensor(order)] / len(order)


def _times(D: Tensor, V: Tensor, axis: int) -> Tensor:
    """D V (..., N, d) for axis 1, D^T V for axis 0; a sparse D multiplies
    the plans of a batch side by side."""
    if D.layout == torch.strided:
        return matrix_product(D, V, axis)
    side_by_side = V.movedim(-2, 0).flatten(1).contiguous()
    found = matrix_product(D, side_by_side, axis)
    return found.reshape(-1, *V.shape[:-2], V.shape[-1]).movedim(0, -2)


def _skip_zeros(D: Tensor) -> Tensor:
    """The matrix, in CSR format where most entries are zero."""
    if int((D != 0).sum()) > SPARSE * D.numel():
        return D
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
        return D.to_sparse_csr()


class AssignmentProblem(DenseProgram):
    """Points of equal masses in two spaces, as many in each: the program whose
    vertices are permutations, between matrices and without masses of a problem.

    X, Y : distances (N, N), float64, of which <X T Y^T, T> is to be large.
    cross : their products with a plan.
    constant : what the value has beside -2 <X T Y^T, T>.
    """

    def __init__(self, X: Tensor, Y: Tensor, symmetric: bool) -> None:
        self.X, self.Y = X.double().cpu(), Y.double().cpu()
        self.cross = Cross(self.X, self.Y, symmetric)
        self.constant = float((self.X.square().sum() + self.Y.square().sum()) / len(X) ** 2)
        mass = torch.full((len(X),), 1 / len(X), dtype=torch.float64)
        super().__init__(None, mass, mass)

    def value(self, T: Tensor) -> float:
        """The objective of a plan (N, N)."""
        return float(self.inner(self.linearise(T), T))

    def find_optimum(self, plan: Tensor) -> tuple[Tensor, float]:
        """A plan (N, N) from a feasible one, and its value, that neither
        steps nor exchanges better."""
        end = self.descend(plan)
        other = self.round_and_exchange(end.plan)
        if self.value(other) < end.value:
            end = self.descend(other)
        return end.plan, end.value

    def round_and_exchange(self, plan: Tensor) -> Tensor:
        """The plan of a permutation that no exchange betters, from the one
        nearest to a plan (N, N)."""
        _, nearest = linear_assignment(-plan.numpy())
        return plan_of_order(self.improve_by_exchanges(nearest))

    def best_order(self) -> Array:
        """The best of all permutations (N,), for a few points: O(N! N^2)."""
        every = np.array(list(itertools.permutations(range(len(self.X)))))
        matched = self.Y.numpy()[every[:, :, None], every[:, None, :]]
        sums = (self.X.numpy() * matched).sum((1, 2))
        return np.asarray(every[sums.argmax()])

    def descend(self, plan: Tensor) -> DescentState[Tensor, Tensor]:
        """Where conditional gradients lead from a plan (N, N), until no
        permutation is better to first order."""
        loop = Loop(Watch(), History(), STEPS, TOLERANCE, ROUNDING * self.constant)
        return conditional_gradient(self, plan, plan.new_zeros(len(plan)), loop)[0]

    def linearise(self, plan: Tensor | SparseCoupling) -> Tensor:
        product = self.cross(plan) if isinstance(plan, Tensor) else self.cross.of_permutation(plan.column)
        return product.mul_(-2.0)

    def inner(self, cost: Tensor, plan: Tensor | SparseCoupling) -> Tensor:
        # As part of costs the constant would break ties of graphs.
        return self.constant + super().inner(cost, plan)

    def vertex(self, state: DescentState[Tensor, Tensor], priced: bool) -> Vertex:
        if self.cross.is_dense and len(self.p) >= SMOOTHED:
            return super().vertex(state, priced)
        # This is faster where points are few or costs tied.
        (_, order), n = linear_assignment(state.cost.numpy()), len(self.p)
        return SparseCoupling(self.p, torch.from_numpy(order), torch.arange(n + 1), torch.tensor(n)), state.dual, None

    def bound(self, state: DescentState[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return torch.tensor(-math.inf, dtype=torch.float64), state.dual

    def improve_by_exchanges(self, order: Array) -> Array:
        """The permutation after exchanges that better it, until none does."""
        X, order = self.X.numpy(), order.copy()
        for _ in range(PASSES):
            B = self.Y.numpy()[np.ix_(order, order)]
            gain = _exchange_gains(X, B, self.cross.symmetric)
            least = ROUNDING * max(float(np.abs(X).max() * np.abs(B).max()), np.finfo(float).tiny) * len(X)
            row, column = np.nonzero(np.triu(gain, 1) > least)
            best = np.argsort(-gain[row, column], kind="stable")[: TRIED * len(X)]
            before = order.copy()
            for r, s in zip(row[best].tolist(), column[best].tolist(), strict=True):
                if _exchange_gain(X, B, r, s) > least:
                    B[[r, s]], order[[r, s]] = B[[s, r]], order[[s, r]]
                    B[:, [r, s]] = B[:, [s, r]]
            if (order == before).all():
                break
        return order


def _exchange_gains(X: Array, B: Array, symmetric: bool) -> Array:
    """By how much sum X o B grows when r and s change places in B, (N, N)."""
    G = 2 * (X @ B) if symmetric else X @ B.T + X.T @ B
    d, x, b = np.diagonal(G), np.diagonal(X), np.diagonal(B)
    G -= d
    found: Array = G + G.T
    sides = ((X, B),) if symmetric else ((X, B), (X.T, B.T))
    for one, other in sides:  # along rows, along columns: the terms of k = r, s
        terms = (one - x) * (b - other)
        found -= (2 / len(sides)) * (terms + terms.T)
    if x.any() and b.any():
        found += (x[:, None] - x) * (b - b[:, None])
    if not symmetric:
        found += (X - X.T) * (B.T - B)
    return found


def _exchange_gain(X: Array, B: Array, r: int, s: int) -> float:
    """The same for one pair."""
    found = (X[r, r] - X[s, s]) * (B[s, s] - B[r, r])
    found += (X[r, s] - X[s, r]) * (B[s, r] - B[r, s])
    for one, other in ((X, B), (X.T, B.T)):
        apart = one[r] - one[s]
        apart[[r, s]] = 0.0
        found += apart @ (other[s] - other[r])
    return float(found)

"""Conditional gradients on plans of few entries, between two sparse matrices.

    S = argmax <W, S> over the plans,    T <- T + t (S - T),    W = D_X T D_Y,

see `torchgw.solvers.frank_wolfe`. W (N, K) has few entries, and a plan is worth what it has on those: the linear
problem is one between the points that share an entry, whose mass may stay away. Where all masses are equal it is an
assignment in which rows may remain alone, solved exactly. Elsewhere HiGHS solves it on the few entries of each row and
column that are largest under the last dual potentials, and on those that price out. What is left over is put together
in order. With potentials f, g >= 0 and f_i + g_j >= W_ij on all entries, no plan is worth more than p . f + q . g, so
the gap is known over all N K pairs. A whole step that betters the plan is taken, although a part of it may be better:
vertices have few entries.

Sources: those of `torchgw.solvers.frank_wolfe` and `torchgw.solvers.transport_lp`; J. Altschuler, J. Weed, P. Rigollet,
"Near-linear time approximation algorithms for optimal transport via Sinkhorn iteration", 2017 (rounding).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array, diags_array, hstack

from torchgw.couplings.sparse import SparseCoupling
from torchgw.diagnostics.status import Status
from torchgw.linalg.sparse_entries import entry_rows, inner, largest_per_row, make_csr, select_entries
from torchgw.objective.bounds import monotone_coupling
from torchgw.objective.sparse import SparseObjective
from torchgw.persist.codec import storable
from torchgw.solvers.iterate import Check, Loop, State, iterate
from torchgw.solvers.transport_lp import TransportError, linear_program
from torchgw.types import Array

CANDIDATES = 4
ASSIGNED = 0.01  # of the progress that is asked for: assignments take little time
PRICING_ROUNDS = 2
PRICING_TOLERANCE = 1e-9  # of the largest entry
VALUE_SCALE = 100.0  # HiGHS has absolute tolerances
NEGLIGIBLE = 1e-14  # of a point's mass


@storable
@dataclass(frozen=True, kw_only=True)
class SparseDescent(State):
    """Where conditional gradients on few entries stand.

    plan : T (N, K), feasible.
    value : <C(T), T>, in units of the scaled squared distances; infinite before the first step.
    gap : a bound on the Frank-Wolfe gap at T; infinite before one is known.
    price : dual potentials (K,) of the columns, in the units of W.
    """

    plan: SparseCoupling
    value: float = math.inf
    gap: float = math.inf
    price: torch.Tensor

    @property
    def complete(self) -> bool:
        return True


class BestPlan(NamedTuple):
    """The plan of a linear problem.

    plan : (N, K), CSR.
    bound : no plan is worth more.
    price : dual potentials (K,) of the columns; zeros where none were found.
    """

    plan: Any
    bound: float
    price: Array


def descend_sparsely(problem: SparseObjective, start: Any, progress: float, loop: Loop) -> tuple[SparseDescent, Status]:
    """The last plan, and why the loop ended.

    Parameters
    ----------
    start : CSR (N, K), not negative; what it lacks to the marginals is filled in.
    progress : relative fall of the value in a step under which it has settled; where masses are equal, a hundredth
        of that.
    loop : its ``tol`` is the gap over the value at which a plan is stationary.
    """
    p, q = problem.p, problem.q
    equal = len(p) == len(q) and np.ptp(p) == 0 == np.ptp(q)
    progress = progress * ASSIGNED if equal else progress

    def begin() -> SparseDescent:
        plan = SparseCoupling.of(complete_marginals(start, p, q), torch.device("cpu"))
        return SparseDescent(plan=plan, price=torch.zeros(len(q), dtype=torch.float64))

    def step(state: SparseDescent) -> tuple[SparseDescent, Check, Status | None]:
        T = state.plan.matrix
        W = problem.cross(T)
        worth, value = inner(W, T), problem.value(W, T)
        state, check = replace(state, n_iter=state.n_iter + 1, value=value), Check(value, 0.0, 0.0)
        if value <= loop.least:
            return replace(state, gap=0.0), check, Status.STATIONARY
        try:
            best = find_best_permutation(W, p) if equal else find_best_plan(W, T, p, q, state.price.numpy())
        except TransportError:
            return state, check, Status.TRANSPORT
        S = complete_marginals(best.plan, p, q)
        state = replace(state, gap=max(2 * (best.bound - worth), 0.0), price=torch.from_numpy(best.price))
        direction = S - T
        slope = inner(W, direction)
        if state.gap <= loop.tol * value:
            return state, check, Status.STATIONARY
        if slope <= 0:
            return state, check, Status.PLATEAU
        curvature = inner(problem.cross(direction), direction)
        length = 1.0 if 2 * slope + curvature > 0 else -slope / curvature
        moved = (T + length * direction).tocsr() if length < 1 else S
        moved = select_entries(moved, moved.data > NEGLIGIBLE * p[entry_rows(moved)])
        settled = 4 * length * slope + 2 * length**2 * curvature <= progress * value
        after = replace(
            state, plan=SparseCoupling.of(complete_marginals(moved, p, q), torch.device("cpu")), gap=math.inf
        )
        return after, check, Status.PLATEAU if settled else None

    state, status = iterate(SparseDescent, step, begin, loop, loop.max_iter or 0)
    T = state.plan.matrix
    W = problem.cross(T)
    gap = min(state.gap, max(2 * (dual_bound(W, state.price.numpy(), p, q) - inner(W, T)), 0.0))
    return replace(state, value=problem.value(W, T), gap=gap), status


def complete_marginals(T: Any, p: Array, q: Array) -> Any:
    """A plan of the marginals p (N,), q (K,): rows and columns that hold too much are scaled down, and what is missing
    is put together in the order of the points, at no more than N + K entries."""
    for axis, mass in ((1, p), (0, q)):
        sums = T.sum(axis=axis)
        over = np.divide(mass, sums, out=np.ones_like(mass), where=sums > mass)
        T = (diags_array(over) @ T if axis == 1 else T @ diags_array(over)).tocsr()
    missing: list[Array] = [(mass - T.sum(axis=axis)).clip(min=0) for axis, mass in ((1, p), (0, q))]
    left = [np.flatnonzero(side > NEGLIGIBLE * mass) for side, mass in zip(missing, (p, q), strict=True)]
    if not all(map(len, left)):
        return T
    row, column, share = monotone_coupling(*(side[where] for side, where in zip(missing, left, strict=True)))
    total = min(float(side.sum()) for side in missing)
    return (T + make_csr(left[0][row], left[1][column], share * total, T.shape)).tocsr()


def find_best_permutation(W: Any, p: Array) -> BestPlan:
    """The best permutation (N, N) of equal masses p (N,), without the pairs that are worth nothing."""
    from scipy.sparse.csgraph import min_weight_full_bipartite_matching  # late: it takes long to import

    W = select_entries(W, W.data > 0)
    n, top = len(p), 2 * float(W.data.max(initial=1e-300))
    # Each row may have a column of its own that is worth nothing; costs of zero would be no edges.
    alone = diags_array(np.full(n, top))
    cost = hstack((csr_array((top - W.data, W.indices, W.indptr), shape=W.shape), alone), format="csr")
    row, column = min_weight_full_bipartite_matching(cost)
    row, column = row[column < n], column[column < n]
    plan = make_csr(row, column, p[row], W.shape)
    return BestPlan(plan, inner(W, plan), np.zeros(n))


def find_best_plan(W: Any, T: Any, p: Array, q: Array, price: Array) -> BestPlan:
    """A plan with marginals of at most p, q that is best on the entries that were priced.

    ``price`` (K,) are column potentials to choose entries by; those of the plan T are among them.
    """
    (n, k), W = W.shape, select_entries(W, W.data > 0)
    row, top = entry_rows(W), float(W.data.max(initial=1e-300))
    unit, scale = float(p.mean()), top / VALUE_SCALE
    T = T.multiply(W).tocsr()
    rent = row_potentials(W, price)
    chosen = (
        _entry_pattern(T)
        + _entry_pattern(largest_per_row(W, CANDIDATES, price))
        + _entry_pattern(largest_per_row(W.T.tocsr(), CANDIDATES, rent)).T
    )
    bound, best, found = math.inf, T, price
    for _ in range(PRICING_ROUNDS):
        entries = W.multiply(_entry_pattern(chosen.tocsr())).tocsr()
        i, j, value = entry_rows(entries), entries.indices, entries.data
        # A row and a column more take what stays away.
        rows = np.concatenate((i, np.arange(n), np.full(k + 1, n)))
        columns = np.concatenate((j, np.full(n, k), np.arange(k + 1)))
        cost = np.concatenate((-value / scale, np.zeros(n + k + 1)))
        masses = np.concatenate((p, [q.sum()], q, [p.sum()])) / unit
        x, dual, _ = linear_program(cost, rows, columns + n + 1, masses)
        best = make_csr(i, j, x[: len(i)].clip(min=0.0) * unit, W.shape)
        f, g = (-scale * (side + other) for side, other in ((dual[:n], dual[-1]), (dual[n + 1 : -1], dual[n])))
        g = g.clip(min=0.0)
        reached = dual_bound(W, g, p, q)
        if reached < bound:
            bound, found = reached, g
        excess = W.data - f[row] - g[W.indices]
        violated = excess > PRICING_TOLERANCE * top
        if not violated.any():
            break
        priced = csr_array((excess, W.indices, W.indptr), shape=W.shape)
        chosen = chosen + _entry_pattern(largest_per_row(select_entries(priced, violated), CANDIDATES))
    return BestPlan(best, bound, found)


def row_potentials(W: Any, price: Array) -> Array:
    """The least f (N,) >= 0 with f_i + price_j >= W_ij on all entries."""
    found = np.zeros(W.shape[0])
    np.maximum.at(found, entry_rows(W), W.data - price[W.indices])
    return found


def dual_bound(W: Any, price: Array, p: Array, q: Array) -> float:
    """What no plan is worth more than, by potentials of the columns ``price`` (K,) >= 0."""
    return float(p @ row_potentials(W, price) + q @ price)


def _entry_pattern(W: Any) -> Any:
    """Ones at the entries."""
    return csr_array((np.ones(W.nnz), W.indices, W.indptr), shape=W.shape)

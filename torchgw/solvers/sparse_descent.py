"""Conditional gradients on plans of few entries, between two sparse matrices.

    S = argmax <W, S> over the plans,    T <- T + t (S - T),    W = D_X T D_Y,

see `torchgw.solvers.frank_wolfe`. W (N, K) has few entries, and a plan is worth what it has on those: the linear
problem is one between the points that share an entry, whose mass may stay away, see `torchgw.solvers.linear_oracle`.
Where all masses are equal it is an assignment in which rows may remain alone. What is left over is put together in
order. With potentials f, g >= 0 and f_i + g_j >= W_ij on all entries, no plan is worth more than p . f + q . g, so
the gap is known over all N K pairs. A whole step that betters the plan is taken, although a part of it may be better:
vertices have few entries.

Sources: those of `torchgw.solvers.frank_wolfe` and `torchgw.solvers.linear_oracle`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from torchgw.couplings.sparse import SparseCoupling
from torchgw.diagnostics.status import Status
from torchgw.linalg.sparse_entries import entry_rows, inner, select_entries
from torchgw.objective.sparse import SparseObjective
from torchgw.persist.codec import storable
from torchgw.solvers.iterate import Check, Loop, State, iterate
from torchgw.solvers.linear_oracle import equal_masses, repair_marginals, solve_transport
from torchgw.solvers.minimum_cost_flow import TransportError
from torchgw.solvers.transport_costs import SparseCost, union
from torchgw.types import Array

ASSIGNED = 0.01  # of the progress that is asked for: assignments take little time
ROUNDS = 2  # of a linear program
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
    progress = progress * ASSIGNED if equal_masses(p, q) else progress

    def begin() -> SparseDescent:
        plan = SparseCoupling.of(repair_marginals(start, p, q), torch.device("cpu"))
        return SparseDescent(plan=plan, price=torch.zeros(len(q), dtype=torch.float64))

    def step(state: SparseDescent) -> tuple[SparseDescent, Check, Status | None]:
        T = state.plan.matrix
        W = problem.cross(T)
        worth, value = inner(W, T), problem.value(W, T)
        state, check = replace(state, n_iter=state.n_iter + 1, value=value), Check(value, 0.0, 0.0)
        if value <= loop.least:
            return replace(state, gap=0.0), check, Status.STATIONARY
        try:
            best, price, bound = find_best_plan(W, T, p, q, state.price.numpy())
        except TransportError:
            return state, check, Status.TRANSPORT
        S = repair_marginals(best, p, q)
        state = replace(state, gap=max(2 * (bound - worth), 0.0), price=torch.from_numpy(price))
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
        after = replace(state, plan=SparseCoupling.of(repair_marginals(moved, p, q), torch.device("cpu")), gap=math.inf)
        return after, check, Status.PLATEAU if settled else None

    state, status = iterate(SparseDescent, step, begin, loop, loop.max_iter or 0)
    T = state.plan.matrix
    W = problem.cross(T)
    gap = min(state.gap, max(2 * (dual_bound(W, state.price.numpy(), p, q) - inner(W, T)), 0.0))
    return replace(state, value=problem.value(W, T), gap=gap), status


def find_best_plan(W: Any, T: Any, p: Array, q: Array, price: Array) -> tuple[Any, Array, float]:
    """A plan (N, K) with marginals of at most p, q that is best on the entries of W, column potentials (K,), and what
    no plan is worth more than by these.

    ``price`` (K,) are potentials to choose entries by; those of the plan T are among them.
    """
    (n, k), W = W.shape, select_entries(W, W.data > 0)
    cost, T = SparseCost(W), T.multiply(W).tocsr()
    masses = np.append(p, q.sum()), np.append(q, p.sum())
    vertex = solve_transport(cost, *masses, np.append(-price, 0.0), union(cost.slack, cost.positions(T)), ROUNDS)
    found = (-vertex.duals[1][:-1] - vertex.duals[0][-1]).clip(min=0.0)
    return vertex.plan[:n, :k], found, dual_bound(W, found, p, q)


def row_potentials(W: Any, price: Array) -> Array:
    """The least f (N,) >= 0 with f_i + price_j >= W_ij on all entries."""
    found = np.zeros(W.shape[0])
    np.maximum.at(found, entry_rows(W), W.data - price[W.indices])
    return found


def dual_bound(W: Any, price: Array, p: Array, q: Array) -> float:
    """What no plan is worth more than, by potentials of the columns ``price`` (K,) >= 0."""
    return float(p @ row_potentials(W, price) + q @ price)

"""Conditional gradients between spaces with factors, from vertex to vertex: plans of few entries, and no other numbers
for pairs of points.

    S = argmin <C(T), S>,    T <- T + t (S - T),    C(T) = a 1^T + 1 b^T - 2 F (diag(s) F^T T G diag(t)) G^T,

see `torchgw.solvers.frank_wolfe`, whose steps these are, and `torchgw.solvers.linear_oracle`. The first vertex
replaces the plan that led to it, which may have all entries; a plan has those of the vertices that it is made of. Where
factors only lead, their cost has a stored part that makes it exact at one plan, see `torchgw.objective.leading`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchgw.couplings.sparse import SparseCoupling
from torchgw.diagnostics.status import Status
from torchgw.objective.bounds import dual_bound, frank_wolfe_gap
from torchgw.objective.linearise import Gradient
from torchgw.persist.codec import storable
from torchgw.runtime.ranks import ALONE, Ranks
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.solvers.frank_wolfe import STALLED, lowest_on_segment
from torchgw.solvers.iterate import Check, Loop, State, iterate
from torchgw.solvers.linear_oracle import PRICING_ROUNDS, solve_transport, uses_flows
from torchgw.solvers.minimum_cost_flow import TransportError
from torchgw.solvers.transport_costs import Order, TiledCost
from torchgw.types import Array

logger = logging.getLogger("torchgw")

COARSE = 1e-3  # tolerance from which on one step between flows that betters next to nothing is the last


@storable
@dataclass(frozen=True, kw_only=True)
class FactoredDescent(State):
    """Where conditional gradients stand.

    plan : T (N, K).
    cost : C(T), in units of the scaled squared distances.
    duals : row and column potentials (N,), (K,) of the last linear problem, in units of cost.
    value : <C(T), T>.
    stalled : whether the last step, towards a vertex among cheap entries, hardly bettered the plan.
    basis : of the last vertex, see `torchgw.solvers.linear_oracle.Vertex`.
    gap : a bound on the Frank-Wolfe gap at T; infinite while nobody asks.
    """

    plan: SparseCoupling
    cost: FactoredCost
    duals: tuple[Tensor, Tensor]
    value: float
    stalled: bool = False
    basis: Tensor | None = None
    gap: float = math.inf

    @property
    def complete(self) -> bool:
        return True


class VertexStart(NamedTuple):
    """Where to begin: at a vertex of a linear problem.

    cost : of that problem.
    dual : column potentials (K,) near its own.
    feasible : flat positions of entries on which a plan lives.
    """

    cost: FactoredCost
    dual: Tensor
    feasible: Array


def descend_between_factors(
    gradient: Gradient,
    start: VertexStart | FactoredDescent,
    order: Order,
    p: Tensor,
    q: Tensor,
    loop: Loop,
    ranks: Ranks = ALONE,
) -> tuple[FactoredDescent, Status]:
    """The last plan, and why the loop ended; a pass over pairs and a linear program a step, O((N + K) r) memory. Where
    linear programs are flows, their vertices are the best of the entries that they have, and not of all.

    Parameters
    ----------
    gradient : C(T) of a plan, products and perhaps a stored part that is the same for every plan, in float64.
    start : a vertex, or where such a descent by another gradient ended.
    order : in which points that are neighbours are alike.
    p, q : masses (N,), (K,), all positive.
    loop : its ``tol`` is the gap over the value at which a plan is stationary.
    ranks : that share the passes, each with all of the spaces.

    Raises
    ------
    TransportError
        Where the first linear problem is not solved.
    """
    tol = loop.tol
    flows = uses_flows(len(p), len(q))  # which take seconds: the rounds of a vertex of all entries take minutes
    masses = p.cpu().numpy(), q.cpu().numpy()
    stored: TiledCost | None = None  # the part that is the same for every plan, in tile order

    def order_cost(cost: FactoredCost) -> TiledCost:
        nonlocal stored
        stored = TiledCost.of(cost, order, stored)
        return stored

    def make_state(plan: SparseCoupling, **more: Any) -> FactoredDescent:
        cost = gradient(plan, p)
        return FactoredDescent(plan=plan, cost=cost, value=agree(_expected_cost, cost, plan), **more)

    def agree(number: Callable[..., float], *of: Any) -> float:
        """A number that decides what is done: the first rank's, for others may round it otherwise."""
        return ranks.run_on_first(partial(number, *of))

    def find_vertex(
        cost: FactoredCost, dual: Tensor, entries: Array, basis: Tensor | None = None, all_priced: bool = False
    ) -> tuple[SparseCoupling, dict[str, Any]]:
        """A vertex, and its potentials and basis for a state."""
        rounds, known = PRICING_ROUNDS if all_priced and not flows else 1, None if basis is None else basis.numpy()
        vertex = solve_transport(order_cost(cost), *masses, dual.cpu().numpy(), entries, rounds, known)
        own = None if vertex.basis is None else torch.from_numpy(vertex.basis)
        duals = tuple(torch.from_numpy(each).to(p) for each in vertex.duals)
        return SparseCoupling.of(vertex.plan, p.device), {"duals": duals, "basis": own}

    def make_consistent(cost: FactoredCost, duals: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Potentials that no entry of the cost is below: the c-transform of the columns', and of a flow's its own."""
        row, column = order_cost(cost).c_transform(duals[1].cpu().numpy())[0], duals[1]
        if flows:
            column = torch.from_numpy(TiledCost.of(cost.T, order.transpose).c_transform(row)[0]).to(p)
        return torch.from_numpy(row).to(p), column

    def finish(state: FactoredDescent, duals: tuple[Tensor, Tensor]) -> tuple[FactoredDescent, Status]:
        """A state with the gap that potentials near its own prove, and what it is to end with."""
        duals = make_consistent(state.cost, duals)
        gap = agree(lambda: float(frank_wolfe_gap(state.value, dual_bound(*duals, p, q))))
        status = Status.STATIONARY if gap <= tol * state.value else Status.SETTLED
        return replace(state, duals=duals, gap=gap), status

    def begin() -> FactoredDescent:
        if isinstance(start, FactoredDescent):
            return make_state(start.plan, n_iter=0, duals=start.duals, basis=start.basis)
        corner, found = find_vertex(start.cost, start.dual, start.feasible)
        return make_state(corner, n_iter=0, **found)

    def step(state: FactoredDescent) -> tuple[FactoredDescent, Check, Status | None]:
        plan, value, n_iter = state.plan, state.value, state.n_iter + 1
        check = Check(value, 0.0, 0.0)
        if value <= loop.least:
            return replace(state, n_iter=n_iter), check, Status.STATIONARY
        entries = np.asarray((plan.row * len(q) + plan.column).cpu().numpy())
        try:
            corner, found = find_vertex(state.cost, state.duals[1], entries, state.basis, state.stalled)
        except TransportError as error:
            logger.info("%s; the plan found so far is returned", error)
            return replace(state, n_iter=n_iter), check, Status.TRANSPORT
        ahead = gradient(corner, p)
        slope = agree(_expected_cost, state.cost, corner) - value
        curvature = agree(lambda: _expected_cost(ahead, corner) - _expected_cost(ahead, plan)) - slope
        length, fall = lowest_on_segment(slope, curvature)
        stalled = fall <= STALLED * tol * value
        if state.stalled and fall <= tol * value:
            last, status = finish(replace(state, n_iter=n_iter), found["duals"])
            if stalled or status is Status.STATIONARY:
                return last, check, status
        kept: dict[str, Any] = found | {"n_iter": n_iter, "stalled": stalled}
        if fall <= 0:
            after = replace(state, **kept)
        else:
            after = make_state(corner if length == 1 else _interpolate(plan, corner, length), **kept)
        if flows and fall <= tol * value:  # another step would be a flow, for as little
            last, status = finish(after, after.duals)
            if status is Status.STATIONARY or (stalled and tol >= COARSE):
                return last, check, status
        return after, check, None

    return iterate(FactoredDescent, step, begin, loop)


def _expected_cost(cost: FactoredCost, plan: SparseCoupling) -> float:
    """<C, T>, from the entries of the plan."""
    i, j = plan.row, plan.column
    costs = torch.linalg.vecdot(cost.U[i], cost.V[j]).mul_(-2.0).add_(cost.a[i]).add_(cost.b[j])
    return float(plan.mass @ (costs if cost.extra is None else costs.add_(cost.extra[i, j])))


def _interpolate(plan: SparseCoupling, vertex: SparseCoupling, length: float) -> SparseCoupling:
    """T + t (S - T)."""
    return SparseCoupling.of((plan.matrix * (1 - length) + vertex.matrix * length).tocsr(), plan.device)

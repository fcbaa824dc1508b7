"""Conditional gradients (Frank-Wolfe): the unregularised problem, from a
feasible plan down to a stationary one.

    S = argmin <C(T), S> over the plans,    T <- T + t (S - T),    t = argmin of the objective on the segment,

where the objective is quadratic: its slope along S - T is 2 <C(T), S - T>,
its curvature 2 <C(S) - C(T), S - T>. Dual potentials of the linear problem
bound the gap 2 <C(T), T - S> to the best S, see `torchgw.objective.bounds`.

Steps begin with vertices among a few candidates, cheap to find and,
measured, on ways to lower optima than the best vertex leads; where these no
longer better the plan, the linear problem is solved exactly, and its
solution decides.

How plans and costs are stored is a matter of the `QuadraticProgram`: as
matrices (`DenseProgram`, here), as entries beside factors (`FactoredProgram`)
or as entries beside sparse matrices (`SparseProgram`), the last two in
`torchgw.solvers.sparse_descent`.

Sources: S. Lacoste-Julien, "Convergence rate of Frank-Wolfe for non-convex
objectives", 2016; T. Vayer, L. Chapel, R. Flamary, R. Tavenard, N. Courty,
"Optimal transport for structured data with application on graphs", 2019.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling
from torchgw.couplings.sparse import SparseCoupling
from torchgw.diagnostics.status import Status
from torchgw.objective.bounds import consistent_bound, frank_wolfe_gap, lowest_cost
from torchgw.objective.linearise import Gradient
from torchgw.persist.codec import storable
from torchgw.runtime.transfer import to_host
from torchgw.solvers.iterate import Check, Loop, State, iterate
from torchgw.solvers.linear_oracle import PRICING_ROUNDS, equal_masses, solve_transport
from torchgw.solvers.minimum_cost_flow import TransportError
from torchgw.solvers.transport_costs import DenseCost, TransportCost
from torchgw.types import Array

logger = logging.getLogger("torchgw")

STALLED = 0.1  # of the tolerance

# The vertex S of a linear problem, column potentials (K,) in units of cost, and the basis where there is one.
Vertex: TypeAlias = tuple[SparseCoupling, Tensor, Tensor | None]
PlanT = TypeVar("PlanT")
CostT = TypeVar("CostT")


@storable
@dataclass(frozen=True, kw_only=True)
class DescentState(State, Generic[PlanT, CostT]):
    """Where conditional gradients stand.

    plan : T, feasible.
    cost : C(T), in units of the scaled squared distances.
    dual : column potentials (K,) of the last linear problem, in units of
        cost.
    value : <C(T), T>, the objective.
    gap : a bound on the Frank-Wolfe gap at T; infinite while nobody asks.
    stalled : whether the last step, towards a vertex among candidates,
        hardly bettered the plan.
    basis : of the last vertex, see `torchgw.solvers.linear_oracle.Vertex`.
    """

    plan: PlanT
    cost: CostT
    dual: Tensor
    value: float
    gap: float = math.inf
    stalled: bool = False
    basis: Tensor | None = None

    complete = True


class QuadraticProgram(Protocol[PlanT, CostT]):
    """A quadratic objective <C(T), T> over a polytope of plans, and how
    both are stored."""

    ignores_pricing: bool  # whether a vertex is the same, priced or not

    def linearise(self, plan: PlanT) -> CostT:
        """C(T)."""

    def change(self, vertex: SparseCoupling, plan: PlanT, cost: CostT) -> CostT:
        """C(S) - C(T), up to terms that are the same for all plans, from T
        and C(T)."""

    def inner(self, cost: CostT, plan: PlanT | SparseCoupling) -> Tensor:
        """<C, T> ()."""

    def vertex(self, state: DescentState[PlanT, CostT], priced: bool) -> Vertex:
        """One of little cost, the best if it is to be ``priced``."""

    def bound(self, state: DescentState[PlanT, CostT]) -> tuple[Tensor, Tensor]:
        """What all plans cost at least () by the potentials of a state, and
        column potentials (K,) that say so."""

    def mix(
        self, state: DescentState[PlanT, CostT], vertex: SparseCoupling, change: CostT, length: float
    ) -> tuple[PlanT, CostT]:
        """T + t (S - T) and its cost; ``change`` may be written to."""


def conditional_gradient(
    program: QuadraticProgram[PlanT, CostT],
    plan: PlanT,
    dual: Tensor,
    loop: Loop,
    *,
    basis: Tensor | None = None,
    progress: float | None = None,
    bound_ends: bool = False,
) -> tuple[DescentState[PlanT, CostT], Status]:
    """The last plan, and why the loop ended. A linear problem and a
    linearised cost for each step.

    Parameters
    ----------
    program : the objective and its plans.
    plan : a feasible one.
    dual : column potentials (K,) of its linear problem, in units of cost;
        anything will do.
    loop : its ``tol`` is the gap over the value at which a plan is
        stationary.
    basis : of a vertex that led to the plan, if one did.
    progress : relative fall of the value in a step up to which a step is
        the last; `STALLED` times ``tol`` by default.
    bound_ends : whether a bound within ``tol`` ends the loop. Otherwise the
        linear problem is solved at the last plan too, for where it has
        several optima, the value can fall towards another to second order
        alone.
    """
    progress = STALLED * loop.tol if progress is None else progress

    def update_bound(state: DescentState[PlanT, CostT]) -> DescentState[PlanT, CostT]:
        lowest, dual = program.bound(state)
        return replace(state, dual=dual, gap=min(state.gap, float(frank_wolfe_gap(state.value, lowest))))

    def make_state(plan: PlanT, cost: CostT, dual: Tensor, **more: Any) -> DescentState[PlanT, CostT]:
        value = float(program.inner(cost, plan))
        state = DescentState(plan=plan, cost=cost, dual=dual, value=value, **more)
        return update_bound(state) if bound_ends else state

    def step(state: DescentState[PlanT, CostT]) -> tuple[DescentState[PlanT, CostT], Check, Status | None]:
        cost, value, n_iter = state.cost, state.value, state.n_iter + 1
        check, small = Check(value, 0.0, 0.0), loop.tol * abs(value)
        before = replace(state, n_iter=n_iter)
        if abs(value) <= loop.least or (bound_ends and state.gap <= small):
            return before, check, Status.STATIONARY
        priced = state.stalled or program.ignores_pricing
        try:
            vertex, dual, basis = program.vertex(state, priced)
        except TransportError as error:
            logger.info("%s; the plan found so far is returned", error)
            return before, check, Status.TRANSPORT
        change = program.change(vertex, state.plan, cost)
        inners = program.inner(cost, vertex), program.inner(change, vertex), program.inner(change, state.plan)
        toward, turned, along = map(float, to_host(*inners))
        slope, curvature = toward - value, turned - along
        # Where the objective is concave along the segment, its end is lowest.
        length = min(max(-slope / curvature, 0.0), 1.0) if curvature > 0 else 1.0
        fall = -2 * length * slope - length**2 * curvature
        stalled = fall <= progress * abs(value)
        after = replace(before, dual=dual, basis=basis, stalled=stalled)
        if fall > 0:
            plan, cost = program.mix(state, vertex, change, length)
            after = make_state(plan, cost, dual, n_iter=n_iter, basis=basis, stalled=stalled)
        if priced and fall <= max(small, progress * abs(value)):
            last = update_bound(after)
            if last.gap > small and stalled and fall > 0:
                proven = update_bound(replace(before, dual=dual))
                last = proven if proven.gap <= small else last
            if stalled or last.gap <= small:
                return last, check, Status.STATIONARY if last.gap <= small else Status.SETTLED
        return after, check, None

    def begin() -> DescentState[PlanT, CostT]:
        return make_state(plan, program.linearise(plan), dual, basis=basis)

    state, status = iterate(DescentState, step, begin, loop)
    return (update_bound(state) if state.gap == math.inf else state), status


class DenseProgram:
    """A gradient in float64 over plans (N, K) that are stored. O(N K)
    memory.

    gradient : C(T) of a plan; one with a method ``change``, as
        `torchgw.objective.exact.ExactGradient` has, is asked for C(S) -
        C(T) of steps.
    p, q : masses (N,), (K,).
    exact : whether vertices are the best ones, as they always are between
        equal masses; others are good directions.
    free : whether column sums are free where there is mass, so that each
        row goes where it costs least.
    """

    def __init__(
        self, gradient: Gradient | None, p: Tensor, q: Tensor, *, exact: bool = False, free: bool = False
    ) -> None:
        self.gradient, self.p, self.q, self.free = gradient, p, q, free
        self.ignores_pricing = exact or free or equal_masses(*(side[side > 0].numpy() for side in to_host(p, q)))

    def linearise(self, plan: Tensor | SparseCoupling) -> Tensor:
        assert self.gradient is not None
        coupling = plan if isinstance(plan, SparseCoupling) else DenseCoupling(plan)
        return self.gradient(coupling, self.p).rows(slice(None))

    def change(self, vertex: SparseCoupling, plan: Tensor, cost: Tensor) -> Tensor:
        change: Callable[..., Tensor] | None = getattr(self.gradient, "change", None)
        return change(vertex, plan, cost) if change else self.linearise(vertex).sub_(cost)

    def inner(self, cost: Tensor, plan: Tensor | SparseCoupling) -> Tensor:
        if isinstance(plan, SparseCoupling):
            return plan.mass @ cost[plan.row, plan.column]
        return torch.dot(cost.reshape(-1), plan.reshape(-1))

    def vertex(self, state: DescentState[Tensor, Tensor], priced: bool) -> Vertex:
        if self.free:
            column = torch.where(self.q > 0, state.cost, torch.inf).argmin(1)
            first = torch.arange(len(column) + 1, device=column.device)
            return SparseCoupling(self.p, column, first, torch.tensor(len(self.q))), torch.zeros_like(self.q), None
        p, q, C = (side.numpy() for side in to_host(self.p, self.q, state.cost))
        priced = priced or self.ignores_pricing
        return solve_linear(DenseCost(C, p, q), state.dual, state.basis, self.p, self.q, priced)

    def bound(self, state: DescentState[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        if self.free:
            nothing = torch.zeros_like(self.q)
            return lowest_cost(state.cost, self.p, self.q, nothing), nothing
        return consistent_bound(state.cost, self.p, self.q, state.dual)

    def mix(
        self, state: DescentState[Tensor, Tensor], vertex: SparseCoupling, change: Tensor, length: float
    ) -> tuple[Tensor, Tensor]:
        plan = state.plan * (1 - length)
        plan[vertex.row, vertex.column] += length * vertex.mass
        return plan, torch.add(state.cost, change, alpha=length, out=change)


def solve_linear(
    cost: TransportCost,
    dual: Tensor,
    basis: Tensor | None,
    p: Tensor,
    q: Tensor,
    priced: bool,
    entries: Array | None = None,
) -> Vertex:
    """A vertex of little cost between masses p (N,), q (K,), see
    `torchgw.solvers.linear_oracle`, from the potentials (K,) and the basis
    of another."""
    known = None if basis is None else basis.numpy()
    rows, columns, b = (side.numpy() for side in to_host(p, q, dual))
    plan, (_, b), last = solve_transport(cost, rows, columns, b, entries, PRICING_ROUNDS if priced else 1, known)
    basis = None if last is None else torch.from_numpy(last)
    return SparseCoupling.of(plan, p.device), torch.from_numpy(b).to(dual), basis

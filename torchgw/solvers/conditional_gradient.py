"""Conditional gradients (Frank-Wolfe): the unregularised problem, from a feasible plan down to a stationary one.

    S = argmin <C(T), S> over the plans,    T <- T + t (S - T),    t = argmin of the objective on the segment,

where the objective is quadratic: its slope along S - T is 2 <C(T), S - T>, its curvature 2 <C(S) - C(T), S - T>. Dual
potentials of the linear problem bound the gap 2 <C(T), T - S> to the best S, see `torchgw.objective.bounds`.

Steps begin with vertices among a few candidates, cheap to find and, measured, on ways to lower optima than the best
vertex leads; where these no longer better the plan, the linear problem is solved exactly, and its solution decides.

How plans and costs are stored is a matter of the `QuadraticProgram`: as matrices (`DenseProgram`, here), as entries and
factors (`torchgw.solvers.factored_descent`), or as entries of sparse matrices (`torchgw.solvers.sparse_descent`).

Sources: S. Lacoste-Julien, "Convergence rate of Frank-Wolfe for non-convex objectives", 2016; T. Vayer, L. Chapel,
R. Flamary, R. Tavenard, N. Courty, "Optimal transport for structured data with application on graphs", 2019.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling
from torchgw.couplings.sparse import SparseCoupling
from torchgw.diagnostics.status import Status
from torchgw.objective.bounds import c_transform, consistent_bound, dual_bound, frank_wolfe_gap
from torchgw.objective.linearise import Gradient
from torchgw.persist.codec import storable
from torchgw.runtime.transfer import to_device, to_host
from torchgw.solvers.iterate import Check, Loop, State, iterate
from torchgw.solvers.linear_oracle import PRICING_ROUNDS, equal_masses, solve_transport
from torchgw.solvers.minimum_cost_flow import TransportError
from torchgw.solvers.transport_costs import DenseCost

logger = logging.getLogger("torchgw")

STALLED = 0.1  # of the tolerance

PlanT = TypeVar("PlanT")
CostT = TypeVar("CostT")


class VertexResult(NamedTuple):
    """The solution of a linear problem.

    plan : the vertex S.
    dual : column potentials (K,), in units of cost.
    basis : of the vertex, see `torchgw.solvers.linear_oracle.Vertex`.
    bound : no plan costs less; minus infinity where potentials alone say so.
    """

    plan: SparseCoupling
    dual: Tensor
    basis: Tensor | None = None
    bound: float = -math.inf


@storable
@dataclass(frozen=True, kw_only=True)
class DescentState(State, Generic[PlanT, CostT]):
    """Where conditional gradients stand.

    plan : T, feasible.
    cost : C(T), in units of the scaled squared distances.
    dual : column potentials (K,) of the last linear problem, in units of cost.
    value : <C(T), T>, the objective.
    gap : a bound on the Frank-Wolfe gap at T; infinite while nobody asks.
    stalled : whether the last step, towards a vertex among candidates, hardly bettered the plan.
    basis : of the last vertex, see `torchgw.solvers.linear_oracle.Vertex`.
    """

    plan: PlanT
    cost: CostT
    dual: Tensor
    value: float
    gap: float = math.inf
    stalled: bool = False
    basis: Tensor | None = None

    @property
    def complete(self) -> bool:
        return True


class QuadraticProgram(Protocol[PlanT, CostT]):
    """A quadratic objective <C(T), T> over a polytope of plans, and how both are stored."""

    @property
    def ignores_pricing(self) -> bool:
        """Whether a vertex is the same, priced or not."""

    def linearise(self, plan: PlanT) -> CostT:
        """C(T)."""

    def change(self, vertex: SparseCoupling, plan: PlanT, cost: CostT) -> CostT:
        """C(S) - C(T), up to terms that are the same for all plans, from T and C(T)."""

    def inner(self, cost: CostT, plan: PlanT | SparseCoupling) -> float:
        """<C, T>."""

    def vertex(self, state: DescentState[PlanT, CostT], priced: bool) -> VertexResult:
        """One of little cost, the best if it is to be ``priced``."""

    def bound(self, state: DescentState[PlanT, CostT]) -> tuple[Tensor, Tensor]:
        """What all plans cost at least () by the potentials of a state, and column potentials (K,) that say so."""

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
    offset: float = 0.0,
) -> tuple[DescentState[PlanT, CostT], Status]:
    """The last plan, and why the loop ended. A linear problem and a linearised cost for each step.

    Parameters
    ----------
    program : the objective and its plans.
    plan : a feasible one.
    dual : column potentials (K,) of its linear problem, in units of cost; anything will do.
    loop : its ``tol`` is the gap over the value at which a plan is stationary.
    basis : of a vertex that led to the plan, if one did.
    progress : relative fall of the value in a step up to which a step is the last; `STALLED` times ``tol`` by default.
    bound_ends : whether a bound within ``tol`` ends the loop. Otherwise the linear problem is solved at the last plan
        too, for where it has several optima, the value can fall towards another to second order alone.
    offset : what the objective has beside <C(T), T>, for the history.
    """
    progress = STALLED * loop.tol if progress is None else progress

    def update_bound(state: DescentState[PlanT, CostT], known: float = -math.inf) -> DescentState[PlanT, CostT]:
        lowest, dual = program.bound(state)
        gap = frank_wolfe_gap(state.value, lowest.clamp_min(known))
        return replace(state, dual=dual, gap=min(state.gap, float(gap)))

    def make_state(plan: PlanT, cost: CostT, dual: Tensor, **more: Any) -> DescentState[PlanT, CostT]:
        value = program.inner(cost, plan)
        state = DescentState(plan=plan, cost=cost, dual=dual, value=value, **more)
        return update_bound(state) if bound_ends else state

    def step(state: DescentState[PlanT, CostT]) -> tuple[DescentState[PlanT, CostT], Check, Status | None]:
        cost, value, n_iter = state.cost, state.value, state.n_iter + 1
        check, small = Check(value + offset, 0.0, 0.0), loop.tol * abs(value)
        before = replace(state, n_iter=n_iter)
        if abs(value) <= loop.least or (bound_ends and state.gap <= small):
            return before, check, Status.STATIONARY
        priced = state.stalled or program.ignores_pricing
        try:
            vertex, dual, basis, known = program.vertex(state, priced)
        except TransportError as error:
            logger.info("%s; the plan found so far is returned", error)
            return before, check, Status.TRANSPORT
        change = program.change(vertex, state.plan, cost)
        slope = program.inner(cost, vertex) - value
        curvature = program.inner(change, vertex) - program.inner(change, state.plan)
        length, fall = lowest_on_segment(slope, curvature)
        stalled, after = fall <= progress * abs(value), replace(before, dual=dual, basis=basis)
        if fall > 0:
            plan, cost = program.mix(state, vertex, change, length)
            after = make_state(plan, cost, dual, n_iter=n_iter, basis=basis)
        if not priced or fall > max(small, progress * abs(value)):
            return replace(after, stalled=stalled), check, None
        last = update_bound(after, known if fall <= 0 else -math.inf)
        if last.gap > small and stalled and fall > 0:
            proven = update_bound(replace(before, dual=dual), known)
            last = proven if proven.gap <= small else last
        if stalled or last.gap <= small:
            return last, check, Status.STATIONARY if last.gap <= small else Status.SETTLED
        return replace(after, stalled=stalled), check, None

    def begin() -> DescentState[PlanT, CostT]:
        return make_state(plan, program.linearise(plan), dual, basis=basis)

    state, status = iterate(DescentState, step, begin, loop)
    return (update_bound(state) if state.gap == math.inf else state), status


def lowest_on_segment(slope: float, curvature: float) -> tuple[float, float]:
    """The t of [0, 1] at which 2 t ``slope`` + t^2 ``curvature`` is lowest, all of the way where it is concave, and by
    how much it falls."""
    length = min(max(-slope / curvature, 0.0), 1.0) if curvature > 0 else 1.0
    return length, -2 * length * slope - length**2 * curvature


@runtime_checkable
class SteppingGradient(Protocol):
    """A gradient that knows how it changes towards a plan of few entries."""

    def change(self, vertex: SparseCoupling, plan: Tensor, cost: Tensor) -> Tensor:
        """C(S) - C(T) (N, K) of a plan S of few entries, from T and C(T)."""


class Polytope(Protocol):
    """Plans (N, K) that a linear problem is solved over; their row sums p (N,) are those of its masses."""

    p: Tensor

    @property
    def exact(self) -> bool:
        """Whether vertices are the best ones; others may just be good directions."""

    def vertex(self, cost: Tensor, dual: Tensor, priced: bool, basis: Tensor | None) -> VertexResult:
        """One of little cost (N, K), with column potentials (K,) to begin with, whether all entries are priced, and the
        basis of the vertex before."""

    def bound(self, cost: Tensor, dual: Tensor) -> tuple[Tensor, Tensor]:
        """What all plans cost at least (), by column potentials (K,), and those that say so."""


class StoredPlans:
    """Plans and costs (N, K) that are stored."""

    def inner(self, cost: Tensor, plan: Tensor | SparseCoupling) -> float:
        if isinstance(plan, SparseCoupling):
            return float(plan.mass @ cost[plan.row, plan.column])
        return float(torch.dot(cost.reshape(-1), plan.reshape(-1)))

    def mix(
        self, state: DescentState[Tensor, Tensor], vertex: SparseCoupling, change: Tensor, length: float
    ) -> tuple[Tensor, Tensor]:
        plan = state.plan * (1 - length)
        plan[vertex.row, vertex.column] += length * vertex.mass
        return plan, torch.add(state.cost, change, alpha=length, out=change)


class DenseProgram(StoredPlans):
    """A gradient in float64 over a polytope. O(N K) memory.

    gradient : C(T) of a plan; one that is `SteppingGradient` is asked for C(S) - C(T) of steps.
    plans : those that are feasible, as `TransportPlans` with given marginals.
    """

    def __init__(self, gradient: Gradient, plans: Polytope) -> None:
        self.gradient, self.plans = gradient, plans
        self.ignores_pricing = plans.exact

    def linearise(self, plan: Tensor | SparseCoupling) -> Tensor:
        coupling = plan if isinstance(plan, SparseCoupling) else DenseCoupling(plan)
        return self.gradient(coupling, self.plans.p).rows(slice(None))

    def change(self, vertex: SparseCoupling, plan: Tensor, cost: Tensor) -> Tensor:
        stepping = self.gradient if isinstance(self.gradient, SteppingGradient) else None
        return stepping.change(vertex, plan, cost) if stepping else self.linearise(vertex).sub_(cost)

    def vertex(self, state: DescentState[Tensor, Tensor], priced: bool) -> VertexResult:
        return self.plans.vertex(state.cost, state.dual, priced, state.basis)

    def bound(self, state: DescentState[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return self.plans.bound(state.cost, state.dual)


class TransportPlans:
    """Those with marginals p (N,), q (K,).

    exact : whether vertices are the best ones, as they always are between equal masses.
    rough : whether potentials of the first linear problem are far from its own, so that nearer ones are found before.
    """

    def __init__(self, p: Tensor, q: Tensor, exact: bool = False, rough: bool = False) -> None:
        self.p, self.q = p, q
        masses = [mass.numpy() for mass in to_host(p, q)]
        self.places = [np.flatnonzero(mass > 0) for mass in masses]
        self.rows, self.columns = (to_device(torch.from_numpy(place), p.device) for place in self.places)
        self.masses = masses[0][self.places[0]], masses[1][self.places[1]]
        equal = equal_masses(*self.masses)
        self.exact, self.rough = exact or equal, rough and not equal

    def vertex(self, cost: Tensor, dual: Tensor, priced: bool, basis: Tensor | None) -> VertexResult:
        every = len(self.rows) * len(self.columns) == cost.numel()
        present = cost if every else cost[self.rows[:, None], self.columns]
        known = None if basis is None else basis.cpu().numpy()
        near = dual[self.columns]
        (given,) = to_host(torch.zeros_like(near) if self.rough and known is None else near)
        rounds = PRICING_ROUNDS if priced or self.exact else 1
        stored = DenseCost(present.cpu().numpy(), *self.masses)
        found = solve_transport(stored, *self.masses, given.numpy(), rounds=rounds, basis=known)
        plan, dual = found.plan, torch.zeros_like(self.q)
        if not every:
            entries = plan.tocoo()
            at = self.places[0][entries.row], self.places[1][entries.col]
            plan = csr_array((entries.data, at), shape=tuple(cost.shape))
        dual[self.columns] = to_device(torch.from_numpy(found.duals[1]).to(self.q.dtype), self.q.device)
        own = None if found.basis is None else torch.from_numpy(found.basis)
        return VertexResult(SparseCoupling.of(plan, cost.device), dual, own)

    def bound(self, cost: Tensor, dual: Tensor) -> tuple[Tensor, Tensor]:
        return consistent_bound(cost, self.p, self.q, dual)


class FreeColumns:
    """Those with row sums p (N,), on columns with mass q (K,) whose sums are free: each row goes where it costs
    least."""

    exact = True

    def __init__(self, p: Tensor, q: Tensor) -> None:
        self.p, self.q = p, q

    def vertex(self, cost: Tensor, dual: Tensor, priced: bool, basis: Tensor | None) -> VertexResult:
        column = torch.where(self.q > 0, cost, torch.inf).argmin(1)
        first = torch.arange(len(column) + 1, device=column.device)
        return VertexResult(SparseCoupling(self.p, column, first, torch.tensor(len(self.q))), torch.zeros_like(self.q))

    def bound(self, cost: Tensor, dual: Tensor) -> tuple[Tensor, Tensor]:
        nothing = torch.zeros_like(self.q)
        return dual_bound(c_transform(cost, nothing, self.q), nothing, self.p, self.q), nothing

"""Conditional gradients (Frank-Wolfe): the unregularised problem, from a feasible plan down to a stationary one.

    S = argmin <C(T), S> over the plans,    T <- T + t (S - T),    t = argmin of the objective on the segment,

where the objective is quadratic: its slope along S - T is 2 <C(T), S - T>, its curvature 2 <C(S) - C(T), S - T>. Dual
potentials of the linear problem bound the gap 2 <C(T), T - S> to the best S, see `torchgw.objective.bounds`.

Steps begin with vertices among a few candidates, cheap to find and, measured, on ways to lower optima than the best
vertex leads; where these no longer better the plan, the linear problem is solved exactly, and its solution decides.

Sources: S. Lacoste-Julien, "Convergence rate of Frank-Wolfe for non-convex objectives", 2016; T. Vayer, L. Chapel,
R. Flamary, R. Tavenard, N. Courty, "Optimal transport for structured data with application on graphs", 2019.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling, DenseCoupling
from torchgw.couplings.sparse import SparseCoupling
from torchgw.diagnostics.status import Status
from torchgw.objective.bounds import c_transform, consistent_bound, dual_bound, frank_wolfe_gap
from torchgw.objective.linearise import Gradient
from torchgw.persist.codec import storable
from torchgw.runtime.transfer import to_device, to_host
from torchgw.solvers.iterate import Check, Loop, State, iterate
from torchgw.solvers.linear_oracle import PRICING_ROUNDS, solve_transport
from torchgw.solvers.minimum_cost_flow import TransportError
from torchgw.solvers.transport_costs import DenseCost

logger = logging.getLogger("torchgw")

STALLED = 0.1  # of the tolerance

VertexResult: TypeAlias = tuple[SparseCoupling, Tensor, Tensor | None]
"""A vertex, column potentials (K,) and its own basis."""


@runtime_checkable
class SteppingGradient(Protocol):
    """A gradient that knows how it changes towards a plan of few entries."""

    def change(self, vertex: SparseCoupling, plan: Tensor, cost: Tensor) -> Tensor:
        """C(S) - C(T) (N, K) of a plan S of few entries, from T and C(T)."""


class Polytope(Protocol):
    """Plans (N, K) that a linear problem is solved over; their row sums p (N,) are those of its masses."""

    p: Tensor

    def vertex(self, cost: Tensor, duals: tuple[Tensor, ...], priced: bool, basis: Tensor | None) -> VertexResult:
        """One of little cost (N, K), with column potentials (K,) to begin with, whether all entries are priced, and the
        basis of the vertex before."""

    def bound(self, cost: Tensor, dual: Tensor) -> tuple[Tensor, Tensor]:
        """What all plans cost at least (), by column potentials (K,), and those that say so."""


@storable
@dataclass(frozen=True, kw_only=True)
class FrankWolfe(State):
    """Where conditional gradients stand.

    plan : T (N, K), feasible.
    cost : C(T) (N, K), in units of the scaled squared distances.
    duals : column potentials (K,) of linear problems, in units of cost: the last one first, or where the gap is known
        that with the tightest bound.
    value : <C(T), T>, the objective.
    gap : a bound on the Frank-Wolfe gap at T; infinite while nobody asks.
    stalled : whether the last step, towards a vertex among candidates, hardly bettered the plan.
    basis : of the last vertex, see `torchgw.solvers.linear_oracle.Vertex`.
    """

    plan: Tensor
    cost: Tensor
    duals: tuple[Tensor, ...]
    value: float
    gap: float
    stalled: bool = False
    basis: Tensor | None = None

    @property
    def complete(self) -> bool:
        return True


def frank_wolfe(
    gradient: Gradient,
    plan: Tensor,
    dual: Tensor,
    plans: Polytope,
    loop: Loop,
    bound_ends: bool = False,
    offset: float = 0.0,
) -> tuple[FrankWolfe, Status]:
    """The last plan, and why the loop ended. O(N K) memory; a linear program and a linearised cost for each step.

    Parameters
    ----------
    gradient : C(T) of a plan, in float64; one that is `SteppingGradient` is asked for C(S) - C(T) of steps.
    plan : a feasible one (N, K).
    dual : column potentials (K,) of its linear problem, in units of cost; anything will do.
    plans : those that are feasible, as `TransportPlans` with given marginals.
    loop : its ``tol`` is the gap over the value at which a plan is stationary.
    bound_ends : whether a bound within that ends the loop. Otherwise the linear problem is solved at the last plan
        too, for where it has several optima, the value can fall towards another to second order alone.
    offset : what the objective has beside <C(T), T>, for the history.
    """
    p, whole = plans.p, slice(0, len(plans.p))
    stepping = gradient if isinstance(gradient, SteppingGradient) else None

    def linearise(plan: BlockCoupling) -> Tensor:
        return gradient(plan, p).rows(whole)

    def update_bounds(state: FrankWolfe) -> FrankWolfe:
        bounds = [plans.bound(state.cost, dual) for dual in state.duals]
        gaps = frank_wolfe_gap(state.value, torch.stack([bound for bound, _ in bounds])).tolist()
        order = sorted(range(len(gaps)), key=gaps.__getitem__)
        return replace(state, duals=tuple(bounds[i][1] for i in order), gap=gaps[order[0]])

    def make_state(plan: Tensor, cost: Tensor, duals: tuple[Tensor, ...], **more: Any) -> FrankWolfe:
        state = FrankWolfe(plan=plan, cost=cost, duals=duals, value=inner(cost, plan), gap=math.inf, **more)
        return update_bounds(state) if bound_ends else state

    def step(state: FrankWolfe) -> tuple[FrankWolfe, Check, Status | None]:
        plan, cost, value, n_iter = state.plan, state.cost, state.value, state.n_iter + 1
        check, small = Check(value + offset, 0.0, 0.0), loop.tol * abs(value)
        if abs(value) <= loop.least or (bound_ends and state.gap <= small):
            return replace(state, n_iter=n_iter), check, Status.STATIONARY
        try:
            vertex, dual, basis = plans.vertex(cost, state.duals, state.stalled, state.basis)
        except TransportError as error:
            logger.info("%s; the plan found so far is returned", error)
            return replace(state, n_iter=n_iter), check, Status.TRANSPORT
        at = vertex.row, vertex.column
        change = stepping.change(vertex, plan, cost) if stepping else linearise(vertex).sub_(cost)
        toward, turned, along = map(
            float, to_host(vertex.mass @ cost[at], vertex.mass @ change[at], _inner(change, plan))
        )
        slope, curvature = toward - value, turned - along
        length, fall = lowest_on_segment(slope, curvature)
        stalled = fall <= STALLED * small
        if state.stalled and fall <= small:
            last = update_bounds(replace(state, n_iter=n_iter, duals=(dual, *state.duals)))
            if stalled or last.gap <= small:
                return last, check, Status.STATIONARY if last.gap <= small else Status.SETTLED
        if fall > 0:
            plan = plan * (1 - length)
            plan[at] += length * vertex.mass
            cost = torch.add(cost, change, alpha=length, out=change)
        duals = dual, state.duals[0]
        return make_state(plan, cost, duals, n_iter=n_iter, stalled=stalled, basis=basis), check, None

    def begin() -> FrankWolfe:
        return make_state(plan, linearise(DenseCoupling(plan)), (dual,), n_iter=0)

    state, status = iterate(FrankWolfe, step, begin, loop)
    return (update_bounds(state) if state.gap == math.inf else state), status


def lowest_on_segment(slope: float, curvature: float) -> tuple[float, float]:
    """The t of [0, 1] at which 2 t ``slope`` + t^2 ``curvature`` is lowest, all of the way where it is concave, and by
    how much it falls."""
    length = min(max(-slope / curvature, 0.0), 1.0) if curvature > 0 else 1.0
    return length, -2 * length * slope - length**2 * curvature


def inner(A: Tensor, B: Tensor) -> float:
    """<A, B> of matrices (N, K)."""
    return float(_inner(A, B))


def _inner(A: Tensor, B: Tensor) -> Tensor:
    return torch.dot(A.reshape(-1), B.reshape(-1))


class TransportPlans:
    """Those with marginals p (N,), q (K,).

    exact : whether vertices are the best ones; others may just be good directions.
    rough : whether potentials of the first linear problem are far from its own, so that nearer ones are found before.
    """

    def __init__(self, p: Tensor, q: Tensor, exact: bool = False, rough: bool = False) -> None:
        self.p, self.q, self.exact, self.rough = p, q, exact, rough
        masses = [mass.numpy() for mass in to_host(p, q)]
        self.places = [np.flatnonzero(mass > 0) for mass in masses]
        self.rows, self.columns = (to_device(torch.from_numpy(place), p.device) for place in self.places)
        self.masses = masses[0][self.places[0]], masses[1][self.places[1]]

    def vertex(self, cost: Tensor, duals: tuple[Tensor, ...], priced: bool, basis: Tensor | None) -> VertexResult:
        every = len(self.rows) * len(self.columns) == cost.numel()
        present = cost if every else cost[self.rows[:, None], self.columns]
        (dual,) = to_host(duals[0][self.columns])
        if self.rough and len(duals) == 1:  # the first one
            dual = torch.zeros_like(dual)
        stored = DenseCost(present.cpu().numpy(), *self.masses)
        rounds, known = PRICING_ROUNDS if priced or self.exact else 1, None if basis is None else basis.cpu().numpy()
        found = solve_transport(stored, *self.masses, dual.numpy(), rounds=rounds, basis=known)
        plan, dual = found.plan, torch.zeros_like(self.q)
        if not every:
            entries = plan.tocoo()
            at = self.places[0][entries.row], self.places[1][entries.col]
            plan = csr_array((entries.data, at), shape=tuple(cost.shape))
        dual[self.columns] = to_device(torch.from_numpy(found.duals[1]).to(self.q.dtype), self.q.device)
        own = None if found.basis is None else torch.from_numpy(found.basis)
        return SparseCoupling.of(plan, cost.device), dual, own

    def bound(self, cost: Tensor, dual: Tensor) -> tuple[Tensor, Tensor]:
        return consistent_bound(cost, self.p, self.q, dual)


class FreeColumns:
    """Those with row sums p (N,), on columns with mass q (K,) whose sums are free: each row goes where it costs
    least."""

    def __init__(self, p: Tensor, q: Tensor) -> None:
        self.p, self.q = p, q

    def vertex(self, cost: Tensor, duals: tuple[Tensor, ...], priced: bool, basis: Tensor | None) -> VertexResult:
        column = torch.where(self.q > 0, cost, torch.inf).argmin(1)
        first = torch.arange(len(column) + 1, device=column.device)
        return SparseCoupling(self.p, column, first, torch.tensor(len(self.q))), torch.zeros_like(self.q), None

    def bound(self, cost: Tensor, dual: Tensor) -> tuple[Tensor, Tensor]:
        nothing = torch.zeros_like(self.q)
        return dual_bound(c_transform(cost, nothing, self.q), nothing, self.p, self.q), nothing

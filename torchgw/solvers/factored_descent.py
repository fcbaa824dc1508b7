"""The quadratic program between spaces with factors: plans of few entries, and no other numbers for pairs of points.

    C(T) = a 1^T + 1 b^T - 2 F (diag(s) F^T T G diag(t)) G^T,

for the steps of `torchgw.solvers.conditional_gradient` between the vertices of `torchgw.solvers.factored_transport`. A
plan has the entries of the vertices that it is made of, the first of which replaces the plan that led to it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from torchgw.couplings.sparse import SparseCoupling
from torchgw.diagnostics.status import Status
from torchgw.objective.bounds import dual_bound
from torchgw.objective.linearise import Gradient
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.solvers.conditional_gradient import DescentState, VertexResult, conditional_gradient
from torchgw.solvers.factored_transport import FactoredVertex, factored_transport, price_out, uses_flows
from torchgw.solvers.iterate import Loop
from torchgw.solvers.pricing import Order, PricedCost, union
from torchgw.types import Array

FactoredState: TypeAlias = DescentState[SparseCoupling, FactoredCost]


class FactoredProgram:
    """A pass over pairs and a linear program a step, O((N + K) r) memory. Where linear programs are flows, their
    vertices are the best of the entries that they have, and not of all.

    gradient : C(T) of a plan, products and perhaps a stored part that is the same for every plan, in float64.
    order : in which points that are neighbours are alike.
    p, q : masses (N,), (K,), all positive.
    """

    def __init__(self, gradient: Gradient, order: Order, p: Tensor, q: Tensor) -> None:
        self.gradient, self.order, self.p, self.q = gradient, order, p, q
        self.ignores_pricing = uses_flows(len(p), len(q))  # flows take seconds, rounds of them minutes
        self._ordered: PricedCost | None = None  # has the part that is the same for every plan, in tile order

    def descend_from_vertex(
        self, cost: FactoredCost, duals: tuple[Tensor, Tensor], feasible: Array, loop: Loop
    ) -> tuple[FactoredState, Status]:
        """Where conditional gradients lead from a vertex of little cost, and why they end.

        Parameters
        ----------
        cost, duals : of its linear problem, and potentials (N,), (K,) near its own.
        feasible : flat positions of entries on which a plan lives.
        loop : see `torchgw.solvers.conditional_gradient`.

        Raises
        ------
        TransportError
            Where that problem is not solved.
        """
        ordered = self._order_cost(cost)
        entries = union(feasible, ordered.cheapest_entries(*duals))
        first = _make_result(factored_transport(ordered, self.p, self.q, duals[1], entries), self.p.device)
        return conditional_gradient(self, first.plan, first.dual, loop, basis=first.basis)

    def linearise(self, plan: SparseCoupling) -> FactoredCost:
        return self.gradient(plan, self.p)

    def change(self, vertex: SparseCoupling, plan: SparseCoupling, cost: FactoredCost) -> FactoredCost:
        apart = SparseCoupling.of((vertex.matrix - plan.matrix).tocsr(), plan.device)
        return replace(self.linearise(apart), extra=None)

    def inner(self, cost: FactoredCost, plan: SparseCoupling) -> float:
        i, j = plan.row, plan.column
        costs = torch.linalg.vecdot(cost.U[i], cost.V[j]).mul_(-2.0).add_(cost.a[i]).add_(cost.b[j])
        return float(plan.mass @ (costs if cost.extra is None else costs.add_(cost.extra[i, j])))

    def vertex(self, state: FactoredState, priced: bool) -> VertexResult:
        ordered, entries = self._order_cost(state.cost), _positions(state.plan)
        row = _row_potentials_near(ordered, state.plan, state.dual)
        basis = None if state.basis is None else np.asarray(state.basis.cpu().numpy())
        if basis is not None:
            entries = union(entries, basis[basis >= 0])
        entries = union(entries, ordered.cheapest_entries(row, state.dual))
        found = factored_transport(ordered, self.p, self.q, state.dual, entries, basis)
        if priced and not self.ignores_pricing:
            found = price_out(ordered, self.p, self.q, found)
        return _make_result(found, self.p.device)

    def bound(self, state: FactoredState) -> tuple[Tensor, Tensor]:
        row, dual = row_potentials(self._order_cost(state.cost), state.plan, state.dual), state.dual
        if self.ignores_pricing:  # a flow's potentials are those of its own entries
            dual = PricedCost.of(state.cost.T, self.order.transpose).c_transform(dual, row)[0]
        return dual_bound(row, dual, self.p, self.q), dual

    def mix(
        self, state: FactoredState, vertex: SparseCoupling, change: FactoredCost, length: float
    ) -> tuple[SparseCoupling, FactoredCost]:
        if length < 1:
            mixed = state.plan.matrix * (1 - length) + vertex.matrix * length
            vertex = SparseCoupling.of(mixed.tocsr(), vertex.device)
        return vertex, self.linearise(vertex)

    def _order_cost(self, cost: FactoredCost) -> PricedCost:
        self._ordered = PricedCost.of(cost, self.order, self._ordered)
        return self._ordered


def row_potentials(cost: PricedCost, plan: SparseCoupling, dual: Tensor) -> Tensor:
    """The c-transform (N,) of column potentials (K,) near those of a plan."""
    return cost.c_transform(_row_potentials_near(cost, plan, dual), dual)[0]


def _row_potentials_near(cost: PricedCost, plan: SparseCoupling, dual: Tensor) -> Tensor:
    """What the entries of a plan leave of their cost in each row (N,), at least the c-transform."""
    left = cost.costs_at(_positions(plan), dual)
    return torch.from_numpy(np.minimum.reduceat(left, plan.first[:-1].cpu().numpy())).to(dual)


def _positions(plan: SparseCoupling) -> Array:
    """Flat positions of the entries, ascending."""
    return np.asarray((plan.row * plan.shape[1] + plan.column).cpu().numpy())


def _make_result(vertex: FactoredVertex, device: torch.device) -> VertexResult:
    basis = None if vertex.basis is None else torch.from_numpy(vertex.basis)
    return VertexResult(SparseCoupling.of(vertex.plan, device), vertex.duals[1], basis)

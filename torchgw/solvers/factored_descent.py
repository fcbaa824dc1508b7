"""The quadratic program between spaces with factors: plans of few entries, and no other numbers for pairs of points.

    C(T) = a 1^T + 1 b^T - 2 F (diag(s) F^T T G diag(t)) G^T,

for the steps of `torchgw.solvers.conditional_gradient` between the vertices of `torchgw.solvers.linear_oracle`. A
plan has the entries of the vertices that it is made of, the first of which replaces the plan that led to it.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from torchgw.couplings.sparse import SparseCoupling
from torchgw.diagnostics.status import Status
from torchgw.objective.bounds import dual_bound
from torchgw.objective.linearise import Gradient
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.solvers.conditional_gradient import DescentState, Vertex, conditional_gradient, solve_linear
from torchgw.solvers.iterate import Loop
from torchgw.solvers.linear_oracle import uses_flows
from torchgw.solvers.transport_costs import Order, TiledCost
from torchgw.types import Array

FactoredState: TypeAlias = DescentState[SparseCoupling, FactoredCost]


class FactoredProgram:
    """A pass over pairs and a linear program a step, O((N + K) r) memory. Where linear programs are flows, their
    vertices are the best of the entries that they have, and not of all.

    gradient : C(T) of a plan between spaces with factors, in float64.
    order : in which points that are neighbours are alike.
    p, q : masses (N,), (K,), all positive.
    """

    def __init__(self, gradient: Gradient, order: Order, p: Tensor, q: Tensor) -> None:
        self.gradient, self.order, self.p, self.q = gradient, order, p, q
        self.ignores_pricing = uses_flows(len(p), len(q))  # flows take seconds, rounds of them minutes

    def descend_from_vertex(
        self, cost: FactoredCost, dual: Tensor, feasible: Array, loop: Loop
    ) -> tuple[FactoredState, Status]:
        """Where conditional gradients lead from a vertex of little cost, and why they end.

        Parameters
        ----------
        cost, dual : of its linear problem, and column potentials (K,) near its own.
        feasible : flat positions of entries on which a plan lives.
        loop : see `torchgw.solvers.conditional_gradient`.

        Raises
        ------
        TransportError
            Where that problem is not solved.
        """
        nowhere = DescentState(plan=None, cost=None, dual=dual, value=0.0)
        plan, dual, basis = solve_linear(TiledCost.of(cost, self.order), nowhere, self.p, self.q, False, feasible)
        return conditional_gradient(self, plan, dual, loop, basis=basis)

    def linearise(self, plan: SparseCoupling) -> FactoredCost:
        return self.gradient(plan, self.p)

    def change(self, vertex: SparseCoupling, plan: SparseCoupling, cost: FactoredCost) -> FactoredCost:
        return self.linearise(SparseCoupling.of((vertex.matrix - plan.matrix).tocsr(), plan.device))

    def inner(self, cost: FactoredCost, plan: SparseCoupling) -> float:
        i, j = plan.row, plan.column
        costs = torch.linalg.vecdot(cost.U[i], cost.V[j]).mul_(-2.0).add_(cost.a[i]).add_(cost.b[j])
        return float(plan.mass @ costs)

    def vertex(self, state: FactoredState, priced: bool) -> Vertex:
        entries = (state.plan.row * state.plan.shape[1] + state.plan.column).cpu().numpy()
        cost, priced = TiledCost.of(state.cost, self.order), priced and not self.ignores_pricing
        return solve_linear(cost, state, self.p, self.q, priced, entries)

    def bound(self, state: FactoredState) -> tuple[Tensor, Tensor]:
        dual, row = state.dual, transform_potentials(state.cost, self.order, state.dual)
        if self.ignores_pricing:  # a flow's potentials are those of its own entries
            dual = transform_potentials(state.cost.T, self.order.transpose, row)
        return dual_bound(row, dual, self.p, self.q), dual

    def mix(
        self, state: FactoredState, vertex: SparseCoupling, change: FactoredCost, length: float
    ) -> tuple[SparseCoupling, FactoredCost]:
        if length < 1:
            mixed = state.plan.matrix * (1 - length) + vertex.matrix * length
            vertex = SparseCoupling.of(mixed.tocsr(), vertex.device)
        return vertex, self.linearise(vertex)


def transform_potentials(cost: FactoredCost, order: Order, dual: Tensor) -> Tensor:
    """The c-transform (N,) of column potentials (K,)."""
    return torch.from_numpy(TiledCost.of(cost, order).c_transform(dual.cpu().numpy())[0]).to(dual)

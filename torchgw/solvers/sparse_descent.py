"""Quadratic programs over plans of few entries: of spaces with factors, and
of sparse matrices.

A plan has the entries of the vertices that it is made of, see
`torchgw.solvers.conditional_gradient`; nothing of the size N K is stored,
and the dual potentials of `torchgw.solvers.linear_oracle` prove gaps over
all pairs. With factors,

    C(T) = a 1^T + 1 b^T - 2 F (diag(s) F^T T G diag(t)) G^T,

and the first vertex replaces the plan that led to it. Between sparse
matrices,

    W = D_X T D_Y,    C(T) = a 1^T + 1 b^T - 2 W,

W (N, K) has few entries, and stands for the cost: a plan is worth what it
has on those, and the rest of its mass may stay away, and is put together in
order. With potentials f, g >= 0 and f_i + g_j >= W_ij on all entries, no
plan is worth more than p . f + q . g.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from torchgw.couplings.sparse import SparseCoupling
from torchgw.diagnostics.status import Status
from torchgw.linalg.sparse_entries import entry_rows, select_entries
from torchgw.objective.bounds import dual_bound
from torchgw.objective.exact import SparseObjective
from torchgw.objective.linearise import Gradient
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.solvers.conditional_gradient import (
    CostT,
    DescentState,
    QuadraticProgram,
    Vertex,
    conditional_gradient,
    solve_linear,
)
from torchgw.solvers.iterate import Loop
from torchgw.solvers.linear_oracle import equal_masses, repair_marginals, solve_transport, uses_flows
from torchgw.solvers.transport_costs import Order, SparseCost, TiledCost, union
from torchgw.types import Array

# Of the progress that is asked for: assignments take little time.
ASSIGNED = 0.01
ROUNDS = 2  # of a linear program
NEGLIGIBLE = 1e-14  # of a point's mass
HOST = torch.device("cpu")

FactoredState: TypeAlias = DescentState[SparseCoupling, FactoredCost]


class FewEntries(QuadraticProgram[SparseCoupling, CostT]):
    """What both programs do alike, between masses p (N,), q (K,)."""

    def __init__(self, p: Tensor, q: Tensor) -> None:
        self.p, self.q = p, q
        self.masses = p.cpu().numpy(), q.cpu().numpy()

    def change(self, vertex: SparseCoupling, plan: SparseCoupling, cost: CostT) -> CostT:
        return self.linearise(SparseCoupling.of((vertex.matrix - plan.matrix).tocsr(), plan.device))

    def mix(
        self, state: DescentState[SparseCoupling, CostT], vertex: SparseCoupling, change: CostT, length: float
    ) -> tuple[SparseCoupling, CostT]:
        if length < 1:
            # In this form, entries that both have stay as they are, and ties
            # stay ties.
            T = state.plan.matrix
            mixed = (T + length * (vertex.matrix - T)).tocsr()
            mixed = select_entries(mixed, mixed.data > NEGLIGIBLE * self.masses[0][entry_rows(mixed)])
            vertex = SparseCoupling.of(repair_marginals(mixed, *self.masses), vertex.device)
        return vertex, self.linearise(vertex)


class FactoredProgram(FewEntries[FactoredCost]):
    """A pass over pairs and a linear program a step, O((N + K) r) memory.
    Where linear programs are flows, their vertices are the best of the
    entries that they have, and not of all.

    gradient : C(T) of a plan between spaces with factors, in float64.
    order : in which points that are neighbours are alike.
    p, q : masses (N,), (K,), all positive.
    """

    def __init__(self, gradient: Gradient, order: Order, p: Tensor, q: Tensor) -> None:
        super().__init__(p, q)
        self.gradient, self.order = gradient, order
        # Flows take seconds, rounds of them minutes.
        self.ignores_pricing = uses_flows(len(p), len(q))

    def descend_from_vertex(
        self, cost: FactoredCost, dual: Tensor, feasible: Array, loop: Loop
    ) -> tuple[FactoredState, Status]:
        """Where conditional gradients lead from a vertex of little cost,
        and why they end.

        Parameters
        ----------
        cost, dual : of its linear problem, and column potentials (K,) near
            its own.
        feasible : flat positions of entries on which a plan lives.
        loop : see `torchgw.solvers.conditional_gradient`.

        Raises
        ------
        TransportError
            Where that problem is not solved.
        """
        tiled = TiledCost(cost, self.order)
        plan, dual, basis = solve_linear(tiled, dual, None, self.p, self.q, False, feasible)
        return conditional_gradient(self, plan, dual, loop, basis=basis)

    def linearise(self, plan: SparseCoupling) -> FactoredCost:
        return self.gradient(plan, self.p)

    def inner(self, cost: FactoredCost, plan: SparseCoupling) -> Tensor:
        return torch.dot(plan.mass, cost.entries(plan.row, plan.column))

    def vertex(self, state: FactoredState, priced: bool) -> Vertex:
        entries = (state.plan.row * state.plan.shape[1] + state.plan.column).cpu().numpy()
        cost, priced = TiledCost(state.cost, self.order), priced and not self.ignores_pricing
        return solve_linear(cost, state.dual, state.basis, self.p, self.q, priced, entries)

    def bound(self, state: FactoredState) -> tuple[Tensor, Tensor]:
        dual, (row, _) = state.dual, TiledCost(state.cost, self.order).c_transform(state.dual)
        # A flow's potentials are those of its own entries.
        if self.ignores_pricing:
            dual, _ = TiledCost(state.cost.T, self.order.T).c_transform(row)
        return dual_bound(row, dual, self.p, self.q), dual


class SparseProgram(FewEntries[Any]):
    """The objective over the plans of its marginals, on the host; its costs
    are W, SciPy CSR arrays (N, K)."""

    ignores_pricing = True

    def __init__(self, objective: SparseObjective) -> None:
        super().__init__(torch.from_numpy(objective.p), torch.from_numpy(objective.q))
        self.objective = objective

    def linearise(self, plan: SparseCoupling) -> Any:
        return self.objective.cross(plan.matrix)

    def inner(self, cost: Any, plan: SparseCoupling) -> Tensor:
        return torch.tensor(self.objective.value(cost, plan.matrix), dtype=torch.float64)

    def vertex(self, state: DescentState[SparseCoupling, Any], priced: bool) -> Vertex:
        best, price = find_best_plan(state.cost, state.plan.matrix, *self.masses, self._price(state.dual))
        plan = SparseCoupling.of(repair_marginals(best, *self.masses), HOST)
        return plan, torch.from_numpy(self.objective.b - 2 * price), None

    def bound(self, state: DescentState[SparseCoupling, Any]) -> tuple[Tensor, Tensor]:
        lowest = self.objective.constant - 2 * bound_worth(state.cost, self._price(state.dual), *self.masses)
        return torch.tensor(lowest, dtype=torch.float64), state.dual

    def _price(self, dual: Tensor) -> Array:
        """What columns (K,) are worth in the units of W, from potentials in
        those of C."""
        return np.asarray(((self.objective.b - dual.numpy()) / 2).clip(min=0.0))


def descend_sparsely(
    objective: SparseObjective, start: Any, progress: float, loop: Loop
) -> tuple[DescentState[SparseCoupling, Any], Status]:
    """The last plan from a CSR array (N, K), not negative, and why the loop
    ended.

    What the start lacks to the marginals is filled in. A step that lowers
    the value by no more than a share ``progress`` is the last; where masses
    are equal, a hundredth of that.
    """
    program = SparseProgram(objective)
    plan = SparseCoupling.of(repair_marginals(start, objective.p, objective.q), HOST)
    progress *= ASSIGNED if equal_masses(*program.masses) else 1.0
    return conditional_gradient(program, plan, torch.from_numpy(objective.b), loop, progress=progress)


def find_best_plan(W: Any, T: Any, p: Array, q: Array, price: Array) -> tuple[Any, Array]:
    """A plan (N, K) with marginals of at most p, q that is best on the
    entries of W, and column potentials (K,).

    ``price`` (K,) are potentials to choose entries by; those of the plan T
    are among them.
    """
    (n, k), W = W.shape, select_entries(W, W.data > 0)
    cost, T = SparseCost(W), T.multiply(W).tocsr()
    masses = np.append(p, q.sum()), np.append(q, p.sum())
    vertex = solve_transport(cost, *masses, np.append(-price, 0.0), union(cost.slack, cost.positions(T)), ROUNDS)
    return vertex.plan[:n, :k], (-vertex.duals[1][:-1] - vertex.duals[0][-1]).clip(min=0.0)


def bound_worth(W: Any, price: Array, p: Array, q: Array) -> float:
    """What no plan is worth more than, by potentials of the columns
    ``price`` (K,) >= 0 and the least of the rows."""
    return float(q @ price - p @ SparseCost(W).c_transform(np.append(-price, 0.0)))

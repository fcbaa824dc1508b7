"""The quadratic program between two sparse matrices, on plans of few entries.

    W = D_X T D_Y,    C(T) = a 1^T + 1 b^T - 2 W,

for the steps of `torchgw.solvers.conditional_gradient` between the plans of `torchgw.solvers.linear_oracle`. W
(N, K) has few entries, and stands for the cost: a plan is worth what it has on those, and the rest of its mass may stay
away, and is put together in order. With potentials f, g >= 0 and f_i + g_j >= W_ij on all entries, no plan is worth
more than p . f + q . g, so the gap is known over all N K pairs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from torchgw.couplings.sparse import SparseCoupling
from torchgw.diagnostics.status import Status
from torchgw.linalg.sparse_entries import entry_rows, row_maxima, select_entries
from torchgw.objective.sparse import SparseObjective
from torchgw.solvers.conditional_gradient import DescentState, Vertex, conditional_gradient
from torchgw.solvers.iterate import Loop
from torchgw.solvers.linear_oracle import equal_masses, repair_marginals, solve_transport
from torchgw.solvers.transport_costs import SparseCost, union
from torchgw.types import Array

ASSIGNED = 0.01  # of the progress that is asked for: assignments take little time
ROUNDS = 2  # of a linear program
NEGLIGIBLE = 1e-14  # of a point's mass
HOST = torch.device("cpu")


class SparseProgram:
    """The objective over the plans of its marginals, on the host; its costs are W, SciPy CSR arrays (N, K)."""

    ignores_pricing = True

    def __init__(self, objective: SparseObjective) -> None:
        self.objective, self.p, self.q = objective, objective.p, objective.q
        self.equal = equal_masses(self.p, self.q)

    def linearise(self, plan: SparseCoupling) -> Any:
        return self.objective.cross(plan.matrix)

    def change(self, vertex: SparseCoupling, plan: SparseCoupling, cost: Any) -> Any:
        return self.objective.cross(vertex.matrix - plan.matrix)

    def inner(self, cost: Any, plan: SparseCoupling) -> float:
        return self.objective.value(cost, plan.matrix)

    def vertex(self, state: DescentState[SparseCoupling, Any], priced: bool) -> Vertex:
        best, price = find_best_plan(state.cost, state.plan.matrix, self.p, self.q, self._price(state.dual))
        plan = SparseCoupling.of(repair_marginals(best, self.p, self.q), HOST)
        return plan, torch.from_numpy(self.objective.b - 2 * price), None

    def bound(self, state: DescentState[SparseCoupling, Any]) -> tuple[Tensor, Tensor]:
        most = dual_bound(state.cost, self._price(state.dual), self.p, self.q)
        lowest = self.objective.constant - 2 * most
        return torch.tensor(lowest, dtype=torch.float64), state.dual

    def mix(
        self, state: DescentState[SparseCoupling, Any], vertex: SparseCoupling, change: Any, length: float
    ) -> tuple[SparseCoupling, Any]:
        if length < 1:
            T = state.plan.matrix  # in this form, entries that both have stay as they are, and ties stay ties
            mixed = (T + length * (vertex.matrix - T)).tocsr()
            mixed = select_entries(mixed, mixed.data > NEGLIGIBLE * self.p[entry_rows(mixed)])
            vertex = SparseCoupling.of(repair_marginals(mixed, self.p, self.q), HOST)
        return vertex, self.linearise(vertex)

    def _price(self, dual: Tensor) -> Array:
        """What columns (K,) are worth in the units of W, from potentials in those of C."""
        found: Array = ((self.objective.b - dual.numpy()) / 2).clip(min=0.0)
        return found


def descend_sparsely(
    objective: SparseObjective, start: Any, progress: float, loop: Loop
) -> tuple[DescentState[SparseCoupling, Any], Status]:
    """The last plan from a CSR array (N, K), not negative, and why the loop ended.

    What the start lacks to the marginals is filled in. A step that lowers the value by no more than a share
    ``progress`` is the last; where masses are equal, a hundredth of that.
    """
    program = SparseProgram(objective)
    plan = SparseCoupling.of(repair_marginals(start, objective.p, objective.q), HOST)
    progress *= ASSIGNED if program.equal else 1.0
    return conditional_gradient(program, plan, torch.from_numpy(objective.b), loop, progress=progress)


def find_best_plan(W: Any, T: Any, p: Array, q: Array, price: Array) -> tuple[Any, Array]:
    """A plan (N, K) with marginals of at most p, q that is best on the entries of W, and column potentials (K,).

    ``price`` (K,) are potentials to choose entries by; those of the plan T are among them.
    """
    (n, k), W = W.shape, select_entries(W, W.data > 0)
    cost, T = SparseCost(W), T.multiply(W).tocsr()
    masses = np.append(p, q.sum()), np.append(q, p.sum())
    vertex = solve_transport(cost, *masses, np.append(-price, 0.0), union(cost.slack, cost.positions(T)), ROUNDS)
    return vertex.plan[:n, :k], (-vertex.duals[1][:-1] - vertex.duals[0][-1]).clip(min=0.0)


def dual_bound(W: Any, price: Array, p: Array, q: Array) -> float:
    """What no plan is worth more than, by potentials of the columns ``price`` (K,) >= 0 and the least of the rows."""
    reduced = csr_array((W.data - price[W.indices], W.indices, W.indptr), shape=W.shape)
    return float(p @ row_maxima(reduced).clip(min=0.0) + q @ price)

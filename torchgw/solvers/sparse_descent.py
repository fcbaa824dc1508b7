"""The quadratic program between two sparse matrices, on plans of few entries.

    W = D_X T D_Y,    C(T) = a 1^T + 1 b^T - 2 W,

for the steps of `torchgw.solvers.conditional_gradient` between the plans of `torchgw.solvers.sparse_transport`. W
(N, K) has few entries, and stands for the cost: a plan is worth what it has on those, and the rest of its mass is put
together in order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.sparse import diags_array
from torch import Tensor

from torchgw.couplings.sparse import SparseCoupling
from torchgw.diagnostics.status import Status
from torchgw.linalg.sparse_entries import entry_rows, make_csr, select_entries
from torchgw.objective.bounds import monotone_coupling
from torchgw.objective.sparse import SparseObjective
from torchgw.solvers.conditional_gradient import DescentState, VertexResult, conditional_gradient
from torchgw.solvers.iterate import Loop
from torchgw.solvers.sparse_transport import dual_bound, find_best_permutation, find_best_plan
from torchgw.solvers.transport_lp import equal_masses
from torchgw.types import Array

ASSIGNED = 0.01  # of the progress that is asked for: assignments take little time
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

    def vertex(self, state: DescentState[SparseCoupling, Any], priced: bool) -> VertexResult:
        W, (p, q) = state.cost, (self.p, self.q)
        if self.equal:
            best = find_best_permutation(W, p)
        else:
            best = find_best_plan(W, state.plan.matrix, p, q, self._price(state.dual))
        plan = SparseCoupling.of(complete_marginals(best.plan, p, q), HOST)
        return VertexResult(plan, self._dual(best.price), bound=self._lowest(best.bound))

    def bound(self, state: DescentState[SparseCoupling, Any]) -> tuple[Tensor, Tensor]:
        most = dual_bound(state.cost, self._price(state.dual), self.p, self.q)
        return torch.tensor(self._lowest(most), dtype=torch.float64), state.dual

    def mix(
        self, state: DescentState[SparseCoupling, Any], vertex: SparseCoupling, change: Any, length: float
    ) -> tuple[SparseCoupling, Any]:
        if length < 1:
            T = state.plan.matrix  # in this form, entries that both have stay as they are, and ties stay ties
            mixed = (T + length * (vertex.matrix - T)).tocsr()
            mixed = select_entries(mixed, mixed.data > NEGLIGIBLE * self.p[entry_rows(mixed)])
            vertex = SparseCoupling.of(complete_marginals(mixed, self.p, self.q), HOST)
        return vertex, self.linearise(vertex)

    def _price(self, dual: Tensor) -> Array:
        """What columns (K,) are worth in the units of W, from potentials in those of C."""
        found: Array = ((self.objective.b - dual.numpy()) / 2).clip(min=0.0)
        return found

    def _dual(self, price: Array) -> Tensor:
        """The reverse."""
        return torch.from_numpy(self.objective.b - 2 * price)

    def _lowest(self, most: float) -> float:
        """What every plan costs at least, where none is worth more than ``most``."""
        return float(self.objective.a @ self.p + self.objective.b @ self.q) - 2 * most


def descend_sparsely(
    objective: SparseObjective, start: Any, progress: float, loop: Loop
) -> tuple[DescentState[SparseCoupling, Any], Status]:
    """The last plan from a CSR array (N, K), not negative, and why the loop ended.

    What the start lacks to the marginals is filled in. A step that lowers the value by no more than a share
    ``progress`` is the last; where masses are equal, a hundredth of that.
    """
    program = SparseProgram(objective)
    plan = SparseCoupling.of(complete_marginals(start, objective.p, objective.q), HOST)
    progress *= ASSIGNED if program.equal else 1.0
    return conditional_gradient(program, plan, torch.from_numpy(objective.b), loop, progress=progress)


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

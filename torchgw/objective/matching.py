"""The exact gradient of plans with few entries: one product instead of two, and of two plans by rows that differ."""

from __future__ import annotations

import torch
from torch import Tensor

from torchgw.couplings.sparse import SparseCoupling
from torchgw.objective.exact import ExactGradient, dense
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.types import Coupling

FEW_ENTRIES = 0.01  # share of a plan's, up to which a sparse product takes less
ROUNDING, SUMS_ROUNDING = 1e-15, 1e-12  # of the largest entry


def matrix_of(plan: SparseCoupling) -> Tensor:
    """A plan of few entries as a sparse tensor (N, K)."""
    at = torch.stack((plan.row, plan.column))
    return torch.sparse_coo_tensor(at, plan.mass, plan.shape, check_invariants=False, is_coalesced=True)


class MatchingGradient:
    """The exact gradient of plans with few entries, as those without entropy are: one product instead of two.

    Of the difference of two plans only the rows count in which they differ, so near the end it takes nearly nothing.
    """

    def __init__(self, exact: ExactGradient) -> None:
        self.exact = exact

    @classmethod
    def of(cls, exact: ExactGradient) -> MatchingGradient | None:
        """None where a product takes less anyway, or is another: of factors, sparse or asymmetric matrices."""
        factors = any(space.factors() is not None for space in (exact.source, exact.target))
        return None if factors or exact.stores_product else cls(exact)

    def __call__(self, coupling: Coupling, p: Tensor, q: Tensor | None = None) -> FactoredCost:
        plan = coupling.to_dense().to(p.dtype)
        if int(plan.count_nonzero()) > FEW_ENTRIES * plan.numel():
            return self.exact(coupling, p, q)
        ends = (self.exact.a, self.exact.b) if q is None else self.means(p, q)
        return FactoredCost.from_product(*ends, self._product(plan))

    def means(self, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """The row (N,) and column (K,) terms of the cost of a plan with these marginals."""
        return self.exact.means(p, q)

    def change(self, vertex: SparseCoupling, plan: Tensor, cost: Tensor) -> Tensor:
        """C(S) - C(T) (N, K) of a plan S of few entries, from T and C(T): by the rows in which they differ, or by S."""
        found = self.cross(vertex, plan)
        if found is not None:
            return found
        found = dense(self.exact.source) @ (matrix_of(vertex) @ dense(self.exact.target))
        return found.mul_(-2.0).add_(self.exact.b).add_(self.exact.a[:, None]).sub_(cost)

    def cross(self, vertex: SparseCoupling, plan: Tensor) -> Tensor | None:
        """-2 D_X (S - T) D_Y (N, K) by the rows in which the plans differ; None where these are most."""
        row, column, mass = vertex.row, vertex.column, vertex.mass
        most = float(mass.max()) if len(mass) else 0.0
        negligible, rest = ROUNDING * most, (plan.sum(1) - vertex.marginal(1)).abs() > SUMS_ROUNDING * most
        apart = (plan[row, column] - mass).abs() > negligible
        rows = torch.unique(
            torch.cat((row[apart], torch.nonzero(rest)[:, 0]))
        )  # elsewhere entries of S are all that a row of T has, too
        if len(rows) > len(plan) // 2:
            return None
        part = vertex.rows(rows) - plan[rows]
        part[part.abs() <= negligible] = 0.0  # what rounding a plan onto its marginals left
        return self._times(rows, part).mul_(-2.0)

    def _product(self, T: Tensor) -> Tensor:
        """D_X T D_Y (N, K)."""
        rows = torch.nonzero((T != 0).any(1))[:, 0]
        return self._times(rows, T[rows])

    def _times(self, rows: Tensor, part: Tensor) -> Tensor:
        """D_X[:, rows] part D_Y (N, K)."""
        D, E = dense(self.exact.source), dense(self.exact.target)
        few = int(part.count_nonzero()) <= FEW_ENTRIES * D.shape[0] * E.shape[0]
        return D[:, rows] @ (torch.sparse.mm(part.to_sparse(), E) if few else part @ E)

"""The linearised cost in factored form, C_ij = a_i + b_j - 2 <u_i, v_j>, with a stored part where there must be one.

Anchors give u = D_X[:, I] / sqrt(M) and v = D_Y[:, J] / sqrt(M), so that C_ij = |u_i - v_j|^2 is the mean over the
anchor pairs of (D_X[i, i_m] - D_Y[j, j_m])^2. The N x K matrix need not exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchgw.kernels import LN2, LOG2E
from torchgw.persist.codec import storable
from torchgw.runtime.transfer import to_device


@storable
@dataclass(frozen=True)
class FactoredCost:
    """C = a 1^T + 1 b^T - 2 U V^T + extra, over leading batch dimensions.

    a : row terms (..., N).
    b : column terms (..., K).
    U, V : factors (..., N, r), (..., K, r).
    extra : the part without factors (..., N, K), or None.
    """

    a: Tensor
    b: Tensor
    U: Tensor
    V: Tensor
    extra: Tensor | None = None

    @classmethod
    def squared_distance(cls, U: Tensor, V: Tensor) -> FactoredCost:
        """|u_i - v_j|^2. U and V are centred first, which changes a and b, keeps C, and shrinks the product."""
        u0, v0 = U.mean(0), V.mean(0)
        shift = u0 - v0
        U, V = U - u0, V - v0
        a = U.square().sum(1) + 2 * (U @ shift) + shift.square().sum()
        b = V.square().sum(1) - 2 * (V @ shift)
        return cls(a, b, U, V)

    @classmethod
    def from_matrix(cls, matrix: Tensor, a: Tensor | None = None, b: Tensor | None = None) -> FactoredCost:
        """A cost (N, K) that has no factors, with these row (N,) and column (K,) terms besides, or none."""
        (n, k), zeros = matrix.shape, matrix.new_zeros
        return cls(zeros(n) if a is None else a, zeros(k) if b is None else b, zeros(n, 0), zeros(k, 0), matrix)

    @classmethod
    def from_product(cls, a: Tensor, b: Tensor, product: Tensor) -> FactoredCost:
        """a 1^T + 1 b^T - 2 P for a stored P (..., N, K), centred in place as factors are by `centre_factors`."""
        row = product.mean(-1)
        column = product.mean(-2) - row.mean(-1, keepdim=True)
        extra = product.sub_(row[..., None]).sub_(column[..., None, :]).mul_(-2)
        U, V = (side.new_zeros(*side.shape, 0) for side in (row, column))
        return cls(a - 2 * row, b - 2 * column, U, V, extra)

    @classmethod
    def weighted_sum(cls, costs: Sequence[FactoredCost], weights: Sequence[float | Tensor]) -> FactoredCost:
        """The sum of weights (...) times costs; their ranks add up."""
        parts = [cost.times(weight) for cost, weight in zip(costs, weights, strict=True)]
        extras = [part.extra for part in parts if part.extra is not None]
        return cls(
            _sum([part.a for part in parts]),
            _sum([part.b for part in parts]),
            _concatenate_factors([part.U for part in parts]),
            _concatenate_factors([part.V for part in parts]),
            _sum(extras) if extras else None,
        )

    def times(self, weight: float | Tensor) -> FactoredCost:
        """A weight (...) times the cost."""
        extra = None if self.extra is None else _times(weight, self.extra, 2)
        if isinstance(weight, Tensor):
            a, b, U = (_times(weight, part, dims) for part, dims in ((self.a, 1), (self.b, 1), (self.U, 2)))
        else:
            a, b, U = torch._foreach_mul((self.a, self.b, self.U), weight)
        return FactoredCost(a, b, U, self.V, extra)

    def centre_factors(self, epsilon: float | Tensor) -> tuple[FactoredCost, Tensor, Tensor]:
        """The same cost with U and V centred, and the row (N,) and column (K,) terms r, c this takes off the score.

        2 U V^T log2(e) / epsilon = 2 U' V'^T log2(e) / epsilon + r 1^T + 1 c^T, so potentials f, g of the score as it
        is are f + r, g + c of the centred one. The smaller product keeps more digits in float32.
        """
        u0, v0, unit = self.U.mean(0), self.V.mean(0), 2 * LOG2E / epsilon
        row, column = self.U @ v0, self.V @ u0 - u0 @ v0
        a, b = torch._foreach_sub((self.a, self.b), (row, column), alpha=2)
        centred = FactoredCost(a, b, self.U - u0, self.V - v0, self.extra)
        return centred, unit * row, unit * column

    @property
    def T(self) -> FactoredCost:
        """The cost with rows and columns exchanged."""
        extra = None if self.extra is None else self.extra.mT
        return FactoredCost(self.b, self.a, self.V, self.U, extra)

    def restrict(self, rows: Tensor | slice, columns: Tensor | slice) -> FactoredCost:
        """The cost between the points ``rows`` and ``columns``, given by their indices."""
        extra = None if self.extra is None else self.extra[rows][:, columns]
        return FactoredCost(self.a[rows], self.b[columns], self.U[rows], self.V[columns], extra)

    def to(self, to: torch.dtype | torch.device) -> FactoredCost:
        """The same cost in another dtype, or on another device."""

        def move(part: Tensor) -> Tensor:
            return to_device(part, to) if isinstance(to, torch.device) else part.to(to)

        extra = None if self.extra is None else move(self.extra)
        return FactoredCost(move(self.a), move(self.b), move(self.U), move(self.V), extra)

    def rows(self, where: slice | Tensor) -> Tensor:
        """C[where], shape (len, K)."""
        found = torch.addmm(self.b, self.U[where], self.V.T, alpha=-2.0).add_(self.a[where, None])
        return found if self.extra is None else found.add_(self.extra[where])

    def entries(self, rows: Tensor, columns: Tensor) -> Tensor:
        """C_ij (m,) at some places, without the stored part."""
        products: Tensor = torch.linalg.vecdot(self.U[rows], self.V[columns])
        return products.mul_(-2.0).add_(self.a[rows]).add_(self.b[columns])

    def balanced_score(self, epsilon: float | Tensor) -> tuple[Tensor, Tensor]:
        """A (..., N, r), B (..., K, r): A B^T = -C log2(e) / epsilon up to row and column terms and the stored part.

        Row and column terms do not change a balanced plan; other marginal models take them as offsets. Epsilons may be
        one number for each problem of a batch.
        """
        return _times(2 * LOG2E / epsilon, self.U, 2), self.V

    def stored_score(self, epsilon: float | Tensor, out: Tensor | None = None) -> Tensor:
        """-C log2(e) / epsilon (..., N, K) up to row and column terms, written to ``out`` where it is given."""
        A, B = self.balanced_score(epsilon)
        out = torch.matmul(A, B.mT) if out is None else torch.matmul(A, B.mT, out=out)
        if self.extra is None:
            return out
        unit = LOG2E / epsilon
        return out.sub_(_times(unit, self.extra, 2)) if isinstance(unit, Tensor) else out.sub_(self.extra, alpha=unit)

    def offsets(self, epsilon: float | Tensor) -> tuple[Tensor, Tensor]:
        """The row (..., N) and column (..., K) terms of the cost in the units of the score."""
        return _times(LOG2E / epsilon, self.a, 1), _times(LOG2E / epsilon, self.b, 1)

    def column_dual(self, g: Tensor, q: Tensor, epsilon: float) -> Tensor:
        """Dual potentials (K,) in units of cost, from base-2 potentials g of the uncentred score at ``epsilon`` and
        masses q (K,): T_ij = p_i q_j exp((f_i + g_j - C_ij) / epsilon) of those of both sides."""
        found = self.b.to(q.dtype) + epsilon * LN2 * (g - q.log2())
        return torch.where(q > 0, found, 0.0)

    def expectation(self, cross: Tensor | float, row: Tensor, column: Tensor) -> Tensor:
        """<C, T> (...) for plans with these marginals, their own rather than those asked for, and ``cross`` =
        <U V^T, T>, half of the stored part taken off."""
        found: Tensor = torch.linalg.vecdot(self.a, row) + torch.linalg.vecdot(self.b, column)
        return torch.sub(found, cross, alpha=2)

    def expectation_from_score(self, overlap: Tensor, epsilon: float | Tensor, row: Tensor, column: Tensor) -> Tensor:
        """<C, T> (...) likewise, from <score, T> at ``epsilon`` of the stored score."""
        return self.expectation(overlap * (epsilon * LN2 / 2), row, column)


def _times(weight: float | Tensor, part: Tensor, dims: int) -> Tensor:
    """Weights (...) times a part of costs with that many dimensions beyond the batch."""
    if isinstance(weight, Tensor) and weight.ndim:
        weight = weight[(..., *(None for _ in range(dims)))]
    return weight * part


def _sum(parts: list[Tensor]) -> Tensor:
    return sum(parts[1:], parts[0])


def _concatenate_factors(parts: list[Tensor]) -> Tensor:
    """Factors (..., N, r) of several costs as the columns of one; some may lack the batch dimensions."""
    if len(parts) == 1:
        return parts[0]
    batch = max((part.shape[:-2] for part in parts), key=len)
    return torch.cat([part.expand(*batch, *part.shape[-2:]) for part in parts], dim=-1)

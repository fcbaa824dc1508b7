"""The linearised cost in factored form, C_ij = a_i + b_j - 2 <u_i, v_j>.

Anchors give u = D_X[:, I] / sqrt(M) and v = D_Y[:, J] / sqrt(M), so that C_ij = |u_i - v_j|^2 is the mean over the
anchor pairs of (D_X[i, i_m] - D_Y[j, j_m])^2. The N x K matrix need not exist.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchgw.kernels import LOG2E


@dataclass(frozen=True)
class FactoredCost:
    """C = a 1^T + 1 b^T - 2 U V^T with a (N,), b (K,), U (N, r), V (K, r)."""

    a: Tensor
    b: Tensor
    U: Tensor
    V: Tensor

    @classmethod
    def squared_distance(cls, U: Tensor, V: Tensor) -> FactoredCost:
        """|u_i - v_j|^2. U and V are centred first, which changes a and b, keeps C, and shrinks the product."""
        u0, v0 = U.mean(0), V.mean(0)
        shift = u0 - v0
        U, V = U - u0, V - v0
        a = U.square().sum(1) + 2 * (U @ shift) + shift.square().sum()
        b = V.square().sum(1) - 2 * (V @ shift)
        return cls(a, b, U, V)

    def centred(self) -> tuple[FactoredCost, Tensor, Tensor]:
        """The same cost with U and V centred, and the row (N,) and column (K,) terms r, c that this takes off U V^T.

        U V^T = U' V'^T + r 1^T + 1 c^T. The smaller product keeps more digits in float32.
        """
        u0, v0 = self.U.mean(0), self.V.mean(0)
        row, column = self.U @ v0, self.V @ u0 - u0 @ v0
        return FactoredCost(self.a - 2 * row, self.b - 2 * column, self.U - u0, self.V - v0), row, column

    def taken(self, rows: Tensor, columns: Tensor) -> FactoredCost:
        """The cost between the points ``rows`` and ``columns``, given by their indices."""
        return FactoredCost(self.a[rows], self.b[columns], self.U[rows], self.V[columns])

    def rows(self, where: slice | Tensor) -> Tensor:
        """C[where], shape (len, K)."""
        return torch.addmm(self.b, self.U[where], self.V.T, alpha=-2.0).add_(self.a[where, None])

    def balanced_score(self, epsilon: float) -> tuple[Tensor, Tensor]:
        """A (N, r), B (K, r) with A B^T = -C log2(e) / epsilon up to row and column terms.

        Those terms do not change a balanced plan; every other marginal model has to keep them.
        """
        return self.U * (2 * LOG2E / epsilon), self.V

    def expectation(self, cross: Tensor, row: Tensor, column: Tensor) -> Tensor:
        """<C, T> for a plan with these marginals, its own rather than those asked for, and ``cross`` = <U V^T, T>."""
        return self.a @ row + self.b @ column - 2 * cross

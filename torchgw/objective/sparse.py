"""The quadratic part between two sparse matrices, for plans of few entries: nothing of the size N K is stored.

    W = (D_X T D_Y^T + D_X^T T D_Y) / 2,    <C(T), T> = a . p + b . q - 2 <W, T>,

with the mean squares a = (D_X o D_X) p and b = (D_Y o D_Y) q. Where T has a few entries in each row, W has about as
many as the products of the degrees of its matches, and is zero everywhere else, so that C(T) is known at all pairs of
points by the entries of W, and linear problems over all plans are problems on these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchgw.linalg.sparse_entries import entry_rows, inner
from torchgw.types import Array


@dataclass(frozen=True, eq=False)
class SparseObjective:
    """Two matrices, with what the marginals decide.

    X, Y : D_X (N, N), D_Y (K, K), SciPy CSR arrays, float64.
    p, q : masses (N,), (K,).
    a, b : mean squares of rows and columns (N,), (K,), in units of cost.
    symmetric : whether both matrices are.
    """

    X: Any
    Y: Any
    p: Array
    q: Array
    a: Array
    b: Array
    symmetric: bool

    @classmethod
    def of(cls, X: Any, Y: Any, p: Array, q: Array, symmetric: bool) -> SparseObjective:
        """Between these matrices, for plans of marginals p, q."""
        a, b = (((D**2) @ mass + (D**2).T @ mass) / 2 for D, mass in ((X, p), (Y, q)))
        return cls(X, Y, p, q, a, b, symmetric)

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return len(self.p), len(self.q)

    @property
    def constant(self) -> float:
        """a . p + b . q."""
        return float(self.a @ self.p + self.b @ self.q)

    def cross(self, T: Any) -> Any:
        """W (N, K) of a plan, CSR."""
        if self.symmetric:
            return (self.X @ T @ self.Y).tocsr()
        return ((self.X @ T @ self.Y.T + self.X.T @ T @ self.Y) / 2).tocsr()

    def value(self, W: Any, T: Any) -> float:
        """<C(T), T> of a plan on the marginals, with its W."""
        return self.constant - 2 * inner(W, T)

    def similarity(self, T: Any) -> Any:
        """2 W_ij / (a_i + b_j), CSR: 1 where T carries all neighbours of i to those of j."""
        W = self.cross(T)
        W.data *= 2 / (self.a[entry_rows(W)] + self.b[W.indices]).clip(min=1e-300)
        return W

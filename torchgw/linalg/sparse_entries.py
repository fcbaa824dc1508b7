"""Sparse matrices by their entries: the largest of each row, those that are largest both ways, scaling to sums."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array

from torchgw.types import Array


def make_csr(row: Array, column: Array, values: Array, shape: tuple[int, int]) -> Any:
    """The SciPy CSR array with these entries (m,); entries in the same place are added up."""
    found = csr_array((values, (row, column)), shape=shape)
    found.sort_indices()
    return found


def entry_rows(W: Any) -> Array:
    """The row of each entry of a CSR array (m,)."""
    return np.repeat(np.arange(W.shape[0]), np.diff(W.indptr))


def entry_values(W: Any, row: Array, column: Array) -> Array:
    """Values (m,) of a CSR matrix at some places; of none SciPy gives no array."""
    return np.asarray(W[row, column] if len(row) else (), dtype=W.dtype).ravel()


def inner(W: Any, T: Any) -> float:
    """<W, T>."""
    return float(W.multiply(T).sum())


def row_maxima(W: Any) -> Array:
    """The largest entry of each row (N,), -inf where there is none."""
    found = np.full(W.shape[0], -np.inf)
    np.maximum.at(found, entry_rows(W), W.data)
    return found


def select_entries(W: Any, which: Array) -> Any:
    """The entries of a CSR array that are marked (m,), with their order."""
    before = np.concatenate(([0], np.cumsum(which)))
    return csr_array((W.data[which], W.indices[which], before[W.indptr]), shape=W.shape)


def largest_per_row(W: Any, k: int, price: Array | None = None) -> Any:
    """The k largest entries of each row; by W_ij - price_j where columns have a ``price`` (K,)."""
    value = W.data if price is None else W.data - price[W.indices]
    row = entry_rows(W)
    order = np.lexsort((-value, row))
    which = np.zeros(len(order), dtype=bool)
    which[order[np.arange(len(order)) - W.indptr[row] < k]] = True
    return select_entries(W, which)


def find_mutual_pairs(W: Any) -> tuple[Array, Array]:
    """Rows and columns (m,) of the entries that are the largest of both, the first of equal ones."""
    column, row = _first_largest(W), _first_largest(W.T.tocsr())
    i = np.flatnonzero(column >= 0)
    i = i[row[column[i]] == i]
    return i, column[i]


def _first_largest(W: Any) -> Array:
    """The column of each row's largest entry (N,), -1 where there is none."""
    row, found = entry_rows(W), np.full(W.shape[0], -1)
    at = np.flatnonzero(W.data == row_maxima(W)[row])[::-1]
    found[row[at]] = W.indices[at]
    return found


def scale_to_marginals(W: Any, p: Array, q: Array, n_iter: int) -> Any:
    """diag(u) W diag(v) of a matrix that is not negative, with column sums near q (K,) and row sums of at most p (N,),
    after so many Sinkhorn iterations. Rows and columns without entries stay empty."""
    u, v = np.ones_like(p), np.ones_like(q)
    for _ in range(n_iter):
        u = _divide_or_zero(p, W @ v)
        v = _divide_or_zero(q, u @ W)
    u = np.minimum(u, _divide_or_zero(p, W @ v))
    scaled = W.data * u[entry_rows(W)] * v[W.indices]
    return csr_array((scaled, W.indices, W.indptr), shape=W.shape)


def _divide_or_zero(mass: Array, sums: Array) -> Array:
    found: Array = np.divide(mass, sums, out=np.zeros_like(mass), where=sums > 0)
    return found

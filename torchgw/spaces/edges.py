"""Symmetric graphs as SciPy CSR matrices with sorted indices, in which explicit zeros are edges of length zero."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array, csr_matrix

from torchgw.linalg.sparse_entries import entry_values
from torchgw.types import Array

BLOCK_PAIRS = 50_000


def union(neighbour: Array) -> Any:
    """The undirected edges of neighbour lists (N, k), as int8 CSR: 2 where both ends list each other, else 1."""
    n, k = neighbour.shape
    return symmetrise_edges(n, np.repeat(np.arange(n, dtype=neighbour.dtype), k), neighbour.ravel())


def symmetrise_edges(n: int, source: Array, target: Array) -> Any:
    """The same for directed edges."""
    directed = csr_matrix((np.ones(len(source), dtype=np.int8), (source, target)), shape=(n, n))
    directed.data[:] = 1
    directed.sort_indices()
    return directed + directed.T.tocsr()


def from_edges(n: int, source: Array, target: Array, length: Array) -> Any:
    """Symmetric CSR graph of the given edges; of repeated ones the longest counts, and zero lengths stay edges."""
    source, target = source.astype(np.int64), target.astype(np.int64)
    key = np.concatenate((source * n + target, target * n + source))
    value = np.concatenate((length, length))
    order = np.argsort(key, kind="stable")
    key, value = key[order], value[order]
    first = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1])))
    row, column = np.divmod(key[first], n)
    index_pointer = np.searchsorted(row, np.arange(n + 1))
    return csr_matrix((np.maximum.reduceat(value, first), column, index_pointer), shape=(n, n))


def components(graph: Any) -> tuple[int, Array]:
    """How many components a symmetric graph has, and the component of each point (N,)."""
    from scipy.sparse.csgraph import connected_components

    # In a symmetric graph these are the strong components, which SciPy finds without a transposed copy.
    n_components, label = connected_components(graph, directed=True, connection="strong")
    return int(n_components), label


def entry_positions(graph: Any, row: Array, column: Array) -> Array:
    """Positions (m,) of the entries (row, column), all of which the graph has. O(m log k)."""
    return entry_values(csr_array((np.arange(graph.nnz), graph.indices, graph.indptr), shape=graph.shape), row, column)


def edge_subgraph(graph: Any, kept: Array) -> Any:
    """The graph of the entries marked ``kept`` (nnz,) alone."""
    pointer = graph.indptr - np.searchsorted(np.flatnonzero(~kept), graph.indptr).astype(graph.indptr.dtype)
    return csr_matrix((graph.data[kept], graph.indices[kept], pointer), shape=graph.shape)


def to_edges(graph: Any) -> tuple[Array, Array, Array]:
    """Source, target and length (E,) of each undirected edge, the inverse of `from_edges`."""
    edges = graph.tocoo()
    once = edges.row < edges.col
    return edges.row[once], edges.col[once], edges.data[once]


def two_edges(graph: Any, source: Array, target: Array) -> Array:
    """Length (m,) of the shortest path of two edges from source to target, infinite where there is none.

    O(m k), in blocks of pairs.
    """
    # Sparse products drop zeros, and edges may have length zero.
    tiny = np.finfo(float).tiny
    length = graph.data if graph.nnz == 0 or graph.data.min() >= tiny else np.maximum(graph.data, tiny)
    lengths = csr_matrix((length, graph.indices, graph.indptr), shape=graph.shape)
    ones = csr_matrix((np.ones(graph.nnz, dtype=np.int8), graph.indices, graph.indptr), shape=graph.shape)
    found = np.full(len(source), np.inf)
    for first in range(0, len(source), BLOCK_PAIRS):
        i, j = source[first : first + BLOCK_PAIRS], target[first : first + BLOCK_PAIRS]
        there, back = lengths[i].multiply(ones[j]).tocsr(), lengths[j].multiply(ones[i]).tocsr()
        some = np.flatnonzero(np.diff(there.indptr))
        if len(some):
            found[first + some] = np.minimum.reduceat(there.data + back.data, there.indptr[some])
    return found

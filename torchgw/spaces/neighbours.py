"""Nearest neighbours, by a k-d tree in few dimensions and matrix products in many, and graphs of them.

Graphs are symmetric SciPy CSR matrices with sorted indices, in which explicit zeros
are edges of length zero.

A k-d tree visits O(log N) leaves for each point in few dimensions and nearly all of
them in many, where |x - y|^2 = |x|^2 - 2 x.y + |y|^2 turns the search into matrix
products, which scikit-learn merges with the selection. Near points of clouds that
reach far, whose squares are lost in the rounding of those, are found by
differences. Source of the tree: J. Bentley, "Multidimensional binary search trees
used for associative searching", 1975.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from scipy.sparse import csr_array, csr_matrix

from torchgw.linalg.sparse_entries import entry_values
from torchgw.types import Array

TREE_DIMENSIONS = 15
ROWS = 100_000
FEW = 2000
COORDINATES = 2**18  # of pairs whose distances are found together
RESOLVED = 1e-11  # of the largest square, up to which products of coordinates do not tell distances apart
BLOCK_PAIRS = 50_000


def nearest(points: Array, k: int) -> Array:
    """Indices of the k nearest other points (N, k) int32, nearest first; fewer where there are not so many.

    O(N k log N) in up to 15 dimensions, on all cores; O(N^2 D) beyond.
    """
    n = len(points)
    k = min(k, n - 1)
    # In an order in which points near each other come near each other, which saves
    # cache misses.
    order: Array = _tree(points).indices if points.shape[1] <= TREE_DIMENSIONS else np.arange(n)
    order, points = order.astype(np.int32), points[order]
    found = np.empty((n, k), dtype=np.int32)
    search = Search(points)
    for first in range(0, n, ROWS):
        own = np.arange(first, min(first + ROWS, n), dtype=np.int32)
        around = search(points[own], k + 1)
        # Among more than k coincident points a point need not find itself; the last
        # one then goes instead.
        out = around == own[:, None]
        out[~out.any(1), -1] = True
        found[order[own]] = order[around[~out].reshape(-1, k)]
    return found


def nearest_to(points: Array, queries: Array, k: int) -> tuple[Array, Array]:
    """Distances (M, k) and indices (M, k) of the k points nearest to each query, nearest first."""
    index = Search(points)(queries, min(k, len(points)))
    lengths, rows = np.empty(index.shape), max(1, COORDINATES // (index.shape[1] * points.shape[1]))
    for first in range(0, len(queries), rows):
        where = slice(first, first + rows)
        lengths[where] = np.linalg.norm(queries[where, None] - points[index[where]], axis=2)
    return lengths, index.astype(np.int64)


class Search:
    """The neighbours of any points among ``points`` (N, D)."""

    def __init__(self, points: Array) -> None:
        self.points = points
        if points.shape[1] <= TREE_DIMENSIONS:
            self.tree = _tree(points)
        else:
            from sklearn.neighbors import NearestNeighbors

            self.tree, self.products = None, NearestNeighbors(algorithm="brute").fit(points)
            self.resolved = float(np.square(points).sum(1).max()) * RESOLVED

    def __call__(self, queries: Array, k: int) -> Array:
        """Indices (M, k) int32, nearest first."""
        if self.tree is None:
            length, found = self.products.kneighbors(queries, k)
            close = length[:, -1] ** 2 < self.resolved
            if close.any():  # products of coordinates do not tell these apart, but differences do
                found[close] = _tree(self.points).query(queries[close], k=np.arange(1, k + 1))[1]
        else:
            workers = -1 if len(queries) > FEW else 1  # what threads take to start
            found = self.tree.query(queries, k=np.arange(1, k + 1), workers=workers)[1]
        return cast(Array, found.astype(np.int32))


def _tree(points: Array) -> Any:
    from scipy.spatial import cKDTree

    # Midpoint splits build several times faster than medians, and queries take as
    # long.
    return cKDTree(points, balanced_tree=False, compact_nodes=False)


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

    # In a symmetric graph these are the strong components, which SciPy finds
    # without a transposed copy.
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

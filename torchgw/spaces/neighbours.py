"""Nearest neighbours: a k-d tree in few dimensions, blocks of matrix products in many.

A k-d tree visits O(log N) leaves for each point in few dimensions and nearly all of them in many, where
|x - y|^2 = |x|^2 - 2 x.y + |y|^2 turns the search into matrix products, which scikit-learn merges with the selection.
Near points of clouds that reach far, whose squares are lost in the rounding of those, are found by differences.
Source of the tree: J. Bentley, "Multidimensional binary search trees used for associative searching", 1975.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from torchgw.types import Array

TREE_DIMENSIONS = 15
ROWS = 100_000
FEW = 2000
COORDINATES = 2**18  # of pairs whose distances are found together
RESOLVED, PAIRS = 1e-11, 2**24  # of the largest square, up to which differences tell what products leave open


def nearest(points: Array, k: int) -> Array:
    """Indices of the k nearest other points (N, k) int32, nearest first; fewer where there are not so many.

    O(N k log N) in up to 15 dimensions, on all cores; O(N^2 D) beyond.
    """
    n = len(points)
    k = min(k, n - 1)
    # In an order in which points near each other come near each other, which saves cache misses.
    order: Array = _tree(points).indices if points.shape[1] <= TREE_DIMENSIONS else np.arange(n)
    order, points = order.astype(np.int32), points[order]
    found = np.empty((n, k), dtype=np.int32)
    search = Search(points)
    for first in range(0, n, ROWS):
        own = np.arange(first, min(first + ROWS, n), dtype=np.int32)
        around = search(points[own], k + 1)
        # Among more than k coincident points a point need not find itself; the last one then goes instead.
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
            close = np.flatnonzero(length[:, -1] ** 2 < self.resolved)
            for rows in np.array_split(close, max(-(-len(close) * len(self.points) // PAIRS), 1)):
                found[rows] = self._by_differences(queries[rows], k)
        else:
            workers = -1 if len(queries) > FEW else 1  # what threads take to start
            found = self.tree.query(queries, k=np.arange(1, k + 1), workers=workers)[1]
        return cast(Array, found.astype(np.int32))

    def _by_differences(self, queries: Array, k: int) -> Array:
        """The same where products of coordinates do not tell distances apart."""
        from scipy.spatial.distance import cdist

        distance = cdist(queries, self.points, "sqeuclidean")
        near = np.argpartition(distance, k - 1, axis=1)[:, :k]
        order = np.take_along_axis(distance, near, 1).argsort(1, kind="stable")
        return np.take_along_axis(near, order, 1)


def _tree(points: Array) -> Any:
    from scipy.spatial import cKDTree

    # Midpoint splits build several times faster than medians, and queries take as long.
    return cKDTree(points, balanced_tree=False, compact_nodes=False)

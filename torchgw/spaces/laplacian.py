"""Affinities of a space's neighbour graph: the weights W of its Laplacian L = diag(W 1) - W.

    W_ab = exp(-d_ab^2 / (s_a s_b)) on the edges,   s_a = the longest edge at a

The scale s is local, so neither units nor densities matter, and every weight lies in [1/e, 1]: no edge is so weak that
the graph falls apart in floating point. Source of local scales: L. Zelnik-Manor, P. Perona, "Self-tuning spectral
clustering", 2004.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from torchgw import validate
from torchgw.spaces.edges import undirected, union
from torchgw.spaces.graph import GraphReport, build_graph, candidates
from torchgw.types import Array


def check_spaces(spaces: Any, k: int | None) -> list[Any]:
    """A list of at least two data sets, each checked by `check_space`."""
    if not isinstance(spaces, list | tuple):
        raise TypeError(f"spaces must be a list of data sets, got {type(spaces).__name__}")
    if len(spaces) < 2:
        raise ValueError(f"spaces must hold at least 2 data sets, got {len(spaces)}")
    if k is not None:
        validate.integer("k", k, least=1)
    return [check_space(f"spaces[{i}]", space, k) for i, space in enumerate(spaces)]


def check_space(name: str, space: Any, k: int | None) -> Any:
    """A space that can be used: a symmetric CSR graph, a square distance matrix, or points (N, D), as float64."""
    if hasattr(space, "tocsr"):
        return validate.graph(name, space)
    shape = _shape(space)
    square = len(shape) == 2 and shape[0] == shape[1] and shape[0] > 1
    found = _matrix(name, space) if square else validate.points(name, space)
    if k is not None:
        validate.neighbours(name, k, len(found))
    return found


def _shape(space: Any) -> tuple[int, ...]:
    """The shape of an array-like; () for what has none, which validation then names."""
    try:
        return tuple(space.shape if hasattr(space, "shape") else np.shape(space))
    except ValueError:
        return ()


def _matrix(name: str, space: Any) -> Array:
    try:
        return validate.distance_matrix(name, space)
    except ValueError as error:
        reason = str(error).split(";")[0]
        raise ValueError(
            f"{reason}; if its rows are points, give torchgw.spaces.graph.neighbour_graph(points)"
        ) from None


def space_graph(space: Any, k: int | None, name: str) -> tuple[Any, GraphReport | None]:
    """Symmetric CSR graph of edge lengths of a checked space, and how it was made where points were given.

    A graph is taken as it is.
    """
    if hasattr(space, "tocsr"):
        return space, None
    if space.shape[0] == space.shape[1]:
        return matrix_graph(space, k), None
    return build_graph(space, k, name)


def matrix_graph(distances: Array, k: int | None) -> Any:
    """The k-nearest-neighbour graph of a distance matrix (N, N) and its minimum spanning tree, as symmetric CSR.

    The tree joins all points that finite distances join. O(N^2) time and memory.
    """
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import minimum_spanning_tree

    n = len(distances)
    k = min(candidates(n)[0] if k is None else k, n - 1)
    others = distances.copy()
    np.fill_diagonal(others, np.inf)
    nearest = np.argpartition(others, k - 1, axis=1)[:, :k]
    tree = minimum_spanning_tree(others).tocoo()
    pattern = (union(nearest) + undirected(n, tree.row, tree.col)).tocoo()
    length = distances[pattern.row, pattern.col]
    kept = np.isfinite(length)
    return csr_matrix((length[kept], (pattern.row[kept], pattern.col[kept])), shape=(n, n))


def affinities(graph: Any) -> Any:
    """W of a symmetric CSR graph of edge lengths, in which explicit zeros are edges; O(E)."""
    from scipy.sparse import csr_matrix

    degree = np.diff(graph.indptr)
    row = np.repeat(np.arange(graph.shape[0]), degree)
    longest = np.zeros(graph.shape[0])
    np.maximum.at(longest, row, graph.data)
    scale = np.sqrt(longest[row]) * np.sqrt(longest[graph.indices])  # zero only where the length is
    weight = np.exp(-np.square(np.divide(graph.data, scale, out=np.zeros_like(graph.data), where=scale > 0)))
    return csr_matrix((weight, graph.indices, graph.indptr), shape=graph.shape)

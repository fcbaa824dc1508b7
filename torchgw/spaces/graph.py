"""k-nearest-neighbour graphs whose every pair of points is joined by a path.

Edges are symmetrised by the maximum (the union of the directed edges). Components that stay apart are stitched by
Boruvka rounds: each component adds its shortest edge to any other point, so that the added edges belong to a minimum
spanning tree. The nearest point of ANOTHER component is found with no tree per component: two different labels differ
in at least one bit, so one search across each bit of the labels, O(log C) searches, sees every pair of components.

Source: O. Boruvka, "O jistem problemu minimalnim", 1926.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import numpy as np

from torchgw import validate
from torchgw.types import Array, GraphWarning

logger = logging.getLogger("torchgw")


def neighbour_graph(points: Array, k: int, name: str = "points") -> Any:
    """Connected, symmetric k-nearest-neighbour graph with Euclidean edge lengths.

    Parameters
    ----------
    points : (N, D), finite.
    k : neighbours of each point, below N. Duplicated points are joined by edges of length zero.
    name : what messages call these points.

    Returns
    -------
    SciPy CSR matrix (N, N). Explicit zeros are edges of length zero, as SciPy's graph routines read them.

    Raises
    ------
    ValueError, TypeError
        For points or k that cannot be used.

    Warns
    -----
    GraphWarning
        When components had to be stitched, with counts.

    Notes
    -----
    O(N log N) in low dimension through scikit-learn's trees, O(N^2 D) where those fall back to brute force.
    """
    from scipy.sparse.csgraph import connected_components
    from sklearn.neighbors import NearestNeighbors

    points = validate.points(name, points)
    validate.integer("k", k, least=1)
    validate.neighbours(name, k, len(points))
    points, size = unit_cloud(points)
    neighbour = NearestNeighbors(n_neighbors=k).fit(points).kneighbors(return_distance=False).ravel()
    source = np.repeat(np.arange(len(points)), k)
    graph = from_edges(len(points), source, neighbour, lengths(points, source, neighbour))
    n_components, label = connected_components(graph, directed=False)
    if n_components == 1:
        return graph * size
    graph, n_edges = stitch(graph, points, label)
    warnings.warn(
        f"the {k}-nearest-neighbour graph of {name} has {n_components} components; they were stitched with "
        f"{n_edges} edges between closest pairs; a larger k may join them by itself",
        GraphWarning,
        stacklevel=2,
    )
    return graph * size


def unit_cloud(points: Array) -> tuple[Array, float]:
    """The points centred and divided by their largest coordinate, and that divisor.

    Searches that expand |x - y|^2 lose all digits of clouds far from the origin, and squares leave the range of floats.
    """
    centred = points - points.mean(0)
    size = float(np.abs(centred).max()) or 1.0
    return centred / size, size


def lengths(points: Array, source: Array, target: Array) -> Array:
    """Euclidean edge lengths from coordinate differences: exactly zero for duplicates."""
    found: Array = np.linalg.norm(points[source] - points[target], axis=1)
    return found


def from_edges(n: int, source: Array, target: Array, length: Array) -> Any:
    """Symmetric CSR graph of the given edges; of repeated ones the longest counts, and zero lengths stay edges."""
    from scipy.sparse import csr_matrix

    key = np.concatenate((source * n + target, target * n + source))
    value = np.concatenate((length, length))
    order = np.argsort(key, kind="stable")
    key, value = key[order], value[order]
    first = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1])))
    row, column = np.divmod(key[first], n)
    index_pointer = np.searchsorted(row, np.arange(n + 1))
    return csr_matrix((np.maximum.reduceat(value, first), column, index_pointer), shape=(n, n))


def stitch(graph: Any, points: Array, label: Array) -> tuple[Any, int]:
    """Join the components ``label`` (N,) of ``graph`` through closest pairs; the graph and the number of edges added.

    O(N log N log^2 C) for C components in low dimension.
    """
    from scipy.sparse.csgraph import connected_components

    edges: set[tuple[int, int]] = set()
    coo = graph.tocoo()
    n, n_components = len(points), int(label.max()) + 1
    while n_components > 1:
        distance, partner = nearest_elsewhere(points, label)
        order = np.lexsort((distance, label))
        closest = order[np.searchsorted(label[order], np.arange(n_components))]
        edges |= {(min(i, j), max(i, j)) for i, j in zip(closest.tolist(), partner[closest].tolist(), strict=True)}
        added = np.array(sorted(edges))
        length = lengths(points, added[:, 0], added[:, 1])
        graph = from_edges(
            n,
            np.concatenate((coo.row.astype(np.int64), added[:, 0])),
            np.concatenate((coo.col.astype(np.int64), added[:, 1])),
            np.concatenate((coo.data, length)),
        )
        n_components, label = connected_components(graph, directed=False)
        logger.info("stitching: %d edges added, %d components left", len(edges), n_components)
    return graph, len(edges)


def nearest_elsewhere(points: Array, label: Array) -> tuple[Array, Array]:
    """Distance to, and index of, each point's nearest point with another label."""
    from sklearn.neighbors import NearestNeighbors

    distance, partner = np.full(len(points), np.inf), np.full(len(points), -1)
    for bit in range(int(label.max()).bit_length()):
        side = (label >> bit) & 1 == 1
        for near, far in ((np.flatnonzero(side), np.flatnonzero(~side)), (np.flatnonzero(~side), np.flatnonzero(side))):
            index = NearestNeighbors(n_neighbors=1).fit(points[far]).kneighbors(points[near], return_distance=False)
            other = far[index[:, 0]]
            found = lengths(points, near, other)
            better = found < distance[near]
            distance[near[better]], partner[near[better]] = found[better], other[better]
    return distance, partner

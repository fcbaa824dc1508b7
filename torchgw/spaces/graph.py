"""k-nearest-neighbour graphs whose every pair of points is joined by a path.

Edges are symmetrised by the maximum (the union of the directed edges). Components that stay apart are stitched by
Boruvka rounds: each component adds its shortest edge to any other point, so that the added edges belong to a minimum
spanning tree. The nearest point of ANOTHER component is found with no tree per component: two different labels differ
in at least one bit, so one search across each bit of the labels, O(log C) searches, sees every pair of components.

Source: O. Boruvka, "O jistem problemu minimalnim", 1926.
"""

from __future__ import annotations

import logging
import math
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from torchgw import validate
from torchgw.spaces.shortcuts import SHRUNK_SHARE, short_cuts, shrinks
from torchgw.types import Array, GraphWarning

logger = logging.getLogger("torchgw")

FEWEST = 5
STEPS = (0, 2, 4, 7)


@dataclass(frozen=True, repr=False)
class GraphReport:
    """How a neighbour graph was made.

    Attributes
    ----------
    k : neighbours of each point.
    n_components : parts before stitching.
    n_stitched : edges that joined them.
    short_cuts : (m, 2) pairs of points whose edge was left out as a short cut.
    """

    k: int
    n_components: int
    n_stitched: int
    short_cuts: Array = field(compare=False)

    def __repr__(self) -> str:
        counts = f"k={self.k}, n_components={self.n_components}, n_stitched={self.n_stitched}"
        return f"GraphReport({counts}, short_cuts={len(self.short_cuts)})"


def neighbour_graph(points: Array, k: int | None = None, name: str = "points") -> Any:
    """Connected, symmetric k-nearest-neighbour graph with Euclidean edge lengths.

    Parameters
    ----------
    points : (N, D), finite.
    k : neighbours of each point, below N. A number is taken as it is. None chooses 1.5 times the natural logarithm of
        N, at least 5, or up to 7 more where that joins all points, and leaves out the edges that are short cuts (see
        `torchgw.spaces.shortcuts`). Duplicated points are joined by edges of length zero.
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
        When components had to be stitched, with counts; when a k that was given bridges parts that are far apart.

    Notes
    -----
    O(N log N) in low dimension through scikit-learn's trees, O(N^2 D) where those fall back to brute force.
    """
    return build_graph(points, k, name)[0]


def build_graph(points: Array, k: int | None = None, name: str = "points") -> tuple[Any, GraphReport]:
    """`neighbour_graph` and what was done to make it."""
    points = validate.points(name, points)
    if k is not None:
        validate.integer("k", k, least=1)
        validate.neighbours(name, k, len(points))
    points, size = unit_cloud(points)
    neighbour = nearest(points, max(candidates(len(points))) if k is None else k)
    chosen = choose_k(neighbour) if k is None else k
    graph, cut = _assemble(points, neighbour, chosen, prune=k is None)
    graph, n_components, n_stitched = _joined(graph, points)
    if n_stitched:
        if k is None:
            advice = "if the data are in separate parts, distances between those are guesses: align them one by one"
        else:
            advice = "a larger k may join them by itself"
        warnings.warn(
            f"the {chosen}-nearest-neighbour graph of {name} has {n_components} components; they were stitched with "
            f"{n_stitched} edges between closest pairs; {advice}",
            GraphWarning,
            stacklevel=3,
        )
    if k is not None and k > FEWEST:
        _warn_of_bridges(graph, points, k, name)
    if len(cut):
        logger.info("%s: %d short cuts left out of the %d-nearest-neighbour graph", name, len(cut), chosen)
    return graph * size, GraphReport(chosen, n_components, n_stitched, cut)


def nearest(points: Array, k: int) -> Array:
    """Indices of the k nearest other points (N, k), nearest first; fewer where there are not so many."""
    from sklearn.neighbors import NearestNeighbors

    k = min(k, len(points) - 1)
    found: Array = NearestNeighbors(n_neighbors=k).fit(points).kneighbors(return_distance=False)
    return found


def candidates(n: int) -> list[int]:
    """Neighbour counts to try for n points, fewest first."""
    fewest = max(FEWEST, round(1.5 * math.log(n)))
    return [fewest + step for step in STEPS]


def choose_k(neighbour: Array) -> int:
    """The first candidate whose graph is in one piece, or the smallest."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    n, most = neighbour.shape
    for k in candidates(n):
        if k >= most:
            return int(most)
        ends = (np.repeat(np.arange(n), k), neighbour[:, :k].ravel())
        if connected_components(csr_matrix((np.ones(n * k), ends), shape=(n, n)), directed=False)[0] == 1:
            return k
    return min(candidates(n))


def _assemble(points: Array, neighbour: Array, k: int, prune: bool) -> tuple[Any, Array]:
    """The symmetric graph of the first k neighbours, and the short cuts that were left out of it (m, 2)."""
    n = len(points)
    source, target = np.repeat(np.arange(n), k), neighbour[:, :k].ravel()
    length = lengths(points, source, target)
    cut = short_cuts(n, source, target, length) if prune else np.empty((0, 2), dtype=np.int64)
    if len(cut):
        low, high = np.minimum(source, target), np.maximum(source, target)
        stays = ~np.isin(low * n + high, cut.min(1) * n + cut.max(1))
        source, target, length = source[stays], target[stays], length[stays]
    return from_edges(n, source, target, length), cut


def _joined(graph: Any, points: Array) -> tuple[Any, int, int]:
    """The graph in one piece, how many components it had, and how many edges joined them."""
    from scipy.sparse.csgraph import connected_components

    n_components, label = connected_components(graph, directed=False)
    if n_components == 1:
        return graph, 1, 0
    graph, n_edges = stitch(graph, points, label)
    return graph, n_components, n_edges


def _warn_of_bridges(graph: Any, points: Array, k: int, name: str) -> None:
    """Compare the graph that was asked for with the one that would have been chosen."""
    neighbour = nearest(points, max(candidates(len(points))))
    reference = _joined(_assemble(points, neighbour, choose_k(neighbour), prune=True)[0], points)[0]
    shrunk = shrinks(graph, reference)
    if shrunk > SHRUNK_SHARE:
        warnings.warn(
            f"k = {k} joins parts of {name} that are far apart: {shrunk:.0%} of the distances are less than half as "
            f"long as with fewer neighbours; use k=None, which leaves such edges out",
            GraphWarning,
            stacklevel=4,
        )


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

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
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from torchgw import validate
from torchgw.persist.codec import storable
from torchgw.runtime.caller import warn_caller
from torchgw.spaces.edges import components, entry_positions, from_edges, restricted, union, with_edges
from torchgw.spaces.neighbours import closest, nearest
from torchgw.spaces.shortcuts import SHRUNK_SHARE, short_cuts, shrinks
from torchgw.types import Array, GraphWarning

logger = logging.getLogger("torchgw")

FEWEST = 5
STEPS = (0, 2, 4, 7)
COORDINATES = 200_000  # of a block, which stays in the cache

Parts: TypeAlias = "tuple[int, Array]"


@storable
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
    O(N log N) in up to 15 dimensions, O(N^2 D) beyond; memory O(N k).
    """
    return build_graph(points, k, name)[0]


def build_graph(points: Array, k: int | None = None, name: str = "points") -> tuple[Any, GraphReport]:
    """`neighbour_graph` and what was done to make it."""
    points = validate.points(name, points)
    if k is not None:
        validate.integer("k", k, least=1)
        validate.neighbours(name, k, len(points))
    points, size = unit_cloud(points)
    chosen, pattern, parts = _chosen(points, k)
    graph, cut = _assemble(points, pattern, prune=k is None)
    del pattern
    graph, n_stitched = _joined(graph, points, parts)
    if n_stitched:
        if k is None:
            advice = (
                "if the data come in separate parts, as clusters of cells do, distances between those are guesses: "
                "distances='euclidean' measures them, or align the parts one by one"
            )
        else:
            advice = "a larger k may join them by itself"
        warn_caller(
            f"the {chosen}-nearest-neighbour graph of {name} has {parts[0]} components; they were stitched with "
            f"{n_stitched} edges between closest pairs; {advice}",
            GraphWarning,
        )
    if k is not None and k > FEWEST:
        _warn_of_bridges(graph, points, k, name)
    log_short_cuts(name, len(cut), chosen)
    graph.data *= size
    return graph, GraphReport(chosen, parts[0], n_stitched, cut)


def log_short_cuts(name: str, count: int, k: int) -> None:
    """Tell how many there were."""
    if count:
        logger.info("%s: %d short cuts left out of the %d-nearest-neighbour graph", name, count, k)


def candidates(n: int) -> list[int]:
    """Neighbour counts to try for n points, fewest first."""
    fewest = max(FEWEST, round(1.5 * math.log(n)))
    return [fewest + step for step in STEPS]


def _chosen(points: Array, given: int | None = None) -> tuple[int, Any, Parts]:
    """The first candidate k whose graph is in one piece, or the largest, or the one that was given; the edges of its
    graph (see `union`) and their components."""
    steps = sorted({min(k, len(points) - 1) for k in candidates(len(points))}) if given is None else [given]
    neighbour = nearest(points, steps[0])
    for k in steps:
        if k > neighbour.shape[1]:
            neighbour = nearest(points, steps[-1])
        pattern = union(neighbour[:, :k])
        parts = components(pattern)
        if parts[0] == 1:
            break
    return k, pattern, parts


def _assemble(points: Array, pattern: Any, prune: bool) -> tuple[Any, Array]:
    """The symmetric graph of the edges in ``pattern``, and the short cuts that were left out of it (m, 2)."""
    from scipy.sparse import csr_matrix

    length = entry_lengths(points, pattern)
    graph = csr_matrix((length, pattern.indices, pattern.indptr), shape=pattern.shape)
    if not prune:
        return graph, np.empty((0, 2), dtype=np.int64)
    cut = short_cuts(graph, pattern.data == 2, points)
    if len(cut):
        kept = np.ones(graph.nnz, dtype=bool)
        kept[entry_positions(graph, cut.ravel(), cut[:, ::-1].ravel())] = False
        graph = restricted(graph, kept)
    return graph, cut


def _joined(graph: Any, points: Array, parts: Parts) -> tuple[Any, int]:
    """The graph in one piece and how many edges joined its components. Leaving short cuts out makes no new ones."""
    return (graph, 0) if parts[0] == 1 else stitch(graph, points, parts[1])


def _warn_of_bridges(graph: Any, points: Array, k: int, name: str) -> None:
    """Compare the graph that was asked for with the one that would have been chosen."""
    _, pattern, parts = _chosen(points)
    reference = _joined(_assemble(points, pattern, prune=True)[0], points, parts)[0]
    shrunk = shrinks(graph, reference)
    if shrunk > SHRUNK_SHARE:
        warn_caller(
            f"k = {k} joins parts of {name} that are far apart: {shrunk:.0%} of the distances are less than half as "
            f"long as with fewer neighbours; use k=None, which leaves such edges out",
            GraphWarning,
        )


def unit_cloud(points: Array) -> tuple[Array, float]:
    """The points centred and divided by their largest coordinate, and that divisor.

    Searches that expand |x - y|^2 lose all digits of clouds far from the origin, and squares leave the range of floats.
    """
    centred = points - points.mean(0)
    size = float(max(centred.max(), -centred.min())) or 1.0
    centred /= size
    return centred, size


def lengths(points: Array, source: Array, target: Array) -> Array:
    """Euclidean edge lengths from coordinate differences: exactly zero for duplicates."""
    found: Array = np.linalg.norm(points[source] - points[target], axis=1)
    return found


def entry_lengths(points: Array, pattern: Any) -> Array:
    """The length (nnz,) of each edge of a CSR pattern, a block of rows at a time."""
    found = np.empty(pattern.nnz)
    rows = max(1, COORDINATES * len(points) // (pattern.nnz * points.shape[1] + 1))
    for first in range(0, len(points), rows):
        pointer = pattern.indptr[first : first + rows + 1]
        source = np.repeat(np.arange(first, first + len(pointer) - 1), np.diff(pointer))
        here = slice(pointer[0], pointer[-1])
        found[here] = lengths(points, source, pattern.indices[here])
    return found


def stitch(graph: Any, points: Array, label: Array) -> tuple[Any, int]:
    """Join the components ``label`` (N,) of ``graph`` through closest pairs; the graph and the number of edges added.

    O(N log N log^2 C) for C components in low dimension.
    """
    n_edges, n_components = 0, int(label.max()) + 1
    while n_components > 1:
        distance, partner = nearest_elsewhere(points, label)
        order = np.lexsort((distance, label))
        near = order[np.searchsorted(label[order], np.arange(n_components))]
        ends = np.unique(np.sort(np.stack((near, partner[near]), 1), axis=1), axis=0)
        added = from_edges(len(points), ends[:, 0], ends[:, 1], lengths(points, ends[:, 0], ends[:, 1]))
        graph, n_edges = with_edges(graph, added), n_edges + len(ends)
        n_components, label = components(graph)
        logger.info("stitching: %d edges added, %d components left", n_edges, n_components)
    return graph, n_edges


def nearest_elsewhere(points: Array, label: Array) -> tuple[Array, Array]:
    """Distance to, and index of, each point's nearest point with another label."""
    distance, partner = np.full(len(points), np.inf), np.full(len(points), -1)
    for bit in range(int(label.max()).bit_length()):
        side = (label >> bit) & 1 == 1
        for near, far in ((np.flatnonzero(side), np.flatnonzero(~side)), (np.flatnonzero(~side), np.flatnonzero(side))):
            other = far[closest(points[far], points[near])]
            found = lengths(points, near, other)
            better = found < distance[near]
            distance[near[better]], partner[near[better]] = found[better], other[better]
    return distance, partner

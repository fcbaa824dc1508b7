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
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from torchgw import validate
from torchgw.persist.codec import storable
from torchgw.runtime.caller import warn_caller
from torchgw.spaces.edges import components, edge_subgraph, entry_positions, from_edges, union, with_edges
from torchgw.spaces.neighbours import TREE_DIMENSIONS, closest, nearest
from torchgw.spaces.shortcuts import SHRUNK_SHARE, measure_shrinkage, short_cuts
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
        `torchgw.spaces.shortcuts`). Of points that coincide the first has neighbours elsewhere, and edges of length
        zero to the others, so that distances are those between places.
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


class GraphInParts(NamedTuple):
    """A neighbour graph whose components are still apart.

    k : neighbours of each point.
    graph : SciPy CSR (N, N).
    cut : (m, 2), the short cuts that were left out of it.
    parts : its components.
    """

    k: int
    graph: Any
    cut: Array
    parts: Parts


class Cloud:
    """Points (N, D), between which edges are straight lines."""

    def __init__(self, points: Array) -> None:
        self.points, self.size, self.local = points, len(points), points.shape[1] <= TREE_DIMENSIONS

    def nearest(self, k: int) -> Array:
        """The k nearest other points (N, k) of each, nearest first."""
        return nearest(self.points, k)

    def lengths(self, pattern: Any, k: int) -> Array:
        """The lengths (nnz,) of edges between k nearest neighbours."""
        return entry_lengths(self.points, pattern)

    def elsewhere(self, label: Array) -> tuple[Array, Array]:
        """Distance to, and index of, each point's nearest one with another label."""
        return nearest_elsewhere(self.points, label)


class NeighbourSource(Protocol):
    """What a neighbour graph is made from: `Cloud` says what of.

    size : N.
    local : whether searches for ways are local, as in few dimensions; else they go over the whole graph.
    points : that lead them, where they are.
    """

    size: int
    local: bool

    @property
    def points(self) -> Array | None: ...

    def nearest(self, k: int) -> Array: ...

    def lengths(self, pattern: Any, k: int) -> Array: ...


def build_graph(points: Array, k: int | None = None, name: str = "points") -> tuple[Any, GraphReport]:
    """`neighbour_graph` and what was done to make it."""
    points = validate.points(name, points)
    if k is not None:
        validate.integer("k", k, least=1)
        validate.check_neighbour_count(name, k, len(points))
    if len(points) == 1:
        from scipy.sparse import csr_matrix

        return csr_matrix((1, 1)), GraphReport(0, 1, 0, np.empty((0, 2), dtype=np.int64))
    return graph_of_cloud(*unit_cloud(points), k, name)


def graph_of_cloud(points: Array, size: float, k: int | None, name: str) -> tuple[Any, GraphReport]:
    """The graph, in the units of points that were centred and divided by ``size``, and its report."""
    first, place = find_places(points)
    repeated = 1 < len(first) < len(points)  # neighbours at the same place are no way to any other
    cloud = Cloud(points[first] if repeated else points)
    k = None if k is None else min(k, cloud.size - 1)
    made = build_candidate_graphs(cloud, k)
    joined = [stitch(each.graph, each.parts, cloud.elsewhere) for each in made]
    graph, report = finish_graph(made, joined, size, k, name)
    if not repeated:
        return graph, report
    return add_copies(graph, first, place), replace(report, short_cuts=first[report.short_cuts])


def find_places(points: Array) -> tuple[Array, Array]:
    """The first point (M,) at each place, in their order, and the place (N,) of each point."""
    rows = np.ascontiguousarray(points) + 0.0  # which has no zeros of two signs: bytes are compared, soon done
    whole = rows.view(np.dtype((np.void, rows.strides[0])))[:, 0]
    _, first, place = np.unique(whole, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return first[order], np.argsort(order)[place]


def add_copies(graph: Any, first: Array, place: Array) -> Any:
    """The graph of the first points at each place with all others (N,) at theirs, by edges of length zero."""
    edges, others = graph.tocoo(), np.setdiff1d(np.arange(len(place)), first)
    once = edges.row < edges.col
    source = np.concatenate((first[edges.row[once]], others))
    target = np.concatenate((first[edges.col[once]], first[place[others]]))
    return from_edges(len(place), source, target, np.concatenate((edges.data[once], np.zeros(len(others)))))


def build_candidate_graphs(cloud: NeighbourSource, k: int | None) -> list[GraphInParts]:
    """The graph before its components are joined, and where a larger k was asked for the one that would be chosen."""
    return [_build_candidate_graph(cloud, given) for given in _candidate_counts(k)]


def most_neighbours(n: int, k: int | None) -> int:
    """How many neighbours of each of n points the graphs of `build_candidate_graphs` may need."""
    return min(max(candidates(n)[-1] if given is None else given for given in _candidate_counts(k)), n - 1)


def _candidate_counts(k: int | None) -> list[int | None]:
    """The k that was asked for, and None for the one that would be chosen where that may be less."""
    return [k] if k is None or k <= FEWEST else [k, None]


def _build_candidate_graph(cloud: NeighbourSource, given: int | None) -> GraphInParts:
    k, pattern, parts = _choose_count(cloud, given)
    return GraphInParts(k, *_assemble(cloud, pattern, k, prune=given is None), parts)


def finish_graph(
    made: list[GraphInParts], joined: list[tuple[Any, int]], size: float, k: int | None, name: str
) -> tuple[Any, GraphReport]:
    """The graph in the units of points that were divided by ``size``, and its report; warns of what was found."""
    (chosen, _, cut, parts), (graph, n_stitched) = made[0], joined[0]
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
    for reference, _ in joined[1:]:
        shrunk = measure_shrinkage(graph, reference)
        if shrunk > SHRUNK_SHARE:
            warn_caller(
                f"k = {k} joins parts of {name} that are far apart: {shrunk:.0%} of the distances are less than half "
                f"as long as with fewer neighbours; use k=None, which leaves such edges out",
                GraphWarning,
            )
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


def _choose_count(cloud: NeighbourSource, given: int | None = None) -> tuple[int, Any, Parts]:
    """The first candidate k whose graph is in one piece, or the largest, or the one that was given; the edges of its
    graph (see `union`) and their components."""
    steps = sorted({min(k, cloud.size - 1) for k in candidates(cloud.size)}) if given is None else [given]
    neighbour = cloud.nearest(steps[0])
    for k in steps:
        if k > neighbour.shape[1]:
            neighbour = cloud.nearest(steps[-1])
        pattern = union(neighbour[:, :k])
        parts = components(pattern)
        if parts[0] == 1:
            break
    return k, pattern, parts


def _assemble(cloud: NeighbourSource, pattern: Any, k: int, prune: bool) -> tuple[Any, Array]:
    """The symmetric graph of the edges in ``pattern``, and the short cuts that were left out of it (m, 2)."""
    from scipy.sparse import csr_matrix

    graph = csr_matrix((cloud.lengths(pattern, k), pattern.indices, pattern.indptr), shape=pattern.shape)
    if not prune:
        return graph, np.empty((0, 2), dtype=np.int64)
    cut = short_cuts(graph, pattern.data == 2, cloud.points, cloud.local)
    if len(cut):
        kept = np.ones(graph.nnz, dtype=bool)
        kept[entry_positions(graph, cut.ravel(), cut[:, ::-1].ravel())] = False
        graph = edge_subgraph(graph, kept)
    return graph, cut


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


def stitch(graph: Any, parts: Parts, elsewhere: Callable[[Array], tuple[Array, Array]]) -> tuple[Any, int]:
    """Join components of ``graph`` through closest pairs; the graph and the number of edges added.

    ``elsewhere`` finds each point's nearest one with another label, see `nearest_elsewhere`.
    O(N log N log^2 C) for C components in low dimension. Leaving short cuts out makes no new ones.
    """
    n_edges = 0
    while parts[0] > 1:
        graph, parts, added = stitch_once(graph, parts, *elsewhere(parts[1]))
        n_edges += added
    return graph, n_edges


def stitch_once(graph: Any, parts: Parts, distance: Array, partner: Array) -> tuple[Any, Parts, int]:
    """The graph with the shortest edge from each component to another one, its components, and how many edges that
    are; from each point's nearest one with another label, and the distance (N,) to it."""
    n_components, label = parts
    order = np.lexsort((distance, label))
    near = order[np.searchsorted(label[order], np.arange(n_components))]
    ends, first = np.unique(np.sort(np.stack((near, partner[near]), 1), axis=1), axis=0, return_index=True)
    added = from_edges(len(label), ends[:, 0], ends[:, 1], distance[near[first]])
    graph = with_edges(graph, added)
    parts = components(graph)
    logger.info("stitching: %d edges added, %d components left", len(ends), parts[0])
    return graph, parts, len(ends)


def nearest_elsewhere(
    points: Array, label: Array, others: Array | None = None, other_label: Array | None = None
) -> tuple[Array, Array]:
    """Distance to, and index of, each point's nearest point with another label, among others (by default the same)
    with their labels; infinite and -1 where there is none."""
    if others is None or other_label is None:
        others, other_label = points, label
    distance, partner = np.full(len(points), np.inf), np.full(len(points), -1)
    for bit in range(int(max(label.max(), other_label.max())).bit_length()):
        side, across = ((each >> bit) & 1 == 1 for each in (label, other_label))
        for near, far in ((side, ~across), (~side, across)):
            near, far = np.flatnonzero(near), np.flatnonzero(far)
            if len(near) == 0 or len(far) == 0:
                continue
            other = far[closest(others[far], points[near])]
            found = np.linalg.norm(points[near] - others[other], axis=1)
            better = found < distance[near]
            distance[near[better]], partner[near[better]] = found[better], other[better]
    return distance, partner

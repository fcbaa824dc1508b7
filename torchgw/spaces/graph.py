"""k-nearest-neighbour graphs whose every pair of points is joined by a path.

Edges are symmetrised by the maximum (the union of the directed edges). Components
that stay apart are stitched by Boruvka rounds: each component adds its shortest
edge to any other point, so that the added edges belong to a minimum spanning tree.
The nearest point of ANOTHER component is found with no tree per component: two
different labels differ in at least one bit, so one search across each bit of the
labels, O(log C) searches, sees every pair of components.

Short cuts are edges that join parts of the data which are far apart along it; one
of them ruins every geodesic. An edge is trusted when both ends count each other
among their neighbours, when they coincide, or when they share a neighbour through
such edges. Each other edge is then tried, shortest first: it stays when it joins
two parts that nothing joins yet, or when the way round it is at most `DETOUR` times
its length. On noisy spirals and Swiss rolls with 5 to 10 neighbours this finds
every edge between two turns (measured over 80 data sets).

Source: O. Boruvka, "O jistem problemu minimalnim", 1926.
"""

from __future__ import annotations

import heapq
import logging
import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from torchgw import validate
from torchgw.persist.codec import storable
from torchgw.runtime.caller import warn_caller
from torchgw.spaces.neighbours import (
    TREE_DIMENSIONS,
    Search,
    components,
    edge_subgraph,
    entry_positions,
    from_edges,
    nearest,
    to_edges,
    two_edges,
    union,
)
from torchgw.types import Array, GraphWarning

logger = logging.getLogger("torchgw")

FEWEST = 5
COORDINATES = 200_000  # of a block, which stays in the cache
DETOUR = 5.0
ROUNDING = 1e-9


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
    k : neighbours of each point, below N. A number is taken as it is. None chooses
        1.5 times the natural logarithm of N, at least 5, or up to 7 more where that
        joins all points, and leaves out the edges that are short cuts. Of points
        that coincide the first has neighbours elsewhere, and edges of length zero
        to the others, so that distances are those between places.
    name : what messages call these points.

    Returns
    -------
    SciPy CSR matrix (N, N). Explicit zeros are edges of length zero, as SciPy's
    graph routines read them.

    Raises
    ------
    ValueError, TypeError
        For points or k that cannot be used.

    Warns
    -----
    GraphWarning
        When components had to be stitched, with counts; when a k that was given
        bridges parts that are far apart.

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
        validate.check_neighbour_count(name, k, len(points))
    if len(points) == 1:
        return csr_matrix((1, 1)), GraphReport(0, 1, 0, np.empty((0, 2), dtype=np.int64))
    points, size = unit_cloud(points)
    first, place = find_places(points)
    repeated = 1 < len(first) < len(points)  # neighbours at the same place are no way to any other
    points = points[first] if repeated else points
    k = None if k is None else min(k, len(points) - 1)
    graph, report = _make_connected_graph(points, k)
    if report.n_stitched:
        if k is None:
            advice = (
                "if the data come in separate parts, as clusters of cells do, distances between those are guesses: "
                "distances='euclidean' measures them, or align the parts one by one"
            )
        else:
            advice = "a larger k may join them by itself"
        warn_caller(
            f"the {report.k}-nearest-neighbour graph of {name} has {report.n_components} components; they were "
            f"stitched with {report.n_stitched} edges between closest pairs; {advice}",
            GraphWarning,
        )
    if k is not None and k > FEWEST:  # beside the graph that would be chosen
        shrunk = measure_shrinkage(graph, _make_connected_graph(points, None)[0])
        if shrunk > 0.05:
            warn_caller(
                f"k = {k} joins parts of {name} that are far apart: {shrunk:.0%} of the distances are less than half "
                f"as long as with fewer neighbours; use k=None, which leaves such edges out",
                GraphWarning,
            )
    log_short_cuts(name, len(report.short_cuts), report.k)
    graph.data *= size
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
    (source, target, length), others = to_edges(graph), np.setdiff1d(np.arange(len(place)), first)
    ends = np.concatenate((first[source], others)), np.concatenate((first[target], first[place[others]]))
    return from_edges(len(place), *ends, np.concatenate((length, np.zeros(len(others)))))


def log_short_cuts(name: str, count: int, k: int) -> None:
    if count:
        logger.info("%s: %d short cuts left out of the %d-nearest-neighbour graph", name, count, k)


def candidates(n: int) -> list[int]:
    """Neighbour counts to try for n points, fewest first."""
    fewest = max(FEWEST, round(1.5 * math.log(n)))
    return [fewest + step for step in (0, 2, 4, 7)]


def _make_connected_graph(points: Array, given: int | None) -> tuple[Any, GraphReport]:
    """The graph of k neighbours of each point, in one piece, and its report.
    Without a k that is ``given``, short cuts are left out, and k is the first
    candidate whose graph is in one piece by itself, or the largest."""
    n, cut = len(points), np.empty((0, 2), dtype=np.int64)
    steps = sorted({min(k, n - 1) for k in candidates(n)}) if given is None else [given]
    neighbour = nearest(points, steps[0])
    for k in steps:
        if k > neighbour.shape[1]:
            neighbour = nearest(points, steps[-1])
        pattern = union(neighbour[:, :k])
        n_components, label = components(pattern)
        if n_components == 1:
            break
    graph = csr_matrix((entry_lengths(points, pattern), pattern.indices, pattern.indptr), shape=pattern.shape)
    if given is None:
        cut = short_cuts(graph, pattern.data == 2, points)
        if len(cut):
            kept = np.ones(graph.nnz, dtype=bool)
            kept[entry_positions(graph, cut.ravel(), cut[:, ::-1].ravel())] = False
            graph = edge_subgraph(graph, kept)
    graph, n_stitched = _stitch(graph, points, label)
    return graph, GraphReport(k, n_components, n_stitched, cut)


def unit_cloud(points: Array) -> tuple[Array, float]:
    """The points centred and divided by their largest coordinate, and that divisor.

    Searches that expand |x - y|^2 lose all digits of clouds far from the origin,
    and squares leave the range of floats.
    """
    centred = points - points.mean(0)
    size = float(max(centred.max(), -centred.min())) or 1.0
    centred /= size
    return centred, size


def entry_lengths(points: Array, pattern: Any) -> Array:
    """The length (nnz,) of each edge of a CSR pattern, a block of rows at a time,
    from differences of coordinates: exactly zero for duplicates."""
    found = np.empty(pattern.nnz)
    rows = max(1, COORDINATES * len(points) // (pattern.nnz * points.shape[1] + 1))
    for first in range(0, len(points), rows):
        pointer = pattern.indptr[first : first + rows + 1]
        source = np.repeat(np.arange(first, first + len(pointer) - 1), np.diff(pointer))
        here = slice(pointer[0], pointer[-1])
        found[here] = np.linalg.norm(points[source] - points[pattern.indices[here]], axis=1)
    return found


def _stitch(graph: Any, points: Array, label: Array) -> tuple[Any, int]:
    """Join the components (N,) of ``graph`` through closest pairs; the graph and the number of edges added.

    O(N log N log^2 C) for C components in low dimension. Leaving short cuts out
    makes no new ones.
    """
    n_edges = 0
    while (n_components := int(label.max()) + 1) > 1:
        distance, partner = nearest_elsewhere(points, label)
        order = np.lexsort((distance, label))
        near = order[np.searchsorted(label[order], np.arange(n_components))]
        ends, first = np.unique(np.sort(np.stack((near, partner[near]), 1), axis=1), axis=0, return_index=True)
        added = ends[:, 0], ends[:, 1], distance[near[first]]
        graph = from_edges(len(label), *map(np.concatenate, zip(to_edges(graph), added, strict=True)))
        n_left, label = components(graph)
        n_edges += len(ends)
        logger.info("stitching: %d edges added, %d components left", len(ends), n_left)
    return graph, n_edges


def nearest_elsewhere(points: Array, label: Array) -> tuple[Array, Array]:
    """Distance to, and index of, each point's nearest point with another label, of labels 0 to C - 1 that all occur."""
    distance, partner = np.full(len(points), np.inf), np.full(len(points), -1)
    for bit in range(int(label.max()).bit_length()):
        side = (label >> bit) & 1 == 1
        for near, far in ((side, ~side), (~side, side)):
            near, far = np.flatnonzero(near), np.flatnonzero(far)
            other = far[Search(points[far])(points[near], 1)[:, 0]]
            found = np.linalg.norm(points[near] - points[other], axis=1)
            better = found < distance[near]
            distance[near[better]], partner[near[better]] = found[better], other[better]
    return distance, partner


def short_cuts(graph: Any, mutual: Array, points: Array) -> Array:
    """The short cuts among the edges of a neighbour graph, as undirected pairs (m, 2), shortest first.

    Parameters
    ----------
    graph : SciPy CSR (N, N), symmetric, indices sorted, entries are edge lengths.
    mutual : bool, one for each entry of ``graph``: whether both ends count each
        other among their neighbours.
    points : (N, D), between which no edge is shorter than the straight line. They
        only make the searches shorter.

    Notes
    -----
    O(E k) for E edges, plus one search for each edge that is neither trusted nor
    shown to have a short way round: by two trusted edges, or, where many edges are
    in doubt, by way of the points with the most edges. The searches are local in
    few dimensions, and over the whole graph in many.
    """
    mutual = mutual | (graph.data == 0)  # among many coincident points there are many ways round, all to be searched
    row = np.repeat(np.arange(graph.shape[0], dtype=graph.indices.dtype), np.diff(graph.indptr))
    one_way = np.flatnonzero(~mutual & (row < graph.indices))
    low, high = row[one_way], graph.indices[one_way]
    del row
    doubtful = np.isinf(two_edges(edge_subgraph(graph, mutual), low, high))
    entry = one_way[doubtful]
    if len(entry) == 0:
        return np.empty((0, 2), dtype=np.int64)
    order = np.argsort(graph.data[entry], kind="stable")
    entry, low, high = entry[order], low[doubtful][order], high[doubtful][order]
    return _find_short_cuts(graph, np.stack((entry, entry_positions(graph, high, low)), 1), low, high, points)


def _find_short_cuts(graph: Any, entries: Array, low: Array, high: Array, points: Array) -> Array:
    """Those of the edges low - high (m,), shortest first, that neither join parts nor have a short way round.

    ``entries`` (m, 2) are their positions in the graph, whose other edges are
    trusted.
    """
    length = graph.data[entries[:, 0]]
    limit = DETOUR * length
    known = np.ones(graph.nnz, dtype=bool)
    known[entries] = False
    trusted = edge_subgraph(graph, known)
    # Edges are only ever added, so what two trusted edges show now holds whenever
    # the turn comes.
    stays = (two_edges(trusted, low, high) <= limit * (1 - ROUNDING)) | _find_spanning_forest_edges(trusted, low, high)
    del trusted
    lengths = np.where(known, graph.data, np.inf)
    so_far = csr_matrix((lengths, graph.indices, graph.indptr), shape=graph.shape)
    n = graph.shape[0]
    # Searches from hubs are made anew while they take a sixth of the time of the
    # searches they save.
    rounds = min(32, int(100 * np.count_nonzero(~stays) / (n * math.log2(n))))
    found = []
    for part in np.array_split(np.arange(len(low)), max(rounds, 1)):
        if rounds:
            stays[part] |= _measure_ways_by_hubs(so_far, low[part], high[part]) <= limit[part] * (1 - ROUNDING)
        columns = (part, low[part], high[part], limit[part])
        for turn, i, j, most in zip(*(column.tolist() for column in columns), strict=True):
            if stays[turn] or _has_way(so_far, points, i, j, most):
                lengths[entries[turn]] = length[turn]
            else:
                found.append((i, j))
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def _find_spanning_forest_edges(trusted: Any, low: Array, high: Array) -> Array:
    """Whether each edge (m,) joins parts that neither trusted edges nor those before it do, as in a spanning tree."""
    from scipy.cluster.hierarchy import DisjointSet  # late: it takes long to import

    n_parts, label = components(trusted)
    if n_parts == 1:
        return np.zeros(len(low), dtype=bool)
    parts = DisjointSet(range(n_parts))
    ends = zip(label[low].tolist(), label[high].tolist(), strict=True)
    return np.array([parts.merge(one, other) for one, other in ends])


def _measure_ways_by_hubs(graph: Any, source: Array, target: Array) -> Array:
    """Lengths (m,) of the shortest ways along finite edges of a CSR graph through one of eight points with most.

    In many dimensions few points are neighbours of most others (M. Radovanovic et
    al., "Hubs in space", 2010).
    """
    from scipy.sparse.csgraph import dijkstra

    there = edge_subgraph(graph, np.isfinite(graph.data))
    hubs = np.argsort(-np.diff(there.indptr), kind="stable")[:8]
    distance = dijkstra(there, indices=hubs)
    found: Array = (distance[:, source] + distance[:, target]).min(0)
    return found


def _has_way(graph: Any, points: Array, source: int, target: int, limit: float) -> bool:
    """Whether a path of at most ``limit`` leads from source to target along the
    finite edges of a CSR graph, none of which is shorter than the straight line
    between its ends, which are ``points``.

    Any such path will do, so the search goes first where least seems to be left,
    which counts thrice. A node whose distance falls is taken up again, which makes
    the answer right in whatever order they come.
    """
    if points.shape[1] > TREE_DIMENSIONS:  # straight lines to a goal are all nearly as long in many dimensions
        from scipy.sparse.csgraph import dijkstra

        return bool(np.isfinite(dijkstra(graph, indices=source, limit=limit)[target]))
    goal = points[target].tolist()
    distance, heap = {source: 0.0}, [(0.0, 0.0, source)]
    left: dict[int, float] = {}
    while heap:
        _, reached, node = heapq.heappop(heap)
        if node == target:
            return True
        if reached > distance[node]:
            continue
        here = slice(graph.indptr[node], graph.indptr[node + 1])
        for neighbour, length in zip(graph.indices[here].tolist(), graph.data[here].tolist(), strict=True):
            through = reached + length
            if through > limit or through >= distance.get(neighbour, math.inf):
                continue
            if neighbour not in left:
                left[neighbour] = math.dist(points[neighbour].tolist(), goal)
            if through + left[neighbour] <= limit * (1 + ROUNDING):
                distance[neighbour] = through
                heapq.heappush(heap, (through + 3.0 * left[neighbour], through, neighbour))
    return False


def measure_shrinkage(graph: Any, reference: Any) -> float:
    """Share of the distances, from sixteen spread sources, that are less than half as long in ``graph``."""
    from scipy.sparse.csgraph import dijkstra

    sources = np.linspace(0, graph.shape[0] - 1, 16).astype(int)
    near, far = dijkstra(graph, indices=sources), dijkstra(reference, indices=sources)
    known = np.isfinite(far) & (far > 0)
    return float((near[known] < far[known] / 2).mean()) if known.any() else 0.0

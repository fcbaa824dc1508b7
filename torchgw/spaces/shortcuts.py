"""Short cuts: edges of a neighbour graph that join parts of the data which are far apart along it.

One such edge ruins every geodesic. An edge is trusted when both ends count each other among their neighbours, when
they coincide, or when they share a neighbour through such edges. Each other edge is then tried, shortest first: it
stays when it joins two parts that nothing joins yet, or when the way round it is at most `DETOUR` times its length. On
noisy spirals and Swiss rolls with 5 to 10 neighbours this finds every edge between two turns (measured over 80 data
sets).
"""

from __future__ import annotations

import heapq
import math
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from torchgw.spaces.neighbours import TREE_DIMENSIONS, components, edge_subgraph, entry_positions, two_edges
from torchgw.types import Array

DETOUR = 5.0
SHRUNK = 0.5
SHRUNK_SHARE = 0.05
COMPARED_SOURCES = 16
ROUNDING = 1e-9
GREED = 3.0
HUBS = 8
# Searches from hubs are made anew at most so often, while they take a sixth of the time of the searches they save.
MOST_ROUNDS = 32
HUBS_PAY = 100


def short_cuts(graph: Any, mutual: Array, points: Array) -> Array:
    """The short cuts among the edges of a neighbour graph, as undirected pairs (m, 2), shortest first.

    Parameters
    ----------
    graph : SciPy CSR (N, N), symmetric, indices sorted, entries are edge lengths.
    mutual : bool, one for each entry of ``graph``: whether both ends count each other among their neighbours.
    points : (N, D), between which no edge is shorter than the straight line. They only make the searches shorter.

    Notes
    -----
    O(E k) for E edges, plus one search for each edge that is neither trusted nor shown to have a short way round: by
    two trusted edges, or, where many edges are in doubt, by way of the points with the most edges. The searches are
    local in few dimensions, and over the whole graph in many.
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

    ``entries`` (m, 2) are their positions in the graph, whose other edges are trusted.
    """
    length = graph.data[entries[:, 0]]
    limit = DETOUR * length
    known = np.ones(graph.nnz, dtype=bool)
    known[entries] = False
    trusted = edge_subgraph(graph, known)
    # Edges are only ever added, so what two trusted edges show now holds whenever the turn comes.
    stays = (two_edges(trusted, low, high) <= limit * (1 - ROUNDING)) | _find_spanning_forest_edges(trusted, low, high)
    del trusted
    lengths = np.where(known, graph.data, np.inf)
    so_far = csr_matrix((lengths, graph.indices, graph.indptr), shape=graph.shape)
    n = graph.shape[0]
    rounds = min(MOST_ROUNDS, int(HUBS_PAY * np.count_nonzero(~stays) / (n * math.log2(n))))
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
    """Lengths (m,) of the shortest ways along finite edges of a CSR graph through one of the points with the most.

    In many dimensions few points are neighbours of most others (M. Radovanovic et al., "Hubs in space", 2010).
    """
    from scipy.sparse.csgraph import dijkstra

    there = edge_subgraph(graph, np.isfinite(graph.data))
    hubs = np.argsort(-np.diff(there.indptr), kind="stable")[:HUBS]
    distance = dijkstra(there, indices=hubs)
    found: Array = (distance[:, source] + distance[:, target]).min(0)
    return found


def _has_way(graph: Any, points: Array, source: int, target: int, limit: float) -> bool:
    """Whether a path of at most ``limit`` leads from source to target along the finite edges of a CSR graph, none of
    which is shorter than the straight line between its ends, which are ``points``.

    Any such path will do, so the search goes first where least seems to be left: a node whose distance falls is taken
    up again, which makes the answer right in whatever order they come.
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
                heapq.heappush(heap, (through + GREED * left[neighbour], through, neighbour))
    return False


def measure_shrinkage(graph: Any, reference: Any) -> float:
    """Share of the distances, from sixteen spread sources, that are less than half as long in ``graph``."""
    from scipy.sparse.csgraph import dijkstra

    sources = np.linspace(0, graph.shape[0] - 1, COMPARED_SOURCES).astype(int)
    near, far = dijkstra(graph, indices=sources), dijkstra(reference, indices=sources)
    known = np.isfinite(far) & (far > 0)
    return float((near[known] < SHRUNK * far[known]).mean()) if known.any() else 0.0

"""Shortest paths in graphs of edge lengths: searched by SciPy's Dijkstra, differentiated, and counted in hops.

Measured on two cores: Dijkstra takes 9 ns times N log2 N for each source on a k = 5
graph; two joblib processes cost 0.3-0.6 s to start and win from about two seconds
of work (all pairs of 4000 points). Threads do not help: SciPy's routine holds the
interpreter lock.

Derivative. d(s, t) is the sum of the lengths along the path from s to t in the tree
of shortest paths from s, exact wherever the shortest paths are unique. The sums are
found for all points and sources at once by pointer jumping, in log2(depth) rounds
that torch differentiates: each point adds what the ancestor holds that it points
to, then points to where that one does. Source: J. JaJa, "An Introduction to
Parallel Algorithms", 1992, section 2.2.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchgw import validate
from torchgw.spaces.graph import build_graph
from torchgw.spaces.neighbours import components, entry_positions
from torchgw.spaces.scale import ScaledDistances, fill_unreachable, positive_scale, warn_unreachable
from torchgw.spaces.traced import DifferentiableDistances, growth_of, subtract_mean
from torchgw.types import Array, GraphWarning

SECONDS_PER_STEP = 9e-9
PARALLEL_SECONDS = 2.0
SWEEPS = 16


class DijkstraDistances(ScaledDistances):
    """Exact geodesic distances on a graph, one Dijkstra search for each row not in the cache.

    Parameters
    ----------
    graph : SciPy sparse (N, N), symmetric, edge lengths >= 0; explicit zeros are
        edges of length zero.
    cache_rows : rows kept between calls, at most; memory O(cache_rows N).
    name : what the argument is called in error messages.

    Attributes
    ----------
    largest : the largest known distance, before scaling.
    fixed : whether the scale was set by `with_scale`.

    Raises
    ------
    ValueError, TypeError
        When the graph or the number of rows cannot be used.

    Notes
    -----
    The scale is the largest distance found from 16 farthest points of each
    component, a lower bound on the diameter that is usually attained. The searches
    run on the CPU, so each call waits for the device to hand over its indices.
    Points without a path are 1.5 x the largest known distance apart.
    """

    stored = False

    def __init__(self, graph: Any, cache_rows: int = 2000, *, name: str = "graph") -> None:
        # A copy: rows are searched long after this call, when the caller may have
        # changed the graph.
        self._graph = validate.graph(name, graph).copy()
        self.capacity = validate.integer("cache_rows", cache_rows, least=1)
        self.cache = OrderedDict[int, Array]()  # the rows found last, the last one used at the end
        largest, disconnected = estimate_diameter(self._graph)
        self.scale = self.largest = positive_scale(largest)
        if disconnected:
            warn_unreachable(name)
        self._device, self._dtype = torch.device("cpu"), torch.float64

    @property
    def size(self) -> int:
        return int(self._graph.shape[0])

    def to(self, device: torch.device, dtype: torch.dtype) -> DijkstraDistances:
        return self._with(_device=device, _dtype=dtype)

    def _rescale_storage(self, ratio: float) -> DijkstraDistances:
        return self._with()  # rows are divided when they are asked for

    def trace(self, leaf: Tensor, k: int | None, device: torch.device) -> DifferentiableDistances:
        return trace_all_pairs(self, leaf.to(device, torch.float64), k)

    def rows(self, index: Tensor) -> Tensor:
        wanted, place = np.unique(index.cpu().numpy(), return_inverse=True)
        missing = np.array([i for i in wanted.tolist() if i not in self.cache], dtype=np.int64)
        if len(missing):
            # Copies, so that keeping one row does not keep the whole block alive.
            found = shortest_paths([(self._graph, missing)])[0]
            self.cache.update(
                (i, fill_unreachable(row.copy(), self.largest)) for i, row in zip(missing.tolist(), found, strict=True)
            )
        for i in wanted.tolist():
            self.cache.move_to_end(i)
        rows = np.array([self.cache[i] for i in wanted.tolist()]).reshape(-1, self.size)[place] / self.scale
        while len(self.cache) > self.capacity:  # a call may ask for more rows, and gets them all
            self.cache.popitem(last=False)
        return torch.from_numpy(rows).to(self._device, self._dtype)  # divided while it is float64


def shortest_paths(jobs: Sequence[tuple[Any, Array]]) -> list[Array]:
    """Distances (M, N), infinite where there is no path, for each ``(symmetric CSR graph, sources (M,))``.

    All jobs share one pool of processes when their work together exceeds what
    starting it costs.
    """
    from scipy.sparse.csgraph import dijkstra

    work = [len(sources) * graph.shape[0] * np.log2(graph.shape[0] + 1) for graph, sources in jobs]
    if sum(work) * SECONDS_PER_STEP < PARALLEL_SECONDS:
        return [dijkstra(graph, indices=sources) for graph, sources in jobs]
    from joblib import Parallel, cpu_count, delayed

    n_chunks = 4 * cpu_count()
    chunks = [(job, part) for job, (_, sources) in enumerate(jobs) for part in np.array_split(sources, n_chunks)]
    # The workers run SciPy's own function and so never import torch.
    done = Parallel(n_jobs=cpu_count())(delayed(dijkstra)(jobs[job][0], indices=part) for job, part in chunks)
    return [
        np.concatenate([part for (owner, _), part in zip(chunks, done, strict=True) if owner == job])
        for job in range(len(jobs))
    ]


def estimate_diameter(graph: Any) -> tuple[float, bool]:
    """The largest distance that farthest-point sweeps find, and whether some pairs have no path.

    Each sweep is ONE search from a source in every component at once; the next
    source of a component is its point farthest from those before. Starting each
    sweep at the last one's farthest point instead can get stuck: on a Swiss roll of
    150 points it missed 17 % of the diameter, this 3 %.
    """
    from scipy.sparse.csgraph import dijkstra

    n_components, label = components(graph)
    nearest, largest = np.full(len(label), np.inf), 0.0
    for _ in range(SWEEPS):
        order = np.lexsort((-nearest, label))
        sources = order[np.searchsorted(label[order], np.arange(n_components))]
        distance = dijkstra(graph, indices=sources, min_only=True)
        largest = max(largest, float(distance.max()))
        nearest = np.minimum(nearest, distance)
    return largest, n_components > 1


def path_distances(graph: Any, lengths: Tensor, sources: Array) -> Tensor:
    """Distances (M, N) from ``sources`` (M,), differentiable in the edge lengths.

    Parameters
    ----------
    graph : symmetric SciPy CSR (N, N), of which only the pattern is read.
    lengths : (E,) of its entries, >= 0, float64, on any device.
    sources : (M,) indices.

    Notes
    -----
    Searches and sums run on the CPU: O(M N log N) time, O(M N log(depth)) memory
    with gradients.
    """
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import dijkstra

    measured = csr_matrix((lengths.detach().cpu().numpy(), graph.indices, graph.indptr), shape=graph.shape)
    distance, parent = dijkstra(measured, indices=sources, return_predecessors=True)
    row, target = np.nonzero(parent >= 0)
    position = np.full(parent.shape, graph.nnz)
    position[row, target] = entry_positions(graph, parent[row, target], target)
    root = torch.from_numpy(sources)[:, None]
    above = torch.where(torch.from_numpy(parent >= 0), torch.from_numpy(parent).long(), root)
    found = torch.nn.functional.pad(lengths.cpu(), (0, 1))[torch.from_numpy(position)]
    while bool((above != root).any()):
        found, above = found + found.gather(1, above), above.gather(1, above)
    return found.masked_fill(torch.from_numpy(np.isinf(distance)), torch.inf).to(lengths.device)


def trace_paths(points: Tensor, k: int | None, scale: float, sources: Tensor) -> Tensor:
    """Distances (M, N) over ``scale`` from ``sources`` on the neighbour graph of the points, which is rebuilt."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)  # these were given when the provider was made
        graph = build_graph(validate.points("points", points), k)[0]
    return path_distances(graph, edge_lengths(subtract_mean(points, scale), graph), sources.cpu().numpy())


def trace_all_pairs(space: ScaledDistances, points: Tensor, k: int | None) -> DifferentiableDistances:
    """All pairs (N, N) of a space, as an expression of the points."""
    unit = trace_paths(points, k, space.scale, torch.arange(len(points)))
    unit = (unit + unit.T) / 2
    # The pair behind the provider's largest distance; sweeps, which Dijkstra's
    # distances use, can miss the diameter.
    attained = (unit.detach() - space.largest / space.scale).abs().argmin()
    return DifferentiableDistances(unit, growth=growth_of(unit.flatten()[attained]))


def edge_lengths(points: Tensor, graph: Any) -> Tensor:
    """|x_i - x_j| (E,) for each entry of a CSR graph of the points (N, D); a length of zero has gradient zero."""
    pointer, target = (torch.from_numpy(part).long().to(points.device) for part in (graph.indptr, graph.indices))
    source = torch.repeat_interleave(torch.arange(len(points), device=points.device), pointer.diff())
    square = (points[source] - points[target]).square().sum(1)
    apart = square > 0
    return torch.where(apart, square, 1.0).sqrt() * apart


def compute_relative_hops(D: Tensor) -> Tensor | None:
    """Hop distances (N, N) over the largest of them, for an adjacency D (N, N); None where D is none.

    As distances an adjacency, most of whose entries are equal, is nearly flat and
    says little of where a point lies; the number of edges between two points does.
    Edges are the entries off the diagonal that differ from what more than half of
    the others are. Components are half as far again from each other as the furthest
    points of one. O(N E) work on the CPU, or a few products of matrices (N, N)
    where points have more than sqrt(N) edges each and lie near each other.
    """
    edges = (D.median() != D).fill_diagonal_(False)
    count = int(edges.sum())
    if count == 0 or 2 * count > len(D) * (len(D) - 1):
        return None
    hops = _count_hops_by_products(edges | edges.T) if count > len(D) ** 1.5 else None
    if hops is None:
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import shortest_path

        found = shortest_path(csr_array(edges.cpu().numpy()), unweighted=True, directed=False)
        hops = torch.from_numpy(found).to(D.device)
    hops[hops.isinf()] = 1.5 * hops[hops.isfinite()].max()
    return (hops / hops.max()).to(D)


def _count_hops_by_products(edges: Tensor) -> Tensor | None:
    """Float64 hops by a breadth-first search from all points at once, a product for
    each hop beyond the first; None where it takes more than three. Infinite between
    components."""
    hops = torch.full(edges.shape, torch.inf, dtype=torch.float64, device=edges.device)
    hops = hops.masked_fill_(edges, 1.0).fill_diagonal_(0.0)
    step = edges.float()
    last = step
    for hop in range(2, 5):
        fresh = (last @ step > 0) & hops.isinf()
        hops[fresh] = hop
        if not fresh.any() or hops.isfinite().all():
            return hops
        last = fresh.float()
    return None

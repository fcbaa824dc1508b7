"""Shortest paths in graphs of edge lengths: searched by SciPy's Dijkstra, differentiated, and counted in hops.

Measured on two cores: Dijkstra takes 9 ns times N log2 N for each source on a k = 5 graph; two joblib processes cost
0.3-0.6 s to start and win from about two seconds of work (all pairs of 4000 points). Threads do not help: SciPy's
routine holds the interpreter lock.

Derivative. d(s, t) is the sum of the lengths along the path from s to t in the tree of shortest paths from s, so the
cotangent G of d gives edge e = (parent of t, t)

    sum over s of  sum of G[s, u] over the points u at or below t in the tree of s,

exact wherever the shortest paths are unique. The inner sums are found for all points and sources at once by pointer
jumping, in log2(depth) rounds: each point adds what it holds to the ancestor it points to, then points to where that
one does. Source: J. JaJa, "An Introduction to Parallel Algorithms", 1992, section 2.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchgw.kernels.sums import add_by_label
from torchgw.spaces.edges import components, entry_positions
from torchgw.types import Array

SECONDS_PER_STEP = 9e-9
PARALLEL_SECONDS = 2.0
COMPLETED_FROM = 1500
BLOCK = 2**22
PARTS_APART = 1.5
MOST_PRODUCTS = 3


def shortest_paths(jobs: Sequence[tuple[Any, Array]]) -> list[Array]:
    """Distances (M, N), infinite where there is no path, for each ``(symmetric CSR graph, sources (M,))``.

    All jobs share one pool of processes when their work together exceeds what starting it costs.
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


def all_pairs(graphs: Sequence[Any], kept: Sequence[Array | None] | None = None) -> list[Array]:
    """Distances (N, N), infinite where there is no path, of symmetric CSR graphs, or those between the nodes ``kept``.

    Of a large graph a third of the points are searched from, those with the most edges and others drawn at random, so
    that no shortest path runs long between them. With their distances known,

        d(s, t) = min over neighbours u of s of  length(s, u) + d(u, t)

    gives those between the other points, after a few rounds of sums of whole rows: half the time of searches.
    """
    among = [None] * len(graphs) if kept is None else kept
    sources = [_choose_sources(graph) if nodes is None else nodes for graph, nodes in zip(graphs, among, strict=True)]
    found = shortest_paths(list(zip(graphs, sources, strict=True)))
    return [
        _complete_rows(graph, source, rows) if nodes is None else rows[:, nodes]
        for graph, source, rows, nodes in zip(graphs, sources, found, among, strict=True)
    ]


def _choose_sources(graph: Any) -> Array:
    """The points that `all_pairs` searches from, in order."""
    n = graph.shape[0]
    if n < COMPLETED_FROM:
        return np.arange(n)
    order = np.argsort(-np.diff(graph.indptr), kind="stable")
    part = n // 6
    return np.sort(np.concatenate((order[:part], np.random.default_rng(0).permutation(order[part:])[:part])))


def _complete_rows(graph: Any, source: Array, rows: Array) -> Array:
    """All distances (N, N) from the rows (M, N) of some points, ``source`` (M,), in order."""
    n = graph.shape[0]
    others = np.setdiff1d(np.arange(n), source)
    known = np.zeros(n, dtype=bool)
    known[source] = True
    place = np.empty(n, dtype=np.int64)
    place[source], place[others] = np.arange(len(source)), np.arange(len(others))
    columns, inner, around = rows[:, others], np.full((len(others), len(others)), np.inf), []
    for row, point in enumerate(others.tolist()):
        here = slice(graph.indptr[point], graph.indptr[point + 1])
        near, length, out = place[graph.indices[here]], graph.data[here, None], known[graph.indices[here]]
        if out.any():
            (columns[near[out]] + length[out]).min(0, out=inner[row])
        around.append((near[~out], length[~out]))
    np.fill_diagonal(inner, 0.0)
    pending = np.array([len(near) > 0 for near, _ in around], dtype=bool)
    while pending.any():
        for row in np.flatnonzero(pending).tolist():
            near, length = around[row]
            through = (inner[near] + length).min(0)
            pending[row] = False
            if (through < inner[row]).any():
                np.minimum(through, inner[row], out=inner[row])
                pending[near] = True
    D = np.empty((n, n))
    D[source] = rows
    D[np.ix_(others, source)] = columns.T
    D[np.ix_(others, others)] = inner
    return D


def estimate_diameter(graph: Any, among: Array | None = None, n_sweeps: int = 16) -> tuple[float, bool]:
    """The largest distance that farthest-point sweeps find, and whether some pairs have no path; with ``among``,
    between these nodes, of which every component has one.

    Each sweep is ONE search from a source in every component at once; the next source of a component is its point
    farthest from those before. Starting each sweep at the last one's farthest point instead can get stuck: on a
    Swiss roll of 150 points it missed 17 % of the diameter, this 3 %.
    """
    from scipy.sparse.csgraph import dijkstra

    n_components, label = components(graph)
    inside: Any = slice(None) if among is None else among
    nearest, largest = np.full(len(label), -np.inf), 0.0
    nearest[inside] = np.inf
    for _ in range(n_sweeps):
        order = np.lexsort((-nearest, label))
        sources = order[np.searchsorted(label[order], np.arange(n_components))]
        distance = dijkstra(graph, indices=sources, min_only=True)
        largest = max(largest, float(distance[inside].max()))
        nearest[inside] = np.minimum(nearest[inside], distance[inside])
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
    The searches run on the CPU: O(M N log N) time, O(M N) memory on the device of ``lengths``.
    """
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import dijkstra

    measured = csr_matrix((lengths.detach().cpu().numpy(), graph.indices, graph.indptr), shape=graph.shape)
    distance, parent = dijkstra(measured, indices=sources, return_predecessors=True)
    source, target = np.nonzero(parent >= 0)
    found = parent[source, target]
    n = graph.shape[0]
    above, entry = np.full(parent.shape, n), np.full(parent.shape, graph.nnz)
    above[source, target], entry[source, target] = found, entry_positions(graph, found, target)
    tensors = (torch.from_numpy(array).to(lengths.device) for array in (distance, above, entry))
    summed: Tensor = _PathSums.apply(lengths, *tensors)  # type: ignore[no-untyped-call]
    return summed


def edge_lengths(points: Tensor, graph: Any) -> Tensor:
    """|x_i - x_j| (E,) for each entry of a CSR graph of the points (N, D); a length of zero has gradient zero."""
    pointer, target = (torch.from_numpy(part).long().to(points.device) for part in (graph.indptr, graph.indices))
    source = torch.repeat_interleave(torch.arange(len(points), device=points.device), pointer.diff())
    square = (points[source] - points[target]).square().sum(1)
    apart = square > 0
    return torch.where(apart, square, 1.0).sqrt() * apart


class _PathSums(torch.autograd.Function):
    """Distances that are known already, with the gradient of the sums of lengths that they are."""

    @staticmethod
    def forward(ctx: Any, lengths: Tensor, distance: Tensor, above: Tensor, entry: Tensor) -> Tensor:
        ctx.save_for_backward(above, entry)
        ctx.n_entries = len(lengths)
        return distance

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        (cotangent,), (above, entry) = cotangents, ctx.saved_tensors
        step = max(1, BLOCK // above.shape[1])
        found = cotangent.new_zeros(ctx.n_entries + 1)
        for first in range(0, len(above), step):
            rows = slice(first, first + step)
            add_by_label(found, entry[rows].flatten(), subtree_sums(cotangent[rows], above[rows]).flatten())
        return found[:-1], None, None, None


def subtree_sums(value: Tensor, above: Tensor) -> Tensor:
    """For each tree (row) and point, the sum of ``value`` (M, N) over the point and all below it.

    ``above`` (M, N) holds the parent of each point, N for a root.
    """
    n = above.shape[1]
    held, above = (torch.cat((part, torch.full_like(part[:, :1], end)), 1) for part, end in ((value, 0), (above, n)))
    tree = torch.arange(len(above), device=above.device)[:, None] * (n + 1)
    while bool((above < n).any()):
        total, place = held.clone().flatten(), (tree + above[:, :n]).flatten()
        held = add_by_label(total, place, held[:, :n].flatten()).view_as(held)
        above = above.gather(1, above)
    return held[:, :n]


def compute_relative_hops(D: Tensor) -> Tensor | None:
    """Hop distances (N, N) over the largest of them, for an adjacency D (N, N); None where D is none.

    As distances an adjacency, most of whose entries are equal, is nearly flat and says little of where a point lies;
    the number of edges between two points does. Edges are the entries off the diagonal that differ from what more than
    half of the others are. Components are half as far again from each other as the furthest points of one. O(N E) work
    on the CPU, or a few products of matrices (N, N) where points have more than sqrt(N) edges each and lie near each
    other.
    """
    edges = (D.median() != D).fill_diagonal_(False)
    count = int(edges.sum())
    if count == 0 or 2 * count > len(D) * (len(D) - 1):
        return None
    hops = _count_hops_by_products(edges | edges.T) if count > len(D) ** 1.5 else None
    hops = _count_hops_by_search(edges).to(D.device) if hops is None else hops
    hops[hops.isinf()] = PARTS_APART * hops[hops.isfinite()].max()
    return (hops / hops.max()).to(D)


def _count_hops_by_products(edges: Tensor) -> Tensor | None:
    """Float64 hops by a breadth-first search from all points at once, a product for each hop beyond the first; None
    where it takes more than a few. Infinite between components."""
    hops = torch.full(edges.shape, torch.inf, dtype=torch.float64, device=edges.device)
    hops = hops.masked_fill_(edges, 1.0).fill_diagonal_(0.0)
    step = edges.float()
    last = step
    for hop in range(2, MOST_PRODUCTS + 2):
        fresh = (last @ step > 0) & hops.isinf()
        hops[fresh] = hop
        if not fresh.any() or hops.isfinite().all():
            return hops
        last = fresh.float()
    return None


def _count_hops_by_search(edges: Tensor) -> Tensor:
    """Float64 hops by a search from each point, infinite between components."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import shortest_path

    found: Array = shortest_path(csr_array(edges.cpu().numpy()), unweighted=True, directed=False)
    return torch.from_numpy(found)

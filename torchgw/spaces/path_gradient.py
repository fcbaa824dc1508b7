"""Shortest-path distances as a differentiable function of edge lengths.

d(s, t) is the sum of the lengths along the path from s to t in the tree of shortest paths from s, so the cotangent G of
d gives edge e = (parent of t, t)

    sum over s of  sum of G[s, u] over the points u at or below t in the tree of s,

exact wherever the shortest paths are unique. The inner sums are found for all points and sources at once by pointer
jumping, in log2(depth) rounds: each point adds what it holds to the ancestor it points to, then points to where that
one does. Source: J. JaJa, "An Introduction to Parallel Algorithms", 1992, section 2.2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchgw.kernels.sums import add_by_label
from torchgw.spaces.edges import entries
from torchgw.types import Array

BLOCK = 2**22


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
    above[source, target], entry[source, target] = found, entries(graph, found, target)
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

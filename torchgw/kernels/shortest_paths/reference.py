"""Shortest paths by SciPy's Dijkstra, and what chooses landmarks by them, in plain torch: the oracle.

A graph is given by the rows of a symmetric CSR matrix, pointer (N + 1,) and target (E,) int32, length (E,) float64,
all >= 0. A distance is the least of all sums of lengths, added from the source on. Rounding keeps the order of numbers,
so whatever the order in which paths are looked at, it has the same bits.
"""

from __future__ import annotations

import torch
from torch import Tensor


def paths(pointer: Tensor, target: Tensor, length: Tensor, sources: Tensor) -> Tensor:
    """Distances (M, N) from the points ``sources`` (M,), float64, infinite where there is no path."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import dijkstra

    n = len(pointer) - 1
    graph = csr_matrix(tuple(part.cpu().numpy() for part in (length, target, pointer)), shape=(n, n))
    return torch.from_numpy(dijkstra(graph, indices=sources.cpu().numpy())).to(length.device)


def spread(pointer: Tensor, target: Tensor, length: Tensor, distance: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """Distances (N,) to the nearest of some centres, and its label (N,) int32, of equal ones the first, by ways of one
    edge more than the ``distance`` and ``label`` that are given."""
    point = torch.repeat_interleave(torch.arange(len(label), device=label.device), pointer.diff())
    through = distance[target.long()] + length
    least = distance.scatter_reduce(0, point, through, "amin")
    none = torch.iinfo(label.dtype).max
    labels = torch.where(through == least[point], label[target.long()], none)
    return least, torch.where(distance == least, label, none).scatter_reduce(0, point, labels, "amin")


def farthest(rows: Tensor, count: int) -> Tensor:
    """Farthest points (count,) in turn, the first of all first, and of equal ones the first, of distances (M, M)."""
    chosen, nearest = rows.new_zeros(count, dtype=torch.int64), torch.full_like(rows[0], torch.inf)
    for number in range(1, count):
        nearest = torch.minimum(nearest, rows[chosen[number - 1]])
        chosen[number] = (nearest == nearest.max()).nonzero()[0, 0]
    return chosen

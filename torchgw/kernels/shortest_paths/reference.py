"""Shortest paths by SciPy's Dijkstra, and what chooses landmarks by them, in plain torch: the oracle.

A graph is given by the rows of a symmetric CSR matrix, pointer (N + 1,) and target (E,) int32, length (E,) float64,
all >= 0; what lies behind the last row is not looked at. A distance is the least of all sums of lengths, added from the
source on. Rounding keeps the order of numbers, so it has the same bits whatever the order in which paths are looked at.
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


def cell_distances(
    pointer: Tensor, target: Tensor, length: Tensor, distance: Tensor, label: Tensor, count: int
) -> Tensor:
    """About the distances (M, M) between the centres of ``count`` cells: by way of edges from cell to cell.

    ``distance`` (N,) is that of each point to its centre, ``label`` (N,) int32 the number of that, M for none.
    """
    return matrix_paths(direct_cell_distances(pointer, target, length, distance, label, count + 1)[:count, :count])


def direct_cell_distances(
    pointer: Tensor, target: Tensor, length: Tensor, distance: Tensor, label: Tensor, count: int
) -> Tensor:
    """The shortest ways (M, M) by one edge from the centre of a cell to that of another, infinite where none is."""
    point = torch.repeat_interleave(torch.arange(len(label), device=label.device), pointer.diff())
    target, length = target[: len(point)], length[: len(point)]
    place = label[point].long() * count + label[target.long()]
    found, way = length.new_full((count**2,), torch.inf), distance[point] + length + distance[target.long()]
    return found.scatter_reduce_(0, place, way, "amin").view(count, count)


def matrix_paths(matrix: Tensor) -> Tensor:
    """Distances (M, M) in the graph of the finite entries of a matrix (M, M), float64."""
    kept = matrix.isfinite()
    pointer = torch.nn.functional.pad(kept.sum(1).cumsum(0), (1, 0)).int()
    every = torch.arange(len(matrix), device=matrix.device)
    return paths(pointer, kept.nonzero()[:, 1].int(), matrix[kept], every)


def spread_labels(
    pointer: Tensor, target: Tensor, length: Tensor, distance: Tensor, label: Tensor
) -> tuple[Tensor, Tensor]:
    """Distances (N,) to the nearest of some centres, and its label (N,) int32, by ways of one edge more than the
    ``distance`` and ``label`` that are given. Of equally near ones it is the first; but a centre, and what
    lies where it does, keeps its label, so that none is without points."""
    point = torch.repeat_interleave(torch.arange(len(label), device=label.device), pointer.diff())
    target, length = target[: len(point)], length[: len(point)]
    through = distance[target.long()] + length
    least = distance.scatter_reduce(0, point, through, "amin")
    none = torch.iinfo(label.dtype).max
    labels = torch.where(through == least[point], label[target.long()], none)
    first = torch.where(distance == least, label, none).scatter_reduce(0, point, labels, "amin")
    return least, torch.where(distance == 0, label, first)


def farthest(rows: Tensor, count: int) -> Tensor:
    """Farthest points (count,) in turn, the first of all first, and of equal ones the first, of distances (M, M)."""
    chosen, nearest = rows.new_zeros(count, dtype=torch.int64), torch.full_like(rows[0], torch.inf)
    for number in range(1, count):
        nearest = torch.minimum(nearest, rows[chosen[number - 1]])
        chosen[number] = (nearest == nearest.max()).nonzero()[0, 0]
    return chosen

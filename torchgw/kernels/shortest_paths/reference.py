"""Shortest paths by SciPy's Dijkstra, and what chooses landmarks by them, in plain torch: the oracle.

A distance is the least of all sums of lengths, added from the source on. Rounding keeps the order of numbers, so
whatever the order in which paths are looked at, it has the same bits.

Landmarks are chosen in rounds (see `torchgw.spaces.device_graph`), of these tensors:

    pointer, target, length     the rows of a symmetric graph, as of a CSR matrix: (N + 1,) and (E,) int32, (E,) float64
    peak, height                (M,) int64 and float64, candidates, the highest first, in whose turn comes the landmark
                                that is wanted next; a height of 0 or less is none
    rows, place                 (C, N), the distances from those that were searched from, and (N,) int32, which row
                                holds those from a point; -1 where none does
    nearest, landmark           (N,), distances to the nearest landmark, and (L,) int64
    count                       (2,) int32: how many landmarks ``nearest`` knows of, and how many rows are taken
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


def searched(height: Tensor, count: Tensor, most: int, capacity: int) -> Tensor:
    """Which candidates (M,) are searched from: no more than landmarks are missing, and so that a row is left for each
    of those that the others may not become."""
    left = most - count[0]
    number = torch.arange(len(height), device=height.device)
    return (height > 0) & ((number == 0) | ((number < left) & (number <= capacity - count[1] - left)))


def search(
    pointer: Tensor, target: Tensor, length: Tensor, peak: Tensor, height: Tensor, place: Tensor, count: Tensor,
    rows: Tensor, queued: Tensor, queue: Tensor, most: int,
) -> None:  # fmt: skip
    """The rows and places of the candidates that are searched from. The kernel works with ``queued`` (M, N) int32, zero
    before and after, and ``queue`` (M, 2, N) int32."""
    chosen = peak[searched(height, count, most, len(rows))]
    taken = slice(int(count[1]), int(count[1]) + len(chosen))
    rows[taken] = paths(pointer, target, length, chosen)
    place[chosen] = torch.arange(len(rows), dtype=place.dtype, device=place.device)[taken]


def farthest(rows: Tensor, height: Tensor, place: Tensor, nearest: Tensor, landmark: Tensor, count: Tensor) -> None:
    """Farthest points in turn, of equal ones the first, for as long as their distances are known; and how many rows are
    taken now."""
    known = count[1] + searched(height, count, len(landmark), len(rows)).sum()
    number = int(count[0])
    while number < len(landmark) and place[landmark[number]] >= 0:
        torch.minimum(nearest, rows[place[landmark[number]]], out=nearest)
        number += 1
        if number < len(landmark):
            landmark[number] = (nearest == nearest.max()).nonzero()[0, 0]
    count[0], count[1] = number, known


def peaks(pointer: Tensor, target: Tensor, nearest: Tensor, place: Tensor, landmark: Tensor, count: Tensor) -> Tensor:
    """The heights (N,) of the points: how far those without a row are that none is farther within two edges, infinity
    for the landmark that is wanted next; -1 for the others, and for all where none is wanted."""
    if count[0] == len(landmark):
        return torch.full_like(nearest, -1.0)
    point = torch.repeat_interleave(torch.arange(len(nearest), device=nearest.device), pointer.diff())
    highest = nearest
    for _ in range(2):
        highest = highest.scatter_reduce(0, point, highest[target.long()], "amax")
    height = torch.where((nearest >= highest) & (place < 0), nearest.clamp_max(1.7e308), -1.0)
    height[landmark[count[0]]] = torch.inf
    return height

"""Shortest paths from many sources at once, by label correcting on any torch device.

All sources relax together: in each round, the edges out of every node whose distance to some source fell in the round
before,

    d[v, s] <- min(d[v, s], d[u, s] + w[u, v]),

until no distance falls. A round reaches one edge further, so there are at least as many rounds as the longest shortest
path has edges, which grows like N^(1/d) on neighbour graphs of d-dimensional data; nothing stops them early.

Sources: R. Bellman, "On a routing problem", 1958; the frontier as in P. Harish and P. Narayanan, "Accelerating large
graph algorithms on the GPU using CUDA", 2007.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchgw.types import Array

BLOCK_ENTRIES = 2**26


def relaxed_paths(
    graph: Any, sources: Array, device: torch.device, dtype: torch.dtype = torch.float64, block: int = BLOCK_ENTRIES
) -> Tensor:
    """Distances (M, N) from ``sources`` (M,) to all nodes, on ``device``, infinite where there is no path.

    Parameters
    ----------
    graph : SciPy CSR (N, N), edge lengths >= 0; explicit zeros are edges of length zero. Entry (i, j) leads from i
        to j.
    sources : node indices, repeated ones included.
    dtype : of lengths and distances. In float64 the result equals Dijkstra's bit for bit: both take the least of the
        same rounded sums.
    block : candidates d[u, s] + w held at once, at most, as far as one node's edges allow.

    Notes
    -----
    One wait for the device in each round and block. Work O(R E M) for R rounds at worst, memory O(N M + block). For a
    device on which thousands of sums cost as much as one: on a CPU, Dijkstra's algorithm (see `paths`) is faster.
    """
    pointer = torch.from_numpy(graph.indptr.astype(np.int64)).to(device)
    column = torch.from_numpy(graph.indices.astype(np.int64)).to(device)
    length = torch.from_numpy(graph.data).to(device, dtype)
    start = torch.from_numpy(np.asarray(sources, dtype=np.int64)).to(device)
    lane = torch.arange(len(start), device=device)
    distance = torch.full((graph.shape[0], len(start)), torch.inf, device=device, dtype=dtype)
    distance[start, lane] = 0.0
    frontier: Tensor = torch.unique(start)
    while len(frontier):
        fallen = torch.zeros(graph.shape[0], device=device, dtype=torch.bool)
        for nodes in _blocks(frontier, pointer, max(1, block // max(1, len(start)))):
            tail, edge = _edges_out(nodes, pointer)
            candidate = distance[tail] + length[edge, None]
            head = column[edge]
            fallen[head[(candidate < distance[head]).any(1)]] = True
            distance.scatter_reduce_(0, head[:, None].expand_as(candidate), candidate, "amin")
        frontier = fallen.nonzero()[:, 0]
    return distance.T


def _blocks(nodes: Tensor, pointer: Tensor, most: int) -> list[Tensor]:
    """The nodes in runs with about ``most`` edges out of each run."""
    before = (pointer[nodes + 1] - pointer[nodes]).cumsum(0)
    sizes = torch.bincount((before - 1).clamp(min=0) // most)
    return [run for run in torch.split(nodes, sizes.tolist()) if len(run)]


def _edges_out(nodes: Tensor, pointer: Tensor) -> tuple[Tensor, Tensor]:
    """The tail node and the position in the CSR arrays of each edge out of ``nodes``."""
    count = pointer[nodes + 1] - pointer[nodes]
    offset = (pointer[nodes] - (count.cumsum(0) - count)).repeat_interleave(count)
    return nodes.repeat_interleave(count), offset + torch.arange(len(offset), device=nodes.device)

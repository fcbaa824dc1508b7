"""Neighbour graphs that a GPU builds: those of `torchgw.spaces.graph`, without
short cuts, of points that the fewest neighbours join.

Nothing is read by the host until all has been queued, so what takes another turn is
left to the CPU: where components stay apart, which more neighbours or stitching may
join, where points coincide, and where it is open after a few rounds whether an edge
is a short cut, as that depends on others.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchgw.kernels.neighbour_graphs.graphs import AT_ONCE, CUT, SEARCH_BYTES, CsrEdges, DoubtfulEdges, GraphKernels
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.runtime.transfer import to_device, to_host
from torchgw.spaces.coarsening import bisect
from torchgw.spaces.graph import DETOUR, GraphReport, candidates, log_short_cuts, unit_cloud
from torchgw.spaces.neighbours import TREE_DIMENSIONS
from torchgw.types import Array

logger = logging.getLogger("torchgw")

ORDERED_FROM, UNIT = 100_000, 128  # points from which those out of reach are left out, by boxes of so many
ENTRY_BYTES, COPIES, MOST_SEARCHES = 110, 3, 1000  # of a list of all entries, of the points, and of searches at once


class BuildRecord(NamedTuple):
    """How a graph was made.

    k : neighbours of each point.
    doubtful : the edges that were tried.
    summary : (M,) int32: the number of parts, and what
        `torchgw.kernels.neighbour_graphs` tells of edges in doubt.
    """

    k: int
    doubtful: DoubtfulEdges
    summary: Tensor

    def make_report(self, told: Tensor, name: str) -> GraphReport | None:
        """What is to be known of it, by these numbers on the host; None where the CPU is to build it."""
        (parts, undecided, cut), edges = told[:3].tolist(), told[3:].view(-1, 3)
        if parts > 1 or undecided:
            why = f"has {parts} components" if parts > 1 else f"leaves {undecided} edges undecided"
            logger.info("%s: the graph that the device built %s, so the CPU builds it", name, why)
            return None
        log_short_cuts(name, cut, self.k)
        if cut > len(edges):
            found = (self.doubtful.state == CUT).nonzero()[:, 0]
            (edges,) = to_host(torch.stack((found, *(side[found] for side in self.doubtful[2:4])), 1))
        edges = edges[:cut].long()
        return GraphReport(self.k, 1, 0, edges[edges[:, 0].argsort(), 1:].numpy())


def count_neighbours(n: int) -> int:
    """The neighbours of each of n points."""
    return min(candidates(n)[0], n - 1)


def build_bytes(n: int, d: int, searches: int = MOST_SEARCHES) -> int:
    """About the memory that building takes, from points (n, d), with so many ``searches`` at once."""
    searched = SEARCH_BYTES * min(AT_ONCE, searches * n)
    return 2 * n * count_neighbours(n) * ENTRY_BYTES + 8 * COPIES * n * d + searched


def build_neighbour_graph(
    points: Array, graphs: GraphKernels, device: torch.device, backend: str
) -> tuple[CsrEdges, BuildRecord]:
    """The graph of points (N, D), N at least 2, whose edges have their lengths, and how it was made."""
    points, size = unit_cloud(points)
    there, k = to_device(torch.from_numpy(np.ascontiguousarray(points)), device), count_neighbours(len(points))
    unit = to_device(torch.tensor(size, dtype=torch.float64), device)
    # Beyond, launches take little of the time: no graph of them keeps the memory.
    build = _replay_build_edges if len(points) <= 10_000 else _build_edges
    edges, doubtful, told = build(there, unit, k, graphs, backend)
    return edges, BuildRecord(k, doubtful, told)


def _build_edges(
    points: Tensor, unit: Tensor, k: int, graphs: GraphKernels, backend: str
) -> tuple[CsrEdges, DoubtfulEdges, Tensor]:
    """The graph of points (N, D) in this unit (), its edges in doubt, and what is told of it."""
    n, low = len(points), points.shape[1] <= TREE_DIMENSIONS
    # In an order in which points near each other come near each other, where that
    # pays.
    order = bisect(points, n // UNIT, UNIT, backend).order if n >= ORDERED_FROM and low else None
    edges, doubtful = graphs.neighbours(points, k, order)
    parts = graphs.join_parts(edges, doubtful)
    graphs.decide_edges(points if low else points[:, :0], edges, doubtful, DETOUR)  # lines lead no search in many
    return edges, doubtful, torch.cat((parts, graphs.finish_graph(edges, doubtful, unit)))


_replay_build_edges = as_cuda_graph()(_build_edges)

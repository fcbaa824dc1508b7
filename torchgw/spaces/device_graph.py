"""Graphs whose shortest paths are searched on a GPU, from many points at once.

Farthest-point landmarks come one after the other, each the point farthest from those before it, and a search takes as
long as a path has edges, tens of thousands along a curve. So landmarks are chosen on a coarser graph, and are searched
from together: some thousand points, drawn at random, are the centres of cells, the points nearest to each along the
graph; two cells are as far from each other as their centres are by way of an edge between them,

    between(a, b) = min over edges (i, j), i in cell a and j in cell b, of  d(a, i) + l_ij + d(j, b),

and all shortest paths between thousands of centres are soon had. The distances from the landmarks are those of the
whole graph. Nothing is read by the host until all has been queued.

Source of the cells: M. Erwig, "The graph Voronoi diagram with applications", 2000.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchgw.kernels.shortest_paths.searches import Searches
from torchgw.spaces.edges import components

CENTRES, FAR = 2048, 256  # of cells that are drawn, and of those farthest from them
AROUND = 32  # nearest cells that a path goes on to from each
MORE_ROUNDS = 8


class DeviceGraph(NamedTuple):
    """A symmetric graph of N points on a device.

    pointer, target, length : its CSR rows: (N + 1,) and (E,) int32, (E,) float64.
    centres : (M,) int64, some points, of each part of it one at least.
    n_components : how many parts it has.
    searches : how it is searched.
    """

    pointer: Tensor
    target: Tensor
    length: Tensor
    centres: Tensor
    n_components: int
    searches: Searches

    @classmethod
    def of(cls, graph: Any, searches: Searches, device: torch.device) -> DeviceGraph:
        """A SciPy CSR graph there."""
        n_components, label = components(graph)
        drawn = np.random.default_rng(0).permutation(graph.shape[0])[:CENTRES]
        centres = np.union1d(drawn, np.unique(label, return_index=True)[1])
        parts = graph.indptr.astype(np.int32), graph.indices.astype(np.int32), graph.data.astype(np.float64), centres
        pointer, target, length, there = (torch.from_numpy(part).to(device) for part in parts)
        return cls(pointer, target, length, there, n_components, searches)

    @property
    def size(self) -> int:
        """N."""
        return len(self.pointer) - 1

    def distances(self, sources: Tensor) -> Tensor:
        """Distances (M, N) from the points ``sources`` (M,), float64, infinite where there is no path."""
        return self.searches.paths(self.pointer, self.target, self.length, sources)

    def all_pairs(self) -> Tensor:
        """Distances (N, N), to the last bit the same in both directions."""
        half = self.distances(torch.arange(self.size, device=self.pointer.device)).div_(2)
        return half + half.T

    def landmarks(self, count: int) -> Tensor:
        """At most ``count`` points (L,) that are far from each other, of each part one at least."""
        count = min(max(count, self.n_components), self.size)
        if len(self.centres) == self.size:
            return self.searches.farthest(self.distances(self.centres), count)
        centres, distance, label = self._cells()
        return centres[self.searches.farthest(self._between(len(centres), distance, label), count)]

    def _cells(self) -> tuple[Tensor, Tensor, Tensor]:
        """Centres of cells (M,), and the distance (N,) of each point to its own and the number (N,) of that, int32, or
        infinity and M where none is near. The points farthest from those drawn are centres as well."""
        n, m = self.size, len(self.centres)
        distance, label = self.length.new_full((n,), torch.inf), self.target.new_full((n,), n)
        # So many edges are as far as any point is likely to be from a centre, of those of a curve.
        edges = n / m * math.log(m) * n / max(len(self.target), 1)
        centres = self.centres.new_empty(0)
        for rounds in (math.ceil(edges) + MORE_ROUNDS, MORE_ROUNDS):
            new = distance.topk(min(FAR, n - m)).indices if len(centres) else self.centres
            distance.index_fill_(0, new, 0.0)
            label[new] = torch.arange(len(centres), len(centres) + len(new), dtype=label.dtype, device=label.device)
            centres = torch.cat((centres, new))
            for _ in range(rounds):
                distance, label = self.searches.spread(self.pointer, self.target, self.length, distance, label)
        return centres, distance, label.clamp_max(len(centres))

    def _between(self, m: int, distance: Tensor, label: Tensor) -> Tensor:
        """About the distances (M, M) between the centres."""
        point = torch.repeat_interleave(self.pointer.diff(), output_size=len(self.target))
        other = self.target.long()
        way = distance[point] + self.length + distance[other]
        between = way.new_full(((m + 1) ** 2,), torch.inf)  # the last row and column of points near no centre
        between.scatter_reduce_(0, label[point].long() * (m + 1) + label[other], way, "amin")
        near, cell = between.view(m + 1, m + 1)[:m, :m].topk(min(AROUND, m), largest=False)
        pointer = torch.arange(0, cell.numel() + 1, cell.shape[1], dtype=torch.int32, device=cell.device)
        every = torch.arange(m, device=cell.device)
        return self.searches.paths(pointer, cell.int().flatten(), near.flatten(), every)

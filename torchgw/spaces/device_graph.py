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

from torchgw.kernels.neighbour_graphs.graphs import GraphKernels
from torchgw.kernels.shortest_paths.searches import Searches
from torchgw.runtime.transfer import to_device
from torchgw.spaces.device_neighbours import BuildRecord, build_neighbour_graph
from torchgw.spaces.edges import components
from torchgw.types import Array

CENTRES, FAR = 1024, 256  # of cells that are drawn, and of those farthest from them
PER_LANDMARK = 4  # of cells at least
MORE_ROUNDS = 2


def count_centres(count: int) -> int:
    """How many cells are drawn where so many landmarks are chosen."""
    return max(CENTRES, PER_LANDMARK * count)


def search_bytes(n: int, entries: int, parts: int, kind: str, n_landmarks: int) -> int:
    """About the memory that searches of a graph of n points in so many parts take, for a space of that kind."""
    count = min(max(n_landmarks, parts), n)
    landmarks = 20 * n * count + 40 * min(count_centres(count) + parts + FAR, n) ** 2
    every = 28 * n**2
    return 60 * entries + {"landmark": landmarks, "precomputed": every}.get(kind, max(landmarks, every))


class DeviceGraph(NamedTuple):
    """A symmetric graph of N points on a device.

    pointer, target, length : its CSR rows: (N + 1,) and (E,) int32, (E,) float64. There may be more entries than rows
        hold, and loops of infinite length.
    parts : (P,) int64, a point of each component, on the host.
    searches : how it is searched.
    degree : how many edges a point has, about.
    build_record : how it was made of points there; None where it was brought.
    """

    pointer: Tensor
    target: Tensor
    length: Tensor
    parts: Array | tuple[int, ...]
    searches: Searches
    degree: float
    build_record: BuildRecord | None = None

    @classmethod
    def of(cls, graph: Any, searches: Searches, device: torch.device, label: Array | None = None) -> DeviceGraph:
        """A SciPy CSR graph of fewer than 2^31 entries there; the component of each point (N,) may be known."""
        label = components(graph)[1] if label is None else label
        rows = graph.indptr.astype(np.int32), graph.indices.astype(np.int32), graph.data.astype(np.float64)
        pointer, target, length = (to_device(torch.from_numpy(part), device) for part in rows)
        parts = np.unique(label, return_index=True)[1]
        return cls(pointer, target, length, parts, searches, len(target) / max(len(label), 1))

    @classmethod
    def from_points(
        cls, points: Array, graphs: GraphKernels, searches: Searches, device: torch.device, backend: str
    ) -> DeviceGraph:
        """The neighbour graph of points (N, D), built there."""
        edges, made = build_neighbour_graph(points, graphs, device, backend)
        first = np.zeros(1, dtype=np.int64)
        return cls(edges.pointer, edges.target, edges.length, first, searches, float(made.k), made)

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

    def centres(self, count: int) -> Tensor:
        """Points (M,) to choose so many landmarks by: a few at random, and one of each part."""
        count = min(max(count, len(self.parts)), self.size)
        drawn = np.random.default_rng(0).permutation(self.size)[: count_centres(count)]
        return to_device(torch.from_numpy(np.union1d(drawn, self.parts)), self.pointer.device)

    def landmarks(self, centres: Tensor, count: int) -> Tensor:
        """So many points (L,) that are far from each other, chosen by centres (M,) of cells."""
        if len(centres) == self.size:
            return self.searches.farthest(self.distances(centres), count)
        centres, distance, label = self._cells(centres)
        graph, cells = (self.pointer, self.target, self.length), (distance, label)
        return centres[self.searches.farthest(self.searches.cell_distances(*graph, *cells, len(centres)), count)]

    def _cells(self, drawn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Centres of cells (M,), the points ``drawn`` and those farthest from them; the distance (N,) of each point to
        its own, and the number (N,) of that, int32; infinity and M where none is near."""
        n, m = self.size, len(drawn)
        most = m + min(FAR, n - m)
        distance, label = self.length.new_full((n,), torch.inf), self.target.new_full((n,), most)
        # So many edges are as far as any point is likely to be from a centre, of those of a curve.
        edges = n / m * math.log(m) / max(self.degree, 1.0)
        number, centres = torch.arange(most, dtype=label.dtype, device=label.device), list[Tensor]()
        for numbers, rounds in ((number[:m], math.ceil(edges) + MORE_ROUNDS), (number[m:], MORE_ROUNDS)):
            new = distance.index_fill(0, drawn, -1.0).topk(most - m).indices if centres else drawn
            distance.index_fill_(0, new, 0.0)
            label.index_copy_(0, new, numbers)
            centres.append(new)
            for _ in range(rounds):
                distance, label = self.searches.spread_labels(self.pointer, self.target, self.length, distance, label)
        return torch.cat(centres), distance, label

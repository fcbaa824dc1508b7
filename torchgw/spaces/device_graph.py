"""Graphs whose shortest paths are searched on a GPU, from many points at once.

Farthest-point landmarks come one after the other, since each is the point farthest from those before it. But that point
is a peak of the distances to the nearest landmark, which no point within two edges is above, and a landmark lowers the
distances around itself alone. So the highest peaks are searched from at once, before it is known which of them will be
landmarks; then landmarks are taken in turn for as long as each has been searched from, and a new round begins. On a
curve each round doubles the landmarks. They are those of `torchgw.spaces.farthest`, and their distances have the same
bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchgw.kernels.shortest_paths.searches import Searches
from torchgw.runtime.transfer import fetched
from torchgw.spaces.edges import components

CANDIDATES = 3  # rows for each landmark
ROUNDS = 14  # before the host asks whether there are enough landmarks: one that is not needed costs next to nothing


class DeviceGraph(NamedTuple):
    """A symmetric graph of N points on a device.

    pointer, target, length : its CSR rows: (N + 1,) and (E,) int32, (E,) float64.
    n_components : how many parts it has.
    searches : how it is searched.
    """

    pointer: Tensor
    target: Tensor
    length: Tensor
    n_components: int
    searches: Searches

    @classmethod
    def of(cls, graph: Any, searches: Searches, device: torch.device) -> DeviceGraph:
        """A SciPy CSR graph there."""
        parts = graph.indptr.astype(np.int32), graph.indices.astype(np.int32), graph.data.astype(np.float64)
        pointer, target, length = (torch.from_numpy(part).to(device) for part in parts)
        return cls(pointer, target, length, components(graph)[0], searches)

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


class Landmarked(NamedTuple):
    """Farthest-point landmarks of a graph on a device.

    point, rows : (L,) int64 and (L, N), where they are and the distances from them, infinite where there is no path.
    among : (L, L), those between them, on the host.
    largest : of all of them.
    """

    point: Tensor
    rows: Tensor
    among: Tensor
    largest: float


class FarthestPoints:
    """A search for at most ``n_landmarks``, and one for each component, that `run` goes on with; see
    `torchgw.spaces.farthest.farthest_points`. O(L N) memory, of which two thirds are for candidates."""

    def __init__(self, graph: DeviceGraph, n_landmarks: int) -> None:
        n = graph.size
        self.graph, self.most = graph, min(max(n_landmarks, graph.n_components), n)
        self.rows = graph.length.new_full((min(CANDIDATES * self.most, n), n), torch.inf)
        self.place, self.nearest = graph.pointer.new_full((n,), -1), graph.length.new_full((n,), torch.inf)
        self.landmark, self.count = graph.pointer.new_zeros(self.most, dtype=torch.int64), graph.pointer.new_zeros(2)
        self.queued, self.queue = graph.pointer.new_zeros(self.most, n), graph.pointer.new_empty(self.most, 2, n)
        self.peak, self.height = self.landmark, self.rows[0].new_full((self.most,), -1.0)
        self.height[:1] = torch.inf

    def run(self) -> None:
        """Some rounds, for which nothing waits."""
        (pointer, target, length, _, searches), most = self.graph, self.most
        for _ in range(ROUNDS):
            chosen, memory = (self.peak, self.height, self.place, self.count), (self.rows, self.queued, self.queue)
            searches.search(pointer, target, length, *chosen, *memory, most)
            searches.farthest(self.rows, self.height, self.place, self.nearest, self.landmark, self.count)
            height = searches.peaks(pointer, target, self.nearest, self.place, self.landmark, self.count)
            self.height, self.peak = height.topk(most)

    def found(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """How many of the landmarks there are (2,), the distances from them, and what `Landmarked` has of these."""
        rows = self.rows[self.place[self.landmark].long()]
        return self.count, rows, rows[:, self.landmark], rows.max()


def farthest_points(searches: Sequence[FarthestPoints]) -> list[Landmarked]:
    """The landmarks of several graphs, of whose searches the first rounds are under way."""
    while searches:
        found = [search.found() for search in searches]
        read = fetched(*(number for count, _, *numbers in found for number in (count, *numbers)))
        parts = list(zip(searches, found, read[::3], read[1::3], read[2::3], strict=True))
        missing = [search for search, _, count, *_ in parts if int(count[0]) < search.most]
        if not missing:
            return [
                Landmarked(search.landmark, rows, among, float(largest))
                for search, (_, rows, *_), _, among, largest in parts
            ]
        for search in missing:
            search.run()
    return []

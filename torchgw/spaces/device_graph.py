"""Graphs whose shortest paths are searched on a GPU, from many points at once.

Farthest-point landmarks come one after the other, each the point farthest from
those before it, and a search takes as long as a path has edges, tens of thousands
along a curve. So landmarks are chosen on a coarser graph, and are searched from
together: some thousand points, drawn at random, are the centres of cells, the
points nearest to each along the graph; two cells are as far from each other as
their centres are by way of an edge between them,

    between(a, b) = min over edges (i, j), i in cell a and j in cell b, of  d(a, i) + l_ij + d(j, b),

and all shortest paths between thousands of centres are soon had. The distances from
the landmarks are those of the whole graph. Nothing is read by the host until all
has been queued.

Source of the cells: M. Erwig, "The graph Voronoi diagram with applications", 2000.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from torchgw.kernels.neighbour_graphs.graphs import GraphKernels
from torchgw.kernels.shortest_paths.searches import Searches
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.runtime.transfer import to_device, to_host
from torchgw.spaces.device_neighbours import BuildRecord, build_neighbour_graph
from torchgw.spaces.graph import GraphReport
from torchgw.spaces.landmark import LandmarkDistances, storage
from torchgw.spaces.neighbours import components
from torchgw.spaces.precomputed import PrecomputedDistances
from torchgw.spaces.resolution import differences, median_ratio, pick_evenly
from torchgw.spaces.scale import fill_unreachable, without_scale
from torchgw.types import Array, DistanceProvider

logger = logging.getLogger("torchgw")

CENTRES, FAR = 1024, 256  # of cells that are drawn, and of those farthest from them
MORE_ROUNDS = 2
DEVICE_KINDS = ("landmark", "checked", "precomputed")
FEW_POINTS = 2500  # up to which all pairs are soon had, so that landmarks must be better than not poor
CHECKED_ROWS = 8  # that tell how accurate factored distances are


def count_centres(count: int) -> int:
    """How many cells are drawn where so many landmarks are chosen."""
    return max(CENTRES, 4 * count)


def search_bytes(n: int, entries: int, parts: int, kind: str, n_landmarks: int) -> int:
    """About the memory that searches of a graph of n points in so many parts take, for a space of that kind."""
    count = min(max(n_landmarks, parts), n)
    landmarks = 20 * n * count + 40 * min(count_centres(count) + parts + FAR, n) ** 2
    every = 28 * n**2
    return 60 * entries + {"landmark": landmarks, "precomputed": every}.get(kind, max(landmarks, every))


class DeviceGraph(NamedTuple):
    """A symmetric graph of N points on a device.

    pointer, target, length : its CSR rows: (N + 1,) and (E,) int32, (E,) float64.
        There may be more entries than rows hold, and loops of infinite length.
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
        """Centres of cells (M,), the points ``drawn`` and those farthest from them;
        the distance (N,) of each point to its own, and the number (N,) of that,
        int32; infinity and M where none is near."""
        n, m = self.size, len(drawn)
        most = m + min(FAR, n - m)
        distance, label = self.length.new_full((n,), torch.inf), self.target.new_full((n,), most)
        # So many edges are as far as any point is likely to be from a centre, of
        # those of a curve.
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


class DeviceSearch:
    """A graph whose search a device has begun, and for which nothing waits yet.

    name : of the space.
    kind : out of `DEVICE_KINDS`, as of `torchgw.spaces.prepare.InputSpace`.
    graph : there.
    sources : (M,) int64, the points that it is searched from, landmarks first.
    rows : (M, N), the distances from them.
    n_landmarks : how many of them are.
    """

    def __init__(self, name: str, kind: str, graph: DeviceGraph, n_landmarks: int) -> None:
        self.name, self.kind, self.graph = name, kind, graph
        n, device, checked, centres = graph.size, graph.pointer.device, None, None
        self.n_landmarks = 0
        if kind != "precomputed":
            checked = to_device(pick_evenly(n, CHECKED_ROWS), device) if kind == "checked" else None
            centres, self.n_landmarks = graph.centres(n_landmarks), min(max(n_landmarks, len(graph.parts)), n)
        alone = graph._replace(parts=(), build_record=None)
        self.sources, self.rows, self._among, self._largest = _search_graph(alone, centres, checked, self.n_landmarks)

    def host_numbers(self) -> tuple[Tensor, Tensor, Tensor]:
        """What the host must know: the distances between landmarks, the largest one
        of all, and what tells how the graph was built there."""
        told = self.sources[:0] if self.graph.build_record is None else self.graph.build_record.summary
        return self._among, self._largest, told

    def provider(self, among: Tensor, largest: float) -> LandmarkDistances | PrecomputedDistances:
        """What the distances make, with these numbers; of landmarks in one place the first."""
        if not self.n_landmarks:
            return PrecomputedDistances.from_raw(self.rows, largest, self.name)
        points, rows = self.sources[: self.n_landmarks], self.rows[: self.n_landmarks]
        kept = ~(among == 0).triu(1).any(0)
        if not bool(kept.all()):
            which = kept.nonzero()[:, 0]
            among, which = among[which][:, which], to_device(which, points.device)
            points, rows = points[which], rows[which]
        columns = rows.to(getattr(torch, storage(rows.shape[1]))).T
        return LandmarkDistances.from_columns(points, columns, among, largest, self.name)


@as_cuda_graph()
def _search_graph(
    graph: DeviceGraph, centres: Tensor | None, checked: Tensor | None, count: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Points (M,), so many landmarks chosen by ``centres`` and those that are
    ``checked``, and the distances (M, N) from them; those between landmarks (L, L),
    and the largest () from one. All pairs without centres."""
    if centres is None:
        rows = graph.all_pairs()
        return graph.target.new_empty(0, dtype=torch.int64), rows, rows[:0, :0], rows.max()
    points = graph.landmarks(centres, count)
    sources = points if checked is None else torch.cat((points, checked))
    rows = graph.distances(sources)
    return sources, rows, rows[:count, sources[:count]], rows[:count].max()


def finish_searches(begun: Sequence[DeviceSearch]) -> list[tuple[DistanceProvider, GraphReport | None] | None]:
    """Their providers, and what is told of graphs that were built there; None where
    the CPU is to build one. Numbers of all are read together. Where landmarks are
    checked and do not serve, all pairs."""
    made = list[tuple[DistanceProvider, GraphReport | None] | None]()
    read = to_host(*(number for each in begun for number in each.host_numbers()))
    for each, among, largest, told in zip(begun, *(read[part::3] for part in range(3)), strict=True):
        built = each.graph.build_record
        report = None if built is None else built.make_report(told, each.name)
        fits = built is None or report is not None
        made.append((each.provider(among, float(largest)), report) if fits else None)
    looked = [(i, *found) for i, found in enumerate(made) if found is not None and begun[i].kind == "checked"]
    measured = list[Tensor]()
    for i, factored, _ in looked:
        sources, rows = begun[i].sources[begun[i].n_landmarks :], begun[i].rows[begun[i].n_landmarks :]
        if len(begun[i].graph.parts) > 1:
            fill_unreachable(rows, factored.scale)
        measured += measure_errors(cast(LandmarkDistances, factored), sources, rows)
    read = to_host(*measured)
    for (i, factored, report), *errors in zip(looked, *(read[part::3] for part in range(3)), strict=True):
        if not is_accurate(cast(LandmarkDistances, factored), begun[i].name, *errors):
            known = begun[i].graph._replace(build_record=None)
            ((provider, _),) = cast(Any, finish_searches([DeviceSearch(begun[i].name, "precomputed", known, 0)]))
            made[i] = provider, report
    return made


def measure_errors(factored: LandmarkDistances, sources: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Relative Frobenius error () of factored distances on some rows (M, N) of the
    graph's, all finite, and the `differences` between those rows."""
    return _compute_errors(without_scale(factored), sources, rows / factored.scale)


@as_cuda_graph()
def _compute_errors(factored: DistanceProvider, sources: Tensor, true: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    found = torch.linalg.norm(factored.rows(sources) - true)
    error = found / torch.linalg.norm(true).clamp_min(torch.finfo(true.dtype).tiny)
    return error, *differences(true, true.new_full(true.shape[1:], 1 / factored.size))


def is_accurate(factored: LandmarkDistances, name: str, error: Tensor, apart: Tensor, sums: Tensor) -> bool:
    """Whether they do, with these errors on the host. They do not where rows tell
    points apart only below what landmarks resolve, since far points then are all
    that the error sees."""
    off = float(error) if median_ratio(apart, sums) >= factored.resolution else torch.inf
    if off <= (0.03 if factored.size <= FEW_POINTS else 0.1):
        return True
    logger.info("%s: landmark distances are off by %.1f %%, so all pairs are used", name, 100 * off)
    return False

"""Distance providers of graphs that a device searches, and whether landmarks serve a space."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.runtime.transfer import to_device, to_host
from torchgw.spaces.device_graph import DeviceGraph
from torchgw.spaces.graph import GraphReport
from torchgw.spaces.landmark import LandmarkDistances, storage
from torchgw.spaces.precomputed import PrecomputedDistances
from torchgw.spaces.resolution import differences, median_ratio, pick_evenly
from torchgw.spaces.scale import fill_unreachable, without_scale
from torchgw.types import DistanceProvider

logger = logging.getLogger("torchgw")

DEVICE_KINDS = ("landmark", "checked", "precomputed")
LANDMARK_ERROR, POOR_LANDMARKS = 0.03, 0.1
FEW_POINTS = 2500  # up to which all pairs are soon had, so that landmarks must be better than not poor
CHECKED_ROWS = 8  # that tell how accurate factored distances are


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
        """What the host must know: the distances between landmarks, the largest one of all, and what tells how the
        graph was built there."""
        told = self.sources[:0] if self.graph.build_record is None else self.graph.build_record.summary
        return self._among, self._largest, told

    def provider(self, among: Tensor, largest: float) -> LandmarkDistances | PrecomputedDistances:
        """What the distances make, with these numbers; of landmarks in one place the first."""
        if not self.n_landmarks:
            return PrecomputedDistances.from_device(self.rows, largest, self.name)
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
    """Points (M,), so many landmarks chosen by ``centres`` and those that are ``checked``, and the distances (M, N)
    from them; those between landmarks (L, L), and the largest () from one. All pairs without centres."""
    if centres is None:
        rows = graph.all_pairs()
        return graph.target.new_empty(0, dtype=torch.int64), rows, rows[:0, :0], rows.max()
    points = graph.landmarks(centres, count)
    sources = points if checked is None else torch.cat((points, checked))
    rows = graph.distances(sources)
    return sources, rows, rows[:count, sources[:count]], rows[:count].max()


def finish_searches(begun: Sequence[DeviceSearch]) -> list[tuple[DistanceProvider, GraphReport | None] | None]:
    """Their providers, and what is told of graphs that were built there; None where the CPU is to build one. Numbers
    of all are read together. Where landmarks are checked and do not serve, all pairs."""
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
    """Relative Frobenius error () of factored distances on some rows (M, N) of the graph's, all finite, and the
    `differences` between those rows."""
    return _compute_errors(without_scale(factored), sources, rows / factored.scale)


@as_cuda_graph()
def _compute_errors(factored: DistanceProvider, sources: Tensor, true: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    found = torch.linalg.norm(factored.rows(sources) - true)
    error = found / torch.linalg.norm(true).clamp_min(torch.finfo(true.dtype).tiny)
    return error, *differences(true, true.new_full(true.shape[1:], 1 / factored.size))


def is_accurate(factored: LandmarkDistances, name: str, error: Tensor, apart: Tensor, sums: Tensor) -> bool:
    """Whether they do, with these errors on the host. They do not where rows tell points apart only below what
    landmarks resolve, since far points then are all that the error sees."""
    off = float(error) if median_ratio(apart, sums) >= factored.resolution else torch.inf
    if off <= (LANDMARK_ERROR if factored.size <= FEW_POINTS else POOR_LANDMARKS):
        return True
    logger.info("%s: landmark distances are off by %.1f %%, so all pairs are used", name, 100 * off)
    return False

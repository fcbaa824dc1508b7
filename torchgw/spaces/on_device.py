"""Distance providers of graphs that a device searches, and whether landmarks serve a space."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from torchgw.runtime.transfer import fetched
from torchgw.spaces.device_graph import DeviceGraph, FarthestPoints, farthest_points
from torchgw.spaces.landmark import LandmarkDistances
from torchgw.spaces.precomputed import PrecomputedDistances
from torchgw.spaces.scale import fill_unreachable
from torchgw.types import DistanceProvider

logger = logging.getLogger("torchgw")

SEARCHED_THERE = ("landmark", "checked", "precomputed")
LANDMARK_ERROR, POOR_LANDMARKS = 0.03, 0.1
FEW_POINTS = 2500  # up to which all pairs are soon had, so that landmarks must be better than not poor
CHECKED_ROWS = 8


class Begun:
    """A graph whose search a device has begun, and for which nothing waits yet.

    name : of the space.
    kind : out of `SEARCHED_THERE`, as of `torchgw.spaces.prepare.Space`.
    graph : there.
    search : for its landmarks; None where all pairs are asked for.
    """

    def __init__(self, name: str, kind: str, graph: DeviceGraph, n_landmarks: int) -> None:
        self.name, self.kind, self.graph = name, kind, graph
        self.search = None if kind == "precomputed" else FarthestPoints(graph, n_landmarks)
        if self.search is not None:
            self.search.run()


def finished(begun: Sequence[Begun]) -> list[DistanceProvider]:
    """Their providers, whose numbers are read together."""
    asked = [(i, each.search) for i, each in enumerate(begun) if each.search is not None]
    found = farthest_points([search for _, search in asked])
    made: dict[int, DistanceProvider] = {}
    looked = list[tuple[int, LandmarkDistances, Tensor]]()
    for (i, _), landmarked in zip(asked, found, strict=True):
        each, factored = begun[i], LandmarkDistances.from_device(landmarked, begun[i].name)
        made[i] = factored
        if each.kind == "checked":
            sources = checked_points(each.graph.size).to(landmarked.rows.device)
            looked.append((i, factored, relative_error(factored, sources, each.graph.distances(sources))))
    for (i, factored, _), error in zip(looked, fetched(*(error for *_, error in looked)), strict=True):
        if not serves(factored, begun[i].name, float(error)):
            del made[i]
    left = [i for i in range(len(begun)) if i not in made]
    graphs, names = [begun[i].graph for i in left], [begun[i].name for i in left]
    made |= zip(left, PrecomputedDistances.from_device(graphs, names), strict=True)
    return [made[i] for i in range(len(begun))]


def checked_points(n: int) -> Tensor:
    """A few points (M,), evenly spread, whose rows tell how accurate factored distances are."""
    return torch.linspace(0, n - 1, CHECKED_ROWS, dtype=torch.float64).long()


def relative_error(factored: LandmarkDistances, sources: Tensor, rows: Tensor) -> Tensor:
    """Relative Frobenius error () of factored distances on some rows (M, N) of the graph's, which are overwritten."""
    true = fill_unreachable(rows, factored.scale).div_(factored.scale)
    found = torch.linalg.norm(factored.rows(sources) - true)
    error: Tensor = found / torch.linalg.norm(true).clamp_min(torch.finfo(true.dtype).tiny)
    return error


def serves(factored: LandmarkDistances, name: str, error: float) -> bool:
    """Whether they do, with this error."""
    if error <= (LANDMARK_ERROR if factored.size <= FEW_POINTS else POOR_LANDMARKS):
        return True
    logger.info("%s: landmark distances are off by %.1f %%, so all pairs are used", name, 100 * error)
    return False

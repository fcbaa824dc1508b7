"""Points that are seen after a solve, placed among those of it by their distances.

The distance from a new point x to a known one is

    Euclidean      |x - x_i|, or its square
    geodesic       min over the k nearest known points x_n of |x - x_n| + D(n, i): the shortest path of the graph with x
                   joined to its neighbours
    otherwise      given, one row of distances for each new point
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from torchgw import validate
from torchgw.spaces.euclidean import EuclideanDistances, distances
from torchgw.spaces.neighbours import nearest_to
from torchgw.types import Array, DistanceProvider, is_metric

NEW_ELEMENTS = 2**24
FAR = 4.0  # times the way by the new point


@dataclass(frozen=True)
class KnownPoints:
    """What places new points in a space.

    Attributes
    ----------
    made : its distances, on the device of the solve; ``space`` has them on the CPU, from when it is asked for.
    points : (N, D) that it was made from; None where it was not made from points.
    k : neighbours that join a new point to the graph.
    """

    made: DistanceProvider
    points: Array | None
    k: int

    @cached_property
    def space(self) -> DistanceProvider:
        """Its distances, float64 on the CPU."""
        return self.made.to(torch.device("cpu"), torch.float64)

    def distances(self, new: Any, index: Tensor) -> Tensor:
        """Scaled distances (m, len(index)), float64, from new points to the known points ``index``.

        ``new`` are points (m, D) like those of the space, or rows (m, N) of raw distances to all of its points where it
        was not made from points.
        """
        if not is_metric(self.space):
            raise ValueError(
                f"points must have distances to be placed by, and {type(self.space).__name__} does not say what is "
                f"near; align again with the new points among the others"
            )
        if self.points is None:
            given = validate.points("points", new, least=1)
            if given.shape[1] != self.space.size:
                raise ValueError(
                    f"points must be rows of distances to all {self.space.size} points, because the space was not made "
                    f"from points; got shape {given.shape}"
                )
            return validate.as_tensor(given)[:, index.cpu()] / self.space.scale
        points = validate.points("points", new, least=1)
        if points.shape[1] != self.points.shape[1]:
            raise ValueError(f"points must have {self.points.shape[1]} coordinates, got shape {points.shape}")
        if isinstance(self.space, EuclideanDistances):
            near = torch.from_numpy(self.points[index.cpu().numpy()])
            found = distances(validate.as_tensor(points), near)
            return (found.square() if self.space.squared else found) / self.space.scale
        return self._along(self.points, points, index)

    def _along(self, known: Array, points: Array, index: Tensor) -> Tensor:
        length, neighbour = nearest_to(known, points, self.k)
        rows = self.space.rows(index).double().cpu()
        step = max(1, NEW_ELEMENTS // (len(index) * neighbour.shape[1]))
        found = rows.new_empty(len(points), len(index))
        for start in range(0, len(points), step):
            where = slice(start, start + step)
            first = torch.from_numpy(length[where]) / self.space.scale
            beyond = rows[:, torch.from_numpy(neighbour[where])]
            # Neighbours that are far from the nearest one along the graph lie on another part of it.
            apart = (beyond - beyond[:, :, :1]).abs().amax(0)
            short_cut = apart > FAR * (first + first[:, :1])
            found[where] = (beyond + torch.where(short_cut, torch.inf, first)).amin(2).T
        return found

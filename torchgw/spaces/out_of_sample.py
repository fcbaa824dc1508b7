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
from torchgw.kernels.sums import scatter
from torchgw.spaces.euclidean import EuclideanDistances, distances
from torchgw.spaces.neighbours import nearest_to
from torchgw.spaces.resolution import evenly_spread
from torchgw.spaces.subspace import points_of
from torchgw.types import Array, DistanceProvider, is_metric

NEW_ELEMENTS = 2**24
FAR = 4.0  # times the way by the new point


@dataclass(frozen=True)
class KnownPoints:
    """What places new points in a space.

    Attributes
    ----------
    made : its distances, on the device of the solve, of the points with mass; ``space`` has those of all points on the
        CPU, from when it is asked for.
    points : (N, D) that it was made from; None where it was not made from points.
    k : neighbours that join a new point to the graph.
    index : (n,) the points with mass; None for all. In ``space`` the others are where the first of these is.
    size : N; None for n.
    """

    made: DistanceProvider
    points: Array | None
    k: int
    index: Tensor | None = None
    size: int | None = None

    @cached_property
    def among(self) -> DistanceProvider:
        """The distances of the points with mass, float64 on the CPU."""
        return self.made.to(torch.device("cpu"), torch.float64)

    @cached_property
    def places(self) -> Tensor:
        """(N,) which of the points with mass each point is, or stands where."""
        every = torch.arange(self.made.size)
        return every if self.index is None or self.size is None else scatter(every, self.index, self.size)

    @cached_property
    def space(self) -> DistanceProvider:
        """Its distances, float64 on the CPU."""
        return points_of(self.among, self.places)

    def some(self, count: int) -> Tensor:
        """Indices of ``count`` points with mass, evenly spread, or of all."""
        found = evenly_spread(self.made.size, count)
        return found if self.index is None else self.index[found]

    @property
    def landmarks(self) -> Tensor | None:
        """Indices of the landmarks of the distances, where they have any."""
        found: Tensor | None = getattr(self.among, "landmarks", None)
        return found if found is None or self.index is None else self.index[found.cpu()]

    def distances(self, new: Any, index: Tensor) -> Tensor:
        """Scaled distances (m, len(index)), float64, from new points to the known points ``index``.

        ``new`` are points (m, D) like those of the space, or rows (m, N) of raw distances to all of its points where it
        was not made from points.
        """
        if not is_metric(self.space):
            raise ValueError(
                f"points must have distances to be placed by, and {type(self.among).__name__} does not say what is "
                f"near; align again with the new points among the others"
            )
        known = self.places[index.cpu()]
        if self.points is None:
            given = validate.points("points", new, least=1)
            if given.shape[1] != self.space.size:
                raise ValueError(
                    f"points must be rows of distances to all {self.space.size} points, because the space was not made "
                    f"from points; got shape {given.shape}"
                )
            present = given if self.index is None else given[:, self.index]
            return validate.as_tensor(present)[:, known] / self.space.scale
        points = validate.points("points", new, least=1)
        if points.shape[1] != self.points.shape[1]:
            raise ValueError(f"points must have {self.points.shape[1]} coordinates, got shape {points.shape}")
        near = self.points if self.index is None else self.points[self.index.numpy()]
        if isinstance(self.among, EuclideanDistances):
            found = distances(validate.as_tensor(points), torch.from_numpy(near[known.numpy()]))
            return (found.square() if self.among.squared else found) / self.among.scale
        return self._along(near, points, known)

    def _along(self, known: Array, points: Array, index: Tensor) -> Tensor:
        length, neighbour = nearest_to(known, points, self.k)
        rows = self.among.rows(index).double().cpu()
        step = max(1, NEW_ELEMENTS // (len(index) * neighbour.shape[1]))
        found = rows.new_empty(len(points), len(index))
        for start in range(0, len(points), step):
            where = slice(start, start + step)
            first = torch.from_numpy(length[where]) / self.among.scale
            beyond = rows[:, torch.from_numpy(neighbour[where])]
            # Neighbours that are far from the nearest one along the graph lie on another part of it.
            apart = (beyond - beyond[:, :, :1]).abs().amax(0)
            short_cut = apart > FAR * (first + first[:, :1])
            found[where] = (beyond + torch.where(short_cut, torch.inf, first)).amin(2).T
        return found

"""Points that are seen after a solve, placed among those of it by their distances.

The distance from a new point x to a known one is

    Euclidean      |x - x_i|, or its square
    geodesic       min over the k nearest known points x_n of |x - x_n| + D(n, i): the shortest path of the graph with x
                   joined to its neighbours
    otherwise      given, one row of distances for each new point
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchgw import validate
from torchgw.kernels.sums import scatter
from torchgw.spaces.euclidean import EuclideanDistances, distances
from torchgw.spaces.neighbours import nearest_to
from torchgw.spaces.precomputed import PrecomputedDistances
from torchgw.spaces.resolution import pick_evenly
from torchgw.spaces.scale import ScaledDistances
from torchgw.spaces.subspace import restrict
from torchgw.types import Array, DistanceProvider, is_metric

LANDMARKS = 256  # known points that new ones are placed by, where the space has no landmarks of its own


class LandmarkRows(ScaledDistances):
    """The distances from L landmarks to all n points, which are all that a file keeps of a large space.

    Parameters
    ----------
    rows : (L, n), scaled.
    landmarks : (L,) indices.
    scale : what the raw distances were divided by.
    """

    divided = True

    def __init__(self, rows: Tensor, landmarks: Tensor, scale: float) -> None:
        self._rows, self.landmarks = rows, landmarks
        self.scale = self.largest = scale

    @property
    def size(self) -> int:
        return self._rows.shape[1]

    def to(self, device: torch.device, dtype: torch.dtype) -> LandmarkRows:
        return self._with(_rows=self._rows.to(device, dtype), landmarks=self.landmarks.to(device))

    def _rescale_storage(self, ratio: float) -> LandmarkRows:
        return self._with(_rows=self._rows * ratio)

    def rows(self, index: Tensor) -> Tensor:
        found, place = (index[:, None] == self.landmarks).int().max(1)
        if not bool(found.all()):
            raise ValueError(
                f"this file keeps distances from {len(self.landmarks)} of {self.size} points, which place new "
                f"points and lay nothing out; to draw the result, pass points (X=, Y=)"
            )
        return self._rows[place]


@dataclass(frozen=True)
class KnownPoints:
    """What places new points in a space.

    Attributes
    ----------
    made : its distances, on the device of the solve, of the points with mass;
        ``space`` has those of all points on the CPU, from when it is asked for.
    points : (N, D) that it was made from; None where it was not made from points.
    k : neighbours that join a new point to the graph.
    index : (n,) the points with mass; None for all. In ``space`` the others are
        where the first of these is.
    size : N; None for n.
    graph : (N, N) the lengths of edges in CSR that it was made from, or the
        adjacency of all points where some have no mass; else None.
    """

    made: DistanceProvider
    points: Array | None
    k: int
    index: Tensor | None = None
    size: int | None = None
    graph: Any = None

    @cached_property
    def support_distances(self) -> DistanceProvider:
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
        return restrict(self.support_distances, self.places)

    def pick_evenly(self, count: int) -> Tensor:
        """Indices of ``count`` points with mass, evenly spread, or of all."""
        found = pick_evenly(self.made.size, count)
        return found if self.index is None else self.index[found]

    @property
    def anchors(self) -> Tensor:
        """Indices of the points that new ones are placed by: the landmarks, or some that are evenly spread."""
        found: Tensor | None = getattr(self.support_distances, "landmarks", None)
        if found is None:
            return self.pick_evenly(LANDMARKS)
        return found if self.index is None else self.index[found.cpu()]

    def arrays(self, every: bool, limit: int) -> dict[str, Array]:
        """What a file keeps of it, for `of_arrays`.

        Parameters
        ----------
        every : whether distances between all points are needed, or those from the
            `anchors` alone. Distances between points that are straight lines are
            found again from the points.
        limit : bytes that the distances may take.
        """
        if not is_metric(self.support_distances):
            raise ValueError(
                f"points can be saved where distances place new ones, and {type(self.support_distances).__name__} does "
                f"not say what is near; save the result without points"
            )
        found = {"k": np.array(self.k), "scale": np.array(float(self.support_distances.scale))}
        found |= {} if self.points is None else {"points": self.points}
        found |= {} if self.index is None else {"index": self.index.cpu().numpy()}
        if isinstance(self.support_distances, EuclideanDistances) and self.points is not None:
            return found | {"squared": np.array(self.support_distances.squared)}
        index = torch.arange(self.support_distances.size) if every else self.places[self.anchors.cpu()]
        found |= {} if every else {"anchors": index.numpy()}
        advice = "save the result without points, or soft() of it where candidates are wanted"
        validate.memory("the distances of the file", 8 * len(index) * self.support_distances.size, limit, advice)
        return found | {"rows": self.support_distances.rows(index).double().numpy()}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Array], size: int) -> KnownPoints:
        """What `arrays` made of ``size`` points, from arrays that were checked."""
        points, scale = arrays.get("points"), float(arrays["scale"])
        index = torch.from_numpy(arrays["index"]) if "index" in arrays else None
        made: DistanceProvider
        if "squared" in arrays:
            assert points is not None
            near = points if index is None else points[index.numpy()]
            made = EuclideanDistances(near, bool(arrays["squared"])).with_scale(scale)
        elif "anchors" in arrays:
            made = LandmarkRows(torch.from_numpy(arrays["rows"]), torch.from_numpy(arrays["anchors"]), scale)
        else:
            made = PrecomputedDistances.stored_matrix(torch.from_numpy(arrays["rows"]), scale)
        return cls(made, points, int(arrays["k"]), index, None if index is None else size)

    def distances(self, new: Any, index: Tensor) -> Tensor:
        """Scaled distances (m, len(index)), float64, from new points to the known points ``index``.

        ``new`` are points (m, D) like those of the space, or rows (m, N) of raw
        distances to all of its points where it was not made from points.
        """
        if not is_metric(self.space):
            raise ValueError(
                f"points must have distances to be placed by, and {type(self.support_distances).__name__} does not say "
                f"what is near; align again with the new points among the others"
            )
        known, points = self.places[index.cpu()], validate.points("points", new, least=1)
        if self.points is None:
            if points.shape[1] != self.space.size:
                raise ValueError(
                    f"points must be rows of distances to all {self.space.size} points, because the space was not made "
                    f"from points; got shape {points.shape}"
                )
            present = points if self.index is None else points[:, self.index]
            return validate.as_tensor(present)[:, known] / self.space.scale
        if points.shape[1] != self.points.shape[1]:
            raise ValueError(f"points must have {self.points.shape[1]} coordinates, got shape {points.shape}")
        near = self.points if self.index is None else self.points[self.index.numpy()]
        if isinstance(self.support_distances, EuclideanDistances):
            found = distances(validate.as_tensor(points), torch.from_numpy(near[known.numpy()]))
            return (found.square() if self.support_distances.squared else found) / self.support_distances.scale
        return self._along(near, points, known)

    def _along(self, known: Array, points: Array, index: Tensor) -> Tensor:
        length, neighbour = nearest_to(known, points, self.k)
        rows = self.support_distances.rows(index).double().cpu()
        step = max(1, 2**24 // (len(index) * neighbour.shape[1]))
        found = rows.new_empty(len(points), len(index))
        for start in range(0, len(points), step):
            where = slice(start, start + step)
            first = torch.from_numpy(length[where]) / self.support_distances.scale
            beyond = rows[:, torch.from_numpy(neighbour[where])]
            # Neighbours that are four times as far from the nearest one along the
            # graph as by way of the new point lie on another part of it.
            apart = (beyond - beyond[:, :, :1]).abs().amax(0)
            short_cut = apart > 4 * (first + first[:, :1])
            found[where] = (beyond + torch.where(short_cut, torch.inf, first)).amin(2).T
        return found

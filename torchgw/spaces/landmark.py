"""Geodesic distances from farthest-point landmarks, as signed Nystrom factors.

`torchgw.spaces.low_rank` has the factors and their derivatives. They are exact at
the landmarks up to the eigenvalues left out. On curves and surfaces 50-100 landmarks
give a relative Frobenius error of 0.3-1 %.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchgw import validate
from torchgw.linalg.centring import SMALLEST_EIGENVALUE
from torchgw.persist.codec import storable
from torchgw.runtime.ranks import ALONE, Ranks
from torchgw.spaces.factored import FactoredDistances
from torchgw.spaces.farthest import farthest_points
from torchgw.spaces.low_rank import differentiable_factors, signed_factors
from torchgw.spaces.scale import fill_unreachable, positive_scale, warn_unreachable
from torchgw.spaces.shortest_paths import trace_paths
from torchgw.spaces.traced import DifferentiableDistances, growth_of
from torchgw.types import Array, DistanceProvider

SINGLE_FROM = 200_000


@storable
class LandmarkDistances(FactoredDistances):
    """Factored geodesic distances on a graph.

    Parameters
    ----------
    graph : SciPy sparse (N, N), symmetric, edge lengths >= 0; explicit zeros are
        edges of length zero.
    n_landmarks : L; at most N are used, and at least one for each component of the
        graph.
    name : what the argument is called in error messages.

    Attributes
    ----------
    landmarks : (L,) int64 tensor, indices of the farthest-point landmarks.
    largest : the largest finite landmark distance, before scaling.
    fixed : whether the scale was set by `with_scale`.

    Raises
    ------
    ValueError, TypeError
        When the graph or the number of landmarks cannot be used.

    Notes
    -----
    The distances of this space ARE the factored ones, for rows, factors and the
    objective alike, so they can miss the graph's by about a percent. The scale is
    the largest landmark distance. O(L N log N) to build, memory O(N L). From 200
    000 points on, landmark distances and factors are stored in float32, which adds
    1e-6 to the error.
    """

    landmarks: Tensor
    resolution = SMALLEST_EIGENVALUE**2  # what is left out, squared as in the costs; see `torchgw.spaces.resolution`

    def __init__(self, graph: Any, n_landmarks: int = 100, *, name: str = "graph") -> None:
        checked = validate.graph(name, graph)
        n_landmarks = validate.integer("n_landmarks", n_landmarks, least=2)
        searched = farthest_points(checked, n_landmarks, storage(checked.shape[0]))
        vars(self).update(vars(self.from_search(*searched, name)))

    @classmethod
    def from_search(cls, index: Array, columns: Array, name: str = "graph") -> LandmarkDistances:
        """From what `farthest_points` found, which is overwritten."""
        landmarks, held = torch.from_numpy(index), torch.from_numpy(columns)
        return cls.from_columns(landmarks, held, held[landmarks].double(), float(held.max()), name)

    @classmethod
    def from_columns(
        cls, index: Tensor, columns: Tensor, among: Tensor, largest: float, name: str
    ) -> LandmarkDistances:
        """From landmarks (L,) and the distances to them (N, L) on a device, which
        are overwritten; those between landmarks, and the largest, on the host."""
        F, signs, scale = landmark_factors(columns, among, largest, name)
        return cls.of(F, signs, scale)._with(landmarks=index)

    def to(self, device: torch.device, dtype: torch.dtype) -> LandmarkDistances:
        return super().to(device, dtype)._with(landmarks=self.landmarks.to(device))

    def trace(self, leaf: Tensor, k: int | None, device: torch.device) -> DifferentiableDistances:
        points = leaf.to(device, torch.float64)
        return trace_landmarks(trace_paths(points, k, self.scale, self.landmarks).T, self, self.landmarks)

    def at(self, index: Tensor) -> LandmarkDistances:
        """The points ``index`` (n,) under the same scale. The nearest point stands for a landmark that is left out."""
        here = index.to(self._F.device)
        nearest = [
            self.rows(landmark[None])[0, here].masked_fill(here == landmark, -torch.inf).argmin()
            for landmark in self.landmarks.to(here.device)
        ]
        return super().at(index)._with(landmarks=torch.unique(torch.stack(nearest)))


def landmark_factors(
    columns: Tensor, among: Tensor, largest: float, name: str, ranks: Ranks = ALONE
) -> tuple[Tensor, Tensor, float]:
    """F, signs and the scale from raw distances to landmarks (N, L), the ranks'
    shares, which are overwritten, those between landmarks (L, L), and the largest
    of all; infinite ones are filled, with a warning."""
    if largest == math.inf:
        finite = columns.masked_fill(columns.isinf(), 0.0)
        largest = float(ranks.most(finite.max() if len(finite) else finite.new_zeros(())))
        if ranks.rank == 0:
            warn_unreachable(name)
        for distances in (columns, among):
            fill_unreachable(distances, positive_scale(largest))
    scale = positive_scale(largest)
    columns /= scale
    return *signed_factors(columns, among.cpu().numpy() / scale), scale


def storage(n: int) -> str:
    """The dtype in which landmark distances of n points are kept."""
    return "float64" if n < SINGLE_FROM else "float32"


def move_to_storage(space: DistanceProvider, device: torch.device) -> DistanceProvider:
    """The space on a device, in the dtype that its number of points is kept in."""
    return space.to(device, getattr(torch, storage(space.size)))


def trace_landmarks(columns: Tensor, space: DistanceProvider, landmarks: Tensor) -> DifferentiableDistances:
    """Distances by as many factors as the space has, from those (N, L) to its landmarks."""
    known = space.factors()
    assert known is not None
    factors = differentiable_factors(columns, landmarks.to(columns.device), known[0].shape[1])
    return DifferentiableDistances(*factors, growth_of(columns))

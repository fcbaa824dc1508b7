"""Euclidean distances between points, plain or squared.

Squared distances have exact signed factors of rank d + 2. With a_i = |x_i|^2,

    |x_i - x_j|^2 = ((a_i + 1)(a_j + 1) - (a_i - 1)(a_j - 1)) / 2 - 2 x_i . x_j.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchgw import validate
from torchgw.spaces.graph import unit_cloud
from torchgw.spaces.paths import positive_scale
from torchgw.types import Array

EXACT_SIZE = 10_000
N_SWEEPS = 6


class EuclideanDistances:
    """Distances |x_i - x_j|, or their squares, computed from the points when asked for.

    Parameters
    ----------
    points : (N, D), finite, N >= 2.
    squared : serve squared distances.

    Notes
    -----
    The scale is the largest distance: exact up to 10000 points, above that the largest found by six farthest-point
    sweeps. Rows cost O(N D) each, memory is O(N D).
    """

    stored = True

    def __init__(self, points: Array | Tensor, squared: bool = False, *, name: str = "points") -> None:
        raw, size = unit_cloud(validate.points(name, points))
        self.squared = validate.flag("squared", squared)
        unit = torch.from_numpy(raw)
        spread = positive_scale(_largest(unit))
        self.scale = (spread * size) ** 2 if self.squared else spread * size
        self._x = unit / spread

    @property
    def size(self) -> int:
        return len(self._x)

    def to(self, device: torch.device, dtype: torch.dtype) -> EuclideanDistances:
        other = object.__new__(EuclideanDistances)
        other.squared, other.scale, other._x = self.squared, self.scale, self._x.to(device, dtype)
        return other

    def rows(self, index: Tensor) -> Tensor:
        distance = _distances(self._x[index], self._x)
        return distance.square() if self.squared else distance

    def factors(self) -> tuple[Tensor, Tensor] | None:
        if not self.squared:
            return None
        a = self._x.square().sum(1, keepdim=True)
        F = torch.cat(((a + 1) / 2**0.5, (a - 1) / 2**0.5, self._x * 2**0.5), dim=1)
        signs = -torch.ones(F.shape[1], dtype=F.dtype, device=F.device)
        signs[0] = 1.0
        return F, signs


def _distances(x: Tensor, y: Tensor) -> Tensor:
    """Pairwise distances by differences: the expanded square loses half the digits of close pairs."""
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")


def _largest(x: Tensor) -> float:
    """Largest distance between two rows of x, exact or by sweeps."""
    if len(x) <= EXACT_SIZE:
        return max(float(_distances(block, x).max()) for block in torch.split(x, 512))
    here, largest = int(x.square().sum(1).argmax()), 0.0
    for _ in range(N_SWEEPS):
        distance = _distances(x[here : here + 1], x)[0]
        here, largest = int(distance.argmax()), max(largest, float(distance.max()))
    return largest

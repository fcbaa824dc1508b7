"""Euclidean distances between points, plain or squared.

Squared distances have exact signed factors of rank d + 2. With a_i = |x_i|^2 and s
the largest of them,

    |x_i - x_j|^2 = ((a_i + s)(a_j + s) - (a_i - s)(a_j - s)) / 2 s - 2 x_i . x_j.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from torchgw import ranges, validate
from torchgw.persist.codec import storable
from torchgw.spaces.farthest import farthest_in_turn
from torchgw.spaces.graph import unit_cloud
from torchgw.spaces.scale import ScaledDistances, positive_scale
from torchgw.spaces.traced import DifferentiableDistances, growth_of, subtract_mean
from torchgw.types import Array

EXACT_SIZE = 10_000
BLOCK = 512


@storable
class EuclideanDistances(ScaledDistances):
    """Distances ``|x_i - x_j|``, or their squares, computed from the points when asked for.

    Parameters
    ----------
    points : (N, D), finite.
    squared : serve squared distances.
    name : what the argument is called in error messages.

    Attributes
    ----------
    largest : the largest known distance, before scaling.
    fixed : whether the scale was set by `with_scale`.
    furthest : the pair of points that attains it.
    coordinates : the points (N, D) before centring, which rounds them where one is
        far from all others; None in files.
    leaf : the points, where they are a tensor that requires gradients.

    Notes
    -----
    The scale is the largest distance: exact up to 10000 points, above that the
    largest found by six farthest-point sweeps. Rows cost O(N D) each, memory is O(N
    D). A float64 array of points is kept without a copy, for solves in which some
    of them have no mass: it should not be changed later.
    """

    coordinates: Array | None = None

    def __init__(self, points: Array | Tensor, squared: bool = False, *, name: str = "points") -> None:
        self.coordinates = validate.points(name, points)
        raw, size = unit_cloud(self.coordinates)
        self.squared = validate.flag("squared", squared)
        self.leaf = points if isinstance(points, Tensor) and points.requires_grad else None
        unit = torch.from_numpy(raw)
        outmost = int(unit.square().sum(1).argmax())
        found, self.furthest = furthest_pair(lambda index: distances(unit[index], unit), len(unit), start=outmost)
        spread = positive_scale(found)
        self.scale = self.largest = spread * size if found > 0 else 1.0
        if self.squared:
            ranges.sizes(name, self.largest, least=1 / ranges.LARGEST)
            self.scale = self.largest = self.largest**2
        self._x = unit / spread

    @property
    def size(self) -> int:
        return len(self._x)

    def to(self, device: torch.device, dtype: torch.dtype) -> EuclideanDistances:
        return self._with(_x=self._x.to(device, dtype))

    def _rescale_storage(self, ratio: float) -> EuclideanDistances:
        return self._with(_x=self._x * (ratio**0.5 if self.squared else ratio))

    def at(self, index: Tensor) -> EuclideanDistances:
        """The points ``index`` (n,) as a space of their own; a scale that was given stays."""
        if self.leaf is not None:
            points = self.leaf
        elif self.coordinates is not None:
            points = validate.as_tensor(self.coordinates)
        else:  # of files that lack them, up to a shift
            points = self._x * (self.scale**0.5 if self.squared else self.scale)
        found = EuclideanDistances(points[index.to(points.device)], self.squared)
        found = found.with_scale(self.scale) if self.fixed else found
        return found.to(self._x.device, self._x.dtype)

    def rows(self, index: Tensor) -> Tensor:
        distance = distances(self._x[index], self._x)
        return distance.square() if self.squared else distance

    def factors(self) -> tuple[Tensor, Tensor] | None:
        return squared_factors(self._x) if self.squared else None

    def trace(self, leaf: Tensor, k: int | None, device: torch.device) -> DifferentiableDistances:
        x = subtract_mean(leaf.to(device, torch.float64), self.scale**0.5 if self.squared else self.scale)
        i, j = self.furthest
        square = (x[i] - x[j]).square().sum()
        if self.squared:
            return DifferentiableDistances(*squared_factors(x), growth_of(square))
        return DifferentiableDistances(distances(x, x), growth=growth_of(square.sqrt()))


def distances(x: Tensor, y: Tensor) -> Tensor:
    """Pairwise distances by differences: the expanded square loses half the digits of close pairs.

    Differentiable as often as wanted; the gradient of a distance of zero is zero.
    """
    found: Tensor = _Distances.apply(x, y)  # type: ignore[no-untyped-call]
    return found


class _Distances(torch.autograd.Function):
    """torch.cdist with derivatives of every order: dD_ij = <x_i - y_j, dx_i - dy_j> / D_ij."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        D = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
        ctx.save_for_backward(x, y, D)
        return D

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (G,), (x, y, D) = gradients, ctx.saved_tensors
        apart = D > 0
        W = torch.where(apart, G / torch.where(apart, D, 1.0), 0.0)
        return W.sum(1)[:, None] * x - W @ y, W.sum(0)[:, None] * y - W.T @ x


def squared_factors(x: Tensor) -> tuple[Tensor, Tensor]:
    """F (N, D + 2) and signs (D + 2,) of the squared distances between the points x (N, D)."""
    a = x.square().sum(1, keepdim=True)
    s = a.detach().max()
    s = torch.where(s > 0, s, 1.0)
    root = (2 * s).sqrt()
    F = torch.cat(((a + s) / root, (a - s) / root, x * 2**0.5), dim=1)
    signs = -torch.ones(F.shape[1], dtype=F.dtype, device=F.device)
    signs[0] = 1.0
    return F, signs


def furthest_pair(
    rows: Callable[[Tensor], Tensor], n: int, stored: bool = True, start: int = 0
) -> tuple[float, tuple[int, int]]:
    """The largest distance between n points and a pair that attains it, from
    ``rows(index)`` (M, N): exact between few points whose distances are ``stored``,
    else the largest that farthest-point sweeps find."""
    largest, pair = 0.0, (0, 0)
    some = islice(farthest_in_turn(rows, torch.tensor([start])), min(6, n))
    every = ((index, rows(index)) for index in torch.split(torch.arange(n), BLOCK))
    for index, found in every if stored and n <= EXACT_SIZE else some:
        i, j = divmod(int(found.argmax()), n)
        if float(found[i, j]) > largest:
            largest, pair = float(found[i, j]), (int(index[i]), j)
    return largest, pair

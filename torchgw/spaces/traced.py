"""The scaled distances of a space once more, as a differentiable expression of the tensor that they came from.

A solve reads detached numbers from its providers. Here the same numbers are

    D = R(leaf) / c / (scale(leaf) / c),

with R the raw distances and c the provider's scale as a number. The first quotient
has the provider's values; the second, the `growth`, has the value one and the
derivative of the scale: that of the pair of points which attains the largest known
distance, of the other space's pair where the scale is common, none where the scale
was given.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchgw.options import SpaceOptions
from torchgw.spaces.scale import largest_of
from torchgw.types import DistanceProvider, multiplies


@dataclass(frozen=True)
class DifferentiableDistances:
    """Distances of one space over a scale, as a matrix or by factors.

    Attributes
    ----------
    tensor : what gradients flow through: D (N, N), or F (N, r); None for a space
        with its own products.
    signs : (r,) with D = F diag(signs) F^T, or None.
    growth : the largest known distance over the scale, a constant: the number 1 (),
        for its derivative. None where it has none, and once it is divided out.
    space : constant distances by their own products, or None.
    """

    tensor: Tensor | None = None
    signs: Tensor | None = None
    growth: Tensor | None = None
    space: DistanceProvider | None = None

    @property
    def factors(self) -> tuple[Tensor, Tensor] | None:
        """F (N, r) and signs (r,), or None."""
        return None if self.tensor is None or self.signs is None else (self.tensor, self.signs)

    def dense(self, device: torch.device) -> Tensor:
        """D (N, N) of a space on this device."""
        if self.space is not None:
            return self.space.rows(torch.arange(self.space.size, device=device)).detach()
        assert self.tensor is not None
        return self.tensor if self.signs is None else (self.tensor * self.signs) @ self.tensor.T

    def divide(self, growth: Tensor) -> DifferentiableDistances:
        """The distances over ``growth`` (a number)."""
        if self.factors is None:
            return DifferentiableDistances(self.dense(growth.device) / growth)
        return DifferentiableDistances(self.factors[0] / growth.sqrt(), self.signs)

    def to(self, device: torch.device, dtype: torch.dtype) -> DifferentiableDistances:
        """The same in another precision."""
        space = None if self.space is None else self.space.to(device, dtype)
        tensor, signs = (None if part is None else part.to(dtype) for part in (self.tensor, self.signs))
        return replace(self, tensor=tensor, signs=signs, space=space)


def make_differentiable(
    made: tuple[DistanceProvider, DistanceProvider],
    leaves: tuple[object, object],
    options: SpaceOptions,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[DifferentiableDistances, DifferentiableDistances]:
    """The scaled distances of two spaces as differentiable expressions of what they were made from.

    Parameters
    ----------
    made : the providers of a solve.
    leaves : what the user gave for each. Tensors that require gradients are
        differentiated: points, or square distance matrices. Anything else is a
        constant, except that a provider made from such a tensor knows it.
    options : those that the providers were made with.
    dtype, device : of the result.

    Returns
    -------
    Values equal to those of the providers to rounding. Spaces with factors have
    factors, constants with products of their own have these, the others a matrix.

    Notes
    -----
    First derivatives only. Geodesic distances are differentiated along the shortest
    paths that were taken, which is exact where these are unique; the neighbour
    graph, the landmarks and the number of factors are constants. All pairs of N
    points take O(N^2) memory whatever the provider, landmark distances O(N L).
    """
    first, second = (
        make_one_differentiable(space, leaf, options.k, device) for space, leaf in zip(made, leaves, strict=True)
    )
    growths = _growths(made, (first.growth, second.growth), options.scale)
    x, y = (
        (found if growth is None else found.divide(growth)).to(device, dtype)
        for found, growth in zip((first, second), growths, strict=True)
    )
    return x, y


def growth_of(distances: Tensor) -> Tensor | None:
    """The largest absolute entry over itself as a constant: one, with the relative
    derivative; None where it is zero, which has none."""
    value = distances.flatten()[distances.detach().abs().argmax()].abs()
    now = value.detach()
    return value / now if bool(now > 0) else None


def subtract_mean(points: Tensor, unit: float) -> Tensor:
    """Points (N, D) less their mean, which no distance sees, in units of ``unit``."""
    return (points - points.detach().mean(0)) / unit


def _growths(
    made: tuple[DistanceProvider, DistanceProvider], own: tuple[Tensor | None, Tensor | None], scale: object
) -> tuple[Tensor | None, Tensor | None]:
    """What each space has to be divided by."""
    if scale is None:
        x, y = (None if getattr(space, "fixed", False) else g for space, g in zip(made, own, strict=True))
        return x, y
    if scale == "common":
        larger = own[0] if largest_of(made[0]) >= largest_of(made[1]) else own[1]
        return larger, larger
    return None, None


def make_one_differentiable(space: Any, given: object, k: int | None, device: torch.device) -> DifferentiableDistances:
    """One space, in float64, by its own ``trace``; constants where there is none, or no gradient.

    ``trace(leaf, k, device)`` gives scaled distances as an expression of the
    tensor ``leaf`` that they came from. If these are points, ``k`` is that of their
    neighbour graph.
    """
    leaf = getattr(space, "leaf", None)
    if isinstance(given, Tensor) and given.requires_grad:  # the user's, where what was given passed a gate
        leaf = given
    if leaf is None or not hasattr(space, "trace"):
        return constant(space, device)
    found: DifferentiableDistances = space.trace(leaf, k, device)
    return found


def constant(space: DistanceProvider, device: torch.device) -> DifferentiableDistances:
    """The provider's own numbers: factors or products where it has them, else all its rows."""
    here = space.to(device, torch.float64)
    factors = here.factors()
    if factors is not None:
        return DifferentiableDistances(factors[0].detach(), factors[1].detach())
    found = DifferentiableDistances(space=here)
    return found if multiplies(here) and hasattr(here, "squares") else DifferentiableDistances(found.dense(device))

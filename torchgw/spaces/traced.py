"""The scaled distances of a space once more, as a differentiable expression of the tensor that they came from.

A solve reads detached numbers from its providers. Here the same numbers are

    D = R(leaf) / c / (scale(leaf) / c),

with R the raw distances and c the provider's scale as a number. The first quotient has the provider's values; the
second, the `growth`, has the value one and the derivative of the scale: that of the pair of points which attains the
largest known distance, of the other space's pair where the scale is common, none where the scale was given.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchgw import validate
from torchgw.options import SpaceOptions
from torchgw.spaces.euclidean import EuclideanDistances, distances, squared_factors
from torchgw.spaces.factored import FactoredDistances
from torchgw.spaces.graph import build_graph
from torchgw.spaces.landmark import LandmarkDistances, differentiable_factors
from torchgw.spaces.precomputed import PrecomputedDistances
from torchgw.spaces.scale import UNREACHABLE, largest_of
from torchgw.spaces.shortest_paths import DijkstraDistances, edge_lengths, path_distances
from torchgw.types import DistanceProvider, GraphWarning, multiplies


@dataclass(frozen=True)
class DifferentiableDistances:
    """Distances of one space over a scale, as a matrix or by factors.

    Attributes
    ----------
    tensor : what gradients flow through: D (N, N), or F (N, r); None for a space with its own products.
    signs : (r,) with D = F diag(signs) F^T, or None.
    growth : the largest known distance over the scale, a constant: the number 1 (), for its derivative. None where it
        has none, and once it is divided out.
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
    leaves : what the user gave for each. Tensors that require gradients are differentiated: points, or square
        distance matrices. Anything else is a constant, except that a provider made from such a tensor knows it.
    options : those that the providers were made with.
    dtype, device : of the result.

    Returns
    -------
    Values equal to those of the providers to rounding. Spaces with factors have factors, constants with products of
    their own have these, the others a matrix.

    Notes
    -----
    First derivatives only. Geodesic distances are differentiated along the shortest paths that were taken, which is
    exact where these are unique; the neighbour graph, the landmarks and the number of factors are constants. All pairs
    of N points take O(N^2) memory whatever the provider, landmark distances O(N L).
    """
    first, second = (
        make_one_differentiable(space, leaf, options, device) for space, leaf in zip(made, leaves, strict=True)
    )
    growths = _growths(made, (first.growth, second.growth), options.scale)
    x, y = (
        (found if growth is None else found.divide(growth)).to(device, dtype)
        for found, growth in zip((first, second), growths, strict=True)
    )
    return x, y


def growth_of(distances: Tensor) -> Tensor | None:
    """The largest absolute entry over itself as a constant: one, with the relative derivative; None where it is zero,
    which has none."""
    value = distances.flatten()[distances.detach().abs().argmax()].abs()
    now = value.detach()
    return value / now if bool(now > 0) else None


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


def make_one_differentiable(
    space: Any, given: object, options: SpaceOptions, device: torch.device
) -> DifferentiableDistances:
    """One space, in float64. A provider that has a "traced" method does it itself."""
    leaf = getattr(space, "leaf", None)  # of a provider of the user's; given once more where it passed a gate
    # Factors that were given never come from points.
    only_own = leaf is None and isinstance(space, FactoredDistances) and not isinstance(space, LandmarkDistances)
    if isinstance(given, Tensor) and given.requires_grad and not only_own:
        leaf = given
    if leaf is None:
        return _constant(space, device)
    if hasattr(space, "traced"):
        found: DifferentiableDistances = space.traced(leaf, options, device)
        return found
    leaf = leaf.to(device, torch.float64)
    if isinstance(space, EuclideanDistances):
        return _euclidean(space, leaf)
    if isinstance(space, PrecomputedDistances) and leaf.shape == (space.size, space.size):
        return _matrix(space, leaf)
    if isinstance(space, LandmarkDistances):
        return by_landmarks(_paths(space, leaf, options.k, space.landmarks).T, space, space.landmarks)
    if isinstance(space, FactoredDistances):
        return replace(_constant(space, device), tensor=leaf / space.scale**0.5)
    if isinstance(space, PrecomputedDistances | DijkstraDistances):
        return _all_pairs(space, leaf, options.k)
    return _constant(space, device)


def _constant(space: DistanceProvider, device: torch.device) -> DifferentiableDistances:
    """The provider's own numbers: factors or products where it has them, else all its rows."""
    here = space.to(device, torch.float64)
    factors = here.factors()
    if factors is not None:
        return DifferentiableDistances(factors[0].detach(), factors[1].detach())
    found = DifferentiableDistances(space=here)
    return found if multiplies(here) and hasattr(here, "squares") else DifferentiableDistances(found.dense(device))


def _matrix(space: PrecomputedDistances, leaf: Tensor) -> DifferentiableDistances:
    """A distance matrix that was given, mended as `validate.distance_matrix` and the provider mend it."""
    reached = torch.isfinite(leaf)
    finite = leaf.masked_fill(~reached, 0.0)
    unit = finite / space.scale
    unit = (unit + unit.T) / 2
    unit = unit.masked_fill(torch.eye(len(unit), dtype=torch.bool, device=unit.device), 0.0)
    growth = growth_of(unit)
    if not bool(reached.all()):
        unit = torch.where(reached, unit, UNREACHABLE * unit.flatten()[unit.argmax()])
    return DifferentiableDistances(unit, growth=growth)


def _subtract_mean(leaf: Tensor, unit: float) -> Tensor:
    """The points less their mean, which no distance sees, in units of ``unit``."""
    return (leaf - leaf.detach().mean(0)) / unit


def _euclidean(space: EuclideanDistances, leaf: Tensor) -> DifferentiableDistances:
    x = _subtract_mean(leaf, space.scale**0.5 if space.squared else space.scale)
    i, j = space.furthest
    square = (x[i] - x[j]).square().sum()
    if space.squared:
        return DifferentiableDistances(*squared_factors(x), growth_of(square))
    return DifferentiableDistances(distances(x, x), growth=growth_of(square.sqrt()))


def _paths(space: DistanceProvider, leaf: Tensor, k: int | None, sources: Tensor) -> Tensor:
    """Distances (M, N) from ``sources`` on the neighbour graph of the points, which is rebuilt."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)  # these were given when the provider was made
        graph = build_graph(validate.points("points", leaf), k)[0]
    return path_distances(graph, edge_lengths(_subtract_mean(leaf, space.scale), graph), sources.cpu().numpy())


def _all_pairs(space: PrecomputedDistances | DijkstraDistances, leaf: Tensor, k: int | None) -> DifferentiableDistances:
    unit = _paths(space, leaf, k, torch.from_numpy(np.arange(space.size)))
    unit = (unit + unit.T) / 2
    # The pair behind the provider's largest distance; sweeps, which Dijkstra's distances use, can miss the diameter.
    attained = (unit.detach() - space.largest / space.scale).abs().argmin()
    return DifferentiableDistances(unit, growth=growth_of(unit.flatten()[attained]))


def by_landmarks(columns: Tensor, space: DistanceProvider, landmarks: Tensor) -> DifferentiableDistances:
    """Distances by as many factors as the space has, from those (N, L) to its landmarks."""
    known = space.factors()
    assert known is not None
    factors = differentiable_factors(columns, landmarks.to(columns.device), known[0].shape[1])
    return DifferentiableDistances(*factors, growth_of(columns))

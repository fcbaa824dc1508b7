"""Some points of a space, in any order, each as often as wanted: D'_ij = D_{I_i I_j} over the largest of these.

A space without its points of no mass is such a subspace, and so is the space with
them again, each in the place of a point with mass. The subspace of a subspace is
one of the space, or the space itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchgw.spaces.adjacency import AdjacencyDistances
from torchgw.spaces.euclidean import EuclideanDistances, furthest_pair
from torchgw.spaces.factored import FactoredDistances
from torchgw.spaces.landmark import LandmarkDistances
from torchgw.spaces.resolution import RESOLUTION
from torchgw.spaces.scale import ScaledDistances, largest_of, positive_scale
from torchgw.spaces.traced import DifferentiableDistances, growth_of, make_one_differentiable
from torchgw.types import DistanceProvider, is_metric, is_symmetric


def subspace(space: DistanceProvider, index: Tensor) -> DistanceProvider:
    """The points ``index`` (n,) of a space. Distances are divided by the largest
    one between them where the space divides by its own largest one; a scale that
    was given stays."""
    if isinstance(space, EuclideanDistances | AdjacencyDistances):
        return space.at(index)
    given = isinstance(space, FactoredDistances) and not isinstance(space, LandmarkDistances)
    found = restrict(space, index)
    if given or found is space or not (isinstance(space, ScaledDistances) and isinstance(found, ScaledDistances)):
        return found
    largest, known = furthest_pair(found.rows, found.size, found.stored)[0], found.factors()
    # The distance of a point from itself is the error of landmark distances.
    if largest <= (float((known[0].square() @ known[1]).max()) if known is not None and found.metric else 0.0):
        found, largest = found._rescale_storage(0.0), 0.0
    own = positive_scale(largest * space.scale)
    return (
        found._with(largest=own)
        if space.fixed
        else found._rescale_storage(space.scale / own)._with(scale=own, largest=own)
    )


def restrict(space: DistanceProvider, index: Tensor) -> DistanceProvider:
    """The points ``index`` (n,) of a space, divided by its own scale."""
    if isinstance(space, FactoredDistances):
        return space if torch.equal(index.cpu(), torch.arange(space.size)) else space.at(index)
    part = space if isinstance(space, Subspace) else Subspace(space, torch.arange(space.size))
    index = part.index[index.to(part.index.device)]
    every = torch.arange(part.whole.size, device=index.device)
    return part.whole if part.ratio == 1.0 and torch.equal(index, every) else part._with(index=index)


def name_of(space: DistanceProvider) -> str:
    """The class of a space, or of that which it is a part of."""
    return type(space.whole if isinstance(space, Subspace) else space).__name__


class Subspace(ScaledDistances):
    """The points ``index`` (n,) of a ``whole`` space; see the head of this file.

    ``ratio`` is what the distances of the whole are multiplied by.
    """

    def __init__(self, whole: DistanceProvider, index: Tensor, ratio: float = 1.0) -> None:
        self.whole, self.index, self.ratio = whole, index, ratio
        self.scale, self.largest = float(whole.scale), largest_of(whole)
        self.fixed, self.leaf = bool(getattr(whole, "fixed", False)), getattr(whole, "leaf", None)
        self.resolution = getattr(whole, "resolution", RESOLUTION)
        self.stored, self.symmetric, self.metric = whole.stored, is_symmetric(whole), is_metric(whole)

    @property
    def size(self) -> int:
        return len(self.index)

    def to(self, device: torch.device, dtype: torch.dtype) -> Subspace:
        return self._with(whole=self.whole.to(device, dtype), index=self.index.to(device))

    def _rescale_storage(self, ratio: float) -> Subspace:
        return self._with(ratio=self.ratio * ratio)

    def rows(self, index: Tensor) -> Tensor:
        found = self.whole.rows(self.index[index.to(self.index.device)])[:, self.index]
        return found if self.ratio == 1.0 else found * self.ratio

    def factors(self) -> tuple[Tensor, Tensor] | None:
        known = self.whole.factors()
        return None if known is None else (known[0][self.index] * self.ratio**0.5, known[1])

    def trace(self, leaf: Tensor, k: int | None, device: torch.device) -> DifferentiableDistances:
        found, index = make_one_differentiable(self.whole, leaf, k, device), self.index.to(device)
        if found.factors is None:
            matrix = found.dense(device)[index][:, index] * self.ratio
            return DifferentiableDistances(matrix, growth=None if found.growth is None else growth_of(matrix))
        F, signs = found.factors[0][index] * self.ratio**0.5, found.signs
        if found.growth is None:
            return DifferentiableDistances(F, signs)
        i, j = furthest_pair(lambda rows: (F.detach()[rows] * signs) @ F.detach().T, len(F))[1]
        return DifferentiableDistances(F, signs, growth_of((F[i] * signs) @ F[j]))

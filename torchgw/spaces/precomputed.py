"""Distances given as a matrix, or all pairs of a graph's shortest paths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchgw import validate
from torchgw.persist.codec import storable
from torchgw.spaces.scale import UNREACHABLE, ScaledDistances, fill_unreachable, positive_scale, warn_unreachable
from torchgw.spaces.shortest_paths import shortest_paths, trace_all_pairs
from torchgw.spaces.traced import DifferentiableDistances, growth_of
from torchgw.types import Array, DistanceProvider, is_metric, is_symmetric

SYMMETRY_TOLERANCE = 1e-4


@storable
class PrecomputedDistances(ScaledDistances):
    """A stored matrix D of distances, divided by its largest finite entry.

    Parameters
    ----------
    D : (N, N), symmetric, non-negative, zero diagonal. Infinite entries become 1.5
        x the largest finite one.
    name : what the argument is called in error messages.

    Attributes
    ----------
    matrix : the scaled distances (N, N), a tensor.
    largest : the largest finite entry, before scaling.
    fixed : whether the scale was set by `with_scale`.
    leaf : D, where it is a tensor that requires gradients.

    Raises
    ------
    ValueError, TypeError
        When D is not such a matrix.
    """

    divided = True
    matrix: Tensor

    def __init__(self, D: Array | Tensor, *, name: str = "D") -> None:
        vars(self).update(vars(self.from_checked(validate.distance_matrix(name, D), name)))
        self.leaf = D if isinstance(D, Tensor) and D.requires_grad else None

    @classmethod
    def from_checked(cls, matrix: Array, name: str = "D") -> PrecomputedDistances:
        """From what `torchgw.validate.distance_matrix` returned, which stays as it is."""
        return cls.from_raw(torch.from_numpy(matrix).clone(), float(matrix.max()), name)

    @classmethod
    def from_graphs(cls, graphs: Sequence[Any]) -> list[PrecomputedDistances]:
        """All-pairs shortest paths of several graphs, sharing one pool of processes where that pays."""
        return [cls(D, name="graph") for D in shortest_paths([(graph, np.arange(graph.shape[0])) for graph in graphs])]

    @classmethod
    def from_raw(cls, D: Tensor, largest: float, name: str) -> PrecomputedDistances:
        """From raw distances (N, N), which are overwritten where they are, and the largest of them."""
        is_connected = largest < math.inf
        if not is_connected:
            largest = float(D.masked_fill(D.isinf(), 0.0).max())
            warn_unreachable(name)
        scale = positive_scale(largest)
        D.div_(scale)
        return cls.stored_matrix(D if is_connected else fill_unreachable(D, 1.0), scale)

    @classmethod
    def of(cls, space: DistanceProvider, device: torch.device) -> PrecomputedDistances:
        """All rows of another provider that serves ``device``, stored with its scale and dtype. O(N^2) memory."""
        if isinstance(space, cls):
            return space
        D = space.rows(torch.arange(space.size, device=device))
        gap = float((D - D.T).abs().max()) if is_symmetric(space) else 0.0
        if not gap <= SYMMETRY_TOLERANCE:  # NaN as well
            raise ValueError(
                f"{type(space).__name__}.rows must give finite, symmetric distances, got entries that differ by {gap:g}"
            )
        return cls.stored_matrix(D, space.scale, is_symmetric(space))._with(metric=is_metric(space))

    @classmethod
    def stored_matrix(cls, D: Tensor, scale: float, symmetric: bool = True) -> PrecomputedDistances:
        """Scaled distances that are known to be good, taken as they are, without a copy."""
        other = object.__new__(cls)
        other.scale, other.largest, other.matrix, other.symmetric = scale, scale, D, symmetric
        return other

    @property
    def size(self) -> int:
        return len(self.matrix)

    def to(self, device: torch.device, dtype: torch.dtype) -> PrecomputedDistances:
        return self._with(matrix=self.matrix.to(device, dtype))

    def _rescale_storage(self, ratio: float) -> PrecomputedDistances:
        return self._with(matrix=self.matrix if ratio == 1.0 else self.matrix * ratio)

    def rows(self, index: Tensor) -> Tensor:
        return self.matrix[index]

    def trace(self, leaf: Tensor, k: int | None, device: torch.device) -> DifferentiableDistances:
        leaf = leaf.to(device, torch.float64)
        if leaf.shape != self.matrix.shape:
            return trace_all_pairs(self, leaf, k)
        # Of a matrix, mended as it was when this space was made.
        reached = torch.isfinite(leaf)
        unit = leaf.masked_fill(~reached, 0.0) / self.scale
        unit = (unit + unit.T) / 2
        unit = unit.masked_fill(torch.eye(len(unit), dtype=torch.bool, device=device), 0.0)
        growth = growth_of(unit)
        if not bool(reached.all()):
            unit = torch.where(reached, unit, UNREACHABLE * unit.flatten()[unit.argmax()])
        return DifferentiableDistances(unit, growth=growth)

"""Linear costs from features of the points, which are never stored as a matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchgw import validate
from torchgw.persist.codec import storable
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.types import Array

METRICS = ("sqeuclidean", "cosine")


@storable
@dataclass(frozen=True, eq=False)
class FeatureCost:
    """The cost of matching points by features that both spaces share.

    Parameters
    ----------
    X, Y : features (N, d) and (K, d), in the same units.
    metric : "sqeuclidean", ``|x - y|^2 / scale``, or "cosine", ``(1 - cos(x,
        y)) / scale``.
    scale : what costs are divided by. None takes, for "sqeuclidean", the square
        of the sum of the two largest distances from the common mean, which no
        pair exceeds, and 2 for "cosine": costs are then between 0 and 1, like
        squared scaled distances. 1.0 takes them as they are.

    Notes
    -----
    O((N + K) d) memory: features become columns of the score's factors.
    """

    X: Array | Tensor
    Y: Array | Tensor
    metric: str = "sqeuclidean"
    scale: float | None = None

    def __post_init__(self) -> None:
        validate.choice("metric", self.metric, METRICS)
        if self.scale is not None:
            validate.real("scale", self.scale, above=0.0)

    def factored(self, n: int, k: int) -> tuple[FactoredCost, float]:
        """The float64 cost between N and K points, and its scale.

        Raises
        ------
        ValueError, TypeError
            For features of other sizes, and for zero features under "cosine".
        """
        x, y = (
            validate.as_tensor(validate.points(f"cost features of {side}", given, least=1))
            for side, given in (("X", self.X), ("Y", self.Y))
        )
        for side, features, size in (("X", x, n), ("Y", y, k)):
            if len(features) != size:
                raise ValueError(
                    f"cost features of {side} must have one row for each of its {size} points, got {len(features)}"
                )
        if x.shape[1] != y.shape[1]:
            raise ValueError(f"cost features must have the same number of columns, got {x.shape[1]} and {y.shape[1]}")
        if self.metric == "cosine" and any(bool((side == 0).all(1).any()) for side in (x, y)):
            raise ValueError("cost features must not be zero with metric='cosine', got a row of zeros")
        cost, scale = self.between(x, y)
        return cost, float(scale)

    def between(self, x: Tensor, y: Tensor) -> tuple[FactoredCost, Tensor]:
        """The cost between features that were checked, and its scale;
        differentiable."""
        if self.metric == "cosine":
            scale = x.new_tensor(2.0 if self.scale is None else self.scale)
            a, b = (0.5 / scale * torch.ones_like(side[:, 0]) for side in (x, y))
            x, y = (side / torch.linalg.vector_norm(side, dim=1, keepdim=True) for side in (x, y))
            return FactoredCost(a, b, x / (2 * scale), y), scale
        centre = (x.sum(0) + y.sum(0)).detach() / (len(x) + len(y))
        x, y = x - centre, y - centre
        if self.scale is None:
            middle = (x.sum(0) + y.sum(0)) / (len(x) + len(y))
            furthest = [side[side.detach().square().sum(1).argmax()] - middle for side in (x, y)]
            scale = sum(torch.linalg.vector_norm(side) for side in furthest) ** 2
            scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        else:
            scale = x.new_tensor(self.scale)
        root = scale.sqrt()
        return FactoredCost.squared_distance(x / root, y / root), scale


def features_of(cost: Any) -> tuple[Any, ...] | None:
    """The features of both sides that a linear cost is given by, or None."""
    return (cost.X, cost.Y) if isinstance(cost, FeatureCost) else cost if isinstance(cost, tuple) else None

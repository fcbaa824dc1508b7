"""The linearised cost of a plan: what an outer iteration solves a transport problem for.

A gradient is a callable from the current coupling to a `FactoredCost`. Here it is the unbiased sampled one,

    C_ij = mean_m (D_X[i, i_m] - D_Y[j, j_m])^2,   (i_m, j_m) ~ T.

Source: T. Kerdoncuff, R. Emonet, M. Sebban, "Sampled Gromov Wasserstein", 2021; here all anchors
share one batch of rows.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from torchgw.costs import FactoredCost
from torchgw.gw.anchors import Anchors, refresh, sample_anchors
from torchgw.options import SamplingOptions
from torchgw.types import Coupling, DistanceProvider


class Gradient(Protocol):
    """The seam between the loop and the way its cost is found."""

    def __call__(self, coupling: Coupling, p: Tensor) -> FactoredCost:
        """Linearised cost of ``coupling``, whose row marginal is ``p``."""


def sampled_cost(source: DistanceProvider, target: DistanceProvider, anchors: Anchors) -> FactoredCost:
    """The factored cost of given anchor pairs, O((N + K) M) memory."""
    root = len(anchors.rows) ** 0.5
    U, V = source.rows(anchors.rows), target.rows(anchors.columns)
    return FactoredCost.squared_distance(U.T / root, V.T / root)


class SampledGradient:
    """Draws anchors from each coupling it is called with and renews those it holds."""

    def __init__(
        self,
        source: DistanceProvider,
        target: DistanceProvider,
        options: SamplingOptions,
        generator: torch.Generator,
    ) -> None:
        self.source, self.target = source, target
        self.options, self.generator = options, generator
        self.anchors: Anchors | None = None

    def __call__(self, coupling: Coupling, p: Tensor) -> FactoredCost:
        fresh = sample_anchors(coupling, p, self.options.n_anchors, self.generator)
        old = self.anchors
        self.anchors = fresh if old is None else refresh(old, fresh, self.options.step, self.generator)
        return sampled_cost(self.source, self.target, self.anchors)

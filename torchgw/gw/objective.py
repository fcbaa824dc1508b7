"""The Gromov-Wasserstein objective of a plan as a value with its standard error.

Exactly it is <C(T), T>, see `torchgw.gw.bounds`. Where distances or memory forbid that, M pairs drawn from the plan
give the unbiased estimate mean_{m != m'} (D_X[i_m, i_m'] - D_Y[j_m, j_m'])^2 with the standard error of a U-statistic
(W. Hoeffding, 1948).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchgw.gw.anchors import sample_anchors
from torchgw.types import Coupling, DistanceProvider

SEARCHED_ROWS = 5000
SAMPLED_PAIRS = 1000


@dataclass(frozen=True)
class Objective:
    """A value, whether it is exact, and its standard error (0 when exact)."""

    value: float
    exact: bool
    error: float


def affordable(source: DistanceProvider, target: DistanceProvider, max_memory: int) -> bool:
    """Whether every distance of the spaces without factors is at hand or searched soon, and fits the memory."""
    plain = [space for space in (source, target) if space.factors() is None]
    if any(not space.stored and space.size > SEARCHED_ROWS for space in plain):
        return False
    if any(8 * space.size**2 > max_memory for space in plain):
        return False
    dense = 8 * 3 * source.size * target.size if len(plain) == 2 else 0
    return dense <= max_memory


def sampled_objective(
    coupling: Coupling, p: Tensor, source: DistanceProvider, target: DistanceProvider, generator: torch.Generator
) -> Objective:
    """Estimate from 1000 pairs of the plan: 1000 rows of each space, no dense matrix."""
    pairs = sample_anchors(coupling, p, SAMPLED_PAIRS, generator)
    kernel = (source.rows(pairs.rows)[:, pairs.rows] - target.rows(pairs.columns)[:, pairs.columns]).square()
    kernel.fill_diagonal_(0.0)
    projections = kernel.sum(1) / (SAMPLED_PAIRS - 1)
    return Objective(float(projections.mean()), False, float(2 * projections.std() / SAMPLED_PAIRS**0.5))

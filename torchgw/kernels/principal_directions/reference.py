"""Directions of largest variance of cells, by power iterations on a few points of each, in plain torch: the eager
backend and the oracle.

    x_m = the features of the points at (m + 1/2) / 32 of a cell's run, less their mean,  m = 0 ... 31
    u <- X^T X u, normalised, three times, from x_31 - x_0

Source: D. Boley, "Principal direction divisive partitioning", 1998.
"""

from __future__ import annotations

import torch
from torch import Tensor

POWER_ITERATIONS = 3
SAMPLED_POINTS = 32
SMALLEST_NORM = 1e-30


def directions(features: Tensor, order: Tensor, ends: Tensor) -> Tensor:
    """Unit vectors (cells, d), zero where all points of a cell are one.

    Parameters
    ----------
    features : (N, d).
    order, ends : (N,), position to point, and (cells + 1,), the positions where cells begin and end.
    """
    sample = features[order[positions(ends)]]
    sample = sample - sample.mean(1, keepdim=True)
    direction = (sample[:, -1] - sample[:, 0])[..., None]
    for _ in range(POWER_ITERATIONS):
        direction = sample.mT @ (sample @ direction)
        direction = direction / torch.linalg.vector_norm(direction, dim=1, keepdim=True).clamp_min(SMALLEST_NORM)
    return direction[..., 0]


def positions(ends: Tensor) -> Tensor:
    """The positions (cells, 32) in the order of the points that stand for each cell."""
    steps = (torch.arange(SAMPLED_POINTS, dtype=torch.float32, device=ends.device) + 0.5) / SAMPLED_POINTS
    return ends[:-1, None] + (steps * ends.diff()[:, None]).long()

"""The Gromov-Wasserstein objective of a plan as a value with its standard error.

Exactly it is <C(T), T>, see `torchgw.objective.bounds`. Where distances or memory forbid that, M pairs drawn from the
plan give the unbiased estimate mean_{m != m'} (D_X[i_m, i_m'] - D_Y[j_m, j_m'])^2 with the standard error of a
U-statistic (W. Hoeffding, 1948).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchgw.objective.sampled import sample_anchors
from torchgw.types import Coupling, DistanceProvider

SEARCHED_ROWS = 5000
SAMPLED_PAIRS = 1000
BLOCK_POINTS = 256


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


def exact_objective(
    coupling: Coupling, source: DistanceProvider, target: DistanceProvider, p: Tensor, q: Tensor
) -> Objective:
    """The objective of a plan with these marginals, in blocks of points: nothing of the size of the plan is stored.

    <D_X T D_Y, T> = sum_i (T D_Y T^T D_X)_ii, a block of columns of D_X at a time; with factors D_X = F diag(s) F^T it
    is sum_k s_k (T^T F)_k . D_Y (T^T F)_k, and likewise for the other side.
    """
    squares = _mean_square(source, p) + _mean_square(target, q)
    left, right = source.factors(), target.factors()
    if left is not None:
        moved = coupling.apply(left[0].to(p.dtype), 0)
        cross = (left[1] * (moved * _times(target, moved)).sum(0)).sum()
    elif right is not None:
        moved = coupling.apply(right[0].to(p.dtype), 1)
        cross = (right[1] * (moved * _times(source, moved)).sum(0)).sum()
    else:
        cross = p.new_zeros(())
        for index in torch.split(torch.arange(source.size, device=p.device), BLOCK_POINTS):
            moved = coupling.apply(source.rows(index).T.to(p.dtype), 0)
            cross += (coupling.rows(index) * _times(target, moved).T).sum()
    return Objective(max(float(squares - 2 * cross), 0.0), True, 0.0)


def _times(space: DistanceProvider, V: Tensor) -> Tensor:
    """D V (N, d), by blocks of rows."""
    out = V.new_empty(space.size, V.shape[1])
    for part in torch.split(torch.arange(space.size, device=V.device), BLOCK_POINTS):
        out[part] = space.rows(part).to(V.dtype) @ V
    return out


def _mean_square(space: DistanceProvider, mass: Tensor) -> Tensor:
    """The mean of the squared distances of a space."""
    total = mass.new_zeros(())
    for index in torch.split(torch.arange(space.size, device=mass.device), BLOCK_POINTS):
        total += mass[index] @ (space.rows(index).to(mass.dtype).square() @ mass)
    return total


def sampled_objective(
    coupling: Coupling, p: Tensor, source: DistanceProvider, target: DistanceProvider, generator: torch.Generator
) -> Objective:
    """Estimate from 1000 pairs of the plan: 1000 rows of each space, no dense matrix."""
    pairs = sample_anchors(coupling, p, SAMPLED_PAIRS, generator)
    kernel = (source.rows(pairs.rows)[:, pairs.rows] - target.rows(pairs.columns)[:, pairs.columns]).square()
    kernel.fill_diagonal_(0.0)
    projections = kernel.sum(1) / (SAMPLED_PAIRS - 1)
    return Objective(float(projections.mean()), False, float(2 * projections.std() / SAMPLED_PAIRS**0.5))

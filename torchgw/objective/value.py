"""The quadratic part of a plan as a value with its standard error.

Exactly it is <C(T), T>. Where distances or memory forbid that, M pairs drawn from the plan give the unbiased estimate
m^2 mean_{m != m'} (D_X[i_m, i_m'] - D_Y[j_m, j_m'])^2, m the mass of T, with the standard error of a U-statistic
(W. Hoeffding, 1948).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchgw.kernels.blocks import points_at_once
from torchgw.objective.exact import BLOCK_ROWS, factored_cross, mean_squares, product
from torchgw.objective.sampled import sample_anchors
from torchgw.runtime.transfer import to_host
from torchgw.types import Coupling, DistanceProvider, multiplies

SEARCHED_ROWS = 5000
SAMPLED_PAIRS = 1000


@dataclass(frozen=True)
class Objective:
    """A quadratic part, in units of the scaled squared distance.

    value : <C(T), T>, a number or a tensor () that nothing has waited for.
    exact : whether it is no estimate.
    error : its standard error, 0 when exact.
    """

    value: Tensor | float
    exact: bool
    error: float


def is_affordable(source: DistanceProvider, target: DistanceProvider, max_memory: int) -> bool:
    """Whether every distance of the spaces without factors is at hand or searched soon, and fits the memory."""
    plain = [space for space in (source, target) if space.factors() is None]
    if any(not space.stored and space.size > SEARCHED_ROWS for space in plain):
        return False
    if any(8 * space.size**2 > max_memory for space in plain if not multiplies(space)):
        return False
    dense = 8 * 3 * source.size * target.size if len(plain) == 2 else 0
    return dense <= max_memory


def objective(
    coupling: Coupling,
    spaces: tuple[DistanceProvider, DistanceProvider],
    marginals: tuple[Tensor, Tensor],
    max_memory: int,
    generator: torch.Generator,
) -> Objective:
    """Of a plan with these marginals: exact where all distances can be had within the memory, else sampled."""
    if is_affordable(*spaces, max_memory):
        return exact_objective(coupling, *spaces, *marginals)
    return sampled_objective(coupling, marginals[0], *spaces, generator)


def exact_objective(
    coupling: Coupling, source: DistanceProvider, target: DistanceProvider, p: Tensor, q: Tensor
) -> Objective:
    """The objective of a plan with these marginals, in blocks of points: nothing of the size of the plan is stored.

    <D_X T D_Y, T> = sum_i (T D_Y T^T D_X)_ii, a block of columns of D_X at a time; with factors D_X = F diag(s) F^T it
    is sum_k s_k (T^T F)_k . D_Y (T^T F)_k, and likewise for the other side.
    """
    squares = mean_squares(source, p) @ p + mean_squares(target, q) @ q
    left, right = source.factors(), target.factors()
    if left is not None:
        products = coupling.apply(left[0].to(p.dtype), 0)
        cross = factored_cross(left[1], products, product(target, products))
    elif right is not None:
        products = coupling.apply(right[0].to(p.dtype), 1)
        cross = factored_cross(right[1], products, product(source, products))
    else:
        cross = p.new_zeros(())
        for index in torch.split(
            torch.arange(source.size, device=p.device), points_at_once(source.size, p.device, BLOCK_ROWS)
        ):
            products = coupling.apply(source.rows(index).T.to(p.dtype), 0)
            cross += (coupling.rows(index) * product(target, products).T).sum()
    return Objective(max(float(squares - 2 * cross), 0.0), True, 0.0)


def sampled_objective(
    coupling: Coupling, p: Tensor, source: DistanceProvider, target: DistanceProvider, generator: torch.Generator
) -> Objective:
    """Estimate from 1000 pairs of the plan with row marginal p (N,): 1000 rows of each space, no dense matrix."""
    pairs = sample_anchors(coupling, p, SAMPLED_PAIRS, generator)
    kernel = (source.rows(pairs.rows)[:, pairs.rows] - target.rows(pairs.columns)[:, pairs.columns]).square()
    kernel.fill_diagonal_(0.0)
    projections, unit = kernel.sum(1) / (SAMPLED_PAIRS - 1), p.sum() ** 2
    error = 2 * projections.std() / SAMPLED_PAIRS**0.5
    value, error = map(float, to_host(projections.mean() * unit, error * unit))
    return Objective(value, False, error)

"""The Gromov-Wasserstein objective of a plan, recomputed exactly, or estimated with its standard error.

For a plan with marginals p and q,

    E(T) = p^T (D_X o D_X) p + q^T (D_Y o D_Y) q - 2 <D_X T D_Y, T>.

With signed factors D_X = F diag(s) F^T the first term is sum_ab s_a s_b (F^T diag(p) F)_ab^2, and the last one needs
only the thin product T^T F. Without factors it needs the dense plan and both matrices. When those do not fit, M pairs
drawn from the plan give the unbiased estimate mean_{m != m'} (D_X[i_m, i_m'] - D_Y[j_m, j_m'])^2 with the standard
error of a U-statistic (W. Hoeffding, 1948).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchgw.gw.anchors import sample_anchors
from torchgw.types import Coupling, DistanceProvider

ROW_BLOCK = 512
SEARCHED_ROWS = 5000
SAMPLED_PAIRS = 1000


@dataclass(frozen=True)
class Objective:
    """A value, whether it is exact, and its standard error (0 when exact)."""

    value: float
    exact: bool
    error: float


def objective(
    coupling: Coupling,
    p: Tensor,
    q: Tensor,
    source: DistanceProvider,
    target: DistanceProvider,
    max_memory: int,
    generator: torch.Generator,
) -> Objective:
    """The objective of ``coupling``: exact where memory and graph searches allow, else estimated from 1000 pairs.

    Exact when each space without factors has rows at hand or at most 5000 points, and the dense matrices needed fit
    ``max_memory``. All tensors in one dtype, float64 for full accuracy: the three terms cancel.
    """
    if affordable(source, target, max_memory):
        return Objective(float(exact_objective(coupling, p, q, source, target)), True, 0.0)
    return sampled_objective(coupling, p, source, target, generator)


def affordable(source: DistanceProvider, target: DistanceProvider, max_memory: int) -> bool:
    """Whether every distance of the spaces without factors is at hand or searched soon, and fits the memory."""
    plain = [space for space in (source, target) if space.factors() is None]
    if any(not space.stored and space.size > SEARCHED_ROWS for space in plain):
        return False
    if any(8 * space.size**2 > max_memory for space in plain):
        return False
    dense = 8 * 3 * source.size * target.size if len(plain) == 2 else 0
    return dense <= max_memory


def square_and_product(space: DistanceProvider, mass: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """mass^T (D o D) mass, and D V (N, d), from the factors or from one pass over the rows."""
    factors = space.factors()
    if factors is not None:
        F, signs = factors
        gram = F.T @ (F * mass[:, None])
        return signs @ gram.square() @ signs, (F * signs) @ (F.T @ V)
    square, product = mass.new_zeros(()), torch.empty_like(V)
    # All searches in one call, so that they may run in parallel.
    step = ROW_BLOCK if space.stored else space.size
    for index in torch.split(torch.arange(space.size, device=mass.device), step):
        rows = space.rows(index)
        product[index] = rows @ V
        square += mass[index] @ (rows.square() @ mass)
    return square, product


def exact_objective(
    coupling: Coupling, p: Tensor, q: Tensor, source: DistanceProvider, target: DistanceProvider
) -> Tensor:
    """E(T) by a thin product with the factors of one space, or with the dense plan where neither has any."""
    for near, far, axis in ((target, source, 1), (source, target, 0)):
        factors = near.factors()
        if factors is not None:
            F, signs = factors
            carried = coupling.apply(F, axis)
            near_mass, far_mass = (q, p) if axis == 1 else (p, q)
            near_square, _ = square_and_product(near, near_mass, F[:, :0])
            far_square, product = square_and_product(far, far_mass, carried)
            return near_square + far_square - 2 * ((carried * product).sum(0) * signs).sum()
    plan = coupling.to_dense()
    target_square, right = square_and_product(target, q, plan.T)
    source_square, left = square_and_product(source, p, plan)
    return source_square + target_square - 2 * left.mul_(right.T).sum()


def sampled_objective(
    coupling: Coupling, p: Tensor, source: DistanceProvider, target: DistanceProvider, generator: torch.Generator
) -> Objective:
    """Estimate from 1000 pairs of the plan: 1000 rows of each space, no dense matrix."""
    pairs = sample_anchors(coupling, p, SAMPLED_PAIRS, generator)
    kernel = (source.rows(pairs.rows)[:, pairs.rows] - target.rows(pairs.columns)[:, pairs.columns]).square()
    kernel.fill_diagonal_(0.0)
    projections = kernel.sum(1) / (SAMPLED_PAIRS - 1)
    return Objective(float(projections.mean()), False, float(2 * projections.std() / SAMPLED_PAIRS**0.5))

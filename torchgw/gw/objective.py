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
    if _affordable(source, target, max_memory):
        square = squared_mean(source, p) + squared_mean(target, q)
        return Objective(float(square - 2 * cross_term(coupling, source, target)), True, 0.0)
    return sampled_objective(coupling, p, source, target, generator)


def _affordable(source: DistanceProvider, target: DistanceProvider, max_memory: int) -> bool:
    plain = [space for space in (source, target) if space.factors() is None]
    if any(not space.stored and space.size > SEARCHED_ROWS for space in plain):
        return False
    dense = 8 * 3 * source.size * target.size if len(plain) == 2 else 0
    return dense <= max_memory


def times(space: DistanceProvider, V: Tensor) -> Tensor:
    """D V (N, d), through the factors or in blocks of rows."""
    factors = space.factors()
    if factors is not None:
        F, signs = factors
        return (F * signs) @ (F.T @ V)
    index = torch.arange(space.size, device=V.device)
    return torch.cat([space.rows(part) @ V for part in torch.split(index, ROW_BLOCK)])


def squared_mean(space: DistanceProvider, mass: Tensor) -> Tensor:
    """mass^T (D o D) mass."""
    factors = space.factors()
    if factors is not None:
        F, signs = factors
        gram = F.T @ (F * mass[:, None])
        return signs @ gram.square() @ signs
    index = torch.arange(space.size, device=mass.device)
    parts = [mass[part] @ (space.rows(part).square() @ mass) for part in torch.split(index, ROW_BLOCK)]
    return torch.stack(parts).sum()


def cross_term(coupling: Coupling, source: DistanceProvider, target: DistanceProvider) -> Tensor:
    """<D_X T D_Y, T>."""
    for near, far, axis in ((target, source, 1), (source, target, 0)):
        factors = near.factors()
        if factors is not None:
            F, signs = factors
            carried = coupling.apply(F, axis)
            return ((carried * times(far, carried)).sum(0) * signs).sum()
    plan = coupling.to_dense()
    return (times(source, plan) * times(target, plan.T).T).sum()


def sampled_objective(
    coupling: Coupling, p: Tensor, source: DistanceProvider, target: DistanceProvider, generator: torch.Generator
) -> Objective:
    """Estimate from 1000 pairs of the plan: 1000 rows of each space, no dense matrix."""
    pairs = sample_anchors(coupling, p, SAMPLED_PAIRS, generator)
    kernel = (source.rows(pairs.rows)[:, pairs.rows] - target.rows(pairs.columns)[:, pairs.columns]).square()
    kernel.fill_diagonal_(0.0)
    projections = kernel.sum(1) / (SAMPLED_PAIRS - 1)
    return Objective(float(projections.mean()), False, float(2 * projections.std() / SAMPLED_PAIRS**0.5))

"""Rounding a plan onto exact marginals.

Rows, then columns, are scaled down where they carry too much; what is missing is added as a rank-one plan, so the
result is feasible and its L1 distance from the input is at most twice the marginal error.

Source: J. Altschuler, J. Weed, P. Rigollet, "Near-linear time approximation algorithms for optimal transport via
Sinkhorn iteration", 2017, algorithm 2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchgw.couplings import PotentialCoupling
from torchgw.types import Coupling


def round_to_marginals(
    coupling: PotentialCoupling, p: Tensor, q: Tensor, stored: Coupling | None = None
) -> tuple[PotentialCoupling, float]:
    """The rounded coupling, still factored, and the larger L1 marginal error that it had before.

    ``p`` (N,) and ``q`` (K,) must have equal sums. ``stored`` is the same plan where it is at hand as a matrix, for
    faster products. Four products, O((N + K) r) memory.
    """
    plan: Coupling = coupling if stored is None else stored
    row_sums = plan.marginal(1)
    residual = max(float((row_sums - p).abs().sum()), float((plan.marginal(0) - q).abs().sum()))
    row = _shrink(p, row_sums)
    column_sums = plan.apply(row[:, None], 0)[:, 0]
    column = _shrink(q, column_sums)
    missing_p = (p - row * plan.apply(column[:, None], 1)[:, 0]).clamp_min(0.0)
    missing_q = (q - column * column_sums).clamp_min(0.0)
    # The two sums agree up to rounding; dividing by either leaves the other side off by that much only.
    total = missing_p.sum().clamp_min(torch.finfo(p.dtype).tiny)
    scaled = coupling.rescaled(row, column)
    return PotentialCoupling(scaled.A, scaled.B, scaled.f, scaled.g, missing_p, missing_q / total), residual


def _shrink(target: Tensor, actual: Tensor) -> Tensor:
    """Factors in [0, 1] that bring ``actual`` down to ``target`` where it is above."""
    return torch.where(actual > target, target / actual.clamp_min(torch.finfo(actual.dtype).tiny), 1.0)

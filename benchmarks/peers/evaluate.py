"""How good a plan is, apart from all libraries: its exact value, its marginals and its matching."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr

from benchmarks.quality import objective


@dataclass(frozen=True)
class Quality:
    """What a plan is worth; None with a reason where that cannot be said."""

    value: float | None
    marginal_error: float | None
    rho: float | None
    reason: str = "-"


def evaluate(plan: np.ndarray, DX: np.ndarray, DY: np.ndarray, x: np.ndarray, y: np.ndarray) -> Quality:
    """Judge a plan (N, K) on distances (N, N), (K, K), with uniform masses, and true angles (N,), (K,)."""
    if not np.isfinite(plan).all():
        return Quality(None, None, None, "the plan has entries that are not finite")
    if not plan.any():
        return Quality(None, marginal_error(plan), None, "the plan is zero")
    rho = matched(plan, x, y)
    reason = "-" if rho is not None else "no rank correlation: all points have one partner"
    return Quality(objective(DX, DY, plan), marginal_error(plan), rho, reason)


def marginal_error(plan: np.ndarray) -> float:
    """L1 distance of both marginals from the uniform ones of mass 1."""
    return float(sum(np.abs(plan.sum(axis) - 1 / plan.shape[1 - axis]).sum() for axis in (0, 1)))


def matched(plan: np.ndarray, x: np.ndarray, y: np.ndarray) -> float | None:
    """Signed rank correlation of the angles of matched points, each row with its largest entry."""
    partner = y[plan.argmax(1)]
    if np.ptp(partner) == 0:
        return None
    rho = float(spearmanr(x, partner)[0])
    return rho if math.isfinite(rho) else None

"""When the outer loop ends: a plateau of the smoothed cost, or a plan that no longer moves."""

from __future__ import annotations

from typing import NamedTuple

from torchgw.diagnostics.status import Status
from torchgw.options import StoppingOptions


class Plateau(NamedTuple):
    """Exponential moving average of the cost, the best one counted as progress, and checks since then."""

    average: float | None = None
    best: float = float("inf")
    stale: int = 0


def observe(plateau: Plateau, cost: float, options: StoppingOptions) -> Plateau:
    """The plateau after one more cost."""
    w = options.ema_weight
    average = cost if plateau.average is None else (1 - w) * plateau.average + w * cost
    if average < plateau.best - options.improvement * abs(plateau.best) or plateau.best == float("inf"):
        return Plateau(average, average, 0)
    return Plateau(average, plateau.best, plateau.stale + 1)


def verdict(iteration: int, plateau: Plateau, plan_change: float, options: StoppingOptions) -> Status | None:
    """Why the loop should end after ``iteration`` iterations, or None."""
    if iteration < options.min_iter:
        return None
    if plan_change <= options.plan_tol:
        return Status.SETTLED
    if plateau.stale >= options.checks_without_progress:
        return Status.PLATEAU
    return None

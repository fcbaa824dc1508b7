"""Marginal models: what is asked of the plan's row and column sums."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Balanced:
    """Both marginals hold exactly: T 1 = p and T^T 1 = q."""

    def damping(self, epsilon: float) -> tuple[float, float]:
        """Factors tau of the row and the column half-step at ``epsilon``; 1 is a hard marginal."""
        return 1.0, 1.0

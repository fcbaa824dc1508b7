"""Marginal models: what is asked of the plan's row and column sums."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Balanced:
    """Both marginals hold exactly: T 1 = p and T^T 1 = q."""

"""The two computations of the report: a power law through measured points, and the frontier of two costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

LEAST = 3  # sizes that a fit needs


class PowerLaw(NamedTuple):
    """``y = factor * x ** exponent``."""

    exponent: float
    factor: float


def power_law(x: Sequence[float], y: Sequence[float]) -> PowerLaw | None:
    """Least squares of ``log y`` on ``log x``; None for fewer than three sizes or where y is not positive."""
    if len(set(x)) < LEAST or min(*x, *y) <= 0:
        return None
    exponent, constant = np.polyfit(np.log(x), np.log(y), 1)
    return PowerLaw(float(exponent), float(np.exp(constant)))


def titled(name: str, x: Sequence[float], y: Sequence[float], floor: float = 0.0) -> str:
    """A line's name with its fitted exponent, where three sizes allow a fit and no value lies at the floor."""
    fit = power_law(x, y) if min(y) > floor else None
    return name if fit is None else f"{name}  $N^{{{round(fit.exponent, 2) + 0.0:.2f}}}$"


def frontier(points: Sequence[tuple[float, float]]) -> list[int]:
    """Places of the points that no other one beats in both costs, by the first cost."""
    kept: list[int] = []
    for place in sorted(range(len(points)), key=lambda i: points[i]):
        if not kept or points[place][1] < points[kept[-1]][1]:
            kept.append(place)
    return kept

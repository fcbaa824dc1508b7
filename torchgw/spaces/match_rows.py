"""Rows that were seen before, up to rounding, and what rows that are equal share."""

from __future__ import annotations

import numpy as np
from scipy.spatial import cKDTree

from torchgw.types import Array

ROUNDING, TINY = 1e-5, 1e-150


def recognised(known: Array, rows: Array) -> tuple[Array, Array]:
    """Numbers of the groups of equal rows: of each known row (N,), and of each other row (m,) that is one, else -1."""
    numbers: dict[bytes, int] = {}
    group = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in known + 0.0])  # -0.0 equals 0.0
    first = np.unique(group, return_index=True)[1]
    reach = ROUNDING * float(np.ptp(known, axis=0).max()) + TINY
    place = cKDTree(known[first], balanced_tree=False).query(rows, distance_upper_bound=reach)[1]
    return group, np.where(place < len(first), place, -1)


def means(values: Array, mass: Array, group: Array) -> Array:
    """Row g is the mean by ``mass`` (N,) of the rows of ``values`` (N, d) in group g; NaN for a group without mass."""
    weighted = np.where(mass[:, None] > 0, values, 0.0) * mass[:, None]
    with np.errstate(invalid="ignore"):
        total = np.bincount(group, mass)
        return np.stack([np.bincount(group, column) / total for column in weighted.T], 1)

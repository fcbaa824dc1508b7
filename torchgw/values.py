"""Values on points as plots and reports read them: numbers, or labels.

Floating-point arrays are numbers. Strings, booleans, categories, and integers of at most 20 distinct values are labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from torchgw.types import Array

FEW = 20  # distinct integers that are taken for labels
MISSING = "missing"


@dataclass(frozen=True)
class Numbers:
    """Values (n,), float64; NaN where there is none."""

    values: Array


@dataclass(frozen=True)
class Labels:
    """Codes (n,), int64, into ``names``; -1 where there is none."""

    codes: Array
    names: tuple[str, ...]


def read(name: str, given: Any, n: int, letter: str, finite: bool = False) -> Numbers | Labels:
    """Values on n points.

    Raises
    ------
    ValueError
        For another shape, and with ``finite`` for NaN and infinite values.
    TypeError
        For what is neither a number nor a label.
    """
    array = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    if array.shape != (n,):
        raise ValueError(f"{name} must have shape ({letter},) = ({n},), one value for each point, got {array.shape}")
    if array.dtype.kind in "iu" and len(np.unique(array)) > FEW:
        array = array.astype(np.float64)
    if array.dtype.kind == "f":
        numbers = array.astype(np.float64)
        bad = int((~np.isfinite(numbers)).sum())
        if finite and bad:
            raise ValueError(f"{name} must be finite, got {bad} NaN or infinite entries; replace or drop them")
        return Numbers(np.where(np.isfinite(numbers), numbers, np.nan))
    if array.dtype.kind not in "iubUSO":
        raise TypeError(f"{name} must hold numbers or labels, got dtype {array.dtype}")
    return _labels(array, getattr(getattr(given, "cat", given), "categories", None))


def _labels(array: Array, categories: Any) -> Labels:
    """Labels in the order of their categories where they have one, else sorted."""
    if array.dtype.kind != "O":
        found, codes = np.unique(array, return_inverse=True)
        return Labels(codes.astype(np.int64), tuple(map(str, found)))
    present = [None if value is None or value != value else str(value) for value in array]
    held = {name for name in present if name is not None}
    order = sorted(held) if categories is None else [str(name) for name in categories if str(name) in held]
    place = {name: i for i, name in enumerate(order)}
    return Labels(np.array([-1 if name is None else place[name] for name in present], dtype=np.int64), tuple(order))

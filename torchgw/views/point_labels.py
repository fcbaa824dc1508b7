"""Values on points as plots and reports read them, numbers or labels, and what a plan carries of them to the target.

Floating-point arrays are numbers. Strings, booleans, categories, and integers of at most 20 distinct values are labels.
A target point j gets the mean sum_i T_ij v_i / sum_i T_ij over the points i whose number v_i is known, or the label of
the group of points that sends it most mass.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchgw import validate
from torchgw.couplings.blocks import BlockCoupling
from torchgw.couplings.reader import find_heaviest_group
from torchgw.types import Array

FEW = 20  # distinct integers that are taken for labels
MISSING = "missing"


@dataclass(frozen=True)
class Numbers:
    """Numbers on n points.

    Attributes
    ----------
    values : (n,) float64, NaN where there is none.
    """

    values: Array

    @property
    def present(self) -> Array:
        """Which points have one (n,)."""
        return np.isfinite(self.values)


@dataclass(frozen=True)
class Labels:
    """Labels on n points.

    Attributes
    ----------
    codes : (n,) int64, indices into ``names``, -1 where there is none.
    names : of the distinct labels, in their order.
    """

    codes: Array
    names: tuple[str, ...]

    @property
    def present(self) -> Array:
        """Which points have one (n,)."""
        found: Array = self.codes >= 0
        return found


def read(name: str, given: Any, n: int, letter: str, finite: bool = False) -> Numbers | Labels:
    """Values on n points.

    Raises
    ------
    ValueError
        For another shape, and with ``finite`` for NaN and infinite values.
    TypeError
        For what is neither a number nor a label.
    """
    array = _array(given)
    if array.shape != (n,):
        raise ValueError(f"{name} must have shape ({letter},) = ({n},), one value for each point, got {array.shape}")
    categories = getattr(getattr(given, "cat", given), "categories", None)
    if categories is not None:
        return _labels(array.astype(object), list(categories))
    if array.dtype.kind == "O":
        array = _unbox(array)
    if array.dtype.kind in "iu" and len(np.unique(array)) > FEW:
        array = array.astype(np.float64)
    if array.dtype.kind == "f":
        numbers = array.astype(np.float64)
        bad = int((~np.isfinite(numbers)).sum())
        if finite and bad:
            raise ValueError(f"{name} must be finite, got {bad} NaN or infinite entries; replace or drop them")
        return Numbers(np.where(np.isfinite(numbers), numbers, np.nan))
    if array.dtype.kind not in "iubUSO":
        raise TypeError(f"{name} must hold numbers or labels, got dtype {array.dtype}; convert it to float, or to str")
    return _labels(array.astype(object), None)


def carry_values(coupling: BlockCoupling, given: Numbers | Labels) -> Numbers | Labels:
    """What the target points (K,) get of values on the source points (N,); missing where no known value's mass goes.

    O(N K) time for numbers, for labels times their number; never N x K memory.
    """
    if isinstance(given, Labels):
        return Labels(find_heaviest_group(coupling, given.codes, len(given.names)), given.names)
    return Numbers(averages(coupling, given.values))


def averages(coupling: BlockCoupling, numbers: Array) -> Array:
    """The mean (K,) of numbers (N,) by the plan's columns, over those that are finite; NaN where these have no mass."""
    known = np.isfinite(numbers)
    columns = torch.from_numpy(np.column_stack((known, np.where(known, numbers, 0.0))))
    mass, total = coupling.apply(columns.to(coupling.device, coupling.dtype), 0).detach().double().cpu().T
    found: Array = torch.where(mass > 0, total / mass, torch.nan).numpy()
    return found


def _array(given: Any) -> Array:
    """As NumPy has it; of tensors in a dtype that it has, of pandas' own dtypes as objects, with what is missing."""
    if not isinstance(given, Tensor):
        own = not isinstance(getattr(given, "dtype", np.dtype(object)), np.dtype)
        return np.asarray(given, dtype=object) if own else np.asarray(given)
    return validate.as_numpy(given)


def _unbox(array: Array) -> Array:
    """Numbers that lie in an array of objects, the missing ones NaN; other objects as they are."""
    present = [value for value in array if not validate.is_missing(value)]
    if not present or any(isinstance(value, bool) or not isinstance(value, Real) for value in present):
        return array
    whole = all(isinstance(value, Integral) for value in present)
    if whole and len(set(present)) <= FEW:
        return array  # few integers are labels
    return np.array([np.nan if validate.is_missing(value) else float(value) for value in array])


def _labels(array: Array, categories: list[Any] | None) -> Labels:
    """Labels in the order of their categories where they have one, else sorted."""
    present = {value for value in array if not validate.is_missing(value)}
    if categories is None:
        try:
            order = sorted(present)
        except TypeError:  # of several kinds
            order = sorted(present, key=str)
    else:
        order = [value for value in categories if value in present]
    place = {value: i for i, value in enumerate(order)}
    codes = np.array([-1 if validate.is_missing(value) else place[value] for value in array], dtype=np.int64)
    return Labels(codes, tuple(map(str, order)))

"""Checks of sparse graphs that a user gives."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
from scipy.sparse import issparse

from torchgw import ranges
from torchgw.validate import SYMMETRY_TOLERANCE, count_bad


def graph(name: str, value: Any) -> Any:
    """A symmetric SciPy sparse matrix (N, N) of finite non-negative edge lengths, N >= 2, as float64 CSR.

    Arrays of a float64 CSR matrix without repeated entries come back as they are, not to be written to.
    """
    if not issparse(value):
        raise TypeError(f"{name} must be a SciPy sparse graph, such as csr_array(D), got {type(value).__name__}")
    if value.ndim != 2 or value.shape[0] != value.shape[1] or value.shape[0] < 2:
        raise ValueError(f"{name} must be a square sparse graph (N, N), N >= 2, got shape {tuple(value.shape)}")
    if value.dtype.kind not in "fiub":
        raise TypeError(f"{name} must hold real edge lengths, got dtype {value.dtype}")
    try:
        found = _fitting(value)
    except ValueError as error:
        raise ValueError(f"{name} must be a sparse graph whose indices fit its shape, got: {error}") from None
    csr = found.tocsr().astype(np.float64, copy=False)
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    if not np.isfinite(csr.data).all():
        raise ValueError(f"{name} must have finite edge lengths, got {count_bad(csr.data)}")
    if (csr.data < 0).any():
        raise ValueError(f"{name} must have non-negative edge lengths, got {csr.data.min():g}")
    ranges.sizes(f"{name}.data", float(csr.data.max(initial=0.0)))
    turned = csr.T.tocsr()
    mutual = np.array_equal(csr.indptr, turned.indptr) and np.array_equal(csr.indices, turned.indices)
    if not mutual or (np.abs(csr.data - turned.data) > SYMMETRY_TOLERANCE * turned.data).any():
        what = "edge lengths that differ between the two directions" if mutual else "edges without their reverse"
        raise ValueError(f"{name} must be a symmetric graph, got {what}; {name}.maximum({name}.T) makes edges mutual")
    return csr


def _fitting(value: Any) -> Any:
    """The same arrays in a matrix of its own, since checks mend what they see; SciPy follows indices wherever they
    point."""
    if value.format == "coo":
        return type(value)((value.data, (value.row, value.col)), shape=value.shape)
    found = copy(value) if hasattr(value, "check_format") else value.tocsr()
    found.check_format(full_check=True)
    return found

"""Coordinates and columns of annotated cells as arrays of numbers that a plan can average, and back.

A column of labels becomes indicators (K, C), whose averages under a row of the plan are the shares of its mass that go
to each label. A column of numbers becomes (value, whether there is one): the quotient of the averages is the mean over
the cells that have one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np

from torchgw import validate
from torchgw.results.result import GWResult
from torchgw.types import Array

logger = logging.getLogger("torchgw")

PCA = "X_pca"


def import_anndata() -> Any:
    """anndata, which is not needed elsewhere."""
    try:
        import anndata
    except ImportError as error:
        raise ImportError("cells need the package anndata; pip install anndata") from error
    return anndata


def check_cells(side: str, cells: Any) -> None:
    """An AnnData whose cells can be told apart."""
    load = f"; torchgw.anndata.read({side!r}, path) loads a file" if isinstance(cells, str | PathLike) else ""
    validate.instance(side, cells, import_anndata().AnnData, load)
    if not cells.obs_names.is_unique:
        twice = cells.obs_names[cells.obs_names.duplicated()][0]
        raise ValueError(f"{side}.obs_names must be unique, got {twice!r} twice; call {side}.obs_names_make_unique()")


def choose_representations(a: Any, b: Any, use_rep: str | Sequence[str] | None) -> tuple[str, str]:
    """The names of both sides' coordinates."""
    if use_rep is None:
        taken = PCA if PCA in a.obsm and PCA in b.obsm else "X"
        logger.info("cells are aligned by %s of both sides", taken if taken == "X" else f'obsm["{taken}"]')
        return taken, taken
    pair = (use_rep, use_rep) if isinstance(use_rep, str) else tuple(use_rep)
    if len(pair) != 2 or not all(isinstance(rep, str) for rep in pair):
        raise TypeError(f"use_rep must be a key of obsm, 'X', or a pair of these, got {use_rep!r}")
    return pair[0], pair[1]


def read_representation(side: str, cells: Any, rep: str, limit: int) -> Array:
    """Coordinates of cells, dense. X is not touched unless it is asked for, and fits."""
    what = f"{side}.X" if rep == "X" else f"{side}.obsm[{rep!r}]"
    if rep != "X" and rep not in cells.obsm:
        raise ValueError(f"use_rep must be 'X' or a key of {side}.obsm, got {rep!r} and keys {_quote_keys(cells.obsm)}")
    shape = (cells.n_obs, cells.n_vars) if rep == "X" else cells.obsm[rep].shape
    advice = "align a few principal components instead, as scanpy.pp.pca makes them, with use_rep='X_pca'"
    validate.memory(f"{what} as a dense array {shape}", 8 * int(np.prod(shape)), limit, advice)
    found = cells.X if rep == "X" else cells.obsm[rep]
    if found is None:
        raise ValueError(f"{side} has no X; name a key of {side}.obsm as use_rep, got keys {_quote_keys(cells.obsm)}")
    if rep == "X" and cells.isbacked:
        found = found.to_memory() if hasattr(found, "to_memory") else found[()]
    return validate.points(what, found.toarray() if hasattr(found, "toarray") else found)


def encode_column(name: str, b: Any, limit: int) -> tuple[Array, Any]:
    """A column of ``b.obs`` as numbers that a plan can average, and its categories' dtype.

    Labels: (K, C), 1 where a cell has one. Numbers: (K, 2), the number and whether there is one, and no dtype.
    """
    from pandas import CategoricalDtype
    from pandas.api import types

    if name not in b.obs:
        raise ValueError(f"labels must be columns of b.obs, got {name!r} and columns {_quote_keys(b.obs)}")
    column = b.obs[name]
    missing = column.isna().to_numpy()
    if missing.all():
        raise ValueError(f"b.obs[{name!r}] must hold some labels, got none but missing ones")
    if types.is_numeric_dtype(column.dtype) and not types.is_bool_dtype(column.dtype):
        numbers = column[~missing].to_numpy()
        if numbers.dtype.kind not in "fiuO" or not np.isfinite(numbers.astype(np.float64)).all():
            raise ValueError(f"b.obs[{name!r}] must hold finite numbers, got some others of dtype {column.dtype}")
        columns = np.zeros((len(column), 2))
        columns[~missing] = np.stack((numbers.astype(np.float64), np.ones(len(numbers))), axis=1)
        return columns, None
    if not isinstance(column.dtype, CategoricalDtype):
        if not types.is_bool_dtype(column.dtype) and not all(isinstance(label, str) for label in column[~missing]):
            raise TypeError(f"b.obs[{name!r}] must hold categories, texts or numbers, got dtype {column.dtype}")
        column = column.astype("category")
    count = len(column.cat.categories)
    advice = "leave out columns that name single cells"
    validate.memory(f"b.obs[{name!r}] of {count} categories", 8 * len(column) * count, limit, advice)
    return (column.cat.codes.to_numpy()[:, None] == np.arange(count)).astype(np.float64), column.dtype


def decode_columns(name: str, carried: Array, categories: Any) -> dict[str, Any]:
    """Columns for ``obs`` from averages of what `encode_column` made: labels and their confidence, or numbers."""
    from pandas import Categorical

    carried = np.nan_to_num(carried)
    if categories is None:
        known = carried[:, 1] > 0
        return {name: np.where(known, carried[:, 0] / np.where(known, carried[:, 1], 1.0), np.nan)}
    best, share = carried.argmax(1), carried.max(1)
    codes = np.where(share > 0, best, -1)
    return {name: Categorical.from_codes(codes, dtype=categories), f"{name}_confidence": share.clip(0.0, 1.0)}


def match_names(result: GWResult, has_mass: Array, reference: Any) -> Any:
    """Names of the cells that most of each row's mass goes to, as a categorical."""
    from pandas import Categorical

    best = result.coupling.argmax(1).cpu().numpy()
    used, own = np.unique(best[has_mass], return_inverse=True)
    codes = np.full(len(best), -1)
    codes[has_mass] = own
    return Categorical.from_codes(codes, categories=reference[used])


def _quote_keys(keys: Any) -> str:
    """Some keys, for an error."""
    found = [str(key) for key in keys]
    return ", ".join(map(repr, found[:20])) + (", ..." if len(found) > 20 else "") if found else "none"

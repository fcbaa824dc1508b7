"""Points, matrices and graphs from files. Nothing here runs code that a file brings: pickles are refused."""

from __future__ import annotations

import csv
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from torchgw.types import Array

SUFFIXES = (".npy", ".npz", ".csv", ".tsv", ".h5ad")


def read_space(name: str, path: Path) -> Any:
    """The points (N, D), distance matrix (N, N) or sparse graph in a file.

    .npy and .npz hold one array (or, for several, one called "X" or "points"; or a matrix of SciPy's ``save_npz``),
    .csv and .tsv numbers with an optional header line, .h5ad cells: ``obsm["X_pca"]`` if there, else ``X``.

    Raises
    ------
    ValueError
        Naming the file and what is wrong with it.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{name} must be a {', '.join(SUFFIXES)} file, got {path}")
    if not path.is_file():
        raise ValueError(f"{name} must be a file that is there, got {path}")
    readers = {".npy": _read_npy, ".npz": _read_npz, ".csv": _read_text, ".tsv": _read_text, ".h5ad": _read_h5ad}
    try:
        return readers[path.suffix](path)
    except (ValueError, KeyError, EOFError, OSError, UnicodeDecodeError, zipfile.BadZipFile, zlib.error) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{name}: {path} cannot be read: {reason}") from error


def _read_npy(path: Path) -> Array:
    try:
        array: Array = np.load(path, allow_pickle=False)
    except ValueError:
        raise ValueError("it is no NumPy array, or one of pickled objects, which are never loaded") from None
    return array


def _read_npz(path: Path) -> Any:
    with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
        names = list(file.files)
        if {"format", "data", "shape"} <= set(names):
            from scipy.sparse import load_npz

            return load_npz(path)
        wanted = names if len(names) == 1 else [n for n in ("X", "points") if n in names]
        if len(wanted) != 1:
            raise ValueError(f"it must hold one array, or one called 'X' or 'points', got {names}")
        try:
            return file[wanted[0]]
        except ValueError:
            raise ValueError(f"its array {wanted[0]!r} holds pickled objects, which are never loaded") from None


def _read_text(path: Path) -> Array:
    delimiter = "," if path.suffix == ".csv" else "\t"
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, delimiter=delimiter)
        text = [(reader.line_num, row) for row in reader if row]
    header = text[0][1] if text else []
    rows = [(line, [_number(cell) for cell in row]) for line, row in text]
    if not rows:
        raise ValueError("it holds no rows")
    if all(cell is None for cell in rows[0][1]):
        if "" in header:
            raise ValueError(f"column {header.index('') + 1} has no name, like an index; leave it out of the file")
        rows = rows[1:]
    for line, row in rows:
        if None in row:
            raise ValueError(f"line {line} holds something that is not a number in column {row.index(None) + 1}")
    widths = {len(row) for _, row in rows}
    if len(widths) != 1:
        raise ValueError(f"it must hold rows of equal length, got lengths {sorted(widths)}")
    return np.array([row for _, row in rows])


def _number(cell: str) -> float | None:
    """A cell as a number, None if it is not one."""
    try:
        return float(cell)
    except ValueError:
        return None


def _read_h5ad(path: Path) -> Array:
    try:
        import anndata
    except ImportError:
        raise ValueError("anndata is not installed; pip install anndata") from None
    cells = anndata.read_h5ad(path)
    found = cells.obsm.get("X_pca", cells.X)
    return np.asarray(found.toarray() if hasattr(found, "toarray") else found)

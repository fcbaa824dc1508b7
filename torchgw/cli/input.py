"""Points, matrices and graphs from files that nobody vouches for: see `torchgw.persist.guards` for what is checked
first."""

from __future__ import annotations

import csv
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from torchgw import validate
from torchgw.options import GWOptions
from torchgw.persist import guards
from torchgw.types import Array

WITHOUT_INDEX = "(pandas: to_csv(path, index=False))"
LONGEST_LINE = 2**24
PARTS = {
    "csr": ("data", "indices", "indptr"),
    "csc": ("data", "indices", "indptr"),
    "bsr": ("data", "indices", "indptr"),
    "coo": ("data", "row", "col"),
    "dia": ("data", "offsets"),
}


def read_space(name: str, path: Path, max_memory: int | None = None, *, column: bool = False) -> Any:
    """The points (N, D), distance matrix (N, N) or sparse graph in a file.

    .npy and .npz hold one array (or, for several, one called "X" or "points"; or a matrix of SciPy's ``save_npz``),
    .csv and .tsv numbers with an optional header line, .h5ad cells: ``obsm["X_pca"]`` if there, else ``X``.

    Parameters
    ----------
    name : what errors call it.
    path : a regular file; its suffix says what it is.
    max_memory : bytes that its numbers may take as float64, by default that of `GWOptions`. What a file declares is
        compared with it before it is allocated.
    column : take an array (N,) as (N, 1).

    Returns
    -------
    A real array of two dimensions in the file's dtype, or a square SciPy sparse matrix.

    Raises
    ------
    ValueError
        Naming the file and what is wrong with it, in one line.
    """
    limit = GWOptions().max_memory if max_memory is None else validate.integer("max_memory", max_memory, least=1)
    with guards.untrusted(name, path, *READERS):
        found = READERS[path.suffix](path, limit)
        found = found[:, None] if column and found.ndim == 1 else found
        if found.ndim != 2 or 0 in found.shape:
            remedy = "; one number for each row goes as a column, x[:, None]" if found.ndim == 1 else ""
            raise ValueError(f"it must hold rows and columns, got shape {found.shape}{remedy}")
    return found


def _read_npy(path: Path, limit: int) -> Array:
    with path.open("rb") as file:
        return guards.read_npy(file, path.stat().st_size, limit)


def mapped(name: str, path: Path) -> Array:
    """The array of a .npy file where it lies, for ranks that each read a part of it."""
    with guards.untrusted(name, path, ".npy"):
        found: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        guards.of_kind("its array", found.dtype, guards.NUMBERS)
        if found.ndim != 2 or 0 in found.shape:
            raise ValueError(f"it must hold rows and columns, got shape {found.shape}")
    return found


def _read_npz(path: Path, limit: int) -> Any:
    with guards.opened_zip(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        if {"format", "data", "shape"} <= set(names):
            return _read_graph(archive, limit)
        wanted = names if len(names) == 1 else [n for n in ("X", "points") if n in names]
        if len(wanted) != 1:
            raise ValueError(f"it must hold one array, or one called 'X' or 'points', got {names[:10]}")
        return guards.read_member(archive, wanted[0], limit)


def _read_graph(archive: Any, limit: int) -> Any:
    """A square matrix that SciPy's ``save_npz`` wrote."""
    word = guards.read_member(archive, "format", limit, guards.TEXT).reshape(-1)[:1].astype("U5")
    kind = validate.choice("its format", "".join(word), tuple(PARTS))
    shape = _shape(guards.read_member(archive, "shape", limit, guards.INTEGERS))
    if shape[0] != shape[1]:
        raise ValueError(f"its graph must be square, got shape {shape}")
    stored = sum(guards.member(archive, part).file_size for part in PARTS[kind])
    guards.fits("its graph", shape[0] + stored // 8, limit, shape)
    kinds = [guards.NUMBERS, guards.INTEGERS, guards.INTEGERS]
    parts = {part: guards.read_member(archive, part, limit, k) for part, k in zip(PARTS[kind], kinds, strict=False)}
    return guards.sparse_matrix(kind, parts, shape)


def _shape(found: Array) -> tuple[int, int]:
    if found.shape != (2,) or found.dtype.kind not in guards.INTEGERS:
        raise ValueError(f"its shape must be two integers, got {found.dtype} of shape {found.shape}")
    return int(found[0]), int(found[1])


def _read_text(path: Path, limit: int) -> Array:
    """Numbers, read line by line into eight bytes each."""
    delimiter = "," if path.suffix == ".csv" else "\t"
    numbers, width, header = array("d"), 0, False
    for at, cells in _rows(path, delimiter, min(LONGEST_LINE, max(limit // 64, 1))):
        if len(cells) == 1:
            _check_separator(at, cells[0], path.suffix)
        row = [_number(cell) for cell in cells]
        if not (width or header) and all(number is None for number in row):
            if "" in cells:
                place = f"column {cells.index('') + 1}"
                raise ValueError(f"{place} has no name, like an index; leave it out of the file {WITHOUT_INDEX}")
            header = True
            continue
        if None in row:
            column = row.index(None)
            hint = f"; if these are names, leave them out of the file {WITHOUT_INDEX}" if column == 0 else ""
            raise ValueError(f"line {at} holds {cells[column][:20]!r}, not a number in column {column + 1}{hint}")
        width = width or len(row)
        if len(row) != width:
            raise ValueError(f"it must hold rows of equal length, got {width} and, on line {at}, {len(row)}")
        numbers.extend(row)  # type: ignore[arg-type]
        guards.fits("it", len(numbers), limit)
    if not width:
        raise ValueError("it holds no rows of numbers")
    return np.frombuffer(numbers).reshape(-1, width)


def read_table(name: str, path: Path, limit: int) -> list[list[str]]:
    """The cells of a .csv or .tsv file as text, without the spaces around them: lines of equal length, at least one.

    Raises
    ------
    ValueError
        Naming the file and what is wrong with it, in one line.
    """
    with guards.untrusted(name, path, ".csv", ".tsv"):
        guards.fits("it", path.stat().st_size, limit)  # a cell takes some eight times its characters
        delimiter = "," if path.suffix == ".csv" else "\t"
        rows = [[cell.strip() for cell in cells] for _, cells in _rows(path, delimiter, LONGEST_LINE)]
        if not rows:
            raise ValueError("it holds no lines")
        for at, row in enumerate(rows):
            if len(row) != len(rows[0]):
                raise ValueError(
                    f"it must hold lines of equal length, got {len(rows[0])} and, as number {at + 1}, {len(row)}"
                )
        return rows


def _rows(path: Path, delimiter: str, longest: int) -> Iterator[tuple[int, list[str]]]:
    """Cells of each line that has some, with its number. A line of more than ``longest`` characters is not read to its
    end, and no cell goes on over several."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        at = 0
        while line := file.readline(longest + 1):
            at += 1
            if len(line) > longest:
                raise ValueError(f"line {at} has more than {longest} characters")
            try:
                cells = next(csv.reader([line], delimiter=delimiter, strict=True), [])
            except csv.Error as error:
                raise ValueError(f"line {at} is no line of cells: {error}") from None
            if cells:
                yield at, cells


def _check_separator(at: int, cell: str, suffix: str) -> None:
    """A line of one cell that holds what separates cells elsewhere."""
    if ";" in cell:
        raise ValueError(f"line {at} is separated by semicolons; write it with commas, and decimals with points")
    if "\t" in cell and suffix == ".csv":
        raise ValueError(f"line {at} is separated by tabs; call the file .tsv")
    if "," in cell and suffix == ".tsv":
        raise ValueError(f"line {at} is separated by commas; call the file .csv")
    if len(parts := cell.split()) > 1 and None not in map(_number, parts):
        mark = "commas" if suffix == ".csv" else "tabs"
        raise ValueError(
            f"line {at} has {len(parts)} numbers in a cell; put {mark} between columns, no spaces into numbers"
        )


def _number(cell: str) -> float | None:
    """A cell as a number, None if it is not one; Python's 1_000 is none elsewhere."""
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None


def _read_h5ad(path: Path, limit: int) -> Array:
    try:
        import h5py
    except ImportError:
        raise ValueError("h5py is not installed; pip install anndata") from None
    with h5py.File(path, "r") as file:
        kept = guards.member_of(file, "obsm")
        cells = guards.member_of(kept, "X_pca") if isinstance(kept, h5py.Group) else None
        what, cells = ("X", guards.member_of(file, "X")) if cells is None else ('obsm["X_pca"]', cells)
        if isinstance(cells, h5py.Group):
            return _read_sparse_cells(cells, what, limit)
        return guards.read_dataset(cells, what, limit)


def _read_sparse_cells(group: Any, what: str, limit: int) -> Array:
    """The dense array of a group of HDF5 that holds a sparse one."""
    found = {part: guards.member_of(group, part) for part in PARTS["csr"]}
    if None in found.values():
        raise ValueError(f"{what} must be an array, dense or in the format csr or csc, got a group without these parts")
    shape = _shape(np.asarray(_attribute(group, "shape", (2,))))
    stored = sum(getattr(part, "size", None) or 0 for part in found.values())
    guards.fits(what, shape[0] * shape[1] + stored, limit, shape)
    kinds = (guards.NUMBERS, guards.INTEGERS, guards.INTEGERS)
    parts = {
        part: guards.read_dataset(found[part], f"{what}/{part}", limit, k)
        for part, k in zip(PARTS["csr"], kinds, strict=True)
    }
    dense: Array = guards.sparse_matrix(_compressed_by(group, parts["indptr"].size - 1, shape), parts, shape).toarray()
    return dense


def _compressed_by(group: Any, count: int, shape: tuple[int, int]) -> str:
    """ "csr" or "csc", by the ``count`` of rows or columns; by what the file says only where they are equally many,
    since libhdf5 can hang at broken strings."""
    kinds = [kind for kind, n in zip(("csr", "csc"), shape, strict=True) if n == count]
    if len(kinds) < 2:
        return "".join(kinds) or "csr"
    said = _attribute(group, "encoding-type", ())
    return validate.choice("its encoding", said, ("csr_matrix", "csc_matrix"))[:3]


def _attribute(group: Any, name: str, shape: tuple[int, ...]) -> Any:
    """An attribute of an HDF5 object, None where there is none of that shape."""
    there = name in group.attrs and group.attrs.get_id(name).shape == shape
    return group.attrs[name] if there else None


READERS: dict[str, Callable[[Path, int], Any]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".csv": _read_text,
    ".tsv": _read_text,
    ".h5ad": _read_h5ad,
}

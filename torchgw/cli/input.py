"""Points, matrices and graphs from files that nobody vouches for: see `torchgw.persist.guards` for what is checked
first."""

from __future__ import annotations

import csv
import shlex
from array import array
from collections.abc import Callable, Iterator
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import numpy as np
from scipy.sparse import csr_array

from torchgw import validate
from torchgw.options import GWOptions
from torchgw.persist import guards
from torchgw.request.names import find_fault
from torchgw.runtime.caller import warn_caller
from torchgw.types import Array, TorchGWWarning

Named: TypeAlias = "tuple[Any, list[str] | None]"

WITHOUT_INDEX = "(pandas: to_csv(path, index=False))"
LONGEST_LINE = 2**24
DELIMITERS = {".csv": ",", ".tsv": "\t"}
MISSING = ("", "na", "n/a", "null", "none", "missing", "?", "-")
EDGES = (("source", "target", "weight"), ("from", "to", "weight"), ("u", "v", "w"))
SUFFIXES = (".npy", ".npz", *DELIMITERS, ".h5ad")
PARTS = {
    "csr": ("data", "indices", "indptr"),
    "csc": ("data", "indices", "indptr"),
    "bsr": ("data", "indices", "indptr"),
    "coo": ("data", "row", "col"),
    "dia": ("data", "offsets"),
}


def read_space(name: str, path: Path, max_memory: int | None = None, *, column: bool = False) -> Any:
    """The points, distance matrix or graph of `read_with_names`, without names."""
    return read_with_names(name, path, max_memory, column=column)[0]


def read_with_names(
    name: str,
    path: Path,
    max_memory: int | None = None,
    *,
    column: bool = False,
    index: str | None = None,
    edges: bool = False,
) -> Named:
    """The points (N, D), distance matrix (N, N) or sparse graph in a file, and the names (N,) of its points, or None.

    .npy and .npz hold one array (or, for several, one called "X" or "points"; or a matrix of SciPy's ``save_npz``),
    .csv and .tsv numbers with an optional header line, .h5ad cells: ``obsm["X_pca"]`` if there, else ``X``. If the
    first column of a table holds no numbers, it holds names. A table with the header source,target or
    source,target,weight is a list of edges.

    Parameters
    ----------
    name : what errors call it.
    path : a regular file; its suffix says what it is.
    max_memory : bytes that its numbers may take as float64, by default that of `GWOptions`. What a file declares is
        compared with it before it is allocated.
    column : take an array (N,) as (N, 1).
    index : title of the column of a table that holds names.
    edges : whether a table is a list of edges u, v, or u, v, w, whatever its header.

    Returns
    -------
    A real array of two dimensions in the file's dtype, or a square SciPy sparse matrix; and names.

    Raises
    ------
    ValueError
        Naming the file and what is wrong with it, in one line.
    """
    limit = GWOptions().max_memory if max_memory is None else validate.integer("max_memory", max_memory, least=1)
    with guards.guard_reading(name, path, *SUFFIXES):
        if path.suffix in DELIMITERS:
            found, names = _read_text(path, limit, index, edges)
        else:
            found, names = READERS[path.suffix](path, limit), None
        found = found[:, None] if column and found.ndim == 1 else found
        if found.ndim != 2 or 0 in found.shape:
            remedy = "; one number for each row goes as a column, x[:, None]" if found.ndim == 1 else ""
            raise ValueError(f"it must hold rows and columns, got shape {found.shape}{remedy}")
    return found, names


def _read_npy(path: Path, limit: int) -> Array:
    with path.open("rb") as file:
        return guards.read_npy(file, path.stat().st_size, limit)


def open_memory_map(name: str, path: Path) -> Array:
    """The array of a .npy file where it lies, for the rank that reads it."""
    with guards.guard_reading(name, path, ".npy"):
        found: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        guards.check_kind("its array", found.dtype, guards.NUMBERS)
        if found.ndim != 2 or 0 in found.shape:
            raise ValueError(f"it must hold rows and columns, got shape {found.shape}")
    return found


def _read_npz(path: Path, limit: int) -> Any:
    with guards.open_zip(path) as archive:
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
    shape = _read_shape(guards.read_member(archive, "shape", limit, guards.INTEGERS))
    if shape[0] != shape[1]:
        raise ValueError(f"its graph must be square, got shape {shape}")
    stored = sum(guards.member(archive, part).file_size for part in PARTS[kind])
    guards.refuse_oversized("its graph", shape[0] + stored // 8, limit, shape)
    kinds = [guards.NUMBERS, guards.INTEGERS, guards.INTEGERS]
    parts = {part: guards.read_member(archive, part, limit, k) for part, k in zip(PARTS[kind], kinds, strict=False)}
    return guards.sparse_matrix(kind, parts, shape)


def _read_shape(found: Array) -> tuple[int, int]:
    if found.shape != (2,) or found.dtype.kind not in guards.INTEGERS:
        raise ValueError(f"its shape must be two integers, got {found.dtype} of shape {found.shape}")
    return int(found[0]), int(found[1])


def _read_text(path: Path, limit: int, index: str | None, edges: bool) -> Named:
    """Numbers, read line by line into eight bytes each, and the names in a column; or a graph, of its edges."""
    rows = _iterate_lines(path, limit)
    first = next(rows, (0, []))
    listed = _are_edges(first[1], EDGES[0])
    if edges or (listed and index is None):
        third = first[1][2].strip() if len(first[1]) == 3 else ""
        titles = _are_edges(first[1], *EDGES) or (third and parse_number(third) is None)
        return _read_edges(rows if titles else chain([first], rows), limit, bool(titles))
    if index is None and _are_edges(first[1][:2], EDGES[0]):
        raise ValueError(
            f"a list of edges must have the columns source, target and perhaps weight, got "
            f"{', '.join(map(repr, first[1]))}; call the weight so, and leave the others out"
        )
    header = first[1] if _is_header(first[1]) else None
    column: int | None = None
    numbers, names, width, texts = array("d"), list[str](), 0, 0
    for line, cells in rows if header or not first[0] else chain([first], rows):
        if not width:
            width = len(cells)
            header = _complete_titles(header, cells)
            column = _column_of_names(header, cells) if index is None else _find_index_column(index, header, width)
        if len(cells) != width:
            raise ValueError(f"it must hold rows of equal length, got {width} and, on line {line}, {len(cells)}")
        if column is not None:
            name = cells.pop(column).strip()
            if index is None and name and not _is_name(name):
                raise ValueError(
                    f"column 1 holds {name[:20]!r} on line {line}, which is no name, and {names[0][:20]!r} before; "
                    f"fill in numbers that are missing, or say --index-col if all of them are names"
                )
            names.append(name)
            texts += len(name)
        row = [parse_number(cell) for cell in cells]
        if None in row:
            wrong = row.index(None)
            place = wrong + (column is not None and column <= wrong)
            raise ValueError(
                f"line {line} holds {cells[wrong][:20]!r}, not a number in column {place + 1}; "
                f"{_advise_on_cell(cells[wrong], index is None, place == 0)}"
            )
        numbers.extend(row)  # type: ignore[arg-type]
        guards.refuse_oversized("it", len(numbers) + texts // 8, limit)
    if not numbers:
        raise ValueError("it holds no rows of numbers")
    if fault := find_fault(names):
        raise ValueError(f"column {(column or 0) + 1} must hold a name of its own for each point, got {fault}")
    return np.frombuffer(numbers).reshape(-1, width - bool(names)), names or None


def _complete_titles(header: list[str] | None, cells: list[str]) -> list[str] | None:
    """The titles of all columns; R writes none for the names of rows."""
    as_r_writes = header is not None and len(header) == len(cells) - 1 and cells[-1].strip()
    return ["", *header] if header is not None and as_r_writes else header


def _advise_on_cell(cell: str, unnamed: bool, first: bool) -> str:
    """What to do about a cell that is no number, in a table without names or in one with."""
    text = cell.strip()
    if parse_number(text.replace(",", ".", 1)) is not None:
        return "write decimals with points"
    missing = text.lower() in MISSING
    names = "if these are names of the points, --index-col takes the column for them; "
    remedy = "fill in values that are missing" if missing else "leave out columns that hold no numbers"
    return (names if unnamed and (first or not missing) else "") + remedy


def _are_edges(cells: list[str], *titles: tuple[str, str, str]) -> bool:
    """Whether a header is that of a list of edges."""
    found = tuple(cell.strip().lower() for cell in cells)
    return any(found in (each, each[:2]) for each in titles)


def _read_edges(rows: Iterator[tuple[int, list[str]]], limit: int, headed: bool) -> Named:
    """The graph of a list of edges u, v, or u, v, w, each of which goes both ways, as a symmetric CSR matrix, with the
    names of its nodes. Integers are sorted; if they only count the nodes, these have no names. A first line that may be
    a header, if none was found, is warned of."""
    place, ends, weights, texts = dict[str, int](), array("q"), array("d"), 0
    for line, cells in rows:
        if len(cells) not in (2, 3):
            raise ValueError(f"line {line} must hold an edge, two nodes and perhaps a weight, got {len(cells)} cells")
        weight = 1.0 if len(cells) == 2 else parse_number(cells[2])
        if weight is None or not isfinite(weight):
            raise ValueError(f"line {line} holds {cells[2][:20]!r}, not a finite number as the weight of an edge")
        for node in (cell.strip() for cell in cells[:2]):
            if not node:
                raise ValueError(f"line {line} must name both nodes of an edge, got an empty cell")
            texts += 0 if node in place else len(node)
            ends.append(place.setdefault(node, len(place)))
        weights.append(weight)
        guards.refuse_oversized("it", len(ends) + len(weights) + texts // 8, limit)
    if not weights:
        raise ValueError("it holds no edges")
    names, count = list(place), len(place)
    i, j = np.frombuffer(ends, dtype=np.int64).reshape(-1, 2).T
    if all(name.isdecimal() for name in names):
        order = sorted(range(count), key=lambda at: int(names[at]))
        rank = np.argsort(order)
        names, i, j = [names[at] for at in order], rank[i], rank[j]
    low, high, given = np.minimum(i, j), np.maximum(i, j), np.frombuffer(weights)
    _, first, which = np.unique(low * count + high, return_index=True, return_inverse=True)
    other = np.flatnonzero(given != given[first][which])
    if len(other):
        ends_of = names[i[other[0]]], names[j[other[0]]]
        raise ValueError(
            f"it must have one weight for each edge, which goes both ways, got {given[first][which][other[0]]:g} and "
            f"{given[other[0]]:g} between {ends_of[0]!r} and {ends_of[1]!r}"
        )
    if not headed and count > 2 and not any(name.isdecimal() for name in names[:2]) and (low < 2).sum() == 1:
        shown = ", ".join(names[:2])
        warn_caller(
            f"no other edge has a node of line 1, {shown!r}; if that line is a header, leave it out, or call its "
            f"columns source,target",
            TorchGWWarning,
        )
    low, high, given = low[first], high[first], given[first]
    apart = low != high
    both = (np.concatenate((low, high[apart])), np.concatenate((high, low[apart])))
    graph = csr_array((np.concatenate((given, given[apart])), both), shape=(count, count))
    return graph, None if names == [str(at) for at in range(count)] else names


def _is_header(cells: list[str]) -> bool:
    """Whether a line names columns: no cell is a number, or they count the columns that stand after an index."""
    counts = len(cells) > 1 and validate.is_index(cells[0]) and cells[1:] == [str(i) for i in range(len(cells) - 1)]
    return bool(cells) and (counts or all(parse_number(cell) is None for cell in cells))


def _find_index_column(index: str, header: list[str] | None, width: int) -> int:
    """The place of the column that was named as the index."""
    titles = [title.strip() for title in header or ()]
    if titles.count(index) != 1:
        found = f"a header with {', '.join(map(repr, titles))}" if titles else "no header line"
        raise ValueError(f"it must have one column called {index!r}, as --index-col says, got {found}")
    if len(titles) != width:
        raise ValueError(f"it must have a title for each column, got {len(titles)} titles and {width} columns")
    return titles.index(index)


def _column_of_names(header: list[str] | None, cells: list[str]) -> int | None:
    """0 where a table begins with a name, else None; refused where its header calls numbers an index."""
    if len(cells) == 1:
        return None
    for place, (title, cell) in enumerate(zip(header or (), cells, strict=False)):
        if validate.is_index(title) and parse_number(cell) is not None:
            called = f"is called {title.strip()}" if title.strip() else "has no name"
            raise ValueError(
                f"column {place + 1} {called} and holds numbers, like an index: `--index-col "
                f"{shlex.quote(title.strip())}` takes it for names of the points; leave it out of the file "
                f"{WITHOUT_INDEX}, or rename it if it is a coordinate"
            )
    return 0 if _is_name(cells[0]) else None


def _is_name(cell: str) -> bool:
    """Whether a cell is taken for a name without being called one; 1,000 and 1_000 may be numbers that were meant."""
    return parse_number(cell) is None and any(map(str.isalpha, cell))


def read_table(name: str, path: Path, limit: int) -> tuple[list[int], list[list[str]]]:
    """The numbers of the lines of a .csv or .tsv file, at least one, and their cells as text, equally many in each.

    Raises
    ------
    ValueError
        Naming the file and what is wrong with it, in one line.
    """
    with guards.guard_reading(name, path, *DELIMITERS):
        guards.refuse_oversized("it", path.stat().st_size, limit)  # a cell takes some eight times its characters
        lines, rows = list[int](), list[list[str]]()
        for line, cells in _iterate_lines(path, limit):
            lines.append(line)
            rows.append([cell.strip() for cell in cells])
            if len(cells) != len(rows[0]):
                raise ValueError(
                    f"it must hold lines of equal length, got {len(rows[0])} and, on line {line}, {len(cells)}"
                )
        if not rows:
            raise ValueError("it holds no lines")
        return lines, rows


def _iterate_lines(path: Path, limit: int) -> Iterator[tuple[int, list[str]]]:
    """Cells of each line that has some, with its number. A line that is longer than a part of the limit is not read to
    its end, and no cell goes on over several."""
    longest = min(LONGEST_LINE, max(limit // 64, 1))
    with path.open(newline="", encoding="utf-8-sig") as file:
        at = 0
        while line := _read_line(file, longest + 1):
            at += 1
            if len(line) > longest:
                raise ValueError(f"line {at} has more than {longest} characters")
            try:
                cells = next(csv.reader([line], delimiter=DELIMITERS[path.suffix], strict=True), [])
            except csv.Error as error:
                raise ValueError(
                    f"line {at} is no line of cells: {error}; quotes end in the line where they begin"
                ) from None
            if len(cells) == 1:
                _check_separator(at, cells[0], path.suffix)
            if cells:
                yield at, cells


def _read_line(file: TextIO, most: int) -> str:
    """The next line, or so many characters of it."""
    try:
        return file.readline(most)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"it must be text in UTF-8, got other bytes ({error.encoding}: {error.reason}); save it as UTF-8"
        ) from None


def _check_separator(at: int, cell: str, suffix: str) -> None:
    """A line of one cell that holds what separates cells elsewhere."""
    if ";" in cell:
        raise ValueError(f"line {at} is separated by semicolons; write it with commas, and decimals with points")
    if "\t" in cell and suffix == ".csv":
        raise ValueError(f"line {at} is separated by tabs; call the file .tsv")
    if "," in cell and suffix == ".tsv":
        raise ValueError(f"line {at} is separated by commas; call the file .csv")
    if len(parts := cell.split()) > 1 and None not in map(parse_number, parts):
        mark = "commas" if suffix == ".csv" else "tabs"
        raise ValueError(
            f"line {at} has {len(parts)} numbers in a cell; put {mark} between columns, no spaces into numbers"
        )


def parse_number(cell: str) -> float | None:
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


def read_cell_names(name: str, path: Path, limit: int) -> list[str] | None:
    """The names of the cells in an .h5ad file; None where they only count them, or are not unique."""
    with guards.guard_reading(name, path, ".h5ad"):
        import h5py

        with h5py.File(path, "r") as file:
            obs = guards.member_of(file, "obs")
            if not isinstance(obs, h5py.Group):
                return None
            title = "_index" if guards.member_of(obs, "_index") is not None else _read_attribute(obs, "_index", ())
            found = guards.member_of(obs, title) if isinstance(title, str) else None
            if isinstance(found, h5py.Group):  # texts of which some may be missing
                found = guards.member_of(found, "values")
            names: list[str] = guards.read_texts(found, "obs_names", limit).tolist()
    if fault := find_fault(names):
        warn_caller(f"the cells of {path} are matched without names, which are not unique: {fault}", TorchGWWarning)
        return None
    return None if names == [str(at) for at in range(len(names))] else names


def _read_sparse_cells(group: Any, what: str, limit: int) -> Array:
    """The dense array of a group of HDF5 that holds a sparse one."""
    found = {part: guards.member_of(group, part) for part in PARTS["csr"]}
    if None in found.values():
        raise ValueError(f"{what} must be an array, dense or in the format csr or csc, got a group without these parts")
    shape = _read_shape(np.asarray(_read_attribute(group, "shape", (2,))))
    stored = sum(getattr(part, "size", None) or 0 for part in found.values())
    guards.refuse_oversized(what, shape[0] * shape[1] + stored, limit, shape)
    kinds = (guards.NUMBERS, guards.INTEGERS, guards.INTEGERS)
    parts = {
        part: guards.read_dataset(found[part], f"{what}/{part}", limit, k)
        for part, k in zip(PARTS["csr"], kinds, strict=True)
    }
    dense: Array = guards.sparse_matrix(
        _compression_format(group, parts["indptr"].size - 1, shape), parts, shape
    ).toarray()
    return dense


def _compression_format(group: Any, count: int, shape: tuple[int, int]) -> str:
    """ "csr" or "csc", by the ``count`` of rows or columns; by what the file says only where they are equally many,
    since libhdf5 can hang at broken strings."""
    kinds = [kind for kind, n in zip(("csr", "csc"), shape, strict=True) if n == count]
    if len(kinds) < 2:
        return "".join(kinds) or "csr"
    said = _read_attribute(group, "encoding-type", ())
    return validate.choice("its encoding", said, ("csr_matrix", "csc_matrix"))[:3]


def _read_attribute(group: Any, name: str, shape: tuple[int, ...]) -> Any:
    """An attribute of an HDF5 object, None where there is none of that shape."""
    there = name in group.attrs and group.attrs.get_id(name).shape == shape
    return group.attrs[name] if there else None


READERS: dict[str, Callable[[Path, int], Any]] = {".npy": _read_npy, ".npz": _read_npz, ".h5ad": _read_h5ad}

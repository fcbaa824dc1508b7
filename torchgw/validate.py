"""Checks of user input: every message names the argument, what was expected and what arrived."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from decimal import Decimal
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_array, issparse
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from torchgw import ranges
from torchgw.types import AUTO, Array, is_provider, is_table

SYMMETRY_TOLERANCE = 1e-5
MASS_TOLERANCE = 5e-7
ROUNDINGS = 16
DOUBLE = float(np.finfo(np.float64).eps)
EXACT = 2**53
OTHER_DEVICES = {  # of torch, and why no solve runs there
    "mps": "solves end in float64, which Apple's GPUs do not have",
    "xpu": "Intel's GPUs are not supported",
    "hip": "torch calls AMD's GPUs 'cuda'",
}
INDEX = re.compile(r"(?i:|id|index|unnamed: 0|.*[\W_]id)|.*[a-z]I[dD]")  # titles of columns: gene_id and cellID, too
BLOCK = 256  # of a matrix, which stays in the cache with its mirror image


def choice(name: str, value: object, allowed: Sequence[str]) -> str:
    """A string out of ``allowed``."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {type(value).__name__}")
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return value


def integer(name: str, value: object, *, least: int, most: int | None = None) -> int:
    """An integer in [least, most]; booleans are refused."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__} {value!r}")
    number = int(value)
    if number < least or (most is not None and number > most):
        span = f">= {least}" if most is None else f"in [{least}, {most}]"
        raise ValueError(f"{name} must be {span}, got {number}")
    return number


def real(
    name: str,
    value: object,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    infinite: bool = False,
    hint: str = "",
) -> float:
    """A number, strictly above ``above``, at least ``least`` and at most ``most`` where given; finite by default."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number{hint}, got {type(value).__name__} {value!r}")
    number = float(value)
    bounds = [f"{sign} {bound:g}" for sign, bound in ((">", above), (">=", least), ("<=", most)) if bound is not None]
    inside = (
        (math.isfinite(number) or (infinite and number == math.inf))
        and (above is None or number > above)
        and (least is None or number >= least)
        and (most is None or number <= most)
    )
    if not inside:
        kind = "a number" if infinite else "a finite number"
        raise ValueError(f"{name} must be {kind}{' ' if bounds else ''}{' and '.join(bounds)}, got {number!r}")
    return number


def epsilon(name: str, value: object) -> None:
    """An entropy weight, or "auto"."""
    if not isinstance(value, str):
        real(name, value, least=0.0, most=ranges.LARGEST_EPSILON, hint=f" >= 0 or {AUTO!r}")
    elif value != AUTO:
        raise ValueError(f"{name} must be a number >= 0 or {AUTO!r}, got {value!r}")


def flag(name: str, value: object) -> bool:
    """True or False and nothing else."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {type(value).__name__} {value!r}")
    return bool(value)


def instance(name: str, value: object, kind: type[Any], hint: str = "") -> None:
    """An object of class ``kind``."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIO" else "a"
        arrived = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise TypeError(f"{name} must be {article} {kind.__name__}{hint}, got {arrived}")


def as_numpy(tensor: Tensor) -> Array:
    """The tensor as a NumPy array; floating ones as float64, since NumPy lacks some of their types."""
    found = tensor.detach().cpu().resolve_conj().resolve_neg()  # before it is widened: not every device has float64
    array: Array = (found.double() if found.is_floating_point() else found).numpy()
    return array


def as_tensor(array: Array) -> Tensor:
    """The array as a tensor: a copy where torch cannot share its memory, because it is read-only or runs backwards."""
    shared = array.flags.writeable and all(stride >= 0 for stride in array.strides)
    return torch.from_numpy(array if shared else array.copy())


def dense(name: str, tensor: Tensor) -> None:
    """A tensor whose entries can be read one by one."""
    if tensor.device.type == "meta":
        raise ValueError(f"{name} must be an array of numbers, got a tensor on the meta device, which holds no data")
    if tensor.is_quantized:
        raise TypeError(f"{name} must be a tensor of plain numbers, got a quantised one; take {name}.dequantize()")
    if tensor.is_nested or tensor.layout != torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got a sparse or nested one; to_dense() makes one of sparse")


def read(name: str, value: Any, expected: str = "an array") -> Array:
    """What any array-like holds, in the machine's byte order: the one place where arguments are read.

    Raises
    ------
    ValueError, TypeError
        For what cannot be read, and for masked entries, below which NumPy would read on.
    """
    if np.ma.is_masked(value):
        raise ValueError(f"{name} must have a number everywhere, got masked entries; fill or remove them")
    if issparse(value):
        raise TypeError(f"{name} must be {expected}, got a SciPy sparse matrix; take {name}.toarray()")
    if is_networkx(value):
        raise TypeError(
            f"{name} must be {expected}, got a graph of networkx, {type(value).__name__}; take "
            f"networkx.to_numpy_array({name}), or distances from it"
        )
    try:
        if isinstance(value, Tensor):
            dense(name, value)
            return as_numpy(value)
        if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
            return as_numpy(from_dlpack(value))
        array = np.asarray(value)
        if (kinds := _kinds_of_columns(value)) and kinds <= set("fiub"):
            whole_as_floats = array.dtype.kind == "f" and not kinds.isdisjoint("iu")
            if array.dtype == object or whole_as_floats:
                numbers_of_columns = _numbers_of_columns(name, value)
                array = array if whole_as_floats else numbers_of_columns
    except RuntimeError as error:  # of tensors in a list
        raise ValueError(
            f"{name} must be {expected}, got an unreadable one ({error}); torch.stack makes one tensor of several"
        ) from None
    except (TypeError, ValueError, BufferError) as error:
        if isinstance(value, Tensor):
            raise
        raise ValueError(f"{name} must be {expected}, got an unreadable one ({error})") from None
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _kinds_of_columns(value: Any) -> set[str]:
    """The kinds of NumPy's dtypes that the columns of a data frame have, nothing of what is none."""
    dtypes = getattr(value, "dtypes", ()) if hasattr(value, "to_numpy") else ()
    return {getattr(dtype, "kind", "O") for dtype in dtypes} if np.iterable(dtypes) else set()


def _numbers_of_columns(name: str, value: Any) -> Array:
    """The numbers of a data frame whose columns have no dtype in common; NaN where one is missing."""
    found: Array = value.to_numpy(np.float64, na_value=np.nan)
    whole = [dtype.kind in "iu" for dtype in value.dtypes]
    exact(name, float(np.abs(np.nan_to_num(found[:, whole])).max(initial=0)))
    return found


def is_missing(value: Any) -> bool:
    """None, NaN, a masked entry, and what pandas has for nothing."""
    try:
        return value is None or value is np.ma.masked or bool(value != value)
    except TypeError:  # pandas.NA has no truth
        return True
    except (ValueError, RuntimeError):  # of arrays and tensors with several entries
        return False


def is_hashable(value: Any) -> bool:
    """Whether a value can be looked up; a tuple can by what it holds."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


def labels(name: str, values: Iterable[Any]) -> list[Any]:
    """Labels, one for each point, that can be looked up or are missing."""
    arrays = np.ndarray | Tensor
    present = (None if value is np.ma.masked else value for value in values)
    listed = [value.item() if isinstance(value, arrays) and value.ndim == 0 else value for value in present]
    for value in listed:
        if isinstance(value, arrays) or not (is_missing(value) or is_hashable(value)):
            raise TypeError(
                f"{name} must hold texts, numbers or tuples of these, got a {type(value).__name__}, {str(value)[:40]!r}"
            )
    return listed


def shape_of(space: Any) -> tuple[int, ...]:
    """The shape of an array-like; () for what has none, which validation then names."""
    try:
        return tuple(space.shape if hasattr(space, "shape") else np.shape(space))
    except (TypeError, ValueError, RuntimeError):
        return ()


def _numbers(name: str, value: object, n_dim: int, shape: str, copy: bool = True) -> Array:
    """``value`` as a float64 array of ``n_dim`` dimensions; without ``copy`` it can be the caller's own."""
    array = read(name, value, f"an array of shape {shape}")
    if array.dtype.kind not in "fiub":
        texts = array.dtype.kind in "SU"
        what = f"{type(value).__name__} of {'texts' if texts else f'dtype {array.dtype}'}"
        taken = f"{name}.to_numpy(float)" if hasattr(value, "to_numpy") else f"np.asarray({name}, dtype=float)"
        what += f"; if all of them are numbers, take {taken}" if texts or array.dtype == object else ""
        what += _columns_of_texts(name, value)
        raise TypeError(f"{name} must be an array of real numbers of shape {shape}, got {what}")
    if array.ndim != n_dim:
        hint = "; one number for each row goes as a column, x[:, None]" if (array.ndim, n_dim) == (1, 2) else ""
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}{hint}")
    found = array.astype(np.float64, copy=copy)
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        exact(name, float(np.abs(found).max(initial=0.0)))
    return found


def _columns_of_texts(name: str, value: Any) -> str:
    """What to do about the columns of a table that hold no numbers, beside some that do; nothing for all else."""
    columns = list(value.columns) if is_table(value) else []
    other = [column for column in columns if np.asarray(value[column]).dtype.kind not in "fiub"]
    if not 0 < len(other) < len(columns):
        return ""
    hint = f", or leave out {', '.join(map(repr, other[:5]))}, which cost= or labels= compare by name"
    if len(other) > 1 or not hasattr(value, "set_index"):
        return hint
    return f"{hint}; set_index({other[0]!r}) takes it for names of the points"


def is_index(title: str) -> bool:
    """Whether a column with this title is an index by its name, such as id or gene_id, or by having none."""
    return INDEX.fullmatch(title.strip()) is not None


def _refuse_index(name: str, value: Any) -> None:
    """Refuse a table with a column of numbers beside others that is an index by its name."""
    columns = list(value.columns) if is_table(value) else []
    for column in columns if len(columns) > 1 else ():
        if isinstance(column, str) and is_index(column) and np.asarray(value[column]).dtype.kind in "fiu":
            named = f"set_index({column!r}) takes it for names of the points; " if hasattr(value, "set_index") else ""
            raise ValueError(
                f"{name} must hold coordinates, got a column called {column!r} that holds numbers, like an index: "
                f"{named}leave it out, or rename it if it is a coordinate"
            )


def exact(name: str, largest: float) -> None:
    """Refuse integers that float64 would round, by the largest absolute one."""
    if largest > EXACT:
        raise ValueError(
            f"{name} must have integers of at most {EXACT:g}, up to which float64 holds each, got "
            f"{Decimal(largest):.6g}; take their smallest off, or floats if rounding does no harm"
        )


def has_condensed_length(length: int) -> bool:
    """Whether there are n (n - 1) / 2 numbers, for some n > 3, as many as pairs of n points."""
    n = (1 + math.isqrt(1 + 8 * length)) // 2
    return n > 3 and n * (n - 1) // 2 == length


def count_bad(array: Array) -> str:
    """How many entries are NaN or infinite, in words."""
    return f"{int(np.isnan(array).sum())} NaN and {int(np.isinf(array).sum())} infinite entries"


def points(name: str, value: object, least: int = 1, first: int = 0) -> Array:
    """Finite points (N, D) with N >= ``least``, as float64; float64 arrays as they are, not to be written to. Messages
    count rows from the ``first``, which arrays that are part of others begin with."""
    _refuse_index(name, value)
    array = _numbers(name, value, 2, "(N, D)", copy=False)
    if array.shape[0] < least:
        raise ValueError(f"{name} must hold at least {least} point{'s' * (least > 1)}, got shape {array.shape}")
    if array.shape[1] < 1:
        raise ValueError(f"{name} must have at least one coordinate for each point, got shape {array.shape}")
    largest = max(float(array.max()), -float(array.min()))  # and no copy where all are
    if not math.isfinite(largest):
        row, column = np.argwhere(~np.isfinite(array))[0]
        raise ValueError(
            f"{name} must be finite, got {count_bad(array)}, the first in row {first + row}, column {column}"
        )
    ranges.sizes(name, largest)
    return array


def distance_matrix(name: str, value: object) -> Array:
    """A symmetric non-negative matrix (N, N) with N >= 1 and a zero diagonal, as float64.

    Infinite entries off the diagonal mean "not connected" and are allowed. Asymmetry, a diagonal and negative entries
    as small as the input's dtype rounds are mended; a float64 array with none comes back as it is, not to be
    written to.
    """
    tolerance = max(SYMMETRY_TOLERANCE, resolution_of(value) ** 0.5)
    array = _numbers(name, value, 2, "(N, N)", copy=False)
    if array.shape[0] != array.shape[1]:
        raise ValueError(f"{name} must be a square distance matrix (N, N), got shape {array.shape}")
    if array.shape[0] < 1:
        raise ValueError(f"{name} must hold at least 1 point, got shape {array.shape}")
    least = float(array.min())
    if math.isnan(least):
        row, column = np.argwhere(np.isnan(array))[0]
        raise ValueError(f"{name} must not contain NaN, got {count_bad(array)}, the first NaN at ({row}, {column})")
    largest = largest_finite(array)
    if least < -ROUNDINGS * max(resolution_of(value), DOUBLE) * largest:
        raise ValueError(
            f"{name} is square, so it must be a non-negative distance matrix, got a smallest entry of {least:g}; "
            f"np.maximum({name}, 0) mends rounding, and 1 - {name} makes distances of correlations; {_otherwise(name)}"
        )
    ranges.sizes(name, largest, most=math.inf)
    if (gap := _asymmetry(array)) > tolerance * largest:
        raise ValueError(
            f"{name} must be a symmetric distance matrix, got entries that differ by {gap:g}; {_otherwise(name)}"
        )
    if (worst := float(np.abs(array.diagonal()).max())) > tolerance * largest:
        raise ValueError(
            f"{name} must have a zero diagonal (distances, not similarities), got {worst:g} on it; {_otherwise(name)}"
        )
    if gap > 0 or worst > 0 or least < 0:
        array = np.maximum(array, 0.0)
        for one, other in _mirror_blocks(array):
            one[:] = other[:] = one / 2 + other / 2  # first: the sum of two large ones would not be finite
        np.fill_diagonal(array, 0.0)
    return array


def largest_finite(array: Array) -> float:
    """The largest finite entry of a non-negative array, 0 where there is none."""
    largest = float(array.max())
    return largest if largest < math.inf else float(array.max(where=np.isfinite(array), initial=0.0))


def _mirror_blocks(array: Array) -> Iterator[tuple[Array, Array]]:
    """The blocks (view) on and above the diagonal of a square array, each with the mirror image of its entries."""
    starts = range(0, len(array), BLOCK)
    for i, j in ((i, j) for i in starts for j in starts if i <= j):
        rows, columns = slice(i, i + BLOCK), slice(j, j + BLOCK)
        yield array[rows, columns], array[columns, rows].T


def _asymmetry(array: Array) -> float:
    """The most that two mirrored entries of a square array differ; two infinite ones do not."""
    gap = 0.0
    for one, other in _mirror_blocks(array):
        with np.errstate(invalid="ignore"):  # of two infinite ones
            apart = np.abs(one - other)
        largest = float(apart.max())
        if math.isnan(largest):
            largest = float(np.where(np.isinf(one) & np.isinf(other), 0.0, apart).max())
        gap = max(gap, largest)
    return gap


def _otherwise(name: str) -> str:
    """What a square array may be instead of distances."""
    return (
        f"distances='adjacency' (AdjacencyDistances) takes {name} as it is, directed edges and similarities included; "
        f"if its rows are points, pass distances='landmark' or 'euclidean'"
    )


def graph(name: str, value: Any) -> Any:
    """A symmetric SciPy sparse matrix (N, N) of finite non-negative edge lengths, N >= 1, as float64 CSR.

    Arrays of a float64 CSR matrix without repeated entries come back as they are, not to be written to.
    """
    if not issparse(value):
        raise TypeError(f"{name} must be a SciPy sparse graph, such as csr_array(D), got {type(value).__name__}")
    if value.ndim != 2 or value.shape[0] != value.shape[1] or value.shape[0] < 1:
        raise ValueError(
            f"{name} must be a square sparse graph (N, N), N >= 1, got shape {tuple(value.shape)}; of points with "
            f"coordinates, such as cells by genes, take {name}.toarray()"
        )
    csr = _csr(name, value, "edge lengths")
    if not np.isfinite(csr.data).all():
        raise ValueError(f"{name} must have finite edge lengths, got {count_bad(csr.data)}")
    if (csr.data < 0).any():
        raise ValueError(f"{name} must have non-negative edge lengths, got {csr.data.min():g}; {_otherwise(name)}")
    ranges.sizes(f"{name}.data", float(csr.data.max(initial=0.0)))
    turned = csr.T.tocsr()
    mutual = np.array_equal(csr.indptr, turned.indptr) and np.array_equal(csr.indices, turned.indices)
    if not mutual or (np.abs(csr.data - turned.data) > SYMMETRY_TOLERANCE * turned.data).any():
        what = "edge lengths that differ between the two directions" if mutual else "edges without their reverse"
        raise ValueError(
            f"{name} must be a symmetric graph, got {what}; {name}.maximum({name}.T) makes edges mutual, and "
            f"distances='adjacency' compares them as they are"
        )
    return csr


def adjacency(name: str, value: Any, weight: str | None = "weight") -> Any:
    """A square matrix (N, N) of finite real numbers, N >= 1, not all of them zero, with any diagonal, signs and
    directions: float64, a CSR matrix of SciPy's sparse ones and of networkx's graphs, an array of all else.

    Differences between the two directions that are as small as the input's dtype rounds are mended. ``weight`` is the
    attribute of networkx's edges that counts, see `adjacency_of`.
    """
    if is_networkx(value):
        value = adjacency_of(name, value, weight)
    found = _csr(name, value, "numbers") if issparse(value) else _numbers(name, value, 2, "(N, N)", copy=False)
    if found.shape[0] != found.shape[1]:
        raise ValueError(f"{name} must be a square adjacency matrix (N, N), got shape {tuple(found.shape)}")
    if found.shape[0] < 1:
        raise ValueError(f"{name} must hold at least 1 point, got shape {tuple(found.shape)}")
    entries: Array = np.asarray(found.data) if issparse(found) else found
    if not np.isfinite(entries).all():
        raise ValueError(f"{name} must be finite, got {count_bad(entries)}")
    largest = float(np.abs(entries).max(initial=0.0))
    if largest == 0 and found.shape[0] > 1:
        raise ValueError(f"{name} must have an entry that is not zero, got a graph without edges: all plans are alike")
    ranges.sizes(name, largest)
    gap = float(abs(found - found.T).max())
    return (found / 2 + found.T / 2) if 0 < gap <= ROUNDINGS * resolution_of(value) * largest else found


_NETWORKX = ("edges", "is_directed", "is_multigraph")
# What objects of other packages are, by members that they all have, and what of them to pass; the first that fits.
_EDGES = "; for distances along a surface, a sparse graph of the lengths of the edges of its faces"
_OBJECTS = (
    (("obsm",), "cells", "torchgw.anndata.align(a, b) aligns cells, or take {name}.obsm['X_pca']"),
    (
        _NETWORKX,
        "a graph of networkx",
        "give it with distances='adjacency', which compares edges, or as networkx.to_scipy_sparse_array({name}), whose "
        "shortest paths count",
    ),
    (
        ("get_adjacency_sparse",),
        "a graph of igraph",
        "give {name}.get_adjacency_sparse(), with distances='adjacency' to compare edges, without for shortest paths",
    ),
    (
        ("edge_index",),
        "a graph of torch_geometric",
        "give torch_geometric.utils.to_scipy_sparse_matrix({name}.edge_index, num_nodes={name}.num_nodes), with "
        "distances='adjacency' to compare edges, without for shortest paths",
    ),
    (("vertices", "faces"), "a mesh", "{name}.vertices are its points" + _EDGES),
    (("vertices", "triangles"), "a mesh", "numpy.asarray({name}.vertices) are its points" + _EDGES),
    (("coordinates", "faces"), "a mesh", "{name}.coordinates are its points" + _EDGES),
    (("points", "faces"), "a mesh", "numpy.asarray({name}.points) are its points" + _EDGES),
    (("points",), "a cloud of points", "give numpy.asarray({name}.points)"),
    (("vertices",), "a cloud of points", "give numpy.asarray({name}.vertices)"),
)


def own_kind(name: str, value: Any, distances: str) -> None:
    """Refuse an object of another package that is no array, with what of it to pass."""
    if is_provider(value) or is_table(value) or (distances == "adjacency" and is_networkx(value)):
        return
    for members, what, advice in _OBJECTS:
        if all(hasattr(value, member) for member in members):
            kinds = "an array, a sparse graph or a provider"
            raise TypeError(f"{name} must be {kinds}, got {what}, {type(value).__name__}; {advice.format(name=name)}")


def is_networkx(value: Any) -> bool:
    """Whether this object is a graph of networkx, which is not imported for it."""
    return all(hasattr(value, member) for member in _NETWORKX)


def adjacency_of(name: str, graph: Any, weight: str | None) -> Any:
    """The adjacency of a networkx graph as SciPy CSR: nodes in their order, an attribute of edges, parallel edges added
    up. Without an attribute each edge counts 1, and so does one that has no "weight"; others must be there."""
    place = {node: i for i, node in enumerate(graph)}
    default = 1 if weight == "weight" else None
    listed = ((u, v, 1) for u, v in graph.edges()) if weight is None else graph.edges(data=weight, default=default)
    edges = [(place[u], place[v], entry) for u, v, entry in listed]
    if not edges and len(place) != 1:
        raise ValueError(f"{name} must have edges, got a networkx graph of {len(place)} nodes without any")
    row, column, given = zip(*edges, strict=True) if edges else ((), (), ())
    lacking = next((edge for edge in edges if edge[2] is None), None)
    if lacking is not None:
        u, v = (list(place)[at] for at in lacking[:2])
        raise ValueError(
            f"{name} must have the attribute {weight!r} on each edge, as options.spaces.weight says, got none on "
            f"({u!r}, {v!r}); SpaceOptions(weight=None) counts each edge 1"
        )
    weights = read(name, given, f"a graph with real numbers as the attribute {weight!r} of its edges")
    if weights.dtype.kind not in "fiub" or weights.ndim != 1:
        what = f"{type(given[0]).__name__} of dtype {weights.dtype}"
        raise TypeError(f"{name} must have real numbers as the attribute {weight!r} of its edges, got {what}")
    i, j = np.array(row, dtype=np.int64), np.array(column, dtype=np.int64)
    if not graph.is_directed():
        other = i != j
        i, j, weights = (np.concatenate((one, two[other])) for one, two in ((i, j), (j, i), (weights, weights)))
    return coo_array((weights.astype(np.float64), (i, j)), shape=(len(place), len(place))).tocsr()


def _csr(name: str, value: Any, entries: str) -> Any:
    """A SciPy sparse matrix as float64 CSR without repeated entries; such a one comes back as it is, not to be written
    to."""
    if value.ndim != 2:
        raise ValueError(f"{name} must be a square sparse graph (N, N), got shape {tuple(value.shape)}")
    if value.dtype.kind not in "fiub":
        raise TypeError(f"{name} must hold real {entries}, got dtype {value.dtype}")
    try:
        found = _fitting(value)
    except ValueError as error:
        raise ValueError(f"{name} must be a sparse graph whose indices fit its shape, got: {error}") from None
    csr = found.tocsr().astype(np.float64, copy=False)
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    return csr


def _fitting(value: Any) -> Any:
    """The same arrays in a matrix of its own, since checks mend what they see; SciPy follows indices wherever they
    point."""
    if value.format == "coo":
        return type(value)((value.data, (value.row, value.col)), shape=value.shape)
    found = copy(value) if hasattr(value, "check_format") else value.tocsr()
    found.check_format(full_check=True)
    return found


def looks_like_distances(array: Array) -> bool:
    """Whether points (N, N) are in truth a distance matrix: symmetric, non-negative, zero on the diagonal."""
    square = array.shape[0] == array.shape[1] > 1
    return square and not array.diagonal().any() and bool((array >= 0).all()) and bool((array == array.T).all())


def resolution_of(value: object) -> float:
    """Rounding unit of an array's own dtype, of a table that to which its columns are read; 0 for integers and for
    what has none."""
    dtype = np.asarray(value.iloc[:0]).dtype if hasattr(value, "iloc") else getattr(value, "dtype", None)
    if isinstance(dtype, torch.dtype):
        return torch.finfo(dtype).eps if dtype.is_floating_point else 0.0
    return float(np.finfo(dtype).eps) if isinstance(dtype, np.dtype) and dtype.kind == "f" else 0.0


def check_neighbour_count(name: str, k: int, n: int) -> None:
    """A neighbour count below the number of points."""
    if k >= n:
        raise ValueError(f"k must be smaller than the number of points of {name}, got k = {k} and N = {n}; lower k")


def masses(name: str, value: object, n: int, letter: str) -> Array:
    """Finite non-negative masses (n,) with a positive sum, as float64, see `ranges.masses`; uniform when None."""
    if value is None:
        return np.full(n, 1.0 / n)
    array = _numbers(name, value, 1, f"({letter},) = ({n},)")
    if array.shape != (n,):
        raise ValueError(f"{name} must have shape ({letter},) = ({n},), got {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got {count_bad(array)}")
    if (array < 0).any():
        raise ValueError(f"{name} must be non-negative, got a smallest mass of {array.min():g}")
    return ranges.masses(name, array)


def same_mass(a: float, b: float) -> None:
    """Sums of p and q that agree, as the balanced problem needs."""
    if abs(a - b) / max(a, b) > MASS_TOLERANCE:
        found, remedy = f"sum(p) = {a:.9g} and sum(q) = {b:.9g}", "take p / p.sum() and q / q.sum() in float64"
        raise ValueError(f"p and q must sum alike, got {found}; {remedy}, or use other marginals=")


def pairs(name: str, value: object, n: int, k: int) -> Tensor:
    """Matching pairs (m, 2) of indices below N and K, m >= 1, as int64."""
    array = _numbers(name, value, 2, "(m, 2)")
    if len(array) == 0:
        raise ValueError(f"{name} must hold at least one matching pair, got shape {array.shape}")
    if array.shape[1] != 2 or ((wrong := (array % 1 != 0) | (array < 0) | (array >= (n, k))).any()):
        found = f"shape {array.shape}" if array.shape[1] != 2 else "({:.16g}, {:.16g})".format(*array[wrong.any(1)][0])
        raise ValueError(f"{name} must hold pairs of indices below ({n}, {k}), got {found}")
    return torch.from_numpy(array.astype(np.int64))


def plan(name: str, value: object, n: int, k: int) -> Tensor:
    """A finite non-negative plan (N, K) with some mass, as float64, over its largest entry."""
    array = _numbers(name, value, 2, f"(N, K) = ({n}, {k}), or integer pairs (m, 2)")
    if array.shape != (n, k):
        found = f"shape {array.shape} of dtype {getattr(value, 'dtype', 'unknown')}"
        raise ValueError(f"{name} must be a plan of shape (N, K) = ({n}, {k}) or integer pairs (m, 2), got {found}")
    if not np.isfinite(array).all() or (array < 0).any() or array.max() == 0:
        found = f"{count_bad(array)}, {int((array < 0).sum())} negative ones, and a largest of {array.max():g}"
        raise ValueError(f"{name} must be finite and non-negative with a positive sum, got {found}")
    return torch.from_numpy(array / array.max())


def cost(name: str, value: object, n: int, k: int) -> Array:
    """A finite, non-negative linear cost (N, K), as float64."""
    array = _numbers(name, value, 2, f"(N, K) = ({n}, {k}), or a pair of feature arrays")
    if array.shape != (n, k):
        wanted = f"a matrix of shape (N, K) = ({n}, {k}) or a pair of feature arrays"
        raise ValueError(f"{name} must be {wanted}, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got {count_bad(array)}; pairs are forbidden by supervision=")
    if (array < 0).any():
        raise ValueError(
            f"{name} must be non-negative, got a smallest entry of {array.min():g}; take it off all entries, which "
            f"changes no plan of given mass"
        )
    return array


def kind_of_device(name: str, value: object) -> torch.device:
    """A torch device of a kind that solves run on, here or on another machine."""
    if not isinstance(value, str | torch.device):
        raise TypeError(f"{name} must be a string or torch.device, got {type(value).__name__}")
    try:
        found = torch.device(value)
    except RuntimeError:
        raise ValueError(
            f"{name} must name a torch device such as 'cpu' or 'cuda:0', got {value!r}; leave it out to have one chosen"
        ) from None
    if found.type not in ("cpu", "cuda"):
        why = OTHER_DEVICES.get(found.type, "no other devices are supported")
        raise ValueError(f"{name} must be 'cpu' or 'cuda', got {str(found)!r}: {why}; use 'cpu'")
    return found


def device(name: str, value: object) -> torch.device:
    """A torch device that is there."""
    found = kind_of_device(name, value)
    if found.type == "cpu":
        return found
    if why := no_gpu():
        raise ValueError(f"{name} {str(found)!r} is not there: {why}; use 'cpu', or leave it out to have one chosen")
    count = torch.cuda.device_count()
    if (found.index or 0) >= count:
        there = "only 'cuda:0' is" if count == 1 else f"'cuda:0' to 'cuda:{count - 1}' are"
        raise ValueError(f"{name} {str(found)!r} is not there: {there}; use one that is")
    return torch.device("cuda", found.index if found.index is not None else torch.cuda.current_device())


def no_gpu() -> str | None:
    """Why torch sees no GPU, or None where it sees one."""
    if torch.cuda.is_available():
        return None
    if torch.version.cuda or torch.version.hip:
        return "no GPU or driver found"
    return "this build of torch is for CPUs only, install one for your GPU"


def random_state(name: str, value: object) -> None:
    """An int in [0, 2**63), a torch.Generator, a numpy.random.Generator, or None."""
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        integer(name, value, least=0, most=2**63 - 1)
    elif value is not None and not isinstance(value, torch.Generator | np.random.Generator):
        kinds = "an int, a torch.Generator, a numpy.random.Generator or None"
        raise TypeError(f"{name} must be {kinds}, got {type(value).__name__}")


def memory(name: str, needed: int, limit: int, advice: str) -> None:
    """Refuse an allocation over the limit before it is made."""
    if needed > limit:
        raise MemoryError(
            f"{name} would take {needed / 2**30:.3g} GiB, over the limit of {limit / 2**30:.3g} GiB; {advice}, "
            f"or set GWOptions(max_memory=...) in bytes"
        )


def provider(name: str, value: Any) -> None:
    """A distance provider with all its members, at least a point, a positive scale, and a first row that is finite."""
    missing = ", ".join(m for m in ("size", "scale", "stored", "to", "rows", "factors") if not hasattr(value, m))
    if missing:
        raise TypeError(f"{name} has rows but is no DistanceProvider: {type(value).__name__} lacks {missing}")
    size = integer(f"{name}.size", value.size, least=1)
    real(f"{name}.scale", value.scale, above=0.0)
    row = value.to(torch.device("cpu"), torch.float64).rows(torch.tensor([0]))
    if not isinstance(row, Tensor) or tuple(row.shape) != (1, size):
        got = tuple(row.shape) if isinstance(row, Tensor) else type(row).__name__
        raise ValueError(f"{name}.rows must return a tensor (M, N) = (1, {size}) for one index, got {got}")
    if not bool(torch.isfinite(row).all()):
        raise ValueError(f"{name}.rows must be finite, got NaN or infinite distances from point 0")
    ranges.provider_distances(name, float(row.max()))

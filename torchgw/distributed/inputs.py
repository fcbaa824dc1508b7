"""Arguments of ranks: points that stay in their file, and whether all ranks were given the same.

Points in a file are read by the rank that makes their graph.
In the place of points that it does not have, a rank takes an array of their shape without memory: float64 zeros, in
which checks find nothing to say. So the dtype of a file tells none whether its coordinates are rounded to noise.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
import torch

from torchgw import validate
from torchgw.couplings.reader import Readable
from torchgw.runtime.ranks import Ranks
from torchgw.types import Array, is_graph, is_provider

OWN = ("callback", "checkpoint", "device", "random_state")  # which may differ from rank to rank
BYTES = 2**24


def is_in_file(space: Any) -> bool:
    """Whether this is an array that is read when it is sliced: a memory map, or one of zarr or HDF5, as that of an
    AnnData object that is backed."""
    if isinstance(space, np.memmap):
        return True
    sliced = all(hasattr(space, name) for name in ("shape", "dtype", "__getitem__"))
    ours = isinstance(space, np.ndarray | np.generic | torch.Tensor) or is_graph(space) or is_provider(space)
    return sliced and not ours and not hasattr(space, "iloc") and len(space.shape) == 2


def load_spaces(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments, with points in files in memory where some of them have no mass: what ranks share has some."""
    whole = dict[str, Array]()
    for name, mass, letter in zip("XY", "pq", "NK", strict=True):
        if is_in_file(given[name]) and given[mass] is not None:
            checked = validate.masses(mass, given[mass], len(given[name]), letter)
            whole |= {} if checked.all() else {name: np.array(given[name][:])}
    return given | whole


def read_files(given: dict[str, Any], ranks: Ranks) -> dict[str, Any]:
    """The arguments, with points in files read, and validated, by the rank that builds their graph.

    Raises
    ------
    ValueError
        On all ranks, for points that cannot be used.
    """
    in_files = {name: given[name] for name in "XY" if is_in_file(given[name])}
    read = dict[str, Array]()

    def read_points(name: str) -> None:
        if name in in_files:
            read[name] = validate.points(name, _read_rows(in_files[name]))

    for name, space in in_files.items():
        _check_shape(name, space.shape, ranks.count)
    searched = [name for name in "XY" if not is_provider(given[name])]
    ranks.scatter([partial(read_points, name) for name in searched])  # as `torchgw.spaces.shared` deals them
    standing = {name: np.broadcast_to(np.zeros(1), space.shape) for name, space in in_files.items()}
    return given | standing | read


def _check_shape(name: str, shape: tuple[int, ...], count: int) -> None:
    """Refuse, by what all ranks know, files whose contents would have to tell what they are."""
    if len(shape) == 2 and shape[0] == shape[1]:
        raise ValueError(
            f"{name} in a file must not be square, got shape {shape}, which may be points or distances: give it in "
            f"memory, {name}[:]"
        )
    if len(shape) == 2 and shape[0] < max(count, 2):
        raise ValueError(f"{name} must have a point for each rank, and two at least, got {shape[0]} for {count}")


def _read_rows(space: Any) -> Any:
    return space[:] if isinstance(space, np.memmap) else np.asarray(space[:])


def find_differing_arguments(given: dict[str, Any], ranks: Ranks) -> tuple[int, list[str]] | None:
    """A rank that was given other arguments than the first one, and their names; None where all are the same."""
    told = {name: hash_argument(value) for name, value in given.items() if name not in OWN}
    seed = given["random_state"]
    told["random_state"] = hash_argument(int(seed) if isinstance(seed, Integral) else type(seed).__name__)
    every = ranks.scatter([lambda: told] * ranks.count)
    for rank, other in enumerate(every):
        names = [name for name, found in other.items() if found != every[0][name]]
        if names:
            return rank, names
    return None


def hash_argument(value: Any) -> str:
    """The SHA-256 of an argument: of the numbers of arrays, of what records and tuples hold, of the text of others; of
    what is in a file, of its shape and first rows."""
    found = hashlib.sha256()
    for part in _iterate_parts(value):
        found.update(part)
    return found.hexdigest()


def _iterate_parts(value: Any) -> Iterator[bytes | memoryview]:
    if is_in_file(value):
        size = os.path.getsize(value.filename) if isinstance(value, np.memmap) and value.filename else 0
        value = (value.shape, str(value.dtype), size, np.asarray(value[:1]), np.asarray(value[-1:]))
    if isinstance(value, torch.Tensor):
        yield f"{value.dtype}{tuple(value.shape)}".encode()
        value = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    if isinstance(value, Readable):
        value = type(value).__name__  # which is refused
    if is_graph(value):
        graph = value.tocsr()
        value = (graph.shape, graph.data, graph.indices, graph.indptr)
    elif callable(value):
        value = (getattr(value, "__module__", ""), getattr(value, "__qualname__", type(value).__qualname__))
    elif is_provider(value):
        value = (type(value).__name__, value.size, float(value.scale), value.factors())
    elif is_dataclass(value) and not isinstance(value, type):
        value = (type(value).__name__, *(getattr(value, entry.name) for entry in fields(value)))
    elif not isinstance(value, np.ndarray) and hasattr(value, "__array__"):  # a table, say
        value = np.asarray(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        yield f"{value.dtype.str}{value.shape}".encode()
        rows = max(BYTES // max(value[:1].nbytes, 1), 1) if value.ndim else 1
        for first in range(0, len(value) if value.ndim else 1, rows):
            yield np.ascontiguousarray(value[first : first + rows] if value.ndim else value).data.cast("B")
    elif isinstance(value, list | tuple):
        yield f"{len(value)}(".encode()
        for entry in value:
            yield from _iterate_parts(entry)
    else:
        yield repr(value.tolist() if isinstance(value, np.ndarray) else value).encode()

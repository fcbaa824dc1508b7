"""Files are believed only as far as they are checked: what a header declares is compared with a limit in bytes before
any of it is allocated, and streams are read to the declared end and no further.

The limit counts numbers as float64, which is what everything is computed in. Nothing here runs code that a file brings,
and no file leads to another one. What lies below, libhdf5 and zlib, is trusted to survive broken input.
"""

from __future__ import annotations

import io
import math
import os
import stat
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from torchgw.types import Array

NUMBERS = "fiub"
INTEGERS = "iu"
TEXT = "SU"
WANTED = {NUMBERS: "real numbers", INTEGERS: "integers", TEXT: "text", NUMBERS + TEXT: "real numbers or text"}
KINDS = {
    "O": "Python objects; pickled objects are never loaded",
    "V": "records",
    "M": "dates",
    "m": "time spans",
    "c": "complex numbers",
    **dict.fromkeys(TEXT, "text"),
}
BLOCK = 2**20
MOST_MEMBERS, MOST_CHUNKS = 1000, 2**20
SMALL_CHUNK = 2**24
HARMLESS = 2**26
DEFLATE, SHUFFLE, CHECKSUM, LZF = 1, 2, 3, 32000
REFERENCE = np.dtype([("length", "<u4"), ("address", "<u8"), ("index", "<u4")])  # how HDF5 stores a text's place
EXPANSION = {DEFLATE: 1032, LZF: 128}  # the most bytes that one stored byte can become


def one_line(text: object, most: int = 300) -> str:
    """Text for one line of a terminal: what a file brought can hold line ends, control codes and megabytes."""
    start = str(text)[: most + 1]
    shown = " ".join("".join(c if c.isprintable() else " " for c in start).split())
    return shown if len(start) <= most else shown[:most] + "..."


def is_regular(path: Path) -> bool:
    """Whether there is a file of definite size: pipes and devices can hang a reader, or never end."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):  # absent, in a loop of links, out of reach, or no path at all
        return False


@contextmanager
def guard_reading(name: str, path: Path, *suffixes: str) -> Iterator[None]:
    """The context in which a file that nobody vouches for is read.

    Raises
    ------
    ValueError
        In one line that calls it ``name``: before the context where it is no regular file with one of the suffixes, and
        for whatever its reader raises.
    """
    shown = one_line(path, 4096)
    if path.suffix not in suffixes:
        raise ValueError(f"{name} must be a {', '.join(suffixes)} file, got {shown}")
    if not os.path.lexists(path):
        raise ValueError(f"{name}: {shown} is not there")
    if not is_regular(path):
        raise ValueError(f"{name} must be a file that is there, no folder, pipe or device, got {shown}")
    try:
        yield
    except Exception as error:  # what reads broken files raises errors of every kind
        raise ValueError(f"{name}: {shown} cannot be read: {one_line(error) or type(error).__name__}") from error


def refuse_oversized(what: str, count: int, limit: int, shape: object = None) -> None:
    """Refuse ``count`` numbers that would take more than ``limit`` bytes as float64."""
    if 8 * count > limit:
        sizes = f"{min(8 * count, 2**80) / 2**30:.3g} GiB in float64, over the limit of {limit / 2**30:.3g} GiB"
        raise ValueError(f"{what} would take {sizes}" + ("" if shape is None else f", by its shape {shape}"))


def check_kind(what: str, dtype: np.dtype[Any], kinds: str) -> None:
    """Refuse dtypes that are not among ``kinds``, by name."""
    if dtype.kind not in kinds:
        raise ValueError(f"{what} must hold {WANTED[kinds]}, got {KINDS.get(dtype.kind, dtype)}")


def read_npy(stream: BinaryIO, size: int, limit: int, kinds: str = NUMBERS, what: str = "its array") -> Array:
    """The array of a .npy stream that has ``size`` bytes."""
    shape, by_columns, dtype, start = _npy_header(stream, what)
    check_kind(what, dtype, kinds)
    if any(n < 0 for n in shape):
        raise ValueError(f"{what} has a negative length, got shape {shape}")
    count = math.prod(shape)
    promised = count * dtype.itemsize
    refuse_oversized(what, max(count, promised // 8), limit, shape)
    if promised != size - start:
        raise ValueError(f"{what} should take {promised} bytes by its header, got {size - start}")
    flat = np.empty(count, dtype)
    _fill(flat.view(np.uint8), stream)
    return flat.reshape(shape, order="F" if by_columns else "C")


def _npy_header(stream: BinaryIO, what: str) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, whether it is stored by columns, dtype, and the bytes that the header took."""
    begin = stream.read(8)
    version = tuple(begin[6:])
    if begin[:6] != np.lib.format.MAGIC_PREFIX or version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"{what} is no NumPy array")
    code = "<H" if version == (1, 0) else "<I"
    length = stream.read(struct.calcsize(code))
    if len(length) < struct.calcsize(code):
        raise ValueError(f"{what} ends within its header")
    most = struct.unpack(code, length)[0]
    if most > 10_000:
        raise ValueError(f"{what} has a header of {most} bytes, over the limit of 10000")
    header = length + stream.read(most)
    parse = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # headers of Python 2 are read with a warning
            shape, by_columns, dtype = parse(io.BytesIO(header))
    except Exception:  # the parser of Python's own syntax stands behind it, and raises whatever that does
        raise ValueError(f"{what} has a header that is not one of NumPy's") from None
    return shape, by_columns, dtype, len(begin) + len(header)


def _fill(target: Array, stream: BinaryIO) -> None:
    """Read exactly as many bytes as ``target`` has."""
    view, done = target.data, 0
    while done < len(view):
        block = stream.read(min(BLOCK, len(view) - done))
        if not block:
            raise ValueError(f"it ends after {done} of {len(view)} bytes")
        view[done : done + len(block)] = block
        done += len(block)


class BoundedReader(io.BufferedReader):
    """A file of which nobody gets more than a block at once, so that no length that it declares is believed."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > BLOCK:
            raise ValueError(f"it declares a table of {size} bytes, over the limit of {BLOCK}")
        return super().read(size)


def _archive(raw: BoundedReader) -> zipfile.ZipFile:
    """The archive in a file; the end of one says where its members are."""
    if raw.peek(4)[:4] == b"PK\x03\x04" and not zipfile.is_zipfile(raw):
        raise ValueError("it may have been shortened: it begins like a zip archive, but the end is missing")
    return zipfile.ZipFile(raw)


@contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """An archive of a few members with names of their own, none of which is encrypted."""
    with BoundedReader(io.FileIO(path)) as raw, _archive(raw) as archive:
        names = archive.namelist()
        if len(names) > MOST_MEMBERS:
            raise ValueError(f"it holds {len(names)} members, over the limit of {MOST_MEMBERS}")
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ValueError(f"it holds two members called {twice[0]!r}")
        yield archive


def member(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    """What an .npz archive says of its array ``name``."""
    try:
        return archive.getinfo(f"{name}.npy")
    except KeyError:
        raise ValueError(f"it holds no array {name!r}") from None


def read_member(archive: zipfile.ZipFile, name: str, limit: int, kinds: str = NUMBERS) -> Array:
    """The array called ``name`` of an .npz archive."""
    found = member(archive, name)
    if found.flag_bits & 1:
        raise ValueError(f"its array {name!r} is encrypted")
    if found.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"its array {name!r} is compressed by method {found.compress_type}, not deflated or stored")
    with archive.open(found) as stream:
        return read_npy(stream, found.file_size, limit, kinds, f"its array {name!r}")  # type: ignore[arg-type]


def read_arrays(path: Path, limit: int) -> dict[str, Array]:
    """All arrays of an .npz file, of numbers or text, by name; together within twice the limit."""
    with open_zip(path) as archive:
        declared = sum(found.file_size for found in archive.infolist())
        if declared > 2 * limit:
            raise ValueError(f"its arrays would take {declared} bytes together, over the limit of {2 * limit}")
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        return {name: read_member(archive, name, limit, NUMBERS + TEXT) for name in names}


def sparse_matrix(kind: str, parts: Mapping[str, Array], shape: tuple[int, int]) -> Any:
    """A SciPy matrix of format ``kind``, all of whose indices point to where it has something.

    ``parts`` are what SciPy calls them: data and indices, indptr (csr, csc, bsr), row, col (coo), or offsets (dia).
    """
    from scipy import sparse

    if min(shape) < 0:
        raise ValueError(f"its shape must not be negative, got {shape}")
    data, *pointers = parts.values()
    if any(array.ndim != 1 for array in pointers) or data.ndim != {"bsr": 3, "dia": 2}.get(kind, 1):
        raise ValueError(f"its arrays have shapes {[array.shape for array in parts.values()]}, not those of {kind}")
    if kind == "dia":
        if ((pointers[0] >= max(shape)) | (pointers[0] <= -max(shape))).any():
            raise ValueError(f"its offsets must lie within shape {shape}, got {pointers[0].min()}, {pointers[0].max()}")
        return sparse.dia_matrix((data, pointers[0]), shape=shape)
    if kind == "coo":
        return sparse.coo_matrix((data, tuple(pointers)), shape=shape)
    build = {"csr": sparse.csr_matrix, "csc": sparse.csc_matrix, "bsr": sparse.bsr_matrix}[kind]
    made = build(tuple(parts.values()), shape=shape)
    made.check_format(full_check=True)
    return made


def member_of(group: Any, name: str) -> Any:
    """The object ``name`` of an HDF5 group, None where there is none; links to other places are not followed."""
    import h5py

    links, key = group.id.links, name.encode()
    if not links.exists(key):
        return None
    if links.get_info(key).type != h5py.h5l.TYPE_HARD:
        raise ValueError(f"its {name!r} is a link to another place or file, which is not followed")
    return group[name]


def check_tree(file: Any, limit: int, apart: str = "") -> None:
    """Refuse an HDF5 file whose arrays together, but for what is below ``apart``, would take more than ``limit`` bytes,
    lie in other files, or unpack to more than they declare. Texts count by places and lengths, attributes not at all.
    """
    import h5py

    groups, seen, texts, total = [file], set(), [], 0
    while groups:
        group = groups.pop()
        for name in group.id:
            found = member_of(group, name.decode())
            address = h5py.h5o.get_info(found.id).addr
            if isinstance(found, h5py.Group) and address not in seen:
                groups.append(found)
            elif isinstance(found, h5py.Dataset) and found.shape is not None:
                check_dataset(found, found.name, limit)
                aside = apart and (found.name == f"/{apart}" or found.name.startswith(f"/{apart}/"))
                total += 0 if aside else found.nbytes
                texts += [found] if found.dtype.hasobject and address not in seen and not aside else []
            seen.add(address)
    refuse_oversized("what it holds", total // 8, limit)
    refuse_oversized("what it holds", (total + sum(_text_bytes(found, limit) for found in texts)) // 8, limit)


def _text_bytes(found: Any, limit: int) -> int:
    """Bytes of all texts and lists of a dataset, never holding more than ``limit`` of them, whatever places share."""
    if (stored := _references(found)) is not None:
        return int(stored["length"].sum(dtype=np.uint64))
    step = max(1, limit // (Path(found.file.filename).stat().st_size * max(1, found.dtype.itemsize // 8)))
    starts = [slice(start, start + step) for start in range(0, (found.shape or (1,))[-1], step)]
    parts = ((*row, start) if found.ndim else () for row in np.ndindex(found.shape[:-1]) for start in starts)
    return sum(_content_bytes(np.asarray(found[part], found.dtype)) for part in parts)


def _content_bytes(values: Array) -> int:
    """Bytes of the texts and lists in an array that was read."""
    if values.dtype.names:
        return sum(_content_bytes(values[name]) for name in values.dtype.names)
    found = list(values.flat) if values.dtype.kind == "O" else []
    lists = sum(each.nbytes + _content_bytes(each) for each in found if isinstance(each, np.ndarray))
    return lists + sum(len(each) for each in found if isinstance(each, str | bytes))


def _references(found: Any) -> Array | None:
    """What a dataset of texts has at its places, read without the texts; None where it is not stored so plainly."""
    import h5py

    text, settings, whole = h5py.check_string_dtype(found.dtype), found.id.get_create_plist(), found.file.id
    odd = whole.get_create_plist().get_userblock() or whole.get_create_plist().get_sizes() != (8, 8)
    if text is None or odd or settings.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED:
        return None
    if found.chunks is None:
        start = found.id.get_offset()
        read = np.fromfile(found.file.filename, REFERENCE, found.size if start else 0, offset=start or 0)
        return read if len(read) == found.size else None
    masks: dict[Any, int] = {}
    if found.id.chunk_iter(lambda chunk: masks.setdefault(chunk.chunk_offset, chunk.filter_mask) or None):
        return None  # some are not packed, as small ones are
    how = {key: getattr(found, key) for key in ("chunks", "compression", "shuffle")}
    with h5py.File("references", "w", driver="core", backing_store=False) as memory:
        copy = memory.create_dataset("x", found.shape, REFERENCE, **how)
        for start in masks:
            copy.id.write_direct_chunk(start, found.id.read_direct_chunk(start)[1])
        return np.asarray(copy[()])


def read_dataset(found: Any, what: str, limit: int, kinds: str = NUMBERS) -> Array:
    """The array of an HDF5 dataset that lies in its own file and unpacks to what it declares."""
    import h5py

    if not isinstance(found, h5py.Dataset) or found.shape is None:
        raise ValueError(f"{what} must be an array, got {'nothing' if found is None else type(found).__name__}")
    check_kind(what, found.dtype, kinds)
    refuse_oversized(what, found.size, limit, found.shape)
    check_dataset(found, what, limit)
    array: Array = found[()]
    return array


def read_texts(found: Any, what: str, limit: int) -> Array:
    """The texts of an HDF5 dataset, as objects."""
    import h5py

    if not isinstance(found, h5py.Dataset) or h5py.check_string_dtype(found.dtype) is None:
        raise ValueError(
            f"{what} must hold text, got {'nothing' if found is None else getattr(found, 'dtype', 'a group')}"
        )
    check_dataset(found, what, limit)
    refuse_oversized(what, found.size, limit, found.shape)
    refuse_oversized(what, found.size + _text_bytes(found, limit) // 8, limit)
    texts: Array = found.asstr()[()]
    return texts


def check_dataset(found: Any, what: str, limit: int) -> None:
    """Refuse what lies in other files, or unpacks to more than it declares."""
    if found.is_virtual or found.external:
        raise ValueError(f"{what} lies in other files, which are not opened")
    if found.chunks is not None:
        _check_chunks(found, what, limit)


def _check_chunks(found: Any, what: str, limit: int) -> None:
    """Refuse chunks that would unpack to more than they declare: libhdf5 lets them grow without bound."""
    size = math.prod(found.chunks) * found.dtype.itemsize
    if size > max(found.nbytes, SMALL_CHUNK):
        raise ValueError(f"{what} has chunks of shape {found.chunks}, larger than its own {found.shape}")
    if math.prod(-(-n // chunk) for n, chunk in zip(found.shape, found.chunks, strict=True)) > MOST_CHUNKS:
        raise ValueError(f"{what} is cut into more than {MOST_CHUNKS} chunks, got chunks of shape {found.chunks}")
    settings = found.id.get_create_plist()
    filters = [settings.get_filter(i)[0] for i in range(settings.get_nfilters())]
    packers = [code for code in filters if code in EXPANSION]
    if len(packers) > 1 or not set(filters) <= {*EXPANSION, SHUFFLE, CHECKSUM}:
        raise ValueError(f"{what} must be compressed by gzip, lzf or not at all, got HDF5 filters {filters}")
    for where in found.iter_chunks() if packers else ():
        start = tuple(span.start for span in where)
        chunk = found.id.get_chunk_info_by_coord(start)
        packed = chunk.byte_offset is not None and not chunk.filter_mask >> filters.index(packers[0]) & 1
        if not packed or chunk.size * EXPANSION[packers[0]] <= max(limit, HARMLESS):
            continue
        raw = found.id.read_direct_chunk(start)[1] if packers[0] == DEFLATE and chunk.size < 2 * size + 1000 else b""
        if not raw or len(zlib.decompressobj().decompress(raw, size + 1)) > size:
            raise ValueError(f"a chunk of {what} could unpack to more than the {size} bytes that it declares")

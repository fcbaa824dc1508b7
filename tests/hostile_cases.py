"""Broken and hostile files of points, graphs and cells: how each is made, and what its refusal says."""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.problems import ROLL
from torchgw.spaces.graph import neighbour_graph

Maker = Callable[[Path], object]
HOSTILE: dict[str, tuple[Maker, str]] = {}
SENTINEL = "sentinel"
GRAPH = neighbour_graph(ROLL, 5)


def hostile(name: str, reason: str) -> Callable[[Maker], Maker]:
    """Enter a maker of the file ``name``; ``reason`` is a pattern of what the refusal says."""

    def enter(maker: Maker) -> Maker:
        assert name not in HOSTILE
        HOSTILE[name] = maker, reason
        return maker

    return enter


def contents(name: str, reason: str, data: bytes) -> None:
    """Enter a file of these bytes."""
    hostile(name, reason)(lambda path: path.write_bytes(data))


def npy(array: np.ndarray, **header: Any) -> bytes:
    """A .npy file, some of whose header is made up."""
    stream = io.BytesIO()
    if header:
        np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(array) | header)
        return stream.getvalue() + array.tobytes()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def raw_npy(header: bytes, version: int = 1) -> bytes:
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + length + header


class Payload:
    """Unpickled, it makes a file called ``sentinel`` beside the one that it came from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder / SENTINEL),)


def pickled(folder: Path) -> np.ndarray:
    return np.array([[Payload(folder)]], dtype=object)


@hostile("pickle.npy", "pickled objects are never loaded")
def _(path: Path) -> None:
    path.write_bytes(npy(pickled(path.parent)))


contents("garbage.npy", "no NumPy array", b"not numpy at all")
contents("empty.npy", "no NumPy array", b"")
contents("version.npy", "no NumPy array", b"\x93NUMPY\x09\x00" + bytes(100))
contents("cut_header.npy", "ends within its header", b"\x93NUMPY\x01\x00v")
contents("short_header.npy", "header that is not", npy(ROLL)[:60])
contents("long_header.npy", "header of 4294967295 bytes", b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(100))
contents("nested_header.npy", "header that is not", raw_npy(b"(" * 9000))
contents("signs_header.npy", "header that is not", raw_npy(b"{'shape': " + b"-" * 9000 + b"1}"))
contents("call_header.npy", "header that is not", raw_npy(b"__import__('os').mkdir('sentinel')"))
contents("call_in_header.npy", "header that is not", raw_npy(b"{'descr': '<f8', 'shape': (open('sentinel', 'w'),)}"))
contents("keys_header.npy", "header that is not", raw_npy(b"{'descr': '<f8'}"))
contents("digits_header.npy", "header that is not", raw_npy(b"{'shape': (" + b"9" * 9000 + b",)}"))
contents("cut.npy", "should take 1760 bytes .* got 1000", npy(ROLL)[:1128])
contents("longer.npy", "should take 1760 bytes .* got 1768", npy(ROLL) + bytes(8))
contents("huge.npy", "2.98e[+]03 GiB .* limit of 4 GiB", npy(ROLL, shape=(4 * 10**11, 1)))
contents("overflow.npy", "over the limit", npy(ROLL, shape=(2**62, 2**62)))
contents("giant.npy", "over the limit", npy(ROLL, shape=(10**900, 10**900)))
contents("negative.npy", "negative length", npy(ROLL, shape=(-110, -3)))
contents("point.npy", r"rows and columns, got shape \(\)", npy(np.array(1.0)))
contents("line.npy", r"rows and columns, got shape \(9,\)", npy(np.ones(9)))
contents("cube.npy", r"rows and columns, got shape \(2, 2, 2\)", npy(np.ones((2, 2, 2))))
contents("none.npy", r"rows and columns, got shape \(0, 3\)", npy(np.ones((0, 3))))
contents("flat.npy", r"rows and columns, got shape \(1000000000000, 0\)", npy(np.ones(0), shape=(10**12, 0)))
contents("records.npy", "records", npy(np.zeros((2, 2), [("a", "f8"), ("b", "i4")])))
contents("subarrays.npy", "records", npy(ROLL, descr=("<f8", (2,))))
contents("void.npy", "records", npy(np.zeros((2, 2), "V8")))
contents("complex.npy", "complex numbers", npy(ROLL + 1j))
contents("dates.npy", "dates", npy(np.zeros((2, 2), "M8[s]")))
contents("spans.npy", "time spans", npy(np.zeros((2, 2), "m8[s]")))
contents("text.npy", "text", npy(np.array([["1", "2"]])))


def zeros(mebibytes: int, head: bytes = b"", wrapper: int = -15) -> bytes:
    """A deflate stream of ``head`` and that many mebibytes of zeros, made in no time: each is the same block."""
    stream = zlib.compressobj(9, zlib.DEFLATED, wrapper)
    start = stream.compress(head) + stream.flush(zlib.Z_FULL_FLUSH)
    block = stream.compress(bytes(2**20)) + stream.flush(zlib.Z_FULL_FLUSH)
    return start + block * mebibytes + stream.flush()


def archive(name: str, packed: bytes, declared: int, method: int = 8, flags: int = 0, crc: int = 0) -> bytes:
    """A .zip file of one member, all of whose headers are made up."""
    key = name.encode()
    small, large = min(declared, 2**32 - 1), struct.pack("<HHQ", 1, 8, declared)
    extra = large if small != declared else b""
    common = struct.pack("<HHHHHIIIHH", 45, flags, method, 0, 33, crc, len(packed), small, len(key), len(extra))
    local = b"PK\3\4" + common + key + extra + packed
    central = b"PK\1\2" + struct.pack("<H", 45) + common + struct.pack("<HHHII", 0, 0, 0, 0, 0) + key + extra
    return local + central + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local), 0)


def zipped(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        for name, data in members.items():
            file.writestr(name, data)
    return stream.getvalue()


def savez(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


LARGE = npy(np.zeros(0), shape=(10 * 2**17, 1024))  # of 10 GiB
SMALL = npy(np.zeros(0), shape=(2**7, 2**10))  # of 1 MiB


def made_up(head: bytes) -> bytes:
    """A member whose header and whose archive agree on 2 GiB, of which there is one MiB."""
    return archive("X.npy", zeros(1, head), len(head) + 2**31, crc=zlib.crc32(head + bytes(2**20)))


contents("bomb.npz", "10 GiB .* limit of 4 GiB", archive("X.npy", zeros(10 * 2**10, LARGE), len(LARGE) + 10 * 2**30))
contents("header_lies.npz", "by its header", archive("X.npy", zeros(2**10, SMALL), len(SMALL) + 2**30))
contents("size_lies.npz", "CRC", archive("X.npy", zeros(2**10, SMALL), len(SMALL) + 2**20))
contents("both_lie.npz", "ends after 1048576 of 2147483648 bytes", made_up(npy(ROLL[:0], shape=(2**18, 2**10))))
contents("stored_lies.npz", "CRC|ends|EOF", archive("X.npy", npy(ROLL), len(npy(ROLL)) + 8, method=0))
contents("not_deflated.npz", "decompressing", archive("X.npy", bytes(200) + b"junk", 2768))
contents("encrypted.npz", "'X' is encrypted", archive("X.npy", npy(ROLL), len(npy(ROLL)), method=0, flags=1))
contents("bzip2.npz", "compressed by method 12", archive("X.npy", bytes(99), 99, method=12))
contents("unknown.npz", "compressed by method 99", archive("X.npy", bytes(99), 99, method=99))
contents("elsewhere.npz", "holds no array", archive("../../etc/X", npy(ROLL), len(npy(ROLL)), method=0))
contents("absolute.npz", "'/etc/X' is no NumPy array", zipped({"/etc/X.npy": b"root"}))
contents("control.npz", "holds no array", zipped({"\n\x1b[2J\u202e": b""}))
contents("nested.npz", "'X' is no NumPy array", zipped({"X.npy": savez(X=ROLL)}))
contents("members.npz", "2000 members", zipped({f"{i}.npy": b"" for i in range(2000)}))
contents("several.npz", "one array, or one called 'X' or 'points', got .'a', 'b'.", savez(a=ROLL, b=ROLL))
contents("ambiguous.npz", "one array", savez(X=ROLL, points=ROLL))
contents("nothing.npz", "one array", savez())
contents("cut.npz", "may have been shortened", savez(X=ROLL)[:-30])
contents("garbage.npz", "may have been shortened", b"PK\x03\x04 broken")
contents("empty.npz", "not a zip file", b"")
contents("words.npz", "must hold real numbers, got text", savez(X=np.array([["a", "b"]])))


@hostile("pickle.npz", "pickled objects are never loaded")
def _(path: Path) -> None:
    path.write_bytes(zipped({"X.npy": npy(pickled(path.parent))}))


@hostile("table.npz", "a table of 1530000 bytes")
def _(path: Path) -> None:
    whole = archive("X.npy", b"", 0, method=0)
    start = whole.index(b"PK\1\2")
    local, central, end = whole[:start], whole[start:-22] * 30_000, bytearray(whole[-22:])
    end[8:20] = struct.pack("<HHII", 30_000, 30_000, len(central), len(local))
    path.write_bytes(local + central + end)


@hostile("twice.npz", "two members called 'X.npy'")
@pytest.mark.filterwarnings("ignore")
def _(path: Path) -> None:
    path.write_bytes(zipped({"X.npy": npy(ROLL), "Y.npy": npy(ROLL)}).replace(b"Y.npy", b"X.npy"))


@hostile("flipped.npz", ".")
def _(path: Path) -> None:
    whole = bytearray(savez(X=ROLL))
    whole[60:400] = bytes(340)
    path.write_bytes(whole)


def graph(**changes: Any) -> bytes:
    """What SciPy's ``save_npz`` writes, with changes; None leaves a part out."""
    parts = {"format": b"csr", "shape": GRAPH.shape, **{n: getattr(GRAPH, n) for n in ("data", "indices", "indptr")}}
    return savez(**{name: part for name, part in (parts | changes).items() if part is not None})


def coo(row: list[int], shape: tuple[int, int] = (5, 5)) -> bytes:
    return savez(format=b"coo", shape=shape, data=np.ones(len(row)), row=row, col=[0] * len(row))


def dia(offsets: Any, data: Any) -> bytes:
    return savez(format=b"dia", shape=(5, 5), data=data, offsets=offsets)


def moved(array: np.ndarray, place: int, value: int) -> np.ndarray:
    """A copy with one other entry."""
    array = array.astype(np.int64)
    array[place] = value
    return array


contents("far_column.npz", "indices", graph(indices=moved(GRAPH.indices, 3, 10**6)))
contents("column_before.npz", "indices", graph(indices=moved(GRAPH.indices, 3, -1)))
contents("wrapped_column.npz", "indices", graph(indices=moved(GRAPH.indices, 3, 2**32)))
contents("unsigned_column.npz", "indices", graph(indices=GRAPH.indices.astype(np.uint64) + np.uint64(2**63)))
contents("far_pointer.npz", "index pointer|indptr", graph(indptr=moved(GRAPH.indptr, -1, 10**9)))
contents("unsorted_pointer.npz", "index pointer|indptr", graph(indptr=moved(GRAPH.indptr, 50, 10**9)))
contents("pointer_before.npz", "index pointer|indptr", graph(indptr=moved(GRAPH.indptr, 1, -(10**6))))
contents("late_pointer.npz", "index pointer|indptr", graph(indptr=moved(GRAPH.indptr, 0, 3)))
contents("short_pointer.npz", "index pointer|indptr", graph(indptr=GRAPH.indptr[:-1]))
contents("short_data.npz", "same size", graph(data=GRAPH.data[:-1]))
contents("more_rows.npz", "index pointer|indptr", graph(shape=(10**6, 10**6)))
contents("huge_graph.npz", "GiB", graph(shape=(10**12, 10**12)))
contents("less_than_nothing.npz", "negative", graph(shape=(-5, -5)))
contents("square.npz", "must be square", graph(shape=(110, 5)))
contents("shape_of_three.npz", "two integers", graph(shape=(110, 110, 110)))
contents("shape_of_halves.npz", "must hold integers", graph(shape=(110.5, 110.5)))
contents("column_halves.npz", "must hold integers, got float64", graph(indices=GRAPH.indices / 2))
contents("tall_data.npz", "not those of csr", graph(data=GRAPH.data[:, None]))
contents("complex_graph.npz", "complex", graph(data=GRAPH.data * 1j))
contents("half_a_graph.npz", "no array 'indptr'", graph(indptr=None))
contents("unknown_graph.npz", "its format must be one of", graph(format=b"lil"))
contents("number_graph.npz", "must hold text", graph(format=7))
contents("no_format.npz", "its format", graph(format=np.zeros(0, "S3")))
contents("blocks.npz", "index|indices", graph(format=b"bsr", data=np.ones((len(GRAPH.data), 3, 5))))
contents("far_row.npz", "row index|exceeds", coo([1, 7]))
contents("wrapped_row.npz", "row index|exceeds", coo([1, 2**32 + 1]))
contents("row_before.npz", "negative", coo([1, -1]))
contents("short_row.npz", "length", savez(format=b"coo", shape=(5, 5), data=np.ones(3), row=[1, 2], col=[1, 2, 3]))
contents("huge_coo.npz", "GiB", coo([1, 2], (10**11, 10**11)))
contents("far_diagonal.npz", "offsets must lie within", dia([0, 5], np.ones((2, 5))))
contents("lowest_diagonal.npz", "offsets must lie within", dia([-(2**63)], np.ones((1, 5))))
contents("short_diagonal.npz", "diagonal", dia([0, 1], np.ones((1, 5))))
contents("flat_diagonal.npz", "not those of dia", dia([0], np.ones(5)))


@hostile("pickle_graph.npz", "pickled objects are never loaded")
def _(path: Path) -> None:
    path.write_bytes(
        graph(data=None)[:0]
        + zipped(
            {"format.npy": npy(pickled(path.parent)), "shape.npy": npy(np.array((5, 5))), "data.npy": npy(np.ones(5))}
        )
    )


contents("empty.csv", "no rows of numbers", b"")
contents("blank.csv", "no rows of numbers", b"\n\n\n")
contents("header.csv", "no rows of numbers", b"x,y,z\n")
contents("words.csv", "line 2 .* column 2", b"a,b\nc,d\n")
contents("ragged.csv", "equal length, got 2 and, on line 2, 1", b"1,2\n3\n4,5\n")
contents("hole.csv", "line 1 .* column 2", b"1.0,NA\n2,3\n4,5\n")
contents("gap.csv", "line 1 .* column 2", b"1,,3\n1,2,3\n")
contents("index.csv", "column 1 has no name", b",x,y\n0,1,2\n1,2,3\n2,5,6\n")
contents("formula.csv", "not a number in column 2", b"x,y\n1,=1+1\n")
contents("command.csv", "not a number in column 2", b"x,y\n1,\"=cmd|'/c calc'!A0\"\n")
contents("thousands.csv", "not a number in column 1", b'x,y\n"1,000",2\n')
contents("underscore.csv", "not a number in column 1", b"x,y\n1_000,2\n")
contents("comma.csv", "line 1 is separated by semicolons", b"x;y\n1,5;2,5\n")
contents("tabs.csv", "call the file .tsv", b"1\t2\n3\t4\n")
contents("commas.tsv", "call the file .csv", b"1,2\n3,4\n")
contents("named.csv", "column 1 must hold a name of its own", b"name,x\ncell_1,2\ncell_1,3\n")
contents("half_named.csv", "column 1 holds '2,000' on line 3, which is no name", b'x,y\nNA,2\n"2,000",3\n')
contents("percent.csv", "not a number in column 1; .*--index-col", b"x,y\n5%,2\n")
contents("nul.csv", "line 2", b"x,y\n1\0,2\n")
contents("binary.csv", "utf-8", bytes(range(256)) * 9)
contents("latin.csv", "utf-8", "h\xf6he,x\n1,2\n".encode("latin-1"))
contents("wide.csv", "utf-8", "1,2\n3,4\n".encode("utf-16"))
contents("quote.csv", "line 2 is no line of cells", b'x,y\n"1,2\n' + b"3,4\n" * 1000)
contents("after_quote.csv", "line 2 is no line of cells", b'x,y\n"1"2,2\n')
contents("long_cell.csv", "line 1 is no line of cells", b"1" * 200_000 + b",2\n3,4\n")
contents("long_line.csv", "line 1 has more than 16777216 characters", b"1," * 9_000_000)
contents(
    "spaces.tsv", "line 2 has 2 numbers in a cell; put tabs between columns, no spaces into numbers", b"x y\n1 2\n3 4\n"
)
contents(
    "spaces.csv",
    "line 1 has 2 numbers in a cell; put commas between columns, no spaces into numbers",
    b"1.0 2e0\n3 4\n",
)
contents("archive.csv", "utf-8", savez(X=ROLL))


@hostile("terabyte.csv", "line 1 has more than")
def _(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)  # takes no room on the disk


@hostile("pipe.csv", "no folder, pipe or device")
def _(path: Path) -> None:
    os.mkfifo(path)


hostile("device.csv", "no folder, pipe or device")(lambda path: path.symlink_to("/dev/zero"))
hostile("loop.npy", "must be a file that is there")(lambda path: path.symlink_to(path))
hostile("dangling.npy", "must be a file that is there")(lambda path: path.symlink_to("nowhere"))
hostile("missing.npy", "missing.npy is not there$")(lambda path: None)
hostile("folder.npz", "no folder, pipe or device")(lambda path: path.mkdir())
contents("unknown.pkl", "must be a .npy, .npz, .csv, .tsv, .h5ad file", b"1 2 3")
contents("two\nlines\x1b[2J.npy", "no NumPy array", b"")


@hostile("locked.npy", "Permission denied")
def _(path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("the superuser reads everything")
    path.touch(mode=0)


def h5ad(name: str, reason: str) -> Callable[[Callable[[Any, Any], object]], object]:
    """Enter a file that a function of h5py's module and the open file writes."""

    def enter(write: Callable[[Any, Any], object]) -> None:
        def maker(path: Path) -> None:
            h5py = pytest.importorskip("h5py")
            with h5py.File(path, "w") as file:
                write(h5py, file)

        hostile(name, reason)(maker)

    return enter


def other(file: Any) -> Path:
    """A good file beside the bad one, to which it could lead."""
    import h5py

    path = Path(file.filename).with_name("other.h5")
    with h5py.File(path, "w") as good:
        good["obsm/X_pca"] = ROLL
    return path


def matrix(file: Any, shape: Any = (3, 2), kind: Any = "csr_matrix", **changes: Any) -> None:
    """A sparse ``X``, with changes."""
    parts = {"data": [1.0, 2.0, 3.0], "indices": [0, 1, 1], "indptr": [0, 1, 2, 3]} | changes
    group = file.create_group("X")
    group.attrs["encoding-type"] = kind
    group.attrs["shape"] = shape
    for name, part in parts.items():
        group[name] = np.asarray(part)


contents("garbage.h5ad", "signature", b"not HDF5 at all")
contents("empty.h5ad", "signature|open", b"")


@hostile("cut.h5ad", "truncated")
def _(path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file["X"] = np.zeros((200, 50))
    os.truncate(path, 3000)


h5ad("nothing.h5ad", "X must be an array, got nothing")(lambda h5py, file: None)
h5ad("folder.h5ad", "got a group without these parts")(lambda h5py, file: file.create_group("X"))
h5ad("type.h5ad", "X must be an array, got Datatype")(lambda h5py, file: file.update(X=np.dtype("f8")))
h5ad("line.h5ad", "rows and columns")(lambda h5py, file: file.update(X=np.ones(9)))
h5ad("point.h5ad", "rows and columns")(lambda h5py, file: file.update(X=1.0))
h5ad("null.h5ad", "X must be an array")(lambda h5py, file: file.update(X=h5py.Empty("f8")))
h5ad("words.h5ad", "must hold real numbers")(lambda h5py, file: file.update(X=[["a", "b"]]))
h5ad("records.h5ad", "records")(lambda h5py, file: file.update({"obsm/X_pca": np.zeros((2, 2), [("a", "f8")])}))
h5ad("old.h5ad", "X must be an array, got nothing")(
    lambda h5py, file: file.update(obsm=np.zeros(9, [("X_pca", "f8", 2)]))
)
h5ad("soft_loop.h5ad", "link to another place")(lambda h5py, file: file.update(obsm=h5py.SoftLink("/obsm")))
h5ad("soft.h5ad", "link to another place")(lambda h5py, file: file.update(Z=ROLL, X=h5py.SoftLink("/Z")))
h5ad("file.h5ad", "link to another place")(lambda h5py, file: file.update(obsm=h5py.ExternalLink(other(file), "/obsm")))
h5ad("array.h5ad", "link to another place")(
    lambda h5py, file: file.update({"obsm/X_pca": h5py.ExternalLink(other(file), "/obsm/X_pca")})
)
h5ad("huge.h5ad", "GiB .* limit")(lambda h5py, file: file.create_dataset("X", (10**9, 10**3), "f4", chunks=(1, 1000)))
h5ad("wide_chunk.h5ad", "chunks of shape .65536, 4095., larger than")(
    lambda h5py, file: file.create_dataset("X", (5, 5), "f8", chunks=(2**16, 2**12 - 1), maxshape=(None, None))
)
h5ad("chunks.h5ad", "more than 1048576 chunks")(
    lambda h5py, file: file.create_dataset("X", (10**4, 10**4), "f4", chunks=(1, 1))
)
h5ad("filters.h5ad", "HDF5 filters .6.")(lambda h5py, file: file.create_dataset("X", (9, 9), "i4", scaleoffset=4))


@h5ad("outside.h5ad", "lies in other files")
def _(h5py: Any, file: Any) -> None:
    file.create_dataset("X", (10, 2), "u1", external=[("/etc/passwd", 0, 20)])


@h5ad("virtual.h5ad", "lies in other files")
def _(h5py: Any, file: Any) -> None:
    layout = h5py.VirtualLayout(ROLL.shape, "f8")
    layout[:] = h5py.VirtualSource(other(file), "obsm/X_pca", ROLL.shape)
    file.create_virtual_dataset("X", layout)


@h5ad("chunk_bomb.h5ad", "could unpack to more than the 800 bytes")
def _(h5py: Any, file: Any) -> None:
    file.create_dataset("X", (10, 10), "f8", chunks=(10, 10), compression="gzip")
    file["X"].id.write_direct_chunk((0, 0), zeros(10 * 2**10, wrapper=15))


@h5ad("lzf_bomb.h5ad", "could unpack to more than the 800 bytes")
def _(h5py: Any, file: Any) -> None:
    file.create_dataset("X", (10, 10), "f8", chunks=(10, 10), compression="lzf")
    file["X"].id.write_direct_chunk((0, 0), bytes(2**25 + 1))


@h5ad("folded_bomb.h5ad", "HDF5 filters .1, 1.")
def _(h5py: Any, file: Any) -> None:
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_chunk((10, 10))
    settings.set_deflate(9)
    settings.set_filter(h5py.h5z.FILTER_DEFLATE, h5py.h5z.FLAG_OPTIONAL, (9,))
    h5py.h5d.create(file.id, b"X", h5py.h5t.IEEE_F64LE, h5py.h5s.create_simple((10, 10)), settings)


h5ad("far_column.h5ad", "indices")(lambda h5py, file: matrix(file, indices=[0, 1, 10**6]))
h5ad("column_before.h5ad", "indices")(lambda h5py, file: matrix(file, indices=[0, -1, 1]))
h5ad("far_row.h5ad", "indices")(lambda h5py, file: matrix(file, (2, 3), "csc_matrix", indices=[0, 1, 7]))
h5ad("far_pointer.h5ad", "index pointer|indptr")(lambda h5py, file: matrix(file, indptr=[0, 1, 10**9, 3]))
h5ad("short_pointer.h5ad", "index pointer|indptr")(lambda h5py, file: matrix(file, indptr=[0, 1]))
h5ad("short_data.h5ad", "same size")(lambda h5py, file: matrix(file, data=[1.0]))
h5ad("pointer_halves.h5ad", "integers")(lambda h5py, file: matrix(file, indptr=[0, 0.5, 2, 3]))
h5ad("sparse_words.h5ad", "real numbers")(lambda h5py, file: matrix(file, data=np.array([b"a", b"b", b"c"])))
h5ad("sparse_group.h5ad", "not those of csr")(lambda h5py, file: matrix(file, indices=[[0], [1], [1]]))
h5ad("huge_sparse.h5ad", "GiB .* limit")(lambda h5py, file: matrix(file, (10**9, 10**5)))
h5ad("negative_sparse.h5ad", "negative")(lambda h5py, file: matrix(file, (-3, 2)))
h5ad("no_shape.h5ad", "two integers")(lambda h5py, file: matrix(file, np.zeros((2, 2))))
h5ad("unknown_sparse.h5ad", "its encoding must be one of")(lambda h5py, file: matrix(file, (3, 3), kind="coo"))
h5ad("encodings.h5ad", "its encoding must be one of")(lambda h5py, file: matrix(file, (3, 3), kind=["csr_matrix"]))


@h5ad("part_elsewhere.h5ad", "link to another place")
def _(h5py: Any, file: Any) -> None:
    matrix(file)
    del file["X/indices"]
    file["X/indices"] = h5py.ExternalLink(other(file), "/obsm/X_pca")


def made(name: str, folder: Path) -> Path:
    path = folder / name
    HOSTILE[name][0](path)
    return path

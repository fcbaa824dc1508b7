"""Broken and hostile files: each is refused in one line, quickly, in little memory, and none of them runs anything."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from tests.hostile_cases import GRAPH, HOSTILE, SENTINEL, made, pickled, raw_npy, zeros
from tests.problems import ROLL
from torchgw import GWResult, cli
from torchgw.cli.input import read_space


def check_refusal(message: str, name: str) -> None:
    assert message.startswith("source")
    assert message.isprintable()
    assert len(message) < 700
    assert "".join(c if c.isprintable() else " " for c in name) in message
    assert re.search(HOSTILE[name][1], message), message


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path, good, out = made(name, tmp_path), tmp_path / "good_points.npy", tmp_path / "out.npz"
    np.save(good, ROLL)
    with pytest.raises(ValueError, match="source") as caught:
        read_space("source", path)
    check_refusal(str(caught.value), name)

    assert cli.main(["align", str(path), str(good), "-o", str(out)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("torchgw: error: source")
    assert captured.err.count("\n") == 1
    assert not list(tmp_path.glob("out.npz*"))
    assert not (tmp_path / SENTINEL).exists()


CHILD = """
import json, re, sys, time
from pathlib import Path
import h5py, numpy, scipy.sparse
from torchgw.cli.input import read_space

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 2**10

before, slowest = peak(), ("", 0.0)
for path in map(Path, json.loads(sys.argv[1])):
    begun = time.perf_counter()
    try:
        read_space("source", path)
    except ValueError:
        slowest = max(slowest, (path.name, time.perf_counter() - begun), key=lambda entry: entry[1])
    else:
        raise AssertionError(path)
print(json.dumps([before, peak(), slowest]))
"""


def test_refusals_take_neither_memory_nor_time(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    paths = [str(made(name, tmp_path)) for name in HOSTILE if name != "locked.npy"]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(paths)], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    before, after, (name, seconds) = json.loads(done.stdout)
    assert after - before < 200, (before, after)
    assert seconds < 1, (name, seconds)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f8", "g", "i1", "u2", ">i4", "i8", "u8", "?"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_honest_arrays_are_read_in_their_own_dtype(dtype: str, order: Any, tmp_path: Path) -> None:
    points = np.asarray(10 * ROLL > 3 if dtype == "?" else 10 * abs(ROLL), dtype=dtype, order=order)
    np.save(tmp_path / "a.npy", points)
    np.savez(tmp_path / "b.npz", points)
    np.savez_compressed(tmp_path / "c.npz", X=points, names=np.array(["a", "b"]))
    for name in ("a.npy", "b.npz", "c.npz"):
        found = read_space("source", tmp_path / name)
        assert found.dtype == points.dtype
        np.testing.assert_array_equal(found, points)


def test_headers_of_every_version_are_read(tmp_path: Path) -> None:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (110, 2)}\n"
    for version in (1, 2, 3):
        (tmp_path / "a.npy").write_bytes(raw_npy(header, version) + ROLL.tobytes())
        np.testing.assert_array_equal(read_space("source", tmp_path / "a.npy"), ROLL)
    (tmp_path / "a.npy").write_bytes(raw_npy(header.replace(b"110", b"110L")) + ROLL.tobytes())  # Python 2
    np.testing.assert_array_equal(read_space("source", tmp_path / "a.npy"), ROLL)


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr", "dia"])
def test_honest_graphs_are_read_in_their_own_format(kind: str, tmp_path: Path) -> None:
    for compressed in (True, False):
        sparse.save_npz(tmp_path / "graph.npz", GRAPH.asformat(kind), compressed)
        found = read_space("source", tmp_path / "graph.npz")
        assert found.format == kind
        assert abs(found.tocsr() - GRAPH).max() == 0


@pytest.mark.parametrize("settings", [{}, {"compression": "gzip"}, {"compression": "lzf"}])
@pytest.mark.parametrize("storage", [np.asarray, sparse.csr_matrix, sparse.csc_matrix])
@pytest.mark.parametrize("columns", [30, 90])
def test_honest_cells_are_read(
    columns: int, settings: dict[str, str], storage: Callable[[Any], Any], tmp_path: Path
) -> None:
    anndata = pytest.importorskip("anndata")
    counts = np.random.default_rng(0).poisson(1.0, size=(90, columns)).astype(np.float32)
    cells = anndata.AnnData(storage(counts))
    cells.write_h5ad(tmp_path / "counts.h5ad", **settings)
    cells.obsm["X_pca"] = storage(counts[:, :7] * 2)
    cells.write_h5ad(tmp_path / "cells.h5ad", **settings)
    for limit in (None, 32 * counts.size):
        np.testing.assert_array_equal(read_space("source", tmp_path / "counts.h5ad", limit), counts)
        np.testing.assert_array_equal(read_space("source", tmp_path / "cells.h5ad", limit), counts[:, :7] * 2)


@pytest.mark.parametrize("filters", [{"shuffle": True, "fletcher32": True}, {}])
def test_chunks_that_no_bound_clears_are_measured_instead(filters: dict[str, bool], tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    noise = np.random.default_rng(0).integers(2**62, size=(1000, 40))
    settings: Any = {"compression": "gzip", "chunks": noise.shape, **filters}
    for points in (noise, noise >> 30):
        with h5py.File(tmp_path / "a.h5ad", "w") as file:
            file.create_dataset("X", data=points, **settings)
        np.testing.assert_array_equal(read_space("source", tmp_path / "a.h5ad", points.nbytes), points)
    with h5py.File(tmp_path / "a.h5ad", "w") as file:
        file.create_dataset("X", noise.shape, "i8", **settings)
        file["X"].id.write_direct_chunk((0, 0), zeros(200, wrapper=15))
    with pytest.raises(ValueError, match="could unpack to more than the 320000 bytes"):
        read_space("source", tmp_path / "a.h5ad", noise.nbytes)


def write_everywhere(folder: Path, points: np.ndarray) -> list[Path]:
    h5py = pytest.importorskip("h5py")
    np.save(folder / "a.npy", points)
    np.savez_compressed(folder / "a.npz", points)
    np.savetxt(folder / "a.csv", points, delimiter=",", header="x,y", comments="", encoding="utf-8-sig")
    np.savetxt(folder / "a.tsv", points, delimiter="\t")
    with h5py.File(folder / "a.h5ad", "w") as file:
        file["X"] = points
    sparse.save_npz(folder / "graph.npz", GRAPH)
    return sorted(folder.iterdir())


def test_the_limit_counts_numbers_as_float64(tmp_path: Path) -> None:
    for dtype in ("f8", "f4"):
        for path in write_everywhere(tmp_path, ROLL.astype(dtype)):
            needed = 8 * ROLL.size if path.stem == "a" else 12 * GRAPH.nnz
            with pytest.raises(ValueError, match=r"would take .* GiB in float64, over the limit of|has more than"):
                read_space("source", path, needed - 8)
            if path.suffix not in (".csv", ".tsv"):  # small limits leave no room for a line of text
                read_space("source", path, needed + 4000)


def test_text_is_read_to_the_limit_and_no_further(tmp_path: Path) -> None:
    points = np.arange(4000.0).reshape(2000, 2)
    np.savetxt(tmp_path / "a.csv", points, fmt="%g", delimiter=",")
    np.testing.assert_array_equal(read_space("source", tmp_path / "a.csv", points.nbytes), points)
    with pytest.raises(ValueError, match="it would take"):
        read_space("source", tmp_path / "a.csv", points.nbytes - 1)


def test_numbers_are_read_as_they_are_commonly_written(tmp_path: Path) -> None:
    lines = b'\xef\xbb\xbfx,"y, z"\r\n1, 2\r\n\r\n"3",-4e2\r\n+.5,"nan"\r\n-inf,0x'
    (tmp_path / "a.csv").write_bytes(lines[:-2] + b"0")
    expected = [[1, 2], [3, -400], [0.5, np.nan], [-np.inf, 0]]
    np.testing.assert_array_equal(read_space("source", tmp_path / "a.csv"), expected)


def test_the_limit_must_be_a_number_of_bytes(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ROLL)
    with pytest.raises(ValueError, match="max_memory must be >= 1"):
        read_space("source", tmp_path / "a.npy", 0)


@pytest.mark.parametrize("name", [name for name in HOSTILE if name.endswith(".npz")])
def test_results_are_not_read_from_such_files_either(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="path must name a file written by GWResult"):
        GWResult.load(made(name, tmp_path))
    assert not (tmp_path / SENTINEL).exists()


@pytest.mark.parametrize("part", ["meta", "matching", "coupling_f", "value"])
def test_no_part_of_a_result_is_unpickled(part: str, tmp_path: Path, result: GWResult) -> None:
    result.save(tmp_path / "good.npz")
    with np.load(tmp_path / "good.npz") as file:
        arrays = dict(file)
    assert part in arrays
    np.savez(tmp_path / "bad.npz", allow_pickle=True, **arrays | {part: pickled(tmp_path)})
    with pytest.raises(ValueError, match="path must name a file written by GWResult"):
        GWResult.load(tmp_path / "bad.npz")
    assert not (tmp_path / SENTINEL).exists()

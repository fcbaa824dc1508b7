"""Files of cells: aligned without reading what is large, refused where they are broken, and unharmed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from tests.cells import QUICK, accuracy, assert_equal, carried, tissues
from tests.problems import ROLL
from torchgw import GWOptions, GWResult, SpaceOptions, cli
from torchgw import anndata as cells

anndata = pytest.importorskip("anndata")
h5py = pytest.importorskip("h5py")


@pytest.fixture(scope="module")
def given() -> tuple[Any, Any]:
    """A source and a reference; not to be written to."""
    return tissues()


@pytest.fixture(scope="module")
def aligned(given: tuple[Any, Any]) -> tuple[Any, Any, GWResult]:
    return carried(given)


class Watch:
    """The names of the datasets that were read from files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: set[str] = set()
        for method in ("__getitem__", "read_direct", "__array__"):
            monkeypatch.setattr(h5py.Dataset, method, self.watched(getattr(h5py.Dataset, method)))

    def watched(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(dataset: Any, *args: Any, **more: Any) -> Any:
            self.read.add(dataset.name)
            return method(dataset, *args, **more)

        return call


@pytest.mark.parametrize("dense", [False, True])
def test_backed_cells_are_aligned_without_reading_x(
    dense: bool, aligned: tuple[Any, Any, GWResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, given = aligned[0], aligned[:2]
    for name, cell in zip("ab", given, strict=True):
        copy = cell.copy()
        copy.X = copy.X.toarray() if dense else copy.X
        copy.write_h5ad(tmp_path / f"{name}.h5ad")
    watch = Watch(monkeypatch)
    a, b = (anndata.read_h5ad(tmp_path / f"{name}.h5ad", backed="r") for name in "ab")
    cells.align(a, b, labels=["cell_type", "dose"], key_added="again", **QUICK)
    x = {"/X"} if dense else {"/X/data", "/X/indices"}
    assert "/obsm/X_pca" in watch.read
    assert not x & watch.read
    assert a.isbacked

    written = a.copy(tmp_path / "copy.h5ad")
    a.file.close()
    back = anndata.read_h5ad(tmp_path / "copy.h5ad")
    np.testing.assert_allclose(back.obsm["X_again"], loaded.obsm["X_torchgw"], rtol=1e-12)
    for column in ("match", "cell_type"):
        assert list(back.obs[f"again_{column}"]) == list(loaded.obs[f"torchgw_{column}"])
    np.testing.assert_allclose(back.obs["again_dose"], loaded.obs["torchgw_dose"], rtol=1e-9)
    assert_equal(back.X.toarray() if sparse.issparse(back.X) else back.X, given[0].X.toarray())

    watch.read.clear()
    with pytest.raises(ValueError, match="k must be smaller"):
        cells.align(written, b, use_rep="X", options=GWOptions(spaces=SpaceOptions(k=99)))
    assert x <= watch.read  # the watch sees what is read
    written.file.close()
    b.file.close()


def test_a_backed_x_over_the_limit_is_not_read(
    given: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given[0].write_h5ad(tmp_path / "a.h5ad")
    watch = Watch(monkeypatch)
    a = anndata.read_h5ad(tmp_path / "a.h5ad", backed="r")
    with pytest.raises(MemoryError, match="use_rep='X_pca'"):
        cells.align(a, given[1], use_rep="X", options=GWOptions(max_memory=19_000))
    assert not {"/X/data", "/X/indices"} & watch.read
    a.file.close()


def test_a_view_of_a_backed_file_is_refused(given: tuple[Any, Any], tmp_path: Path) -> None:
    given[0].write_h5ad(tmp_path / "a.h5ad")
    a = anndata.read_h5ad(tmp_path / "a.h5ad", backed="r")
    with pytest.raises(ValueError, match=r"view of a backed file, on which nothing can be written; pass a.to_memory"):
        cells.align(a[:50], given[1])
    assert cells.align(given[0].copy(), a[:50], **QUICK).shape == (60, 50)
    a.file.close()


@pytest.mark.parametrize("backed", [False, True])
def test_honest_files_of_cells_are_read(backed: bool, given: tuple[Any, Any], tmp_path: Path) -> None:
    given[1].write_h5ad(tmp_path / "b.h5ad", compression="gzip")
    found = cells.read("target", tmp_path / "b.h5ad", backed=backed)
    pd.testing.assert_frame_equal(found.obs, given[1].obs, check_categorical=False)
    assert found.isbacked == backed
    if backed:
        found.file.close()


def test_the_limit_leaves_out_what_stays_in_the_file(tmp_path: Path) -> None:
    cell = anndata.AnnData(np.zeros((100, 1000)), obsm={"X_pca": np.zeros((100, 2))})
    cell.write_h5ad(tmp_path / "a.h5ad", compression="gzip")
    with pytest.raises(
        ValueError, match=r"source: .*a.h5ad cannot be read: what it holds would take .* over the limit"
    ):
        cells.read("source", tmp_path / "a.h5ad", 100_000)
    cells.read("source", tmp_path / "a.h5ad", 100_000, backed=True).file.close()
    with pytest.raises(ValueError, match="what it holds would take"):
        cells.read("source", tmp_path / "a.h5ad", 1_000, backed=True)


def damage(path: Path, how: str) -> None:
    if how == "cut":
        path.write_bytes(path.read_bytes()[:5000])
    elif how == "folder":
        path.unlink()
        path.mkdir()
    elif how == "text":
        path.write_text("no HDF5")
    else:
        with h5py.File(path, "a") as file:
            if how == "link":
                del file["obsm"]
                file["obsm"] = h5py.ExternalLink("other.h5ad", "/obsm")
            elif how == "outside":
                file.create_dataset("layers/secret", (60, 2), "u1", external=[("/etc/passwd", 0, 120)])
            elif how == "huge":
                file.create_dataset("uns/zeros", (10**10,), "f8", chunks=(10**6,))
            elif how == "loop":
                file["uns/again"] = file["uns"]
            else:
                del file["obs"]


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("cut", "truncated"),
        ("folder", "must be a file that is there, no folder"),
        ("text", "signature"),
        ("link", "'obsm' is a link to another place or file"),
        ("outside", "lies in other files"),
        ("huge", "what it holds would take"),
        ("loop", "."),
        ("nothing", "."),
    ],
)
def test_hostile_files_of_cells_are_refused(how: str, reason: str, given: tuple[Any, Any], tmp_path: Path) -> None:
    given[0].write_h5ad(tmp_path / "bad.h5ad")
    damage(tmp_path / "bad.h5ad", how)
    for backed in (False, True):
        with pytest.raises(ValueError, match="source") as caught:
            cells.read("source", tmp_path / "bad.h5ad", backed=backed)
        assert caught.match(reason)
        assert str(caught.value).isprintable()
        assert "bad.h5ad" in str(caught.value)


def test_the_command_writes_the_sources_cells_with_what_was_carried(
    given: tuple[Any, Any], aligned: tuple[Any, Any, GWResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, cell in zip("ab", given, strict=True):
        cell.write_h5ad(tmp_path / f"{name}.h5ad")
    source, target, out = (str(tmp_path / f"{name}.h5ad") for name in ("a", "b", "out"))
    page = tmp_path / "page.html"
    flags = ["--labels", "cell_type", "dose", "--keep-plan", "0.9", "--epsilon", "5e-3", "--report", str(page)]
    assert cli.main(["align", source, target, "-o", out, *flags]) == 0
    verdict, warning = capsys.readouterr().err.splitlines()
    assert verdict.startswith("torchgw: Check this matching before you use it. ")
    assert warning.startswith("torchgw: warning: the plan is blurred")
    shown = json.loads(page.read_text().split('type="application/json">', 1)[1].split("</script>", 1)[0])
    assert set(shown["colourings"][0]["names"]) <= set(given[1].obs["cell_type"].dropna())
    back = anndata.read_h5ad(out)
    assert list(back.obs["torchgw_cell_type"]) == list(aligned[0].obs["torchgw_cell_type"])
    assert_equal(back.obsm["torchgw_plan"], aligned[0].obsm["torchgw_plan"])
    assert_equal(back.X, given[0].X)

    damage(tmp_path / "a.h5ad", "link")
    Path(out).unlink()
    for pair in ((source, target), (target, source)):
        assert cli.main(["align", *pair, "-o", out]) == 2
        error = capsys.readouterr().err
        assert error.startswith("torchgw: error: ")
        assert "a.h5ad cannot be read: its 'obsm' is a link to another place or file" in error
        assert error.count("\n") == 1
    assert not Path(out).exists()


@pytest.mark.parametrize("kind", ["none", "dense", "sparse"])
def test_the_command_takes_an_x_over_the_limit(
    kind: str, given: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = anndata.AnnData(
        {"none": None, "dense": np.ones((60, 5000)), "sparse": sparse.random(60, 5000, 0.9, "csc", rng=0)}[kind],
        obs=given[0].obs,
        obsm={"X_pca": given[0].obsm["X_pca"]},
        uns={"about": {"year": 2024}},
    )
    a.obsp["near"] = sparse.eye(60, format="csr")
    source, target, out = (tmp_path / f"{name}.h5ad" for name in ("a", "b", "out"))
    a.write_h5ad(source)
    given[1].write_h5ad(target)
    before, watch = source.read_bytes(), Watch(monkeypatch)
    flags = ["--labels", "cell_type", "--epsilon", "5e-3", "--max-memory", "0.001"]
    assert cli.main(["align", str(source), str(target), "-o", str(out), *flags]) == 0
    assert not {"/X", "/X/data"} & watch.read
    assert source.read_bytes() == before
    back = anndata.read_h5ad(out)
    assert accuracy(back) > 0.5
    assert list(back.obs_names) == list(a.obs_names)
    assert back.uns["about"]["year"] == 2024
    assert back.uns["torchgw"]["value"] > 0
    assert {"X_pca", "X_torchgw"} <= set(back.obsm)
    assert_equal(back.obsp["near"], a.obsp["near"])
    if kind == "none":
        assert back.X is None
    else:
        assert_equal(back.X, a.X)


LONG = 2**20


def shared(h5py: Any, file: Any) -> None:
    file.create_dataset("uns/text", data=["x" * LONG] + ["y"] * 99, dtype=h5py.string_dtype())


def unwritten(h5py: Any, file: Any) -> None:
    file.create_dataset("uns/text", (2000,), h5py.string_dtype(), fillvalue="x" * 30_000)


def in_chunks(h5py: Any, file: Any) -> None:
    text = file.create_dataset("uns/text", (100,), h5py.string_dtype(), chunks=(1,))
    text[0] = "x" * LONG
    place = text.id.read_direct_chunk((0,))[1]
    for i in range(1, 100):
        text.id.write_direct_chunk((i,), place)


def in_records(h5py: Any, file: Any) -> None:
    word = h5py.string_dtype()
    file.create_dataset("uns/text", data=np.array([("x" * LONG, "a")] * 20, [("one", word), ("two", word)]))


@pytest.mark.parametrize("make", [shared, unwritten, in_chunks, in_records])
@pytest.mark.parametrize("backed", [False, True])
def test_texts_count_at_every_place_that_has_them(make: Callable[..., None], backed: bool, tmp_path: Path) -> None:
    path = tmp_path / "cells.h5ad"
    anndata.AnnData(ROLL, obs={"kind": ["a"] * len(ROLL)}).write_h5ad(path)
    with h5py.File(path, "r+") as file:
        make(h5py, file)
        start = file["uns/text"].id.get_offset()
    if make is shared:
        whole = bytearray(path.read_bytes())
        whole[start : start + 1600] = whole[start : start + 16] * 100
        path.write_bytes(whole)
    with pytest.raises(ValueError, match=r"what it holds would take .* over the limit"):
        cells.read("cells", path, 10 * LONG, backed=backed)


@pytest.mark.parametrize("settings", [{}, {"compression": "gzip"}, {"compression": "lzf"}])
def test_texts_are_measured_by_their_lengths(settings: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "cells.h5ad"
    names = [f"a cell with a long name {i}" for i in range(len(ROLL))]
    word = np.array([("a", "b")] * 3, [("one", "O"), ("two", "O")])
    named = anndata.AnnData(np.zeros((len(ROLL), 1)), obs={"name": names}, uns={"record": word, "word": "text"})
    named.obs_names = names
    named.write_h5ad(path, convert_strings_to_categoricals=False, **settings)
    needed = 2 * sum(map(len, names))
    with pytest.raises(ValueError, match="what it holds would take"):
        cells.read("cells", path, needed, backed=True)
    cells.read("cells", path, 2 * needed, backed=True).file.close()


def test_only_a_backed_file_is_written_and_never_onto_itself(tmp_path: Path) -> None:
    held = anndata.AnnData(ROLL)
    with pytest.raises(ValueError, match="cells must be backed by a file, got cells in memory"):
        cells.write(held, tmp_path / "other.h5ad")
    assert not (tmp_path / "other.h5ad").exists()
    held.write_h5ad(tmp_path / "own.h5ad")
    backed = cells.read("a", tmp_path / "own.h5ad", backed=True)
    with pytest.raises(ValueError, match="path must be another file than that of the cells"):
        cells.write(backed, tmp_path / "own.h5ad")
    backed.file.close()

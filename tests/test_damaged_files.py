"""Files that were damaged, cut off or swapped: each is refused by name, or gives what it gave before."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoint_cases import assert_same
from tests.problems import ROLL, SPIRAL, dense_coupling, files_of_at_most, quietly, tiled_coupling
from torchgw import Checkpoint, GWOptions, GWResult, LadderOptions, StoppingOptions, gw_align, resume
from torchgw.persist.files import MARK

BRIEF = StoppingOptions(max_iter=4)
CASES: dict[str, dict[str, Any]] = {
    "dense": {"options": GWOptions(coarse=None, stopping=BRIEF)},
    "no entropy": {"epsilon": 0, "options": GWOptions(coarse=None, stopping=BRIEF)},
    "streaming": {
        "options": GWOptions(strategy="streaming", stopping=BRIEF, ladder=LadderOptions(n_cells=16, marginal_tol=1e-2))
    },
}
Kept = tuple[Path, GWResult]


def kept(name: str, folder: Path, source: Any = SPIRAL[::3]) -> GWResult:
    """The result of a case whose checkpoint, with a loop in it that was cut, is in the folder."""
    more = {"random_state": 0} | CASES[name]
    whole = quietly(gw_align, source, ROLL[::3], **more)
    checkpoint = Checkpoint(folder, every=0)
    quietly(gw_align, source, ROLL[::3], callback=lambda _: True, checkpoint=checkpoint, **more)
    return whole


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kept]:
    folder = tmp_path_factory.mktemp("kept")
    return {name: (folder / name, kept(name, folder / name)) for name in CASES}


@contextmanager
def changed(file: Path, content: bytes) -> Iterator[None]:
    """The file with another content."""
    before = file.read_bytes()
    file.write_bytes(content)
    try:
        yield
    finally:
        file.write_bytes(before)


def flips(content: bytes, count: int) -> Iterator[bytes]:
    """The content with one bit changed: anywhere, and in each byte of its end, which is the seal's."""
    draw = np.random.default_rng(0)
    places = [
        *draw.integers(len(content), size=count - count // 4),
        *(len(content) - 1 - draw.integers(45, size=count // 4)),
    ]
    for place, bit in zip(places, draw.integers(8, size=count), strict=True):
        damaged = bytearray(content)
        damaged[place] ^= 1 << bit
        yield bytes(damaged)


def check_refused(folder: Path, file: Path) -> None:
    remedy = "begin again in another folder" if file.name == "call.pt" else "remove it, and it is computed again"
    with pytest.raises(ValueError, match=f"{file.name} cannot be read as a part of a checkpoint; {remedy}") as caught:
        quietly(resume, folder)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("count", [8, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_no_bit_of_a_checkpoint_can_change_unseen(name: str, count: int, checkpoints: dict[str, Kept]) -> None:
    folder, whole = checkpoints[name]
    files = sorted(folder.glob("*.pt"))
    assert {"call.pt"} < {file.name for file in files}
    assert any(file.name.endswith("loop.pt") for file in files)
    for file in files:
        for content in flips(file.read_bytes(), count):
            with changed(file, content):
                check_refused(folder, file)
    copy = folder.with_name(f"{name} {count}")
    shutil.copytree(folder, copy)
    assert_same(quietly(resume, copy), whole)


def test_files_that_are_cut_off_or_empty_are_refused(checkpoints: dict[str, Kept]) -> None:
    folder, _ = checkpoints["dense"]
    for file in folder.glob("*.pt"):
        content = file.read_bytes()
        for short in (b"", content[:10], content[: len(content) // 2], content[:-40], content[:-1]):
            with changed(file, short):
                check_refused(folder, file)


@pytest.mark.parametrize("put", [os.mkfifo, os.mkdir])
def test_what_is_no_regular_file_is_refused_unopened(put: Callable[[Path], None], tmp_path: Path) -> None:
    kept("dense", tmp_path / "folder")
    loop = next((tmp_path / "folder").glob("*loop.pt"))
    loop.unlink()
    put(loop)
    put(tmp_path / "result.npz")
    with pytest.raises(ValueError, match=r"loop\.pt cannot be read as a part of a checkpoint.*no regular file"):
        resume(tmp_path / "folder")
    with pytest.raises(ValueError, match=r"result\.npz is not one \(it is no regular file\)"):
        GWResult.load(tmp_path / "result.npz")


def test_no_file_of_a_checkpoint_passes_for_another(checkpoints: dict[str, Kept], tmp_path: Path) -> None:
    kept("dense", tmp_path / "other", SPIRAL[1::3])
    folder, _ = checkpoints["dense"]
    files = sorted(file for file in folder.glob("*.pt") if file.name != "call.pt")
    assert len(files) > 1
    for file in files:
        with changed(file, (tmp_path / "other" / file.name).read_bytes()):  # of another problem
            check_refused(folder, file)
        for other in files:
            if other != file:  # of another part of this one
                with changed(file, other.read_bytes()):
                    check_refused(folder, file)
    with changed(folder / "call.pt", (tmp_path / "other" / "call.pt").read_bytes()):
        check_refused(folder, files[0])


def test_what_was_refused_is_computed_again_once_it_is_removed(checkpoints: dict[str, Kept], tmp_path: Path) -> None:
    folder, whole = checkpoints["dense"]
    for name in sorted(file.name for file in folder.glob("*.pt") if file.name != "call.pt"):
        shutil.copytree(folder, tmp_path / name)
        (tmp_path / name / name).unlink()
        assert_same(quietly(resume, tmp_path / name), whole)


def loaded_or_refused(path: Path) -> GWResult | str:
    """What is in the file, or the line that says why not."""
    try:
        return GWResult.load(path)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("count", [30, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_no_bit_of_a_result_can_change_unseen(
    name: str, count: int, checkpoints: dict[str, Kept], tmp_path: Path
) -> None:
    path, result = tmp_path / "result.npz", checkpoints[name][1]
    result.save(path)
    content = path.read_bytes()
    found = []
    for damaged in [*flips(content, count), b"", content[:10], content[: len(content) // 2], content[:-60]]:
        path.write_bytes(damaged)
        found.append(loaded_or_refused(path))
    refused = [line for line in found if isinstance(line, str)]
    assert all(str(path) in line and line.isprintable() for line in refused)
    assert not any(isinstance(each, GWResult) for each in found[-4:])
    assert len(refused) > 0.8 * len(found)
    for same in found:
        if isinstance(same, GWResult):  # the mark of the seal was hit
            assert_same(same, result)


def without_seal(content: bytes) -> bytes:
    end = content.rindex(MARK) - 2
    return content[:end] + b"\0\0"


def test_results_of_versions_that_wrote_no_checksum_are_read(result: GWResult, tmp_path: Path) -> None:
    result.save(tmp_path / "new.npz")
    content = without_seal((tmp_path / "new.npz").read_bytes())
    with np.load(io.BytesIO(content)) as file:
        arrays = dict(file)
    assert arrays["matching"].shape == (90,)
    meta = json.loads(str(arrays["meta"]))
    meta["options"]["low_rank"]["n_starts"] = 4  # an option that was
    meta |= {"escapes": 1, "certificate": meta["certificate"] | {"curvature": 0.5, "curvature_error": None}}
    np.savez(tmp_path / "old.npz", allow_pickle=False, **arrays | {"meta": np.array(json.dumps(meta))})
    old = GWResult.load(tmp_path / "old.npz")
    assert_same(old, result)
    assert old.options == result.options


@pytest.mark.parametrize("name", ["unbalanced", "streaming", "low_rank", "own_loss"])
def test_files_that_were_written_before_are_read_and_written_alike(name: str, tmp_path: Path) -> None:
    stored = Path(__file__).parent / "files" / f"{name}.npz"
    result = GWResult.load(stored)
    assert result.shape == (8, 9)
    assert float(result.marginal(1).sum()) == pytest.approx(1, abs=0.02)
    result.save(tmp_path / "again.npz")
    with np.load(stored) as before, np.load(tmp_path / "again.npz") as after:
        assert sorted(before) == sorted(after)
        for array in set(before) - {"meta"}:
            np.testing.assert_array_equal(before[array], after[array])
        old, new = (json.loads(str(arrays["meta"])) for arrays in (before, after))
    # What those versions did not write: nothing is known of it, but for starts, which basins count.
    assert math.isnan(new.pop("gain"))
    assert math.isnan(new.pop("chance"))
    assert math.isnan(new.pop("distance_correlation"))
    assert new.pop("path") == new.pop("warnings") == []
    assert new["marginals"].pop("divergence", "kl") == "kl"
    assert new["options"]["spaces"].pop("weight", "weight") == "weight"
    assert all(basin.pop("origin") == "unknown" for basin in new["basins"])
    counts = [basin["count"] for basin in old["basins"]]
    starts = {"starts": sum(counts), "agreeing_starts": sum(counts[:1])}
    assert new == old | {"certificate": old["certificate"] | starts}


def put(array: np.ndarray, value: float, place: int = 0) -> np.ndarray:
    array = array.copy()
    array.flat[place] = value
    return array


Change = Callable[[Any], Any]
DENSE: list[tuple[str, Change, str]] = [
    ("coupling_plan", lambda a: put(a, np.nan), "coupling_plan must be finite and not negative"),
    ("coupling_plan", lambda a: put(a, np.inf), "coupling_plan must be finite and not negative"),
    ("coupling_plan", lambda a: put(a, -1e-9), "coupling_plan must be finite and not negative"),
    ("coupling_plan", lambda a: a[:-1], r"matching must hold indices below 6, of shape \(4,\)"),
    ("coupling_plan", lambda a: a[0], r"coupling_plan has shape \(6,\)"),
    ("coupling_plan", lambda a: (9 * a).astype(int), "coupling_plan must hold floating-point numbers, got torch.int64"),
    ("matching", lambda a: a[:-1], "matching must hold indices below 6"),
    ("matching", lambda a: put(a, 6), "matching must hold indices below 6"),
    ("matching", lambda a: put(a, -1), "matching must hold indices below 6"),
    ("matching", lambda a: a + 0.5, "matching must hold indices below 6"),
    ("basin_shift", lambda a: put(a, np.nan), "basin_shift must hold finite numbers"),
    ("basin_matching", lambda a: put(a, -1), "basin_matching must hold indices"),
]
TILED: list[tuple[str, Change, str]] = [
    ("coupling_f", lambda a: put(a, np.nan), "coupling_f must be finite"),
    ("coupling_g", lambda a: put(a, np.inf), "coupling_g must be finite"),
    ("coupling_A", lambda a: put(a, np.inf), "coupling_A must be finite"),
    ("coupling_A", lambda a: a[:, :-1], r"coupling_B has shape \(11, 2\), which does not fit"),
    ("coupling_f", lambda a: a[:-1], r"coupling_f has shape \(8,\), which does not fit"),
    ("coupling_x", lambda a: put(a, -1.0), "coupling_x must be finite and not negative"),
    ("coupling_row_order", lambda a: put(a, a[1]), "coupling_row_order must be an order of 9 points"),
    ("coupling_column_order", lambda a: a - 1, "coupling_column_order must be an order of 11 points"),
    ("coupling_tile_column", lambda a: put(a, 99), "coupling_tile_column must hold indices below 3"),
    ("coupling_tile_first", lambda a: a[:-1], r"coupling_tile_first must hold indices below \d+, of shape \(4,\)"),
    ("coupling_tile_first", lambda a: put(a, 1), "must go from 0 up to"),
    ("coupling_tile_size", lambda a: np.array(0), "coupling_tile_size must be >= 1, got 0"),
    ("coupling_tile_size", lambda a: None, "file written by GWResult.save"),
]
META: list[tuple[str, Any, str]] = [
    ("value", "text", "its value must be of type float, got 'text'"),
    ("value", None, "its value must be of type float, got None"),
    ("value_exact", 1, "its value_exact must be of type bool"),
    ("n_iter", 1.5, "its n_iter must be of type int, got 1.5"),
    ("scales", [1.0, 2.0, 3.0], "its scales must have 2 entries"),
    ("scales", [1.0, True], r"its scales\[1\] must be of type float, got True"),
    ("timings", {"solve": "x"}, r"its timings\['solve'\] must be of type float"),
    ("status", "LATE", r"r\.npz is not one$"),
    ("strategy", 3, "its strategy must be of type str"),
    ("ladder", [{"cells": [3, 4]}], r"r\.npz is not one$"),
    ("history", {"iteration": [1], "cost": []}, "must be of equal length"),
]


def test_a_result_goes_to_a_file_of_its_kind(result: GWResult, tmp_path: Path) -> None:
    for write, suffix in ((result.save, "npz"), (result.report, "html")):
        with pytest.raises(ValueError, match=rf"path must be a .{suffix} file, got .*x\.csv; take .*/x\.{suffix}$"):
            write(tmp_path / "x.csv")
        with pytest.raises(ValueError, match=rf"take .*/x_0\.5\.{suffix}$"):
            write(tmp_path / "x_0.5")
        with pytest.raises(ValueError, match=r"lies in a folder that is not there; make .*none first"):
            write(tmp_path / "none" / f"x.{suffix}")
    result.save(tmp_path / "bare")
    assert GWResult.load(tmp_path / "bare").value == result.value
    assert [path.name for path in tmp_path.iterdir()] == ["bare"]
    for content, why in ((b"hi", ""), ((tmp_path / "bare").read_bytes()[:-200], r" \(it may have been shortened.*\)")):
        (tmp_path / "x.npz").write_bytes(content)
        with pytest.raises(ValueError, match=rf"x\.npz is not one{why}$"):
            GWResult.load(tmp_path / "x.npz")


def refused_with(result: GWResult, changes: Callable[[dict[str, Any]], Any], message: str, path: Path) -> None:
    """The result in a file with changes, and no checksum that tells of them."""
    result.save(path)
    with np.load(path) as file:
        arrays = dict(file)
    changes(arrays)
    np.savez(path, allow_pickle=False, **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(ValueError, match=message) as caught:
        GWResult.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(("part", "change", "message"), DENSE + TILED)
def test_a_file_with_no_plan_in_it_is_refused(
    part: str, change: Change, message: str, result: GWResult, tmp_path: Path
) -> None:
    coupling = tiled_coupling(9, 11, 2, 0) if (part, change, message) in TILED else dense_coupling(5, 6, 0)
    fields = {name: getattr(result, name) for name in GWResult.__dataclass_fields__}
    made = GWResult(**fields | {"coupling": coupling})
    refused_with(made, lambda arrays: arrays.update({part: change(arrays[part])}), message, tmp_path / "r.npz")


@pytest.mark.parametrize(("member", "value", "message"), META)
def test_members_of_other_types_are_refused(
    member: str, value: Any, message: str, result: GWResult, tmp_path: Path
) -> None:
    def change(arrays: dict[str, Any]) -> None:
        arrays["meta"] = np.array(json.dumps(json.loads(str(arrays["meta"])) | {member: value}))

    refused_with(result, change, message, tmp_path / "r.npz")


@pytest.mark.parametrize("size", [0, 3000])
def test_a_result_that_cannot_be_written_leaves_the_old_file(size: int, result: GWResult, tmp_path: Path) -> None:
    path = tmp_path / "result.npz"
    result.save(path)
    with files_of_at_most(size), pytest.raises(OSError, match=r"File too large.*result\.npz"):
        result.save(path)
    assert list(tmp_path.iterdir()) == [path]
    assert_same(GWResult.load(path), result)
    with pytest.raises(
        ValueError, match=r"no/such/result\.npz lies in a folder that is not there; make .*no/such first"
    ):
        result.save(tmp_path / "no" / "such" / "result.npz")


def test_a_result_goes_through_links_and_to_no_device(result: GWResult, tmp_path: Path) -> None:
    (tmp_path / "link.npz").symlink_to("real.npz")
    result.save(tmp_path / "link.npz")
    (tmp_path / "real.npz").chmod(0o600)
    result.save(tmp_path / "link.npz")
    assert (tmp_path / "link.npz").is_symlink()
    assert (tmp_path / "real.npz").stat().st_mode & 0o777 == 0o600
    assert_same(GWResult.load(tmp_path / "real.npz"), result)
    (tmp_path / "full.npz").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"is no regular file.*full\.npz"):
        result.save(tmp_path / "full.npz")
    assert Path("/dev/full").is_char_device()

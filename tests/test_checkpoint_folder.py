"""The folder of a checkpoint: what cannot be one is refused, and what happens to it costs no solve."""

from __future__ import annotations

import os
import pickle
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from tests.checkpoint_cases import CASES, Killed, align, assert_same, left_alone
from tests.problems import ROLL, SPIRAL, files_of_at_most, quietly, tiled_coupling
from torchgw import (
    Checkpoint,
    CheckpointWarning,
    GWOptions,
    GWResult,
    Implicit,
    LowRankOptions,
    Progress,
    Status,
    gw_align,
    resume,
)
from torchgw.distributed import journal
from torchgw.persist import checkpoint
from torchgw.persist.checkpoint import FORMAT, write
from torchgw.persist.codec import STORABLE, decode, encode
from torchgw.persist.files import open_for_writing


def test_half_a_file_is_never_read(tmp_path: Path) -> None:
    expected = align({})
    align({}, checkpoint=Checkpoint(tmp_path / "kept", every=0))
    files = list((tmp_path / "kept").glob("*.pt"))
    for i, file in enumerate(files):
        (tmp_path / "kept" / f".{i:016x}.part.pt").write_bytes(file.read_bytes()[:50])
    (tmp_path / "kept/notes.partial.txt").write_text("not ours")
    assert_same(quietly(resume, tmp_path / "kept"), expected)
    assert files
    assert [file.name for file in (tmp_path / "kept").glob("*.part*")] == ["notes.partial.txt"]


REFUSED = [
    ({"checkpoint": 3}, TypeError, "checkpoint must name a folder, or be a Checkpoint, got int"),
    ({"checkpoint": "a\0b"}, ValueError, r"checkpoint must name .*, got 'a\\x00b' with a null character"),
    ({"checkpoint": "no/such/folder"}, ValueError, "make no/such first"),
    ({"checkpoint": "taken"}, ValueError, r"torchgw.resume\('taken'\), or .* goes on"),
    ({"checkpoint": "file"}, ValueError, "not there yet"),
    ({"checkpoint": "new", "gradient_mode": Implicit()}, ValueError, "checkpoint must be None with a gradient mode"),
]


@pytest.mark.parametrize(("more", "kind", "message"), REFUSED)
def test_a_checkpoint_that_cannot_be_made_is_refused_at_once(
    more: dict[str, Any], kind: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "something").touch()
    (tmp_path / "file").touch()
    with pytest.raises(kind, match=message):
        gw_align(SPIRAL, ROLL, **more)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("path", [None, b"kept", "a\0b"])
def test_what_is_no_path_is_refused_by_the_argument_that_it_was_given_as(path: Any) -> None:
    result, got = align({}), rf"^path must name .*, got ({type(path).__name__}$|'a\\x00b' with)"
    for call in (Checkpoint, resume, GWResult.load, result.save, result.report):
        with pytest.raises((TypeError, ValueError), match=got):
            call(path)


def test_the_interval_of_a_checkpoint_is_checked() -> None:
    with pytest.raises(ValueError, match="every must be a finite number >= 0"):
        Checkpoint("kept", every=-1)


def test_what_a_file_cannot_hold_is_named_before_the_solve(tmp_path: Path) -> None:
    from torchgw import SeparableLoss

    def half(x: torch.Tensor) -> torch.Tensor:
        return x / 2

    loss = SeparableLoss(half, half, half, half, "own")
    with pytest.raises(TypeError, match=r"options.loss must be 'square' or 'kl' with a checkpoint, got Separ.*own"):
        gw_align(SPIRAL, ROLL, options=GWOptions(loss=loss), checkpoint=tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


class Payload:
    """Would make a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (self.path, "w"))


def test_foreign_folders_and_hostile_files_are_refused_unrun(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="folder of a checkpoint"):
        resume(tmp_path)
    bad, ran = tmp_path / "call.pt", tmp_path / "ran"
    for content in (b"", b"no file of torch", pickle.dumps(Payload(str(ran)))):
        bad.write_bytes(content)
        with pytest.raises(ValueError, match=r"cannot be read as a part of a checkpoint; begin again.*no checksum"):
            resume(tmp_path)
    write(bad, {"format": 99})
    with pytest.raises(ValueError, match="not of a checkpoint that this version"):
        resume(tmp_path)
    parts = {name: torch.tensor(numbers) for name, numbers in (("data", [1.0]), ("indices", [99]), ("indptr", [0, 1]))}
    doubled: list[Any] = []
    for _ in range(60):
        doubled = [doubled, doubled]
    values: list[tuple[Any, str]] = [
        (Payload(str(ran)), "tensors, numbers and text only, got '(_)?io open'"),
        ({"kind:": "os.system"}, r"known classes only, got 'os\.system'"),
        ({"kind:": "dtype", "name": "_import_dotted_name"}, "dtypes of torch, got '_import_dotted_name'"),
        ({"kind:": "graph", "shape": [1, 1]} | parts, "indices must be < 1"),
        ({"no kind": 3}, "KeyError"),
        ({"kind:": "dict", "items": [["X", 3]]}, "holds no call"),
        (torch.ones(1).expand(20_000, 20_000), r"shape \(20000, 20000\) is stored in fewer numbers than it has"),
        (torch.ones(40_000).as_strided((20_000, 20_000), (1, 1)), "is stored in fewer numbers"),
        (torch.eye(3).to_sparse(), "tensors, numbers and text only, got 'torch._utils _rebuild_sparse_tensor'"),
        (bytearray(9), "tensors, numbers and text only, got '__builtin__ bytearray'"),
        ({3, 4}, "tensors, numbers and text only, got '__builtin__ set'"),
        ((3, 4), "can be kept, got tuple"),
        (doubled, "a list or dictionary stands in two places"),
    ]
    for value, message in values:
        write(bad, {"format": FORMAT, "every": 0.0, "random": None, "made": {}, "value": value})
        assert bad.stat().st_size < 200_000
        with pytest.raises(ValueError, match=message):
            quietly(resume, tmp_path)
    with open_for_writing(bad) as file, ZipFile(file, "w", ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"0" * 10**6)
    with pytest.raises(ValueError, match="are compressed"):
        resume(tmp_path)
    assert not ran.exists()


def small(_: Path) -> None:
    """The disk is full from here on."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def gone(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def in_the_way(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.touch()


@pytest.mark.parametrize("name", ["exact gradient", "no entropy"])
@pytest.mark.parametrize(
    ("happens", "reason"),
    [(small, "File too large"), (gone, "No such file or directory"), (in_the_way, "Not a directory")],
)
def test_a_disk_that_fails_midway_costs_the_checkpoint_and_not_the_solve(
    happens: Any, reason: str, name: str, tmp_path: Path
) -> None:
    folder, (expected, calls), heard = tmp_path / "kept", left_alone(name), [0]
    arguments: dict[str, Any] = {"epsilon": 1e-3, "random_state": 0} | CASES[name]

    def fail(_: Progress) -> None:
        heard[0] += 1
        if heard[0] == (calls + 1) // 2:
            happens(folder)

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.warns(CheckpointWarning, match=f"was not written .{reason}.; the solve goes on"):
            result = gw_align(SPIRAL, ROLL, callback=fail, checkpoint=Checkpoint(folder, every=0), **arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert_same(result, expected)
    if happens is small:  # what had been written is good
        assert not list(folder.glob("*.part*"))
        assert_same(quietly(resume, folder), expected)


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("out of memory")])
def test_memory_that_ends_in_writing_costs_the_checkpoint_and_not_the_solve(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: Path, *given: Any) -> None:
        if file.name != "call.pt":
            raise error
        write(file, *given)

    expected, _ = left_alone("exact gradient")
    monkeypatch.setattr(checkpoint, "write", fail)
    reason = str(error) or type(error).__name__
    with pytest.warns(CheckpointWarning, match=f"was not written .{reason}.; the solve goes on"):
        found = gw_align(SPIRAL, ROLL, epsilon=1e-3, random_state=0, checkpoint=Checkpoint(tmp_path / "kept", every=0))
    assert_same(found, expected)


@pytest.mark.parametrize("mask", [0o077, 0o027])
def test_a_folder_is_open_to_whom_the_user_lets_in(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        align({}, callback=lambda _: True, checkpoint=tmp_path / "kept")
    finally:
        os.umask(before)
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o777 & ~mask


def test_a_folder_that_cannot_be_made_is_refused_before_the_solve(tmp_path: Path) -> None:
    told: list[Progress] = []
    message = r"the checkpoint cannot be made: File too large: .*new"
    with files_of_at_most(30_000), pytest.raises(OSError, match=message):
        gw_align(cdist(SPIRAL, SPIRAL), ROLL, checkpoint=tmp_path / "new", callback=told.append)
    assert not told
    assert not list(tmp_path.iterdir())  # nothing half-made


def test_a_file_that_cannot_be_read_any_more_is_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = left_alone("exact gradient")
    align({}, checkpoint=Checkpoint(tmp_path / "kept", every=0))
    read = checkpoint.read

    def failing(file: Path) -> Any:
        if file.name != "call.pt":
            raise OSError(5, "Input/output error")
        return read(file)

    monkeypatch.setattr(checkpoint, "read", failing)
    with pytest.warns(CheckpointWarning, match=r"cannot be read .Input/output error.; what it holds is"):
        assert_same(resume(tmp_path / "kept"), expected)


def test_a_folder_that_cannot_be_written_gives_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    align({}, callback=lambda told: told.iteration == 3, checkpoint=tmp_path / "kept")
    expected, opened = align({}), os.open

    def read_only(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY) and str(tmp_path) in str(path):
            raise OSError(30, "Read-only file system", str(path))
        return opened(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", read_only)
    with pytest.warns(CheckpointWarning, match="kept cannot be written .Read-only file system.; the solve goes on"):
        assert_same(resume(tmp_path / "kept"), expected)


HOLDS = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print(1, flush=True)
input()
"""


def test_a_folder_belongs_to_one_process_at_a_time(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    align({}, checkpoint=tmp_path / "kept")
    command = [sys.executable, "-c", HOLDS, str(tmp_path / "kept" / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(ValueError, match="is in use by a solve, in this process or another"):
            resume(tmp_path / "kept")
        other.kill()


def test_a_folder_is_in_use_as_long_as_its_solve_runs(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    folder, refusals = tmp_path / "kept", []

    def intrude(_: Progress) -> None:
        with pytest.raises(ValueError, match="is in use by a solve, in this process or another") as caught:
            resume(folder)
        refusals.append(caught)
        raise Killed

    with pytest.raises(Killed) as killed:
        align({}, callback=intrude, checkpoint=folder)
    assert_same(quietly(resume, folder), align({}))  # although its end, and all that it held, is still at hand
    assert len(refusals) == 1
    assert killed.value is not None


def test_the_codec_gives_back_what_it_was_given() -> None:
    value = {
        "numbers": (1, 2.5, True, None, "text", float("inf")),
        3: [np.arange(4)[::-1], np.float32(2.0), torch.float32, torch.device("cpu")],
        "nested": ({"a": torch.ones(2)},),
        "status": Status.SETTLED,
        "options": GWOptions(low_rank=LowRankOptions(rank=3)),
    }
    found = decode(encode(value))
    assert found["numbers"] == value["numbers"]
    np.testing.assert_array_equal(found[3][0], [3, 2, 1, 0])
    assert found[3][2:] == [torch.float32, torch.device("cpu")]
    assert torch.equal(found["nested"][0]["a"], torch.ones(2))
    assert found["status"] is Status.SETTLED
    assert found["options"] == value["options"]
    with pytest.raises(TypeError, match="Path cannot be kept"):
        encode(Path("x"))


def test_files_of_one_format_know_classes_by_the_same_names() -> None:
    assert journal.SHARE  # whose classes files hold, too
    names = sorted(name for name in STORABLE if name.startswith("torchgw."))
    stored = Path(__file__).parent / "files" / f"stored_{FORMAT}.txt"
    assert stored.exists(), f"write the names of `STORABLE` to {stored.name}, in place of those of the format before"
    assert names == stored.read_text().split(), (
        "a class whose objects checkpoints hold was moved, renamed, added or taken away: raise `FORMAT`, "
        "which refuses folders of before as such, and write the new names to the list of that format"
    )


def test_a_tiled_plan_that_was_read_before_is_stored_whole() -> None:
    plan = tiled_coupling(9, 11, 2, 0).times(4.0)
    expected = plan.to_dense()
    found = decode(encode(plan))
    assert torch.equal(found.to_dense(), expected)
    assert found._level == plan._level
    assert torch.equal(found.argmax(1), plan.argmax(1))

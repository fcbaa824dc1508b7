"""Ending a solve early, killing it, and going on: the result is that of a solve that was left alone."""

from __future__ import annotations

import os
import pickle
import random
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from tests.problems import ROLL, SPIRAL, quietly
from torchgw import (
    Checkpoint,
    CheckpointWarning,
    CoarseOptions,
    ConvergenceWarning,
    EuclideanDistances,
    FeatureCost,
    GWOptions,
    GWResult,
    Implicit,
    LadderOptions,
    LowRankOptions,
    Partial,
    Progress,
    SamplingOptions,
    Status,
    StoppingOptions,
    Supervision,
    Unbalanced,
    datasets,
    epsilon_path,
    gw_align,
    resume,
)
from torchgw.persist import checkpoint
from torchgw.persist.checkpoint import FORMAT, write
from torchgw.persist.codec import decode, encode
from torchgw.persist.files import written
from torchgw.spaces.graph import neighbour_graph

BRIEF = GWOptions(stopping=StoppingOptions(max_iter=6))
CASES: dict[str, dict[str, Any]] = {
    "exact gradient": {},
    "sampled gradient": {"options": GWOptions(gradient="sampled", stopping=StoppingOptions(max_iter=12))},
    "averaged samples of matrices": {
        "X": cdist(SPIRAL, SPIRAL),
        "Y": cdist(ROLL, ROLL),
        "options": GWOptions(
            gradient="sampled",
            coarse=None,
            sampling=SamplingOptions(cost_ema=0.3),
            stopping=StoppingOptions(max_iter=9, check_every=2),
        ),
    },
    "no entropy": {"epsilon": 0},
    "streaming": {
        "X": datasets.make_spiral(700)[0],
        "Y": datasets.make_swiss_roll(800, random_state=1)[0],
        "options": GWOptions(strategy="streaming", ladder=LadderOptions(n_cells=32, marginal_tol=5e-4)),
    },
    "low rank": {
        "distances": "landmark",
        "epsilon": 0,
        "options": GWOptions(strategy="low-rank", low_rank=LowRankOptions(rank=4, max_iter=8)),
    },
    "unbalanced": {"marginals": Unbalanced(0.05, 0.05), "options": BRIEF},
    "partial, masses": {"marginals": Partial(0.8), "p": np.full(len(SPIRAL), 1 / len(SPIRAL)), "options": BRIEF},
    "features": {"cost": FeatureCost(SPIRAL, ROLL[:, :2]), "alpha": 0.7},
    "stored cost": {"cost": np.random.default_rng(0).random((len(SPIRAL), len(ROLL)))},
    "rules": {"supervision": Supervision(pairs=[(0, 3)], forbidden=[(5, 5)], strength=0.1)},
    "given start": {"init": np.arange(len(SPIRAL)), "options": GWOptions(gradient="sampled")},
    "searched distances": {
        "distances": "dijkstra",
        "options": GWOptions(gradient="sampled", stopping=StoppingOptions(max_iter=6)),
    },
    "straight distances": {"distances": "euclidean", "options": BRIEF},
    "graph": {"X": neighbour_graph(SPIRAL, 5)},
}


class Killed(BaseException):
    """Stands for a signal that nothing survives."""


def align(arguments: dict[str, Any], **more: Any) -> GWResult:
    given = {"X": SPIRAL, "Y": ROLL, "random_state": 0} | arguments | more
    return quietly(gw_align, given.pop("X"), given.pop("Y"), **given)


def assert_same(one: GWResult, other: GWResult) -> None:
    """Not a bit differs but for times."""
    for name, tensor in one.coupling.tensors().items():  # type: ignore[attr-defined]
        assert torch.equal(tensor, other.coupling.tensors()[name]), name  # type: ignore[attr-defined]
    for name in ("value", "value_quad", "value_linear", "marginal_error", "status", "n_iter", "n_iter_sinkhorn"):
        assert repr(getattr(one, name)) == repr(getattr(other, name)), name
    assert repr(one.certificate) == repr(other.certificate)
    assert [basin.energy for basin in one.basins] == [basin.energy for basin in other.basins]
    for name in ("iteration", "cost", "marginal_error", "epsilon"):
        assert getattr(one.history, name) == getattr(other.history, name)
    assert [rung.cells for rung in one.ladder] == [rung.cells for rung in other.ladder]


GRADIENTS = ("exact gradient", "sampled gradient")
LOOPS = (*GRADIENTS, "no entropy", "streaming", "low rank")
Whole = tuple[GWResult, int]


@pytest.fixture(scope="module")
def whole() -> dict[str, Whole]:
    return {}


def left_alone(name: str, whole: dict[str, Whole]) -> Whole:
    """The result of a case, and how often its callback is called."""
    if name not in whole:
        heard: list[Progress] = []
        whole[name] = align(CASES[name], callback=heard.append), len(heard)
    return whole[name]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.bits) if name in GRADIENTS else name for name in CASES]
)
def test_a_killed_solve_goes_on_to_the_same_bits(name: str, tmp_path: Path, whole: dict[str, Whole]) -> None:
    expected, calls = left_alone(name, whole)
    for at in {(calls + 1) // 2, calls} if name in LOOPS else {(calls + 1) // 2}:
        folder, heard = tmp_path / f"at{at}", [0]

        def kill(_: Progress, at: int = at, heard: list[int] = heard) -> None:
            heard[0] += 1
            if heard[0] == at:
                raise Killed

        with pytest.raises(Killed):
            align(CASES[name], callback=kill, checkpoint=Checkpoint(folder, every=0))
        again: list[Progress] = []
        assert_same(quietly(resume, folder, callback=again.append), expected)
        assert len(again) <= calls - at + 2  # what was done is not done again, but for the check that was cut
    assert_same(quietly(resume, folder), expected)  # and once more, from what is finished


@pytest.mark.parametrize("name", LOOPS)
def test_a_cancelled_solve_returns_its_best_and_goes_on(name: str, tmp_path: Path, whole: dict[str, Whole]) -> None:
    expected, calls = left_alone(name, whole)
    heard = [0]

    def enough(_: Progress) -> bool:
        heard[0] += 1
        return heard[0] >= calls // 2

    folder = tmp_path / "kept"
    cut = align(CASES[name], callback=enough, checkpoint=folder)
    assert cut.status is Status.CANCELLED
    assert not cut.converged
    assert cut.marginal_error < 1e-6
    assert_same(quietly(resume, folder), expected)


def test_raising_stop_iteration_ends_with_a_warning_and_a_feasible_plan() -> None:
    def enough(_: Progress) -> None:
        raise StopIteration

    with pytest.warns(ConvergenceWarning, match="ended from outside"):
        result = gw_align(SPIRAL, ROLL, callback=enough, random_state=0)
    assert result.status is Status.CANCELLED
    assert result.marginal_error < 1e-12


def test_an_interrupt_returns_the_best_so_far_and_the_second_one_gives_up() -> None:
    def interrupt(_: Progress) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        align({}, callback=lambda told: (interrupt(told), interrupt(told)))
    assert align({}, callback=interrupt).status is Status.CANCELLED
    assert signal.getsignal(signal.SIGINT) is before


def test_a_solve_in_another_thread_leaves_the_handler_alone() -> None:
    seen: list[Any] = []
    work = threading.Thread(target=lambda: align({}, callback=lambda _: seen.append(signal.getsignal(signal.SIGINT))))
    before = signal.getsignal(signal.SIGINT)
    work.start()
    work.join()
    assert set(seen) == {before}


def test_a_cancelled_path_ends_where_it_was() -> None:
    def enough(told: Progress) -> bool:
        return told.epsilon < 4e-3

    epsilons = [1e-2, 5e-3, 2e-3, 1e-3]
    path = quietly(epsilon_path, SPIRAL, ROLL, epsilons=epsilons, callback=enough, random_state=0)
    assert [result.status is Status.CANCELLED for result in path.results] == [False, False, True]
    assert path.recommended < 2
    with pytest.raises(TypeError, match="checkpoint is of one solve"):
        epsilon_path(SPIRAL, ROLL, checkpoint="somewhere")


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


def test_a_finished_stage_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchgw import align as module
    from torchgw.strategies import dense

    expected = align({}, checkpoint=Checkpoint(tmp_path / "kept", every=0))

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("was run again")

    monkeypatch.setattr(module, "make_providers", fail)
    monkeypatch.setattr(dense, "find_basins", fail)
    monkeypatch.setattr(dense, "descend", fail)
    assert_same(quietly(resume, tmp_path / "kept"), expected)


def test_providers_are_given_once_more(tmp_path: Path) -> None:
    X, Y = EuclideanDistances(SPIRAL), EuclideanDistances(ROLL)
    expected = align({"X": X, "Y": Y}, checkpoint=Checkpoint(tmp_path / "kept", every=0))
    assert_same(quietly(resume, tmp_path / "kept", X=X, Y=Y), expected)
    with pytest.raises(ValueError, match="Y must be the provider that the solve began with"):
        resume(tmp_path / "kept", X=X, Y=EuclideanDistances(2 * ROLL))
    with pytest.raises(ValueError, match=r"Y of the checkpoint .* is a distance provider.*give it"):
        resume(tmp_path / "kept", X=X)
    align({}, checkpoint=tmp_path / "other")
    with pytest.raises(ValueError, match=r"X of the checkpoint .* is in it; leave it out"):
        resume(tmp_path / "other", X=SPIRAL)


REFUSED = [
    ({"checkpoint": 3}, TypeError, "checkpoint must name a folder, or be a Checkpoint, got int"),
    ({"checkpoint": "a\0b"}, ValueError, r"checkpoint must name .*, got 'a\\x00b' with a null character"),
    ({"checkpoint": "no/such/folder"}, ValueError, "make no/such first"),
    ({"checkpoint": "taken"}, ValueError, r"torchgw.resume\('taken'\) goes on"),
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
    with written(bad) as file, ZipFile(file, "w", ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"0" * 10**6)
    with pytest.raises(ValueError, match="are compressed"):
        resume(tmp_path)
    assert not ran.exists()


def test_masses_that_are_one_number_are_kept(tmp_path: Path, whole: dict[str, Whole]) -> None:
    one = torch.full((1,), 1 / len(SPIRAL), dtype=torch.float64).expand(len(SPIRAL))
    result = align({"p": one}, checkpoint=Checkpoint(tmp_path / "kept", every=0))
    assert_same(quietly(resume, tmp_path / "kept"), result)


@pytest.mark.parametrize("coarse", [None, pytest.param(CoarseOptions(), marks=pytest.mark.slow)])
def test_a_solve_cancelled_at_any_check_goes_on_to_the_same_bits(coarse: CoarseOptions | None, tmp_path: Path) -> None:
    small = {"X": SPIRAL[::3], "Y": ROLL[::3], "epsilon": 0, "options": GWOptions(coarse=coarse)}
    told: list[Progress] = []
    expected = align(small, callback=told.append)
    for at in range(1, len(told) + 1):
        heard: list[int] = []

        def enough(_: Progress, at: int = at, heard: list[int] = heard) -> bool:
            heard.append(1)
            return len(heard) == at

        cut = align(small, callback=enough, checkpoint=Checkpoint(tmp_path / str(at), every=1000))
        assert cut.status is Status.CANCELLED
        assert_same(quietly(resume, tmp_path / str(at)), expected)


def test_a_stop_before_the_first_check_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchgw.strategies import dense

    def interrupted(*given: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return find_basins(*given)

    find_basins = dense.find_basins
    monkeypatch.setattr(dense, "find_basins", interrupted)
    result = align({"options": GWOptions(gradient="sampled", stopping=StoppingOptions(check_every=5))})
    assert result.status is Status.CANCELLED
    assert result.history.iteration == [5]


@pytest.mark.parametrize("answer", [True, np.True_])
def test_a_stop_at_the_last_check_is_told_too(answer: Any) -> None:
    calls: list[int] = []
    whole = align({}, callback=lambda _: calls.append(1))
    cut = align({}, callback=lambda told: answer if told.iteration == len(calls) else False)
    assert cut.status is Status.CANCELLED
    assert torch.equal(cut.plan, whole.plan)


def test_numbers_and_tables_of_other_libraries_are_kept(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    given = {
        "p": pandas.Series(np.full(len(SPIRAL), 1 / len(SPIRAL))),
        "cost": (pandas.DataFrame(SPIRAL), ROLL[:, :2]),
        "alpha": np.float64(0.5),
        "epsilon": np.float32(1e-2),
    }
    expected = align(given, checkpoint=Checkpoint(tmp_path / "kept", every=0))
    assert_same(quietly(resume, tmp_path / "kept"), expected)


def test_what_was_written_is_not_lost_to_what_takes_no_time(tmp_path: Path) -> None:
    expected = align({})
    align({}, callback=lambda told: told.iteration == 1, checkpoint=tmp_path / "kept")
    assert (tmp_path / "kept" / "dense.solve-0.loop.pt").exists()
    assert_same(quietly(resume, tmp_path / "kept"), expected)
    again: list[Progress] = []
    assert_same(quietly(resume, tmp_path / "kept", callback=again.append), expected)
    assert not again


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
    happens: Any, reason: str, name: str, tmp_path: Path, whole: dict[str, Whole]
) -> None:
    folder, (expected, calls), heard = tmp_path / "kept", left_alone(name, whole), [0]

    def fail(_: Progress) -> None:
        heard[0] += 1
        if heard[0] == (calls + 1) // 2:
            happens(folder)

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.warns(CheckpointWarning, match=f"was not written .{reason}.; the solve goes on"):
            result = gw_align(
                SPIRAL, ROLL, random_state=0, callback=fail, checkpoint=Checkpoint(folder, every=0), **CASES[name]
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert_same(result, expected)
    if happens is small:  # what had been written is good
        assert not list(folder.glob("*.part*"))
        assert_same(quietly(resume, folder), expected)


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("out of memory")])
def test_memory_that_ends_in_writing_costs_the_checkpoint_and_not_the_solve(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, Whole]
) -> None:
    def fail(file: Path, *given: Any) -> None:
        if file.name != "call.pt":
            raise error
        write(file, *given)

    expected, _ = left_alone("exact gradient", whole)
    monkeypatch.setattr(checkpoint, "write", fail)
    reason = str(error) or type(error).__name__
    with pytest.warns(CheckpointWarning, match=f"was not written .{reason}.; the solve goes on"):
        found = gw_align(SPIRAL, ROLL, random_state=0, checkpoint=Checkpoint(tmp_path / "kept", every=0))
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
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    told: list[Progress] = []
    small(tmp_path)
    try:
        with pytest.raises(OSError, match=r"the checkpoint cannot be made: File too large: .*new"):
            gw_align(cdist(SPIRAL, SPIRAL), ROLL, checkpoint=tmp_path / "new", callback=told.append)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not told
    assert not list(tmp_path.iterdir())  # nothing half-made


def test_a_file_that_cannot_be_read_any_more_is_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, Whole]
) -> None:
    expected, _ = left_alone("exact gradient", whole)
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


def test_other_threads_are_told(tmp_path: Path) -> None:
    align({}, checkpoint=tmp_path / "kept")
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        with pytest.warns(CheckpointWarning, match=f"'threads': {before}.*'threads': {before + 1}"):
            resume(tmp_path / "kept")
    finally:
        torch.set_num_threads(before)


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


SCRIPT = """
    import sys, torch, torchgw
    X, _ = torchgw.datasets.make_spiral({n})
    Y, _ = torchgw.datasets.make_swiss_roll({k}, random_state=1)
    torch.set_num_threads({threads})
    print("begin", flush=True)
    if sys.argv[1] == "resume":
        result = torchgw.resume({folder!r})
    else:
        kept = torchgw.Checkpoint({folder!r}, every=0) if sys.argv[1] == "kept" else None
        result = torchgw.gw_align(X, Y, random_state=0, checkpoint=kept, options={options})
    result.save(sys.argv[2])
"""


def killed_and_resumed(tmp_path: Path, n: int, k: int, options: str, kills: int) -> tuple[GWResult, GWResult, int]:
    """A solve left alone, one killed at random moments and resumed, and how often it was killed before its end."""
    folder, results = str(tmp_path / "kept"), [tmp_path / "whole.npz", tmp_path / "resumed.npz"]
    script = textwrap.dedent(SCRIPT).format(n=n, k=k, folder=folder, options=options, threads=torch.get_num_threads())

    def start(mode: str, out: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "ignore", "-c", script, mode, str(out)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "begin\n"
        return process

    process, began = start("whole", results[0]), time.monotonic()
    assert process.wait() == 0
    lasts, draw, killed = time.monotonic() - began, random.Random(), 0
    for _ in range(kills):
        started = (Path(folder) / "call.pt").exists()
        process = start("resume" if started else "kept", results[1])
        time.sleep(draw.uniform(0.1, 0.6) * lasts)
        killed += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    started = (Path(folder) / "call.pt").exists()
    assert start("resume" if started else "kept", results[1]).wait() == 0
    return GWResult.load(results[0]), GWResult.load(results[1]), killed


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_process_killed_at_a_random_moment_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole, resumed, killed = killed_and_resumed(tmp_path, 500, 550, "torchgw.GWOptions(gradient='sampled')", 1)
    assert killed == 1
    assert_same(resumed, whole)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("strategy", ["auto", "dense"])
def test_five_thousand_points_killed_three_times_end_the_same(strategy: str, tmp_path: Path) -> None:
    whole, resumed, killed = killed_and_resumed(tmp_path, 5000, 6000, f"torchgw.GWOptions(strategy={strategy!r})", 3)
    assert killed > 0
    assert_same(resumed, whole)

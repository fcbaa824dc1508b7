"""Ending a solve early, killing it, and going on: the result is that of a solve that was left alone."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.checkpoint_cases import CASES, GRADIENTS, LOOPS, REPEATED, Killed, align, assert_same, left_alone
from tests.problems import ROLL, SPIRAL, quietly
from torchgw import (
    Checkpoint,
    CheckpointWarning,
    CoarseOptions,
    ConvergenceWarning,
    EuclideanDistances,
    GWOptions,
    GWResult,
    Progress,
    Status,
    StoppingOptions,
    epsilon_path,
    gw_align,
    resume,
)
from torchgw.datasets import make_spiral, make_swiss_roll


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=pytest.mark.bits if name in GRADIENTS else pytest.mark.slow if name in REPEATED else ()
        )
        for name in CASES
    ],
)
def test_a_killed_solve_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    expected, calls = left_alone(name)
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
def test_a_cancelled_solve_returns_its_best_and_goes_on(name: str, tmp_path: Path) -> None:
    expected, calls = left_alone(name)
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


def test_a_finished_stage_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchgw import align as module
    from torchgw.strategies import dense, entropic

    expected = align({}, checkpoint=Checkpoint(tmp_path / "kept", every=0))

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("was run again")

    monkeypatch.setattr(module, "make_providers", fail)
    monkeypatch.setattr(dense, "find_basins", fail)
    monkeypatch.setattr(entropic, "descend", fail)
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


def test_masses_that_are_one_number_are_kept(tmp_path: Path) -> None:
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
    assert np.array_equal(cut.plan, whole.plan)


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


def test_other_threads_are_told(tmp_path: Path) -> None:
    align({}, checkpoint=tmp_path / "kept")
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        with pytest.warns(CheckpointWarning, match=f"'threads': {before}.*'threads': {before + 1}"):
            resume(tmp_path / "kept")
    finally:
        torch.set_num_threads(before)


def solve_or_resume(begins: Any, n: int, k: int, options: GWOptions, folder: Path, kept: bool, out: Path) -> None:
    """What a process of its own does: a solve that keeps checkpoints or does not, or goes on with those there are."""
    X, Y = make_spiral(n)[0], make_swiss_roll(k, random_state=1)[0]
    torch.set_num_threads(1)  # of several a busy machine would take some, and with them the last bits
    begins.set()
    if kept and (folder / "call.pt").exists():
        result = quietly(resume, folder)
    else:
        checkpoint = Checkpoint(folder, every=0) if kept else None
        result = quietly(gw_align, X, Y, random_state=0, checkpoint=checkpoint, options=options)
    result.save(out)


def killed_and_resumed(
    tmp_path: Path, n: int, k: int, options: GWOptions, kills: int
) -> tuple[GWResult, GWResult, int]:
    """A solve left alone, one killed at random moments and resumed, and how often it was killed before its end."""
    forked = multiprocessing.get_context("forkserver")
    forked.set_forkserver_preload(["tests.rank_cases", __name__])

    def start(out: str) -> Any:
        given = (n, k, options, tmp_path / "kept", out == "resumed.npz", tmp_path / out)
        process = forked.Process(target=solve_or_resume, args=(begins := forked.Event(), *given))
        process.start()
        assert begins.wait(60)
        return process

    def ended(process: Any) -> GWResult:
        process.join()
        assert process.exitcode == 0
        return GWResult.load(out)

    out = tmp_path / "whole.npz"
    process, began = start(out.name), time.monotonic()
    whole = ended(process)
    lasts, draw, killed, out = time.monotonic() - began, random.Random(), 0, tmp_path / "resumed.npz"
    for _ in range(kills):
        process = start(out.name)
        process.join(draw.uniform(0.1, 0.6) * lasts)
        killed += process.exitcode is None
        process.kill()
        process.join()
    return whole, ended(start(out.name)), killed


def test_a_process_killed_at_a_random_moment_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole, resumed, killed = killed_and_resumed(tmp_path, 300, 330, GWOptions(gradient="sampled"), 1)
    assert killed == 1
    assert_same(resumed, whole)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["auto", "dense"])
def test_five_thousand_points_killed_three_times_end_the_same(strategy: str, tmp_path: Path) -> None:
    whole, resumed, killed = killed_and_resumed(tmp_path, 5000, 6000, GWOptions(strategy=strategy), 3)
    assert killed > 0
    assert_same(resumed, whole)

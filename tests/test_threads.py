"""A small solve has one of torch's threads, a large one all that were given, and what was given is there afterwards."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torchgw import GWOptions, Implicit, Progress, gw_align, gw_loss, resume
from torchgw.runtime import threads
from torchgw.runtime.threads import lock_across_forks, one_thread, set_own_threads, threads_for

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::torchgw.{name}") for name in ("AmbiguityWarning", "ConvergenceWarning")
]
GIVEN = 3
X, Y = (np.random.default_rng(seed).normal(size=(n, 2)) for seed, n in ((0, 9), (1, 11)))


@pytest.fixture(autouse=True)
def _given(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Beside nobody, whatever else runs here."""
    monkeypatch.setattr(threads, "_waiting_seconds", lambda: 0.0)
    monkeypatch.setattr(threads, "REST", 0)
    before = torch.get_num_threads()
    torch.set_num_threads(GIVEN)
    yield
    torch.set_num_threads(before)


def in_a_new_thread(call: Callable[[], Any] = torch.get_num_threads) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def numbers() -> tuple[int, int]:
    """Of this thread, and of one that begins now."""
    return torch.get_num_threads(), in_a_new_thread()


def align(**arguments: Any) -> Any:
    """A solve without its search."""
    return gw_align(X, Y, distances="euclidean", epsilon=1e-2, init=np.arange(len(X)), random_state=0, **arguments)


def hears(solve: Callable[..., Any], *given: Any, **arguments: Any) -> set[tuple[int, int]]:
    """What `numbers` says within a solve."""
    seen: set[tuple[int, int]] = set()
    solve(*given, callback=lambda _: seen.add(numbers()), **arguments)
    return seen


@pytest.mark.filterwarnings("ignore::torchgw.SamplingWarning")
@pytest.mark.parametrize("arguments", [{}, {"epsilon": 0.0}, {"options": GWOptions(strategy="streaming")}])
def test_a_small_solve_has_one_thread_and_leaves_what_it_found(arguments: dict[str, Any]) -> None:
    assert hears(gw_align, X, Y, random_state=0, **arguments) == {(1, GIVEN)}
    assert numbers() == (GIVEN, GIVEN)


def test_a_large_solve_has_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "SEVERAL_PAY", len(X) * len(Y))
    assert hears(align) == {(GIVEN, GIVEN)}
    torch.set_num_threads(1)
    assert hears(align) == {(1, 1)}


def waiting(monkeypatch: pytest.MonkeyPatch, share: float, since: float = 0.0) -> None:
    """This Python thread waits for a core such a share of the time, as a system tells that is there."""
    monkeypatch.setattr(threads, "WAITED", __file__)
    monkeypatch.setattr(threads, "_waiting_seconds", lambda: share * max(time.perf_counter() - since, 0.0))


@pytest.mark.parametrize(("share", "count"), [(0.01, GIVEN), (0.2, GIVEN), (0.5, 1)])
def test_a_large_solve_has_one_thread_where_it_would_wait_for_others(
    monkeypatch: pytest.MonkeyPatch, share: float, count: int
) -> None:
    monkeypatch.setattr(threads, "SEVERAL_PAY", len(X) * len(Y))
    waiting(monkeypatch, share)
    assert hears(align) == {(count, GIVEN)}
    assert numbers() == (GIVEN, GIVEN)


def test_a_large_solve_goes_on_in_one_thread_once_it_has_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "SEVERAL_PAY", len(X) * len(Y))
    seen = []

    def callback(_: Progress) -> None:
        seen.append(numbers())
        if len(seen) == 1:
            waiting(monkeypatch, 0.5, time.perf_counter())
            time.sleep(2 * threads.LOOKED_AT)

    align(callback=callback)
    assert len(seen) > 2
    assert seen == [(GIVEN, GIVEN), *[(1, GIVEN)] * (len(seen) - 1)]
    assert numbers() == (GIVEN, GIVEN)


def test_one_thread_stays_where_a_part_of_the_solve_had_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with threads_for(threads.SEVERAL_PAY):
        with threads_for(threads.SEVERAL_PAY):
            threads.share()
            assert torch.get_num_threads() == GIVEN
            waiting(monkeypatch, 0.5, time.perf_counter())
            time.sleep(2 * threads.LOOKED_AT)
            threads.share()
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == GIVEN
    threads.share()  # nobody's
    assert torch.get_num_threads() == GIVEN


def test_what_is_over_by_the_second_trial_costs_no_thread_and_is_not_tried_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fifth of the time is more than a look and the first trial allow, and less than the second asks for."""
    tried, crowded = [], threads._has_core_contention
    monkeypatch.setattr(threads, "_has_core_contention", lambda: tried.append(1) or crowded())
    monkeypatch.setattr(threads, "REST", 20)
    waiting(monkeypatch, 0.2)
    with threads_for(threads.SEVERAL_PAY):
        for _ in range(30):
            time.sleep(0.01)
            threads.share()
        assert torch.get_num_threads() == GIVEN
    assert len(tried) == 1


def test_threads_are_halved_while_they_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(8)
    answers = iter([True, True, False])
    monkeypatch.setattr(threads, "_has_core_contention", lambda: next(answers))
    with threads_for(threads.SEVERAL_PAY):
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == 8


def test_the_system_is_read_as_it_tells(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    (tmp_path / "schedstat").write_text("7 2500000000 3\n")
    monkeypatch.setattr(threads, "WAITED", str(tmp_path / "schedstat"))
    assert threads._waiting_seconds() == 2.5
    monkeypatch.setattr(threads, "WAITED", str(tmp_path / "none"))
    assert threads._waiting_seconds() == 0.0
    assert not threads._has_core_contention()


def test_parts_of_a_large_solve_that_are_small_have_one_thread() -> None:
    with threads_for(threads.SEVERAL_PAY):
        assert torch.get_num_threads() == GIVEN
        with threads_for(threads.SEVERAL_PAY - 1):
            assert torch.get_num_threads() == 1
            with threads_for(threads.SEVERAL_PAY):  # no more than around it
                assert torch.get_num_threads() == 1
            with one_thread():
                assert torch.get_num_threads() == 1
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == GIVEN


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_what_was_given_is_there_after_an_error(error: type[BaseException]) -> None:
    def callback(_: Progress) -> None:
        raise error

    with pytest.raises(error):
        align(callback=callback)
    assert numbers() == (GIVEN, GIVEN)


def test_what_was_given_is_there_after_an_early_stop_and_a_resumed_solve(tmp_path: Path) -> None:
    align(callback=lambda _: True, checkpoint=tmp_path / "kept")
    assert numbers() == (GIVEN, GIVEN)
    assert hears(resume, tmp_path / "kept") == {(1, GIVEN)}
    assert numbers() == (GIVEN, GIVEN)


def test_a_solve_within_a_solve_leaves_the_outer_one_its_thread() -> None:
    seen = []

    def callback(_: Progress) -> None:
        if not seen:
            seen.append(numbers())
            align()
            seen.append(numbers())

    align(callback=callback)
    assert seen == [(1, GIVEN)] * 2
    assert numbers() == (GIVEN, GIVEN)


def test_python_threads_that_solve_at_once_each_keep_their_number() -> None:
    """The first one to end must not raise the others' number, nor the last one leave its own to those to come."""
    counts, both = (GIVEN, 5, 2), threading.Barrier(3)

    def solve(count: int) -> list[int]:
        set_own_threads(count)
        seen = [torch.get_num_threads()]

        def callback(_: Progress) -> None:
            if len(seen) == 1:
                both.wait(60)
                seen.append(torch.get_num_threads())

        align(callback=callback)
        return [*seen, torch.get_num_threads()]

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(solve, counts))
    assert found == [[count, 1, count] for count in counts]
    assert numbers() == (GIVEN, GIVEN)


def test_a_python_thread_takes_no_number_that_another_one_is_about_to_give_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_threads, first, second = torch.set_num_threads, threading.Event(), threading.Event()

    def slowly(count: int) -> None:
        set_threads(count)
        if count == 1:
            first.set()
            second.wait(0.3)  # in vain, where the second one waits for the first
        elif count == 2:
            second.set()
            one.result()

    monkeypatch.setattr(torch, "set_num_threads", slowly)
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(set_own_threads, 1)
        first.wait(60)
        pool.submit(set_own_threads, 2).result()
    assert in_a_new_thread() == GIVEN


def test_a_python_thread_that_begins_during_a_solve_has_the_number_of_the_process() -> None:
    with one_thread():
        assert in_a_new_thread() == GIVEN
        in_a_new_thread(align)
        assert numbers() == (1, GIVEN)
    assert numbers() == (GIVEN, GIVEN)


def test_a_python_thread_that_begins_while_a_number_is_set_keeps_that_of_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, seen, setting = [], [], torch.set_num_threads

    def late() -> None:
        align()
        seen.append(torch.get_num_threads())

    def set_and_wait(count: int) -> None:
        setting(count)
        if not begun:  # the common number is that of this thread alone
            begun.append(threading.Thread(target=late))
            begun[0].start()
            begun[0].join(0.2)

    monkeypatch.setattr(torch, "set_num_threads", set_and_wait)
    with one_thread():
        begun[0].join()
    assert seen == [GIVEN]
    assert numbers() == (GIVEN, GIVEN)


class NoThreads(ThreadPoolExecutor):
    """What it says where the system, or the ending interpreter, gives no Python thread."""

    def submit(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("can't start new thread")


def test_without_another_python_thread_a_solve_still_gives_back_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(threads, "ThreadPoolExecutor", NoThreads)
        with one_thread():
            assert numbers() == (1, 1)  # there is nobody else to keep it
        assert numbers() == (GIVEN, GIVEN)

    def fail(_: Progress) -> None:
        monkeypatch.setattr(threads, "ThreadPoolExecutor", NoThreads)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        align(callback=fail)
    assert numbers() == (GIVEN, GIVEN)


def test_a_solve_runs_while_the_interpreter_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("concurrent.futures.thread._shutdown", True)
        with pytest.raises(RuntimeError, match="after interpreter shutdown"):
            in_a_new_thread()
        assert align().shape == (len(X), len(Y))
        assert torch.get_num_threads() == GIVEN
    assert numbers() == (GIVEN, GIVEN)


def test_gradients_are_solved_by_one_thread_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchgw.gradients.adjoint import Adjoint

    seen, solve = [], Adjoint.solve
    monkeypatch.setattr(Adjoint, "solve", lambda *given: seen.append(numbers()) or solve(*given))
    points = torch.from_numpy(X).requires_grad_()
    arguments = {"distances": "euclidean", "epsilon": 1e-2, "init": np.arange(len(X)), "random_state": 0}
    gw_align(points, Y, gradient_mode=Implicit(), **arguments).plan.square().sum().backward()
    assert seen == [(1, GIVEN)]
    gw_loss(points, Y, **arguments).backward()
    assert numbers() == (GIVEN, GIVEN)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_process_forked_while_another_thread_holds_a_lock_does_not_wait_for_it() -> None:
    lock, ended = lock_across_forks(), threading.Event()

    def hold() -> None:
        while not ended.is_set():
            with lock:
                time.sleep(2e-3)
            time.sleep(1e-4)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                os._exit(0 if lock.acquire(timeout=1) else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        ended.set()
        holder.join()

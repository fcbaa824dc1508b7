"""How many threads torch has for a solve: one for a small one, else those that it was given.

An operation that is divided among threads ends with the last of them. Beside another busy program one of them often
waits for its time slice, milliseconds within an operation of microseconds, and a small solve is ten thousands of such
operations. From `SEVERAL_PAY` pairs of points on what the large products and exponentials gain is worth that, on cores
that nobody else wants: on two cores two threads take 0.6 to 0.95 of the time of one, beside a busy program ten times as
long. So a large solve halves its threads where its own Python thread has had to wait for a core, which Linux tells; of
the cores of torch's other threads it does not know, and what was given up is not taken back before the end.

torch keeps one number for each Python thread, and one that threads begin with. `torch.set_num_threads` sets both, so
that a thread which begins meanwhile, or another solve in one, would be left with a number that nobody asked for. A
thread takes the number of those that begin when it first uses torch, so the library asks for it, at every entry, while
nobody sets one. A thread whose first use of torch is its own, in the millisecond in which another thread's solve begins
or ends, may take that solve's number: torch has no call that sets one without the other.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

import torch

logger = logging.getLogger("torchgw")

SEVERAL_PAY = 2_000_000
WAITED = "/proc/thread-self/schedstat"  # nanoseconds that this thread had a core for, and that it waited for one
MOST_WAITED, LOOKED_AT = 0.1, 0.01  # share of time, alone below 0.001 (measured); seconds between looks, at least
# Seconds in which several threads are tried, and the share of them waited from which they are not worth it: a busy
# program takes 0.2 and 0.4 at least, and what a system does now and then is over before the second trial (measured).
TRIALS, TRIED_ON = ((0.006, 0.1), (0.08, 0.3)), 200_000  # and how many numbers torch divides among them
REST = 20  # times as long as they were tried, in which nobody looks


def lock_across_forks() -> threading.RLock:
    """A lock that a process forked while another thread holds it does not wait for."""
    lock = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock


_setting = lock_across_forks()
_several = (
    threading.local()
)  # ``seen``: when this Python thread, which has several, was looked at, and `_waiting_seconds` then


def threads_for(pairs: int) -> AbstractContextManager[None]:
    """In this context torch has the threads for plans of so many pairs of points, in this Python thread."""
    if pairs < SEVERAL_PAY:
        return one_thread()
    return nullcontext() if hasattr(_several, "seen") else _adapt_threads_to_contention()


@contextmanager
def _adapt_threads_to_contention() -> Iterator[None]:
    """In this context torch has its threads until this one has to `share` cores."""
    given = own_threads()
    try:
        _reduce_threads_under_contention()
        yield
    finally:
        _several.__dict__.pop("seen", None)
        if own_threads() != given:
            set_own_threads(given)


def share() -> None:
    """Half of the threads from here to the end of the context of several, where this one has had to wait for a core,
    and would go on to. To be called often, between operations."""
    seen = getattr(_several, "seen", None)
    if seen is None or (past := (now := time.perf_counter()) - seen[0]) < LOOKED_AT:
        return
    waited = _waiting_seconds()
    _several.seen = now, waited
    if waited - seen[1] > MOST_WAITED * past:
        _reduce_threads_under_contention()


def _reduce_threads_under_contention() -> None:
    """Half of the threads, and half again, while they have to wait; then nobody looks for a while."""
    began, count = time.perf_counter(), own_threads()
    while count > 1 and _has_core_contention():
        count //= 2
        logger.info("cores are shared with other programs, so torch goes on with threads: %d", count)
        set_own_threads(count)
    now = time.perf_counter()
    _several.seen = now + REST * (now - began), _waiting_seconds()


def _has_core_contention() -> bool:
    """Whether this thread has to wait for a core while torch has several; never where nobody tells."""
    if not os.path.exists(WAITED):
        return False
    numbers = torch.zeros(TRIED_ON, dtype=torch.float32, device="cpu")
    for seconds, most in TRIALS:
        began, before = time.perf_counter(), _waiting_seconds()
        while (past := time.perf_counter() - began) < seconds:
            torch.exp(numbers, out=numbers)
        if _waiting_seconds() - before <= most * past:
            return False
    return True


def _waiting_seconds() -> float:
    """Seconds that this thread has waited for a core; 0 where nobody tells."""
    try:
        with open(WAITED, "rb") as file:
            return 1e-9 * int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0


@contextmanager
def one_thread() -> Iterator[None]:
    """In this context torch has one thread in this Python thread."""
    given = own_threads()
    if given == 1:
        yield
        return
    try:
        set_own_threads(1)
        yield
    finally:
        set_own_threads(given)


def own_threads() -> int:
    """Torch's number for this Python thread, which takes the common one at its first use."""
    with _setting:
        return torch.get_num_threads()


def set_own_threads(count: int) -> None:
    """Set torch's number for this Python thread alone; others, and those to come, keep theirs. Where no Python thread
    can be had, those to come have it too."""
    own_threads()  # whatever was set before, the first use would undo
    with _setting, suppress(RuntimeError), ThreadPoolExecutor(1) as aside:  # as Python exits, no thread begins
        try:
            common = aside.submit(torch.get_num_threads).result()
        finally:
            torch.set_num_threads(count)
        aside.submit(torch.set_num_threads, common)

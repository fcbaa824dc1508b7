"""How many threads torch has for a solve: one for a small one, else those that it was given.

An operation that is divided among threads ends with the last of them. Beside another busy program one of them often
waits for its time slice, milliseconds within an operation of microseconds, and a small solve is ten thousands of such
operations. From `SEVERAL_PAY` pairs of points on what the large products and exponentials gain is worth that.

torch keeps one number for each Python thread, and one that threads begin with. `torch.set_num_threads` sets both, so
that a thread which begins meanwhile, or another solve in one, would be left with a number that nobody asked for. A
thread takes the number of those that begin when it first uses torch, so the library asks for it, at every entry, while
nobody sets one. A thread whose first use of torch is its own, in the millisecond in which another thread's solve begins
or ends, may take that solve's number: torch has no call that sets one without the other.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

import torch

SEVERAL_PAY = 2_000_000


def lock_across_forks() -> threading.RLock:
    """A lock that a process forked while another thread holds it does not wait for."""
    lock = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock


_setting = lock_across_forks()


def threads_for(pairs: int) -> AbstractContextManager[None]:
    """In this context torch has the threads for plans of so many pairs of points, in this Python thread."""
    return nullcontext() if pairs >= SEVERAL_PAY else one_thread()


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

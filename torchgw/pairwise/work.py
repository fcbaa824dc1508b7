"""What is done with one tile of pairs, here or in another process, and who does it.

In this process there is a thread for each of torch's, each with one: the operations of a batch are too short to be
divided, and so their bits do not depend on the number of threads. Two threads are 1.2 to 1.8 times as fast as one, for
Python's own work around short operations counts. Under joblib tiles go to its workers, on this machine or, with
Dask's or Ray's backend, on others.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchgw.align import gw_align
from torchgw.diagnostics.status import Status
from torchgw.options import GWOptions
from torchgw.pairwise.batch import solve_batch
from torchgw.pairwise.polish import Polished, polished
from torchgw.pairwise.space import Space
from torchgw.pairwise.status import PairStatus
from torchgw.pairwise.tiles import Pair
from torchgw.runtime.threads import one_thread, set_own_threads
from torchgw.spaces import PrecomputedDistances
from torchgw.types import Array

AT_A_TIME = 4  # tasks for each worker
ONE_AT_A_TIME = threading.Lock()  # filters of warnings belong to the process


@dataclass(frozen=True)
class Solved:
    """A pair (i, j) with its value, its gap over the value and its marginals' L1 error.

    ``matching``, where asked for: for each point of either space the one of the other that it sends most mass to,
    (N_i,) and (N_j,); -1 for points without mass.
    """

    pair: Pair
    value: float
    gap: float
    marginal_error: float
    status: PairStatus
    matching: tuple[Array, Array] | None = None


@dataclass(frozen=True)
class Task:
    """Pairs and the spaces that they belong to."""

    pairs: list[Pair]
    spaces: dict[int, Space]
    tol: float
    device: torch.device
    matchings: bool
    large: bool
    seed: int
    options: GWOptions = field(default_factory=GWOptions)


class Ended(Exception):  # noqa: N818 - somebody asked for it
    """A pair of large spaces was given up."""


def solve(task: Task, stopped: Callable[[], bool] = lambda: False) -> list[Solved]:
    """All pairs of a task, in their order.

    Raises
    ------
    Ended
        When ``stopped`` within a pair of large spaces, or on Ctrl-C there.
    """
    sides = [(task.spaces[i], task.spaces[j]) for i, j in task.pairs]
    turned = [x.rank < y.rank for x, y in sides]
    sides = [(y, x) if turn else (x, y) for (x, y), turn in zip(sides, turned, strict=True)]
    found = (
        [_aligned(x, y, task, stopped) for x, y in sides] if task.large else solve_batch(sides, task.tol, task.device)
    )
    every = zip(task.pairs, sides, turned, found, strict=True)
    return [_solved(pair, *both, turn, plan, task) for pair, both, turn, plan in every]


def _solved(pair: Pair, x: Space, y: Space, turned: bool, found: Polished, task: Task) -> Solved:
    finite = np.isfinite(found.value) and np.isfinite(found.gap)
    status = PairStatus.FAILED if not finite else PairStatus.SETTLED if found.gap <= task.tol else PairStatus.UNSETTLED
    matching = None
    if task.matchings and finite:
        forward, backward = _strongest(found.plan, x, y), _strongest(found.plan.T, y, x)
        matching = (backward, forward) if turned else (forward, backward)
    return Solved(pair, found.value if finite else float("nan"), found.gap, found.marginal_error, status, matching)


def _strongest(plan: Tensor, x: Space, y: Space) -> Array:
    """For each point of all of a space the index in the other one that it sends most mass to; -1 without mass."""
    found = np.full(x.total, -1, dtype=np.int32)
    found[x.support] = y.support[plan.argmax(1).numpy()]
    return found


def _aligned(x: Space, y: Space, task: Task, stopped: Callable[[], bool]) -> Polished:
    """Two large spaces by `gw_align` without entropy, in their own units."""
    unit = max(x.distances.max(), y.distances.max()) or 1.0
    providers = [PrecomputedDistances.stored_matrix(torch.from_numpy(side.distances / unit), 1.0) for side in (x, y)]
    with ONE_AT_A_TIME, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the status is told instead
        found = gw_align(
            *providers,
            p=x.mass,
            q=y.mass,
            epsilon=0.0,
            options=task.options,
            device=task.device,
            random_state=task.seed,
            callback=lambda _: stopped(),
        )
    if found.status is Status.CANCELLED:
        raise Ended
    return polished(x, y, found.plan.cpu(), found.value * unit**2, found.certificate.stationarity * unit**2)


def one_thread_each(workers: int) -> ThreadPoolExecutor:
    """Workers in which torch has one thread."""
    return ThreadPoolExecutor(workers, "torchgw-pairwise", set_own_threads, (1,))


def outcomes(
    tasks: Sequence[Task], n_jobs: int | None, stopped: Callable[[], bool] = lambda: False
) -> Generator[list[Solved], None, None]:
    """Results of tasks as they come, in no order. Once ``stopped``, or closed, nothing begins any more."""
    if n_jobs is not None or _joblib_is_asked():
        yield from _by_joblib(tasks, n_jobs, stopped)
        return
    yield from _in_threads([task for task in tasks if not task.large], stopped)
    for task in (task for task in tasks if task.large):
        if stopped():
            return
        try:
            solved = solve(task, stopped)
        except Ended:
            if stopped():
                return
            raise KeyboardInterrupt from None
        yield solved


def _in_threads(tasks: Sequence[Task], stopped: Callable[[], bool]) -> Iterator[list[Solved]]:
    on_cpu = all(task.device.type == "cpu" for task in tasks)
    workers = max(min(torch.get_num_threads() if on_cpu else 1, len(tasks)), 1)
    pool = one_thread_each(workers)
    try:
        begun = [pool.submit(lambda task: [] if stopped() else solve(task), task) for task in tasks]
        for done in as_completed(begun):
            yield done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _joblib_is_asked() -> bool:
    """Whether the caller is within a `joblib.parallel_config` that names a backend or a number of jobs."""
    if "joblib" not in sys.modules:
        return False
    from joblib.parallel import DEFAULT_BACKEND, get_active_backend

    backend, n_jobs = get_active_backend()
    return n_jobs not in (None, 1) or DEFAULT_BACKEND not in type(backend).__name__.lower()


def _by_joblib(tasks: Sequence[Task], n_jobs: int | None, stopped: Callable[[], bool]) -> Iterator[list[Solved]]:
    from joblib import Parallel, delayed, effective_n_jobs

    many = max(len(tasks), 1)
    try:
        parallel = Parallel(n_jobs=n_jobs, return_as="generator_unordered")
    except ValueError:  # a backend that returns all at the end, as Ray's: it is given a few at a time
        parallel, many = Parallel(n_jobs=n_jobs), AT_A_TIME * effective_n_jobs(n_jobs)
    for start in range(0, len(tasks), many):
        if stopped():
            return
        here = os.getpid()
        results: Any = parallel(delayed(_in_worker)(task, here) for task in tasks[start : start + many])
        try:
            for solved in results:
                yield solved
                if stopped() and not isinstance(results, list):
                    return
        except BrokenExecutor:  # Ctrl-C in a terminal reaches idle workers too
            if not stopped():
                raise
        finally:
            if hasattr(results, "close"):
                results.close()


def _in_worker(task: Task, caller: int) -> list[Solved]:
    """`solve` with one thread; nothing where Ctrl-C in a terminal has reached another process than the ``caller``."""
    try:
        with nullcontext() if task.large else one_thread():
            return solve(task)
    except (KeyboardInterrupt, Ended):
        if os.getpid() == caller:
            raise KeyboardInterrupt from None
        return []

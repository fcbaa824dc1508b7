"""Which pairs are solved together, and who solves them: tiles of the table of all pairs, as tasks for workers.

Pairs of a tile have about equal shapes and belong to few spaces, which is what a worker is sent. Tiles depend on the
sizes alone, so that every run of a problem has the same.

In this process there is a thread for each of torch's, each with one: the operations of a batch are too short to be
divided, and so their bits do not depend on the number of threads. Two threads are 1.2 to 1.8 times as fast as one, for
Python's own work around short operations counts. Under joblib tiles go to its workers, on this machine or, with
Dask's or Ray's backend, on others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from torchgw.batched.space import PreparedSpace, prepare_space
from torchgw.options import GWOptions
from torchgw.pairwise.inputs import Inputs
from torchgw.pairwise.result import Pair, SolvedPair
from torchgw.pairwise.solve import PairCancelled, Task, solve_task
from torchgw.runtime.threads import one_thread, set_own_threads

GROUP_POINTS = 600
GROUP_SPACES = 16
AT_A_TIME = 4  # tasks for each worker


def make_tiles(sizes: Sequence[int], wanted: Iterable[Pair]) -> list[list[Pair]]:
    """The ``wanted`` pairs (i, j) of spaces of these sizes, in tiles, the most work first."""
    group = _group_spaces(sizes)
    found: dict[Pair, list[Pair]] = {}
    for i, j in wanted:
        first, second = sorted((group[i], group[j]))
        found.setdefault((first, second), []).append((i, j))
    work = {key: sum(sizes[i] * sizes[j] * (sizes[i] + sizes[j]) for i, j in pairs) for key, pairs in found.items()}
    return [found[key] for key in sorted(found, key=lambda key: (-work[key], key))]


def _group_spaces(sizes: Sequence[int]) -> list[int]:
    """A group for each space: neighbours in the order of sizes, of few points together."""
    group, number, points, count = [0] * len(sizes), 0, 0, 0
    for space in sorted(range(len(sizes)), key=lambda i: (sizes[i], i)):
        if count and (points + sizes[space] > GROUP_POINTS or count == GROUP_SPACES):
            number, points, count = number + 1, 0, 0
        group[space], points, count = number, points + sizes[space], count + 1
    return group


@dataclass(frozen=True)
class TaskMaker:
    """Makes tasks of pairs of spaces.

    inputs : the n spaces, as matrices of distances.
    tol, device, matchings, options, seed : of every `Task`.
    prepared : spaces by their place, each made when it is first needed.
    """

    inputs: Inputs
    tol: float
    device: torch.device
    matchings: bool
    options: GWOptions
    seed: int
    prepared: dict[int, PreparedSpace] = field(default_factory=dict)

    def make_tasks(self, wanted: Sequence[Pair]) -> list[Task]:
        """The wanted pairs in tiles, with the spaces that each needs; those of large spaces one by one, last."""
        sizes = self.inputs.sizes
        self._prepare(sorted({i for pair in wanted for i in pair} - self.prepared.keys()))
        each = [any(map(self.inputs.is_large, pair)) for pair in wanted]
        large = [pair for pair, alone in zip(wanted, each, strict=True) if alone]
        small = make_tiles(sizes, [pair for pair, alone in zip(wanted, each, strict=True) if not alone])
        return [self._make_task(tile, False) for tile in small] + [self._make_task([pair], True) for pair in large]

    def _make_task(self, pairs: list[Pair], large: bool) -> Task:
        spaces = {i: self.prepared[i] for pair in pairs for i in pair}
        return Task(pairs, spaces, self.tol, self.device, self.matchings, large, self.seed, self.options)

    def _prepare(self, new: Sequence[int]) -> None:
        """Prepare spaces, each in a thread."""
        with one_thread_each(torch.get_num_threads()) as pool:
            self.prepared.update(zip(new, pool.map(self._prepare_space, new), strict=True))

    def _prepare_space(self, i: int) -> PreparedSpace:
        seed = self.seed % 2**32
        inputs = self.inputs
        return prepare_space(
            inputs.distances_over_divisor(i), inputs.masses[i], seed, inputs.is_large(i), metric=inputs.metric[i]
        )


def one_thread_each(workers: int) -> ThreadPoolExecutor:
    """Workers in which torch has one thread."""
    return ThreadPoolExecutor(workers, "torchgw-pairwise", set_own_threads, (1,))


def iterate_results(
    tasks: Sequence[Task], n_jobs: int | None, stopped: Callable[[], bool] = lambda: False
) -> Generator[list[SolvedPair], None, None]:
    """Results of tasks as they come, in no order. Once ``stopped``, or closed, nothing begins any more."""
    if n_jobs is not None or _uses_joblib():
        yield from _run_by_joblib(tasks, n_jobs, stopped)
        return
    yield from _run_in_threads([task for task in tasks if not task.large], stopped)
    for task in (task for task in tasks if task.large):
        if stopped():
            return
        try:
            solved = solve_task(task, stopped)
        except PairCancelled:
            if stopped():
                return
            raise KeyboardInterrupt from None
        yield solved


def _run_in_threads(tasks: Sequence[Task], stopped: Callable[[], bool]) -> Iterator[list[SolvedPair]]:
    on_cpu = all(task.device.type == "cpu" for task in tasks)
    workers = max(min(torch.get_num_threads() if on_cpu else 1, len(tasks)), 1)
    pool = one_thread_each(workers)
    try:
        begun = [pool.submit(lambda task: [] if stopped() else solve_task(task), task) for task in tasks]
        for done in as_completed(begun):
            yield done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _uses_joblib() -> bool:
    """Whether the caller is within a `joblib.parallel_config` that names a backend or a number of jobs."""
    if "joblib" not in sys.modules:
        return False
    from joblib.parallel import DEFAULT_BACKEND, get_active_backend

    backend, n_jobs = get_active_backend()
    return n_jobs not in (None, 1) or DEFAULT_BACKEND not in type(backend).__name__.lower()


def _run_by_joblib(
    tasks: Sequence[Task], n_jobs: int | None, stopped: Callable[[], bool]
) -> Iterator[list[SolvedPair]]:
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
        results: Any = parallel(delayed(_solve_in_worker)(task, here) for task in tasks[start : start + many])
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


def _solve_in_worker(task: Task, caller: int) -> list[SolvedPair]:
    """`solve_task` with one thread; nothing where Ctrl-C in a terminal reached another process than the ``caller``."""
    try:
        with nullcontext() if task.large else one_thread():
            return solve_task(task)
    except (KeyboardInterrupt, PairCancelled):
        if os.getpid() == caller:
            raise KeyboardInterrupt from None
        return []

"""What is done with one tile of pairs, here or in another process, and who does it.

In this process there is a thread for each of torch's, each with one: the operations of a batch are too short to be
divided, and so their bits do not depend on the number of threads. Two threads are 1.2 to 1.8 times as fast as one, for
Python's own work around short operations counts. Under joblib tiles go to its workers, on this machine or, with
Dask's or Ray's backend, on others.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchgw.gw.align import gw_align
from torchgw.options import GWOptions
from torchgw.pairwise.batch import solve_batch
from torchgw.pairwise.polish import Polished
from torchgw.pairwise.space import Space
from torchgw.pairwise.status import PairStatus
from torchgw.pairwise.tiles import Pair
from torchgw.spaces import PrecomputedDistances
from torchgw.status import Status
from torchgw.types import Array

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


def solve(task: Task) -> list[Solved]:
    """All pairs of a task, in their order."""
    if torch.get_num_threads() != 1 and not task.large:
        torch.set_num_threads(1)  # `outcomes` sets it back where the user's own code goes on
    sides = [(task.spaces[i], task.spaces[j]) for i, j in task.pairs]
    turned = [x.size < y.size for x, y in sides]
    sides = [(y, x) if turn else (x, y) for (x, y), turn in zip(sides, turned, strict=True)]
    found = [_aligned(x, y, task) for x, y in sides] if task.large else solve_batch(sides, task.tol, task.device)
    every = zip(task.pairs, sides, turned, found, strict=True)
    return [_solved(pair, *both, turn, plan, task) for pair, both, turn, plan in every]


def _solved(pair: Pair, x: Space, y: Space, turned: bool, found: Polished, task: Task) -> Solved:
    finite = np.isfinite(found.value) and np.isfinite(found.gap)
    status = PairStatus.FAILED if not finite else PairStatus.SETTLED if found.gap <= task.tol else PairStatus.UNSETTLED
    matching = None
    if task.matchings:
        forward, backward = _strongest(found.plan, x, y), _strongest(found.plan.T, y, x)
        matching = (backward, forward) if turned else (forward, backward)
    return Solved(pair, found.value if finite else float("nan"), found.gap, found.marginal_error, status, matching)


def _strongest(plan: Tensor, x: Space, y: Space) -> Array:
    """For each point of all of a space the index in the other one that it sends most mass to; -1 without mass."""
    found = np.full(x.total, -1, dtype=np.int32)
    found[x.support] = y.support[plan.argmax(1).numpy()]
    return found


def _aligned(x: Space, y: Space, task: Task) -> Polished:
    """Two large spaces by `gw_align` without entropy."""
    providers = [PrecomputedDistances.stored_matrix(torch.from_numpy(space.distances), 1.0) for space in (x, y)]
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
        )
    if found.status is Status.CANCELLED:
        raise KeyboardInterrupt
    gap = found.certificate.stationarity / found.value if found.value > 0 else 0.0
    gap = min(gap, task.tol) if found.converged else gap
    return Polished(found.plan.cpu(), float(found.value), float(gap), float(found.marginal_error))


def outcomes(tasks: Sequence[Task], n_jobs: int | None) -> Generator[list[Solved], None, None]:
    """Results of tasks as they come, in no order. Closing the iterator gives up what has not begun."""
    threads = torch.get_num_threads()
    try:
        if n_jobs is not None or _joblib_is_asked():
            yield from _by_joblib(tasks, n_jobs)
            return
        batches = [task for task in tasks if not task.large]
        workers = min(threads, len(batches)) if all(task.device.type == "cpu" for task in batches) else 1
        yield from _in_threads(batches, workers) if workers > 1 else map(solve, batches)
        torch.set_num_threads(threads)
        yield from map(solve, (task for task in tasks if task.large))
    finally:
        torch.set_num_threads(threads)


def _in_threads(tasks: Sequence[Task], workers: int) -> Iterator[list[Solved]]:
    pool = ThreadPoolExecutor(workers, "torchgw-pairwise", torch.set_num_threads, (1,))
    try:
        for done in as_completed([pool.submit(solve, task) for task in tasks]):
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


def _by_joblib(tasks: Sequence[Task], n_jobs: int | None) -> Iterator[list[Solved]]:
    from joblib import Parallel, delayed

    try:
        parallel = Parallel(n_jobs=n_jobs, return_as="generator_unordered")
    except ValueError:  # the backend cannot; then everything comes at the end
        parallel = Parallel(n_jobs=n_jobs)
    results: Any = parallel(delayed(solve)(task) for task in tasks)
    try:
        yield from results
    finally:
        if hasattr(results, "close"):
            results.close()

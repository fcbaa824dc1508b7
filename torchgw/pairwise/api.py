"""`gw_pairwise`: distances between all pairs of many spaces."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np
import torch

from torchgw import validate
from torchgw._version import __version__
from torchgw.entry import ADVICE_ON_MANY, OF_MANY, check_options, entry
from torchgw.kernels.sampling import make_generator
from torchgw.options import GWOptions
from torchgw.pairwise.inputs import Inputs, check_jobs, names_of, read_spaces
from torchgw.pairwise.result import Pair, PairStatus, PairwiseResult, SolvedPair
from torchgw.pairwise.schedule import TaskMaker, iterate_results
from torchgw.pairwise.store import Store, check_path
from torchgw.persist.watch import Watch, stopped_by_interrupt
from torchgw.request.devices import pick_device
from torchgw.runtime.caller import warn_caller
from torchgw.types import Array, Callback, ConvergenceWarning, Progress, RandomState

logger = logging.getLogger("torchgw")

KEEP = ("values", "matchings")


@entry(OF_MANY, ADVICE_ON_MANY)
def gw_pairwise(
    spaces: Sequence[Any] | Mapping[Any, Any],
    *,
    against: Sequence[Any] | Mapping[Any, Any] | None = None,
    masses: Sequence[Any] | Mapping[Any, Any] | None = None,
    distances: str = "auto",
    scale: str = "auto",
    tol: float = 1e-2,
    keep: str = "values",
    options: GWOptions | None = None,
    n_jobs: int | None = None,
    device: str | torch.device | None = None,
    store: str | PathLike[str] | None = None,
    callback: Callback | None = None,
    random_state: RandomState = None,
) -> PairwiseResult:
    """Gromov-Wasserstein distances, without entropy, between all pairs of n spaces of a few to some hundred points, or
    between these and k others.

    Each is sqrt(min_T sum (D_X[i,i'] - D_Y[j,j'])^2 T_ij T_i'j') over plans T with the masses of both spaces as
    marginals, at the lowest plan found: up to the search a metric between spaces, without the factor 1/2 of Memoli's
    definition. Pairs are solved in batches, from sixteen starts each.

    Parameters
    ----------
    spaces : two or more of: points (N, D), any real dtype; square distance matrices (N, N); SciPy sparse graphs of edge
        lengths; distance providers. Of any sizes, one point included. Distances are found once for each. A dict gives
        them names, which the result knows them by.
    against : k spaces, one or more. Only pairs of one of ``spaces`` and one of these are solved, n k of them, as by
        SciPy's ``cdist`` in place of ``pdist``; a single one of ``spaces`` is then enough. None for all pairs among
        ``spaces``.
    masses : one entry for each space, then for each of ``against``: (N_i,) non-negative or None, which is uniform;
        scaled to sum 1. Of spaces with names a dict will do, where those that it lacks are uniform.
    distances : how they come from points and graphs. "auto": straight lines between points, shortest paths in graphs; a
        square symmetric array is taken for distances. Others as in `torchgw.gw_align`: "dijkstra" and "landmark" join
        points to k-nearest-neighbour graphs, which wants some hundred points on a curved shape; "euclidean",
        "precomputed", "adjacency" (of arrays, SciPy sparse matrices and networkx graphs that are the same in both
        directions).
    scale : "common": distances in the units of the data, so that sizes count. "own": each space's distances are divided
        by its largest one, so that shapes alone count. "auto" is "own" if all spaces are graphs, else "common".
    tol : a pair is settled when to first order no plan nearby lowers its value by more than this share. 1e-2 is within
        0.2 % of the local optimum on average; smaller ones take more transport problems.
    keep : "values", or "matchings" for the strongest match of each point in every pair as well, 4 (N_i + N_j) bytes.
    options : of these ``spaces`` counts, but for its scale, and ``max_memory``. Spaces of more than 1000 points are
        aligned by `torchgw.gw_align`, pair by pair, with all of them.
    n_jobs : None solves in this process, with a thread for each of torch's (within a `joblib.parallel_config`, as that
        says). A number distributes batches over joblib's workers, whose start costs seconds; -1 takes all cores. With
        joblib's backends "dask" or "ray" these are on other machines too.
    device : of the batches: "cpu", "cuda", ...; by default that of the first tensor given, else a GPU if
        one can be used.
    store : path of a file that keeps finished pairs, batch by batch, by the contents of their two spaces. After an end
        of any kind, a kill included, the same call goes on from there and returns the same bits as an undisturbed one.
        A call with other spaces, in any order, solves only the pairs that the file lacks. Within the solves, its
        distances are divided by what the first call divided them by.
    callback : called after every batch with a `Progress`: ``iteration`` pairs done of ``max_iter``, ``cost`` their mean
        value, ``marginal_error`` the worst so far. Returning True, or raising StopIteration, ends the call with
        the batches at work (processes' ones are lost), and so does Ctrl-C; pairs not done are NaN, their status
        PENDING. A second Ctrl-C raises.
    random_state : of some of the starts: int, torch.Generator or numpy.random.Generator. None takes fresh entropy, or
        what the store was begun with.

    Returns
    -------
    PairwiseResult

    Raises
    ------
    ValueError, TypeError
        For input that cannot be used, naming the entry like ``spaces[3]``, before any work; and for a store that is
        damaged, were it by one bit (rows and header have checksums), is something else, or has other options.
    MemoryError
        When the distances of all spaces would exceed ``options.max_memory``, before any work; or when memory ends.
    RuntimeError
        When another process has the store open.
    OSError
        When the disk of the store is full or fails. The store has all batches before, and the same call goes on.

    Warns
    -----
    ConvergenceWarning
        When pairs are not settled, failed, or were not solved because the call was ended.
    PrecisionWarning
        When one point of a space lies so far from the others that float64 does not tell these apart.
    GraphWarning
        When a graph had to be stitched, or infinite distances were replaced.

    Notes
    -----
    O(N^2 log N) once for each space. O(N K (N + K)) for each of some dozen annealing steps of a pair, and about one
    transport problem. A pair's bits depend on its two spaces alone, on one machine's CPU, not on the other pairs, on
    ``n_jobs``, or on the order of things.

    References
    ----------
    F. Memoli, "Gromov-Wasserstein distances and the metric approach to object matching", 2011.
    T. Vayer, L. Chapel, R. Flamary, R. Tavenard, N. Courty, "Optimal transport for structured data with application on
    graphs", 2019.

    Examples
    --------
    >>> import torchgw
    >>> spaces = [torchgw.datasets.make_spiral(n, random_state=n)[0] for n in (40, 50, 60)]
    >>> torchgw.gw_pairwise(spaces, random_state=0).square().shape
    (3, 3)
    """
    began = time.perf_counter()
    options = check_options(options)
    validate.real("tol", tol, above=0.0, most=1.0)
    validate.choice("keep", keep, KEEP)
    check_jobs(n_jobs)
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable or None, got {type(callback).__name__}")
    if store is not None:
        check_path(store)
    lists = [list(given.values()) if isinstance(given, Mapping) else given for given in (spaces, against)]
    where = pick_device(device, tuple(each for given in lists if isinstance(given, list | tuple) for each in given))
    seed = int(torch.randint(2**62, (1,), generator=make_generator(random_state, torch.device("cpu"))))
    inputs = read_spaces(spaces, masses, distances, scale, options, against)
    logger.info("distances of %d spaces in %.2f s", len(inputs.sizes), time.perf_counter() - began)
    shape = (len(spaces), None if against is None else len(against))
    with (
        nullcontext()
        if store is None
        else _open_store(store, inputs, tol, keep, options, where, seed, random_state) as kept
    ):
        if kept is not None:
            seed, inputs = kept.seed, inputs.with_unit(kept.unit)
        collected = _PairCollector(inputs, shape, keep == "matchings", callback, began)
        if kept is not None:
            collected.add(kept.read_pairs(collected.place), stored=True)
        missing = [pair for pair in collected.place if pair not in collected.done]
        watch = collected.watch
        maker = TaskMaker(inputs, tol, where, keep == "matchings", options, seed)
        tasks = [] if watch.should_stop else maker.make_tasks(missing)
        ended = stopped_by_interrupt(watch)
        with ended, closing(iterate_results(tasks, n_jobs, lambda: watch.should_stop)) as results:
            for solved in results:
                if kept is not None:
                    kept.add(solved)
                collected.add(solved)
    result = replace(
        collected.make_result(),
        names=names_of(spaces),
        names_against=names_of(against),
        names_points=tuple(inputs.names),
    )
    warn_of_status(result.status)
    return result


def _iterate_pairs(n: int, k: int | None) -> Iterator[Pair]:
    """Pairs among n spaces, or of each with k others that come after them."""
    return ((i, j) for i in range(n) for j in (range(i + 1, n) if k is None else range(n, n + k)))


def _open_store(
    path: str | PathLike[str],
    inputs: Inputs,
    tol: float,
    keep: str,
    options: GWOptions,
    device: torch.device,
    seed: int,
    random_state: RandomState,
) -> Store:
    """The store of a call."""
    contents = [inputs.hash_space(i, options) for i in range(len(inputs.sizes))]
    fingerprint = {"scale": inputs.scale, "tol": repr(tol), "keep": keep}
    fingerprint |= {"version": __version__, "device": device.type}
    return Store(path, fingerprint, contents, inputs.unit, seed, random_state is not None)


class _PairCollector:
    """Pairs as they come, told to whoever listens."""

    def __init__(
        self, inputs: Inputs, shape: tuple[int, int | None], matchings: bool, callback: Callback | None, began: float
    ) -> None:
        self.shape, self.began, self.watch = shape, began, Watch(callback)
        self.place = {pair: at for at, pair in enumerate(_iterate_pairs(*shape))}
        m = len(self.place)
        self.values, self.gaps = np.full(m, np.nan), np.full(m, np.nan)
        self.status = np.full(m, PairStatus.PENDING, dtype=np.int8)
        self.errors, self.scales, self.unit = np.full(m, np.nan), np.array(inputs.scales), inputs.unit
        self.worst = self.sum = 0.0
        self.finite = 0
        self.done: set[Pair] = set()
        self.matchings: dict[Pair, tuple[Array, Array]] | None = {} if matchings else None
        self.n_stored = 0

    def add(self, found: Sequence[SolvedPair], stored: bool = False) -> None:
        """Take pairs in, and say so."""
        for each in found:
            at = self.place[each.pair]
            self.values[at] = each.value * self.unit**2
            self.gaps[at], self.status[at], self.errors[at] = each.gap, each.status, each.marginal_error
            self.worst = max(self.worst, each.marginal_error)
            if np.isfinite(each.value):
                self.sum, self.finite = self.sum + self.values[at], self.finite + 1
            if self.matchings is not None and each.matching is not None:
                self.matchings[each.pair] = each.matching
        self.done |= {each.pair for each in found}
        self.n_stored += len(found) if stored else 0
        if found and not self.watch.should_stop:
            mean = self.sum / self.finite if self.finite else float("nan")
            counts = {"iteration": len(self.done), "max_iter": len(self.values)}
            elapsed = time.perf_counter() - self.began
            self.watch.report(Progress(**counts, cost=mean, marginal_error=self.worst, epsilon=0.0, elapsed=elapsed))

    def make_result(self) -> PairwiseResult:
        """What there is now."""
        return PairwiseResult(
            values=self.values,
            gaps=self.gaps,
            marginal_errors=self.errors,
            status=self.status,
            n_spaces=self.shape[0],
            n_against=self.shape[1],
            scales=self.scales,
            n_solved=len(self.done) - self.n_stored,
            n_stored=self.n_stored,
            seconds=time.perf_counter() - self.began,
            matchings=self.matchings,
        )


def warn_of_status(status: Array) -> None:
    """Say how many pairs are not what was asked for."""
    counts = np.bincount(status, minlength=len(PairStatus))
    for code in (PairStatus.PENDING, PairStatus.UNSETTLED, PairStatus.FAILED):
        if counts[code]:
            text = f"{counts[code]} of {len(status)} pairs are {code.name.lower()}: {code.text}"
            warn_caller(text, ConvergenceWarning)

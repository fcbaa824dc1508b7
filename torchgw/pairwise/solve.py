"""What is done with one task: its pairs as a batch, or one pair of large spaces by `gw_align`."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from torchgw.align import gw_align
from torchgw.batched.polish import PairPlan
from torchgw.batched.solve import solve_batch
from torchgw.batched.space import PreparedSpace
from torchgw.diagnostics.status import Status
from torchgw.options import GWOptions
from torchgw.pairwise.result import Pair, PairStatus, SolvedPair
from torchgw.spaces import AdjacencyDistances, PrecomputedDistances
from torchgw.types import Array, DistanceProvider

ONE_AT_A_TIME = threading.Lock()  # filters of warnings belong to the process


@dataclass(frozen=True)
class Task:
    """Pairs that are solved together.

    pairs : places (i, j) in the list of spaces.
    spaces : the prepared spaces that they belong to, by place.
    tol : gap over value at which a pair is settled.
    device : of the batches.
    matchings : whether to keep the strongest match of each point.
    large : whether the one pair is aligned by `gw_align`.
    seed, options : of that call.
    """

    pairs: list[Pair]
    spaces: dict[int, PreparedSpace]
    tol: float
    device: torch.device
    matchings: bool
    large: bool
    seed: int
    options: GWOptions = field(default_factory=GWOptions)


class PairCancelled(Exception):  # noqa: N818 - somebody asked for it
    """A pair of large spaces was given up."""


def solve_task(task: Task, stopped: Callable[[], bool] = lambda: False) -> list[SolvedPair]:
    """All pairs of a task, in their order.

    Raises
    ------
    GivenUp
        When ``stopped`` within a pair of large spaces, or on Ctrl-C there.
    """
    sides = [(task.spaces[i], task.spaces[j]) for i, j in task.pairs]
    turned = [x.sort_key < y.sort_key for x, y in sides]
    sides = [(y, x) if turn else (x, y) for (x, y), turn in zip(sides, turned, strict=True)]
    found = (
        [_align_large(x, y, task, stopped) for x, y in sides]
        if task.large
        else solve_batch(sides, task.tol, task.device)
    )
    every = zip(task.pairs, sides, turned, found, strict=True)
    return [_make_solved_pair(pair, *both, turn, plan, task) for pair, both, turn, plan in every]


def _make_solved_pair(
    pair: Pair, x: PreparedSpace, y: PreparedSpace, turned: bool, found: PairPlan, task: Task
) -> SolvedPair:
    finite = np.isfinite(found.value) and np.isfinite(found.gap)
    status = PairStatus.FAILED if not finite else PairStatus.SETTLED if found.gap <= task.tol else PairStatus.UNSETTLED
    matching = None
    if task.matchings and finite:
        forward, backward = _strongest_matches(found.plan, x, y), _strongest_matches(found.plan.T, y, x)
        matching = (backward, forward) if turned else (forward, backward)
    return SolvedPair(pair, found.value if finite else float("nan"), found.gap, found.marginal_error, status, matching)


def _strongest_matches(plan: Tensor, x: PreparedSpace, y: PreparedSpace) -> Array:
    """For each point of all of a space the index in the other one that it sends most mass to; -1 without mass."""
    found = np.full(x.total, -1, dtype=np.int32)
    found[x.support] = y.support[plan.argmax(1).numpy()]
    return found


def _align_large(x: PreparedSpace, y: PreparedSpace, task: Task, stopped: Callable[[], bool]) -> PairPlan:
    """Two large spaces by `gw_align` without entropy, in their own units."""
    unit = float(max(np.abs(side.distances).max() for side in (x, y))) or 1.0
    providers: list[DistanceProvider] = [
        PrecomputedDistances.stored_matrix(torch.from_numpy(side.distances / unit), 1.0)
        if side.metric
        else AdjacencyDistances(side.distances).with_scale(unit)
        for side in (x, y)
    ]
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
        raise PairCancelled
    return PairPlan.of(
        x, y, found.coupling.to_dense().cpu(), found.value * unit**2, found.certificate.stationarity * unit**2
    )

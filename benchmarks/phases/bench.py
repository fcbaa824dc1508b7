"""Where and how much is run, and the two things that are: the loop with its switches, and the library."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.baselines.sampled import ALL_ON, Switches, solve
from benchmarks.phases.comparison import Row, compare
from benchmarks.phases.work import Answer, Problem, Run, emptied
from torchgw import GWOptions, gw_align

EPSILON = 5e-3
STORED = 4e7  # pairs up to which a plan is fetched, to judge it on exact distances

SWITCHES: dict[str, tuple[str, ...]] = {
    "1a draws on the device": ("device_draws",),
    "1b logsumexp check": ("logsumexp_check",),
    "1c balanced fast path": ("balanced",),
    "1d preallocation": ("preallocated",),
    "1e distances kept on the device": ("device_copies",),
    "1f pairs as arrays": ("index_arrays",),
    "3 mixed precision": ("mixed_precision",),
    "4 early stop": ("early_stop",),
    "5 fewer syncs": ("fewer_syncs",),
    "6 fused kernels": ("fused",),
    "7 warm start": ("warm_start",),
}


@dataclass(frozen=True)
class Bench:
    """Where and how much: the device and its kernel, the iterations of loops that do not stop early, seconds a row."""

    device: str = "cpu"
    backend: str = "eager"
    max_iter: int = 100
    budget: float = 6.0
    quick: bool = False

    def loop(self, problem: Problem, switches: Switches) -> Run:
        """The sampled loop with these switches."""

        def call() -> Callable[[], Answer]:
            found = solve(
                *emptied(problem.spaces),
                problem.pairs,
                switches,
                epsilon=EPSILON,
                max_iter=self.max_iter,
                device=self.device,
                backend=self.backend,
            )

            def answer() -> Answer:
                plan = found.plan().cpu()
                return Answer(plan.argmax(1).numpy(), plan)

            return answer

        return call

    def library(self, problem: Problem, options: GWOptions, **more: Any) -> Run:
        """The library with these options, at the same entropy unless told otherwise."""

        def call() -> Callable[[], Answer]:
            given = {"epsilon": EPSILON, "random_state": 0} | more
            result = gw_align(*emptied(problem.spaces), options=options, device=self.device, **given)

            def answer() -> Answer:
                n, k = (space.size for space in problem.spaces)
                plan = result.plan.cpu() if n * k <= STORED else None
                return Answer(np.asarray(result.argmax()), plan, result.value)

            return answer

        return call

    def compared(self, phase: str, how: str, problem: Problem, before: Run, after: Run) -> Row:
        """One row."""
        return compare(phase, how, problem, before, after, self.budget)


def without(names: Iterable[str]) -> Switches:
    """Everything but these switches."""
    return replace(ALL_ON, **dict.fromkeys(names, False))


def only(names: Iterable[str]) -> Switches:
    """Nothing but these switches."""
    return Switches(**dict.fromkeys(names, True))

"""Where and how much is run, and the two things that are: the loop with its switches, and the library."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from benchmarks.baselines.sampled import ALL_ON, Found, Switches, solve
from benchmarks.phases.comparison import Row, compare
from benchmarks.phases.work import Answer, Problem, Run, emptied
from torchgw import GWOptions, GWResult, gw_align

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
    budget: float = 10.0
    quick: bool = False

    def loop(self, problem: Problem, switches: Switches) -> Run:
        """The sampled loop with these switches, and the last solve."""

        def solved(seed: int, max_iter: int) -> tuple[Found, Tensor]:
            found = solve(
                *emptied(problem.spaces),
                problem.pairs,
                switches,
                epsilon=EPSILON,
                max_iter=max_iter,
                seed=seed,
                device=self.device,
                backend=self.backend,
            )
            return found, found.plan()

        def call(seed: int) -> Callable[[], Answer]:
            found, plan = solved(seed, self.max_iter)
            counts = found.n_iter, found.n_iter_sinkhorn
            return lambda: Answer(plan.argmax(1).cpu().numpy(), plan.cpu(), None, counts)

        return Run(
            call,
            lambda: solve(
                *problem.spaces,
                problem.pairs,
                switches,
                epsilon=EPSILON,
                max_iter=2,
                device=self.device,
                backend=self.backend,
            ),
        )

    def library(self, problem: Problem, options: GWOptions, epsilon: float = EPSILON) -> Run:
        """The library with these options, at the same entropy unless told otherwise."""

        def solved(seed: int, chosen: GWOptions) -> GWResult:
            spaces = emptied(problem.spaces)
            return gw_align(*spaces, epsilon=epsilon, options=chosen, device=self.device, random_state=seed)

        def call(seed: int) -> Callable[[], Answer]:
            result = solved(seed, options)
            match = np.asarray(result.argmax())

            def answer() -> Answer:
                n, k = (space.size for space in problem.spaces)
                plan = result.coupling.to_dense().cpu() if n * k <= STORED else None
                return Answer(match, plan, result.value, (result.n_iter, result.n_iter_sinkhorn))

            return answer

        short = replace(options, stopping=replace(options.stopping, max_iter=1))
        return Run(call, lambda: solved(0, short))

    def compared(self, phase: str, how: str, problem: Problem, before: Run, after: Run, least: int = 1) -> Row:
        """One row, of ``least`` rounds even where they pass the budget; of one in a quick run."""
        return compare(phase, how, problem, before, after, self.budget, 1 if self.quick else least)


def without(names: Iterable[str]) -> Switches:
    """Everything but these switches."""
    return replace(ALL_ON, **dict.fromkeys(names, False))


def only(names: Iterable[str]) -> Switches:
    """Nothing but these switches."""
    return Switches(**dict.fromkeys(names, True))

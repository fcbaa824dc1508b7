"""The entropic descent with a sampled gradient: the loop of `torchgw.solvers.entropic`, with another end.

    anchors ~ T -> cost C(T) -> score -C / epsilon -> few Sinkhorn iterations from the last potentials -> T

A sampled gradient has a memory, which is kept in the state. The host reads numbers at checks only. As costs are noisy,
the loop ends at a plateau of the smoothed cost, or when the plan no longer moves.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchgw.diagnostics.status import History, Status
from torchgw.kernels.kernel import Kernel
from torchgw.objective.linearise import Gradient
from torchgw.objective.model import Model
from torchgw.objective.sampled import memory_of
from torchgw.options import GWOptions, StoppingOptions
from torchgw.persist.codec import storable
from torchgw.persist.watch import Watch
from torchgw.solvers.entropic import iterate_linearizations
from torchgw.solvers.inner import InnerSolution, StoredSolver
from torchgw.solvers.iterate import Check, Loop
from torchgw.solvers.solution import EntropicState, Solution
from torchgw.solvers.warm_start import WarmStart

LOOP_TOLERANCE = 10.0


@storable
class Plateau(NamedTuple):
    """How the smoothed cost goes on.

    average : exponential moving average of the cost, None before the first check.
    best : the lowest average that counted as progress.
    stale : checks since then.
    """

    average: float | None = None
    best: float = float("inf")
    stale: int = 0


@storable
@dataclass(frozen=True, kw_only=True)
class SampledState(EntropicState):
    """Where the sampled loop stands.

    plateau : the smoothed cost since epsilon is the one asked for.
    checked : the plan (N, K) of the last check, None before the first.
    """

    plateau: Plateau = field(default_factory=Plateau)
    checked: Tensor | None = None

    @property
    def complete(self) -> bool:
        return self.checked is not None


def solve_by_sampling(
    gradient: Gradient, start: WarmStart, model: Model, kernel: Kernel, options: GWOptions, watch: Watch
) -> Solution:
    """Run the loop from ``start``, in its dtype, with a gradient of the model's objective, at its epsilon.

    A start whose potentials belong to no epsilon is annealed from above, any other from its own epsilon.
    O(N K) memory for the score, the plan and that of the last check, O(N K (M + inner iterations)) work per iteration.
    """
    stopping, few, loop = options.stopping, options.sinkhorn, Loop(watch, History(), options.stopping.max_iter)
    few = replace(few, tol=LOOP_TOLERANCE * few.tol, relaxation=1.0, exact_max_iter=max(few.max_iter, 2))
    inner = StoredSolver(kernel, model, few, rounded=False)

    def begin() -> SampledState:
        first = start.with_row_sums(model.logs[0].to(start.f.dtype)) if model.has_hard_marginals else start
        plan = first.coupling()
        sums = None if model.has_hard_marginals else model.marginals_of(plan)
        return SampledState(warm_start=first, coupling=plan, marginals=sums, sampler=memory_of(gradient))

    def follow(
        state: SampledState, found: InnerSolution, now: float
    ) -> tuple[dict[str, Any], Check | None, Status | None]:
        n_iter, sums = state.n_iter + 1, None if model.has_hard_marginals else model.marginals_of(found.coupling)
        more: dict[str, Any] = {"sampler": memory_of(gradient), "marginals": sums}
        if n_iter % stopping.check_every and n_iter < stopping.max_iter:
            return more, None, None
        plan = found.coupling.to_dense()
        last = torch.zeros_like(plan) if state.checked is None else state.checked
        unread = found.host_numbers[0], (plan - last).abs().sum(), found.residual
        numbers = [torch.as_tensor(each, dtype=torch.float64, device=plan.device) for each in unread]
        value, changed, residual = torch.stack(numbers).tolist()
        plateau, status = state.plateau, None
        annealed = start.epsilon is not None or n_iter > min(options.annealing.n_iter, stopping.max_iter - 1)
        if now == model.epsilon and annealed:
            plateau = update_plateau(plateau, value, stopping)
            status = stopping_status(n_iter, plateau, changed / stopping.check_every, stopping)
        more |= {"plateau": plateau, "checked": last.copy_(plan)}
        return more, Check(value, residual, now), status

    return iterate_linearizations(SampledState, begin, follow, gradient, start, inner, options, loop)


def update_plateau(plateau: Plateau, cost: float, options: StoppingOptions) -> Plateau:
    """The plateau after one more cost."""
    w = options.ema_weight
    average = cost if plateau.average is None else (1 - w) * plateau.average + w * cost
    if average < plateau.best - options.improvement * abs(plateau.best) or plateau.best == float("inf"):
        return Plateau(average, average, 0)
    return Plateau(average, plateau.best, plateau.stale + 1)


def stopping_status(iteration: int, plateau: Plateau, plan_change: float, options: StoppingOptions) -> Status | None:
    """Why the loop should end after ``iteration`` iterations, or None."""
    if iteration < options.min_iter:
        return None
    if plan_change <= options.plan_tol:
        return Status.SETTLED
    if plateau.stale >= options.checks_without_progress:
        return Status.PLATEAU
    return None

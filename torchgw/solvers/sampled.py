"""The sampled outer loop: linearise the objective at the current plan, solve the entropic transport problem, repeat.

    anchors ~ T -> cost C(T) -> score -C / epsilon -> Sinkhorn from the last potentials -> T

The score is a base-2 logarithm. Everything stays on the device; the host reads numbers at checks only. The loop ends at
a plateau of the smoothed cost, or when the plan no longer moves.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling
from torchgw.couplings.potential import PotentialCoupling
from torchgw.diagnostics.status import History, Status
from torchgw.kernels.blocks import block_rows, blocks
from torchgw.kernels.kernel import Kernel
from torchgw.objective.linearise import Gradient
from torchgw.objective.model import Model
from torchgw.objective.sampled import Memory, memory_of, restore_memory
from torchgw.options import GWOptions, StoppingOptions
from torchgw.persist.codec import storable
from torchgw.persist.watch import Watch
from torchgw.sinkhorn.loop import SinkhornState, anneal_epsilon, epsilon_at, sinkhorn
from torchgw.solvers.iterate import Check, Loop, iterate
from torchgw.solvers.solution import PlanState, Solution
from torchgw.solvers.warm_start import WarmStart, coupling_of

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
class SampledState(PlanState):
    """Where the sampled loop stands.

    coupling : the plan, from which the next anchors are drawn; there from the beginning.
    sampler : anchors and averaged costs that the gradient goes on from.
    plateau : the smoothed cost since epsilon is the one asked for.
    checked : the plan (N, K) of the last check, None before the first.
    """

    coupling: PotentialCoupling | DenseCoupling
    sampler: Memory
    plateau: Plateau = field(default_factory=Plateau)
    checked: Tensor | None = None

    @property
    def complete(self) -> bool:
        return self.checked is not None


def solve_by_sampling(
    gradient: Gradient, start: WarmStart, model: Model, epsilon: float, kernel: Kernel, options: GWOptions, watch: Watch
) -> Solution:
    """Run the loop from ``start``, in its dtype, with a gradient of the model's objective.

    A start whose potentials belong to no epsilon is annealed from above, any other from its own epsilon.
    O(N K) memory for the score and the plan of the last check, O(N K (M + inner iterations)) work per iteration.
    """
    stopping, history = options.stopping, History()
    inner = replace(options.sinkhorn, tol=LOOP_TOLERANCE * options.sinkhorn.tol, relaxation=1.0)
    annealing = replace(options.annealing, n_iter=min(options.annealing.n_iter, stopping.max_iter - 1))
    row = model.p.to(start.f.dtype)
    score = row.new_empty(len(model.p), len(model.q))

    def begin() -> SampledState:
        first = start.with_row_sums(model.logs[0].to(row.dtype)) if model.has_hard_marginals else start
        end = replace(first, epsilon=first.epsilon or epsilon_at(0, epsilon, annealing))
        return SampledState(warm_start=end, coupling=first.coupling(), sampler=memory_of(gradient))

    def step(state: SampledState) -> tuple[SampledState, Check | None, Status | None]:
        end, now = state.warm_start, anneal_epsilon(state.n_iter, epsilon, start.epsilon, annealing)
        restore_memory(gradient, state.sampler)
        raw = gradient(state.coupling, row)
        cost, row_term, column_term, f, g = end.adapt(raw, now, model)
        cost.stored_score(now, out=score)
        row_side, column_side = model.make_constraints(now, cost, row.dtype)
        if not model.has_hard_marginals:
            sums = [side.to(row.dtype) for side in model.marginals_of(state.coupling)]
            f, g = row_side.potential_from_sums(sums[0], f), column_side.potential_from_sums(sums[1], g)
        warm = f, g if column_side.has_divergence else None
        found = sinkhorn(kernel.bind(score), row_side, column_side, *warm, options=inner, max_iter=inner.max_iter)
        state = replace(
            state,
            n_iter=state.n_iter + 1,
            n_iter_sinkhorn=state.n_iter_sinkhorn + found.n_iter,
            warm_start=WarmStart(raw, found.f - row_term, found.g - column_term, now),
            coupling=coupling_of(cost, found.f, found.g, now, score),
            sampler=memory_of(gradient),
        )
        if state.n_iter % stopping.check_every and state.n_iter < stopping.max_iter:
            return state, None, None
        last = torch.zeros_like(score) if state.checked is None else state.checked
        change, overlap, rows, columns = compare_plans(last, score, found)
        expected = cost.expectation_from_score(overlap, now, rows, columns)
        unread = [found.residual] if isinstance(found.residual, Tensor) else []
        value, changed, *read = torch.stack((expected, change, *unread)).tolist()
        residual = found.residual if isinstance(found.residual, float) else read[0]
        plateau, status = state.plateau, None
        if now == epsilon and (start.epsilon is not None or state.n_iter > annealing.n_iter):
            plateau = update_plateau(plateau, value, stopping)
            status = stopping_status(state.n_iter, plateau, changed / stopping.check_every, stopping)
        return replace(state, plateau=plateau, checked=last), Check(value, residual, now), status

    state, status = iterate(SampledState, step, begin, Loop(watch, history, stopping.max_iter))
    return Solution.of(state, status, history)


def compare_plans(last: Tensor, score: Tensor, state: SinkhornState) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """L1 distance of the plan of a score (N, K) from the ``last`` one, which it replaces in place, <score, plan>, its
    row and column sums; in one pass, by blocks that stay in the cache."""
    change, overlap, (n, k) = score.new_zeros(()), score.new_zeros(()), score.shape
    rows, columns = score.new_empty(n), score.new_zeros(k)
    for where in blocks(n, block_rows(n, k, score.device)):
        plan = (score[where] + state.f[where, None]).add_(state.g).clamp_min_(-120.0).exp2_()
        overlap += (plan * score[where]).sum()
        rows[where], columns = plan.sum(1), columns + plan.sum(0)
        change += last[where].sub_(plan).abs_().sum()
        last[where] = plan
    return change, overlap, rows, columns


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

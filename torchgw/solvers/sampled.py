"""The sampled outer loop: linearise the objective at the current plan, solve the entropic transport problem, repeat.

    anchors ~ T -> cost C(T) -> score -C / epsilon -> Sinkhorn from the last potentials -> T

The score is a base-2 logarithm. Everything stays on the device; the host reads numbers at checks only.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling, PotentialCoupling
from torchgw.diagnostics.status import History, Status
from torchgw.kernels import LN2, LOG2E
from torchgw.kernels.kernel import Kernel
from torchgw.objective.linearise import Gradient
from torchgw.objective.model import Model
from torchgw.objective.sampled import memory_of, recall
from torchgw.options import GWOptions
from torchgw.persist.watch import Watch
from torchgw.sinkhorn.annealing import annealed, epsilon_at, rescale
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.sinkhorn.loop import SinkhornState, sinkhorn
from torchgw.solvers.stopping import Plateau, observe, verdict
from torchgw.solvers.warm_start import Start
from torchgw.types import Progress

LOOP_TOLERANCE = 10.0


@dataclass(frozen=True)
class Solution:
    """Where a loop ended: the last cost, and base-2 potentials of its uncentred score at ``epsilon``."""

    cost: FactoredCost
    f: Tensor
    g: Tensor
    epsilon: float
    status: Status
    n_iter: int
    n_iter_sinkhorn: int
    history: History


def solve(
    gradient: Gradient,
    start: Start,
    model: Model,
    epsilon: float,
    kernel: Kernel,
    options: GWOptions,
    watch: Watch,
) -> Solution:
    """Run the loop from ``start``, in its dtype, with a gradient of the model's objective.

    A start whose potentials belong to no epsilon is annealed from above, any other from its own epsilon.
    O(N K) memory for the score and the plan of the last check, O(N K (M + inner iterations)) work per iteration.
    """
    began, stopping, inner = time.perf_counter(), options.stopping, options.sinkhorn
    annealing = replace(options.annealing, n_iter=min(options.annealing.n_iter, stopping.max_iter - 1))
    row = model.p.to(start.f.dtype)
    log_p = model.logs[0].to(row.dtype)
    start = start.with_rows(log_p) if model.fixed else start
    score = row.new_empty(len(model.p), len(model.q))
    plan, plateau, history, status = PlanWatch(score), Plateau(), History(), Status.MAX_ITER
    coupling, f, g, iteration, n_inner = start.coupling(), start.f, start.g, 0, 0
    old_epsilon = start.epsilon or epsilon_at(0, epsilon, annealing)
    before = watch.restored()
    if before is not None:
        coupling, f, g, old_epsilon, iteration, n_inner, plateau, plan.last, memory, entries = before
        history.go_on_from(entries)
        recall(gradient, memory)
    began, first = began - history.seconds, iteration
    while iteration < stopping.max_iter:
        where = coupling, f, g, old_epsilon, iteration, n_inner, plateau, plan.last
        begun = iteration > first and bool(history.cost)
        if begun and watch.pause(lambda: (*where, memory_of(gradient), history)):  # noqa: B023 - called at once
            status = Status.CANCELLED
            break
        now = annealed(iteration, epsilon, start.epsilon, annealing)
        raw = gradient(coupling, row)
        cost, row_term, column_term = raw.centred()
        unit = 2 * LOG2E / now
        cost.stored_score(now, out=score)
        row_side, column_side = model.sides(now, cost, row.dtype)
        f, held = rescale(f, log_p, old_epsilon, now) + unit * row_term, None
        if not model.fixed:
            sums = [side.to(row.dtype) for side in model.marginals_of(coupling)]
            f = row_side.settled(sums[0], f)
            held = column_side.settled(sums[1], g) if column_side.relaxed else None
        state = sinkhorn(
            kernel.on(score),
            row_side,
            column_side,
            f,
            held,
            max_iter=inner.max_iter,
            tol=LOOP_TOLERANCE * inner.tol,
            check_every=inner.check_every,
        )
        coupling, old_epsilon = _coupling(cost, score, state, now), now
        f, g = state.f - unit * row_term, state.g - unit * column_term
        iteration, n_inner = iteration + 1, n_inner + state.n_iter
        if iteration % stopping.check_every and iteration < stopping.max_iter:
            continue
        change, overlap, rows, columns = plan.look(score, state)
        expected = cost.expectation(overlap * (now * LN2 / 2), rows, columns)
        value, moved, residual = torch.stack((expected, change, state.residual)).tolist()
        record(history, watch, iteration, stopping.max_iter, value, residual, now, began)
        if now == epsilon and (start.epsilon is not None or iteration > annealing.n_iter):
            plateau = observe(plateau, value, stopping)
            ended = verdict(iteration, plateau, moved / stopping.check_every, stopping)
            if ended is not None:
                status = ended
                break
    return Solution(raw, f, g, old_epsilon, status, iteration, n_inner, history)


class PlanWatch:
    """The plan of the last check, kept to measure how far the next one is from it."""

    def __init__(self, score: Tensor) -> None:
        self.last = torch.zeros_like(score)
        self.rows = max(1, (2**19 if score.device.type == "cpu" else 2**26) // score.shape[1])

    def look(self, score: Tensor, state: SinkhornState) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """L1 distance of the plan from the last one looked at, <score, plan>, its row and column sums, in one pass."""
        change, overlap = score.new_zeros(()), score.new_zeros(())
        rows, columns = score.new_empty(score.shape[0]), score.new_zeros(score.shape[1])
        for start in range(0, len(score), self.rows):
            where = slice(start, start + self.rows)
            plan = (score[where] + state.f[where, None]).add_(state.g).clamp_min_(-120.0).exp2_()
            overlap += (plan * score[where]).sum()
            rows[where], columns = plan.sum(1), columns + plan.sum(0)
            change += self.last[where].sub_(plan).abs_().sum()
            self.last[where] = plan
        return change, overlap, rows, columns


def _coupling(
    cost: FactoredCost, score: Tensor, state: SinkhornState, epsilon: float
) -> PotentialCoupling | DenseCoupling:
    """The plan of the potentials of a centred cost; stored where the cost has a stored part."""
    if cost.extra is not None:
        return DenseCoupling((score + state.f[:, None]).add_(state.g).exp2_())
    return PotentialCoupling(*cost.balanced_score(epsilon), state.f, state.g)


def record(
    history: History,
    watch: Watch,
    iteration: int,
    max_iter: int,
    cost: float,
    marginal_error: float,
    epsilon: float,
    began: float,
) -> None:
    """Add one check to the history and tell whoever watches."""
    elapsed = time.perf_counter() - began
    history.iteration.append(iteration)
    history.cost.append(cost)
    history.marginal_error.append(marginal_error)
    history.epsilon.append(epsilon)
    history.elapsed.append(elapsed)
    watch.tell(
        Progress(
            iteration=iteration,
            max_iter=max_iter,
            cost=cost,
            marginal_error=marginal_error,
            epsilon=epsilon,
            elapsed=elapsed,
        )
    )

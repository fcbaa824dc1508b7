"""The outer loop: linearise the objective at the current plan, solve the entropic transport problem, repeat.

    anchors ~ T -> cost C(T) -> score -C / epsilon -> Sinkhorn from the last potentials -> T

The score is a base-2 logarithm. Everything stays on the device; the host reads numbers at checks only.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from torchgw.couplings import PotentialCoupling
from torchgw.gw.gradient import Gradient
from torchgw.gw.stopping import Plateau, observe, verdict
from torchgw.kernels import LN2
from torchgw.kernels.softmin_dense.reference import SoftminDense
from torchgw.options import GWOptions, SinkhornOptions
from torchgw.result import History, Status
from torchgw.sinkhorn.annealing import epsilon_at, rescale
from torchgw.sinkhorn.loop import SinkhornState, sinkhorn
from torchgw.sinkhorn.marginals import Balanced
from torchgw.types import Callback, Progress

LOOP_TOLERANCE = 10.0
ROUNDING_MARGIN = 2.0


@dataclass(frozen=True)
class Solution:
    """Where the loop ended."""

    coupling: PotentialCoupling
    status: Status
    n_iter: int
    n_iter_sinkhorn: int
    history: History


def product_start(log_p: Tensor, log_q: Tensor) -> PotentialCoupling:
    """The product plan p q^T as a coupling: no information about the matching."""
    return PotentialCoupling(log_p.new_zeros(len(log_p), 1), log_q.new_zeros(len(log_q), 1), log_p, log_q)


def solve(
    gradient: Gradient,
    start: PotentialCoupling,
    p: Tensor,
    q: Tensor,
    epsilon: float,
    softmin: SoftminDense,
    marginals: Balanced,
    options: GWOptions,
    callback: Callback | None,
) -> Solution:
    """Run the loop from ``start``, in its dtype, on float64 masses p (N,), q (K,) that sum to one.

    O(N K) memory for the score and the plan of the last check, O(N K (M + inner iterations)) work per iteration.
    """
    began, stopping, inner = time.perf_counter(), options.stopping, options.sinkhorn
    annealing = replace(options.annealing, n_iter=min(options.annealing.n_iter, stopping.max_iter - 1))
    row = p.to(start.dtype)
    log_p, log_q = p.log2().to(start.dtype), q.log2().to(start.dtype)
    score = row.new_empty(len(p), len(q))
    plan, plateau, history, status = PlanWatch(score), Plateau(), History(), Status.MAX_ITER
    coupling, old_epsilon, iteration, n_inner = start, epsilon_at(0, epsilon, annealing), 0, 0
    while iteration < stopping.max_iter:
        now = epsilon_at(iteration, epsilon, annealing)
        cost = gradient(coupling, row)
        A, B = cost.balanced_score(now)
        torch.mm(A, B.T, out=score)
        state = sinkhorn(
            partial(softmin, score),
            log_p,
            log_q,
            rescale(coupling.f, log_p, old_epsilon, now),
            rescale(coupling.g, log_q, old_epsilon, now),
            max_iter=inner.max_iter,
            tol=LOOP_TOLERANCE * inner.tol,
            check_every=inner.check_every,
            damping=marginals.damping(now),
        )
        coupling, old_epsilon = PotentialCoupling(A, B, state.f, state.g), now
        iteration, n_inner = iteration + 1, n_inner + state.n_iter
        if iteration % stopping.check_every and iteration < stopping.max_iter:
            continue
        change, overlap, columns = plan.look(score, state)
        expected = cost.expectation(overlap * (now * LN2 / 2), row, columns)
        value, moved, residual = torch.stack((expected, change, state.residual)).tolist()
        record(history, callback, iteration, stopping.max_iter, value, residual, now, began)
        if iteration > annealing.n_iter:
            plateau = observe(plateau, value, stopping)
            ended = verdict(iteration, plateau, moved / stopping.check_every, stopping)
            if ended is not None:
                status = ended
                break
    del plan
    final, n_last = finish(coupling, score, p, q, softmin, marginals.damping(epsilon), inner)
    return Solution(final, status, iteration, n_inner + n_last, history)


def finish(
    coupling: PotentialCoupling,
    score: Tensor,
    p: Tensor,
    q: Tensor,
    softmin: SoftminDense,
    damping: tuple[float, float],
    options: SinkhornOptions,
) -> tuple[PotentialCoupling, int]:
    """The last solve, to full tolerance: over-relaxed, and continued in float64 where float32 cannot reach it.

    A score of range R has float32 entries that are off by R 2^-24, and so are the logarithms of the marginals: below
    that floor a residual means nothing. Returns the coupling and the iterations it took.
    """

    def settle(start: PotentialCoupling, score: Tensor, max_iter: int, tol: float) -> SinkhornState:
        return sinkhorn(
            partial(softmin, score),
            p.log2().to(score.dtype),
            q.log2().to(score.dtype),
            start.f,
            start.g,
            max_iter=max_iter,
            tol=tol,
            check_every=options.check_every,
            relaxation=options.relaxation,
            damping=damping,
        )

    floor = ROUNDING_MARGIN * torch.finfo(score.dtype).eps * float(score.abs().max())
    state = settle(coupling, score, options.final_max_iter, max(options.tol, floor))
    final = PotentialCoupling(coupling.A, coupling.B, state.f, state.g)
    left = options.final_max_iter - state.n_iter
    reached = floor <= options.tol and float(state.residual) <= options.tol
    if reached or left == 0 or score.dtype == torch.float64:
        return final, state.n_iter
    final = final.to(torch.float64)
    precise = settle(final, final.A @ final.B.T, left, options.tol)
    return PotentialCoupling(final.A, final.B, precise.f, precise.g), state.n_iter + precise.n_iter


class PlanWatch:
    """The plan of the last check, kept to measure how far the next one is from it."""

    def __init__(self, score: Tensor) -> None:
        self.last = torch.zeros_like(score)
        self.rows = max(1, (2**19 if score.device.type == "cpu" else 2**26) // score.shape[1])

    def look(self, score: Tensor, state: SinkhornState) -> tuple[Tensor, Tensor, Tensor]:
        """L1 distance of the plan from the last one looked at, <score, plan>, and its column sums, in one pass."""
        change, overlap, columns = score.new_zeros(()), score.new_zeros(()), score.new_zeros(score.shape[1])
        for start in range(0, len(score), self.rows):
            where = slice(start, start + self.rows)
            plan = (score[where] + state.f[where, None]).add_(state.g).clamp_min_(-120.0).exp2_()
            overlap += (plan * score[where]).sum()
            columns += plan.sum(0)
            change += self.last[where].sub_(plan).abs_().sum()
            self.last[where] = plan
        return change, overlap, columns


def record(
    history: History,
    callback: Callback | None,
    iteration: int,
    max_iter: int,
    cost: float,
    marginal_error: float,
    epsilon: float,
    began: float,
) -> None:
    """Add one check to the history and tell the callback."""
    elapsed = time.perf_counter() - began
    history.iteration.append(iteration)
    history.cost.append(cost)
    history.marginal_error.append(marginal_error)
    history.epsilon.append(epsilon)
    history.elapsed.append(elapsed)
    if callback is not None:
        callback(
            Progress(
                iteration=iteration,
                max_iter=max_iter,
                cost=cost,
                marginal_error=marginal_error,
                epsilon=epsilon,
                elapsed=elapsed,
            )
        )

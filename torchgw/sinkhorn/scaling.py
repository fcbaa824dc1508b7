"""Sinkhorn iterations on a stored kernel: two matrix-vector products each, four to ten times cheaper than logsumexp.

The potentials are absorbed into the kernel, K = 2^(S + f + g), and the iterations scale it, T = diag(u) K diag(v).
Every absorption begins with a half-step of each side in the log domain, so K has exact rows however stale the
potentials were. When the scalings grow beyond 2^40, or stop being finite, they are absorbed anew before entries that
were too small to store would matter; so the result is that of the log domain.

Under relaxed marginals a point may end with less mass than the stored kernel carries; such points keep the potentials
of the last absorption, and count for nothing in the sums of the others.

Sources: B. Schmitzer, "Stabilized sparse scaling algorithms for entropy regularized transport problems", 2019;
over-relaxation as in `torchgw.sinkhorn.loop`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchgw.kernels.logsumexp import LOWEST_EXPONENT, flush_small, logsumexp2_
from torchgw.options import SinkhornOptions
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.runtime.transfer import AsyncNumbers
from torchgw.sinkhorn.loop import SinkhornState, adapt_relaxation, largest_potential
from torchgw.sinkhorn.sides import MarginalConstraint, column_change, log_total, translation
from torchgw.types import Score

LARGEST_DRIFT = 40.0
LARGEST_EXPONENT = 100.0
CHECKS, FEW_PAIRS = 3, 2**25  # of a GPU in one launch, between so few pairs that the host takes longer over them

ScalingUpdate = Callable[[Tensor, Tensor, Tensor, float], Tensor]


@dataclass(frozen=True)
class Scaler:
    """An iteration by scaling.

    score : of the linear problem (N, K), see `torchgw.types.Score`.
    row, column : its marginals, see `torchgw.sinkhorn.sides`.
    out : (N, K), where its plan is made.
    """

    score: Score
    row: MarginalConstraint
    column: MarginalConstraint
    out: Tensor


class ScalingState(NamedTuple):
    """The plan diag(u) K diag(v), K in the memory of the scaler.

    f, g : base-2 potentials (N,), (K,) that are absorbed in K.
    u, v : scalings (N,), (K,).
    readings : the residual of the potentials before, the L1 column residual and the furthest scaling of a plan that was
        absorbed, (3,); the last two of one that was iterated, at each check (m, 2).
    """

    f: Tensor
    g: Tensor
    u: Tensor
    v: Tensor
    readings: Tensor


class ScalingRun(NamedTuple):
    """Where an iteration ended, its plan diag(u) K diag(v).

    state : the plan.
    residual : L1 column residual.
    n_iter : iterations done.
    warm_residual : L1 column residual of the warm potentials. Both are on the device where the host has not read them.
    """

    state: ScalingState
    residual: Tensor | float
    n_iter: int
    warm_residual: Tensor | float


@as_cuda_graph("out")
def start_scaling(
    score: Score, row: MarginalConstraint, column: MarginalConstraint, out: Tensor, f: Tensor, g: Tensor
) -> ScalingState:
    """`iterate_and_absorb` from warm potentials, the column's where that side alone is relaxed."""
    if column.has_divergence and not row.has_divergence:
        f = row.potential(score.softmin(g, 1))
    return iterate_and_absorb(score, row, column, out, f, g)


@as_cuda_graph("out")
def iterate_and_absorb(
    score: Score, row: MarginalConstraint, column: MarginalConstraint, out: Tensor, f: Tensor, g: Tensor
) -> ScalingState:
    """The potentials after a half-step of each side, absorbed, and the scalings after an iteration."""
    softmin = score.softmin(f, 0)
    before, g = g, column.potential(softmin)
    change = column_change(g, before, softmin)
    softmin = score.softmin(g, 1)
    f = row.potential(softmin)
    if row.has_divergence or column.has_divergence:  # while no scaling can overflow by it
        shift, other = translation(row, column, f, g, log_total(f + softmin))
        f, g = f + shift, g + other
    score.absorb(f, g, out)
    first = change.nan_to_num(nan=torch.inf, posinf=torch.inf)[None]
    plan = ScalingState(f, g, torch.ones_like(f), torch.ones_like(g), first)
    plan = _run_iterations(score.update_scaling, row, column, out, plan, 1, 1.0)
    return plan._replace(readings=torch.cat((first, plan.readings)))


@as_cuda_graph()
def _iterate_to_check(
    rescaled: ScalingUpdate,
    row: MarginalConstraint,
    column: MarginalConstraint,
    kernel: Tensor,
    last: ScalingState,
    counts: tuple[int, ...],
    weight: float,
    tol: float,
) -> ScalingState:
    """The plan after several numbers of iterations, up to that check by which the host has to do something else: the
    plan is solved, or to be absorbed, or has become worse."""
    found, goes_on, before = list[Tensor](), None, last.readings.flatten()[-2]
    for count in counts:
        new = _run_iterations(rescaled, row, column, kernel, last, count, weight)
        if goes_on is not None:
            ends = zip(new[2:], (last.u, last.v, found[-1]), strict=True)
            new = ScalingState(last.f, last.g, *(torch.where(goes_on, one, other) for one, other in ends))
        last = new
        found.append(last.readings)
        if len(found) < len(counts):
            residual, drift = last.readings.double()
            stops = (residual <= tol) | (drift > LARGEST_DRIFT)
            if weight != 1.0:  # which a residual that rises brings down
                stops |= residual > before
            goes_on, before = ~stops if goes_on is None else goes_on & ~stops, residual
    return last._replace(readings=torch.stack(found))


def _run_iterations(
    rescaled: ScalingUpdate,
    row: MarginalConstraint,
    column: MarginalConstraint,
    kernel: Tensor,
    last: ScalingState,
    count: int,
    weight: float,
) -> ScalingState:
    """The plan after so many iterations more, with what is `ScalingState.readings` at the last one, (2,)."""
    f, g, u, v, _ = last
    columns = u @ kernel
    for left in reversed(range(count)):
        if row.has_divergence or column.has_divergence:
            log_mass = (v * columns).sum(-1, keepdim=True).double().log2()
            shift, other = translation(row, column, f + u.log2(), g + v.log2(), log_mass)
            u, v, columns = u * shift.exp2(), v * other.exp2(), columns * shift.exp2()
        if left:
            v = _update_scaling(rescaled, column, g, columns, v, weight)
            u = _update_scaling(rescaled, row, f, kernel @ v, u, weight)
            columns = u @ kernel
    new_v = _update_scaling(rescaled, column, g, columns, v, 1.0)
    missed = (columns * (v - new_v)).abs().sum()
    u = _update_scaling(rescaled, row, f, kernel @ new_v, u, 1.0)
    furthest = torch.maximum(u.log2().abs().max(), new_v.log2().abs().max())
    return ScalingState(f, g, u, new_v, torch.stack((missed, furthest)).nan_to_num_(nan=torch.inf, posinf=torch.inf))


def _update_scaling(
    rescaled: ScalingUpdate, side: MarginalConstraint, f: Tensor, sums: Tensor, old: Tensor, weight: float
) -> Tensor:
    if side.is_hard:
        return rescaled(side.positive_mass, sums, old, weight)
    new = side.scaling(f, sums)
    return new if weight == 1.0 else old * (new / old) ** weight


@as_cuda_graph("out")
def finish_scaling(out: Tensor, last: ScalingState) -> tuple[Tensor, Tensor, Tensor]:
    """The plan in ``out`` with its scalings, its potentials, and the `largest_potential`."""
    scale_plans(out, last.u, last.v)
    f, g = last.f + last.u.log2(), last.g + last.v.log2()
    return f, g, largest_potential(f, g)


def solve_by_scaling(scaler: Scaler, f: Tensor, g: Tensor, *, options: SinkhornOptions, max_iter: int) -> SinkhornState:
    """Solve from the warm potentials (f, g) and leave the plan in the scaler's memory; its row sums are those asked
    for.

    Parameters
    ----------
    options : tolerance, iterations between two readings of the residual, and weight of the half-steps there.
    max_iter : most iterations, those in the log domain included; at least two are done.
    """
    first = start_scaling(scaler.score, scaler.row, scaler.column, scaler.out, f, g)
    found = iterate_scaling(scaler, first, options=options, max_iter=max_iter)
    f, g, largest = finish_scaling(scaler.out, found.state)
    return SinkhornState(f, g, found.residual, found.n_iter, found.warm_residual, largest)


def iterate_scaling(scaler: Scaler, first: ScalingState, *, options: SinkhornOptions, max_iter: int) -> ScalingRun:
    """Go on from the state of `start_scaling`, as `solve_by_scaling` does, whose last step is left.

    Fewer iterations than lie between two checks are done without one: the host does not wait for them."""
    score, row, column = scaler.score, scaler.row, scaler.column
    if max_iter < options.check_every:
        now = first if max_iter <= 2 else _continue_scaling(scaler, first, [max_iter - 2], options.relaxation, 0.0)
        return ScalingRun(now, now.readings.flatten()[-2], max(max_iter, 2), first.readings[0])
    now, change, weight, n_iter = first, None, options.relaxation, 0
    together = CHECKS if scaler.out.is_cuda and scaler.out.numel() <= FEW_PAIRS else 1

    def next_counts(step: int, n_iter: int) -> list[int]:
        """The numbers of iterations to the next checks."""
        counts = list[int]()
        while len(counts) < together and (count := min(every - step % every, max_iter - n_iter)) > 0:
            counts.append(count)
            step, n_iter = step + count, n_iter + count
        return counts

    every = options.check_every
    while True:
        step, n_iter, known, counts = 1, n_iter + 2, float("inf"), [0]
        while True:
            reading, ahead, after = (
                AsyncNumbers(now.readings),
                None,
                next_counts(step + sum(counts), n_iter + sum(counts)),
            )
            if reading.overlaps and after and together == 1:
                # On a GPU the next iterations are on their way while the host reads what the last ones came to.
                ahead = _continue_scaling(scaler, now, after, weight, options.tol)
            numbers = reading.values()
            if change is None:
                change = numbers[0]
            looks = numbers[-2 * len(counts) :]
            for count, residual, drift in zip(counts, looks[::2], looks[1::2], strict=True):
                last, known, step, n_iter = known, residual, step + count, n_iter + count
                solved = residual <= options.tol and drift <= LARGEST_EXPONENT
                safe = drift <= LARGEST_DRIFT or solved
                lighter = weight if step == 1 else adapt_relaxation(weight, last, residual)
                if solved or not safe or lighter != weight:
                    break
            counts = next_counts(step, n_iter)
            if solved or not safe or not counts:
                break
            if ahead is None or lighter != weight:
                weight = lighter
                ahead = _continue_scaling(scaler, now, counts, weight, options.tol)
            now = ahead
        if safe:
            break
        f, g, u, v, _ = now
        if drift <= torch.finfo(f.dtype).max:
            f, g = f + u.log2(), g + v.log2()
        if n_iter >= max_iter:
            f = row.potential(score.softmin(g, 1))
            score.absorb(f, g, scaler.out)
            now = ScalingState(f, g, torch.ones_like(f), torch.ones_like(g), now.readings)
            break
        now = iterate_and_absorb(score, row, column, scaler.out, f, g)
    assert change is not None
    return ScalingRun(now, residual, n_iter, change)


def _continue_scaling(scaler: Scaler, last: ScalingState, counts: list[int], weight: float, tol: float) -> ScalingState:
    sides = scaler.row, scaler.column
    return _iterate_to_check(scaler.score.update_scaling, *sides, scaler.out, last, tuple(counts), weight, tol)


def scale_plans(kernel: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """The plans diag(u) K diag(v) in place, of a kernel (..., N, K), u (..., N), v (..., K)."""
    return flush_small(kernel.mul_(u[..., :, None]).mul_(v[..., None, :]))


def solve_plans(
    score: Tensor, row: MarginalConstraint, column: MarginalConstraint, f: Tensor, g: Tensor, n_iter: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Plans (B, N, K) of a batch of scores, and their potentials (B, N), (B, K), after ``n_iter`` plain iterations from
    warm ones: the first in the log domain, the rest by scaling. Like `torchgw.kernels.small_transport`, for any sides.
    """
    if column.has_divergence:
        f = row.potential(logsumexp2_(score + g[..., None, :], -1))
    g = column.potential(logsumexp2_(score + f[..., :, None], -2))
    softmin = logsumexp2_(score + g[..., None, :], -1)
    f = row.potential(softmin)
    relaxed = row.has_divergence or column.has_divergence
    if relaxed:
        t, s = translation(row, column, f, g, log_total(f + softmin))
        f, g = f + t, g + s
    kernel = (score + f[..., :, None]).add_(g[..., None, :]).clamp_min_(LOWEST_EXPONENT).exp2_()
    u, v = torch.ones_like(f), torch.ones_like(g)
    for _ in range(n_iter - 1):
        v = column.scaling(g, torch.matmul(u[..., None, :], kernel)[..., 0, :])
        u = row.scaling(f, torch.matmul(kernel, v[..., :, None])[..., 0])
    plan, f, g = scale_plans(kernel, u, v), f + u.log2(), g + v.log2()
    if relaxed:
        t, s = translation(row, column, f, g, plan.sum((-1, -2))[..., None].double().log2())
        plan, f, g = plan * (t + s).exp2()[..., None], f + t, g + s
    return plan, f, g

"""Sinkhorn's fixed point from warm potentials, by sweeps that read each score once an iteration, and its annealing.

A sweep takes g to the f that belongs to it and to the column sums of the plan (f, g): its row sums are exact (under a
hard marginal), and what the next g would change, sum_j q_j |2^(g - g_new) - 1|, is its L1 column residual. So the
residual needs no plan. It is read only every ``check_every`` iterations, because reading waits for the device; on a GPU
those after it are one launch (`torchgw.runtime.cuda_graphs`) and already on their way while the host waits, in vain
where it was the last or asks for another weight. The residual of the last iteration is left for the caller.

Between checks each half-step may be over-relaxed, old + w (new - old): near the fixed point that cuts the iterations by
up to ten (measured, w = 1.8), far from it it can diverge. So checked iterations are plain, and w is halved towards 1
whenever the residual has risen since the last check.

Annealing is a geometric descent of epsilon to the target over the outer iterations, with potentials carried across it.

Sources: M. Cuturi, "Sinkhorn distances", 2013; log domain as in B. Schmitzer, "Stabilized sparse scaling algorithms",
2019; A. Thibault, L. Chizat, C. Dossal, N. Papadakis, "Overrelaxed Sinkhorn-Knopp algorithm", 2021.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchgw.kernels.kernel import relax
from torchgw.options import AnnealingOptions, SinkhornOptions
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.runtime.transfer import AsyncNumbers
from torchgw.sinkhorn.sides import MarginalConstraint, column_change, log_total, translation
from torchgw.types import Softmins


class SinkhornState(NamedTuple):
    """Where an iteration ended, of this file or on a stored kernel; residuals that the host has not read are on the
    device, ().

    Attributes
    ----------
    f, g : base-2 potentials (N,), (K,).
    residual : L1 column residual at the last check.
    n_iter : iterations done.
    warm_residual : L1 column residual of the warm potentials under this score, infinite where only f was given.
    known : their `largest_potential` (), where it is known.
    """

    f: Tensor
    g: Tensor
    residual: Tensor | float
    n_iter: int
    warm_residual: Tensor | float
    known: Tensor | None = None

    @property
    def largest(self) -> Tensor:
        """The `largest_potential` ()."""
        return largest_potential(self.f, self.g) if self.known is None else self.known


def largest_potential(f: Tensor, g: Tensor) -> Tensor:
    """The largest absolute potential () of a point that has mass; infinite where one is no number."""
    return torch.nan_to_num(torch.cat((f, g)), nan=torch.inf, neginf=0.0).abs().max()


def sinkhorn(
    score: Softmins,
    row: MarginalConstraint,
    column: MarginalConstraint,
    f: Tensor,
    g: Tensor | None = None,
    *,
    options: SinkhornOptions,
    max_iter: int,
) -> SinkhornState:
    """Alternate half-steps from a warm f, g first, until the residual is at the tolerance or ``max_iter`` are done.

    Parameters
    ----------
    score : the score (N, K), see `torchgw.types.Softmins`.
    row, column : the marginals, see `torchgw.sinkhorn.sides`.
    f, g : warm potentials (N,), (K,); g only gives the warm residual, but where the column marginal alone is relaxed:
        then f is its half-step.
    options : tolerance, iterations between checks, and weight w of the half-steps there.

    Returns
    -------
    State whose f is the half-step of its g, and whose residual is its own.
    """
    if g is not None and column.has_divergence and not row.has_divergence:
        f = row.potential(score.softmin(g, 1))
    softmin = score.softmin(f, 0)
    warm, g = g, column.potential(softmin)
    warm_residual = g.new_full((), torch.inf) if warm is None else column_change(g, warm, softmin)
    if max_iter < 1:
        return SinkhornState(f, g, f.new_full((), float("inf")), 0, warm_residual)
    n_iter, known, weight = min(options.check_every, max_iter), float("inf"), options.relaxation
    f, g, following, seen = _run_iterations(score, row, column, f, g, g, n_iter, weight)
    while (count := min(options.check_every, max_iter - n_iter)) > 0:
        # On a GPU the next iterations are on their way while the host reads what the last ones came to.
        reading, ahead = AsyncNumbers(seen), None
        if reading.overlaps:
            ahead = _run_iterations(score, row, column, f, g, following, count, weight)
        last, (known,) = known, reading.values()
        if known <= options.tol:
            return SinkhornState(f, g, known, n_iter, warm_residual)
        lighter = adapt_relaxation(weight, last, known)
        if ahead is None or lighter != weight:
            weight, ahead = lighter, _run_iterations(score, row, column, f, g, following, count, lighter)
        (f, g, following, seen), n_iter = ahead, n_iter + count
    return SinkhornState(f, g, seen[0], n_iter, warm_residual)


@as_cuda_graph()
def _run_iterations(
    score: Softmins,
    row: MarginalConstraint,
    column: MarginalConstraint,
    f: Tensor,
    g: Tensor,
    following: Tensor,
    count: int,
    weight: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The f and g of the last of a number of iterations, over-relaxed by a weight but for that one, the g that follows,
    and its residual (1,)."""
    hard = row.is_hard and column.is_hard  # a relaxed marginal may end with less mass than a sweep keeps count of
    for left in reversed(range(count)):
        step, g = weight if left else 1.0, following
        if hard:
            f, softmin = score.sweep(g, row.log_mass, f, step)
        else:
            f = relax(f, row.potential(score.softmin(g, 1)), step)
            softmin = score.softmin(f, 0)
            if row.has_divergence or column.has_divergence:
                shift, other = translation(row, column, f, g, log_total(g + softmin))
                f, g, softmin = f + shift, g + other, softmin + shift
        new_g = column.potential(softmin)
        following = relax(g, new_g, step)
    return f, g, following, column_change(new_g, g, softmin)[None]


def adapt_relaxation(weight: float, last: float, residual: float) -> float:
    """The over-relaxation after a check: half as far above 1 where the residual has risen since the last one."""
    return weight if residual <= last else (1 + weight) / 2


def interpolate_epsilon(first: float, last: float, share: float) -> float:
    """The temperature after a ``share`` of the geometric descent from ``first`` to ``last``."""
    return float(first * (last / first) ** share)


def epsilon_at(iteration: int, target: float, options: AnnealingOptions) -> float:
    """Epsilon of an outer iteration, counted from 0."""
    if iteration >= options.n_iter:
        return target
    return interpolate_epsilon(target * options.factor, target, iteration / options.n_iter)


def anneal_epsilon(iteration: int, target: float, start: float | None, options: AnnealingOptions) -> float:
    """`epsilon_at` where the start belongs to no epsilon, else the start's own, halved at each iteration."""
    if start is None:
        return epsilon_at(iteration, target, options)
    return max(target, start * 0.5**iteration)


def rescale(potential: Tensor, log_mass: Tensor, ratio: float | Tensor) -> Tensor:
    """A potential (..., N) at another epsilon, where its own is ``ratio`` (..., 1) times that: its distance from the
    log mass is a cost over epsilon."""
    if isinstance(ratio, float) and ratio == 1:
        return potential
    log_mass = log_mass.to(potential)
    return torch.where(log_mass.isneginf(), log_mass, log_mass + (potential - log_mass) * ratio)

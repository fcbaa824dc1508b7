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

from typing import TypeAlias

import torch
from torch import Tensor

from torchgw.kernels.logsumexp import flushed
from torchgw.options import SinkhornOptions
from torchgw.runtime.repeated import Repeated, State, own
from torchgw.runtime.transfer import AsyncNumbers
from torchgw.sinkhorn.loop import SinkhornState, checked_weight, largest_potential
from torchgw.sinkhorn.sides import Side, column_change, log_total, translation
from torchgw.types import Score

LARGEST_DRIFT = 40.0
LARGEST_EXPONENT = 100.0

Kind: TypeAlias = tuple[int, float]
ABSORB: Kind = (0, 0.0)
END: Kind = (-1, 0.0)


class Scaler:
    """The steps of an iteration by scaling on one score, whose plan is made in ``out`` (N, K).

    Between calls of `scaling` it may be kept as long as the score, the sides and the memory are the same.
    """

    def __init__(self, score: Score, row: Side, column: Side, out: Tensor) -> None:
        self.score, self.row, self.column, self.out = score, row, column, out
        self.scalings = list[Tensor]()  # memory of the last ones
        models = tuple((side.hard, side.relaxed, side.offset is None) for side in (row, column))
        for side in (row, column) if out.is_cuda else ():  # made before any graph that uses them
            _ = side.mass, side.empty, side.filled
        kernel = getattr(score.softmin, "func", score.softmin), score.rescaled
        same = "scaling", out.shape, kernel, models
        self.take = Repeated(self._taken, lambda kind: (min(kind[0], 2), kind[1] == 1.0), same)

    def _taken(self, kind: Kind, f: Tensor, g: Tensor, u: Tensor, v: Tensor) -> tuple[State, Tensor]:
        """A step with potentials and scalings: so many iterations, over-relaxed by a weight; or `ABSORB`, or `END`."""
        if kind == ABSORB:
            return self._absorbed(f, g)
        if kind == END:  # the potentials with their scalings, which the plan gets
            scaled(self.out, u, v)
            f, g = f + u.log2(), g + v.log2()
            return (f, g, u, v), largest_potential(f, g)
        (u, v), seen = self._iterated(*kind, f, g, u, v)
        return (f, g, u, v), seen

    def _absorbed(self, f: Tensor, g: Tensor) -> tuple[State, Tensor]:
        """The potentials after a half-step of each side, absorbed, and scalings u, v after an iteration; its residual,
        its furthest scaling and the residual of the potentials that were given (3,)."""
        score, row, column = self.score, self.row, self.column
        softmin = score.softmin(f, 0)
        before, g = g, column.potential(softmin)
        change = column_change(g, before, softmin)
        softmin = score.softmin(g, 1)
        f = row.potential(softmin)
        if row.relaxed or column.relaxed:  # while no scaling can overflow by it
            shift, other = translation(row, column, f, g, log_total(f + softmin))
            f, g = f + shift, g + other
        score.absorb(f, g, self.out)
        scalings, seen = self._iterated(1, 1.0, f, g, torch.ones_like(f), torch.ones_like(g))
        return (f, g, *scalings), torch.cat((seen, change.nan_to_num(nan=torch.inf, posinf=torch.inf)[None]))

    def _iterated(self, count: int, weight: float, f: Tensor, g: Tensor, u: Tensor, v: Tensor) -> tuple[State, Tensor]:
        """The scalings after so many iterations, over-relaxed by the weight but for the last; its residual and its
        furthest scaling (2,)."""
        row, column, kernel = self.row, self.column, self.out
        columns = u @ kernel
        for left in reversed(range(count)):
            if row.relaxed or column.relaxed:
                log_mass = (v * columns).sum(-1, keepdim=True).double().log2()
                shift, other = translation(row, column, f + u.log2(), g + v.log2(), log_mass)
                u, v, columns = u * shift.exp2(), v * other.exp2(), columns * shift.exp2()
            if left:
                v = self._scaled(column, g, columns, v, weight)
                if row.hard:
                    u, columns = self.score.rescaled_sweep(kernel, row.filled, v, u, weight)
                else:
                    u = self._scaled(row, f, kernel @ v, u, weight)
                    columns = u @ kernel
        new_v = self._scaled(column, g, columns, v, 1.0)
        missed = (columns * (v - new_v)).abs().sum()
        u = self._scaled(row, f, kernel @ new_v, u, 1.0)
        furthest = torch.maximum(u.log2().abs().max(), new_v.log2().abs().max())
        seen = torch.stack((missed, furthest)).nan_to_num_(nan=torch.inf, posinf=torch.inf)
        return (u, new_v), seen

    def _scaled(self, side: Side, f: Tensor, sums: Tensor, old: Tensor, weight: float) -> Tensor:
        if side.hard:
            return self.score.rescaled(side.filled, sums, old, weight)
        new = side.scaled(f, sums)
        return new if weight == 1.0 else old * (new / old) ** weight


def scaling(scaler: Scaler, f: Tensor, g: Tensor, *, options: SinkhornOptions, max_iter: int) -> SinkhornState:
    """Solve from the warm potentials (f, g) and leave the plan in the scaler's memory; its row sums are those asked
    for.

    Parameters
    ----------
    scaler : the score (N, K) and the marginals, see `torchgw.types.Score` and `torchgw.sinkhorn.sides`.
    options : tolerance, iterations between two readings of the residual, and weight of the half-steps there.
    max_iter : most iterations, those in the log domain included; at least two are done.
    """
    score, row, column = scaler.score, scaler.row, scaler.column
    change, largest, weight, n_iter = None, None, options.relaxation, 0
    if column.relaxed and not row.relaxed:
        f = row.potential(score.softmin(g, 1))
    while True:
        ahead = scaler.take(ABSORB, f, g, *(scaler.scalings or (f, g)))
        step, n_iter, known, state, seen = 1, n_iter + 2, float("inf"), ahead.after, ahead.seen
        # On a GPU the next iterations are on their way while the host reads what the last ones came to.
        while True:
            reading = AsyncNumbers(seen)
            count = min(options.check_every - step % options.check_every, max_iter - n_iter)
            if reading.overlaps and count > 0:
                ahead = scaler.take((count, weight), *state)
                state = ahead.before
            last, (residual, drift, *changed) = known, reading.values()
            change = changed[0] if change is None else change
            solved = residual <= options.tol and drift <= LARGEST_EXPONENT
            safe = drift <= LARGEST_DRIFT or solved
            if solved or not safe or count <= 0:
                break
            lighter, known = weight if step == 1 else checked_weight(weight, last, residual), residual
            if not reading.overlaps or lighter != weight:
                weight = lighter
                ahead = scaler.take((count, weight), *state)
            state, seen = ahead.after, ahead.seen
            step, n_iter = step + count, n_iter + count
        if safe:
            end = scaler.take(END, *state)
            f, g, *scaler.scalings = end.after
            f, g, largest = own(f, g, end.seen)
            break
        f, g, u, v = state
        if drift <= torch.finfo(f.dtype).max:
            f, g = f + u.log2(), g + v.log2()
        if n_iter >= max_iter:
            g = g.clone() if g.is_cuda else g
            f = row.potential(score.softmin(g, 1))
            score.absorb(f, g, scaler.out)
            break
    return SinkhornState(f, g, residual, n_iter, change, largest)


def scaled(kernel: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """The plans diag(u) K diag(v) in place, of a kernel (..., N, K), u (..., N), v (..., K)."""
    return flushed(kernel.mul_(u[..., :, None]).mul_(v[..., None, :]))


def balance(kernel: Tensor, row: Side, column: Side, f: Tensor, g: Tensor, n_iter: int) -> tuple[Tensor, Tensor]:
    """Scalings u (..., N), v (..., K) after ``n_iter`` plain iterations on a batch of plans with potentials f, g."""
    u, v = torch.ones_like(f), torch.ones_like(g)
    for _ in range(n_iter):
        v = column.scaled(g, torch.matmul(u[..., None, :], kernel)[..., 0, :])
        u = row.scaled(f, torch.matmul(kernel, v[..., :, None])[..., 0])
    return u, v

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

import torch
from torch import Tensor

from torchgw.kernels.logsumexp import flushed
from torchgw.options import SinkhornOptions
from torchgw.sinkhorn.loop import SinkhornState, checked_weight
from torchgw.sinkhorn.sides import Side, column_change, log_total, translation
from torchgw.types import Score

LARGEST_DRIFT = 40.0
LARGEST_EXPONENT = 100.0


def scaling(
    score: Score, row: Side, column: Side, f: Tensor, g: Tensor, out: Tensor, *, options: SinkhornOptions, max_iter: int
) -> SinkhornState:
    """Solve from the warm potentials (f, g) and leave the plan in ``out`` (N, K); its row sums are those asked for.

    Parameters
    ----------
    score : the score (N, K), see `torchgw.types.Score`.
    row, column : the marginals, see `torchgw.sinkhorn.sides`.
    options : tolerance, iterations between two readings of the residual, and weight of the half-steps there.
    max_iter : most iterations, those in the log domain included; at least two are done.
    """
    change, residual, weight, n_iter = None, float("inf"), options.relaxation, 0
    free = row.relaxed or column.relaxed
    if column.relaxed and not row.relaxed:
        f = row.potential(score.softmin(g, 1))
    while True:
        softmin = score.softmin(f, 0)
        new_g = column.potential(softmin)
        change = column_change(new_g, g, softmin) if change is None else change
        g = new_g
        softmin = score.softmin(g, 1)
        f = row.potential(softmin)
        n_iter += 1
        if free:  # while no scaling can overflow by it
            shift, other = translation(row, column, f, g, log_total(f + softmin))
            f, g = f + shift, g + other
        score.absorb(f, g, out)
        u, v = torch.ones_like(f), torch.ones_like(g)
        safe = True
        for step in range(1, max(max_iter - n_iter, 1) + 1):
            columns = u @ out
            if free:
                log_mass = (v * columns).sum(-1, keepdim=True).double().log2()
                shift, other = translation(row, column, f + u.log2(), g + v.log2(), log_mass)
                u, v, columns = u * shift.exp2(), v * other.exp2(), columns * shift.exp2()
            new_v = column.scaled(g, columns)
            checked = step % options.check_every == 0 or n_iter + 1 >= max_iter or step == 1
            n_iter += 1
            if not checked:
                v = v * (new_v / v) ** weight
                u = u * (row.scaled(f, out @ v) / u) ** weight
                continue
            missed = (columns * (v - new_v)).abs().sum()
            v = new_v
            u = row.scaled(f, out @ v)
            furthest = torch.maximum(u.log2().abs().max(), v.log2().abs().max())
            known = torch.stack((missed, furthest, change)).nan_to_num(nan=torch.inf, posinf=torch.inf)
            last, (residual, drift, _) = residual, known.tolist()
            solved = residual <= options.tol and drift <= LARGEST_EXPONENT
            safe = drift <= LARGEST_DRIFT or solved
            if solved or not safe:
                break
            weight = weight if step == 1 else checked_weight(weight, last, residual)
        if drift <= torch.finfo(f.dtype).max:
            f, g = f + u.log2(), g + v.log2()
        if safe or n_iter >= max_iter:
            break
    if safe:
        scaled(out, u, v)
    else:
        f = row.potential(score.softmin(g, 1))
        score.absorb(f, g, out)
    return SinkhornState(f, g, known[0], n_iter, known[2])


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

"""Sinkhorn on a batch of small problems in plain torch: the eager backend and the oracle.

    g = log2 q - log2 sum_i 2^(S_ij + f_i),    f = log2 p - log2 sum_j 2^(S_ij + g_j),    K = 2^(S + f + g)
    v = q / (u K),  u = p / (K v),  so many times;    T = diag(u) K diag(v)

The first iteration in the log domain brings potentials that belong to another score to this one, the others scale.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchgw.kernels.kernel import half_step
from torchgw.kernels.logsumexp import LOWEST_EXPONENT, flush_small, logsumexp2_

RELAXATION = 1.8


class IterationCounts(NamedTuple):
    """Inner iterations at each temperature.

    plain, relaxed : Sinkhorn iterations, then over-relaxed ones.
    """

    plain: int
    relaxed: int = 0


def solve(
    score: Tensor, log_p: Tensor, log_q: Tensor, f: Tensor, g: Tensor, n_iter: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Plans (B, N, K) and their base-2 potentials (B, N), (B, K) after ``n_iter`` iterations, at least one.

    Parameters
    ----------
    score : (B, N, K), stays as it is.
    log_p, log_q : base-2 logarithms of the masses (N,), (K,) of all problems; -inf for points without mass.
    f, g : warm potentials (B, N), (B, K); the first iteration takes f alone.
    """
    g = half_step(log_q, logsumexp2_(score + f[..., :, None], -2))
    f = half_step(log_p, logsumexp2_(score + g[..., None, :], -1))
    kernel = (score + f[..., :, None]).add_(g[..., None, :]).clamp_min_(LOWEST_EXPONENT).exp2_()
    tiny = torch.finfo(score.dtype).tiny
    p, q = (torch.where(torch.isneginf(side), tiny, side.exp2()) for side in (log_p, log_q))
    u, v = torch.ones_like(f), torch.ones_like(g)
    for _ in range(n_iter - 1):
        v = q / torch.matmul(u[..., None, :], kernel)[..., 0, :].clamp_min(tiny)
        u = p / torch.matmul(kernel, v[..., :, None])[..., 0].clamp_min(tiny)
    plan = flush_small(kernel.mul_(u[..., :, None]).mul_(v[..., None, :]))
    return plan, f + u.log2(), g + v.log2()


def scalings(kernel: Tensor, p: Tensor, q: Tensor, effort: IterationCounts) -> tuple[Tensor, Tensor]:
    """u (B, 1, N), v (B, 1, K) such that diag(u) K diag(v) has rows p and nearly columns q, of kernels (B, N, K) and
    positive masses (B, 1, N), (B, 1, K).

    Products are taken of row vectors with stored matrices: batched products with columns are ten times slower on a CPU.
    What `torchgw.batched.annealing` says of the bits of a pair holds here. Where over-relaxed iterations leave the
    range of float32, a pair keeps its plain ones.
    """
    turned = kernel.mT.contiguous()
    x, y = torch.empty_like(p), torch.empty_like(q)
    v = q / kernel.sum(1, keepdim=True)
    u = p / torch.bmm(v, turned, out=x)
    for _ in range(effort.plain):
        v = q / torch.bmm(u, kernel, out=y)
        u = p / torch.bmm(v, turned, out=x)
    safe = v
    for _ in range(effort.relaxed):
        v = v * torch.div(q, torch.bmm(u, kernel, out=y), out=y).div_(v).log_().mul_(RELAXATION).exp_()
        u = u * torch.div(p, torch.bmm(v, turned, out=x), out=x).div_(u).log_().mul_(RELAXATION).exp_()
    v = q / torch.bmm(u, kernel, out=y)
    u = p / torch.bmm(v, turned, out=x)
    good = (torch.isfinite(u) & (u > 0)).all(-1, keepdim=True) & (torch.isfinite(v) & (v > 0)).all(-1, keepdim=True)
    v = torch.where(good, v, safe)
    return torch.where(good, u, p / torch.bmm(v, turned, out=x)), v

"""Sinkhorn on a batch of small problems in plain torch: the eager backend and the oracle.

    g = log2 q - log2 sum_i 2^(S_ij + f_i),    f = log2 p - log2 sum_j 2^(S_ij + g_j),    K = 2^(S + f + g)
    v = q / (u K),  u = p / (K v),  so many times;    T = diag(u) K diag(v)

The first iteration in the log domain brings potentials that belong to another score to this one, the others scale.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchgw.kernels.kernel import half_step
from torchgw.kernels.logsumexp import LOWEST_EXPONENT, flushed, logsumexp2_


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
    plan = flushed(kernel.mul_(u[..., :, None]).mul_(v[..., None, :]))
    return plan, f + u.log2(), g + v.log2()

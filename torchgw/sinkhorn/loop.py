"""Sinkhorn's fixed point from warm potentials, with its convergence read off the potentials.

After a column half-step the plan's columns are exact and its row sums are p 2^(f_old - f_new), f_new being the next row
half-step. So the L1 marginal residual sum_i p_i |2^(f_old - f_new) - 1| needs no plan. It is read only every
``check_every`` iterations, because reading waits for the device.

Source: M. Cuturi, "Sinkhorn distances", 2013; log domain as in B. Schmitzer, "Stabilized sparse scaling algorithms", 2019.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from torchgw.sinkhorn.step import half_step
from torchgw.types import Softmin


class SinkhornState(NamedTuple):
    """Base-2 potentials f (N,), g (K,); the L1 residual at the last check; iterations done."""

    f: Tensor
    g: Tensor
    residual: float
    n_iter: int


def sinkhorn(
    softmin: Softmin,
    log_p: Tensor,
    log_q: Tensor,
    f: Tensor,
    g: Tensor,
    *,
    max_iter: int,
    tol: float,
    check_every: int,
) -> SinkhornState:
    """Alternate half-steps from (f, g) until the residual is at most ``tol`` or ``max_iter`` is reached.

    Parameters
    ----------
    softmin : base-2 logsumexp of the score plus a potential, see `torchgw.types.Softmin`.
    log_p, log_q : base-2 logarithms of masses (N,), (K,) that sum to one.
    f, g : warm potentials; f enters the first column half-step.

    Returns
    -------
    State whose row marginal is exact and whose residual is that of the iterate before the last row half-step.
    """
    p = log_p.exp2()
    has_mass = p > 0
    residual, iteration = float("inf"), 0
    while iteration < max_iter:
        iteration += 1
        g = half_step(log_q, softmin(f, 0))
        new_f = half_step(log_p, softmin(g, 1))
        if iteration % check_every == 0 or iteration == max_iter:
            error = p * ((f - new_f).exp2() - 1).abs()
            residual = float(error.masked_fill(~has_mass, 0.0).sum())
        f = new_f
        if residual <= tol:
            break
    return SinkhornState(f, g, residual, iteration)

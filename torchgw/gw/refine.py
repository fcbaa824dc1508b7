"""From a solution to its fixed point: linearised and solved again in float64 until potentials no longer move.

A gradient through a plan is that of the stationary plan; what is left of the residual grows by the condition number.
Over-relaxation is chosen by the plan's own slowest direction, see `torchgw.sinkhorn.spectrum`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from torchgw.couplings import BlockCoupling
from torchgw.gw.descent import Descent, descend
from torchgw.gw.gradient import Gradient
from torchgw.gw.inner import Inner
from torchgw.gw.model import Model
from torchgw.gw.start import Start
from torchgw.options import GWOptions, SinkhornOptions
from torchgw.sinkhorn.implicit import Response
from torchgw.status import History
from torchgw.types import Callback

SATURATED = 1e-6
LANCZOS_STEPS = 30
MOST_INNER = 2000
LEAST_RELAXATION, MOST_RELAXATION = 1.0, 1.95


def refined(
    gradient: Gradient,
    start: Start,
    model: Model,
    inner: Inner,
    options: GWOptions,
    callback: Callback | None = None,
    history: History | None = None,
) -> Descent:
    """Descend from float64 potentials of the model's own epsilon, with options from `tightened`."""
    return descend(gradient, start, model, model.epsilon, inner, options, callback, history=history)


def tightened(options: GWOptions, tol: float, relaxation: float) -> GWOptions:
    """Options whose every problem is solved to ``tol`` and which end with the potentials, not with the value."""
    sinkhorn: SinkhornOptions = replace(
        options.sinkhorn,
        tol=tol,
        exact_max_iter=MOST_INNER,
        final_max_iter=max(options.sinkhorn.final_max_iter, 5 * MOST_INNER),
        relaxation=min(max(relaxation, LEAST_RELAXATION), MOST_RELAXATION),
    )
    return replace(options, sinkhorn=sinkhorn, stopping=replace(options.stopping, plan_tol=0.0))


def relaxation_for(plan: BlockCoupling, model: Model, epsilon: float) -> float:
    """The over-relaxation with which half-steps converge fastest near this plan."""
    held, total = firmness(plan.marginal(1), plan.marginal(0), model, epsilon)
    return Response(plan, held, epsilon, total, n_lanczos=LANCZOS_STEPS, direct_size=0).spectrum.relaxation


def firmness(rows: Tensor, columns: Tensor, model: Model, epsilon: float) -> tuple[tuple[Tensor, Tensor], bool]:
    """How firmly each marginal of a plan is held (see `torchgw.sinkhorn.implicit`), and whether its total is besides."""
    ends = list(zip((rows, columns), model.masses, model.marginals.damping(epsilon), strict=True))
    if model.marginals.total is None:
        h, k = (torch.full_like(sums, tau) for sums, _, tau in ends)
        return (h, k), False
    h, k = ((sums >= mass.to(sums) * (1 - SATURATED)).to(sums) for sums, mass, _ in ends)
    slack = [bool(((held == 0) & (mass.to(held) > 0)).any()) for held, mass in zip((h, k), model.masses, strict=True)]
    return (h, k), all(slack)

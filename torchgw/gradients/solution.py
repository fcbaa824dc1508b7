"""The stationary plan that a solve ended in, with all that its derivatives need, in the precision of the gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from torchgw.couplings import BlockCoupling, DenseCoupling
from torchgw.gradients.adjoint import Solution
from torchgw.gw.curvature import Curvature, level_of
from torchgw.gw.gradient import ExactGradient
from torchgw.gw.model import Model
from torchgw.gw.outcome import Outcome
from torchgw.gw.refine import firmness
from torchgw.gw.start import Start
from torchgw.kernels import LN2, LOG2E
from torchgw.types import DistanceProvider


def solution_of(
    outcome: Outcome, model: Model, spaces: tuple[DistanceProvider, DistanceProvider], dtype: torch.dtype
) -> Solution:
    """Of an outcome that kept its last cost and potentials; the plan is stored where the outcome's is."""
    assert outcome.end is not None
    assert outcome.end.cost is not None
    end, device = outcome.end, model.p.device
    plan: BlockCoupling = outcome.coupling
    if outcome.ladder:  # the kept tiles are only what the rounding needs
        coupling = end.coupling()
        assert isinstance(coupling, BlockCoupling)
        plan = coupling
    else:
        plan = DenseCoupling(plan.to_dense())
    held, total = firmness(plan.marginal(1), plan.marginal(0), model)
    mass = float(plan.marginal(1).sum())
    multipliers = _multipliers(end, model, held, mass)
    x, y = (space.to(device, dtype) for space in spaces)
    p, q = (side.to(dtype) for side in model.masses)
    quadratic = ExactGradient(x, y, p, q, model.loss)
    level = level_of(outcome.end.cost.to(dtype), model)
    one, other = (side.to(dtype) for side in multipliers)
    h, k = (side.to(dtype) for side in held)
    curvature = Curvature(quadratic, model, level)
    g = (end.g + outcome.end.cost.b * (LOG2E / model.epsilon)).to(dtype)
    residual = max(outcome.residual, *outcome.history.marginal_error[-1:])  # of the last plan, and of its fixed point
    return Solution(_in(plan, dtype), (one, other), (h, k), total, residual, curvature, g)


def _multipliers(end: Start, model: Model, held: tuple[Tensor, Tensor], mass: float) -> tuple[Tensor, Tensor]:
    """What the marginals that hold exactly cost, (N,) and (K,), zero elsewhere.

    T_ij = p_i q_j exp((f_i + g_j - C_ij) / epsilon) with f the potentials less log p in units of cost; where a total is
    held besides, points that do not give all they have share the highest f, which is the price of the total.
    """
    assert end.cost is not None
    weight, found = float(model.weight(mass)), []
    ends = zip((end.f, end.g), model.masses, (end.cost.a, end.cost.b), held, model.marginals.weights, strict=True)
    for potential, masses, offset, firm, rho in ends:
        some = (masses > 0) & (firm > 0)
        f = model.epsilon * (LN2 * potential - masses.log()) + offset
        if model.marginals.total is not None:
            f = (f - f[masses > 0].max()).clamp_max(0.0)
        hard = rho == torch.inf
        found.append(torch.where(some, weight * f, 0.0) if hard else torch.zeros_like(f))
    return found[0], found[1]


def _in(plan: BlockCoupling, dtype: torch.dtype) -> BlockCoupling:
    """The plan in a precision, without what it was made from."""
    if isinstance(plan, DenseCoupling):
        return DenseCoupling(plan.plan.to(dtype))
    return type(plan)(**{name: tensor.to(dtype) for name, tensor in plan.tensors().items()})

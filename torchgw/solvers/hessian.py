"""The Hessian around a plan, whichever solve it comes from."""

from __future__ import annotations

import torch
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling, DenseCoupling
from torchgw.losses import SQUARE
from torchgw.objective.curvature import Curvature, Hessian
from torchgw.objective.exact import ExactGradient
from torchgw.objective.model import Model
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.sinkhorn.implicit import Response
from torchgw.solvers.entropic import marginal_stiffness
from torchgw.spaces import FactoredDistances
from torchgw.types import DistanceProvider

STREAMED_TOLERANCE = 1e-6  # of a linear system with a plan whose products round like float32


def hessian_of(
    plan: BlockCoupling, model: Model, spaces: tuple[DistanceProvider, DistanceProvider], whole: bool = False
) -> Hessian:
    """Around a plan (N, K) in float64, in the units of the model's masses; its epsilon is above zero.

    ``whole`` reads changes entry by entry, even where the distances of both spaces have factors; the plan is stored
    then, as it is where its mass is free. Of a plan that is not, the linear problem's slow directions are taken to be
    functions like the factors of distances, which are smooth.
    """
    rows, columns = plan.marginal(1), plan.marginal(0)
    stiffness, total = marginal_stiffness(rows, columns, model)
    x, y = (space.to(model.p.device, torch.float64) for space in spaces)
    if model.has_hard_marginals and model.loss is SQUARE and not whole:
        x, y = (_centre_factors(space, mass) for space, mass in zip((x, y), (rows, columns), strict=True))
    quadratic = ExactGradient(x, y, rows, columns, model.loss)
    curvature = Curvature(quadratic, model, _level(plan, model), whole)
    respond = Response(plan, stiffness, model.epsilon, total)
    if not isinstance(plan, DenseCoupling) and curvature.factors is not None:
        respond.smooth, respond.tol = curvature.factors[respond.axis], STREAMED_TOLERANCE
    return Hessian(curvature, respond, float(model.weight(rows.sum())))


def _centre_factors(space: DistanceProvider, mass: Tensor) -> DistanceProvider:
    """The space with factors whose means are zero, where it has factors: changes without sums read the same of it, and
    no combination of factors is a constant, of which they read nothing."""
    factors = space.factors()
    if factors is None:
        return space
    F, signs = factors
    return FactoredDistances.of(F - (mass @ F) / mass.sum(), signs, space.scale)


def _level(plan: BlockCoupling, model: Model) -> FactoredCost | None:
    """l of a stored plan whose mass is free, see `torchgw.objective.curvature`.

    From the plan, not from its cost as by `level_of`: a plan that was given or stopped early is not stationary.
    """
    if not model.marginals.free_mass:
        return None
    assert isinstance(plan, DenseCoupling)
    tiny = torch.finfo(torch.float64).tiny
    logs = [
        rho * (sums.clamp_min(tiny) / mass).log() - model.epsilon * mass.log()
        for rho, sums, mass in zip(
            model.marginals.weights, (plan.marginal(1), plan.marginal(0)), model.masses, strict=True
        )
    ]
    a, b = (torch.where(mass > 0, side, 0.0) for side, mass in zip(logs, model.masses, strict=True))
    offset = model.epsilon * model.log_mass_scale
    return FactoredCost.from_matrix(model.epsilon * plan.plan.clamp_min(tiny).log(), a - offset, b)

"""The stationary plan that a solve ended in, with all that its derivatives need, in the precision of the gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling, DenseCoupling
from torchgw.objective.bounds import normalize_partial_potentials
from torchgw.objective.curvature import Curvature, level_of
from torchgw.objective.exact import ExactGradient
from torchgw.objective.model import Model
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.solvers.entropic import marginal_stiffness
from torchgw.solvers.solution import CertifiedSolution
from torchgw.solvers.warm_start import WarmStart
from torchgw.types import DistanceProvider


@dataclass(frozen=True)
class StationaryPlan:
    """A stationary plan of mass about one, and what is needed to differentiate it.

    Attributes
    ----------
    plan : (N, K).
    multipliers : of the marginals that hold exactly, (N,), (K,), in units of cost.
    stiffness : of each marginal, (N,), (K,), between 0 and 1.
    total : whether the mass is held beside them, see `torchgw.sinkhorn.implicit`.
    residual : relative, of the marginals and of the fixed point.
    converged : whether the solve reached its tolerance.
    curvature : B around the plan.
    """

    plan: BlockCoupling
    multipliers: tuple[Tensor, Tensor]
    stiffness: tuple[Tensor, Tensor]
    total: bool
    residual: float
    converged: bool
    curvature: Curvature

    @property
    def model(self) -> Model:
        return self.curvature.model


def solution_of(
    outcome: CertifiedSolution, model: Model, spaces: tuple[DistanceProvider, DistanceProvider], dtype: torch.dtype
) -> StationaryPlan:
    """Of an outcome that kept its last cost and potentials; the plan is stored where the outcome's is."""
    end, device = outcome.warm_start, model.p.device
    assert end is not None
    assert end.cost is not None
    plan: BlockCoupling = outcome.coupling
    if outcome.ladder:  # the kept tiles are only what the rounding needs
        coupling = end.coupling()
        assert isinstance(coupling, BlockCoupling)
        plan = coupling
    else:
        plan = DenseCoupling(plan.to_dense())
    rows, columns = plan.marginal(1), plan.marginal(0)
    duals = _duals(end, end.cost, model)
    stiffness, total = marginal_stiffness(rows, columns, model, duals)
    weight = float(model.weight(rows.sum()))
    hard = (rho == torch.inf for rho in model.marginals.weights)
    multipliers = tuple(
        torch.where(firm > 0, weight * f, 0.0) if exact else torch.zeros_like(f)
        for f, firm, exact in zip(duals, stiffness, hard, strict=True)
    )
    x, y = (space.to(device, dtype) for space in spaces)
    p, q = (side.to(dtype) for side in model.masses)
    quadratic = ExactGradient(x, y, p, q, model.loss)
    level = level_of(end.cost.to(dtype), model)
    (f, g), (h, k) = ([side.to(dtype) for side in sides] for sides in (multipliers, stiffness))
    plan = plan.with_tensors({name: tensor.to(dtype) for name, tensor in plan.tensors().items()})
    curvature = Curvature(quadratic, model, level)
    residual, converged = max(outcome.marginal_residual, outcome.last_change), outcome.status.converged
    return StationaryPlan(plan, (f, g), (h, k), total, residual, converged, curvature)


def _duals(end: WarmStart, cost: FactoredCost, model: Model) -> tuple[Tensor, Tensor]:
    """What the marginals cost, (N,) and (K,), in units of cost.

    Where a total is held besides, points that do not give all they have share the highest f, which is the price of the
    total; it is taken off.
    """
    f, g = cost.T.column_dual(end.f, model.p, model.epsilon), cost.column_dual(end.g, model.q, model.epsilon)
    return (
        (f, g)
        if model.marginals.total is None
        else (normalize_partial_potentials(f, model.p), normalize_partial_potentials(g, model.q))
    )

"""Derivatives of a solved plan by the adjoint of its whole fixed point.

For G = dL/dT the multipliers (W, a, b) of the stationarity conditions solve H W - a 1^T - 1 b^T = G with W in the
tangent space of the marginals, H half the second derivative of the objective. With the response S of the linear problem
(`torchgw.sinkhorn.implicit`), its weight w and the curvature B (`torchgw.objective.curvature`),

    W = S (G - B W) / w.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchgw.gradients.lagrangian import Parameters, half_lagrangian
from torchgw.gradients.modes import Implicit
from torchgw.gradients.plan_moments import PlanMoments
from torchgw.gradients.solution import StationaryPlan
from torchgw.runtime.caller import warn_caller
from torchgw.runtime.keywords import hide_constructor
from torchgw.runtime.surroundings import isolate
from torchgw.runtime.threads import threads_for
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.sinkhorn.implicit import DIRECT_ONCE, DIRECT_SIZE, PlanSensitivity, Response
from torchgw.types import GradientWarning

GMRES_TOLERANCE = 1e-11
SOLVED = 1e-8


@hide_constructor
@dataclass(frozen=True)
class GradientReport:
    """What a gradient through the plan can be trusted for.

    Attributes
    ----------
    condition : of the linear system, its inner and outer part multiplied: what small errors grow by, as far as the
        solves have seen it.
    rate : factor by which Sinkhorn's residual falls in an iteration near the solution.
    relaxation : weight of over-relaxation with the best rate, in [1, 2).
    residual : of the fixed point and of the solves, relative: the error that may have grown.
    error : estimated relative error of the gradient, their product.
    n_iter, n_iter_inner : GMRES iterations of the last backward pass, and conjugate gradients within; 0 where direct.
    trusted : whether ``error`` is below ``Implicit.trusted_error``, and the solve ended at a fixed point.
    """

    condition: float
    rate: float
    relaxation: float
    residual: float
    error: float
    n_iter: int
    n_iter_inner: int
    trusted: bool


class Adjoint:
    """Pulls derivatives with respect to a plan back to the parameters of its problem."""

    def __init__(self, solution: StationaryPlan, mode: Implicit) -> None:
        self.solution, self.mode = solution, mode
        self.report: GradientReport | None = None

    @cached_property
    def response(self) -> Response:
        """Of the linear problem; factored once for all backward passes."""
        found, mode = self.solution, self.mode
        epsilon = found.model.epsilon
        direct_size = DIRECT_SIZE if found.model.alpha > 0 else DIRECT_ONCE
        return Response(found.plan, found.stiffness, epsilon, found.total, mode.n_lanczos, mode.max_iter, direct_size)

    def solve(self, G: FactoredCost) -> PlanSensitivity:
        """W, a, b for dL/dT as a factored matrix, and a report of it."""
        curvature, respond = self.solution.curvature, self.response
        model, weight = curvature.model, float(curvature.model.weight(respond.sums[0].sum()))
        respond.n_iter, respond.error = 0, 0.0
        first = respond(FactoredCost.weighted_sum([G], [1 / weight]))
        residual, n_iter, condition = 0.0, 0, 1.0
        if model.alpha > 0:
            right = curvature.compress_coupling(first.change, first.rows, first.columns)
            found = curvature.solve(respond, right, GMRES_TOLERANCE, self.mode.max_iter)
            residual, n_iter, condition = found.residual, found.n_iter, found.condition
            first = respond(FactoredCost.weighted_sum([G, curvature.cost_of(found.x, 1 / weight)], [1 / weight, -1.0]))
        self.report = self._report(residual, n_iter, condition)
        if not self.report.trusted:
            _warn(self.report)
        a, b = (
            -weight * price if rho == torch.inf else torch.zeros_like(price)
            for price, rho in zip((first.a, first.b), model.marginals.weights, strict=True)
        )
        return first._replace(a=a, b=b, c=-weight * first.c)

    @isolate
    def pull_back(self, G: FactoredCost, theta: Parameters, needed: list[bool]) -> list[Tensor | None]:
        """dL/dtheta for those of its tensors that are needed, from dL/dT."""
        with threads_for(math.prod(self.solution.plan.shape)):
            answer = self.solve(G)
        leaves = [tensor.detach().requires_grad_(need) for tensor, need in zip(theta.tensors(), needed, strict=True)]
        f, g = self.solution.multipliers
        with torch.enable_grad():
            s = torch.zeros((), dtype=f.dtype, device=f.device, requires_grad=True)
            multipliers = f + s * answer.a, g + s * answer.b
            moments = PlanMoments(self.solution.plan, (answer, s))
            value = half_lagrangian(theta.with_tensors(leaves), moments, multipliers, self.solution.model)
            (slope,) = torch.autograd.grad(value, s, create_graph=True)
            wanted = [leaf for leaf in leaves if leaf.requires_grad]
            found = list(torch.autograd.grad(slope, wanted, -torch.ones_like(slope), allow_unused=True))
        return [found.pop(0) if need else None for need in needed]

    def _report(self, residual: float, n_iter: int, condition: float) -> GradientReport:
        respond, found = self.response, self.solution
        eps = torch.finfo(self.solution.multipliers[0].dtype).eps
        left = max(found.residual, residual, respond.error, eps)
        condition *= respond.condition
        error = left * condition
        return GradientReport(
            condition=condition,
            rate=min(max(1 - respond.smallest_eigenvalue, 0.0), 1.0),
            relaxation=respond.relaxation,
            residual=left,
            error=error,
            n_iter=n_iter,
            n_iter_inner=respond.n_iter,
            trusted=found.converged and math.isfinite(error) and error <= self.mode.trusted_error,
        )


def _warn(report: GradientReport) -> None:
    advice = "raise epsilon, or break ties between matchings"
    if report.residual > SOLVED:
        advice = "solve to a smaller tolerance with Implicit(tol=), or raise epsilon"
    warn_caller(
        f"this gradient through the plan may be off by about {report.error:.1g} of its size: a residual of "
        f"{report.residual:.1g} grows by a condition number of {report.condition:.1g}; {advice}",
        GradientWarning,
    )

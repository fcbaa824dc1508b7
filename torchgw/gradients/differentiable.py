"""A solved problem as a differentiable expression of its parameters: the loss, the plan, and products with it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchgw.gradients.adjoint import Adjoint, GradientReport
from torchgw.gradients.lagrangian import Parameters, half_lagrangian
from torchgw.gradients.modes import GradientMode, Implicit
from torchgw.gradients.parameters import REFUSED, DifferentiableInputs, parameters
from torchgw.gradients.plan_moments import ConstantProduct, PlanMoments, apply_function
from torchgw.gradients.solution import StationaryPlan, solution_of
from torchgw.kernels.sums import scatter
from torchgw.objective.model import Model
from torchgw.runtime.autograd import own_copies, reattach, refuse_double_backward
from torchgw.runtime.surroundings import isolate
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.solvers.solution import CertifiedSolution
from torchgw.types import DifferentiableSolution, DistanceProvider


class Differentiable:
    """A solved problem as an expression of its parameters.

    solution : the stationary plan and its multipliers, in the precision of the gradients.
    theta : distances, costs, masses and alpha, as expressions of what was given.
    adjoint : the linear systems of `Implicit`; None for `Envelope`, under which the plan is a constant.
    """

    def __init__(self, solution: StationaryPlan, theta: Parameters, mode: GradientMode) -> None:
        self.solution, self.theta = solution, theta
        self.adjoint = Adjoint(solution, mode) if isinstance(mode, Implicit) else None

    @property
    def report(self) -> GradientReport | None:
        """Of the last backward pass through the plan; None before, and for other modes."""
        return None if self.adjoint is None else self.adjoint.report

    @isolate
    def loss(self) -> Tensor:
        """The entropic objective ()."""
        solution, inputs = self.solution, self.theta.tensors()
        own = own_copies(inputs)
        theta = self.theta.with_tensors(own)
        half = half_lagrangian(theta, PlanMoments(solution.plan), solution.multipliers, solution.model)
        (loss,) = reattach([2 * theta.scale.square() * half], own, inputs, REFUSED)
        return loss

    @isolate
    def plan(self) -> Tensor:
        """T (N, K), dense."""
        if self.adjoint is None:
            return self.theta.scale.detach() * self.solution.plan.to_dense()
        return self.theta.scale * self._of_parameters(self.adjoint, None, 1)

    @isolate
    def apply(self, V: Tensor, axis: int) -> Tensor:
        """T V for axis 1, T^T V for axis 0."""
        V = V.to(self.solution.plan.dtype)
        if self.adjoint is None:
            return self.theta.scale.detach() * apply_function(ConstantProduct, self.solution.plan.apply, V, axis)
        return self.theta.scale * self._of_parameters(self.adjoint, V, axis)

    def _of_parameters(self, adjoint: Adjoint, V: Tensor | None, axis: int) -> Tensor:
        return apply_function(_OfParameters, adjoint, self.theta, V, axis, *self.theta.tensors())


class PaddedDifferentiable:
    """A solved problem between the points with mass, as one between all points.

    solved : between the points ``rows`` (n,) and ``columns`` (k,) of ``shape`` (N, K).
    """

    def __init__(self, solved: DifferentiableSolution, rows: Tensor, columns: Tensor, shape: tuple[int, int]) -> None:
        self.solved, self.sides, self.shape = solved, (rows, columns), shape

    @property
    def report(self) -> Any:
        """See `Differentiable.report`."""
        return self.solved.report

    def loss(self) -> Tensor:
        """The entropic objective ()."""
        return self.solved.loss()

    def plan(self) -> Tensor:
        """T (N, K), dense."""
        (rows, columns), (n, k) = self.sides, self.shape
        return scatter(scatter(self.solved.plan(), rows, n).T, columns, k).T

    def apply(self, V: Tensor, axis: int) -> Tensor:
        """T V for axis 1, T^T V for axis 0."""
        found = self.solved.apply(V[self.sides[axis].to(V.device)], axis)
        return scatter(found, self.sides[1 - axis], self.shape[1 - axis])


class _OfParameters(torch.autograd.Function):
    """T, or with values V the product T V or T^T V, as a function of V and theta; the product stores no plan."""

    @staticmethod
    def forward(ctx: Any, adjoint: Adjoint, theta: Parameters, V: Tensor | None, axis: int, *tensors: Tensor) -> Tensor:
        ctx.adjoint, ctx.theta, ctx.axis = adjoint, theta.with_tensors([tensor.detach() for tensor in tensors]), axis
        ctx.save_for_backward(V, *tensors)
        plan = adjoint.solution.plan
        return plan.to_dense().clone() if V is None else plan.apply(V, axis)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        V, *tensors = ctx.saved_tensors
        given, needed, back = gradients[0].detach(), list(ctx.needs_input_grad[4:]), None
        if V is None:
            G = FactoredCost.from_matrix(given)
        else:
            U, W = (given, V.detach()) if ctx.axis == 1 else (V.detach(), given)
            G = FactoredCost(U.new_zeros(len(U)), W.new_zeros(len(W)), U * -0.5, W)
            if ctx.needs_input_grad[2]:
                back = ctx.adjoint.solution.plan.apply(given, 1 - ctx.axis)
        found = ctx.adjoint.pull_back(G, ctx.theta, needed) if any(needed) else [None] * len(needed)
        back, *found = refuse_double_backward(REFUSED, [back, *found], (*gradients, V, *tensors))
        return None, None, back, None, *found


def differentiable(
    outcome: CertifiedSolution,
    model: Model,
    made: tuple[DistanceProvider, DistanceProvider],
    given: DifferentiableInputs,
    mode: GradientMode,
) -> Differentiable:
    """The solved problem of ``outcome`` as an expression of what was given."""
    dtype = given.dtype()
    theta = parameters(given, made, dtype, model.p.device)
    return Differentiable(solution_of(outcome, model, made, dtype), theta, mode)

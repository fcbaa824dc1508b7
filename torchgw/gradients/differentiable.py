"""A solved problem as a differentiable expression of its parameters: the loss, the plan, and products with it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling, DenseCoupling
from torchgw.gradients.adjoint import Adjoint, GradientReport
from torchgw.gradients.lagrangian import Parameters, half_lagrangian
from torchgw.gradients.modes import Envelope, GradientMode, Implicit, Unrolled
from torchgw.gradients.parameters import REFUSED, DifferentiableInputs, parameters
from torchgw.gradients.plan_moments import ConstantPlanProduct, PlanMoments, apply_function
from torchgw.gradients.solution import StationaryPlan, solution_of
from torchgw.gradients.unrolled import unroll_fixed_point
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
    mode : how gradients are found.
    adjoint : the linear systems of `Implicit`; None for other modes.
    """

    def __init__(self, solution: StationaryPlan, theta: Parameters, mode: GradientMode) -> None:
        self.solution, self.theta, self.mode = solution, theta, mode
        self.adjoint = Adjoint(solution, mode) if isinstance(mode, Implicit) else None
        self._plan: Tensor | None = None
        if isinstance(mode, Unrolled):
            model = solution.model
            assert isinstance(solution.plan, DenseCoupling)
            own = theta.own()
            plan = unroll_fixed_point(own, model, solution.plan.plan, solution.g, mode)
            (self._plan,) = reattach([plan], own.tensors(), theta.tensors())

    @property
    def report(self) -> GradientReport | None:
        """Of the last backward pass through the plan; None before, and for other modes."""
        return None if self.adjoint is None else self.adjoint.report

    @isolate
    def loss(self) -> Tensor:
        """The entropic objective ()."""
        solution = self.solution
        theta, inputs = self.theta.own(), self.theta.tensors()
        own = theta.tensors()
        if self._plan is None:
            plan = solution.moments()
        else:
            (copy,) = own_copies([self._plan])
            plan, own, inputs = PlanMoments(copy), [*own, copy], [*inputs, self._plan]
        half = half_lagrangian(theta, plan, solution.multipliers, solution.model)
        (loss,) = reattach([2 * theta.scale.square() * half], own, inputs)
        return loss

    @isolate
    def plan(self) -> Tensor:
        """T (N, K), dense."""
        if self._plan is not None:
            return self.theta.scale * self._plan
        if self.adjoint is None:
            return self.theta.scale.detach() * self.solution.plan.to_dense()
        return self.theta.scale * apply_function(_PlanOfParameters, self.adjoint, self.theta, *self.theta.tensors())

    @isolate
    def apply(self, V: Tensor, axis: int) -> Tensor:
        """T V for axis 1, T^T V for axis 0."""
        V = V.to(self.solution.plan.dtype)
        if self._plan is not None:
            inputs = [self._plan, V]
            plan, values = own = own_copies(inputs)
            (product,) = reattach([(plan if axis == 1 else plan.T) @ values], own, inputs)
            return self.theta.scale * product
        if self.adjoint is None:
            return self.theta.scale.detach() * apply_function(ConstantPlanProduct, self.solution.plan, V, axis)
        return self.theta.scale * apply_function(
            _ProductOfParameters, self.adjoint, self.theta, V, axis, *self.theta.tensors()
        )


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


class _PlanOfParameters(torch.autograd.Function):
    """The plan as a function of theta."""

    @staticmethod
    def forward(ctx: Any, adjoint: Adjoint, theta: Parameters, *tensors: Tensor) -> Tensor:
        ctx.adjoint, ctx.theta = adjoint, theta.with_tensors([tensor.detach() for tensor in tensors])
        ctx.save_for_backward(*tensors)
        return adjoint.solution.plan.to_dense().clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        G = FactoredCost.from_matrix(gradients[0].detach())
        found = ctx.adjoint.pull_back(G, ctx.theta, list(ctx.needs_input_grad[2:]))
        return None, None, *refuse_double_backward(REFUSED, found, (*gradients, *ctx.saved_tensors))


class _ProductOfParameters(torch.autograd.Function):
    """T V or T^T V as a function of V and theta; the plan is never stored."""

    @staticmethod
    def forward(ctx: Any, adjoint: Adjoint, theta: Parameters, V: Tensor, axis: int, *tensors: Tensor) -> Tensor:
        ctx.adjoint, ctx.theta, ctx.axis = adjoint, theta.with_tensors([tensor.detach() for tensor in tensors]), axis
        ctx.save_for_backward(V, *tensors)
        return adjoint.solution.plan.apply(V, axis)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        V, given = ctx.saved_tensors[0].detach(), gradients[0].detach()
        plan: BlockCoupling = ctx.adjoint.solution.plan
        back = plan.apply(given, 1 - ctx.axis) if ctx.needs_input_grad[2] else None
        needed = list(ctx.needs_input_grad[4:])
        found: list[Tensor | None] = [None] * len(needed)
        if any(needed):
            U, W = (given, V) if ctx.axis == 1 else (V, given)
            G = FactoredCost(U.new_zeros(len(U)), W.new_zeros(len(W)), U * -0.5, W)
            found = ctx.adjoint.pull_back(G, ctx.theta, needed)
        back, *found = refuse_double_backward(REFUSED, [back, *found], (*gradients, *ctx.saved_tensors))
        return None, None, back, None, *found


def differentiable(
    outcome: CertifiedSolution,
    model: Model,
    made: tuple[DistanceProvider, DistanceProvider],
    given: DifferentiableInputs,
    mode: GradientMode,
) -> Differentiable:
    """The solved problem of ``outcome`` as an expression of what was given."""
    dtype, device = given.dtype(), model.p.device
    once = isinstance(mode, Envelope | Implicit)
    theta = parameters(given, made, dtype, device, once)
    return Differentiable(solution_of(outcome, model, made, dtype), theta, mode)

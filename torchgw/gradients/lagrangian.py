"""The one function whose derivatives are all gradients of a solve: half the Lagrangian of the objective,

    L(T, f, g; theta) = F(T; theta) / 2 + <f, p - T 1> + <g, q - T^T 1>,

with the entropic objective F of `torchgw.objective.model`, and f, g the multipliers of what marginals must hold
exactly. theta is what the user gave: distances, linear cost, masses, alpha. At a solution all derivatives in T, f, g
vanish, so

    d F / d theta      = 2 dL / d theta                                           (the envelope theorem),
    d <G, T> / d theta = -d/ds dL / d theta at (T + s W, f + s a, g + s b)        (implicit differentiation),

where the Hessian of L takes (W, a, b) to (G, 0, 0), see `torchgw.gradients.adjoint`. Both are left to automatic
differentiation of L.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchgw.gradients.plan_moments import PlanMoments, apply_function
from torchgw.losses import SQUARE, SeparableLoss
from torchgw.objective.divergence import product_divergence, relative_entropy
from torchgw.objective.exact import PairLoss, factored_cross, factored_mean_square, factored_quadratic, product
from torchgw.objective.model import Model, divergences, mean_cost
from torchgw.runtime.autograd import own_copies
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.spaces.traced import DifferentiableDistances
from torchgw.types import DistanceProvider


@dataclass(frozen=True)
class Parameters:
    """theta: what a user gave, scaled as in `torchgw.objective.model.Model`; tensors that may require gradients.

    x, y : scaled distances.
    cost : M (N, K), or None.
    p, q : masses (N,), (K,).
    alpha : weight of the quadratic part ().
    scale : what the masses were divided by ().
    """

    x: DifferentiableDistances
    y: DifferentiableDistances
    cost: FactoredCost | None
    p: Tensor
    q: Tensor
    alpha: Tensor
    scale: Tensor

    @property
    def beta(self) -> Tensor:
        """The weight of the linear cost."""
        return (1 - self.alpha) / self.scale

    def tensors(self) -> list[Tensor]:
        """All of them, for `with_tensors`."""
        cost = [] if self.cost is None else [self.cost.a, self.cost.b, self.cost.U, self.cost.V]
        cost += [] if self.cost is None or self.cost.extra is None else [self.cost.extra]
        return [*_tensors_of(self.x), *_tensors_of(self.y), self.p, self.q, self.alpha, self.scale, *cost]

    def own(self) -> Parameters:
        """The same of copies that begin a graph of their own."""
        return self.with_tensors(own_copies(self.tensors()))

    def with_tensors(self, given: list[Tensor]) -> Parameters:
        """The same with other tensors, in the order of `tensors`."""
        left = list(given)
        x, y = _replace_tensors(self.x, left), _replace_tensors(self.y, left)
        p, q, alpha, scale = (left.pop(0) for _ in range(4))
        cost = None if self.cost is None else FactoredCost(*left)
        return Parameters(x, y, cost, p, q, alpha, scale)


def half_lagrangian(theta: Parameters, plan: PlanMoments, multipliers: tuple[Tensor, Tensor], model: Model) -> Tensor:
    """L of a plan as it is read. Penalties that stand for constraints are no part of it, soft ones are."""
    marginals, epsilon, free = model.marginals, model.epsilon, model.marginals.free_mass
    rows, columns, m = plan.rows, plan.columns, plan.rows.sum()
    single, double = divergences(marginals, rows, columns, theta.p, theta.q)
    reference = theta.p.sum() * theta.q.sum() * (theta.scale if free else 1.0)
    entropy = relative_entropy(plan.entropy, rows, columns, theta.p, theta.q)
    divergence = entropy - (m * theta.scale.log() if free else 0.0) - m + reference
    single = single + epsilon * divergence
    double = double + epsilon * product_divergence(divergence, m, reference)
    if model.alpha > 0 or theta.alpha.requires_grad:
        double = double + quadratic_value(theta.x, theta.y, plan, model.loss)
    if theta.cost is not None:
        single = single + linear_value(theta.cost, plan)
    soft = theta.alpha.new_zeros(())
    if model.penalty is not None and model.strength < torch.inf:
        soft = penalty_growth(theta, model) * linear_value(model.penalty.to(theta.p.dtype), plan)
    constraints = multipliers[0] @ (theta.p - rows) + multipliers[1] @ (theta.q - columns)
    return (theta.alpha * double + theta.beta * single + soft) / 2 + constraints


def penalty_growth(theta: Parameters, model: Model) -> Tensor:
    """The penalties of pairs over those of the model, which are divided by the scale of its masses: one."""
    return math.exp(model.log_mass_scale) / theta.scale


def quadratic_value(
    x: DifferentiableDistances, y: DifferentiableDistances, plan: PlanMoments, loss: SeparableLoss = SQUARE
) -> Tensor:
    """sum L(D_X[i,i'], D_Y[j,j']) T_ij T_i'j'."""
    if loss is SQUARE and x.F is not None and y.F is not None:
        assert x.signs is not None
        assert y.signs is not None
        product = x.F.T @ plan.apply(y.F, 1)
        return factored_quadratic(product, (x.F, x.signs), (y.F, y.signs), plan.rows, plan.columns)
    if loss is SQUARE and (x.F is None) != (y.F is None):
        one, other, axis = (x, y, 0) if x.F is not None else (y, x, 1)
        assert one.F is not None
        assert one.signs is not None
        TF = plan.apply(one.F, axis)
        cross = factored_cross(one.signs, TF, multiply_distances(other, TF))
        own, others = (plan.rows, plan.columns) if axis == 0 else (plan.columns, plan.rows)
        return factored_mean_square(one.F, one.signs, own) + mean_square(other, others) - 2 * cross
    if loss is SQUARE and (x.space is not None or y.space is not None):
        T = plan.matrix()
        cross = (multiply_distances(x, multiply_distances(y, T.T).T) * T).sum()
        return mean_square(x, plan.rows) + mean_square(y, plan.columns) - 2 * cross
    device = plan.rows.device
    cost = PairLoss.of(loss, matrix_of(x, device), matrix_of(y, device)).cost(plan.matrix(), plan.rows, plan.columns)
    return mean_cost(cost, plan.matrix(), plan.rows, plan.columns)


def linear_value(cost: FactoredCost, plan: PlanMoments) -> Tensor:
    """<M, T>."""
    return mean_cost(cost, plan if cost.extra is None else plan.matrix(), plan.rows, plan.columns)


class DistanceProduct(torch.autograd.Function):
    """D V, for axis 0 D^T V, of constant distances that multiply by themselves."""

    @staticmethod
    def forward(ctx: Any, space: DistanceProvider, V: Tensor, axis: int) -> Tensor:
        ctx.space, ctx.axis = space, axis
        return product(space, V, axis)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, apply_function(DistanceProduct, ctx.space, gradients[0], 1 - ctx.axis), None


def multiply_distances(space: DifferentiableDistances, V: Tensor) -> Tensor:
    """D V (N, d), of a space without factors."""
    if space.space is not None:
        return apply_function(DistanceProduct, space.space, V, 1)
    assert space.matrix is not None
    return space.matrix @ V


def mean_square(space: DifferentiableDistances, mass: Tensor) -> Tensor:
    """<mass, (D o D) mass> of a space without factors."""
    if space.space is not None:
        squares: DistanceProvider = space.space.squares()  # type: ignore[attr-defined]
        return mass @ apply_function(DistanceProduct, squares, mass[:, None], 1)[:, 0]
    assert space.matrix is not None
    return mass @ space.matrix.square() @ mass


def matrix_of(space: DifferentiableDistances, device: torch.device) -> Tensor:
    """The distances (N, N) of a space that is on this device."""
    if space.matrix is not None:
        return space.matrix
    if space.space is not None:
        return space.space.rows(torch.arange(space.space.size, device=device))
    assert space.F is not None
    assert space.signs is not None
    return (space.F * space.signs) @ space.F.T


def _tensors_of(space: DifferentiableDistances) -> list[Tensor]:
    return [given for given in (space.matrix, space.F) if given is not None]


def _replace_tensors(space: DifferentiableDistances, given: list[Tensor]) -> DifferentiableDistances:
    if space.space is not None:
        return space
    found = given.pop(0)
    return replace(space, matrix=found) if space.matrix is not None else replace(space, F=found)

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
from functools import partial

import torch
from torch import Tensor

from torchgw.gradients.plan_moments import ConstantProduct, PlanMoments, apply_function
from torchgw.losses import SQUARE, SeparableLoss
from torchgw.objective.exact import PairLoss, factored_mean_square, product
from torchgw.objective.model import Model, divergences, mean_cost, product_divergence, relative_entropy
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
        spaces, cost = [self.x.tensor, self.y.tensor], self.cost
        costs = [] if cost is None else [cost.a, cost.b, cost.U, cost.V, cost.extra]
        return [tensor for tensor in (*spaces, self.p, self.q, self.alpha, self.scale, *costs) if tensor is not None]

    def with_tensors(self, given: list[Tensor]) -> Parameters:
        """The same with other tensors, in the order of `tensors`."""
        left = list(given)
        x, y = (space if space.tensor is None else replace(space, tensor=left.pop(0)) for space in (self.x, self.y))
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
        # The penalties are over the scale of the masses, as those of the model are.
        growth = math.exp(model.log_mass_scale) / theta.scale
        soft = growth * linear_value(model.penalty.to(theta.p.dtype), plan)
    constraints = multipliers[0] @ (theta.p - rows) + multipliers[1] @ (theta.q - columns)
    return (theta.alpha * double + theta.beta * single + soft) / 2 + constraints


def quadratic_value(
    x: DifferentiableDistances, y: DifferentiableDistances, plan: PlanMoments, loss: SeparableLoss = SQUARE
) -> Tensor:
    """sum L(D_X[i,i'], D_Y[j,j']) T_ij T_i'j'."""
    rows, columns = plan.rows, plan.columns
    if loss is not SQUARE:
        T = plan.matrix()
        pairs = PairLoss.of(loss, *(space.dense(T.device) for space in (x, y)))
        return mean_cost(pairs.cost(T, rows, columns), T, rows, columns)
    if y.factors is not None:
        TG = plan.apply(y.factors[0], 1)
        cross = y.factors[1] @ (TG * multiply_distances(x, TG)).sum(0)
    elif x.factors is not None:
        TF = plan.apply(x.factors[0], 0)
        cross = x.factors[1] @ (TF * multiply_distances(y, TF)).sum(0)
    else:
        T = plan.matrix()
        cross = (multiply_distances(x, multiply_distances(y, T.T).T) * T).sum()
    return mean_square(x, rows) + mean_square(y, columns) - 2 * cross


def linear_value(cost: FactoredCost, plan: PlanMoments) -> Tensor:
    """<M, T>."""
    return mean_cost(cost, plan if cost.extra is None else plan.matrix(), plan.rows, plan.columns)


def multiply_distances(space: DifferentiableDistances, V: Tensor) -> Tensor:
    """D V (N, d)."""
    if space.factors is not None:
        F, signs = space.factors
        return F @ (signs[:, None] * (F.T @ V))
    if space.space is not None:
        return apply_function(ConstantProduct, partial(product, space.space), V, 1)
    assert space.tensor is not None
    return space.tensor @ V


def mean_square(space: DifferentiableDistances, mass: Tensor) -> Tensor:
    """<mass, (D o D) mass>."""
    if space.factors is not None:
        return factored_mean_square(*space.factors, mass)
    if space.space is not None:
        squares: DistanceProvider = space.space.squares()  # type: ignore[attr-defined]
        return mass @ apply_function(ConstantProduct, partial(product, squares), mass[:, None], 1)[:, 0]
    assert space.tensor is not None
    return mass @ space.tensor.square() @ mass

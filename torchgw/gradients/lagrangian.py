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
from dataclasses import dataclass

import torch
from torch import Tensor

from torchgw.gradients.plan_moments import Reading
from torchgw.losses import SQUARE, SeparableLoss
from torchgw.marginals import Marginals
from torchgw.objective.model import Model
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.spaces.traced import Traced


@dataclass(frozen=True)
class Parameters:
    """theta: distances, linear cost M, masses (N,), (K,) and weights, as `torchgw.objective.model.Model` has them.

    ``scale`` is what the masses were divided by. All are tensors that may require gradients.
    """

    x: Traced
    y: Traced
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
        return [*_of(self.x), *_of(self.y), self.p, self.q, self.alpha, self.scale, *cost]

    def with_tensors(self, given: list[Tensor]) -> Parameters:
        """The same with other tensors, in the order of `tensors`."""
        left = list(given)
        x, y = _with(self.x, left), _with(self.y, left)
        p, q, alpha, scale = (left.pop(0) for _ in range(4))
        cost = None if self.cost is None else FactoredCost(*left)
        return Parameters(x, y, cost, p, q, alpha, scale)


def half_lagrangian(theta: Parameters, reading: Reading, multipliers: tuple[Tensor, Tensor], model: Model) -> Tensor:
    """L of a plan as it is read. Penalties that stand for constraints are no part of it, soft ones are."""
    marginals, epsilon = model.marginals, model.epsilon
    rows, columns, m = reading.rows, reading.columns, reading.rows.sum()
    single, double = _divergences(theta, reading, marginals)
    free = marginals.free_mass
    reference = theta.p.sum() * theta.q.sum() * (theta.scale if free else 1.0)
    entropy = reading.entropy - _dot_log(rows, theta.p) - _dot_log(columns, theta.q)
    if free:
        entropy = entropy - m * theta.scale.log()
    single = single + epsilon * (entropy - m + reference)
    double = double + epsilon * (2 * m * entropy - m.square() + reference.square())
    if model.alpha > 0 or theta.alpha.requires_grad:
        double = double + quadratic(theta.x, theta.y, reading, model.loss)
    if theta.cost is not None:
        single = single + linear(theta.cost, reading)
    soft = theta.alpha.new_zeros(())
    if model.penalty is not None and model.strength < torch.inf:
        soft = penalty_growth(theta, model) * linear(model.penalty.to(theta.p.dtype), reading)
    held = multipliers[0] @ (theta.p - rows) + multipliers[1] @ (theta.q - columns)
    return (theta.alpha * double + theta.beta * single + soft) / 2 + held


def penalty_growth(theta: Parameters, model: Model) -> Tensor:
    """The penalties of pairs over those of the model, which are divided by the scale of its masses: one."""
    return math.exp(model.logarithm) / theta.scale


def quadratic(x: Traced, y: Traced, reading: Reading, loss: SeparableLoss = SQUARE) -> Tensor:
    """sum L(D_X[i,i'], D_Y[j,j']) T_ij T_i'j'."""
    rows, columns = reading.rows, reading.columns
    if loss is not SQUARE:
        D, E = matrix_of(x), matrix_of(y)
        T = reading.matrix()
        ends = rows @ loss.f1(D) @ rows + columns @ loss.f2(E) @ columns
        return ends - ((loss.h1(D) @ T) * (T @ loss.h2(E))).sum()
    return _mean_square(x, rows) + _mean_square(y, columns) - 2 * _cross(x, y, reading)


def linear(cost: FactoredCost, reading: Reading) -> Tensor:
    """<M, T>."""
    found = cost.a @ reading.rows + cost.b @ reading.columns
    if cost.U.shape[1]:
        found = found - 2 * reading.through(cost.U, cost.V).diagonal().sum()
    return found if cost.extra is None else found + (cost.extra * reading.matrix()).sum()


def matrix_of(space: Traced) -> Tensor:
    """The distances (N, N) of a space."""
    if space.matrix is not None:
        return space.matrix
    assert space.F is not None
    assert space.signs is not None
    return (space.F * space.signs) @ space.F.T


def _cross(x: Traced, y: Traced, reading: Reading) -> Tensor:
    """<D_X T D_Y, T>."""
    if x.F is not None and y.F is not None:
        assert x.signs is not None
        assert y.signs is not None
        return (x.signs[:, None] * reading.through(x.F, y.F).square() * y.signs).sum()
    T = reading.matrix()
    for one, other, plan in ((x, y, T.T), (y, x, T)):
        if one.F is not None:
            assert one.signs is not None
            H = plan @ one.F
            return ((matrix_of(other) @ H) * H * one.signs).sum()
    return ((matrix_of(x) @ T) * (T @ matrix_of(y))).sum()


def _mean_square(space: Traced, mass: Tensor) -> Tensor:
    """sum D_ii'^2 m_i m_i'."""
    if space.F is None:
        return mass @ matrix_of(space).square() @ mass
    assert space.signs is not None
    gram = space.F.T @ (space.F * mass[:, None])
    return (space.signs[:, None] * gram.square() * space.signs).sum()


def _divergences(theta: Parameters, reading: Reading, marginals: Marginals) -> tuple[Tensor, Tensor]:
    """sum rho KL of the relaxed marginals, and of their squared measures."""
    single = double = theta.alpha.new_zeros(())
    ends = zip(marginals.weights, (reading.rows, reading.columns), (theta.p, theta.q), strict=True)
    for rho, sums, mass in ends:
        if 0 < rho < torch.inf:
            m, wanted = sums.sum(), mass.sum()
            slope = _dot_log(sums, sums) - _dot_log(sums, mass)
            single = single + rho * (slope - m + wanted)
            double = double + rho * (2 * m * slope - m.square() + wanted.square())
    return single, double


def _dot_log(weights: Tensor, values: Tensor) -> Tensor:
    """<weights, log values> over the entries whose values are positive."""
    kept = values.detach() > 0
    return weights[kept] @ values[kept].log()


def _of(space: Traced) -> list[Tensor]:
    return [given for given in (space.matrix, space.F) if given is not None]


def _with(space: Traced, given: list[Tensor]) -> Traced:
    found = given.pop(0)
    return Traced(matrix=found) if space.matrix is not None else Traced(F=found, signs=space.signs)

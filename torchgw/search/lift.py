"""From a solved problem on landmarks to all points: potentials by one half-step each, and the cost of the plan.

With the landmarks' plan T and potentials f, g at epsilon, a point x sees the landmarks of the other space through the
score S(x, b) = 2 sum D_X(x, a) T_ab' D_Y(b', b) / epsilon, and f(x) = log p(x) - log sum_b exp(S(x, b) + g_b). At small
epsilon a Sinkhorn solve from nothing would need thousands of iterations to find these potentials.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling
from torchgw.kernels import LOG2E
from torchgw.kernels.softmin_dense.reference import softmin
from torchgw.losses import SQUARE
from torchgw.objective.exact import ExactGradient
from torchgw.objective.linearise import relative_entropy
from torchgw.objective.model import Model
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.solvers.warm_start import Start
from torchgw.spaces.representatives import Landmarks


@dataclass(frozen=True)
class Solved:
    """A plan (L, L') between landmarks, with base-2 potentials at ``epsilon``."""

    source: Landmarks
    target: Landmarks
    plan: Tensor
    f: Tensor
    g: Tensor
    epsilon: float


Points: TypeAlias = tuple[Tensor, Tensor]


def lift(
    solved: Solved, model: Model, gradient: ExactGradient | None, whole: Model | None = None, at: Points | None = None
) -> tuple[Start, Tensor]:
    """Where the loop on all points begins, and the matching (N,) onto target landmarks.

    ``gradient`` gives the cost at the rank of the spaces' factors; without it the rank is that of the landmarks. Where
    not all points are lifted to, ``at`` are the indices of those that are, and ``whole`` is the model of all.
    O(N L L' + K L L') work, O(N L' + K L) memory.
    """
    x, y, plan = solved.source, solved.target, solved.plan
    h1, h2 = (x.rows, y.rows) if model.loss is SQUARE else (model.loss.h1(x.rows) / 2, model.loss.h2(y.rows))
    if gradient is not None:
        quadratic = gradient.of_points(x.index, y.index, plan)
    else:
        a, b = plan.sum(1) @ model.loss.f1(x.rows), plan.sum(0) @ model.loss.f2(y.rows)
        quadratic = FactoredCost(a, b, h1.T @ plan, h2.T.contiguous())
    cost, weights = (quadratic, (1.0, 0.0)) if model.plain else _whole(solved, model, whole or model, quadratic)
    row, column = model.sides(solved.epsilon, cost, cost.U.dtype)
    among = (
        (x.distances, y.distances)
        if model.loss is SQUARE
        else (
            model.loss.h1(x.distances) / 2,
            model.loss.h2(y.distances),
        )
    )
    unit = LOG2E / solved.epsilon
    to_y = (h1.T @ (plan @ among[1])) * (2 * weights[0] * unit)
    to_x = (among[0] @ plan @ h2) * (2 * weights[0] * unit)
    linear = (whole or model).linear(cost.U.dtype)
    if linear is not None:
        every = (
            [torch.arange(size, device=plan.device) for size in (len(linear.a), len(linear.b))] if at is None else at
        )
        to_y += linear.taken(every[0], y.index).stored_score(solved.epsilon) * weights[1]
        to_x += linear.taken(x.index, every[1]).stored_score(solved.epsilon) * weights[1]
    f = row.potential(softmin(to_y, solved.g, 1))
    g = column.potential(softmin(to_x, solved.f, 0))
    return Start(cost, f, g, solved.epsilon), y.index[(to_y + solved.g).argmax(1)]


def _whole(
    solved: Solved, model: Model, whole: Model, quadratic: FactoredCost
) -> tuple[FactoredCost, tuple[float | Tensor, float | Tensor]]:
    """The cost of the whole objective from C(T) of a plan on landmarks, and the weights of its two parts."""
    x, y, plan = solved.source, solved.target, solved.plan
    if not model.fixed:
        a, b = plan.sum(1) @ model.loss.f1(x.rows), plan.sum(0) @ model.loss.f2(y.rows)
        quadratic = replace(quadratic, a=a, b=b)
    linear = model.linear(quadratic.U.dtype)
    mass = plan.sum() if model.marginals.free_mass else 1.0
    weight = model.weight(mass)
    weights = model.alpha / weight, 0.5 / weight
    if not model.marginals.free_mass:
        return model.combined(quadratic, linear), weights
    small = whole.taken(x.index, y.index, x.mass, y.mass)
    entropy = relative_entropy(DenseCoupling(plan), x.mass, y.mass) - mass * model.logarithm
    constant = small.slopes(plan.sum(1), plan.sum(0)) + model.epsilon * entropy
    return model.combined(quadratic, linear, mass, constant), weights

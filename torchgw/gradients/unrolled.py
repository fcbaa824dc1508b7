"""Iterations that automatic differentiation records: the fixed point once more, from its solution on.

    C(T) from the parameters -> the linear problem's cost -> half-steps -> T, again and again.

At the solution the values do not move, and the derivative of what comes out converges to that of the fixed point as
fast as the iteration does. Plans of free mass are scaled to the geometric mean of two masses, as in T. Sejourne, F.-X.
Vialard, G. Peyre, "The unbalanced Gromov-Wasserstein distance", 2021.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchgw.gradients.lagrangian import Parameters, matrix_of, penalty_growth
from torchgw.gradients.modes import Unrolled
from torchgw.kernels import LOG2E
from torchgw.kernels.logsumexp import logsumexp2
from torchgw.losses import SQUARE
from torchgw.objective.model import Model
from torchgw.sinkhorn.sides import Side

RELAXED_STEP, OTHER_LOSS_STEP = 0.5, 0.25


def unrolled(
    theta: Parameters, model: Model, plan: Tensor, g: Tensor, penalty: Tensor | None, mode: Unrolled
) -> Tensor:
    """The plan (N, K) of theta, recorded from a plan and column potentials (K,) of its cost on; ``penalty`` is P (N, K)
    or None."""
    T = plan
    row, column = sides(theta, model)
    # Plans with marginals that give way, and even more those of other losses, can answer each other to and fro.
    step = OTHER_LOSS_STEP if model.loss is not SQUARE else 1.0 if model.fixed else RELAXED_STEP
    for _ in range(mode.n_outer):
        cost = linear_cost(theta, model, T, penalty)
        score = cost * (-LOG2E / model.epsilon)
        for _ in range(mode.n_inner):
            f = row.potential(softmin(score, g, 1))
            g = column.potential(softmin(score, f, 0))
        found = (score + f[:, None] + g).exp2()
        if model.marginals.free_mass:
            found = found * (T.sum() / found.sum()).sqrt()
        T = found if step == 1.0 else (1 - step) * T + step * found
    return T


def sides(theta: Parameters, model: Model) -> tuple[Side, Side]:
    """Both sides; their costs have no terms of their own, the score has them all."""
    total = model.marginals.total
    taus = model.marginals.damping(model.epsilon)
    row, column = (
        Side(_log2(mass), tau, None, None if total is None else 1.0)
        for mass, tau in zip((theta.p, theta.q), taus, strict=True)
    )
    return row, column


def linear_cost(theta: Parameters, model: Model, T: Tensor, penalty: Tensor | None) -> Tensor:
    """Chat (N, K), see `torchgw.objective.model`."""
    rows, columns, m, loss = T.sum(1), T.sum(0), T.sum(), model.loss
    weight = theta.alpha * m + theta.beta / 2
    D, E = matrix_of(theta.x), matrix_of(theta.y)
    C = (loss.f1(D) @ rows)[:, None] + loss.f2(E) @ columns - loss.h1(D) @ T @ loss.h2(E)
    total = theta.alpha * (C + _constant(theta, model, T, rows, columns))
    if theta.cost is not None:
        M = theta.cost.a[:, None] + theta.cost.b - 2 * theta.cost.U @ theta.cost.V.T
        total = total + theta.beta / 2 * (M if theta.cost.extra is None else M + theta.cost.extra)
    if penalty is not None:
        total = total + penalty_growth(theta, model) * penalty / 2
    total = total / weight
    return total - model.epsilon * theta.scale.log() if model.marginals.free_mass else total


def softmin(score: Tensor, bias: Tensor, axis: int) -> Tensor:
    """log2 of the sums of 2^(score + bias) over an axis, recorded."""
    return logsumexp2(score + (bias if axis == 1 else bias[:, None]), axis)


def _constant(theta: Parameters, model: Model, T: Tensor, rows: Tensor, columns: Tensor) -> Tensor | float:
    """k of a plan of free mass."""
    if not model.marginals.free_mass:
        return 0.0
    entropy = (T * _ln(T)).sum() - rows @ _ln(theta.p) - columns @ _ln(theta.q)
    found: Tensor = model.epsilon * (entropy - T.sum() * theta.scale.log())
    ends = zip(model.marginals.weights, (rows, columns), (theta.p, theta.q), strict=True)
    for rho, sums, mass in ends:
        found = found + rho * (sums @ (_ln(sums) - _ln(mass)))
    return found


def _ln(values: Tensor) -> Tensor:
    """Logarithms; 0 for what is zero."""
    return torch.where(values > 0, values, 1.0).log()


def _log2(mass: Tensor) -> Tensor:
    """Base-2 logarithms whose derivative is finite; -inf for what is zero."""
    return torch.where(mass > 0, _ln(mass) * LOG2E, -torch.inf)

"""Iterations that automatic differentiation records: the fixed point once more, from its solution on.

    C(T) from the parameters -> the linear problem's cost -> half-steps -> T, again and again.

At the solution the values do not move, and the derivative of what comes out converges to that of the fixed point as
fast as the iteration does. Plans of free mass are scaled to the geometric mean of two masses, as in T. Sejourne, F.-X.
Vialard, G. Peyre, "The unbalanced Gromov-Wasserstein distance", 2021.
"""

from __future__ import annotations

from torch import Tensor

from torchgw.gradients.lagrangian import Parameters, matrix_of, penalty_growth
from torchgw.gradients.modes import Unrolled
from torchgw.gradients.plan_moments import PlanMoments
from torchgw.kernels import LOG2E
from torchgw.kernels.logsumexp import logsumexp2
from torchgw.losses import SQUARE
from torchgw.objective.divergence import relative_entropy
from torchgw.objective.exact import PairLoss
from torchgw.objective.linearise import Weights, plan_constant
from torchgw.objective.model import Model
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.sinkhorn.sides import MarginalConstraint

RELAXED_STEP, OTHER_LOSS_STEP = 0.5, 0.25


def unroll_fixed_point(theta: Parameters, model: Model, plan: Tensor, g: Tensor, mode: Unrolled) -> Tensor:
    """The plan (N, K) of theta, recorded from a plan and column potentials (K,) of its cost on."""
    symmetric = theta.x.symmetric and theta.y.symmetric
    D, E = (matrix_of(space, plan.device) for space in (theta.x, theta.y))
    loss = PairLoss.of(model.loss, D, E, symmetric)
    T, linear = plan, linear_part(theta, model)
    row, column = make_constraints(theta, model)
    # Plans with marginals that give way, and even more those of other losses, can answer each other to and fro.
    step = OTHER_LOSS_STEP if model.loss is not SQUARE else 1.0 if model.has_hard_marginals else RELAXED_STEP
    for _ in range(mode.n_outer):
        cost = linear_cost(theta, model, T, loss, linear)
        score = cost * (-LOG2E / model.epsilon)
        for _ in range(mode.n_inner):
            f = row.potential(logsumexp2(score + g, 1))
            g = column.potential(logsumexp2(score + f[:, None], 0))
        found = (score + f[:, None] + g).exp2()
        if model.marginals.free_mass:
            found = found * (T.sum() / found.sum()).sqrt()
        T = found if step == 1.0 else (1 - step) * T + step * found
    return T


def make_constraints(theta: Parameters, model: Model) -> tuple[MarginalConstraint, MarginalConstraint]:
    """Both sides; their costs have no terms of their own, the score has them all."""
    total = model.marginals.total
    taus = model.marginals.damping(model.epsilon)
    row, column = (
        MarginalConstraint(mass.log2(), tau, None, None if total is None else 1.0)
        for mass, tau in zip((theta.p, theta.q), taus, strict=True)
    )
    return row, column


def linear_part(theta: Parameters, model: Model) -> FactoredCost | None:
    """beta M + P (N, K), None where there is neither."""
    costs: list[FactoredCost] = []
    weights: list[float | Tensor] = []
    if theta.cost is not None:
        costs, weights = [theta.cost], [theta.beta]
    if model.penalty is not None:
        costs, weights = [*costs, model.penalty.to(theta.p.dtype)], [*weights, penalty_growth(theta, model)]
    return FactoredCost.weighted_sum(costs, weights) if costs else None


def linear_cost(theta: Parameters, model: Model, T: Tensor, loss: PairLoss, linear: FactoredCost | None) -> Tensor:
    """Chat (N, K) of a plan, see `torchgw.objective.linearise`, from ``linear`` = beta M + P."""
    plan = PlanMoments(T)
    mass, constant, logarithm = plan.rows.sum(), T.new_zeros(()), theta.scale.log()
    free = model.marginals.free_mass
    if free:
        entropy = relative_entropy(plan.entropy, plan.rows, plan.columns, theta.p, theta.q)
        ends = plan.rows, plan.columns, theta.p, theta.q
        constant = plan_constant(model.marginals, model.epsilon, entropy, *ends, logarithm)
    offset = model.epsilon * logarithm if free else 0.0
    weights = Weights.of(theta.alpha, theta.beta, mass, constant, offset=offset)
    return weights.combine_costs(loss.cost(T, plan.rows, plan.columns), linear).rows(slice(None))

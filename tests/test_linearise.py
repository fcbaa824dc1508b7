"""The linearised cost against finite differences of the objective, for every marginal model, one plan and a batch."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests import oracle, problems
from tests.problems import INF
from torchgw import PrecomputedDistances
from torchgw.couplings.blocks import DenseCoupling
from torchgw.couplings.potential import PotentialCoupling
from torchgw.gradients.lagrangian import quadratic_value
from torchgw.gradients.plan_moments import PlanMoments
from torchgw.losses import LOSSES
from torchgw.marginals import Partial
from torchgw.objective import model as model_module
from torchgw.objective.exact import ExactGradient
from torchgw.objective.linearise import ModelGradient, energy, evaluate, linearise, moments_of, weights_of
from torchgw.objective.model import Model
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.spaces.traced import DifferentiableDistances

MODELS = problems.MODELS | {"partial": (Partial(1.0), {"model": "partial", "mass": 1.0})}
COSTS = ("pure", "fused", "supervised", "linear alone")


def posed(name: str, cost: str, loss: str) -> tuple[oracle.Problem, Model]:
    """The same objective for the oracle and for the package; linear costs have factors and a stored part."""
    marginals, changes = MODELS[name]
    problem = oracle.random_problem(5, n=7, k=9, **changes)
    if name == "partial":  # models are of plans of mass one
        problem = replace(problem, p=1.4 * problem.p, q=1.6 * problem.q)
    problem = replace(problem, loss=loss, alpha={"fused": 0.6, "linear alone": 0.0}.get(cost, 1.0))
    rng = np.random.default_rng(1)
    features = [torch.from_numpy(rng.uniform(0, 0.6, (n, 2))) for n in (7, 9)]
    M, P = (
        FactoredCost.squared_distance(*features),
        FactoredCost.from_matrix(torch.from_numpy(rng.uniform(0, 0.02, (7, 9)))),
    )
    M = FactoredCost.weighted_sum([M, P], [1.0, 10.0])
    matrix = M.rows(slice(None)).numpy() if cost in ("fused", "linear alone") else None
    soft = cost == "supervised"
    problem = replace(problem, M=matrix, P=P.rows(slice(None)).numpy() if soft else None)
    model = Model(
        torch.from_numpy(problem.p),
        torch.from_numpy(problem.q),
        problem.epsilon,
        marginals,
        problem.alpha,
        1 - problem.alpha,
        None if matrix is None else M,
        P if soft else None,
        LOSSES[loss],
        strength=1.0,
    )
    return problem, model


def plans_of(problem: oracle.Problem, count: int) -> np.ndarray:
    """Plans with the hard marginals and masses that the model asks for, and nothing else in common."""
    rng, plans = np.random.default_rng(2), []
    for _ in range(count):
        T = rng.exponential(size=(7, 9)) * np.outer(problem.p, problem.q)
        for _ in range(500):
            hard = [problem.model == "balanced" or rho == INF for rho in problem.rho]
            if problem.model == "partial":
                T *= 1.0 / T.sum()
                break
            T = T * (problem.p / T.sum(1))[:, None] if hard[0] else T
            T = T * (problem.q / T.sum(0)) if hard[1] else T
        plans.append(T)
    return np.stack(plans)


def gradient_of(problem: oracle.Problem, model: Model) -> ModelGradient:
    spaces = (PrecomputedDistances.stored_matrix(torch.from_numpy(D), 1.0) for D in (problem.D, problem.E))
    return ModelGradient(ExactGradient(*spaces, *model.masses, model.loss), model)


def predicted(problem: oracle.Problem, model: Model, T: np.ndarray, chat: np.ndarray, towards: np.ndarray) -> float:
    """The slope of F at T that the linear problem with the cost Chat has there."""
    slope = (chat + problem.epsilon * np.log(T / np.outer(problem.p, problem.q))) * towards
    found = float(slope.sum())
    for rho, axis, mass in zip(model.marginals.weights, (1, 0), (problem.p, problem.q), strict=True):
        if 0 < rho < INF:
            found += rho * float(np.log(T.sum(axis) / mass) @ towards.sum(axis))
    return 2 * float(model.weight(T.sum() if model.marginals.free_mass else 1.0)) * found


@pytest.mark.parametrize("loss", ["square", "kl"])
@pytest.mark.parametrize("given", COSTS)
@pytest.mark.parametrize("name", MODELS)
def test_the_cost_is_half_the_derivative_of_the_objective(name: str, given: str, loss: str) -> None:
    problem, model = posed(name, given, loss)
    gradient, rng = gradient_of(problem, model), np.random.default_rng(3)
    costs = oracle.pair_costs(problem)
    (T,) = plans_of(problem, 1)
    coupling = DenseCoupling(torch.from_numpy(T))
    cost, value = evaluate(gradient, coupling, model.p, model.q)
    chat = cost.rows(slice(None))
    assert float(value) == pytest.approx(oracle.objective_from(problem, T, costs).value, rel=1e-10)
    torch.testing.assert_close(gradient(coupling, model.p).rows(slice(None)), chat)
    if model.marginals.free_mass and model.alpha > 0:  # the cost is that of the multiple of T with the lowest F
        weights = weights_of(model, moments(model, gradient, T))
        T = T * float(weights.quadratic / (2 * weights.linear * model.alpha))
        assert abs(oracle.slope(problem, T, T / T.sum(), costs)) < 1e-8
    rules = oracle.tight_rules(problem, T)
    for _ in range(4):
        towards = oracle.direction(T, rng.standard_normal(T.shape), rules, np.zeros(len(rules)))
        expected = oracle.slope(problem, T, towards, costs)
        assert predicted(problem, model, T, chat.numpy(), towards) == pytest.approx(expected, abs=1e-8)


def moments(model: Model, gradient: ModelGradient, T: np.ndarray) -> Any:
    plan = torch.from_numpy(T)
    rows, columns = plan.sum(-1), plan.sum(-2)
    raw = gradient.quadratic(DenseCoupling(plan), rows, columns)
    return moments_of(model, raw, model.linear(torch.float64), plan, rows, columns)


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("name", MODELS)
def test_the_costs_of_a_batch_are_those_of_its_plans(name: str, cost: str) -> None:
    problem, model = posed(name, cost, "square")
    gradient, plans = gradient_of(problem, model), torch.from_numpy(plans_of(problem, 3))
    D, E = torch.from_numpy(problem.D), torch.from_numpy(problem.E)
    rows, columns, linear = plans.sum(-1), plans.sum(-2), model.linear(torch.float64)
    raw = FactoredCost(rows @ D.square(), columns @ E.square(), D @ plans, E)
    read = moments_of(model, raw, linear, plans, rows, columns)
    found, values = linearise(model, raw, linear, plans, (rows, columns)), energy(model, read)
    epsilons = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    score, (a, b) = found.stored_score(epsilons), found.offsets(epsilons)
    for row, plan in enumerate(plans):
        own, value = evaluate(gradient, DenseCoupling(plan), model.p, model.q)
        e = float(epsilons[row])
        torch.testing.assert_close(score[row] - a[row][:, None] - b[row], -own.rows(slice(None)) / (e * math.log(2)))
        assert float(values[row]) == pytest.approx(float(value), rel=1e-9)


def test_divergences_are_those_of_the_measures_and_of_their_products() -> None:
    rng = np.random.default_rng(0)
    x, a = (torch.from_numpy(rng.uniform(size=(2, 6))) for _ in range(2))
    x[0, 2] = 0.0
    pairs = x[:, :, None] * x[:, None], a[:, :, None] * a[:, None]
    of_pairs = model_module.kl(*(side.flatten(1) for side in pairs))
    single = model_module.kl(x, a)
    torch.testing.assert_close(model_module.product_divergence(single, x.sum(-1), a.sum(-1)), of_pairs)
    expected = [oracle.kl_div(*side).sum() for side in zip(x.numpy(), a.numpy(), strict=True)]
    np.testing.assert_allclose(single, expected)
    near = a * (1 + 1e-9)
    np.testing.assert_allclose(model_module.kl(near, a), 5e-19 * a.sum(-1), rtol=1e-2, atol=1e-17)


def test_the_entropy_of_a_plan_is_read_in_blocks_and_differentiated_at_zero() -> None:
    rng = np.random.default_rng(0)
    A, B, f, g = (torch.from_numpy(rng.normal(size=size)) for size in ((5, 2), (6, 2), 5, 6))
    coupling = PotentialCoupling(A, B, f, g)
    plan = coupling.to_dense()
    torch.testing.assert_close(model_module.negentropy(coupling), model_module.negentropy(plan))
    plan[0, 0] = 0.0
    plan.requires_grad_(True)
    model_module.negentropy(plan).backward()
    assert plan.grad is not None
    assert plan.grad[0, 0] == 0.0
    torch.testing.assert_close(plan.grad[1:], (plan[1:].log() + 1).detach())


@pytest.mark.parametrize(
    ("left", "right", "stored"),
    [
        each
        for each in itertools.product(["factored", "matrix"], ["factored", "matrix"], [True, False])
        if each != ("matrix", "matrix", False)  # streaming plans need factors
    ],
)
def test_the_quadratic_part_that_gradients_see_is_the_four_index_sum(left: str, right: str, stored: bool) -> None:
    rng = np.random.default_rng(0)
    A, B, f, g = (torch.from_numpy(rng.normal(size=size)) for size in ((5, 2), (6, 2), 5, 6))
    coupling = PotentialCoupling(A, B, f - 4, g - 4)
    factors = [torch.from_numpy(rng.normal(size=(n, 3))).requires_grad_(True) for n in (5, 6)]
    signs = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)
    matrices = [(F * signs) @ F.T for F in factors]
    x, y = (
        DifferentiableDistances(F, signs) if kind == "factored" else DifferentiableDistances(D)
        for kind, F, D in zip((left, right), factors, matrices, strict=True)
    )
    T = coupling.to_dense()
    expected = (
        (matrices[0][:, None, :, None] - matrices[1][None, :, None, :]).square() * T[:, :, None, None] * T
    ).sum()
    plan = PlanMoments(DenseCoupling(T) if stored else coupling)
    found = quadratic_value(x, y, plan)
    torch.testing.assert_close(found, expected)
    slopes = (torch.autograd.grad(value, factors, retain_graph=True) for value in (found, expected))
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other)

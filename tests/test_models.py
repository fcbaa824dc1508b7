"""Every marginal model, pure and fused, by every gradient, strategy and backend, against the oracle in plain NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests import oracle
from tests.problems import MODELS, daily, in_turn
from torchgw import FeatureCost, GWOptions, GWResult, LadderOptions, SinkhornOptions, StoppingOptions, gw_align

OPTIONS = GWOptions(
    coarse=None,
    mixed_precision=False,
    sinkhorn=SinkhornOptions(tol=1e-10, max_iter=200, exact_max_iter=3000, final_max_iter=20000),
    stopping=StoppingOptions(plan_tol=1e-10, max_iter=1000, min_iter=20, improvement=1e-13),
    ladder=LadderOptions(n_cells=16, marginal_tol=1e-9),
)


def features(problem: oracle.Problem) -> FeatureCost:
    """Features in three dimensions, whose squared distances are at most about one."""
    n, k = len(problem.p), len(problem.q)
    rng = np.random.default_rng(n * k)
    return FeatureCost(rng.uniform(0, 0.6, (n, 3)), rng.uniform(0, 0.6, (k, 3)), scale=1.0)


def matrix_of(cost: FeatureCost) -> np.ndarray:
    X, Y = np.asarray(cost.X), np.asarray(cost.Y)
    return ((X[:, None] - Y) ** 2).sum(-1)


def posed(name: str, kind: str, seed: int = 3) -> tuple[oracle.Problem, dict[str, Any]]:
    """A problem for the oracle, and in the arguments of the library; kind is "pure", "matrix" or "features"."""
    marginals, changes = MODELS[name]
    problem = replace(oracle.random_problem(seed), epsilon=0.05, **changes)
    if name == "unbalanced":
        problem = replace(problem, p=1.3 * problem.p, q=0.8 * problem.q)
    given: dict[str, Any] = {"p": problem.p, "q": problem.q, "marginals": marginals, "epsilon": 0.05}
    if kind == "pure":
        return problem, given
    cost = features(problem)
    problem = replace(problem, alpha=0.6, M=matrix_of(cost))
    return problem, given | {"alpha": 0.6, "cost": cost if kind == "features" else problem.M}


def solved(problem: oracle.Problem, given: dict[str, Any], **options: Any) -> GWResult:
    backend, device = options.pop("backend", "eager"), options.pop("device", "cpu")
    chosen = replace(OPTIONS, **options)
    D, E = problem.D, problem.E
    return gw_align(D, E, random_state=0, options=chosen, backend=backend, device=device, **given)


def agrees(result: GWResult, problem: oracle.Problem) -> None:
    """Plan within 1e-5 (L1), value and its parts within 1e-6 of the oracle's."""
    T = oracle.solve(problem)
    expected = oracle.objective(problem, T)
    assert float(np.abs(result.plan - T).sum()) < 1e-5
    assert result.value == pytest.approx(expected.value, abs=1e-6)
    assert result.value_quad == pytest.approx(expected.quad, abs=1e-6)
    assert result.value_linear == pytest.approx(expected.linear, abs=1e-6)
    assert result.value_penalty == pytest.approx(expected.penalty, abs=1e-6)
    assert result.marginal_error < 1e-9
    assert result.converged


CELLS = [
    (kind, gradient, strategy)
    for kind in ("pure", "matrix", "features")
    for gradient in ("exact", "sampled")
    for strategy in ("dense", "streaming")
    if not (kind == "matrix" and strategy == "streaming")
]
# Every model meets every kind and strategy by exact gradients where that is fast, and others where it may differ: what
# is sampled and what is added to it meet in one sum, and models differ in their half-steps alone.
EVERY = [("pure", "exact", "dense"), ("matrix", "exact", "dense"), ("features", "exact", "streaming")]
SOME = [("pure", "exact", "streaming"), ("features", "exact", "dense"), ("features", "sampled", "dense")]
DAILY = {
    *((name, *cell) for name in MODELS for cell in EVERY),
    *((name, *cell) for name in ("balanced", "unbalanced", "partial") for cell in SOME),
    ("semi-relaxed y", "features", "sampled", "streaming"),
    ("free y", "features", "sampled", "dense"),
}


@pytest.mark.parametrize(
    ("name", "kind", "gradient", "strategy"),
    [
        pytest.param(name, *cell, marks=() if (name, *cell) in DAILY else pytest.mark.slow)
        for name in MODELS
        for cell in CELLS
    ],
)
def test_the_oracle_has_the_same_plan_and_value(name: str, kind: str, gradient: str, strategy: str) -> None:
    problem, given = posed(name, kind)
    agrees(solved(problem, given, gradient=gradient, strategy=strategy), problem)


@pytest.mark.parametrize(
    ("name", "strategy"), daily({("partial", "dense"), ("unbalanced", "streaming")}, MODELS, ["dense", "streaming"])
)
def test_the_compiled_backend_has_the_same_plan_and_value(name: str, strategy: str) -> None:
    problem, given = posed(name, "features")
    agrees(solved(problem, given, strategy=strategy, backend="compile"), problem)


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "gradient", "strategy"), CELLS)
@pytest.mark.parametrize("name", MODELS)
def test_a_gpu_has_the_same_plan_and_value(name: str, kind: str, gradient: str, strategy: str) -> None:
    problem, given = posed(name, kind)
    result = solved(problem, given, gradient=gradient, strategy=strategy, backend="triton", device="cuda")
    agrees(result, problem)


@pytest.mark.parametrize(("name", "kind"), in_turn(list(MODELS), ["pure", "matrix"]))
def test_the_kullback_leibler_loss_has_the_oracles_plan_and_value(name: str, kind: str) -> None:
    problem, given = posed(name, kind)
    problem = replace(problem, loss="kl", epsilon=0.6)
    result = solved(
        problem, given | {"epsilon": 0.6}, loss="kl", stopping=StoppingOptions(plan_tol=1e-15, max_iter=3000)
    )
    agrees(result, problem)


@pytest.mark.parametrize("strategy", ["dense", "streaming"])
def test_what_an_initial_plan_has_on_points_without_mass_does_not_count(strategy: str) -> None:
    problem, given = posed("unbalanced", "pure")
    p = problem.p * (np.arange(len(problem.p)) % 3 > 0)
    init = np.random.default_rng(0).random((len(p), len(problem.q)))
    options = replace(OPTIONS, strategy=strategy, gradient="sampled" if strategy == "streaming" else "auto")
    found = [
        gw_align(problem.D, problem.E, init=plan, options=options, random_state=0, **given | {"p": p}).plan
        for plan in (init, init * (p > 0)[:, None])
    ]
    np.testing.assert_allclose(found[0], found[1], atol=1e-12)
    with pytest.raises(ValueError, match="init must have an entry for a pair of points that both have mass"):
        gw_align(problem.D, problem.E, init=init * (p == 0)[:, None], options=options, **given | {"p": p})

"""Fused costs and marginal models: their limits, their units, what each argument changes, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests import oracle
from tests.problems import daily, generator, in_turn, own_loss, random_space
from tests.test_models import MODELS, OPTIONS, features, matrix_of, posed, solved
from torchgw import (
    Balanced,
    EuclideanDistances,
    FeatureCost,
    GWOptions,
    GWResult,
    LadderOptions,
    LowRankOptions,
    Partial,
    SamplingOptions,
    SemiRelaxed,
    SeparableLoss,
    SinkhornOptions,
    StoppingOptions,
    Supervision,
    Unbalanced,
    gw_align,
)
from torchgw.couplings.blocks import DenseCoupling
from torchgw.objective.sampled import SampledGradient

LOOSE: dict[str, Any] = {"sinkhorn": SinkhornOptions(), "stopping": StoppingOptions()}


def plan(result: GWResult) -> torch.Tensor:
    return torch.as_tensor(result.plan)


def distance(one: GWResult, other: GWResult) -> float:
    return float((plan(one) - plan(other)).abs().sum())


@pytest.mark.parametrize("strategy", ["dense", "streaming"])
def test_the_limits_of_alpha_are_the_two_problems_alone(strategy: str) -> None:
    problem, given = posed("balanced", "features")
    del given["alpha"]
    one = solved(problem, given | {"alpha": 1.0}, strategy=strategy)
    pure = solved(problem, {k: v for k, v in given.items() if k != "cost"}, strategy=strategy)
    assert distance(one, pure) < 1e-7
    assert one.value_linear == pytest.approx(float((torch.from_numpy(matrix_of(given["cost"])) * plan(one)).sum()))
    assert one.value == pytest.approx(pure.value)
    zero = solved(problem, given | {"alpha": 0.0}, strategy=strategy)
    near = solved(problem, given | {"alpha": 1e-9}, strategy=strategy)
    assert distance(zero, near) < 1e-6
    alone = gw_align(None, None, random_state=0, options=replace(OPTIONS, strategy=strategy), **given | {"alpha": 0.0})
    assert distance(zero, alone) < 1e-12
    assert zero.value == pytest.approx(zero.value_linear)
    assert math.isnan(zero.value_quad)


LIMITS = [
    (SemiRelaxed(1e4, "y"), Balanced(), 1e-4),
    (SemiRelaxed(math.inf, "x"), Balanced(), 1e-12),
    (SemiRelaxed(1e-7, "y"), SemiRelaxed(0.0, "y"), 1e-5),
    (Unbalanced(1e4, 1e4), Balanced(), 1e-4),
    (Unbalanced(math.inf, math.inf), Balanced(), 1e-12),
    (Unbalanced(0.3, math.inf), SemiRelaxed(0.3, "x"), 1e-12),
    (Partial(1.0), Balanced(), 1e-7),
]


@pytest.mark.parametrize(("case", "kind"), in_turn(LIMITS, ["pure", "features"]), ids=str)
def test_models_go_over_into_each_other(case: tuple[Any, Any, float], kind: str) -> None:
    relaxed, limit, tolerance = case
    problem, given = posed("balanced", kind)
    one, other = (solved(problem, given | {"marginals": m}) for m in (relaxed, limit))
    assert distance(one, other) < tolerance
    assert one.value == pytest.approx(other.value, abs=10 * tolerance)


def test_a_free_marginal_is_free_and_a_hard_one_holds() -> None:
    problem, given = posed("free y", "pure")
    result = solved(problem, given)
    np.testing.assert_allclose(plan(result).sum(1), problem.p, rtol=1e-10)
    assert float((plan(result).sum(0) - torch.from_numpy(problem.q)).abs().sum()) > 0.1


@pytest.mark.parametrize(
    ("mass", "strategy"),
    daily({(0.05, "streaming"), (0.5, "dense"), (0.95, "dense")}, [0.05, 0.5, 0.95], ["dense", "streaming"]),
)
def test_partial_transports_the_mass_asked_for_and_no_point_more_than_it_has(mass: float, strategy: str) -> None:
    problem, given = posed("partial", "features")
    result = solved(problem, given | {"marginals": Partial(mass)}, strategy=strategy)
    T = plan(result)
    assert float(T.sum()) == pytest.approx(mass, rel=1e-12)
    assert bool((T.sum(1) <= torch.from_numpy(problem.p) * (1 + 1e-9)).all())
    assert bool((T.sum(0) <= torch.from_numpy(problem.q) * (1 + 1e-9)).all())


@pytest.mark.parametrize("name", ["balanced", "semi-relaxed y", "partial"])
def test_masses_of_any_sum_scale_plan_and_value_of_a_given_mass(name: str) -> None:
    """Epsilon and the divergences belong to a unit of mass; a free mass is another matter."""
    problem, given = posed(name, "pure")
    one = solved(problem, given)
    marginals = Partial(6 * 0.6) if name == "partial" else given["marginals"]
    six = solved(problem, given | {"p": 6 * problem.p, "q": 6 * problem.q, "marginals": marginals})
    np.testing.assert_allclose(plan(six), 6 * plan(one), atol=1e-9)
    assert six.value == pytest.approx(36 * one.value, rel=1e-9)


CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "p": ("balanced", {"p": np.arange(1.0, 21) / 210}),
    "q": ("balanced", {"q": np.arange(1.0, 26) / 325}),
    "cost": ("balanced", {"cost": FeatureCost(np.eye(20, 3), np.eye(25, 3), scale=1.0)}),
    "metric": ("balanced", {"metric": "cosine"}),
    "scale": ("balanced", {"scale": 3.0}),
    "alpha": ("balanced", {"alpha": 0.3}),
    "epsilon": ("balanced", {"epsilon": 0.06}),
    "marginals": ("balanced", {"marginals": Partial(0.9)}),
    "rho": ("semi-relaxed y", {"marginals": SemiRelaxed(0.1, "y")}),
    "side": ("semi-relaxed y", {"marginals": SemiRelaxed(0.05, "x")}),
    "rho_x": ("unbalanced", {"marginals": Unbalanced(0.15, 0.2)}),
    "rho_y": ("unbalanced", {"marginals": Unbalanced(0.1, 0.3)}),
    "mass": ("partial", {"marginals": Partial(0.65)}),
    "supervision": ("balanced", {"supervision": Supervision(pairs=[(0, 0)])}),
    "strength": ("balanced", {"supervision": Supervision(pairs=[(0, 0)], strength=0.1)}),
    "mass of p": ("unbalanced", {"p": np.full(20, 0.1)}),
}


@pytest.mark.parametrize(("name", "strategy"), in_turn(list(CHANGES), ["dense", "streaming"]))
def test_changing_an_argument_changes_the_result(name: str, strategy: str) -> None:
    model, change = CHANGES[name]
    problem, given = posed(model, "features")
    if name in ("metric", "scale"):
        change = {"cost": replace(given["cost"], **change)}
    if name == "strength":
        given |= {"supervision": Supervision(pairs=[(0, 0)])}
    one, other = (solved(problem, arguments, strategy=strategy, **LOOSE) for arguments in (given, given | change))
    assert distance(one, other) > 1e-4
    assert one.value != other.value


def test_a_loss_changes_the_result_and_can_be_ones_own() -> None:
    problem, given = posed("balanced", "pure")
    given |= {"epsilon": 0.6}
    square, kl = (solved(problem, given, loss=loss) for loss in ("square", "kl"))
    assert distance(square, kl) > 1e-3
    own = own_loss("mine")
    again = solved(problem, given, loss=own)
    assert distance(square, again) < 1e-9
    assert again.value == pytest.approx(square.value, abs=1e-12)


def test_features_are_a_cost_of_small_rank() -> None:
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(30, 4)), rng.normal(size=(40, 4))
    every = slice(None)
    cost, scale = FeatureCost(A, B).factored(30, 40)
    whole = ((A[:, None] - B) ** 2).sum(-1)
    np.testing.assert_allclose(cost.rows(every) * scale, whole, atol=1e-10)
    assert float(cost.rows(every).min()) >= 0
    assert 0.25 < float(cost.rows(every).max()) <= 1
    assert FeatureCost(A, B, scale=1.0).factored(30, 40)[1] == 1.0
    cosine, scale = FeatureCost(A, B, metric="cosine").factored(30, 40)
    unit = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in (A, B)]
    np.testing.assert_allclose(cosine.rows(every), (1 - unit[0] @ unit[1].T) / 2, atol=1e-12)
    assert scale == 2.0


@pytest.mark.filterwarnings("ignore::torchgw.SamplingWarning")
def test_values_of_a_streamed_plan_are_those_of_the_plan_that_rounding_made() -> None:
    problem, given = posed("balanced", "features")
    loose = SinkhornOptions(max_iter=2, exact_max_iter=2, final_max_iter=2)
    ladder = LadderOptions(n_cells=16, marginal_tol=0.9)
    result = solved(problem, given, strategy="streaming", sinkhorn=loose, ladder=ladder)
    expected = oracle.objective(problem, plan(result).numpy())
    assert result.marginal_residual > 1e-4
    assert result.value_linear == pytest.approx(expected.linear, rel=1e-9)
    assert result.value_quad == pytest.approx(expected.quad, rel=1e-9)


def test_a_matrix_and_the_features_it_comes_from_agree() -> None:
    problem, given = posed("unbalanced", "matrix")
    cost = features(problem)
    np.testing.assert_allclose(given["cost"], matrix_of(cost))
    assert distance(solved(problem, given), solved(problem, given | {"cost": cost})) < 1e-9


def test_a_pair_of_arrays_is_features_scaled_to_one() -> None:
    problem, given = posed("balanced", "features")
    cost = given["cost"]
    pair = solved(problem, given | {"cost": (cost.X, cost.Y)})
    named = solved(problem, given | {"cost": FeatureCost(cost.X, cost.Y)})
    assert distance(pair, named) == 0.0
    assert pair.cost_scale > 0.25 * matrix_of(cost).max()


@pytest.mark.parametrize("name", MODELS)
def test_a_certificate_bounds_what_other_plans_could_save(name: str) -> None:
    """The lower bound is below the value; no way to another plan is steeper than the gap says."""
    problem, given = posed(name, "features")
    result = solved(problem, given)
    assert 0 <= result.certificate.lower_bound <= result.value
    assert result.certificate.gap == pytest.approx(result.value - result.certificate.lower_bound)
    if name == "unbalanced":
        assert math.isnan(result.certificate.stationarity)
    else:
        problem = replace(problem, epsilon=5e-3)
        other = solved(problem, given | {"epsilon": 5e-3}, **LOOSE)
        T, S = plan(result).numpy(), plan(other).numpy()
        values = [oracle.objective(problem, T + step * (S - T)).value for step in (0.0, 1e-6)]
        slope = (values[1] - values[0]) / 1e-6
        assert 0 < -slope <= result.certificate.stationarity * (1 + 1e-4)


def test_averaged_costs_are_a_window_of_weighted_anchors() -> None:
    x, y = random_space("dense", 30, 1), random_space("dense", 40, 2)
    T = torch.rand(30, 40, dtype=torch.float64, generator=generator())
    coupling = DenseCoupling(T / T.sum())
    given = {"n_anchors": 10, "n_control": 0, "step": 1.0}
    p = coupling.marginal(1)
    plain = SampledGradient(x, y, SamplingOptions(**given), generator(3))
    smooth = SampledGradient(x, y, SamplingOptions(cost_ema=0.4, **given), generator(3))
    costs = [plain(coupling, p).rows(slice(None)) for _ in range(8)]
    for i in range(8):
        found = smooth(coupling, p)
        window = costs[max(0, i - 5) : i + 1]
        weights = np.array([0.4 * 0.6**age for age in reversed(range(len(window)))])
        expected = sum(w * c for w, c in zip(weights / weights.sum(), window, strict=True))
        torch.testing.assert_close(found.rows(slice(None)), expected)
    assert found.U.shape[1] == 6 * 10
    assert SamplingOptions(cost_ema=0.05).ema_window == 16
    assert SamplingOptions().ema_window == SamplingOptions(cost_ema=1.0).ema_window == 1


@pytest.mark.parametrize("n_control", [0, 30])
def test_averaged_costs_have_less_noise(n_control: int) -> None:
    x, y = random_space("dense", 60, 1), random_space("dense", 60, 2)
    p = torch.full((60,), 1 / 60, dtype=torch.float64)
    coupling = DenseCoupling(p[:, None] * p)

    def spread(weight: float) -> float:
        options = SamplingOptions(n_anchors=20, step=1.0, n_control=n_control, cost_ema=weight)
        gradient = SampledGradient(x, y, options, generator(1))
        costs = torch.stack([gradient(coupling, p).rows(slice(None)) for _ in range(60)][20:])
        return float(costs.std(0).mean())

    assert spread(0.2) < 0.6 * spread(0.0)
    assert spread(1.0) == spread(0.0)


def test_a_result_of_every_model_survives_saving(tmp_path: Path) -> None:
    for i, name in enumerate(MODELS):
        problem, given = posed(name, "features")
        result = solved(problem, given, loss="square", **LOOSE)
        result.save(tmp_path / f"{i}.npz")
        back = GWResult.load(tmp_path / f"{i}.npz")
        assert back.marginals == result.marginals
        assert (back.alpha, back.value_penalty, back.cost_scale) == (0.6, result.value_penalty, result.cost_scale)
        torch.testing.assert_close(plan(back), plan(result))


D = np.abs(np.subtract.outer(np.arange(6.0), np.arange(6.0)))
FEATURES = (np.ones((6, 2)), np.ones((6, 2)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": 0.5}, "alpha must be 1 with no linear cost, got 0.5"),
        ({"cost": np.ones((6, 6)), "alpha": 1.5}, "alpha must be"),
        ({"cost": np.ones((5, 6))}, r"cost must be a matrix of shape \(N, K\) = \(6, 6\)"),
        ({"cost": np.full((6, 6), np.nan)}, "cost must be finite"),
        ({"cost": -np.ones((6, 6))}, "cost must be non-negative"),
        ({"cost": (np.ones((6, 2)), np.ones((6, 3)))}, "same number of columns"),
        ({"cost": (np.ones((5, 2)), np.ones((6, 2)))}, "one row for each of its 6 points"),
        ({"cost": (np.ones((6, 2)),)}, "a pair of feature arrays"),
        ({"cost": FeatureCost(np.zeros((6, 2)), np.ones((6, 2)), metric="cosine")}, "must not be zero"),
        ({"marginals": Partial(1.5)}, "at most the smaller of"),
        ({"q": np.full(6, 0.5)}, "p and q must sum alike"),
        (
            {"marginals": Unbalanced(1.0, 1.0), "epsilon": 0.0},
            r"marginals must be Balanced\(\), Partial\(\) or SemiRelaxed\(0.0\) with",
        ),
        ({"cost": np.ones((6, 6)), "options": GWOptions(strategy="streaming")}, "a pair of feature arrays"),
        ({"options": GWOptions(loss="kl", strategy="streaming")}, "must be 'auto' or 'dense' with a loss"),
        ({"options": GWOptions(loss="kl", gradient="sampled")}, "must be 'auto' or 'exact' with a loss other than"),
        (
            {"cost": FEATURES, "options": GWOptions(strategy="low-rank", low_rank=LowRankOptions(rank=2))},
            "alpha must be 1 with the low-rank strategy, got 0.5",
        ),
    ],
)
def test_what_cannot_be_solved_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gw_align(D, D, **arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SemiRelaxed(-1.0), "rho must be"),
        (lambda: SemiRelaxed(1.0, "z"), "side .'x' is the source, 'y' the target. must be"),
        (lambda: Unbalanced(0.0, 1.0), "rho_x must be"),
        (lambda: Unbalanced(1.0, math.nan), "rho_y must be"),
        (lambda: Partial(0.0), "mass must be"),
        (lambda: GWOptions(loss="l1"), "loss must be"),
        (lambda: SamplingOptions(cost_ema=1.5), "cost_ema must be"),
        (lambda: FeatureCost(*FEATURES, metric="l1"), "metric must be"),
    ],
)
def test_models_are_checked_when_made(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.filterwarnings("ignore::torchgw.SamplingWarning")
@pytest.mark.filterwarnings("ignore::torchgw.AmbiguityWarning")
def test_masses_that_differ_are_welcome_where_they_may() -> None:
    p, q = np.full(6, 0.2), np.full(6, 0.3)
    for marginals in (Unbalanced(1.0, 1.0), SemiRelaxed(0.5), Partial(1.0)):
        options = GWOptions(coarse=None)
        result = gw_align(D, D, p=p, q=q, marginals=marginals, epsilon=1e-2, options=options, random_state=0)
        assert result.converged
    space = EuclideanDistances(np.arange(6.0)[:, None])
    options = GWOptions(strategy="streaming", ladder=LadderOptions(n_cells=16), stopping=StoppingOptions(max_iter=500))
    streamed = gw_align(space, space, p=p, q=q, marginals=Unbalanced(1.0, 1.0), epsilon=1e-2, options=options)
    assert 1.2 < float(streamed.marginal(1).sum()) < 1.8


@pytest.mark.parametrize("seeds", [range(3, 4), pytest.param(range(4, 10), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize(
    "marginals", [SemiRelaxed(0.0), SemiRelaxed(1e-300), Partial(0.5), Unbalanced(0.1, 0.1)], ids=str
)
def test_a_cloud_and_itself_are_solved_though_the_objective_rounds_to_zero(marginals: Any, seeds: range) -> None:
    for seed in seeds:
        P = 3 * np.random.default_rng(seed).normal(size=(12, 3))
        result = gw_align(P, P, distances="euclidean", epsilon=1e-4, marginals=marginals, random_state=seed)
        assert 0 <= result.certificate.lower_bound <= result.value < 1e-3


@pytest.mark.parametrize("rho", daily([(1e9,)], [1e4, 1e6, 1e9]))
@pytest.mark.filterwarnings("ignore::torchgw.AmbiguityWarning")
def test_strong_divergences_are_all_but_hard_in_float32_too(rho: float) -> None:
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(40, 3)), rng.normal(size=(50, 3))
    given: dict[str, Any] = {"distances": "euclidean", "epsilon": 1e-2, "random_state": 0}
    hard = gw_align(A, B, **given)
    for marginals in (SemiRelaxed(rho), Unbalanced(rho, rho)):
        result = gw_align(A, B, marginals=marginals, **given)
        assert result.value_quad == pytest.approx(hard.value, rel=1e-2)
        assert float((plan(result).sum(0) - 1 / 50).abs().sum()) < 1e-3


def test_plans_that_answer_each_other_are_ended_by_shorter_steps() -> None:
    """Whole steps go to and fro between two plans for ever."""
    from scipy.spatial.distance import cdist

    rng = np.random.default_rng(15)
    n, k = rng.integers(20, 41, 2)
    A, B = rng.gamma(2.0, size=(n, 3)), rng.gamma(2.0, size=(k, 2))
    result = gw_align(cdist(A, A), cdist(B, B), marginals=SemiRelaxed(0.0), epsilon=1e-3, random_state=0)
    assert result.converged
    assert result.value < 0.0284


@pytest.mark.filterwarnings("ignore::torchgw.ConvergenceWarning")
@pytest.mark.parametrize(("name", "n_control"), daily({("partial", 8)}, MODELS, (0, 8)))
def test_sampling_with_noise_comes_near_the_plan_without(name: str, n_control: int) -> None:
    """The table's sampled cells have as many landmarks as points, so their control variates leave no noise."""
    problem, given = posed(name, "features")
    exact = solved(problem, given)
    sampling = SamplingOptions(n_anchors=400, n_control=n_control, cost_ema=0.2)
    stopping = StoppingOptions(max_iter=60)
    noisy = solved(problem, given, gradient="sampled", sampling=sampling, stopping=stopping)
    assert noisy.gradient == "sampled"
    assert 1e-6 < distance(noisy, exact) < 0.15
    assert noisy.value == pytest.approx(exact.value, rel=0.1)
    assert float(plan(noisy).sum()) == pytest.approx(float(plan(exact).sum()), rel=0.05)


@pytest.mark.filterwarnings("ignore::torchgw.AmbiguityWarning")
def test_the_energies_of_basins_are_values_whatever_the_gradient() -> None:
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(40, 3)), rng.normal(size=(50, 3))
    options = GWOptions(gradient="sampled")
    for marginals, mass in ((Unbalanced(0.05, 0.05), 1.0), (Partial(2.0), 4.0)):
        p, q = np.full(40, mass / 40), np.full(50, mass / 50)
        result = gw_align(
            A, B, p=p, q=q, distances="euclidean", epsilon=1e-2, marginals=marginals, options=options, random_state=0
        )
        assert result.basins[0].energy == pytest.approx(result.value, rel=0.1)


@pytest.mark.parametrize(
    "change",
    [
        {"cost": (np.eye(12, 2), np.eye(12, 2))},
        {"supervision": Supervision(pairs=[(0, 0)])},
        {"options": GWOptions(loss="kl")},
    ],
    ids=["cost", "supervision", "loss"],
)
def test_unseen_points_are_refused_where_distances_are_not_all(change: dict[str, Any]) -> None:
    P = np.random.default_rng(0).normal(size=(12, 3))
    result = gw_align(P, P, distances="euclidean", epsilon=0.05, random_state=0, **change)
    with pytest.raises(ValueError, match="mapped by distances alone"):
        result.transform(P[:2])


def test_a_loss_of_ones_own_is_saved_by_name_only(tmp_path: Path) -> None:
    problem, given = posed("balanced", "pure")
    own = own_loss("kl")
    solved(problem, given, loss=own).save(tmp_path / "own.npz")
    back = GWResult.load(tmp_path / "own.npz").options.loss
    assert isinstance(back, SeparableLoss)
    assert back.name == "kl"
    with pytest.raises(ValueError, match="not kept in files"):
        back.f1(torch.ones(1))

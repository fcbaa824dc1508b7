"""``epsilon="auto"``: what there is to gain, where an epsilon left to the solve begins and ends, and the warning
for a given one that blurs."""

from __future__ import annotations

import math
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from tests.problems import ROLL, SPIRAL, quietly
from torchgw import (
    CoarseOptions,
    DijkstraDistances,
    Envelope,
    EuclideanDistances,
    GWOptions,
    GWResult,
    Implicit,
    LadderOptions,
    LowRankOptions,
    Partial,
    PrecomputedDistances,
    RegularizationWarning,
    SemiRelaxed,
    Unbalanced,
    epsilon_path,
    estimate,
    gw_align,
)
from torchgw.kernels import blocks
from torchgw.losses import KULLBACK_LEIBLER as KL
from torchgw.objective import gain
from torchgw.objective.gain import deviation, linear_energy_scale, moments, product_plan
from torchgw.objective.model import Model
from torchgw.problem.problem import AUTO_START
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.spaces.graph import neighbour_graph
from torchgw.strategies.entropic import FALL, LEFT_OF_FEW, MOST_STEPS, MOVED, RATIO, SHARP

RNG = np.random.default_rng(0)


def cloud(n: int, d: int, noise: float = 0.01, seed: int = 0) -> tuple[Any, Any, Any]:
    """A Gaussian cloud, its turned, shuffled, noisy copy, and the match of each point."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    turn, order = np.linalg.qr(rng.normal(size=(d, d)))[0], rng.permutation(n)
    return X, (X @ turn + noise * rng.normal(size=(n, d)))[order], np.argsort(order)


def masses(n: int, k: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    return tuple(torch.from_numpy(rng.dirichlet(np.ones(size))) for size in (n, k))  # type: ignore[return-value]


def provider(points: Any) -> PrecomputedDistances:
    return PrecomputedDistances(torch.from_numpy(cdist(points, points)))


# What there is to gain


def test_the_gain_of_copies_is_the_energy_of_the_product_plan() -> None:
    space, p = provider(RNG.normal(size=(40, 3))), masses(40, 40)[0]
    D = space.matrix.double()
    mean, square = float(p @ D @ p), float(p @ D**2 @ p)
    assert product_plan(Model(p, p, 0.0), (space, space), 1.0).energy_scale == pytest.approx(
        2 * (square - mean**2), rel=1e-12
    )


def test_no_plan_gains_more() -> None:
    X, Y = RNG.normal(size=(6, 2)), RNG.exponential(size=(6, 3))
    spaces, uniform = (provider(X), provider(Y)), torch.full((6,), 1 / 6, dtype=torch.float64)
    D, E = (space.matrix.double() for space in spaces)
    product = float((D**2).mean() + (E**2).mean() - 2 * D.mean() * E.mean())
    best = min(float((D - E[order][:, order]).square().mean()) for order in map(RNG.permutation, [6] * 500))
    assert 0.2 * (product - best) < product_plan(Model(uniform, uniform, 0.0), spaces, 1.0).energy_scale
    assert product - best <= product_plan(Model(uniform, uniform, 0.0), spaces, 1.0).energy_scale


def test_every_provider_tells_about_the_same_deviation() -> None:
    points = RNG.normal(size=(300, 3))
    mass = masses(300, 2)[0]
    graph = neighbour_graph(points, 8)
    searched, all_pairs = DijkstraDistances(graph), PrecomputedDistances(torch.from_numpy(cdist(points, points)))
    squared = EuclideanDistances(points, squared=True)
    exact = float(deviation(moments(PrecomputedDistances(searched.rows(torch.arange(300))), mass)))
    assert deviation(moments(searched, mass)) == pytest.approx(exact, rel=0.1)
    assert deviation(moments(EuclideanDistances(points), mass)) == pytest.approx(
        float(deviation(moments(all_pairs, mass))), rel=1e-4
    )
    stored = PrecomputedDistances(torch.from_numpy(cdist(points, points) ** 2))
    assert deviation(moments(squared, mass)) == pytest.approx(float(deviation(moments(stored, mass))), rel=1e-4)


def test_rows_stand_for_all_where_points_are_many() -> None:
    points, other = RNG.normal(size=(3000, 3)), RNG.normal(size=(2500, 3))
    mass, more = masses(3000, 2500)
    near = EuclideanDistances(points)
    all_pairs = torch.from_numpy(cdist(points, points) / near.scale)
    mean, square = (float(mass @ all_pairs**power @ mass) for power in (1, 2))
    assert deviation(moments(near, mass)) == pytest.approx(math.sqrt(square - mean**2), rel=0.02)
    M = torch.from_numpy(cdist(points, other))
    least = max(float(mass @ M.amin(1)), float(more @ M.amin(0)))
    found = linear_energy_scale(FactoredCost.from_matrix(M), mass, more)
    assert found == pytest.approx(float(mass @ M @ more) - least, rel=0.05)


def test_rows_are_read_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    space, mass = EuclideanDistances(RNG.normal(size=(1500, 3))), masses(1500, 2)[0]
    whole, read, rows = float(deviation(moments(space, mass))), list[int](), EuclideanDistances.rows
    monkeypatch.setattr(gain, "parts", lambda index, k: blocks.parts(index, k, 2**16))
    monkeypatch.setattr(EuclideanDistances, "rows", lambda self, index: read.append(len(index)) or rows(self, index))
    assert deviation(moments(space, mass)) == pytest.approx(whole, rel=1e-12)
    assert sum(read) == 1000
    assert max(read) * 1500 <= 2**16


def test_a_constant_in_the_cost_is_no_gain() -> None:
    M, (p, q) = RNG.random((30, 40)), masses(30, 40)
    one, other = (linear_energy_scale(FactoredCost.from_matrix(torch.from_numpy(M + c)), p, q) for c in (0.0, 1e3))
    assert one == pytest.approx(other, rel=1e-9)
    factored = FactoredCost.squared_distance(torch.from_numpy(M[:, :3]), torch.from_numpy(M.T[:, :3]))
    stored = FactoredCost.from_matrix(factored.rows(slice(None)))
    assert linear_energy_scale(factored, p, q) == pytest.approx(linear_energy_scale(stored, p, q), rel=1e-9)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_parts_are_weighed_as_in_the_linear_problem(alpha: float) -> None:
    spaces, (p, q) = (provider(SPIRAL), provider(ROLL)), masses(len(SPIRAL), len(ROLL))
    cost = FactoredCost.from_matrix(torch.from_numpy(RNG.random((len(p), len(q)))))
    quadratic = product_plan(Model(p, q, 0.0), spaces, 1.0).energy_scale
    linear = linear_energy_scale(cost, p, q)
    found = product_plan(Model(p, q, 0.0, alpha=alpha, beta=1 - alpha, cost=cost), spaces, 1.0).energy_scale
    assert found == pytest.approx((alpha * quadratic + (1 - alpha) / 2 * linear) / (alpha + (1 - alpha) / 2))


def test_other_losses_count_what_their_cross_term_can_gain() -> None:
    spaces, (p, q) = (provider(SPIRAL), provider(ROLL)), masses(len(SPIRAL), len(ROLL))
    D, E = (space.matrix.double() for space in spaces)
    h1, h2 = KL.h1(D), KL.h2(E)
    sd = [math.sqrt(float(m @ h**2 @ m - (m @ h @ m) ** 2)) for h, m in ((h1, p), (h2, q))]
    assert product_plan(Model(p, q, 0.0, loss=KL), spaces, 1.0).energy_scale == pytest.approx(sd[0] * sd[1], rel=1e-6)


def test_where_nothing_can_be_gained_the_unit_stands_for_it() -> None:
    p = torch.full((5,), 0.2, dtype=torch.float64)
    space = PrecomputedDistances(torch.zeros(5, 5, dtype=torch.float64))
    assert product_plan(Model(p, p, 0.0), (space, space), 4.0) == (0.0, 4.0)
    result = quietly(gw_align, np.zeros((5, 5)), np.zeros((6, 6)), epsilon="auto", marginals=SemiRelaxed(1.0))
    assert result.value == pytest.approx(0.0, abs=1e-12)
    assert result.path[0].epsilon == AUTO_START


# Where it begins and ends


def blurred_problem(n: int = 60) -> dict[str, Any]:
    """Clouds of different sizes under masses that may give way, for which there is no optimum without entropy."""
    X, Y, _ = cloud(n, 2, noise=0.05)
    return {"X": X, "Y": Y[: n - 5], "distances": "euclidean", "marginals": SemiRelaxed(1.0), "random_state": 0}


def align(**given: Any) -> GWResult:
    return quietly(gw_align, given.pop("X"), given.pop("Y"), **given)


def test_few_points_end_without_entropy() -> None:
    X, Y, truth = cloud(120, 20)
    result = quietly(gw_align, X, Y, epsilon="auto", random_state=0)
    assert result.epsilon == 0
    assert [step.epsilon for step in result.path] == [0]
    assert result.path[0].value == pytest.approx(result.value, rel=1e-6)
    assert (result.argmax() == truth).mean() >= 0.99
    assert "at epsilon 0" in repr(result)


def test_it_falls_while_the_plan_sharpens() -> None:
    given = blurred_problem()
    result = align(**given, epsilon="auto")
    path = result.path
    assert path[0].epsilon == pytest.approx(AUTO_START * result.gain)
    assert 2 <= len(path) <= MOST_STEPS + 1
    assert result.epsilon == path[-1].epsilon
    assert all(b.epsilon == pytest.approx(RATIO * a.epsilon) for a, b in pairwise(path))
    assert all(b.value < (1 - FALL) * a.value for a, b in pairwise(path[:-1]))
    assert result.value < align(**given, epsilon=path[0].epsilon).value
    assert path[0].moved == 0
    assert all(0 <= step.moved <= 1 for step in path[1:])
    assert result.n_iter == sum(step.n_iter for step in path) == len(result.history.cost)
    assert result.n_iter_sinkhorn == sum(step.n_iter_sinkhorn for step in path)
    given_one = align(**given, epsilon=path[0].epsilon)
    assert given_one.path == ()
    assert result.history.cost[: given_one.n_iter] == given_one.history.cost


def test_blur_that_costs_nothing_stays() -> None:
    spread = {"marginals": Unbalanced(1.0, 1.0), "random_state": 0}
    result = quietly(gw_align, SPIRAL, SPIRAL, epsilon="auto", **spread)
    *before, last = result.path
    assert last.value <= LEFT_OF_FEW * result.gain
    assert all(step.value > LEFT_OF_FEW * result.gain for step in before)
    # Nothing else ended it.
    assert 1 <= len(before) < MOST_STEPS
    assert last.value < (1 - FALL) * before[-1].value
    assert last.moved >= MOVED
    assert float(np.mean(result.confidence().entropy)) > SHARP
    six = np.repeat(RNG.normal(size=(6, 2)), 10, axis=0)
    alike = quietly(gw_align, six, six, distances="euclidean", epsilon="auto", **spread)
    assert len(alike.path) == 1
    assert float(np.exp(np.mean(alike.confidence().entropy))) > 5


def test_a_number_is_what_it_was() -> None:
    result = quietly(gw_align, SPIRAL, ROLL, epsilon=5e-3, random_state=0)
    assert result.epsilon == 5e-3
    assert result.path == ()
    assert "at epsilon 0.005, " in repr(result)


@pytest.mark.parametrize("mode", [Envelope(), Implicit()])
def test_derivatives_are_taken_where_it_begins(mode: Any) -> None:
    X = torch.from_numpy(SPIRAL[:30]).requires_grad_()
    result = quietly(gw_align, X, ROLL[:25], epsilon="auto", gradient_mode=mode, random_state=0)
    assert [step.epsilon for step in result.path] == [result.epsilon]
    assert result.epsilon == pytest.approx(AUTO_START * result.gain)
    number = quietly(gw_align, X, ROLL[:25], epsilon=result.epsilon, gradient_mode=mode, random_state=0)
    (one,), (other,) = (torch.autograd.grad(found.loss, X) for found in (result, number))
    assert torch.equal(one, other)


@pytest.mark.parametrize(
    "options",
    [
        GWOptions(strategy="low-rank", low_rank=LowRankOptions(rank=4)),
        GWOptions(strategy="streaming", ladder=LadderOptions(n_cells=32)),
        GWOptions(gradient="sampled"),
    ],
    ids=["low rank", "streaming", "sampled"],
)
def test_every_strategy_takes_it(options: GWOptions) -> None:
    result = quietly(gw_align, SPIRAL, ROLL, distances="landmark", epsilon="auto", options=options, random_state=0)
    assert result.path[0].epsilon == pytest.approx(AUTO_START * result.gain)
    assert result.epsilon == result.path[-1].epsilon > 0
    number = quietly(
        gw_align, SPIRAL, ROLL, distances="landmark", epsilon=result.epsilon, options=options, random_state=0
    )
    if len(result.path) == 1:
        assert number.value == result.value


def test_what_float64_cannot_resolve_is_no_beginning() -> None:
    alike = [1 - np.eye(n) + 1e-4 * cdist(points[:n], points[:n]) for n, points in ((20, SPIRAL), (21, ROLL))]
    result = quietly(gw_align, *alike, epsilon="auto", marginals=SemiRelaxed(1.0), random_state=0)
    assert result.epsilon > 0
    assert math.isfinite(result.value)
    far = 1e9 + RNG.random((20, 21))
    with pytest.raises(FloatingPointError, match="cost / epsilon reaches"):
        quietly(gw_align, SPIRAL[:20], ROLL[:21], cost=far, alpha=0.5, epsilon="auto", random_state=0)


def test_the_same_bits_in_every_unit() -> None:
    given: dict[str, Any] = {"epsilon": "auto", "marginals": Partial(0.5), "random_state": 0}
    given["options"] = GWOptions(coarse=CoarseOptions(n_landmarks=20, n_starts=4))
    one, other = (quietly(gw_align, SPIRAL[::2] * c, ROLL[::2] * c, **given) for c in (1, 4))
    assert one.path[0].epsilon == other.path[0].epsilon
    assert one.value == other.value


@pytest.mark.parametrize("epsilon", ["small", "AUTO", ""])
def test_other_words_are_refused(epsilon: str) -> None:
    with pytest.raises(ValueError, match=f"epsilon must be a number >= 0 or 'auto', got {epsilon!r}"):
        gw_align(SPIRAL, ROLL, epsilon=epsilon)
    with pytest.raises(ValueError, match="epsilon must be a number"):
        estimate(10, 10, epsilon=epsilon)  # type: ignore[arg-type]


def test_it_is_kept_in_files(tmp_path: Path) -> None:
    result = align(**blurred_problem(), epsilon="auto")
    result.save(tmp_path / "kept.npz")
    read = GWResult.load(tmp_path / "kept.npz")
    assert repr(read.path) == repr(result.path)
    assert (read.gain, read.epsilon) == (result.gain, result.epsilon)


def test_the_estimate_knows_where_it_ends() -> None:
    one, other = (estimate(300, 300, epsilon=epsilon, device="cpu") for epsilon in ("auto", 0.0))
    assert one.chosen == other.chosen
    assert [(f.memory, f.seconds) for f in one.forecasts] == [(f.memory, f.seconds) for f in other.forecasts]
    assert estimate(10**6, 10**6, epsilon="auto", device="cpu").chosen == "streaming"


# Blur


def told(X: Any, Y: Any, **given: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        gw_align(X, Y, random_state=0, **given)
    return [str(each.message) for each in found if each.category is RegularizationWarning]


def test_a_blurred_plan_names_auto_and_its_soft_plan() -> None:
    X, Y, truth = cloud(150, 40)
    text = told(X, Y, epsilon=1e-2, distances="euclidean")[0]
    assert text.index("epsilon='auto'") < text.index("result.soft()")
    soft = quietly(gw_align, X, Y, distances="euclidean", random_state=0).soft()
    assert not told(X, Y, epsilon=soft.epsilon, distances="euclidean", init=soft)
    assert (soft.argmax() == truth).mean() >= 0.99


def test_points_of_which_each_stands_for_many_are_not_blurred() -> None:
    X, _, _ = cloud(150, 20)
    assert not told(X[:10], X, epsilon=1e-6, distances="euclidean")
    assert told(X[:10], X, epsilon=0.05, distances="euclidean")


@pytest.mark.parametrize("epsilon", [1e-3, 5e-3])
def test_blur_along_curves_is_what_was_asked_for(epsilon: float) -> None:
    assert not told(SPIRAL, ROLL, epsilon=epsilon)


def test_no_warning_where_nobody_chose_the_blur() -> None:
    X, Y, _ = cloud(60, 10)
    assert not told(X, Y, epsilon="auto", marginals=SemiRelaxed(1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RegularizationWarning)
        epsilon_path(X, Y, epsilons=[0.1, 0.05], random_state=0)

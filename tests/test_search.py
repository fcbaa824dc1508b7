"""The search for the basin: what it finds, lists and flags, and what a start of the user changes."""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from tests.problems import Own, daily, path_graph, quietly, random_distances, uniform
from torchgw import (
    AmbiguityWarning,
    CoarseOptions,
    GWOptions,
    LandmarkDistances,
    PrecomputedDistances,
    SinkhornOptions,
    SpaceOptions,
    gw_align,
)
from torchgw.datasets import make_spiral, make_swiss_roll

F64 = torch.float64


@pytest.mark.parametrize(
    ("distances", "seed"),
    daily({("precomputed", 0), ("landmark", 1), ("dijkstra", 2)}, ["precomputed", "landmark", "dijkstra"], range(3)),
)
def test_the_spiral_is_never_reversed(distances: str, seed: int) -> None:
    from scipy.stats import spearmanr

    X, angle_x = make_spiral(300, random_state=seed)
    Y, angle_y = make_swiss_roll(380, random_state=50 + seed)
    result = gw_align(X, Y, distances=distances, random_state=seed)
    assert spearmanr(angle_x, angle_y[result.argmax()])[0] > 0.99
    assert result.gradient == "exact"
    assert not result.ambiguous
    assert result.converged


def test_the_sampled_loop_starts_in_the_right_basin_too() -> None:
    from scipy.stats import spearmanr

    X, angle_x = make_spiral(300)
    Y, angle_y = make_swiss_roll(380, random_state=50)
    result = gw_align(X, Y, distances="dijkstra", options=GWOptions(gradient="sampled"), random_state=0)
    assert result.gradient == "sampled"
    assert spearmanr(angle_x, angle_y[result.argmax()])[0] > 0.99


def test_many_points_go_through_a_subset_and_agree_with_the_direct_way() -> None:
    X, Y = make_spiral(1100)[0], make_swiss_roll(1200, random_state=100)[0]
    result = gw_align(X, Y, distances="landmark", random_state=0)
    assert {basin.level for basin in result.basins} >= {"full"}
    start = np.stack((np.arange(0, 1100, 50), result.argmax()[::50]), 1)
    again = gw_align(X, Y, distances="landmark", epsilon=result.epsilon, random_state=1, init=start)
    assert again.value == pytest.approx(result.value, rel=0.02)


def test_a_rotated_cloud_in_many_dimensions_is_matched_point_by_point() -> None:
    rng = np.random.default_rng(8)
    x, order = rng.normal(size=(300, 10)), rng.permutation(300)
    noisy = x[order] + 0.05 * rng.normal(size=(300, 10))
    y = noisy @ np.linalg.qr(rng.normal(size=(10, 10)))[0]
    result = gw_align(x, y, distances="euclidean", epsilon=0, random_state=0)
    assert (order[result.argmax()] == np.arange(300)).mean() == 1


def test_a_mirror_symmetric_shape_is_flagged_and_both_matchings_are_listed() -> None:
    t = np.sort(np.random.default_rng(0).uniform(0, np.pi, size=60))
    half = np.stack((np.sin(t) * (1 + 0.4 * np.cos(t)) + 0.05, np.cos(t) - 0.3 * np.cos(2 * t)), 1)
    shape = np.concatenate((half, half * [-1, 1]))
    with pytest.warns(AmbiguityWarning, match="two basins have energies"):
        result = gw_align(shape, shape[::-1] @ [[0.6, 0.8], [-0.8, 0.6]], distances="euclidean", random_state=0)
    assert result.ambiguous
    rival = result.rival
    assert rival is not None
    assert rival.energy == pytest.approx(result.basins[0].energy, rel=0.05)
    assert rival.difference > 0.3
    mine, other = (basin.matching for basin in (result.basins[0], rival))
    identity, mirrored = 119 - np.arange(120), 119 - np.r_[60:120, 0:60]
    agree = [[(m == truth).mean() for truth in (identity, mirrored)] for m in (mine, other)]
    assert {int(np.argmax(row)) for row in agree} == {0, 1}
    assert min(max(row) for row in agree) > 0.6
    # Matching pairs break the tie, either way.
    for truth in (identity, mirrored):
        pairs = np.stack((np.arange(0, 120, 10), truth[::10]), 1)
        fixed = gw_align(
            shape, shape[::-1] @ [[0.6, 0.8], [-0.8, 0.6]], distances="euclidean", init=pairs, random_state=0
        )
        assert (fixed.argmax() == truth).mean() > 0.6
        assert fixed.basins == ()
        assert not fixed.ambiguous


def test_a_plan_given_as_start_decides_the_basin() -> None:
    X, angle_x = make_spiral(200)
    Y, angle_y = make_spiral(240, random_state=3)
    forward = np.exp(-((angle_x[:, None] - angle_y) ** 2) / 0.1)
    backward = np.exp(-((9 - angle_x[:, None] - angle_y) ** 2) / 0.1)
    options = GWOptions(spaces=SpaceOptions(k=8))
    runs = [quietly(gw_align, X, Y, init=plan, options=options, random_state=0) for plan in (forward, backward)]
    assert runs[0].value < 0.3 * runs[1].value
    slopes = [np.corrcoef(angle_x, angle_y[run.argmax()])[0, 1] for run in runs]
    assert slopes[0] > 0.99
    assert slopes[1] < -0.9


@pytest.mark.parametrize(
    "options",
    [
        GWOptions(coarse=None),
        GWOptions(coarse=CoarseOptions(n_landmarks=20)),
        GWOptions(coarse=CoarseOptions(n_starts=1)),
        GWOptions(gradient="sampled"),
        GWOptions(sinkhorn=SinkhornOptions(exact_max_iter=3)),
    ],
)
def test_changing_a_search_option_changes_the_result(options: GWOptions) -> None:
    x = LandmarkDistances(path_graph(list(np.linspace(0.5, 1.5, 79)))[0], 80)
    y = LandmarkDistances(path_graph(list(np.linspace(0.4, 1.6, 89)))[0], 90)
    base, changed = (quietly(gw_align, x, y, epsilon=1e-3, options=o, random_state=0) for o in (GWOptions(), options))
    assert not np.array_equal(base.plan, changed.plan)


@pytest.mark.gpu
@pytest.mark.parametrize("gradient", ["exact", "sampled"])
@pytest.mark.parametrize("distances", ["landmark", "euclidean"])
def test_the_gpu_searches_and_agrees_with_the_cpu(gradient: str, distances: str) -> None:
    X, angle_x = make_spiral(1100)
    Y, angle_y = make_swiss_roll(1200, random_state=100)
    options = GWOptions(gradient=gradient)
    cpu, gpu = (
        gw_align(X, Y, distances=distances, device=device, options=options, epsilon=1e-3, random_state=0)
        for device in ("cpu", "cuda")
    )
    assert gpu.value == pytest.approx(cpu.value, rel=0.02)
    assert gpu.marginal_error < 1e-12
    assert np.corrcoef(angle_x, angle_y[gpu.argmax()])[0, 1] > 0.99
    sharp, same = (
        gw_align(X[::4], Y[::4], distances=distances, device=device, epsilon=0, random_state=0)
        for device in ("cuda", "cpu")
    )
    assert sharp.value == pytest.approx(same.value, rel=0.02)
    assert np.isfinite(sharp.confidence().entropy).all()


def test_fewer_basins_are_carried_when_fewer_are_asked_for() -> None:
    rng = np.random.default_rng(9)
    x, y = (PrecomputedDistances(random_distances(n, rng)) for n in (90, 100))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one, many = (
            gw_align(x, y, epsilon=2e-3, options=GWOptions(coarse=CoarseOptions(n_basins=n)), random_state=0)
            for n in (1, 6)
        )
    assert len(one.basins) < len(many.basins)
    assert many.value <= one.value * 1.001


@pytest.mark.parametrize(
    ("size", "epsilon"),
    daily(
        {((2, 2), 0.0), ((2, 3), 1e-3), ((3, 40), 1e-3), ((40, 3), 0.0)},
        [(2, 2), (2, 3), (3, 2), (3, 40), (40, 3), (5, 90)],
        [0.0, 1e-3],
    ),
)
def test_the_smallest_spaces_go_through_the_search(size: tuple[int, int], epsilon: float) -> None:
    n, k = size
    rng = np.random.default_rng(n + k)
    result = quiet(rng.normal(size=(n, 2)), rng.normal(size=(k, 3)), distances="euclidean", epsilon=epsilon)
    assert result.shape == (n, k)
    assert result.marginal_error < 1e-12
    assert 0 <= result.certificate.lower_bound <= result.value + 1e-12


def quiet(*spaces: Any, **keywords: Any) -> Any:
    return quietly(gw_align, *spaces, **({"random_state": 0} | keywords))


def test_points_that_coincide_or_carry_no_mass_go_through_the_search() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(70, 2))
    p = rng.uniform(size=140)
    p[::9] = 0
    for source, mass in ((np.concatenate((x, x)), p / p.sum()), (np.ones((30, 2)), None)):
        result = quiet(source, x, p=mass, distances="euclidean")
        assert np.isfinite(result.plan).all()
        assert result.marginal_error < 1e-12
        assert np.isfinite(result.value)


@pytest.mark.parametrize(
    ("seed", "mixed"), daily({(0, True), (1, False), (2, True), (3, False)}, range(8), [True, False])
)
def test_copies_with_few_distances_are_solved_although_their_energies_round_to_zero(seed: int, mixed: bool) -> None:
    rng = np.random.default_rng(seed)
    n = 3 + seed % 5
    D = np.triu(rng.integers(1, 4, size=(n, n)), 1).astype(float)
    D += D.T
    p = rng.integers(1, 5, size=n) / 1.0
    result = quiet(D, D, p=p / p.sum(), q=p / p.sum(), epsilon=0, options=GWOptions(mixed_precision=mixed))
    assert result.value == pytest.approx(0, abs=1e-9)


def test_equidistant_points_are_solved() -> None:
    D = 1.0 - np.eye(90)
    result = quiet(D, D)
    assert np.isfinite(result.value)
    assert result.marginal_error < 1e-12


def test_another_default_dtype_changes_nothing() -> None:
    X, Y = make_spiral(90)[0], make_spiral(100, random_state=1)[0]
    plain = gw_align(X, Y, random_state=0)
    torch.set_default_dtype(torch.float64)
    try:
        other = gw_align(X, Y, random_state=0)
    finally:
        torch.set_default_dtype(torch.float32)
    assert np.array_equal(plain.plan, other.plan)


@pytest.mark.parametrize("kind", ["pairs", "plan"])
def test_a_start_of_the_user_reaches_the_sampled_loop(kind: str) -> None:
    t = np.linspace(0, 1, 100)
    D = np.abs(t[:, None] - t)
    backward = np.stack((np.array([0, 50, 99]), np.array([99, 49, 0])), 1)
    plan = np.exp(-((1 - t[:, None] - t) ** 2) / 0.01)
    init = backward if kind == "pairs" else plan
    result = quiet(D, D, init=init, options=GWOptions(gradient="sampled"))
    assert np.corrcoef(result.argmax(), t)[0, 1] < -0.99


@pytest.mark.parametrize("epsilon", [0.0, 5e-4, 2e-3, 1e-2])
def test_a_polygon_is_ambiguous_although_its_best_energy_rounds_to_zero(epsilon: float) -> None:
    """Others of the twelve ways have energies of 3e-8 in float32."""
    t = 2 * np.pi * np.arange(6) / 6
    hexagon = np.stack((np.cos(t), np.sin(t)), 1)
    assert quietly(gw_align, hexagon, hexagon, distances="euclidean", epsilon=epsilon, random_state=0).ambiguous


@pytest.mark.parametrize("epsilon", [0.0, 1e-4, 3e-3])
def test_a_symmetric_line_is_ambiguous_at_every_epsilon(epsilon: float) -> None:
    t = np.linspace(0, 1, 120)
    result = quiet(np.abs(t[:, None] - t), np.abs(t[:, None] - t), epsilon=epsilon)
    assert result.ambiguous
    assert result.rival.difference == pytest.approx(0.5, abs=0.1)
    np.testing.assert_allclose(result.basins[0].matching, result.argmax(), atol=1)


def test_the_best_basin_is_that_of_the_plan_at_the_sharp_end() -> None:
    rng = np.random.default_rng(4)
    for seed in range(5):
        result = quiet(random_distances(9, rng), random_distances(9, rng), epsilon=0, random_state=seed)
        assert result.basins[0].energy == pytest.approx(result.value, rel=1e-9)
        np.testing.assert_array_equal(result.basins[0].matching, result.argmax())
        assert result.basins[0].difference == 0
        solved = [basin.energy for basin in result.basins if basin.level == "full"]
        assert solved == sorted(solved)


def test_a_user_provider_that_is_not_symmetric_is_refused() -> None:
    space = Own(uniform(30, 30))
    with pytest.raises(ValueError, match="symmetric distances"):
        gw_align(space, space, random_state=0)


def test_near_isometric_spaces_converge() -> None:
    rng = np.random.default_rng(12)
    x = rng.normal(size=(80, 2))
    result = gw_align(x, x + 1e-4 * rng.normal(size=x.shape), distances="euclidean", epsilon=1e-4, random_state=0)
    assert result.converged
    assert result.n_iter < 60


def test_a_start_from_far_above_the_target_is_annealed_down() -> None:
    X, Y = make_spiral(150)[0], make_spiral(160, random_state=1)[0]
    result = quiet(X, Y, epsilon=5e-5)
    epsilons = result.history.epsilon
    assert epsilons[0] > 3 * epsilons[-1] == pytest.approx(3 * 5e-5)
    assert all(later >= 0.49 * earlier for earlier, later in pairwise(epsilons))
    assert result.history.elapsed == sorted(result.history.elapsed)


def test_an_exact_history_falls_and_says_what_happened() -> None:
    result = gw_align(
        *(path_graph(list(w))[0] for w in (np.linspace(1, 2, 60), np.linspace(1, 2.2, 70))),
        epsilon=1e-3,
        random_state=0,
    )
    assert result.history.iteration == list(range(1, result.n_iter + 1))
    assert result.history.cost[-1] == pytest.approx(result.value, rel=0.02)
    assert result.history.epsilon == [1e-3] * result.n_iter
    assert result.history.cost[-1] == pytest.approx(result.history.cost[-2], rel=1e-3)


def test_a_result_or_its_matching_is_where_to_start() -> None:
    X, Y = make_spiral(100)[0], make_swiss_roll(120)[0]
    first = gw_align(X, Y, random_state=0)
    for init in (first, first.argmax(), first.basins[0].matching):
        again = gw_align(X, Y, init=init, random_state=0)
        assert again.basins == ()
        assert again.value == pytest.approx(first.value, rel=0.02)
    with pytest.raises(ValueError, match="init must hold pairs of indices below"):
        gw_align(X, Y, init=np.full(100, 120))


@pytest.mark.parametrize("kind", ["cloud", "integers", "squared"])
def test_few_points_are_searched_at_once_and_end_no_higher_than_from_the_product_plan(kind: str) -> None:
    rng = np.random.default_rng(len(kind))
    spaces = []
    for n in (40, 47):
        D = np.linalg.norm((x := rng.normal(size=(n, 3)))[:, None] - x, axis=-1)
        spaces.append({"cloud": D, "integers": np.round(3 * D), "squared": D**2}[kind])
    p, q = (rng.uniform(0.2, 1.0, len(D)) for D in spaces)
    p[3] = q[0] = q[-1] = 0.0
    given: dict[str, Any] = {"p": p / p.sum(), "q": q / q.sum(), "epsilon": 0, "random_state": 0}
    result = quietly(gw_align, *spaces, **given)
    product = np.outer(given["p"], given["q"])
    assert result.value <= quietly(gw_align, *spaces, init=product, **given).value * (1 + 1e-9)
    assert {basin.origin for basin in result.basins} <= {"landmarks: all points", "product plan"}
    assert {basin.level for basin in result.basins} == {"full"}
    assert result.basins[0].count > 1
    np.testing.assert_allclose(result.plan.sum(1), given["p"], atol=1e-12)
    np.testing.assert_allclose(result.plan.sum(0), given["q"], atol=1e-12)
    again = quietly(gw_align, *spaces, **given)
    assert np.array_equal(result.plan, again.plan)


def test_a_large_space_beside_a_tiny_one_is_not_taken_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchgw.search import basins

    monkeypatch.setattr(basins, "search_every_point", lambda *_: pytest.fail("all points were taken for landmarks"))
    X, Y = (np.random.default_rng(n).normal(size=(n, 2)) for n in (10, 900))
    result = quietly(gw_align, X, Y, distances="euclidean", epsilon=0, random_state=0)
    assert result.shape == (10, 900)
    assert all("all points" not in basin.origin for basin in result.basins)

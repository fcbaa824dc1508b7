"""The exact gradient, landmarks, starts, the coarse stage, the lift, and the search for the basin."""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from tests.problems import (
    linearised_cost,
    path_graph,
    random_distances,
    random_masses,
    random_plan,
    sinkhorn_oracle,
)
from torchgw import (
    AmbiguityWarning,
    CoarseOptions,
    EuclideanDistances,
    GWOptions,
    LandmarkDistances,
    PrecomputedDistances,
    SamplingOptions,
    SinkhornOptions,
    SpaceOptions,
    gw_align,
)
from torchgw.couplings import DenseCoupling
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.gw.coarse import basins_of, coarse_basins, energies
from torchgw.gw.gradient import ExactGradient, SampledGradient, landmark_control
from torchgw.gw.landmarks import KINDS, choose_landmarks, coverage
from torchgw.gw.lift import Solved, lift, lift_potentials
from torchgw.gw.starts import quantiles, start_costs

F64 = torch.float64


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def spaces(kind: str, n: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    if kind == "dense":
        return PrecomputedDistances(random_distances(n, rng))
    return EuclideanDistances(rng.normal(size=(n, 2)), squared=True)


@pytest.mark.parametrize("left", ["dense", "factored"])
@pytest.mark.parametrize("right", ["dense", "factored"])
@pytest.mark.parametrize(("n", "k"), [(8, 11), (11, 8)])
def test_the_exact_gradient_is_the_four_index_sum(left: str, right: str, n: int, k: int) -> None:
    rng = np.random.default_rng(n)
    source, target = spaces(left, n, 1), spaces(right, k, 2)
    DX, DY = (s.rows(torch.arange(s.size)).numpy() for s in (source, target))
    p, q = random_masses(n, rng), random_masses(k, rng)
    T = random_plan(p, q, rng)
    gradient = ExactGradient(source, target, torch.from_numpy(p), torch.from_numpy(q))
    cost = gradient(DenseCoupling(torch.from_numpy(T)), torch.from_numpy(p))
    np.testing.assert_allclose(cost.rows(slice(0, n)), linearised_cost(DX, DY, T), atol=1e-12)
    centred, row, column = cost.centred()
    np.testing.assert_allclose(centred.rows(slice(0, n)), linearised_cost(DX, DY, T), atol=1e-12)
    np.testing.assert_allclose(centred.U @ centred.V.T + row[:, None] + column, cost.U @ cost.V.T, atol=1e-12)
    # A plan that lives on a few points.
    i, j = torch.tensor([0, 3, 5]), torch.tensor([1, 2])
    small = torch.from_numpy(rng.uniform(size=(3, 2)))
    spread = torch.zeros(n, k, dtype=F64)
    spread[i[:, None], j] = small
    few = gradient.of_points(i, j, small)
    np.testing.assert_allclose(few.U @ few.V.T, DX @ spread.numpy() @ DY, atol=1e-12)


def test_control_variates_keep_the_expectation_and_cut_the_error() -> None:
    rng = np.random.default_rng(11)
    graphs = [path_graph(list(rng.uniform(0.5, 1.5, size=n - 1)))[0] for n in (60, 70)]
    x, y = PrecomputedDistances.from_graphs(graphs)
    p, q = (random_masses(n, rng) for n in (60, 70))
    T = torch.from_numpy(random_plan(p, q, rng))
    P, Q = torch.from_numpy(p), torch.from_numpy(q)
    exact = ExactGradient(x, y, P, Q)(DenseCoupling(T), P).rows(slice(0, 60))
    errors = {}
    for count in (0, 6):
        gen = generator(3)
        controls = None if count == 0 else tuple(landmark_control(s, m, count, gen) for s, m in ((x, P), (y, Q)))
        draws = torch.stack(
            [
                SampledGradient(x, y, SamplingOptions(n_anchors=20), gen, controls)(DenseCoupling(T), P).rows(
                    slice(0, 60)
                )
                for _ in range(300)
            ]
        )
        bias = (draws.mean(0) - exact).norm() / exact.norm()
        errors[count] = float((draws - exact).norm(dim=(1, 2)).mean() / exact.norm())
        assert float(bias) < 4 * errors[count] / 300**0.5
    assert errors[6] < 0.3 * errors[0]


@pytest.mark.parametrize("kind", KINDS)
def test_landmarks_are_distinct_points_with_mass_that_share_all_of_it(kind: str) -> None:
    rng = np.random.default_rng(0)
    space = EuclideanDistances(rng.normal(size=(80, 3)))
    mass = torch.from_numpy(random_masses(80, rng))
    mass[:20] = 0
    found = choose_landmarks(space, mass, kind, 25, generator())
    assert len(set(found.index.tolist())) == 25
    assert int(found.index.min()) >= 20
    assert float(found.mass.sum()) == pytest.approx(float(mass.sum()))
    assert float(found.mass.min()) > 0
    torch.testing.assert_close(found.rows, space.rows(found.index))
    nearest = found.rows.argmin(0)
    for position in range(25):
        assert float(found.mass[position]) == pytest.approx(float(mass[nearest == position].sum()))
    everything = choose_landmarks(space, mass, kind, 200, generator())
    assert everything.index.tolist() == list(range(20, 80))
    assert coverage(everything, mass) == 0
    assert 0 < coverage(found, mass) < 0.5


def test_farthest_landmarks_of_a_rotated_copy_are_the_same_points() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 3))
    order = rng.permutation(60)
    mass = torch.full((60,), 1 / 60, dtype=F64)
    chosen = []
    for points in (x, 2.0 * x[order] @ np.linalg.qr(rng.normal(size=(3, 3)))[0]):
        space = EuclideanDistances(points)
        first = (space.rows(torch.arange(60)).square() @ mass).argmax()
        chosen.append(choose_landmarks(space, mass, "farthest", 12, generator(), first).index.numpy())
    np.testing.assert_array_equal(order[chosen[1]], chosen[0])


@pytest.mark.parametrize("count", [1, 4, 16])
def test_quantiles_are_means_of_the_weighted_quantile_function(count: int) -> None:
    rng = np.random.default_rng(2)
    D, mass = random_distances(9, rng), random_masses(9, rng)
    found = quantiles(torch.from_numpy(D), torch.from_numpy(mass), count).numpy()
    fine = (np.arange(200_000) + 0.5) / 200_000
    for row in range(9):
        order = np.argsort(D[row])
        level = np.cumsum(mass[order])
        values = D[row][order][np.searchsorted(level / level[-1], fine).clip(max=8)]
        np.testing.assert_allclose(found[row], values.reshape(count, -1).mean(1), atol=1e-4)


def test_start_costs_are_finite_distinct_and_of_mean_one() -> None:
    rng = np.random.default_rng(3)
    DX, DY = (torch.from_numpy(random_distances(n, rng)) for n in (15, 18))
    p, q = (torch.from_numpy(random_masses(n, rng)) for n in (15, 18))
    costs = start_costs(DX, DY, p, q, 30, generator())
    assert costs.shape == (30, 15, 18)
    np.testing.assert_allclose(torch.einsum("i,bij,j->b", p, costs, q), np.ones(30), rtol=1e-9)
    single = torch.cat((costs[:12:2], costs[12:]))  # two distributions and four signs come twice in the plane
    torch.testing.assert_close(costs[:12:2], costs[1:12:2])
    apart = torch.cdist(single.flatten(1), single.flatten(1)) + torch.eye(24) * 9
    assert float(apart.min()) > 1e-3


def test_energies_of_a_batch_are_those_of_each_plan_and_equal_plans_are_one_basin() -> None:
    rng = np.random.default_rng(4)
    DX, DY = random_distances(6, rng), random_distances(7, rng)
    p, q = random_masses(6, rng), random_masses(7, rng)
    plans = np.stack([random_plan(p, q, rng) for _ in range(3)])
    found = energies(*(torch.from_numpy(a) for a in (plans, DX, DY)))
    for plan, energy in zip(plans, found, strict=True):
        assert float(energy) == pytest.approx(float((linearised_cost(DX, DY, plan) * plan).sum()), rel=1e-9)
    twice = torch.from_numpy(np.concatenate((plans, plans + 1e-4)))
    groups = basins_of(twice, torch.arange(6.0))
    assert sorted(len(group) for group in groups) == [2, 2, 2]


def test_the_coarse_stage_finds_both_orientations_of_a_path_and_their_energies() -> None:
    rng = np.random.default_rng(5)
    graph, D = path_graph(list(rng.uniform(0.5, 1.5, size=39) * np.linspace(0.3, 2.0, 39)))
    space = PrecomputedDistances(D)
    mass = torch.full((40,), 1 / 40, dtype=F64)
    (basins,) = coarse_basins(space, space, mass, mass, 1e-3, CoarseOptions(), generator())
    assert len(basins) == 2
    assert basins[0].energy < 0.2 * basins[1].energy
    assert sum(basin.count for basin in basins) == 3 * 48
    np.testing.assert_allclose(basins[0].plan.argmax(1), np.arange(40), atol=1)
    assert np.corrcoef(basins[1].plan.argmax(1), np.arange(40))[0, 1] < -0.9
    np.testing.assert_allclose(basins[0].plan.sum(1), mass, atol=1e-12)
    assert graph.nnz == 78


def test_potentials_lifted_from_all_points_are_those_of_the_problem() -> None:
    rng = np.random.default_rng(6)
    DX, DY = random_distances(20, rng), random_distances(24, rng)
    p, q = random_masses(20, rng), random_masses(24, rng)
    T = random_plan(p, q, rng)
    source, target = PrecomputedDistances(DX), PrecomputedDistances(DY)
    scaled = [s.rows(torch.arange(s.size)).numpy() for s in (source, target)]
    epsilon = 0.05
    S = -2 * scaled[0] @ T @ scaled[1]
    plan = torch.from_numpy(sinkhorn_oracle(S, p, q, epsilon))
    log_p, log_q = torch.from_numpy(p).log2(), torch.from_numpy(q).log2()
    x, y = (choose_landmarks(s, torch.from_numpy(m), "random", 99, generator()) for s, m in ((source, p), (target, q)))
    exponent = plan.log2() + torch.from_numpy(S) / epsilon * np.log2(np.e)
    f = exponent.mean(1)
    g = (exponent - f[:, None]).mean(0)
    solved = Solved(x, y, torch.from_numpy(T), f, g, epsilon)
    lifted_f, lifted_g, matching = lift_potentials(solved, log_p, log_q)
    np.testing.assert_allclose(lifted_f, f, atol=1e-9)
    np.testing.assert_allclose(lifted_g, g, atol=1e-9)
    np.testing.assert_array_equal(matching, plan.argmax(1))
    gradient = ExactGradient(source, target, torch.from_numpy(p), torch.from_numpy(q))
    for made in (lift(solved, log_p, log_q, gradient)[0], lift(solved, log_p, log_q, None)[0]):
        np.testing.assert_allclose(made.coupling().to_dense(), plan, atol=1e-10)


@pytest.mark.parametrize("distances", ["precomputed", "landmark", "dijkstra"])
def test_the_spiral_is_never_reversed(distances: str) -> None:
    from scipy.stats import spearmanr

    for seed in range(3):
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
    again = gw_align(X, Y, distances="landmark", random_state=1, init=start)
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
    mine, other = (basin.matching.numpy() for basin in (result.basins[0], rival))
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runs = [gw_align(X, Y, init=plan, options=options, random_state=0) for plan in (forward, backward)]
    assert runs[0].value < 0.3 * runs[1].value
    slopes = [np.corrcoef(angle_x, angle_y[run.argmax()])[0, 1] for run in runs]
    assert slopes[0] > 0.99
    assert slopes[1] < -0.9


@pytest.mark.parametrize(
    "options",
    [
        GWOptions(coarse=None),
        GWOptions(coarse=CoarseOptions(n_landmarks=20)),
        GWOptions(coarse=CoarseOptions(n_starts=20)),
        GWOptions(gradient="sampled"),
        GWOptions(sinkhorn=SinkhornOptions(exact_max_iter=3)),
    ],
)
def test_changing_a_search_option_changes_the_result(options: GWOptions) -> None:
    x = LandmarkDistances(path_graph(list(np.linspace(0.5, 1.5, 79)))[0], 80)
    y = LandmarkDistances(path_graph(list(np.linspace(0.4, 1.6, 89)))[0], 90)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base, changed = (gw_align(x, y, options=o, random_state=0) for o in (GWOptions(), options))
    assert not torch.equal(base.plan, changed.plan)


@pytest.mark.gpu
@pytest.mark.parametrize("gradient", ["exact", "sampled"])
@pytest.mark.parametrize("distances", ["landmark", "euclidean"])
def test_the_gpu_searches_and_agrees_with_the_cpu(gradient: str, distances: str) -> None:
    X, angle_x = make_spiral(1100)
    Y, angle_y = make_swiss_roll(1200, random_state=100)
    options = GWOptions(gradient=gradient)
    cpu, gpu = (
        gw_align(X, Y, distances=distances, device=device, options=options, random_state=0)
        for device in ("cpu", "cuda")
    )
    assert gpu.value == pytest.approx(cpu.value, rel=0.02)
    assert gpu.marginal_error < 1e-12
    if distances == "landmark":
        assert np.corrcoef(angle_x, angle_y[gpu.argmax()])[0, 1] > 0.99
    sharp = gw_align(X[::4], Y[::4], distances=distances, device="cuda", epsilon=0, random_state=0)
    assert sharp.value < gpu.value
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


def test_the_exact_gradient_is_passed_over_where_it_costs_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgw.gw.prepare.EXACT_WORK", {"cpu": 1e5})
    rng = np.random.default_rng(10)
    x, y = rng.normal(size=(60, 2)), rng.normal(size=(70, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = gw_align(x, y, distances="euclidean", random_state=0)
        asked = gw_align(x, y, distances="euclidean", options=GWOptions(gradient="exact"), random_state=0)
    assert result.gradient == "sampled"
    assert "too slow" in result.gradient_passed_over
    assert asked.gradient == "exact"
    assert asked.gradient_passed_over == ""


@pytest.mark.parametrize(("n", "k"), [(2, 2), (2, 3), (3, 2), (3, 40), (40, 3), (5, 90)])
@pytest.mark.parametrize("epsilon", [0.0, 1e-3])
def test_the_smallest_spaces_go_through_the_search(n: int, k: int, epsilon: float) -> None:
    rng = np.random.default_rng(n + k)
    result = quiet(rng.normal(size=(n, 2)), rng.normal(size=(k, 3)), distances="euclidean", epsilon=epsilon)
    assert result.shape == (n, k)
    assert result.marginal_error < 1e-12
    assert 0 <= result.certificate.lower_bound <= result.value + 1e-12


def quiet(*spaces: Any, **keywords: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return gw_align(*spaces, **({"random_state": 0} | keywords))


def test_points_that_coincide_or_carry_no_mass_go_through_the_search() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(70, 2))
    p = rng.uniform(size=140)
    p[::9] = 0
    for source, mass in ((np.concatenate((x, x)), p / p.sum()), (np.ones((30, 2)), None)):
        result = quiet(source, x, p=mass, distances="euclidean")
        assert torch.isfinite(result.plan).all()
        assert result.marginal_error < 1e-12
        assert np.isfinite(result.value)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("mixed", [True, False])
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
    assert torch.equal(plain.plan, other.plan)


@pytest.mark.parametrize("kind", ["pairs", "plan"])
def test_a_start_of_the_user_reaches_the_sampled_loop(kind: str) -> None:
    t = np.linspace(0, 1, 100)
    D = np.abs(t[:, None] - t)
    backward = np.stack((np.array([0, 50, 99]), np.array([99, 49, 0])), 1)
    plan = np.exp(-((1 - t[:, None] - t) ** 2) / 0.01)
    init = backward if kind == "pairs" else plan
    result = quiet(D, D, init=init, options=GWOptions(gradient="sampled"))
    assert np.corrcoef(result.argmax(), t)[0, 1] < -0.99


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
    class Provider:
        size, scale, stored = 30, 1.0, True

        def to(self, device: torch.device, dtype: torch.dtype) -> Provider:
            return self

        def rows(self, index: torch.Tensor) -> torch.Tensor:
            return torch.rand(30, 30, dtype=F64, generator=generator())[index]

        def factors(self) -> None:
            return None

    with pytest.raises(ValueError, match="symmetric distances"):
        gw_align(Provider(), Provider(), random_state=0)


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
        *(path_graph(list(w))[0] for w in (np.linspace(1, 2, 60), np.linspace(1, 2.2, 70))), random_state=0
    )
    assert result.history.iteration == list(range(1, result.n_iter + 1))
    assert result.history.cost[-1] == pytest.approx(result.value, rel=0.02)
    assert result.history.epsilon == [1e-3] * result.n_iter
    assert result.history.cost[-1] == pytest.approx(result.history.cost[-2], rel=1e-3)

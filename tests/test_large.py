"""Large solves: what streams agrees with what is stored, tells how far it is, and never stores all pairs."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from tests.problems import all_rows
from torchgw import (
    CoarseOptions,
    DijkstraDistances,
    EuclideanDistances,
    FactoredDistances,
    GWOptions,
    GWResult,
    LadderOptions,
    LandmarkDistances,
    PrecomputedDistances,
    SamplingOptions,
    SamplingWarning,
    SinkhornOptions,
    StoppingOptions,
    TorchGWWarning,
    gw_align,
)
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.search import coarsen
from torchgw.solvers import inner
from torchgw.spaces.graph import neighbour_graph
from torchgw.strategies import ladder as ladder_module
from torchgw.strategies import streaming
from torchgw.types import DistanceProvider

N, K = 500, 600
X, ANGLE_X = make_spiral(N)
Y, ANGLE_Y = make_swiss_roll(K, random_state=1)
CLOUDS = [np.random.default_rng(seed).gamma(1.5, size=(n, 3)) * [1, 2, 4] for seed, n in ((0, N), (1, K))]
FEW = 100, 130  # for tight solves
CURVES = make_spiral(FEW[0])[0], make_swiss_roll(FEW[1], random_state=1)[0]
EPSILON = 2e-2
TIGHT = {
    "sinkhorn": SinkhornOptions(tol=1e-10, exact_max_iter=3000, final_max_iter=20000),
    "stopping": StoppingOptions(plan_tol=1e-15, max_iter=500),
    "gradient": "exact",
    "mixed_precision": False,
}
LOOSE = {"sinkhorn": SinkhornOptions(tol=1e-6, exact_max_iter=1000), "mixed_precision": False}
SMALL = LadderOptions(n_cells=64, marginal_tol=1e-9)


def space(kind: str, points: np.ndarray) -> DistanceProvider:
    if kind == "euclidean":
        return EuclideanDistances(points)
    if kind == "squared":
        return EuclideanDistances(points, squared=True)
    if kind == "factored":
        landmark = LandmarkDistances(neighbour_graph(points), 40)
        return FactoredDistances(*landmark.factors())
    graph = neighbour_graph(points)
    if kind == "precomputed":
        return PrecomputedDistances.from_graphs([graph])[0]
    return LandmarkDistances(graph, 40) if kind == "landmark" else DijkstraDistances(graph)


def solved(kinds: tuple[str, str], strategy: str) -> GWResult:
    flat = set(kinds) & {"euclidean", "squared"}
    clouds = [points[:count] for points, count in zip(CLOUDS, FEW, strict=True)] if flat else CURVES
    x, y = (space(kind, points) for kind, points in zip(kinds, clouds, strict=True))
    options = GWOptions(strategy=strategy, ladder=SMALL, **TIGHT)
    return gw_align(x, y, epsilon=EPSILON, options=options, random_state=0)


@pytest.mark.parametrize(
    "kinds",
    [
        ("factored", "factored"),
        ("precomputed", "precomputed"),
        ("squared", "squared"),
        ("landmark", "dijkstra"),
        ("euclidean", "landmark"),
        *(pytest.param((kind, kind), marks=pytest.mark.slow) for kind in ("landmark", "dijkstra", "euclidean")),
    ],
)
def test_streaming_and_dense_agree(kinds: tuple[str, str]) -> None:
    stored, streamed = solved(kinds, "dense"), solved(kinds, "streaming")
    assert (stored.strategy, streamed.strategy) == ("dense", "streaming")
    assert len(streamed.ladder) > 1
    assert streamed.ladder[-1].cells == FEW
    assert streamed.value == pytest.approx(stored.value, rel=1e-5)
    one, other = stored.plan, streamed.plan
    assert np.abs(one - other).sum() < 1e-5
    for axis in (0, 1):
        torch.testing.assert_close(streamed.coupling.marginal(axis), stored.coupling.marginal(axis), rtol=0, atol=1e-12)
    # The potentials belong to scores of different rank and centring; score + f + g is the same for all of them.
    seen = one > 1e-9
    assert np.abs(np.log(one[seen] / other[seen])).max() < 1e-5


@pytest.fixture(scope="module")
def large() -> GWResult:
    return solved_large()


def solved_large() -> GWResult:
    """1500 x 1800 points from 256 cells, whose plan can still be looked at."""
    points = make_spiral(1500)[0], make_swiss_roll(1800, random_state=1)[0]
    options = GWOptions(strategy="streaming", ladder=LadderOptions(n_cells=256, marginal_tol=2e-2))
    return gw_align(*points, distances="landmark", options=options, random_state=0)


def test_confidence_of_some_points_of_a_large_plan(large: GWResult) -> None:
    some = np.random.default_rng().permutation(1500)[:40]
    every, asked = large.confidence(), large.confidence(some)
    np.testing.assert_allclose(asked.entropy, every.entropy[some], rtol=1e-6)
    np.testing.assert_allclose(asked.margin, every.margin[some], rtol=1e-6, atol=1e-9)


def test_a_rung_of_few_cells_already_has_the_matching(large: GWResult) -> None:
    assert large.ladder[0].cells == (256, 256)
    match = large.argmax()
    assert spearmanr(make_spiral(1500)[1], make_swiss_roll(1800)[1][match])[0] > 0.999


def test_the_marginals_of_a_large_plan_are_exact(large: GWResult) -> None:
    plan = large.plan
    assert np.abs(plan.sum(1) - 1 / 1500).sum() < 1e-6
    assert np.abs(plan.sum(0) - 1 / 1800).sum() < 1e-6
    assert large.marginal_error < 1e-6
    assert float(plan.min()) >= 0


def test_the_value_of_a_large_plan_is_that_of_its_objective(large: GWResult) -> None:
    assert large.known is not None
    D, E = (all_rows(known.space) for known in large.known)
    T = torch.from_numpy(large.plan)
    p, q = T.sum(1), T.sum(0)
    value = p @ D.square() @ p + q @ E.square() @ q - 2 * ((D @ T @ E) * T).sum()
    assert large.value_exact
    assert large.value == pytest.approx(float(value), rel=1e-4)


def test_the_measured_residual_is_that_at_full_size_and_a_half_step_of_each_side_takes_most_of_it(
    large: GWResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Estimated from a thousand rows and columns before all are read."""
    rung = large.ladder[-1]
    assert rung.residual_error > 0
    assert rung.residual < 2e-2
    assert large.marginal_residual < 0.5 * rung.residual
    monkeypatch.setattr(streaming, "sweep_tiles", lambda kernel, A, B, tiles, f, g, p, q: (f, g, f.new_zeros(())))
    as_lifted = solved_large()
    assert abs(rung.residual - as_lifted.marginal_residual) < 5 * rung.residual_error
    assert large.value < as_lifted.value


def test_the_climb_ends_when_the_marginals_are_good_enough() -> None:
    points = make_spiral(1500)[0], make_swiss_roll(1800, random_state=1)[0]

    def ladder(tol: float) -> tuple[int, ...]:
        options = GWOptions(strategy="streaming", ladder=LadderOptions(n_cells=32, marginal_tol=tol))
        result = gw_align(*points, distances="landmark", options=options, random_state=0)
        residuals = [rung.residual for rung in result.ladder]
        assert residuals[-1] <= tol or result.ladder[-1].cells == (1500, 1800)
        assert all(residual > tol for residual in residuals[:-1])
        return tuple(rung.cells[0] for rung in result.ladder)

    assert ladder(0.5) == (32,)
    assert len(ladder(5e-3)) > 1


def test_every_option_reaches_every_rung() -> None:
    """One iteration is one iteration on each of them."""
    options = GWOptions(
        strategy="streaming",
        stopping=StoppingOptions(max_iter=1),
        coarse=CoarseOptions(n_starts=4),
        ladder=LadderOptions(n_cells=32, marginal_tol=1e-4),
    )
    with pytest.warns(UserWarning, match="iteration limit"):
        result = gw_align(X, Y, distances="landmark", options=options, random_state=0)
    assert len(result.ladder) > 1
    assert all(rung.n_iter == 1 for rung in result.ladder)


@pytest.mark.parametrize("kind", ["dijkstra", "euclidean"])
def test_spaces_without_factors_stream_on_sampled_gradients(kind: str) -> None:
    options = GWOptions(
        strategy="streaming",
        gradient="sampled",
        sampling=SamplingOptions(n_anchors=200),
        ladder=LadderOptions(n_cells=128, marginal_tol=5e-2),
    )
    x, y = (X, Y) if kind == "dijkstra" else (X, X[::-1] @ np.array([[0.0, 1.0], [-1.0, 0.0]]))
    result = gw_align(x, y, distances=kind, options=options, random_state=0)
    match = result.argmax()
    assert (result.gradient, result.value_exact) == ("sampled", False)
    truth = ANGLE_Y if kind == "dijkstra" else ANGLE_X[::-1]
    assert spearmanr(ANGLE_X, truth[match])[0] > 0.99


def test_pairs_that_the_user_knows_orient_a_large_solve() -> None:
    known = np.array([[0, K - 1], [N // 2, K // 2], [N - 1, 0]])  # the reverse of what the search finds
    options = GWOptions(strategy="streaming", ladder=LadderOptions(n_cells=128, marginal_tol=5e-2))
    result = gw_align(X, Y, distances="landmark", init=known, options=options, random_state=0)
    assert spearmanr(ANGLE_X, ANGLE_Y[result.argmax()])[0] < -0.9
    assert result.basins == ()


def test_a_large_result_survives_saving(large: GWResult, tmp_path: Path) -> None:
    large.save(tmp_path / "large.npz")
    back = GWResult.load(tmp_path / "large.npz")
    torch.testing.assert_close(back.plan, large.plan)
    assert back.ladder == large.ladder
    assert (back.strategy, back.omitted_mass, back.evaluated) == (large.strategy, large.omitted_mass, large.evaluated)
    np.testing.assert_array_equal(back.argmax(), large.argmax())
    with pytest.raises(ValueError, match="need the points or distances"):
        back.transform(X)


def test_points_without_mass_stay_without() -> None:
    p, q = np.ones(N), np.ones(K)
    p[::7], q[5::11] = 0.0, 0.0
    options = GWOptions(strategy="streaming", ladder=LadderOptions(n_cells=100, marginal_tol=2e-2))
    result = gw_align(X, Y, distances="landmark", p=p / p.sum(), q=q / q.sum(), options=options, random_state=0)
    plan = result.plan
    assert float(plan[::7].sum()) == 0.0
    assert float(plan[:, 5::11].sum()) == 0.0
    assert result.marginal_error < 1e-6
    used = p > 0
    np.testing.assert_array_equal(result.argmax()[::7], 0)
    np.testing.assert_array_equal(result.argmax(axis=0)[5::11], 0)
    assert spearmanr(ANGLE_X[used], ANGLE_Y[result.argmax()[used]])[0] > 0.99


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.zeros((40, 2)), np.zeros((50, 2))),
        (np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]), np.array([[0.0, 3.0], [0.0, 5.0]])[:, :1]),
        (CLOUDS[0][:3], CLOUDS[1][:40]),
        (np.repeat(CLOUDS[0][:60], 3, axis=0), CLOUDS[1][:70]),
    ],
    ids=["coinciding", "two points", "three and forty", "triplicates"],
)
@pytest.mark.filterwarnings(*(f"ignore::torchgw.{name}Warning" for name in ("Ambiguity", "Graph", "Sampling")))
def test_few_or_equal_points_stream_as_well(x: np.ndarray, y: np.ndarray) -> None:
    for kind in ("euclidean", "landmark"):
        options = GWOptions(strategy="streaming")
        result = gw_align(x, y, distances=kind, epsilon=1e-2, options=options, random_state=0)
        assert result.marginal_error < 1e-12
        assert float(result.plan.min()) >= 0
        np.testing.assert_allclose(result.plan.sum(1), 1 / len(x), rtol=1e-9)


def test_rounding_never_leaves_a_point_with_more_than_its_mass() -> None:
    """Read in float32, plans of rough scores are a little off; what is added afterwards must not be clipped."""
    options = GWOptions(strategy="streaming", stopping=StoppingOptions(max_iter=5), ladder=LadderOptions(n_cells=64))
    with pytest.warns(TorchGWWarning, match=r"iteration limit|tolerance|scores reach"):
        result = gw_align(X, Y, distances="landmark", epsilon=1e-6, options=options, random_state=0)
    assert result.marginal_error < 1e-12


def test_a_callback_sees_every_rung_and_what_it_raises_ends_the_solve() -> None:
    seen = []
    options = GWOptions(strategy="streaming", ladder=LadderOptions(n_cells=32, marginal_tol=5e-3))
    result = gw_align(X, Y, distances="landmark", options=options, random_state=0, callback=seen.append)
    assert [entry.iteration for entry in seen] == list(range(1, result.n_iter + 1))
    assert len(result.history.cost) == result.n_iter == sum(rung.n_iter for rung in result.ladder)

    def stops(_: object) -> None:
        raise MemoryError("mine")

    for chosen in (options, GWOptions()):
        with pytest.raises(MemoryError, match="mine"):
            gw_align(X, Y, distances="landmark", options=chosen, random_state=0, callback=stops)


def test_a_plan_of_the_users_is_where_the_climb_starts() -> None:
    reverse = np.zeros((N, K))
    reverse[np.arange(N), (K - 1) - np.arange(N) * K // N] = 1.0
    options = GWOptions(strategy="streaming", ladder=LadderOptions(n_cells=128, marginal_tol=5e-2))
    result = gw_align(X, Y, distances="landmark", init=reverse, options=options, random_state=0)
    assert spearmanr(ANGLE_X, ANGLE_Y[result.argmax()])[0] < -0.9


def test_masses_of_any_sum_scale_the_plan() -> None:
    rng = np.random.default_rng(0)
    p, q = rng.uniform(0.2, 1, N), rng.uniform(0.2, 1, K)
    p, q = 7 * p / p.sum(), 7 * q / q.sum()
    options = GWOptions(strategy="streaming", ladder=LadderOptions(n_cells=64))
    result = gw_align(X, Y, distances="landmark", p=p, q=q, options=options, random_state=0)
    np.testing.assert_allclose(result.marginal(1), p, rtol=1e-9)
    np.testing.assert_allclose(result.marginal(0), q, rtol=1e-9)


@pytest.mark.parametrize(("kind", "expected"), [("landmark", "exact"), ("dijkstra", "sampled")])
def test_the_result_names_the_gradient_that_ran(kind: str, expected: str) -> None:
    options = GWOptions(strategy="streaming", ladder=LadderOptions(n_cells=64, marginal_tol=0.2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SamplingWarning)
        result = gw_align(X, Y, distances=kind, options=options, random_state=0)
    assert result.gradient == expected
    assert bool(result.gradient_passed_over) == (expected == "sampled")
    assert [each.category for each in caught] == [SamplingWarning] * (expected == "sampled")


def test_an_exact_gradient_that_was_named_but_cannot_stream_is_warned_of() -> None:
    options = GWOptions(strategy="streaming", gradient="exact", ladder=LadderOptions(n_cells=32, marginal_tol=0.2))
    with pytest.warns(SamplingWarning, match="the streaming strategy has exact gradients of factored distances only"):
        result = gw_align(X, X[::-1], distances="euclidean", options=options, random_state=0)
    assert result.gradient == "sampled"


@pytest.mark.filterwarnings("ignore::torchgw.SamplingWarning")
def test_rungs_too_large_for_a_stored_plan_are_solved_on_the_cost_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ladder_module, coarsen):
        monkeypatch.setattr(module, "STORED_CELLS", 128)
    options = GWOptions(strategy="streaming", ladder=LadderOptions(n_cells=64, marginal_tol=1e-3))
    result = gw_align(X, Y, distances=("dijkstra", "landmark"), options=options, random_state=0)
    assert spearmanr(ANGLE_X, ANGLE_Y[result.argmax()])[0] > 0.99
    assert result.marginal_error < 1e-9


def test_tiles_without_mass_are_left_out_of_the_iterations_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inner, "SKIPPED_FROM", 100)
    monkeypatch.setattr(inner, "TILE", 32)
    options = GWOptions(strategy="streaming", ladder=LadderOptions(n_cells=64, marginal_tol=1e-4), **LOOSE)
    kept = gw_align(X, Y, distances="landmark", options=options, random_state=0)
    monkeypatch.setattr(inner, "SKIPPED_FROM", 10**6)
    whole = gw_align(X, Y, distances="landmark", options=options, random_state=0)
    assert kept.ladder[-1].cells == (N, K)
    assert kept.ladder[-1].residual < 1e-4
    assert np.abs(kept.plan - whole.plan).sum() < 1e-3


def test_the_same_seed_gives_the_same_bits() -> None:
    options = GWOptions(strategy="streaming", ladder=LadderOptions(n_cells=64))
    one, other = (gw_align(*CURVES, distances="landmark", options=options, random_state=3) for _ in range(2))
    assert one.value == other.value
    np.testing.assert_array_equal(one.argmax(), other.argmax())


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::torchgw.SamplingWarning")
@pytest.mark.parametrize("distances", ["landmark", "dijkstra"])
def test_a_gpu_streams_to_the_same_matching(distances: str) -> None:
    points = make_spiral(5000)[0], make_swiss_roll(6000, random_state=1)[0]
    options = GWOptions(strategy="streaming", ladder=LadderOptions(marginal_tol=1e-2))
    one, other = (
        gw_align(*points, distances=distances, options=options, device=device, random_state=0)
        for device in ("cpu", "cuda")
    )
    angle = make_swiss_roll(6000, random_state=1)[1]
    assert other.marginal_error < 1e-6
    assert np.abs(angle[one.argmax()] - angle[other.argmax()]).mean() < 0.1
    assert spearmanr(make_spiral(5000)[1], angle[other.argmax()])[0] > 0.999
    assert other.transform(points[0][:50] + 1e-3).argmax().shape == (50,)
    assert len(other.top_k(3)[0]) == 5000
    assert abs(other.sparsify(0.5).sum() - 0.5) < 0.1


def test_a_last_solve_of_one_iteration_streams() -> None:
    options = GWOptions(strategy="streaming", sinkhorn=SinkhornOptions(final_max_iter=1))
    x, y = make_spiral(60)[0], make_spiral(70, random_state=1)[0]
    result = gw_align(x, y, distances="landmark", epsilon=1e-2, options=options, random_state=0)
    assert result.marginal_error < 1e-6

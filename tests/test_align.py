"""`gw_align` end to end: exact problems, laws, reproducibility, and what the result says of itself."""

from __future__ import annotations

import random
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from scipy.stats import spearmanr

from tests.problems import all_rows, gw_by_enumeration, random_distances, random_masses
from torchgw import (
    AnnealingOptions,
    ConvergenceWarning,
    DijkstraDistances,
    EuclideanDistances,
    GWOptions,
    GWResult,
    LandmarkDistances,
    PrecomputedDistances,
    Progress,
    SamplingOptions,
    SinkhornOptions,
    SpaceOptions,
    Status,
    StoppingOptions,
    gw_align,
)
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.objective import certify as objective_module
from torchgw.spaces.graph import neighbour_graph

FIVE = GWOptions(spaces=SpaceOptions(k=5))  # the graph of these small clouds is known to be sound
SAMPLED = replace(FIVE, gradient="sampled", coarse=None)
SHORT = replace(SAMPLED, stopping=StoppingOptions(max_iter=6, min_iter=2), annealing=AnnealingOptions(n_iter=3))
QUICK = replace(
    SAMPLED,
    stopping=StoppingOptions(max_iter=6),
    annealing=AnnealingOptions(n_iter=3),
    sinkhorn=SinkhornOptions(final_max_iter=50),
)
SPIRAL, SPIRAL_ANGLE = make_spiral(90)
ROLL, ROLL_ANGLE = make_swiss_roll(110, random_state=1)


def short(*spaces: Any, **keywords: Any) -> GWResult:
    """A few iterations, whose want of convergence is not the point."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return gw_align(*spaces, **({"options": SHORT, "random_state": 0} | keywords))


@pytest.mark.parametrize("seed", range(6))
def test_an_isometric_copy_is_matched_point_by_point(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, order = rng.normal(size=(25, 2)), rng.permutation(25)
    turn = np.array([[0.6, 0.0, 0.8], [-0.8, 0.0, 0.6]])
    y = 3.0 * x[order] @ turn + 7.0
    result = gw_align(x, y, distances="euclidean", epsilon=5e-4, random_state=seed)
    np.testing.assert_array_equal(order[result.argmax()], np.arange(25))
    assert result.value < 5e-4


def test_a_huge_epsilon_gives_the_product_plan_and_its_value() -> None:
    rng = np.random.default_rng(0)
    DX, DY = random_distances(12, rng), random_distances(15, rng)
    p, q = random_masses(12, rng), random_masses(15, rng)
    result = short(DX, DY, p=p, q=q, epsilon=1e4)
    np.testing.assert_allclose(result.plan, np.outer(p, q), atol=1e-6)
    expected = gw_by_enumeration(DX / DX.max(), DY / DY.max(), np.outer(p, q))
    assert result.value == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("distances", ["landmark", "dijkstra", "precomputed", "euclidean"])
@pytest.mark.parametrize("mixed", [True, False])
def test_marginals_are_exact_and_the_value_is_that_of_the_plan(distances: str, mixed: bool) -> None:
    rng = np.random.default_rng(1)
    p, q = random_masses(90, rng), random_masses(110, rng)
    result = short(SPIRAL, ROLL, distances=distances, p=p, q=q, options=replace(SHORT, mixed_precision=mixed))
    plan = result.plan
    assert np.abs(plan.sum(1) - p).sum() <= 1e-12
    assert np.abs(plan.sum(0) - q).sum() <= 1e-12
    assert plan.min() >= 0
    assert result.marginal_error <= 1e-12
    assert result.plan.dtype == np.float64

    make = {
        "landmark": lambda x: LandmarkDistances(neighbour_graph(x, 5)),
        "dijkstra": lambda x: DijkstraDistances(neighbour_graph(x, 5)),
        "precomputed": lambda x: PrecomputedDistances.from_graphs([neighbour_graph(x, 5)])[0],
        "euclidean": EuclideanDistances,
    }[distances]
    DX, DY = (make(x).rows(torch.arange(len(x))).numpy() for x in (SPIRAL, ROLL))
    cross = ((DX @ plan) * (plan @ DY)).sum()
    expected = p @ DX**2 @ p + q @ DY**2 @ q - 2 * cross
    assert result.value_exact
    assert result.value == pytest.approx(expected, rel=1e-9)
    assert result.value == result.value_quad
    assert result.value_linear == 0


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore::torchgw.types.AmbiguityWarning")  # the spiral read backwards is 4 % worse
@pytest.mark.parametrize("distances", ["landmark", "dijkstra", "precomputed", "euclidean"])
def test_the_value_agrees_with_pot(distances: str) -> None:
    gromov = pytest.importorskip("ot.gromov")
    spaces = {"landmark": LandmarkDistances, "dijkstra": DijkstraDistances}
    result = gw_align(SPIRAL, ROLL, distances=distances, options=FIVE, random_state=0)
    if distances == "precomputed":
        providers: Any = PrecomputedDistances.from_graphs([neighbour_graph(x, 5) for x in (SPIRAL, ROLL)])
    elif distances == "euclidean":
        providers = [EuclideanDistances(x) for x in (SPIRAL, ROLL)]
    else:
        providers = [spaces[distances](neighbour_graph(x, 5)) for x in (SPIRAL, ROLL)]
    DX, DY = (all_rows(one).numpy() for one in providers)
    p, q = np.full(90, 1 / 90), np.full(110, 1 / 110)
    constant, hX, hY = gromov.init_matrix(DX, DY, p, q, "square_loss")
    assert result.value == pytest.approx(float(gromov.gwloss(constant, hX, hY, result.plan)), rel=1e-6)


@pytest.mark.bits
def test_the_same_seed_gives_the_same_bits_and_another_seed_another_run() -> None:
    one, two, other = (gw_align(SPIRAL, ROLL, options=SAMPLED, random_state=seed) for seed in (3, 3, 4))
    assert np.array_equal(one.plan, two.plan)
    assert one.history.cost == two.history.cost
    assert one.value == two.value
    assert not np.array_equal(one.plan, other.plan)


def test_generators_are_accepted_and_advance() -> None:
    numpy_state, torch_state = np.random.default_rng(5), torch.Generator().manual_seed(5)
    first, second = (short(SPIRAL, ROLL, random_state=numpy_state) for _ in range(2))
    assert not np.array_equal(first.plan, second.plan)
    assert np.array_equal(first.plan, short(SPIRAL, ROLL, random_state=np.random.default_rng(5)).plan)
    assert not np.array_equal(
        short(SPIRAL, ROLL, random_state=torch_state).plan, short(SPIRAL, ROLL, random_state=torch_state).plan
    )
    fresh = [short(SPIRAL, ROLL, random_state=None).plan for _ in range(2)]
    assert not np.array_equal(*fresh)


def test_global_random_state_is_neither_read_nor_changed() -> None:
    plans = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - the global state is the subject
        random.seed(seed)
        before = (torch.random.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())  # noqa: NPY002
        plans.append(short(SPIRAL, ROLL, distances="landmark", random_state=7).plan)
        assert torch.equal(before[0], torch.random.get_rng_state())
        np.testing.assert_array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002
        assert before[2] == random.getstate()
    assert np.array_equal(*plans)


def test_scaling_a_space_changes_only_its_scale() -> None:
    plain = short(SPIRAL, ROLL)
    scaled = short(4.0 * SPIRAL, 0.5 * ROLL)
    assert np.array_equal(plain.plan, scaled.plan)
    assert scaled.scales == (4.0 * plain.scales[0], 0.5 * plain.scales[1])


@pytest.mark.parametrize("total", [4.0, 4200.0])
def test_masses_of_another_sum_scale_plan_and_value_and_nothing_else(total: float) -> None:
    rng = np.random.default_rng(2)
    p, q = random_masses(90, rng), random_masses(110, rng)
    plain, scaled = short(SPIRAL, ROLL, p=p, q=q), short(SPIRAL, ROLL, p=total * p, q=total * q)
    torch.testing.assert_close(scaled.plan, total * plain.plan, rtol=1e-6, atol=1e-12)
    assert scaled.value == pytest.approx(total**2 * plain.value, rel=1e-6)
    np.testing.assert_allclose(scaled.plan.sum(1), total * p, atol=1e-9)
    assert scaled.marginal_error < 1e-9
    assert scaled.marginal_residual == pytest.approx(plain.marginal_residual, rel=1e-3)


@pytest.mark.filterwarnings("ignore::torchgw.PrecisionWarning")
@pytest.mark.parametrize("epsilon", [1e-5, 1e-6, 1e-7])
def test_an_epsilon_too_small_to_solve_for_is_never_called_converged(epsilon: float) -> None:
    with pytest.warns(ConvergenceWarning, match="marginal residual"):
        result = gw_align(SPIRAL, ROLL, epsilon=epsilon, options=QUICK, random_state=0)
    assert result.status is Status.MARGINALS
    assert result.marginal_residual > 0.01
    assert result.marginal_error < 1e-6


@pytest.mark.filterwarnings("ignore::torchgw.PrecisionWarning")
@pytest.mark.parametrize("epsilon", [1e-10, 1e-12, 1e-36])
def test_an_epsilon_beyond_float64_raises(epsilon: float) -> None:
    with pytest.raises(FloatingPointError, match="raise epsilon"):
        gw_align(SPIRAL, ROLL, epsilon=epsilon, options=QUICK, random_state=0)


@pytest.mark.parametrize(("n", "k"), [(2, 2), (2, 3), (3, 2), (3, 40)])
def test_the_smallest_spaces_are_aligned(n: int, k: int) -> None:
    rng = np.random.default_rng(0)
    result = short(rng.normal(size=(n, 2)), rng.normal(size=(k, 3)), distances="euclidean")
    assert result.shape == (n, k)
    assert result.marginal_error < 1e-12
    assert np.isfinite(result.value)


def test_unchecked_outer_iterations_do_not_wait_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    options = replace(SAMPLED, stopping=StoppingOptions(max_iter=40, min_iter=40, check_every=20))
    reads = 0
    original = {name: getattr(torch.Tensor, name) for name in ("__float__", "tolist", "item", "__bool__")}

    def counted(name: str) -> Any:
        def read(self: torch.Tensor, *rest: Any) -> Any:
            nonlocal reads
            reads += 1
            return original[name](self, *rest)

        return read

    class InLoopOnlyError(Exception):
        pass

    def stop(*_: Any) -> None:
        raise InLoopOnlyError

    provider = EuclideanDistances(SPIRAL)
    monkeypatch.setattr("torchgw.strategies.entropic.finish", stop)
    for name in original:
        monkeypatch.setattr(torch.Tensor, name, counted(name))
    monkeypatch.setattr("torchgw.validate.provider", lambda *_: None)
    with pytest.raises(InLoopOnlyError):
        gw_align(provider, provider, epsilon=1e-3, options=options, random_state=0)
    assert reads == 2


@pytest.mark.parametrize("kind", ["float32", "int64", "list", "tensor"])
def test_other_number_types_give_the_result_of_float64(kind: str) -> None:
    rng = np.random.default_rng(3)
    x, y = rng.integers(-50, 50, size=(40, 2)), rng.integers(-50, 50, size=(50, 3))
    expected = short(x.astype(np.float64), y.astype(np.float64))
    convert: Any = {
        "float32": lambda a: a.astype(np.float32),
        "int64": lambda a: a,
        "list": lambda a: a.tolist(),
        "tensor": torch.from_numpy,
    }[kind]
    assert np.array_equal(expected.plan, short(convert(x), convert(y)).plan)


def test_duplicated_points_and_points_without_mass_are_handled() -> None:
    x = np.concatenate((SPIRAL, SPIRAL[:30]))
    p = np.full(120, 1.0)
    p[5] = 0
    p /= p.sum()
    result = short(x, ROLL, p=p)
    assert np.isfinite(result.plan).all()
    assert float(result.plan[5].sum()) == 0
    np.testing.assert_allclose(result.plan.sum(1), p, atol=1e-12)
    assert np.isfinite(result.value)


def test_points_that_all_coincide_are_handled() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = short(np.ones((20, 2)), ROLL)
    assert np.isfinite(result.value)
    assert result.marginal_error < 1e-12


def test_every_kind_of_space_is_accepted_and_may_differ_between_the_two() -> None:
    graph = neighbour_graph(SPIRAL, 5)
    matrix = PrecomputedDistances.from_graphs([graph])[0]
    D = matrix.rows(torch.arange(90)) * matrix.scale
    expected = short(SPIRAL, ROLL, distances="precomputed")
    for space in (graph, D.numpy(), D, PrecomputedDistances(D), graph.tocoo()):
        result = short(space, ROLL)
        assert result.providers == ("PrecomputedDistances", "PrecomputedDistances")
        np.testing.assert_allclose(result.plan, expected.plan, rtol=0, atol=1e-9)
    mixed = short(graph, ROLL, distances=("landmark", "euclidean"))
    assert mixed.providers == ("LandmarkDistances", "EuclideanDistances")


def test_auto_takes_landmarks_for_many_points() -> None:
    many = make_spiral(501, noise=0.02)[0]
    assert short(many, ROLL).providers == ("LandmarkDistances", "PrecomputedDistances")
    assert short(neighbour_graph(many, 5), ROLL).providers[0] == "LandmarkDistances"


def test_a_disconnected_graph_is_warned_about_and_solved() -> None:
    graph = csr_matrix(np.kron(np.eye(2), np.ones((10, 10)) - np.eye(10)))
    with pytest.warns(UserWarning, match="X is not connected"):
        result = short(graph, ROLL, distances=("dijkstra", "auto"))
    assert np.isfinite(result.value)


@pytest.mark.parametrize(
    "options",
    [
        replace(SHORT, sampling=SamplingOptions(n_anchors=20)),
        replace(SHORT, sampling=SamplingOptions(step=1.0)),
        replace(SHORT, sampling=SamplingOptions(n_control=0)),
        replace(SHORT, sampling=SamplingOptions(n_control=20)),
        replace(SHORT, spaces=SpaceOptions(k=4)),
        replace(SHORT, spaces=SpaceOptions(n_landmarks=20)),
        replace(SHORT, sinkhorn=SinkhornOptions(max_iter=2)),
        replace(SHORT, sinkhorn=SinkhornOptions(final_max_iter=3)),
        replace(SHORT, sinkhorn=SinkhornOptions(tol=1e-2)),
        replace(SHORT, sinkhorn=SinkhornOptions(check_every=3)),
        replace(SHORT, sinkhorn=SinkhornOptions(relaxation=1.0)),
        replace(SHORT, annealing=AnnealingOptions(factor=2.0)),
        replace(SHORT, annealing=AnnealingOptions(n_iter=1)),
        replace(SHORT, stopping=StoppingOptions(max_iter=5, min_iter=2)),
        replace(SHORT, mixed_precision=False),
    ],
)
def test_changing_an_option_changes_the_plan(options: GWOptions) -> None:
    base = short(SPIRAL, ROLL, distances="landmark")
    assert not np.array_equal(base.plan, short(SPIRAL, ROLL, distances="landmark", options=options).plan)


@pytest.mark.parametrize(
    "stopping",
    [
        StoppingOptions(min_iter=80),
        StoppingOptions(min_iter=30, check_every=2),
        StoppingOptions(min_iter=30, ema_weight=0.9),
        StoppingOptions(min_iter=30, improvement=0.2),
        StoppingOptions(min_iter=30, patience=3),
        StoppingOptions(min_iter=30, plan_tol=2.0),
        StoppingOptions(max_iter=25, min_iter=30),
    ],
)
def test_changing_a_stopping_rule_changes_when_the_loop_ends(stopping: StoppingOptions) -> None:
    base = short(SPIRAL, ROLL, options=replace(SAMPLED, stopping=StoppingOptions(min_iter=30)))
    changed = short(SPIRAL, ROLL, options=replace(SAMPLED, stopping=stopping))
    assert changed.n_iter != base.n_iter


def test_the_iteration_limit_warns_and_says_what_to_change() -> None:
    with pytest.warns(ConvergenceWarning, match="raise options.stopping.max_iter"):
        result = gw_align(SPIRAL, ROLL, options=SHORT, random_state=0)
    assert result.status is Status.MAX_ITER
    assert not result.converged
    assert result.n_iter == 6


def test_an_unfinished_last_solve_warns_and_keeps_exact_marginals() -> None:
    options = replace(SAMPLED, sinkhorn=SinkhornOptions(final_max_iter=1))
    with pytest.warns(ConvergenceWarning, match="final_max_iter"):
        result = gw_align(SPIRAL, ROLL, epsilon=1e-3, options=options, random_state=0)
    assert result.status is Status.MARGINALS
    assert result.marginal_residual > options.sinkhorn.tol
    assert result.marginal_error < 1e-12


def test_a_converged_result_says_how_it_was_reached() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = gw_align(SPIRAL, ROLL, epsilon=1e-3, options=SAMPLED, random_state=0)
    assert result.converged
    assert result.status is Status.PLATEAU
    assert result.gradient == "sampled"
    assert result.gradient_passed_over == "options.gradient is 'sampled'"
    assert result.basins == ()
    assert result.backend == "eager"
    assert set(result.backends_passed_over) == {"triton", "compile"}
    assert result.blocks["rows"] > 0
    assert set(result.timings) == {"prepare", "search", "solve", "finish"}
    assert result.epsilon == 1e-3
    assert result.n_iter_sinkhorn > result.n_iter
    history = result.history
    assert history.iteration == list(range(1, result.n_iter + 1))
    assert len({len(column) for column in vars(history).values()}) == 1
    assert history.epsilon[0] == pytest.approx(1e-2)
    assert history.epsilon[-1] == 1e-3
    assert min(history.cost) > 0
    assert history.cost[-1] < history.cost[0] / 3
    assert history.elapsed == sorted(history.elapsed)


@pytest.mark.filterwarnings("ignore::torchgw.AmbiguityWarning")
@pytest.mark.parametrize(
    "distances", [("dijkstra", "euclidean"), pytest.param(("euclidean", "dijkstra"), marks=pytest.mark.slow)]
)
def test_a_second_basin_is_sampled_as_well_as_the_first(distances: tuple[str, str]) -> None:
    # Lifted potentials may stand for plans of a million times the mass; two basins tie here, so both are solved.
    other, _ = make_spiral(110, random_state=1)
    exact, sampled = (
        gw_align(SPIRAL, other, distances=distances, epsilon=1e-3, options=GWOptions(gradient=gradient), random_state=0)
        for gradient in ("exact", "sampled")
    )
    assert len(sampled.basins) > 1
    assert sampled.value <= 1.01 * exact.value


def test_the_callback_hears_every_check_and_may_end_the_solve() -> None:
    heard: list[Progress] = []
    result = short(
        SPIRAL, ROLL, callback=heard.append, options=replace(SHORT, stopping=StoppingOptions(max_iter=9, check_every=4))
    )
    assert [one.iteration for one in heard] == [4, 8, 9]
    assert [one.cost for one in heard] == result.history.cost
    assert heard[0].max_iter == 9

    class EnoughError(Exception):
        pass

    def stop(_: Progress) -> None:
        raise EnoughError

    with pytest.raises(EnoughError):
        gw_align(SPIRAL, ROLL, callback=stop)


def test_the_value_is_an_estimate_with_an_error_when_searches_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = short(SPIRAL, ROLL, distances="dijkstra")
    monkeypatch.setattr(objective_module, "SEARCHED_ROWS", 50)
    estimate = short(SPIRAL, ROLL, distances="dijkstra")
    assert exact.value_exact
    assert not estimate.value_exact
    assert 0 < estimate.value_error < exact.value
    assert abs(estimate.value - exact.value) < 4 * estimate.value_error


def test_float64_and_mixed_precision_agree() -> None:
    options = replace(SHORT, mixed_precision=False)
    single, double = short(SPIRAL, ROLL), short(SPIRAL, ROLL, options=options)
    assert np.abs(single.plan - double.plan).sum() < 1e-3
    assert single.value == pytest.approx(double.value, rel=1e-3)


@pytest.mark.slow
def test_the_compiled_backend_agrees_with_the_eager_one() -> None:
    eager, compiled = (short(SPIRAL, ROLL, backend=name) for name in ("eager", "compile"))
    assert compiled.backend == "compile"
    assert np.abs(eager.plan - compiled.plan).sum() < 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize("gradient", ["exact", "sampled"])
@pytest.mark.parametrize("backend", ["eager", "compile", "triton"])
def test_the_gpu_solves_it_and_matches_the_truth(backend: str, gradient: str) -> None:
    options = GWOptions(gradient=gradient)
    (X, angle_x), (Y, angle_y) = make_spiral(400), make_swiss_roll(500, random_state=1)
    result = gw_align(X, Y, device="cuda", backend=backend, options=options, epsilon=1e-3, random_state=0)
    assert result.backend == backend
    assert result.coupling.device.type == "cuda"
    assert isinstance(result.plan, np.ndarray)
    assert result.marginal_error <= 1e-12
    assert abs(spearmanr(angle_x, angle_y[result.argmax()])[0]) > 0.98


@pytest.mark.parametrize("distances", ["precomputed", "dijkstra", "landmark"])
def test_the_spiral_is_matched_with_the_roll(distances: str) -> None:
    source, source_angle = make_spiral(400)
    target, target_angle = make_swiss_roll(500, random_state=1)
    for seed in range(2):
        result = gw_align(source, target, distances=distances, random_state=seed)
        assert result.converged
        assert abs(spearmanr(source_angle, target_angle[result.argmax()])[0]) >= 0.998


@pytest.mark.slow
@pytest.mark.parametrize("distances", ["precomputed", "dijkstra", "landmark"])
@pytest.mark.parametrize("seed", range(10))
def test_the_spiral_is_matched_over_ten_seeds(distances: str, seed: int) -> None:
    source, source_angle = make_spiral(400)
    target, target_angle = make_swiss_roll(500, random_state=1)
    result = gw_align(source, target, distances=distances, random_state=seed)
    assert abs(spearmanr(source_angle, target_angle[result.argmax()])[0]) >= 0.998


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::torchgw.GraphWarning")  # some of these graphs are stitched
@pytest.mark.parametrize("distances", ["precomputed", "dijkstra", "landmark"])
def test_the_spiral_is_matched_over_ten_data_sets_whose_graphs_have_no_short_cut(distances: str) -> None:
    whole = 0
    for seed in range(10):
        source, source_angle = make_spiral(400, random_state=seed)
        target, target_angle = make_swiss_roll(500, random_state=100 + seed)
        graph = neighbour_graph(target, 5).tocoo()
        if np.abs(target_angle[graph.row] - target_angle[graph.col]).max() > 2:
            continue  # an edge joins two turns of the roll: these geodesics are not those of the roll
        whole += 1
        result = gw_align(source, target, distances=distances, random_state=seed)
        assert abs(spearmanr(source_angle, target_angle[result.argmax()])[0]) >= 0.998
    assert whole >= 9


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_large_spiral_is_matched(seed: int) -> None:
    source, source_angle = make_spiral(4000, random_state=seed)
    target, target_angle = make_swiss_roll(5000, random_state=100 + seed)
    result = gw_align(source, target, distances="landmark", random_state=seed)
    assert abs(spearmanr(source_angle, target_angle[result.argmax()])[0]) >= 0.999

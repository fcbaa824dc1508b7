"""Points on curves and surfaces: what the spaces allow to leave out, and that it is the same matching."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from tests.problems import quietly
from tests.simulated_device import simulated_gpu
from tests.simulated_kernels import triton_stands_in
from torchgw import EuclideanDistances, GWOptions, GWResult, SemiRelaxed, StoppingOptions, gw_align, resume
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.diagnostics.status import Status
from torchgw.objective import bounds
from torchgw.request import request
from torchgw.search import anneal
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.spaces import LandmarkDistances
from torchgw.spaces.coarsening import measure_coverage
from torchgw.spaces.graph import neighbour_graph
from torchgw.strategies import ladder, within_memory
from torchgw.types import Array, DistanceProvider

(X, ANGLE_X), (Y, ANGLE_Y) = make_spiral(820), make_swiss_roll(900, random_state=1)
DENSE = GWOptions(strategy="dense")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done between very many points is done between these."""
    for name in ("SHARPENED_PAIRS", "CURVED_PAIRS"):
        monkeypatch.setattr(request, name, 1e5)


def curves(**given: Any) -> GWResult:
    result: GWResult = quietly(gw_align, X, Y, random_state=0, **given)
    return result


def rho(result: GWResult) -> float:
    return float(spearmanr(ANGLE_X, ANGLE_Y[result.argmax()])[0])


def surfaces(n: int, k: int) -> tuple[Array, Array, Array]:
    """Points of a plane without symmetries, and of the same plane bent and shuffled, with their places."""
    rng = np.random.default_rng(1)
    flat = rng.uniform(size=(max(n, k), 2)) * [1.3, 1.0]
    flat[:, 0] += 0.3 * flat[:, 1] ** 2
    order = rng.permutation(k)
    bent = np.stack((np.cos(flat[:, 0]), np.sin(flat[:, 0]), flat[:, 1]), 1)
    return flat[:n], bent[order], order


def blobs(count: int, n: int, width: float) -> Array:
    rng = np.random.default_rng(count)
    return rng.normal(size=(count, 3))[rng.integers(count, size=n)] + width * rng.normal(size=(n, 3))


@pytest.mark.parametrize("epsilon", ["auto", 1e-3, 2e-4])
def test_a_solve_begun_between_cells_ends_as_one_of_all_points(epsilon: float | str, few: None) -> None:
    result = curves(epsilon=epsilon)
    whole = curves(epsilon=result.epsilon, options=DENSE)
    assert result.strategy == whole.strategy == "dense"
    assert result.ladder
    assert not whole.ladder
    assert result.epsilon == pytest.approx(2e-3 if epsilon == "auto" else epsilon, rel=0.5)
    assert result.value <= 1.01 * whole.value
    assert result.marginal_error < 1e-12
    assert result.converged
    assert rho(result) > 0.999
    assert result.path[-1].value == pytest.approx(result.value, rel=1e-3) if epsilon == "auto" else not result.path


@pytest.mark.parametrize("kind", ["curves", pytest.param("surfaces", marks=pytest.mark.slow)])
def test_a_default_call_on_a_gpu_takes_the_course_that_it_takes_on_a_cpu(kind: str, few: None) -> None:
    """And waits a few dozen times; linear programs between curves would be a thousand waits."""
    points = (X, Y) if kind == "curves" else surfaces(600, 600)[:2]
    expected = quietly(gw_align, *points, distances="landmark", device="cpu", random_state=0)
    with simulated_gpu() as simulation, triton_stands_in(simulation):
        found = quietly(gw_align, *points, distances="landmark", device="cuda", random_state=0)
    assert found.ladder
    assert len(found.path) == len(expected.path)
    assert found.epsilon == pytest.approx(expected.epsilon, rel=1e-2)
    assert found.value == pytest.approx(expected.value, rel=2e-2, abs=1e-5)
    assert simulation.n_waits <= (40 if kind == "curves" else 200), simulation.table()


@pytest.mark.parametrize(
    "given",
    [
        {"marginals": SemiRelaxed(0.1, "y")},
        {"cost": np.abs(ANGLE_X[:, None] - ANGLE_Y) / np.ptp(ANGLE_X), "alpha": 0.5},
        {"init": np.full((820, 900), 1 / (820 * 900))},
        {"options": GWOptions(coarse=None)},
        {"options": GWOptions(stopping=StoppingOptions(plan_tol=1e-8))},
        {"options": DENSE},
    ],
    ids=["relaxed", "fused", "given", "unsearched", "precise", "dense"],
)
def test_what_asks_for_all_points_is_solved_between_all_points(given: dict[str, Any], few: None) -> None:
    result = curves(epsilon=1e-2, **given)
    assert result.strategy == "dense"
    assert not result.ladder


def test_points_without_mass_and_an_end_from_outside_are_carried_through_cells(few: None, tmp_path: Path) -> None:
    p = np.ones(len(X))
    p[::7] = 0.0
    result = curves(p=p / p.sum(), epsilon=1e-3)
    assert result.ladder
    assert float(result.plan[::7].sum()) == 0.0
    assert result.marginal_error < 1e-12
    part = curves(epsilon=1e-3, callback=lambda progress: True, checkpoint=tmp_path)
    assert part.status is Status.CANCELLED
    assert part.marginal_error < 1e-12
    assert np.array_equal(resume(tmp_path).plan, curves(epsilon=1e-3).plan)


def test_potentials_that_are_no_numbers_are_refused(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    lifted = ladder.lift_potentials

    def broken(*given: Any) -> tuple[Any, ...]:
        f, *others = lifted(*given)
        return f * math.nan, *others

    monkeypatch.setattr(ladder, "lift_potentials", broken)
    with pytest.raises(FloatingPointError, match=r"epsilon = 0.001 is too small: potentials are beyond"):
        curves(epsilon=1e-3)


def test_clusters_planes_and_what_is_not_given_as_points_are_no_curves(few: None) -> None:
    def along(space: DistanceProvider) -> bool:
        mass = torch.full((space.size,), 1 / space.size, dtype=torch.float64)
        return measure_coverage([space], [mass])[1]

    def geodesic(points: Array) -> DistanceProvider:
        return LandmarkDistances(neighbour_graph(points))

    def straight(points: Array) -> DistanceProvider:
        return EuclideanDistances(points)

    rng = np.random.default_rng(0)
    for n in (250, 400, 1500):
        for seed in range(3):
            assert along(geodesic(make_spiral(n, random_state=seed)[0]))
            assert along(geodesic(make_swiss_roll(n, random_state=seed)[0]))
        assert not along(straight(rng.uniform(size=(n, 2))))
        assert not along(straight(rng.normal(size=(n, 3))))
        for count, width in ((3, 0.02), (8, 0.1), (20, 0.02), (20, 0.1), (60, 0.01)):
            assert not along(straight(blobs(count, n, width)))
    assert not along(straight(rng.normal(size=(60, 1)))), "all points are landmarks"
    assert not along(straight(np.zeros((100, 2)))), "all points are one"
    matrices = [neighbour_graph(points) for points in (X, Y)]
    result = quietly(gw_align, *matrices, distances="landmark", epsilon=1e-3, random_state=0)
    assert not result.ladder


def test_a_copy_with_more_points_is_found_again_in_clusters() -> None:
    """Of different numbers of points, where blur would lose which is which."""
    points, order = blobs(20, 316, 0.02), np.random.default_rng(2).permutation(316)
    result = quietly(gw_align, points[:300], points[order], distances="euclidean", random_state=0)
    sharp = quietly(gw_align, points[:300], points[order], distances="euclidean", epsilon=0, random_state=0)
    assert result.epsilon == 0
    assert result.value <= 1.001 * sharp.value
    assert (order[result.argmax()] == np.arange(300)).mean() > 0.7  # 0.5 where it stays blurred


@pytest.mark.parametrize("other", ["circles", *(pytest.param(k, marks=pytest.mark.slow) for k in ("clouds", "blobs"))])
def test_one_kind_of_landmarks_is_enough_where_a_basin_of_curves_stands_out(
    other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    choose: Callable[..., object] = anneal.choose_landmarks

    def chosen(space: object, mass: object, kind: str, *given: object) -> object:
        tried.append(kind)
        return choose(space, mass, kind, *given)

    monkeypatch.setattr(anneal, "choose_landmarks", chosen)
    assert rho(curves(epsilon=1e-3)) > 0.999
    assert set(tried) == {"farthest"}
    rng = np.random.default_rng(0)
    t = np.linspace(0, 2 * np.pi, 400, endpoint=False)
    circle = np.stack((np.cos(t), np.sin(t)), 1)
    spaces = {
        "clouds": (rng.normal(size=(300, 3)), rng.normal(size=(310, 3))),
        "blobs": (blobs(20, 300, 0.02), blobs(20, 310, 0.02)),
        "circles": (circle, circle[:390]),  # no turn of which stands out
    }
    tried.clear()
    quietly(gw_align, *spaces[other], distances="euclidean", epsilon=1e-3, random_state=0)
    assert set(tried) == {"farthest", "spread", "random"}


def test_surfaces_of_equal_sizes_stream_and_end_sharp_as_they_would_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    flat, bent, _ = surfaces(600, 600)
    at_once = quietly(gw_align, flat, bent, distances="landmark", random_state=0)
    assert len(at_once.path) == 1
    monkeypatch.setattr(request, "SHARPENED_PAIRS", 1e5)
    result = quietly(gw_align, flat, bent, distances="landmark", random_state=0)
    assert (result.strategy, result.epsilon) == ("dense", 0)
    assert len(result.path) == 2
    assert result.ladder
    assert result.value <= 1.02 * at_once.value


def test_a_streamed_plan_that_did_not_settle_is_no_reason_to_stay_blurred(
    few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat, bent, _ = surfaces(600, 600)
    solve = within_memory.SOLVERS["streaming"]
    unsettled = {"streaming": lambda problem: _with_status(solve(problem), Status.MAX_ITER)}
    monkeypatch.setattr(within_memory, "SOLVERS", within_memory.SOLVERS | unsettled)
    result = quietly(gw_align, flat, bent, distances="landmark", random_state=0)
    assert (result.strategy, result.epsilon) == ("dense", 0)
    assert result.converged


def _with_status(found: Any, status: Status) -> Any:
    return within_memory.replace(found, status=status)


def test_surfaces_of_different_sizes_and_curves_are_not_streamed(few: None) -> None:
    flat, bent, _ = surfaces(560, 600)
    for epsilon in ("auto", 1e-3):
        assert quietly(gw_align, flat, bent, distances="landmark", epsilon=epsilon, random_state=0).strategy == "dense"
        assert curves(epsilon=epsilon).strategy == "dense"


@pytest.mark.parametrize("columns", [5, 64, 200])
def test_long_rows_are_transformed_in_parts(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(columns)
    monkeypatch.setattr(bounds, "WIDE", 64)
    U, V = torch.randn(30, 4, dtype=torch.float64), torch.randn(columns, 4, dtype=torch.float64)
    cost, mass = FactoredCost.squared_distance(U, V), torch.rand(columns, dtype=torch.float64)
    mass[1] = 0.0
    potential = torch.randn(columns, dtype=torch.float64)
    whole = cost.rows(slice(None)) - potential
    expected = whole[:, mass > 0].amin(1)
    torch.testing.assert_close(bounds.c_transform(cost, potential, mass), expected)

"""Points on curves and surfaces: what the spaces allow to leave out, and that it is the same matching."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from tests.problems import quietly
from torchgw import GWOptions, GWResult, SemiRelaxed, gw_align
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.objective import bounds
from torchgw.request import limits, request
from torchgw.search import anneal
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.strategies import from_cells

(X, ANGLE_X), (Y, ANGLE_Y) = make_spiral(820), make_swiss_roll(900, random_state=1)


def curves(**given: object) -> GWResult:
    result: GWResult = quietly(gw_align, X, Y, random_state=0, **given)
    return result


def rho(result: GWResult) -> float:
    return float(spearmanr(ANGLE_X, ANGLE_Y[result.argmax()])[0])


@pytest.mark.parametrize("epsilon", ["auto", 1e-3, 2e-4])
def test_a_solve_begun_between_cells_ends_as_one_of_all_points(epsilon: float | str) -> None:
    result, whole = curves(epsilon=epsilon), curves(epsilon=epsilon, options=GWOptions(strategy="dense"))
    assert result.strategy == whole.strategy == "dense"
    assert result.ladder
    assert not whole.ladder
    assert result.epsilon == pytest.approx(whole.epsilon)
    assert result.value == pytest.approx(whole.value, rel=0.01)
    assert result.marginal_error < 1e-12
    assert result.converged
    assert rho(result) > 0.999
    assert result.path[-1].value == pytest.approx(result.value, rel=1e-3) if epsilon == "auto" else not result.path


def test_where_more_than_distances_counts_or_nothing_is_searched_cells_are_not_begun_from() -> None:
    cost = np.abs(ANGLE_X[:, None] - ANGLE_Y) / np.ptp(ANGLE_X)
    plan = np.full(cost.shape, 1 / cost.size)
    unsearched = {"options": GWOptions(coarse=None)}
    for given in ({"marginals": SemiRelaxed(0.1, "y")}, {"cost": cost, "alpha": 0.5}, {"init": plan}, unsearched):
        result = curves(epsilon=1e-2, **given)
        assert result.strategy == "dense"
        assert not result.ladder


def test_an_epsilon_that_float64_cannot_carry_is_refused_there_too() -> None:
    with pytest.raises((FloatingPointError, ValueError), match="too small"):
        curves(epsilon=1e-300)


def test_blur_is_left_where_sizes_differ_and_copies_are_matched_exactly() -> None:
    order = np.random.default_rng().permutation(len(X))
    copy = quietly(gw_align, X, X[order], random_state=0)
    assert (order[copy.argmax()] == np.arange(len(X))).all()
    result = curves()
    assert result.epsilon == pytest.approx(0.01 * result.gain)
    assert len(result.path) == 1


def test_one_kind_of_landmarks_is_enough_where_a_basin_of_curves_stands_out(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    choose: Callable[..., object] = anneal.choose_landmarks

    def chosen(space: object, mass: object, kind: str, *given: object) -> object:
        tried.append(kind)
        return choose(space, mass, kind, *given)

    monkeypatch.setattr(anneal, "choose_landmarks", chosen)
    assert rho(curves()) > 0.999
    assert set(tried) == {"farthest"}
    tried.clear()
    rng = np.random.default_rng(0)
    quietly(gw_align, rng.normal(size=(300, 3)), rng.normal(size=(310, 3)), distances="euclidean", random_state=0)
    assert set(tried) == {"farthest", "spread", "random"}
    tried.clear()
    circle = np.stack((np.cos(t := np.linspace(0, 2 * np.pi, 400, endpoint=False)), np.sin(t)), 1)
    quietly(gw_align, circle, circle[:390], random_state=0)
    assert set(tried) == {"farthest", "spread", "random"}, "no turn of a circle stands out"


def test_surfaces_of_equal_sizes_stream_and_end_sharp_as_they_would_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    flat = rng.uniform(size=(600, 2)) * [1.3, 1.0]
    flat[:, 0] += 0.3 * flat[:, 1] ** 2
    order = rng.permutation(600)
    other = np.stack((np.cos(flat[:, 0]), np.sin(flat[:, 0]), flat[:, 1]), 1)[order]
    monkeypatch.setattr(request, "SHARPENED_PAIRS", {"cpu": 1e5})
    result = quietly(gw_align, flat, other, distances="landmark", random_state=0)
    assert (result.strategy, result.epsilon) == ("dense", 0)
    assert len(result.path) == 2
    assert result.ladder
    monkeypatch.setattr(request, "SHARPENED_PAIRS", limits.SHARPENED_PAIRS)
    at_once = quietly(gw_align, flat, other, distances="landmark", random_state=0)
    assert len(at_once.path) == 1
    assert result.value <= 1.02 * at_once.value


def test_curves_stream_once_they_are_seen_to_be_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "SMOOTH_PAIRS", {"cpu": 1e5})
    result = curves()
    assert result.strategy == "streaming"
    assert result.value == pytest.approx(curves(options=GWOptions(strategy="dense")).value, rel=0.03)
    assert curves(epsilon=1e-3).strategy == "streaming"
    assert curves(options=GWOptions(strategy="dense")).strategy == "dense"
    rng = np.random.default_rng(0)
    scattered = rng.normal(size=(400, 3)), rng.normal(size=(420, 3))
    assert quietly(gw_align, *scattered, distances="euclidean", random_state=0).strategy == "dense"


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


def test_cells_pay_where_there_are_points_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_cells, "CELLS_PAIRS", len(X) * len(Y) + 1)
    assert not curves(epsilon=1e-3).ladder

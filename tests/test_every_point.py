"""The search without entropy on cells: what their means keep, and what is found by them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from tests.problems import daily, random_masses
from torchgw import gw_align
from torchgw.diagnostics.status import History
from torchgw.objective.exact import ExactGradient
from torchgw.persist.watch import Watch
from torchgw.search import every_point
from torchgw.search.candidate import Candidate
from torchgw.search.every_point import make_cells
from torchgw.solvers.conditional_gradient import DenseProgram, conditional_gradient
from torchgw.solvers.iterate import Loop
from torchgw.spaces import FactoredDistances, PrecomputedDistances
from torchgw.strategies import dense

pytestmark = pytest.mark.filterwarnings("ignore::torchgw.AmbiguityWarning", "ignore::torchgw.ConvergenceWarning")


def space(n: int, rng: np.random.Generator) -> tuple[torch.Tensor, PrecomputedDistances]:
    D = torch.from_numpy(cdist(x := rng.normal(size=(n, 3)), x))
    return D, PrecomputedDistances.stored_matrix(D, 1.0)


@pytest.mark.parametrize("n", [60, 300])
def test_cells_have_the_means_of_distances_and_the_masses_of_their_points(n: int) -> None:
    rng = np.random.default_rng(n)
    D, given = space(n, rng)
    mass = torch.from_numpy(random_masses(n, rng))
    side = make_cells(given, mass, 16, torch.Generator().manual_seed(0))
    assert 8 <= side.count <= 16
    np.testing.assert_allclose(side.mass, side.sums(mass), rtol=1e-12)
    share = torch.zeros(n, side.count, dtype=torch.float64)
    share[torch.arange(n), side.label] = mass / side.mass[side.label]
    np.testing.assert_allclose(side.features, share.T @ D, atol=1e-12)
    np.testing.assert_allclose(side.distances, share.T @ D @ share, atol=1e-12)
    np.testing.assert_array_equal(side.label[side.medoids], np.arange(side.count))


def test_a_plan_that_is_constant_on_cells_has_the_value_of_the_plan_between_them() -> None:
    rng = np.random.default_rng(0)
    (DX, x), (DY, y) = space(80, rng), space(70, rng)
    p, q = (torch.from_numpy(random_masses(m, rng)) for m in (80, 70))
    generator = torch.Generator().manual_seed(0)
    near, far = make_cells(x, p, 8, generator), make_cells(y, q, 8, generator)
    between = torch.from_numpy(rng.uniform(size=(near.count, far.count)))
    between /= between.sum()
    whole = between[near.label][:, far.label] * (p / near.mass[near.label])[:, None] * (q / far.mass[far.label])
    cross = float(((DX @ whole @ DY) * whole).sum())
    assert float(((near.distances @ between @ far.distances) * between).sum()) == pytest.approx(cross, rel=1e-12)


def test_cells_of_factors_are_those_of_their_distances() -> None:
    rng = np.random.default_rng(1)
    F, mass = torch.from_numpy(rng.normal(size=(200, 4))), torch.full((200,), 1 / 200, dtype=torch.float64)
    signs = torch.tensor([1.0, -1.0, 1.0, 1.0], dtype=torch.float64)
    found = make_cells(FactoredDistances.of(F, signs, 1.0), mass, 16, torch.Generator().manual_seed(0))
    stored = PrecomputedDistances.stored_matrix((F * signs) @ F.T, 1.0)
    same = make_cells(stored, mass, 16, torch.Generator().manual_seed(0))
    np.testing.assert_array_equal(found.label, same.label)
    np.testing.assert_allclose(found.distances, same.distances, atol=1e-10)


def test_points_that_coincide_leave_no_empty_cell() -> None:
    rng = np.random.default_rng(2)
    x = np.repeat(rng.normal(size=(5, 2)), 30, axis=0)
    mass = torch.from_numpy(random_masses(150, rng))
    given = PrecomputedDistances.stored_matrix(torch.from_numpy(cdist(x, x)), 1.0)
    side = make_cells(given, mass, 32, torch.Generator().manual_seed(0))
    assert float(side.mass.min()) > 0
    assert int(side.label.max()) + 1 == side.count


@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow), 3])
def test_beside_far_points_nothing_is_above_conditional_gradients_from_the_product_plan(seed: int) -> None:
    rng = np.random.default_rng((400, seed, 7))
    DX, DY = (cdist(x := rng.exponential(size=(240, 3)), x, "sqeuclidean") for _ in range(2))
    p = rng.uniform(0.2, 1, 240)
    found = gw_align(DX, DY, p=p / p.sum(), distances="precomputed", epsilon=0.0, random_state=0)
    masses = torch.from_numpy(p / p.sum()), torch.full((240,), 1 / 240, dtype=torch.float64)
    spaces = (PrecomputedDistances.stored_matrix(torch.from_numpy(D), 1.0) for D in (DX, DY))
    gradient, product = ExactGradient(*spaces, *masses), torch.outer(*masses)
    loop = Loop(Watch(), History(), 200, 1e-6)
    end, _ = conditional_gradient(DenseProgram(gradient, *masses), product, torch.zeros(240), loop)
    assert found.value <= end.value * (1 + 1e-6)
    assert found.converged


@pytest.mark.parametrize(("n", "k"), [(300, 360), (60, 700)])
def test_many_points_go_on_from_the_lowest_plan_between_finer_cells(
    n: int, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (every_point, dense):
        monkeypatch.setattr(module, "COMPARED_PAIRS", 0)
    for size in ("CELLS", "FINER"):
        monkeypatch.setattr(every_point, size, getattr(every_point, size) // 4)
    compared, found = every_point._compare_between_finer_cells, list[Candidate]()

    def seen(*arguments: Any) -> list[Candidate]:
        found.extend(compared(*arguments))
        return found

    monkeypatch.setattr(every_point, "_compare_between_finer_cells", seen)
    rng = np.random.default_rng((n, k))
    DX, DY = (cdist(x := rng.exponential(size=(m, 3)), x, "sqeuclidean") for m in (n, k))
    p, q = random_masses(n, rng), random_masses(k, rng)
    DX, DY = DX / DX.max(), DY / DY.max()
    end = gw_align(DX, DY, p=p, q=q, distances="precomputed", epsilon=0.0, random_state=0)
    assert len(found) > 1
    assert [each.selected for each in found] == sorted((each.selected for each in found), reverse=True)
    assert found[0].energy == min(each.energy for each in found if each.start.plan is not None)
    for each in found:
        assert each.selected == (each.start.plan is not None)
    plan = found[0].start.plan.double().numpy()
    np.testing.assert_allclose(plan.sum(1), p, rtol=1e-5)
    np.testing.assert_allclose(plan.sum(0), q, rtol=1e-5)
    value = p @ DX**2 @ p + q @ DY**2 @ q - 2 * ((DX @ plan @ DY) * plan).sum()
    assert found[0].energy == pytest.approx(value, rel=1e-4)
    assert end.value < found[0].energy
    assert 1 <= len(end.basins) <= len(found)


def test_a_space_of_few_places_beside_their_copies_is_matched() -> None:
    """Cells that lose nothing, and a plan of value zero."""
    x = np.random.default_rng(6).normal(size=(50, 3))
    many = np.tile(x, (20, 1))
    found = gw_align(x, many, distances="euclidean", epsilon=0.0, random_state=0)
    np.testing.assert_array_equal(found.plan.argmax(0), np.tile(np.arange(50), 20))
    assert found.value < 1e-9


def test_a_cancelled_solve_between_cells_keeps_what_it_has() -> None:
    rng = np.random.default_rng(7)
    DX, DY = (cdist(x := rng.exponential(size=(230, 3)), x) for _ in range(2))
    given = {"distances": "precomputed", "epsilon": 0.0, "random_state": 0}
    whole = gw_align(DX, DY, **given)
    found = gw_align(DX, DY, **given, callback=lambda progress: True)
    assert len(found.basins) == len(whole.basins) > 1
    np.testing.assert_allclose(found.plan.sum(1), 1 / 230, atol=1e-12)
    assert not found.converged


def test_a_copy_in_another_order_is_found_between_unequal_masses() -> None:
    rng = np.random.default_rng(4)
    x = rng.exponential(size=(260, 3))
    p, order = rng.uniform(0.2, 1, 260), rng.permutation(260)
    p /= p.sum()
    D, given = cdist(x, x), {"distances": "precomputed", "epsilon": 0, "random_state": 0}
    found = gw_align(D, D[np.ix_(order, order)], p=p, q=p[order], **given)
    np.testing.assert_array_equal(order[found.argmax()], np.arange(260))
    assert found.value <= 1e-9


@pytest.mark.parametrize(("d", "seed"), daily([(28, 0)], [50, 28], [77, 2, 0]))
def test_points_that_no_cells_stand_for_are_matched(d: int, seed: int) -> None:
    """In many dimensions half of the variance of distances is within cells."""
    rng = np.random.default_rng((d, seed))
    x = rng.normal(size=(500, d))
    part = rng.permutation(500)[:420]
    found = gw_align(x[part] + 0.03 * rng.normal(size=(420, d)), x, distances="euclidean", random_state=0)
    np.testing.assert_array_equal(found.argmax(), part)
    assert all(basin.origin != "cells" for basin in found.basins)

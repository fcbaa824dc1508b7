"""Cells of points, their means, and scores of small rank."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.problems import normal
from torchgw import FactoredDistances
from torchgw.kernels import LOG2E
from torchgw.objective.model import Model
from torchgw.search.coarsen import ControlledSpace
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.sinkhorn.score import factored_score
from torchgw.spaces.coarsening import Cells, bisect


def cloud(n: int, d: int = 3, seed: int = 0) -> torch.Tensor:
    return normal(n, d, seed=seed)


@pytest.mark.parametrize(
    ("n", "wanted", "unit"), [(1000, 64, 1), (1000, 8, 100), (37, 37, 1), (5, 100, 1), (513, 16, 32)]
)
def test_cells_are_a_partition_into_runs_of_the_order(n: int, wanted: int, unit: int) -> None:
    order, ends = halves = bisect(cloud(n), wanted, unit)
    assert torch.equal(order.sort().values, torch.arange(n))
    assert (int(ends[0]), int(ends[-1])) == (0, n)
    assert bool((ends[1:] > ends[:-1]).all())
    cells = halves.cells
    along = cells.label[order]
    assert bool((along[1:] >= along[:-1]).all())
    assert torch.equal(torch.bincount(cells.label), ends[1:] - ends[:-1])
    assert cells.count >= min(wanted, n)


def test_cells_are_balanced_and_finer_cells_lie_within_coarser_ones() -> None:
    coarse, fine = bisect(cloud(1000), 8).cells, bisect(cloud(1000), 64).cells
    sizes = torch.bincount(fine.label)
    assert (coarse.count, fine.count) == (8, 64)
    assert int(sizes.max() - sizes.min()) <= 1
    parent = torch.full((fine.count,), -1)
    parent[fine.label] = coarse.label
    assert torch.equal(parent[fine.label], coarse.label)


@pytest.mark.parametrize("wanted", [2, 4, 8])
def test_runs_of_the_unit_never_straddle_cells(wanted: int) -> None:
    assert all(int(end) % 64 == 0 for end in bisect(cloud(1000), wanted, unit=64).ends[:-1])


def test_cells_are_smaller_than_chance_would_make_them() -> None:
    points = cloud(4000)
    cells = bisect(points, 64).cells
    mass = torch.ones(4000, dtype=torch.float64)
    spread = (points - cells.means(points, mass)[cells.label]).square().sum()
    assert float(spread) < 0.15 * float(points.square().sum())  # 64 cells of a Gaussian in three dimensions


def test_means_carry_the_mass() -> None:
    values = cloud(6, 2)
    cells = Cells(torch.tensor([0, 0, 1, 1, 2, 2]), 3)
    mass = torch.tensor([1.0, 3.0, 1.0, 4.0, 2.0, 2.0], dtype=torch.float64)
    expected = torch.stack(
        ((values[0] + 3 * values[1]) / 4, (values[2] + 4 * values[3]) / 5, (values[4] + values[5]) / 2)
    )
    torch.testing.assert_close(cells.means(values, mass), expected)
    centres = cells.nearest(values, expected)
    assert centres[1] == 3
    assert cells.label[centres].tolist() == [0, 1, 2]


def test_linear_functions_of_the_factors_integrate_exactly_over_cells() -> None:
    """So the gradient between cells is that of the plan which is constant on them."""
    generator = torch.Generator().manual_seed(0)
    F, signs = cloud(300, 4), torch.tensor([1.0, -1.0, 1.0, 1.0], dtype=torch.float64)
    mass = torch.rand(300, generator=generator, dtype=torch.float64)
    mass /= mass.sum()
    side = ControlledSpace.of(FactoredDistances(F, signs), mass, torch.float64, 0, generator)
    x = side.coarsen(bisect(F, 20).cells)
    cost = FactoredCost(cloud(300, 1)[:, 0], cloud(300, 1, 1)[:, 0], cloud(300, 5, 2), cloud(300, 5, 3))
    small = Model(mass, mass, 1e-3).average_cost(cost, x, x)
    assert small is not None
    weights = mass[:, None] * mass
    whole = (cost.rows(slice(None)) * weights).sum()
    assert x.space is not None
    held = x.mass
    assert float((small.rows(slice(None)) * held[:, None] * held).sum()) == pytest.approx(float(whole))
    assert float(held @ x.space.rows(torch.arange(x.count)) @ held) == pytest.approx(
        float(mass @ side.space.rows(torch.arange(300)) @ mass)
    )


@pytest.mark.parametrize("tolerance", [10.0, 1.0, 1e-12])
def test_the_score_of_small_rank_is_off_by_no_more_than_is_asked_for(tolerance: float) -> None:
    U = cloud(80, 12) * 0.5 ** torch.arange(12, dtype=torch.float64)
    V = cloud(90, 12, 1)
    p, q = (torch.rand(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64) for n in (80, 90))
    p, q, epsilon = p / p.sum(), q / q.sum(), 1e-2
    score = factored_score(FactoredCost(p, q, U, V), p, q, epsilon, tolerance)
    whole = 2 * LOG2E / epsilon * (U @ V.T)
    off = (score.A @ score.B.T + score.row[:, None] + score.column - whole).abs().max()
    assert float(off) <= tolerance + 1e-9
    assert score.A.shape[1] < 12 or tolerance == 1e-12
    torch.testing.assert_close(p @ score.A, torch.zeros(score.A.shape[1], dtype=torch.float64), rtol=0, atol=1e-9)


def test_factors_with_dependent_columns_lose_nothing() -> None:
    U = cloud(50, 3)
    U, V = torch.cat((U, U @ cloud(3, 4, 5)), 1), cloud(60, 7, 1)
    p, q = torch.full((50,), 1 / 50, dtype=torch.float64), torch.full((60,), 1 / 60, dtype=torch.float64)
    score = factored_score(FactoredCost(p.expand(50), q.expand(60), U, V), p, q, 0.1, 1e-12)
    whole = 2 * LOG2E / 0.1 * (U @ V.T)
    torch.testing.assert_close(score.A @ score.B.T + score.row[:, None] + score.column, whole)
    assert score.A.shape[1] <= 3


@pytest.mark.parametrize(
    ("signs", "scale", "message"),
    [
        ([1.0, 0.5, 1.0], 1.0, "each 1 or -1"),
        ([1.0, -1.0], 1.0, "3 numbers"),
        ([1.0, 1.0, 1.0], 0.0, "scale must be a finite number > 0"),
    ],
)
def test_factors_that_do_not_fit_are_refused(signs: list[float], scale: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FactoredDistances(np.eye(3), np.array(signs), scale)


def test_given_factors_are_divided_by_the_scale() -> None:
    F = np.random.default_rng(0).normal(size=(7, 3))
    signs = np.array([1.0, -1.0, 1.0])
    space = FactoredDistances(F, signs, 4.0)
    torch.testing.assert_close(space.rows(torch.arange(7)), torch.from_numpy((F * signs) @ F.T / 4.0))
    assert (space.size, space.scale, space.stored) == (7, 4.0, True)

"""Crossing: ends that have some clusters right lead to one that has all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.problems import quietly
from tests.simulated_device import simulated_gpu
from torchgw import Partial, SemiRelaxed, Unbalanced, gw_align
from torchgw.marginals import Marginals
from torchgw.objective.model import Model
from torchgw.persist.watch import Watch
from torchgw.search import basins, crossing, every_point
from torchgw.search.anneal import LandmarkProblem
from torchgw.search.crossing import CROSSED, Entrant, cross_basins, improve_by_offspring
from torchgw.spaces import PrecomputedDistances
from torchgw.spaces.coarsening import Coarsening

F64 = torch.float64


def clusters(n: int, kinds: int, dimension: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two noisy views of points in clusters, and the cluster of each point."""
    rng = np.random.default_rng(seed)
    centres, label = rng.normal(size=(kinds, dimension)), rng.integers(kinds, size=n)
    own, moved = rng.normal(size=(n, dimension)) * 0.5, 0.3 * rng.normal(size=(kinds, dimension))
    X = centres[label] + own + 0.3 * rng.normal(size=(n, dimension))
    return X, (centres + moved)[label] + own + 0.3 * rng.normal(size=(n, dimension)), label


def between(X: np.ndarray, Y: np.ndarray) -> LandmarkProblem:
    """The problem between all points, as if they were landmarks."""
    spaces = [PrecomputedDistances(np.linalg.norm(Z[:, None] - Z, axis=2)) for Z in (X, Y)]
    mass = torch.full((len(X),), 1 / len(X), dtype=F64)
    every = torch.arange(len(X))
    x, y = (Coarsening.of_points(space.to(mass.device, F64).rows(every), mass) for space in spaces)
    return LandmarkProblem.of(x, y, Model(mass, mass, 0.0))


def mixed(label: np.ndarray, right: set[int], rng: np.random.Generator) -> torch.Tensor:
    """The plan that matches points of these clusters rightly, and the others at random among themselves."""
    order, others = np.arange(len(label)), np.flatnonzero(~np.isin(label, list(right)))
    order[others] = rng.permutation(others)
    plan = torch.zeros(len(label), len(label), dtype=F64)
    plan[torch.arange(len(label)), torch.from_numpy(order)] = 1 / len(label)
    return plan


def test_ends_that_have_half_of_the_clusters_right_lead_to_the_whole_matching() -> None:
    X, _, label = clusters(90, 8, 4, seed=0)
    problem, rng = between(X, X + 0.01 * np.random.default_rng(1).normal(size=X.shape)), np.random.default_rng(2)
    plans = torch.stack(
        [mixed(label, right, rng) for right in ({0, 1, 2, 3}, {4, 5, 6, 7}, {0, 2, 4, 6}, {1, 3, 5, 7})]
    )
    found = cross_basins(problem, plans.clone(), 0.0, 6, Watch())
    assert [basin.energy for basin in found] == sorted(basin.energy for basin in found)
    assert found[0].energy < 0.1 * float(problem.energies(plans).min())
    assert float((found[0].plan.argmax(1) == torch.arange(90)).double().mean()) > 0.9
    assert all(basin.count == 0 for basin in found)
    np.testing.assert_allclose(found[0].plan.sum(1), problem.x.mass, atol=1e-12)


def test_basins_are_no_higher_than_the_ends_that_they_are_cooled_from(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[float] = []

    def followed(*given: Any) -> list[Any]:
        pool = improve_by_offspring(*given)
        ends.extend(each.energy for each in pool)
        return pool

    monkeypatch.setattr(crossing, "improve_by_offspring", followed)
    X, Y, label = clusters(90, 8, 4, seed=0)
    for problem in (between(X, X + 0.01), between(X, Y)):
        rng = np.random.default_rng(2)
        plans = torch.stack([mixed(label, {2 * i, 2 * i + 1}, rng) for i in range(4)])
        ends.clear()
        found = cross_basins(problem, plans, 0.0, 6, Watch())
        assert found[0].energy <= ends[0]


def test_a_pair_is_tried_once_and_the_search_ends_where_nothing_falls() -> None:
    corners = [torch.nn.functional.one_hot(torch.tensor(i), 4).to(F64)[None] for i in range(4)]
    pool = [
        Entrant(str(i), plan, float(energy)) for i, (plan, energy) in enumerate(zip(corners, (4, 3, 2, 9), strict=True))
    ]
    asked: list[frozenset[str]] = []
    energies = iter((1.0, 5.0, 6.0))

    def born(fresh: list[tuple[Entrant, Entrant]], lowest: list[Entrant]) -> list[Entrant]:
        asked.extend(frozenset((one.origin, other.origin)) for one, other in fresh)
        assert len(lowest) <= 3
        energy = next(energies, None)
        return [] if energy is None else [Entrant(f"of {energy}", corners[0] + corners[3], energy)]

    found = improve_by_offspring(pool, 3, 10, 2, 0.0, 0.05, born)
    assert [each.energy for each in found] == [1, 2, 3, 4, 5, 6, 9]
    assert len(asked) == len(set(asked))
    assert frozenset(("0", "3")) not in asked
    assert (
        improve_by_offspring(pool, 3, 10, 1, 0.9, 0.05, lambda fresh, lowest: [Entrant("", corners[0], 1.9)])[0].energy
        == 1.9
    )


def test_which_ends_are_distinct_is_read_from_a_gpu_at_once() -> None:
    generator, apart = torch.Generator().manual_seed(0), 1.3
    plans = torch.rand(30, 6, 7, generator=generator, dtype=F64)[torch.arange(60) % 30]
    plans /= plans.sum((1, 2), keepdim=True)
    plans[::4] = torch.eye(6, 7, dtype=F64) / 6
    plans[3] = torch.nan

    def pool(device: str) -> list[Entrant]:
        return [Entrant("", plan.to(device), float(at)) for at, plan in enumerate(plans)]

    def places(pool: list[Entrant]) -> list[float]:
        return [entrant.energy for most in (1, 4, 60) for entrant in crossing._select_distinct(pool, most, apart / 6)]

    with simulated_gpu() as simulation:
        there = pool("cuda")
        before = simulation.n_waits
        found = places(there)
    assert found == places(pool("cpu"))
    assert simulation.n_waits - before == 3, simulation.table()


def test_an_end_whose_energy_is_no_number_is_the_last() -> None:
    plan = torch.eye(2, dtype=F64) / 2
    found = improve_by_offspring(
        [Entrant("a", plan, float("nan")), Entrant("b", plan, 1.0)], 2, 1, 1, 0.0, 0.1, lambda *_: []
    )
    assert [each.origin for each in found] == ["b", "a"]


def test_a_cancelled_search_keeps_what_it_has() -> None:
    X, Y, label = clusters(60, 5, 3, seed=3)
    problem, rng, watch = between(X, Y), np.random.default_rng(4), Watch()
    watch.stop()
    plans = torch.stack([mixed(label, {one}, rng) for one in range(3)])
    assert cross_basins(problem, plans, 0.0, 2, watch)


def test_the_default_crosses_where_clusters_leave_many_optima(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y, _ = clusters(300, 20, 10, seed=3)
    found = quietly(gw_align, X, Y, random_state=0)
    assert any(CROSSED in basin.origin for basin in found.basins)
    monkeypatch.setattr(every_point, "DOUBT", 1.0)
    without = quietly(gw_align, X, Y, random_state=0)
    assert not any(CROSSED in basin.origin for basin in without.basins)
    assert found.value < 0.995 * without.value


def test_what_stands_out_is_not_crossed(monkeypatch: pytest.MonkeyPatch) -> None:
    X, _, _ = clusters(400, 8, 3, seed=5)
    monkeypatch.setattr(every_point, "cross_basins", lambda *_: pytest.fail("crossed"))
    Q = np.linalg.qr(np.random.default_rng(6).normal(size=(3, 3)))[0]
    found = quietly(gw_align, X * (1, 2, 4), X * (1, 2, 4) @ Q, random_state=0)
    assert found.value < 1e-6


@pytest.mark.parametrize(
    "marginals",
    [SemiRelaxed(1.0), *(pytest.param(each, marks=pytest.mark.slow) for each in (Unbalanced(1.0, 1.0), Partial(0.5)))],
)
def test_plans_whose_marginals_give_way_are_not_crossed(monkeypatch: pytest.MonkeyPatch, marginals: Marginals) -> None:
    monkeypatch.setattr(basins, "cross_basins", lambda *_: pytest.fail("crossed"))
    X, Y, _ = clusters(400, 16, 10, seed=0)
    found = quietly(gw_align, X, Y, marginals=marginals, random_state=0)
    assert len(found.basins) > 1

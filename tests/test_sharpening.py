"""Between many points a plan is streamed, or solved dense, with an entropy first, and made sharp from there."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.problems import quietly
from tests.test_continuation import cloud
from torchgw import GWOptions, GWResult, OutOfMemoryWarning, StoppingOptions, gw_align, resume
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.persist import checkpoint
from torchgw.problem.problem import Problem, StoredProblem
from torchgw.request import limits, request
from torchgw.search import basins
from torchgw.search.candidate import Candidate
from torchgw.spaces.low_rank import approximate_distances
from torchgw.strategies import dense, entropic, sharp, surrogate, within_memory

POINTS = 420
MASSES = np.linspace(1, 2, POINTS) / (1.5 * POINTS)


@pytest.fixture(params=["streaming", "dense"])
def first(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The strategy that comes first, between as many points as would be many."""
    for name in ("SHARP_ASSIGNED_PAIRS", "SHARP_PAIRS"):
        monkeypatch.setattr(limits, name, 100)
    if request.param == "streaming":
        monkeypatch.setattr(limits, "DENSE_PAIRS", {"cpu": 100_000})
    return request.param


def solved(d: int, n: int = POINTS, **given: Any) -> tuple[GWResult, float]:
    """The result for a cloud and its exact copy, and the share of points matched."""
    X, Y, match = cloud(n, d, noise=0.0)
    result = quietly(gw_align, X, Y, **({"distances": "landmark", "random_state": 0} | given))
    return result, float((result.argmax() == match).mean())


def test_a_plane_ends_sharp(first: str) -> None:
    result, right = solved(2)
    assert right == 1.0
    assert result.strategy == "dense"
    assert result.epsilon == 0
    assert bool(result.ladder) == (first == "streaming")
    start, end = result.path
    assert start.epsilon > end.epsilon == 0
    assert end.value == pytest.approx(result.value, rel=1e-6)
    assert end.value < 0.1 * start.value
    assert 0 < end.moved < 1
    assert result.status.converged
    assert result.potentials is None
    assert all(early < late for early, late in pairwise(result.history.iteration))
    assert all(early <= late for early, late in pairwise(result.history.elapsed))
    assert set(result.timings) >= {"search", "solve", "finish"}
    assert result.basins


@pytest.mark.parametrize("distances", ["landmark", "euclidean"])
def test_what_streamed_is_kept_where_memory_ends_in_the_sharp_end(
    distances: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SHARP_ASSIGNED_PAIRS", "SHARP_PAIRS"):
        monkeypatch.setattr(limits, name, 100)
    monkeypatch.setattr(limits, "DENSE_PAIRS", {"cpu": 100})
    monkeypatch.setattr(surrogate, "SLOW_WORK", {"cpu": 1})
    X, Y, _ = cloud(POINTS, 2, noise=0.0)
    given = {"distances": distances, "random_state": 0}

    def fails(problem: Problem, streamed: object) -> None:
        torch.rand(5, generator=problem.generator)
        raise MemoryError("no")

    monkeypatch.setattr(within_memory, "solve_dense", fails)
    with pytest.warns(
        OutOfMemoryWarning, match=r"memory ran out where the plan was to be stored \(no\), so the streaming"
    ):
        result = gw_align(X, Y, **given)
    assert result.strategy == "streaming"
    assert result.status.converged
    assert [step.epsilon for step in result.path] == [result.epsilon]
    assert result.gradient == ("exact" if distances == "landmark" else "leading factors")
    assert result.value_exact == (distances == "landmark")
    at_once = quietly(gw_align, X, Y, **given, options=GWOptions(strategy="streaming"))
    np.testing.assert_array_equal(result.argmax(), at_once.argmax())
    assert result.value == pytest.approx(at_once.value, abs=5 * result.value_error)


def test_factors_that_were_looked_for_are_kept_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surrogate, "SLOW_WORK", {"cpu": 1})
    monkeypatch.setattr(checkpoint, "SHORT", 0.0)
    looked_for: list[int] = []

    def slow(*given: Any) -> Any:
        looked_for.append(1)
        time.sleep(0.2)
        return approximate_distances(*given)

    monkeypatch.setattr(surrogate, "approximate_distances", slow)
    X, Y, _ = cloud(150, 2, noise=0.0)
    given = {"distances": "euclidean", "options": GWOptions(strategy="streaming"), "epsilon": 1e-3, "random_state": 0}
    cut = quietly(gw_align, X, Y, **given, callback=lambda progress: True, checkpoint=tmp_path / "solve")
    assert cut.status.name == "CANCELLED"
    assert cut.timings["search"] > 0.4
    assert len(looked_for) == 2
    again = quietly(resume, tmp_path / "solve")
    assert len(looked_for) == 2
    assert again.value == quietly(gw_align, X, Y, **given).value


def test_scattered_points_are_solved_sharp_at_once(first: str) -> None:
    result, right = solved(5)
    assert (right, result.strategy, [step.epsilon for step in result.path]) == (1.0, "dense", [0])


def test_curves_and_points_that_are_too_many_stay_as_they_are(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = make_spiral(POINTS, random_state=0)[0], make_swiss_roll(POINTS, random_state=1)[0]
    result = quietly(gw_align, X, Y, distances="landmark", random_state=0)
    assert (result.strategy, result.epsilon > 0) == (first, True)
    monkeypatch.setattr(request, "SHARP_SCATTERED_PAIRS", POINTS**2 - 1)
    assert solved(2)[0].epsilon > 0


@pytest.mark.parametrize(
    "given",
    [
        {"epsilon": 1e-3},
        {"p": np.linspace(1, 2, POINTS) / (1.5 * POINTS)},
        {"options": GWOptions(strategy="streaming")},
    ],
    ids=["number", "masses", "strategy"],
)
def test_only_assignments_whose_epsilon_is_open(
    first: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for steps that take long, between fewer points."""
    monkeypatch.setattr(entropic, "FEW_PAIRS", 0)
    result, _ = solved(2, **given)
    assert result.epsilon > 0


def test_the_same_bits_again_and_after_an_end(first: str, tmp_path: Path) -> None:
    one, _ = solved(2)
    seen: list[int] = []

    def stop(progress: Any) -> bool:
        seen.append(progress.iteration)
        return len(seen) == 2

    cut, _ = solved(2, callback=stop, checkpoint=tmp_path / "solve")
    assert cut.status.name == "CANCELLED"
    again = quietly(resume, tmp_path / "solve")
    for other in (solved(2)[0], again):
        assert other.value == one.value
        assert np.array_equal(other.argmax(), one.argmax())
        assert [step.epsilon for step in other.path] == [step.epsilon for step in one.path]


def test_iterations_are_counted_once_and_on(first: str) -> None:
    heard: list[int] = []
    result, _ = solved(2, callback=lambda progress: heard.append(progress.iteration))
    assert heard == sorted(set(heard))
    assert heard[-1] == result.history.iteration[-1]
    assert sum(step.n_iter for step in result.path) == result.n_iter
    assert len(result.history.cost) >= result.path[-1].n_iter > 0


def test_few_iterations_are_few() -> None:
    X, Y, _ = cloud(200, 2)
    options = GWOptions(stopping=StoppingOptions(max_iter=2))
    result = quietly(gw_align, X, Y, distances="landmark", epsilon=0, options=options, random_state=0)
    assert result.n_iter == len(result.history.cost)
    assert result.n_iter <= 3


def test_what_streamed_is_not_lost_when_it_is_stopped(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the plan that streamed and the first iteration of the sharp end."""
    if first == "dense":
        pytest.skip("one strategy has both ends")
    made = dense.make_gradient

    def stopped(problem: Any) -> Any:
        problem.watch.stop()
        return made(problem)

    monkeypatch.setattr(dense, "make_gradient", stopped)
    result, _ = solved(2)
    assert result.status.name == "CANCELLED"
    assert result.epsilon > 0
    assert result.ladder
    np.testing.assert_allclose(result.plan.sum(1), 1 / POINTS, rtol=1e-9)


def test_a_higher_sharp_end_is_not_taken(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = sharp.solve_unregularized
    monkeypatch.setattr(sharp, "solve_unregularized", lambda *given: replace(made(*given), energy=1.0))
    result, _ = solved(2)
    assert result.epsilon > 0
    assert [step.epsilon for step in result.path] == [result.epsilon]


def test_many_points_are_compared_roughly(monkeypatch: pytest.MonkeyPatch) -> None:
    fine, right = solved(10, epsilon=0)
    tried: list[Any] = []
    monkeypatch.setattr(basins, "MANY_PAIRS", 1000)
    monkeypatch.setattr(basins, "make_proximal_starts", lambda problem: tried.append(problem) or by_product(problem))
    rough, again = solved(10, epsilon=0)
    assert rough.value <= fine.value + 1e-12
    assert right == again == 1.0
    assert not tried, "a basin stood out"


def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the points of these tests were many, and had no cells."""
    monkeypatch.setattr(basins, "should_search_cells", lambda problem: False)
    monkeypatch.setattr(basins, "SUBSET_POINTS", 100)
    monkeypatch.setattr(basins, "MANY_PAIRS", 1000)


def test_between_many_points_basins_are_solved_between_more_landmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    many(monkeypatch)
    solve, given, found = basins._solve_on_subset, list[Candidate](), list[Candidate]()

    def seen(problem: StoredProblem, candidates: list[Candidate]) -> list[Candidate]:
        given.extend(candidates)
        found.extend(solve(problem, candidates))
        return found

    monkeypatch.setattr(basins, "_solve_on_subset", seen)
    assert solved(3, epsilon=0)[1] == 1.0
    assert [c.level for c in found] == ["subset" if c.selected else "landmarks" for c in given]
    assert sum(c.selected for c in given) > 1
    # Between more landmarks, the lowest is closer to the copy's value of zero.
    assert min(c.energy for c in found if c.selected) < min(c.energy for c in given if c.selected)


@pytest.mark.parametrize(("d", "tilt", "doubtful"), [(2, 0.03, True), (3, 0.2, False)])
def test_between_many_points_a_doubt_is_looked_into(
    d: int, tilt: float, doubtful: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two mirror images only by how much they are unlike each other; nothing else is tried where one stands out."""
    many(monkeypatch)
    calls: list[str] = []
    epsilons: dict[str, list[float]] = {"_compare_on_all_points": [], "_anneal": []}

    def counted(where: Any, name: str) -> None:
        whole = getattr(where, name)

        def call(*given: Any, **named: Any) -> Any:
            calls.append(name)
            if name in epsilons:
                epsilons[name].append(given[2])
            return whole(*given, **named)

        monkeypatch.setattr(where, name, call)

    for name in (
        "_compare_on_all_points",
        "_cross_landmark_basins",
        "make_proximal_starts",
        "make_distribution_starts",
    ):
        counted(basins, name)
    counted(sharp, "_anneal")
    rng = np.random.default_rng(1)
    half = rng.normal(size=(210, d)) * np.linspace(2, 1, d)
    half[:, 0] = np.abs(half[:, 0])
    mirror = half * np.where(np.arange(d) == 0, -1, 1) + tilt * rng.normal(size=half.shape)
    X, order = np.concatenate((half, mirror)), rng.permutation(420)
    result = quietly(gw_align, X, X[order], distances="landmark", epsilon=0, random_state=0)
    assert (order[result.argmax()] == np.arange(420)).all()
    first, *cooler = epsilons["_compare_on_all_points"]
    if doubtful:
        assert cooler == [first / basins.COOLED] * len(cooler) != []
        assert epsilons["_anneal"][0] < first
    else:
        assert not cooler
        assert not {"_cross_landmark_basins", "make_proximal_starts", "make_distribution_starts"} & set(calls)


by_product = basins.make_proximal_starts

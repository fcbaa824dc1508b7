"""Falling epsilons and perplexities: warm starts, what they reach, and which point is recommended."""

from __future__ import annotations

import functools
import math
import warnings
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import entropy, spearmanr

from torchgw import AmbiguityWarning, CoarseOptions, ConvergenceWarning, GWOptions, LadderOptions, StoppingOptions
from torchgw import path as module
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.diagnostics.status import Status
from torchgw.kernels.sampling import sample_evenly
from torchgw.marginals import SemiRelaxed
from torchgw.path import EpsilonPath, epsilon_path

X, ANGLE_X = make_spiral(120, noise=0.01)
Y, ANGLE_Y = make_swiss_roll(150, noise=0.01, random_state=1)
THREE = (1e-2, 3e-3, 1e-3)
FEW_STARTS = GWOptions(coarse=CoarseOptions(n_landmarks=30, n_starts=12))


def followed(**arguments: Any) -> EpsilonPath:
    return epsilon_path(X, Y, random_state=0, **{"options": FEW_STARTS, **arguments})


@pytest.fixture(scope="module")
def path() -> EpsilonPath:
    return followed()


def test_perplexity_falls_with_epsilon(path: EpsilonPath) -> None:
    gain = path.results[0].gain
    np.testing.assert_allclose(path.epsilons, np.geomspace(0.3 * gain, 0.005 * gain, 8), rtol=1e-12)
    for side in (path.perplexities, path.values):
        assert all(larger > smaller for larger, smaller in pairwise(side))
    assert path.values == tuple(result.value for result in path.results)
    assert all(result.converged for result in path.results)


def test_perplexity_is_exp_of_the_mean_row_entropy() -> None:
    p = np.r_[np.zeros(10), np.linspace(1, 3, 110)]
    found = followed(epsilons=THREE[1:], p=p / p.sum(), options=GWOptions())
    for result, perplexity in zip(found.results, found.perplexities, strict=True):
        rows = result.plan[10:]
        assert math.log(perplexity) == pytest.approx(np.average(entropy(rows, axis=1), weights=p[10:]), rel=1e-6)


def test_later_points_stay_in_the_basin_without_a_search(path: EpsilonPath) -> None:
    for result in path.results:
        assert spearmanr(ANGLE_X, ANGLE_Y[result.argmax()])[0] > 0.99
    first, *later = path.results
    assert first.basins
    assert all(result.basins == () for result in later)
    assert sum(result.timings["search"] for result in later) < first.timings["search"] / 5


def test_later_points_reach_the_value_of_cold_ones(path: EpsilonPath) -> None:
    cold = followed(epsilons=[path.epsilons[4]])
    assert path.values[4] == pytest.approx(cold.values[0], rel=2e-2)
    assert path.perplexities[4] == pytest.approx(cold.perplexities[0], rel=2e-2)


def test_spaces_are_prepared_once_and_results_speak_of_the_given_points(path: EpsilonPath) -> None:
    first, last = path.results[0], path.results[-1]
    assert last.known is first.known
    assert last.graphs == first.graphs
    assert last.graphs[0] is not None
    assert last.transform(X[:3]).argmax().shape == (3,)


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_the_kind_of_array_that_goes_in_comes_out(kind: Any) -> None:
    found = epsilon_path(kind(X), kind(Y), epsilons=THREE[:2], options=FEW_STARTS, random_state=0)
    assert all(type(result.argmax()) is type(kind(X)) for result in found.results)


def test_a_path_repeats_to_the_bit(path: EpsilonPath) -> None:
    assert followed(epsilons=path.epsilons[:3]).values == path.values[:3]


def test_shifts_are_mean_distances_between_matches(path: EpsilonPath) -> None:
    assert path.best.known is not None
    D = path.best.known[1].space.rows(torch.arange(len(Y))).numpy()
    one, other = (result.argmax() for result in path.results[2:4])
    assert path.shifts[3] == pytest.approx(D[one, other].mean(), rel=1e-6)
    assert math.isnan(path.shifts[0])
    assert 0 < max(path.shifts[1:]) < 0.1


def test_many_points_are_stood_for_by_equal_shares_of_mass() -> None:
    mass = torch.tensor([0.0, 3.0, 0.0, 1.0, 2.0, 0.0], dtype=torch.float64)
    index, weight = sample_evenly(mass, 3)
    assert index.tolist() == [1, 1, 4]  # shares end at 2, 4 and 6; their middles are 1, 3 and 5
    assert weight.tolist() == [1 / 3, 1 / 3, 1 / 3]
    index, weight = sample_evenly(mass, 6)
    assert (index.tolist(), weight.tolist()) == ([1, 3, 4], [3 / 6, 1 / 6, 2 / 6])


def test_the_largest_epsilon_with_the_final_matching_is_recommended(path: EpsilonPath) -> None:
    assert path.best.known is not None
    D = path.best.known[1].space.rows(torch.arange(len(Y))).numpy()
    final = path.results[-1].argmax()
    away = np.array([D[result.argmax(), final].mean() for result in path.results])
    chosen = path.recommended
    assert 0 < chosen < 7
    assert (away[chosen:] <= 0.01).all()
    assert away[chosen - 1] > 0.01
    assert path.best is path.results[chosen]
    for number in (path.epsilons[chosen], path.epsilons[-1], path.perplexities[chosen]):
        assert f"{number:.3g}" in path.reason
    assert f"{away[chosen - 1]:.2g}" in path.reason


def test_a_finer_path_recommends_a_similar_epsilon(path: EpsilonPath) -> None:
    finer = followed(n_points=16)
    assert 0.5 < finer.best.epsilon / path.best.epsilon < 2


def test_a_matching_that_still_moves_is_said_to_move() -> None:
    found = followed(epsilons=[0.3, 0.03])
    assert found.recommended == 1
    assert "still moves" in found.reason
    assert "only point" in followed(epsilons=[1e-2]).reason


def test_points_that_did_not_converge_are_left_out(path: EpsilonPath) -> None:
    read = [
        module._Point(result, perplexity, torch.from_numpy(result.argmax()), torch.ones(len(X), dtype=torch.float64))
        for result, perplexity in zip(path.results, path.perplexities, strict=True)
    ]
    bad = replace(path.best, status=type(path.best.status).MAX_ITER)
    chosen, reason = module._recommend([*read[:3], replace(read[3], result=bad)])
    assert chosen == 2
    assert "1 of 4 did not converge" in reason
    assert module._recommend([replace(read[0], result=bad)] * 2) == (
        1,
        f"none of 2 points converged, so the last is taken, at epsilon {bad.epsilon:.3g}",
    )


def test_an_ambiguous_search_is_in_the_reason() -> None:
    line = np.linspace(0, 1, 60)[:, None] ** [1.0, 0.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error", AmbiguityWarning)
        found = epsilon_path(line, line, distances="euclidean", epsilons=[5e-3, 2e-3], random_state=0)
    assert found.results[0].ambiguous
    assert "ambiguous" in found.reason


def test_perplexities_are_met_by_few_solves(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, solved, align = [15.0, 60.0, 30.0], list[float](), module.gw_align

    @functools.wraps(align)
    def counted(*spaces: Any, epsilon: float, **others: Any) -> Any:
        solved.append(epsilon)
        return align(*spaces, epsilon=epsilon, **others)

    monkeypatch.setattr(module, "gw_align", counted)
    found = followed(perplexities=np.array(wanted))
    assert len(solved) <= 9
    np.testing.assert_allclose(found.perplexities, sorted(wanted, reverse=True), rtol=0.02)
    assert all(larger > smaller for larger, smaller in pairwise(found.epsilons))
    assert found.epsilons == tuple(result.epsilon for result in found.results)
    assert all(spearmanr(ANGLE_X, ANGLE_Y[result.argmax()])[0] > 0.99 for result in found.results)


class Jumping:
    """A solver whose plan spreads points over 100 sqrt(epsilon) targets, or over 20 times fewer below 0.01."""

    def __init__(self) -> None:
        self.observed: list[tuple[float, float]] = []

    def __call__(self, epsilon: float, before: Any) -> Any:
        perplexity = 100 * math.sqrt(epsilon) / (1 if epsilon > 1e-2 else 20) + 1
        self.observed.append((math.log(epsilon), math.log(perplexity)))
        return SimpleNamespace(perplexity=perplexity, result=SimpleNamespace(status=Status.SETTLED, epsilon=epsilon))


def test_a_jump_of_the_plan_is_told() -> None:
    solver: Any = Jumping()
    (above,) = module._solve_for_perplexity(solver, 15.0, None)
    assert above.perplexity == pytest.approx(15, rel=0.02)
    with pytest.warns(ConvergenceWarning, match=r"perplexity 3 was not met.*1\.\d+ is nearest$"):
        (nearest,) = module._solve_for_perplexity(solver, 3.0, above)
    assert nearest.result.epsilon < 1e-2
    with pytest.warns(ConvergenceWarning, match="that of the point before"):
        assert module._solve_for_perplexity(solver, 2.9, nearest) == []
    assert module._solve_for_perplexity(solver, 1.2, nearest)[0].perplexity == pytest.approx(1.2, rel=0.02)


@pytest.mark.filterwarnings("ignore::torchgw.ConvergenceWarning")
def test_a_perplexity_out_of_reach_names_the_reach() -> None:
    with pytest.raises(ValueError, match=r"from \d.*epsilon 1e-05 to 1[45]\d.*epsilon 10, got 1$"):
        followed(perplexities=[1.0], options=replace(FEW_STARTS, stopping=StoppingOptions(max_iter=20)))
    q = np.r_[np.ones(50), np.full(100, 1e-3)]
    with pytest.raises(ValueError, match=r"to 50\.\d+, at epsilon 10, got 140"):
        followed(perplexities=[140], q=q / q.sum())


def test_large_plans_hand_over_matching_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAIRS", 40)
    options = replace(FEW_STARTS, strategy="streaming", ladder=LadderOptions(n_cells=48))
    found = followed(epsilons=THREE[:2], distances="landmark", options=options)
    assert found.results[1].strategy == "streaming"
    assert found.results[1].basins == ()
    assert spearmanr(ANGLE_X, ANGLE_Y[found.results[1].argmax()])[0] > 0.99
    read = module._Point(found.results[0], 1.0, torch.arange(120), torch.ones(120))
    start = module._make_start(read)
    assert start.shape == (40, 2)
    assert not start.is_floating_point()


def test_costs_and_marginals_reach_every_solve() -> None:
    calls: list[float] = []
    cost = (ANGLE_X[:, None], ANGLE_Y[:, None])
    marginals = SemiRelaxed(0.1)
    found = followed(
        epsilons=THREE, cost=cost, alpha=0.7, marginals=marginals, callback=lambda told: calls.append(told.epsilon)
    )
    assert all(result.alpha == 0.7 for result in found.results)
    assert all(result.marginals == marginals for result in found.results)
    assert all(result.value_linear > 0 for result in found.results)
    assert set(THREE) <= set(calls)


def test_without_distances_shifts_are_shares_of_points() -> None:
    found = followed(epsilons=THREE, cost=(ANGLE_X[:, None], ANGLE_Y[:, None]), alpha=0)
    one, other = (result.argmax() for result in found.results[:2])
    assert found.shifts[1] == pytest.approx((one != other).mean())
    assert "of the points" in found.reason


def test_init_replaces_the_search_of_the_first_solve() -> None:
    known = np.array([[0, 0], [60, 75], [119, 149]])
    found = followed(epsilons=THREE[:2], init=known)
    assert all(result.basins == () for result in found.results)
    assert all(spearmanr(ANGLE_X, ANGLE_Y[result.argmax()])[0] > 0.99 for result in found.results)


def test_the_table_has_a_line_for_each_point(path: EpsilonPath) -> None:
    lines = str(path).splitlines()
    assert len(lines) == 1 + 8 + 1
    assert [line.startswith("*") for line in lines[1:9]].index(True) == path.recommended
    assert lines[-1] == path.reason
    assert str(path) == repr(path)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"epsilons": [1e-2, 0.0]}, ValueError, "epsilons must be a finite number > 0"),
        ({"epsilons": []}, ValueError, "epsilons must be a sequence of numbers"),
        ({"epsilons": 1e-2}, ValueError, "epsilons must be a sequence of numbers"),
        ({"epsilons": [1e-2, 1e-3, 1e-2]}, ValueError, "epsilons must differ.*0.01 and 0.01"),
        ({"perplexities": [0.5]}, ValueError, "perplexities must be a finite number.*>= 1"),
        ({"perplexities": [151]}, ValueError, "perplexities must be a finite number.*<= 150"),
        ({"perplexities": [20, 20.5]}, ValueError, "perplexities must differ by more than 4%"),
        ({"perplexities": [20], "epsilons": [1e-2]}, ValueError, "must not both be given"),
        ({"epsilon": 1e-2}, TypeError, "epsilons="),
        ({"distances": "taxi"}, ValueError, "distances must be one of"),
    ],
)
def test_bad_input_is_named(arguments: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        followed(**arguments)

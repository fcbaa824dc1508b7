"""The phases compare like with like: every switch ends in the same optimum, and rows say what the figures say."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import common
from benchmarks.baselines import plain
from benchmarks.baselines.sampled import ALL_ON, Found, Switches, Workspace, solve
from benchmarks.phases import comparison, cumulative, suite
from benchmarks.phases.bench import Bench
from benchmarks.phases.work import Answer, Problem, Run, graphs, random, spiral
from torchgw import DijkstraDistances
from torchgw.kernels import LOG2E

pytestmark = pytest.mark.slow  # their figures stand in the log

NAMES = [entry.name for entry in fields(Switches)]
SAME_NUMBERS = ("logsumexp_check", "balanced", "preallocated", "device_copies", "index_arrays", "fused")


@pytest.fixture(scope="module")
def problem() -> Problem:
    return spiral(160, 200, "landmark")


@cache
def found(problem: Problem, switches: Switches, max_iter: int = 30) -> Found:
    return solve(*problem.spaces, problem.pairs, switches, epsilon=5e-3, max_iter=max_iter)


def quality(problem: Problem, switches: Switches) -> tuple[float, float]:
    plan = found(problem, switches).plan()
    rho, value = problem.quality(Answer(plan.argmax(1).numpy(), plan))
    assert value is not None
    return rho, value


@pytest.mark.parametrize("name", [*NAMES, "all"])
def test_every_switch_ends_in_the_same_optimum(problem, name):
    switches = ALL_ON if name == "all" else Switches(**{name: True})
    rho, value = quality(problem, switches)
    plain_rho, plain_value = quality(problem, Switches())
    assert rho > 0.99 < plain_rho
    assert value == pytest.approx(plain_value, rel=0.05)


@pytest.mark.parametrize("name", SAME_NUMBERS)
def test_switches_that_only_save_work_change_no_number(problem, name):
    one, other = found(problem, Switches()), found(problem, Switches(**{name: True}))
    assert one.n_iter_sinkhorn == other.n_iter_sinkhorn
    torch.testing.assert_close(one.plan(), other.plan(), rtol=1e-6, atol=1e-12)


def test_early_stop_ends_early_and_warm_potentials_take_fewer_iterations(problem):
    assert found(problem, replace(ALL_ON, early_stop=False), 150).n_iter == 150
    assert found(problem, ALL_ON, 150).n_iter < 150
    warm = found(problem, Switches(warm_start=True))
    assert warm.n_iter_sinkhorn < found(problem, Switches()).n_iter_sinkhorn


def test_rows_searched_anew_are_those_that_are_kept():
    graph = graphs(60, 70)[0]
    index = torch.tensor([3, 59, 3, 0])
    kept, anew = DijkstraDistances(graph), plain.UncachedDijkstra(graph)
    assert torch.equal(kept.rows(index), anew.rows(index))
    assert torch.equal(kept.rows(index), anew.rows(index))
    assert sorted(kept.cache) == [0, 3, 59]
    assert not anew.cache


def test_random_clouds_share_what_their_places_say():
    rho, value = quality(random(150, 170), ALL_ON)
    assert rho > 0.9
    assert value > 0


def test_a_plan_is_judged_by_its_own_marginals(problem):
    DX, DY = (torch.rand(n, n, dtype=torch.float64).triu(1) for n in (6, 7))
    DX, DY = DX + DX.T, DY + DY.T
    plan = torch.rand(6, 7, dtype=torch.float64)
    gaps = (DX[:, None, :, None] - DY[None, :, None, :]).square()
    direct = torch.einsum("ijkl,ij,kl->", gaps, plan, plan)
    small = replace(problem, exact=lambda: (DX, DY))
    assert small.value(Answer(np.zeros(6, int), plan)) == pytest.approx(float(direct), rel=1e-10)
    assert small.value(Answer(np.zeros(6, int), None, 7.0)) == 7.0


def fake_clock(monkeypatch: pytest.MonkeyPatch, times: dict[str, list[float]], answers: dict[str, Answer]):
    """Runs that take the given seconds, round by round, and the order in which they are called."""
    called: list[str] = []

    def once(call):
        call()
        return times[called[-1]].pop(0)

    def run(name: str) -> Run:
        def call(seed: int):
            called.append(name)
            return lambda: answers[name]

        return Run(call, lambda: called.append(f"warm {name}"))

    monkeypatch.setattr(comparison, "once", once)
    return {name: run(name) for name in times}, called


def true_matching(problem: Problem) -> np.ndarray:
    x, y = problem.places
    return np.argsort(y)[np.argsort(np.argsort(x)) * (len(y) - 1) // (len(x) - 1)]


def test_both_sides_take_turns_after_a_warm_up_and_ratios_are_taken_within_rounds(problem, monkeypatch):
    right = Answer(true_matching(problem), None, 1.0, (40, 800))
    times = {"before": [2.0, 8.0, 4.0, 6.0, 10.0], "after": [1.0, 2.0, 2.0, 2.0, 5.0]}
    runs, called = fake_clock(monkeypatch, times, {"before": right, "after": right})
    row = comparison.compare("phase", "alone", problem, runs["before"], runs["after"], budget=1e3)
    assert called[:2] == ["warm before", "warm after"]
    assert called[2:6] == ["before", "after", "after", "before"]
    assert row["runs"] == 5
    assert row["ratio"] == 2.0
    assert (row["before_s"], row["after_s"]) == (6.0, 2.0)
    assert row["after_iterations"] == "40 / 800"
    assert row["verdict"] == "pays"
    assert row["before_rho"] == row["after_rho"] > 0.99


def test_rounds_end_with_the_budget(problem, monkeypatch):
    right = Answer(true_matching(problem), None, 1.0)
    times = {"before": [2.0] * 9, "after": [1.0] * 9}
    runs, _ = fake_clock(monkeypatch, times, {"before": right, "after": right})
    assert comparison.compare("phase", "alone", problem, runs["before"], runs["after"], budget=7.0)["runs"] == 3
    assert len(comparison.in_turns(problem, runs, 0.0, least=2)["after"].seconds) == 2


def test_quality_is_the_median_over_rounds(problem, monkeypatch):
    answers = iter([Answer(true_matching(problem), None, value) for value in (1.0, 9.0, 2.0)])
    run = Run(lambda seed: lambda: next(answers))
    monkeypatch.setattr(comparison, "ROUNDS", 3)
    assert comparison.in_turns(problem, {"one": run}, 1e3)["one"].middle[1] == 2.0


@pytest.mark.parametrize(
    ("ratio", "before", "after", "verdict"),
    [
        (2.0, (0.99, 1.0), (0.99, 1.0), "pays"),
        (1.0, (0.99, 1.0), (0.99, 1.0), "level here"),
        (0.5, (0.99, 1.0), (0.99, None), "does not pay here"),
        (9.0, (0.99, 1.0), (0.98, 1.0), "worse quality"),
        (9.0, (0.99, 1.0), (0.99, 1.06), "worse quality"),
    ],
)
def test_a_verdict_says_what_the_figures_say(ratio, before, after, verdict):
    assert comparison.said(ratio, comparison.as_good(before, after)) == verdict


def side(seconds: float, rho: float, value: float | None) -> comparison.Measured:
    return comparison.Measured([seconds], [(rho, value)], [(40, 800)])


def test_groups_keep_the_rows_of_the_others_and_unknown_ones_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    monkeypatch.setattr(suite, "RESULTS", tmp_path)
    monkeypatch.setattr(common, "require_green", lambda: None)
    sides = side(4.0, 0.99, 0.5), side(2.0, 0.98, None)
    row = comparison.row("7", "alone", "spiral", *sides, "pays", (10.0, 20.0))
    monkeypatch.setattr(suite, "GROUPS", {"one": lambda bench: [row], "cumulative": lambda bench: [{"b": 2}]})
    suite.run()
    suite.run(groups=["one"])
    stored = json.loads((tmp_path / "phases.json").read_text())
    assert stored["rows"] == [row]
    assert list(stored["summary"][0].values()) == [
        "7",
        "alone",
        "spiral",
        "4 s, rho 0.9900, value 0.50000, 40 / 800 iterations, 10 MiB",
        "2 s, rho 0.9800, 40 / 800 iterations, 20 MiB",
        "2.00x",
        "pays",
    ]
    assert stored["cumulative"] == [{"b": 2}]
    with pytest.raises(SystemExit, match="groups must be among one, cumulative, got nine"):
        suite.run(groups=["nine"])


def test_a_run_that_breaks_off_keeps_what_was_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    monkeypatch.setattr(suite, "RESULTS", tmp_path)
    monkeypatch.setattr(common, "require_green", lambda: None)
    old, new = (comparison.row("7", "alone", "spiral", side(4.0, 0.9, 0.5), side(s, 0.9, 0.5)) for s in (2.0, 1.0))
    monkeypatch.setattr(suite, "GROUPS", {"one": lambda bench: [old], "cumulative": lambda bench: [{"b": 2}]})
    suite.run()

    def stored() -> dict[str, Any]:
        return json.loads((tmp_path / "phases.json").read_text())

    assert "environment_of_kept_rows" not in stored()
    monkeypatch.setattr(suite, "GROUPS", {"one": lambda bench: [new], "cumulative": lambda bench: 1 / 0})
    with pytest.raises(ZeroDivisionError):
        suite.run()
    assert stored()["rows"] == [new]
    assert stored()["cumulative"] == [{"b": 2}]
    assert "environment_of_kept_rows" in stored()
    monkeypatch.setattr(suite, "GROUPS", {"one": lambda bench: [new], "cumulative": lambda bench: [{"b": 3}]})
    suite.run()
    assert "environment_of_kept_rows" not in stored()


def test_cumulative_ratios_are_to_the_step_before_and_to_the_first(problem, monkeypatch):
    times = {"0 plain": [8.0, 4.0], "1 one": [4.0, 1.0], "2 two": [1.0, 1.0]}
    answer = Answer(np.arange(len(problem.places[0])), None, 1.0)
    runs, _ = fake_clock(monkeypatch, times, dict.fromkeys(times, answer))
    rows = cumulative._steps(problem, runs, Bench())
    assert [row["ratio_to_last"] for row in rows] == [1.0, 3.0, 2.5]
    assert [row["ratio_to_first"] for row in rows] == [1.0, 3.0, 6.0]


def test_a_preallocated_score_stays_where_it_is():
    shape, where = (5, 6), (torch.device("cpu"), torch.float64)
    U, V = torch.rand(5, 3, dtype=torch.float64), torch.rand(6, 3, dtype=torch.float64)
    for balanced in (False, True):
        made = {}
        for kept in (False, True):
            work = Workspace(shape, *where, Switches(preallocated=kept, balanced=balanced), "eager")
            score, row, column = work.score(U, V, 0.1)
            again = work.score(U, V, 0.2)[0]
            assert (again.data_ptr() == score.data_ptr()) is kept
            made[kept] = work.score(U, V, 0.1)[0] + (row[:, None] if row.ndim else row) + column
        torch.testing.assert_close(made[True], made[False])
        torch.testing.assert_close(made[True], -torch.cdist(U, V).square() * LOG2E / 0.1)

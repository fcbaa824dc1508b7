"""The suite of small problems: its problems are what they say, and its lines are judged as they say."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import small

CASES = [(kind, n) for n in small.MOST for kind in small.KINDS if kind not in small.ABSENT.get(n, ())]


def test_there_are_sixty_problems_of_unequal_sizes_and_masses_in_turns():
    assert len(CASES) == 60
    turns = [small.problem(kind, n) for kind, n in CASES if n <= 100]
    unequal = [len(case.p) != len(case.q) for case in turns]
    uneven = [len(case.p) == len(case.q) and np.ptp(case.p) > 0 for case in turns]
    assert sum(unequal) == sum(uneven) == len(turns) // 3
    for case in turns:
        assert case.p.sum() == pytest.approx(1)
        assert case.q.sum() == pytest.approx(1)
        for D in (case.DX, case.DY):
            np.testing.assert_allclose(D, D.T, rtol=1e-14)
            assert (D.max(), D.diagonal().max()) == (1, 0)


def test_starts_are_plans_and_a_value_is_the_objective():
    pytest.importorskip("ot")
    case = small.problem("cloud in R^3", 30)
    others = list(case.starts())
    assert len(others) == small.STARTS - 1
    for plan in others:
        np.testing.assert_allclose(plan.sum(1), case.p, atol=1e-12)
        np.testing.assert_allclose(plan.sum(0), case.q, atol=1e-12)
    differences = (case.DX[:, None, :, None] - case.DY[None, :, None, :]) ** 2
    expected = np.einsum("ijkl,ij,kl", differences, others[0], others[0])
    assert case.value(others[0]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("run", "met"),
    [
        ({}, True),
        ({"ratio": 5.1}, False),
        ({"of sixteen": 0.51}, False),
        ({"value": 1.001}, False),
        ({"value of sixteen": 1.001}, False),
    ],
)
def test_a_line_is_met_where_all_its_problems_are(monkeypatch, run, met):
    good = {"kind": "ring", "ratio": 1.0, "starts": 16, "of sixteen": 0.1, "value": 1.0, "value of sixteen": 0.9}
    monkeypatch.setattr(small, "measured", lambda kind, n: good | (run if kind == "ring" else {}))
    (line,) = small.of_size(30)
    assert line["met"] is met
    assert "30 points, 9 kinds" in line["case"]
    assert "of the sixteen)" in line["measured"]
    monkeypatch.setattr(small, "measured", lambda kind, n: good | {"starts": 7})
    assert "of 7 to sixteen starts, in two minutes)" in small.of_size(30)[0]["measured"]


@pytest.mark.peer
def test_a_problem_is_measured_on_both_sides(monkeypatch):
    pytest.importorskip("ot")
    monkeypatch.setattr(small, "ROUNDS", dict.fromkeys(small.ROUNDS, 1))
    run = small.measured("cloud in R^2", 30)
    assert run["value of sixteen"] <= 1.05
    assert 0 < run["ours"] < 60
    assert run["starts"] == small.STARTS
    monkeypatch.setattr(small, "LONG", 0.0)
    assert small.measured("cloud in R^2", 30)["starts"] == 1

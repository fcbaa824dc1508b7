"""The net: its problems, what it counts, that it goes on where it was stopped, and what a comparison of two finds."""

from __future__ import annotations

import copy
import json
import warnings
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from benchmarks import __main__ as command
from benchmarks import compare, net
from torchgw import GWOptions, gw_align
from torchgw.couplings.blocks import DenseCoupling
from torchgw.couplings.sparse import SparseCoupling
from torchgw.diagnostics.status import History
from torchgw.losses import SQUARE
from torchgw.objective.exact import ExactGradient, PairLoss
from torchgw.persist.watch import Watch
from torchgw.solvers.conditional_gradient import DenseProgram, conditional_gradient
from torchgw.solvers.iterate import Loop
from torchgw.spaces import PrecomputedDistances


def distances(n: int, seed: int) -> torch.Tensor:
    points = torch.randn(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.cdist(points, points)


def plain(n: int, k: int) -> tuple[ExactGradient, DenseCoupling, torch.Tensor, torch.Tensor]:
    """A gradient, the product plan, and uniform masses."""
    x, y = (PrecomputedDistances(distances(size, seed)) for seed, size in enumerate((n, k)))
    p, q = (torch.full((size,), 1 / size, dtype=torch.float64) for size in (n, k))
    return ExactGradient(x, y, p, q), DenseCoupling(p[:, None] * q), p, q


# -- the problems


def test_names_are_unique_and_begin_with_their_kind():
    every = net.problems()
    assert 280 <= len(every) <= 340
    assert len({problem.name for problem in every}) == len(every)
    assert all(problem.name.startswith(f"{problem.kind}: ") for problem in every)
    assert list(dict.fromkeys(problem.kind for problem in every)) == list(net.GROUPS)
    assert command.GROUPS["net"].split() == list(net.GROUPS)
    assert sum(not problem.slow for problem in every) >= 220


def test_nothing_is_drawn_before_a_problem_is_made(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("drawn")

    monkeypatch.setattr(np.random, "default_rng", refuse)
    assert net.problems()


@pytest.mark.parametrize("kind", net.GROUPS)
def test_the_first_problem_of_each_kind_is_measured(kind):
    problem = next(iter(net.GROUPS[kind]()))
    row = net.measure(problem)
    assert list(row) == [
        *("problem", "kind", "value", "right", "seconds", "gradients", "inner", "origin", "candidates", "status")
    ]
    assert row["value"] >= -1e-12
    assert row["gradients"] > 0
    assert row["right"] is None or -1 <= row["right"] <= 1
    json.dumps(row)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("small", "weights, 30"),
        ("parts", "14 of 40"),
        ("models", "fused 0.5"),
        ("masses", "sum 3"),
        ("rewired", "100 sparse"),
    ],
)
def test_the_value_apart_from_the_library_is_that_of_the_result(kind, words):
    instance = next(each for each in net.GROUPS[kind]() if words in each.name).make()
    assert instance.value is not net.told
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = gw_align(instance.X, instance.Y, **instance.arguments)
    assert instance.value(result) == pytest.approx(result.value, rel=1e-5, abs=1e-9)


def test_a_problem_is_measured_twice_the_same():
    problem = next(iter(net.GROUPS["masses"]()))
    one, other = (net.measure(problem) | {"seconds": 0.0} for _ in range(2))
    assert one == other


# -- what counts


def test_each_conditional_gradient_step_counts_once():
    gradient, plan, p, q = plain(12, 9)
    calls = 0

    def called(coupling, rows, columns=None):
        nonlocal calls
        calls += 1
        return gradient(coupling, rows, columns)

    with net.evaluations() as counted:
        loop = Loop(Watch(), History(), 7)
        conditional_gradient(DenseProgram(called, p, q), plan.plan.clone(), torch.zeros_like(q), loop)
    assert calls > 1
    assert counted == Counter({(12, 9): calls})


def test_evaluations_within_another_and_those_of_other_plans_are_told_apart():
    gradient, plan, p, _ = plain(12, 9)
    few, corner, r, s = plain(5, 4)
    loss = PairLoss.of(SQUARE, distances(5, 0), distances(4, 1))
    with net.evaluations() as counted:
        gradient.change(
            SparseCoupling.of(csr_array(plan.plan.numpy()), p.device), plan.plan, plan.plan
        )  # which calls another
        gradient(plan, p)
        few(corner, r)
        loss.cost(corner.plan.expand(3, 5, 4), r.expand(3, 5), s.expand(3, 4))
    assert counted == Counter({(12, 9): 2, (5, 4): 4})
    gradient(plan, p)
    assert counted[12, 9] == 2  # nothing is patched beyond


def test_an_entropic_solve_counts_its_iterations_and_little_more():
    X, Y = (np.random.default_rng(seed).normal(size=(n, 3)) for seed, n in enumerate((40, 50)))
    options = GWOptions(coarse=None, strategy="dense")
    with net.evaluations() as counted:
        result = gw_align(X, Y, distances="euclidean", epsilon=0.05, options=options, random_state=0)
    assert result.n_iter <= counted[40, 50] <= result.n_iter + 10


# -- a run that goes on


@pytest.fixture
def ran(monkeypatch, tmp_path):
    """Solves a run of three problems of two kinds, and says which were solved and what was stored."""
    every = [net.NetProblem(f"{kind}: {i}", kind, lambda: None, False) for kind, i in (("a", 0), ("a", 1), ("b", 0))]
    solved: list[str] = []

    def measure(problem):
        solved.append(problem.name)
        if problem.name == "a: 1":
            raise RuntimeError("no plan")
        return ROWS[0] | {"problem": problem.name, "kind": problem.kind}

    def write(name, rows, partial, **more):
        (tmp_path / f"{name}.json").write_text(json.dumps({"environment": {}, "rows": rows} | more))

    monkeypatch.setattr(net, "problems", lambda: every)
    monkeypatch.setattr(net, "measure", measure)
    monkeypatch.setattr(net, "write", write)
    monkeypatch.setattr(net, "RESULTS", tmp_path)
    monkeypatch.setattr(net, "fingerprint", lambda: "code")

    def run(groups=None):
        solved.clear()
        net.run(groups)
        return list(solved), json.loads((tmp_path / "net.json").read_text())

    return run


def test_a_run_solves_what_is_missing_of_this_code(ran, monkeypatch):
    assert ran(["b"])[0] == ["b: 0"]
    solved, stored = ran()
    assert solved == ["a: 0", "a: 1"]
    assert [row["problem"] for row in stored["rows"]] == ["a: 0", "a: 1", "b: 0"]
    assert stored["rows"][1]["status"] == "RuntimeError: no plan"
    assert ran()[0] == []
    assert ran(["a"])[0] == ["a: 0", "a: 1"]
    monkeypatch.setattr(net, "fingerprint", lambda: "other code")
    assert ran(["b"])[0] == ["b: 0"]  # the others stay, and are of the code before
    assert ran()[0] == ["a: 0", "a: 1"]


# -- the comparison

ROWS = [
    {"problem": name, "kind": "clouds", "value": value, "right": right, "seconds": 1.0, "gradients": 100, "inner": 10}
    | {"origin": "product plan", "candidates": "full 3", "status": "stationary"}
    for name, value, right in (("one", 0.5, 0.9), ("zero", 0.0, 1.0), ("unknown", 0.2, None))
]


def changes(tmp_path, capsys, place: int = 0, **columns) -> tuple[int, str]:
    """The exit code and the text of comparing the rows above with those in which one has other columns."""
    after = copy.deepcopy(ROWS)
    after[place].update(columns)
    paths = [tmp_path / f"{name}.json" for name in ("before", "after")]
    for path, rows in zip(paths, (ROWS, after), strict=True):
        path.write_text(json.dumps({"environment": {"cpu": "a"}, "rows": rows, "codes": {"one": "x"}}))
    try:
        compare.run(*map(str, paths))
    except SystemExit as left:
        return int(str(left.code)), capsys.readouterr().out
    return 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("place", "column", "value"),
    [
        (0, "value", 0.503),
        (1, "value", 1e-8),
        (0, "value", None),
        (0, "right", 0.879),
        (2, "value", 0.2012),
        (0, "gradients", 126),
    ],
)
def test_what_got_worse_is_flagged_and_nothing_else(tmp_path, capsys, place, column, value):
    code, text = changes(tmp_path, capsys, place, **{column: value})
    assert code == 1
    assert "3 rows compared, 1 changes beyond the thresholds, 1 for the worse" in text
    assert ROWS[place]["problem"] in text


@pytest.mark.parametrize(
    ("place", "columns"),
    [
        (0, {"value": 0.502, "right": 0.881, "gradients": 125}),
        (1, {"value": 4e-12}),
        (0, {"seconds": 90.0, "inner": 900, "origin": "another", "candidates": "full 1", "status": "settled"}),
    ],
)
def test_less_and_what_is_not_judged_is_no_change(tmp_path, capsys, place, columns):
    code, text = changes(tmp_path, capsys, place, **columns)
    assert (code, "0 changes" in text) == (0, True)


def test_what_got_better_passes(tmp_path, capsys):
    code, text = changes(tmp_path, capsys, value=0.4, right=1.0, gradients=10)
    assert code == 0
    assert "3 changes beyond the thresholds, 0 for the worse" in text

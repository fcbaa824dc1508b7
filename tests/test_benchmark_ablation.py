"""Every mechanism can be switched off from outside, is consulted by some solve, and comes back as it was."""

from __future__ import annotations

import json
import math
import time
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import cache, partial

import networkx as nx
import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.spatial.distance import cdist

from benchmarks import ablation, common, mechanisms
from benchmarks.mechanisms import CORE, MECHANISMS, PACKAGE, named, observed, switched_off
from torchgw import GWOptions, Implicit, gw_align
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.marginals import Partial, SemiRelaxed, Unbalanced
from torchgw.search import crossing
from torchgw.search.full_starts import PRODUCT
from torchgw.solvers import linear_oracle
from torchgw.strategies import sharp, surrogate

pytestmark = pytest.mark.filterwarnings("ignore")  # solves without a mechanism may well warn


def cloud(n, d=2, seed=0):
    X = np.random.default_rng(seed).normal(size=(n, d))
    return cdist(X, X)


def masses(n):
    found = np.random.default_rng(n).random(n) + 0.2
    return found / found.sum()


def changed(A, edges=3):
    """A shuffled graph in which some pairs have changed."""
    rng, B = np.random.default_rng(1), A.copy()
    for i, j in rng.integers(len(A), size=(edges, 2)):
        if i != j:
            B[i, j] = B[j, i] = 1 - B[i, j]
    order = rng.permutation(len(A))
    return B[np.ix_(order, order)]


def graphs(A, edges=3, **arguments):
    return gw_align(A, changed(A, edges), distances="adjacency", random_state=0, **arguments)


def clouds(n, k, d=2, **arguments):
    return gw_align(cloud(n, d), cloud(k, d, 1), distances="precomputed", random_state=0, **arguments)


def curves(n, k, **arguments):
    return gw_align(make_spiral(n)[0], make_swiss_roll(k)[0], random_state=0, **arguments)


def tree(n):
    return nx.to_numpy_array(nx.random_labeled_tree(n, seed=1))


def random_graph(n, share):
    return nx.to_numpy_array(nx.gnp_random_graph(n, share, seed=1))


def fused():
    cost = np.random.default_rng(0).random((20, 20))
    return graphs(random_graph(20, 0.3), cost=cost, alpha=0.5)


def differentiated():
    """Two clouds whose plan has gradients, for which it is refined."""
    X, Y = (torch.from_numpy(np.random.default_rng(seed).normal(size=(n, 3))) for seed, n in ((0, 25), (1, 30)))
    mode = {"distances": "euclidean", "epsilon": 2e-2, "gradient_mode": Implicit(), "random_state": 0}
    return gw_align(X.requires_grad_(), Y, **mode)


CASES = {
    "few points": partial(clouds, 30, 30, epsilon=0.0),
    "few points, masses": lambda: clouds(20, 24, p=masses(20), q=masses(24), epsilon=0.0),
    "high dimension": partial(clouds, 130, 140, 10, epsilon=1e-3),
    "cells": partial(clouds, 205, 205, 3, epsilon=0.0),
    "tree": lambda: graphs(tree(24), 8),
    "seven nodes": lambda: graphs(random_graph(7, 0.5)),
    "fused graphs": fused,
    "sparse graphs": lambda: gw_align(
        sparse.csr_array(tree(80)),
        sparse.csr_array(changed(tree(80), 5)),
        distances="adjacency",
        options=GWOptions(strategy="sparse"),
        random_state=0,
    ),
    "semi-relaxed": partial(clouds, 10, 14, marginals=SemiRelaxed(0.0, "y"), epsilon=0.0),
    "partial": partial(clouds, 8, 9, marginals=Partial(0.6)),
    "relaxed": partial(clouds, 40, 45, marginals=Unbalanced(0.05, 0.05), epsilon=1e-2),
    "low rank": partial(curves, 100, 120, options=GWOptions(strategy="low-rank"), epsilon=1e-2),
    "streaming": partial(curves, 100, 120, options=GWOptions(strategy="streaming"), epsilon=1e-3),
    "without search": partial(clouds, 30, 30, options=GWOptions(coarse=None), epsilon=2e-3),
}
FAST = ("few points", "tree", "seven nodes", "sparse graphs", "partial", "low rank", "streaming", "without search")
# Consulted only between more points than tests have.
LARGE = {"finer-cells", "vertex-levels", "flows", "surrogate-gradient", "surrogate-spaces", "contest-halving"}
LARGE |= {"between-factors", "cells-of-curves", "newton", "sharpening"}
# Consulted by the slow cases alone.
SLOW = {"blurred-duals", "cells", "cheap-vertices", "crossing", "diversity", "landmarks-farthest"}
SLOW |= {"landmarks-random", "landmarks-spread", "start-all-distributions"}
SLOW |= {"second-lead", "view-cost", "warm-basis"}


@cache
def solved(case):
    """The value of a case, and which mechanisms were consulted."""
    with observed() as counts:
        value = CASES[case]().value
    return value, dict(counts)


def test_names_are_single_words_and_unique():
    names = [each.name for each in MECHANISMS]
    assert len(set(names)) == len(names) > 50
    assert all(name and " " not in name for name in names)
    assert all(each.what.endswith(".") and len(each.what.split()) <= 25 for each in MECHANISMS)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda each: each.name)
def test_every_target_exists(mechanism):
    among = mechanisms.modules()
    for switch in mechanism.switches:
        assert mechanisms.bindings(switch.target, among), f"{mechanism.name} has a target that the library lacks"
    assert any(switch.matters is not None for switch in mechanism.switches), "nothing tells whether it is consulted"
    assert any(switch.off is not mechanisms.KEEP for switch in mechanism.switches), "nothing is replaced"
    assert mechanisms.files(mechanism)
    assert mechanisms.lines(mechanism) >= (1 if mechanism.parts else 0)


def test_every_file_has_a_mechanism_or_a_reason_to_stay():
    known = {file for each in MECHANISMS for file in mechanisms.files(each)}
    known |= {file for row in mechanisms.core_rows() for file in row["files"].split(", ")}
    every = {
        str(path.relative_to(PACKAGE))
        for package in ("search", "strategies", "solvers")
        for path in (PACKAGE / package).glob("*.py")
        if path.name != "__init__.py"
    }
    assert every - known == set()
    assert all(core.why.endswith(".") for core in CORE)


def test_fast_cases_consult_all_mechanisms_but_the_listed_ones():
    found = {name for case in FAST for name in solved(case)[1]}
    assert {each.name for each in MECHANISMS} - found <= LARGE | SLOW
    assert not found & LARGE


@pytest.mark.slow
def test_every_mechanism_is_consulted_by_some_solve():
    found = {name for case in CASES for name in solved(case)[1]}
    assert {each.name for each in MECHANISMS} - LARGE - found == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", [each.name for each in MECHANISMS if each.name not in LARGE])
def test_a_solve_ends_without_a_mechanism(name):
    case = min((case for case in CASES if name in solved(case)[1]), key=list(CASES).index)
    with switched_off(named(name)):
        assert math.isfinite(CASES[case]().value)


@pytest.mark.parametrize(
    ("name", "case"),
    [("start-modes", "few points"), ("contest", "seven nodes"), ("sparse-means", "sparse graphs"),
     ("low-rank-start", "low rank"), ("ladder", "streaming")],
)  # fmt: skip
def test_a_solve_ends_without_a_mechanism_fast(name, case):
    assert name in solved(case)[1]
    with switched_off(named(name)):
        assert math.isfinite(CASES[case]().value)


@pytest.mark.parametrize(
    ("limits", "names"),
    [
        ({(linear_oracle, "MOST_MASSES"): 100}, {"flows"}),
        ({(sharp, "FACTORED_PAIRS"): 100}, {"between-factors"}),
        ({(surrogate, "SLOW_WORK"): {"cpu": 0.0}}, {"surrogate-gradient"}),
        ({}, {"newton"}),
    ],
)
def test_what_large_problems_consult_is_switched_off_too(monkeypatch, limits, names):
    for (module, name), value in limits.items():
        monkeypatch.setattr(module, name, value)
    case = {
        "flows": partial(curves, 60, 70, options=GWOptions(strategy="streaming"), epsilon=0.0),
        "between-factors": partial(
            curves, 60, 70, distances="landmark", options=GWOptions(strategy="dense"), epsilon=0.0
        ),
        "surrogate-gradient": partial(clouds, 60, 70, epsilon=5e-3),
        "newton": differentiated,
    }[sorted(names)[-1]]
    with observed() as counts:
        case()
    assert names <= set(counts)
    for name in names:
        with switched_off(named(name)):
            assert math.isfinite(case().value)


def bound():
    """Everything that the library has bound."""
    found = {}
    for module in mechanisms.modules():
        for owner in (module, *(each for each in vars(module).values() if mechanisms._is_of_library(each))):
            for name, value in vars(owner).items():
                found[owner, name] = value
    return found


def test_everything_comes_back_as_it_was():
    before = bound()
    for mechanism in MECHANISMS:
        with pytest.raises(SystemExit), switched_off(mechanism):
            raise SystemExit
    with observed():
        pass
    after = bound()
    assert after.keys() == before.keys()
    assert all(after[place] is value for place, value in before.items())


def test_a_function_is_replaced_wherever_it_is_bound():
    original = crossing.cross_basins
    with switched_off(named("crossing")) as counts:
        from torchgw.search import basins, every_point

        assert crossing.cross_basins is basins.cross_basins is every_point.cross_basins is not original
        assert crossing.cross_basins() == []
    assert counts == {"crossing": 1}
    assert crossing.cross_basins is basins.cross_basins is original


def test_a_mechanism_that_is_off_is_not_seen_in_results():
    path = CASES["partial"]().path
    assert len(path) > 1
    with switched_off(named("continuation")) as counts:
        assert [step.epsilon for step in CASES["partial"]().path] == [path[0].epsilon]
    assert counts["continuation"] == 1
    assert {basin.origin for basin in CASES["tree"]().basins} != {PRODUCT}
    with switched_off(named("contest")):
        assert {basin.origin for basin in CASES["tree"]().basins} == {PRODUCT}


def test_a_view_that_is_off_is_no_view():
    views = mechanisms.views
    with switched_off(named("view-heat")):
        assert not [name for name in views.VIEWS if name.startswith("heat")]
        assert mechanisms.contest.VIEWS is views.VIEWS
        assert [name for name in views.VIEWS if name.startswith("distributions of heat")]
    assert [name for name in views.VIEWS if name.startswith("heat")]


def row(place, value, right=None, seconds=1.0, kind="clouds", consulted=("race",), **more):
    known = {"problem": f"{kind} {place}", "kind": kind, "place": place, "slow": False, "gradients": 10}
    return known | {"value": value, "right": right, "seconds": seconds, "consulted": dict.fromkeys(consulted, 1)} | more


def test_a_line_counts_what_is_decided_and_what_is_better():
    baseline = [row(place, 1.0, 0.9, kind="graphs" if place > 2 else "clouds") for place in range(6)]
    without = [
        row(0, 1.004, 0.89),
        row(1, 1.2, 0.9, seconds=3.0),
        row(2, 1.0, 0.5),
        row(3, 0.9, 0.9),
        row(4, 1.1, 0.95),
        row(5, math.inf, error="TimeoutError: given up"),
    ]
    line, changed = ablation.judged("race", baseline, without)
    shown = ("consulted", "decided", "in value", "better", "failed", "largest loss", "median loss", "on")
    assert [line[key] for key in shown] == [6, 4, 3, 1, 1, "no plan", "20 %", "clouds 2, graphs 2"]
    assert line["seconds"] == pytest.approx(5 / 7)
    assert [each["without"] for each in changed] == [1.2, 1.0, 0.9, 1.1, "TimeoutError: given up"]
    json.dumps(line)


@pytest.mark.parametrize(
    ("name", "lost", "verdict"),
    [
        ("race", 3, "stays"),
        ("race", 2, "merges"),
        ("exchanges", 2, "goes"),
        ("exchanges", 3, "stays"),
        ("flows", 0, "stays"),
    ],
)
def test_the_verdict_is_by_the_share_of_problems_that_lose_value(name, lost, verdict):
    baseline = [row(place, 1.0, consulted=(name,)) for place in range(100)]
    without = [row(place, 1.1 if place < lost else 1.0) for place in range(100)]
    line, _ = ablation.judged(name, baseline, without)
    assert (line["verdict"], line["becomes"] == "-") == (verdict, verdict == "goes")


def test_slow_problems_count_where_few_others_do():
    many = [row(place, 1.0, slow=place >= ablation.FEW) for place in range(ablation.FEW + 2)]
    assert [each["place"] for each in ablation.consulted("race", many)] == [*range(ablation.FEW)]
    assert [each["place"] for each in ablation.consulted("race", many[1:])] == [*range(1, ablation.FEW + 2)]


def test_a_problem_without_value_is_left_out():
    baseline = [row(0, 1.0), row(1, math.inf, error="too long"), row(2, 1.0, consulted=("exchanges",))]
    assert [each["place"] for each in ablation.consulted("race", baseline)] == [0]


def test_a_solve_that_takes_too_long_is_interrupted():
    with pytest.raises(TimeoutError, match="given up after 0 s"), ablation.limited(0.05):
        time.sleep(20)
    with ablation.limited(math.inf):
        pass


class Here(Executor):
    """Work that is done at once."""

    def map(self, call, *given):
        return list(map(call, *given))


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """What is measured, in order, of three problems, of which two consult the race and one chains."""
    found: list[tuple[int, str]] = []

    def measure(place, name, limit):
        found.append((place, name))
        return row(place, 1.0, consulted=("race", "exchanges") if place == 2 else ("race",))

    @contextmanager
    def workers(jobs):
        yield Here()

    for name, value in {"RESULTS": tmp_path, "workers": workers, "measured": measure}.items():
        monkeypatch.setattr(ablation, name, value)
    monkeypatch.setattr(ablation, "places", lambda quick: [1, 2, 3])
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    monkeypatch.setattr(common, "require_green", lambda: None)
    monkeypatch.setattr(mechanisms, "MECHANISMS", tuple(map(named, ("race", "exchanges"))))
    return found


def test_a_run_goes_on_where_it_was_stopped(monkeypatch, measured, capsys):
    judged = ablation.judged
    monkeypatch.setattr(ablation, "judged", lambda name, *rows: judged(name, *rows) if name == "race" else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ablation.run()
    assert measured == [
        *((place, "") for place in (1, 2, 3)),
        *((place, "race") for place in (1, 2, 3)),
        (2, "exchanges"),
    ]
    monkeypatch.setattr(ablation, "judged", judged)
    measured.clear()
    ablation.run()
    assert measured == [(2, "exchanges")]
    assert "1 mechanisms take about 0 minutes" in capsys.readouterr().err
    measured.clear()
    ablation.run(["race"])
    assert {name for _, name in measured} == {"race"}
    measured.clear()
    monkeypatch.setattr(ablation, "code", lambda: "another")
    ablation.run()
    assert len(measured) == 7


def test_an_unknown_mechanism_is_refused():
    with pytest.raises(SystemExit, match=r"mechanisms must be among start-distributions, .* got nosuch"):
        ablation.run(["nosuch"])

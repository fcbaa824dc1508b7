"""The value of the product plan, the verdict that it decides, and where the verdict is shown."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import rankdata

from benchmarks import verdict as suite
from tests.oracle import Problem, objective, random_problem
from tests.problems import SPIRAL, quietly
from torchgw import (
    Balanced,
    DijkstraDistances,
    EuclideanDistances,
    GWOptions,
    GWResult,
    IssuedWarning,
    LandmarkDistances,
    Partial,
    PrecomputedDistances,
    SemiRelaxed,
    SpaceOptions,
    Status,
    StoppingOptions,
    Supervision,
    Unbalanced,
    Verdict,
    cli,
    gw_align,
    gw_certify,
    resume,
)
from torchgw.couplings.blocks import DenseCoupling
from torchgw.diagnostics.verdict import CLEAR, MEANINGLESS, RIVAL, RIVAL_OF_PARTS, judge
from torchgw.kernels.sampling import sample_evenly
from torchgw.objective.distance_correlation import distance_correlation, sample_matched_distances
from torchgw.spaces.graph import neighbour_graph

RNG = np.random.default_rng(0)
CLOUD = RNG.normal(size=(40, 2)) * (2, 1)
COPY = CLOUD[::-1] + 0.01 * RNG.normal(size=CLOUD.shape)
FOUND: dict[str, Any] = {"distances": "precomputed", "options": GWOptions(spaces=SpaceOptions(scale=1.0))}


# The product plan

MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "balanced": ({}, {}),
    "free on one side": ({"model": "relaxed", "rho": (np.inf, 0.3)}, {"marginals": SemiRelaxed(0.3, "y")}),
    "unbalanced": ({"model": "relaxed", "rho": (0.3, 0.2)}, {"marginals": Unbalanced(0.3, 0.2)}),
    "partial": ({"model": "partial", "mass": 0.6}, {"marginals": Partial(0.6)}),
    "another loss": ({"loss": "kl"}, {"options": GWOptions(loss="kl", spaces=SpaceOptions(scale=1.0))}),
}


def product_value(problem: Problem) -> float:
    """The objective of the product plan, of the mass that the model asks for."""
    mass = problem.mass or math.sqrt(problem.p.sum() * problem.q.sum())
    return objective(problem, mass * np.outer(problem.p / problem.p.sum(), problem.q / problem.q.sum())).value


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("fused", [False, True])
def test_chance_is_the_objective_of_the_product_plan(name: str, fused: bool) -> None:
    asked, said = MODELS[name]
    problem = random_problem(3, 12, 15, fused=fused, epsilon=0.05, **asked)
    more = {"cost": problem.M, "alpha": problem.alpha} if fused else {}
    result = quietly(gw_align, problem.D, problem.E, p=problem.p, q=problem.q, epsilon=0.05, **FOUND | said | more)
    assert result.chance == pytest.approx(product_value(problem), rel=1e-9)
    assert result.value < result.chance


def test_chance_counts_soft_rules_and_masses_of_any_sum() -> None:
    problem = random_problem(4, 10, 12, epsilon=0.05)
    P = np.zeros((10, 12))
    P[2, 3] = 0.7
    rules = Supervision(forbidden=[(2, 3)], strength=0.7)
    call = {"p": 5 * problem.p, "q": 5 * problem.q, "epsilon": 0.05, "supervision": rules}
    result = quietly(gw_align, problem.D, problem.E, **FOUND | call)
    heavy = replace(problem, p=5 * problem.p, q=5 * problem.q, P=P)
    assert result.chance == pytest.approx(product_value(heavy), rel=1e-9)


@pytest.mark.parametrize("epsilon", ["auto", 0.0, 1e-2])
def test_every_provider_and_strategy_has_about_the_same_chance(epsilon: Any) -> None:
    def chance(space: Any, **more: Any) -> float:
        options = GWOptions(coarse=None, stopping=StoppingOptions(max_iter=2), **more)
        found: float = quietly(gw_align, space, space, epsilon=epsilon, options=options, random_state=0).chance
        return found

    paths = DijkstraDistances(graph := neighbour_graph(SPIRAL, 4))
    matrix = PrecomputedDistances(paths.rows(torch.arange(len(SPIRAL))))
    for space in (paths, LandmarkDistances(graph, 40)):
        assert chance(space) == pytest.approx(chance(matrix), rel=0.03)
    squared = EuclideanDistances(SPIRAL, squared=True)
    for strategy in ("streaming", "low-rank") if epsilon == 1e-2 else ("streaming",):
        assert chance(squared, strategy=strategy) == pytest.approx(chance(squared), rel=1e-6)


def correlation_by_hand(one: np.ndarray, other: np.ndarray) -> float:
    """The bias-corrected distance correlation of ranks, less two standard errors."""
    (A, B), n = (centred_by_hand(side) for side in (one, other)), len(one)
    r = (A * B).sum() / np.sqrt((A**2).sum() * (B**2).sum())
    return float(np.tanh(np.arctanh(r) - 2 / np.sqrt(n * (n - 3) / 2 - 1)))


def centred_by_hand(D: np.ndarray) -> np.ndarray:
    n, U = len(D), np.zeros_like(D)
    off = ~np.eye(n, dtype=bool)
    D = D.copy()
    D[off] = rankdata((D[off] / D.max()).round(6))
    for i in range(n):
        for j in range(n):
            others = (D[i].sum() + D[:, j].sum()) / (n - 2)
            U[i, j] = D[i, j] - others + D.sum() / ((n - 1) * (n - 2)) if i != j else 0.0
    return U


@pytest.mark.parametrize("marginals", [None, Partial(0.6), SemiRelaxed(0.01)])
@pytest.mark.parametrize("strategy", ["dense", "streaming"])
def test_the_distance_correlation_is_that_of_points_and_their_matches(marginals: Any, strategy: str) -> None:
    given = {"marginals": marginals} if marginals else {}
    X, Y = (EuclideanDistances(RNG.normal(size=(n, 3)), squared=True) for n in (17, 21))
    result = quietly(gw_align, X, Y, epsilon=1e-2, options=GWOptions(strategy=strategy), random_state=0, **given)
    given_mass = np.asarray(result.plan).sum(1)
    giving = np.flatnonzero(given_mass > 0.1 * given_mass.max())
    matches = np.asarray(result.argmax())[giving]
    sides = zip((X, Y), (giving, matches), strict=True)
    one, other = (np.asarray(space.rows(torch.arange(space.size)))[np.ix_(i, i)] for space, i in sides)
    assert result.distance_correlation == pytest.approx(correlation_by_hand(one, other), abs=1e-6)


def test_a_few_points_stand_for_many_in_the_distance_correlation() -> None:
    X = EuclideanDistances(np.random.default_rng(0).normal(size=(700, 3)), squared=True)
    D, order = X.rows(torch.arange(700)).numpy(), np.arange(700)
    order[::3] = order[::-3]  # a third of the matches is wrong
    plan = DenseCoupling(torch.eye(700, dtype=torch.float64)[order] / 700)
    mass = plan.marginal(1)
    some = sample_evenly(mass, 120)[0].numpy()
    expected = correlation_by_hand(D[np.ix_(some, some)], D[np.ix_(order[some], order[some])])
    assert 0.1 < expected < 0.9
    assert distance_correlation(*sample_matched_distances(plan, (X, X), mass, mass)) == pytest.approx(
        expected, abs=1e-9
    )
    same = DenseCoupling(torch.eye(700, dtype=torch.float64) / 700)
    assert distance_correlation(*sample_matched_distances(same, (X, X), mass, mass)) == pytest.approx(1.0)


def test_points_that_are_all_equally_far_apart_have_no_distance_correlation() -> None:
    simplex = 1 - np.eye(12)
    result = quietly(gw_align, simplex, simplex, distances="precomputed", random_state=0)
    assert math.isnan(result.distance_correlation)
    assert result.verdict is Verdict.DOUBTFUL


@pytest.mark.parametrize("squared", [False, True])
def test_points_far_from_all_others_make_no_matching_convincing(squared: bool) -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X, Y = rng.normal(size=(60, 3)), rng.uniform(-1, 1, size=(60, 4))
        X[0, 0] = Y[0, 0] = 10.0 * 3**seed
        few = rng.normal(size=(3 + seed, 3)), rng.normal(size=(3 + seed, 4))
        for pair in ((X, Y), few):
            spaces = (EuclideanDistances(side, squared=squared) for side in pair)
            assert quietly(gw_align, *spaces, random_state=0).verdict is not Verdict.CONVINCING


@pytest.mark.parametrize("matches", [[0, 1, 2, 3], [1, 0, 3, 2], [3, 2, 1, 0], [2, 3, 1, 0]])
@pytest.mark.parametrize("n", [4, 7])
def test_a_few_points_are_convincing_if_their_distances_are_the_same(n: int, matches: list[int]) -> None:
    X = 2.0 ** np.arange(n)[:, None]
    pairs = np.stack((np.arange(n), np.r_[matches, 4:n]), 1)
    given = {"distances": "euclidean", "epsilon": 0, "supervision": Supervision(pairs=pairs, strength=math.inf)}
    result = quietly(gw_align, X, X, **given)
    assert math.isnan(result.distance_correlation)
    assert (result.verdict is Verdict.CONVINCING) == (matches == [0, 1, 2, 3])


def test_a_cost_that_weighs_more_than_distances_decides_alone() -> None:
    X, Y = RNG.normal(size=(30, 3)), RNG.normal(size=(30, 3))
    cost = 1 - np.eye(30)[RNG.permutation(30)]
    for alpha in (0.0, 1e-4, 0.1):
        result = gw_align(X, Y, cost=cost, alpha=alpha, distances="euclidean", random_state=0)
        assert not any("distance correlation" in reason for reason in result.reasons)


# The rule


@pytest.fixture(scope="module")
def good() -> GWResult:
    return gw_align(CLOUD, COPY, distances="euclidean", random_state=0)


def with_rival(result: GWResult, times: float) -> GWResult:
    """The result, of which another matching has so many times the energy."""
    best = result.basins[0]
    return replace(result, basins=(best, replace(best, energy=times * best.energy, difference=0.5)))


WARNED = (IssuedWarning("GraphWarning", "X had to be stitched"),)
HARMLESS = (IssuedWarning("CheckpointWarning", "it was not written"), IssuedWarning("OutOfMemoryWarning", "streamed"))
CASES: dict[str, tuple[dict[str, Any], float, Verdict, str]] = {
    "as it is": ({}, 50.0, Verdict.CONVINCING, "The best other matching has 50 times the energy."),
    "alone": ({"basins": 1}, 0.0, Verdict.CONVINCING, "The search found no other matching"),
    "by proof": ({"gap": 0.0, "basins": 0}, 0.0, Verdict.CONVINCING, "No plan at all has a lower value, by proof."),
    "linear": ({"basins": 0, "alpha": 0.0}, 0.0, Verdict.CONVINCING, "has no other optimum"),
    "not in the way": ({"warnings": HARMLESS}, 50.0, Verdict.CONVINCING, "50 times the energy"),
    "cut": ({"status": Status.MAX_ITER}, 50.0, Verdict.DOUBTFUL, "The solve did not converge: the iteration limit"),
    "tied": ({}, 1.0, Verdict.DOUBTFUL, "Another matching has an energy as low, and its matches lie 50%"),
    "near": ({}, 1.1, Verdict.DOUBTFUL, "Another matching has an energy only 10% higher, and its matches"),
    "not near": ({}, RIVAL + 0.01, Verdict.CONVINCING, "has 1.26 times the energy"),
    "a part": ({"marginals": Partial(0.5)}, 2.0, Verdict.DOUBTFUL, "an energy only 100% higher"),
    "a clear part": ({"marginals": Partial(0.5)}, RIVAL_OF_PARTS + 0.1, Verdict.CONVINCING, "has 3.1 times"),
    "no search": ({"basins": 0}, 0.0, Verdict.DOUBTFUL, "The solve tried no other start"),
    "warned": ({"warnings": WARNED}, 50.0, Verdict.DOUBTFUL, "The solve gave a GraphWarning; result.warnings"),
    "high": (
        {"ratio": CLEAR + 0.02, "bound": 0.05, "distance_correlation": 0.92},
        50.0,
        Verdict.DOUBTFUL,
        "a convincing value is at most 0.1 of it",
    ),
    "high and alike": ({"ratio": 0.3, "bound": 0.01}, 50.0, Verdict.CONVINCING, "The value is 0.3 of that"),
    "high parts": (
        {"ratio": 0.3, "bound": 0.0, "marginals": Partial(0.5), "distance_correlation": 0.92},
        50.0,
        Verdict.DOUBTFUL,
        "at most 0.1 of it",
    ),
    "sampled": (
        {"ratio": 0.09, "error": 0.02, "bound": 0.05, "distance_correlation": 0.92},
        50.0,
        Verdict.DOUBTFUL,
        "The value is 0.13 of that",
    ),
    "unknown": ({"chance": math.nan}, 50.0, Verdict.DOUBTFUL, "of the product plan is not known"),
    "chance": (
        {"ratio": MEANINGLESS + 0.1, "distance_correlation": 0.4},
        50.0,
        Verdict.CHANCE,
        "The value is 0.43 of that of the product plan",
    ),
    "far points": ({"distance_correlation": 0.8}, 50.0, Verdict.DOUBTFUL, "is 0.8, less two standard"),
    "noise of graphs": (
        {"ratio": 0.3, "bound": 0.01, "distance_correlation": 0.75},
        50.0,
        Verdict.CONVINCING,
        "The value is 0.3 of that",
    ),
    "a far point": (
        {"ratio": MEANINGLESS + 0.1, "distance_correlation": 0.92},
        50.0,
        Verdict.DOUBTFUL,
        "The value is 0.43 of that of the product plan; a convincing value",
    ),
    "a far point alone": (
        {"ratio": MEANINGLESS + 0.1, "distance_correlation": 0.96},
        50.0,
        Verdict.CONVINCING,
        "is 0.96: only distances to a few points differ",
    ),
    "few points": ({"distance_correlation": math.nan}, 50.0, Verdict.DOUBTFUL, "fewer than eight points give mass"),
    "all alike": ({"chance": 0.0}, 50.0, Verdict.DOUBTFUL, "All plans have the same value"),
}


@pytest.mark.parametrize("name", CASES)
def test_each_reason_has_its_sentence(good: GWResult, name: str) -> None:
    changes, times, expected, sentence = CASES[name]
    result = with_rival(good, times) if times else good
    changes = dict(changes)
    if "basins" in changes:
        changes["basins"] = good.basins[: changes["basins"]]
    if "bound" in changes:
        changes["certificate"] = replace(good.certificate, lower_bound=changes.pop("bound") * good.chance)
    if "gap" in changes:
        changes["certificate"] = replace(good.certificate, gap=changes.pop("gap"))
    if "ratio" in changes:
        changes["value"] = changes.pop("ratio") * good.chance
    if "error" in changes:
        changes["value_error"] = changes.pop("error") * good.chance
    found, reasons = judge(replace(result, **changes))
    assert found is expected
    (said,) = [reason for reason in reasons if sentence in reason]
    assert said[0].isupper()
    assert said.endswith(".")


def test_a_doubt_is_said_once(good: GWResult) -> None:
    again = (IssuedWarning("AmbiguityWarning", "tied"), IssuedWarning("ConvergenceWarning", "cut"))
    result = replace(with_rival(good, 1.0), status=Status.MAX_ITER, warnings=again)
    assert len(result.reasons) == 2
    slides = replace(with_rival(good, 50.0), warnings=again)
    assert [reason.partition(";")[0] for reason in slides.reasons] == [
        "The solve gave an AmbiguityWarning",
        "The solve gave a ConvergenceWarning",
    ]


EASY = ("noisy copies", "near-symmetric shapes", "slices with features", "embeddings", "graphs")  # their ninth
EASIEST = ("wrong units", "outliers", "surfaces and curves")  # their second
HARD = ("noisy copies", "unrelated", "outliers", "surfaces and curves", "slices with features", "embeddings")
SAMPLE = [*((kind, 9) for kind in EASY), *((kind, 2) for kind in EASIEST), *((kind, 30) for kind in HARD)]


def test_what_is_wrong_is_not_called_convincing_and_what_is_right_mostly_is() -> None:
    right, wrong = [], []
    for kind, number in SAMPLE:
        problem = suite.problem(kind, number, draw=0)
        result = quietly(gw_align, problem.X, problem.Y, random_state=0, **problem.arguments)
        convincing = result.verdict is Verdict.CONVINCING
        (right if suite.outcome(problem.share(result.argmax())) == "right" else wrong).append(convincing)
    assert not any(wrong)
    assert len(wrong) >= 5
    assert len(right) >= 5
    assert sum(right) >= 0.8 * len(right)


# Where it is shown


def test_a_result_keeps_its_verdict_and_its_warnings(tmp_path: Path) -> None:
    result = quietly(gw_align, SPIRAL, RNG.normal(size=(30, 3)), distances="euclidean", epsilon=5.0, random_state=0)
    assert result.verdict is Verdict.CHANCE
    assert "RegularizationWarning" in [warning.category for warning in result.warnings]
    assert repr(result).endswith("; chance)")
    result.save(tmp_path / "kept.npz")
    again = GWResult.load(tmp_path / "kept.npz")
    for name in ("chance", "warnings", "verdict", "reasons"):
        assert getattr(again, name) == getattr(result, name)


def test_a_file_of_an_earlier_version_has_no_chance_and_is_doubtful(good: GWResult, tmp_path: Path) -> None:
    good.save(tmp_path / "new.npz")
    with np.load(tmp_path / "new.npz") as file:
        arrays = dict(file)
    meta = json.loads(str(arrays["meta"]))
    del meta["chance"], meta["warnings"]
    np.savez(tmp_path / "old.npz", **arrays | {"meta": np.array(json.dumps(meta))})
    old = GWResult.load(tmp_path / "old.npz")
    assert math.isnan(old.chance)
    assert old.verdict is Verdict.DOUBTFUL


def test_the_command_says_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(tmp_path / name) for name in ("x.npy", "y.npy", "out.npz")]
    for file, points in zip(files, (CLOUD, COPY), strict=False):
        np.save(file, points)
    assert cli.main(["align", *files[:2], "-o", files[2], "--distances", "euclidean", "--json"]) == 0
    found, result = json.loads(capsys.readouterr().out), GWResult.load(files[2])
    assert found["verdict"] == "convincing"
    assert (found["chance"], found["reasons"], found["warnings"]) == (result.chance, list(result.reasons), [])


def test_a_resumed_solve_has_the_warnings_of_its_preparation(tmp_path: Path) -> None:
    parts = np.concatenate((CLOUD, CLOUD + 50))
    call: dict[str, Any] = {"random_state": 0, "epsilon": 1e-2}
    whole = quietly(gw_align, parts, COPY, **call, checkpoint=tmp_path / "kept")
    assert "GraphWarning" in [warning.category for warning in whole.warnings]
    assert quietly(resume, tmp_path / "kept").warnings == whole.warnings


def test_a_proof_that_falls_short_is_among_the_warnings() -> None:
    result = quietly(gw_certify, CLOUD, RNG.exponential(size=(30, 3)), distances="euclidean", random_state=0)
    assert [w.category for w in result.warnings][-1] == "ConvergenceWarning"
    assert result.certificate.gap_global > 0.05
    assert isinstance(result.marginals, Balanced)

"""Known pairs, forbidden pairs, labels and masks: what they forbid, what they cost, and the ties they break."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from scipy.stats import spearmanr

from tests import oracle
from tests.problems import daily
from tests.test_models import OPTIONS, matrix_of, posed, solved
from torchgw import GWOptions, LadderOptions, Partial, Supervision, SupervisionWarning, gw_align
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.objective import supervision
from torchgw.objective.supervision import _pair_penalty, _penalty_at
from torchgw.strategies import within_memory

X, ANGLE_X = make_spiral(200)
Y, ANGLE_Y = make_swiss_roll(240, random_state=1)
HALF_X, HALF_Y = (((angle > np.median(angle)).astype(np.int64)) for angle in (ANGLE_X, ANGLE_Y))
STREAMING = GWOptions(strategy="streaming", ladder=LadderOptions(n_cells=64))


def rule(kind: str, p: np.ndarray, q: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
    """A rule in the library's terms, and its penalties (N, K) from the definition."""
    n, k = len(p), len(q)
    P = np.zeros((n, k))
    if kind == "pairs":
        pairs = np.array([[2, 7], [11, 3], [2, 8]])
        partners = np.zeros((n, k))
        partners[pairs[:, 0], pairs[:, 1]] = 1.0
        rows, columns = partners @ q, p @ partners
        P = ((rows > 0) & (p <= rows))[:, None] * 1.0 + ((columns > 0) & (q <= columns))
        P[pairs[:, 0], pairs[:, 1]] = 0.0
        return {"pairs": pairs}, P
    if kind == "forbidden":
        pairs = np.array([[i, j] for i in range(4) for j in range(i, 9)])
        P[pairs[:, 0], pairs[:, 1]] = 1.0
        return {"forbidden": pairs}, P
    if kind == "labels":
        x, y = np.arange(n) % 4 - 1, (np.arange(k) * 7) % 3 - 1
        P = ((x[:, None] != y) & (x[:, None] != -1) & (y != -1)).astype(float)
        return {"labels": (x, y)}, P
    mask = np.random.default_rng(0).random((n, k)) < 0.5
    return {"mask": csr_matrix(mask)}, 1.0 - mask


@pytest.mark.parametrize("factored", [True, False])
def test_rules_of_pairs_are_the_penalties_they_stand_for(factored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "MOST_COLUMNS", 256 if factored else 0)
    n, k, p, q = 5, 7, np.linspace(0.1, 0.9, 5), np.linspace(0.8, 0.2, 7)
    none = torch.zeros(n, dtype=torch.float64), torch.zeros(k, dtype=torch.float64)
    for side, pairs in enumerate(
        (np.array([[0, 1], [0, 2], [3, 2], [4, 6]]), np.array([[0, 1], [2, 1], [3, 1], [4, 6]]))
    ):
        listed = np.zeros((n, k))
        listed[pairs[:, 0], pairs[:, 1]] = 1.0
        forbidden, few = _penalty_at(pairs, none, -0.5, 1.0, "forbidden", stored=True)
        assert (few, forbidden.extra is None) == (side, factored)
        np.testing.assert_allclose(forbidden.rows(slice(0, n)), listed)
        room = [(mass > 0) & (own <= mass) for mass, own in ((listed @ q, p), (p @ listed, q))]
        found = _pair_penalty(pairs, p, q, stored=True).rows(slice(0, n))
        np.testing.assert_allclose(found, np.where(listed > 0, 0.0, np.add.outer(*(1.0 * side for side in room))))


# Every two of model, kind, strategy and gradient meet; with sampled gradients rules are factors or a matrix.
DAILY = {
    *itertools.product(["partial"], ["pairs", "forbidden", "labels", "mask"], ["dense"], ["exact"]),
    ("balanced", "pairs", "streaming", "exact"),
    ("unbalanced", "forbidden", "streaming", "exact"),
    ("partial", "labels", "streaming", "exact"),
    ("balanced", "mask", "streaming", "exact"),
    ("balanced", "forbidden", "dense", "exact"),
    ("unbalanced", "pairs", "dense", "exact"),
    ("balanced", "labels", "streaming", "sampled"),
    ("unbalanced", "labels", "dense", "sampled"),
    ("unbalanced", "mask", "dense", "exact"),
    ("partial", "mask", "dense", "sampled"),
    ("balanced", "mask", "dense", "sampled"),
}


@pytest.mark.parametrize(
    ("name", "kind", "strategy", "gradient"),
    daily(
        DAILY,
        ["balanced", "unbalanced", "partial"],
        ["pairs", "forbidden", "labels", "mask"],
        ["dense", "streaming"],
        ["exact", "sampled"],
    ),
)
def test_soft_rules_have_the_oracles_plan_and_value(name: str, kind: str, strategy: str, gradient: str) -> None:
    problem, given = posed(name, "features")
    rules, P = rule(kind, problem.p, problem.q)
    given |= {"supervision": Supervision(strength=0.3, **rules)}
    if kind == "mask" and strategy == "streaming":
        with pytest.raises(ValueError, match=r"options.strategy must be 'auto' or 'dense' with a mask"):
            solved(problem, given, strategy=strategy)
        return
    problem = replace(problem, P=0.3 * P)
    result = solved(problem, given, strategy=strategy, gradient=gradient)
    T = oracle.solve(problem)
    values = oracle.objective(problem, T)
    assert float(np.abs(result.plan - T).sum()) < 1e-5
    assert result.value == pytest.approx(values.value, abs=1e-6)
    assert result.value_penalty == pytest.approx(values.penalty + values.constraint, abs=1e-6)
    assert result.violation == pytest.approx(float((P * T).sum()), abs=1e-6)


@pytest.mark.filterwarnings("ignore::torchgw.SamplingWarning")
@pytest.mark.parametrize("strategy", ["dense", "streaming"])
@pytest.mark.parametrize("kind", ["forbidden", "labels", "mask"])
def test_hard_rules_leave_nothing_where_they_can_be_kept(kind: str, strategy: str) -> None:
    if kind == "mask" and strategy == "streaming":
        pytest.skip("a mask is stored")
    rules = {
        "forbidden": {"forbidden": [(i, j) for i in range(20) for j in range(30)]},
        "labels": {"labels": (HALF_X, HALF_Y)},
        "mask": {"mask": np.abs(ANGLE_X[:, None] - ANGLE_Y) < 3},
    }[kind]
    options = GWOptions() if strategy == "dense" else STREAMING
    result = gw_align(X, Y, supervision=Supervision(**rules), random_state=0, options=options)
    assert result.violation < (1e-4 if strategy == "dense" else 3e-4)
    assert result.value_penalty == 0.0
    assert result.marginal_error < 1e-9
    if kind == "forbidden":
        free = gw_align(X, Y, random_state=0, options=options)
        assert float(free.plan[:20, :30].sum()) > 0.05
        assert float(result.plan[:20, :30].sum()) < 1e-4


def test_labels_turn_a_matching_round() -> None:
    """The wrong orientation has ten times the value, and labels that say so are believed."""
    labels = (1 - HALF_X, HALF_Y)
    turned = gw_align(X, Y, supervision=Supervision(labels=labels), random_state=0)
    assert spearmanr(ANGLE_X, ANGLE_Y[turned.argmax()])[0] < -0.99
    weak = gw_align(X, Y, supervision=Supervision(labels=labels, strength=1e-3), random_state=0)
    assert spearmanr(ANGLE_X, ANGLE_Y[weak.argmax()])[0] > 0.99
    assert weak.value_penalty == pytest.approx(1e-3 * weak.violation, rel=1e-6)


def arc(n: int) -> tuple[np.ndarray, np.ndarray]:
    """A curve that is its own mirror image."""
    t = np.linspace(-1, 1, n)
    return np.stack((t, 0.3 * (1 - t**2)), axis=1), t


@pytest.mark.filterwarnings("ignore::torchgw.SamplingWarning")
@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 20), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("strategy", ["dense", "streaming"])
def test_two_known_pairs_fix_the_orientation_of_a_symmetric_shape(strategy: str, seeds: range) -> None:
    n, k = 80, 90
    (A, s), (B, t) = arc(n), arc(k)
    small = LadderOptions(n_cells=24)
    for seed in seeds:
        turned = seed % 2 == 1
        i = np.array([8, 65])
        j = np.round(i * (k - 1) / (n - 1)).astype(int)
        pairs = np.stack((i, k - 1 - j if turned else j), axis=1)
        options = GWOptions(strategy=strategy, ladder=small)
        result = gw_align(A, B, supervision=Supervision(pairs=pairs), random_state=seed, options=options)
        assert spearmanr(s, t[result.argmax()])[0] * (-1 if turned else 1) > 0.99
        assert not result.ambiguous


def test_a_known_pair_takes_all_the_mass_that_the_smaller_point_has() -> None:
    result = gw_align(X, Y, supervision=Supervision(pairs=[(0, 239)]), random_state=0)
    assert float(result.plan[0, 239]) == pytest.approx(1 / 240, rel=1e-2)


def test_rules_and_marginal_models_go_together() -> None:
    result = gw_align(X, Y, marginals=Partial(0.5), supervision=Supervision(labels=(HALF_X, HALF_Y)), random_state=0)
    assert float(result.plan.sum()) == pytest.approx(0.5)
    assert result.violation < 1e-4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "at least one of"),
        ({"pairs": [(0, 999)]}, r"supervision.pairs"),
        ({"forbidden": [(-1, 0)]}, r"supervision.forbidden"),
        (
            {"labels": (np.zeros(200), np.zeros(240))},
            r"got shape .* of dtype float64; np.unique\(np.concatenate\(labels\), ret",
        ),
        ({"labels": (np.zeros(3, int), np.zeros(240, int))}, r"supervision.labels\[0\] must be 200 integers"),
        ({"labels": (np.zeros(200, int), np.full(240, -2))}, "at least -1"),
        ({"mask": np.ones((3, 3))}, r"must have shape \(N, K\) = \(200, 240\)"),
        ({"mask": np.zeros((200, 240))}, "an empty row 0 of X"),
        ({"pairs": [(0, 0)], "strength": 0.0}, "strength must be"),
        ({"labels": 3}, "labels must be a pair"),
        ({"labels": (["T"] * 200, ["B"] * 240)}, "labels in common, got such as 'T' for X and 'B' for Y"),
    ],
)
def test_rules_that_cannot_be_kept_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        gw_align(X, Y, supervision=Supervision(**arguments))


def test_too_many_rules_for_streaming_are_refused_and_stored_otherwise() -> None:
    (x, angle_x), (y, angle_y) = make_spiral(400), make_swiss_roll(480, random_state=1)
    many = np.stack((np.arange(260) * 399 // 259, np.arange(260) * 479 // 259), axis=1)
    with pytest.raises(ValueError, match=r"supervision.pairs must need at most 256 columns of factors, got 260"):
        gw_align(x, y, supervision=Supervision(pairs=many), options=STREAMING)
    result = gw_align(x, y, supervision=Supervision(pairs=many), random_state=0)
    assert spearmanr(angle_x, angle_y[result.argmax()])[0] > 0.9


def test_supervision_by_itself_needs_no_distances() -> None:
    problem, given = posed("balanced", "features")
    P = rule("labels", problem.p, problem.q)[1]
    rules = rule("labels", problem.p, problem.q)[0]
    cost = given.pop("cost")
    problem = replace(problem, alpha=0.0, M=matrix_of(cost), P=0.2 * P)
    given |= {"alpha": 0.0, "cost": cost, "supervision": Supervision(strength=0.2, **rules)}
    result = gw_align(None, None, options=OPTIONS, random_state=0, **given)
    T = oracle.solve(problem)
    assert float(np.abs(result.plan - T).sum()) < 1e-5


@pytest.mark.parametrize("scale", [1.0, 1e-6])
@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_constraints_outweigh_any_linear_cost_and_any_mass(alpha: float, scale: float) -> None:
    """Every point would rather stay where it is forbidden to be."""
    n = 30
    P = np.random.default_rng(0).normal(size=(n, 3))
    mass = np.full(n, scale / n)
    rules = Supervision(forbidden=[(i, i) for i in range(n)])
    cost = 1000 * (1 - np.eye(n))
    result = gw_align(
        P, P, distances="euclidean", cost=cost, alpha=alpha, p=mass, q=mass, epsilon=1e-2, supervision=rules
    )
    assert result.violation < 1e-6 * scale
    assert result.certificate.lower_bound <= result.value


def test_constraints_that_the_masses_break_are_told_and_not_in_the_bound() -> None:
    labels = np.arange(200) % 3, np.arange(240) % 2
    with pytest.warns(SupervisionWarning, match="of the mass is on pairs that supervision= forbids"):
        result = gw_align(X, Y, supervision=Supervision(labels=labels), random_state=0)
    assert result.violation > 0.1
    assert result.certificate.lower_bound <= result.value


def test_rules_that_are_stored_do_not_fall_back_to_streaming(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Any) -> None:
        raise MemoryError("not enough memory")

    monkeypatch.setitem(within_memory.SOLVERS, "dense", full)
    x, y = np.random.default_rng(0).random((2, 300, 2))
    rules = Supervision(pairs=np.stack((np.arange(300), np.arange(300)), axis=1))
    with pytest.raises(MemoryError):
        gw_align(x, y, supervision=rules, random_state=0)


def test_a_pair_cannot_be_both_known_and_forbidden() -> None:
    with pytest.raises(ValueError, match=r"both in pairs and forbidden, got \(0, 1\)"):
        gw_align(X, Y, supervision=Supervision(pairs=[(0, 1)], forbidden=[(0, 1)]))


def test_one_point_that_is_kept_from_many_names_itself_only() -> None:
    p = np.full(300, 1 / 300)
    rules = Supervision(forbidden=[(7, j) for j in range(280)]).rules(p, p, False)
    assert rules.points[0].tolist() == [7]
    assert len(rules.points[1]) == 0
    assert [len(np.unique(side)) for side in rules.groups] == [2, 2]

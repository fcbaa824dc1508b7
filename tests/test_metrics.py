"""The metrics against values by hand, against flat oracles on random input, and under what must not change them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist
from scipy.stats import pearsonr, spearmanr
from sklearn.neighbors import KNeighborsClassifier

from tests.problems import ROLL_ANGLE, SPIRAL_ANGLE
from torchgw import GWResult, metrics
from torchgw.search import automorphisms
from torchgw.search.automorphisms import maximise_agreements

SEEDS = range(6)
LINE = np.abs(np.subtract.outer(np.arange(5.0), np.arange(5.0)))


def known_of(truth: np.ndarray) -> np.ndarray:
    return np.flatnonzero(truth >= 0)


def draw_truth(rng: np.random.Generator, n: int, k: int) -> np.ndarray:
    """Some points' own targets, -1 for the others."""
    truth = rng.permutation(k)[:n] if n <= k else np.concatenate((rng.permutation(k), np.full(n - k, -1)))
    return np.where(rng.random(n) < 0.8, truth, -1)


def random_plan(rng: np.random.Generator, n: int, k: int) -> np.ndarray:
    plan = rng.random((n, k)) * (rng.random((n, k)) < 0.5)
    plan[0] = 0.0  # a point without mass
    return plan


# ---- foscttm


def foscttm_by_loops(X: np.ndarray, Y: np.ndarray, truth: np.ndarray) -> float:
    scores = []
    for i in known_of(truth):
        own = np.linalg.norm(X[i] - Y[truth[i]])
        closer = sum(np.linalg.norm(X[i] - y) < own for y in Y) / (len(Y) - 1)
        scores.append(closer / 2 + sum(np.linalg.norm(x - Y[truth[i]]) < own for x in X) / (len(X) - 1) / 2)
    return float(np.mean(scores))


@pytest.mark.parametrize("seed", SEEDS)
def test_foscttm_is_the_fraction_of_closer_samples(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X, Y = rng.normal(size=(23, 3)), rng.normal(size=(31, 3))
    truth = draw_truth(rng, 23, 31)
    assert metrics.foscttm(X, Y, truth) == pytest.approx(foscttm_by_loops(X, Y, truth), abs=1e-12)


def test_foscttm_by_hand() -> None:
    X = np.array([[0.0], [1.0], [2.0]])
    assert metrics.foscttm(X, X) == 0.0
    assert metrics.foscttm(X, X[::-1]) == pytest.approx(2 / 3)  # 1, 0 and 1 of two points are closer, on each side
    x, y = metrics.foscttm(X, X[::-1], per_point=True)
    np.testing.assert_array_equal(x, [1.0, 0.0, 1.0])
    np.testing.assert_array_equal(y, [1.0, 0.0, 1.0])


def test_foscttm_of_chance_is_a_half_and_copies_at_the_same_place_are_not_closer() -> None:
    rng = np.random.default_rng(0)
    assert metrics.foscttm(rng.normal(size=(300, 4)), rng.normal(size=(300, 4))) == pytest.approx(0.5, abs=0.05)
    far = 1e8 + np.arange(80.0).reshape(40, 2) / 100  # whose squares have lost what tells them apart
    assert metrics.foscttm(far, far) == 0.0


def test_foscttm_is_the_same_in_pieces_turned_scaled_and_exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    X, Y = rng.normal(size=(40, 3)), rng.normal(size=(40, 3))
    whole = metrics.foscttm(X, Y)
    assert metrics.foscttm(Y, X) == pytest.approx(whole, abs=1e-12)
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    assert metrics.foscttm(3 * X @ turn + 1, 3 * Y @ turn + 1) == pytest.approx(whole, abs=1e-12)
    monkeypatch.setattr(metrics, "PIECE", 100)
    assert metrics.foscttm(X, Y) == whole


# ---- labels


def labels_by_loops(x: list[Any], y: list[Any], plan: np.ndarray) -> float:
    right = []
    for i, own in enumerate(x):
        if own is None:
            continue
        mass = {label: sum(plan[i, j] for j in range(len(y)) if y[j] == label) for label in y if label is not None}
        best = max(mass, key=lambda label: mass[label])
        right.append(mass[best] > 0 and best == own)
    return float(np.mean(right))


@pytest.mark.parametrize("seed", SEEDS)
def test_labels_go_where_most_mass_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    plan = random_plan(rng, 30, 40)
    x, y = ([None if rng.random() < 0.1 else str(c) for c in rng.choice(list("ABC"), n)] for n in (30, 40))
    expected = labels_by_loops(x, y, plan)
    assert metrics.label_transfer_accuracy(x, y, plan) == pytest.approx(expected, abs=1e-12)
    assert metrics.label_transfer_accuracy(x, y, csr_array(plan)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_labels_of_points_are_those_of_the_nearest_neighbours_classifier(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X, Y = rng.normal(size=(50, 2)), rng.normal(size=(60, 2))
    x, y = (side[:, 0] > 0 for side in (X, Y))
    expected = KNeighborsClassifier(3).fit(Y, y).score(X, x)
    assert metrics.label_transfer_accuracy(x, y, (X, Y), k=3) == pytest.approx(expected, abs=1e-12)


def test_labels_by_hand() -> None:
    assert metrics.label_transfer_accuracy(["B", "T", "T"], ["T", "B"], [1, 0, 1]) == pytest.approx(2 / 3)
    assert metrics.label_transfer_accuracy(["B", "T", None], ["T", "B"], [1, -1, 1]) == 0.5  # no match, no label
    assert metrics.label_transfer_accuracy(["new", "T"], ["T", "B"], [0, 0]) == 0.5  # nobody can carry it
    assert metrics.label_transfer_accuracy(torch.tensor([3, 4]), np.array([4.0, 3.0]), [1, 0]) == 1.0


# ---- nodes


def agreements_by_all_permutations(A: np.ndarray, wanted: np.ndarray) -> int:
    every = (np.array(s) for s in itertools.permutations(range(len(A))))
    return max(int((wanted == s).sum()) for s in every if (A[s][:, s] == A).all())


@pytest.mark.parametrize("seed", range(40))
def test_the_best_automorphism_is_that_of_all_permutations(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 7))
    A = (rng.random((n, n)) < rng.choice([0.2, 0.4, 0.7])) * rng.integers(1, 2 + seed % 2, (n, n)).astype(float)
    A = A if seed % 3 == 0 else np.triu(A, seed % 2) + np.triu(A, 1).T
    wanted = rng.permutation(n) if seed % 4 else rng.integers(-1, n, n)
    best = agreements_by_all_permutations(A, wanted)
    assert maximise_agreements(A, wanted) == (best, best)


GRAPHS: dict[str, Callable[[], Any]] = {
    "petersen": nx.petersen_graph,
    "cube": lambda: nx.hypercube_graph(3),
    "ladder": lambda: nx.ladder_graph(6),
    "twins": lambda: nx.complete_multipartite_graph(2, 3),
    "two parts": lambda: nx.disjoint_union(nx.cycle_graph(4), nx.cycle_graph(4)),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_the_best_automorphism_is_that_of_networkx(name: str) -> None:
    graph = nx.convert_node_labels_to_integers(GRAPHS[name]())
    n = len(graph)
    every = [
        np.array([found[i] for i in range(n)])
        for found in nx.algorithms.isomorphism.GraphMatcher(graph, graph).isomorphisms_iter()
    ]
    rng = np.random.default_rng(0)
    for _ in range(5):
        matching, truth = rng.permutation(n), rng.permutation(n)
        best = max((matching == image[truth]).mean() for image in every)
        assert metrics.node_correctness(matching, truth, automorphisms_of=graph) == pytest.approx(best)


def test_an_automorphism_of_a_large_graph_is_no_error_but_a_wrong_node_is() -> None:
    star, rng = nx.star_graph(120), np.random.default_rng(0)
    leaves = np.concatenate(([0], 1 + rng.permutation(120)))
    assert metrics.node_correctness(leaves, np.arange(121), automorphisms_of=star) == 1.0
    leaves[[0, 5]] = leaves[[5, 0]]
    assert metrics.node_correctness(leaves, np.arange(121), automorphisms_of=star) == pytest.approx(119 / 121)
    ring = np.roll(np.arange(30), 7)
    assert metrics.node_correctness(ring, np.arange(30)) == 0.0
    assert metrics.node_correctness(ring, np.arange(30), automorphisms_of=nx.cycle_graph(30)) == 1.0
    swapped = ring.copy()
    swapped[:2] = ring[1::-1]  # all nodes of a ring are in one orbit: orbits would call this right, too
    score = metrics.node_correctness(swapped, np.arange(30), automorphisms_of=nx.cycle_graph(30))
    assert score == pytest.approx(28 / 30)


def test_directions_and_weights_count() -> None:
    directed, weighted = nx.cycle_graph(5, create_using=nx.DiGraph), nx.path_graph(3)
    back = np.arange(5)[::-1]
    assert metrics.node_correctness(back, np.arange(5), automorphisms_of=directed) == pytest.approx(1 / 5)
    assert metrics.node_correctness(back, np.arange(5), automorphisms_of=directed.to_undirected()) == 1.0
    assert metrics.node_correctness([2, 1, 0], [0, 1, 2], automorphisms_of=weighted) == 1.0
    weighted[0][1]["weight"] = 2.0
    assert metrics.node_correctness([2, 1, 0], [0, 1, 2], automorphisms_of=weighted) == pytest.approx(1 / 3)


def test_nodes_of_a_directed_tree_are_told_apart_by_the_edges_to_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automorphisms, "MOST_WORK", 10**7)
    tree = nx.to_scipy_sparse_array(nx.gn_graph(300, seed=0).reverse(), weight=None)
    best, most = maximise_agreements(tree, np.random.default_rng(0).permutation(300))
    assert best == most


def test_a_search_that_is_too_long_says_between_what_the_score_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automorphisms, "MOST_WORK", 300)
    with pytest.raises(ValueError, match=r"too many automorphisms .* is between 0 and 1; leave automorphisms_of out"):
        metrics.node_correctness(np.roll(np.arange(20), 1), np.arange(20), automorphisms_of=nx.cycle_graph(20))


# ---- candidates


@pytest.mark.parametrize("seed", SEEDS)
def test_hits_and_ranks_are_those_of_sorted_rows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    plan, truth = random_plan(rng, 20, 25), draw_truth(rng, 20, 25)
    order = [[j for j in np.argsort(-row) if row[j] > 0] for row in plan]
    places = {i: order[i].index(truth[i]) + 1 if truth[i] in order[i] else np.inf for i in known_of(truth)}
    for k in (1, 3, 25):
        expected = np.mean([place <= k for place in places.values()])
        assert metrics.hits_at_k(plan, truth, k) == pytest.approx(expected)
        assert metrics.hits_at_k(csr_array(plan), truth, k) == pytest.approx(expected)
    assert metrics.mean_reciprocal_rank(plan, truth) == pytest.approx(np.mean([1 / r for r in places.values()]))
    assert metrics.hits_at_k(plan, truth, 1) == metrics.node_correctness(plan, truth)


def test_hits_and_ranks_by_hand() -> None:
    candidates, truth = [[0, 1, 2], [2, 0, -1], [1, 2, 0]], [1, 1, 1]
    assert [metrics.hits_at_k(candidates, truth, k) for k in (1, 2, 3)] == pytest.approx([1 / 3, 2 / 3, 2 / 3])
    assert metrics.mean_reciprocal_rank(candidates, truth) == pytest.approx((1 / 2 + 0 + 1) / 3)
    assert metrics.mean_reciprocal_rank(candidates, truth, k=1) == pytest.approx(1 / 3)
    assert metrics.hits_at_k([[0, -1]], [-1] * 0 + [0], 2) == 1.0


# ---- geodesic errors


@pytest.mark.parametrize("seed", SEEDS)
def test_the_error_curve_counts_distances(seed: int) -> None:
    rng = np.random.default_rng(seed)
    D = cdist(*2 * (rng.normal(size=(12, 2)),))
    matching, truth = rng.integers(-1, 12, 12), draw_truth(rng, 12, 12)
    radii = np.linspace(0, 1, 7)
    for area, scale in ((None, D.max()), (4.0, 2.0)):
        errors = [np.inf if matching[i] < 0 else D[matching[i], truth[i]] / scale for i in known_of(truth)]
        expected = [np.mean([error <= r for error in errors]) for r in radii]
        found = metrics.geodesic_error_curve(matching, truth, D, radii, area=area)
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_the_error_curve_of_a_graph_is_that_of_its_paths_and_begins_at_node_correctness(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = csr_array(np.where(LINE == 1, 1.0, 0.0))
    matching, truth = np.array([0, 2, 4, 3, -1]), np.arange(5)
    expected = metrics.geodesic_error_curve(matching, truth, LINE, [0.0, 0.25, 0.5, 9.0], area=16.0)
    np.testing.assert_allclose(expected, [0.4, 0.6, 0.8, 0.8])
    monkeypatch.setattr(metrics, "PIECE", 7)
    found = metrics.geodesic_error_curve(matching, truth, graph, [0.0, 0.25, 0.5, 9.0], area=16.0)
    np.testing.assert_array_equal(found, expected)
    assert found[0] == metrics.node_correctness(matching, truth)


# ---- carried values


@pytest.mark.parametrize("seed", SEEDS)
def test_carried_values_are_means_by_the_plan_and_correlate_as_scipy_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    plan, x, y = random_plan(rng, 20, 25), rng.normal(size=20), rng.integers(0, 4, 25).astype(float)
    y[3] = x[4] = np.nan
    given = np.delete(np.arange(25), 3)
    kept = np.delete(np.arange(1, 20), 3)
    carried = (plan[:, given] @ y[given])[kept] / plan[:, given].sum(1)[kept]
    found = metrics.carried_correlation(x, y, plan)
    assert found.pearson == pytest.approx(pearsonr(x[kept], carried)[0], abs=1e-12)
    assert found.spearman == pytest.approx(spearmanr(x[kept], carried)[0], abs=1e-12)
    scaled = metrics.carried_correlation(np.exp(x), y, 7 * plan)
    assert scaled.spearman == pytest.approx(found.spearman, abs=1e-12)


def test_carried_values_by_hand() -> None:
    assert metrics.carried_correlation([1.0, 2.0, 4.0], [4.0, 2.0, 1.0], [2, 1, 0]) == (1.0, 1.0)
    assert metrics.carried_correlation([1, 2, 4], [4, 2, 1], [0, 1, 2]).spearman == -1.0
    assert np.isnan(metrics.carried_correlation([1, 2, 4], [3, 3, 3], [0, 1, 2])).all()


# ---- cycles


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cycle_of_permutations_and_their_inverse_is_the_identity(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.permutation(9), rng.permutation(9)
    back = np.argsort(b[a])
    assert metrics.cycle_error(a, b, back) == 0.0
    wrong = back.copy()
    wrong[:2] = back[1::-1]
    assert metrics.cycle_error(a, b, wrong) == pytest.approx(2 / 9)
    assert metrics.cycle_error(np.eye(9)[a], csr_array(np.eye(9)[b]), wrong) == pytest.approx(2 / 9)


def test_cycles_by_hand() -> None:
    there, back = [1, 0, -1, 3, 4], [1, 0, 2, 4, 4]
    assert metrics.cycle_error(there, back) == pytest.approx(2 / 5)  # 2 is lost, 3 comes back as 4
    assert metrics.cycle_error(there, back, distances=LINE) == pytest.approx((4 + 1) / 4 / 5)


# ---- all of them


def calls(kind: Callable[[Any], Any]) -> dict[str, Any]:
    """Each metric of the same numbers, as arrays of one kind."""
    rng = np.random.default_rng(3)
    X, Y = (kind(rng.normal(size=(12, 2))) for _ in range(2))
    plan, truth = kind(random_plan(rng, 12, 12)), kind(draw_truth(rng, 12, 12))
    values, matching = kind(rng.normal(size=12)), kind(rng.permutation(12))
    D, radii = kind(cdist(*2 * (rng.normal(size=(12, 2)),))), kind(np.linspace(0, 1, 5))
    return {
        "foscttm": metrics.foscttm(X, Y, truth),
        "foscttm, each": metrics.foscttm(X, Y, truth, per_point=True)[0],
        "labels": metrics.label_transfer_accuracy(kind(rng.integers(0, 3, 12)), kind(rng.integers(0, 3, 12)), plan),
        "neighbours": metrics.label_transfer_accuracy(kind(np.arange(12) % 2), kind(np.arange(12) % 2), (X, Y)),
        "nodes": metrics.node_correctness(matching, truth),
        "hits": metrics.hits_at_k(plan, truth, 3),
        "ranks": metrics.mean_reciprocal_rank(plan, truth),
        "curve": metrics.geodesic_error_curve(matching, truth, D, radii),
        "carried": metrics.carried_correlation(values, values, plan),
        "cycle": metrics.cycle_error(matching, plan, distances=D),
    }


def test_tensors_and_arrays_agree_and_come_back_as_they_were_given() -> None:
    arrays, tensors = calls(np.asarray), calls(torch.from_numpy)
    for name, found in arrays.items():
        assert type(tensors[name]) is (torch.Tensor if isinstance(found, np.ndarray) else type(found))
        np.testing.assert_array_equal(np.asarray(tensors[name]), found)


def test_a_result_is_scored_by_what_is_read_of_it(result: GWResult) -> None:
    plan = np.asarray(result.plan)
    truth = np.abs(SPIRAL_ANGLE[:, None] - ROLL_ANGLE).argmin(1)
    x, y = SPIRAL_ANGLE > 5, ROLL_ANGLE > 5
    for score in (
        lambda carrier: metrics.node_correctness(carrier, truth),
        lambda carrier: metrics.hits_at_k(carrier, truth, 10),
        lambda carrier: metrics.mean_reciprocal_rank(carrier, truth),
        lambda carrier: metrics.label_transfer_accuracy(x, y, carrier),
        lambda carrier: metrics.carried_correlation(SPIRAL_ANGLE, ROLL_ANGLE, carrier),
        lambda carrier: metrics.cycle_error(carrier, plan.T.copy()),
    ):
        assert score(result) == pytest.approx(score(plan), abs=0.02)  # one of 90 points, if two targets are tied
    assert metrics.label_transfer_accuracy(x, y, result) > 0.8


ONES, GRAPH = np.ones((3, 2)), csr_array(np.eye(3)[[1, 0, 2]])
BAD = {
    "X and Y must be points in one space": lambda: metrics.foscttm(ONES, np.ones((3, 4))),
    "truth is needed": lambda: metrics.foscttm(ONES, np.ones((4, 2))),
    "X must hold at least 2 points": lambda: metrics.foscttm(ONES[:1], ONES),
    r"truth must hold indices in \[-1, 3\), got some from 0 to 3": lambda: metrics.foscttm(ONES, ONES, [0, 1, 3]),
    "truth must be known of at least one point": lambda: metrics.node_correctness([0, 1], [-1, -1]),
    r"truth must be integer target indices of shape \(2,\)": lambda: metrics.node_correctness([0, 1], [0.0, 1.0]),
    "matching must hold indices -1 or more": lambda: metrics.node_correctness([0, -2], [0, 1]),
    "matching must be a result of gw_align, a plan": lambda: metrics.node_correctness([[0, 1]], [0]),
    "matching must hold nodes of automorphisms_of": lambda: metrics.node_correctness(
        [0, 5], [0, 1], automorphisms_of=np.eye(2)
    ),
    "truth must give each node .* got node 1 twice": lambda: metrics.node_correctness(
        [0, 1], [1, 1], automorphisms_of=np.eye(2)
    ),
    "matching must hold at least one point": lambda: metrics.node_correctness(np.zeros(0, int), np.zeros(0, int)),
    "must be a plan of finite masses": lambda: metrics.node_correctness(-np.ones((2, 2)), [0, 1]),
    "labels_x and labels_y must have labels in common": lambda: metrics.label_transfer_accuracy(["a"], ["b"], [0]),
    r"carrier must have shape \(2, 1\)": lambda: metrics.label_transfer_accuracy([1, 1], [1], [0]),
    r"carrier must hold indices in \[-1, 1\)": lambda: metrics.label_transfer_accuracy([1], [1], [4]),
    "carrier must hold points in one space": lambda: metrics.label_transfer_accuracy([1], [1], (ONES, ONES)),
    "labels_x must be one label for each point": lambda: metrics.label_transfer_accuracy([[1]], [1], [0]),
    "candidates must hold at least k = 3": lambda: metrics.hits_at_k([[0, 1]], [0], 3),
    "candidates must hold indices, or -1 for none, got -5": lambda: metrics.hits_at_k([[0, -5]], [0], 1),
    r"candidates must hold at least one of each point, got shape \(0, 6\)": lambda: metrics.hits_at_k(
        np.zeros((0, 6)), [], 1
    ),
    r"truth must hold indices in \[-1, 2\), got some from 0 to 2": lambda: metrics.hits_at_k(ONES, [1, 2, 0], 1),
    r"truth must hold indices in \[-1, 2\), got some from 0 to 3": lambda: metrics.node_correctness(ONES, [1, 3, 0]),
    "got 1 NaN and 1 infinite entries": lambda: metrics.node_correctness(
        csr_array(([np.nan, np.inf], ([0, 1], [0, 1]))), [0, 1]
    ),
    "got a smallest of -2": lambda: metrics.node_correctness(csr_array([[-2.0, 1.0]]), [0]),
    "labels_x must hold texts, numbers or tuples of these, got a dict": lambda: metrics.label_transfer_accuracy(
        [{}, 1], [1], [0, 0]
    ),
    r"X must be an array of shape \(N, D\), got a SciPy sparse matrix; take X.toarray\(\)": lambda: metrics.foscttm(
        csr_array(ONES), ONES
    ),
    r"distances must be .* got a graph of networkx, Graph; take": lambda: metrics.cycle_error(
        [0, 1], [0, 1], distances=nx.path_graph(2)
    ),
    "k must be >= 1": lambda: metrics.mean_reciprocal_rank([[0, 1]], [0], k=0),
    "area is needed where distances is a graph": lambda: metrics.geodesic_error_curve([0], [0], GRAPH, [0.1]),
    "matching must hold indices below 5": lambda: metrics.geodesic_error_curve([7], [0], LINE, [0.1]),
    "thresholds must be numbers >= 0": lambda: metrics.geodesic_error_curve([0], [0], LINE, [-0.1]),
    "three points to compare": lambda: metrics.carried_correlation([1, 2], [1, 2], [0, 1]),
    "values_x must be real numbers": lambda: metrics.carried_correlation(["a"], [1], [0]),
    "matchings must be two or more": lambda: metrics.cycle_error([0]),
    r"matchings\[0\] must lead into the space of matchings\[1\]": lambda: metrics.cycle_error([0, 3], [0, 1]),
    r"distances must have shape \(2, 2\)": lambda: metrics.cycle_error([0, 1], [0, 1], distances=LINE),
}


@pytest.mark.parametrize("unit", [1e-300, 1e-30, 1.0, 1e30, 1e300])
def test_a_correlation_has_no_unit(unit: float) -> None:
    values = np.array([1.0, 3.0, 2.0, 5.0])
    found = metrics.carried_correlation(unit * values, values[::-1] / unit, [0, 1, 2, 3])
    assert found == pytest.approx(metrics.carried_correlation(values, values[::-1], [0, 1, 2, 3]))


@pytest.mark.parametrize("nothing", [None, np.nan, pd.NA, np.ma.masked])
def test_a_label_that_is_missing_does_not_count(nothing: Any) -> None:
    labels = ["a", nothing, "b"]
    found = np.ma.array(["a", "a", "b"], mask=[0, 1, 0]) if nothing is np.ma.masked else labels
    assert metrics.label_transfer_accuracy(found, ["a", "b"], [0, 0, 0]) == 0.5
    assert metrics.label_transfer_accuracy(["a", "a", "b"], found, [0, 1, 2]) == pytest.approx(2 / 3)


@pytest.mark.parametrize("said", BAD)
def test_bad_input_is_refused_with_what_arrived(said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        BAD[said]()

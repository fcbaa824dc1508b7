"""Branches that hang in the wrong place move as a whole, where no exchange of two matches is better."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch

from torchgw.solvers.assignment import AssignmentProblem
from torchgw.solvers.chains import _edges, _Matching, improve_by_chains


def sum_of(X: np.ndarray, Y: np.ndarray, order: np.ndarray) -> float:
    return float((X * Y[np.ix_(order, order)]).sum())


def weighted(n: int, rng: np.random.Generator) -> np.ndarray:
    """A sparse matrix of both signs, with directions and a diagonal."""
    return np.where(rng.random((n, n)) < 0.2, rng.normal(size=(n, n)), 0.0)


@pytest.mark.parametrize("seed", range(5))
def test_the_gain_of_an_exchange_is_the_difference_of_two_sums(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X, Y, order = weighted(11, rng), weighted(11, rng), rng.permutation(11)
    matching = _Matching((_edges(X), _edges(X.T)), (_edges(Y), _edges(Y.T)), order.tolist())
    for r, s in ((0, 1), (3, 7), (10, 2), (5, 4)):
        other = order.copy()
        other[[r, s]] = order[[s, r]]
        assert matching.gain(r, s) == pytest.approx(sum_of(X, Y, other) - sum_of(X, Y, order), abs=1e-12)
        assert matching.match == order.tolist()


@pytest.mark.parametrize("seed", range(8))
def test_the_sum_never_falls_and_the_matching_stays_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X, Y, order = weighted(14, rng), weighted(14, rng), rng.permutation(14)
    found = improve_by_chains(X, Y, order)
    assert sorted(found.tolist()) == list(range(14))
    assert sum_of(X, Y, found) > sum_of(X, Y, order)
    np.testing.assert_array_equal(improve_by_chains(X, Y, found), found)


def test_a_branch_that_hangs_in_the_wrong_place_moves_as_a_whole() -> None:
    rng = np.random.default_rng(0)
    A = nx.to_numpy_array(nx.random_labeled_tree(40, seed=3))
    n, k = len(A), 12
    B = nx.to_numpy_array(nx.random_labeled_tree(k, seed=1))
    X = np.zeros((n + 2 * k, n + 2 * k))
    X[:n, :n], X[n : n + k, n : n + k], X[n + k :, n + k :] = A, B, B
    leaf = n + k + int(np.argmin(B.sum(1)))
    X[leaf, leaf - 1 if B[leaf - n - k, leaf - 1 - n - k] == 0 else leaf - 2] = 1  # one extra edge tells them apart
    X = np.maximum(X, X.T)
    for root, at in ((3, n), (17, n + k)):
        X[root, at] = X[at, root] = 1
    wrong = np.arange(len(X))
    wrong[n : n + k], wrong[n + k :] = np.arange(n + k, n + 2 * k), np.arange(n, n + k)
    shuffle = rng.permutation(len(X))
    Y = np.zeros_like(X)
    Y[np.ix_(shuffle, shuffle)] = X
    wrong = shuffle[wrong]
    problem = AssignmentProblem.of(torch.from_numpy(X), torch.from_numpy(Y), True)
    stuck = problem.improve_by_exchanges(wrong)
    assert sum_of(X, Y, stuck) < X.sum()
    assert sum_of(X, Y, improve_by_chains(X, Y, wrong)) == X.sum()


def test_nothing_is_made_of_graphs_without_edges() -> None:
    order = np.random.default_rng(0).permutation(6)
    np.testing.assert_array_equal(improve_by_chains(np.zeros((6, 6)), np.zeros((6, 6)), order), order)

"""Plans of few entries between two sparse matrices: against dense ones, linear programs, and what they must keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.optimize import linear_sum_assignment, linprog

from tests.problems import generator, quietly
from tests.test_guesses import shuffled
from torchgw import AdjacencyDistances, GWOptions, GWResult, StoppingOptions, estimate, gw_align, resume
from torchgw.couplings.sparse import SparseCoupling
from torchgw.diagnostics.evidence import entropy_and_margin
from torchgw.diagnostics.status import Status
from torchgw.linalg.sparse_entries import (
    find_mutual_pairs,
    inner,
    largest_per_row,
    make_csr,
    scale_to_marginals,
    select_entries,
)
from torchgw.objective.exact import SparseObjective
from torchgw.request import limits
from torchgw.search import graph_matching
from torchgw.search.basins import MOST_CONTEST_PAIRS
from torchgw.search.signatures import compute_signatures, find_nearest
from torchgw.search.sparse_basins import HopDistances
from torchgw.solvers.linear_oracle import repair_marginals
from torchgw.solvers.sparse_descent import bound_worth, find_best_plan
from torchgw.types import Coupling

SPARSE = GWOptions(strategy="sparse")


def graph(kind: str, n: int) -> Any:
    """A graph of one of a few kinds, as a sparse adjacency."""
    made = {
        "clustered": lambda: nx.powerlaw_cluster_graph(n, 5, 0.5, seed=0),
        "preferential": lambda: nx.barabasi_albert_graph(n, 5, seed=0),
        "small world": lambda: nx.watts_strogatz_graph(n, 10, 0.1, seed=0),
        "geometric": lambda: nx.random_geometric_graph(n, (10 / n / np.pi) ** 0.5, seed=0),
        "blocks": lambda: nx.random_partition_graph([n // 4] * 4, 24 / n, 16 / 3 / n, seed=0),
    }
    return sparse.csr_array(nx.to_scipy_sparse_array(made[kind](), dtype=float))


def noisy_copy(
    A: Any, keep: float = 1.0, weighted: bool = False, directed: bool = False
) -> tuple[Any, Any, np.ndarray]:
    """A, a shuffled copy of it with 5 % of its edges moved and a share of its nodes kept, and its node for each node of
    A, -1 where it has none."""
    rng, n = np.random.default_rng(1), A.shape[0]
    upper = sparse.triu(A, 1).tocoo()
    row, column = upper.coords
    value = rng.uniform(0.5, 1.5, len(row)) * rng.choice([1, -1], len(row)) if weighted else upper.data
    stays, added = rng.random(len(row)) > 0.05, rng.integers(n, size=(2, len(row) // 20))
    ends = np.concatenate((row[stays], added[0])), np.concatenate((column[stays], added[1]))
    values = np.concatenate((value[stays], rng.choice(value, len(added[0]))))
    X, Y = sparse.csr_array((value, (row, column)), (n, n)), sparse.csr_array((values, ends), (n, n))
    if not directed:
        X, Y = (side + side.T for side in (X, Y))
    Y.data = Y.data.clip(-abs(value).max(), abs(value).max())  # an edge that was there before
    order = rng.permutation(n)[: int(keep * n)]
    truth = np.full(n, -1)
    truth[order] = np.arange(len(order))
    return sparse.csr_array(X), sparse.csr_array(Y[order][:, order]), truth


def value_of(X: Any, Y: Any, T: np.ndarray) -> float:
    """sum (X_ii' - Y_jj')^2 T_ij T_i'j', each matrix over its largest absolute entry."""
    x, y = (side.toarray() / abs(side).max() for side in (X, Y))
    p, q = T.sum(1), T.sum(0)
    return float(p @ x**2 @ p + q @ y**2 @ q - 2 * ((x @ T @ y.T) * T).sum())


def plan_of(truth: np.ndarray, k: int) -> np.ndarray:
    T = np.zeros((len(truth), k))
    T[np.arange(len(truth)), truth] = 1 / len(truth)
    return T


@pytest.fixture
def plan() -> np.ndarray:
    """A plan (23, 31) of few entries, some rows and columns of which are empty, and with ties."""
    rng = np.random.default_rng(0)
    found = np.where(rng.uniform(size=(23, 31)) < 0.1, rng.integers(1, 4, size=(23, 31)), 0.0)
    found[4] = found[:, 7] = found[22] = 0.0
    found[5, ::2] = 1.0
    return found


@pytest.fixture
def coupling(plan: np.ndarray) -> SparseCoupling:
    return SparseCoupling.of(sparse.csr_array(plan), torch.device("cpu"))


def test_it_is_a_coupling_of_these_entries(coupling: SparseCoupling, plan: np.ndarray) -> None:
    assert isinstance(coupling, Coupling)
    np.testing.assert_array_equal(coupling.to_dense().numpy(), plan)
    np.testing.assert_array_equal(SparseCoupling(**coupling.tensors()).to_dense().numpy(), plan)
    np.testing.assert_array_equal(coupling.times(2.5).to_dense().numpy(), 2.5 * plan)
    np.testing.assert_array_equal(coupling.transpose().to_dense().numpy(), plan.T)
    index = torch.tensor([22, 0, 5, 5])
    np.testing.assert_array_equal(coupling.rows(index).numpy(), plan[index])
    np.testing.assert_array_equal(coupling.rows(slice(3, 9)).numpy(), plan[3:9])


@pytest.mark.parametrize("axis", [0, 1])
def test_products_marginals_and_largest_entries_are_those_of_the_plan(
    coupling: SparseCoupling, plan: np.ndarray, axis: int
) -> None:
    T = plan if axis == 1 else plan.T
    V = torch.randn(T.shape[1], 3, dtype=torch.float64, generator=generator())
    torch.testing.assert_close(coupling.apply(V, axis), torch.from_numpy(T) @ V)
    torch.testing.assert_close(coupling.apply(V[:, 0], axis), torch.from_numpy(T) @ V[:, 0])
    np.testing.assert_array_equal(coupling.marginal(axis).numpy(), T.sum(1))
    np.testing.assert_array_equal(coupling.argmax(axis).numpy(), T.argmax(1))
    with pytest.raises(ValueError, match="V must have"):
        coupling.apply(V[1:], axis)


@pytest.mark.parametrize("k", [1, 3, 8, 31])
def test_the_best_of_each_row_are_those_of_the_plan(coupling: SparseCoupling, plan: np.ndarray, k: int) -> None:
    values, index = coupling.top_k(k)
    np.testing.assert_array_equal(values.numpy(), -np.sort(-plan, 1)[:, :k])
    np.testing.assert_array_equal(np.take_along_axis(plan, index.numpy(), 1), values.numpy())
    assert all(len(set(row)) == k for row in index.tolist())


def test_a_share_of_each_row_is_that_of_its_largest_entries(coupling: SparseCoupling, plan: np.ndarray) -> None:
    np.testing.assert_array_equal(coupling.to_sparse(1.0).toarray(), plan)
    part = coupling.to_sparse(0.5).toarray()
    ordered = -np.sort(-plan, 1)
    fewest = (ordered.cumsum(1) - ordered < 0.5 * plan.sum(1)[:, None]).sum(1)
    np.testing.assert_array_equal((part > 0).sum(1), np.where(plan.sum(1) > 0, fewest, 0))
    assert ((part == 0) | (part == plan)).all()
    assert (part.sum(1) >= 0.5 * plan.sum(1)).all()


def test_columns_are_drawn_by_their_masses(coupling: SparseCoupling, plan: np.ndarray) -> None:
    count = 40_000
    for row in (0, 5, 21):
        drawn = coupling.sample_columns(torch.full((count,), row), generator())
        share, expected = torch.bincount(drawn, minlength=31).numpy() / count, plan[row] / plan[row].sum()
        assert (abs(share - expected) <= 4.5 * np.sqrt(expected * (1 - expected) / count) + 1e-9).all()
    drawn = coupling.sample_columns(torch.full((count,), 4), generator())  # a row without mass
    assert len(torch.unique(drawn)) == 31


def test_entropy_and_margin_are_those_of_the_stored_plan(coupling: SparseCoupling, plan: np.ndarray) -> None:
    filled = torch.from_numpy(np.flatnonzero(plan.sum(1) > 0))
    entropy, margin = entropy_and_margin(coupling, filled)
    share = plan[filled] / plan[filled].sum(1, keepdims=True)
    ordered = -np.sort(-share, 1)
    np.testing.assert_allclose(entropy, -np.where(share > 0, share * np.log(share.clip(min=1e-300)), 0).sum(1))
    np.testing.assert_allclose(margin, 1 - ordered[:, 1] / ordered[:, 0])
    whole = entropy_and_margin(coupling)
    torch.testing.assert_close(whole[0][filled], entropy)


def test_entries_are_chosen_and_scaled_as_dense_ones(plan: np.ndarray) -> None:
    W = sparse.csr_array(plan + 1e-3 * np.arange(23)[:, None] * (plan > 0) + 1e-4 * np.arange(31) * (plan > 0))
    dense = W.toarray()
    top = largest_per_row(W, 2).toarray()
    assert ((dense == top) | (top == 0)).all()
    np.testing.assert_allclose(np.sort(top, 1)[:, -2:], np.sort(dense, 1)[:, -2:])
    row, column = find_mutual_pairs(W)
    best = [
        (i, j) for i, j in zip(*np.nonzero(dense), strict=True) if dense[i, j] == dense[i].max() == dense[:, j].max()
    ]
    assert set(zip(row.tolist(), column.tolist(), strict=True)) == {(int(i), int(j)) for i, j in best}
    np.testing.assert_array_equal(select_entries(W, W.data > 2).toarray(), np.where(dense > 2, dense, 0))
    p, q = np.full(23, 1 / 23), np.full(31, 1 / 31)
    T = scale_to_marginals(W, p, q, 10).toarray()
    assert (T.sum(1) <= p * (1 + 1e-12)).all()
    assert ((T > 0) == (dense > 0)).all()


@pytest.mark.parametrize("directed", [False, True])
def test_the_objective_is_that_of_stored_matrices(directed: bool) -> None:
    X, Y, truth = noisy_copy(graph("clustered", 40), 0.9, weighted=True, directed=directed)
    n, k = len(truth), Y.shape[0]
    rng = np.random.default_rng(3)
    T = np.where(rng.uniform(size=(n, k)) < 0.1, rng.uniform(size=(n, k)), 0.0)
    T /= T.sum()
    x, y = (side / abs(side).max() for side in (X, Y))
    problem = SparseObjective(x, y, T.sum(1), T.sum(0), not directed)
    plan = sparse.csr_array(T)
    W = problem.cross(plan)
    assert problem.value(W, plan) == pytest.approx(value_of(X, Y, T), rel=1e-12)
    a, b, step = x.toarray(), y.toarray(), 1e-6  # half the derivative of the cross term
    D = rng.normal(size=T.shape)
    cross = [((a @ (T + s * D) @ b.T) * (T + s * D)).sum() for s in (step, -step)]
    assert 2 * (W.toarray() * D).sum() == pytest.approx((cross[0] - cross[1]) / (2 * step), rel=1e-6)


@pytest.mark.parametrize("equal", [True, False])
def test_linear_problems_are_solved_over_all_plans(equal: bool) -> None:
    rng, n = np.random.default_rng(5), 14
    k = n if equal else 11
    W = np.where(rng.uniform(size=(n, k)) < 0.3, rng.normal(size=(n, k)) + 0.5, 0.0)
    p, q = (np.full(m, 1 / m) if equal else (u := rng.uniform(0.2, 1, m)) / u.sum() for m in (n, k))
    T = repair_marginals(sparse.csr_array((n, k)), p, q)
    np.testing.assert_allclose(T.sum(axis=1), p, rtol=1e-13)
    np.testing.assert_allclose(T.sum(axis=0), q, rtol=1e-13)
    assert T.nnz < n + k
    price = np.zeros(k)
    for _ in range(4):  # priced out by the potentials of the time before
        best, price = find_best_plan(sparse.csr_array(W), T, p, q, price)
        bound = bound_worth(sparse.csr_array(W), price, p, q)
    positive = W.clip(min=0)
    sums = np.concatenate((np.kron(np.eye(n), np.ones(k)), np.kron(np.ones(n), np.eye(k))))
    most = -linprog(-positive.ravel(), A_ub=sums, b_ub=np.concatenate((p, q))).fun
    found = (best.toarray() * W).sum()
    assert found == pytest.approx(most, rel=1e-8)
    assert bound == pytest.approx(most, rel=1e-8)
    assert bound_worth(sparse.csr_array(positive), rng.uniform(size=k), p, q) >= most
    if equal:
        row, column = linear_sum_assignment(-positive)
        assert found == pytest.approx(positive[row, column].sum() / n)


def test_signatures_find_nodes_again_in_a_noisy_copy() -> None:
    X, Y, truth = noisy_copy(graph("clustered", 600))
    x, y = compute_signatures(X, Y, True, np.random.default_rng(0))
    distance, index = find_nearest(x, y, 3)
    assert (index[:, 0] == truth).mean() > 0.8
    np.testing.assert_allclose(distance[:, 0], ((x - y[index[:, 0]]) ** 2).sum(1), rtol=1e-3, atol=1e-3)
    assert (np.diff(distance, axis=1) >= 0).all()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["clustered", "preferential", "small world", "geometric", "blocks"])
def test_noisy_copies_are_matched_as_well_as_from_the_truth(kind: str, weighted: bool) -> None:
    X, Y, truth = noisy_copy(graph(kind, 400), weighted=weighted)
    result = gw_align(X, Y, distances="adjacency", epsilon=0, options=SPARSE, random_state=0)
    T = result.plan
    assert result.strategy == "sparse"
    assert isinstance(result.coupling, SparseCoupling)
    assert result.value == pytest.approx(value_of(X, Y, T), rel=1e-10)
    assert result.value <= 1.01 * value_of(X, Y, plan_of(truth, 400))
    assert result.value_exact
    assert result.status in (Status.STATIONARY, Status.PLATEAU)
    np.testing.assert_allclose(T.sum(1), 1 / 400, rtol=1e-12)
    np.testing.assert_allclose(T.sum(0), 1 / 400, rtol=1e-12)
    assert 0 <= result.certificate.lower_bound <= result.value


def test_the_gap_bounds_that_of_the_dense_certificate() -> None:
    X, Y, _ = noisy_copy(graph("clustered", 120))
    few = GWOptions(strategy="sparse", stopping=StoppingOptions(max_iter=1))
    given = np.random.default_rng(0).permutation(120)
    plan = np.zeros((120, 120))
    plan[np.arange(120), given] = 1.0
    result = quietly(gw_align, X, Y, distances="adjacency", epsilon=0, options=few, init=plan, random_state=0)
    T = result.plan
    cross = X.toarray() @ T @ Y.toarray()
    row, column = linear_sum_assignment(-cross)
    gap = 2 * (cross[row, column].sum() / 120 - (cross * T).sum())
    assert result.status is Status.MAX_ITER
    assert 0 < gap <= result.certificate.stationarity * (1 + 1e-9)


@pytest.mark.parametrize("own_masses", [False, True])
def test_missing_nodes_and_masses_of_their_own(own_masses: bool) -> None:
    X, Y, truth = noisy_copy(graph("clustered", 400), keep=0.95)
    n, k, known = 400, 380, np.flatnonzero(truth >= 0)
    p, q = np.full(n, 1 / n), np.full(k, 1 / k)
    if own_masses:
        p = np.random.default_rng(2).uniform(0.5, 1.5, n)
        q = np.zeros(k)
        q[truth[known]] = p[known]
        p[known[0]] = 0.0
        p, q = p / p.sum(), q / q.sum()
    result = gw_align(X, Y, distances="adjacency", epsilon=0, options=SPARSE, p=p, q=q, random_state=0)
    T = result.plan
    np.testing.assert_allclose(T.sum(1), p, atol=1e-15)
    np.testing.assert_allclose(T.sum(0), q, atol=1e-15)
    assert (T > 0).sum() <= 3 * (n + k)
    assert result.value == pytest.approx(value_of(X, Y, T), rel=1e-9)
    matching = sparse.csr_array((np.minimum(p[known], q[truth[known]]), (known, truth[known])), (n, k))
    reference = repair_marginals(matching, p, q).toarray()
    assert result.value <= value_of(X, Y, reference)
    counted = known[p[known] > 0]
    assert (result.argmax()[counted] == truth[counted]).mean() > 0.97
    assert 0 <= result.certificate.stationarity < result.value


def test_directed_graphs() -> None:
    X, Y, truth = noisy_copy(graph("preferential", 300), directed=True)
    result = gw_align(X, Y, distances="adjacency", epsilon=0, options=SPARSE, random_state=0)
    assert result.value == pytest.approx(value_of(X, Y, result.plan), rel=1e-10)
    assert result.value <= 1.01 * value_of(X, Y, plan_of(truth, 300))
    assert (result.argmax() == truth).mean() > 0.95


def test_it_is_no_worse_than_the_dense_solve_of_the_same_graphs() -> None:
    X, Y, _ = noisy_copy(graph("blocks", 200))
    few, stored = (
        gw_align(X, Y, distances="adjacency", epsilon=0, options=GWOptions(strategy=name), random_state=0)
        for name in ("sparse", "dense")
    )
    assert stored.strategy == "dense"
    assert few.value <= 1.001 * stored.value


@pytest.mark.parametrize("kind", ["grid", "tree"])
def test_where_signatures_say_little_other_views_and_means_of_ends_lead_lower(kind: str) -> None:
    made = {"grid": nx.grid_2d_graph(15, 12), "tree": nx.random_labeled_tree(200, seed=4)}[kind]
    A = nx.to_numpy_array(made)
    X, Y = (sparse.csr_array(side) for side in (A, shuffled(A, 0.1, 3)[0]))
    result = quietly(gw_align, X, Y, distances="adjacency", epsilon="auto", options=SPARSE, random_state=0)
    (signed,) = (basin for basin in result.basins if basin.origin == "signatures")
    assert result.value <= 0.5 * signed.energy
    (step,) = result.path
    assert (step.epsilon, step.value) == (0.0, result.value)
    best, *others = result.basins
    assert best.energy == result.value
    assert best.difference == 0.0
    np.testing.assert_array_equal(best.matching, result.argmax())
    for basin in others:
        assert basin.energy >= best.energy * (1 - 1e-9)
        assert basin.difference == pytest.approx((basin.matching != best.matching).mean())
    assert result.certificate.starts == sum(basin.count for basin in result.basins) > 1


def test_signatures_that_agree_with_their_neighbours_are_the_only_start() -> None:
    X, Y, _ = noisy_copy(graph("clustered", 300))
    result = gw_align(X, Y, distances="adjacency", epsilon=0, options=SPARSE, random_state=0)
    assert [(basin.origin, basin.count) for basin in result.basins] == [("signatures", 1)]
    assert result.path == ()


@pytest.mark.parametrize(("n", "k"), [(5, 5), (7, 4)])
def test_paths_of_a_few_nodes_have_a_search(n: int, k: int) -> None:
    X, Y = (sparse.csr_array(nx.to_scipy_sparse_array(nx.path_graph(size), dtype=float)) for size in (n, k))
    result = quietly(gw_align, X, Y, distances="adjacency", epsilon=0, options=SPARSE, random_state=0)
    assert result.value == pytest.approx(value_of(X, Y, result.plan), abs=1e-14)
    assert result.value <= 1e-12 or n != k


def test_hops_are_numbers_of_edges_over_the_largest() -> None:
    D = sparse.csr_array(nx.to_scipy_sparse_array(nx.disjoint_union(nx.path_graph(5), nx.path_graph(2)), dtype=float))
    rows = HopDistances(D, torch.float64).rows(torch.tensor([0, 6]))
    torch.testing.assert_close(rows[0] * 4, torch.tensor([0, 1, 2, 3, 4, 6, 6], dtype=torch.float64))
    torch.testing.assert_close(rows[1] * 4, torch.tensor([6, 6, 6, 6, 6, 1, 0], dtype=torch.float64))


def test_between_sparse_graphs_of_any_size_there_is_a_search() -> None:
    assert limits.STORED_PAIRS == MOST_CONTEST_PAIRS


def test_it_begins_at_pairs_and_plans_that_are_given() -> None:
    X, Y, truth = noisy_copy(graph("geometric", 300))
    some = np.random.default_rng(0).permutation(300)[:60]
    seeded = gw_align(
        X, Y, distances="adjacency", epsilon=0, options=SPARSE, init=np.stack((some, truth[some]), 1), random_state=0
    )
    whole = gw_align(X, Y, distances="adjacency", epsilon=0, options=SPARSE, init=plan_of(truth, 300))
    reference = value_of(X, Y, plan_of(truth, 300))
    assert seeded.value <= 1.05 * reference
    assert whole.value <= reference * (1 + 1e-9)
    assert whole.value == gw_align(X, Y, distances="adjacency", epsilon=0, options=SPARSE, init=whole).value


def test_graphs_without_edges_between_some_nodes_and_equal_graphs() -> None:
    X = graph("clustered", 120).tolil()
    X[:10] = X[:, :10] = 0
    X = sparse.csr_array(X.tocsr())
    order = np.random.default_rng(0).permutation(120)
    result = gw_align(X, X[order][:, order], distances="adjacency", epsilon=0, options=SPARSE, random_state=0)
    assert result.value <= 1e-12
    assert result.status is Status.STATIONARY
    match = result.argmax()
    np.testing.assert_array_equal(X[order][:, order].toarray()[np.ix_(match, match)], X.toarray())


def test_it_runs_where_a_stored_plan_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y, _ = noisy_copy(graph("clustered", 120))
    given = {"distances": "adjacency", "random_state": 0}
    assert gw_align(X, Y, epsilon=0, **given).strategy == "dense"
    monkeypatch.setattr(limits, "STORED_PAIRS", 120 * 120 - 1)
    assert gw_align(X, Y, epsilon=0, **given).strategy == "dense", "8 % of the entries"
    monkeypatch.setattr(limits, "FEW", 0.1)
    found = gw_align(X, Y, epsilon="auto", **given)
    assert (found.strategy, found.epsilon, found.options.strategy) == ("sparse", 0.0, "sparse")
    assert gw_align(X, Y, epsilon=0, **given).value == found.value
    zeros = sparse.csr_array((np.r_[X.data, 0.0], np.r_[X.indices, 0], np.r_[X.indptr[:-1], X.nnz + 1]), X.shape)
    for one in (X.toarray(), torch.from_numpy(X.toarray()), zeros, AdjacencyDistances(X.toarray())):
        kinds = "auto" if isinstance(one, AdjacencyDistances) else "adjacency", "adjacency"
        again = gw_align(one, Y, epsilon=0, **given | {"distances": kinds})
        assert (again.strategy, again.value) == ("sparse", found.value)
        np.testing.assert_array_equal(np.asarray(again.argmax()), found.argmax())
    assert quietly(gw_align, X, Y, epsilon=1e-2, **given).strategy == "dense"
    assert "sparse" in str(estimate(10**5, 10**5, epsilon=0, options=SPARSE, device="cpu"))


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (
            {"epsilon": 1e-3},
            "epsilon must be 0 with the sparse strategy, got 0.001: plans of few entries have no entropy",
        ),
        ({"distances": "landmark"}, "X must be a sparse adjacency with the sparse strategy, got 'landmark'"),
    ],
)
@pytest.mark.filterwarnings("ignore:Y has a diagonal")
def test_what_it_has_not_is_refused(argument: dict[str, Any], message: str) -> None:
    X, Y, _ = noisy_copy(graph("clustered", 60))
    with pytest.raises(ValueError, match=message):
        gw_align(X, Y, **{"distances": "adjacency", "options": SPARSE, "epsilon": 0} | argument)


def test_the_same_seed_has_the_same_bits_and_another_one_need_not() -> None:
    X, Y, _ = noisy_copy(graph("geometric", 200))
    one, same = (
        gw_align(X, Y, distances="adjacency", epsilon="auto", options=SPARSE, random_state=3) for _ in range(2)
    )
    assert np.array_equal(one.plan, same.plan)
    assert one.value == same.value


def test_it_is_saved_and_read_again(tmp_path: Path) -> None:
    X, Y, _ = noisy_copy(graph("clustered", 100), keep=0.9)
    result = gw_align(X, Y, distances="adjacency", epsilon="auto", options=SPARSE, random_state=0)
    result.save(tmp_path / "few.npz")
    read = GWResult.load(tmp_path / "few.npz")
    assert isinstance(read.coupling, SparseCoupling)
    assert np.array_equal(read.plan, result.plan)
    assert read.certificate == result.certificate
    np.testing.assert_array_equal(read.push(np.arange(100.0)), result.push(np.arange(100.0)))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("column", lambda side: side + 90, "coupling_column must hold indices below 90"),
        ("column", lambda side: side.astype(np.int32), "coupling_column must hold indices"),
        ("column", lambda side: side[1:], "which does not fit the other arrays"),
        ("first", lambda side: side[::-1].copy(), "coupling_first must go from 0 up to"),
        ("first", lambda side: side[:0], "coupling_first must go from 0 up to"),
        ("width", lambda side: side * 0, "coupling_width must be >= 1"),
        ("mass", lambda side: -side, "coupling_mass must be finite and not negative"),
    ],
)
def test_damaged_entries_are_refused(tmp_path: Path, name: str, change: Any, message: str) -> None:
    X, Y, _ = noisy_copy(graph("clustered", 100), keep=0.9)
    given = {"distances": "adjacency", "options": SPARSE, "epsilon": "auto", "random_state": 0}
    gw_align(X, Y, init=np.stack((np.arange(90), np.arange(90)), 1), **given).save(tmp_path / "few.npz")
    arrays = dict(np.load(tmp_path / "few.npz"))
    arrays[f"coupling_{name}"] = change(arrays[f"coupling_{name}"])
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        GWResult.load(tmp_path / "bad.npz")


def test_it_is_heard_of_ended_and_resumed(tmp_path: Path) -> None:
    X, Y, _ = noisy_copy(graph("geometric", 300), keep=0.95)
    given = {"distances": "adjacency", "options": SPARSE, "epsilon": "auto", "random_state": 0}
    heard: list[int] = []
    whole = gw_align(X, Y, callback=lambda progress: heard.append(progress.iteration), **given)
    assert heard == list(range(1, whole.n_iter + 1))
    assert whole.history.cost[-1] >= whole.value * (1 - 1e-12)
    assert all(np.diff(whole.history.cost) <= 1e-15)
    ended = quietly(
        gw_align, X, Y, callback=lambda progress: progress.iteration >= 2, checkpoint=tmp_path / "c", **given
    )
    assert ended.status is Status.CANCELLED
    assert ended.n_iter == 2 < whole.n_iter
    assert ended.marginal_error < 1e-12
    resumed = resume(tmp_path / "c")
    assert np.array_equal(resumed.plan, whole.plan)
    assert resumed.value == whole.value


def test_a_search_that_is_ended_has_a_plan() -> None:
    X, Y, _ = noisy_copy(graph("clustered", 100))
    masses = np.full(100, 0.01)
    problem = SparseObjective(X, Y, masses, masses, True)
    first = graph_matching.find_seeds(problem, np.random.default_rng(0))
    plan = graph_matching.match_nodes(problem, first, lambda: True)
    np.testing.assert_array_equal(plan.toarray(), first.toarray())


def test_annealing_again_from_the_pairs_that_were_left_finds_more(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y, _ = noisy_copy(graph("geometric", 1000), keep=0.95)
    problem = SparseObjective(X, Y, np.full(1000, 1e-3), np.full(950, 1 / 950), True)
    first = graph_matching.find_seeds(problem, np.random.default_rng(0))
    agreed = []
    for rounds in (1, 4):
        monkeypatch.setattr(graph_matching, "ROUNDS", rounds)
        plan = graph_matching.match_nodes(problem, first, lambda: False)
        agreed.append(inner(problem.similarity(plan), plan))
        assert (plan.sum(axis=1) <= problem.p * (1 + 1e-12)).all()
        assert (plan.sum(axis=0) <= problem.q * (1 + 1e-12)).all()
    assert agreed[1] > agreed[0]


def test_pairs_share_no_row_and_no_column() -> None:
    found = make_csr(np.array([0, 0, 2]), np.array([1, 1, 0]), np.array([1.0, 2.0, 4.0]), (3, 2))
    np.testing.assert_array_equal(found.toarray(), [[0, 3], [0, 0], [4, 0]])


def test_the_matrix_of_a_sparse_adjacency_is_its_scaled_entries() -> None:
    X, _, _ = noisy_copy(graph("clustered", 50), weighted=True)
    np.testing.assert_allclose(AdjacencyDistances(X).matrix.toarray(), X.toarray() / abs(X).max())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["clustered", "small world", "blocks"])
def test_twenty_thousand_nodes(kind: str) -> None:
    X, Y, truth = noisy_copy(graph(kind, 20_000))
    result = gw_align(X, Y, distances="adjacency", epsilon="auto", random_state=0)
    rows = np.arange(20_000)
    T = sparse.csr_array((np.full(20_000, 1 / 20_000), (rows, truth)), (20_000, 20_000))
    x, y = (AdjacencyDistances(side).matrix for side in (X, Y))
    problem = SparseObjective(x, y, T.sum(axis=1), T.sum(axis=0), True)
    assert result.strategy == "sparse"
    assert result.value <= 1.01 * problem.value(problem.cross(T), T)
    assert (result.argmax() == truth).mean() > 0.99


def test_a_stored_zero_is_no_entry() -> None:
    stored = sparse.csr_array(([1.0, 0.0], ([0, 0], [1, 3])), shape=(1, 4))
    assert SparseCoupling.of(stored, torch.device("cpu")).top_k(4)[1].tolist() == [[1, 0, 2, 3]]

"""Graphs compete for the basin: views, exchanges, the floor, and what the result says of the search."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch

from benchmarks.kinds.graphs import pair as graph_pair
from tests.problems import quietly
from tests.test_guesses import energy, shuffled
from torchgw import GWResult, gw_align
from torchgw.persist.watch import Watch
from torchgw.search.basins import describe_basins, list_basins
from torchgw.search.candidate import Candidate
from torchgw.search.contest import Entrant, _Contest
from torchgw.search.subtrees import compare_subtrees
from torchgw.search.views import VIEWS, SpaceGraph
from torchgw.solvers import assignment
from torchgw.solvers.assignment import AssignmentProblem, Cross, plan_of_order
from torchgw.solvers.linear_oracle import linear_assignment, solve_transport
from torchgw.solvers.transport_costs import DenseCost
from torchgw.solvers.warm_start import product_start
from torchgw.spaces.coarsening import Coarsening
from torchgw.types import Array


def tree(n: int, seed: int) -> Array:
    return nx.to_numpy_array(nx.random_labeled_tree(n, seed=seed))


KINDS = {
    "tree": tree(60, 2),
    "lollipop": nx.to_numpy_array(nx.lollipop_graph(20, 20)),
    "caveman": nx.to_numpy_array(nx.connected_caveman_graph(6, 6)),
    "complement of a grid": nx.to_numpy_array(nx.complement(nx.grid_2d_graph(6, 7))),
    "les miserables": nx.to_numpy_array(nx.les_miserables_graph()),
}


def problem_of(X: Array, Y: Array) -> AssignmentProblem:
    one, other = (torch.from_numpy(D) for D in (X, Y))
    symmetric = bool((X == X.T).all() and (Y == Y.T).all())
    return AssignmentProblem(one, other, symmetric)


@pytest.mark.parametrize("symmetric", [True, False])
def test_exchanges_end_where_no_pair_of_matches_is_better_exchanged(symmetric: bool) -> None:
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(2, 9, 9))
    X, Y = (X + X.T, Y + Y.T) if symmetric else (X, Y)

    def gained(order: Array) -> float:
        return float((X * Y[np.ix_(order, order)]).sum())

    order = problem_of(X, Y).improve_by_exchanges(np.arange(9))
    assert gained(order) > gained(np.arange(9))
    for r, s in itertools.combinations(range(9), 2):
        other = order.copy()
        other[[r, s]] = other[[s, r]]
        assert gained(other) <= gained(order) + 1e-9


def test_an_optimum_between_equal_masses_is_a_plan_below_where_it_began() -> None:
    rng = np.random.default_rng(1)
    X, Y = (D + D.T for D in rng.normal(size=(2, 12, 12)))
    problem, product = problem_of(X, Y), torch.full((12, 12), 1 / 144, dtype=torch.float64)
    plan, value = problem.find_optimum(product)
    assert value < problem.value(product)
    assert value == pytest.approx(problem.value(plan))
    for axis in (0, 1):
        torch.testing.assert_close(plan.sum(axis), torch.full((12,), 1 / 12, dtype=torch.float64))


def test_a_sparse_matrix_multiplies_a_batch_as_a_stored_one() -> None:
    A, B = (torch.from_numpy(tree(n, n)) for n in (40, 50))
    plans = torch.rand(3, 40, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for X, symmetric in ((A, True), (A.triu(), False)):
        sparse = Cross(X, B, symmetric)
        assert sparse.X.layout == torch.sparse_csr
        torch.testing.assert_close(sparse(plans), (X @ plans @ B.T + X.T @ plans @ B) / 2)
        torch.testing.assert_close(sparse(plans[0]), sparse(plans)[0])


def test_potentials_of_an_assignment_lead_to_the_next_one_as_well() -> None:
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(2, 70, 3))
    C, mass, every = -x @ y.T, np.full(70, 1 / 70), np.arange(70)
    dual = np.zeros(70)  # potentials of a little entropy come first
    for cost in (C, C - 0.1 * rng.normal(size=C.shape)):
        plan, (_, dual), _ = solve_transport(DenseCost(cost, mass, mass), mass, mass, dual)
        order = plan.indices
        _, best = linear_assignment(cost)
        assert cost[every, order].sum() == pytest.approx(cost[every, best].sum())
        reduced = cost - dual
        assert (reduced[every, order] - reduced.min(1)).max() < 1e-9
    ties = solve_transport(DenseCost(np.ones((5, 5)), *[np.full(5, 0.2)] * 2), *[np.full(5, 0.2)] * 2, np.zeros(5))
    assert sorted(ties.plan.indices) == list(range(5))


@pytest.mark.parametrize("symmetric", [True, False])
def test_one_product_gives_that_of_a_permutation(symmetric: bool) -> None:
    rng = np.random.default_rng(5)
    X, Y = rng.normal(size=(2, 9, 9))
    cross = problem_of(*((D + D.T if symmetric else D) for D in (X, Y))).cross
    order = rng.permutation(9)
    torch.testing.assert_close(cross.of_permutation(torch.from_numpy(order)), cross(plan_of_order(order)))


def test_dense_graphs_of_some_size_descend_as_small_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    X, Y = (D + D.T for D in rng.normal(size=(2, 40, 40)))
    problem, plan = problem_of(X, Y), torch.full((40, 40), 1 / 1600, dtype=torch.float64)
    expected = problem.descend(plan).value
    monkeypatch.setattr(assignment, "SMOOTHED", 10)
    asked: list[int] = []
    estimate = DenseCost.estimate_dual
    monkeypatch.setattr(DenseCost, "estimate_dual", lambda *given: asked.append(1) or estimate(*given))
    found = problem.descend(plan)
    assert found.value == pytest.approx(expected)
    assert found.n_iter > 1
    assert asked == [1]


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_gives_a_plan_that_knows_no_order_of_points(name: str, directed: bool) -> None:
    rng = np.random.default_rng(3)
    share = 0.08 if name.startswith("subtrees") else 0.15
    A = np.triu(rng.uniform(0.2, 1, (30, 30)) * (rng.random((30, 30)) < share), 1)
    A = A + (rng.random(A.shape) < 0.3 if directed else 1) * A.T
    A[4] = A[:, 4] = 0.0  # a node without an edge
    p = rng.uniform(0.5, 2, 30)
    order = rng.permutation(30)
    x, y, z = (
        SpaceGraph(torch.tensor(D, dtype=torch.float64), torch.tensor(m / m.sum(), dtype=torch.float64), directed)
        for D, m in ((A, p), (A[:25, :25], p[:25]), (A[np.ix_(order, order)], p[order]))
    )
    plan, turned = (VIEWS[name](side, y, Watch()) for side in (x, z))
    assert plan is not None
    assert turned is not None
    assert bool((plan >= 0).all())
    assert float(plan.sum()) == pytest.approx(1, abs=1e-4)
    for axis, side in ((1, x), (0, y)):  # steps and conditional gradients round them onto the marginals
        assert float((plan.sum(axis) - side.mass).abs().sum()) < 0.3
    torch.testing.assert_close(turned, plan[order], atol=2e-4, rtol=0)


@pytest.fixture(scope="module", params=KINDS)
def solved(request: pytest.FixtureRequest) -> tuple[Array, Array, Array, GWResult]:
    A = KINDS[request.param] / KINDS[request.param].max()
    gone = 0.01 if request.param == "complement of a grid" else 0.05  # of many edges
    B, match = shuffled(A, gone, 6)
    B = B / B.max()
    return A, B, match, quietly(gw_align, A, B, distances="adjacency", epsilon=0, random_state=0)


def test_a_graph_ends_no_higher_than_its_true_matching_and_descents_from_the_product_plan(
    solved: tuple[Array, Array, Array, GWResult],
) -> None:
    A, B, match, result = solved
    n = len(A)
    product = np.full((n, n), n**-2.0)
    floor = quietly(gw_align, A, B, distances="adjacency", epsilon=0, init=product, random_state=0).value
    assert result.value <= 1.01 * energy(A, B, np.eye(n)[match] / n)
    assert result.value <= floor * (1 + 1e-9)


def test_a_result_says_where_basins_came_from_and_how_many_starts_agree(
    solved: tuple[Array, Array, Array, GWResult],
) -> None:
    result = solved[3]
    known = {*VIEWS, "mean of two ends", "end blurred in part", "branches exchanged"}
    assert {basin.origin for basin in result.basins} <= known
    assert all((basin.origin in VIEWS) == (basin.count > 0) for basin in result.basins)
    certificate = result.certificate
    assert certificate.agreeing_starts == result.basins[0].count
    assert certificate.starts == sum(basin.count for basin in result.basins)
    assert f"{certificate.agreeing_starts} of {certificate.starts} starts" in str(certificate)


@pytest.mark.parametrize(("gone", "seed"), [(0.05, 3), (0.25, 0), (0.25, 4)])
def test_starts_agree_that_end_at_the_result_and_no_others(
    monkeypatch: pytest.MonkeyPatch, gone: float, seed: int
) -> None:
    A = nx.to_numpy_array(nx.connected_watts_strogatz_graph(40, 4, 0.2, seed=seed))
    B, _ = shuffled(A, gone, seed)
    first: list[Entrant] = []

    def seen(field: _Contest, plans: dict[str, torch.Tensor]) -> list[Entrant]:
        first.extend(ends(field, plans))
        return first.copy()

    ends = _Contest.run_halving
    monkeypatch.setattr(_Contest, "run_halving", seen)
    result = quietly(gw_align, A, B, distances="adjacency", epsilon=0, random_state=0)
    agreeing = {
        entrant.origin
        for entrant in first
        if entrant.energy <= 1.01 * result.value and np.abs(entrant.plan.numpy() - result.plan).sum() <= 0.5
    }
    starts = result.certificate.starts
    assert len({entrant.origin for entrant in first}) <= starts <= len(first)
    assert result.certificate.agreeing_starts == len(agreeing)
    assert (len(agreeing) > starts / 2) == (gone == 0.05)
    assert (not agreeing) == ((gone, seed) == (0.25, 0))  # the mean of two ends is below all of them


@pytest.mark.parametrize("ended", [False, True])
def test_ends_of_other_energies_are_other_basins_though_their_matchings_agree(ended: bool) -> None:
    match, mass = torch.arange(5), torch.full((5,), 0.2)
    reference = Coarsening.of_points(torch.rand(5, 5), mass)
    asked: Any = SimpleNamespace(has_no_entropy=True, unit=1.0, masses=(mass, mass))
    begin = product_start(mass.log2(), mass.log2())
    found = [
        Candidate(begin, match, energy, count, "full", True, is_local_optimum=ended)
        for energy, count in ((0.1, 3), (0.1005, 2), (0.1032, 7))
    ]
    (passed,) = describe_basins([replace(found[0], count=4)], found[0], reference, mass)
    found[1] = replace(found[1], rejected=(passed, replace(passed, energy=0.2, count=5)))
    basins = list_basins(asked, found, reference)
    assert [basin.count for basin in basins] == ([9, 7, 5] if ended else [21])


@pytest.mark.slow
def test_a_tree_ends_at_its_true_matching() -> None:
    pair = graph_pair("tree", tree(180, 512), share=0.05, add=False, seed=512)
    found = quietly(gw_align, pair.A, pair.B, distances="adjacency", epsilon=0, random_state=0)
    assert found.value <= 1.01 * energy(pair.A, pair.B, np.eye(180)[pair.match] / 180)


def likeness_of(A: Array, B: Array, depth: int = 50) -> Array:
    found = compare_subtrees(*(torch.tensor(D, dtype=torch.float32) for D in (A, B)), depth)
    assert found is not None
    return np.asarray(found)


def test_likeness_counts_the_edges_that_trees_have_in_common() -> None:
    path, star = nx.to_numpy_array(nx.path_graph(4)), nx.to_numpy_array(nx.star_graph(3))
    np.testing.assert_allclose(np.diag(likeness_of(path, path)), 3.0)  # all edges, seen from any node
    degrees = path.sum(1)
    alone = np.abs(np.subtract.outer(degrees, degrees))
    np.testing.assert_allclose(likeness_of(path, path, 0), np.minimum.outer(degrees, degrees) - alone)
    assert likeness_of(star, path)[0, 1] == 0  # an arm in common, as the other goes on in the path, and one left alone


def test_likeness_leaves_graphs_of_many_edges_or_none() -> None:
    for A in (np.ones((40, 40)), np.zeros((40, 40))):
        D = torch.tensor(A)
        assert compare_subtrees(D, D, 3) is None


@pytest.mark.parametrize("name", ["statistics", "distributions of heat, time 1", "heat, time 1"])
def test_a_view_of_directed_graphs_tells_a_source_from_a_sink(name: str) -> None:
    D = torch.tensor(nx.to_numpy_array(nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 4)])), dtype=torch.float32)
    x, y = (SpaceGraph(each, torch.full((5,), 0.2), True) for each in (D, D.T))
    assert (VIEWS[name](x, x, Watch()).argmax(1) == torch.arange(5)).all()
    assert (VIEWS[name](x, y, Watch()).argmax(1) == torch.arange(4, -1, -1)).all()


def test_a_directed_graph_competes_with_an_undirected_one() -> None:
    A = (np.random.default_rng(9).random((20, 20)) < 0.15).astype(float)
    np.fill_diagonal(A, 0.0)
    B, match = shuffled(((A + A.T) > 0).astype(float), 0.0, 10)
    found = quietly(gw_align, A, B, distances="adjacency", epsilon=0, random_state=0)
    assert found.value <= 1.01 * energy(A, B, np.eye(20)[match] / 20)
    assert (found.argmax() == match).mean() >= 0.9


def test_growing_networks_end_at_the_descent_from_their_true_matching() -> None:
    A = nx.to_numpy_array(nx.gnc_graph(120, seed=140))
    pair = graph_pair("citations", A, 0.1, True, 140)
    truth = np.zeros((120, 120))
    truth[np.arange(120), pair.match] = 1 / 120
    descent, found = (
        quietly(gw_align, pair.A, pair.B, distances="adjacency", epsilon=0, random_state=0, **given)
        for given in ({"init": truth}, {})
    )
    assert found.value <= 1.01 * descent.value


def test_directed_graphs_and_unequal_masses_compete_too() -> None:
    rng = np.random.default_rng(7)
    A = (rng.random((40, 40)) < 0.1).astype(float)
    B, match = shuffled(A, 0.0, 8)
    found = quietly(gw_align, A, B, distances="adjacency", epsilon=0, random_state=0)
    assert found.value < 1e-12
    assert (found.argmax() == match).all()
    p = rng.uniform(0.8, 1.2, 40)
    q = np.empty(40)
    q[match] = p
    found = quietly(
        gw_align, A + A.T, B + B.T, distances="adjacency", epsilon=0, random_state=0, p=p / p.sum(), q=q / q.sum()
    )
    assert (found.argmax() == match).mean() > 0.9


def test_without_a_search_the_certificate_says_that_no_other_start_was_tried() -> None:
    A = KINDS["tree"]
    result = quietly(gw_align, A, A, distances="adjacency", epsilon=0, init=np.eye(60) / 60, random_state=0)
    assert result.certificate.starts == result.certificate.agreeing_starts == 0
    assert "no other start was tried" in str(result.certificate)


@pytest.mark.parametrize("seed", range(6))
def test_few_nodes_end_no_higher_than_any_permutation(seed: int) -> None:
    """Of matrices without any structure, directions and a diagonal."""
    rng = np.random.default_rng(seed)
    n = 4 + seed % 4
    A, B = (M / np.abs(M).max() for M in rng.normal(size=(2, n, n)))
    result = quietly(gw_align, A, B, distances="adjacency", random_state=0)
    values = [((A - B[np.ix_(order, order)]) ** 2).mean() for order in itertools.permutations(range(n))]
    assert result.value <= min(values) * (1 + 1e-9)


def test_equal_optima_have_equal_energies_and_count_views_once() -> None:
    """Leaves around a node, in any order; a view from which two ways lead there is one start."""
    A = nx.to_numpy_array(nx.star_graph(12))
    result = quietly(gw_align, A, A, distances="adjacency", random_state=0)
    assert result.value == pytest.approx(0, abs=1e-12)
    assert all(abs(basin.energy) < 1e-12 for basin in result.basins if basin.energy < 1e-3)
    assert 0 < result.certificate.agreeing_starts <= len(VIEWS)
    assert result.basins[0].origin in VIEWS


def test_a_linear_cost_is_a_view_of_graphs() -> None:
    """Where the matrices say nothing, as all nodes of a ring are alike, and features say which is which."""
    n = 60
    A = nx.to_numpy_array(nx.cycle_graph(n))
    rng = np.random.default_rng(0)
    order, features = rng.permutation(n), rng.normal(size=(n, 3))
    B, moved = A[np.ix_(order, order)], (features + 0.3 * rng.normal(size=(n, 3)))[order]
    given: dict[str, Any] = {"distances": "adjacency", "cost": (features, moved), "alpha": 0.5, "random_state": 0}
    found = quietly(gw_align, A, B, **given)
    truth = np.eye(n)[np.argsort(order)] / n
    assert found.value <= quietly(gw_align, A, B, **given, init=truth).value * (1 + 1e-6)

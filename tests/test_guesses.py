"""Starts on all points: graphs given by their adjacency, of which landmarks say nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch

from tests.problems import daily, quietly
from torchgw import SemiRelaxed, gw_align
from torchgw.objective.exact import ExactGradient
from torchgw.persist.watch import Watch
from torchgw.solvers.entropic import proximal_plan
from torchgw.spaces import PrecomputedDistances, shortest_paths
from torchgw.spaces.coarsening import choose_landmarks, unlikeness
from torchgw.spaces.shortest_paths import compute_relative_hops
from torchgw.types import Array

BLOCKS = [[0.3 if i == j else 0.03 for j in range(4)] for i in range(4)]
GRAPHS: dict[str, Callable[[int], Any]] = {
    "Barabasi-Albert": lambda seed: nx.barabasi_albert_graph(250, 4, seed=seed),
    "blocks": lambda seed: nx.stochastic_block_model([60] * 4, BLOCKS, seed=seed),
    "geometric": lambda seed: nx.random_geometric_graph(250, 0.12, seed=seed),
    "Watts-Strogatz": lambda seed: nx.connected_watts_strogatz_graph(250, 6, 0.2, seed=seed),
    "grid": lambda _: nx.grid_2d_graph(14, 14),
}


def shuffled(A: Array, gone: float, seed: int) -> tuple[Array, Array]:
    """A copy of an adjacency with a share of its edges gone and its nodes shuffled, and where each node went."""
    rng = np.random.default_rng(seed)
    B, edges = A.copy(), np.argwhere(np.triu(A))
    lost = edges[rng.random(len(edges)) < gone]
    B[lost[:, 0], lost[:, 1]] = B[lost[:, 1], lost[:, 0]] = 0
    order = rng.permutation(len(A))
    return B[np.ix_(order, order)], np.argsort(order)


def energy(A: Array, B: Array, plan: Array) -> float:
    """The objective, written flat."""
    p, q = plan.sum(1), plan.sum(0)
    return float(p @ A**2 @ p + q @ B**2 @ q - 2 * ((A @ plan @ B) * plan).sum())


@pytest.mark.parametrize("kind", daily([("Barabasi-Albert",), ("grid",)], GRAPHS))
def test_an_adjacency_ends_at_the_value_of_the_true_matching(kind: str) -> None:
    A = nx.to_numpy_array(GRAPHS[kind](3), weight=None)
    B, match = shuffled(A, 0.05, 4)
    truth = energy(A, B, np.eye(len(A))[match] / len(A))
    result = quietly(gw_align, A, B, distances="precomputed", epsilon=0, random_state=0)  # a grid may stay symmetric
    assert result.value <= 1.01 * truth
    assert energy(A, B, result.plan) == pytest.approx(result.value, rel=1e-6)


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore:Sinkhorn did not converge", "ignore:divide by zero")
@pytest.mark.parametrize("kind", GRAPHS)
def test_an_adjacency_ends_no_higher_than_any_solver_of_pot_from_the_product_plan(kind: str) -> None:
    ot = pytest.importorskip("ot")
    A = nx.to_numpy_array(GRAPHS[kind](11), weight=None)
    B, _ = shuffled(A, 0.05, 12)
    given = {"max_iter": 200}
    found = [
        ot.gromov.gromov_wasserstein(A, B, **given),
        *(
            ot.gromov.entropic_gromov_wasserstein(A, B, epsilon=5e-3, solver=solver, **given)
            for solver in ("PGD", "PPA")
        ),
        ot.gromov.BAPG_gromov_wasserstein(A, B, epsilon=0.1, marginal_loss=True, **given),
    ]
    result = gw_align(A, B, distances="precomputed", epsilon=0, random_state=0)
    feasible = [plan for plan in found if abs(plan.sum(0) - 1 / len(B)).max() < 1e-6 / len(B)]
    assert len(feasible) >= 2
    assert result.value <= 1.01 * min(energy(A, B, plan) for plan in feasible)


@pytest.mark.parametrize("kind", ["blocks", pytest.param("Watts-Strogatz", marks=pytest.mark.slow)])
def test_entropy_and_relaxed_marginals_find_the_same_matching(kind: str) -> None:
    A = nx.to_numpy_array(GRAPHS[kind](5), weight=None)
    B, match = shuffled(A, 0.05, 6)
    for marginals in ({}, {"marginals": SemiRelaxed(1.0)}):
        result = gw_align(A, B, distances="precomputed", random_state=0, **marginals)
        assert (result.argmax() == match).mean() > 0.95


def test_hops_are_counted_between_the_entries_that_differ_from_most() -> None:
    A = nx.to_numpy_array(nx.path_graph(7))
    wanted = np.abs(np.subtract.outer(np.arange(7), np.arange(7))) / 6
    for value, edge in ((0.0, 1.0), (1.0, 0.2)):
        D = torch.from_numpy(np.where(A > 0, edge, value))
        found = compute_relative_hops(D.fill_diagonal_(0.0))
        assert found is not None
        np.testing.assert_allclose(found, wanted)


def test_parts_without_an_edge_between_them_are_further_than_any_path() -> None:
    found = compute_relative_hops(torch.block_diag(*(torch.ones(2, 2),) * 4).fill_diagonal_(0.0))
    assert found is not None
    assert found[0, 1] == pytest.approx(2 / 3)
    assert found[0, 2] == 1


def _dense(n: int, density: float) -> torch.Tensor:
    return (torch.rand(n, n, generator=torch.Generator().manual_seed(n)) < density).double().fill_diagonal_(0.0)


@pytest.mark.parametrize(
    ("D", "by_products"),
    [
        (_dense(60, 0.25), True),  # pairs in either direction
        (torch.block_diag(_dense(31, 0.5), _dense(30, 0.6)), True),  # two parts
        (torch.block_diag(*[1 - torch.eye(30)] * 4).double().index_fill_(0, torch.tensor([29, 59, 89]), 0.0), True),
        (_dense(60, 0.02), False),  # few edges
        (torch.from_numpy(nx.to_numpy_array(nx.lollipop_graph(40, 20))), False),  # many, and a long tail
    ],
)
def test_hops_by_products_are_those_of_a_search_from_each_point(
    D: torch.Tensor, by_products: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[torch.Tensor | None] = []
    count = shortest_paths._count_hops_by_products
    monkeypatch.setattr(
        shortest_paths, "_count_hops_by_products", lambda edges: counted.append(count(edges)) or counted[-1]
    )
    found = compute_relative_hops(D)
    assert any(hops is not None for hops in counted) == by_products
    monkeypatch.setattr(shortest_paths, "_count_hops_by_products", lambda _: None)
    assert found is not None
    assert torch.equal(found, compute_relative_hops(D))  # type: ignore[arg-type]


def test_distances_of_points_and_empty_graphs_have_no_hops() -> None:
    assert compute_relative_hops(torch.cdist(*(torch.randn(20, 2),) * 2)) is None
    assert compute_relative_hops(torch.zeros(6, 6)) is None
    assert compute_relative_hops(torch.ones(6, 6).fill_diagonal_(0.0)) is None


def test_landmarks_say_little_of_an_adjacency_and_much_of_a_curve() -> None:
    rng = torch.Generator().manual_seed(0)
    mass = torch.full((200,), 1 / 200)
    x = torch.linspace(0, 1, 200)[:, None]
    graph = torch.from_numpy(nx.to_numpy_array(GRAPHS["geometric"](1))[:200, :200]).float()
    for D, least, most in ((torch.cdist(x, x), 0.0, 0.01), (graph, 0.1, torch.inf)):
        space = PrecomputedDistances.stored_matrix(D, 1.0)
        assert least <= unlikeness(choose_landmarks(space, mass, "spread", 40, rng), mass) <= most


def test_proximal_steps_go_down_from_the_product_plan_and_keep_its_marginals() -> None:
    A = nx.to_numpy_array(GRAPHS["blocks"](7), weight=None)
    B, _ = shuffled(A, 0.02, 8)
    rng = np.random.default_rng(0)
    p, q = (rng.uniform(0.5, 2, len(A)) for _ in "pq")
    p[3] = 0
    spaces = [PrecomputedDistances.stored_matrix(torch.from_numpy(D).float(), 1.0) for D in (A, B)]
    masses = [torch.from_numpy(side).float() for side in (p, q)]
    gradient = ExactGradient(*spaces, *(mass / mass.sum() for mass in masses))
    plan = proximal_plan(gradient, *masses, Watch()).double().numpy()
    assert (plan >= 0).all()
    assert plan[3].max() < 1e-12
    np.testing.assert_allclose(plan.sum(1), p / p.sum(), atol=1e-3)
    np.testing.assert_allclose(plan.sum(0), q / q.sum(), rtol=1e-4)
    assert energy(A, B, plan) < 0.8 * energy(A, B, np.outer(p, q) / p.sum() / q.sum())

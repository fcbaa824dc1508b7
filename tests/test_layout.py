"""Where points are drawn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist

from tests.problems import ROLL, SPIRAL
from torchgw import AdjacencyDistances, GWResult, PrecomputedDistances, gw_align
from torchgw.views import layout


def both(*given: Any, **more: Any) -> tuple[np.ndarray, np.ndarray]:
    x, y = layout.make_layouts(*given, **more)
    return x.points, y.points


def test_points_of_two_and_three_coordinates_stay_where_they_are(result: GWResult) -> None:
    x, y = both(result)
    np.testing.assert_array_equal(x, SPIRAL)
    np.testing.assert_array_equal(y, ROLL)


def test_a_line_gets_a_second_coordinate() -> None:
    found = layout.of_points(np.arange(5.0)[:, None])
    np.testing.assert_array_equal(found, np.column_stack((np.arange(5.0), np.zeros(5))))


def test_many_coordinates_become_two_that_keep_the_plane_they_lie_in() -> None:
    rng = np.random.default_rng()
    flat = rng.normal(size=(60, 2))
    basis = np.linalg.qr(rng.normal(size=(7, 2)))[0]
    found = layout.of_points(flat @ basis.T + 5)
    assert found.shape == (60, 2)
    np.testing.assert_allclose(cdist(found, found), cdist(flat, flat), atol=1e-10)


@pytest.mark.parametrize("n", [2, 7, 350])
def test_distances_are_laid_out_as_the_plane_that_they_come_from(n: int) -> None:
    flat = np.random.default_rng().normal(size=(n, 2))
    D = cdist(flat, flat)
    found = layout.of_distances(PrecomputedDistances(D))
    np.testing.assert_allclose(cdist(found, found), D / D.max(), atol=1e-6)


def test_a_matrix_of_distances_that_was_aligned_has_a_layout() -> None:
    D = cdist(SPIRAL[::8], SPIRAL[::8])
    aligned = gw_align(D, torch.from_numpy(D), random_state=0)
    x, y = both(aligned)
    np.testing.assert_allclose(cdist(x, x), D / D.max(), atol=1e-6)
    np.testing.assert_allclose(x, y, atol=1e-12)


def test_points_that_are_given_count(result: GWResult) -> None:
    x, y = both(result, X=SPIRAL[::-1], Y=ROLL[:, :2])
    np.testing.assert_array_equal(x, SPIRAL[::-1])
    np.testing.assert_array_equal(y, ROLL[:, :2])


def test_another_number_of_points_is_refused(result: GWResult) -> None:
    with pytest.raises(ValueError, match=f"Y must have {len(ROLL)} points, as the result has, got 9"):
        layout.make_layout(result, 1, ROLL[:9])


def test_a_result_from_a_file_asks_for_points(result: GWResult, tmp_path) -> None:  # type: ignore[no-untyped-def]
    result.save(tmp_path / "kept.npz")
    kept = GWResult.load(tmp_path / "kept.npz")
    with pytest.raises(ValueError, match="pass X="):
        layout.make_layouts(kept)
    assert both(kept, SPIRAL, ROLL)[1].shape == ROLL.shape


@pytest.mark.parametrize("n", [3, 60, 400])
def test_distances_on_a_line_are_laid_out_on_a_line(n: int) -> None:
    along = np.random.default_rng().normal(size=(n, 1))
    found = layout.of_distances(PrecomputedDistances(np.abs(along - along.T)))
    span = np.ptp(along)
    np.testing.assert_allclose(found[:, 1], 0, atol=1e-4)
    np.testing.assert_allclose(cdist(found[:, :1], found[:, :1]), np.abs(along - along.T) / span, atol=1e-6)


def test_a_linear_problem_asks_for_points() -> None:
    aligned = gw_align(None, None, cost=np.random.default_rng().random((20, 30)), alpha=0, random_state=0)
    with pytest.raises(ValueError, match="pass X="):
        layout.make_layouts(aligned)
    assert layout.make_layout(aligned, 0, np.zeros((20, 2))).points.shape == (20, 2)


GRAPHS = {
    "path": nx.path_graph(12),
    "star": nx.star_graph(9),
    "cycle": nx.cycle_graph(15),
    "grid": nx.grid_2d_graph(5, 6),
    "club": nx.karate_club_graph(),
    "parts": nx.disjoint_union(nx.path_graph(5), nx.cycle_graph(4)),
    "directed": nx.gn_graph(20, seed=1),
    "one": nx.empty_graph(1),
}


def lengths(graph: Any) -> np.ndarray:
    found = nx.floyd_warshall_numpy(nx.Graph(graph.edges()) if graph.edges else graph, nodelist=list(graph))
    return np.where(np.isinf(found), 1.5 * found[np.isfinite(found)].max(), found)


def stress(z: np.ndarray, D: np.ndarray) -> float:
    apart = ~np.eye(len(D), dtype=bool)
    return float(np.square(cdist(z, z)[apart] / D[apart] - 1).mean())


@pytest.mark.parametrize("name", GRAPHS)
def test_the_layout_of_a_graph_has_a_minimum_of_its_stress(name: str) -> None:
    graph = GRAPHS[name]
    z, D = layout.of_graph(csr_array(nx.to_scipy_sparse_array(graph, weight=None, dtype=float))), lengths(graph)
    assert z.shape == (len(graph), 2)
    if len(graph) == 1:
        return
    assert stress(z, D) < 0.12
    assert cdist(z, z)[~np.eye(len(D), dtype=bool)].min() > 0.05  # of an edge
    rng = np.random.default_rng(0)
    assert all(stress(z + 0.05 * rng.normal(size=z.shape), D) > stress(z, D) for _ in range(5))
    if name == "path":
        np.testing.assert_allclose(cdist(z, z), D, rtol=0.02)


def test_a_graph_of_more_nodes_than_pivots_is_laid_out_as_the_plane_that_it_lies_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layout, "PAIRS", 8_000)
    flat = np.random.default_rng(0).random((400, 2))
    D = cdist(flat, flat)
    z = layout.of_graph(csr_array(np.where(D < 0.15, D, 0)))
    assert np.corrcoef(cdist(z, z).ravel(), D.ravel())[0, 1] > 0.97


def mesh() -> tuple[np.ndarray, np.ndarray]:
    """An octahedron."""
    corners = np.concatenate((np.eye(3), -np.eye(3)))
    return corners, np.array([[i, j, k] for i in (0, 3) for j in (1, 4) for k in (2, 5)])


OWN = {
    "a graph of networkx": (nx.octahedral_graph(), 12, 0),
    "a sparse matrix": (nx.to_scipy_sparse_array(nx.octahedral_graph(), format="coo"), 12, 0),
    "directed edges": (nx.to_scipy_sparse_array(nx.DiGraph([(i, i + 1) for i in range(5)])), 5, 0),
    "a mesh": (SimpleNamespace(vertices=mesh()[0], faces=mesh()[1]), 0, 8),
    "points and faces": (mesh(), 0, 8),
    "points and edges": ((mesh()[0], np.array([[0, 1], [1, 2]])), 2, 0),
    "points": (mesh()[0], 0, 0),
}


@pytest.fixture(scope="module")
def six() -> GWResult:
    return gw_align(mesh()[0], mesh()[0], init=np.arange(6), random_state=0)


@pytest.mark.parametrize("name", OWN)
def test_points_graphs_and_meshes_are_drawn(name: str, six: GWResult) -> None:
    given, edges, faces = OWN[name]
    for which in (0, 1):
        found = layout.make_layout(six, which, given)
        assert (len(found.points), len(found.edges), len(found.faces)) == (6, edges, faces)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (nx.path_graph(5), "X must have 6 points, as the result has, got 5"),
        ((mesh()[0], np.zeros((4, 4), dtype=int)), r"X\[1\] must be edges \(m, 2\) or faces \(t, 3\)"),
        ((mesh()[0], np.zeros((4, 2))), r"X\[1\] must be edges"),
        ((mesh()[0], np.array([[0, 1, 6]])), r"X\[1\] must hold indices of the 6 points, got 0 to 6"),
        ((mesh()[0][:, :2], mesh()[1]), "X must have three coordinates to have faces"),
        (mesh() * 2, "X must be a pair"),
    ],
)
def test_what_cannot_be_drawn_is_refused(given: Any, match: str, six: GWResult) -> None:
    with pytest.raises(ValueError, match=match):
        layout.make_layout(six, 0, given)


CLUB = nx.to_scipy_sparse_array(GRAPHS["club"], weight=None, dtype=float, format="csr")
ALIGNED: dict[str, tuple[Any, dict[str, Any]]] = {
    "networkx": (GRAPHS["club"], {"distances": "adjacency"}),
    "sparse adjacency": (CLUB, {"distances": "adjacency"}),
    "dense adjacency": (CLUB.toarray(), {"distances": "adjacency"}),
    "provider": (AdjacencyDistances(CLUB), {}),
    "edge lengths": (CLUB, {}),
    "nodes without mass": (CLUB, {"distances": "adjacency", "p": np.arange(34) > 1, "q": np.arange(34) > 1}),
}


@pytest.mark.filterwarnings("ignore::torchgw.AmbiguityWarning")
@pytest.mark.parametrize("name", ALIGNED)
def test_a_result_of_graphs_keeps_their_edges(name: str) -> None:
    graph, more = ALIGNED[name]
    given = {side: mass / mass.sum() for side, mass in more.items() if side in "pq"}
    aligned = gw_align(graph, graph, init=np.arange(34), random_state=0, **more | given)
    edges = {tuple(sorted(pair)) for pair in GRAPHS["club"].edges()}
    for side in layout.make_layouts(aligned):
        assert {tuple(pair) for pair in side.edges} == edges


@pytest.mark.filterwarnings("ignore::torchgw.AmbiguityWarning")
def test_matched_nodes_are_placed_alike() -> None:
    unled = []
    for seed in range(4):
        order = np.random.default_rng(seed).permutation(34)
        aligned = gw_align(CLUB, CLUB[order][:, order], distances="adjacency", init=np.argsort(order), random_state=0)
        x, y = both(aligned)
        match, extent = np.asarray(aligned.argmax()), np.ptp(x, axis=0).max()
        assert np.median(np.linalg.norm(x - y[match], axis=1)) < 0.1 * extent
        unled.append(np.median(np.linalg.norm(x - layout.make_layout(aligned, 1).points[match], axis=1)) / extent)
    assert max(unled) > 0.1  # where the plan does not lead, a layout may be turned over

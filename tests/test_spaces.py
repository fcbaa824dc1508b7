"""Graphs and distance providers."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import block_diag, csr_matrix
from scipy.sparse.csgraph import connected_components, dijkstra
from scipy.spatial.distance import cdist

from tests.problems import path_graph
from torchgw import DijkstraDistances, EuclideanDistances, GraphWarning, LandmarkDistances, PrecomputedDistances
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.spaces import shortest_paths
from torchgw.spaces.graph import build_graph, nearest_elsewhere, neighbour_graph, short_cuts
from torchgw.spaces.neighbours import from_edges, symmetrise_edges
from torchgw.types import Array, DistanceProvider

ROLL = make_swiss_roll(150)[0]
GRAPH = neighbour_graph(ROLL, 5)
GEODESIC = dijkstra(GRAPH)

PROVIDERS = {
    "precomputed": lambda: PrecomputedDistances(GEODESIC),
    "dijkstra": lambda: DijkstraDistances(GRAPH, cache_rows=7),
    "landmark": lambda: LandmarkDistances(GRAPH, 60),
    "euclidean": lambda: EuclideanDistances(ROLL),
    "squared": lambda: EuclideanDistances(ROLL, squared=True),
}
TRUTH = {
    "precomputed": GEODESIC,
    "dijkstra": GEODESIC,
    "landmark": GEODESIC,
    "euclidean": cdist(ROLL, ROLL),
    "squared": cdist(ROLL, ROLL, "sqeuclidean"),
}
EVERYTHING = torch.arange(150)


@pytest.mark.parametrize("name", PROVIDERS)
def test_provider_serves_scaled_rows_of_the_true_distances(name: str) -> None:
    provider: Any = PROVIDERS[name]()
    assert isinstance(provider, DistanceProvider)
    assert provider.size == 150
    truth = TRUTH[name] / provider.scale
    found = provider.rows(EVERYTHING).numpy()
    if name == "landmark":
        assert np.linalg.norm(found - truth) < 0.015 * np.linalg.norm(truth)
    else:
        np.testing.assert_allclose(found, truth, atol=1e-12)
    assert 0.95 * TRUTH[name].max() <= provider.scale <= TRUTH[name].max() * (1 + 1e-12)


@pytest.mark.parametrize("name", PROVIDERS)
def test_provider_takes_repeated_and_unordered_indices(name: str) -> None:
    provider: Any = PROVIDERS[name]()
    index = torch.tensor([9, 3, 3, 149, 0, 9])
    everything = provider.rows(EVERYTHING)
    torch.testing.assert_close(provider.rows(index), everything[index], rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", PROVIDERS)
def test_provider_moves_to_another_dtype_and_keeps_the_original(name: str) -> None:
    provider: Any = PROVIDERS[name]()
    single = provider.to(torch.device("cpu"), torch.float32)
    assert single.rows(EVERYTHING).dtype == torch.float32
    assert provider.rows(EVERYTHING).dtype == torch.float64
    torch.testing.assert_close(single.rows(EVERYTHING).double(), provider.rows(EVERYTHING), rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", ["landmark", "squared"])
def test_factors_reproduce_the_rows(name: str) -> None:
    provider: Any = PROVIDERS[name]()
    F, signs = provider.factors()
    torch.testing.assert_close((F * signs) @ F.T, provider.rows(EVERYTHING), rtol=0, atol=1e-12)
    assert set(signs.tolist()) == {-1.0, 1.0}


@pytest.mark.parametrize("name", ["precomputed", "dijkstra", "euclidean"])
def test_providers_without_factors_say_so(name: str) -> None:
    assert PROVIDERS[name]().factors() is None


@given(n=st.integers(7, 40), d=st.integers(1, 4), k=st.integers(1, 6), seed=st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_neighbour_graph_is_connected_symmetric_and_metric(n: int, d: int, k: int, seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=(n, d))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)
        graph = neighbour_graph(x, k)
    assert connected_components(graph)[0] == 1
    assert abs(graph - graph.T).max() == 0
    coo = graph.tocoo()
    np.testing.assert_allclose(coo.data, np.linalg.norm(x[coo.row] - x[coo.col], axis=1), rtol=1e-6, atol=1e-9)


def test_every_point_keeps_its_k_nearest_neighbours() -> None:
    exact = np.argsort(cdist(ROLL, ROLL), axis=1)[:, 1:6]
    for i in range(150):
        assert set(exact[i]) <= set(GRAPH[i].indices)


def test_repeated_edges_keep_the_longest() -> None:
    graph = from_edges(3, np.array([0, 1, 1]), np.array([1, 0, 2]), np.array([1.0, 4.0, 2.0]))
    np.testing.assert_array_equal(graph.toarray(), [[0, 4, 0], [4, 0, 2], [0, 2, 0]])


def test_two_clusters_are_stitched_at_their_closest_pair_with_counts() -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate((rng.uniform(size=(40, 2)), rng.uniform(size=(60, 2)) + np.array([5, 0])))
    with pytest.warns(GraphWarning, match="2 components; they were stitched with 1 edges"):
        graph = neighbour_graph(x, 5)
    gap = cdist(x[:40], x[40:])
    i, j = np.unravel_index(gap.argmin(), gap.shape)
    assert graph[i, 40 + j] == pytest.approx(gap.min())
    assert graph[:40, 40:].nnz == 1


def test_a_connected_graph_is_not_warned_about() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        neighbour_graph(np.arange(30.0)[:, None], 2)


def test_stitching_adds_the_minimum_spanning_edges() -> None:
    x = np.concatenate([np.array([0.0, 0.1, 0.2]) + shift for shift in (0, 1, 3, 7)])[:, None]
    with pytest.warns(GraphWarning, match="4 components; they were stitched with 3 edges"):
        graph = neighbour_graph(x, 2)
    np.testing.assert_allclose(dijkstra(graph)[0], x[:, 0], atol=1e-12)


def test_hundreds_of_components_are_stitched_quickly() -> None:
    rng = np.random.default_rng(2)
    centres = rng.uniform(0, 1000, size=(600, 3))
    x = (centres[:, None] + rng.normal(size=(600, 10, 3)) * 0.01).reshape(-1, 3)
    began = time.perf_counter()
    with pytest.warns(GraphWarning, match="600 components; they were stitched with 599 edges"):
        graph = neighbour_graph(x, 4)
    assert connected_components(graph)[0] == 1
    assert time.perf_counter() - began < 20.0  # one search for each component would take minutes


def test_nearest_elsewhere_equals_brute_force() -> None:
    rng = np.random.default_rng(3)
    x, label = rng.normal(size=(80, 3)), rng.integers(0, 7, size=80)
    label[:7] = np.arange(7)
    distance, partner = nearest_elsewhere(x, label)
    full = np.where(label[:, None] == label, np.inf, cdist(x, x))
    np.testing.assert_allclose(distance, full.min(1))
    np.testing.assert_array_equal(partner, full.argmin(1))


def test_duplicated_points_are_at_distance_zero() -> None:
    rng = np.random.default_rng(4)
    base = rng.normal(size=(20, 2))
    x = np.concatenate((base, base, base))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)
        graph = neighbour_graph(x, 4)
    D = dijkstra(graph)
    np.testing.assert_allclose(D[np.arange(20), np.arange(20) + 40], 0, atol=1e-12)
    assert np.isfinite(D).all()


def test_points_that_all_coincide_have_scale_one() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)
        graph = neighbour_graph(np.ones((12, 3)), 3)
    for provider in (LandmarkDistances(graph, 5), DijkstraDistances(graph), EuclideanDistances(np.ones((12, 3)))):
        assert provider.scale == 1.0
        assert float(provider.rows(torch.arange(12)).abs().max()) == 0.0


@pytest.mark.parametrize("kind", [LandmarkDistances, DijkstraDistances])
def test_unreachable_points_are_one_and_a_half_scales_apart(kind: Any) -> None:
    one, D = path_graph([1.0, 2.0, 3.0])
    two, _ = path_graph([1.0, 0.5])
    with pytest.warns(GraphWarning, match=r"infinite distances were replaced by 1.5"):
        provider = kind(block_diag((one, two), format="csr"))
    rows = provider.rows(torch.arange(7)).numpy()
    assert provider.scale == pytest.approx(6.0)
    np.testing.assert_allclose(rows[:4, 4:], 1.5, atol=0.02)
    np.testing.assert_allclose(rows[:4, :4], D / 6, atol=0.02)


def test_a_matrix_of_infinite_blocks_is_filled() -> None:
    D = np.full((4, 4), np.inf)
    np.fill_diagonal(D, 0)
    with pytest.warns(GraphWarning, match="infinite"):
        provider = PrecomputedDistances(D)
    np.testing.assert_array_equal(provider.rows(torch.arange(4)).numpy(), 1.5 * (1 - np.eye(4)))


@pytest.mark.parametrize("kind", [LandmarkDistances, DijkstraDistances])
def test_a_graph_without_edges_is_the_discrete_metric(kind: Any) -> None:
    with pytest.warns(GraphWarning, match="infinite"):
        provider = kind(csr_matrix((5, 5)))
    np.testing.assert_allclose(provider.rows(torch.arange(5)).numpy(), 1.5 * (1 - np.eye(5)), atol=1e-9)


def test_all_pairs_of_two_graphs_match_the_serial_search_in_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    one, D = path_graph([1.0, 2.0, 0.5, 4.0])
    monkeypatch.setattr(shortest_paths, "PARALLEL_SECONDS", 0.0)
    found = PrecomputedDistances.from_graphs([one, GRAPH])
    np.testing.assert_allclose(found[0].rows(torch.arange(5)).numpy() * found[0].scale, D)
    np.testing.assert_allclose(found[1].rows(EVERYTHING).numpy() * found[1].scale, GEODESIC)


def test_sweeps_find_the_diameter_of_a_tree() -> None:
    graph, D = path_graph([1.0, 2.0, 3.0, 0.1, 5.0])
    assert shortest_paths.estimate_diameter(graph) == (pytest.approx(D.max()), False)


def test_landmark_factors_are_exact_when_every_point_is_one() -> None:
    graph, D = path_graph([1.0, 2.0, 0.7, 4.0, 0.3])
    provider = LandmarkDistances(graph, 100)
    assert sorted(provider.landmarks.tolist()) == list(range(6))
    np.testing.assert_allclose(provider.rows(torch.arange(6)).numpy() * provider.scale, D, atol=1e-10)


def test_the_cache_is_bounded_and_each_row_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    searched = shortest_paths.shortest_paths

    def search(jobs: Any) -> list[np.ndarray]:
        asked.extend(jobs[0][1].tolist())
        return searched(jobs)

    monkeypatch.setattr("torchgw.spaces.shortest_paths.shortest_paths", search)
    provider = DijkstraDistances(GRAPH, 4)
    found = provider.rows(torch.tensor([1, 2, 1]))
    np.testing.assert_allclose(found.numpy() * provider.scale, GEODESIC[[1, 2, 1]])
    assert asked == [1, 2]
    provider.rows(torch.tensor([2, 3, 4]))
    assert asked == [1, 2, 3, 4]
    provider.rows(torch.tensor([5]))  # drops 1, the least recently used
    provider.to(torch.device("cpu"), torch.float32).rows(torch.tensor([2, 3, 4, 5]))
    assert asked == [1, 2, 3, 4, 5]
    assert sorted(provider.cache) == [2, 3, 4, 5]


def test_a_call_larger_than_the_cache_gets_all_its_rows() -> None:
    provider, index = DijkstraDistances(GRAPH, 2), [4, 0, 3, 0, 1, 2]
    found = provider.rows(torch.tensor(index))
    np.testing.assert_allclose(found.numpy() * provider.scale, GEODESIC[index])
    assert len(provider.cache) == 2


def test_dijkstra_gives_no_rows_where_none_are_asked_for() -> None:
    assert DijkstraDistances(GRAPH).rows(torch.zeros(0, dtype=torch.long)).shape == (0, GRAPH.shape[0])


def test_sweeps_over_a_large_cloud_find_nearly_its_diameter(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = EuclideanDistances(ROLL).scale
    monkeypatch.setattr("torchgw.spaces.euclidean.EXACT_SIZE", 10)
    assert 0.95 * exact <= EuclideanDistances(ROLL).scale <= exact * (1 + 1e-12)


@pytest.mark.parametrize(("dimension", "k"), [(20, 5), (2, 5)])
def test_edge_lengths_are_right_far_from_the_origin(dimension: int, k: int) -> None:
    x = np.random.default_rng(5).normal(size=(8 if dimension == 2 else 200, dimension))
    near, far = (neighbour_graph(points, k) for points in (x, x * 0.125 + 1e6))
    np.testing.assert_array_equal(near.indices, far.indices)
    np.testing.assert_allclose(far.data, near.data * 0.125, rtol=1e-6)


@pytest.mark.parametrize("size", [1e-170, 1e140])
def test_the_size_of_the_numbers_does_not_matter(size: float) -> None:
    for make in (EuclideanDistances, lambda x: LandmarkDistances(neighbour_graph(x, 5), 40)):
        plain, scaled = make(ROLL), make(ROLL * size)
        torch.testing.assert_close(plain.rows(EVERYTHING), scaled.rows(EVERYTHING), rtol=0, atol=1e-9)
        assert scaled.scale == pytest.approx(plain.scale * size, rel=1e-9)


def test_duplicates_in_many_dimensions_are_joined_by_edges_of_length_zero() -> None:
    x = np.random.default_rng(6).normal(size=(40, 30)) + 1e4
    graph = neighbour_graph(np.concatenate((x, x)), 5)
    assert graph[3, 43] == 0
    assert 43 in graph[3].indices


def test_every_component_gets_a_landmark() -> None:
    pair = csr_matrix(np.array([[0, 2.0], [2, 0]]))
    with pytest.warns(GraphWarning, match="not connected"):
        provider = LandmarkDistances(block_diag([pair] * 30, format="csr"), 10)
    assert len(provider.landmarks) == 30
    assert set((provider.landmarks // 2).tolist()) == set(range(30))


def test_a_matrix_in_single_precision_is_accepted_and_mended() -> None:
    x = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    D = torch.cdist(x, x)
    assert float(D.diagonal().max()) > 0
    rows = PrecomputedDistances(D).rows(torch.arange(100))
    assert float(rows.diagonal().abs().max()) == 0
    assert torch.equal(rows, rows.T)
    np.testing.assert_allclose(rows, (cdist(x, x) / cdist(x, x).max()), atol=2e-4)


@pytest.mark.parametrize("seed", range(4))
def test_the_chosen_graph_joins_no_two_turns_of_the_roll(seed: int) -> None:
    for make, n in ((make_spiral, 400), (make_swiss_roll, 500)):
        x, angle = make(n, random_state=100 + seed)
        graph, report = build_graph(x)
        coo = graph.tocoo()
        assert np.abs(angle[coo.row] - angle[coo.col]).max() < 2
        assert connected_components(graph)[0] == 1
        kept = {(min(i, j), max(i, j)) for i, j in zip(coo.row.tolist(), coo.col.tolist(), strict=True)}
        assert not kept & {tuple(sorted(edge)) for edge in report.short_cuts.tolist()}
        assert report.k >= 9
        assert report.n_stitched == 0
        assert f"short_cuts={len(report.short_cuts)})" in repr(report)


def test_a_k_that_bridges_the_arms_is_warned_about_and_kept() -> None:
    x, angle = make_spiral(400)
    with pytest.warns(GraphWarning, match="k = 30 joins parts of X that are far apart"):
        graph = neighbour_graph(x, 30, "X")
    coo = graph.tocoo()
    assert np.abs(angle[coo.row] - angle[coo.col]).max() > 2


@pytest.mark.parametrize("k", [6, 8])
def test_a_k_as_small_as_the_chosen_one_is_warned_about_too(k: int) -> None:
    x, _ = make_swiss_roll(500, random_state=1)
    with pytest.warns(GraphWarning, match=f"k = {k} joins parts"):
        neighbour_graph(x, k)


def cut_of(n: int, source: Array, target: Array, length: Array) -> Array:
    """The short cuts among directed neighbour edges."""
    graph = from_edges(n, source, target, length)
    return short_cuts(graph, symmetrise_edges(n, source, target).data == 2, np.zeros((n, 1)))


def test_an_edge_that_cuts_across_is_found_and_a_ring_is_left_whole() -> None:
    t = np.linspace(0, 2 * np.pi, 60, endpoint=False)
    ring = np.stack((np.cos(t), np.sin(t)), 1)
    i = np.arange(60)
    source = np.concatenate((i, i, [0]))
    target = np.concatenate(((i + 1) % 60, (i - 1) % 60, [30]))
    length = np.linalg.norm(ring[source] - ring[target], axis=1)
    assert len(cut_of(60, source[:-1], target[:-1], length[:-1])) == 0
    # A detour of pi / 2 times the length is no short cut; once the ring is three times as long as it looks, it is.
    assert len(cut_of(60, source, target, length)) == 0
    longer = length.copy()
    longer[:-1] *= 4
    np.testing.assert_array_equal(cut_of(60, source, target, longer), [[0, 30]])


def test_edges_of_length_zero_are_no_short_cuts() -> None:
    spiral = make_spiral(80)[0]
    graph, report = build_graph(np.concatenate((spiral, spiral)))
    assert connected_components(graph)[0] == 1
    np.testing.assert_array_equal(report.short_cuts, build_graph(spiral)[1].short_cuts)


@pytest.mark.parametrize("n", [2, 3, 6, 9])
def test_few_points_get_as_many_neighbours_as_there_are(n: int) -> None:
    graph, report = build_graph(np.random.default_rng(n).normal(size=(n, 2)))
    assert report.k == min(n - 1, 5)
    assert connected_components(graph)[0] == 1


def test_all_pairs_are_used_where_landmarks_are_poor() -> None:
    from torchgw.options import SpaceOptions
    from torchgw.spaces.prepare import InputSpace, make_providers

    rng = np.random.default_rng(0)
    curve, cloud = make_spiral(600)[0], rng.normal(size=(600, 10))
    made, reports = make_providers(
        [InputSpace("X", curve, "checked"), InputSpace("Y", cloud, "checked")], SpaceOptions()
    )
    assert isinstance(made[0], LandmarkDistances)
    assert isinstance(made[1], PrecomputedDistances)
    assert all(report is not None and report.k >= 9 for report in reports)


def test_factors_of_squared_distances_follow_dtype_and_scale_after_they_were_asked_for():
    space = EuclideanDistances(np.random.default_rng(0).normal(size=(20, 3)), squared=True)
    for other in (space.to(torch.device("cpu"), torch.float32), space.with_scale(7.0)):
        factors = other.factors()
        assert factors is not None
        F, s = factors
        expected = other.rows(torch.arange(20))
        assert F.dtype == expected.dtype
        torch.testing.assert_close((F * s) @ F.T, expected, rtol=1e-4, atol=1e-5)
    F, s = space.factors()
    torch.testing.assert_close((F * s) @ F.T, space.rows(torch.arange(20)))

"""The parts that bring a million points to landmark factors."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from scipy.sparse import random as random_matrix
from scipy.sparse.csgraph import connected_components, dijkstra
from scipy.spatial.distance import cdist

from torchgw import LandmarkDistances, gw_pairwise, validate
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.options import SpaceOptions
from torchgw.request.spaces import check_space
from torchgw.spaces import farthest, landmark, neighbours, prepare
from torchgw.spaces.graph import DETOUR, build_graph, neighbour_graph, short_cuts
from torchgw.spaces.neighbours import TREE_DIMENSIONS
from torchgw.types import Array, GraphWarning

CPU = torch.device("cpu")


def noisy_roll(seed: int) -> Array:
    """A spiral or Swiss roll of random size and noise, whose points near the middle are close across turns."""
    rng = np.random.default_rng(seed)
    make = make_spiral if seed % 2 else make_swiss_roll
    return make(int(rng.integers(60, 400)), float(rng.uniform(0.03, 0.12)), seed)[0]


def directed_neighbours(points: Array, k: int) -> list[set[int]]:
    return [set(row[1 : k + 1].tolist()) for row in np.argsort(cdist(points, points), axis=1)]


def short_cuts_by_definition(points: Array, k: int) -> set[tuple[int, int]]:
    """The rule of the module, with sets and SciPy's Dijkstra on the whole graph for each edge that is tried."""
    near = directed_neighbours(points, k)
    n = len(points)
    pairs = {(min(i, j), max(i, j)) for i in range(n) for j in near[i]}
    mutual = [{j for j in near[i] if i in near[j]} for i in range(n)]
    trusted = {(i, j) for i, j in pairs if i in mutual[j] or mutual[i] & mutual[j]}
    gap = cdist(points, points)
    graph = np.zeros((n, n))
    for i, j in trusted:
        graph[i, j] = graph[j, i] = gap[i, j]
    found = set()
    for i, j in sorted(pairs - trusted, key=lambda pair: float(gap[pair])):
        way = dijkstra(csr_matrix(graph), indices=i)[j]
        if np.isinf(way) or way <= DETOUR * gap[i, j]:
            graph[i, j] = graph[j, i] = gap[i, j]
        else:
            found.add((i, j))
    return found


def roll_in_many_dimensions(seed: int) -> Array:
    """A noisy roll of which straight lines lead no search, because noise fills 28 more dimensions."""
    roll = noisy_roll(seed)
    return np.hstack((roll, 0.3 * np.random.default_rng(seed).normal(size=(len(roll), 28))))


@pytest.mark.parametrize("cloud", [noisy_roll, roll_in_many_dimensions])
def test_short_cuts_are_those_of_the_definition(cloud: Callable[[int], Array]) -> None:
    total = 0
    for seed in range(24 if cloud is noisy_roll else 8):
        points, k = cloud(seed), 5 + seed % 6
        pattern = neighbours.union(neighbours.nearest(points, k))
        graph = csr_matrix((np.ones(pattern.nnz), pattern.indices, pattern.indptr), shape=pattern.shape)
        row = np.repeat(np.arange(len(points)), np.diff(pattern.indptr))
        graph.data = np.linalg.norm(points[row] - points[pattern.indices], axis=1)
        expected = short_cuts_by_definition(points, k)
        nowhere = np.zeros((len(points), 1)), np.zeros((len(points), TREE_DIMENSIONS + 1))  # which lead no search
        for led in (points, *nowhere)[seed % 2 :: 2]:
            cut = short_cuts(graph, pattern.data == 2, led)
            assert {(i, j) for i, j in cut.tolist()} == expected
        total += len(expected)
    assert total > 50


def test_a_way_round_is_found_when_the_straight_direction_is_a_dead_end() -> None:
    """Beyond the gap between 3 and 4 the only way on leads back first; greedy order must not end the search."""
    points = np.array([[0, 0], [1, 0], [2, 0], [3, 0], [4.5, 0], [0, 1], [0, 2], [2, 2], [4.5, 2]], dtype=float)
    ring = np.array([[0, 1], [1, 2], [2, 3], [0, 5], [5, 6], [6, 7], [7, 8], [8, 4]])
    length = np.linalg.norm(points[ring[:, 0]] - points[ring[:, 1]], axis=1)
    way = length.sum()
    for factor, n_cut in ((1.001, 0), (0.999, 1)):
        source, target = np.append(ring[:, 0], 3), np.append(ring[:, 1], 4)
        lengths = np.append(length, factor * way / DETOUR)
        graph = neighbours.from_edges(9, source, target, lengths)
        mutual = np.ones(graph.nnz, dtype=bool)
        mutual[neighbours.entry_positions(graph, np.array([3, 4]), np.array([4, 3]))] = False
        assert len(short_cuts(graph, mutual, points)) == n_cut


@pytest.mark.parametrize(("length", "n_cut"), [(2.499, 0), (2.501, 1)])
def test_two_trusted_edges_save_an_edge_when_they_are_short_enough(length: float, n_cut: int) -> None:
    """0 - 2 and 2 - 1 are trusted, the latter through 3; 0 - 1, of length 1, is not."""
    ends = np.array([[0, 1], [0, 2], [2, 1], [2, 3], [3, 1]])
    graph = neighbours.from_edges(4, ends[:, 0], ends[:, 1], np.array([1.0, length, length, 2.0, 2.0]))
    mutual = np.ones(graph.nnz, dtype=bool)
    mutual[neighbours.entry_positions(graph, np.array([0, 1, 1, 2]), np.array([1, 0, 2, 1]))] = False
    assert len(short_cuts(graph, mutual, np.zeros((4, 1)))) == n_cut


def test_paths_of_two_edges_are_the_shortest_and_may_have_length_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "BLOCK_PAIRS", 97)
    rng = np.random.default_rng(1)
    n = 40
    source, target = rng.integers(0, n, size=(2, 150))
    keep = source != target
    length = rng.choice([0.0, 0.5, 1.0, 3.0], size=150)
    graph = neighbours.from_edges(n, source[keep], target[keep], length[keep])
    dense = np.full((n, n), np.inf)
    coo = graph.tocoo()
    dense[coo.row, coo.col] = coo.data
    expected = (dense[:, :, None] + dense[None]).min(1)
    i, j = (index.ravel() for index in np.indices((n, n)))
    np.testing.assert_allclose(neighbours.two_edges(graph, i, j), expected.ravel(), atol=1e-300)
    assert (expected[np.isfinite(expected)] == 0).any()


def test_entries_are_found_and_edges_added_keep_zero_lengths() -> None:
    graph = neighbours.from_edges(6, np.array([0, 0, 2, 4]), np.array([1, 3, 3, 3]), np.array([0.0, 2.0, 1.0, 4.0]))
    row, column = graph.tocoo().coords
    np.testing.assert_array_equal(neighbours.entry_positions(graph, row, column), np.arange(graph.nnz))
    more = np.array([5, 1]), np.array([0, 2]), np.array([0.0, 7.0])
    added = neighbours.from_edges(6, *more)
    larger = neighbours.from_edges(6, *map(np.concatenate, zip(neighbours.to_edges(graph), more, strict=True)))
    assert larger.has_sorted_indices
    assert larger.nnz == graph.nnz + added.nnz
    np.testing.assert_array_equal(larger.toarray(), (graph + added).toarray())
    assert {0, 1} <= set(larger[[5]].indices.tolist()) | set(larger[[0]].indices.tolist())
    assert 0 in larger[[5]].indices


@pytest.mark.parametrize("dimension", [2, 3, 15, 16, 40])
def test_neighbours_are_the_nearest_in_any_dimension(dimension: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "ROWS", 37)
    points = np.random.default_rng(dimension).normal(size=(150, dimension))
    found = neighbours.nearest(points, 7)
    np.testing.assert_array_equal(found, np.argsort(cdist(points, points), axis=1)[:, 1:8])
    assert found.dtype == np.int32


@pytest.mark.parametrize("outlier", [1.0, 1e9, 1e12])
def test_near_points_of_a_cloud_that_reaches_far(outlier: float) -> None:
    rng = np.random.default_rng(7)
    points = np.concatenate((rng.normal(size=(120, 20)), np.full((1, 20), outlier)))
    known = cdist(points, points)
    np.fill_diagonal(known, np.inf)
    found = neighbours.nearest(points, 6)
    np.testing.assert_array_equal(found[:-1], known.argsort(1)[:-1, :6])
    assert neighbours.Search(points)(points[:40] + 1e-9, 1)[:, 0].tolist() == list(range(40))


@pytest.mark.parametrize("dimension", [2, 20])
def test_coincident_points_are_neighbours_of_others_not_of_themselves(dimension: int) -> None:
    base = np.random.default_rng(0).normal(size=(5, dimension))
    found = neighbours.nearest(np.repeat(base, 10, axis=0), 4)
    own = np.arange(50)
    assert not (found == own[:, None]).any()
    np.testing.assert_array_equal(found // 10, np.repeat(own[:, None] // 10, 4, axis=1))
    assert all(len(set(row)) == 4 for row in found.tolist())


def landmarks_by_definition(graph: Any, n_landmarks: int) -> list[int]:
    D = dijkstra(graph)
    chosen = [0]
    while len(chosen) < n_landmarks:
        chosen.append(int(D[chosen].min(0).argmax()))
    return chosen


def test_farthest_points_are_those_of_the_definition_whatever_the_order_of_the_nodes() -> None:
    points = np.random.default_rng(2).permutation(make_swiss_roll(200)[0])
    graph = neighbour_graph(points)
    index, columns = farthest.farthest_points(graph, 25)
    assert index.tolist() == landmarks_by_definition(graph, 25)
    np.testing.assert_array_equal(columns, dijkstra(graph, indices=index).T)


def test_single_precision_changes_the_distances_by_little(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = neighbour_graph(make_swiss_roll(300)[0])
    double = LandmarkDistances(graph, 40)
    monkeypatch.setattr(landmark, "SINGLE_FROM", 100)
    single = LandmarkDistances(graph, 40)
    assert single.factors()[0].dtype == torch.float32  # type: ignore[index]
    everything = torch.arange(300)
    assert torch.equal(single.landmarks, double.landmarks)
    assert single.scale == pytest.approx(double.scale, rel=1e-6)
    torch.testing.assert_close(single.rows(everything).double(), double.rows(everything), rtol=0, atol=5e-6)


def test_two_spaces_searched_side_by_side_are_those_searched_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    spaces = [
        prepare.InputSpace("X", make_spiral(300)[0], "landmark"),
        prepare.InputSpace("Y", neighbour_graph(make_swiss_roll(200)[0]), "landmark"),
    ]
    in_turn, reports = prepare.make_providers(spaces, SpaceOptions(n_landmarks=30))
    monkeypatch.setattr(prepare, "is_worthwhile", lambda *sizes: True)
    aside_made, aside_reports = prepare.make_providers(spaces, SpaceOptions(n_landmarks=30))
    assert aside_reports == reports
    for one, other in zip(in_turn, aside_made, strict=True):
        assert torch.equal(one.factors()[0], other.factors()[0])  # type: ignore[index]
        assert one.scale == other.scale


def test_a_process_is_started_for_long_searches_only() -> None:
    assert not farthest.is_worthwhile(3000, 10**6, 100)
    assert farthest.is_worthwhile(10**5, 10**5, 100) or farthest.os.cpu_count() == 1  # type: ignore[attr-defined]


def test_the_process_aside_never_imports_torch_and_says_when_it_fails(capfd: pytest.CaptureFixture[str]) -> None:
    code = f"import runpy, sys; runpy.run_path({farthest.__file__!r}); import scipy.sparse.csgraph; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "torchgw", "sklearn"} & set(done.stdout.split())
    with farthest.SearchProcess() as search:
        search.start(csr_matrix(np.eye(3)), "three", "float64")  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match="ended with code 1"):
            search.result()
    assert "TypeError" in capfd.readouterr().err


def test_a_process_that_ends_before_it_has_read_the_graph_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(farthest, "RUN", "raise SystemExit(3)")
    with farthest.SearchProcess() as search:
        search._process.wait()
        search.start(csr_matrix(np.eye(300)), 2, "float64")
        with pytest.raises(RuntimeError, match="ended with code 3"):
            search.result()


def test_a_graph_that_needs_no_mending_is_not_copied_and_none_is_written_to() -> None:
    graph = neighbour_graph(make_spiral(100)[0])
    before = graph.copy()
    assert np.shares_memory(validate.graph("graph", graph).data, graph.data)
    LandmarkDistances(graph, 10)
    np.testing.assert_array_equal(graph.data, before.data)
    repeated = csr_matrix((np.ones(4), np.array([1, 1, 0, 0]), np.array([0, 2, 4])), shape=(2, 2))
    assert validate.graph("graph", repeated)[0, 1] == 2
    assert repeated.nnz == 4


@pytest.mark.parametrize("form", ["csc", "coo", "lil", "dok", "dia", "bsr"])
def test_graphs_of_any_sparse_format_are_graphs(form: str) -> None:
    graph = random_graph(20, 0.4, 0)
    given = graph.asformat(form)
    _, checked, kind, _ = check_space("X", given, "auto", SpaceOptions())
    assert kind == "precomputed"
    assert (checked != graph).nnz == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)
        assert gw_pairwise([given, graph], n_jobs=1).values[0] == pytest.approx(0, abs=1e-9)


def test_points_are_neither_copied_nor_written_to() -> None:
    points = make_spiral(200)[0]
    before = points.copy()
    assert validate.points("points", points) is points
    build_graph(points)
    np.testing.assert_array_equal(points, before)


def test_stitching_leaves_edges_of_length_zero_in_place() -> None:
    base = np.random.default_rng(3).normal(size=(20, 2))
    points = np.concatenate((base, base, base + 100))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)
        graph = neighbour_graph(points, 3)
    assert connected_components(graph)[0] == 1
    assert dijkstra(graph)[np.arange(20), np.arange(20) + 20].max() == 0


def random_graph(n: int, density: float, seed: int, zeros: bool = False) -> Any:
    rng = np.random.default_rng(seed)
    upper = random_matrix(n, n, density, format="coo", random_state=rng)
    length = np.where(rng.uniform(size=upper.nnz) < 0.3, 0.0, upper.data) if zeros else upper.data
    keep = upper.row != upper.col
    return neighbours.from_edges(n, upper.row[keep], upper.col[keep], length[keep])


def test_matrices_are_mended_in_blocks_and_those_without_fault_taken_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(validate, "BLOCK", 7)
    rng = np.random.default_rng(0)
    points = rng.normal(size=(40, 3))
    D = cdist(points, points)
    D[:5, 5:] = D[5:, :5] = np.inf
    assert validate.distance_matrix("D", D) is D
    rounded = D * (1 + 1e-9 * rng.random(D.shape))
    given = rounded.copy()
    np.testing.assert_array_equal(validate.distance_matrix("D", rounded), rounded / 2 + rounded.T / 2)
    np.testing.assert_array_equal(rounded, given)
    rounded[39, 20] *= 1.1
    with pytest.raises(ValueError, match=f"differ by {rounded[39, 20] - rounded[20, 39]:g};"):
        validate.distance_matrix("D", rounded)
    D[2, 30] = 4.0
    with pytest.raises(ValueError, match="differ by inf;"):
        validate.distance_matrix("D", D)


@pytest.mark.parametrize("dimension", [2, 20])
@pytest.mark.parametrize("copies", [2, 5, 40])
@pytest.mark.parametrize("k", [None, 6])
def test_points_that_are_there_several_times_change_no_distance(dimension: int, copies: int, k: int | None) -> None:
    """A draw with replacement, rounded coordinates, counts: neighbours at the same place are no way to another one."""
    rng = np.random.default_rng(dimension)
    points = rng.normal(size=(60, dimension)) * np.linspace(3, 1, dimension)
    which = rng.permutation(np.concatenate((np.arange(60), rng.integers(0, 60, size=60 * (copies - 1)))))
    once, report = build_graph(points, k)
    often, again = build_graph(points[which], k)
    np.testing.assert_allclose(dijkstra(often), dijkstra(once)[np.ix_(which, which)], rtol=1e-12, atol=1e-14)
    assert (again.k, again.n_components, again.n_stitched) == (report.k, report.n_components, report.n_stitched)
    there = {tuple(sorted(pair)) for pair in which[again.short_cuts].tolist()}
    assert there == {tuple(sorted(pair)) for pair in report.short_cuts.tolist()}


def test_edges_of_length_zero_are_no_short_cuts_and_searched_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    points = np.repeat(np.random.default_rng(0).normal(size=(6, 3)), 60, axis=0)
    pattern = neighbours.union(neighbours.nearest(points, 9))
    row = np.repeat(np.arange(len(points)), np.diff(pattern.indptr))
    gap = np.linalg.norm(points[row] - points[pattern.indices], axis=1)
    graph = csr_matrix((gap, pattern.indices, pattern.indptr), shape=pattern.shape)
    assert not gap.any()
    assert (pattern.data == 1).sum() > 1000
    monkeypatch.setattr("torchgw.spaces.graph._find_short_cuts", None)
    assert len(short_cuts(graph, pattern.data == 2, points)) == 0

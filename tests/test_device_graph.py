"""Graphs that a device searches: distances of the same bits, landmarks as far apart, the same providers."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import block_diag, csr_matrix
from scipy.sparse.csgraph import connected_components, dijkstra

from tests.problems import daily
from tests.simulated_device import simulated_gpu
from tests.simulated_kernels import triton_stands_in
from torchgw import GWOptions, LandmarkDistances, PrecomputedDistances, certified, gw_align, gw_loss
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.kernels.neighbour_graphs import reference as graphs_reference
from torchgw.kernels.neighbour_graphs.graphs import CsrEdges, DoubtfulEdges, GraphKernels
from torchgw.kernels.shortest_paths import reference
from torchgw.kernels.shortest_paths.searches import Searches
from torchgw.options import SpaceOptions
from torchgw.request import limits
from torchgw.spaces import device_graph
from torchgw.spaces.device_graph import DeviceGraph, DeviceSearch, finish_searches
from torchgw.spaces.farthest import farthest_points
from torchgw.spaces.graph import build_graph, neighbour_graph
from torchgw.spaces.prepare import InputSpace, make_providers
from torchgw.types import DistanceProvider, GraphWarning

CPU = torch.device("cpu")


def neighbours(points: torch.Tensor, k: int, order: torch.Tensor | None) -> tuple[CsrEdges, DoubtfulEdges]:
    """What kernels read must lie in memory as they think it does."""
    assert points.is_contiguous()
    return graphs_reference.neighbours(points, k, order)


GRAPHS = GraphKernels(
    neighbours, graphs_reference.join_parts, graphs_reference.decide_edges, graphs_reference.finish_graph
)
SEARCHES = Searches(reference.paths, reference.cell_distances, reference.spread_labels, reference.farthest)
RNG = np.random.default_rng(11)
KINDS = {
    "spiral": neighbour_graph(make_spiral(900)[0]),
    "roll": neighbour_graph(make_swiss_roll(800, random_state=2)[0]),
    "cloud": neighbour_graph(RNG.normal(size=(700, 2))),
    "many": neighbour_graph(RNG.normal(size=(500, 12))),
    "duplicates": neighbour_graph(np.repeat(RNG.normal(size=(150, 2)), 3, axis=0)),
}


def brought(graph: Any) -> DeviceGraph:
    return DeviceGraph.of(graph, SEARCHES, CPU)


def there(data: Any, kind: str) -> DeviceGraph | None:
    """A device that searches graphs, and builds none."""
    return None if isinstance(data, np.ndarray) else brought(data)


def built(data: Any, kind: str, family: GraphKernels = GRAPHS) -> DeviceGraph:
    """One that does both."""
    return (
        DeviceGraph.from_points(data, family, SEARCHES, CPU, "eager") if isinstance(data, np.ndarray) else brought(data)
    )


def declined(graph: Any, kind: str) -> None:
    """A device that has no memory."""


def provider(begun: DeviceSearch) -> DistanceProvider:
    (found,) = finish_searches([begun])
    assert found is not None
    return found[0]


def choose_landmarks(graph: DeviceGraph, count: int) -> torch.Tensor:
    """At most so many landmarks, and one of each part at least, as a search has them."""
    return graph.landmarks(graph.centres(count), min(max(count, len(graph.parts)), graph.size))


@pytest.fixture(params=[30, 10_000], ids=["few centres", "every point"])
def centres(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(device_graph, "CENTRES", request.param)
    monkeypatch.setattr(device_graph, "FAR", 20)
    return int(request.param)


@pytest.mark.parametrize("kind", KINDS)
def test_landmarks_lie_as_far_apart_as_farthest_points(kind: str, centres: int) -> None:
    graph = KINDS[kind]
    point = choose_landmarks(brought(graph), 25)
    _, columns = farthest_points(graph, 25)
    assert len(point.unique()) == 25
    covered, best = brought(graph).distances(point).amin(0), columns.min(1)
    assert float(covered.max()) <= (1.3 if centres > graph.shape[0] else 2.0) * best.max()
    assert float(covered.mean()) <= 1.25 * best.mean()


@pytest.mark.usefixtures("centres")
def test_each_part_has_a_landmark_and_each_point_one() -> None:
    parts = block_diag([KINDS["roll"], neighbour_graph(RNG.normal(size=(40, 2))), csr_matrix((3, 3))], format="csr")
    for count in (2, 12):
        point = choose_landmarks(brought(parts), count)
        assert set(connected_components(parts)[1][point.numpy()]) == set(range(5))
        assert len(point) == max(count, 5)
    assert len(choose_landmarks(brought(KINDS["many"]), 10**6)) == 500


@pytest.mark.parametrize("kind", ["checked", "precomputed", "landmark"])
@pytest.mark.parametrize("space", [*KINDS, "parts"])
@pytest.mark.filterwarnings("ignore::torchgw.GraphWarning")
def test_providers_are_those_of_the_cpu(space: str, kind: str) -> None:
    graph = KINDS.get(space)
    graph = block_diag([KINDS["spiral"], KINDS["cloud"]], format="csr") if graph is None else graph
    spaces, options = [InputSpace("X", graph, kind)] * 2, SpaceOptions(n_landmarks=60)
    (here, _), (one, other) = (make_providers(spaces, options, where)[0] for where in (None, there))
    every = torch.arange(graph.shape[0])
    assert type(one) is type(other)
    assert torch.equal(one.rows(every), other.rows(every))
    assert one.scale == pytest.approx(here.scale, rel=1e-12 if kind == "precomputed" else 0.02)
    largest = float(np.max(true := dijkstra(graph), where=np.isfinite(true), initial=0.0))
    true[np.isinf(true)] = 1.5 * largest
    found, known = (np.linalg.norm(side.rows(every).numpy() * side.scale - true) for side in (one, here))
    assert found <= 1.4 * known + 1e-3 * np.linalg.norm(true)
    assert isinstance(one, PrecomputedDistances) is (kind == "precomputed" or (kind == "checked" and space == "many"))


def test_what_is_not_connected_is_said_once() -> None:
    graph = block_diag([KINDS["spiral"], KINDS["cloud"]], format="csr")
    for kind in ("landmark", "precomputed"):
        with pytest.warns(GraphWarning, match="not connected") as caught:
            found = provider(DeviceSearch("X", kind, brought(graph), 20))
        assert len(caught) == 1
        assert float(found.rows(torch.tensor([0])).max()) == pytest.approx(1.5, abs=0.1)
    assert finish_searches([]) == []


def test_a_graph_without_edges_is_the_discrete_metric() -> None:
    for kind in ("landmark", "precomputed"):
        with pytest.warns(GraphWarning, match="not connected"):
            found = provider(DeviceSearch("X", kind, brought(csr_matrix((5, 5))), 20))
        np.testing.assert_allclose(found.rows(torch.arange(5)).numpy(), 1.5 * (1 - np.eye(5)), atol=1e-9)


@pytest.mark.parametrize("distances", ["landmark", pytest.param("precomputed", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore::torchgw.AmbiguityWarning")
def test_a_gpu_searches_and_a_cpu_ends_likewise(distances: str) -> None:
    X, Y = make_spiral(150)[0], make_swiss_roll(165, random_state=1)[0]
    here = gw_align(X, Y, distances=distances, epsilon=1e-3, random_state=0)
    with simulated_gpu() as simulation, triton_stands_in(simulation):
        found = gw_align(X, Y, distances=distances, epsilon=1e-3, random_state=0, device="cuda", backend="triton")
        eager = gw_align(X, Y, distances=distances, epsilon=1e-3, random_state=0, device="cuda", backend="eager")
        unseen, known = found.transform(X[:3], side="source").argmax().tolist(), found.argmax()[:3].tolist()
    assert any("search_kernel" in place for place in simulation.launches)
    assert unseen == known
    assert found.value == pytest.approx(here.value, rel=0.01)
    assert eager.value == pytest.approx(here.value, rel=1e-3)


def test_where_a_device_has_no_memory_the_cpu_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    spaces = InputSpace("X", make_spiral(300)[0], "landmark"), InputSpace("Y", make_spiral(200)[0], "precomputed")
    here, without = (make_providers(spaces, SpaceOptions(), where)[0] for where in (None, declined))
    assert all(
        torch.equal(a.rows(torch.arange(200)), b.rows(torch.arange(200))) for a, b in zip(here, without, strict=True)
    )
    with simulated_gpu() as simulation, triton_stands_in(simulation):
        cuda = torch.device("cuda", 0)
        bring = limits.find_device_search("triton", cuda, SpaceOptions())
        assert bring is not None
        assert limits.find_device_search("eager", cuda, SpaceOptions()) is None
        for free, kind, graph, fits in (
            (6e7, "landmark", KINDS["spiral"], False),
            (3e8, "landmark", KINDS["spiral"], True),
            (3e8, "checked", block_diag([csr_matrix((1, 1))] * 3000, format="csr"), False),  # a landmark for each part
            (4e7, "precomputed", KINDS["spiral"], False),
        ):
            monkeypatch.setattr(limits, "free_memory", lambda _, free=free: free)
            assert (bring(graph, kind) is not None) is fits
        for free, fits in ((2e7, False), (2e8, True)):
            monkeypatch.setattr(limits, "free_memory", lambda _, free=free: free)
            assert (bring(make_spiral(300)[0], "landmark") is not None) is fits
    assert limits.find_device_search("auto", CPU, SpaceOptions()) is None


@pytest.mark.parametrize("count", daily([(3,), (16,), (1000,)], [2, 3, 5, 9, 12, 16, 40, 1000]))
def test_no_more_landmarks_than_asked_for_and_none_twice(count: int) -> None:
    for kind in ("roll", "duplicates", "many"):
        found = provider(DeviceSearch("X", "landmark", brought(KINDS[kind]), count))
        assert isinstance(found, LandmarkDistances)
        assert len(found.landmarks.unique()) == len(found.landmarks) <= min(count, KINDS[kind].shape[0])
        assert len(found.landmarks) >= min(count, 150) / 2
        known = LandmarkDistances(KINDS[kind], count)
        true, every = dijkstra(KINDS[kind]), torch.arange(KINDS[kind].shape[0])
        one, other = (np.linalg.norm(side.rows(every).numpy() * side.scale - true) for side in (found, known))
        assert one <= 1.5 * other + 0.02 * np.linalg.norm(true)


def odd() -> dict[str, Any]:
    star = csr_matrix((np.linspace(1, 2, 1999), (np.zeros(1999, int), np.arange(1, 2000))), shape=(2000, 2000))
    return {
        "repeated": neighbour_graph(np.repeat(RNG.normal(size=(400, 2)), 5, axis=0)),
        "rounded": neighbour_graph(np.round(RNG.normal(size=(2000, 2)), 1)),
        "star": star + star.T,
    }


@pytest.mark.parametrize("kind", ["repeated", pytest.param("rounded", marks=pytest.mark.slow), "star"])
@pytest.mark.filterwarnings("ignore::torchgw.GraphWarning")
def test_parts_are_reached_where_points_coincide_and_where_one_has_all_edges(kind: str) -> None:
    graph = block_diag([odd()[kind], neighbour_graph(RNG.normal(size=(40, 2)))], format="csr")
    device = brought(graph)
    assert device.size > device_graph.CENTRES + device_graph.FAR
    point = choose_landmarks(device, 60)
    assert len(set(connected_components(graph)[1][point.numpy()])) == 2
    covered, best = device.distances(point).amin(0), farthest_points(graph, 60)[1].min(1)
    assert float(covered.max()) <= 1.5 * best.max()
    assert float(covered.mean()) <= 1.25 * best.mean()


@pytest.mark.filterwarnings("ignore::torchgw.AmbiguityWarning")
def test_bounds_are_those_of_the_problem_that_was_solved() -> None:
    X, Y = make_spiral(60)[0], make_swiss_roll(60, random_state=1)[0]
    options = GWOptions(spaces=SpaceOptions(n_landmarks=12))
    with simulated_gpu() as simulation, triton_stands_in(simulation):
        given = {"distances": "landmark", "options": options, "random_state": 0, "device": "cuda", "backend": "triton"}
        scales = gw_align(X, Y, epsilon=0, **given).scales  # type: ignore[arg-type]
        spaces = certified.prepare_bounds(X, Y, given)[1]
    assert tuple(space.scale for space in spaces) == scales


def test_what_is_differentiated_is_searched_by_the_cpu() -> None:
    X, Y = (torch.from_numpy(make_spiral(n)[0]) for n in (60, 70))
    with simulated_gpu() as simulation, triton_stands_in(simulation):
        leaf = X.clone().requires_grad_()
        options = GWOptions(coarse=None)
        loss = gw_loss(leaf, Y, distances="landmark", epsilon=5e-2, options=options, device="cuda", backend="triton")
        loss.backward()  # type: ignore[no-untyped-call]
        assert not any("search_kernel" in place for place in simulation.launches)
    assert leaf.grad is not None
    assert bool(leaf.grad.isfinite().all())
    assert isinstance(LandmarkDistances(KINDS["many"], 5).landmarks, torch.Tensor)


def clouds() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(8)
    return {
        "spiral": make_spiral(300)[0],
        "short cuts": make_swiss_roll(150, random_state=3)[0] * 40 + 1e3,
        "line": rng.uniform(size=(90, 1)),
        "many dimensions": rng.normal(size=(200, 30)),
        "hubs": rng.normal(size=(300, 9)),
        "coincident": np.repeat(rng.normal(size=(3, 2)), 30, axis=0) + 1e-9 * rng.normal(size=(90, 2)),
        "few": rng.normal(size=(4, 2)),
        "columns first": np.asfortranarray(rng.normal(size=(120, 3))),
    }


@pytest.mark.parametrize("kind", clouds())
@pytest.mark.filterwarnings("ignore::torchgw.GraphWarning")
def test_a_device_builds_the_graph_of_the_cpu(kind: str) -> None:
    points = clouds()[kind]
    graph, report = build_graph(points)
    made = DeviceGraph.from_points(points, GRAPHS, SEARCHES, CPU, "eager")
    assert made.build_record is not None
    known = made.build_record.make_report(made.build_record.summary, "X")
    if report.n_components > 1:
        assert known is None
        return
    assert str(known) == str(report)
    assert known is not None
    np.testing.assert_array_equal(known.short_cuts, report.short_cuts)
    held = csr_matrix((made.length.numpy(), made.target.numpy(), made.pointer.numpy()), shape=graph.shape)
    row = np.repeat(np.arange(len(points)), np.diff(held.indptr))
    entries = slice(0, held.indptr[-1])
    there = np.isfinite(held.data[entries])
    assert (held.indices[entries][~there] == row[~there]).all()  # loops
    np.testing.assert_array_equal(held.indices[entries][there], graph.indices)
    np.testing.assert_allclose(held.data[entries][there], graph.data, rtol=1e-12)


@pytest.mark.parametrize("told", [3, 200])
def test_short_cuts_are_all_told(told: int) -> None:
    made = DeviceGraph.from_points(clouds()["short cuts"], GRAPHS, SEARCHES, CPU, "eager").build_record
    assert made is not None
    found = made.make_report(made.summary[: 3 + 3 * told], "X")
    known = build_graph(clouds()["short cuts"])[1]
    assert found is not None
    assert 3 < len(known.short_cuts) < 200
    np.testing.assert_array_equal(found.short_cuts, known.short_cuts)


@pytest.mark.parametrize("kind", ["landmark", "checked", "precomputed"])
def test_spaces_of_points_are_those_of_the_cpu(kind: str) -> None:
    X, Y = clouds()["short cuts"], np.concatenate((clouds()["spiral"], clouds()["spiral"] + 50))
    spaces, options = (InputSpace("X", X, kind), InputSpace("Y", Y, kind)), SpaceOptions(n_landmarks=40)
    with pytest.warns(GraphWarning, match="of Y has 2 components; they were stitched") as caught:
        one, reports = make_providers(spaces, options, built)
    assert len(caught) == 1
    with pytest.warns(GraphWarning, match="of Y has 2 components"):
        other, known = make_providers(spaces, options, there)
    assert [str(report) for report in reports] == [str(report) for report in known]
    assert reports[0] is not None
    assert len(reports[0].short_cuts) > 0
    for here, searched in zip(one, other, strict=True):
        every = torch.arange(here.size)
        torch.testing.assert_close(here.rows(every), searched.rows(every), rtol=1e-7, atol=1e-9)
    with pytest.warns(GraphWarning, match="of X has 2 components; they were stitched"):
        _, reports = make_providers((InputSpace("X", Y, kind), InputSpace("Y", X, kind)), SpaceOptions(k=5), built)
    assert [report.k for report in reports if report is not None] == [5, 5]


def test_what_is_open_after_a_few_rounds_is_left_to_the_cpu() -> None:
    def undecided(edges: CsrEdges, doubtful: DoubtfulEdges, size: torch.Tensor) -> torch.Tensor:
        told = graphs_reference.finish_graph(edges, doubtful, size)
        told[0] = 1
        return told

    spaces = [InputSpace(name, clouds()["short cuts"], "landmark") for name in "XY"]
    family = GRAPHS._replace(finish_graph=undecided)
    found = make_providers(spaces, SpaceOptions(n_landmarks=20), partial(built, family=family))
    known = make_providers(spaces, SpaceOptions(n_landmarks=20), there)
    assert torch.equal(*(side[0][0].rows(torch.arange(50)) for side in (found, known)))
    assert str(found[1]) == str(known[1])

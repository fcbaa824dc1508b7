"""Graphs that a device searches: distances of the same bits, landmarks as far apart, the same providers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import block_diag, csr_matrix
from scipy.sparse.csgraph import connected_components, dijkstra

from tests.simulated_device import simulated_gpu
from tests.simulated_kernels import triton_stands_in
from torchgw import GWOptions, LandmarkDistances, PrecomputedDistances, gw_align, gw_loss
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.kernels.shortest_paths import reference
from torchgw.kernels.shortest_paths.searches import Searches
from torchgw.options import SpaceOptions
from torchgw.request import limits
from torchgw.spaces import device_graph
from torchgw.spaces.device_graph import DeviceGraph
from torchgw.spaces.farthest import farthest_points
from torchgw.spaces.graph import neighbour_graph
from torchgw.spaces.on_device import Begun, finished
from torchgw.spaces.prepare import Space, make_providers
from torchgw.types import GraphWarning

CPU = torch.device("cpu")
SEARCHES = Searches(reference.paths, reference.spread, reference.farthest)
RNG = np.random.default_rng(11)
KINDS = {
    "spiral": neighbour_graph(make_spiral(900)[0]),
    "roll": neighbour_graph(make_swiss_roll(800, random_state=2)[0]),
    "cloud": neighbour_graph(RNG.normal(size=(700, 2))),
    "many": neighbour_graph(RNG.normal(size=(500, 12))),
    "duplicates": neighbour_graph(np.repeat(RNG.normal(size=(150, 2)), 3, axis=0)),
}


def there(graph: Any) -> DeviceGraph:
    return DeviceGraph.of(graph, SEARCHES, CPU)


@pytest.fixture(params=[30, 10_000], ids=["few centres", "every point"])
def centres(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(device_graph, "CENTRES", request.param)
    monkeypatch.setattr(device_graph, "FAR", 20)
    return int(request.param)


@pytest.mark.parametrize("kind", KINDS)
def test_landmarks_lie_as_far_apart_as_farthest_points(kind: str, centres: int) -> None:
    graph = KINDS[kind]
    point = there(graph).landmarks(25)
    _, columns = farthest_points(graph, 25)
    assert len(point.unique()) == 25
    covered, best = there(graph).distances(point).amin(0), columns.min(1)
    if centres > graph.shape[0] and kind != "duplicates":  # whose first centre is another point
        assert float(covered.max()) <= 1.3 * best.max()
    assert float(covered.max()) <= 3 * best.max()
    assert float(covered.mean()) <= 1.25 * best.mean()


@pytest.mark.usefixtures("centres")
def test_each_part_has_a_landmark_and_each_point_one() -> None:
    parts = block_diag([KINDS["roll"], neighbour_graph(RNG.normal(size=(40, 2))), csr_matrix((3, 3))], format="csr")
    for count in (2, 12):
        point = there(parts).landmarks(count)
        assert set(connected_components(parts)[1][point.numpy()]) == set(range(5))
        assert len(point) == max(count, 5)
    assert len(there(KINDS["many"]).landmarks(10**6)) == 500


@pytest.mark.parametrize("kind", ["checked", "precomputed", "landmark"])
@pytest.mark.parametrize("space", [*KINDS, "parts"])
@pytest.mark.filterwarnings("ignore::torchgw.GraphWarning")
def test_providers_are_those_of_the_cpu(space: str, kind: str) -> None:
    graph = KINDS.get(space)
    graph = block_diag([KINDS["spiral"], KINDS["cloud"]], format="csr") if graph is None else graph
    spaces, options = [Space("X", graph, kind)] * 2, SpaceOptions(n_landmarks=60)
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
            (found,) = finished([Begun("X", kind, there(graph), 20)])
        assert len(caught) == 1
        assert float(found.rows(torch.tensor([0])).max()) == pytest.approx(1.5, abs=0.1)
    assert finished([]) == []


def test_a_graph_without_edges_is_the_discrete_metric() -> None:
    for kind in ("landmark", "precomputed"):
        with pytest.warns(GraphWarning, match="not connected"):
            (found,) = finished([Begun("X", kind, there(csr_matrix((5, 5))), 20)])
        np.testing.assert_allclose(found.rows(torch.arange(5)).numpy(), 1.5 * (1 - np.eye(5)), atol=1e-9)


@pytest.mark.parametrize("distances", ["landmark", "precomputed"])
@pytest.mark.filterwarnings("ignore::torchgw.AmbiguityWarning")
def test_a_gpu_searches_and_a_cpu_ends_likewise(distances: str) -> None:
    X, Y = make_spiral(300)[0], make_swiss_roll(330, random_state=1)[0]
    here = gw_align(X, Y, distances=distances, epsilon=1e-3, random_state=0)
    with simulated_gpu() as simulation, triton_stands_in(simulation):
        found = gw_align(X, Y, distances=distances, epsilon=1e-3, random_state=0, device="cuda", backend="triton")
        eager = gw_align(X, Y, distances=distances, epsilon=1e-3, random_state=0, device="cuda", backend="eager")
        unseen, known = found.unseen(X[:3], side="source").argmax().tolist(), found.argmax()[:3].tolist()
    assert any("search_kernel" in place for place in simulation.launches)
    assert unseen == known
    assert found.value == pytest.approx(here.value, rel=0.01)
    assert eager.value == pytest.approx(here.value, rel=1e-3)


def test_where_a_device_has_no_memory_the_cpu_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    spaces = Space("X", make_spiral(300)[0], "landmark"), Space("Y", make_spiral(200)[0], "precomputed")
    with simulated_gpu() as simulation, triton_stands_in(simulation):
        cuda = torch.device("cuda", 0)
        assert limits.searched_there(spaces, "triton", cuda, SpaceOptions()) is not None
        assert limits.searched_there(spaces, "eager", cuda, SpaceOptions()) is None
        monkeypatch.setattr(limits, "free_memory", lambda _: 1e6)
        assert limits.searched_there(spaces, "triton", cuda, SpaceOptions()) is None
    assert limits.searched_there(spaces, "auto", CPU, SpaceOptions()) is None


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


@pytest.mark.filterwarnings("ignore:k = 290 joins parts")
def test_another_process_builds_the_graph_of_many_points(monkeypatch: pytest.MonkeyPatch) -> None:
    spaces = Space("X", make_spiral(300)[0], "landmark"), Space("Y", make_swiss_roll(280)[0], "precomputed")
    here, reports = make_providers(spaces, SpaceOptions(), there)
    monkeypatch.setattr("torchgw.spaces.prepare.BUILT_ASIDE", 100)
    aside, other_reports = make_providers(spaces, SpaceOptions(), there)
    for one, other in zip(here, aside, strict=True):
        assert torch.equal(one.rows(torch.arange(one.size)), other.rows(torch.arange(other.size)))
    assert [str(report) for report in reports] == [str(report) for report in other_reports]
    apart = np.concatenate((spaces[0].data, spaces[0].data + 1e3))
    with pytest.warns(GraphWarning, match="of X has 2 components; they were stitched"):
        make_providers((Space("X", apart, "landmark"), spaces[1]), SpaceOptions(), there)
    with pytest.raises(ValueError, match="k must be smaller than the number of points of X, got k = 290 and N = 280"):
        make_providers(
            (Space("X", spaces[1].data, "landmark"), spaces[0]._replace(name="Y")), SpaceOptions(k=290), there
        )

"""Distance providers of validated spaces: graphs are built, distances searched and scales divided out, once.

D = R / c, with R the raw distances of a space and c its scale: the largest known
distance of the space itself, or what `SpaceOptions.scale` asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch

from torchgw import ranges
from torchgw.options import SpaceOptions
from torchgw.spaces.adjacency import AdjacencyDistances
from torchgw.spaces.device_graph import (
    CHECKED_ROWS,
    DEVICE_KINDS,
    DeviceGraph,
    DeviceSearch,
    finish_searches,
    is_accurate,
    measure_errors,
)
from torchgw.spaces.euclidean import EuclideanDistances
from torchgw.spaces.farthest import SearchProcess, farthest_points, is_worthwhile
from torchgw.spaces.graph import GraphReport, build_graph
from torchgw.spaces.landmark import LandmarkDistances, storage
from torchgw.spaces.precomputed import PrecomputedDistances
from torchgw.spaces.resolution import pick_evenly
from torchgw.spaces.scale import fill_unreachable, largest_of
from torchgw.spaces.shortest_paths import DijkstraDistances, shortest_paths
from torchgw.spaces.subspace import subspace
from torchgw.types import Array, DistanceProvider, is_graph, is_metric, is_provider, is_symmetric

ON_GRAPHS = ("landmark", "checked", "dijkstra", "precomputed")

OnDevice: TypeAlias = Callable[[Any, str], DeviceGraph | None]
ProviderPair: TypeAlias = "tuple[DistanceProvider, DistanceProvider]"
GraphReports: TypeAlias = "tuple[GraphReport | None, GraphReport | None]"


class InputSpace(NamedTuple):
    """A validated space and the kind of distances that it gets.

    name : the argument, for messages.
    data : float64 points (N, D), a distance matrix (N, N), a CSR graph (N, N) of
        edge lengths, or a provider.
    kind : "matrix", "provider", "adjacency" (a provider of the library's),
        "euclidean", or of shortest paths "landmark", "dijkstra", "precomputed",
        "checked": landmarks where they are accurate, all pairs elsewhere.
    kept : of a graph, the nodes (n,) that are points of the space; paths lead
        through the others too. None for all.
    """

    name: str
    data: Any
    kind: str
    kept: Array | None = None

    @property
    def size(self) -> int:
        if self.kept is not None:
            return len(self.kept)
        return int(self.data.size if is_provider(self.data) else self.data.shape[0])

    @property
    def is_points(self) -> bool:
        """Whether the space was given as points."""
        return self.kind != "matrix" and not is_provider(self.data) and not is_graph(self.data)

    @property
    def edges(self) -> Any:
        """The CSR graph (N, N) of edge lengths between all points that the space was given as, else None."""
        return self.data if is_graph(self.data) and self.kept is None else None

    @property
    def symmetric(self) -> bool:
        """Whether distances are the same in both directions."""
        return is_symmetric(self.data)

    @property
    def metric(self) -> bool:
        """Whether distances say which points are near each other."""
        return is_metric(self.data)

    @property
    def sparse(self) -> bool:
        """Whether the space is a matrix of few entries, taken as they are."""
        return isinstance(self.data, AdjacencyDistances) and self.data.sparse

    @property
    def has_factors(self) -> bool:
        """Whether the distances have factors, D = F diag(s) F^T."""
        return self.kind == "landmark" or (self.kind == "provider" and self.data.factors() is not None)


def make_providers(
    spaces: Sequence[InputSpace], options: SpaceOptions, there: OnDevice | None = None
) -> tuple[ProviderPair, GraphReports]:
    """A provider for each of two spaces, scaled as asked, and how their neighbour graphs were made.

    Graphs are searched where ``there`` brings them, or on the CPU, where long
    landmark searches of two spaces run side by side.
    """
    both = there is None and all(space.kind == "landmark" and space.kept is None for space in spaces)
    if both and is_worthwhile(spaces[0].size, spaces[1].size, options.n_landmarks):
        made, graphs = _two_landmark_spaces(spaces, options)
    else:
        (x, y), (report_x, report_y) = make_many_providers(spaces, options, there)
        made, graphs = (x, y), (report_x, report_y)
    return apply_scale(made, options.scale), graphs


def make_many_providers(
    spaces: Sequence[InputSpace], options: SpaceOptions, there: OnDevice | None = None
) -> tuple[list[DistanceProvider], list[GraphReport | None]]:
    """A provider for each of many spaces, divided by its own largest known distance, and its neighbour graph's report.

    All-pairs searches of all spaces share one pool of processes where that pays.
    ``there`` brings points and graphs to a device, which builds and searches one
    while the host goes on to the next.
    """
    made, reports = dict[int, DistanceProvider](), dict[int, GraphReport | None]()
    all_pairs, begun = dict[int, Any](), dict[int, DeviceSearch]()
    for i, space in enumerate(spaces):
        searched = space.kind in DEVICE_KINDS and space.kept is None and space.size > 1
        bring = there if there is not None and searched else lambda data, kind: None
        brought = bring(space.data, space.kind) if space.is_points and options.k is None else None
        graph, reports[i] = None, None
        if brought is None and space.kind in ON_GRAPHS:
            graph, reports[i] = neighbour_graph_of(space, options)
            brought = bring(graph, space.kind)
        if brought is not None:
            begun[i] = DeviceSearch(space.name, space.kind, brought, options.n_landmarks)
        elif (provider := _make_provider_unless_all_pairs(space, graph, options)) is None:
            all_pairs[i] = graph
        else:
            made[i] = provider
    kept = {i: np.arange(graph.shape[0]) if (own := spaces[i].kept) is None else own for i, graph in all_pairs.items()}
    for i, rows in zip(kept, shortest_paths([(all_pairs[i], nodes) for i, nodes in kept.items()]), strict=True):
        made[i] = PrecomputedDistances(rows if spaces[i].kept is None else rows[:, kept[i]], name=spaces[i].name)
    answers = dict(zip(begun, finish_searches(list(begun.values())), strict=True))
    begun.clear()  # and the memory of those that the CPU is to build
    for i, answer in answers.items():
        if answer is not None:
            made[i], reports[i] = answer[0], answer[1] or reports[i]
    left = [i for i, answer in answers.items() if answer is None]
    if left and there is not None:
        again = make_many_providers(
            [spaces[i] for i in left], options, lambda data, kind: there(data, kind) if is_graph(data) else None
        )
        made |= zip(left, again[0], strict=True)
        reports |= zip(left, again[1], strict=True)
    return [made[i] for i in range(len(spaces))], [reports[i] for i in range(len(spaces))]


def apply_scale(made: ProviderPair, scale: str | float | tuple[float, float] | None) -> ProviderPair:
    """The same spaces divided by what `SpaceOptions.scale` asks for."""
    if scale is None:
        return made
    if isinstance(scale, str):
        scale = max(largest_of(space) for space in made)
    scales = scale if isinstance(scale, tuple) else (scale, scale)
    for name, space, divisor in zip("XY", made, scales, strict=True):
        ranges.scaled_distances(name, largest_of(space), divisor)
    x, y = (cast(Any, space).with_scale(divisor) for space, divisor in zip(made, scales, strict=True))
    return x, y


def neighbour_graph_of(space: InputSpace, options: SpaceOptions) -> tuple[Any, GraphReport | None]:
    """A validated graph as it is, or the neighbour graph of validated points."""
    return (space.data, None) if is_graph(space.data) else build_graph(space.data, options.k, space.name)


def _two_landmark_spaces(spaces: Sequence[InputSpace], options: SpaceOptions) -> tuple[ProviderPair, GraphReports]:
    """Landmark distances of both spaces. Another process searches the first graph,
    while this one builds and searches the second."""
    x, y = spaces
    with SearchProcess() as aside:
        graph, report_x = neighbour_graph_of(x, options)
        aside.start(graph, options.n_landmarks, storage(x.size))
        graph, report_y = neighbour_graph_of(y, options)
        found = farthest_points(graph, options.n_landmarks, storage(y.size))
        del graph
        second = LandmarkDistances.from_search(*found, name=y.name)
        del found
        first = LandmarkDistances.from_search(*aside.result(), name=x.name)
    return (first, second), (report_x, report_y)


def _make_provider_unless_all_pairs(space: InputSpace, graph: Any, options: SpaceOptions) -> DistanceProvider | None:
    """The provider of one space; None where it takes all pairs of its graph."""
    name, data, kind, kept = space
    if kind == "precomputed":
        return None
    if kind in ("landmark", "checked"):
        searched = farthest_points(graph, options.n_landmarks, storage(space.size), kept)
        factored = LandmarkDistances.from_search(*searched, name=name)
        if kind == "landmark":
            return factored
        every = np.arange(space.size) if kept is None else kept
        sources = pick_evenly(space.size, CHECKED_ROWS)
        rows = torch.from_numpy(shortest_paths([(graph, every[sources.numpy()])])[0][:, every])
        errors = measure_errors(factored, sources, fill_unreachable(rows, factored.scale))
        return factored if is_accurate(factored, name, *errors) else None
    if kind == "dijkstra":
        found = DijkstraDistances(graph, options.cache_rows, name=name)
        return found if kept is None else subspace(found, torch.from_numpy(kept))
    if kind == "euclidean":
        return EuclideanDistances(data, name=name)
    provider: DistanceProvider = PrecomputedDistances.from_checked(data, name) if kind == "matrix" else data
    return provider

"""Shortest-path distances of a graph, searched on demand, row by row, behind a bounded cache."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from torch import Tensor

from torchgw import validate
from torchgw.spaces.cache import RowCache
from torchgw.spaces.paths import fill_unreachable, positive_scale, shortest_paths, sweep, warn_unreachable


class DijkstraDistances:
    """Exact geodesic distances on a graph, one Dijkstra search for each row not in the cache.

    Parameters
    ----------
    graph : SciPy sparse (N, N), symmetric, edge lengths >= 0; explicit zeros are edges of length zero.
    cache_rows : rows kept between calls, at most; memory O(cache_rows N).
    name : what the argument is called in error messages.

    Attributes
    ----------
    largest : the largest known distance, before scaling.
    fixed : whether the scale was set by `with_scale`.

    Raises
    ------
    ValueError, TypeError
        When the graph or the number of rows cannot be used.

    Notes
    -----
    The scale is the largest distance found from 16 farthest points of each component, a lower bound on the diameter
    that is usually attained. The searches run on the CPU, so each call waits for the device to hand over
    its indices. Points without a path are 1.5 x the largest known distance apart.
    """

    stored = False
    fixed = False

    def __init__(self, graph: Any, cache_rows: int = 2000, *, name: str = "graph") -> None:
        # A copy: rows are searched long after this call, when the caller may have changed the graph.
        self._graph = validate.graph(name, graph).copy()
        self.cache = RowCache(validate.integer("cache_rows", cache_rows, least=1))
        largest, disconnected = sweep(self._graph)
        self.scale = self.largest = positive_scale(largest)
        if disconnected:
            warn_unreachable(name)
        self._device, self._dtype = torch.device("cpu"), torch.float64

    @property
    def size(self) -> int:
        return int(self._graph.shape[0])

    @property
    def hit_rate(self) -> float:
        """Share of the rows asked for so far that the cache held."""
        return self.cache.hit_rate

    def to(self, device: torch.device, dtype: torch.dtype) -> DijkstraDistances:
        other = copy(self)
        other._device, other._dtype = device, dtype
        return other

    def with_scale(self, scale: float) -> DijkstraDistances:
        """The same distances divided by ``scale``, a constant."""
        other = copy(self)
        other.scale, other.fixed = validate.real("scale", scale, above=0.0), True
        return other

    def rows(self, index: Tensor) -> Tensor:
        found = self.cache.get(
            index.cpu().numpy(),
            lambda missing: fill_unreachable(shortest_paths([(self._graph, missing)])[0], self.largest),
        )
        return torch.from_numpy(found / self.scale).to(self._device, self._dtype)  # divided while it is float64

    def factors(self) -> tuple[Tensor, Tensor] | None:
        return None

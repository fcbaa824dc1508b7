"""Shortest-path distances of a graph, searched on demand, row by row, behind a bounded cache of rows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchgw import validate
from torchgw.persist.codec import storable
from torchgw.spaces.scale import ScaledDistances, fill_unreachable, positive_scale, warn_unreachable
from torchgw.spaces.shortest_paths import estimate_diameter, shortest_paths
from torchgw.types import Array


@storable
class DijkstraDistances(ScaledDistances):
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

    def __init__(self, graph: Any, cache_rows: int = 2000, *, name: str = "graph") -> None:
        # A copy: rows are searched long after this call, when the caller may have changed the graph.
        self._graph = validate.graph(name, graph).copy()
        self.cache = RowCache(validate.integer("cache_rows", cache_rows, least=1))
        largest, disconnected = estimate_diameter(self._graph)
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
        return self._with(_device=device, _dtype=dtype)

    def _rescale_storage(self, ratio: float) -> DijkstraDistances:
        return self._with()  # rows are divided when they are asked for

    def rows(self, index: Tensor) -> Tensor:
        def search(missing: Array) -> Array:
            return fill_unreachable(shortest_paths([(self._graph, missing)])[0], self.largest)

        found = self.cache.get(index.cpu().numpy(), search)
        return torch.from_numpy(found / self.scale).to(self._device, self._dtype)  # divided while it is float64


@storable
class RowCache:
    """Least-recently-used rows, at most ``capacity`` of them between calls.

    A call may ask for more rows than that: it gets them all, and only the last ``capacity`` stay.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.hits = 0
        self.misses = 0
        self._rows: OrderedDict[int, Array] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def hit_rate(self) -> float:
        """Share of the rows asked for that were there, in [0, 1]; 0 before the first call."""
        return self.hits / max(self.hits + self.misses, 1)

    def get(self, index: Array, compute: Callable[[Array], Array]) -> Array:
        """Rows for ``index`` (M,), repeats allowed; ``compute`` is called once for those not held."""
        if not len(index):
            return compute(index)
        wanted = np.unique(index)
        missing = np.array([i for i in wanted.tolist() if i not in self._rows], dtype=np.int64)
        self.hits += len(index) - len(missing)
        self.misses += len(missing)
        if len(missing):
            # Copies, so that keeping one row does not keep the whole block alive.
            self._rows.update((i, row.copy()) for i, row in zip(missing.tolist(), compute(missing), strict=True))
        for i in wanted.tolist():
            self._rows.move_to_end(i)
        out = np.stack([self._rows[i] for i in index.tolist()])
        while len(self._rows) > self.capacity:
            self._rows.popitem(last=False)
        return out

"""Shortest-path distances of a graph, searched on demand, row by row, behind a bounded cache of rows."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchgw import validate
from torchgw.spaces.scale import ScaledDistances, fill_unreachable, positive_scale, warn_unreachable
from torchgw.spaces.shortest_paths import estimate_diameter, shortest_paths
from torchgw.types import Array


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
        self.capacity = validate.integer("cache_rows", cache_rows, least=1)
        self.cache = OrderedDict[int, Array]()  # the rows found last, the last one used at the end
        largest, disconnected = estimate_diameter(self._graph)
        self.scale = self.largest = positive_scale(largest)
        if disconnected:
            warn_unreachable(name)
        self._device, self._dtype = torch.device("cpu"), torch.float64

    @property
    def size(self) -> int:
        return int(self._graph.shape[0])

    def to(self, device: torch.device, dtype: torch.dtype) -> DijkstraDistances:
        return self._with(_device=device, _dtype=dtype)

    def _rescale_storage(self, ratio: float) -> DijkstraDistances:
        return self._with()  # rows are divided when they are asked for

    def rows(self, index: Tensor) -> Tensor:
        wanted, place = np.unique(index.cpu().numpy(), return_inverse=True)
        missing = np.array([i for i in wanted.tolist() if i not in self.cache], dtype=np.int64)
        if len(missing):
            # Copies, so that keeping one row does not keep the whole block alive.
            found = shortest_paths([(self._graph, missing)])[0]
            self.cache.update(
                (i, fill_unreachable(row.copy(), self.largest)) for i, row in zip(missing.tolist(), found, strict=True)
            )
        for i in wanted.tolist():
            self.cache.move_to_end(i)
        rows = np.array([self.cache[i] for i in wanted.tolist()]).reshape(-1, self.size)[place] / self.scale
        while len(self.cache) > self.capacity:  # a call may ask for more rows, and gets them all
            self.cache.popitem(last=False)
        return torch.from_numpy(rows).to(self._device, self._dtype)  # divided while it is float64

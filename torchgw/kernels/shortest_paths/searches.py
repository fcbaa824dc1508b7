"""What a family of shortest-path kernels does."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor


class Searches(NamedTuple):
    """Searches in a graph on a device; see `torchgw.kernels.shortest_paths.reference`.

    paths : distances from some points.
    cell_distances : those between the centres of cells.
    spread_labels : from the nearest of some centres, by one edge more.
    farthest : points that are far from each other.
    """

    paths: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    cell_distances: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, int], Tensor]
    spread_labels: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    farthest: Callable[[Tensor, int], Tensor]

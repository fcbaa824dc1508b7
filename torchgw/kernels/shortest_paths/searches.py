"""What a family of shortest-path kernels does."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor


class Searches(NamedTuple):
    """Searches in a graph on a device; see `torchgw.kernels.shortest_paths.reference`.

    paths : distances from some points.
    search : those from candidates.
    farthest : landmarks in turn.
    peaks : the next candidates.
    """

    paths: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    search: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int], None]
    farthest: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], None]
    peaks: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

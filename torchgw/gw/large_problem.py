"""What a large solve works on: two spaces of many points, their masses, and how to solve."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchgw.gw.cells import CellSpace, Side
from torchgw.kernels.kernel import Kernel
from torchgw.kernels.softmin_tiles import TileKernel
from torchgw.kernels.tiles import TILE
from torchgw.options import GWOptions
from torchgw.spaces.hierarchy import Cells, bisect
from torchgw.types import Callback, DistanceProvider

STORED_CELLS = 4096


@dataclass(frozen=True)
class Kernels:
    """The implementations that a large solve uses: of stored scores on few cells, of products, of kept tiles."""

    stored: Kernel
    streamed: Kernel
    tiled: TileKernel


@dataclass(frozen=True)
class Task:
    """What a solve without stored plans is asked for.

    ``masses`` are float64, of sum one, on the device to use; ``exact`` says that all distances of a space may be
    computed where it has no factors; ``init`` is a plan (N, K), or matching pairs (m, 2) of integers, or None.
    """

    spaces: tuple[DistanceProvider, DistanceProvider]
    masses: tuple[Tensor, Tensor]
    epsilon: float
    exact: bool
    init: Tensor | None
    kernels: Kernels
    options: GWOptions
    generator: torch.Generator
    callback: Callback | None


@dataclass(frozen=True)
class Large:
    """Two spaces of many points, masses within, and how to solve. ``exact`` says that all distances of a space may be
    computed where it has no factors."""

    x: Side
    y: Side
    epsilon: float
    kernels: Kernels
    options: GWOptions
    generator: torch.Generator
    exact: bool

    @property
    def p(self) -> Tensor:
        return self.x.mass

    @property
    def q(self) -> Tensor:
        return self.y.mass

    @property
    def tolerance(self) -> float:
        """Of the inner solves: a tenth of what the marginals may be off by, or what the options ask for."""
        return min(self.options.sinkhorn.tol, self.options.ladder.marginal_tol / 10)


def cells_of(large: Large, side: Side, features: Tensor, count: int) -> CellSpace:
    """At least ``count`` cells by the features (N, d), or every point where that is more than two thirds of them."""
    n = len(features)
    if 3 * count > 2 * n:
        cells = Cells(bisect(features, -(-n // TILE), TILE).rank, n)
    else:
        hierarchy = bisect(features, count)
        cells = hierarchy.cells(hierarchy.level(count))
    return side.seen_as(cells, matrix=cells.count <= STORED_CELLS)

"""What a large solve works on: two spaces of many points, their masses, and how to solve."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling
from torchgw.kernels.kernel import Kernel
from torchgw.kernels.softmin_tiles import TileKernel
from torchgw.kernels.tiles import TILE
from torchgw.objective.linearise import moments_of, weights_of
from torchgw.objective.model import Model
from torchgw.objective.sampled import Control
from torchgw.options import GWOptions
from torchgw.persist.watch import Watch
from torchgw.search.coarsen import CellSpace, Side, cost_of_cells, cost_of_product, under
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.spaces.hierarchy import Cells, bisect
from torchgw.spaces.scale import unit_of
from torchgw.types import Coupling, DistanceProvider

STORED_CELLS = 4096


@dataclass(frozen=True)
class Kernels:
    """The implementations that a large solve uses: of stored scores on few cells, of products, of kept tiles."""

    stored: Kernel
    streamed: Kernel
    tiled: TileKernel


@dataclass(frozen=True)
class Task:
    """What a solve is asked for.

    ``model`` is on the device to use; ``exact`` says that the exact gradient runs where a plan is stored, and that all
    distances of a space may be computed where it has no factors; ``init`` is a plan (N, K), or matching pairs (m, 2) of
    integers, or None; ``watch`` follows the solve. ``tol``, where it is given, is what the fixed point is solved to in
    the end.
    """

    spaces: tuple[DistanceProvider, DistanceProvider]
    model: Model
    epsilon: float
    exact: bool
    init: Tensor | None
    kernels: Kernels
    options: GWOptions
    generator: torch.Generator
    watch: Watch
    tol: float | None = None

    @property
    def unit(self) -> float:
        """See `torchgw.spaces.traced.unit_of`."""
        return unit_of(self.spaces)


@dataclass(frozen=True)
class Large:
    """Two spaces of many points, masses within, and how to solve. ``exact`` says that all distances of a space may be
    computed where it has no factors; ``unit`` is the largest squared distance."""

    x: Side
    y: Side
    model: Model
    kernels: Kernels
    options: GWOptions
    generator: torch.Generator
    exact: bool
    unit: float = 1.0

    @property
    def epsilon(self) -> float:
        return self.model.epsilon

    @property
    def p(self) -> Tensor:
        return self.x.mass

    @property
    def q(self) -> Tensor:
        return self.y.mass

    @property
    def spaces(self) -> tuple[DistanceProvider, DistanceProvider]:
        return self.x.space, self.y.space

    @property
    def controls(self) -> tuple[Control, Control]:
        return self.x.control, self.y.control

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
        groups = large.model.groups
        if groups is not None:
            cells = cells.split(groups[0 if side is large.x else 1])
    return side.seen_as(cells, matrix=cells.count <= STORED_CELLS)


def cost_on_points(large: Large, coupling: Coupling, x: CellSpace, y: CellSpace) -> FactoredCost:
    """The cost of the whole objective on all points, of a plan between cells; sampled where not both have factors."""
    model, sides = large.model, (large.x, large.y)
    small = model.on_cells(x.cells, y.cells)
    rows, columns = small.marginals_of(coupling)
    mass = rows.sum()
    if not model.fixed:
        sides = under(large.x, x.cells, rows / mass), under(large.y, y.cells, columns / mass)
    if large.x.exact and large.y.exact:
        cost = cost_of_product(x.means.T @ coupling.apply(y.means, 1) / mass.to(x.means.dtype), *sides)
    else:
        assert isinstance(coupling, DenseCoupling), "gradients are sampled from plans that are stored"
        cost = cost_of_cells(coupling.plan, x, y, sides, large.options.sampling.n_anchors, large.generator)
    if model.plain:
        return cost
    linear, moments = model.linear(cost.U.dtype), None
    if model.marginals.free_mass:
        cost = FactoredCost.weighted_sum([cost], [mass])
        cells = model.between(cost, x.cells, y.cells)
        assert cells is not None
        moments = moments_of(small, cells, small.linear(cost.U.dtype), coupling, rows, columns)
    return weights_of(small, moments).applied(cost, linear)

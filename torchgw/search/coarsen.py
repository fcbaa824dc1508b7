"""A space at a coarser resolution: cells of points, each replaced by its mean or its most central point.

A mean of signed factors is again a point of a factored space, and any linear function of the factors integrates over a
cell without error. So a problem on cell means differs from the whole one only by what is curved within a cell. Spaces
without factors are represented by the points nearest to the means of their distances to landmarks, and their gradient
on all points is sampled, with the landmarks' factors as control variates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchgw.kernels.blocks import parts
from torchgw.kernels.sampling import draw
from torchgw.kernels.sums import add_by_label
from torchgw.objective.exact import assemble_factored_cost, factored_mean_squares
from torchgw.objective.sampled import Anchors, Control, apply_control, landmark_control, sampled_cost
from torchgw.persist.codec import storable
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.runtime.ranks import Ranks, ranks_of
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.spaces import FactoredDistances, PrecomputedDistances
from torchgw.spaces.hierarchy import Cells
from torchgw.types import Coupling, DistanceProvider


@dataclass(frozen=True)
class ControlledSpace:
    """A space of N points with masses and factors near its distances.

    space : in the loop's dtype.
    mass : (N,), float64, of sum one.
    control : its own factors (N, r) where it has any, else those of landmarks; of ranks that share it, their shares.
    exact : whether they are its own.
    """

    space: DistanceProvider
    mass: Tensor
    control: Control
    exact: bool

    @classmethod
    def of(
        cls, space: DistanceProvider, mass: Tensor, dtype: torch.dtype, n_control: int, generator: torch.Generator
    ) -> ControlledSpace:
        """From a space that serves ``dtype``."""
        factors, narrow = space.factors(), mass.to(dtype)
        if factors is None:
            control = landmark_control(space, narrow, max(n_control, 2), generator)
        else:
            control = Control(*factors, factored_mean_squares(*factors, mass, ranks_of(space)))
        if control.F.shape[1] == 0:  # all points coincide
            control = Control(narrow.new_zeros(len(control.F), 1), narrow.new_ones(1), control.mean_squares)
        return cls(space, mass, control, factors is not None)

    @property
    def ranks(self) -> Ranks:
        """Those that share the space."""
        return ranks_of(self.space)

    def coarsen(self, cells: Cells, matrix: bool) -> CellSpace:
        """The space of the cells; without factors their distance matrix is stored where ``matrix`` is set."""
        F, signs, _ = self.control
        means, centres = _means_and_centres(cells, F, self.mass, self.ranks)
        space: DistanceProvider | None = None
        if self.exact:
            space = FactoredDistances.of(means, signs, self.space.scale)
        elif matrix:
            D = torch.cat([self.space.rows(part)[:, centres] for part in parts(centres, len(F), 2**26)])
            space = PrecomputedDistances.stored_matrix((D + D.T) / 2, self.space.scale)
        return CellSpace(cells, space, centres, means)


@as_cuda_graph()
def _means_and_centres(cells: Cells, F: Tensor, mass: Tensor, ranks: Ranks) -> tuple[Tensor, Tensor]:
    """The mean (n, r) of the factors of each cell, and the point (n,) nearest to it."""
    means = cells.means(F, mass, ranks)
    return means, cells.nearest(F, means, ranks)


@storable
@dataclass(frozen=True)
class CellSpace:
    """The space of n cells.

    cells : which cell each point is in.
    space : distances between cells; None where they are neither factored nor stored.
    centres : the most central point of each cell (n,), int64.
    means : of the factors of its points (n, r).
    """

    cells: Cells
    space: DistanceProvider | None
    centres: Tensor
    means: Tensor


@dataclass(frozen=True)
class _CentrePlan:
    """A plan (n, n') between cells as a plan between all points, carried by the cells' centres.

    x, y : the cells of both spaces.
    plan : (n, n').
    """

    x: CellSpace
    y: CellSpace
    plan: Tensor

    def apply(self, V: Tensor, axis: int) -> Tensor:
        assert axis == 1
        found = V.new_zeros(len(self.x.cells.label), V.shape[1])
        return add_by_label(found, self.x.centres, self.plan @ V[self.y.centres])


@as_cuda_graph()
def cost_of_cells(
    coupling: Coupling, mass: Tensor, means: tuple[Tensor, Tensor], controls: tuple[Control, Control]
) -> FactoredCost:
    """The exact linearised cost on all points of a plan between cells, per unit of its mass (), for spaces whose own
    factors, of which cells have these means, are the controls."""
    (x, y), ((F, s, a), (G, t, b)) = means, controls
    return assemble_factored_cost((F, s), (G, t), x.T @ coupling.apply(y, 1) / mass.to(x.dtype), a, b)


def with_mean_squares(side: ControlledSpace, cells: Cells, sums: Tensor) -> ControlledSpace:
    """The side with the mean squares of a plan whose cells have the masses ``sums`` (n,) instead of their own."""
    own = cells.sums(side.mass).clamp_min(torch.finfo(sums.dtype).tiny)
    mass = side.mass * (sums / own)[cells.label]
    return replace(side, control=side.control.with_mass(mass, side.ranks))


def sampled_cost_of_cells(
    plan: Tensor,
    x: CellSpace,
    y: CellSpace,
    sides: tuple[ControlledSpace, ControlledSpace],
    n_anchors: int,
    generator: torch.Generator,
) -> FactoredCost:
    """The linearised cost on all points of a plan (n, n') between cells, sampled between their centres.

    Per unit of the plan's mass.
    """
    first, second = sides
    plan = (plan / plan.sum()).to(x.means.dtype)
    i = draw(plan.sum(1), n_anchors, generator)
    j = draw(plan[i], 1, generator)[:, 0]
    anchors = Anchors(x.centres[i], y.centres[j])
    cost = sampled_cost(first.space, second.space, anchors)
    controls = first.control, second.control
    return apply_control(cost, anchors, _CentrePlan(x, y, plan), *controls).cost(controls)

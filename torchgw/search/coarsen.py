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
from torchgw.objective.exact import assemble_factored_cost, factored_mean_squares
from torchgw.objective.sampled import Anchors, Control, apply_control, landmark_control, sampled_cost
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.runtime.ranks import Ranks, ranks_of
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.spaces import FactoredDistances, PrecomputedDistances
from torchgw.spaces.coarsening import Cells, Coarsening
from torchgw.types import Coupling, DistanceProvider

STORED_CELLS = 4096  # of which distances and plans are stored


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

    def coarsen(self, cells: Cells) -> Coarsening:
        """The coarsening to these cells, with means of the factors where the space has its own; elsewhere with medoids,
        and the distances between these where they are few.

        Unlike in `Coarsening.means_suffice` nothing is measured: a linearised cost is exact with means of factors,
        whatever cells lose of the variance of distances, and without factors all N^2 distances would be averaged.
        """
        F, signs, _ = self.control
        means, medoids = cells.means_and_medoids(F, self.mass, self.ranks)
        space: DistanceProvider | None = None
        if self.exact:
            space = FactoredDistances.of(means, signs, self.space.scale)
        elif cells.count <= STORED_CELLS:
            D = torch.cat([self.space.rows(part)[:, medoids] for part in parts(medoids, len(F), 2**26)])
            space = PrecomputedDistances.stored_matrix((D + D.T) / 2, self.space.scale)
        return Coarsening(cells.label, cells.count, cells.sums(self.mass), medoids, means, space)


@as_cuda_graph()
def cost_of_cells(
    coupling: Coupling, mass: Tensor, means: tuple[Tensor, Tensor], controls: tuple[Control, Control]
) -> FactoredCost:
    """The exact linearised cost on all points of a plan between cells, per unit of its mass (), for spaces whose own
    factors, of which cells have these means, are the controls."""
    (x, y), ((F, s, a), (G, t, b)) = means, controls
    return assemble_factored_cost((F, s), (G, t), x.T @ coupling.apply(y, 1) / mass.to(x.dtype), a, b)


def with_mean_squares(side: ControlledSpace, cells: Coarsening, sums: Tensor) -> ControlledSpace:
    """The side with the mean squares of a plan whose cells have the masses ``sums`` (n,) instead of their own."""
    mass = side.mass * (sums / cells.mass.clamp_min(torch.finfo(sums.dtype).tiny))[cells.label]
    return replace(side, control=side.control.with_mass(mass, side.ranks))


def sampled_cost_of_cells(
    plan: Tensor,
    x: Coarsening,
    y: Coarsening,
    sides: tuple[ControlledSpace, ControlledSpace],
    n_anchors: int,
    generator: torch.Generator,
) -> FactoredCost:
    """The linearised cost on all points of a plan (n, n') between cells, sampled between their medoids.

    Per unit of the plan's mass.
    """
    first, second = sides
    plan = (plan / plan.sum()).to(x.features.dtype)
    i = draw(plan.sum(1), n_anchors, generator)
    j = draw(plan[i], 1, generator)[:, 0]
    anchors, controls = Anchors(x.medoids[i], y.medoids[j]), (first.control, second.control)
    expected = controls[0].F[x.medoids].T @ (plan @ controls[1].F[y.medoids])
    return apply_control(sampled_cost(first.space, second.space, anchors), anchors, expected, *controls).cost(controls)

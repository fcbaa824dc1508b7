"""A streamed problem between some thousand cells of its points: made, solved like any small one, and seen from there.

cells of the factors of both spaces -> the stored problem between them -> its plan -> the cost on all points
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling
from torchgw.diagnostics.evidence import Basin
from torchgw.kernels.precision import loop_dtype
from torchgw.kernels.tiles import TILE, inverse_permutation
from torchgw.objective.exact import ExactGradient
from torchgw.objective.linearise import gradient_of, moments_of, weights_of
from torchgw.objective.sampled import Control
from torchgw.runtime.threads import threads_for
from torchgw.search.basins import list_basins
from torchgw.search.coarsen import ControlledSpace, cost_of_cells, sampled_cost_of_cells, with_mean_squares
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.solvers.problem import Problem, StoredProblem
from torchgw.solvers.solution import Solution
from torchgw.spaces.coarsening import Cells, Coarsening, bisect
from torchgw.strategies.dense import find_candidates, refine_candidates
from torchgw.types import Coupling

FEWEST = 16


@dataclass(frozen=True, kw_only=True)
class StreamedProblem(Problem):
    """A problem whose plans between all points are not stored; its spaces serve the loop's dtype.

    x, y : the spaces with their masses and factors, their own or those of landmarks.
    cells : those that the search and the first descent are between.
    """

    x: ControlledSpace
    y: ControlledSpace
    cells: tuple[Coarsening, Coarsening]

    @property
    def controls(self) -> tuple[Control, Control]:
        return self.x.control, self.y.control

    @property
    def has_factors(self) -> bool:
        """Whether both spaces have factors of their own."""
        return self.x.exact and self.y.exact


def make_streamed_problem(problem: Problem) -> StreamedProblem:
    """The problem with factors and first cells."""
    options, dtype = problem.options, loop_dtype(problem.options.mixed_precision)
    x, y = (
        ControlledSpace.of(space.to(mass.device, dtype), mass, dtype, options.sampling.n_control, problem.generator)
        for space, mass in zip(problem.spaces, problem.model.masses, strict=True)
    )
    # Cells are cut by the factors of the distances, and by those of the linear cost.
    linear = problem.model.linear(dtype)
    features = (x.control.F, y.control.F)
    if linear is not None:
        features = torch.cat((features[0], linear.U), 1), torch.cat((features[1], linear.V), 1)
    # As cells are halved, at least two points for each.
    counts = [
        min(options.ladder.n_cells, max(1 << max(len(own.mass) // 2, 1).bit_length() - 1, FEWEST)) for own in (x, y)
    ]
    first, second = (make_cells(problem, *side) for side in zip((x, y), (0, 1), features, counts, strict=True))
    kernels = problem.kernels.share(x.ranks)
    return StreamedProblem.of(problem, spaces=(x.space, y.space), kernels=kernels, x=x, y=y, cells=(first, second))


def make_cells(problem: Problem, side: ControlledSpace, axis: int, features: Tensor, count: int) -> Coarsening:
    """At least ``count`` cells of the source (axis 0) or the target by the features (N, d), the ranks' shares, or every
    point where that is more than two thirds of them."""
    n, backend, ranks = len(side.mass), problem.kernels.backend, side.ranks
    if 3 * count > 2 * n:
        order = bisect(features, -(-n // TILE), TILE, backend, n, ranks).order
        return side.coarsen(Cells(inverse_permutation(order), n))
    cells, groups = bisect(features, count, 1, backend, n, ranks).cells, problem.model.groups
    if groups is not None:
        group = groups[axis]
        label = torch.unique(cells.label * (group.max() + 1) + group, return_inverse=True)[1]
        cells = Cells(label, int(label.max()) + 1)
    return side.coarsen(cells)


def solve_on_cells(problem: StreamedProblem) -> tuple[Solution, tuple[Basin, ...], dict[str, float]]:
    """Search and solve between the first cells: the solution, the basins of the search, see `lift_basins`, and the
    seconds of both."""
    began, (x, y) = time.perf_counter(), problem.cells
    small = make_cell_problem(problem, x, y)

    def search() -> tuple[Solution, tuple[Basin, ...], float]:
        with threads_for(x.count * y.count):
            candidates, reference = find_candidates(small)
            searched = time.perf_counter()
            solution, candidates = refine_candidates(small, candidates)
        return solution, () if reference is None else list_basins(small, candidates, reference), searched - began

    solution, basins, searched = problem.run_on_first(search)
    return solution, basins, {"search": searched, "solve": time.perf_counter() - began - searched}


def lift_basins(problem: StreamedProblem, basins: tuple[Basin, ...]) -> tuple[Basin, ...]:
    """Basins of the first cells, as matchings of all points."""
    x, y = problem.cells
    return tuple(
        replace(basin, matching=y.medoids[basin.matching[x.label]], shift=basin.shift[x.label]) for basin in basins
    )


def make_cell_problem(problem: StreamedProblem, x: Coarsening, y: Coarsening) -> StoredProblem:
    """The problem between cells, stored."""
    assert x.space is not None
    assert y.space is not None
    model, dtype = problem.model.coarsen(x, y), problem.x.control.F.dtype
    gradient = gradient_of(model, ExactGradient(x.space, y.space, model.p.to(dtype), model.q.to(dtype)))
    return StoredProblem.of(
        problem,
        spaces=(x.space, y.space),
        model=model,
        exact=True,
        init=coarsen_init(problem.init, x, y),
        tol=None,
        gradient=gradient,
    )


def coarsen_init(init: Tensor | None, x: Coarsening, y: Coarsening) -> Tensor | None:
    """The start plan (N, K) or pairs (m, 2) coarsened to cells."""
    if init is None:
        return None
    if not init.is_floating_point():
        return torch.stack((x.label[init[:, 0]], y.label[init[:, 1]]), 1)
    return y.sums(x.sums(init).T).T


def linearise_on_points(problem: StreamedProblem, coupling: Coupling, x: Coarsening, y: Coarsening) -> FactoredCost:
    """The cost of the whole objective on all points, of a plan between cells; sampled where not both have factors."""
    model, sides = problem.model, (problem.x, problem.y)
    small = model.coarsen(x, y)
    rows, columns = small.marginals_of(coupling)
    mass = rows.sum()
    if not model.has_hard_marginals:
        sides = with_mean_squares(sides[0], x, rows / mass), with_mean_squares(sides[1], y, columns / mass)
    if problem.has_factors:
        cost = cost_of_cells(coupling, mass, (x.features, y.features), (sides[0].control, sides[1].control))
    else:
        assert isinstance(coupling, DenseCoupling), "gradients are sampled from plans that are stored"
        cost = sampled_cost_of_cells(coupling.plan, x, y, sides, problem.options.sampling.n_anchors, problem.generator)
    if model.is_standard:
        return cost
    linear, moments = model.linear(cost.U.dtype), None
    if model.marginals.free_mass:
        cost = FactoredCost.weighted_sum([cost], [mass])
        cells = model.average_cost(cost, x, y)
        assert cells is not None
        moments = moments_of(small, cells, small.linear(cost.U.dtype), coupling, rows, columns)
    return weights_of(small, moments).combine_costs(cost, linear)

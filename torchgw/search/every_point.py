"""Without entropy a search needs sharp plans, and these need no landmarks: where points are few, starts are annealed on
all of them, as one batch; where they are more, between cells of them.

    cells -> starts annealed between them -> plans that are constant on pairs of cells -> conditional gradients

The objective of such a plan is that of a plan between cells, with the means of their distances: nothing is lost by
standing for others, as it is with landmarks, and the plan is sharp enough for conditional gradients to begin from. What
annealing on all points forgets on its way, a basin that is narrow beside few far points, cells keep.

The lowest ends on all points are those of `torchgw.strategies.dense.solve_contenders`: one step from each plan, all of
them from those that are then about as low, and of the lowest, annealed further, from its potentials; between few points
also from the product plan.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from torchgw.diagnostics.status import History
from torchgw.objective.exact import ExactGradient, mean_squares, product
from torchgw.options import CoarseOptions
from torchgw.persist.watch import Watch
from torchgw.runtime.threads import threads_for
from torchgw.search.anneal import CoarseBasin, LandmarkProblem, basins_of, landmark_basins, stands_out
from torchgw.search.candidate import Candidate
from torchgw.search.crossing import CROSSED, crossed_basins
from torchgw.search.full_starts import FEW_PAIRS
from torchgw.search.lift import lift
from torchgw.search.rung import lifted
from torchgw.solvers.frank_wolfe import frank_wolfe
from torchgw.solvers.problem import StoredProblem
from torchgw.spaces import PrecomputedDistances
from torchgw.spaces.hierarchy import Cells, bisect
from torchgw.spaces.quantisation import Landmarks
from torchgw.types import DistanceProvider

KEPT = 8
MOST_OF_A_SPACE = 4  # times the pairs that are few
STARTS_OF_FEW = 20  # times as many as for landmarks, at most
PAIRS_AT_ONCE = 30_000  # of all starts: a batch of fewer takes as long
CELLS, CELLS_KEPT = 128, 4
CELLS_PAIRS = 16_000_000  # 31 points to a cell: beyond, nothing was tried
# Of the variance of distances, within cells: of clouds in R^3 4 %, in R^10 13 to 35 %, in R^20 43 %, from where the
# right basin is lost now and then (measured), in R^50 and R^200 50 and 60 %; of hop counts up to 31 %.
MOST_LOST = 1 / 3
DOUBT = 1.25  # of the lowest energy between cells: others within it leave a doubt, and are crossed
ROUGH, STEPS = 1e-4, 40  # of conditional gradients between cells: gap over value, and how many
PROBES, ROUNDS = 128, 10  # random sums of distances that cells are alike in; rounds of k-means


def has_cells(problem: StoredProblem) -> bool:
    """Whether cells can stand for the points: without entropy, not too many, and with all distances at hand."""
    given = all(space.stored or space.factors() is not None for space in problem.spaces)
    few = len(problem.p) * len(problem.q) <= CELLS_PAIRS
    return few and problem.sharp and problem.exact and problem.model.plain and given


def is_few(problem: StoredProblem) -> bool:
    """Whether the search may take every point for a landmark: pairs of points are few, and so are those of a space."""
    n, k = len(problem.p), len(problem.q)
    return problem.sharp and problem.exact and n * k <= FEW_PAIRS and max(n, k) ** 2 <= MOST_OF_A_SPACE * FEW_PAIRS


def on_every_point(problem: StoredProblem, coarse: CoarseOptions, origin: str) -> list[Candidate]:
    """The distinct optima that starts end in, with their plans, the lowest first."""
    x, y = (_landmarks(space, mass) for space, mass in zip(problem.spaces, problem.masses, strict=True))
    between = LandmarkProblem.of(x, y, problem.model)
    most = PAIRS_AT_ONCE // (len(x.mass) * len(y.mass))
    count = min(max(coarse.n_starts // 2, most), STARTS_OF_FEW * coarse.n_starts)
    basins = landmark_basins(between, 0.0, count, KEPT, problem.generator)
    if not math.isfinite(basins[0].energy):
        raise FloatingPointError("no start has a finite objective")
    return [_candidate(problem, basin, origin) for basin in basins]


def on_cells(problem: StoredProblem, coarse: CoarseOptions, origin: str) -> list[Candidate]:
    """The distinct optima that starts end in between cells, as plans of all points, the lowest first; none where cells
    lose so much of the variance of distances that they say little of the points."""
    sides = list(zip(problem.spaces, problem.masses, strict=True))
    (x, in_x), (y, in_y) = (cells_of(space, mass, CELLS, problem.generator) for space, mass in sides)
    losses = [_within(space, mass, cells) for (space, mass), cells in zip(sides, (x, y), strict=True)]
    if any(loss > MOST_LOST * (loss + _variance(cells)) for loss, cells in zip(losses, (x, y), strict=True)):
        return []
    between = LandmarkProblem.of(x, y, problem.model)
    count = coarse.n_starts // 2
    with threads_for(count * in_x.count * in_y.count):
        basins = landmark_basins(between, 0.0, count, KEPT, problem.generator)
    if not math.isfinite(basins[0].energy):
        raise FloatingPointError("no start has a finite objective")
    watch = problem.watch.aside()
    if len(basins) > 1 and not stands_out([basin.energy for basin in basins], DOUBT):
        plans = torch.stack([basin.plan for basin in basins])
        basins += crossed_basins(between, plans, 0.0, KEPT, watch)
    basins = _distinct([*basins, _from_product(between, basins[0], watch)])
    (p, q), found = problem.masses, []
    for basin in basins[:CELLS_KEPT]:
        start, matching = lift(basin, problem.model, None)
        plan = (basin.plan / (basin.plan.sum(1, keepdim=True) * basin.plan.sum(0)))[in_x.label][:, in_y.label]
        start = replace(start, plan=plan.mul_(p[:, None]).mul_(q))
        energy = max(basin.energy + sum(losses), 0.0)
        came = origin if basin.count else CROSSED
        found.append(Candidate(start, matching, energy, basin.count, "full", True, origin=came, annealed=True))
    return found


def _from_product(between: LandmarkProblem, like: CoarseBasin, watch: Watch) -> CoarseBasin:
    """Where conditional gradients go from the product plan between cells, which annealing forgets beside few far ones;
    with the potentials of a basin ``like`` it."""
    p, q = (side.mass.double() / side.mass.double().sum() for side in (between.x, between.y))
    x, y = (PrecomputedDistances.stored_matrix(side.distances.double(), 1.0) for side in (between.x, between.y))
    gradient, nowhere = ExactGradient(x, y, p, q), torch.zeros_like(q)
    end, _ = frank_wolfe(gradient, p[:, None] * q, nowhere, p, q, ROUGH, 0.0, STEPS, History(), watch)
    return replace(like, plan=end.plan.to(like.plan), energy=end.value, count=1)


def _distinct(basins: list[CoarseBasin]) -> list[CoarseBasin]:
    """Those whose plans are apart, the lowest first; counts of those merged are added."""
    energies = basins[0].plan.new_tensor([basin.energy for basin in basins])
    groups = basins_of(torch.stack([basin.plan for basin in basins]), energies, KEPT)
    return [replace(basins[group[0]], count=sum(basins[i].count for i in group)) for group in groups]


def cells_of(space: DistanceProvider, mass: Tensor, count: int, generator: torch.Generator) -> tuple[Landmarks, Cells]:
    """About ``count`` parts of a space (N,) whose points have the others at like distances, and the means of these.

    k-means of the columns of D, from halves of halves; of many points in random sums of them, which keep what is far.
    O(N^2) for stored distances, O(N r) for factors.
    """
    n, share = len(mass), mass / mass.sum()
    probe = torch.diag(share.sqrt())
    if n > PROBES:
        probe = torch.randn(n, PROBES, generator=generator, device=mass.device, dtype=mass.dtype)
        probe *= (share / PROBES).sqrt()[:, None]
    looks = product(space, probe)
    looks -= share @ looks  # products lose the digits of what all have
    present = torch.nonzero(mass > 0)[:, 0]
    points, weight = looks[present], mass[present]
    halves = bisect(points, count)
    cells = halves.cells(len(halves.levels) - 1)
    for _ in range(ROUNDS):
        nearest = _distances(points, cells.means(points, weight)).argmin(1)
        label = torch.unique(nearest, return_inverse=True)[1]
        if torch.equal(label, cells.label):
            break
        cells = Cells(label, int(label.max()) + 1)
    means = cells.means(points, weight)
    every = Cells(_distances(looks, means).argmin(1).index_copy_(0, present, cells.label), cells.count)
    averages = torch.zeros(n, cells.count, dtype=mass.dtype, device=mass.device)
    averages[torch.arange(n, device=mass.device), every.label] = mass
    sums = averages.sum(0)
    averages /= sums
    rows = product(space, averages).T.contiguous()
    among = rows @ averages
    return Landmarks(every.nearest(looks, means, mass), rows, (among + among.T) / 2, sums), every


def _distances(points: Tensor, means: Tensor) -> Tensor:
    """Squared distances (n, count), up to a term of each point."""
    return torch.addmm(means.square().sum(1), points, means.T, alpha=-2.0)


def _within(space: DistanceProvider, mass: Tensor, cells: Landmarks) -> float:
    """By how much the mean square of distances is above that of their means over pairs of cells."""
    share, sums = mass / mass.sum(), cells.mass / cells.mass.sum()
    return float(share @ mean_squares(space, share) - sums @ (cells.distances.square() @ sums))


def _variance(cells: Landmarks) -> float:
    """Of the distances between cells."""
    share, D = cells.mass / cells.mass.sum(), cells.distances
    return float(share @ ((D - share @ (D @ share)).square() @ share))


def _landmarks(space: DistanceProvider, mass: Tensor) -> Landmarks:
    """The points with mass."""
    index = torch.nonzero(mass > 0)[:, 0]
    rows = space.rows(index)
    return Landmarks(index, rows, rows[:, index], mass[index])


def _candidate(problem: StoredProblem, basin: CoarseBasin, origin: str) -> Candidate:
    (start, matching), (p, q) = lifted(problem, basin), problem.masses
    plan = p.new_zeros(len(p), len(q))
    plan[basin.source.index[:, None], basin.target.index] = basin.plan.to(p)
    start = replace(start, plan=plan)
    return Candidate(start, matching, basin.energy, basin.count, "full", True, origin=origin, annealed=True)

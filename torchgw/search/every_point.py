"""Without entropy a search needs sharp plans, and these need no landmarks: where points are few, starts are annealed on
all of them, as one batch; where they are more, between cells of them.

    cells -> starts annealed between them -> plans that are constant on pairs of cells -> conditional gradients

The objective of such a plan is that of a plan between cells, with the means of their distances: nothing is lost by
standing for others, as it is with landmarks, and the plan is sharp enough for conditional gradients to begin from. What
annealing on all points forgets on its way, a basin that is narrow beside few far points, cells keep.

The lowest ends on all points are those of `torchgw.strategies.dense.refine_candidates`: one step from each plan, all of
them from those that are then about as low, and of the lowest, annealed further, from its potentials; between few points
also from the product plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from torchgw.diagnostics.status import History
from torchgw.objective.exact import ExactGradient, mean_squares, product
from torchgw.options import CoarseOptions
from torchgw.problem.problem import StoredProblem
from torchgw.runtime.threads import threads_for
from torchgw.search.anneal import (
    NEAR,
    CoarseBasin,
    LandmarkProblem,
    find_landmark_basins,
    group_into_basins,
    is_clear_minimum,
)
from torchgw.search.candidate import Candidate
from torchgw.search.crossing import CROSSED, cross_basins
from torchgw.search.full_starts import FEW_PAIRS
from torchgw.search.lift import lift, lift_to_points
from torchgw.solvers.conditional_gradient import DenseProgram, DescentState, conditional_gradient
from torchgw.solvers.iterate import Loop
from torchgw.spaces.coarsening import Cells, Coarsening, bisect, coarsen_plan, refine_cells
from torchgw.types import DistanceProvider

KEPT = 8
MOST_OF_A_SPACE = 4  # times the pairs that are few
STARTS_OF_FEW = 20  # times as many as for landmarks, at most
PAIRS_AT_ONCE = 30_000  # of all starts: a batch of fewer takes as long
CELLS, RACED = 128, 4
COMPARED_PAIRS, FINER, FINER_STEPS = 1_000_000, 512, 2
AS_LOW, MOST_NEAR = 1.005, 2  # of the lowest between finer cells; of those how many are gone on from
CELLS_PAIRS = 16_000_000  # 31 points to a cell: beyond, nothing was tried
DOUBT = 1.25  # of the lowest energy between cells: others within it leave a doubt, and are crossed
ROUGH, STEPS = 1e-4, 40  # of conditional gradients between cells: gap over value, and how many
PROBES = 128  # random sums of distances that cells are alike in


def should_search_cells(problem: StoredProblem) -> bool:
    """Whether cells can stand for the points: without entropy, not too many, and with all distances at hand."""
    given = all(space.stored or space.factors() is not None for space in problem.spaces)
    few = len(problem.p) * len(problem.q) <= CELLS_PAIRS
    return few and problem.has_no_entropy and problem.exact and problem.model.is_standard and given


def should_search_every_point(problem: StoredProblem) -> bool:
    """Whether the search may take every point for a landmark: pairs of points are few, and so are those of a space."""
    n, k = len(problem.p), len(problem.q)
    return (
        problem.has_no_entropy
        and problem.exact
        and n * k <= FEW_PAIRS
        and max(n, k) ** 2 <= MOST_OF_A_SPACE * FEW_PAIRS
    )


def search_every_point(problem: StoredProblem, coarse: CoarseOptions, origin: str) -> list[Candidate]:
    """The distinct optima that starts end in, with their plans, the lowest first."""
    sides = zip(problem.spaces, problem.masses, strict=True)
    every = (torch.arange(len(mass), device=mass.device) for mass in problem.masses)
    x, y = (Coarsening.of_points(space.rows(next(every)), mass) for space, mass in sides)
    between = LandmarkProblem.of(x, y, problem.model, problem.kernels.backend)
    most = PAIRS_AT_ONCE // (len(x.mass) * len(y.mass))
    count = min(max(coarse.n_starts // 2, most), STARTS_OF_FEW * coarse.n_starts)
    basins = find_landmark_basins(between, 0.0, count, KEPT, problem.generator)
    if not math.isfinite(basins[0].energy):
        raise FloatingPointError("no start has a finite objective")
    return [_make_candidate(problem, basin, origin) for basin in basins]


def _make_cell_pair(problem: StoredProblem, count: int) -> tuple[tuple[Coarsening, Coarsening], list[float]]:
    """About ``count`` cells of each space, and the variance of its distances within them."""
    sides = list(zip(problem.spaces, problem.masses, strict=True))
    x, y = (make_cells(space, mass, count, problem.generator) for space, mass in sides)
    return (x, y), [_variance_within(space, mass, cells) for (space, mass), cells in zip(sides, (x, y), strict=True)]


def _lift_plan(plan: Tensor, x: Cells, y: Cells, p: Tensor, q: Tensor) -> Tensor:
    """The plan of all points (N, K), of masses p and q, that is as dense everywhere as one between cells."""
    density = plan / (plan.sum(1, keepdim=True) * plan.sum(0))
    return density[x.label][:, y.label].mul_(p[:, None]).mul_(q)


def _descend(between: StoredProblem, plan: Tensor, dual: Tensor, steps: int) -> DescentState[Tensor, Tensor]:
    """Where so many conditional gradients lead from a plan between cells, of mass one, and column potentials."""
    p, q = plan.sum(1), plan.sum(0)
    x, y = (space.to(p.device, torch.float64) for space in between.spaces)
    loop = Loop(between.watch.detach(), History(), steps, ROUGH)
    return conditional_gradient(DenseProgram(ExactGradient(x, y, p, q), p, q), plan, dual, loop)[0]


def search_cells(problem: StoredProblem, coarse: CoarseOptions, origin: str) -> list[Candidate]:
    """The distinct optima that starts end in between cells, as plans of all points, the lowest first; none where cells
    say little of the points. Where points are many, those to go on from are near."""
    (x, y), within = _make_cell_pair(problem, CELLS)
    if not all(side.means_suffice(lost) for lost, side in zip(within, (x, y), strict=True)):
        return []
    (p, q), small, watch = problem.masses, problem.coarsen(x, y), problem.watch.detach()
    between, count = LandmarkProblem.of(x, y, problem.model, problem.kernels.backend), coarse.n_starts // 2
    with threads_for(count * x.count * y.count):
        basins = find_landmark_basins(between, 0.0, count, KEPT, problem.generator)
    if not math.isfinite(basins[0].energy):
        raise FloatingPointError("no start has a finite objective")
    if len(basins) > 1 and not is_clear_minimum([basin.energy for basin in basins], DOUBT):
        plans = torch.stack([basin.plan for basin in basins])
        basins += cross_basins(between, plans, 0.0, KEPT, watch)
    # What annealing forgets beside few far cells, the product plan leads to.
    product, nowhere = between.product.double(), q.new_zeros(y.count, dtype=torch.float64)
    end = _descend(small, product, nowhere, STEPS)
    basins += [replace(basins[0], plan=end.plan.to(basins[0].plan), energy=end.value, count=1)]
    basins, lost, found = _merge_same_basins(basins), sum(within), list[Candidate]()
    for basin in basins:
        (start, matching), energy = lift(basin, problem.model, None), max(basin.energy + lost, 0.0)
        came = origin if basin.count else CROSSED
        found.append(Candidate(start, matching, energy, basin.count, "full", True, origin=came, has_annealed_plan=True))
    spread = (_lift_plan(basin.plan, x, y, p, q) for basin in basins)
    if len(p) * len(q) > COMPARED_PAIRS:
        return _compare_between_finer_cells(problem, found, spread)
    return [_with_plan(candidate, plan) for candidate, plan in zip(found[:RACED], spread, strict=False)]


def _compare_between_finer_cells(
    problem: StoredProblem, candidates: list[Candidate], plans: Iterable[Tensor]
) -> list[Candidate]:
    """Candidates by where a few steps lead from their plans between finer cells, which tells them apart better than one
    step between all points, and takes less. Those to go on from are near, and have plans."""
    (x, y), within = _make_cell_pair(problem, FINER)
    (p, q), small, watch = problem.masses, problem.coarsen(x, y), problem.watch.detach()
    ends: list[tuple[float, Tensor, Candidate]] = []
    for candidate, plan in zip(candidates, plans, strict=True):
        if candidate.energy <= NEAR * candidates[0].energy and not (ends and watch.should_skip()):
            start, dual = coarsen_plan(plan.double(), x, y), candidate.start.column_dual(q)
            end = _descend(small, start.div_(start.sum()), y.means(dual[:, None], q)[:, 0], FINER_STEPS)
            ends.append((end.value, end.plan.to(p), candidate))
    ends.sort(key=lambda end: end[0])
    lost, found = sum(within), list[Candidate]()
    for place, (value, plan, candidate) in enumerate(ends):
        near = place < MOST_NEAR and value <= AS_LOW * ends[0][0]
        candidate = replace(candidate, energy=max(value + lost, 0.0), selected=near)
        found.append(_with_plan(candidate, _lift_plan(plan, x, y, p, q)) if near else candidate)
    return [*found, *(replace(candidate, selected=False) for candidate in candidates[len(found) :])]


def _with_plan(candidate: Candidate, plan: Tensor) -> Candidate:
    """A candidate that brings a plan (N, K)."""
    return replace(candidate, start=replace(candidate.start, plan=plan))


def _merge_same_basins(basins: list[CoarseBasin]) -> list[CoarseBasin]:
    """Those whose plans are apart, the lowest first; counts of those merged are added."""
    energies = basins[0].plan.new_tensor([basin.energy for basin in basins])
    groups = group_into_basins(torch.stack([basin.plan for basin in basins]), energies, KEPT)
    return [replace(basins[group[0]], count=sum(basins[i].count for i in group)) for group in groups]


def make_cells(space: DistanceProvider, mass: Tensor, count: int, generator: torch.Generator) -> Coarsening:
    """About ``count`` parts of a space (N,) whose points have the others at like distances, with the means of these.

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
    cells = refine_cells(bisect(looks, count).cells, looks, mass)
    weights = torch.nn.functional.one_hot(cells.label).to(mass) * mass[:, None]
    weights /= weights.sum(0)
    rows = product(space, weights).T.contiguous()
    return Coarsening.of_means(cells, looks, mass, rows, rows @ weights)


def _variance_within(space: DistanceProvider, mass: Tensor, cells: Coarsening) -> float:
    """By how much the mean square of distances is above that of their means over pairs of cells."""
    share, sums = mass / mass.sum(), cells.mass / cells.mass.sum()
    return float(share @ mean_squares(space, share) - sums @ (cells.distances.square() @ sums))


def _make_candidate(problem: StoredProblem, basin: CoarseBasin, origin: str) -> Candidate:
    (start, matching), (p, q) = lift_to_points(problem, basin), problem.masses
    plan = p.new_zeros(len(p), len(q))
    plan[basin.source.medoids[:, None], basin.target.medoids] = basin.plan.to(p)
    found = Candidate(start, matching, basin.energy, basin.count, "full", True, origin=origin, has_annealed_plan=True)
    return _with_plan(found, plan)

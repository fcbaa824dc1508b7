"""The search for the basin: landmark problems, more landmarks, and the last comparison on all points.

    landmark basins of each kind -> solved between more landmarks, where there are many more points
        -> those that are distinct and near the lowest, compared on all points -> where the loop begins

Without entropy few points are all landmarks, and what the first line finds is compared as it is
(`torchgw.search.every_point`). Elsewhere, where none of them stands out then, basins are crossed
(`torchgw.search.crossing`), and what comes of that is compared as well.

Landmark energies of different kinds cannot be compared closely; energies on all points can, so they decide.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from torchgw.diagnostics.evidence import APART, Basin
from torchgw.objective.exact import ExactGradient, mean_squares
from torchgw.objective.linearise import gradient_of
from torchgw.objective.model import Model
from torchgw.options import CoarseOptions
from torchgw.problem.problem import StoredProblem
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.runtime.transfer import to_host
from torchgw.search.anneal import ALL, NEAR, CoarseBasin, LandmarkProblem, find_coarse_basins, is_clear_minimum
from torchgw.search.candidate import Candidate, is_as_low
from torchgw.search.contest import run_contest
from torchgw.search.crossing import CROSSED, cross_basins
from torchgw.search.every_point import search_cells, search_every_point, should_search_cells, should_search_every_point
from torchgw.search.full_starts import (
    DISTRIBUTIONS,
    FEW_PAIRS,
    entropic_product_energy,
    is_entropy_dominant,
    make_distribution_starts,
    make_product_candidate,
    make_proximal_starts,
    run_fixed_point,
)
from torchgw.search.lift import lift, lift_to_points
from torchgw.search.views import SpaceGraph, count_entries
from torchgw.solvers.warm_start import WarmStart
from torchgw.spaces.coarsening import KINDS, Coarsening, choose_landmarks
from torchgw.types import is_metric, multiplies

logger = logging.getLogger("torchgw")

CROSSED_LANDMARKS, CROSSED_PAYS = 250, 5  # of so many points each
SUBSET_POINTS, SUBSET_STEPS, SUBSET_PAYS = 500, 8, 2
FULL_STEPS = 5
LIFTED_STEPS = 2  # between many points, but from distributions, which begin hot: the second comes within 2 % of the end
COOLED = 4.0  # times as cold between many points, where a comparison of blurred plans leaves a doubt
ROUGH = 1e-2  # tolerance of comparisons between many points: of marginals, and relative of energies
CLOSE = 1.25
DIAMETER = 2.5  # root mean squares of distances: of an interval, 2.4
POOR_COVERAGE = 0.02
MANY_PAIRS = 4_000_000  # beyond which starts on all points wait for landmarks that leave a doubt
MOST_QUANTILE_PAIRS = 8e7
TOGETHER = 2**26  # distances between matchings
MOST_CONTEST_PAIRS = 2_250_000
MOST_BESIDE_PLAN = 4  # times the pairs of a plan


def find_basins(problem: StoredProblem, coarse: CoarseOptions) -> tuple[list[Candidate], Coarsening]:
    """Every basin that was found, the best first, and landmarks of the target to compare matchings by, their rows
    relative to the largest distance."""
    found, reference = _search(problem, coarse)
    logger.info("coarse stage: %s", ", ".join(f"{c.energy:.3g} ({c.level}, {c.count} starts)" for c in found))
    return found, reference


def find_basins_with_plans(problem: StoredProblem, coarse: CoarseOptions) -> tuple[list[Candidate], Coarsening] | None:
    """Basins between landmarks for descents without entropy of any model: the first few, of each kind the lowest before
    others, with the plans of all points that they stand for, and then the rest. None between graphs, whose basins are
    found otherwise, and between points so few that all are landmarks."""
    many = len(problem.p) * len(problem.q) > FEW_PAIRS
    if not (many and all(map(is_metric, problem.spaces))) or _make_graphs(problem) is not None:
        return None
    _, found, reference = _find_landmark_candidates(problem, coarse)
    found.sort(key=lambda c: (not c.selected, not c.best_of_kind))
    near = [c for c in found if c.selected][: coarse.n_basins]
    with_plans = [replace(c, start=replace(c.start, plan=c.start.dense_plan(problem.model))) for c in near]
    return [*with_plans, *found[len(near) :]], reference


def _search(problem: StoredProblem, coarse: CoarseOptions) -> tuple[list[Candidate], Coarsening]:
    graphs = _make_graphs(problem)
    if not all(map(is_metric, problem.spaces)) or (graphs is not None and all(graph.is_similarity for graph in graphs)):
        return _search_without_landmarks(problem, graphs)
    if should_search_every_point(problem) and graphs is None:
        return _search_few_points(problem, coarse)
    if (
        not should_search_every_point(problem)
        and should_search_cells(problem)
        and (cells := search_cells(problem, coarse, "cells"))
    ):
        return _merge_cell_basins(problem, coarse, cells)
    (p, q), pairs = problem.masses, len(problem.p) * len(problem.q)
    (kinds, coverage, unlikeness), found, reference = _find_landmark_candidates(problem, coarse)
    poor = coverage > POOR_COVERAGE
    found = _merge_same_basins(_solve_on_subset(problem, found), reference, p)
    apart = all(c.level == "landmarks" for c in found)
    compared = sum(c.selected for c in found)
    lowest = min(c.energy for c in found if c.selected)
    # Without a common level, energies of different kinds of landmarks say too little to leave a kind's best out.
    finalists = [c for c in found if c.selected and (poor or c.energy <= CLOSE * lowest or (apart and c.best_of_kind))]
    finalists = _select_diverse(finalists, max(coarse.n_basins, len(kinds) if apart else 1), reference, p)
    beside = []
    if poor and problem.exact and len(p) ** 2 + len(q) ** 2 <= MOST_QUANTILE_PAIRS:
        beside.append(make_distribution_starts)
    alone = poor or pairs <= FEW_PAIRS or unlikeness > POOR_COVERAGE
    if problem.exact and alone and not is_entropy_dominant(problem):
        beside.append(make_proximal_starts if graphs is None else partial(run_contest, x=graphs[0], y=graphs[1]))
    rest = [c for c in found if all(c is not f for f in finalists)]
    if pairs <= MANY_PAIRS:
        finalists, beside = finalists + [c for begin in beside for c in begin(problem)], []
    if len(finalists) > 1 and graphs is None and problem.model.has_hard_marginals:
        beside.append(
            partial(_cross_landmark_basins, coarse=coarse, basins=[c.basin for c in found if c.basin is not None])
        )
    if len(finalists) > 1 or beside:
        warmest = max(max(c.start.epsilon or 0.0 for c in finalists), problem.epsilon)
        finalists = _compare_on_all_points(problem, finalists, warmest, reference)
        if pairs > MANY_PAIRS and compared > 1:  # where further steps take less than other starts
            if (
                problem.has_no_entropy
                and len(finalists) > 1
                and not is_clear_minimum([c.energy for c in finalists], CLOSE)
            ):
                warmest /= COOLED
                finalists = _compare_on_all_points(problem, finalists, warmest, reference)
            beside = beside if len(finalists) > 1 else []
        for begin in beside:
            if not is_clear_minimum([c.energy for c in finalists], CLOSE):
                finalists = _compare_on_all_points(problem, begin(problem), warmest, reference, finalists)
    found = finalists + rest
    best = finalists[0]
    ordered = [best, *sorted((c for c in found if c is not best), key=lambda c: (c.level != best.level, c.energy))]
    return ordered, reference


def _find_landmark_candidates(
    problem: StoredProblem, coarse: CoarseOptions
) -> tuple[tuple[dict[str, list[CoarseBasin]], float, float], list[Candidate], Coarsening]:
    """What `find_coarse_basins` finds, the distinct basins of it, and landmarks of the target, their rows relative to
    the largest distance."""
    (p, q), first = problem.masses, (_most_eccentric_point(problem, 0), _most_eccentric_point(problem, 1))
    given = (problem.model, problem.epsilon, coarse, problem.generator, first, problem.kernels.backend)
    landmarks = find_coarse_basins(problem.spaces, (p, q), *given)
    reference = next(iter(landmarks[0].values()))[0].target
    reference = replace(reference, features=reference.features / problem.unit**0.5)
    found = []
    for name, basins in landmarks[0].items():
        if not math.isfinite(basins[0].energy):
            raise FloatingPointError("no start has a finite objective")
        for rank, basin in enumerate(basins):
            near = rank == 0 or (rank < coarse.n_basins and basin.energy <= NEAR * basins[0].energy)
            found.append(_make_candidate(problem, basin, name, near, rank == 0))
    return landmarks, _merge_same_basins(found, reference, p), reference


def _search_few_points(problem: StoredProblem, coarse: CoarseOptions) -> tuple[list[Candidate], Coarsening]:
    """Basins between few points, which bring their plans, and all points of the target."""
    p, q = problem.masses
    rows = problem.spaces[1].rows(torch.arange(len(q), device=q.device))
    reference = Coarsening.of_points(rows / problem.unit**0.5, q)
    found = [*search_every_point(problem, coarse, f"landmarks: {ALL}"), *make_proximal_starts(problem)]
    return _merge_same_basins(found, reference, p, problem.unit), reference


def _merge_cell_basins(
    problem: StoredProblem, coarse: CoarseOptions, found: list[Candidate]
) -> tuple[list[Candidate], Coarsening]:
    """The distinct ones of basins between cells, which bring their plans, and landmarks of the target."""
    p, q = problem.masses
    reference = choose_landmarks(problem.spaces[1], q, KINDS[0], coarse.n_landmarks, problem.generator)
    largest, share = problem.unit**0.5, q / q.sum()
    typical = DIAMETER * max(float(share @ mean_squares(problem.spaces[1], share)), 0.0) ** 0.5 or largest
    near = replace(reference, features=reference.features / min(largest, typical))  # beside a few far points
    return _merge_same_basins(found, near, p), replace(reference, features=reference.features / largest)


def _search_without_landmarks(
    problem: StoredProblem, graphs: tuple[SpaceGraph, SpaceGraph] | None
) -> tuple[list[Candidate], Coarsening]:
    """What comes of a contest between views; where there is none, starts on all points alone, and one landmark that is
    equally far from all, by which matchings differ by the mass that they match otherwise."""
    q = problem.masses[1]
    if graphs is not None:
        reference = Coarsening.of_points(graphs[1].hops, q)
        return _compare_on_all_points(problem, run_contest(problem, *graphs), problem.epsilon, reference), reference
    apart = replace(
        Coarsening.of_points(q.new_zeros(1, 1), q.sum()[None]),
        label=torch.zeros(len(q), dtype=torch.int64, device=q.device),
        features=torch.ones_like(q)[None],
    )
    found = make_proximal_starts(problem) if problem.exact else [make_product_candidate(problem)]
    return _compare_on_all_points(problem, found, problem.epsilon, apart), apart


def _compare_on_all_points(
    problem: StoredProblem,
    candidates: list[Candidate],
    epsilon: float,
    reference: Coarsening,
    before: Sequence[Candidate] = (),
) -> list[Candidate]:
    """Candidates compared on all points, and those that were ``before``: the distinct ones, the lowest first."""
    ends = [_evaluate_candidate(problem, candidate, epsilon) for candidate in candidates]
    read = iter(to_host(*(entropy for _, entropy in ends if entropy is not None)))
    compared = [end if entropy is None else replace(end, entropy=float(next(read))) for end, entropy in ends]
    return _merge_same_basins(
        [*before, *compared], reference, problem.masses[0], problem.unit if problem.has_no_entropy else None
    )


def _make_graphs(problem: StoredProblem) -> tuple[SpaceGraph, SpaceGraph] | None:
    """Both spaces as graphs, where they are graphs, few enough to compete on, and gradients exact."""
    pairs = len(problem.p) * len(problem.q)
    stored = all(space.factors() is None and space.stored for space in problem.spaces)
    # Views are matrices (N, N), which what multiplies by itself has none of: beside a plan of that size they are few.
    few = all(not multiplies(space) or space.size**2 <= MOST_BESIDE_PLAN * pairs for space in problem.spaces)
    if not (problem.exact and stored and few and pairs <= MOST_CONTEST_PAIRS):
        return None
    x, y = (SpaceGraph.of(space, mass) for space, mass in zip(problem.spaces, problem.masses, strict=True))
    height = entropic_product_energy(problem)
    known = to_host(*count_entries(x.D), *count_entries(y.D), *([] if height is None else [height]))
    if height is not None and is_entropy_dominant(problem, known[4]):
        return None
    x, y = replace(x, entry_counts=(known[0], known[1])), replace(y, entry_counts=(known[2], known[3]))
    return (x, y) if (x.is_sparse and y.is_sparse) or not all(map(is_metric, problem.spaces)) else None


def list_basins(problem: StoredProblem, candidates: list[Candidate], reference: Coarsening) -> tuple[Basin, ...]:
    """What the result says of the basins, the best first; those that have come to its matching count as it, unless
    both are ends without entropy, of energies that differ."""
    first, apart = candidates[0], list[Basin]()
    found: list[tuple[Candidate | Basin, bool]] = [(candidate, candidate.is_local_optimum) for candidate in candidates]
    found += [(end, end.level == "full") for candidate in candidates for end in candidate.rejected]
    best, *others = describe_basins([each for each, _ in found], first, reference, problem.masses[0])
    for basin, (_, ended) in zip(others, found[1:], strict=True):
        comparable = problem.has_no_entropy and first.is_local_optimum and ended
        if _is_same_basin(basin.difference, best.energy, basin.energy, problem.unit if comparable else None):
            best = replace(best, count=best.count + basin.count, origin=_find_origin([best, basin]))
        else:
            apart.append(basin)
    return (best, *apart)


def describe_basins(
    found: Sequence[Candidate | Basin], best: Candidate, reference: Coarsening, mass: Tensor
) -> list[Basin]:
    """What the result says of basins, by their distances from the best one."""
    shifts, apart = _match_shifts(reference, best.matching, [torch.as_tensor(each.matching) for each in found], mass)
    differences = to_host(apart)[0].tolist()
    return [
        Basin(
            energy=each.energy,
            count=each.count,
            level=each.level,
            difference=difference,
            origin=each.origin,
            matching=each.matching,
            shift=shift,
        )
        for each, shift, difference in zip(found, shifts, differences, strict=True)
    ]


@as_cuda_graph()
def _match_shifts(
    reference: Coarsening, best: Tensor, matchings: list[Tensor], mass: Tensor
) -> tuple[list[Tensor], Tensor]:
    """How far each point's matches (N,) are from those of the best matching, and on average (m,)."""
    shifts = [reference.distances_between(best, each) for each in matchings]
    return shifts, torch.stack([mass @ shift / mass.sum() for shift in shifts])


def _most_eccentric_point(problem: StoredProblem, side: int) -> Tensor | None:
    """The point with the largest mean square distance, which a copy of the space has too; None where unknown."""
    gradient = problem.quadratic
    if not isinstance(gradient, ExactGradient):
        return None
    return (gradient.a, gradient.b)[side].argmax()


def _make_candidate(problem: StoredProblem, basin: CoarseBasin, name: str, near: bool, leading: bool) -> Candidate:
    start, matching = lift_to_points(problem, basin)
    return Candidate(
        start, matching, basin.energy, basin.count, "landmarks", near, leading, basin, f"landmarks: {name}"
    )


def _cross_landmark_basins(problem: StoredProblem, coarse: CoarseOptions, basins: list[CoarseBasin]) -> list[Candidate]:
    """What comes of crossing basins between more landmarks than theirs, where there are points for it."""
    count = min(CROSSED_LANDMARKS, min(len(mass) for mass in problem.masses) // CROSSED_PAYS)
    if count <= coarse.n_landmarks or len(basins) < 2:
        return []
    x, y = _choose_landmark_pair(problem, count)
    between = LandmarkProblem.of(x, y, problem.model, problem.kernels.backend)
    starts = [_lift_between(problem, basin, x, y, between.model).with_row_sums(x.mass.log2()) for basin in basins]
    plans = torch.stack([start.coupling().to_dense() for start in starts])
    found = cross_basins(between, plans, problem.epsilon, coarse.n_basins, problem.watch.detach())
    return [_make_candidate(problem, basin, CROSSED, True, basin is found[0]) for basin in found]


def _solve_on_subset(problem: StoredProblem, candidates: list[Candidate]) -> list[Candidate]:
    """The candidates, the selected ones solved between more landmarks where there are many more points than these."""
    if min(map(len, problem.masses)) < SUBSET_PAYS * SUBSET_POINTS:
        return candidates
    x, y = _choose_landmark_pair(problem, SUBSET_POINTS)
    p, q = (
        side.mass.double() * (mass.sum() / side.mass.double().sum())
        for side, mass in zip((x, y), problem.model.masses, strict=True)
    )
    model, near, far = problem.model.restrict(x.medoids, y.medoids, p, q), x.stored_space, y.stored_space
    gradient = gradient_of(model, ExactGradient(near, far, x.mass, y.mass, model.loss))
    small, found = replace(problem, spaces=(near, far), gradient=gradient, model=model, exact=True), []
    for candidate in candidates:
        if candidate.selected and candidate.basin is not None:
            start, epsilon = _lift_between(problem, candidate.basin, x, y, model), candidate.basin.epsilon
            done = run_fixed_point(small, start, max(epsilon, problem.epsilon), SUBSET_STEPS)
            end, energy = done.warm_start, done.history.cost[-1]
            assert end is not None
            assert end.epsilon is not None
            start, matching = lift_to_points(problem, CoarseBasin(x, y, done.plan, end.f, end.g, end.epsilon))
            energy = energy if energy == energy else math.inf
            candidate = replace(candidate, start=start, matching=matching, energy=energy, level="subset")
        found.append(candidate)
    return found


def _choose_landmark_pair(problem: StoredProblem, count: int) -> tuple[Coarsening, Coarsening]:
    """So many landmarks of both spaces, as the mass lies."""
    sides = zip(problem.spaces, problem.masses, problem.model.points or (None, None), strict=True)
    x, y = (
        choose_landmarks(space, mass, "spread", count, problem.generator, named=points) for space, mass, points in sides
    )
    return x, y


def _lift_between(problem: StoredProblem, basin: CoarseBasin, x: Coarsening, y: Coarsening, model: Model) -> WarmStart:
    """A basin lifted to other landmarks, whose ``model`` is a part of the whole one."""
    near, far = basin.source.restrict(x.medoids), basin.target.restrict(y.medoids)
    part = replace(basin, source=near, target=far)
    return lift(part, model, None, problem.model, (x.medoids, y.medoids))[0]


def _evaluate_candidate(
    problem: StoredProblem, candidate: Candidate, epsilon: float
) -> tuple[Candidate, Tensor | None]:
    """The candidate after a few iterations on all points at ``epsilon``, or its estimated energy there, and what the
    entropy of its plan adds to that () where it is minimised.

    One that brings a plan of low value keeps it: it has no entropy to be compared under."""
    if candidate.start.plan is not None:
        return candidate, None
    if not problem.exact:
        start = (
            candidate.start.with_row_sums(problem.masses[0].log2())
            if problem.model.has_hard_marginals
            else candidate.start
        )
        return replace(candidate, start=start, energy=float(problem.value(start.coupling())), level="full"), None
    many = len(problem.p) * len(problem.q) > MANY_PAIRS
    steps = FULL_STEPS if not many or candidate.origin == DISTRIBUTIONS else LIFTED_STEPS
    done = run_fixed_point(_loosen_tolerances(problem) if many else problem, candidate.start, epsilon, steps)
    energy = max(done.history.cost[-1], 0.0)
    assert done.warm_start is not None
    entropy = None if problem.has_no_entropy else problem.model.entropy_term(done.plan, epsilon)
    matching = done.plan.argmax(1)
    return replace(
        candidate, start=done.warm_start, energy=energy, level="full", matching=matching, entropy=0.0
    ), entropy


def _loosen_tolerances(problem: StoredProblem) -> StoredProblem:
    """The problem with tolerances that tell basins apart, which take a third of the iterations."""
    options = problem.options
    sinkhorn = replace(options.sinkhorn, tol=max(options.sinkhorn.tol, ROUGH))
    stopping = replace(options.stopping, plan_tol=max(options.stopping.plan_tol, ROUGH))
    return replace(problem, options=replace(options, sinkhorn=sinkhorn, stopping=stopping))


@as_cuda_graph()
def _matching_distances(reference: Coarsening, some: Tensor, others: Tensor, mass: Tensor) -> Tensor:
    """How far the matchings (m, N) of others are from those (..., 1, N) of some, (..., m)."""
    return reference.distances_between(some, others) @ mass / mass.sum()


def _stack_matchings(candidates: list[Candidate]) -> Tensor:
    return torch.stack([each.matching for each in candidates])


def _make_distance_function(
    candidates: list[Candidate], reference: Coarsening, mass: Tensor
) -> Callable[[Candidate, list[Candidate]], list[float]]:
    """How far the matchings of others of these are from that of one. From a GPU all distances come at once, whichever
    are asked for."""
    if not (mass.is_cuda and len(candidates) > 1):
        return lambda one, others: (
            _matching_distances(reference, one.matching, _stack_matchings(others), mass).tolist() if others else []
        )
    every = _stack_matchings(candidates)
    blocks = torch.split(every[:, None], max(1, TOGETHER // every.numel()))
    (table,) = to_host(torch.cat([_matching_distances(reference, some, every, mass) for some in blocks]))
    place = {id(each): at for at, each in enumerate(candidates)}
    return lambda one, others: [float(table[place[id(one)]][place[id(other)]]) for other in others]


def _select_diverse(candidates: list[Candidate], most: int, reference: Coarsening, mass: Tensor) -> list[Candidate]:
    """The first candidate, then those whose matchings are furthest from the ones taken: near-equal energies of a lower
    level say less about which basins to compare than how different they are."""
    taken, rest, gaps = candidates[:1], candidates[1:], [math.inf] * (len(candidates) - 1)
    far = _make_distance_function(candidates, reference, mass)
    while rest and len(taken) < most:
        gaps = [min(pair) for pair in zip(gaps, far(taken[-1], rest), strict=True)]
        furthest = gaps.index(max(gaps))
        taken.append(rest.pop(furthest))
        gaps.pop(furthest)
    return taken


def _merge_same_basins(
    candidates: list[Candidate], reference: Coarsening, mass: Tensor, unit: float | None = None
) -> list[Candidate]:
    """Candidates of different basins, near ones first, then lowest first; counts of those merged are added."""
    kept: list[Candidate] = []
    sound = [c for c in candidates if c.energy < math.inf] or candidates[:1]
    rest = sorted(sound, key=lambda c: (not c.selected, c.energy + c.entropy))
    far = _make_distance_function(rest, reference, mass)
    while rest:
        first, others = rest[0], rest[1:]
        group, rest = [first], []
        for other, gap in zip(others, far(first, others), strict=True):
            (group if _is_same_basin(gap, first.energy, other.energy, unit) else rest).append(other)
        kept.append(
            replace(
                first,
                count=sum(c.count for c in group),
                origin=_find_origin(group),
                best_of_kind=any(c.best_of_kind for c in group),
                rejected=tuple(end for c in group for end in c.rejected),
            )
        )
    return kept


def _find_origin(group: Sequence[Candidate | Basin]) -> str:
    """What the first of these came from to which a start led; of the first where none did."""
    return next((each.origin for each in group if each.count), group[0].origin)


def _is_same_basin(gap: float, energy: float, other: float, unit: float | None) -> bool:
    """Whether a basin is another one of no higher energy, from whose matching its own differs by ``gap``.

    Matchings do not differ by distances that are all small, as in a sparse adjacency: energies keep basins apart there,
    where they can be compared and the largest squared distance, their ``unit``, is given.
    """
    return gap <= APART and (unit is None or is_as_low(other, energy, unit))

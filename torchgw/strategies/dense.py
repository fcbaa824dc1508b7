"""One solve, from providers to a feasible plan with its certificate: search, descent, finish, bounds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling
from torchgw.diagnostics.evidence import NEAR_TIE, TINY, Basin, Rung
from torchgw.kernels.precision import loop_dtype
from torchgw.objective.certify import certify, read_dense_plan
from torchgw.objective.exact import ExactGradient, ensure_products
from torchgw.objective.sampled import NOTHING, restore_memory
from torchgw.runtime.transfer import to_host
from torchgw.search.anneal import NEAR, is_clear_minimum
from torchgw.search.basins import find_basins, find_basins_with_plans, list_basins
from torchgw.search.candidate import Candidate
from torchgw.search.every_point import COMPARED_PAIRS, RACED
from torchgw.search.full_starts import FEW_PAIRS, make_product_starts, make_unregularized_starts
from torchgw.search.initial_guesses import draw_random_plans
from torchgw.solvers.problem import Problem, StoredProblem, make_gradient, make_surrogate, run_fixed_point
from torchgw.solvers.solution import CertifiedSolution, Solution
from torchgw.solvers.warm_start import WarmStart, pairs_start, plan_start, product_start
from torchgw.spaces.coarsening import Coarsening
from torchgw.strategies.continuation import continue_in_epsilon
from torchgw.strategies.sharp import (
    descend_model,
    descend_unregularized,
    go_on_unregularized,
    sharpen,
    sharpen_model,
    solve_unregularized,
    take_first_step,
)
from torchgw.strategies.smooth import solve_entropic

logger = logging.getLogger("torchgw")

SHARP_TIE = 1.25  # an end without entropy may be that much lower than where it began
NEARLY = 1.03  # of the lowest after one step, which leaves less than that to fall
SHARP_BASINS_PAIRS, ANNEALED_BASINS_PAIRS = 10_000, 400  # solved from every candidate, and from every annealed one
PRODUCT_PAIRS = 1_000_000
MODEL_ENDS, MODELS_NEARLY = 4, 1.3  # of models: their ends lie further below one step
RANDOM_PLANS = 8  # that models of few points are solved from as well
OTHERS = "product plan or random plans"


@dataclass(frozen=True)
class InitialSolution:
    """A first solution between all points, its plan stored.

    solution : how it ended, with its own energy.
    seconds : that the search took.
    basins : what it found, the best first.
    ladder : the rungs that led to all points.
    """

    solution: Solution
    seconds: float
    basins: tuple[Basin, ...]
    ladder: tuple[Rung, ...] = ()


def solve_dense(
    asked: Problem,
    streamed: CertifiedSolution | None = None,
    begin: Callable[[StoredProblem], InitialSolution] | None = None,
) -> CertifiedSolution:
    """Solve with a stored plan, on the device of the masses, from where ``begin`` leads, by default a search on all
    points; one that was ``streamed`` only ends here, and comes back as it is where nothing lower is found."""
    began = time.perf_counter()
    (p, q), options = asked.model.masses, asked.options
    wide = [space.to(p.device, torch.float64) for space in asked.spaces]
    if asked.exact:  # graph searches once, for both precisions
        wide = [ensure_products(space, p.device) for space in wide]
    source, target = (space.to(p.device, loop_dtype(options.mixed_precision)) for space in wide)
    narrow = Problem.of(asked, spaces=(source, target))
    problem = StoredProblem.of(narrow, gradient=make_gradient(narrow))
    if asked.has_no_entropy or asked.sharpens or asked.tol is not None:
        problem = replace(problem, wide=ExactGradient(wide[0], wide[1], p, q, asked.model.loss))
    ladder: tuple[Rung, ...] = ()
    between = make_surrogate(problem) or problem
    if streamed is None:
        begun = (
            begin
            or (
                _search_and_descend
                if asked.model.is_standard or not asked.has_no_entropy
                else _search_and_descend_model
            )
        )(between)
        solution, basins, ladder, searched = begun.solution, begun.basins, begun.ladder, began + begun.seconds
        if asked.auto:
            solution = continue_in_epsilon(between, solution, time.perf_counter() - searched, solve_entropic)
    else:
        solution, searched, basins = streamed, began, streamed.basins
    if asked.sharpens:
        solution = sharpen(between, solution)
    if solution is streamed:
        return streamed
    if between is not problem and not problem.watch.should_skip():
        solution = problem.stage("exact", partial(_leave_surrogate, problem, solution))
    model = asked.model.with_epsilon(solution.path[-1].epsilon) if solution.path else asked.model
    solved = time.perf_counter()
    assert solution.dual is not None
    stored = DenseCoupling(solution.plan)
    found = read_dense_plan(stored, (wide[0], wide[1]), model, options.max_memory, asked.generator, solution.cost)
    values, certificate = certify(found, solution.dual, (wide[0], wide[1]), model, asked.unit)
    return solution.with_certificate(
        stored=None,
        marginals=(stored.marginal(1), stored.marginal(0)),
        gradient="exact" if asked.exact else "sampled",
        value_exact=found.quadratic.exact,
        value_error=found.quadratic.error,
        values=values,
        certificate=certificate,
        basins=basins,
        ladder=ladder,
        seconds={"search": searched - began, "solve": solved - searched, "finish": time.perf_counter() - solved},
    )


def _leave_surrogate(problem: StoredProblem, found: Solution) -> Solution:
    """Where the exact gradient leads from the solution between factors."""
    if found.warm_start is None:
        last = go_on_unregularized(problem, found)
    else:
        exact = problem.with_epsilon(found.path[-1].epsilon if found.path else problem.epsilon)
        start, plan = found.warm_start.to(problem.masses[0].dtype), DenseCoupling(found.plan.to(problem.masses[0]))
        start = replace(start, cost=exact.gradient(plan, problem.masses[0]))
        last = solve_entropic(exact, start, found.history.copy()).add_iterations(found)
    path = found.path and (*found.path[:-1], replace(found.path[-1], value=max(last.energy, 0.0)))
    return replace(last, path=path)


def _search_and_descend(problem: StoredProblem) -> InitialSolution:
    """The lowest end of what a search on all points found."""
    began = time.perf_counter()
    candidates, reference = find_candidates(problem)
    searched = time.perf_counter() - began
    solution, candidates = refine_candidates(problem, candidates)
    basins = () if reference is None else list_basins(problem, candidates, reference)
    return InitialSolution(solution, searched, basins)


def _search_and_descend_model(problem: StoredProblem) -> InitialSolution:
    """The lowest end by the objective of any model, from where searches by its leads come to; from the plan that was
    given, or the product plan annealed and, up to a million pairs, as it is; and between few points from random
    plans."""
    began, init, model = time.perf_counter(), problem.init, problem.model
    ends = zip(model.masses, model.marginals.weights, strict=True)
    # The mass of a side that is free is no part of the objective.
    p, q = (torch.full_like(mass, float(mass.sum()) / len(mass)) if rho == 0 else mass for mass, rho in ends)
    problem = replace(problem, model=replace(model, p=p, q=q)).with_epsilon(0.0)
    model, coarse, few = problem.model, problem.options.coarse, len(p) * len(q) <= FEW_PAIRS
    leads, between, found = problem.search_problems, list[Candidate](), list[tuple[Solution, Candidate]]()
    reference: Coarsening | None = None
    for number, lead in enumerate(leads if init is None and coarse is not None else []):
        assert coarse is not None
        if number and problem.watch.should_skip():
            break
        led = problem.stage(f"landmarks-{number}", partial(find_basins_with_plans, lead, coarse))
        if led is not None:
            between += [each for each in led[0] if lead is problem or each.start.plan is not None]
            reference = led[1]
    searched = time.perf_counter() - began
    if between:
        found, rest = _descend_best(problem, between)
    else:
        found, rest, reference, searched = _descend_surrogates(problem, leads if init is None else leads[:1])
    starts, plans, product = list[WarmStart](), list[Tensor](), p[:, None] * q
    if init is not None and init.is_floating_point():
        plans = [init.to(p)]
    elif init is None and model.alpha > 0:
        starts = [candidate.start for candidate in make_product_starts(leads[0])[:1]]
        plans = [product] if len(p) * len(q) <= PRODUCT_PAIRS else []
    if init is None and few and model.alpha > 0:
        plans += draw_random_plans(product, RANDOM_PLANS, problem.generator)
    found.sort(key=lambda each: each[0].energy)
    others = descend_model(problem, starts, plans, init is None or few)
    end = min([found[0][0], *others], key=lambda each: each.energy)
    if end is not found[0][0]:  # which no start of the search led to
        found = [(end, replace(_with_solution(found[0][1], end), count=0, origin=OTHERS, rejected=())), *found]
    candidates = [*(candidate for _, candidate in found), *rest]
    return InitialSolution(end, searched, () if reference is None else list_basins(problem, candidates, reference))


def _descend_surrogates(
    problem: StoredProblem, leads: list[StoredProblem]
) -> tuple[list[tuple[Solution, Candidate]], list[Candidate], Coarsening | None, float]:
    """Ends of the best that a search with entropy finds by each lead, with their candidates; what else it found of the
    problem itself, landmarks to compare matchings by, and how long it searched."""
    found, rest, seconds = list[tuple[Solution, Candidate]](), list[Candidate](), 0.0
    reference: Coarsening | None = None
    for number, lead in enumerate(leads):
        if number and problem.watch.should_skip():
            break
        own, lead = lead is leads[0] is problem, replace(lead, watch=problem.watch)
        with problem.watch.within(f"lead-{number}"):
            blurred, began = lead.with_epsilon(lead.epsilon), time.perf_counter()
            candidates, reference = find_candidates(blurred)
            seconds += time.perf_counter() - began
            first, candidates = refine_candidates(blurred, candidates)
            if own:
                end = sharpen_model(problem, first, lead)
            else:  # a sharp plan of another model is better gone down from than one that is blurred
                part = sharpen_model(lead, first, lead)
                end = descend_model(problem, (), [part.plan], False)[0].add_iterations(part)
        best = candidates[0] if own else replace(candidates[0], rejected=())  # whose energies are others
        found.append((end, _with_solution(best, end)))
        rest += candidates[1:] if own else []
        problem = replace(problem, watch=problem.watch.without_callback())
    return found, rest, reference, seconds


def _descend_best(
    problem: StoredProblem, candidates: list[Candidate]
) -> tuple[list[tuple[Solution, Candidate]], list[Candidate]]:
    """Ends of those candidates with plans that are lowest after a step, with the candidates, and the others."""
    raced, beaten = _rank_after_one_step(problem, [c for c in candidates if c.start.plan is not None], MODELS_NEARLY)
    ends, quiet = list[tuple[Solution, Candidate]](), replace(problem, watch=problem.watch.without_callback())
    for position, candidate in enumerate(raced[:MODEL_ENDS]):
        if position == 0 or not problem.watch.should_skip():
            end = problem.stage(f"descend-{position}", partial(descend_unregularized, problem, candidate.start))
            ends.append((end, _with_solution(candidate, end)))
        problem = quiet
    rest = [*raced[len(ends) :], *beaten, *(c for c in candidates if c.start.plan is None)]
    return ends, rest


def _with_solution(candidate: Candidate, solution: Solution) -> Candidate:
    """A candidate with the energy and matching of the solution that it led to."""
    matching = solution.plan.argmax(1)
    return replace(candidate, energy=max(solution.energy, 0.0), level="full", matching=matching)


def refine_candidates(problem: StoredProblem, candidates: list[Candidate]) -> tuple[Solution, list[Candidate]]:
    """The lowest end among the best candidate and those as good as it, and the candidates with that one first.

    Energies of the search come from a few iterations, so near-equal ones are solved to the end before one is called
    the best or the matching ambiguous; the lowest is that of what the loop minimises, the entropy too. Small problems
    without entropy are solved from every candidate, and up to a million pairs also from the product plan: by annealing,
    and up to 40 000 by conditional gradients from the plan itself, so that no search is worth less than that. A contest
    has had both; a search that brings plans has had that one too, between cells where points are many, and beyond
    20 x 20 points only what is nearly as low after one step is solved, and the lowest once more, annealed further.
    """
    best, others, solver = (
        candidates[0],
        candidates[1:],
        solve_unregularized if problem.has_no_entropy else solve_entropic,
    )
    near, most = (SHARP_TIE, 2) if problem.has_no_entropy else (NEAR_TIE, 1)
    slack = TINY * problem.unit  # energies are known no better
    tied = [c for c in others if c.level == best.level == "full" and c.energy <= near * best.energy + slack]
    pairs = len(problem.p) * len(problem.q)
    small = problem.has_no_entropy and pairs <= (
        ANNEALED_BASINS_PAIRS if best.has_annealed_plan else SHARP_BASINS_PAIRS
    )
    contenders = [best, *(others if small or best.level == "given" else tied[:most])]
    if best.has_annealed_plan and not small:  # how low a plan leads, its own energy hardly says
        left = [c for c in candidates[:RACED] if c.selected and c.energy <= NEAR * best.energy + slack]
        contenders, beaten = _rank_after_one_step(problem, left) if pairs <= COMPARED_PAIRS else (left, [])
        best, others = contenders[0], [*contenders[1:], *beaten, *candidates[len(left) :]]
    if best.is_local_optimum:  # by a descent that the others had as well
        contenders = [best, *(c for c in tied[:most] if not c.is_local_optimum)]
    elif (
        problem.has_no_entropy
        and best.level != "given"
        and pairs <= (FEW_PAIRS if best.has_annealed_plan else PRODUCT_PAIRS)
    ):
        contenders += make_product_starts(problem)[-1 if best.has_annealed_plan else 0 :]
    ends: list[Solution] = []
    quiet = replace(problem, watch=problem.watch.without_callback())  # the callback hears of one solve
    for position, candidate in enumerate(contenders):
        if position == 0 or not problem.watch.should_skip():
            if position:  # anchors of another basin
                restore_memory(problem.gradient, NOTHING)
            taken = descend_unregularized if best.has_annealed_plan else solver
            ends.append(problem.stage(f"solve-{position}", partial(taken, problem, candidate.start)))
        problem = quiet
    contenders = contenders[: len(ends)]
    alone = best.has_annealed_plan and is_clear_minimum(sorted(c.energy for c in (best, *others)), NEAR)
    if best.has_annealed_plan and not (alone or problem.watch.should_skip()):
        lowest = min(range(len(ends)), key=lambda i: ends[i].energy)
        start = replace(contenders[lowest].start, plan=None)
        further = problem.stage("further", partial(solve_unregularized, problem, start))
        if further.energy < ends[lowest].energy:
            ends[lowest] = further
    settled = [
        replace(_with_solution(c, end), is_local_optimum=problem.has_no_entropy)
        for c, end in zip(contenders, ends, strict=True)
    ]
    model, minimised = problem.model, [end.energy for end in ends]
    if model.epsilon > 0 and len(ends) > 1:
        entropies = to_host(*(model.entropy_term(end.plan, model.epsilon) for end in ends))
        minimised = [end.energy + float(entropy) for end, entropy in zip(ends, entropies, strict=True)]
    order = sorted(range(len(ends)), key=minimised.__getitem__)
    rest = [settled[i] for i in order[1:]] + [c for c in others if all(c is not each for each in contenders)]
    rest.sort(key=lambda c: (c.level != "full", c.energy))
    return ends[order[0]], [settled[order[0]], *rest]


def _rank_after_one_step(
    problem: StoredProblem, candidates: list[Candidate], nearly: float = NEARLY
) -> tuple[list[Candidate], list[Candidate]]:
    """Candidates after a conditional gradient from the plans that they bring: those that are ``nearly`` as low as the
    lowest, that one first, and the others."""
    annealed, quiet, raced = (
        candidates[0].has_annealed_plan,
        replace(problem, watch=problem.watch.without_callback()),
        [],
    )
    for position, candidate in enumerate(candidates):
        if position and problem.watch.should_skip():
            break
        end = quiet.stage(f"race-{position}", partial(take_first_step, quiet, candidate.start))
        start, energy = replace(candidate.start, plan=end.plan.to(problem.masses[0])), max(end.value, 0.0)
        found = replace(candidate, start=start, energy=energy, matching=end.plan.argmax(1), has_annealed_plan=annealed)
        raced.append(replace(found, level="full"))
    raced.sort(key=lambda c: c.energy)
    near = sum(c.energy <= nearly * raced[0].energy + TINY * problem.unit for c in raced)
    return raced[:near], [*raced[near:], *candidates[len(raced) :]]


def find_candidates(problem: StoredProblem) -> tuple[list[Candidate], Coarsening | None]:
    """What the user gave, else what the coarse stage found, the best first, else the product plan."""
    return problem.stage("search", partial(_find_candidates, problem))


def _find_candidates(problem: StoredProblem) -> tuple[list[Candidate], Coarsening | None]:
    init = problem.init
    log_p, log_q = (mass.log2() for mass in problem.masses)
    if init is None and problem.options.coarse is not None:
        return find_basins(problem, problem.options.coarse)
    if init is None:
        start = product_start(log_p, log_q)
    elif init.is_floating_point() and problem.has_no_entropy:
        return make_unregularized_starts(problem, init.to(log_p.dtype), "given", "given"), None
    elif init.is_floating_point():
        start = plan_start(init.to(log_p.dtype), problem.gradient, log_p, log_q, problem.epsilon)
    else:
        start = pairs_start(init, problem.source, problem.target, log_p, log_q, problem.model)
    if init is not None and not problem.exact:  # anchors are drawn from a plan, so the first problem is solved at once
        solved = run_fixed_point(problem, start, problem.epsilon, 1)
        assert solved.warm_start is not None
        start = solved.warm_start
    return [Candidate(start, torch.zeros(0, dtype=torch.int64), 0.0, 1, "given", True)], None

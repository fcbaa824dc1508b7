"""One solve, from providers to a feasible plan with its certificate: search, descent,
finish, bounds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling
from torchgw.diagnostics.evidence import NEAR_TIE, TINY
from torchgw.diagnostics.status import History
from torchgw.kernels.precision import loop_dtype
from torchgw.objective.certify import certify, read_dense_plan
from torchgw.objective.exact import ExactGradient, ensure_products
from torchgw.objective.sampled import NOTHING, restore_memory
from torchgw.problem.problem import Problem, StoredProblem, make_gradient
from torchgw.runtime.transfer import to_host
from torchgw.search.anneal import NEAR, is_clear_minimum
from torchgw.search.basins import find_basins, find_basins_with_plans, list_basins
from torchgw.search.candidate import Candidate
from torchgw.search.every_point import COMPARED_PAIRS, RACED
from torchgw.search.full_starts import FEW_PAIRS, PRODUCT, make_unregularized_starts, run_fixed_point
from torchgw.search.initial_guesses import draw_random_plans
from torchgw.solvers.model_form import make_search_models
from torchgw.solvers.solution import CertifiedSolution, Solution
from torchgw.solvers.warm_start import pairs_start, plan_start, product_start
from torchgw.spaces.coarsening import Coarsening
from torchgw.strategies.entropic import continue_in_epsilon, solve_entropic
from torchgw.strategies.sharp import descend_from_plan, descend_unregularized, sharpen, solve_unregularized
from torchgw.strategies.surrogate import make_surrogate

SHARP_TIE = 1.25  # an end without entropy may be that much lower than where it began
NEARLY = 1.03  # of the lowest after one step, which leaves less than that to fall
SHARP_BASINS_PAIRS, ANNEALED_BASINS_PAIRS = 10_000, 400  # solved from every candidate, and from every annealed one
RANDOM_PLANS = 8  # that models of few points are gone down from as well
MODEL_ENDS, MODELS_NEARLY = 4, 1.3  # of models: their ends lie further below one step
PRODUCT_PAIRS = 1_000_000  # up to which models are also gone down from the product plan


def solve_dense(
    asked: Problem, streamed: CertifiedSolution | None = None, begin: Callable[[StoredProblem], Solution] | None = None
) -> CertifiedSolution:
    """Solve with a stored plan, on the device of the masses, from where ``begin`` leads, by
    default a search on all points; one that was ``streamed`` only ends here, and comes back
    as it is where nothing lower is found."""
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
    between = make_surrogate(problem) or problem
    solution: Solution = streamed or (begin or search_and_descend)(between)
    searched = began
    if streamed is None:
        searched += solution.seconds["search"]
        if asked.auto:
            solution = continue_in_epsilon(between, solution, time.perf_counter() - searched)
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
    return solution.with_certificate(
        found.marginals,
        found.quadratic,
        *certify(found, solution.dual, (wide[0], wide[1]), model, asked.unit),
        (began, searched, solved),
        stored=None,
        gradient="exact" if asked.exact else "sampled",
    )


def _leave_surrogate(problem: StoredProblem, found: Solution) -> Solution:
    """Where the exact gradient leads from the solution between factors, in what that left of
    the iterations; after a path, whose epsilons have as many each, in as many again."""
    options, stopping = problem.options, problem.options.stopping
    left = stopping.max_iter if found.path else max(stopping.max_iter - len(found.history.iteration), 1)
    problem = replace(problem, options=replace(options, stopping=replace(stopping, max_iter=left)))
    if found.warm_start is None:
        assert found.dual is not None
        last = descend_from_plan(problem, found.plan, found.dual, found.history.copy())
        last = replace(last, precision_warning=found.precision_warning)
    else:
        exact = problem.with_epsilon(found.path[-1].epsilon if found.path else problem.epsilon)
        start, plan = found.warm_start.to(problem.masses[0].dtype), found.plan.to(problem.masses[0])
        start = replace(start, cost=exact.linearize(plan))
        last = solve_entropic(exact, start, found.history.copy())
    path = found.path and (*found.path[:-1], replace(found.path[-1], value=max(last.energy, 0.0)))
    return replace(last.add_iterations(found), path=path)


def search_and_descend(problem: StoredProblem) -> Solution:
    """The lowest end of what a search found, with its basins: on all points, or for models
    without entropy between landmarks where that brings plans."""
    began, first, brought = time.perf_counter(), problem, None
    searches_model = problem.has_no_entropy and not problem.model.is_standard
    if searches_model:
        problem = _spread_free_masses(problem)
        coarse = problem.options.coarse
        if problem.init is None and coarse is not None:
            brought = problem.stage("landmarks", partial(find_basins_with_plans, problem, coarse))
        first = problem if brought else problem.with_epsilon(problem.epsilon)
    candidates, reference = brought or first.stage("search", partial(find_candidates, first))
    searched = time.perf_counter() - began
    found, candidates = refine_candidates(first, candidates)
    if searches_model and brought is None:
        start = found.next_start.to(problem.masses[0].dtype)
        whole = partial(solve_unregularized, problem, start, found.history.copy())
        found = problem.stage("sharpen", whole).add_iterations(found)
        candidates[0] = _with_solution(candidates[0], found)
    if searches_model:
        found, candidates = _descend_from_other_plans(problem, found, candidates)
    basins = () if reference is None else list_basins(problem, candidates, reference)
    return replace(found, basins=basins, seconds={"search": searched})


def _spread_free_masses(problem: StoredProblem) -> StoredProblem:
    """The problem without entropy, with equal masses on a side that is free: they are no
    part of the objective."""
    model = problem.model
    p, q = (
        torch.full_like(mass, float(mass.sum()) / len(mass)) if rho == 0 else mass
        for mass, rho in zip(model.masses, model.marginals.weights, strict=True)
    )
    return replace(problem, model=replace(model, p=p, q=q)).with_epsilon(0.0)


def _descend_from_other_plans(
    problem: StoredProblem, found: Solution, candidates: list[Candidate]
) -> tuple[Solution, list[Candidate]]:
    """The lowest end of a model, and the candidates with that one first, after descents
    from plans that no search brings: the one that was given, or else the product plan and
    random ones between few points, and where the objectives of simpler models led."""
    (p, q), given, watch = problem.model.masses, problem.init, problem.watch
    pairs, quiet = p.numel() * q.numel(), replace(problem, watch=watch.without_callback())
    quadratic = given is None and problem.model.alpha > 0
    plans = list[tuple[Tensor, bool, str]]()
    if given is not None and given.is_floating_point():
        plans.append((given, pairs <= FEW_PAIRS, "given"))
    if quadratic and pairs <= PRODUCT_PAIRS:
        plans.append((p[:, None] * q, True, PRODUCT))
    if quadratic and pairs <= FEW_PAIRS:
        drawn = draw_random_plans(p[:, None] * q, RANDOM_PLANS, problem.generator)
        plans += [(plan, True, "random plan") for plan in drawn]
    if given is None and not watch.should_skip():
        for simpler in make_search_models(problem.model)[1:]:
            with watch.within("lead"):
                end = search_and_descend(replace(quiet, model=simpler).with_epsilon(0.0))
            plans.append((end.plan, False, "partial model"))
    for number, (plan, exact, origin) in enumerate(plans):
        if watch.should_skip():
            break
        descent = partial(descend_from_plan, quiet, plan, torch.zeros_like(q), History(), exact=exact, rough=True)
        other = quiet.stage(f"other-{number}", descent)
        if other.energy < found.energy:  # which no start of the search led to
            best = replace(_with_solution(candidates[0], other), count=0, origin=origin, rejected=())
            found, candidates = other, [best, *candidates]
    return found, candidates


def _with_solution(candidate: Candidate, solution: Solution) -> Candidate:
    """A candidate with the energy and matching of the solution that it led to."""
    return replace(candidate, energy=max(solution.energy, 0.0), level="full", matching=solution.matching)


def refine_candidates(problem: StoredProblem, candidates: list[Candidate]) -> tuple[Solution, list[Candidate]]:
    """The lowest end among the best candidate and those as good as it, and the candidates
    with that one first.

    Energies of the search come from a few iterations, so near-equal ones are solved to the
    end before one is called the best or the matching ambiguous; the lowest is that of what
    the loop minimises, the entropy too. Small problems without entropy are solved from
    every candidate. Of candidates that bring plans only those are solved that are nearly as
    low as the lowest after one step, beyond 20 x 20 points; and the lowest once more,
    annealed further.
    """
    best, sharp, model = candidates[0], problem.has_no_entropy, problem.model
    slack, pairs = TINY * problem.unit, len(problem.p) * len(problem.q)  # energies are known no better
    near, most = (SHARP_TIE, 2) if sharp else (NEAR_TIE, 1)
    tied = [c for c in candidates[1:] if c.level == best.level == "full" and c.energy <= near * best.energy + slack]
    small = sharp and pairs <= (ANNEALED_BASINS_PAIRS if best.has_annealed_plan else SHARP_BASINS_PAIRS)
    by_plans = sharp and (best.has_annealed_plan or not model.is_standard)
    if by_plans and not model.is_standard:
        chosen = [c for c in candidates if c.start.plan is not None]
        candidates, contenders = _rank_after_one_step(problem, candidates, chosen, MODELS_NEARLY)
        contenders = contenders[:MODEL_ENDS]
    elif best.has_annealed_plan and not small:  # how low a plan leads, its own energy hardly says
        contenders = [c for c in candidates[:RACED] if c.selected and c.energy <= NEAR * best.energy + slack]
        if pairs <= COMPARED_PAIRS:
            candidates, contenders = _rank_after_one_step(problem, candidates, contenders, NEARLY)
    elif best.is_local_optimum:  # by a descent that the others had as well
        contenders = [best, *(c for c in tied[:most] if not c.is_local_optimum)]
    else:
        contenders = [best, *(candidates[1:] if small or best.level == "given" else tied[:most])]
    taken = descend_unregularized if by_plans else solve_unregularized if sharp else solve_entropic
    ends, quiet = list[Solution](), replace(problem, watch=problem.watch.without_callback())
    for position, candidate in enumerate(contenders):
        if position == 0 or not problem.watch.should_skip():
            if position:  # anchors of another basin
                restore_memory(problem.gradient, NOTHING)
            ends.append(problem.stage(f"solve-{position}", partial(taken, problem, candidate.start)))
        problem = quiet  # the callback hears of one solve
    minimised = [end.energy for end in ends]
    if (
        best.has_annealed_plan
        and not problem.watch.should_skip()
        and not is_clear_minimum(sorted(c.energy for c in candidates), NEAR)
    ):
        lowest = minimised.index(min(minimised))
        start = replace(contenders[lowest].start, plan=None)
        further = problem.stage("further", partial(solve_unregularized, problem, start))
        if further.energy < ends[lowest].energy:
            ends[lowest], minimised[lowest] = further, further.energy
    if not sharp and len(ends) > 1:
        entropies = to_host(*(model.entropy_term(end.plan, model.epsilon) for end in ends))
        minimised = [end.energy + float(entropy) for end, entropy in zip(ends, entropies, strict=True)]
    order = sorted(range(len(ends)), key=minimised.__getitem__)
    settled = [replace(_with_solution(contenders[i], ends[i]), is_local_optimum=sharp) for i in order]
    rest = [c for c in candidates if all(c is not each for each in contenders[: len(ends)])] + settled[1:]
    rest.sort(key=lambda c: (c.level != "full", c.energy))
    return ends[order[0]], [settled[0], *rest]


def _rank_after_one_step(
    problem: StoredProblem, candidates: list[Candidate], chosen: list[Candidate], nearly: float
) -> tuple[list[Candidate], list[Candidate]]:
    """The candidates, first the ``chosen`` after a conditional gradient from the plans that
    they bring, the lowest first; and those of these that are ``nearly`` as low as the
    lowest."""
    raced, quiet = list[Candidate](), replace(problem, watch=problem.watch.without_callback())
    for position, candidate in enumerate(chosen):
        if position and problem.watch.should_skip():
            break
        end = quiet.stage(f"race-{position}", partial(descend_unregularized, quiet, candidate.start, 1))
        start = replace(candidate.start, plan=end.plan.to(problem.masses[0]))
        raced.append(
            replace(_with_solution(candidate, end), start=start, has_annealed_plan=candidates[0].has_annealed_plan)
        )
    others = [c for c in candidates if all(c is not each for each in chosen[: len(raced)])]
    raced.sort(key=lambda c: c.energy)
    most = nearly * raced[0].energy + TINY * problem.unit
    return [*raced, *others], [c for c in raced if c.energy <= most]


def find_candidates(problem: StoredProblem) -> tuple[list[Candidate], Coarsening | None]:
    """What the user gave, else what the coarse stage found, the best first, else the
    product plan."""
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
        start = pairs_start(init, *problem.spaces, log_p, log_q, problem.model)
    if init is not None and not problem.exact:  # anchors are drawn from a plan, so the first problem is solved at once
        start = run_fixed_point(problem, start, problem.epsilon, 1).next_start
    return [Candidate(start, torch.zeros(0, dtype=torch.int64), 0.0, 1, "given", True)], None

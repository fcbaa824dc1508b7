"""The optimum with entropy from one start: fixed-point iterations, corrected where factors led, and the last linear
problem solved to the end."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

import torch

from torchgw.couplings.blocks import DenseCoupling
from torchgw.diagnostics.status import History, Status
from torchgw.objective.leading import SurrogateGradient
from torchgw.objective.linearise import Gradient, gradient_of
from torchgw.options import GWOptions
from torchgw.search.basins import estimate_energy
from torchgw.solvers.entropic import descend, finish, refine_by_newton, start_precision_check, with_tolerance
from torchgw.solvers.inner import StoredSolver
from torchgw.solvers.iterate import Loop
from torchgw.solvers.problem import StoredProblem
from torchgw.solvers.sampled import solve_by_sampling
from torchgw.solvers.solution import Solution
from torchgw.solvers.warm_start import WarmStart
from torchgw.types import is_metric

logger = logging.getLogger("torchgw")

ROUNDING_SLACK = 2.0
CORRECTIONS = 3  # by the exact gradient, at most
MOVED = 0.02  # of the mass: a plan that a correction moves by less has settled
LAST_ITERATIONS = 100  # of the last solve of a run that was ended from outside


def solve_entropic(problem: StoredProblem, start: WarmStart, history: History | None = None) -> Solution:
    """The entropic optimum at ``problem.epsilon``, or its fixed point, where a tolerance is given. A ``history`` is
    gone on with."""
    epsilon, options, watch = problem.epsilon, problem.options, problem.watch
    if problem.exact:
        metric = all(map(is_metric, problem.spaces))
        loop = Loop(watch, History() if history is None else history, options.stopping.max_iter)
        inner = problem.inner_at(epsilon)
        solution = descend(problem.gradient, start, inner, options, loop, resolved=True, metric=metric)
        if isinstance(problem.quadratic, SurrogateGradient):
            solution = _correct_factors(problem, solution)
        solution = replace(solution, coupling=None, last_change=0.0)
    else:
        model = replace(problem.model, epsilon=epsilon)
        solution = solve_by_sampling(problem.gradient, start, model, problem.kernels.stored, options, watch)
    if problem.tol is not None:
        solution, options = _refine_solution(problem, solution, problem.tol)
    return finish_solution(problem, solution, options)


def finish_solution(problem: StoredProblem, solution: Solution, options: GWOptions) -> Solution:
    """The solution with its last linear problem solved to the end, its plan feasible and stored."""
    model, epsilon, watch, warm = problem.model, problem.epsilon, problem.watch, solution.warm_start
    assert warm is not None
    assert warm.cost is not None
    inner = options.sinkhorn
    if watch.should_skip():  # rounding makes any plan feasible
        inner = replace(inner, final_max_iter=min(inner.final_max_iter, LAST_ITERATIONS))
    warning = start_precision_check(warm.cost, epsilon, options)
    last = finish(solution, epsilon, model, problem.kernels.stored, inner)
    assert last.warm_start is not None
    assert last.stored is not None
    # The plan decides, not the potentials: where they are too large to move, their differences vanish.
    settled = last.marginal_residual <= ROUNDING_SLACK * options.sinkhorn.tol
    energy = last.history.cost[-1]
    if not problem.exact and not model.is_standard:  # the loop watches its linear problem
        energy = estimate_energy(problem, last.stored)
    return replace(
        last,
        warm_start=last.warm_start.to(torch.float64),
        dual=warm.cost.column_dual(last.warm_start.g, model.q, epsilon),
        energy=energy,
        status=last.status if settled or last.status is Status.CANCELLED else Status.MARGINALS,
        precision_warning=warning(),
    )


def _correct_factors(problem: StoredProblem, solution: Solution) -> Solution:
    """The fixed point of the exact gradient, near that of the factors which led there.

    The factors' gradient is corrected to the exact one at the last plan until that hardly moves the plan, or a few
    times; where it still does, the exact gradient itself goes on.
    """
    leading, model, watch = problem.quadratic, problem.model, problem.watch
    assert isinstance(leading, SurrogateGradient)

    def descend_again(name: str, gradient: Gradient, start: WarmStart) -> Solution:
        loop = Loop(watch, solution.history, problem.options.stopping.max_iter)
        inner = problem.inner_at(problem.epsilon)
        whole = partial(descend, gradient, start, inner, problem.options, loop, resolved=True)
        return problem.stage(name, whole).add_iterations(solution)

    for number in range(CORRECTIONS if model.has_hard_marginals else 0):
        if watch.should_skip():
            return solution
        last, end, value = DenseCoupling(solution.plan), solution.warm_start, solution.history.cost[-1]
        assert end is not None
        gradient = gradient_of(model, leading.with_correction_at(last, problem.masses[0]))
        solution = descend_again(f"correct-{number}", gradient, replace(end, cost=gradient(last, problem.masses[0])))
        moved = float((solution.plan - last.plan).abs().sum() / last.plan.sum())
        logger.info("corrected by the exact gradient: the plan moved by %.3g", moved)
        still = problem.options.stopping.plan_tol * abs(solution.history.cost[-1])
        if moved <= MOVED or abs(solution.history.cost[-1] - value) <= still:
            return solution
    assert solution.warm_start is not None
    gradient = gradient_of(model, leading.exact)
    cost = gradient(DenseCoupling(solution.plan), problem.masses[0])
    return (
        solution if watch.should_skip() else descend_again("exact", gradient, replace(solution.warm_start, cost=cost))
    )


def _refine_solution(problem: StoredProblem, solution: Solution, tol: float) -> tuple[Solution, GWOptions]:
    """The fixed point near a solution, and the options that it was solved with."""
    assert solution.warm_start is not None
    assert problem.wide is not None
    start = solution.warm_start.to(torch.float64)
    options = with_tolerance(problem.options, tol, DenseCoupling(start.coupling().to_dense()), problem.model)
    inner = StoredSolver(problem.kernels.stored, problem.model, options.sinkhorn)
    arguments = problem.wide, start, problem.model, inner, options, problem.watch, solution.history
    found = problem.stage("fixed-point", partial(refine_by_newton, *arguments))
    return replace(found.add_iterations(solution), coupling=None), options

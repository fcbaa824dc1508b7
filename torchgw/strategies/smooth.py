"""The optimum with entropy from one start: fixed-point iterations, and the last linear problem solved to the end."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

import torch

from torchgw.couplings.blocks import DenseCoupling
from torchgw.diagnostics.status import History, Status
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

"""The optimum with entropy from one start: fixed-point iterations, and the last linear
problem solved to the end.

An epsilon that is left to the solve is lowered from its start while that sharpens the plan:

    epsilon_0 = 0.01 gain,   epsilon_{k+1} = epsilon_k / 3, each solved from the plan before

The start is large enough to find the basin and small beside what there is to gain. The plan
then follows its optimum down while it is no matching yet, its value is far above zero and
still falls, and matches still change: blur that costs nothing keeps potentials smooth and
solves short. A step that does not converge, or whose scores float32 cannot carry, is not
taken.

Source: K. Rose, "Deterministic annealing for clustering, compression, classification,
regression", 1998.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from functools import partial

import torch

from torchgw.couplings.blocks import DenseCoupling
from torchgw.diagnostics.evidence import EpsilonStep, entropy_and_margin
from torchgw.diagnostics.status import History, Status
from torchgw.options import GWOptions
from torchgw.problem.problem import Problem, StoredProblem
from torchgw.solvers.entropic import descend, finish, refine_by_newton, start_precision_check, with_tolerance
from torchgw.solvers.inner import StoredSolver
from torchgw.solvers.iterate import Loop
from torchgw.solvers.sampled import solve_by_sampling
from torchgw.solvers.solution import Solution
from torchgw.solvers.warm_start import WarmStart
from torchgw.types import is_metric

logger = logging.getLogger("torchgw")

ROUNDING_SLACK = 2.0
LAST_ITERATIONS = 100  # of the last solve of a run that was ended from outside
RATIO = 1 / 3
MOST_STEPS = 3
# Of the gain: a value below has nothing left that is worth a step; between few points steps
# are cheap.
LEFT, LEFT_OF_FEW, FEW_PAIRS = 0.02, 0.002, 2_000_000
FALL = 0.05  # of the value, that a step must have brought to be followed by another
SHARP = 0.05  # mean entropy of the rows, below which a plan is a matching
MOVED = 0.01  # of the mass, whose match a step must have changed likewise


def solve_entropic(problem: StoredProblem, start: WarmStart, history: History | None = None) -> Solution:
    """The entropic optimum at ``problem.epsilon``, or its fixed point, where a tolerance is
    given. A ``history`` is gone on with."""
    options, watch, model = problem.options, problem.watch, replace(problem.model, epsilon=problem.epsilon)
    if problem.exact:
        metric = all(map(is_metric, problem.spaces))
        loop = Loop(watch, History() if history is None else history, options.stopping.max_iter)
        inner = StoredSolver(problem.kernels.stored, model, options.sinkhorn)
        solution = descend(problem.gradient, start, inner, options, loop, resolved=True, metric=metric)
        solution = replace(solution, coupling=None, last_change=0.0)
    else:
        solution = solve_by_sampling(problem.gradient, start, model, problem.kernels.stored, options, watch)
    if problem.tol is not None:
        assert problem.wide is not None
        end = solution.next_start.to(torch.float64)
        options = with_tolerance(options, problem.tol, DenseCoupling(end.coupling().to_dense()), problem.model)
        inner = StoredSolver(problem.kernels.stored, problem.model, options.sinkhorn)
        arguments = problem.wide, end, problem.model, inner, options, watch, solution.history
        found = problem.stage("fixed-point", partial(refine_by_newton, *arguments))
        solution = replace(found.add_iterations(solution), coupling=None)
    return finish_solution(problem, solution, options)


def finish_solution(problem: StoredProblem, solution: Solution, options: GWOptions) -> Solution:
    """The solution with its last linear problem solved to the end, its plan feasible and
    stored."""
    model, epsilon, watch, inner = problem.model, problem.epsilon, problem.watch, options.sinkhorn
    cost = solution.next_start.cost
    assert cost is not None
    if watch.should_skip():  # rounding makes any plan feasible
        inner = replace(inner, final_max_iter=min(inner.final_max_iter, LAST_ITERATIONS))
    warning = start_precision_check(cost, epsilon, options)
    last = finish(solution, epsilon, model, problem.kernels.stored, inner)
    # The plan decides, not the potentials: where they are too large to move, their
    # differences vanish.
    settled = last.marginal_residual <= ROUNDING_SLACK * options.sinkhorn.tol
    energy = last.history.cost[-1]
    if not problem.exact and not model.is_standard:  # the loop watches its linear problem
        energy = float(problem.value(last.plan))
    end = last.next_start.to(torch.float64)
    return replace(
        last,
        warm_start=end,
        dual=end.column_dual(model.q),
        energy=energy,
        status=last.status if settled or last.status is Status.CANCELLED else Status.MARGINALS,
        precision_warning=warning(),
    )


def continue_in_epsilon(problem: StoredProblem, first: Solution, seconds: float) -> Solution:
    """The solution where epsilon stops falling, from ``first``, at the epsilon asked for,
    which took these seconds."""
    p, solution = problem.p, first
    path: tuple[EpsilonStep, ...] = (make_epsilon_step(problem, first, seconds),)
    least = (LEFT_OF_FEW if len(p) * len(problem.q) <= FEW_PAIRS else LEFT) * problem.energy_scale
    ends_here = problem.curves or problem.sharpens or problem.has_no_entropy or problem.tol is not None
    falls = problem.exact and not ends_here
    for number in range(1, MOST_STEPS + 1 if falls else 1):
        epsilon, end = path[-1].epsilon * RATIO, solution.warm_start
        left = solution.status.converged and path[-1].value > least
        if not left or end is None or end.cost is None or problem.watch.should_skip():
            break
        # A plan that is a matching has nothing to be sharpened.
        if float((p * entropy_and_margin(DenseCoupling(solution.plan))[0]).sum() / p.sum()) < SHARP:
            break
        if (reason := start_precision_check(end.cost, epsilon, problem.options)()) is not None:
            logger.info("epsilon %.3g is left out: %s", epsilon, reason)
            break
        began, start, colder = time.perf_counter(), end.to(problem.masses[0].dtype), problem.with_epsilon(epsilon)
        whole = partial(solve_entropic, colder, start, solution.history.copy())
        found = problem.stage(f"epsilon-{number}", whole)
        step = make_epsilon_step(colder, found, time.perf_counter() - began, solution)
        if not found.status.converged:
            logger.info("epsilon %.3g is left out: %s", epsilon, found.status)
            path = (*path[:-1], replace(path[-1], seconds=path[-1].seconds + step.seconds))
            break
        path, solution = (*path, step), found.add_iterations(solution)
        logger.info("continuation: %s", step)
        if step.value > (1 - FALL) * path[-2].value or step.moved < MOVED:
            break
    return replace(solution, path=path)


def make_epsilon_step(problem: Problem, found: Solution, seconds: float, before: Solution | None = None) -> EpsilonStep:
    """What is told of the epsilon asked for, which begins a path, or goes on from a
    solution ``before``."""
    moved = 0.0
    if before is not None:
        moved = float(problem.p @ (found.matching != before.matching).to(problem.p) / problem.p.sum())
    return EpsilonStep(
        epsilon=problem.model.epsilon,
        value=max(found.energy, 0.0),
        moved=moved,
        n_iter=found.n_iter,
        n_iter_sinkhorn=found.n_iter_sinkhorn,
        seconds=seconds,
    )

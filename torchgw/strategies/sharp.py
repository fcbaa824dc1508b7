"""The optimum without entropy: epsilon annealed down while the value falls, then
conditional gradients.

    potentials and a plan at a small epsilon -> a vertex of its linear problem -> steps to vertices -> stationary

Between many points that have factors, plans and vertices have few entries
(`torchgw.solvers.sparse_descent`).
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling
from torchgw.couplings.rounding import make_feasible
from torchgw.diagnostics.status import History, Status
from torchgw.objective.exact import ExactGradient
from torchgw.objective.model import mean_cost
from torchgw.problem.problem import StoredProblem
from torchgw.runtime.transfer import to_host
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.solvers.assignment import AssignmentProblem
from torchgw.solvers.conditional_gradient import DenseProgram, conditional_gradient
from torchgw.solvers.entropic import descend, start_precision_check
from torchgw.solvers.inner import StoredSolver
from torchgw.solvers.iterate import Loop
from torchgw.solvers.linear_oracle import equal_masses, has_vertex_solver, north_west_corner
from torchgw.solvers.minimum_cost_flow import TransportError
from torchgw.solvers.model_form import ModelForm
from torchgw.solvers.solution import Solution
from torchgw.solvers.sparse_descent import FactoredProgram, FactoredState
from torchgw.solvers.transport_costs import Order
from torchgw.solvers.warm_start import WarmStart
from torchgw.strategies.entropic import make_epsilon_step
from torchgw.types import is_symmetric

logger = logging.getLogger("torchgw")

FALL = 0.2  # of epsilon, to which it is annealed
RATIO = 0.5
STEPS = 4
PROGRESS = 1e-3
ANNEALED_TOL, ANNEALED_ITERATIONS = 1e-2, 20  # of linear problems while annealing: of their plans a vertex is read
TOLERANCE = 1e-6  # of the Frank-Wolfe gap, over the value
EXCHANGED_PAIRS = 250_000
FACTORED_PAIRS = 250_000  # from which vertices between factors take less by their entries alone
NEGLIGIBLE = 1e-13  # of the mass of a point, and of all mass that moves


def solve_unregularized(problem: StoredProblem, start: WarmStart, history: History | None = None) -> Solution:
    """A stationary plan without entropy, found from a start; a ``history`` is gone on with.

    Conditional gradients begin from the plan of a start that brings one, and annealing only
    finds potentials."""
    # A search that has cooled further is gone on from where it came to.
    epsilon, history = min(problem.epsilon, start.epsilon or math.inf), History() if history is None else history
    limit = len(history.iteration) + problem.options.stopping.max_iter
    steps = STEPS if start.plan is None else 1
    now, step = _anneal(problem, start, epsilon, history, 0, min(steps, limit)), 1
    while (
        start.plan is None
        and epsilon > FALL * problem.epsilon
        and len(now.history.iteration) < limit
        and not problem.watch.should_skip()
    ):
        before, epsilon, left = now.history.cost[-1], epsilon * RATIO, limit - len(now.history.iteration)
        now = _anneal(problem, now.next_start, epsilon, now.history, step, min(STEPS, left)).add_iterations(now)
        step += 1
        if now.history.cost[-1] > (1 - PROGRESS) * before:
            break
    end = now.next_start
    assert end.cost is not None
    dual = end.cost.column_dual(end.g.to(torch.float64), problem.q, epsilon)
    plan, left = now.plan if start.plan is None else start.plan, max(limit - len(now.history.iteration), 1)
    found = descend_from_plan(problem, plan, dual, now.history, left, kept=start.plan is not None)
    found = _improve_by_exchanges(problem, found, limit)
    warning = start_precision_check(end.cost, epsilon, problem.options)()
    return replace(found.add_iterations(now), precision_warning=warning)


def descend_unregularized(problem: StoredProblem, start: WarmStart, max_iter: int | None = None) -> Solution:
    """The stationary plan that conditional gradients reach from the plan of a start, beside
    its own potentials."""
    assert start.plan is not None
    dual, limit = start.column_dual(problem.masses[1]), problem.options.stopping.max_iter
    found = descend_from_plan(problem, start.plan, dual, History(), max_iter, rough=True)
    return found if max_iter == 1 else _improve_by_exchanges(problem, found, limit)


def sharpen(problem: StoredProblem, first: Solution) -> Solution:
    """The optimum without entropy that an entropic one becomes, at the end of its path;
    that one where it did not settle, or where nothing lower was found."""
    if first.warm_start is None or not first.status.converged or problem.watch.should_skip():
        return first
    began, start = time.perf_counter(), first.warm_start.to(problem.masses[0].dtype)
    sharp = problem.with_epsilon(0.0)
    found = problem.stage("sharpen", partial(solve_unregularized, sharp, start, first.history.copy()))
    if found.energy > first.path[-1].value or not (found.status.converged or problem.watch.should_skip()):
        logger.info("the sharp end at %.6g is not taken: %s", found.energy, found.status)
        return first
    step = make_epsilon_step(sharp, found, time.perf_counter() - began, first)
    logger.info("sharpened: %s", step)
    return replace(found.add_iterations(first), path=(*first.path, step))


def _improve_by_exchanges(problem: StoredProblem, found: Solution, limit: int) -> Solution:
    """What exchanges of matches lead to, which steps to first order do not see, between few
    points of equal masses; a history of ``limit`` entries at most. The same where that is
    no lower."""
    (p, q), wide, symmetric = problem.model.masses, problem.wide, all(map(is_symmetric, problem.spaces))
    assert wide is not None
    few = len(p) * len(q) <= EXCHANGED_PAIRS and equal_masses(*(mass.numpy() for mass in to_host(p, q)))
    if not few or not problem.model.is_standard or problem.watch.should_skip():
        return found
    every = torch.arange(len(p), device=p.device)
    between = AssignmentProblem(wide.source.rows(every), wide.target.rows(every), symmetric)
    plan = between.round_and_exchange(found.plan.cpu())
    if between.value(plan) >= (1 - TOLERANCE) * found.energy:
        return found
    assert found.dual is not None
    with problem.watch.within("exchanged"):
        left = max(limit - len(found.history.iteration), 1)
        return descend_from_plan(problem, plan.to(p), found.dual, found.history, left).add_iterations(found)


def _anneal(
    problem: StoredProblem, start: WarmStart, epsilon: float, history: History, step: int, steps: int
) -> Solution:
    """A few iterations at one epsilon on the way to zero."""
    sinkhorn = problem.options.sinkhorn
    rough = replace(
        sinkhorn, tol=max(sinkhorn.tol, ANNEALED_TOL), exact_max_iter=min(sinkhorn.exact_max_iter, ANNEALED_ITERATIONS)
    )
    loop, options = Loop(problem.watch, history, steps), replace(problem.options, sinkhorn=rough)
    inner = StoredSolver(problem.kernels.stored, replace(problem.model, epsilon=epsilon), rough)
    whole = partial(descend, problem.gradient, start, inner, options, loop)
    return problem.stage(f"anneal-{step}", whole)


def descend_from_plan(
    problem: StoredProblem,
    plan: Tensor,
    dual: Tensor,
    history: History,
    max_iter: int | None = None,
    *,
    kept: bool = True,
    exact: bool = False,
    rough: bool = False,
) -> Solution:
    """Where conditional gradients lead from a plan (N, K), by the objective of any model.

    Parameters
    ----------
    dual : column potentials (K,) of the plan's linear problem.
    history : gone on with, for ``max_iter`` iterations at most.
    kept : whether the plan is left for a lower one only.
    exact : whether vertices are the best of all.
    rough : whether the potentials are far from those of the linear problem of a model.
    """
    model, (p, q), wide, before = problem.model, problem.model.masses, problem.wide, len(history.iteration)
    assert wide is not None
    least, max_iter = torch.finfo(p.dtype).eps * problem.unit, max_iter or problem.options.stopping.max_iter
    loop = Loop(problem.watch, history, max_iter, TOLERANCE, least)
    plan, cost = plan.to(torch.float64, copy=True), None
    if model.is_standard:
        plan = make_feasible(plan, p, q)
        between = _descend_between_factors(problem, wide, plan, dual, kept, loop)
        if between is None:
            loop = replace(loop, max_iter=max(max_iter - len(history.iteration) + before, 1))
            found, status = conditional_gradient(DenseProgram(wide, p, q), plan, dual, loop)
            value, ended, dual = found.value, found.plan, found.dual
            if wide.has_matrices:
                matrix = found.cost.sub_(wide.a[:, None]).sub_(wide.b)
                cost = FactoredCost.from_matrix(matrix, wide.a, wide.b)
        else:
            sparse, status = between
            value, ended, dual = sparse.value, sparse.plan.to_dense(), sparse.dual
    else:
        form = ModelForm(model, wide, exact)
        duals = torch.zeros_like(form.q) if rough else form.extend_duals(dual)
        found, status = conditional_gradient(form, form.extend(plan), duals, loop)
        value, ended, dual = found.value, form.restrict(found.plan), form.restrict_duals(found.dual)
        ended[ended < NEGLIGIBLE / max(ended.shape)] = 0.0  # what points keep by rounding alone
    return Solution(
        coupling=DenseCoupling(ended),
        warm_start=None,
        status=status,
        n_iter=len(history.iteration) - before,
        n_iter_sinkhorn=0,
        history=history,
        energy=value,
        dual=dual,
        cost=cost,
    )


def _descend_between_factors(
    problem: StoredProblem, exact: ExactGradient, plan: Tensor, dual: Tensor, kept: bool, loop: Loop
) -> tuple[FactoredState, Status] | None:
    """From vertex to vertex between factors; None where spaces have none, points are few or
    without mass, or where the end is above a plan to be ``kept``."""
    p, q = problem.model.masses
    many = len(p) * len(q) >= FACTORED_PAIRS and has_vertex_solver(len(p), len(q))
    factored = exact.source.factors() is not None and exact.target.factors() is not None
    if not (many and factored) or loop.max_iter == 1 or min(p.min(), q.min()) <= 0 or problem.watch.should_skip():
        return None
    coupling = DenseCoupling(plan)
    cost = exact(coupling, p)
    order = Order.of(cost)
    rows, columns = (mass.numpy() for mass in to_host(p, q))
    feasible = north_west_corner(rows, columns, order, plan.argmax(0).cpu().numpy())
    descent = partial(FactoredProgram(exact, order, p, q).descend_from_vertex, cost, dual, feasible, loop)
    try:
        found, status, entries = problem.stage("between-factors", lambda: (*descent(), loop.history))
    except TransportError as error:
        logger.info("%s; whole matrices go on", error)
        return None
    loop.history.go_on_from(entries.copy())
    return None if kept and found.value > float(mean_cost(cost, coupling, p, q)) else (found, status)

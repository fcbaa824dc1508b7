"""A solve without entropy between many points that have factors: a streamed plan, and from it vertices of few entries.

    potentials of a small epsilon on all points -> entries that they leave -> conditional gradients between vertices

of many points between vertices of cells first, see `torchgw.strategies.vertex_levels`.

Nothing of the size N K is stored, and the end is a plan of about N + K entries with its dual potentials, which bound
the cost of every pair of points.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from functools import partial

import torch

from torchgw.diagnostics.evidence import Basin
from torchgw.diagnostics.status import Status
from torchgw.objective.certify import PlanStatistics, certify
from torchgw.objective.exact import ExactGradient
from torchgw.objective.value import Objective
from torchgw.solvers.iterate import Loop
from torchgw.solvers.minimum_cost_flow import TransportError
from torchgw.solvers.problem import Problem
from torchgw.solvers.solution import CertifiedSolution, Solution
from torchgw.strategies.cells import StreamedProblem, lift_basins, make_streamed_problem, solve_on_cells
from torchgw.strategies.ladder import MultilevelState, refine_to_all_points
from torchgw.strategies.sharp import FALL
from torchgw.strategies.streaming import finish_tiles, keep_tiles
from torchgw.strategies.vertex_levels import TOLERANCE, descend_by_levels

logger = logging.getLogger("torchgw")


def solve_by_vertices(asked: Problem) -> CertifiedSolution:
    """Solve without entropy, with memory for a few entries of each point."""
    began = time.perf_counter()
    blurred = replace(asked, model=asked.model.with_epsilon(FALL * asked.epsilon), auto=False, sharpens=False)
    problem = make_streamed_problem(blurred)
    first, basins, seconds = solve_on_cells(problem)
    searched = time.perf_counter() - seconds["solve"]
    state, solution = refine_to_all_points(problem, first, sum(seconds.values()))
    if asked.watch.should_skip():
        return _streamed_solution(problem, state, solution, solution.status, seconds | {"finish": 0.0}, basins)
    (p, q), end = asked.model.masses, state.warm_start
    assert end.cost is not None
    assert end.epsilon is not None
    x, y = (space.to(p.device, torch.float64) for space in asked.spaces)
    duals = end.cost.T.column_dual(end.f, p, end.epsilon), end.cost.column_dual(end.g, q, end.epsilon)
    least = torch.finfo(torch.float64).eps * asked.unit
    loop = Loop(asked.watch, solution.history, asked.options.stopping.max_iter, least=least)
    try:
        found, status, history = asked.stage(
            "vertices", partial(descend_by_levels, (x, y), p, q, end.cost, duals, loop)
        )
    except TransportError as error:
        logger.info("%s; the plan that streamed is returned", error)
        return _streamed_solution(problem, state, solution, Status.TRANSPORT, seconds | {"finish": 0.0}, basins)
    if status is Status.STATIONARY and found.gap > TOLERANCE * found.value:
        status = Status.SETTLED  # steps gain little, but a better plan nearby is not ruled out
    solved = time.perf_counter()
    plan, dual = found.plan, found.dual
    gradient, marginals = ExactGradient(x, y, p, q), (plan.marginal(1), plan.marginal(0))
    read = PlanStatistics(
        quadratic=Objective(max(found.value, 0.0), True, 0.0),
        cost=gradient(plan, p),
        means=(gradient.a, gradient.b),
        expected=found.value,
        marginals=marginals,
        linear=0.0,
        penalty=0.0,
    )
    values, certificate = certify(read, dual, (x, y), asked.model, asked.unit, asked.generator)
    certificate = replace(certificate, stationarity=found.gap, stationarity_exact=True)
    ended = replace(
        solution,
        coupling=plan,
        warm_start=None,
        status=status,
        n_iter=solution.n_iter + found.n_iter,
        history=history,
        energy=found.value,
        dual=dual,
    )
    return ended.with_certificate(
        marginals=marginals,
        gradient="exact",
        value_exact=True,
        value_error=0.0,
        values=values,
        certificate=certificate,
        basins=lift_basins(problem, basins),
        ladder=state.levels,
        seconds={"search": searched - began, "solve": solved - searched, "finish": time.perf_counter() - solved},
    )


def _streamed_solution(
    problem: StreamedProblem,
    state: MultilevelState,
    solution: Solution,
    status: Status,
    seconds: dict[str, float],
    basins: tuple[Basin, ...],
) -> CertifiedSolution:
    """What streamed, where no vertex was found from it."""
    found = finish_tiles(problem, keep_tiles(problem, state), state, solution)
    return replace(found, status=status, basins=lift_basins(problem, basins), seconds=seconds)

"""A dense solve between curves, begun between cells of their points: what cells find is finished as a stored plan.

    search and descent on cells -> the climb to all points -> their linear problem solved in float64, and rounded

On curves cells are quadrature nodes that a plan of all points hardly differs from, so descents on all points would only
repeat what those on cells did, at many times their cost.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torchgw.couplings.blocks import DenseCoupling
from torchgw.objective.model import mean_cost
from torchgw.options import StoppingOptions
from torchgw.solvers.problem import Problem, StoredProblem
from torchgw.solvers.solution import CertifiedSolution
from torchgw.strategies.cells import lift_basins, make_streamed_problem, solve_on_cells
from torchgw.strategies.dense import InitialSolution, solve_dense
from torchgw.strategies.ladder import refine_to_all_points
from torchgw.strategies.smooth import finish_solution


def solve_from_cells(asked: Problem) -> CertifiedSolution:
    """Solve with a stored plan, from cells where that pays."""
    return solve_dense(asked, begin=partial(_begin_on_cells, asked) if _should_use_cells(asked) else None)


def _should_use_cells(asked: Problem) -> bool:
    """Whether it is between many points on curves, and no more precise than cells are."""
    loose = asked.options.stopping.plan_tol >= StoppingOptions().plan_tol
    return asked.curves and loose and not asked.has_no_entropy and asked.tol is None


def _begin_on_cells(asked: Problem, problem: StoredProblem) -> InitialSolution:
    with asked.watch.within("cells"):
        between = make_streamed_problem(asked)
        first, basins, seconds = solve_on_cells(between)
        state, solution = refine_to_all_points(between, first, sum(seconds.values()))
    found = finish_solution(problem, solution, problem.options)
    plan, (p, q) = DenseCoupling(found.plan.to(problem.masses[0])), problem.masses
    energy = mean_cost(problem.gradient(plan, p), plan, p, q)
    return InitialSolution(
        replace(found, energy=float(energy)), seconds["search"], lift_basins(between, basins), state.levels
    )

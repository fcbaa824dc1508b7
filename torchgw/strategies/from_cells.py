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
from torchgw.solvers.problem import Problem, StoredProblem
from torchgw.solvers.solution import CertifiedSolution
from torchgw.strategies.cells import solve_on_cells, streamed
from torchgw.strategies.dense import Begun, finished, solve_dense
from torchgw.strategies.ladder import climbed

CELLS_PAIRS = 500_000  # from which on it pays (measured)


def solve_stored(asked: Problem) -> CertifiedSolution:
    """Solve with a stored plan, from cells where that pays."""
    return solve_dense(asked, begin=partial(_from_cells, asked) if _pays(asked) else None)


def _pays(asked: Problem) -> bool:
    """Whether a search between curves is asked for, with factors and of enough points."""
    model, options = asked.model, asked.options
    free = options.strategy == "auto" and asked.exact and not asked.sharp and asked.tol is None
    searched = options.coarse is not None and asked.init is None
    many = len(model.p) * len(model.q) >= CELLS_PAIRS and all(space.factors() is not None for space in asked.spaces)
    return asked.curves and free and searched and model.plain and many


def _from_cells(asked: Problem, problem: StoredProblem) -> Begun:
    between = streamed(asked)
    first, basins, seconds = solve_on_cells(between)
    state, solution = climbed(between, first, sum(seconds.values()))
    found = finished(problem, solution, problem.options)
    plan, (p, q) = DenseCoupling(found.plan.to(problem.masses[0])), problem.masses
    energy = mean_cost(problem.gradient(plan, p), plan, p, q)
    return Begun(replace(found, energy=float(energy)), seconds["search"], basins, state.rungs)

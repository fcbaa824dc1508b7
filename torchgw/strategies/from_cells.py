"""A dense solve between curves, begun between cells of their points: what cells find is finished as a stored plan.

    search and descent on cells -> the climb to all points -> their linear problem solved in float64, and rounded

On curves cells are quadrature nodes that a plan of all points hardly differs from, so descents on all points would only
repeat what those on cells did, at many times their cost.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from torchgw.couplings.blocks import DenseCoupling
from torchgw.losses import SQUARE
from torchgw.objective.linearise import ModelGradient
from torchgw.objective.model import mean_cost
from torchgw.solvers.problem import Problem, StoredProblem
from torchgw.solvers.solution import CertifiedSolution, Solution
from torchgw.strategies.cells import solve_on_cells, streamed
from torchgw.strategies.dense import Begun, finished, solve_dense
from torchgw.strategies.ladder import climb

CELLS_PAIRS = 500_000  # from which on it pays (measured)


def solve_stored(asked: Problem) -> CertifiedSolution:
    """Solve with a stored plan, from cells where that pays."""
    return solve_dense(asked, begin=partial(_from_cells, asked) if _pays(asked) else None)


def _pays(asked: Problem) -> bool:
    """Whether both spaces are curves with factors, of enough points."""
    model, free = asked.model, asked.options.strategy == "auto" and asked.exact and not asked.sharp
    many = len(model.p) * len(model.q) >= CELLS_PAIRS and all(space.factors() is not None for space in asked.spaces)
    return asked.curves and free and asked.tol is None and model.fixed and model.loss is SQUARE and many


def _from_cells(asked: Problem, problem: StoredProblem) -> Begun:
    between = streamed(asked)
    first, basins, seconds = solve_on_cells(between)
    climbed, status, history = asked.stage("climb", lambda: climb(between, first, sum(seconds.values())))
    solution = Solution(
        coupling=None,
        end=climbed.end,
        status=status,
        n_iter=climbed.n_iter,
        n_iter_sinkhorn=climbed.n_iter_sinkhorn,
        history=history,
    )
    if not all(bool((side < math.inf).all()) for side in (climbed.f, climbed.g)):  # NaN as well
        raise FloatingPointError(f"epsilon = {asked.epsilon:g} is too small: potentials are beyond what float64 holds")
    found = finished(problem, solution, problem.options)
    plan, (p, q) = DenseCoupling(found.plan.to(problem.masses[0])), problem.masses
    if isinstance(problem.gradient, ModelGradient):
        energy = problem.gradient.evaluated(plan, p)[1]
    else:
        energy = mean_cost(problem.gradient(plan, p), plan, p, q)
    return Begun(replace(found, energy=float(energy)), seconds["search"], basins, climbed.rungs)

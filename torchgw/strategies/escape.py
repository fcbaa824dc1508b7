"""From a stationary plan that is a saddle to one that is not.

A fixed-point iteration ends where it no longer moves, and a start that has the symmetry of the problem leaves it at a
saddle: the mean of several matchings that are as good. There the Hessian (`torchgw.objective.hessian`) has a negative
eigenvalue along some change W, and the objective falls both ways: the plan goes on from T exp(t W / T), and where that
ends no lower from T exp(-t W / T), until no eigenvalue is negative.

A few steps of Lanczos are enough to tell: Ritz values lie above the smallest eigenvalue, so that a negative one proves
one, and where it is isolated they find it at once. Which of two plans is lower, the objective with its entropy says.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling
from torchgw.linalg.eigenpairs import ExtremeEigenpairs, lanczos
from torchgw.objective.exact import ExactGradient
from torchgw.objective.hessian import FLAT, Hessian
from torchgw.objective.model import Model, mean_cost
from torchgw.solvers.hessian import hessian_of
from torchgw.solvers.problem import StoredProblem
from torchgw.solvers.solution import Solution
from torchgw.solvers.warm_start import WarmStart
from torchgw.strategies.smooth import solve_entropic
from torchgw.types import DistanceProvider

logger = logging.getLogger("torchgw")

# Pairs of points up to which products with the Hessian are a small part of a solve: where it began with a search, which
# hardly ever ends at a saddle, and where it began from a plan.
SEARCHED_PAIRS, MOST_PAIRS = 60_000, 250_000
STEPS, TOLERANCE = 16, 1e-3
FEW_STEPS, FIRM = 6, 0.5  # of Lanczos, from which on a smallest Ritz value above this is looked into no further
MOST_ESCAPES = 8
LENGTH = 0.5  # of a step, the root of sum W^2 / T
MOST_LOG = 3.0  # logarithm of the factor that an entry changes by at most
LOWER = 1e-9  # of the largest squared distance: an end that is lower by less is the same


class SaddleCheck(NamedTuple):
    """A solution that is no saddle as far as was looked.

    solution : itself.
    curvature, curvature_error : a bound from above on the smallest eigenvalue of the Hessian around it, infinite where
        the plan has no change, and how far from an eigenvalue it may be; None where nobody looked.
    escapes : how many saddles were left behind.
    """

    solution: Solution
    curvature: float | None = None
    curvature_error: float | None = None
    escapes: int = 0


def should_check_saddle(problem: StoredProblem, solution: Solution, epsilon: float) -> bool:
    """Whether a saddle is looked for: near plans with entropy that are stationary, where it costs little, or matters
    as the solve began from a plan; not from pairs, which choose among symmetries."""
    init, pairs = problem.init, len(problem.p) * len(problem.q)
    if init is not None and not init.is_floating_point():
        return False
    searched = init is None and problem.options.coarse is not None
    few = pairs <= (SEARCHED_PAIRS if searched else MOST_PAIRS)
    bent = epsilon > 0 and problem.exact and problem.model.alpha > 0
    return bent and few and solution.status.converged and not problem.watch.should_skip()


def escape_saddle(
    problem: StoredProblem, solution: Solution, spaces: tuple[DistanceProvider, DistanceProvider]
) -> SaddleCheck:
    """The solution of a problem with entropy, or the lower one that its saddle leads to; ``spaces`` in float64."""
    quiet, escapes, model = replace(problem, watch=problem.watch.without_callback()), 0, problem.model
    quadratic = ExactGradient(*spaces, *model.masses, model.loss)
    while True:
        hessian = hessian_of(DenseCoupling(solution.plan.double()), model, spaces, not model.has_hard_marginals)
        empty = hessian.size == 0  # of a space whose distances are all zero, or a plan without mass
        ends = None if empty else lanczos(hessian, 1, tol=TOLERANCE, max_steps=STEPS, enough=_is_clearly_positive)
        if ends is None or len(ends.values) == 0:
            return SaddleCheck(solution, math.inf, 0.0, escapes)
        curvature = float(ends.values[0])
        found = SaddleCheck(solution, curvature, float(ends.errors[0]), escapes)
        left = problem.options.stopping.max_iter - solution.n_iter
        if curvature >= -FLAT or escapes == MOST_ESCAPES or left < 1 or problem.watch.should_skip():
            return found
        stopping = replace(problem.options.stopping, max_iter=left)
        further = replace(quiet, options=replace(problem.options, stopping=stopping))
        bound = _evaluate_objective(model, quadratic, solution) - LOWER * problem.unit
        for number, start in enumerate(_make_saddle_starts(further, solution, hessian, ends)):
            descent = partial(solve_entropic, further, start, solution.history.copy())
            try:
                best = quiet.stage(f"escape-{escapes}-{number}", descent)
            except FloatingPointError as error:  # of this way alone: the plan that it began near is as good as before
                logger.info("a way from a saddle led nowhere: %s", error)
                continue
            if _evaluate_objective(model, quadratic, best) < bound:
                break
        else:
            return found
        logger.info("a saddle, eigenvalue %.3g: from %.6g to %.6g", curvature, solution.energy, best.energy)
        ended = tuple(replace(step, value=max(best.energy, 0.0)) for step in solution.path[-1:])
        solution, escapes = replace(best.add_iterations(solution), path=solution.path[:-1] + ended), escapes + 1


def _is_clearly_positive(values: Tensor) -> bool:
    """Whether Ritz values are so far from zero that none will fall below."""
    return len(values) >= FEW_STEPS and bool(values[0] > FIRM)


def _make_saddle_starts(
    problem: StoredProblem, solution: Solution, hessian: Hessian, ends: ExtremeEigenpairs
) -> list[WarmStart]:
    """Starts on both sides of a plan, along the change of the smallest eigenvalue."""
    T, W = solution.plan.double(), hessian.change(ends.vectors[:, 0]).change.to_dense()
    ratio = torch.where(T > 0, W / T, 0.0)
    ratio = ratio * (LENGTH / (T * ratio.square()).sum().sqrt())
    return [
        _start_from_plan(problem, solution, T * (sign * ratio).clamp(-MOST_LOG, MOST_LOG).exp()) for sign in (1.0, -1.0)
    ]


def _start_from_plan(problem: StoredProblem, solution: Solution, plan: Tensor) -> WarmStart:
    """From a plan (N, K), whose mass is made that of the solution's."""
    p = problem.masses[0]
    coupling = DenseCoupling((plan * (solution.plan.sum() / plan.sum())).to(p))
    assert solution.warm_start is not None
    cost = problem.gradient(coupling, p)
    return replace(solution.warm_start.to(p.dtype), cost=cost, epsilon=problem.epsilon)


def _evaluate_objective(model: Model, quadratic: ExactGradient, solution: Solution) -> float:
    """F of a solution with its entropy, in float64."""
    plan = solution.plan.double()
    coupling = DenseCoupling(plan)
    rows, columns = plan.sum(1), plan.sum(0)
    raw = quadratic(coupling, rows, columns)
    linear = model.linear(plan.dtype)
    parts = (mean_cost(cost, plan, rows, columns) if cost is not None else 0.0 for cost in (raw, linear))
    value, weighed = parts
    return float(
        model.total(value, model.divergences(rows, columns), weighed) + model.entropy_term(plan, model.epsilon)
    )

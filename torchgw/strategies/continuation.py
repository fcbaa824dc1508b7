"""An epsilon that is left to the solve, lowered from its start while that sharpens the plan.

    epsilon_0 = 0.01 gain,   epsilon_{k+1} = epsilon_k / 3, each solved from the plan before

The start is large enough to find the basin and small beside what there is to gain. The plan then follows its optimum
down while it is no matching yet, its value is far above zero and still falls, and matches still change: blur that costs
nothing keeps potentials smooth and solves short. A step that does not converge, or whose scores float32 cannot carry,
is not taken.

Source: K. Rose, "Deterministic annealing for clustering, compression, classification, regression", 1998.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling
from torchgw.diagnostics.evidence import EpsilonStep, entropy_and_margin
from torchgw.diagnostics.status import History
from torchgw.solvers.entropic import start_precision_check
from torchgw.solvers.problem import Problem, StoredProblem
from torchgw.solvers.solution import Solution
from torchgw.solvers.warm_start import WarmStart

logger = logging.getLogger("torchgw")

RATIO = 1 / 3
MOST_STEPS = 3
# Of the gain: a value below has nothing left that is worth a step; between few points steps are cheap.
LEFT, LEFT_OF_FEW, FEW_PAIRS = 0.02, 0.002, 2_000_000
FALL = 0.05  # of the value, that a step must have brought to be followed by another
SHARP = 0.05  # mean entropy of the rows, below which a plan is a matching
MOVED = 0.01  # of the mass, whose match a step must have changed likewise

Solve = Callable[[StoredProblem, WarmStart, History], Solution]


def continue_in_epsilon(problem: StoredProblem, first: Solution, seconds: float, solve: Solve) -> Solution:
    """The solution where epsilon stops falling, from ``first``, at the epsilon asked for, which took these seconds."""
    p, solution = problem.p, first
    path: tuple[EpsilonStep, ...] = (make_epsilon_step(problem, first, seconds),)
    few = len(problem.p) * len(problem.q) <= FEW_PAIRS
    least = (LEFT_OF_FEW if few else LEFT) * problem.energy_scale
    for number in range(1, MOST_STEPS + 1):
        epsilon, end = path[-1].epsilon * RATIO, solution.warm_start
        left = problem.lowers_epsilon and solution.status.converged and path[-1].value > least
        if (
            not left
            or end is None
            or end.cost is None
            or problem.watch.should_skip()
            or mean_row_entropy(solution, p) < SHARP
        ):
            break
        reason = start_precision_check(end.cost, epsilon, problem.options)()
        if reason is not None:
            logger.info("epsilon %.3g is left out: %s", epsilon, reason)
            break
        began, start = time.perf_counter(), end.to(problem.masses[0].dtype)
        found = problem.stage(
            f"epsilon-{number}", partial(solve, problem.with_epsilon(epsilon), start, solution.history.copy())
        )
        spent = time.perf_counter() - began
        if not found.status.converged:
            logger.info("epsilon %.3g is left out: %s", epsilon, found.status)
            path = (*path[:-1], replace(path[-1], seconds=path[-1].seconds + spent))
            break
        moved = float(p @ (found.plan.argmax(1) != solution.plan.argmax(1)).to(p) / p.sum())
        path = (*path, replace(make_epsilon_step(problem, found, spent), epsilon=epsilon, moved=moved))
        logger.info("continuation: %s", path[-1])
        solution = found.add_iterations(solution)
        if path[-1].value > (1 - FALL) * path[-2].value or moved < MOVED:
            break
    return replace(solution, path=path)


def mean_row_entropy(solution: Solution, p: Tensor) -> float:
    """Mean entropy of the rows of a stored plan, in nats, over points with masses p (N,)."""
    entropy = entropy_and_margin(DenseCoupling(solution.plan))[0]
    return float((p * entropy).sum() / p.sum())


def make_epsilon_step(problem: Problem, found: Solution, seconds: float) -> EpsilonStep:
    """What is told of the epsilon asked for, which begins a path."""
    return EpsilonStep(
        epsilon=problem.model.epsilon,
        value=max(found.energy, 0.0),
        moved=0.0,
        n_iter=found.n_iter,
        n_iter_sinkhorn=found.n_iter_sinkhorn,
        seconds=seconds,
    )

"""Factors near the distances of spaces without any, where products of these distances take
most of a solve.

Distances that are smooth along curves and surfaces have leading factors whose error is
below that of landmarks (`torchgw.spaces.low_rank`). A dense solve begins with their
gradient, and ends with the exact one; a streaming solve has them in place of the distances.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import torch

from torchgw.kernels.precision import loop_dtype
from torchgw.losses import SQUARE
from torchgw.objective.exact import ExactGradient
from torchgw.objective.linearise import gradient_of
from torchgw.problem.problem import Problem, StoredProblem
from torchgw.runtime.transfer import to_host
from torchgw.solvers.linear_oracle import equal_masses
from torchgw.spaces import PrecomputedDistances
from torchgw.spaces.low_rank import approximate_distances
from torchgw.types import DistanceProvider, is_metric, multiplies

# Multiplications of products of stored distances with a plan, from which factors near the
# distances pay, and between unequal masses without entropy; the residual that these factors
# should leave, and may leave, in each case.
SLOW_WORK, VERTEX_WORK = {"cpu": 4e10, "cuda": 4e12}, 5e9
RESIDUAL, SHARP_RESIDUAL, MOST_LEFT = 0.02, 0.0025, 0.05
# Residual of the factors of streamed solves: sought, accepted, and their most rank.
STREAMED_RESIDUAL, MOST_STREAMED, MOST_RANK = 0.005, 0.01, 128


def approximate_problem(asked: Problem) -> Problem | None:
    """The problem between factors, where products of distances take long, these may be
    stored to find factors, and the factors leave little; else None."""
    factored = all(space.factors() is not None for space in asked.spaces)
    if asked.tol is not None or factored or not products_are_slow(asked):
        return None
    spaces = asked.stage("factors", partial(approximate_spaces, asked, STREAMED_RESIDUAL, MOST_STREAMED, MOST_RANK))
    return None if spaces is None else Problem.of(asked, spaces=spaces)


def make_surrogate(problem: StoredProblem) -> StoredProblem | None:
    """The same problem with the gradient of factors near the distances, where products of
    these take long; without entropy between unequal masses, whose vertices are found
    without matrices then, from less on."""
    model, options = problem.model, problem.options
    equal = equal_masses(*(mass.numpy() for mass in to_host(*model.masses)))
    vertices = problem.has_no_entropy and model.is_standard and not equal
    if any(space.factors() is not None for space in problem.spaces) or not products_are_slow(
        problem, VERTEX_WORK if vertices else None
    ):
        return None
    accepted = math.inf if products_are_slow(problem) else MOST_LEFT
    spaces = approximate_spaces(problem, SHARP_RESIDUAL if vertices else RESIDUAL, accepted)
    if spaces is None:
        return None
    wide = [space.to(problem.p.device, torch.float64) for space in spaces]
    own = None if problem.wide is None else ExactGradient(wide[0], wide[1], *model.masses)
    narrow = ExactGradient(*spaces, *model.masses_in(loop_dtype(options.mixed_precision)))
    return replace(problem, gradient=gradient_of(model, narrow), wide=own)


def products_are_slow(problem: Problem, work: float | None = None) -> bool:
    """Whether the exact gradient takes products of stored metrics with a plan of more than
    so many multiplications, by default so many that they take most of a solve."""
    (n, k), device = (space.size for space in problem.spaces), problem.p.device.type
    metrics = all(map(is_metric, problem.spaces)) and not any(map(multiplies, problem.spaces))
    slow = n * k * (n + k) > (SLOW_WORK.get(device, SLOW_WORK["cpu"]) if work is None else work)
    return slow and metrics and problem.exact and problem.model.loss is SQUARE


def approximate_spaces(
    problem: Problem, residual: float, accepted: float, most: int | None = None
) -> tuple[DistanceProvider, DistanceProvider] | None:
    """The spaces, those without factors by factors that leave at most a ``residual`` of
    their distances, or the ``most`` of them; None where those of one leave more than what
    is ``accepted``."""
    found = list[DistanceProvider]()
    for space, mass in zip(problem.spaces, problem.model.masses, strict=True):
        if space.factors() is None:
            narrow = space.to(mass.device, loop_dtype(problem.options.mixed_precision))
            stored = PrecomputedDistances.of(narrow, mass.device)
            space, left = approximate_distances(stored, mass, residual, most)
            if left > accepted:
                return None
        found.append(space)
    return found[0], found[1]

"""Starts on all points that owe nothing to landmarks: for spaces of which landmarks say little.

- the distributions of each point's distances, where landmarks are far from the points they stand for;
- where proximal steps take the product plan, and the product plan itself.

Graphs have a contest of their own: `torchgw.search.contest`.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from torchgw.couplings.rounding import make_feasible
from torchgw.diagnostics.status import History
from torchgw.objective.bounds import quantiles
from torchgw.problem.problem import StoredProblem
from torchgw.runtime.threads import threads_for
from torchgw.search.candidate import Candidate
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.solvers.entropic import COLD, descend, product_energy, proximal_plan
from torchgw.solvers.inner import StoredSolver
from torchgw.solvers.iterate import Loop
from torchgw.solvers.solution import Solution
from torchgw.solvers.warm_start import WarmStart, plan_start, product_start

FULL_QUANTILES = 32
FEATURE_SHARPNESS = 32.0
LEAST_FEATURE_COST = 1e-7  # of the largest squared distance
FEW_PAIRS = 40_000
GIVEN_PAIRS = 4_000_000  # up to which a plan that is given is gone down from as it is, too
PRODUCT, DISTRIBUTIONS = "product plan", "distributions of distances"


def make_distribution_starts(problem: StoredProblem) -> list[Candidate]:
    """A start on all points from the distributions of their distances, where landmarks cannot stand for the spaces."""
    p, q = problem.masses
    U, V = (
        quantiles(space.rows(torch.arange(space.size, device=p.device)), mass, FULL_QUANTILES) / FULL_QUANTILES**0.5
        for space, mass in zip(problem.spaces, (p, q), strict=True)
    )
    return make_feature_starts(problem, U, V, DISTRIBUTIONS)


def make_feature_starts(problem: StoredProblem, U: Tensor, V: Tensor, origin: str) -> list[Candidate]:
    """A start on all points from features U (N, d), V (K, d) of them, which are matched; none where all are alike."""
    p, q = problem.masses
    cost = FactoredCost.squared_distance(U, V)
    mean = cost.expectation((cost.U.T @ p) @ (cost.V.T @ q), p, q)
    if float(mean) <= LEAST_FEATURE_COST * problem.unit:
        return []
    epsilon = float(mean) / FEATURE_SHARPNESS
    done = run_fixed_point(problem, WarmStart(cost, p.log2(), q.log2(), epsilon), epsilon, 1)
    start = WarmStart(problem.linearize(done.plan), p.log2(), q.log2(), problem.epsilon)
    return [Candidate(start, done.plan.argmax(1), done.history.cost[-1], 1, "full", True, origin=origin)]


def entropic_product_energy(problem: StoredProblem) -> Tensor | None:
    """The energy () of the product plan, beside which entropy rules or does not; None for a problem without entropy."""
    p, q = (mass / mass.sum() for mass in problem.masses)
    return None if problem.has_no_entropy else product_energy(problem.gradient, p, q)


def is_entropy_dominant(problem: StoredProblem, height: Tensor | None = None) -> bool:
    """Whether epsilon is at least that at which proximal steps end, so that their plans would lose their sharpness; the
    `entropic_product_energy` may be known."""
    height = entropic_product_energy(problem) if height is None else height
    return height is not None and problem.epsilon >= COLD * float(height)


def make_proximal_starts(problem: StoredProblem) -> list[Candidate]:
    """Where proximal steps go from the product plan."""
    return [_candidate_from_plan(problem, proximal_plan(problem.gradient, *problem.masses, problem.watch.detach()))]


def make_product_candidate(problem: StoredProblem) -> Candidate:
    """The product plan."""
    p, q = problem.masses
    nowhere = torch.zeros(len(p), dtype=torch.int64, device=p.device)
    return Candidate(product_start(p.log2(), q.log2()), nowhere, math.inf, 1, "full", True, origin=PRODUCT)


def make_unregularized_starts(problem: StoredProblem, plan: Tensor, level: str, origin: str) -> list[Candidate]:
    """Both ways from a plan to an optimum without entropy: by annealing, which forgets what is rough in it, and between
    few points by conditional gradients from the plan itself, which only go down, by many linear programs."""
    p, q = problem.masses
    start = plan_start(plan, problem.gradient, p.log2(), q.log2(), problem.epsilon)
    starts = [start]
    if len(p) * len(q) <= (GIVEN_PAIRS if level == "given" else FEW_PAIRS):
        starts.append(replace(start, plan=make_feasible(plan / plan.sum(), p, q)))
    return [Candidate(each, plan.argmax(1), math.inf, 1, level, True, origin=origin) for each in starts]


def _candidate_from_plan(problem: StoredProblem, plan: Tensor) -> Candidate:
    """A start from a plan of mass one on all points, to be compared."""
    p, q = problem.masses
    start = WarmStart(problem.linearize(plan), p.log2(), q.log2(), problem.epsilon)
    if not problem.has_no_entropy:
        return Candidate(start, plan.argmax(1), math.inf, 1, "full", True, origin=PRODUCT)
    plan = make_feasible(plan, p, q)
    energy = float(problem.value(plan))
    return Candidate(replace(start, plan=plan), plan.argmax(1), energy, 1, "full", True, origin=PRODUCT)


def run_fixed_point(problem: StoredProblem, start: WarmStart, epsilon: float, steps: int) -> Solution:
    """The solution after at most ``steps`` fixed-point iterations from ``start``, without callback and journal."""
    loop = Loop(problem.watch.detach(), History(), steps)
    inner = StoredSolver(problem.kernels.stored, replace(problem.model, epsilon=epsilon), problem.options.sinkhorn)
    with threads_for(len(problem.p) * len(problem.q)):
        return descend(problem.gradient, start, inner, problem.options, loop)

"""One solve, from providers to a feasible plan with its certificate: search, descent, finish, bounds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from torchgw.costs import FactoredCost
from torchgw.couplings import DenseCoupling, PotentialCoupling
from torchgw.evidence import NEAR_TIE, TINY, Basin, Certificate
from torchgw.gw.anchors import sample_anchors
from torchgw.gw.bounds import first_bound, second_bound, stationarity
from torchgw.gw.descent import Descent, descend
from torchgw.gw.finish import finish
from torchgw.gw.gradient import ExactGradient, Gradient, SampledGradient, landmark_control, sampled_cost
from torchgw.gw.landmarks import Landmarks
from torchgw.gw.loop import solve
from torchgw.gw.objective import Objective, affordable, sampled_objective
from torchgw.gw.outcome import CERTIFICATE_ANCHORS, ROUNDING_ERROR, Outcome
from torchgw.gw.search import Candidate, Problem, described, find_basins
from torchgw.gw.sharp import column_dual, conditional_gradient
from torchgw.gw.start import Start, pairs_start, plan_start, product_start
from torchgw.kernels.kernel import Kernel
from torchgw.kernels.precision import loop_dtype, reach, unsafe
from torchgw.options import GWOptions
from torchgw.sinkhorn.marginals import Balanced
from torchgw.sinkhorn.scaling import feasible
from torchgw.spaces import PrecomputedDistances
from torchgw.status import History, Status
from torchgw.types import Callback, DistanceProvider

ROUNDING_SLACK = 2.0
SHARP_START = 2.5e-4
SHARP_END = 5e-5
SHARP_RATIO = 0.5
SHARP_STEPS = 4
SHARP_PROGRESS = 1e-3
SHARP_BASINS_PAIRS = 10_000


@dataclass(frozen=True)
class Ended:
    """A feasible plan (N, K) of mass one, as a matrix and as a coupling; column potentials in units of cost (K,).

    ``strain`` says why float32 could not carry the scores on the way, where it could not.
    """

    plan: Tensor
    coupling: PotentialCoupling | DenseCoupling
    dual: Tensor
    residual: float
    energy: float
    status: Status
    strain: str | None
    n_iter: int
    n_iter_sinkhorn: int
    history: History


def run(
    spaces: tuple[DistanceProvider, DistanceProvider],
    masses: tuple[Tensor, Tensor],
    epsilon: float,
    exact: bool,
    init: Tensor | None,
    kernel: Kernel,
    marginals: Balanced,
    options: GWOptions,
    generator: torch.Generator,
    callback: Callback | None,
) -> Outcome:
    """Solve for float64 masses p (N,), q (K,) of sum one, on their device.

    ``exact`` says which gradient runs; ``init`` is a plan (N, K), or matching pairs (m, 2) of integers, or None.
    """
    began = time.perf_counter()
    p, q = masses
    dtype = loop_dtype(options.mixed_precision)
    wide = [space.to(p.device, torch.float64) for space in spaces]
    if exact:  # graph searches once, for both precisions
        wide = [s if s.factors() is not None else PrecomputedDistances.of(s, p.device) for s in wide]
    source, target = (space.to(p.device, dtype) for space in wide)
    gradient = make_gradient(source, target, (p.to(dtype), q.to(dtype)), exact, options, generator)
    problem = Problem(source, target, gradient, p, q, epsilon or SHARP_START, epsilon == 0, kernel, options, generator)
    candidates, reference = where_to_start(problem, init)
    searched = time.perf_counter()
    if epsilon == 0:
        solver = partial(solve_sharply, problem, ExactGradient(wide[0], wide[1], p, q), callback)
    else:
        solver = partial(solve_smoothly, problem, marginals, callback)
    ended, candidates = solve_contenders(problem, candidates, solver)
    solved = time.perf_counter()
    value, certificate = certify(ended, wide[0], wide[1], problem)
    basins: tuple[Basin, ...] = ()
    if reference is not None:
        basins = tuple(described(c, candidates[0], reference, problem.masses[0]) for c in candidates)
    seconds = {
        "search": searched - began,
        "solve": solved - searched,
        "finish": time.perf_counter() - solved,
    }
    stored = DenseCoupling(ended.plan)
    return Outcome(
        coupling=ended.coupling,
        marginals=(stored.marginal(1), stored.marginal(0)),
        gradient="exact" if exact else "sampled",
        residual=ended.residual,
        status=ended.status,
        strain=ended.strain,
        n_iter=ended.n_iter,
        n_iter_sinkhorn=ended.n_iter_sinkhorn,
        history=ended.history,
        objective=value,
        certificate=certificate,
        basins=basins,
        seconds=seconds,
    )


def solve_contenders(
    problem: Problem, candidates: list[Candidate], solver: Callable[[Start], Ended]
) -> tuple[Ended, list[Candidate]]:
    """The lowest end among the best candidate and those as good as it, and the candidates with that one first.

    Energies of the search come from a few iterations, so near-equal ones are solved to the end before one is called
    the best or the matching ambiguous. Small problems without entropy are solved from every candidate.
    """
    best, others = candidates[0], candidates[1:]
    tied = [c for c in others if c.level == best.level == "full" and c.energy <= NEAR_TIE * best.energy + TINY]
    small = problem.sharp and len(problem.p) * len(problem.q) <= SHARP_BASINS_PAIRS
    contenders = [best, *(others if small else tied[:1])]
    ends = [solver(candidate.start) for candidate in contenders]
    if len(ends) == 1 and not others:
        return ends[0], candidates
    settled = [
        replace(c, energy=max(end.energy, 0.0), level="full", matching=end.plan.argmax(1))
        for c, end in zip(contenders, ends, strict=True)
    ]
    order = sorted(range(len(ends)), key=lambda i: ends[i].energy)
    rest = [c for c in others if all(c is not contender for contender in contenders)]
    return ends[order[0]], [*(settled[i] for i in order), *rest]


def make_gradient(
    source: DistanceProvider,
    target: DistanceProvider,
    masses: tuple[Tensor, Tensor],
    exact: bool,
    options: GWOptions,
    generator: torch.Generator,
) -> Gradient:
    """The exact gradient, or the sampled one with landmark control variates."""
    if exact:
        return ExactGradient(source, target, *masses)
    count = options.sampling.n_control
    if count == 0:
        return SampledGradient(source, target, options.sampling, generator)
    x, y = (
        landmark_control(space, mass, count, generator) for space, mass in zip((source, target), masses, strict=True)
    )
    return SampledGradient(source, target, options.sampling, generator, (x, y))


def where_to_start(problem: Problem, init: Tensor | None) -> tuple[list[Candidate], Landmarks | None]:
    """What the user gave, else what the coarse stage found, the best first, else the product plan."""
    log_p, log_q = (mass.log2() for mass in problem.masses)
    if init is None and problem.options.coarse is not None:
        return find_basins(problem, problem.options.coarse)
    if init is None:
        start = product_start(log_p, log_q)
    elif init.is_floating_point():
        start = plan_start(init.to(log_p.dtype), problem.gradient, log_p, log_q, problem.epsilon)
    else:
        start = pairs_start(init, problem.source, problem.target, log_p, log_q, problem.epsilon)
    if init is not None and not problem.exact:  # anchors are drawn from a plan, so the first problem is solved at once
        p, q, inner = problem.p, problem.q, problem.inner
        solved = descend(problem.gradient, start, p, q, problem.epsilon, inner, problem.options, max_iter=1)
        start = solved.start()
    return [Candidate(start, torch.zeros(0, dtype=torch.int64), 0.0, 1, "given", True)], None


def solve_smoothly(problem: Problem, marginals: Balanced, callback: Callback | None, start: Start) -> Ended:
    """The entropic optimum at ``problem.epsilon``."""
    p, q, epsilon, options, kernel = problem.p, problem.q, problem.epsilon, problem.options, problem.kernel
    if problem.exact:
        solution = descend(problem.gradient, start, p, q, epsilon, problem.inner, options, callback).released()
    else:
        solution = solve(problem.gradient, start, p, q, epsilon, kernel, marginals, options, callback)
    last = finish(solution.cost, solution.f, solution.g, epsilon, p, q, kernel, options.sinkhorn)
    # The plan decides, not the potentials: where they are too large to move, their differences vanish.
    settled = last.residual <= ROUNDING_SLACK * options.sinkhorn.tol
    return Ended(
        plan=last.plan,
        coupling=last.coupling,
        dual=column_dual(solution.cost, last.g, q, epsilon),
        residual=last.residual,
        energy=solution.history.cost[-1],
        status=solution.status if settled else Status.MARGINALS,
        strain=strained(solution.cost, epsilon, options),
        n_iter=solution.n_iter,
        n_iter_sinkhorn=solution.n_iter_sinkhorn + last.n_iter,
        history=solution.history,
    )


def strained(cost: FactoredCost, epsilon: float, options: GWOptions) -> str | None:
    """Why float32 could not carry the scores that the loop worked on, or None."""
    if not options.mixed_precision:
        return None
    A, B = cost.centred()[0].balanced_score(epsilon)
    return unsafe(reach(A, B), A.shape[1])


def solve_sharply(problem: Problem, wide: ExactGradient, callback: Callback | None, start: Start) -> Ended:
    """The optimum without entropy: epsilon annealed down while the value falls, then conditional gradients."""
    p, q, epsilon, limit = problem.p, problem.q, problem.epsilon, problem.options.stopping.max_iter
    now = _annealed(problem, start, epsilon, callback, History())
    while epsilon > SHARP_END and now.n_iter < limit:
        before, epsilon = now.history.cost[-1], epsilon * SHARP_RATIO
        now = now.followed_by(_annealed(problem, now.start(), epsilon, callback, now.history))
        if now.history.cost[-1] > (1 - SHARP_PROGRESS) * before:
            break
    plan = feasible(now.plan.to(torch.float64), p, q)
    dual = column_dual(now.cost, now.g.to(torch.float64), q, epsilon)
    sharp = conditional_gradient(wide, plan, p, q, dual, now.history, max(limit - now.n_iter, 1), callback)
    return Ended(
        plan=sharp.plan,
        coupling=DenseCoupling(sharp.plan),
        dual=sharp.dual,
        residual=0.0,
        energy=sharp.value,
        status=sharp.status,
        strain=strained(now.cost, epsilon, problem.options),
        n_iter=now.n_iter + sharp.n_iter,
        n_iter_sinkhorn=now.n_iter_sinkhorn,
        history=now.history,
    )


def _annealed(problem: Problem, start: Start, epsilon: float, callback: Callback | None, history: History) -> Descent:
    """A few iterations at one epsilon of the sharp end's ladder."""
    steps = min(SHARP_STEPS, problem.options.stopping.max_iter - len(history.iteration))
    return descend(
        problem.gradient,
        start,
        problem.p,
        problem.q,
        epsilon,
        problem.inner,
        problem.options,
        callback,
        max_iter=steps,
        history=history,
    )


def certify(
    ended: Ended, source: DistanceProvider, target: DistanceProvider, problem: Problem
) -> tuple[Objective, Certificate]:
    """Value, Frank-Wolfe gap and lower bound: exact wherever distances and memory allow."""
    p, q, limit, generator = problem.p, problem.q, problem.options.max_memory, problem.generator
    stored = DenseCoupling(ended.plan)
    exact = affordable(source, target, limit)
    lower = second_bound(source, target, p, q)
    if exact:
        gradient = ExactGradient(source, target, p, q)
        found = stationarity(gradient(stored, p), ended.plan, p, q, ended.dual)
        value = Objective(max(found.value, 0.0), True, 0.0)  # a sum of squares, but for rounding
        lower = max(lower, first_bound(gradient.a, gradient.b, p, q))
    else:
        value = sampled_objective(stored, p, source, target, generator)
        pairs = sample_anchors(stored, p, CERTIFICATE_ANCHORS, generator)
        found = stationarity(sampled_cost(source, target, pairs), ended.plan, p, q, ended.dual)
    lower = max(lower - ROUNDING_ERROR, 0.0)  # an isometric copy has both at zero, up to rounding
    return value, Certificate(
        stationarity=found.gap, stationarity_exact=exact, lower_bound=lower, gap=max(value.value - lower, 0.0)
    )

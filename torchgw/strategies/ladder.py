"""Large problems, climbed in resolution until the marginals hold at full size.

    cells of the distances' factors, ~1000        the search, the descent: the whole small problem
      |  gradient of its plan on all points, compressed; potentials solved for THAT gradient on the cells
      v
    f_i = log p_i - log sum over cells, g_j alike one half-step of every point against the cells, O((N + K) n)
      |  marginal residual at full size, from sampled rows and columns
      v
    small enough?  else four times as many cells, cut by how differently points see the other space, ... , all points

Replaced by means of factors, cells are quadrature nodes of second order, so few suffice. Potentials are lifted only
after they were solved for the very gradient that they are lifted with: otherwise a small change of the gradient,
divided by epsilon, shows up whole in the marginals.

A dense solve between curves begins here, too. On curves cells are quadrature nodes that a plan of all points hardly
differs from, so descents on all points would only repeat what those on cells did, at many times their cost:

    search and descent on cells -> the climb to all points -> their linear problem solved in float64, and rounded
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling
from torchgw.diagnostics.evidence import Rung
from torchgw.diagnostics.status import History, Status
from torchgw.kernels.blocks import parts
from torchgw.kernels.kernel import Kernel
from torchgw.kernels.sampling import draw, prepare_draws
from torchgw.kernels.shared import StreamedKernel, logsumexp_over_ranks
from torchgw.objective.exact import ExactGradient
from torchgw.objective.linearise import gradient_of
from torchgw.objective.model import Model, mean_cost
from torchgw.options import SinkhornOptions, StoppingOptions
from torchgw.persist.codec import storable
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.runtime.ranks import Ranks
from torchgw.runtime.threads import threads_for
from torchgw.runtime.transfer import to_host
from torchgw.search.coarsen import STORED_CELLS
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.sinkhorn.score import FactoredScore, factored_score
from torchgw.sinkhorn.sides import MarginalConstraint
from torchgw.solvers.entropic import descend
from torchgw.solvers.inner import InnerSolver, LinearProblem, StoredSolver, StreamedSolver
from torchgw.solvers.iterate import Loop, State, iterate
from torchgw.solvers.problem import Problem, StoredProblem
from torchgw.solvers.solution import CertifiedSolution, Solution
from torchgw.solvers.warm_start import WarmStart
from torchgw.spaces.coarsening import Cells, Coarsening
from torchgw.strategies.cells import (
    StreamedProblem,
    lift_basins,
    linearise_on_points,
    make_cells,
    make_streamed_problem,
    solve_on_cells,
)
from torchgw.strategies.dense import InitialSolution, solve_dense
from torchgw.strategies.smooth import finish_solution

logger = logging.getLogger("torchgw")

GROWTH = 4
LOOSE = 1e-3  # marginal tolerance from which on gradients of stored rungs do
LEFT = 0.25  # share of it that larger rungs may leave unsolved
SURE = 2.0  # standard errors of the residual that the tolerance must leave room for
SAMPLED_POINTS = 1000
FLOAT32_RESIDUAL = 5e-5
SCORE_SHARE = 0.1  # of the marginal tolerance, that dropping small directions of the score may cost


Ends: TypeAlias = (
    "tuple[FactoredCost, FactoredScore]"  # a score on all points, and the row and column terms of its cost
)


def _make_ends(cost: FactoredCost, score: FactoredScore) -> Ends:
    """Without what differs from problem to problem of their numbers, so that a graph serves them all."""
    return replace(cost, U=cost.U[:, :0], V=cost.V[:, :0]), replace(score, error=0.0)


def _make_offsets(ends: Ends) -> tuple[Tensor, Tensor]:
    """Row (N,) and column (K,) terms of the cost, in the gauge of the score."""
    a, b = ends[0].offsets(ends[1].epsilon)
    return a - ends[1].row, b - ends[1].column


@storable
@dataclass(frozen=True)
class LevelSolution:
    """A solved rung of n x n' cells.

    cost : on all points.
    score : of that cost on all points, -cost / epsilon up to row and column terms, in base 2.
    x, y : the cells.
    linear_problem : the problem between them, with the means of the score's factors.
    f, g : base-2 dual potentials (n,), (n',) of that problem.
    n_iter : Sinkhorn iterations that found them.
    """

    cost: FactoredCost
    score: FactoredScore
    x: Coarsening
    y: Coarsening
    linear_problem: LinearProblem
    f: Tensor
    g: Tensor
    n_iter: int


@storable
@dataclass(frozen=True, kw_only=True)
class MultilevelState(State):
    """Where the climb stands; its iterations are those of the descents on its rungs.

    last_level : the last rung.
    f, g : base-2 dual potentials (N,), (K,) of its score on all points, float64.
    levels : what is told of each rung so far.
    has_exact_cost : whether the cost is the gradient of a plan, not a sample of it.
    descent : how the last descent on a rung ended.
    """

    last_level: LevelSolution
    f: Tensor
    g: Tensor
    levels: tuple[Rung, ...]
    has_exact_cost: bool
    descent: Status

    @property
    def warm_start(self) -> WarmStart:
        """To go on from here, in float64."""
        score = self.last_level.score
        return WarmStart(
            self.last_level.cost.to(torch.float64), self.f - score.row, self.g - score.column, score.epsilon
        )

    @property
    def complete(self) -> bool:
        return True

    def without_factors(self) -> MultilevelState:
        """The same without what has a row for each point: nothing goes on from it, but its duals are there."""
        (cost, score), none = (self.last_level.cost, self.last_level.score), self.f.new_empty(0, 0)
        solved = replace(self.last_level, cost=replace(cost, U=none, V=none), score=replace(score, A=none, B=none))
        return replace(self, last_level=solved)

    def require_finite(self) -> None:
        """Refuse potentials that are none."""
        if not bool(torch.cat((self.f, self.g)).lt(math.inf).all()):  # NaN as well
            epsilon = float(self.last_level.score.epsilon)
            raise FloatingPointError(f"epsilon = {epsilon:g} is too small: potentials are beyond what float64 holds")


def refine_levels(problem: StreamedProblem, first: Solution, seconds: float) -> tuple[MultilevelState, Status, History]:
    """From the solution between the first cells, found in these seconds, to all points.

    The history is that of all descents.
    """
    history, (x, y) = first.history, problem.cells
    assert first.warm_start is not None
    g = first.warm_start.g

    def lift_level(
        solved: LevelSolution, done: Solution | None, last: MultilevelState | None, began: float
    ) -> MultilevelState:
        """The rung on all points, how well it fits there, and what was spent on it since ``began``."""
        f, g, residual, error = lift_potentials(problem, solved)
        whole = _has_all_points(problem, solved.x, solved.y)
        if not problem.model.has_hard_marginals and not whole:
            residual = max(
                residual, math.inf if last is None else _measure_plan_change(problem, last, solved.score, f, g)
            )
        told = Rung(
            cells=(solved.x.count, solved.y.count),
            residual=residual,
            residual_error=error,
            n_iter=0 if done is None else done.n_iter,
            n_iter_sinkhorn=solved.n_iter + (0 if done is None else done.n_iter_sinkhorn),
            seconds=time.perf_counter() - began,
        )
        logger.info("ladder: %s", told)
        rungs = (told,) if last is None else (*last.levels, told)
        return MultilevelState(
            n_iter=sum(rung.n_iter for rung in rungs),
            n_iter_sinkhorn=sum(rung.n_iter_sinkhorn for rung in rungs),
            last_level=solved,
            f=f,
            g=g,
            levels=rungs,
            has_exact_cost=problem.has_factors
            or (last is not None and (last.has_exact_cost or (whole and done is not None))),
            descent=first.status if last is None else last.descent if done is None else done.status,
        )

    def begin() -> MultilevelState:
        began = time.perf_counter() - seconds
        cost = linearise_on_points(problem, DenseCoupling(first.plan.to(x.features.dtype)), x, y)
        return lift_level(_solve_linear_problem(problem, cost, x, y, g), first, None, began)

    def step(state: MultilevelState) -> tuple[MultilevelState, None, Status | None]:
        last = state.levels[-1]
        reached = last.residual + SURE * last.residual_error <= problem.options.ladder.marginal_tol
        if reached or _has_all_points(problem, state.last_level.x, state.last_level.y):
            return state, None, state.descent
        began = time.perf_counter()
        solved, done = _solve_next_level(problem, state, history)
        return lift_level(solved, done, state, began), None, None

    state, status = iterate(MultilevelState, step, begin, Loop(problem.watch, history, None))
    return state, status, history


def refine_to_all_points(problem: StreamedProblem, first: Solution, seconds: float) -> tuple[MultilevelState, Solution]:
    """Where the climb ends, and the same as a solution without its plan; a stage.

    Raises
    ------
    FloatingPointError
        When potentials are no numbers.
    """
    state, status, history = problem.stage("climb", lambda: refine_levels(problem, first, seconds))
    state.require_finite()
    return state, Solution(
        coupling=None,
        warm_start=state.warm_start if problem.ranks.count == 1 else None,  # of shares
        status=status,
        n_iter=state.n_iter,
        n_iter_sinkhorn=state.n_iter_sinkhorn,
        history=history,
    )


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


def lift_potentials(problem: StreamedProblem, step: LevelSolution) -> tuple[Tensor, Tensor, float, float]:
    """Potentials of all points (N,), (K,), float64, by one half-step of each against the other side's cells; and the
    larger L1 marginal error of the plan at full size and its standard error.

    Of a relaxed marginal, the change that another half-step would make.
    """
    model, labels = problem.model, None
    if _has_all_points(problem, step.x, step.y):
        labels = step.x.label, step.y.label
    draws = [
        None if len(mass) <= SAMPLED_POINTS else prepare_draws(mass, SAMPLED_POINTS, problem.generator)
        for mass in model.masses
    ]
    cells = step.linear_problem.A, step.linear_problem.B, step.f, step.g
    f, g, errors = _lift_potentials_with_errors(
        problem.kernels.local_kernel, model, _make_ends(step.cost, step.score), cells, labels, draws, problem.ranks
    )
    one, its_error, other, other_error = to_host(errors)[0].tolist()
    return f, g, *max((one, its_error), (other, other_error))


@as_cuda_graph()
def _lift_potentials_with_errors(
    kernel: Kernel,
    model: Model,
    ends: Ends,
    cells: tuple[Tensor, Tensor, Tensor, Tensor],
    labels: tuple[Tensor, Tensor] | None,
    draws: list[Tensor | torch.Generator | None],
    ranks: Ranks,
) -> tuple[Tensor, Tensor, Tensor]:
    """Potentials of all points from factors and potentials of the cells, which may be the points with these labels, and
    for either side the L1 error and its standard error (4,)."""
    (A, B, f, g), score = cells, ends[1]
    sides = model.constraints_from_logs(model.p.log2(), model.q.log2(), score.epsilon, *_make_offsets(ends))
    if labels is None:
        row, column = sides
        at_rows = ranks.all_gather(kernel.bind(score.A, B).softmin(g, 1), len(model.p))
        at_columns = ranks.all_gather(kernel.bind(A, score.B).softmin(f, 0), len(model.q))
        f, g = row.potential(at_rows.double()), column.potential(at_columns.double())
    else:
        f, g = f[labels[0]].double(), g[labels[1]].double()
    return f, g, _marginal_errors(kernel, (score.A, score.B), sides, (f, g), draws, ranks)


def _marginal_errors(
    kernel: Kernel,
    factors: tuple[Tensor, Tensor],
    sides: tuple[MarginalConstraint, MarginalConstraint],
    potentials: tuple[Tensor, Tensor],
    draws: list[Tensor | torch.Generator | None],
    ranks: Ranks,
) -> Tensor:
    """The L1 error and its standard error of both marginals (4,), from sampled rows and columns.

    Every point where there are few. O((N + K) r) for each of the 1000 points of either side.
    """
    (A, B), found = factors, []
    for axis, side, own, other, drawn in zip((1, 0), sides, potentials, potentials[::-1], draws, strict=True):
        mass = side.log_mass.exp2()
        total, every = mass.sum(), drawn is None
        index = torch.arange(len(mass), device=mass.device) if drawn is None else draw(mass, SAMPLED_POINTS, drawn)
        some = ranks.gather(A if axis == 1 else B, len(mass), index)
        bound = kernel.bind(some, B) if axis == 1 else kernel.bind(A, some)
        softmin = logsumexp_over_ranks(bound.softmin(ranks.own(other).to(A.dtype), axis), ranks)
        sums = own[index] + softmin.double()
        weight = mass[index] if every else total.expand(len(index)) / len(index)
        wanted = side.restrict(index).sums_after_step(sums - own[index], weight)
        off = weight * ((sums - mass[index].log2()).exp2() - wanted / mass[index]).abs()
        found += [off.sum(), off.new_zeros(()) if every else off.std() * SAMPLED_POINTS**0.5]
    return torch.stack(found)


def _measure_plan_change(
    problem: StreamedProblem, last: MultilevelState, score: FactoredScore, f: Tensor, g: Tensor
) -> float:
    """L1 change of the plan since the last rung, from the rows of up to 1000 points.

    Relaxed marginals are no test of a cost: the plan follows it wherever that leads.
    """
    p, k, ranks = problem.p, len(problem.q), problem.ranks
    few = len(p) <= SAMPLED_POINTS
    index = torch.arange(len(p), device=p.device) if few else draw(p, SAMPLED_POINTS, problem.generator)
    weight = torch.ones_like(p[index]) if few else p.sum() / len(index) / p[index]
    total = p.new_zeros(())
    for part, scale in zip(parts(index, k), parts(weight, k), strict=True):
        one, other = (
            (ranks.gather(scored.A, len(p), part) @ scored.B.T).double().add_(u[part, None]).add_(ranks.own(v)).exp2_()
            for scored, u, v in ((last.last_level.score, last.f, last.g), (score, f, g))
        )
        total += scale @ (one - other).abs().sum(1)
    return float(ranks.sum(total))


def _solve_next_level(
    problem: StreamedProblem, state: MultilevelState, history: History
) -> tuple[LevelSolution, Solution | None]:
    """The next rung, started from the potentials of all points, and its descent where it has a gradient of its own."""
    step, old, model = state.last_level, state.last_level.score, problem.model
    x = make_cells(problem, problem.x, 0, old.A, GROWTH * step.x.count)
    y = make_cells(problem, problem.y, 1, old.B, GROWTH * step.y.count)
    f = x.means((state.f - old.row)[:, None], problem.p)[:, 0]
    g = y.means((state.g - old.column)[:, None], problem.q)[:, 0]
    complete, stored = _has_all_points(problem, x, y), _stores_plan(problem, x, y)
    loose = problem.options.ladder.marginal_tol >= LOOSE
    # Beyond rungs that store their plan only a demand for precision is worth new gradients, and those can be had where
    # they are exact, or where all points are few.
    if x.space is None or y.space is None or not (stored or (not loose and (problem.has_factors or complete))):
        return _solve_linear_problem(problem, step.cost, x, y, g), None
    cost, model = model.average_cost(step.cost, x, y), model.coarsen(x, y)
    assert cost is not None
    p, q = (mass.to(cost.U.dtype) for mass in model.masses)
    gradient = gradient_of(model, ExactGradient(x.space, y.space, p, q))
    inner = _make_inner_solver(problem, x, y, replace(problem.options.sinkhorn, tol=inner_tolerance(problem)))
    start = WarmStart(cost, f.to(p.dtype), g.to(p.dtype), problem.epsilon)
    loop = Loop(problem.watch, history, problem.options.stopping.max_iter)
    descent = partial(descend, gradient, start, inner, problem.options, loop, by_value=loose)
    run = partial(problem.stage, f"rung-{len(state.levels)}", descent)
    done = problem.run_on_first(run) if stored else run()
    history.go_on_from(done.history)
    assert done.coupling is not None
    assert done.warm_start is not None
    if complete:
        cost = gradient(done.coupling, p).restrict(x.label, y.label)
        cost = replace(cost, U=problem.ranks.own(cost.U), V=problem.ranks.own(cost.V))
    else:
        cost = linearise_on_points(problem, done.coupling, x, y)
    return _solve_linear_problem(problem, cost, x, y, done.warm_start.g), done


def _solve_linear_problem(
    problem: StreamedProblem, cost: FactoredCost, x: Coarsening, y: Coarsening, g: Tensor
) -> LevelSolution:
    """The cells' potentials for ``cost``, from warm ones g (n',) of its uncentred score."""
    tight = inner_tolerance(problem) < FLOAT32_RESIDUAL
    error = SCORE_SHARE * problem.options.ladder.marginal_tol
    score = factored_score(cost, problem.p, problem.q, problem.epsilon, error, tight, problem.ranks)
    arguments = problem.model, _make_ends(cost, score), x, y, problem.ranks
    linear, f, g = _begin_level(problem.kernels.streamed, g, *arguments)
    inner = problem.options.sinkhorn
    # What a stored rung leaves unsolved is lifted; on a larger one every iteration counts, and all points need no lift.
    left = 0.0 if _stores_plan(problem, x, y) else LEFT * problem.options.ladder.marginal_tol
    tol = max(inner_tolerance(problem), left)
    last = replace(inner, exact_max_iter=max(inner.final_max_iter, 2), tol=tol)  # two are the fewest that say how far
    with threads_for(x.count * y.count):
        run = partial(_make_inner_solver(problem, x, y, last).potentials, linear, f, g)
        state = problem.run_on_first(run) if _stores_plan(problem, x, y) else run()
    return LevelSolution(cost, score, x, y, linear, state.f, state.g, state.n_iter)


@as_cuda_graph()
def _begin_level(
    kernel: StreamedKernel, g: Tensor, model: Model, ends: Ends, x: Cells, y: Cells, ranks: Ranks
) -> tuple[LinearProblem, Tensor, Tensor]:
    """The linear problem between cells, and its potentials from warm ones g (n',) of the uncentred score."""
    linear = _make_linear_problem(model, ends, x, y, ranks)
    A, B = linear.A, linear.B
    g = g.to(A.dtype) + y.means(ends[1].column[:, None], model.q)[:, 0].to(A.dtype)
    return linear, linear.row.potential(kernel.bind(A, B).softmin(g, 1)), g


@as_cuda_graph()
def _make_linear_problem(model: Model, ends: Ends, x: Cells, y: Cells, ranks: Ranks) -> LinearProblem:
    """The linear problem between cells, for a score on all points."""
    small, score = model.coarsen(x, y), ends[1]
    sides = zip((x, y), _make_offsets(ends), model.masses, strict=True)
    offsets = [cells.means(offset[:, None], mass)[:, 0] for cells, offset, mass in sides]
    log_p, log_q = (mass.log2().to(score.A.dtype) for mass in small.masses)
    row, column = small.constraints_from_logs(log_p, log_q, score.epsilon, *offsets)
    return LinearProblem(x.means(score.A, model.p, ranks), y.means(score.B, model.q, ranks), row, column)


def inner_tolerance(problem: StreamedProblem) -> float:
    """Of the inner solves: a tenth of what the marginals may be off by, or what the options ask for."""
    return min(problem.options.sinkhorn.tol, problem.options.ladder.marginal_tol / 10)


def _has_all_points(problem: StreamedProblem, x: Coarsening, y: Coarsening) -> bool:
    """Whether these cells are all points."""
    return x.count == len(problem.p) and y.count == len(problem.q)


def _stores_plan(problem: StreamedProblem, x: Coarsening, y: Coarsening) -> bool:
    """Whether plans between these cells are stored; those between all points never are."""
    return x.count * y.count <= STORED_CELLS**2 and not _has_all_points(problem, x, y)


def _make_inner_solver(problem: StreamedProblem, x: Coarsening, y: Coarsening, options: SinkhornOptions) -> InnerSolver:
    model = replace(problem.model.coarsen(x, y), epsilon=problem.epsilon)
    if _stores_plan(problem, x, y):
        return StoredSolver(problem.kernels.stored, model, options)
    return StreamedSolver(
        problem.kernels.streamed, problem.kernels.tiled, model, options, problem.options.ladder.omitted, problem.ranks
    )

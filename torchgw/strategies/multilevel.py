"""Large problems, climbed in resolution until the marginals hold at full size.

    cells of the distances' factors, ~1000        the search, the descent: the whole small problem
      |  gradient of its plan on all points, compressed; potentials solved for THAT gradient on the cells
      v
    f_i = log p_i - log sum over cells, g_j alike one half-step of every point against the cells, O((N + K) n)
      |  marginal residual at full size, from sampled rows and columns
      v
    small enough?  else four times as many cells, cut by how differently points see the other space, ... , all points

Replaced by means of factors, cells are quadrature nodes of second order, so few suffice.
Potentials are lifted only after they were solved for the very gradient that they are lifted
with: otherwise a small change of the gradient, divided by epsilon, shows up whole in the
marginals.

A dense solve between curves begins here, too. On curves cells are quadrature nodes that a
plan of all points hardly differs from, so descents on all points would only repeat what
those on cells did, at many times their cost:

    search and descent on cells -> the climb to all points -> their linear problem solved in float64, and rounded
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling
from torchgw.diagnostics.evidence import Rung
from torchgw.diagnostics.status import History, Status
from torchgw.kernels.blocks import parts
from torchgw.kernels.kernel import Kernel
from torchgw.kernels.precision import loop_dtype
from torchgw.kernels.sampling import draw, prepare_draws
from torchgw.kernels.shared import StreamedKernel, logsumexp_over_ranks
from torchgw.objective.linearise import moments_of, weights_of
from torchgw.objective.model import Model
from torchgw.options import SinkhornOptions, StoppingOptions
from torchgw.persist.codec import storable
from torchgw.problem.problem import Problem, Result, StoredProblem
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.runtime.ranks import Ranks
from torchgw.runtime.threads import threads_for
from torchgw.runtime.transfer import to_host
from torchgw.search.coarsen import (
    STORED_CELLS,
    ControlledSpace,
    cost_of_cells,
    sampled_cost_of_cells,
    with_mean_squares,
)
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.sinkhorn.score import FactoredScore, factored_score
from torchgw.solvers.entropic import descend
from torchgw.solvers.inner import InnerSolver, Sides, StoredSolver, StreamedSolver
from torchgw.solvers.iterate import Loop, State, iterate
from torchgw.solvers.solution import CertifiedSolution, Solution
from torchgw.solvers.warm_start import WarmStart
from torchgw.spaces.coarsening import Cells, Coarsening, coarsen_plan, cut_cells
from torchgw.strategies.dense import search_and_descend, solve_dense
from torchgw.strategies.entropic import finish_solution
from torchgw.types import Coupling

logger = logging.getLogger("torchgw")

GROWTH = 4
LOOSE = 1e-3  # marginal tolerance from which on gradients of stored rungs do
LEFT = 0.25  # share of it that larger rungs may leave unsolved
SURE = 2.0  # standard errors of the residual that the tolerance must leave room for
SAMPLED_POINTS = 1000
FLOAT32_RESIDUAL = 5e-5
SCORE_SHARE = 0.1  # of the marginal tolerance, that dropping small directions of the score may cost


@storable
@dataclass(frozen=True, kw_only=True)
class MultilevelState(State):
    """Where the climb stands; its iterations are those of the descents on its rungs.

    cost : of the last rung, on all points.
    score : -cost / epsilon on all points, in base 2, up to row and column terms.
    f, g : base-2 dual potentials (N,), (K,) of that score, float64.
    levels : what is told of each rung so far.
    descent : how the last descent on a rung ended.
    """

    cost: FactoredCost
    score: FactoredScore
    f: Tensor
    g: Tensor
    levels: tuple[Rung, ...]
    descent: Status

    def require_finite(self) -> None:
        """Refuse potentials that are none."""
        if not bool(torch.cat((self.f, self.g)).lt(math.inf).all()):  # NaN as well
            raise FloatingPointError(
                f"epsilon = {self.score.epsilon:g} is too small: potentials are beyond what float64 holds"
            )


def climb_to_all_points(asked: Problem) -> tuple[StreamedProblem, MultilevelState, Solution]:
    """The streamed problem, where the climb from its first cells ends, and the same as a
    solution without its plan.

    Raises
    ------
    FloatingPointError
        When potentials are no numbers.
    """
    problem, first, began = solve_on_cells(asked)
    climb = partial(_climb, problem, first, began)
    state, status, history = problem.stage("climb", climb)
    state.require_finite()
    warm_start, score = None, state.score
    if problem.ranks.count == 1:  # without shares
        f, g = state.f - score.row, state.g - score.column
        warm_start = WarmStart(state.cost.to(torch.float64), f, g, score.epsilon)
    solution = Solution(
        coupling=None,
        warm_start=warm_start,
        status=status,
        n_iter=state.n_iter,
        n_iter_sinkhorn=state.n_iter_sinkhorn,
        history=history,
        basins=first.basins,
        ladder=state.levels,
        seconds=first.seconds,
    )
    return problem, state, solution


def _climb(problem: StreamedProblem, first: Solution, started: float) -> tuple[MultilevelState, Status, History]:
    """From the solution between the first cells, on which time was spent since ``started``,
    to all points; the history is that of all descents."""
    history, (x, y) = first.history, problem.cells
    g = first.next_start.g

    def begin() -> MultilevelState:
        plan = DenseCoupling(first.plan.to(x.features.dtype))
        cost = linearise_on_points(problem, plan, x, y)
        spent = first.n_iter, first.n_iter_sinkhorn
        return _solve_level(problem, (x, y), cost, g, first.status, spent, None, started)

    def step(state: MultilevelState) -> tuple[MultilevelState, None, Status | None]:
        last = state.levels[-1]
        reached = last.residual + SURE * last.residual_error <= problem.options.ladder.marginal_tol
        if reached or last.cells == problem.shape:
            return state, None, state.descent
        return _solve_next_level(problem, state, history), None, None

    state, status = iterate(MultilevelState, step, begin, Loop(problem.watch, history, None))
    return state, status, history


def solve_from_cells(asked: Problem) -> CertifiedSolution:
    """Solve with a stored plan, from cells where that pays."""
    return solve_dense(asked, begin=partial(_begin_on_cells, asked) if _should_use_cells(asked) else None)


def _should_use_cells(asked: Problem) -> bool:
    """Whether it is between many points on curves, and no more precise than cells are."""
    loose = asked.options.stopping.plan_tol >= StoppingOptions().plan_tol
    return asked.curves and loose and not asked.has_no_entropy and asked.tol is None


def _begin_on_cells(asked: Problem, problem: StoredProblem) -> Solution:
    with asked.watch.within("cells"):
        _, _, solution = climb_to_all_points(asked)
    found = finish_solution(problem, solution, problem.options)
    return replace(found, energy=float(problem.value(found.plan.to(problem.masses[0]))))


@as_cuda_graph()
def lift_potentials(
    kernel: Kernel,
    model: Model,
    score: FactoredScore,
    offsets: tuple[Tensor, Tensor],
    cells: tuple[Tensor, Tensor, Tensor, Tensor],
    labels: tuple[Tensor, Tensor] | None,
    draws: list[Tensor | torch.Generator | None],
    ranks: Ranks,
) -> tuple[Tensor, Tensor, Tensor]:
    """Potentials of all points (N,), (K,), float64, by one half-step of each against the
    other side's cells, which have these factors and potentials and may be the points with
    these labels; and for either side the L1 marginal error of the plan at full size, and
    its standard error (4,).

    Errors are those of sampled rows and columns, of every point where there are few: O((N +
    K) r) for each of the 1000 points of either side. Of a relaxed marginal, the change that
    another half-step would make.
    """
    A, B, f, g = cells
    sides = model.constraints_from_logs(model.p.log2(), model.q.log2(), score.epsilon, *offsets)
    if labels is None:
        row, column = sides
        at_rows = ranks.all_gather(kernel.bind(score.A, B).softmin(g, 1), len(model.p))
        at_columns = ranks.all_gather(kernel.bind(A, score.B).softmin(f, 0), len(model.q))
        f, g = row.potential(at_rows.double()), column.potential(at_columns.double())
    else:
        f, g = f[labels[0]].double(), g[labels[1]].double()
    errors = []
    for axis, side, own, other, drawn in zip((1, 0), sides, (f, g), (g, f), draws, strict=True):
        mass = side.log_mass.exp2()
        total, every = mass.sum(), drawn is None
        index = torch.arange(len(mass), device=mass.device) if drawn is None else draw(mass, SAMPLED_POINTS, drawn)
        some = ranks.gather(score.A if axis == 1 else score.B, len(mass), index)
        bound = kernel.bind(some, score.B) if axis == 1 else kernel.bind(score.A, some)
        softmin = logsumexp_over_ranks(bound.softmin(ranks.own(other).to(some.dtype), axis), ranks)
        sums = own[index] + softmin.double()
        weight = mass[index] if every else total.expand(len(index)) / len(index)
        wanted = side.restrict(index).sums_after_step(sums - own[index], weight)
        off = weight * ((sums - mass[index].log2()).exp2() - wanted / mass[index]).abs()
        errors += [off.sum(), off.new_zeros(()) if every else off.std() * SAMPLED_POINTS**0.5]
    return f, g, torch.stack(errors)


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
            for scored, u, v in ((last.score, last.f, last.g), (score, f, g))
        )
        total += scale @ (one - other).abs().sum(1)
    return float(ranks.sum(total))


def _solve_next_level(problem: StreamedProblem, state: MultilevelState, history: History) -> MultilevelState:
    """The next rung, started from the potentials of all points, with a descent where it has
    a gradient of its own."""
    began, old = time.perf_counter(), state.score
    rows, columns = state.levels[-1].cells
    x = make_cells(problem, problem.x, 0, old.A, GROWTH * rows)
    y = make_cells(problem, problem.y, 1, old.B, GROWTH * columns)
    f = x.means((state.f - old.row)[:, None], problem.p)[:, 0]
    g = y.means((state.g - old.column)[:, None], problem.q)[:, 0]
    complete, stored = (x.count, y.count) == problem.shape, _stores_plan(problem, x, y)
    loose = problem.options.ladder.marginal_tol >= LOOSE
    # Beyond rungs that store their plan only a demand for precision is worth new gradients,
    # and those can be had where they are exact, or where all points are few.
    pays = stored or (not loose and (problem.has_factors or complete))
    if x.space is None or y.space is None or not pays:
        return _solve_level(problem, (x, y), state.cost, g, state.descent, (0, 0), state, began)
    small, cost = problem.coarsen(x, y), problem.model.average_cost(state.cost, x, y)
    p, options = small.masses[0], problem.options
    inner = _make_inner_solver(problem, x, y, replace(options.sinkhorn, tol=inner_tolerance(problem)))
    start = WarmStart(cost, f.to(p.dtype), g.to(p.dtype), problem.epsilon)
    loop = Loop(problem.watch, history, options.stopping.max_iter)
    descent = partial(descend, small.gradient, start, inner, options, loop, by_value=loose)
    run = partial(problem.stage, f"rung-{len(state.levels)}", descent)
    done = problem.run_on_first(run) if stored else run()
    history.go_on_from(done.history)
    assert done.coupling is not None
    if complete:
        cost = small.linearize(done.coupling).restrict(x.label, y.label)
        cost = replace(cost, U=problem.ranks.own(cost.U), V=problem.ranks.own(cost.V))
    else:
        cost = linearise_on_points(problem, done.coupling, x, y)
    spent = done.n_iter, done.n_iter_sinkhorn
    return _solve_level(problem, (x, y), cost, done.next_start.g, done.status, spent, state, began)


def _solve_level(
    problem: StreamedProblem,
    cells: tuple[Coarsening, Coarsening],
    cost: FactoredCost,
    g: Tensor,
    descent: Status,
    spent: tuple[int, int],
    last: MultilevelState | None,
    began: float,
) -> MultilevelState:
    """A rung on all points: the cells' potentials for ``cost``, from warm ones g (n',) of
    its uncentred score, lifted.

    descent : how the last descent ended.
    spent : outer and inner iterations of it, where it was on this rung.
    last : the rung before.
    began : when work on this one did.
    """
    model, options, ranks, (x, y) = problem.model, problem.options, problem.ranks, cells
    wanted, tol = options.ladder.marginal_tol, inner_tolerance(problem)
    score = factored_score(cost, model.p, model.q, problem.epsilon, SCORE_SHARE * wanted, tol < FLOAT32_RESIDUAL, ranks)
    # Row and column terms of the cost, in the gauge of the score.
    a, b = cost.offsets(score.epsilon)
    offsets = a - score.row, b - score.column
    A, B, sides, f, g = _begin_level(problem.kernels.streamed, g, model, score, offsets, x, y, ranks)
    stored, whole = _stores_plan(problem, x, y), (x.count, y.count) == problem.shape
    if not stored:
        # What a stored rung leaves unsolved is lifted; on a larger one every iteration
        # counts, and all points need no lift.
        tol = max(tol, LEFT * wanted)
    most = max(options.sinkhorn.final_max_iter, 2)  # two are the fewest that say how far
    inner = _make_inner_solver(problem, x, y, replace(options.sinkhorn, exact_max_iter=most, tol=tol))
    with threads_for(x.count * y.count):
        run = partial(inner.potentials, A, B, sides, f, g)
        solved = problem.run_on_first(run) if stored else run()
    draws = [
        None if len(mass) <= SAMPLED_POINTS else prepare_draws(mass, SAMPLED_POINTS, problem.generator)
        for mass in model.masses
    ]
    f, g, errors = lift_potentials(
        problem.kernels.local_kernel,
        model,
        score,
        offsets,
        (A, B, solved.f, solved.g),
        (x.label, y.label) if whole else None,
        draws,
        ranks,
    )
    row, row_error, column, column_error = to_host(errors)[0].tolist()
    residual, error = max((row, row_error), (column, column_error))
    if not model.has_hard_marginals and not whole:
        residual = math.inf if last is None else max(residual, _measure_plan_change(problem, last, score, f, g))
    told = Rung(
        cells=(x.count, y.count),
        residual=residual,
        residual_error=error,
        n_iter=spent[0],
        n_iter_sinkhorn=spent[1] + solved.n_iter,
        seconds=time.perf_counter() - began,
    )
    logger.info("ladder: %s", told)
    levels = (told,) if last is None else (*last.levels, told)
    return MultilevelState(
        n_iter=sum(rung.n_iter for rung in levels),
        n_iter_sinkhorn=sum(rung.n_iter_sinkhorn for rung in levels),
        cost=cost,
        score=score,
        f=f,
        g=g,
        levels=levels,
        descent=descent,
    )


@as_cuda_graph()
def _begin_level(
    kernel: StreamedKernel,
    g: Tensor,
    model: Model,
    score: FactoredScore,
    offsets: tuple[Tensor, Tensor],
    x: Cells,
    y: Cells,
    ranks: Ranks,
) -> tuple[Tensor, Tensor, Sides, Tensor, Tensor]:
    """The linear problem between cells for a score on all points: means of its factors, the
    sides, and potentials from warm ones g (n',) of the uncentred score."""
    small, p, q = model.coarsen(x, y), model.p, model.q
    means = x.means(offsets[0][:, None], p)[:, 0], y.means(offsets[1][:, None], q)[:, 0]
    log_p, log_q = (mass.log2().to(score.A.dtype) for mass in small.masses)
    sides = small.constraints_from_logs(log_p, log_q, score.epsilon, *means)
    A, B = x.means(score.A, p, ranks), y.means(score.B, q, ranks)
    g = g.to(A.dtype) + y.means(score.column[:, None], q)[:, 0].to(A.dtype)
    return A, B, sides, sides[0].potential(kernel.bind(A, B).softmin(g, 1)), g


def inner_tolerance(problem: StreamedProblem) -> float:
    """Of the inner solves: a tenth of what the marginals may be off by, or what the options
    ask for."""
    return min(problem.options.sinkhorn.tol, problem.options.ladder.marginal_tol / 10)


def _stores_plan(problem: StreamedProblem, x: Coarsening, y: Coarsening) -> bool:
    """Whether plans between these cells are stored; those between all points never are."""
    return x.count * y.count <= STORED_CELLS**2 and (x.count, y.count) != problem.shape


def _make_inner_solver(problem: StreamedProblem, x: Coarsening, y: Coarsening, options: SinkhornOptions) -> InnerSolver:
    model = problem.model.coarsen(x, y)
    if _stores_plan(problem, x, y):
        return StoredSolver(problem.kernels.stored, model, options)
    return StreamedSolver(
        problem.kernels.streamed, problem.kernels.tiled, model, options, problem.options.ladder.omitted, problem.ranks
    )


FEWEST = 16


@dataclass(frozen=True, kw_only=True)
class StreamedProblem(Problem):
    """A problem whose plans between all points are not stored, so that it has no value and
    no cost of one, but those of plans between cells; its spaces serve the loop's dtype.

    x, y : the spaces with their masses and factors, their own or those of landmarks.
    cells : those that the search and the first descent are between.
    """

    x: ControlledSpace
    y: ControlledSpace
    cells: tuple[Coarsening, Coarsening]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.p), len(self.q)

    @property
    def has_factors(self) -> bool:
        """Whether both spaces have factors of their own."""
        return self.x.exact and self.y.exact

    def run_on_first(self, task: Callable[[], Result]) -> Result:
        """The result of a task that the first rank does, with the random state and the
        cancellation that it leaves."""
        result, state, stopped = self.ranks.run_on_first(
            lambda: (task(), self.generator.get_state(), self.watch.should_stop)
        )
        self.generator.set_state(state)
        if stopped:
            self.watch.stop()
        return result


def make_cells(problem: Problem, side: ControlledSpace, axis: int, features: Tensor, count: int) -> Coarsening:
    """At least ``count`` cells of the source (axis 0) or the target by the features (N, d),
    the ranks' shares, see `cut_cells`."""
    group = None if problem.model.groups is None else problem.model.groups[axis]
    return side.coarsen(cut_cells(features, count, group, problem.kernels.backend, len(side.mass), side.ranks))


def solve_on_cells(asked: Problem) -> tuple[StreamedProblem, Solution, float]:
    """The streamed problem, its solution between the first cells with the basins of the
    search, as matchings of all points, and when that was begun."""
    started = time.perf_counter()
    options, dtype = asked.options, loop_dtype(asked.options.mixed_precision)
    left, right = (
        ControlledSpace.of(space.to(mass.device, dtype), mass, dtype, options.sampling.n_control, asked.generator)
        for space, mass in zip(asked.spaces, asked.model.masses, strict=True)
    )
    # Cells are cut by the factors of the distances, and by those of the linear cost.
    linear = asked.model.linear(dtype)
    features = (left.control.F, right.control.F)
    if linear is not None:
        features = torch.cat((features[0], linear.U), 1), torch.cat((features[1], linear.V), 1)
    # As cells are halved, at least two points for each.
    counts = [
        min(options.ladder.n_cells, max(1 << max(len(own.mass) // 2, 1).bit_length() - 1, FEWEST))
        for own in (left, right)
    ]
    sides = zip((left, right), (0, 1), features, counts, strict=True)
    x, y = (make_cells(asked, *side) for side in sides)
    problem = StreamedProblem.of(
        asked, spaces=(left.space, right.space), kernels=asked.kernels.share(left.ranks), x=left, y=right, cells=(x, y)
    )
    began = time.perf_counter()
    init = problem.init
    if init is not None and init.is_floating_point():
        init = coarsen_plan(init, x, y)
    elif init is not None:
        init = torch.stack((x.label[init[:, 0]], y.label[init[:, 1]]), 1)
    coarse = replace(problem.coarsen(x, y), init=init, tol=None)
    with threads_for(x.count * y.count):
        found = problem.run_on_first(partial(search_and_descend, coarse))
    basins = tuple(
        replace(each, matching=y.medoids[each.matching[x.label]], shift=each.shift[x.label]) for each in found.basins
    )
    return problem, replace(found, basins=basins, seconds={"search": began - started + found.seconds["search"]}), began


def linearise_on_points(problem: StreamedProblem, coupling: Coupling, x: Coarsening, y: Coarsening) -> FactoredCost:
    """The cost of the whole objective on all points, of a plan between cells; sampled where
    not both have factors."""
    model, sides = problem.model, (problem.x, problem.y)
    small = model.coarsen(x, y)
    rows, columns = small.marginals_of(coupling)
    mass = rows.sum()
    if not model.has_hard_marginals:
        sides = with_mean_squares(sides[0], x, rows / mass), with_mean_squares(sides[1], y, columns / mass)
    if problem.has_factors:
        cost = cost_of_cells(coupling, mass, (x.features, y.features), (sides[0].control, sides[1].control))
    else:
        assert isinstance(coupling, DenseCoupling), "gradients are sampled from plans that are stored"
        cost = sampled_cost_of_cells(coupling.plan, x, y, sides, problem.options.sampling.n_anchors, problem.generator)
    if model.is_standard:
        return cost
    linear, moments = model.linear(cost.U.dtype), None
    if model.marginals.free_mass:
        cost = FactoredCost.weighted_sum([cost], [mass])
        moments = moments_of(small, model.average_cost(cost, x, y), small.linear(cost.U.dtype), coupling, rows, columns)
    return weights_of(small, moments).combine_costs(cost, linear)

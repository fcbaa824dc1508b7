"""A streaming solve: search and descent on cells, the climb to all points, rounding on kept tiles.

Passes over all kept pairs are four: a half-step of each side, which takes off what lifting left of the marginals, for
what rounding adds costs a hundred times as much as what it adds it to; then one finds the marginals before rounding,
one what rounding has to add, the largest entry of each row, and F^T T G, from which the value follows.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from torchgw.couplings.rounding import TileRounding, round_tiles, sweep_tiles
from torchgw.couplings.tiled import TiledCoupling
from torchgw.diagnostics.status import Status
from torchgw.kernels import LN2
from torchgw.kernels.blocks import blocks, points_at_once
from torchgw.kernels.precision import LAST, reach, unsafe
from torchgw.kernels.sums import BLOCK_POINTS, inner_product
from torchgw.kernels.tiles import TILE, UNIT, TiledPlan, Tiles, all_tiles, centres, choose_tiles
from torchgw.objective.certify import certify, read_block_plan
from torchgw.objective.exact import ExactGradient
from torchgw.options import GWOptions
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.runtime.memory import give_back
from torchgw.runtime.ranks import ALONE, Ranks
from torchgw.runtime.transfer import to_host
from torchgw.sinkhorn.score import FactoredScore, factored_score
from torchgw.solvers.entropic import refine_by_newton, with_tolerance
from torchgw.solvers.inner import StreamedSolver
from torchgw.solvers.problem import Problem
from torchgw.solvers.solution import CertifiedSolution, Solution
from torchgw.spaces.coarsening import bisect
from torchgw.strategies.cells import StreamedProblem, lift_basins, make_streamed_problem, solve_on_cells
from torchgw.strategies.continuation import make_epsilon_step
from torchgw.strategies.ladder import MultilevelState, inner_tolerance, refine_to_all_points

# From which sums of products pay: each run of rows is thirty launches, a pair 12 ps on an H100 by the Triton kernel.
SEPARABLE_PAIRS = {"cuda": 5e10}
EVERY_PAIR = 2**22
FEW_POINTS = 300
DISPLACED, DISPLACED_IN_RUN = 0.8, 0.05
LEFT_OF_POINT = 0.1  # of a point's mass, among points of equal ones, that tiles which are left out may hold
USUALLY_ABOVE = 1.25  # measured: the bound on what is displaced, over the usual share
CROSS_BITS = 1.2  # 1 + x ln 2 is above zero for all |x| up to 1.44
SIZES = (UNIT, 1024, 512, 256, 128, 64)


def solve_streaming(asked: Problem) -> CertifiedSolution:
    """Solve with O((N + K) r) memory."""
    began = time.perf_counter()
    problem = make_streamed_problem(asked)
    first, basins, seconds = solve_on_cells(problem)
    searched = time.perf_counter() - seconds["solve"]
    state, solution = refine_to_all_points(problem, first, sum(seconds.values()))
    del first
    if asked.tol is not None:
        state, solution = _refine_state(asked, state, solution, asked.tol)
        state.require_finite()
    solved = time.perf_counter()
    kept = keep_tiles(problem, state)
    if problem.ranks.count > 1:
        state = state.without_factors()
        give_back()
    found = finish_tiles(problem, kept, state, solution)
    seconds = {"search": searched - began, "solve": solved - searched, "finish": time.perf_counter() - solved}
    path = (
        (replace(make_epsilon_step(asked, found, sum(seconds.values())), value=found.values.total),)
        if asked.auto
        else ()
    )
    return replace(found, basins=lift_basins(problem, basins), seconds=seconds, path=path)


def _refine_state(
    asked: Problem, state: MultilevelState, solution: Solution, tol: float
) -> tuple[MultilevelState, Solution]:
    """The fixed point between all points, near where the climb ended."""
    (p, q), kernels, end = asked.model.masses, asked.kernels, state.warm_start
    x, y = (space.to(p.device, torch.float64) for space in asked.spaces)
    options = with_tolerance(asked.options, tol, end.coupling(), asked.model)
    inner = StreamedSolver(kernels.streamed, kernels.tiled, asked.model, options.sinkhorn, 0.0)
    arguments = ExactGradient(x, y, p, q), end, asked.model, inner, options, asked.watch, solution.history
    done = asked.stage("fixed-point", partial(refine_by_newton, *arguments))
    end = done.warm_start or end
    assert end.cost is not None
    score = factored_score(end.cost, p, q, asked.epsilon, tol, wide=True)
    solved = replace(state.last_level, cost=end.cost, score=score)
    return replace(state, last_level=solved, f=end.f + score.row, g=end.g + score.column), done.add_iterations(solution)


def finish_tiles(
    problem: StreamedProblem, kept: KeptPlan, state: MultilevelState, solution: Solution
) -> CertifiedSolution:
    """The plan of the last potentials, without the tiles that hold nothing, rounded onto exact marginals.

    Two passes over the kept tiles, beside the two of `keep_tiles`.
    """
    model, ranks, (n, k) = problem.model, problem.ranks, (len(problem.p), len(problem.q))
    rounded, read = _round_plan(problem, kept)
    if ranks.count > 1:
        give_back()
    # All factors of the score last: where ranks share them, nothing else of their size is left then.
    coupling = None if problem.has_factors else _make_coupling(problem, kept, rounded)
    # Of bounds the last rung knows a sample, whose noise is above what rounding leaves.
    held = model.has_hard_marginals or model.marginals.total is not None
    residual = rounded.residual if held else max(rounded.residual, state.levels[-1].residual)
    dual = state.last_level.cost.column_dual(state.g - state.last_level.score.column, problem.q, problem.epsilon)
    found = read_block_plan(
        coupling,
        read.product,
        problem.spaces,
        problem.controls,
        model.masses if model.has_hard_marginals else read.marginals,
        problem.options.max_memory if problem.exact or max(n, k) <= FEW_POINTS else 0,
        problem.generator,
        ranks,
    )
    found = replace(found, linear=read.linear, penalty=read.penalty)
    totals, certificate = certify(found, dual, problem.spaces, model, problem.unit, problem.generator, ranks)
    quadratic = found.quadratic
    del found
    if ranks.count > 1:
        give_back()
    reached = residual <= problem.options.ladder.marginal_tol or solution.status is Status.CANCELLED
    return solution.with_certificate(
        coupling=_make_coupling(problem, kept, rounded) if coupling is None else coupling,
        warm_start=state.warm_start if ranks.count == 1 else None,
        status=solution.status if reached else Status.MARGINALS,
        marginal_residual=residual,
        precision_warning=kept.precision_warning,
        marginals=read.marginals,
        gradient="exact" if state.has_exact_cost else "sampled",
        value_exact=quadratic.exact,
        value_error=quadratic.error,
        values=totals,
        certificate=certificate,
        ladder=state.levels,
        omitted=kept.omitted,
        evaluated=kept.plan.tiles.pairs / (n * k),
    )


class KeptPlan(NamedTuple):
    """The last potentials on the tiles that hold mass, in the order of these.

    rows, columns : the orders (N,), (K,), position to point.
    plan : what they stand for there.
    omitted : bound on the mass that this leaves out or moves.
    precision_warning : why float32 could not carry the score, or None.
    """

    rows: Tensor
    columns: Tensor
    plan: TiledPlan
    omitted: float
    precision_warning: str | None


def keep_tiles(problem: StreamedProblem, state: MultilevelState) -> KeptPlan:
    """The tiles to read; potentials that lifting left rough take a half-step of each side."""
    score, backend, ranks, (n, k) = (
        state.last_level.score,
        problem.kernels.backend,
        problem.ranks,
        (len(state.f), len(state.g)),
    )
    rows, columns = (_make_tile_order(side, size, backend, ranks) for side, size in ((score.A, n), (score.B, k)))
    numbers = state.f, state.g, *problem.model.masses
    (A, B), (f, g, p, q), reached = _sort_into_tiles(
        (score.A, score.B), numbers, (rows, columns), n * k <= EVERY_PAIR, ranks
    )
    tiles, omitted = select_tiles(A, B, f, g, p, q, problem.options.ladder.omitted, ranks)
    told = [reached.double()]
    if problem.model.is_standard and problem.tol is None and inner_tolerance(problem) < state.levels[-1].residual:
        f, g, raised = sweep_tiles(problem.kernels.tiled, A, B, tiles, f, g, p, q)
        told.append(raised)
    largest, *more = to_host(torch.stack(told))[0].tolist()
    for raised in more:
        omitted *= 2.0 ** max(raised, 0.0)  # tiles that are left out would have gained as much, at most
    plan = TiledPlan(A, B, f, g, tiles)
    return KeptPlan(rows, columns, plan, omitted, _explain_precision(score, problem.options, largest))


@as_cuda_graph()
def _sort_into_tiles(
    factors: tuple[Tensor, Tensor],
    numbers: tuple[Tensor, Tensor, Tensor, Tensor],
    orders: tuple[Tensor, Tensor],
    wide: bool,
    ranks: Ranks,
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Factors, potentials and masses in the order of the tiles, factors in float64 where ``wide``, and the `reach`."""
    moved = [ranks.permute(side, order, UNIT) for side, order in zip(factors, orders, strict=True)]
    if wide:
        moved = [side.double() for side in moved]
    sorted_numbers = [each[order] for each, order in zip(numbers, orders * 2, strict=True)]
    return moved, sorted_numbers, reach(*factors, ranks)


class _PlanReadings(NamedTuple):
    """What is read of the rounded plan T.

    product : F^T T G (r, r'), None where not both spaces have factors.
    linear, penalty : <M, T>, <P, T>.
    marginals : (N,), (K,), in the order of the points.
    """

    product: Tensor | None
    linear: float
    penalty: float
    marginals: tuple[Tensor, Tensor]


def _round_plan(problem: StreamedProblem, kept: KeptPlan) -> tuple[TileRounding, _PlanReadings]:
    """The rounded plan, and its products with the factors of spaces and costs."""
    model, ranks, (rows, columns) = problem.model, problem.ranks, kept[:2]
    # Rules beside huge masses cost so little that float32 would lose it; by a power of two no other bit changes.
    price = math.ldexp(1.0, math.frexp(model.price)[1])
    costs = [(cost, size) for cost, size in ((model.cost, 1.0), (model.penalty, price)) if cost is not None]
    parts = [cost.U / size for cost, size in costs], [cost.V for cost, _ in costs]
    sides = (problem.x, parts[0], rows), (problem.y, parts[1], columns)
    (left, mean_x), (right, mean_y) = (
        _order_factors(
            side.mass, [side.control.F if problem.has_factors else side.control.F[:, :0], *parts], order, ranks
        )
        for side, parts, order in sides
    )
    p, q, kernel = problem.p[rows], problem.q[columns], problem.kernels.tiled
    found = round_tiles(kernel, kept.plan, p, q, model.marginals, left, right)
    x, y = (left, mean_x, found.x, found.rows, rows), (right, mean_y, found.y, found.columns, columns)
    core, inner, marginals = _complete_products(found.core, x, y, ranks)
    i, j, values, product = len(mean_x), len(mean_y), [], inner if problem.has_factors else None
    for cost, size in costs:
        rank = cost.U.shape[1]
        cross, i, j = size * core[i : i + rank, j : j + rank].trace(), i + rank, j + rank
        values.append(float(cost.expectation(cross, *marginals)))
    linear = values.pop(0) if model.cost is not None else 0.0
    return found, _PlanReadings(product, linear, values[0] if values else 0.0, marginals)


TileSide = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


@as_cuda_graph()
def _complete_products(
    core: Tensor, x: TileSide, y: TileSide, ranks: Ranks
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """F'^T T G' (l, r) of the plan with its correction, from that without, F^T T G of the leading factors with the
    means that were taken off them, and the plan's marginals in the order of the points.

    x, y : factors in the order of the tiles, means of the leading ones, the correction's factor, the plan's marginal,
        and the order.
    """
    # Products of the correction, and of the whole plan's marginals, with all factors.
    (of_x, of_rows), (of_y, of_columns) = (
        inner_product(side, ranks.own(torch.stack(numbers, 1), UNIT), ranks=ranks).unbind(1)
        for side, _, *numbers, _ in (x, y)
    )
    core = core + torch.outer(of_x, of_y)
    rows, columns = (sums.index_copy(0, order, sums) for *_, sums, order in (x, y))
    means = x[1], y[1]
    i, j = map(len, means)
    inner = _undo_centring(core[:i, :j], means, (of_rows[:i], of_columns[:j]), rows.sum())
    return core, inner, (rows, columns)


def _make_coupling(problem: StreamedProblem, kept: KeptPlan, rounded: TileRounding) -> TiledCoupling:
    ranks, rows, columns = problem.ranks, kept.rows, kept.columns
    A, B = ranks.all_gather(kept.plan.A, len(rows), UNIT), ranks.all_gather(kept.plan.B, len(columns), UNIT)
    return rounded.coupling(A, B, rows, columns)


def _make_tile_order(A: Tensor, n: int, backend: str, ranks: Ranks) -> Tensor:
    """An order (n,) in which runs of points are near each other, for tiles of any size."""
    # Cut at multiples of the largest tile first and halved within.
    return bisect(A, -(-n // SIZES[-1]), UNIT, backend, n, ranks).order


def _undo_centring(core: Tensor, means: tuple[Tensor, Tensor], moments: tuple[Tensor, Tensor], mass: Tensor) -> Tensor:
    """F^T T G (r, r') of a plan of this mass from ``core`` = F'^T T G' of the centred factors F', G', from what was
    taken off, F = F' + 1 m^T, and from the products of F', G' with the plan's own marginals."""
    x, y = means
    return core + torch.outer(x, moments[1]) + torch.outer(moments[0], y) + mass * torch.outer(x, y)


def select_tiles(
    A: Tensor, B: Tensor, f: Tensor, g: Tensor, p: Tensor, q: Tensor, share: float, ranks: Ranks = ALONE
) -> tuple[Tiles, float]:
    """The tiles to evaluate, and a bound on the mass that this leaves out or moves: all where there are few pairs.

    On a CPU, and on a GPU between very many points, tiles are taken as short sums of products where they are small
    enough for that; most of the ``share`` is for what that moves, which stays near, the rest for the tiles that are
    left out.
    """
    n, k = len(f), len(g)
    if share == 0 or n * k <= EVERY_PAIR:
        return all_tiles(n, k, TILE, A.device), 0.0
    if n * k < SEPARABLE_PAIRS.get(A.device.type, 0.0):
        return choose_tiles(A, B, f, g, (p, q), TILE, share, ranks)[:2]
    for size in SIZES:
        squares = [_mean_square_radius(side, count, size, ranks) for side, count in ((A, n), (B, k))]
        if USUALLY_ABOVE * LN2**2 / 2 * squares[0] * squares[1] <= DISPLACED * share:
            # What a run loses could all be of one of its points.
            left = min((1 - DISPLACED) * share, LEFT_OF_POINT / size)
            found = choose_tiles(A, B, f, g, (p, q), size, left, ranks)
            if (
                found.displaced <= DISPLACED * share
                and found.displaced_in_run <= DISPLACED_IN_RUN
                and found.cross <= CROSS_BITS
            ):
                return replace(found.tiles, separable=True), found.omitted + found.displaced
    return choose_tiles(A, B, f, g, (p, q), TILE, share, ranks)[:2]


def _mean_square_radius(A: Tensor, n: int, size: int, ranks: Ranks) -> float:
    """The mean squared distance of n points from the centres of their tiles; ln(2)^2 / 2 times those of both sides is
    the usual share of mass that short sums of products displace."""
    centre, total = centres(A, size).to(A.dtype), torch.zeros((), dtype=torch.float64, device=A.device)
    for where in blocks(len(A), points_at_once(A.shape[1], A.device, BLOCK_POINTS) // size * size):
        near = centre[where.start // size : -(-where.stop // size)].repeat_interleave(size, 0)
        block = A[where]
        total += (block - near[: len(block)]).square().sum(1).sum(dtype=torch.float64)
    return float(ranks.sum(total)) / n


def _explain_precision(score: FactoredScore, options: GWOptions, largest: float) -> str | None:
    """Why float32 could not carry the score, of which no entry is larger than that, or None."""
    narrow = options.mixed_precision and score.A.dtype == torch.float32
    found = unsafe(largest, score.A.shape[1]) if narrow else None
    return None if found is None else found.replace(LAST, "the potentials may have gone astray")


@as_cuda_graph()
def _order_factors(mass: Tensor, factors: list[Tensor], order: Tensor, ranks: Ranks) -> tuple[Tensor, Tensor]:
    """Factors (N, .) of a side's points next to each other, in this order and the dtype of the first, which is centred;
    and its mean (r,), float64. The mean belongs to the plan's own marginals: what is read in float32 is then small."""
    mean = inner_product(ranks.own(mass)[:, None], factors[0], ranks=ranks)[0] / mass.sum()
    first = ranks.permute(factors[0], order, UNIT).sub_(mean.to(factors[0].dtype))
    more = [ranks.permute(part, order, UNIT).to(first.dtype) for part in factors[1:]]
    return torch.cat([first, *more], 1) if more else first, mean

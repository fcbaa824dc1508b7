"""A streaming solve: search and descent on cells, the climb to all points, rounding on kept
tiles.

Passes over all kept pairs are four: a half-step of each side, which takes off what lifting
left of the marginals, for what rounding adds costs a hundred times as much as what it adds
it to; then one finds the marginals before rounding, one what rounding has to add, the
largest entry of each row, and F^T T G, from which the value follows.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import partial
from typing import TypeAlias

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
from torchgw.problem.problem import Problem
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.runtime.memory import give_back
from torchgw.runtime.ranks import ALONE, Ranks
from torchgw.runtime.transfer import to_host
from torchgw.sinkhorn.score import factored_score
from torchgw.solvers.entropic import refine_by_newton, with_tolerance
from torchgw.solvers.inner import StreamedSolver
from torchgw.solvers.solution import CertifiedSolution, Solution
from torchgw.spaces.coarsening import bisect
from torchgw.strategies.entropic import make_epsilon_step
from torchgw.strategies.multilevel import MultilevelState, StreamedProblem, climb_to_all_points, inner_tolerance

# From which sums of products pay: each run of rows is thirty launches, a pair 12 ps on an
# H100 by the Triton kernel.
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
    problem, state, solution = climb_to_all_points(asked)
    searched = began + solution.seconds["search"]
    if asked.tol is not None:
        state, solution = _refine_state(asked, state, solution, asked.tol)
        state.require_finite()
    solved = time.perf_counter()
    kept = keep_tiles(problem, state)
    del state  # which has a row for each point
    found = finish_tiles(problem, kept, solution, (began, searched, solved))
    seconds = sum(found.seconds.values())
    return replace(found, path=(make_epsilon_step(asked, found, seconds),)) if asked.auto else found


def _refine_state(
    asked: Problem, state: MultilevelState, solution: Solution, tol: float
) -> tuple[MultilevelState, Solution]:
    """The fixed point between all points, near where the climb ended."""
    (p, q), kernels, end = asked.model.masses, asked.kernels, solution.next_start
    x, y = (space.to(p.device, torch.float64) for space in asked.spaces)
    options = with_tolerance(asked.options, tol, end.coupling(), asked.model)
    inner = StreamedSolver(kernels.streamed, kernels.tiled, asked.model, options.sinkhorn, 0.0)
    arguments = ExactGradient(x, y, p, q), end, asked.model, inner, options, asked.watch, solution.history
    done = asked.stage("fixed-point", partial(refine_by_newton, *arguments))
    end = done.next_start
    assert end.cost is not None
    score = factored_score(end.cost, p, q, asked.epsilon, tol, wide=True)
    state = replace(state, cost=end.cost, score=score, f=end.f + score.row, g=end.g + score.column)
    return state, done.add_iterations(solution)


# Orders of both sides (N,), (K,), position to point; the last potentials on the tiles that
# hold mass, in these orders; column potentials (K,) in units of cost; a bound on the mass
# that leaving out tiles loses or moves; and why float32 could not carry the score, or None.
KeptPlan: TypeAlias = tuple[tuple[Tensor, Tensor], TiledPlan, Tensor, float, str | None]


def finish_tiles(
    problem: StreamedProblem, kept: KeptPlan, solution: Solution, times: tuple[float, float, float]
) -> CertifiedSolution:
    """The plan of the last potentials, without the tiles that hold nothing, rounded onto
    exact marginals.

    Two passes over the kept tiles, beside the two of `keep_tiles`.
    """
    model, ranks, ladder = problem.model, problem.ranks, solution.ladder
    orders, plan, dual, omitted, warning = kept
    rounded, product, linear, penalty, marginals = _round_plan(problem, orders, plan)

    def make_coupling() -> TiledCoupling:
        sides = zip((plan.A, plan.B), orders, strict=True)
        A, B = (ranks.all_gather(side, len(order), UNIT) for side, order in sides)
        return rounded.coupling(A, B, *orders)

    if ranks.count > 1:
        give_back()
    # All factors of the score last: where ranks share them, nothing else of their size is
    # left then.
    coupling = None if problem.has_factors else make_coupling()
    # Of bounds the last rung knows a sample, whose noise is above what rounding leaves.
    held = model.has_hard_marginals or model.marginals.total is not None
    residual = rounded.residual if held else max(rounded.residual, ladder[-1].residual)
    # The last cost is the gradient of a plan between all points where one of the later
    # rungs made one.
    exact = problem.has_factors or any(rung.cells == problem.shape and rung.n_iter > 0 for rung in ladder[1:])
    found = replace(
        read_block_plan(
            coupling,
            product,
            problem.spaces,
            (problem.x.control, problem.y.control),
            model.masses if model.has_hard_marginals else marginals,
            problem.options.max_memory if problem.exact or max(problem.shape) <= FEW_POINTS else 0,
            problem.generator,
            ranks,
        ),
        linear=linear,
        penalty=penalty,
    )
    certified = certify(found, dual, problem.spaces, model, problem.unit, problem.generator, ranks)
    quadratic = found.quadratic
    del found
    if ranks.count > 1:
        give_back()
    reached = residual <= problem.options.ladder.marginal_tol or solution.status is Status.CANCELLED
    return solution.with_certificate(
        marginals,
        quadratic,
        *certified,
        times,
        coupling=make_coupling() if coupling is None else coupling,
        energy=certified[0].total,
        status=solution.status if reached else Status.MARGINALS,
        marginal_residual=residual,
        precision_warning=warning,
        gradient="exact" if exact else "sampled",
        omitted=omitted,
        evaluated=plan.tiles.pairs / math.prod(problem.shape),
    )


def keep_tiles(problem: StreamedProblem, state: MultilevelState) -> KeptPlan:
    """The tiles to read; potentials that lifting left rough take a half-step of each side."""
    score, ranks, options = state.score, problem.ranks, problem.options
    n, k = problem.shape
    dual = state.cost.column_dual(state.g - score.column, problem.q, problem.epsilon)
    # Runs of points near each other, for tiles of any size: cut at multiples of the largest
    # tile, and halved within.
    rows, columns = (
        bisect(side, -(-size // SIZES[-1]), UNIT, problem.kernels.backend, size, ranks).order
        for side, size in ((score.A, n), (score.B, k))
    )
    numbers = state.f, state.g, *problem.model.masses
    orders = rows, columns
    (A, B), (f, g, p, q), reached = _sort_into_tiles((score.A, score.B), numbers, orders, n * k <= EVERY_PAIR, ranks)
    tiles, omitted = select_tiles(A, B, f, g, p, q, options.ladder.omitted, ranks)
    raised = reached.new_zeros(())
    if problem.model.is_standard and problem.tol is None and inner_tolerance(problem) < state.levels[-1].residual:
        f, g, raised = sweep_tiles(problem.kernels.tiled, A, B, tiles, f, g, p, q)
    largest, most = to_host(torch.stack((reached.double(), raised.double())))[0].tolist()
    omitted *= 2.0 ** max(most, 0.0)  # tiles that are left out would have gained as much, at most
    narrow = options.mixed_precision and score.A.dtype == torch.float32
    warning = unsafe(largest, score.A.shape[1]) if narrow else None
    if warning is not None:
        warning = warning.replace(LAST, "the potentials may have gone astray")
    return orders, TiledPlan(A, B, f, g, tiles), dual, omitted, warning


@as_cuda_graph()
def _sort_into_tiles(
    factors: tuple[Tensor, Tensor],
    numbers: tuple[Tensor, Tensor, Tensor, Tensor],
    orders: tuple[Tensor, Tensor],
    wide: bool,
    ranks: Ranks,
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Factors, potentials and masses in the order of the tiles, factors in float64 where
    ``wide``, and the `reach`."""
    moved = [
        ranks.permute(side, order, UNIT).to(torch.float64 if wide else side.dtype)
        for side, order in zip(factors, orders, strict=True)
    ]
    sorted_numbers = [each[order] for each, order in zip(numbers, orders * 2, strict=True)]
    return moved, sorted_numbers, reach(*factors, ranks)


def _round_plan(
    problem: StreamedProblem, orders: tuple[Tensor, Tensor], plan: TiledPlan
) -> tuple[TileRounding, Tensor | None, float, float, tuple[Tensor, Tensor]]:
    """The rounded plan T; F^T T G (r, r'), None where not both spaces have factors; <M, T>
    and <P, T>; and the marginals (N,), (K,), in the order of the points."""
    model, ranks, (rows, columns) = problem.model, problem.ranks, orders
    # Rules beside huge masses cost so little that float32 would lose it; by a power of two
    # no other bit changes.
    price = math.ldexp(1.0, math.frexp(model.price)[1])
    costs = [None if cost is None else (cost, size) for cost, size in ((model.cost, 1.0), (model.penalty, price))]
    given = [each for each in costs if each is not None]
    parts = [cost.U / size for cost, size in given], [cost.V for cost, _ in given]
    sides = (problem.x, parts[0], rows), (problem.y, parts[1], columns)
    (left, mean_x), (right, mean_y) = (
        _order_factors(
            side.mass, [side.control.F if problem.has_factors else side.control.F[:, :0], *parts], order, ranks
        )
        for side, parts, order in sides
    )
    p, q, kernel = problem.p[rows], problem.q[columns], problem.kernels.tiled
    found = round_tiles(kernel, plan, p, q, model.marginals, left, right)
    x, y = (left, mean_x, found.x, found.rows, rows), (right, mean_y, found.y, found.columns, columns)
    core, inner, marginals = _complete_products(found.core, x, y, ranks)
    i, j, values = len(mean_x), len(mean_y), [0.0, 0.0]
    for number, each in enumerate(costs):
        if each is not None:
            (cost, size), rank = each, each[0].U.shape[1]
            cross, i, j = size * core[i : i + rank, j : j + rank].trace(), i + rank, j + rank
            values[number] = float(cost.expectation(cross, *marginals))
    return found, inner if problem.has_factors else None, values[0], values[1], marginals


TileSide = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


@as_cuda_graph()
def _complete_products(
    core: Tensor, x: TileSide, y: TileSide, ranks: Ranks
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """F'^T T G' (l, r) of the plan with its correction, from that without, F^T T G of the
    leading factors with the means that were taken off them, and the plan's marginals in the
    order of the points.

    x, y : factors in the order of the tiles, means of the leading ones, the correction's
        factor, the plan's marginal, and the order.
    """
    # Products of the correction, and of the whole plan's marginals, with all factors.
    (of_x, of_rows), (of_y, of_columns) = (
        inner_product(side, ranks.own(torch.stack(numbers, 1), UNIT), ranks=ranks).unbind(1)
        for side, _, *numbers, _ in (x, y)
    )
    core = core + torch.outer(of_x, of_y)
    rows, columns = (sums.index_copy(0, order, sums) for *_, sums, order in (x, y))
    # What was taken off, F = F' + 1 m^T, comes back by the products with the plan's own
    # marginals.
    mean_x, mean_y, i, j = x[1], y[1], len(x[1]), len(y[1])
    inner = core[:i, :j] + torch.outer(mean_x, of_columns[:j]) + torch.outer(of_rows[:i], mean_y)
    return core, inner + rows.sum() * torch.outer(mean_x, mean_y), (rows, columns)


def select_tiles(
    A: Tensor, B: Tensor, f: Tensor, g: Tensor, p: Tensor, q: Tensor, share: float, ranks: Ranks = ALONE
) -> tuple[Tiles, float]:
    """The tiles to evaluate, and a bound on the mass that this leaves out or moves: all
    where there are few pairs.

    On a CPU, and on a GPU between very many points, tiles are taken as short sums of
    products where they are small enough for that; most of the ``share`` is for what that
    moves, which stays near, the rest for the tiles that are left out.
    """
    n, k = len(f), len(g)
    if share == 0 or n * k <= EVERY_PAIR:
        return all_tiles(n, k, TILE, A.device), 0.0
    many = n * k >= SEPARABLE_PAIRS.get(A.device.type, 0.0)
    for size in SIZES if many else ():
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
    """The mean squared distance of n points from the centres of their tiles; ln(2)^2 / 2
    times those of both sides is the usual share of mass that short sums of products
    displace."""
    centre, total = centres(A, size).to(A.dtype), torch.zeros((), dtype=torch.float64, device=A.device)
    for where in blocks(len(A), points_at_once(A.shape[1], A.device, BLOCK_POINTS) // size * size):
        near = centre[where.start // size : -(-where.stop // size)].repeat_interleave(size, 0)
        block = A[where]
        total += (block - near[: len(block)]).square().sum(1).sum(dtype=torch.float64)
    return float(ranks.sum(total)) / n


@as_cuda_graph()
def _order_factors(mass: Tensor, factors: list[Tensor], order: Tensor, ranks: Ranks) -> tuple[Tensor, Tensor]:
    """Factors (N, .) of a side's points next to each other, in this order and the dtype of
    the first, which is centred; and its mean (r,), float64. The mean belongs to the plan's
    own marginals: what is read in float32 is then small."""
    mean = inner_product(ranks.own(mass)[:, None], factors[0], ranks=ranks)[0] / mass.sum()
    first = ranks.permute(factors[0], order, UNIT).sub_(mean.to(factors[0].dtype))
    more = [ranks.permute(part, order, UNIT).to(first.dtype) for part in factors[1:]]
    return torch.cat([first, *more], 1) if more else first, mean

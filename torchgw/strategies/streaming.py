"""A streaming solve: search and descent on cells, the climb to all points, rounding on kept tiles.

Passes over all kept pairs are four: a half-step of each side, which takes off what lifting left of the marginals, for
what rounding adds costs a hundred times as much as what it adds it to; then one finds the marginals before rounding,
one what rounding has to add, the largest entry of each row, and F^T T G, from which the value follows.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from torchgw.couplings.rounding import round_tiles, swept
from torchgw.couplings.tiled import NEGLIGIBLE
from torchgw.diagnostics.status import Status
from torchgw.kernels import LN2
from torchgw.kernels.precision import LAST, reach, unsafe
from torchgw.kernels.tiles import TILE, Tiles, all_tiles, centres, choose_tiles
from torchgw.objective.certify import certify, read_streamed
from torchgw.objective.exact import ExactGradient, inner_product
from torchgw.options import GWOptions
from torchgw.search.coarsen import ControlledSpace
from torchgw.sinkhorn.score import FactoredScore, factored_score
from torchgw.solvers.inner import StreamedInner
from torchgw.solvers.newton import refined, with_tolerance
from torchgw.solvers.problem import Problem
from torchgw.solvers.solution import CertifiedSolution, Solution
from torchgw.spaces.hierarchy import bisect
from torchgw.strategies.cells import StreamedProblem, solve_on_cells, streamed
from torchgw.strategies.continuation import step_of
from torchgw.strategies.ladder import Climb, climbed, tolerance

# From which sums of products pay: each run of rows is thirty launches, a pair 12 ps on an H100 by the Triton kernel.
SEPARABLE_PAIRS = {"cuda": 5e10}
EVERY_PAIR = 2**22
FEW_POINTS = 300
DISPLACED, DISPLACED_IN_RUN = 0.8, 0.05
LEFT_OF_POINT = 0.1  # of a point's mass, among points of equal ones, that tiles which are left out may hold
USUALLY_ABOVE = 1.25  # measured: the bound on what is displaced, over the usual share
CROSS_BITS = 1.2  # 1 + x ln 2 is above zero for all |x| up to 1.44
SIZES = (2048, 1024, 512, 256, 128, 64)


def solve_streaming(asked: Problem) -> CertifiedSolution:
    """Solve with O((N + K) r) memory."""
    began = time.perf_counter()
    problem = streamed(asked)
    first, basins, seconds = solve_on_cells(problem)
    searched = time.perf_counter() - seconds["solve"]
    state, solution = climbed(problem, first, sum(seconds.values()))
    if asked.tol is not None:
        state, solution = _refined(asked, state, solution, asked.tol)
        state.require_numbers()
    solved = time.perf_counter()
    found = finish_tiles(problem, state, solution)
    seconds = {"search": searched - began, "solve": solved - searched, "finish": time.perf_counter() - solved}
    path = (replace(step_of(asked, found, sum(seconds.values())), value=found.values.total),) if asked.auto else ()
    return replace(found, basins=basins, seconds=seconds, path=path)


def _refined(asked: Problem, state: Climb, solution: Solution, tol: float) -> tuple[Climb, Solution]:
    """The fixed point between all points, near where the climb ended."""
    (p, q), kernels, end = asked.model.masses, asked.kernels, state.end
    x, y = (space.to(p.device, torch.float64) for space in asked.spaces)
    options = with_tolerance(asked.options, tol, end.coupling(), asked.model)
    inner = StreamedInner(kernels.streamed, kernels.tiled, asked.model, options.sinkhorn, 0.0)
    arguments = ExactGradient(x, y, p, q), end, asked.model, inner, options, asked.watch, solution.history
    done = asked.stage("fixed-point", partial(refined, *arguments))
    end = done.end or end
    assert end.cost is not None
    score = factored_score(end.cost, p, q, asked.epsilon, tol, wide=True)
    solved = replace(state.solved, cost=end.cost, score=score)
    return replace(state, solved=solved, f=end.f + score.row, g=end.g + score.column), done.after(solution)


def finish_tiles(problem: StreamedProblem, state: Climb, solution: Solution) -> CertifiedSolution:
    """The plan of the last potentials, without the tiles that hold nothing, rounded onto exact marginals.

    Four passes over the kept tiles.
    """
    score, p, q = state.solved.score, problem.p, problem.q
    # Cut at multiples of the largest tile first and halved within, so that one order serves all sizes of tiles.
    backend = problem.kernels.backend
    rows, columns = (bisect(side, -(-len(side) // SIZES[-1]), SIZES[0], backend).order for side in (score.A, score.B))
    A, B, f, g = score.A[rows], score.B[columns], state.f[rows], state.g[columns]
    if len(A) * len(B) <= EVERY_PAIR:
        A, B = A.double(), B.double()
    tiles, omitted = kept_tiles(A, B, f, g, p[rows], q[columns], problem.options.ladder.omitted)
    model = problem.model
    if model.plain and problem.tol is None and tolerance(problem) < state.rungs[-1].residual:
        as_lifted = f, g
        f, g = swept(problem.kernels.tiled, A, B, tiles, f, g, p[rows], q[columns])
        raised = [float((new - old).nan_to_num(nan=0.0).max()) for new, old in zip((f, g), as_lifted, strict=True)]
        omitted *= 2.0 ** max(sum(raised), 0.0)  # tiles that are left out would have gained as much, at most
    (F, _), (G, _) = centred = _centred(problem.x, rows), _centred(problem.y, columns)
    narrow = F.shape[1] <= G.shape[1]
    costs = [cost for cost in (model.cost, model.penalty) if cost is not None]
    V = [*([G] if problem.factored and not narrow else []), *(cost.V[columns].to(G.dtype) for cost in costs)]
    W = [F] if problem.factored and narrow else []
    rounded = round_tiles(
        problem.kernels.tiled, A, B, tiles, f, g, p[rows], q[columns], model.marginals, V, W, find=True
    )
    x, y, TV = rounded.x, rounded.y, list(torch.split(rounded.read.TV, [1, *(part.shape[1] for part in V)], 1))
    sums = TV.pop(0)[:, 0] + x * y.sum(), rounded.read.TtW[:, 0] + y * x.sum()
    product = None
    if problem.factored:
        core = inner_product(rounded.read.TtW[:, 1:], G) if narrow else inner_product(F, TV.pop(0))
        product = _inner_products(core, *centred, (x, y), sums)
    values = []
    for cost, TU in zip(costs, TV, strict=True):
        taken = cost.taken(rows, columns)
        cross = (taken.U * TU).sum() + (taken.U.T @ x) @ (taken.V.T @ y)
        values.append(float(taken.expectation(cross, *sums)))
    linear = values.pop(0) if model.cost is not None else 0.0
    marginals = torch.empty_like(p), torch.empty_like(q)
    marginals[0][rows], marginals[1][columns] = sums
    matching = None
    if bool((x * y.max() <= NEGLIGIBLE * rounded.read.largest)[p[rows] > 0].all()):
        matching = torch.empty_like(rows)
        matching[rows] = columns[rounded.read.argmax]
        matching.masked_fill_(p <= 0, 0)
    coupling = rounded.coupling(rows, columns, matching)
    # Of bounds the last rung knows a sample, whose noise is above what rounding leaves.
    held = model.fixed or model.marginals.total is not None
    residual = rounded.residual if held else max(rounded.residual, state.rungs[-1].residual)
    dual = state.solved.cost.column_dual(state.end.g, q, problem.epsilon)
    found = read_streamed(
        coupling,
        product,
        problem.spaces,
        problem.controls,
        model.masses if model.fixed else marginals,
        linear,
        values[0] if values else 0.0,
        problem.options.max_memory if problem.exact or max(len(p), len(q)) <= FEW_POINTS else 0,
        problem.generator,
    )
    totals, certificate = certify(found, dual, problem.spaces, model, problem.unit, problem.generator)
    reached = residual <= problem.options.ladder.marginal_tol or solution.status is Status.CANCELLED
    return solution.certified(
        coupling=coupling,
        end=state.end,
        status=solution.status if reached else Status.MARGINALS,
        marginal_residual=residual,
        precision_warning=_precision_warning(score, problem.options),
        marginals=marginals,
        gradient="exact" if state.exact else "sampled",
        value_exact=found.quadratic.exact,
        value_error=found.quadratic.error,
        values=totals,
        certificate=certificate,
        ladder=state.rungs,
        omitted=omitted,
        evaluated=tiles.pairs / (len(p) * len(q)),
    )


def _inner_products(
    core: Tensor,
    left: tuple[Tensor, Tensor],
    right: tuple[Tensor, Tensor],
    correction: tuple[Tensor, Tensor],
    sums: tuple[Tensor, Tensor],
) -> Tensor:
    """F^T (T + x y^T) G (r, r') of a rounded plan with these marginals, from ``core`` = F'^T T G' and the centred
    factors F', G' with what was taken off, F = F' + 1 m^T."""
    (F, mean_x), (G, mean_y), (x, y) = left, right, correction
    core = core + torch.outer(inner_product(F, x[:, None])[:, 0], inner_product(G, y[:, None])[:, 0])
    ends = inner_product(F, sums[0][:, None])[:, 0], inner_product(G, sums[1][:, None])[:, 0]
    core += torch.outer(mean_x, ends[1]) + torch.outer(ends[0], mean_y)
    core += sums[0].sum() * torch.outer(mean_x, mean_y)
    return core


def kept_tiles(A: Tensor, B: Tensor, f: Tensor, g: Tensor, p: Tensor, q: Tensor, share: float) -> tuple[Tiles, float]:
    """The tiles to evaluate, and a bound on the mass that this leaves out or moves: all where there are few pairs.

    On a CPU, and on a GPU between very many points, tiles are taken as short sums of products where they are small
    enough for that; most of the ``share`` is for what that moves, which stays near, the rest for the tiles that are
    left out.
    """
    if share == 0 or len(A) * len(B) <= EVERY_PAIR:
        return all_tiles(len(A), len(B), TILE, A.device), 0.0
    if len(A) * len(B) < SEPARABLE_PAIRS.get(A.device.type, 0.0):
        return choose_tiles(A, B, f, g, p, q, TILE, share)[:2]
    for size in SIZES:
        if USUALLY_ABOVE * _usual_displaced(A, B, size) <= DISPLACED * share:
            # What a run loses could all be of one of its points.
            left = min((1 - DISPLACED) * share, LEFT_OF_POINT / size)
            found = choose_tiles(A, B, f, g, p, q, size, left)
            if (
                found.displaced <= DISPLACED * share
                and found.displaced_in_run <= DISPLACED_IN_RUN
                and found.cross <= CROSS_BITS
            ):
                return replace(found.tiles, separable=True), found.omitted + found.displaced
    return choose_tiles(A, B, f, g, p, q, TILE, share)[:2]


def _usual_displaced(A: Tensor, B: Tensor, size: int) -> float:
    """The usual share of mass that short sums of products displace, from mean squares around the centres."""
    squares = []
    for side in (A, B):
        centre = centres(side, size).to(side.dtype).repeat_interleave(size, 0)[: len(side)]
        squares.append(float((side - centre).square().sum(1).mean()))
    return LN2**2 / 2 * squares[0] * squares[1]


def _precision_warning(score: FactoredScore, options: GWOptions) -> str | None:
    """Why float32 could not carry the score, or None."""
    A, B = score.A, score.B
    found = unsafe(float(reach(A, B)), A.shape[1]) if options.mixed_precision and A.dtype == torch.float32 else None
    return None if found is None else found.replace(LAST, "the potentials may have gone astray")


def _centred(side: ControlledSpace, order: Tensor) -> tuple[Tensor, Tensor]:
    """The factors (N, r) minus their mean, in this order, and that mean (r,), which belongs to the plan's own
    marginals: what is read of a plan in float32 is then small."""
    F, mass = side.control.F, side.mass
    mean = inner_product(mass[:, None], F)[0] / mass.sum()
    return F[order] - mean.to(F.dtype), mean

"""A streaming solve: search and descent on cells, the climb to all points, rounding on kept tiles.

Passes over all kept pairs are two: one finds the marginals before rounding, one what rounding has to add, the largest
entry of each row, and F^T T G, from which the value follows.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchgw.couplings.rounding import round_tiles
from torchgw.couplings.tiled import NEGLIGIBLE, TiledCoupling
from torchgw.diagnostics.status import History, Status
from torchgw.kernels import LN2
from torchgw.kernels.precision import LAST, reach, unsafe
from torchgw.kernels.tiles import TILE, Tiles, all_tiles, centres, choose_tiles
from torchgw.objective.certify import certify, read_streamed
from torchgw.objective.exact import ExactGradient, inner_product
from torchgw.options import GWOptions
from torchgw.search.coarsen import Side
from torchgw.sinkhorn.score import FactoredScore, factored_score
from torchgw.solvers.frank_wolfe import column_dual
from torchgw.solvers.inner import StreamedInner
from torchgw.solvers.newton import refined, relaxation_for, tightened
from torchgw.solvers.solution import CertifiedSolution
from torchgw.spaces.hierarchy import bisect
from torchgw.strategies.first_rung import first_rung
from torchgw.strategies.ladder import Climb, climb
from torchgw.strategies.large_problem import Large, Task

EVERY_PAIR = 2**22
FEW_POINTS = 300
MOVED_OF_A_RUN = 0.05
CROSS_BITS = 1.0  # 1 + x ln 2 is above zero for all |x| up to 1.44
SIZES = (1024, 512, 256, 128, 64)


@dataclass(frozen=True)
class FinishedTiles:
    """A feasible plan on kept tiles, and what was read of it on the way.

    F^T T G where both spaces have factors; <M, T> and <P, T>; its marginals; the L1 residual before rounding, a bound
    on the mass of the tiles left out, and the share of pairs evaluated.
    """

    coupling: TiledCoupling
    product: Tensor | None
    linear: float
    penalty: float
    marginals: tuple[Tensor, Tensor]
    residual: float
    omitted: float
    evaluated: float


def run_large(
    task: Task,
) -> CertifiedSolution:
    """Solve the task with O((N + K) r) memory."""
    began, watch = time.perf_counter(), task.watch
    rung = first_rung(task, task.epsilon, watch)
    large, history = rung.large, rung.ended.history
    climbed, status, entries = watch.stage("climb", lambda: climb(rung, watch))
    history.go_on_from(entries)
    last_change = 0.0
    if task.tol is not None:
        climbed, status, last_change = _refined(task, large, climbed, task.tol, history)
    if not all(bool((side < math.inf).all()) for side in (climbed.f, climbed.g)):  # NaN as well
        raise FloatingPointError(f"epsilon = {task.epsilon:g} is too small: potentials are beyond what float64 holds")
    climbed_at = time.perf_counter()
    finished = finish_tiles(large, climbed)
    end = climbed.end
    assert end.cost is not None
    dual = column_dual(climbed.solved.cost, end.g, large.q, task.epsilon)
    model, small = large.model, max(len(large.p), len(large.q)) <= FEW_POINTS
    found = read_streamed(
        finished.coupling,
        finished.product,
        large.spaces,
        large.controls,
        model.masses if model.fixed else finished.marginals,
        finished.linear,
        finished.penalty,
        task.options.max_memory if large.exact or small else 0,
        task.generator,
    )
    values, certificate = certify(found, dual, large.spaces, model, large.unit, task.generator)
    reached = finished.residual <= task.options.ladder.marginal_tol or status is Status.CANCELLED
    return CertifiedSolution(
        coupling=finished.coupling,
        marginals=finished.marginals,
        gradient="exact" if climbed.exact else "sampled",
        marginal_residual=finished.residual,
        status=status if reached else Status.MARGINALS,
        precision_warning=_precision_warning(climbed.solved.score, task.options),
        end=end,
        last_change=last_change,
        n_iter=climbed.n_iter,
        n_iter_sinkhorn=climbed.n_iter_sinkhorn,
        history=history,
        objective=found.quadratic,
        values=values,
        certificate=certificate,
        basins=rung.basins,
        ladder=climbed.rungs,
        omitted=finished.omitted,
        evaluated=finished.evaluated,
        seconds={
            "search": rung.searched - began,
            "solve": climbed_at - rung.searched,
            "finish": time.perf_counter() - climbed_at,
        },
    )


def _refined(task: Task, large: Large, climbed: Climb, tol: float, history: History) -> tuple[Climb, Status, float]:
    """The fixed point between all points, near where the climb ended, how that ended, and its last relative change."""
    model, kernels, epsilon = large.model, large.kernels, task.epsilon
    x, y = (space.to(large.p.device, torch.float64) for space in task.spaces)
    quadratic = ExactGradient(x, y, large.p, large.q)
    start = climbed.end
    options = tightened(task.options, tol, relaxation_for(start.coupling(), model))
    inner = StreamedInner(kernels.streamed, kernels.tiled, model, options.sinkhorn, 0.0)
    done = refined(quadratic, start, model, inner, options, task.watch, history)
    end = done.end
    assert end is not None
    assert end.cost is not None
    score = factored_score(end.cost, large.p, large.q, epsilon, tol, wide=True)
    return (
        replace(
            climbed,
            solved=replace(climbed.solved, cost=end.cost, score=score),
            f=end.f + score.row,
            g=end.g + score.column,
            n_iter=climbed.n_iter + done.n_iter,
            n_iter_sinkhorn=climbed.n_iter_sinkhorn + done.n_iter_sinkhorn,
        ),
        done.status,
        done.last_change,
    )


def finish_tiles(large: Large, climbed: Climb) -> FinishedTiles:
    """The plan of the last potentials, without the tiles that hold nothing, rounded onto exact marginals.

    Two passes over the kept tiles.
    """
    score, p, q = climbed.solved.score, large.p, large.q
    # Cut at multiples of the largest tile first and halved within, so that one order serves all sizes of tiles.
    rows, columns = (bisect(side, -(-len(side) // SIZES[-1]), SIZES[0]).order for side in (score.A, score.B))
    A, B, f, g = score.A[rows], score.B[columns], climbed.f[rows], climbed.g[columns]
    if len(A) * len(B) <= EVERY_PAIR:
        A, B = A.double(), B.double()
    tiles, omitted = kept_tiles(A, B, f, g, p[rows], q[columns], large.options.ladder.omitted)
    exact, model = large.x.exact and large.y.exact, large.model
    narrow = large.x.control.F.shape[1] <= large.y.control.F.shape[1]
    F, G = _centred(large.x, rows), _centred(large.y, columns)
    V, W = (G if exact and not narrow else None), (F if exact and narrow else None)
    costs = [cost for cost in (model.cost, model.penalty) if cost is not None]
    if costs:
        V = torch.cat([*([] if V is None else [V]), *(cost.V[columns].to(G.dtype) for cost in costs)], 1)
    rounded = round_tiles(large.kernels.tiled, A, B, tiles, f, g, p[rows], q[columns], model.marginals, V, W, find=True)
    moved, back, x, y = rounded.read.moved, rounded.read.back, rounded.x, rounded.y
    sums = moved[:, 0] + x * y.sum(), back[:, 0] + y * x.sum()
    product, used = None, 1
    if exact:
        used += 0 if narrow else G.shape[1]
        product = inner_product(back[:, 1:], G) if narrow else inner_product(F, moved[:, 1:used])
        product += torch.outer(inner_product(F, x[:, None])[:, 0], inner_product(G, y[:, None])[:, 0])
        # Of the centred factors; the means belong to the plan's own marginals.
        means = [inner_product(side.mass[:, None], side.control.F)[0] / side.mass.sum() for side in (large.x, large.y)]
        ends = inner_product(F, sums[0][:, None])[:, 0], inner_product(G, sums[1][:, None])[:, 0]
        product += torch.outer(means[0], ends[1]) + torch.outer(ends[0], means[1])
        product += sums[0].sum() * torch.outer(*means)
    values = []
    for cost in costs:
        U, W = cost.U[rows], cost.V[columns]
        cross = (U * moved[:, used : used + U.shape[1]]).sum() + (U.T @ x) @ (W.T @ y)
        values.append(float(cost.a[rows] @ sums[0] + cost.b[columns] @ sums[1] - 2 * cross))
        used += U.shape[1]
    linear = values.pop(0) if model.cost is not None else 0.0
    marginals = torch.empty_like(p), torch.empty_like(q)
    marginals[0][rows], marginals[1][columns] = sums
    # Of bounds the last rung knows a sample, whose noise is above what rounding leaves.
    exact = model.fixed or model.marginals.total is not None
    matching = None
    if bool((x * y.max() <= NEGLIGIBLE * rounded.read.largest)[p[rows] > 0].all()):
        matching = torch.empty_like(rows)
        matching[rows] = columns[rounded.read.at]
        matching.masked_fill_(p <= 0, 0)
    return FinishedTiles(
        coupling=rounded.coupling(rows, columns, matching),
        product=product,
        linear=linear,
        penalty=values[0] if values else 0.0,
        marginals=marginals,
        residual=rounded.residual if exact else max(rounded.residual, climbed.rungs[-1].residual),
        omitted=omitted,
        evaluated=tiles.pairs / (len(p) * len(q)),
    )


def kept_tiles(A: Tensor, B: Tensor, f: Tensor, g: Tensor, p: Tensor, q: Tensor, share: float) -> tuple[Tiles, float]:
    """The tiles to evaluate, and a bound on the mass that this leaves out or moves: all where there are few pairs.

    On a CPU tiles are taken as short sums of products where they are small enough for that; half of the ``share`` is
    for what that moves, half for the tiles that are left out.
    """
    if share == 0 or len(A) * len(B) <= EVERY_PAIR:
        return all_tiles(len(A), len(B), TILE, A.device), 0.0
    if A.device.type != "cpu":
        return choose_tiles(A, B, f, g, p, q, TILE, share)[:2]
    for size in SIZES:
        if _usual_moved(A, B, size) <= share:
            found = choose_tiles(A, B, f, g, p, q, size, share / 2)
            if found.moved <= share / 2 and found.moved_of_a_run <= MOVED_OF_A_RUN and found.cross <= CROSS_BITS:
                return replace(found.tiles, separable=True), found.omitted + found.moved
    return choose_tiles(A, B, f, g, p, q, TILE, share)[:2]


def _usual_moved(A: Tensor, B: Tensor, size: int) -> float:
    """What taking tiles as short sums of products usually moves, by the mean squares of points around their centres."""
    squares = []
    for side in (A, B):
        centre = centres(side, size).to(side.dtype).repeat_interleave(size, 0)[: len(side)]
        squares.append(float((side - centre).square().sum(1).mean()))
    return LN2**2 / 2 * squares[0] * squares[1]


def _precision_warning(score: FactoredScore, options: GWOptions) -> str | None:
    """Why float32 could not carry the score, or None."""
    A, B = score.A, score.B
    found = unsafe(reach(A, B), A.shape[1]) if options.mixed_precision and A.dtype == torch.float32 else None
    return None if found is None else found.replace(LAST, "the potentials may have gone astray")


def _centred(side: Side, order: Tensor) -> Tensor:
    """The factors (N, r) minus their mean, in this order: what is read of a plan in float32 is then small."""
    F = side.control.F
    centred: Tensor = F[order] - (inner_product(side.mass[:, None], F)[0] / side.mass.sum()).to(F.dtype)
    return centred

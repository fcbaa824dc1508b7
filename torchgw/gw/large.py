"""A large solve: search and descent on cells, the climb to all points, rounding on kept tiles, value and certificate.

With exact marginals the objective needs one small matrix of the plan, M = F^T T G for distances F diag(s) F^T and
G diag(t) G^T,

    <C(T), T> = sum s_k s_l (F^T P F)_kl^2 + sum t_k t_l (G^T Q G)_kl^2 - 2 sum s_k t_l M_kl^2,

with P and Q the diagonal matrices of the masses, and M is read in the pass that finds the rounding's correction.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from torchgw.evidence import Basin, Certificate
from torchgw.gw.anchors import sample_anchors
from torchgw.gw.bounds import first_bound, second_bound
from torchgw.gw.cells import CellSpace, Side, cost_of_product
from torchgw.gw.gradient import sampled_cost
from torchgw.gw.ladder import Climbed, Kernels, Large, climb, first_cells, on_cells
from torchgw.gw.objective import Objective, affordable, exact_objective, sampled_objective
from torchgw.gw.outcome import CERTIFICATE_ANCHORS, ROUNDING_ERROR, Outcome
from torchgw.gw.run import solve_contenders, solve_smoothly, where_to_start
from torchgw.gw.search import described
from torchgw.gw.sharp import column_dual
from torchgw.kernels.precision import loop_dtype, reach, unsafe
from torchgw.kernels.sampling import draw
from torchgw.kernels.tiles import TILE, Tiles, all_tiles, choose_tiles
from torchgw.options import GWOptions
from torchgw.sinkhorn.marginals import Balanced
from torchgw.sinkhorn.rounding import round_tiles
from torchgw.spaces.hierarchy import bisect
from torchgw.status import Status
from torchgw.tiled import NEGLIGIBLE, TiledCoupling
from torchgw.types import Callback, DistanceProvider

EVERY_PAIR = 2**22
LARGE_TILES_FROM = 2**18
SAMPLED_ROWS = 1000
ROWS_AT_ONCE = 16
SLACK = 2.0
BLOCK_POINTS = 2**16


@dataclass(frozen=True)
class FinishedTiles:
    """A feasible plan on kept tiles, and what was read of it on the way.

    F^T T G where both spaces have factors; its marginals; the L1 residual before rounding, a bound
    on the mass of the tiles left out, and the share of pairs evaluated.
    """

    coupling: TiledCoupling
    product: Tensor | None
    marginals: tuple[Tensor, Tensor]
    residual: float
    omitted: float
    evaluated: float


def run_large(
    spaces: tuple[DistanceProvider, DistanceProvider],
    masses: tuple[Tensor, Tensor],
    epsilon: float,
    exact: bool,
    init: Tensor | None,
    kernels: Kernels,
    options: GWOptions,
    generator: torch.Generator,
    callback: Callback | None,
) -> Outcome:
    """Solve for float64 masses p (N,), q (K,) of sum one, on their device, with O((N + K) r) memory.

    ``init`` is a plan (N, K), or matching pairs (m, 2) of integers, or None.
    """
    began = time.perf_counter()
    dtype = loop_dtype(options.mixed_precision)
    n_control = options.sampling.n_control
    first, second = (
        Side.of(space.to(mass.device, dtype), mass, dtype, n_control, generator)
        for space, mass in zip(spaces, masses, strict=True)
    )
    large = Large(first, second, epsilon, kernels, options, generator, exact)
    x, y = first_cells(large)
    problem = on_cells(large, x, y)
    candidates, reference = where_to_start(problem, seen_by_cells(init, x, y))
    searched = time.perf_counter()
    ended, candidates = solve_contenders(problem, candidates, partial(solve_smoothly, problem, Balanced(), callback))
    seconds = time.perf_counter() - began
    solved = (ended.status, ended.n_iter, ended.n_iter_sinkhorn, seconds)
    assert problem.exact
    b = problem.gradient.b  # type: ignore[attr-defined]
    climbed = climb(large, x, y, ended.plan, ended.dual, b, ended.history, callback, solved)
    climbed_at = time.perf_counter()
    finished = finish_tiles(large, climbed)
    value, certificate = certify(large, climbed, finished)
    basins: tuple[Basin, ...] = ()
    if reference is not None:
        small = [described(c, candidates[0], reference, problem.masses[0]) for c in candidates]
        basins = tuple(_on_points(basin, x, y) for basin in small)
    return Outcome(
        coupling=finished.coupling,
        marginals=finished.marginals,
        residual=finished.residual,
        status=_status(climbed, finished, options),
        strain=_strain(climbed, options),
        n_iter=climbed.n_iter,
        n_iter_sinkhorn=climbed.n_iter_sinkhorn,
        history=ended.history,
        objective=value,
        certificate=certificate,
        basins=basins,
        ladder=climbed.rungs,
        omitted=finished.omitted,
        evaluated=finished.evaluated,
        seconds={
            "search": searched - began,
            "solve": climbed_at - searched,
            "finish": time.perf_counter() - climbed_at,
        },
    )


def seen_by_cells(init: Tensor | None, x: CellSpace, y: CellSpace) -> Tensor | None:
    """What the user gave to start from, between cells instead of points."""
    if init is None:
        return None
    if not init.is_floating_point():
        return torch.stack((x.cells.label[init[:, 0]], y.cells.label[init[:, 1]]), 1)
    return y.cells.sums(x.cells.sums(init).T).T


def finish_tiles(large: Large, climbed: Climbed) -> FinishedTiles:
    """The plan of the last potentials, without the tiles that hold nothing, rounded onto exact marginals.

    Two passes over the kept tiles.
    """
    score, p, q = climbed.score, large.p, large.q
    size = TILE if max(len(p), len(q)) < LARGE_TILES_FROM else 2 * TILE
    rows, columns = (bisect(side, -(-len(side) // size), size).order for side in (score.A, score.B))
    A, B, f, g = score.A[rows], score.B[columns], climbed.f[rows], climbed.g[columns]
    tiles, omitted = kept_tiles(A, B, f, g, p[rows], q[columns], size, large.options.ladder.omitted_mass)
    exact = large.x.exact and large.y.exact
    narrow = large.x.control.F.shape[1] <= large.y.control.F.shape[1]
    F, G = _centred(large.x, rows), _centred(large.y, columns)
    V, W = (G if exact and not narrow else None), (F if exact and narrow else None)
    rounded = round_tiles(large.kernels.tiled, A, B, tiles, f, g, p[rows], q[columns], V, W, find=True)
    moved, back, x, y = rounded.read.moved, rounded.read.back, rounded.x, rounded.y
    product = None
    if exact:
        product = _dot(back[:, 1:], G) if narrow else _dot(F, moved[:, 1:])
        product += torch.outer(_dot(F, x[:, None])[:, 0], _dot(G, y[:, None])[:, 0])
        product += torch.outer(*(_dot(s.mass[:, None], s.control.F)[0] for s in (large.x, large.y)))
    marginals = torch.empty_like(p), torch.empty_like(q)
    marginals[0][rows], marginals[1][columns] = moved[:, 0] + x * y.sum(), back[:, 0] + y * x.sum()
    matching = None
    if bool((x * y.max() <= NEGLIGIBLE * rounded.read.largest)[p[rows] > 0].all()):
        matching = torch.empty_like(rows)
        matching[rows] = columns[rounded.read.at]
    return FinishedTiles(
        coupling=rounded.coupling(rows, columns, matching),
        product=product,
        marginals=marginals,
        residual=rounded.residual,
        omitted=omitted,
        evaluated=tiles.pairs / (len(p) * len(q)),
    )


def kept_tiles(
    A: Tensor, B: Tensor, f: Tensor, g: Tensor, p: Tensor, q: Tensor, size: int, share: float
) -> tuple[Tiles, float]:
    """The tiles to evaluate and a bound on the mass of the others; all of them where there are few pairs."""
    if share == 0 or len(A) * len(B) <= EVERY_PAIR:
        return all_tiles(len(A), len(B), size, A.device), 0.0
    return choose_tiles(A, B, f, g, p, q, size, share)


def certify(large: Large, climbed: Climbed, finished: FinishedTiles) -> tuple[Objective, Certificate]:
    """Value, Frank-Wolfe gap estimated from 1000 rows, and lower bound."""
    x, y, p, q = large.x, large.y, large.p, large.q
    if finished.product is not None:
        squares = _squares(x) + _squares(y)
        cross = (x.control.signs.double()[:, None] * finished.product.square() * y.control.signs.double()).sum()
        value = Objective(max(float(squares - 2 * cross), 0.0), True, 0.0)
        cost = cost_of_product(finished.product, x, y)
        lower = first_bound(cost.a.double(), cost.b.double(), p, q)
    else:
        value = objective(large, finished.coupling)
        cost = sampled_cost(
            x.space, y.space, sample_anchors(finished.coupling, p, CERTIFICATE_ANCHORS, large.generator)
        )
        lower = second_bound(x.space, y.space, p, q)
    g = climbed.g - climbed.score.column
    dual = torch.where(q > 0, column_dual(climbed.cost, g, q, large.epsilon), -torch.inf)
    index = draw(p, SAMPLED_ROWS, large.generator)
    a = torch.cat([(cost.rows(part) - dual).amin(1) for part in torch.split(index, ROWS_AT_ONCE)])
    bound = float(a.double().mean() + q[q > 0] @ dual[q > 0])
    lower = max(lower - ROUNDING_ERROR, 0.0)
    return value, Certificate(
        stationarity=max(2 * (value.value - bound), 0.0),
        stationarity_exact=False,
        lower_bound=lower,
        gap=max(value.value - lower, 0.0),
    )


def objective(large: Large, coupling: TiledCoupling) -> Objective:
    """The value of a plan where a space has no factors: exact where all distances can be had, else sampled."""
    x, y = large.x, large.y
    if large.exact and affordable(x.space, y.space, large.options.max_memory):
        return exact_objective(coupling, x.space, y.space, large.p, large.q)
    return sampled_objective(coupling, large.p, x.space, y.space, large.generator)


def _centred(side: Side, order: Tensor) -> Tensor:
    """The factors (N, r) minus their mean, in this order: what is read of a plan in float32 is then small."""
    F = side.control.F
    return F[order] - _dot(side.mass[:, None], F)[0].to(F.dtype)


def _dot(one: Tensor, other: Tensor) -> Tensor:
    """one^T other in float64, a block of rows at a time."""
    pairs = zip(torch.split(one, BLOCK_POINTS), torch.split(other, BLOCK_POINTS), strict=True)
    return torch.stack([a.double().T @ b.double() for a, b in pairs]).sum(0)


def _squares(side: Side) -> Tensor:
    """The mean square distance of a factored space, sum s_k s_l (F^T P F)_kl^2."""
    F, signs = side.control.F, side.control.signs.double()
    pairs = zip(torch.split(F, BLOCK_POINTS), torch.split(side.mass, BLOCK_POINTS), strict=True)
    gram = torch.stack([block.double().T @ (block.double() * mass[:, None]) for block, mass in pairs]).sum(0)
    return (signs[:, None] * gram.square() * signs).sum()


def _status(climbed: Climbed, finished: FinishedTiles, options: GWOptions) -> Status:
    reached = finished.residual <= SLACK * options.ladder.marginal_tol
    return climbed.status if reached else Status.MARGINALS


def _strain(climbed: Climbed, options: GWOptions) -> str | None:
    """Why float32 could not carry the scores, or None."""
    A, B = climbed.score.A, climbed.score.B
    return unsafe(reach(A, B), A.shape[1]) if options.mixed_precision else None


def _on_points(basin: Basin, x: CellSpace, y: CellSpace) -> Basin:
    """A basin of the cells' problem, its matching and shift (N,) those of each point's cell."""
    label = x.cells.label
    return replace(basin, matching=y.centres[basin.matching[label]], shift=basin.shift[label])

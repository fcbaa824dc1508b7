"""The one-to-one assignment of a plan that has most mass, with a bound that no assignment exceeds.

    max sum T_ij s_ij,         s 1 <= 1,  s^T 1 <= 1,  s >= 0;    its dual is
    min sum u_i + sum v_j,     u_i + v_j >= T_ij,  u, v >= 0.

Stored plans are assigned by SciPy, plans of few entries by an auction on these. Of others, cells of points give
potentials first: the linear problem between cells, and v_j = max over row cells I of T_Ij - u_I. Entries that are
nearly worth their potentials are candidates, some of each row, drawn at random where many are alike. The best
assignment among them, by an auction, has potentials, which are shortest paths; entries that are worth more than those
are the next candidates. With u_i raised to max_j (T_ij - v_j) the potentials hold for all N K entries, so their sum is
a bound at every step.

Sources: D. P. Bertsekas, D. A. Castanon, "A forward/reverse auction algorithm for asymmetric assignment problems",
1992; B. Schmitzer, "A sparse multiscale algorithm for dense optimal transport", 2016.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling
from torchgw.couplings.factored import TILE, FactoredPlan
from torchgw.couplings.low_rank import LowRankCoupling
from torchgw.couplings.potential import PotentialCoupling
from torchgw.couplings.sparse import SparseCoupling
from torchgw.couplings.tiled import TiledCoupling
from torchgw.kernels.tiles import centres
from torchgw.linalg.sparse_entries import entry_rows, make_csr, select_entries
from torchgw.solvers.transport_lp import estimate_duals, transport
from torchgw.spaces.coarsening import bisect
from torchgw.types import Array

STORED = 2**25  # entries up to which a plan is stored
TOLERANCE, ROUNDS = 0.01, 6  # of the total
SLACK = 1e-6  # of the points: columns that stay alone where there are no more than rows
CELLS = 1500  # of each side
CANDIDATES, SPREAD = 10, 0.03  # of each row; and how far they may be below their potentials, of the row's best entry
COOLING = 0.1  # of the spread in each round, and of the step of an auction
SHIFTS = 2**20  # of the random numbers that rows draw candidates by
FIRST_STEP = 0.25  # of an auction without prices to begin with, of the largest entry
PATHS = 2000  # rounds of paths at the most
RESOLVED = 1e-12  # of the largest entry: the last step of an auction, and steps of potentials


class Assignment(NamedTuple):
    """Pairs of points, each of which is in one pair at the most.

    source, target : indices (m,), ``source`` ascending.
    mass : of each pair (m,).
    bound : no assignment has more mass.
    """

    source: Array
    target: Array
    mass: Array
    bound: float


def assign(coupling: BlockCoupling, tolerance: float = TOLERANCE, stored: int = STORED) -> Assignment:
    """The assignment of most mass of a plan (N, K), which is stored where it has up to so many entries.

    Exact for stored plans and plans of few entries; of others within a tolerance of the bound where `ROUNDS` suffice.
    """
    n, k = coupling.shape
    if isinstance(coupling, SparseCoupling):
        return assign_sparse(coupling.matrix)
    if n > k:
        target, source, mass, bound = assign(coupling.transpose(), tolerance, stored)
        order = np.argsort(source)
        return Assignment(source[order], target[order], mass[order], bound)
    plan = _make_factored_plan(coupling) if n * k > stored else None
    if plan is None:
        return assign_dense(coupling.to_dense().detach().double().cpu().numpy())
    return _assign_by_pricing(plan, tolerance)


def assign_dense(plan: Array) -> Assignment:
    """Of a dense plan (N, K)."""
    from scipy.optimize import linear_sum_assignment  # late: it takes a third of the import of this package

    row, column = linear_sum_assignment(plan, maximize=True)
    mass = plan[row, column]
    some = mass > 0
    return Assignment(row[some], column[some], mass[some], float(mass.sum()))


def assign_sparse(W: Any) -> Assignment:
    """Of a CSR array (N, K)."""
    W = select_entries(W, W.data > 0)
    most = float(W.data.max(initial=0.0))
    mate, u, v = auction(W, np.zeros(W.shape[1]), FIRST_STEP * most)
    row = np.flatnonzero(mate >= 0)
    return Assignment(row, mate[row], _entries_at(W, row, mate[row]), float(u.sum() + v.sum()))


def auction(W: Any, v: Array, step: float) -> tuple[Array, Array, Array]:
    """The column (N,) of each row in an assignment of most weight of a CSR array (N, K) of positive entries, -1 for
    rows that stay alone, and dual potentials u (N,), v (K,).

    Rows without a column bid for the best, at what leaves them as much as the second best, less a step. Columns
    without a row, whose price is not zero, then bid for rows. So no pair misses more than a step, and the total misses
    as many steps as it has pairs; steps shrink to the rounding of the entries.

    Parameters
    ----------
    v : prices (K,) >= 0 to begin with.
    step : the first step; the nearer the prices to the optimal ones, the smaller.
    """
    (n, k), T, tiny = W.shape, W.T.tocsr(), np.finfo(np.float64).tiny  # without a step equal bids never end
    v = np.where(np.diff(T.indptr) > 0, v, 0.0)
    mate, owner, least = np.full(n, -1), np.full(k, -1), max(RESOLVED * float(W.data.max(initial=0.0)), tiny)
    while True:
        u = _profits(W, v)
        has = np.flatnonzero(mate >= 0)
        paid = _entries_at(W, has, mate[has]) - v[mate[has]]
        leaves = paid < u[has] - step
        u[has] = paid
        owner[mate[has[leaves]]] = mate[has[leaves]] = -1
        _bid(W, v, u, mate, owner, step)
        _bid(T, u, v, owner, mate, step)
        if step <= least:
            return mate, _profits(W, v), v
        step = max(step * COOLING, least)


def _profits(W: Any, v: Array) -> Array:
    """max over columns of W_ij - v_j, and zero, (N,)."""
    u = np.zeros(W.shape[0])
    rows = np.flatnonzero(np.diff(W.indptr))
    u[rows] = _best_two(W, rows, v)[1].clip(min=0.0)
    return u


def _best_two(W: Any, rows: Array, v: Array) -> tuple[Array, Array, Array]:
    """The entry with the largest W_ij - v_j of each of some rows that have any, this, and the second largest; each
    (m,)."""
    count = np.diff(W.indptr)[rows]
    ends = np.cumsum(count)
    starts = ends - count
    entry = np.arange(count.sum()) + np.repeat(W.indptr[rows] - starts, count)
    worth = W.data[entry] - v[W.indices[entry]]
    best = np.maximum.reduceat(worth, starts)
    hit = np.flatnonzero(worth == np.repeat(best, count))[::-1]
    at = np.empty(len(rows), dtype=np.int64)
    at[np.searchsorted(ends, hit, side="right")] = hit  # of several the first, which comes last
    worth[at] = -np.inf
    return entry[at], best, np.maximum.reduceat(worth, starts)


def _bid(W: Any, v: Array, u: Array, mate: Array, owner: Array, step: float) -> None:
    """Let rows without a mate, that have a profit, bid until none is left; all arrays are written to."""
    rows, won = np.flatnonzero((mate < 0) & (u > 0)), np.empty(len(v), dtype=np.int64)
    while len(rows):
        entry, best, second = _best_two(W, rows, v)
        some = best > 0
        u[rows[~some]] = 0.0
        rows, column, left = rows[some], W.indices[entry[some]], (second[some] - step).clip(min=0.0)
        price = W.data[entry[some]] - left
        order = np.argsort(price, kind="stable")
        won[column[order]] = rows[order]  # the highest bid comes last
        wins = won[column] == rows
        row, column, lost = rows[wins], column[wins], rows[~wins]
        outbid = owner[column]
        outbid = outbid[outbid >= 0]
        mate[outbid] = -1
        mate[row], owner[column], v[column], u[row] = column, row, price[wins], left[wins]
        rows = np.concatenate((lost, outbid))


def compute_potentials(W: Any, mate: Array) -> tuple[Array, Array]:
    """Potentials u (N,), v (K,) >= 0 of an assignment of most weight, the v as small as they can be:

    v_j = max over rows i of W_ij - W_i,mate(i) + v_mate(i), and zero.
    """
    n, k = W.shape
    has = np.flatnonzero(mate >= 0)
    paid, v, owner = np.zeros(n), np.zeros(k), np.full(k, -1)
    paid[has], owner[mate[has]] = _entries_at(W, has, mate[has]), has
    rows, least = np.arange(n), RESOLVED * float(W.data.max(initial=0.0))
    for _ in range(PATHS):
        count, first = np.diff(W.indptr)[rows], W.indptr[rows]
        entry = np.arange(count.sum()) + np.repeat(first - np.cumsum(count) + count, count)
        worth = np.where(mate[rows] >= 0, v[mate[rows]], 0.0) - paid[rows]
        raised = v.copy()
        np.maximum.at(raised, W.indices[entry], W.data[entry] + np.repeat(worth, count))
        rows = owner[raised > v + least]
        v, rows = raised, rows[rows >= 0]
        if len(rows) == 0:
            break
    u = np.zeros(n)
    np.maximum.at(u, entry_rows(W), W.data - v[W.indices])
    return u, v


def _entries_at(W: Any, row: Array, column: Array) -> Array:
    found: Array = np.asarray(W[row, column]).ravel()
    return found


def _make_factored_plan(coupling: BlockCoupling) -> FactoredPlan | None:
    """A coupling's factors, in an order in which neighbours are alike, on the CPU; None where it has none."""
    if isinstance(coupling, TiledCoupling):
        return coupling.factored_plan.on_host()
    power, x, y = True, None, None
    if isinstance(coupling, PotentialCoupling):
        A, B, f, g, x, y = coupling.A, coupling.B, coupling.f, coupling.g, coupling.x, coupling.y
    elif isinstance(coupling, LowRankCoupling):
        power, A, B = False, coupling.Q / coupling.g, coupling.R
        f, g = A.new_zeros(len(A)), B.new_zeros(len(B))
    else:
        return None
    row, column = (bisect(side.detach().cpu().double(), -(-len(side) // TILE), TILE).order for side in (A, B))
    x, y = (torch.zeros_like(one) if side is None else side for one, side in ((f, x), (g, y)))
    rows, columns = ([side.cpu()[order] for side in sides] for sides, order in (((A, f, x), row), ((B, g, y), column)))
    (A, f, x), (B, g, y) = rows, columns
    return FactoredPlan(A, B, f, g, x, y, row, column, power).on_host()


def _assign_by_pricing(plan: FactoredPlan, tolerance: float) -> Assignment:
    """Of a plan (N, K) by its factors, N <= K."""
    (n, k), bounds, rng = plan.shape, plan.bounds(), torch.Generator().manual_seed(0)
    u, v = estimate_potentials(plan)
    spread = SPREAD
    W, bound = csr_array((n, k)), np.inf
    for _ in range(ROUNDS):
        u, found = _find_candidates(plan, u, v, bounds, spread, rng)
        bound = min(bound, float(u.sum() + v.sum()))
        W = W.maximum(found).tocsr()
        mate, _, _ = auction(W, v.numpy(), spread * float(W.data.mean()))
        row = np.flatnonzero(mate >= 0)
        column, mass = mate[row], _entries_at(W, row, mate[row])
        if bound <= (1 + tolerance) * float(mass.sum()):
            break
        u, v = (torch.from_numpy(side) for side in compute_potentials(W, mate))
        spread *= COOLING
    source, target = plan.row_order.numpy()[row], plan.column_order.numpy()[column]
    order = np.argsort(source)
    return Assignment(source[order], target[order], mass[order], bound)


def estimate_potentials(plan: FactoredPlan) -> tuple[Tensor, Tensor]:
    """Potentials u (N,), v (K,) of points, by those of the problem between cells of them."""
    n, k = plan.shape
    size = max(-(-max(n, k) // CELLS), 1)
    (a, f, p), (b, g, q) = _summarise_cells(plan.A, plan.f, size), _summarise_cells(plan.B, plan.g, size)
    W = plan.scores_to_entries(torch.addmm(g, a, b.T).add_(f[:, None]))
    cost = torch.cat((-W, W.new_zeros(1, len(q))))
    alone = max(float(q.sum() - p.sum()), SLACK * float(q.sum()))  # of the columns, in a row more
    rows = torch.cat((p, p.new_tensor([alone]))).numpy()
    masses = rows, q.numpy() * (rows.sum() / q.numpy().sum())
    dual = transport(cost.numpy(), *masses, [estimate_duals(cost, *masses, np.zeros(len(q)))]).dual
    price = torch.from_numpy(dual.max() - dual)
    rent = (W - price).amax(1).clamp_(min=0.0)
    v = _c_transform(plan, plan.B, plan.g, a, f, rent)
    u = _c_transform(plan, plan.A, plan.f, b, g, price)
    return u, v


def _summarise_cells(side: Tensor, potential: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Centres, mean potentials, and numbers of points with mass of runs of so many."""
    some = potential > -torch.inf
    side, potential = side[some], potential[some]
    count = torch.full((-(-len(side) // size),), float(size), dtype=torch.float64)
    count[-1] -= len(count) * size - len(side)
    return centres(side, size), centres(potential[:, None], size)[:, 0], count


def _c_transform(plan: FactoredPlan, side: Tensor, own: Tensor, cells: Tensor, other: Tensor, price: Tensor) -> Tensor:
    """max over cells of what a point has with them over their price, and zero, (N,)."""
    found = torch.empty_like(own)
    step = max(2**22 // len(cells), 1)
    for start in range(0, len(side), step):
        part = slice(start, start + step)
        scores = torch.addmm(other, side[part], cells.T).add_(own[part, None])
        found[part] = plan.scores_to_entries(scores).sub_(price).amax(1)
    return found.clamp_(min=0.0)


def _find_candidates(
    plan: FactoredPlan, u: Tensor, v: Tensor, bounds: Tensor, spread: float, rng: torch.Generator
) -> tuple[Tensor, Any]:
    """Potentials u (N,) that hold for all entries with v (K,), and candidates, CSR (N, K)."""
    raised, parts = u.clone(), []
    noise = torch.rand(plan.size * plan.shape[1] + SHIFTS, generator=rng)
    for rows, columns, block in plan.entries_above(u, v, bounds, spread):
        over = block - v[columns]
        most = over.max(1)
        raised[rows] = torch.maximum(u[rows], most.values)
        own = block.gather(1, most.indices[:, None])
        start = int(torch.randint(SHIFTS, (), generator=rng))
        limit = torch.minimum(raised[rows, None] - spread * own, u[rows, None] * (1 + RESOLVED))
        near = over >= limit
        drawn = noise[start : start + over.numel()].view_as(over) * near
        drawn, at = drawn.topk(min(CANDIDATES, len(columns)), dim=1, sorted=False)
        i, j = torch.nonzero(drawn).unbind(1)
        j = at[i, j]
        parts.append(((rows.start + i).numpy(), columns[j].numpy(), block[i, j].numpy()))
    row, column, value = (np.concatenate(side) for side in zip(*parts, strict=True))
    some = value > 0
    return raised, make_csr(row[some], column[some], value[some], plan.shape)

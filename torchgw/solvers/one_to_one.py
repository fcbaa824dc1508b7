"""The one-to-one assignment of a plan that has most mass, with a bound that no assignment exceeds.

    max sum T_ij s_ij,         s 1 <= 1,  s^T 1 <= 1,  s >= 0;    its dual is
    min sum u_i + sum v_j,     u_i + v_j >= T_ij,  u, v >= 0.

Stored plans are assigned by SciPy, plans of few entries on these. Of others, cells of points give potentials first: the
linear problem between cells, and v_j = max over row cells I of T_Ij - u_I. Entries that are nearly worth their
potentials are candidates, some of each row, drawn at random where many are alike. The best assignment among them has
potentials, which are shortest paths; entries that are worth more than those are the next candidates. With u_i raised to
max_j (T_ij - v_j) the potentials hold for all N K entries, so their sum is a bound at every step.

Sources: R. Jonker, A. Volgenant, "A shortest augmenting path algorithm for dense and sparse linear assignment
problems", 1987; B. Schmitzer, "A sparse multiscale algorithm for dense optimal transport", 2016.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import block_array, csr_array, diags_array
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling
from torchgw.couplings.factored import FactoredPlan
from torchgw.couplings.low_rank import LowRankCoupling
from torchgw.couplings.potential import PotentialCoupling
from torchgw.couplings.sparse import SparseCoupling
from torchgw.kernels.tiles import centres
from torchgw.linalg.sparse_entries import kept, matrix, row_maxima, row_of
from torchgw.solvers.minimum_cost_flow import available, minimum_cost_flow
from torchgw.solvers.transport_lp import blurred_duals, transport
from torchgw.spaces.hierarchy import bisect
from torchgw.types import Array

STORED = 2**25  # entries up to which a plan is stored
TOLERANCE, ROUNDS = 0.01, 6  # of the total
SLACK = 1e-6  # of the points: columns that stay alone where there are no more than rows
CELLS = 1500  # of each side
CANDIDATES, SPREAD = 10, 0.03  # of each row; and how far they may be below their potentials, of the row's best entry
COOLING = 0.1  # of the spread, in each round
SHIFTS = 2**20  # of the random numbers that rows draw candidates by
PATHS = 2000  # rounds of paths at the most
RESOLVED = 1e-12  # of the largest entry: steps of potentials, and costs that are not zero


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
        return of_matrix(coupling.matrix)
    plan = _factored(coupling) if n * k > stored else None
    if plan is None:
        return of_stored(coupling.to_dense().detach().double().cpu().numpy())
    if n > k:
        target, source, mass, bound = _priced(plan.turned, tolerance)
        order = np.argsort(source)
        return Assignment(source[order], target[order], mass[order], bound)
    return _priced(plan, tolerance)


def of_stored(plan: Array) -> Assignment:
    """Of a dense plan (N, K)."""
    from scipy.optimize import linear_sum_assignment  # late: it takes a third of the import of this package

    row, column = linear_sum_assignment(plan, maximize=True)
    mass = plan[row, column]
    some = mass > 0
    return Assignment(row[some], column[some], mass[some], float(mass.sum()))


def of_matrix(W: Any) -> Assignment:
    """Of a CSR array (N, K)."""
    W = kept(W, W.data > 0)
    u, v = row_maxima(W).clip(min=0.0), np.zeros(W.shape[1])
    mate = best_mates(W, u, v)
    u, v = potentials(W, mate)
    row = np.flatnonzero(mate >= 0)
    return Assignment(row, mate[row], _at(W, row, mate[row]), float(u.sum() + v.sum()))


def best_mates(W: Any, u: Array, v: Array, flow: bool | None = None) -> Array:
    """The column (N,) of each row in an assignment of most weight of a CSR array (N, K) of positive entries, -1 for
    rows that stay alone.

    Parameters
    ----------
    u, v : potentials (N,), (K,) >= 0; the nearer to the optimal ones, the faster.
    flow : whether by OR-tools, by default where that is installed.
    """
    (n, k), row, column = W.shape, row_of(W), W.indices
    reduced = u[row] + v[column] - W.data
    short = np.zeros(n)
    np.maximum.at(short, row, -reduced)
    u = u + short
    reduced += short[row]
    found = np.full(n, -1)
    if available() if flow is None else flow:
        # A column and a row more take what stays alone.
        rows = np.concatenate((row, np.arange(n), np.full(k + 1, n)))
        columns = np.concatenate((column, np.full(n, k), np.arange(k + 1)))
        cost = np.concatenate((reduced, u, v, [0.0]))
        order = np.argsort(rows, kind="stable")
        flows = minimum_cost_flow(
            cost[order], rows[order], columns[order], np.append(np.ones(n), k * 1.0), np.append(np.ones(k), n * 1.0)
        )
        x = np.empty(len(cost))
        x[order] = flows.x
        used = x[: len(row)] > 0.5
        found[row[used]] = column[used]
        return found
    from scipy.sparse.csgraph import min_weight_full_bipartite_matching  # late: it takes long to import

    # Each point may have a partner of its own; partners of a row and a column with an entry are free for each other.
    lift = max(float(W.data.max(initial=0.0)), np.finfo(float).tiny)  # costs of zero would be no edges
    turned = csr_array((np.full(len(row), lift), column, W.indptr), shape=W.shape).T
    cost = block_array(
        [
            [csr_array((reduced + lift, column, W.indptr), shape=W.shape), diags_array(u + lift)],
            [diags_array(v + lift), turned],
        ],
        format="csr",
    )
    one, other = min_weight_full_bipartite_matching(cost)
    both = (one < n) & (other < k)
    found[one[both]] = other[both]
    return found


def potentials(W: Any, mate: Array) -> tuple[Array, Array]:
    """Potentials u (N,), v (K,) >= 0 of an assignment of most weight, the v as small as they can be:

    v_j = max over rows i of W_ij - W_i,mate(i) + v_mate(i), and zero.
    """
    n, k = W.shape
    has = np.flatnonzero(mate >= 0)
    paid, v, owner = np.zeros(n), np.zeros(k), np.full(k, -1)
    paid[has], owner[mate[has]] = _at(W, has, mate[has]), has
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
    np.maximum.at(u, row_of(W), W.data - v[W.indices])
    return u, v


def _at(W: Any, row: Array, column: Array) -> Array:
    found: Array = np.asarray(W[row, column]).ravel()
    return found


def _factored(coupling: BlockCoupling) -> FactoredPlan | None:
    """A coupling's factors, in an order in which neighbours are alike."""
    orders = None
    if isinstance(coupling, PotentialCoupling | LowRankCoupling):
        sides = (coupling.A, coupling.B) if isinstance(coupling, PotentialCoupling) else (coupling.Q, coupling.R)
        cells = (bisect(side.detach().cpu().double(), -(-len(side) // 64), 64) for side in sides)
        rows, columns = (each.order for each in cells)
        orders = rows, columns
    return FactoredPlan.of(coupling, orders)


def _priced(plan: FactoredPlan, tolerance: float) -> Assignment:
    """Of a plan (N, K) by its factors, N <= K."""
    (n, k), bounds, rng = plan.shape, plan.bounds(), torch.Generator().manual_seed(0)
    u, v = between_cells(plan)
    spread = SPREAD
    W, bound = csr_array((n, k)), np.inf
    for _ in range(ROUNDS):
        u, found = _candidates(plan, u, v, bounds, spread, rng)
        bound = min(bound, float(u.sum() + v.sum()))
        W = W.maximum(found).tocsr()
        mate = best_mates(W, u.numpy(), v.numpy())
        row = np.flatnonzero(mate >= 0)
        column, mass = mate[row], _at(W, row, mate[row])
        if bound <= (1 + tolerance) * float(mass.sum()):
            break
        u, v = (torch.from_numpy(side) for side in potentials(W, mate))
        spread *= COOLING
    source, target = plan.row_order.numpy()[row], plan.column_order.numpy()[column]
    order = np.argsort(source)
    return Assignment(source[order], target[order], mass[order], bound)


def between_cells(plan: FactoredPlan) -> tuple[Tensor, Tensor]:
    """Potentials u (N,), v (K,) of points, by those of the problem between cells of them."""
    n, k = plan.shape
    size = max(-(-max(n, k) // CELLS), 1)
    (a, f, p), (b, g, q) = _cells(plan.A, plan.f, size), _cells(plan.B, plan.g, size)
    W = plan.entries(torch.addmm(g, a, b.T).add_(f[:, None]))
    cost = torch.cat((-W, W.new_zeros(1, len(q))))
    alone = max(float(q.sum() - p.sum()), SLACK * float(q.sum()))  # of the columns, in a row more
    rows = torch.cat((p, p.new_tensor([alone]))).numpy()
    masses = rows, q.numpy() * (rows.sum() / q.numpy().sum())
    dual = transport(cost.numpy(), *masses, [blurred_duals(cost, *masses, np.zeros(len(q)))]).dual
    price = torch.from_numpy(dual.max() - dual)
    rent = (W - price).amax(1).clamp_(min=0.0)
    v = _transformed(plan, plan.B, plan.g, a, f, rent)
    u = _transformed(plan, plan.A, plan.f, b, g, price)
    return u, v


def _cells(side: Tensor, potential: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Centres, mean potentials, and numbers of points with mass of runs of so many."""
    some = potential > -torch.inf
    side, potential = side[some], potential[some]
    count = torch.full((-(-len(side) // size),), float(size), dtype=torch.float64)
    count[-1] -= len(count) * size - len(side)
    return centres(side, size), centres(potential[:, None], size)[:, 0], count


def _transformed(plan: FactoredPlan, side: Tensor, own: Tensor, cells: Tensor, other: Tensor, price: Tensor) -> Tensor:
    """max over cells of what a point has with them over their price, and zero, (N,)."""
    found = torch.empty_like(own)
    step = max(2**22 // len(cells), 1)
    for start in range(0, len(side), step):
        part = slice(start, start + step)
        scores = torch.addmm(other, side[part], cells.T).add_(own[part, None])
        found[part] = plan.entries(scores).sub_(price).amax(1)
    return found.clamp_(min=0.0)


def _candidates(
    plan: FactoredPlan, u: Tensor, v: Tensor, bounds: Tensor, spread: float, rng: torch.Generator
) -> tuple[Tensor, Any]:
    """Potentials u (N,) that hold for all entries with v (K,), and candidates, CSR (N, K)."""
    raised, parts = u.clone(), []
    noise = torch.rand(plan.size * plan.shape[1] + SHIFTS, generator=rng)
    for rows, columns, block in plan.above(u, v, bounds, spread):
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
    return raised, matrix(row[some], column[some], value[some], plan.shape)

"""The one-to-one assignment of a plan that has most mass, with a bound that no assignment exceeds.

    max sum T_ij s_ij,         s 1 <= 1,  s^T 1 <= 1,  s >= 0;    its dual is
    min sum u_i + sum v_j,     u_i + v_j >= T_ij,  u, v >= 0.

a linear transport problem with one row and column more, see `torchgw.solvers.linear_oracle`. Stored plans and plans of
few entries are assigned with all of these. Of others, cells of points give potentials first: the linear problem between
cells, and v_j = max over row cells I of T_Ij - u_I. Entries that are nearly worth their potentials are candidates, some
of each row, drawn at random where many are alike, and those that are worth more than the potentials of the best
assignment among them are the next ones. With u_i raised to max_j (T_ij - v_j) the potentials hold for all N K entries,
so their sum is a bound at every step.

Source: B. Schmitzer, "A sparse multiscale algorithm for dense optimal transport", 2016.
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
from torchgw.linalg.sparse_entries import make_csr, select_entries
from torchgw.solvers.linear_oracle import linear_assignment, solve_transport
from torchgw.solvers.transport_costs import DenseCost, SparseCost, union
from torchgw.spaces.coarsening import bisect
from torchgw.types import Array

STORED = 2**25  # entries up to which a plan is stored
TOLERANCE = 0.01  # of the total
SLACK = 1e-6  # of the points: columns that stay alone where there are no more than rows
CELLS = 1500  # of each side
CANDIDATES, SPREAD = 10, 0.03  # of each row; and how far they may be below their potentials, of the row's best entry
COOLING = 0.1  # of the spread in each round
SHIFTS = 2**20  # of the random numbers that rows draw candidates by
RESOLVED = 1e-12  # of potentials


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

    Exact for stored plans and plans of few entries; of others within a tolerance of the bound.
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
    row, column = linear_assignment(-plan)
    mass = plan[row, column]
    some = mass > 0
    return Assignment(row[some], column[some], mass[some], float(mass.sum()))


def assign_sparse(W: Any) -> Assignment:
    """Of a CSR array (N, K)."""
    W = select_entries(W, W.data > 0)
    if W.nnz == 0:
        nothing = np.empty(0, dtype=np.int64)
        return Assignment(nothing, nothing, np.empty(0), 0.0)
    # The smallest numbers have no room for prices.
    cost = SparseCost(csr_array((W.data / W.data.max(), W.indices, W.indptr), shape=W.shape))
    row, column = match_entries(cost, np.zeros(W.shape[1]), union(cost.slack, cost.positions(cost.W)))
    mass = np.asarray(W[row, column]).ravel()
    return Assignment(row, column, mass, float(mass.sum()))


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
    u, v = estimate_potentials(plan)
    cost = _PlanCost(plan, u, tolerance)
    row, column = match_entries(cost, v.numpy(), cost.slack)
    mass, source = np.asarray(cost.W[row, column]).ravel(), plan.row_order.numpy()[row]
    order = np.argsort(source)
    return Assignment(source[order], plan.column_order.numpy()[column[order]], mass[order], cost.bound)


def match_entries(cost: SparseCost, price: Array, entries: Array) -> tuple[Array, Array]:
    """Rows and columns (m,), rows ascending, of the assignment of most weight, by prices (K,) >= 0 to begin with."""
    n, k = cost.W.shape
    masses = np.append(np.ones(n), k), np.append(np.ones(k), n)
    plan = solve_transport(cost, *masses, np.append(-price, 0.0), entries).plan[:n, :k].tocoo()
    some = plan.data > 0.5
    return plan.coords[0][some], plan.coords[1][some]


class _PlanCost(SparseCost):
    """The negative entries of a plan by its factors, of those that were looked at.

    bound : no assignment has more mass.
    """

    def __init__(self, plan: FactoredPlan, u: Tensor, tolerance: float) -> None:
        super().__init__(csr_array(plan.shape))
        self.plan, self.u, self.tiles, self.tolerance = plan, u, plan.bounds(), tolerance
        self.bound, self.spread, self.rng = np.inf, SPREAD, torch.Generator().manual_seed(0)

    def cheapest(self, dual: Array) -> Array:
        """Of each row some that are nearly worth the most, drawn at random where many are alike."""
        return union(self.slack, self._look(self.u, torch.from_numpy(-dual[:-1]), 0.0))

    def below(self, duals: tuple[Array, Array], limit: float) -> Array:
        """The same, unless the bound is within the tolerance of the best assignment so far."""
        u, v = (torch.from_numpy(-one[:-1] - other[-1]).clamp_min_(0.0) for one, other in (duals, duals[::-1]))
        most = (1 + self.tolerance) * float(u.sum() + v.sum())
        found = self.slack if self.bound <= most else self._look(u, v, -limit)
        return self.slack if self.bound <= most else found

    def _look(self, u: Tensor, v: Tensor, limit: float) -> Array:
        """Flat positions, ascending, of candidates by potentials u (N,), v (K,), first of those that are worth more
        than these and a limit."""
        raised, parts = u.clone(), []
        noise = torch.rand(self.plan.size * len(v) + SHIFTS, generator=self.rng)
        for rows, columns, block in self.plan.entries_above(u, v, self.tiles, self.spread):
            over = block - v[columns]
            most = over.max(1)
            raised[rows] = torch.maximum(u[rows], most.values)
            own = block.gather(1, most.indices[:, None])
            start = int(torch.randint(SHIFTS, (), generator=self.rng))
            near = over >= torch.minimum(raised[rows, None] - self.spread * own, u[rows, None] * (1 + RESOLVED))
            drawn = noise[start : start + over.numel()].view_as(over) * near + (over > u[rows, None] + limit)
            drawn, at = drawn.topk(min(CANDIDATES, len(columns)), dim=1, sorted=False)
            i, j = torch.nonzero((drawn > 0) & (block.gather(1, at) > 0)).unbind(1)
            j = at[i, j]
            parts.append(((rows.start + i).numpy(), columns[j].numpy(), block[i, j].numpy()))
        self.spread *= COOLING
        self.bound = min(self.bound, float(raised.sum() + v.sum()))
        row, column, mass = (np.concatenate(side) for side in zip(*parts, strict=True))
        found = make_csr(row, column, mass, self.plan.shape)
        self.W = self.W.maximum(found).tocsr()
        return self.positions(found)


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
    dual = solve_transport(DenseCost(cost.numpy(), *masses), *masses, np.zeros(len(q))).duals[1]
    price = torch.from_numpy(dual.max() - dual)
    rent = _c_transform(plan, a, f, b, g, price)
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
    """max over cells of what a point has with them over their price, and zero, (N,): of powers of scores, where
    `torchgw.objective.bounds.c_transform` has costs that are products."""
    found = torch.empty_like(own)
    step = max(2**22 // len(cells), 1)
    for start in range(0, len(side), step):
        part = slice(start, start + step)
        scores = torch.addmm(other, side[part], cells.T).add_(own[part, None])
        found[part] = plan.scores_to_entries(scores).sub_(price).amax(1)
    return found.clamp_(min=0.0)

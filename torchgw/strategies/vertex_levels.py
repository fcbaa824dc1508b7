"""Conditional gradients between vertices of many points, after those between cells of them.

    cost and potentials of all points -> their means on cells -> vertices between these, stationary
        -> the cost of that plan, and the entries of matched cells, on all points -> a few steps between their vertices

A step has the cheapest few entries of each point, so that no match moves further than these reach: from a blurred plan
of many points it takes very many steps, between cells a dozen, and from there two or three.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchgw.couplings.sparse import SparseCoupling
from torchgw.diagnostics.status import History, Status
from torchgw.objective.exact import ExactGradient
from torchgw.runtime.ranks import ALONE, Ranks
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.solvers.factored_descent import FactoredDescent, VertexStart, descend_between_factors
from torchgw.solvers.iterate import Loop
from torchgw.solvers.linear_oracle import MOST_MASSES, north_west_corner
from torchgw.solvers.transport_costs import Order, TiledCost, union
from torchgw.spaces import FactoredDistances
from torchgw.spaces.hierarchy import Cells, bisect
from torchgw.types import Array, DistanceProvider

logger = logging.getLogger("torchgw")

# Of the Frank-Wolfe gap, over the value; where linear problems are flows, each of which takes seconds, and where not.
TOLERANCE, FLOWS_TOLERANCE = 1e-5, 1e-2
CELL = 8  # points of a cell, at most
MOST_WITHIN = 2**23  # pairs of points of matched cells, the cheapest, that a first linear problem has


class VertexLevel(NamedTuple):
    """A problem between points with factors, or cells of them.

    x, y : the spaces, in float64, all of them on each rank.
    p, q : masses (n,), (k,), positive.
    cost, duals : of the linear problem to begin with, and potentials (n,), (k,) near its own.
    ranks : that share passes over pairs.
    """

    x: DistanceProvider
    y: DistanceProvider
    p: Tensor
    q: Tensor
    cost: FactoredCost
    duals: tuple[Tensor, Tensor]
    ranks: Ranks = ALONE

    @property
    def uses_flows(self) -> bool:
        """Whether linear problems are flows."""
        return len(self.p) + len(self.q) > MOST_MASSES

    def linearise_at_cells(
        self, cells: VertexLevel, found: FactoredDescent, rows: Cells, columns: Cells
    ) -> VertexLevel:
        """With the cost of a plan between cells of its points, and potentials that its own lead to."""
        core = require_factors(cells.x)[0].T @ found.plan.apply(require_factors(cells.y)[0], 1)
        cost, coarse = (
            ExactGradient(self.x, self.y, self.p, self.q).cost_from_factored_plan(core, self.p, self.q),
            found.cost,
        )
        (fine, few), (f, g) = (_make_order(each, self.ranks) for each in (cost, coarse)), found.duals
        row = _transform_potentials(cost, coarse, Order(fine.rows, few.columns), g)
        column = _transform_potentials(cost.T, coarse.T, Order(fine.columns, few.rows), f)
        return self._replace(cost=cost, duals=(row, column))


def _transform_potentials(cost: FactoredCost, coarse: FactoredCost, order: Order, dual: Tensor) -> Tensor:
    """The c-transform (N,) of potentials (k,) of column cells, between points and cells."""
    between = FactoredCost(cost.a, coarse.b, cost.U, coarse.V)
    return torch.from_numpy(TiledCost.of(between, order).c_transform(dual.cpu().numpy())[0]).to(dual)


def _make_order(cost: FactoredCost, ranks: Ranks) -> Order:
    """The first rank's, for others may round what it is found from otherwise."""
    return ranks.run_on_first(partial(Order.of, cost))


def require_factors(space: DistanceProvider) -> tuple[Tensor, Tensor]:
    """F (N, r) and signs (r,) of distances that have them."""
    factors = space.factors()
    assert factors is not None
    return factors


def descend_by_levels(level: VertexLevel, loop: Loop) -> tuple[FactoredDescent, Status, History]:
    """Where they end, and why, see `torchgw.solvers.factored_descent`; O((N + K) r) memory.

    Raises
    ------
    TransportError
        Where a first linear problem is not solved.
    """
    within = np.empty(0, dtype=np.int64)
    if level.uses_flows:
        (x, p, a, f, U, rows), (y, q, b, g, V, columns) = (
            _make_cells(level.x, level.p, level.cost.a, level.duals[0], level.cost.U, level.ranks),
            _make_cells(level.y, level.q, level.cost.b, level.duals[1], level.cost.V, level.ranks),
        )
        cells = VertexLevel(x, y, p, q, FactoredCost(a, b, U, V), (f, g), level.ranks)
        coarse = partial(descend_by_levels, cells, loop)
        found, status, history = loop.watch.stage("cells", coarse)  # of its own, as its loop is another
        loop = replace(loop, history=history)
        level, within = (
            level.linearise_at_cells(cells, found, rows, columns),
            expand_cell_pairs(found.plan, rows, columns),
        )
    p, q, cost, duals, ranks = level[2:]
    order = _make_order(cost, ranks)
    row, column = (dual.cpu().numpy() for dual in duals)
    _, nearest = TiledCost.of(cost.T, order.transpose).c_transform(row)
    if len(within) > MOST_WITHIN:
        reduced = TiledCost.of(cost, order).at(within, column) - row[within // len(q)]
        within = within[reduced <= np.partition(reduced, MOST_WITHIN)[MOST_WITHIN]]
    corner = north_west_corner(p.cpu().numpy(), q.cpu().numpy(), order, nearest)
    start = VertexStart(cost, duals[1], union(corner, within))
    between = ExactGradient(level.x, level.y, p, q)
    loop = replace(loop, tol=FLOWS_TOLERANCE if level.uses_flows else TOLERANCE)
    found, status = descend_between_factors(between, start, order, p, q, loop, ranks)
    logger.info("vertices between %d and %d: value %.6g after %d steps", len(p), len(q), found.value, found.n_iter)
    return found, status, loop.history


def _make_cells(
    space: DistanceProvider, mass: Tensor, term: Tensor, dual: Tensor, side: Tensor, ranks: Ranks
) -> tuple[FactoredDistances, Tensor, Tensor, Tensor, Tensor, Cells]:
    """Cells of a space, with their masses, the means of a cost's term, of potentials and of a cost's factors, and which
    points are in which."""
    (F, signs), n = require_factors(space), len(mass)
    count = 2 ** int(math.log2(min(max(n / CELL, MOST_MASSES / 2), n)))
    halves = ranks.run_on_first(partial(bisect, F, count))
    cells = halves.cells(len(halves.levels) - 1)
    means = cells.means(torch.cat((term[:, None], dual[:, None], side, F), 1), mass)
    ends = 2, 2 + side.shape[1]
    made = FactoredDistances.of(means[:, ends[1] :].contiguous(), signs, space.scale)
    return made, cells.sums(mass), means[:, 0], means[:, 1], means[:, slice(*ends)].contiguous(), cells


def expand_cell_pairs(plan: SparseCoupling, rows: Cells, columns: Cells) -> Array:
    """Flat positions, ascending, of the pairs of points whose cells a plan between cells matches."""
    sides = []
    for cells, index in ((rows, plan.row), (columns, plan.column)):
        size = torch.bincount(cells.label, minlength=cells.count)
        sides.append((torch.argsort(cells.label, stable=True), (size.cumsum(0) - size)[index], size[index]))
    (row_order, row_first, height), (column_order, column_first, width) = sides
    count = height * width
    block = torch.arange(len(count), device=count.device).repeat_interleave(count)
    place = torch.arange(len(block), device=count.device) - (count.cumsum(0) - count)[block]
    i = row_order[row_first[block] + place // width[block]]
    j = column_order[column_first[block] + place % width[block]]
    found: Array = np.unique((i * len(columns.label) + j).cpu().numpy())
    return found

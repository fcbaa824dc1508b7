"""A solve without entropy between many points that have factors: a streamed plan, and from it vertices of few entries.

    potentials of a small epsilon on all points -> entries that they leave -> conditional gradients between vertices

Nothing of the size N K is stored, and the end is a plan of about N + K entries with its dual potentials, which bound
the cost of every pair of points.

Many points have conditional gradients between vertices of cells first:

    cost and potentials of all points -> their means on cells -> vertices between these, stationary
        -> the cost of that plan, and the entries of matched cells, on all points -> a few steps between their vertices

A step has the cheapest few entries of each point, so that no match moves further than these reach: from a blurred plan
of many points it takes very many steps, between cells a dozen, and from there two or three.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from torchgw.couplings.sparse import SparseCoupling
from torchgw.diagnostics.status import History, Status
from torchgw.objective.certify import PlanStatistics, certify
from torchgw.objective.exact import ExactGradient
from torchgw.objective.model import Model
from torchgw.objective.value import Objective
from torchgw.problem.problem import Problem
from torchgw.search.coarsen import ControlledSpace
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.solvers.iterate import Loop
from torchgw.solvers.linear_oracle import MOST_MASSES, north_west_corner
from torchgw.solvers.minimum_cost_flow import TransportError
from torchgw.solvers.solution import CertifiedSolution, Solution
from torchgw.solvers.sparse_descent import FactoredProgram, FactoredState, transform_potentials
from torchgw.solvers.transport_costs import Order, TiledCost, union
from torchgw.spaces.coarsening import Cells, Coarsening, bisect
from torchgw.strategies.multilevel import climb_to_all_points
from torchgw.strategies.sharp import FALL
from torchgw.strategies.streaming import finish_tiles, keep_tiles
from torchgw.types import Array, DistanceProvider

logger = logging.getLogger("torchgw")


# Of the Frank-Wolfe gap, over the value; where linear problems are flows, each of which takes seconds, and where not.
TOLERANCE, FLOWS_TOLERANCE = 1e-5, 1e-2
CELL = 8  # points of a cell, at most
MOST_WITHIN = 2**23  # pairs of points of matched cells, the cheapest, that a first linear problem has


def solve_by_vertices(asked: Problem) -> CertifiedSolution:
    """Solve without entropy, with memory for a few entries of each point; where no vertex is found, the plan that
    streamed."""
    began = time.perf_counter()
    blurred = replace(asked, model=asked.model.with_epsilon(FALL * asked.epsilon), auto=False, sharpens=False)
    problem, state, solution = climb_to_all_points(blurred)
    searched, status = began + solution.seconds["search"], solution.status
    if not asked.watch.should_skip():
        (p, q), end = asked.model.masses, state.warm_start
        assert end.cost is not None
        assert end.epsilon is not None
        x, y = (space.to(p.device, torch.float64) for space in asked.spaces)
        duals = end.cost.T.column_dual(end.f, p, end.epsilon), end.cost.column_dual(end.g, q, end.epsilon)
        least = torch.finfo(torch.float64).eps * asked.unit
        loop = Loop(asked.watch, solution.history, asked.options.stopping.max_iter, least=least)
        descent = partial(descend_by_levels, (x, y), p, q, end.cost, duals, loop)
        try:
            return _certify(asked, solution, *asked.stage("vertices", descent), (x, y), (began, searched))
        except TransportError as error:
            logger.info("%s; the plan that streamed is returned", error)
            status = Status.TRANSPORT
    found = finish_tiles(problem, keep_tiles(problem, state), state, solution, (began, searched, time.perf_counter()))
    return replace(found, status=status)


def _certify(
    asked: Problem,
    solution: Solution,
    found: FactoredState,
    status: Status,
    history: History,
    spaces: tuple[DistanceProvider, DistanceProvider],
    times: tuple[float, float],
) -> CertifiedSolution:
    """A vertex with its value and certificate, after the ``solution`` that streamed."""
    (p, q), plan, solved = asked.model.masses, found.plan, time.perf_counter()
    if status is Status.STATIONARY and found.gap > TOLERANCE * found.value:
        status = Status.SETTLED  # steps gain little, but a better plan nearby is not ruled out
    gradient, quadratic = ExactGradient(*spaces, p, q), Objective(max(found.value, 0.0), True, 0.0)
    marginals, means = (plan.marginal(1), plan.marginal(0)), (gradient.a, gradient.b)
    read = PlanStatistics(quadratic, gradient(plan, p), means, found.value, marginals)
    values, certificate = certify(read, found.dual, spaces, asked.model, asked.unit, asked.generator)
    return solution.with_certificate(
        marginals,
        quadratic,
        values,
        replace(certificate, stationarity=found.gap, stationarity_exact=True),
        (*times, solved),
        coupling=plan,
        warm_start=None,
        status=status,
        n_iter=solution.n_iter + found.n_iter,
        history=history,
        energy=found.value,
        dual=found.dual,
        gradient="exact",
    )


def descend_by_levels(
    spaces: tuple[DistanceProvider, DistanceProvider],
    p: Tensor,
    q: Tensor,
    cost: FactoredCost,
    duals: tuple[Tensor, Tensor],
    loop: Loop,
) -> tuple[FactoredState, Status, History]:
    """Where they end, and why, see `torchgw.solvers.sparse_descent`; O((N + K) r) memory.

    Parameters
    ----------
    spaces : with factors, in float64.
    p, q : masses (N,), (K,), positive.
    cost, duals : of the linear problem to begin with, and potentials (N,), (K,) near its own.

    Raises
    ------
    TransportError
        Where a first linear problem is not solved.
    """
    within, many = np.empty(0, dtype=np.int64), len(p) + len(q) > MOST_MASSES
    gradient = ExactGradient(*spaces, p, q)
    if many:
        x, y = (_make_cells(space, mass) for space, mass in zip(spaces, (p, q), strict=True))
        assert x.space is not None
        assert y.space is not None
        means = Model(p, q, 0.0).average_cost(cost, x, y)
        assert means is not None
        f, g = (cells.means(dual[:, None], mass)[:, 0] for cells, dual, mass in zip((x, y), duals, (p, q), strict=True))
        coarse = partial(descend_by_levels, (x.space, y.space), x.mass, y.mass, means, (f, g), loop)
        found, status, history = loop.watch.stage("cells", coarse)  # of its own, as its loop is another
        loop = replace(loop, history=history)
        core = x.features.T @ found.plan.apply(y.features, 1)
        cost, within = gradient.cost_from_factored_plan(core, p, q), expand_cell_pairs(found.plan, x, y)
        fine, few = Order.of(cost), Order.of(found.cost)
        f, g = transform_potentials(found.cost, few, found.dual), found.dual
        between = (
            FactoredCost(cost.a, found.cost.b, cost.U, found.cost.V),
            FactoredCost(cost.b, found.cost.a, cost.V, found.cost.U),
        )
        duals = (
            transform_potentials(between[0], Order(fine.rows, few.columns), g),
            transform_potentials(between[1], Order(fine.columns, few.rows), f),
        )
    order = Order.of(cost)
    row, column = (dual.cpu().numpy() for dual in duals)
    _, nearest = TiledCost(cost.T, Order(order.columns, order.rows)).c_transform(row)
    if len(within) > MOST_WITHIN:
        reduced = TiledCost(cost, order).at(within, column) - row[within // len(q)]
        within = within[reduced <= np.partition(reduced, MOST_WITHIN)[MOST_WITHIN]]
    feasible = union(north_west_corner(p.cpu().numpy(), q.cpu().numpy(), order, nearest), within)
    loop = replace(loop, tol=FLOWS_TOLERANCE if many else TOLERANCE)
    found, status = FactoredProgram(gradient, order, p, q).descend_from_vertex(cost, duals[1], feasible, loop)
    logger.info("vertices between %d and %d: value %.6g after %d steps", len(p), len(q), found.value, found.n_iter)
    return found, status, loop.history


def _make_cells(space: DistanceProvider, mass: Tensor) -> Coarsening:
    """Cells of a space with factors, of several points each."""
    side = ControlledSpace.of(space, mass, mass.dtype, 0, torch.Generator(mass.device))
    count = 2 ** int(math.log2(min(max(len(mass) / CELL, MOST_MASSES / 2), len(mass))))
    return side.coarsen(bisect(side.control.F, count).cells)


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

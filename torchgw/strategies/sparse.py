"""Solves whose plans have few entries, without entropy. Nothing of the size N K is stored.

Between many points that have factors, a streamed plan leads to vertices:

    potentials of a small epsilon on all points -> entries that they leave -> conditional gradients between vertices

The end is a plan of about N + K entries with its dual potentials, which bound the cost of
every pair of points.

Many points have conditional gradients between vertices of cells first:

    cost and potentials of all points -> their means on cells -> vertices between these, stationary
        -> the cost of that plan, and the entries of matched cells, on all points -> a few steps between their vertices

A step has the cheapest few entries of each point, so that no match moves further than these
reach: from a blurred plan of many points it takes very many steps, between cells a dozen,
and from there two or three.

Between two sparse matrices, graphs are matched, and conditional gradients begin from the
matching. The value is exact.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from torchgw.couplings.sparse import SparseCoupling
from torchgw.diagnostics.evidence import Basin, Certificate
from torchgw.diagnostics.status import History, Status
from torchgw.linalg.sparse_entries import entry_rows, make_csr
from torchgw.objective.bounds import first_bound
from torchgw.objective.certify import Objective, certify, read_dense_plan
from torchgw.objective.exact import ExactGradient, SparseObjective
from torchgw.objective.model import Model
from torchgw.problem.problem import Problem
from torchgw.search.anneal import SAME_PLAN
from torchgw.search.candidate import is_as_low
from torchgw.search.coarsen import ControlledSpace
from torchgw.search.crossing import CROSSED
from torchgw.search.graph_matching import match_nodes, plan_from_pairs
from torchgw.search.sparse_basins import SparseEnd, search_sparse_graphs
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.solvers.iterate import Loop
from torchgw.solvers.linear_oracle import MOST_MASSES, north_west_corner, repair_marginals
from torchgw.solvers.minimum_cost_flow import TransportError
from torchgw.solvers.solution import CertifiedSolution, Solution
from torchgw.solvers.sparse_descent import FactoredProgram, FactoredState, descend_sparsely
from torchgw.solvers.transport_costs import Order, TiledCost, union
from torchgw.spaces import AdjacencyDistances
from torchgw.spaces.coarsening import Cells, Coarsening, bisect
from torchgw.strategies.entropic import make_epsilon_step
from torchgw.strategies.multilevel import climb_to_all_points
from torchgw.strategies.sharp import FALL
from torchgw.strategies.streaming import finish_tiles, keep_tiles
from torchgw.types import Array, DistanceProvider

logger = logging.getLogger("torchgw")

# Of the Frank-Wolfe gap, over the value; where linear problems are flows, each of which
# takes seconds, and where not.
TOLERANCE, FLOWS_TOLERANCE = 1e-5, 1e-2
GRAPH_TOLERANCE = 1e-6  # the same between sparse matrices
CELL = 8  # points of a cell, at most
MOST_WITHIN = 2**23  # pairs of points of matched cells, the cheapest, that a first linear problem has


def solve_by_vertices(asked: Problem) -> CertifiedSolution:
    """Solve without entropy, with memory for a few entries of each point; where no vertex
    is found, the plan that streamed."""
    began = time.perf_counter()
    blurred = replace(asked, model=asked.model.with_epsilon(FALL * asked.epsilon), auto=False, sharpens=False)
    problem, state, solution = climb_to_all_points(blurred)
    searched, status = began + solution.seconds["search"], solution.status
    if not asked.watch.should_skip():
        (p, q), cost, score = asked.model.masses, state.cost.to(torch.float64), state.score
        x, y = (space.to(p.device, torch.float64) for space in asked.spaces)
        duals = (
            cost.T.column_dual(state.f - score.row, p, score.epsilon),
            cost.column_dual(state.g - score.column, q, score.epsilon),
        )
        loop = Loop(
            asked.watch,
            solution.history,
            asked.options.stopping.max_iter,
            least=torch.finfo(torch.float64).eps * asked.unit,
        )
        descent = partial(descend_by_levels, (x, y), p, q, cost, duals, loop)
        try:
            return _certify(asked, solution, *asked.stage("vertices", descent), (x, y), (began, searched))
        except TransportError as error:
            logger.info("%s; the plan that streamed is returned", error)
            status = Status.TRANSPORT
    times = began, searched, time.perf_counter()
    return replace(finish_tiles(problem, keep_tiles(problem, state), solution, times), status=status)


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
    cost = ExactGradient(*spaces, p, q)(plan, p)
    read = read_dense_plan(plan, spaces, asked.model, 0, asked.generator, cost)
    values, certificate = certify(read, found.dual, spaces, asked.model, asked.unit, asked.generator)
    return solution.with_certificate(
        (plan.marginal(1), plan.marginal(0)),
        read.quadratic,
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
    cost, duals : of the linear problem to begin with, and potentials (N,), (K,) near its
        own.

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
        f, g = (cells.means(dual[:, None], mass)[:, 0] for cells, dual, mass in zip((x, y), duals, (p, q), strict=True))
        coarse = partial(descend_by_levels, (x.space, y.space), x.mass, y.mass, means, (f, g), loop)
        found, status, history = loop.watch.stage("cells", coarse)  # of its own, as its loop is another
        loop = replace(loop, history=history)
        core = x.features.T @ found.plan.apply(y.features, 1)
        cost, within = gradient.cost_from_factored_plan(core, p, q), expand_cell_pairs(found.plan, x, y)
        fine, few = Order.of(cost), Order.of(found.cost)
        f, g = TiledCost(found.cost, few).c_transform(found.dual)[0], found.dual
        between = (
            FactoredCost(cost.a, found.cost.b, cost.U, found.cost.V),
            FactoredCost(cost.b, found.cost.a, cost.V, found.cost.U),
        )
        duals = (
            TiledCost(between[0], Order(fine.rows, few.columns)).c_transform(g)[0],
            TiledCost(between[1], Order(fine.columns, few.rows)).c_transform(f)[0],
        )
    order = Order.of(cost)
    _, nearest = TiledCost(cost.T, order.T).c_transform(duals[0])
    if len(within) > MOST_WITHIN:
        row, column = (dual.cpu().numpy() for dual in duals)
        reduced = TiledCost(cost, order).at(within, column) - row[within // len(q)]
        within = within[reduced <= np.partition(reduced, MOST_WITHIN)[MOST_WITHIN]]
    feasible = union(north_west_corner(p.cpu().numpy(), q.cpu().numpy(), order, nearest.cpu().numpy()), within)
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
    """Flat positions, ascending, of the pairs of points whose cells a plan between cells
    matches."""
    sides = []
    for cells in (rows, columns):
        label = cells.label.cpu().numpy()
        every = np.arange(len(label))
        sides.append(make_csr(every, label, np.ones(len(label)), (len(label), cells.count)))
    found = (sides[0] @ plan.matrix @ sides[1].T).sorted_indices()
    positions: Array = entry_rows(found) * found.shape[1] + found.indices
    return positions


def solve_sparse_graphs(asked: Problem) -> CertifiedSolution:
    """Solve with memory for the entries of D_X T D_Y; on the CPU, whatever the device of
    the masses."""
    began = time.perf_counter()
    model, watch, options = asked.model, asked.watch, asked.options
    X, Y = asked.spaces
    assert isinstance(X, AdjacencyDistances)
    assert isinstance(Y, AdjacencyDistances)
    p, q = (mass.double().cpu().numpy() for mass in model.masses)
    problem = SparseObjective(X.matrix, Y.matrix, p, q, X.symmetric and Y.symmetric)
    start, basins = asked.stage("search", partial(_find_start, asked, problem))
    searched = time.perf_counter()
    loop = Loop(
        watch, History(), options.stopping.max_iter, tol=GRAPH_TOLERANCE, least=float(np.finfo(float).eps) * asked.unit
    )
    state, status = asked.stage(
        "descent", lambda: descend_sparsely(problem, start.matrix, options.stopping.plan_tol, loop)
    )
    solved = time.perf_counter()
    value, plan = max(state.value, 0.0), state.plan
    coupling = SparseCoupling(*(side.to(model.p.device) for side in plan.tensors().values()))
    marginals = coupling.marginal(1), coupling.marginal(0)
    values = model.values_from_parts(value, 0.0, 0.0, *marginals)
    a, b = (torch.from_numpy(side) for side in (problem.a, problem.b))
    lower = min(float(first_bound(a, b, model.p.cpu(), model.q.cpu())), values.total)
    solution = Solution(
        coupling=coupling,
        warm_start=None,
        status=status,
        n_iter=state.n_iter,
        n_iter_sinkhorn=0,
        history=loop.history,
        energy=value,
        basins=_list_basins(asked, basins, coupling, value),
    )
    return solution.with_certificate(
        marginals,
        Objective(value),
        values,
        Certificate(stationarity=state.gap, stationarity_exact=True, lower_bound=lower, gap=values.total - lower),
        (began, searched, solved),
        gradient="exact",
        path=(make_epsilon_step(asked, solution, solved - began),) if asked.auto else (),
    )


def _list_basins(
    asked: Problem, basins: tuple[Basin, ...], coupling: SparseCoupling, value: float
) -> tuple[Basin, ...]:
    """The basins with the plan that the best one ended in; matchings differ by the mass
    that they match otherwise."""
    last, p = coupling.argmax(1), asked.p.double() / asked.p.sum()
    found = list[Basin]()
    for basin in basins:
        energy = basin.energy if found else value
        matching = torch.as_tensor(basin.matching, device=p.device) if found else last
        shift = (matching != last).to(p)
        difference = float(p @ shift)
        found.append(replace(basin, energy=energy, matching=matching, shift=shift, difference=difference))
    return tuple(found)


def _group_ends(ends: list[SparseEnd], p: Array, unit: float) -> tuple[Basin, ...]:
    """Ends that agree in values and in the matches of most of the mass, with how many
    starts came to each."""
    groups: list[list[SparseEnd]] = []
    most = SAME_PLAN / 2 * p.sum()
    for end in ends:
        same = [
            group
            for group in groups
            if is_as_low(end.value, group[0].value, unit)
            and float(p @ (end.matching != group[0].matching).numpy()) <= most
        ]
        if same:
            same[0].append(end)
        else:
            groups.append([end])
    return tuple(
        Basin(
            energy=max(group[0].value, 0.0),
            count=sum(end.origin != CROSSED for end in group),
            level="full",
            origin=group[0].origin,
            difference=0.0,
            matching=group[0].matching,
            shift=torch.zeros(len(p), dtype=torch.float64),
        )
        for group in groups
    )


def _find_start(asked: Problem, problem: SparseObjective) -> tuple[SparseCoupling, tuple[Basin, ...]]:
    """The plan that was given, the matching that given pairs lead to, or the lowest end of
    the search; and the basins of the search."""
    basins: tuple[Basin, ...] = ()
    if asked.init is None:
        ends = search_sparse_graphs(asked, problem)
        plan, basins = ends[0].plan, _group_ends(ends, problem.p, asked.unit)
    elif asked.init.is_floating_point():
        given = asked.init.double().cpu().numpy()
        plan = csr_array(given / given.sum())
    else:
        plan = match_nodes(problem, plan_from_pairs(problem, *asked.init.cpu().numpy().T), asked.watch.should_skip)
    return SparseCoupling.of(repair_marginals(plan, problem.p, problem.q), torch.device("cpu")), basins

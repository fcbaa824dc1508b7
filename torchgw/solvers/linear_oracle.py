"""The linear transport problem min <C, S> over the plans S with marginals p
and q, by column generation.

    entries that are cheap under dual potentials -> the program on these alone -> its potentials priced on all pairs
    -> entries that price out are added, until none does

so the optimum is that of the full problem, proven by its potentials, and
memory is that of a few entries of each point beside the cost. After good
potentials the first round almost always suffices. A conditional-gradient
step needs a good direction and not the best, so pricing can be left out.

Between equal masses vertices are permutations, found by an assignment.
HiGHS solves other programs, and a flow those of more masses than it
carries. The potentials of an assignment s are shortest paths,

    b_j = min over i of b_s(i) + C_ij - C_i,s(i),

which have no negative cycle because s is optimal.

Sources: Q. Huangfu, J. Hall, "Parallelizing the dual revised simplex
method", 2018; R. Jonker, A. Volgenant, "A shortest augmenting path
algorithm for dense and sparse linear assignment problems", 1987; J.
Altschuler, J. Weed, P. Rigollet, "Near-linear time approximation algorithms
for optimal transport via Sinkhorn iteration", 2017 (rounding).
"""

from __future__ import annotations

import functools
import logging
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csc_array, csr_array, diags_array, hstack

from torchgw.linalg.sparse_entries import make_csr
from torchgw.objective.bounds import monotone_coupling
from torchgw.solvers.minimum_cost_flow import TransportError, has_ortools, minimum_cost_flow, shortest_path_prices
from torchgw.solvers.transport_costs import DenseCost, Order, SparseCost, TransportCost, reduce_costs, union
from torchgw.types import Array

logger = logging.getLogger("torchgw")

# HiGHS has absolute tolerances: masses near one, and reduced costs around a
# hundred.
COST_SCALE = 100.0
PRICING_TOLERANCE, PRICING_ROUNDS = 1e-8, 20  # of the mean reduced cost
FEASIBLE = 1e-10  # the least that HiGHS takes
ROUNDING = 1e-14  # of the largest cost
NEGLIGIBLE = 2.0**-50  # of a point's mass
# Of both sides, up to which HiGHS takes no longer than a flow (measured).
MOST_MASSES = 10_000
BINDINGS = ("highspy._core", "scipy.optimize._highspy._core")
DEVEX, COLUMNWISE, MINIMISE, PRIMAL = 1, 1, 1, 4


class Vertex(NamedTuple):
    """The solution of a linear transport problem.

    plan : (N, K) in SciPy's CSR format, fewer than N + K entries and as
        many of the size of rounding; its sums are the masses.
    duals : row and column potentials (N,), (K,) in units of cost, optimal
        among the entries; of an assignment whose shortest paths were cut
        off, as near as these came.
    basis : flat positions of the entries in the basis, and below zero, -1 -
        i, the masses i of p and q whose own variable is in it; N + K in
        all. None where it was not HiGHS's bindings that found it.
    """

    plan: csr_array
    duals: tuple[Array, Array]
    basis: Array | None = None


def uses_flows(n: int, k: int) -> bool:
    """Whether linear problems of so many points are flows."""
    return n + k > MOST_MASSES


def has_vertex_solver(n: int, k: int) -> bool:
    """Whether there is what solves the linear problems of so many points:
    HiGHS, or OR-tools where it is installed."""
    return not uses_flows(n, k) or has_ortools()


def equal_masses(p: Array, q: Array) -> bool:
    """Whether the vertices between masses (N,) and (K,) are permutations."""
    return len(p) == len(q) and bool(np.ptp(p) == 0 == np.ptp(q))


def solve_transport(
    cost: TransportCost,
    p: Array,
    q: Array,
    dual: Array,
    entries: Array | None = None,
    rounds: int = PRICING_ROUNDS,
    basis: Array | None = None,
) -> Vertex:
    """A vertex of little cost, the optimum where pricing ends.

    Parameters
    ----------
    p, q : masses (N,), (K,) of equal sums; positive unless the cost is
        stored.
    dual : column potentials (K,) near the optimal ones; zeros are no
        potentials.
    entries : flat positions, ascending, on which a plan lives; those of the
        north-west corner by default.
    rounds : programs that are solved at most; one takes the vertex among
        the cheap entries alone. Its potentials prove what is left.
    basis : of a vertex for other costs, to go on from.

    Raises
    ------
    TransportError
        When a program is not solved.
    """
    if isinstance(cost, DenseCost):
        if min(p.min(), q.min()) <= 0:
            return _solve_between_masses(cost, p, q, dual, rounds, basis)
        dual = dual if dual.any() else cost.estimate_dual(p, q)
        if equal_masses(p, q):
            return solve_assignment(cost.C, p, dual)
    known = [] if basis is None else [basis[basis >= 0]]
    entries = union(north_west_corner(p, q) if entries is None else entries, *known, cost.cheapest(dual))
    vertex = _solve_among(cost, p, q, dual, entries, basis)
    for _ in range(rounds - 1):
        a, dual = vertex.duals
        paid = cost.at(entries, dual)
        rounding = ROUNDING * float(max(np.abs(paid).max(), np.abs(dual).max()))
        limit = max(PRICING_TOLERANCE * float((paid - a[entries // len(q)]).mean()), rounding)
        missing = np.setdiff1d(cost.below(vertex.duals, -limit), entries, assume_unique=True)
        if len(missing) == 0:
            break
        entries = union(entries, missing)
        vertex = _solve_among(cost, p, q, dual, entries, vertex.basis)
    return vertex


def _solve_between_masses(cost: DenseCost, p: Array, q: Array, dual: Array, rounds: int, basis: Array | None) -> Vertex:
    """The vertex of a stored problem with potentials of zero where there is
    no mass; its basis is that of the rest."""
    rows, columns = np.flatnonzero(p > 0), np.flatnonzero(q > 0)
    masses, duals = (p[rows], q[columns]), (np.zeros_like(p), np.zeros_like(q))
    present = DenseCost(cost.C[np.ix_(rows, columns)], *masses)
    found = solve_transport(present, *masses, dual[columns], None, rounds, basis)
    duals[0][rows], duals[1][columns] = found.duals
    entries = found.plan.tocoo()
    plan = csr_array((entries.data, (rows[entries.row], columns[entries.col])), shape=cost.C.shape)
    return Vertex(plan, duals, found.basis)


def _solve_among(cost: TransportCost, p: Array, q: Array, dual: Array, entries: Array, basis: Array | None) -> Vertex:
    """The vertex of least cost among entries, by column potentials (K,)
    near its own, from a basis of some of them."""
    row, column = divmod(entries, len(q))
    reduced = cost.at(entries, dual)
    least = np.minimum.reduceat(reduced, np.searchsorted(row, np.arange(len(p))))
    reduced -= least[row]
    found = None
    if uses_flows(len(p), len(q)) and not isinstance(cost, DenseCost) and has_ortools():
        x, a, b = minimum_cost_flow(reduced, row, column, p, q)
    elif isinstance(cost, SparseCost) and np.ptp(np.concatenate((p[:-1], q[:-1]))) == 0:
        x, a, b = match_with_slack(reduced, row, column, p, q)
    else:
        known = None if basis is None else np.where(basis >= 0, np.searchsorted(entries, basis), basis)
        x, a, b, found = linear_program(reduced, row, column, p, q, known)
    plan = repair_marginals(make_csr(row, column, x, (len(p), len(q))), p, q)
    basis = None if found is None else np.where(found >= 0, entries[found.clip(min=0)], found)
    return Vertex(plan, (least + a, dual + b), basis)


def north_west_corner(p: Array, q: Array, order: Order | None = None, nearest: Array | None = None) -> Array:
    """Flat positions, ascending, of a plan's entries, masses p (N,), q (K,)
    in their order; or with rows in another and columns in that of the rows
    ``nearest`` (K,) to them."""
    rows, columns = np.arange(len(p)), np.arange(len(q))
    if order is not None and nearest is not None:
        rows = order.rows.cpu().numpy()
        columns = np.argsort(np.argsort(rows)[nearest], kind="stable")
    i, j, _ = monotone_coupling(p[rows], q[columns])
    return np.unique(rows[i] * len(q) + columns[j])


def repair_marginals(T: Any, p: Array, q: Array) -> csr_array:
    """The plan of the marginals p (N,), q (K,) near a sparse matrix that is
    not negative: rows and columns that hold too much are scaled down, and
    what is missing is put together in the order of the points."""
    T = T.tocoo()
    mass, sides = T.data, list(zip(T.coords, (p, q), strict=True))
    for index, side in sides:
        sums = np.bincount(index, mass, len(side))
        mass = mass * np.divide(side, sums, out=np.ones_like(side), where=sums > side)[index]
    missing = [side - np.bincount(index, mass, len(side)) for index, side in sides]
    rest = [np.where(lack > NEGLIGIBLE * side, lack, 0.0) for lack, (_, side) in zip(missing, sides, strict=True)]
    some = mass > 0
    row, column, mass = (side[some] for side in (T.row, T.col, mass))
    if all(lack.any() for lack in rest):
        i, j, share = monotone_coupling(*rest)
        row, column = np.concatenate((row, i)), np.concatenate((column, j))
        mass = np.concatenate((mass, share * min(float(lack.sum()) for lack in rest)))
    return make_csr(row, column, mass, T.shape)


def linear_program(
    cost: Array, row: Array, column: Array, p: Array, q: Array, basis: Array | None = None
) -> tuple[Array, Array, Array, Array | None]:
    """x (m,) >= 0 of least cost (m,) whose sums over equal ``row`` are p
    (N,) and over equal ``column`` q (K,), its potentials (N,), (K,) and its
    basis, by HiGHS, from a ``basis`` of such sums where there is one."""
    scale, unit = max(float(cost.mean()), np.finfo(float).tiny) / COST_SCALE, p.mean()
    masses = np.concatenate((p, q)) / unit
    ends, core = np.stack((row, column + len(p)), 1).ravel().astype(np.int32), _load_bindings()
    x, potential, basis = (
        _solve_by_linprog(cost / scale, ends, masses)
        if core is None
        else _solve_by_bindings(core, cost / scale, ends, masses, basis)
    )
    return x.clip(min=0.0) * unit, scale * potential[: len(p)], scale * potential[len(p) :], basis


def _solve_by_linprog(cost: Array, ends: Array, masses: Array) -> tuple[Array, Array, None]:
    # Imported late: it takes a third of the import of this package.
    from scipy.optimize import linprog

    count = len(cost)
    sums = csc_array((np.ones(2 * count), ends, np.arange(0, 2 * count + 1, 2)), shape=(len(masses), count))
    # Measured: presolve can take a minute on 4000 rows, the simplex 0.1 s,
    # or 1.14 times that by steepest edges.
    found = linprog(
        cost,
        A_eq=sums,
        b_eq=masses,
        method="highs-ds",
        options={
            "presolve": False,
            "simplex_dual_edge_weight_strategy": "devex",
            "primal_feasibility_tolerance": FEASIBLE,
        },
    )
    if found.status != 0:
        raise TransportError(f"the linear transport problem ({len(masses)} masses) was not solved: {found.message}")
    return found.x, found.eqlin.marginals, None


def _solve_by_bindings(
    core: Any, cost: Array, ends: Array, masses: Array, basis: Array | None = None
) -> tuple[Array, Array, Array]:
    count, options, highs = len(cost), core.HighsOptions(), core._Highs()
    options.output_flag, options.presolve, options.solver = False, "off", "simplex"
    options.simplex_dual_edge_weight_strategy = DEVEX
    options.primal_feasibility_tolerance = FEASIBLE
    if basis is not None:
        options.simplex_strategy = PRIMAL
    highs.passOptions(options)
    columns = cost, np.zeros(count), np.full(count, np.inf), masses, masses
    entries = np.arange(0, 2 * count, 2, dtype=np.int32), ends, np.ones(2 * count), np.zeros(count, np.int32)
    highs.passModel(count, len(masses), 2 * count, COLUMNWISE, MINIMISE, 0.0, *columns, *entries)
    if basis is not None:
        known, whole = core.HighsBasis(), np.full(count + len(masses), core.HighsBasisStatus.kLower)
        whole[np.where(basis >= 0, basis, count - 1 - basis)] = core.HighsBasisStatus.kBasic
        known.col_status, known.row_status, known.valid = whole[:count].tolist(), whole[count:].tolist(), True
        if highs.setBasis(known) != core.HighsStatus.kOk:
            return _solve_by_bindings(core, cost, ends, masses)
    highs.run()
    status = highs.getModelStatus()
    if basis is not None and status != core.HighsModelStatus.kOptimal:
        return _solve_by_bindings(core, cost, ends, masses)
    if status != core.HighsModelStatus.kOptimal:
        text = highs.modelStatusToString(status)
        raise TransportError(f"the linear transport problem ({len(masses)} masses) was not solved: {text}")
    solution = highs.getSolution()
    return np.array(solution.col_value), np.array(solution.row_dual), np.array(highs.getBasicVariables()[1])


@functools.cache
def _load_bindings() -> Any:
    """HiGHS's own bindings, of highspy or in SciPy's copy, if they solve a
    program of two rows and two columns.

    The copy is not part of SciPy's interface, but `linprog` spends as long
    around HiGHS as HiGHS itself: measured, a program of 60 x 70 points
    takes 3 times as long by it, one of 500 x 600 points 1.4 times.
    """
    ends, masses = np.array([0, 2, 0, 3, 1, 2, 1, 3], dtype=np.int32), np.array([1.0, 3.0, 2.0, 2.0])
    for name in BINDINGS:
        try:
            core = import_module(name)
            x, price, basis = _solve_by_bindings(core, np.array([2.0, 1.0, 1.0, 3.0]), ends, masses)
            x, price, basis = _solve_by_bindings(core, np.array([1.0, 3.0, 2.0, 1.0]), ends, masses, basis)
        except Exception as error:  # a private module may do anything
            logger.debug("HiGHS through %s: %r", name, error)
            continue
        if np.allclose(x, [1, 0, 1, 2]) and np.allclose(price[[0, 1, 1]] + price[[2, 2, 3]], [1, 2, 1]):
            return core
    return None


def match_with_slack(cost: Array, row: Array, column: Array, p: Array, q: Array) -> tuple[Array, Array, Array]:
    """The same between points of equal masses, the last row and column of
    which take what stays away at a cost that is all zeros but for
    potentials, by an assignment."""
    # Imported late: it takes long to import.
    from scipy.sparse.csgraph import min_weight_full_bipartite_matching

    (n, k), x = (len(p) - 1, len(q) - 1), np.zeros(len(cost))
    alone, spare = (row < n) & (column == k), (row == n) & (column < k)
    saved = np.append(cost[alone], 0.0)[row] + np.append(cost[spare], 0.0)[column] - cost - cost[-1]
    inside = np.flatnonzero((row < n) & (column < k) & (saved > 0))
    top = 2 * float(saved[inside].max(initial=1e-300))
    # Each row may have a column of its own, which saves nothing; costs of zero would be no edges.
    W = csr_array((top - saved[inside], (row[inside], column[inside])), shape=(n, k))
    whole = hstack((W, diags_array(np.full(n, top))), format="csr")
    i, j = min_weight_full_bipartite_matching(whole)
    i, j = i[j < k], j[j < k]
    x[np.searchsorted(row * (k + 1) + column, i * (k + 1) + j)] = 1.0
    x[alone] = np.isin(np.arange(n), i, invert=True)
    x[spare] = np.isin(np.arange(k), j, invert=True)
    x[-1] = len(i)
    return x * p[0], *shortest_path_prices(cost, row, column, x > 0, len(p), len(q), ROUNDING * top)


def linear_assignment(C: Array) -> tuple[Array, Array]:
    """The rows, ascending, and columns of the assignment of least cost,
    min(N, K) entries of C (N, K)."""
    # Imported late: it takes a third of the import of this package.
    from scipy.optimize import linear_sum_assignment

    row, column = linear_sum_assignment(C)
    return np.asarray(row), np.asarray(column)


def solve_assignment(C: Array, p: Array, dual: Array) -> Vertex:
    """The best permutation for costs C (N, N) between equal masses p (N,),
    from column potentials (N,); good ones make it fast."""
    reduced = reduce_costs(C, dual)
    _, match = linear_assignment(reduced)
    every = rows = np.arange(len(C))
    paid = reduced[rows, match]
    potential, negligible = np.zeros_like(dual), ROUNDING * float(reduced.max())
    while len(rows):
        ahead = potential[match[rows]] - paid[rows]
        reached = (reduced[rows] + ahead[:, None]).min(0)
        lower = reached < potential - negligible
        potential[lower] = reached[lower]
        rows = np.flatnonzero(lower[match])
    b = dual + potential
    plan = csr_array((p.copy(), match, np.arange(len(p) + 1)), shape=C.shape)
    return Vertex(plan, (C[every, match] - b[match], b))

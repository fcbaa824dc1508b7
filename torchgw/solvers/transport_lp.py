"""The linear transport problem min <C, S> over the plans S with marginals p and q, at a vertex of their polytope.

HiGHS solves it on the few entries whose cost, reduced by dual potentials, is small. Entries that price out negative are
added until none does, so the optimum is that of the full problem; after good potentials the first round almost always
suffices. A conditional-gradient step needs a good direction and not the best, so pricing can be left out. Its program
has the masses of the step before, so the vertex found there is one of its own, and the primal simplex goes on from it:
a few exchanges where the first step takes thousands. Where all masses are equal, vertices are permutations, and SciPy's
assignment is exact; its potentials b are shortest paths,

    b_j = min over i of b_s(i) + C_ij - C_i,s(i),    s the permutation,

which has no negative cycle because s is optimal.

Sources: Q. Huangfu, J. Hall, "Parallelizing the dual revised simplex method", 2018; R. Jonker, A. Volgenant, "A
shortest augmenting path algorithm for dense and sparse linear assignment problems", 1987.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csc_array, csr_array
from torch import Tensor

from torchgw.kernels.blocks import blocks
from torchgw.objective.bounds import monotone_coupling
from torchgw.types import Array

logger = logging.getLogger("torchgw")

CANDIDATES = 6
BLUR, SCALINGS = 0.03, 30  # of the mean cost that is left by the potentials
MOST_TIED = 3
COST_SCALE = 100.0
PRICING_TOLERANCE, PRICING_ROUNDS = 1e-6, 20
FEASIBLE = 1e-10  # the least that HiGHS takes
ROUNDING = 1e-14
BLOCK_ROWS = 64
SAMPLED_ROWS = 32  # whose entries say which are small
BINDINGS = ("highspy._core", "scipy.optimize._highspy._core")
DEVEX, COLUMNWISE, MINIMISE, PRIMAL = 1, 1, 1, 4


class Vertex(NamedTuple):
    """The solution of a linear transport problem.

    plan : (N, K) in SciPy's CSR format, fewer than N + K entries and as many of the size of rounding; its sums
        are the masses.
    dual : column potentials (K,) in units of cost, optimal among the entries that were priced.
    basis : flat positions of the entries in the basis, and below zero, -1 - i, the masses i of p and q whose own
        variable is in it; N + K in all. None between equal masses, and where HiGHS does not tell.
    """

    plan: csr_array
    dual: Array
    basis: Array | None = None


class ProgramSolution(NamedTuple):
    """The solution of a linear program in standard form.

    x : (m,).
    dual : potentials of the masses (n + k,).
    basis : positions (n + k,) in x, and below zero, -1 - i, the masses i whose own variable is in the basis.
    """

    x: Array
    dual: Array
    basis: Array | None


class TransportError(ArithmeticError):
    """A linear transport problem was not solved to its optimum."""


def transport(
    C: Array, p: Array, q: Array, duals: Sequence[Array], priced: bool = True, basis: Array | None = None
) -> Vertex:
    """A vertex of little cost C (N, K), which is not written to: the optimum, or without ``priced`` that among the
    candidates alone.

    Parameters
    ----------
    p, q : positive masses (N,), (K,) of equal sums.
    duals : one or more column potentials (K,); entries that are cheap under any of them are candidates.
    basis : of a vertex for other costs, to go on from.

    Raises
    ------
    TransportError
        When HiGHS gives up, or pricing does not end.
    """
    if equal_masses(p, q):
        match, dual = solve_assignment(C, duals[0])
        return Vertex(csr_array((p.copy(), match, np.arange(len(p) + 1)), shape=C.shape), dual)
    reduced = _reduce_costs(C, duals[0])
    (n, k), mask = C.shape, np.zeros(C.shape, dtype=bool)
    if basis is None:
        mask.reshape(-1)[staircase(p, q)] = True
        _mark_smallest(mask, reduced)
    else:
        mask.reshape(-1)[basis[basis >= 0]] = True
        _mark_small(mask, reduced)
    for dual in duals[1:]:
        (_mark_smallest if basis is None else _mark_small)(mask, _reduce_costs(C, dual))
    _mark_heavy_rows(mask, reduced, p)
    _mark_heavy_rows(mask.T, reduced.T, q)
    # HiGHS has absolute tolerances: masses near one, and reduced costs around a hundred.
    scale = max(float(reduced.mean()), np.finfo(float).tiny) / COST_SCALE
    reduced /= scale
    unit, masses = p.mean(), np.concatenate((p, q)) / p.mean()
    for _ in range(PRICING_ROUNDS):
        where = np.flatnonzero(mask)
        row, column = where // k, where % k
        known = None if basis is None else np.where(basis >= 0, np.searchsorted(where, basis), basis)
        x, potential, found = linear_program(reduced[row, column], row, column + n, masses, known)
        basis = None if found is None else np.where(found >= 0, where[found.clip(min=0)], found)
        missing = np.zeros_like(mask)
        if priced:
            price = reduced - potential[:n, None] - potential[n:]
            price[mask] = 0.0
            _mark_smallest(missing, price)
            missing &= price < -PRICING_TOLERANCE
        if not missing.any():
            break
        mask |= missing
    else:
        raise TransportError(f"the linear transport problem ({n} x {k}) was not priced out in {PRICING_ROUNDS} rounds")
    plan = repair_marginals(row, column, x.clip(min=0.0) * unit, p, q)
    return Vertex(plan, duals[0] + scale * potential[n:], basis)


def estimate_duals(C: Tensor, p: Array, q: Array, dual: Array) -> Array:
    """Column potentials (K,) of a plan with a little entropy, for costs C (N, K), after scalings from ``dual`` (K,).
    Where that is far from the potentials of the linear problem, as zero is, a first vertex is found several times as
    fast from these; of uniform random costs it is not."""
    reduced = torch.from_numpy(_reduce_costs(C.numpy(), dual))
    columns = reduced.amin(0)
    reduced -= columns
    a, b = (torch.from_numpy(side).to(torch.float32) for side in (p / p.sum(), q / q.sum()))
    epsilon = BLUR * max(float(a @ (reduced.float() @ b)), torch.finfo(torch.float32).tiny)
    kernel, tiny = reduced.div_(-epsilon).float().exp_(), torch.finfo(torch.float32).tiny
    v = torch.ones_like(b)
    for _ in range(SCALINGS):
        u = a / (kernel @ v).clamp_min_(tiny)
        v = b / (u @ kernel).clamp_min_(tiny)
    found: Array = (columns + epsilon * v.log().nan_to_num_(0.0, 0.0, 0.0)).numpy() + dual
    return found


def repair_marginals(row: Array, column: Array, mass: Array, p: Array, q: Array) -> csr_array:
    """The plan (N, K) of entries whose sums are p and q up to rounding: what is above is scaled down, and what is
    missing put along a staircase."""
    (n, k), present = (len(p), len(q)), mass > 0
    row, column, mass = row[present], column[present], mass[present]
    mass *= (p / np.maximum(np.bincount(row, mass, n), p))[row]
    mass *= (q / np.maximum(np.bincount(column, mass, k), q))[column]
    left = (p - np.bincount(row, mass, n)).clip(min=0.0), (q - np.bincount(column, mass, k)).clip(min=0.0)
    if min(side.sum() for side in left) > 0:
        i, j, share = monotone_coupling(*left)
        i, j, share = (part[share > 0] for part in (i, j, share))
        row, column = np.concatenate((row, i)), np.concatenate((column, j))
        mass = np.concatenate((mass, share * left[0].sum()))
    return csr_array((mass, (row, column)), shape=(n, k))


def equal_masses(p: Array, q: Array) -> bool:
    """Whether the vertices between masses (N,) and (K,) are permutations."""
    return len(p) == len(q) and bool(np.ptp(p) == 0 == np.ptp(q))


def linear_program(
    cost: Array, row: Array, column: Array, masses: Array, basis: Array | None = None
) -> ProgramSolution:
    """x (m,) >= 0 of least cost (m,) whose sums over equal ``row`` and over equal ``column`` are ``masses`` (n + k,),
    found from a ``basis`` of such sums where there is one. ``column`` counts on from the rows: n <= column < n + k."""
    ends, core = np.stack((row, column), 1).ravel().astype(np.int32), _load_bindings()
    return (
        _solve_by_linprog(cost, ends, masses) if core is None else _solve_by_bindings(core, cost, ends, masses, basis)
    )


def _solve_by_linprog(cost: Array, ends: Array, masses: Array) -> ProgramSolution:
    from scipy.optimize import linprog  # late: it takes a third of the import of this package

    count = len(cost)
    sums = csc_array((np.ones(2 * count), ends, np.arange(0, 2 * count + 1, 2)), shape=(len(masses), count))
    # Measured: presolve can take a minute on 4000 rows, the simplex 0.1 s, or 1.14 times that by steepest edges.
    options = {
        "presolve": False,
        "simplex_dual_edge_weight_strategy": "devex",
        "primal_feasibility_tolerance": FEASIBLE,
    }
    found = linprog(cost, A_eq=sums, b_eq=masses, method="highs-ds", options=options)
    if found.status != 0:
        raise TransportError(f"the linear transport problem ({len(masses)} masses) was not solved: {found.message}")
    return ProgramSolution(found.x, found.eqlin.marginals, None)


def _solve_by_bindings(
    core: Any, cost: Array, ends: Array, masses: Array, basis: Array | None = None
) -> ProgramSolution:
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
    if basis is not None and highs.setBasis(_make_basis(core, count, len(masses), basis)) != core.HighsStatus.kOk:
        return _solve_by_bindings(core, cost, ends, masses)
    highs.run()
    status = highs.getModelStatus()
    if basis is not None and status != core.HighsModelStatus.kOptimal:
        return _solve_by_bindings(core, cost, ends, masses)
    if status != core.HighsModelStatus.kOptimal:
        text = highs.modelStatusToString(status)
        raise TransportError(f"the linear transport problem ({len(masses)} masses) was not solved: {text}")
    solution = highs.getSolution()
    return ProgramSolution(
        np.array(solution.col_value), np.array(solution.row_dual), np.array(highs.getBasicVariables()[1])
    )


def _make_basis(core: Any, count: int, masses: int, positions: Array) -> Any:
    """HiGHS's record of a basis of so many variables and sums."""
    status, basis = core.HighsBasisStatus, core.HighsBasis()
    columns, rows = [status.kLower] * count, [status.kLower] * masses
    for position in positions.tolist():
        if position >= 0:
            columns[position] = status.kBasic
        else:
            rows[-1 - position] = status.kBasic
    basis.col_status, basis.row_status, basis.valid = columns, rows, True
    return basis


@functools.cache
def _load_bindings() -> Any:
    """HiGHS's own bindings, of highspy or in SciPy's copy, if they solve a program of two rows and two columns.

    The copy is not part of SciPy's interface, but `linprog` spends as long around HiGHS as HiGHS itself: measured, all
    pairs of many spaces take 1.3 to 2.3 times as long by it.
    """
    ends, masses = np.array([0, 2, 0, 3, 1, 2, 1, 3], dtype=np.int32), np.array([1.0, 3.0, 2.0, 2.0])
    for name in BINDINGS:
        try:
            core = import_module(name)
            x, price, basis = _solve_by_bindings(core, np.array([2.0, 1.0, 1.0, 3.0]), ends, masses)
            x, price, basis = _solve_by_bindings(core, np.array([1.0, 3.0, 2.0, 1.0]), ends, masses, basis)
        except Exception as error:  # whatever a private module does in another version
            logger.debug("HiGHS through %s: %r", name, error)
            continue
        if np.allclose(x, [1, 0, 1, 2]) and np.allclose(price[[0, 1, 1]] + price[[2, 2, 3]], [1, 2, 1]):
            return core
    return None


def solve_assignment(C: Array, dual: Array, out: Array | None = None) -> tuple[Array, Array]:
    """The best permutation (N,) for costs C (N, N), and its optimal column potentials (N,), from others; good ones make
    it fast. What is written to is the memory ``out`` (N, N), which may be that of C."""
    from scipy.optimize import linear_sum_assignment

    reduced = _reduce_costs(C, dual, out)
    match = linear_sum_assignment(reduced)[1]
    rows = np.arange(len(C))
    paid = reduced[rows, match]
    potential, negligible = np.zeros_like(dual), ROUNDING * float(reduced.max())
    while len(rows):
        reached = np.full_like(potential, np.inf)
        for part in np.split(rows, range(BLOCK_ROWS, len(rows), BLOCK_ROWS)):
            block = reduced[part]
            block += (potential[match[part]] - paid[part])[:, None]
            np.minimum(reached, block.min(0), out=reached)
        lower = reached < potential - negligible
        potential[lower] = reached[lower]
        rows = np.flatnonzero(lower[match])
    return match, dual + potential


def _reduce_costs(C: Array, dual: Array, out: Array | None = None) -> Array:
    """C_ij - a_i - b_j (N, K) with the c-transform a of b = ``dual`` (K,): of NumPy's arrays, and from the one C - b
    that is needed anyway, where `torchgw.objective.bounds.c_transform` makes one and drops it."""
    room = None if out is None else torch.from_numpy(out)
    reduced = torch.sub(torch.from_numpy(C), torch.from_numpy(dual), out=room)
    for where in blocks(len(C), BLOCK_ROWS):
        reduced[where] -= reduced[where].amin(1, keepdim=True)
    return reduced.numpy()


def _mark_smallest(mask: Array, reduced: Array) -> None:
    """Mark the smallest entries of each row and column; of equal ones all, unless they are many."""
    n, k = reduced.shape
    last = min(CANDIDATES, k) - 1, min(CANDIDATES, n) - 1
    in_row = np.partition(reduced, last[0], axis=1)[:, last[0]]
    in_column = np.partition(reduced.T.copy(), last[1], axis=1)[:, last[1]]
    small = (reduced <= in_row[:, None]) | (reduced <= in_column)
    if np.count_nonzero(small) > MOST_TIED * CANDIDATES * (n + k):
        small[:] = False
        np.put_along_axis(small, np.argpartition(reduced, last[0], axis=1)[:, :CANDIDATES], True, 1)
        np.put_along_axis(small, np.argpartition(reduced, last[1], axis=0)[:CANDIDATES], True, 0)
    mask |= small


def _mark_small(mask: Array, reduced: Array) -> None:
    """Mark about as many entries, the smallest of all by what some rows tell: a pass where `_mark_smallest` sorts. As
    it does where too many are as small."""
    n, k = reduced.shape
    sample = reduced[:: max(n // SAMPLED_ROWS, 1)].ravel()
    last = min(len(sample) * CANDIDATES * (n + k) // (n * k), len(sample) - 1)
    small = reduced <= np.partition(sample, last)[last]
    if np.count_nonzero(small) > MOST_TIED * CANDIDATES * (n + k):
        _mark_smallest(mask, reduced)
    else:
        mask |= small


def _mark_heavy_rows(mask: Array, reduced: Array, p: Array) -> None:
    """Mark the smallest entries of rows with much mass (N,), as many as their mass asks for: in the first steps of a
    partial problem the point that takes what is left had no room otherwise, and no vertex bettered the plan."""
    most = CANDIDATES * p / p.mean()
    for row in np.flatnonzero(p > CANDIDATES * p.mean()):
        last = min(int(most[row]), reduced.shape[1]) - 1
        mask[row, np.argpartition(reduced[row], last)[: last + 1]] = True


def staircase(p: Array, q: Array) -> Array:
    """Flat positions of the north-west corner plan, which is feasible, and their neighbours."""
    row, column, _ = monotone_coupling(p, q)
    # Where both sums end together up to rounding, both corners are kept.
    steps = np.concatenate((row * len(q) + column, row * len(q) + (column + 1).clip(max=len(q) - 1)))
    return np.concatenate((steps, (row + 1).clip(max=len(p) - 1) * len(q) + column))

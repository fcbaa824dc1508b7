"""Linear transport on a given set of entries as a flow of minimum cost, by
OR-tools, and the prices that prove it.

OR-tools takes integers: masses become multiples of the largest unit that
all are multiples of, where few are different, else of 2^-50 of their sum,
and costs of the least step that its arithmetic holds. Small numbers take a
fraction of the time. What is left of the masses is for the caller to put
right. The prices are shortest paths of whole numbers,

    b_j = min over entries of a_i + C_ij,    a_i = min over entries with flow of b_j - C_ij,    prices (-a, b),

which end because no cycle of the flow's residual graph costs less than
nothing; so entries with flow cost their prices, and no entry less, but for
half a step. Between many points the last paths are thousands of entries
long. Prices that have not settled prove less than the potentials by which
costs were reduced, and lead to worse entries, so there are none.

Sources: A. Goldberg, "An efficient implementation of a scaling minimum-cost
flow algorithm", 1997, as OR-tools has it.
"""

from __future__ import annotations

import math
from fractions import Fraction
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from torchgw.types import Array

UNITS = 2**50  # of the whole, where masses have none in common
# Masses that differ, and parts of the whole, among which common ones are
# sought.
FEW_SHARES, LARGEST_SHARE = 128, 2**22
# Of numbers, tried in turn; of steps up to the largest cost.
LARGEST, STEPS = (2**56, 2**48, 2**40), 2**45
VISITS = 2**26  # of entries by paths that grow shorter
# Share of the mass that rounding to integers may leave without a way.
LOST = 1e-9


class TransportError(ArithmeticError):
    """A linear transport problem was not solved to its optimum."""


def has_ortools() -> bool:
    """Whether OR-tools is installed."""
    return find_spec("ortools") is not None


def minimum_cost_flow(cost: Array, row: Array, column: Array, p: Array, q: Array) -> tuple[Array, Array, Array]:
    """The flow of least cost (m,) >= 0 from rows of masses p (N,) to
    columns of masses q (K,) through the entries (``row``, ``column``),
    which are sorted by row: how much flows through each entry (m,), and its
    prices (N,), (K,), or zeros where they have not settled.

    Raises
    ------
    TransportError
        Where there is none.
    """
    (n, k), (supply, demand, unit) = (len(p), len(q)), _to_integers(p, q)
    supplies, most = np.concatenate((supply, -demand)), np.minimum(supply[row], demand[column])
    for largest in LARGEST:
        flows: Any = import_module("ortools.graph.python.min_cost_flow").SimpleMinCostFlow()
        step = max(float(cost.max()), np.finfo(float).tiny) / min(largest // (n + k + 1), STEPS)
        whole = np.rint(cost / step).astype(np.int64)
        arcs = flows.add_arcs_with_capacity_and_unit_cost(
            row.astype(np.int32), (column + n).astype(np.int32), most, whole
        )
        flows.set_nodes_supplies(np.arange(n + k, dtype=np.int32), supplies)
        status = flows.solve()
        if status != flows.BAD_COST_RANGE:
            break
    # Rounding to integers may have left a little mass without a way.
    if status == flows.INFEASIBLE:
        status = flows.solve_max_flow_with_min_cost()
    x = np.asarray(flows.flows(arcs), dtype=float) * unit if status == flows.OPTIMAL else np.zeros(len(cost))
    if x.sum() < (1 - LOST) * p.sum():
        shape = f"{n} x {k}, {len(cost)} entries"
        raise TransportError(f"the linear transport problem ({shape}) was not solved: {status.name}")
    a, b = shortest_path_prices(whole, row, column, x > 0, n, k, visits=VISITS)
    return x, step * a, step * b


def _to_integers(p: Array, q: Array) -> tuple[Array, Array, float]:
    """Masses (N,), (K,) as integers of equal sums, and their unit."""
    units = _common_units(p, q)
    supply, demand = (np.rint(side * (units / side.sum())).astype(np.int64).clip(min=1) for side in (p, q))
    demand[demand.argmax()] += supply.sum() - demand.sum()
    return supply, demand, float(p.sum()) / units


def _common_units(p: Array, q: Array) -> int:
    """The least number of equal parts of the whole that all masses are
    multiples of, as those of points that are alike and of cells of them;
    `UNITS` where these are many."""
    whole = [np.rint(side * (UNITS / side.sum())) for side in (p, q)]
    shares = np.unique(np.concatenate(whole)) / UNITS
    if len(shares) > FEW_SHARES:
        return UNITS
    near = [Fraction(share).limit_denominator(LARGEST_SHARE) for share in shares.tolist()]
    units = math.lcm(*(each.denominator for each in near))
    off = np.abs(shares - np.array(near, dtype=float)).max()
    return units if units <= UNITS and off <= 1 / UNITS else UNITS


def shortest_path_prices(
    cost: Array,
    row: Array,
    column: Array,
    flowing: Array,
    n: int,
    k: int,
    negligible: float = 0,
    visits: float = math.inf,
) -> tuple[Array, Array]:
    """Prices (N,), (K,) by paths that grow shorter by more than is
    negligible until none does; zeros where that takes more ``visits`` of
    entries, which are sorted by row."""
    a, b, first = np.zeros(n, cost.dtype), np.zeros(k, cost.dtype), np.searchsorted(row, np.arange(n + 1))
    rows, back = np.arange(n), np.flatnonzero(flowing)
    while len(rows):
        count = first[rows + 1] - first[rows]
        entry = np.arange(count.sum()) + np.repeat(first[rows] - np.cumsum(count) + count, count)
        visits -= len(entry) + len(back)
        if visits < 0:
            return np.zeros_like(a), np.zeros_like(b)
        nearer, closer = b.copy(), a.copy()
        np.minimum.at(nearer, column[entry], a[row[entry]] + cost[entry])
        nearer = np.where(nearer < b - negligible, nearer, b)
        np.minimum.at(closer, row[back], nearer[column[back]] - cost[back])
        rows = np.flatnonzero(closer < a - negligible)
        a, b = closer, nearer
    return -a, b

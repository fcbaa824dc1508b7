"""The linear problem on sparse matrices: a plan is worth what it has on the entries of W, and mass may stay away.

    S = argmax <W, S> over S >= 0 with S 1 <= p, S^T 1 <= q

Where all masses are equal it is an assignment in which rows may remain alone, solved exactly. Elsewhere HiGHS solves it
on the few entries of each row and column that are largest under the last dual potentials, and on those that price out.
With potentials f, g >= 0 and f_i + g_j >= W_ij on all entries, no plan is worth more than p . f + q . g, so the gap is
known over all N K pairs.

Sources: those of `torchgw.solvers.transport_lp`; J. Altschuler, J. Weed, P. Rigollet, "Near-linear time approximation
algorithms for optimal transport via Sinkhorn iteration", 2017 (rounding).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array, diags_array, hstack

from torchgw.linalg.sparse_entries import entry_rows, inner, largest_per_row, make_csr, select_entries
from torchgw.solvers.transport_lp import linear_program
from torchgw.types import Array

CANDIDATES = 4
PRICING_ROUNDS = 2
PRICING_TOLERANCE = 1e-9  # of the largest entry
VALUE_SCALE = 100.0  # HiGHS has absolute tolerances


class BestPlan(NamedTuple):
    """The plan of a linear problem.

    plan : (N, K), CSR.
    bound : no plan is worth more.
    price : dual potentials (K,) of the columns; zeros where none were found.
    """

    plan: Any
    bound: float
    price: Array


def find_best_permutation(W: Any, p: Array) -> BestPlan:
    """The best permutation (N, N) of equal masses p (N,), without the pairs that are worth nothing."""
    from scipy.sparse.csgraph import min_weight_full_bipartite_matching  # late: it takes long to import

    W = select_entries(W, W.data > 0)
    n, top = len(p), 2 * float(W.data.max(initial=1e-300))
    # Each row may have a column of its own that is worth nothing; costs of zero would be no edges.
    alone = diags_array(np.full(n, top))
    cost = hstack((csr_array((top - W.data, W.indices, W.indptr), shape=W.shape), alone), format="csr")
    row, column = min_weight_full_bipartite_matching(cost)
    row, column = row[column < n], column[column < n]
    plan = make_csr(row, column, p[row], W.shape)
    return BestPlan(plan, inner(W, plan), np.zeros(n))


def find_best_plan(W: Any, T: Any, p: Array, q: Array, price: Array) -> BestPlan:
    """A plan with marginals of at most p, q that is best on the entries that were priced.

    ``price`` (K,) are column potentials to choose entries by; those of the plan T are among them.
    """
    (n, k), W = W.shape, select_entries(W, W.data > 0)
    row, top = entry_rows(W), float(W.data.max(initial=1e-300))
    unit, scale = float(p.mean()), top / VALUE_SCALE
    T = T.multiply(W).tocsr()
    rent = row_potentials(W, price)
    chosen = (
        _entry_pattern(T)
        + _entry_pattern(largest_per_row(W, CANDIDATES, price))
        + _entry_pattern(largest_per_row(W.T.tocsr(), CANDIDATES, rent)).T
    )
    bound, best, found = math.inf, T, price
    for _ in range(PRICING_ROUNDS):
        entries = W.multiply(_entry_pattern(chosen.tocsr())).tocsr()
        i, j, value = entry_rows(entries), entries.indices, entries.data
        # A row and a column more take what stays away.
        rows = np.concatenate((i, np.arange(n), np.full(k + 1, n)))
        columns = np.concatenate((j, np.full(n, k), np.arange(k + 1)))
        cost = np.concatenate((-value / scale, np.zeros(n + k + 1)))
        masses = np.concatenate((p, [q.sum()], q, [p.sum()])) / unit
        x, dual, _ = linear_program(cost, rows, columns + n + 1, masses)
        best = make_csr(i, j, x[: len(i)].clip(min=0.0) * unit, W.shape)
        f, g = (-scale * (side + other) for side, other in ((dual[:n], dual[-1]), (dual[n + 1 : -1], dual[n])))
        g = g.clip(min=0.0)
        reached = dual_bound(W, g, p, q)
        if reached < bound:
            bound, found = reached, g
        excess = W.data - f[row] - g[W.indices]
        violated = excess > PRICING_TOLERANCE * top
        if not violated.any():
            break
        priced = csr_array((excess, W.indices, W.indptr), shape=W.shape)
        chosen = chosen + _entry_pattern(largest_per_row(select_entries(priced, violated), CANDIDATES))
    return BestPlan(best, bound, found)


def row_potentials(W: Any, price: Array) -> Array:
    """The least f (N,) >= 0 with f_i + price_j >= W_ij on all entries."""
    found = np.zeros(W.shape[0])
    np.maximum.at(found, entry_rows(W), W.data - price[W.indices])
    return found


def dual_bound(W: Any, price: Array, p: Array, q: Array) -> float:
    """What no plan is worth more than, by potentials of the columns ``price`` (K,) >= 0."""
    return float(p @ row_potentials(W, price) + q @ price)


def _entry_pattern(W: Any) -> Any:
    """Ones at the entries."""
    return csr_array((np.ones(W.nnz), W.indices, W.indptr), shape=W.shape)

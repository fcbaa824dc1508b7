"""A vertex of the transport polytope that is optimal, or nearly so, for a linear cost.

`torchgw.solvers.frank_wolfe.transport` prices its solution against all entries. Here a vertex among the few entries of
smallest reduced cost will do, since a conditional-gradient step needs a good direction and not the best, and its gap is
bounded from dual potentials anyway. Where all masses are equal, vertices are permutations, and SciPy's assignment is
exact.

Source: R. Jonker, A. Volgenant, "A shortest augmenting path algorithm for dense and sparse linear assignment
problems", 1987.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from torchgw.pairwise.highs import transport_program
from torchgw.solvers.frank_wolfe import TransportError, staircase
from torchgw.types import Array

CANDIDATES = 6
COST_SCALE = 100.0
PRICING_TOLERANCE, PRICING_ROUNDS = 1e-6, 20
MOST_TIED = 3


class Vertex(NamedTuple):
    """A plan (N, K), column potentials (K,), and whether it is the best of all and a permutation."""

    plan: Array
    dual: Tensor
    exact: bool
    permuted: bool = False


def vertex(C: Array, p: Array, q: Array, duals: Sequence[Array], every: bool) -> Vertex:
    """A plan with marginals p (N,), q (K,) and little cost C (N, K).

    ``duals`` are one or more column potentials (K,) to begin with, the best first; entries that are cheap under any of
    them are candidates. With ``every`` all entries are priced.

    Raises
    ------
    torchgw.solvers.frank_wolfe.TransportError
        When HiGHS gives up, or pricing does not end.
    """
    if len(p) == len(q) and np.ptp(p) == 0 == np.ptp(q):
        plan = np.zeros_like(C)
        plan[linear_sum_assignment(C)] = p[0]
        return Vertex(plan, torch.from_numpy(duals[0]), True, True)
    n = len(p)
    mask = np.zeros(C.shape, dtype=bool)
    mask.reshape(-1)[staircase(p, q)] = True
    for dual in reversed(duals):
        reduced = C - dual
        reduced -= reduced.min(1)[:, None]
        _mark_smallest(mask, reduced)
    scale = max(float(reduced.mean()), np.finfo(float).tiny) / COST_SCALE
    reduced /= scale
    masses = np.concatenate((p, q)) / p.mean()  # HiGHS has absolute tolerances: masses near one
    for _ in range(PRICING_ROUNDS):
        row, column = np.nonzero(mask)
        x, potentials = transport_program(reduced[row, column], row, column + n, masses)
        missing = np.zeros_like(mask)
        if every:
            price = reduced - potentials[:n, None] - potentials[n:]
            price[mask] = 0.0
            _mark_smallest(missing, price)
            missing &= price < -PRICING_TOLERANCE
        if not missing.any():
            break
        mask |= missing
    else:
        raise TransportError(f"the transport problem was not priced out in {PRICING_ROUNDS} rounds")
    plan = np.zeros_like(C)
    plan[row, column] = x.clip(min=0.0) * p.mean()
    return Vertex(plan, torch.from_numpy(duals[0] + scale * potentials[n:]), every)


def _mark_smallest(mask: Array, reduced: Array) -> None:
    """Mark the smallest entries of each row and column; of equal ones all, unless they are many."""
    n, k = reduced.shape
    in_row = np.partition(reduced, min(CANDIDATES, k) - 1, axis=1)[:, min(CANDIDATES, k) - 1]
    in_column = np.partition(reduced.T.copy(), min(CANDIDATES, n) - 1, axis=1)[:, min(CANDIDATES, n) - 1]
    small = (reduced <= in_row[:, None]) | (reduced <= in_column)
    if np.count_nonzero(small) > MOST_TIED * CANDIDATES * (n + k):
        rows = np.argpartition(reduced, min(CANDIDATES, k) - 1, axis=1)[:, :CANDIDATES]
        columns = np.argpartition(reduced, min(CANDIDATES, n) - 1, axis=0)[:CANDIDATES]
        small[:] = False
        np.put_along_axis(small, rows, True, 1)
        np.put_along_axis(small, columns, True, 0)
    mask |= small

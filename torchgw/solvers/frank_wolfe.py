"""The unregularised optimum: epsilon is annealed down, then conditional gradients with exact transport end at a vertex.

Each conditional-gradient step solves the linear problem min <C(T), S> exactly and searches the segment from T to S
exactly, the objective being quadratic on it. The linear problem is solved by HiGHS on the few entries whose cost,
reduced by dual potentials, is small; entries that price out negative are added until none does, so the optimum is that
of the full problem. After Sinkhorn's potentials the first round almost always suffices.

Sources: T. Vayer, L. Chapel, R. Flamary, R. Tavenard, N. Courty, "Optimal transport for structured data with
application on graphs", 2019 (conditional gradient); Q. Huangfu, J. Hall, "Parallelizing the dual revised simplex
method", 2018.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling
from torchgw.diagnostics.status import History, Status
from torchgw.kernels import LN2
from torchgw.objective.exact import ExactGradient
from torchgw.persist.watch import Watch
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.sinkhorn.scaling import feasible
from torchgw.solvers.sampled import record
from torchgw.types import Array

logger = logging.getLogger("torchgw")

CANDIDATES = 10
PRICING_TOLERANCE = 1e-6
COST_SCALE = 100.0
PRICING_ROUNDS = 20
STATIONARY = 1e-6
STALLED = 1e-7


@dataclass(frozen=True)
class Sharp:
    """A feasible plan (N, K), column potentials of its linearised problem (K,), and how the search for it ended."""

    plan: Tensor
    dual: Tensor
    value: float
    gap: float
    status: Status
    n_iter: int


class TransportError(ArithmeticError):
    """A linear transport problem was not solved to its optimum."""


def transport(C: Array, p: Array, q: Array, dual: Array) -> tuple[Array, Array]:
    """An optimal plan (N, K) of the linear problem with cost C, and optimal column potentials (K,).

    ``dual`` (K,) are potentials to begin with. Masses positive, of equal sums.

    Raises
    ------
    TransportError
        When HiGHS gives up, or pricing does not end.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_matrix, vstack

    n, k = C.shape
    # HiGHS has absolute tolerances: masses near one, and reduced costs around a hundred.
    unit, masses = p.mean(), np.concatenate((p, q)) / p.mean()
    reduced = C - dual
    lowest = reduced.min(1)
    reduced -= lowest[:, None]
    scale = max(float(reduced.mean()), np.finfo(float).tiny) / COST_SCALE
    reduced /= scale
    keys = np.unique(np.concatenate((_smallest(reduced), staircase(p, q))))
    for _ in range(PRICING_ROUNDS):
        row, column = np.divmod(keys, k)
        entries, every = np.ones(len(keys)), np.arange(len(keys))
        sums = vstack(
            (
                coo_matrix((entries, (row, every)), (n, len(keys))),
                coo_matrix((entries, (column, every)), (k, len(keys))),
            )
        )
        found = linprog(
            reduced[row, column],
            A_eq=sums.tocsc(),
            b_eq=masses,
            bounds=(0, None),
            method="highs-ds",
            options={"presolve": False},  # measured: presolve can take a minute on 4000 rows, the simplex 0.1 s
        )
        if found.status != 0:
            raise TransportError(f"the linear transport problem ({n} x {k}) was not solved: {found.message}")
        potential = found.eqlin.marginals
        price = (reduced - potential[:n, None] - potential[n:]).ravel()
        missing = np.setdiff1d(np.flatnonzero(price < -PRICING_TOLERANCE), keys, assume_unique=True)
        if len(missing) == 0:
            break
        missing = missing[np.argsort(price[missing])[: CANDIDATES * (n + k)]]
        keys = np.union1d(keys, missing)
    else:
        raise TransportError(f"the linear transport problem ({n} x {k}) was not priced out in {PRICING_ROUNDS} rounds")
    plan = np.zeros((n, k))
    plan[row, column] = found.x.clip(min=0.0) * unit
    return plan, dual + scale * potential[n:]


def _smallest(reduced: Array) -> Array:
    """Flat positions of the smallest entries of each row and each column."""
    n, k = reduced.shape
    in_row = np.argpartition(reduced, min(CANDIDATES, k) - 1, axis=1)[:, :CANDIDATES]
    in_column = np.argpartition(reduced, min(CANDIDATES, n) - 1, axis=0)[:CANDIDATES]
    return np.concatenate(((np.arange(n)[:, None] * k + in_row).ravel(), (in_column * k + np.arange(k)).ravel()))


def staircase(p: Array, q: Array) -> Array:
    """Flat positions of the north-west corner plan, which is feasible."""
    ends = np.union1d(np.cumsum(p), np.cumsum(q))
    middle = (np.concatenate(([0.0], ends[:-1])) + ends) / 2
    row = np.searchsorted(np.cumsum(p), middle).clip(max=len(p) - 1)
    column = np.searchsorted(np.cumsum(q), middle).clip(max=len(q) - 1)
    # Where both sums end together up to rounding, both corners are kept.
    steps = np.concatenate((row * len(q) + column, row * len(q) + (column + 1).clip(max=len(q) - 1)))
    return np.concatenate((steps, (row + 1).clip(max=len(p) - 1) * len(q) + column))


def conditional_gradient(
    gradient: ExactGradient,
    plan: Tensor,
    p: Tensor,
    q: Tensor,
    dual: Tensor,
    history: History,
    watch: Watch,
    max_iter: int = 100,
    least: float = float(np.finfo(float).eps),
) -> Sharp:
    """From a feasible plan, in float64, to a stationary one.

    ``dual`` (K,) are column potentials of the linearised problem, in units of cost; a value up to ``least`` is zero.
    O(N K) memory; one linear program and one gradient for each step.
    """
    rows, columns = (torch.nonzero(side > 0)[:, 0] for side in (p, q))
    masses = [side[used].cpu().numpy() for side, used in ((p, rows), (q, columns))]
    potential = dual[columns].cpu().numpy()
    whole, most = slice(0, len(p)), len(history.iteration) + max_iter
    status, before = Status.MAX_ITER, watch.restored()
    if before is None:
        C = gradient(DenseCoupling(plan), p).rows(whole)
        value, gap, step = float((C * plan).sum()), float("inf"), 0
    else:
        plan, C, potential, value, gap, step, entries = before
        history.go_on_from(entries)
    began = time.perf_counter() - history.seconds
    while step < max_iter:
        if watch.pause((plan, C, potential, value, gap, step, history)):
            status = Status.CANCELLED
            break
        try:
            small, potential = transport(C[rows[:, None], columns].cpu().numpy(), masses[0], masses[1], potential)
        except TransportError as error:
            logger.warning("%s; the plan found so far is returned", error)
            status = Status.TRANSPORT
            break
        vertex = torch.zeros_like(plan)
        vertex[rows[:, None], columns] = torch.from_numpy(small).to(plan)
        direction = feasible(vertex, p, q) - plan
        slope = float((C * direction).sum())
        gap = max(-2 * slope, 0.0)
        record(history, watch, len(history.iteration) + 1, most, value, 0.0, 0.0, began)
        change = gradient(DenseCoupling(vertex), p).rows(whole) - C
        curvature = float((change * direction).sum())
        length = min(1.0, gap / (2 * curvature)) if curvature > 0 else 1.0
        fall = -2 * length * slope - length**2 * curvature
        # Where the linear problem has several optima, the value can fall towards another to second order alone.
        if max(gap, fall) <= STATIONARY * value or value <= least:
            status = Status.STATIONARY
            break
        last, step, value = value, step + 1, value - fall
        if last - value <= STALLED * abs(last):
            value, status = last, Status.SETTLED
            break
        plan, C = plan + length * direction, C + length * change
    dual = torch.zeros_like(q)
    dual[columns] = torch.from_numpy(potential).to(q)
    return Sharp(plan, dual, value, gap, status, step)


def column_dual(cost: FactoredCost, g: Tensor, q: Tensor, epsilon: float) -> Tensor:
    """Dual potentials (K,) in units of cost from base-2 potentials g of the uncentred score at ``epsilon``."""
    found = cost.b.to(q.dtype) + epsilon * LN2 * (g - q.log2())
    return torch.where(q > 0, found, 0.0)

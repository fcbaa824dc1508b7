"""The unregularised optimum: epsilon is annealed down, then conditional gradients with exact transport end at a vertex.

Each conditional-gradient step solves the linear problem min <C(T), S> exactly and searches the segment from T to S
exactly, the objective being quadratic on it.

Source: T. Vayer, L. Chapel, R. Flamary, R. Tavenard, N. Courty, "Optimal transport for structured data with application
on graphs", 2019.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling
from torchgw.couplings.rounding import feasible
from torchgw.diagnostics.status import History, Status
from torchgw.kernels import LN2
from torchgw.objective.exact import ExactGradient
from torchgw.persist.watch import Watch
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.solvers.sampled import record
from torchgw.solvers.transport_lp import TransportError, transport

logger = logging.getLogger("torchgw")

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
            small, potential, _ = transport(C[rows[:, None], columns].cpu().numpy(), masses[0], masses[1], [potential])
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

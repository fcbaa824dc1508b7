"""The linear transport problem between many points, at a vertex, for costs that are products and never stored.

    cheap entries under dual potentials -> the program on these alone -> its potentials priced on all pairs
    -> entries that price out are added, until none does

So memory is that of a few entries for each point, and what is priced is the optimum of the full problem, proven by its
potentials. HiGHS goes on from the basis of the vertex before, between few points; between many a flow of OR-tools takes
less, which knows no basis.

Sources: those of `torchgw.solvers.transport_lp` and `torchgw.solvers.minimum_cost_flow`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from torchgw.objective.bounds import monotone_coupling
from torchgw.solvers.minimum_cost_flow import has_ortools, minimum_cost_flow
from torchgw.solvers.pricing import Order, PricedCost, union
from torchgw.solvers.transport_lp import (
    COST_SCALE,
    PRICING_ROUNDS,
    PRICING_TOLERANCE,
    TransportError,
    linear_program,
    repair_marginals,
)
from torchgw.types import Array

ROUNDING = 1e-14  # of the largest cost
MOST_MASSES = 10_000  # of both sides, up to which HiGHS takes no longer than a flow (measured)


class FactoredVertex(NamedTuple):
    """The solution of a linear transport problem.

    plan : (N, K) in SciPy's CSR format, with the masses as its sums.
    duals : row and column potentials (N,), (K,) in units of cost, float64, optimal among the entries.
    entries : flat positions (m,) of those that it was sought among, ascending.
    basis : as in `torchgw.solvers.transport_lp.Vertex`; None where a flow found it.
    """

    plan: csr_array
    duals: tuple[Tensor, Tensor]
    entries: Array
    basis: Array | None


def uses_flows(n: int, k: int) -> bool:
    """Whether linear problems of so many points are flows."""
    return n + k > MOST_MASSES


def has_vertex_solver(n: int, k: int) -> bool:
    """Whether there is what solves the linear problems of so many points: HiGHS, or OR-tools where it is installed."""
    return not uses_flows(n, k) or has_ortools()


def factored_transport(
    cost: PricedCost, p: Tensor, q: Tensor, dual: Tensor, entries: Array, basis: Array | None = None
) -> FactoredVertex:
    """The vertex of least cost among ``entries`` alone, on which a plan with these masses lives.

    Parameters
    ----------
    p, q : positive masses (N,), (K,) of equal sums.
    dual : column potentials (K,) near those that are looked for.
    entries : flat positions (m,), ascending.
    basis : of a vertex for other costs, to go on from.

    Raises
    ------
    TransportError
        When the program is not solved.
    """
    (n, k), masses = (len(p), len(q)), (p.cpu().numpy(), q.cpu().numpy())
    row, column = entries // k, entries % k
    reduced = cost.costs_at(entries, dual)
    least = np.minimum.reduceat(reduced, np.searchsorted(row, np.arange(n)))
    reduced -= least[row]
    if uses_flows(n, k):
        x, lowered, raised = minimum_cost_flow(reduced, row, column, *masses)
        basis = None
    else:
        scale, unit = max(float(reduced.mean()), np.finfo(float).tiny) / COST_SCALE, masses[0].mean()
        known = None if basis is None else np.where(basis >= 0, np.searchsorted(entries, basis), basis)
        x, potential, found = linear_program(reduced / scale, row, column + n, np.concatenate(masses) / unit, known)
        x, lowered, raised = x.clip(min=0.0) * unit, scale * potential[:n], scale * potential[n:]
        basis = None if found is None else np.where(found >= 0, entries[found.clip(min=0)], found)
    duals = torch.from_numpy(least + lowered).to(dual), dual + torch.from_numpy(raised).to(dual)
    return FactoredVertex(repair_marginals(row, column, x, *masses), duals, entries, basis)


def price_out(cost: PricedCost, p: Tensor, q: Tensor, vertex: FactoredVertex) -> FactoredVertex:
    """The vertex of least cost among all entries, from that among a few; a pass over pairs a round.

    Raises
    ------
    TransportError
        When a program is not solved, or entries that cost less than potentials do not end.
    """
    for _ in range(PRICING_ROUNDS):
        row_dual, dual = vertex.duals
        paid, taken = cost.costs_at(vertex.entries, dual), row_dual.cpu().numpy()[vertex.entries // len(q)]
        rounding = ROUNDING * float(max(np.abs(paid).max(), dual.abs().max()))
        tolerance = max(PRICING_TOLERANCE / COST_SCALE * float((paid - taken).mean()), rounding)
        missing = np.setdiff1d(cost.entries_below(row_dual, dual, -tolerance), vertex.entries, assume_unique=True)
        if len(missing) == 0:
            return vertex
        entries = union(vertex.entries, missing)
        vertex = factored_transport(cost, p, q, dual, entries, vertex.basis)
    shape = f"{len(p)} x {len(q)}"
    raise TransportError(f"the linear transport problem ({shape}) was not priced out in {PRICING_ROUNDS} rounds")


def north_west_corner(order: Order, nearest: Tensor, p: Tensor, q: Tensor) -> Array:
    """Flat positions of a plan's entries: the north-west corner's, with rows in an order and columns in that of the
    rows ``nearest`` (K,) to them."""
    rank = torch.empty_like(order.rows)
    rank[order.rows] = torch.arange(len(rank), device=rank.device)
    rows, columns = order.rows.cpu().numpy(), torch.argsort(rank[nearest], stable=True).cpu().numpy()
    i, j, _ = monotone_coupling(p.cpu().numpy()[rows], q.cpu().numpy()[columns])
    return np.unique(rows[i] * len(q) + columns[j])

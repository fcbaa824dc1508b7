"""From an entropic plan to one with exact marginals and an exact value, which no plan nearby betters much.

The plan is rounded onto the marginals, its value computed in float64. Dual potentials bound its Frank-Wolfe gap: with
C = -2 D_X T D_Y and any potentials b, made consistent by a_i = min_j (C_ij - b_j), b_j = min_i (C_ij - a_i),

    value(T) - value(S) <= gap to first order,   gap = 2 (<C, T> - p . a - q . b).

Entropic potentials mostly show at once, for a whole batch of pairs, that the gap is small. Where they do not,
conditional-gradient steps follow, each with a transport problem (an assignment where all masses are equal) and an exact
search on the segment.

Sources: S. Lacoste-Julien, "Convergence rate of Frank-Wolfe for non-convex objectives", 2016; T. Vayer, L. Chapel,
R. Flamary, R. Tavenard, N. Courty, "Optimal transport for structured data with application on graphs", 2019.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchgw.couplings.rounding import feasible
from torchgw.objective.bounds import consistent_bound
from torchgw.pairwise.space import Space
from torchgw.solvers.transport_lp import TransportError, transport

logger = logging.getLogger("torchgw")

MOST_STEPS = 20
NO_VALUE = 1e-14
NO_SLOPE = 1e-13
STALLED = 0.1


@dataclass(frozen=True)
class Polished:
    """A plan (N, K) with exact marginals between the points that have mass, its value, its gap over its value, and the
    L1 distance of its marginals from those asked for."""

    plan: Tensor
    value: float
    gap: float
    marginal_error: float


def from_product(x: Space, y: Space, tol: float) -> Polished:
    """Polished from the product plan: where the points of one of the spaces coincide, all plans are equally good."""
    plan = torch.from_numpy(x.mass)[:, None] * torch.from_numpy(y.mass)
    moved = torch.from_numpy(x.distances) @ plan @ torch.from_numpy(y.distances)
    return polish(x, y, plan, moved, torch.zeros(y.size, dtype=torch.float64), tol)


def finish(sides: Sequence[tuple[Space, Space]], plans: Tensor, duals: Tensor, tol: float) -> list[Polished]:
    """Plans (B, n, k), filled up, with column potentials (B, k) in units of cost, on the CPU in float64, polished."""
    spaces = [[pair[side] for pair in sides] for side in (0, 1)]
    (DX, p), (DY, q) = (_stacked(own, size) for own, size in zip(spaces, plans.shape[1:], strict=True))
    plans = feasible(torch.nan_to_num(plans), p, q)
    moved = torch.bmm(torch.bmm(DX, plans), DY)
    products = (moved * plans).sum((1, 2)).tolist()
    lowest, b = consistent_bound(-2 * moved, p, q, torch.nan_to_num(duals))
    bounds = lowest.tolist()
    found = []
    for row, (x, y) in enumerate(sides):
        constant = x.squared + y.squared
        value, gap = constant - 2 * products[row], -4 * products[row] - 2 * bounds[row]
        plan, own = plans[row, : x.size, : y.size], moved[row, : x.size, : y.size]
        if gap <= tol * value or value <= NO_VALUE * constant:
            found.append(polished(x, y, plan, value, gap))
        else:
            found.append(polish(x, y, plan, own, b[row, : y.size], tol))
    return found


def _stacked(spaces: list[Space], size: int) -> tuple[Tensor, Tensor]:
    """Distances (B, size, size) and masses (B, size), filled up with zeros."""
    D, mass = (torch.zeros(len(spaces), *shape, dtype=torch.float64) for shape in ((size, size), (size,)))
    for row, space in enumerate(spaces):
        n = space.size
        D[row, :n, :n], mass[row, :n] = torch.from_numpy(space.distances), torch.from_numpy(space.mass)
    return D, mass


def polish(x: Space, y: Space, plan: Tensor, moved: Tensor, dual: Tensor, tol: float) -> Polished:
    """A plan (N, K) whose gap is at most ``tol`` times its value, or which steps no longer better.

    From a feasible one, D_X T D_Y (N, K), and column potentials (K,) of its linearised problem. O(N K (N + K)) for each
    step, and a transport problem.
    """
    DX, DY, p, q = (torch.from_numpy(part) for part in (x.distances, y.distances, x.mass, y.mass))
    constant = x.squared + y.squared
    product, duals, idle, stuck = float((moved * plan).sum()), [dual], 0, False

    def bounded(dual: Tensor) -> tuple[float, Tensor]:
        bound, better = consistent_bound(C, p, q, dual)
        return float(bound), better

    for step in range(MOST_STEPS + 1):
        value, C = constant - 2 * product, -2 * moved
        bound, dual = max(map(bounded, duals), key=lambda found: found[0])
        gap = max(2 * (-2 * product - bound), 0.0)
        if gap <= tol * value or value <= NO_VALUE * constant or step == MOST_STEPS:
            break
        try:
            # Where steps among few entries win nothing twice, all of them are priced.
            found = transport(C.numpy(), x.mass, y.mass, [other.numpy() for other in duals], priced=idle > 1)
        except TransportError as error:
            logger.debug("a transport problem of %d x %d points: %s", x.size, y.size, error)
            break
        other, duals = feasible(torch.from_numpy(found.plan), p, q), [dual, torch.from_numpy(found.dual)]
        slope = float((C * other).sum()) + 2 * product
        if found.exact:
            # HiGHS does not see masses that are far smaller than the others; its potentials cannot promise too much.
            bound = bounded(duals[1])[0]
            gap = min(gap, max(-2 * (2 * product + bound), 0.0))
            if slope >= -NO_SLOPE * constant or gap <= tol * value or stuck:
                break
        elif slope >= -NO_SLOPE * constant:
            idle += 1
            continue
        other_moved = DX @ other @ DY
        curvature = -2 * (float((other_moved * other).sum()) - product) - 2 * slope
        length = min(1.0, -slope / curvature) if curvature > 0 else 1.0
        plan, moved = plan + length * (other - plan), moved + length * (other_moved - moved)
        product = float((moved * plan).sum())
        stalled = value - (constant - 2 * product) <= STALLED * tol * value
        idle, stuck = idle + 1 if stalled else 0, stalled and found.exact
    return polished(x, y, plan, value, gap)


def polished(x: Space, y: Space, plan: Tensor, value: float, gap: float) -> Polished:
    """With the value and the gap of a plan (N, K); those that are nothing but rounding are zero."""
    p, q = torch.from_numpy(x.mass), torch.from_numpy(y.mass)
    if value <= NO_VALUE * (x.squared + y.squared):
        return Polished(plan, 0.0, 0.0, _off(plan, p, q))
    return Polished(plan, value, max(gap, 0.0) / value, _off(plan, p, q))


def _off(plan: Tensor, p: Tensor, q: Tensor) -> float:
    return float((plan.sum(1) - p).abs().sum() + (plan.sum(0) - q).abs().sum())

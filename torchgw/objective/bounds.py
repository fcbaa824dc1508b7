"""What can be said of a plan for certain: its value, its Frank-Wolfe gap, and lower bounds on every plan's value.

With C the linearised cost of T, the gradient of the objective is 2 C, so T can be improved to first order by at most

    gap = 2 (<C, T> - min over plans S of <C, S>)   <=   2 (<C, T> - p . a - q . b)

for any dual potentials a_i = min_j (C_ij - b_j). The lower bounds are Memoli's first (the points' root mean square
distances, transported in one dimension) and second (all distances, likewise). The second bins the distances with width
h and subtracts h from the Wasserstein distance, so it stays a bound.

Sources: S. Lacoste-Julien, "Convergence rate of Frank-Wolfe for non-convex objectives", 2016; F. Memoli,
"Gromov-Wasserstein distances and the metric approach to object matching", 2011, section 6.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchgw.kernels.sums import add_by_label, inner, running
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.types import Array, DistanceProvider

N_BINS = 2**14
MOST_PAIRS = 2.5e7
BLOCK_ELEMENTS = {"cpu": 2**19, "cuda": 2**26}


class Stationarity(NamedTuple):
    """<C, T>, and the Frank-Wolfe gap bounded by dual potentials."""

    value: float
    gap: float


def stationarity(cost: FactoredCost, plan: Tensor, p: Tensor, q: Tensor, column_dual: Tensor) -> Stationarity:
    """One pass over the plan (N, K) and its own linearised cost, all in float64.

    ``column_dual`` (K,) may be anything; the better it is, the tighter the gap. Columns without mass are left out.
    """
    dual = torch.where(q > 0, column_dual, -torch.inf)
    value, row_dual = p.new_zeros(()), torch.empty_like(p)
    step = max(1, BLOCK_ELEMENTS.get(p.device.type, 2**19) // len(q))
    for start in range(0, len(p), step):
        where = slice(start, start + step)
        block = cost.rows(where)
        value += inner(block, plan[where])
        row_dual[where] = block.sub_(dual).amin(1)
    used = p > 0
    bound = p[used] @ row_dual[used] + q[q > 0] @ dual[q > 0]
    return Stationarity(float(value), max(2 * float(value - bound), 0.0))


def partial_stationarity(
    cost: FactoredCost, plan: Tensor, p: Tensor, q: Tensor, column_dual: Tensor, total: float
) -> Stationarity:
    """The same for plans of mass ``total`` whose marginals are only bounded, by p (N,) and q (K,).

    With prices v <= 0 of the columns, every such plan costs at least q . v plus the cheapest ``total`` of the rows'
    masses at t_i = min_j (C_ij - v_j). ``column_dual`` (K,) holds prices up to a constant.
    """
    price = column_dual - column_dual[q > 0].max()
    dual = torch.where(q > 0, price.clamp_max(0.0), -torch.inf)
    value, row_price = p.new_zeros(()), torch.empty_like(p)
    step = max(1, BLOCK_ELEMENTS.get(p.device.type, 2**19) // len(q))
    for start in range(0, len(p), step):
        where = slice(start, start + step)
        block = cost.rows(where)
        value += inner(block, plan[where])
        row_price[where] = block.sub_(dual).amin(1)
    cheapest, order = row_price[p > 0].sort()
    taken = (total - torch.nn.functional.pad(running(p[p > 0][order], 0), (1, 0))[:-1]).clamp_min(0.0)
    bound = cheapest @ torch.minimum(taken, p[p > 0][order]) + q[q > 0] @ dual[q > 0]
    return Stationarity(float(value), max(2 * float(value - bound), 0.0))


def first_bound(a: Tensor, b: Tensor, p: Tensor, q: Tensor) -> float:
    """Memoli's first lower bound from mean squared distances a (N,), b (K,)."""
    one, other = (side.clamp_min(0.0).sqrt().cpu().numpy() for side in (a, b))
    return _wasserstein_squared(one, other, p.cpu().numpy(), q.cpu().numpy())


def second_bound(source: DistanceProvider, target: DistanceProvider, p: Tensor, q: Tensor) -> float:
    """Memoli's second lower bound; 0, which is a bound, where there are too many distances to look at.

    O(N^2 + K^2) work, no memory beyond a block of rows.
    """
    if max(source.size**2, target.size**2) > MOST_PAIRS or not (source.stored and target.stored):
        return 0.0
    low, high = _range(((source, p), (target, q)))
    width = max(high - low, torch.finfo(p.dtype).tiny) / N_BINS
    masses = [_histogram(space, mass, low, width) for space, mass in ((source, p), (target, q))]
    centres = low + np.arange(N_BINS + 1) * width
    distance = _wasserstein_squared(centres, centres, *masses) ** 0.5
    return float(max(distance - width, 0.0) ** 2)


def _blocks(space: DistanceProvider, mass: Tensor) -> list[Tensor]:
    step = max(1, BLOCK_ELEMENTS.get(mass.device.type, 2**19) // space.size)
    return list(torch.split(torch.arange(space.size, device=mass.device), step))


def _range(sides: tuple[tuple[DistanceProvider, Tensor], ...]) -> tuple[float, float]:
    """Smallest and largest distance of all spaces; factored ones may be slightly negative."""
    low, high = float("inf"), -float("inf")
    for space, mass in sides:
        for index in _blocks(space, mass):
            least, most = torch.aminmax(space.rows(index))
            low, high = min(low, float(least)), max(high, float(most))
    return low, high


def _histogram(space: DistanceProvider, mass: Tensor, low: float, width: float) -> Array:
    """Mass of the pairs whose distance is nearest to each ``low`` + multiple of ``width``."""
    total = torch.zeros(N_BINS + 1, dtype=mass.dtype, device=mass.device)
    for index in _blocks(space, mass):
        position = ((space.rows(index).to(mass.dtype) - low) / width).round_().to(torch.int64)
        weight = mass[index][:, None] * mass
        add_by_label(total, position.flatten(), weight.flatten())
    found: Array = total.cpu().numpy()
    share: Array = found / found.sum()
    return share


def _wasserstein_squared(x: Array, y: Array, p: Array, q: Array) -> float:
    """Squared 2-Wasserstein distance of two weighted sets of numbers, by the monotone coupling."""
    i, j = np.argsort(x, kind="stable"), np.argsort(y, kind="stable")
    level_x, level_y = np.cumsum(p[i]), np.cumsum(q[j])
    level_x, level_y = level_x / level_x[-1], level_y / level_y[-1]
    cuts = np.union1d(level_x, level_y)
    middle = (np.concatenate(([0.0], cuts[:-1])) + cuts) / 2
    at_x = x[i][np.searchsorted(level_x, middle).clip(max=len(x) - 1)]
    at_y = y[j][np.searchsorted(level_y, middle).clip(max=len(y) - 1)]
    return float(np.diff(cuts, prepend=0.0) @ (at_x - at_y) ** 2)

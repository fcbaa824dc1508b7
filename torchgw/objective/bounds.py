"""What can be said of a plan for certain: its Frank-Wolfe gap, and lower bounds on every plan's value.

With C the linearised cost of T, the gradient of the objective is 2 C, so T can be improved to first order by at most

    gap = 2 (<C, T> - min over plans S of <C, S>)   <=   2 (<C, T> - p . a - q . b),   a_i = min_j (C_ij - b_j),

for any column potentials b: a is their c-transform, so a_i + b_j <= C_ij. Plans of mass m whose marginals are only
bounded, by p and q, cost at least q . b plus the cheapest m of the rows' masses at the prices a, for b <= 0.

The lower bounds are Memoli's first (the points' root mean square distances, transported in one dimension) and second
(all distances, likewise). The second bins the distances with width h and subtracts h from the Wasserstein distance, so
it stays a bound: within 0.7 % of the exact one, in two passes over blocks of rows. On a GPU, which adds in any order,
masses of pairs are integers: each is cut off to a multiple of 2^-62 of all N^2 together, so at most the mass N^2 2^-62
lies elsewhere, and the Wasserstein distance is off by at most N 2^-31 times the range of distances, which is subtracted
as well. Means of quantiles, as in
`torchgw.objective.distributions`, need all distances sorted: 30 times slower at 3000 points, but a space is then a
short vector, and the bounds of many pairs are distances between vectors.

Sources: S. Lacoste-Julien, "Convergence rate of Frank-Wolfe for non-convex objectives", 2016; F. Memoli,
"Gromov-Wasserstein distances and the metric approach to object matching", 2011, section 6.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchgw.kernels.blocks import ON_GPU, WIDE, block_rows, blocks
from torchgw.kernels.sums import cumulative_sum
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.spaces.scale import without_scale
from torchgw.types import Array, DistanceProvider

N_BINS, AT_ONCE = 2**14, 2**17
COUNTED = {"cpu": 2**19, "cuda": ON_GPU // 4}  # pairs that are put into bins together
UNITS = 2**31  # whose square is the mass of all pairs, where masses are integers
MOST_PAIRS = 2.5e7


def c_transform(cost: Tensor | FactoredCost, potential: Tensor, mass: Tensor) -> Tensor:
    """Row potentials a_i = min_j (C_ij - b_j), (..., N), of column potentials b (..., K).

    Costs (..., N, K) are stored, or factored and read in blocks of rows. Columns without ``mass`` (..., K) are left
    out. The transform of a transposed cost and of row potentials gives column potentials.
    """
    b = torch.where(mass > 0, potential, -torch.inf)
    if isinstance(cost, Tensor):
        return (cost - b[..., None, :]).amin(-1)
    found = b.new_full((len(cost.a),), torch.inf)
    step = block_rows(len(found), min(len(b), WIDE), b.device)
    for columns in blocks(len(b), WIDE):
        part = cost.restrict(slice(None), columns)
        for where in blocks(len(found), step):
            torch.minimum(found[where], part.rows(where).to(b.dtype).sub_(b[columns]).amin(1), out=found[where])
    return found


def dual_bound(a: Tensor, b: Tensor, p: Tensor, q: Tensor, total: float | None = None) -> Tensor:
    """What every plan S costs at least, (...), by potentials with a_i + b_j <= C_ij, (..., N) and (..., K).

    S has the marginals p (..., N) and q (..., K), or the mass ``total`` and marginals of at most p and q; b is at most
    zero then. Potentials of points without mass may be anything.
    """
    if total is not None:
        a, order = torch.where(p > 0, a, torch.inf).sort(-1)
        p = p.gather(-1, order)
        before = torch.nn.functional.pad(cumulative_sum(p, -1), (1, 0))[..., :-1]
        p = torch.minimum((total - before).clamp_min(0.0), p)
    return _mean(p, a) + _mean(q, b)


def _mean(mass: Tensor, potential: Tensor) -> Tensor:
    """<mass, potential> (...) over the points that have mass."""
    found: Tensor = torch.where(mass > 0, mass * potential, 0.0).sum(-1)
    return found


def consistent_bound(cost: Tensor, p: Tensor, q: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The dual bound (...) of stored transport problems (..., N, K) with marginals p, q, and the column potentials
    (..., K) it was found with: the double c-transform of b, which bounds no worse than b does."""
    a = c_transform(cost, b, q)
    b = c_transform(cost.mT, a, p)
    return dual_bound(a, b, p, q), b


def frank_wolfe_gap(value: float | Tensor, lowest: Tensor) -> Tensor:
    """The Frank-Wolfe gap (...) of plans with ``value`` = <C, T>, where every plan costs at least ``lowest`` (...)."""
    return (2 * (value - lowest)).clamp_min(0.0)


def normalize_partial_potentials(b: Tensor, mass: Tensor) -> Tensor:
    """Dual potentials (..., K) relative to the highest of a point with mass, which is the price of a total."""
    return (b - torch.where(mass > 0, b, -torch.inf).amax(-1, keepdim=True)).clamp_max(0.0)


@as_cuda_graph()
def lowest_cost(cost: Tensor | FactoredCost, p: Tensor, q: Tensor, b: Tensor, total: float | None = None) -> Tensor:
    """What every plan costs at least (...), by column potentials b (..., K).

    b may be anything; the better it is, the higher the bound. Under a ``total`` it holds prices up to a constant. Of a
    factored cost the rows may be a sample, with masses p that sum to those of all.
    """
    if total is not None:
        b = normalize_partial_potentials(b, q)
    return dual_bound(c_transform(cost, b, q), b, p, q, total)


def first_bound(a: Tensor, b: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Memoli's first lower bound () from mean squared distances a (N,), b (K,)."""
    (x, p_order), (y, q_order) = (means.clamp_min(0.0).sqrt().sort(stable=True) for means in (a, b))
    return _squared_wasserstein(x, y, p[p_order], q[q_order])


def second_bound(
    source: DistanceProvider, target: DistanceProvider, p: Tensor, q: Tensor, means: tuple[Tensor, Tensor] | None = None
) -> Tensor | float:
    """Memoli's second lower bound (), or the first one where that is higher and mean squared distances (N,), (K,) are
    given; where there are too many distances to look at the first one, or 0, which is a bound.

    O(N^2 + K^2) work, no memory beyond a block of rows.
    """
    few = max(source.size**2, target.size**2) <= MOST_PAIRS and source.stored and target.stored
    spaces = (without_scale(source), without_scale(target)) if few else None
    return _bound(spaces, p, q, means) if few or means is not None else 0.0


@as_cuda_graph()
def _bound(
    spaces: tuple[DistanceProvider, DistanceProvider] | None, p: Tensor, q: Tensor, means: tuple[Tensor, Tensor] | None
) -> Tensor:
    """The higher one () of the second bound between spaces and of the first by means, where there are both."""
    found = [] if means is None else [first_bound(means[0].to(p), means[1].to(p), p, q)]
    found += [] if spaces is None else [_second(*spaces, p, q)]
    return torch.stack(found).max()


def _second(source: DistanceProvider, target: DistanceProvider, p: Tensor, q: Tensor) -> Tensor:
    """Memoli's second lower bound ()."""
    low, high = _range(((source, p), (target, q)))
    width = (high - low).clamp_min(torch.finfo(p.dtype).tiny) / N_BINS
    histograms = (_histogram(space, mass, low, width) for space, mass in ((source, p), (target, q)))
    centres = low + torch.arange(N_BINS + 1, dtype=torch.float64, device=low.device) * width
    distance = _squared_wasserstein(centres, centres, *histograms).sqrt()
    off = 1 + N_BINS * (source.size + target.size) / UNITS if p.is_cuda else 1  # widths
    return distance.sub(width, alpha=off).clamp_min(0.0).square()


def _blocks(space: DistanceProvider, mass: Tensor, elements: dict[str, int] | None = None) -> list[Tensor]:
    step = block_rows(space.size, space.size, mass.device, elements)
    return list(torch.split(torch.arange(space.size, device=mass.device), step))


def _range(sides: tuple[tuple[DistanceProvider, Tensor], ...]) -> tuple[Tensor, Tensor]:
    """Smallest and largest distance () of all spaces; factored ones may be slightly negative."""
    ends = [torch.aminmax(space.rows(index)) for space, mass in sides for index in _blocks(space, mass)]
    low, high = torch.stack([number for pair in ends for number in pair]).double().aminmax()
    return low, high


def _histogram(space: DistanceProvider, mass: Tensor, low: Tensor, width: Tensor) -> Tensor:
    """Mass (bins,) of the pairs whose distance is nearest to each ``low`` + multiple of ``width``, up to a factor."""
    wanted = kind = mass.dtype
    if mass.is_cuda:
        mass, kind = mass.double().mul(UNITS).div_(mass.sum()), torch.int64
    total = torch.zeros(N_BINS + 1, dtype=kind, device=mass.device)
    parts = _blocks(space, mass, COUNTED)
    for index, some in zip(parts, torch.split(mass, len(parts[0])), strict=True):
        place = (space.rows(index).to(mass.dtype) - low).div_(width).round_().to(torch.int32)
        total.index_add_(0, place.flatten(), (some[:, None] * mass).to(kind).flatten())
    return total.to(wanted)


def _squared_wasserstein(x: Tensor, y: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Squared 2-Wasserstein distance () of rising numbers (N,), (K,) of masses p, q, by the monotone coupling."""
    sides = []
    for number, mass in ((x, p), (y, q)):
        level = cumulative_sum(mass, 0)
        sides.append((number, level / level[-1]))
    cuts, found = torch.cat([level for _, level in sides]).sort().values, list[Tensor]()
    for where in blocks(len(cuts), AT_ONCE):
        after = cuts[where]
        before = torch.cat((cuts[where.start - 1 : where.start] if where.start else cuts.new_zeros(1), after[:-1]))
        middle = (before + after) / 2
        one, other = (number[torch.searchsorted(level, middle).clamp_max(len(level) - 1)] for number, level in sides)
        found.append((after - before) @ (one - other).square())
    return found[0] if len(found) == 1 else torch.stack(found).sum()


def monotone_coupling(p: Array, q: Array) -> tuple[Array, Array, Array]:
    """Rows, columns and shares (m,) of the entries of the north-west corner plan, m < N + K, of masses p, q over their
    sums."""
    levels = [np.cumsum(mass) for mass in (p, q)]
    levels = [level / level[-1] for level in levels]
    cuts = np.union1d(*levels)
    middle = (np.concatenate(([0.0], cuts[:-1])) + cuts) / 2
    row, column = (np.searchsorted(level, middle).clip(max=len(level) - 1) for level in levels)
    return row, column, np.diff(cuts, prepend=0.0)

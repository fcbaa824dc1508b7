"""What can be said of a plan for certain: its Frank-Wolfe gap, and lower bounds
on every plan's value.

With C the linearised cost of T, the gradient of the objective is 2 C, so T can
be improved to first order by at most

    gap = 2 (<C, T> - min over plans S of <C, S>)
       <= 2 (<C, T> - p . a - q . b),    a_i = min_j (C_ij - b_j),

for any column potentials b: a is their c-transform, so a_i + b_j <= C_ij. Plans
of mass m whose marginals are only bounded, by p and q, cost at least q . b plus
the cheapest m of the rows' masses at the prices a, for b <= 0.

The lower bounds are Memoli's first, with the points' root mean square distances
as a distribution on the line, and second, with all distances:

    value(X, Y) >= W_2(X, Y)^2 = integral of (quantile_X - quantile_Y)^2
                >= mean_b (means_X,b - means_Y,b)^2,

where means_b are those of the quantile function over equal parts of [0, 1], by
Jensen's inequality. So a space is a short vector (`signature`), and the bounds
of many pairs are squared distances between vectors. That needs all distances
sorted, which takes 30 times as long at 3000 points as histograms do, by which
one pair is bounded (`second_bound`).

These bin the distances with width h, and h is subtracted from the Wasserstein
distance, so it stays a bound: within 0.7 % of the exact one, in two passes over
blocks of rows. On a GPU, which adds in any order, masses of pairs are integers:
each is cut off to a multiple of 2^-62 of all N^2 together, so at most the mass
N^2 2^-62 lies elsewhere, and the Wasserstein distance is off by at most N 2^-31
times the range of distances, which is subtracted as well.

Sources: S. Lacoste-Julien, "Convergence rate of Frank-Wolfe for non-convex
objectives", 2016; F. Memoli, "Gromov-Wasserstein distances and the metric
approach to object matching", 2011, section 6.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from torchgw.kernels.blocks import WIDE, block_rows, blocks, parts
from torchgw.kernels.sums import cumulative_sum
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.spaces.scale import without_scale
from torchgw.types import Array, DistanceProvider

N_BINS, BINNED_PAIRS = 2**14, 2**19  # and how many pairs are put into bins together
UNITS = 2**31  # whose square is the mass of all pairs, where masses are integers
MOST_PAIRS = 2.5e7
PARTS = 512  # of the quantile functions
ROUNDING, ROUNDING_OF_VALUES = 1e-9, 2e-14


def c_transform(cost: Tensor | FactoredCost, potential: Tensor, mass: Tensor) -> Tensor:
    """Row potentials a_i = min_j (C_ij - b_j), (..., N), of column potentials b
    (..., K).

    Costs (..., N, K) are stored, or factored and read in blocks of rows.
    Columns without ``mass`` (..., K) are left out. The transform of a
    transposed cost and of row potentials gives column potentials.
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
    """What every plan S costs at least, (...), by potentials with a_i + b_j <=
    C_ij, (..., N) and (..., K).

    S has the marginals p (..., N) and q (..., K), or the mass ``total`` and
    marginals of at most p and q; b is at most zero then. Potentials of points
    without mass may be anything.
    """
    if total is not None:
        a, order = torch.where(p > 0, a, torch.inf).sort(-1)
        p = p.gather(-1, order)
        before = torch.nn.functional.pad(cumulative_sum(p, -1), (1, 0))[..., :-1]
        p = torch.minimum((total - before).clamp_min(0.0), p)
    rows, columns = (torch.where(mass > 0, mass * potential, 0.0).sum(-1) for mass, potential in ((p, a), (q, b)))
    return rows + columns


def consistent_bound(cost: Tensor, p: Tensor, q: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The dual bound (...) of stored transport problems (..., N, K) with
    marginals p, q, and the column potentials (..., K) it was found with: the
    double c-transform of b, which bounds no worse than b does."""
    a = c_transform(cost, b, q)
    b = c_transform(cost.mT, a, p)
    return dual_bound(a, b, p, q), b


def frank_wolfe_gap(value: float | Tensor, lowest: Tensor) -> Tensor:
    """The Frank-Wolfe gap (...) of plans with ``value`` = <C, T>, where every
    plan costs at least ``lowest`` (...)."""
    return (2 * (value - lowest)).clamp_min(0.0)


def normalize_partial_potentials(b: Tensor, mass: Tensor) -> Tensor:
    """Dual potentials (..., K) relative to the highest of a point with mass,
    which is the price of a total."""
    return (b - torch.where(mass > 0, b, -torch.inf).amax(-1, keepdim=True)).clamp_max(0.0)


@as_cuda_graph()
def lowest_cost(cost: Tensor | FactoredCost, p: Tensor, q: Tensor, b: Tensor, total: float | None = None) -> Tensor:
    """What every plan costs at least (...), by column potentials b (..., K).

    b may be anything; the better it is, the higher the bound. Under a ``total``
    it holds prices up to a constant. Of a factored cost the rows may be a
    sample, with masses p that sum to those of all.
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
    """Memoli's second lower bound (), or the first one where that is higher and
    mean squared distances (N,), (K,) are given; where there are too many
    distances to look at the first one, or 0, which is a bound.

    O(N^2 + K^2) work, no memory beyond a block of rows.
    """
    few = max(source.size**2, target.size**2) <= MOST_PAIRS and source.stored and target.stored
    spaces = (without_scale(source), without_scale(target)) if few else None
    return _bound(spaces, p, q, means) if few or means is not None else 0.0


@as_cuda_graph()
def _bound(
    spaces: tuple[DistanceProvider, DistanceProvider] | None, p: Tensor, q: Tensor, means: tuple[Tensor, Tensor] | None
) -> Tensor:
    """The higher one () of the second bound between spaces and of the first by
    means, where there are both."""
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


def _row_blocks(space: DistanceProvider, mass: Tensor) -> tuple[Tensor, ...]:
    every = torch.arange(space.size, device=mass.device)
    return parts(every, space.size, BINNED_PAIRS)


def _range(sides: tuple[tuple[DistanceProvider, Tensor], ...]) -> tuple[Tensor, Tensor]:
    """Smallest and largest distance () of all spaces; factored ones may be
    slightly negative."""
    ends = [
        torch.stack(torch.aminmax(space.rows(index))) for space, mass in sides for index in _row_blocks(space, mass)
    ]
    return torch.cat(ends).double().aminmax()


def _histogram(space: DistanceProvider, mass: Tensor, low: Tensor, width: Tensor) -> Tensor:
    """Mass (bins,) of the pairs whose distance is nearest to each ``low`` +
    multiple of ``width``, up to a factor."""
    wanted = kind = mass.dtype
    if mass.is_cuda:
        mass, kind = mass.double().mul(UNITS).div_(mass.sum()), torch.int64
    total = torch.zeros(N_BINS + 1, dtype=kind, device=mass.device)
    for index in _row_blocks(space, mass):
        place = (space.rows(index).to(mass.dtype) - low).div_(width).round_()
        pairs = (mass[index, None] * mass).to(kind)
        total.index_add_(0, place.to(torch.int32).flatten(), pairs.flatten())
    return total.to(wanted)


def _squared_wasserstein(x: Tensor, y: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Squared 2-Wasserstein distance () of rising numbers (N,), (K,) of masses
    p, q, by the monotone coupling."""
    levels = [cumulative_sum(mass, 0) for mass in (p, q)]
    levels = [level / level[-1] for level in levels]
    cuts = torch.cat(levels).sort().values
    share = cuts.diff(prepend=cuts.new_zeros(1))
    one, other = (
        number[torch.searchsorted(level, cuts - share / 2).clamp_max(len(level) - 1)]
        for number, level in zip((x, y), levels, strict=True)
    )
    return share @ (one - other).square()


def monotone_coupling(p: Array, q: Array) -> tuple[Array, Array, Array]:
    """Rows, columns and shares (m,) of the entries of the north-west corner
    plan, m < N + K, of masses p, q over their sums."""
    levels = [np.cumsum(mass) for mass in (p, q)]
    levels = [level / level[-1] for level in levels]
    cuts = np.union1d(*levels)
    middle = (np.concatenate(([0.0], cuts[:-1])) + cuts) / 2
    row, column = (np.searchsorted(level, middle).clip(max=len(level) - 1) for level in levels)
    return row, column, np.diff(cuts, prepend=0.0)


def quantiles(D: Tensor, mass: Tensor, count: int) -> Tensor:
    """Means of each row's quantile function over ``count`` equal intervals, (N,
    count), rows weighted by ``mass``.

    By Jensen's inequality squared differences of these bound the squared
    Wasserstein distance of two rows from below.
    """
    value, order = D.sort(dim=1)
    weight = mass[order]
    level = torch.nn.functional.pad(cumulative_sum(weight, 1), (1, 0))
    level = level / level[:, -1:]
    area = torch.nn.functional.pad(cumulative_sum(value * weight, 1), (1, 0)) / weight.sum(1, keepdim=True)
    cuts = torch.linspace(0, 1, count + 1, dtype=D.dtype, device=D.device).expand(len(D), -1).contiguous()
    above = torch.searchsorted(level, cuts).clamp(1, D.shape[1])
    low, high = level.gather(1, above - 1), level.gather(1, above)
    share = ((cuts - low) / (high - low).clamp_min(torch.finfo(D.dtype).tiny)).clamp(0.0, 1.0)
    low_area = area.gather(1, above - 1)
    cumulative = low_area + share * (area.gather(1, above) - low_area)
    return cumulative.diff(dim=1) * count


def signature(distances: Array, mass: Array) -> Array:
    """What bounds take from a space of masses (N,) above zero: the means (512,)
    of the quantile function of the points' root mean square distances, those
    (512,) of all distances, and the mean squared distance. O(N^2 log N)."""
    D, p = torch.from_numpy(distances), torch.from_numpy(mass)
    eccentricity = (D.square() @ p).clamp_min(0.0).sqrt()
    first = quantiles(eccentricity[None], p, PARTS)[0]
    second = quantiles(D.reshape(1, -1), (p[:, None] * p).reshape(-1), PARTS)[0]
    return torch.cat((first, second, (p @ eccentricity.square())[None])).numpy()


def lower_bounds(rows: Sequence[Array], columns: Sequence[Array]) -> Array:
    """Values that no plan undercuts, (Q, n), from the signatures of both sides."""
    from scipy.spatial.distance import cdist  # late: it takes half the import of this package

    x, y = np.stack(rows), np.stack(columns)
    first, second = (cdist(x[:, part], y[:, part], "sqeuclidean") / PARTS for part in (slice(PARTS), slice(PARTS, -1)))
    # Quantiles are sums of up to N^2 rounded numbers; values that are nothing
    # but rounding count as zero.
    rounding = ROUNDING_OF_VALUES * np.add.outer(x[:, -1], y[:, -1])
    found: Array = np.maximum(np.maximum(first, second) * (1 - ROUNDING) - rounding, 0.0)
    return found

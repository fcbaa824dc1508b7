"""What matching can gain over not matching at all: the spread of plans' values, and so the unit in which an entropy
weight is small or large.

Between plans with marginals p and q all but the cross term of the quadratic part is constant, and by Cauchy-Schwarz

    |E_{T x T} h1(D_X) h2(D_Y) - E h1(D_X) E h2(D_Y)|   <=   sd h1(D_X) sd h2(D_Y),

E and sd over pairs of points drawn by their masses: 2 sd(D_X) sd(D_Y) for squares. For spaces of one shape that is the
energy of the product plan, E D_X^2 + E D_Y^2 - 2 E D_X E D_Y; of others it leaves out what no plan can change. A linear
cost gains at most its mean minus the larger mean of row and of column minima, so that a constant in it is no gain.

Both are weighed as in the linear problem, whose cost is Chat = (alpha C(T) + beta M / 2) / w.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchgw.kernels.blocks import parts
from torchgw.kernels.sampling import spread_over
from torchgw.kernels.sums import inner_product
from torchgw.losses import SQUARE, Function
from torchgw.objective.bounds import c_transform
from torchgw.objective.exact import factored_mean_square, mean_squares, product
from torchgw.objective.model import Model
from torchgw.runtime.ranks import ranks_of
from torchgw.runtime.transfer import fetched
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.spaces.landmark import storage
from torchgw.types import DistanceProvider, multiplies

# Points whose distances, or costs, stand for those of all. A search is kept by its provider for the solve; which ones
# others have made before is no matter, so that a resumed solve has the same gain.
LOOKED_AT, SEARCHED = 1000, 64
NONE = 1e-9  # of the largest squared distance: below it a gain is rounding


def gain_of(model: Model, spaces: tuple[DistanceProvider, DistanceProvider], unit: float) -> float:
    """The most that a plan can lie below the product plan, in units of epsilon; ``unit``, the largest squared distance,
    where nothing can be gained. O((N + K) r^2) of factored distances, a product with a space that has its own; of
    others 1000 rows of each space, 64 where each row is a search; 1000 rows and columns of a linear cost."""
    (p, q), loss = model.masses, model.loss
    found = 0.0
    if model.alpha > 0:
        one, other = map(
            float,
            fetched(
                *(
                    deviation(space, mass, None if loss is SQUARE else transformed)
                    for space, mass, transformed in zip(spaces, (p, q), (loss.h1, loss.h2), strict=True)
                )
            ),
        )
        found += model.alpha * (2 if loss is SQUARE else 1) * one * other
    if model.cost is not None and model.beta > 0:
        found += model.beta / 2 * linear_gain(model.cost, p, q)
    found /= float(model.weight(1.0))
    return found if NONE * unit < found < math.inf else unit


def deviation(space: DistanceProvider, mass: Tensor, transformed: Function | None = None) -> Tensor:
    """Standard deviation () of the distances of a space, or of a function of them, over pairs drawn by their
    ``mass``."""
    space = space.to(mass.device, getattr(torch, storage(space.size)))
    mass, factors = mass / mass.sum(), space.factors()
    if factors is not None and transformed is None:
        (F, signs), ranks = factors, ranks_of(space)
        mean = signs.to(mass) @ inner_product(F, ranks.own(mass)[:, None], ranks=ranks)[:, 0].to(mass).square()
        square = factored_mean_square(F, signs, mass, ranks)
    elif multiplies(space) and transformed is None:
        mean, square = mass @ product(space, mass[:, None])[:, 0], mean_squares(space, mass) @ mass
    else:
        most = LOOKED_AT if space.stored else SEARCHED
        few = torch.arange(len(mass), device=mass.device), mass  # none of which is left out: that would wait
        index, weight = few if len(mass) <= most else spread_over(mass, most)
        means = torch.cat([_row_means(space, part, mass, transformed) for part in parts(index, space.size)])
        mean, square = weight @ means
    return (square - mean.square()).clamp_min(0.0).sqrt()


def _row_means(space: DistanceProvider, index: Tensor, mass: Tensor, transformed: Function | None) -> Tensor:
    """Means by ``mass`` (N,) of some rows of distances, or of a function of them, and of their squares: (m, 2)."""
    rows = space.rows(index).to(mass)
    rows = rows if transformed is None else transformed(rows)
    return torch.stack((rows @ mass, rows.square() @ mass), 1)


def linear_gain(cost: FactoredCost, p: Tensor, q: Tensor) -> float:
    """<M, p q^T> minus the larger mean of row and of column minima, for masses of any sums: per unit of mass."""
    return max(min(_above_least(side, *ends) for side, ends in ((cost, (p, q)), (cost.T, (q, p)))), 0.0)


def _above_least(cost: FactoredCost, p: Tensor, q: Tensor) -> float:
    """How far the mean of a row of the cost lies above its smallest entry, over rows drawn by their masses p (N,)."""
    index, weight = spread_over(p, LOOKED_AT)
    some = cost.taken(index, slice(None))
    share = q / q.sum()
    mean = some.a + some.b @ share - 2 * (some.U @ (some.V.T @ share))
    mean = mean if some.extra is None else mean + some.extra @ share
    return float(weight @ (mean - c_transform(some, torch.zeros_like(q), q)))

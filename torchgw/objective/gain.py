"""The product plan p q^T: its value, which a matching must be far below, and
what matching can gain over it, the unit in which an entropy weight is small or
large.

For a loss L(a, b) = f1(a) + f2(b) - h1(a) h2(b) the quadratic part of the
product plan needs only means E over pairs of points drawn by their masses,

    E f1(D_X) + E f2(D_Y) - E h1(D_X) E h2(D_Y),        E D_X^2 + E D_Y^2 - 2 E D_X E D_Y for squares.

Between plans with marginals p and q all but the cross term is constant, and by
Cauchy-Schwarz

    |E_{T x T} h1(D_X) h2(D_Y) - E h1(D_X) E h2(D_Y)|   <=   sd h1(D_X) sd h2(D_Y),

2 sd(D_X) sd(D_Y) for squares. For spaces of one shape this gain is the value of
the product plan; of others it leaves out what no plan can change. A linear cost
gains at most its mean minus the larger mean of row and of column minima, so
that a constant in it is no gain.

In the gain both are weighed as in the linear problem, whose cost is Chat =
(alpha C(T) + beta M / 2) / w.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchgw.kernels.blocks import parts
from torchgw.kernels.sampling import sample_evenly
from torchgw.kernels.sums import inner_product
from torchgw.losses import SQUARE, Function, SeparableLoss
from torchgw.objective.bounds import c_transform
from torchgw.objective.exact import Spaces, factored_mean_square, mean_squares, product
from torchgw.objective.model import Model
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.runtime.ranks import ranks_of
from torchgw.runtime.transfer import to_host
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.spaces.landmark import move_to_storage
from torchgw.spaces.scale import without_scale
from torchgw.types import DistanceProvider, multiplies

# Points whose distances, or costs, stand for those of all. A search is kept by
# its provider for the solve; which ones others have made before is no matter,
# so that a resumed solve has the same gain.
LOOKED_AT, SEARCHED = 1000, 64
NONE = 1e-9  # of the largest squared distance: below it a gain is rounding


class ProductPlan(NamedTuple):
    """What is known of the product plan.

    chance : its value, in the units of the objective of a plan of mass one.
    energy_scale : the most that a plan can lie below it, in units of epsilon.
    """

    chance: float
    energy_scale: float


def product_plan(model: Model, spaces: Spaces, unit: float) -> ProductPlan:
    """The product plan of the masses asked for, scaled to a mass of one;
    ``unit``, the largest squared distance, is the gain where nothing can be
    gained. O((N + K) r^2) of factored distances, a product with a space that
    has its own; of others 1000 rows of each space, 64 where each row is a
    search. Of a linear cost 1000 rows and columns, and its mean.
    """
    return product_plan_from_moments(model, to_host(*product_moments(model, spaces)), unit)


def product_moments(model: Model, spaces: Spaces) -> tuple[Tensor, ...]:
    """The `moments` of both spaces, which the product plan is known by; none
    where distances are no part of it."""
    if model.alpha == 0:
        return ()
    p, q = (mass / mass.sum() for mass in model.masses)
    sides = zip(spaces, (p, q), (0, 1), strict=True)
    return tuple(moments(without_scale(space), mass, model.loss, side) for space, mass, side in sides)


def product_plan_from_moments(model: Model, found: Sequence[Tensor], unit: float) -> ProductPlan:
    """`product_plan`, by `product_moments` on the host."""
    p, q = (mass / mass.sum() for mass in model.masses)
    chance = gain = 0.0
    if model.alpha > 0:
        one, other = found
        quadratic = float(one[2] + other[2] - one[0] * other[0])
        gain += model.alpha * float(deviation(one) * deviation(other))
        chance += model.alpha * max(quadratic, 0.0)
    if model.cost is not None and model.beta > 0:
        gain += model.beta / 2 * linear_energy_scale(model.cost, *model.masses)
        chance += model.beta * float(p @ _mean_rows(model.cost, q))
    chance += 0.0 if model.has_hard_marginals else max(float(model.divergences(p, q)), 0.0)
    if model.penalty is not None and model.strength < math.inf:
        chance += model.strength / model.price * float(p @ _mean_rows(model.penalty, q))
    gain /= float(model.weight(1.0))
    return ProductPlan(chance, gain if NONE * unit < gain < math.inf else unit)


@as_cuda_graph()
def moments(space: DistanceProvider, mass: Tensor, loss: SeparableLoss = SQUARE, side: int = 0) -> Tensor:
    """Means (3,) of h, h^2 and f of the distances of a space, the functions
    that the loss has for this ``side``, over pairs drawn by their ``mass``."""
    space = move_to_storage(space, mass.device)
    mass, factors = mass / mass.sum(), space.factors()
    f, h = ((loss.f1, loss.h1), (loss.f2, loss.h2))[side]
    if loss is not SQUARE or (factors is None and not multiplies(space)):
        most = LOOKED_AT if space.stored else SEARCHED
        few = torch.arange(len(mass), device=mass.device), mass  # none of which is left out: that would wait
        index, weight = few if len(mass) <= most else sample_evenly(mass, most)
        return weight @ torch.cat([_row_means(space, part, mass, f, h) for part in parts(index, space.size)])
    if factors is not None:
        (F, signs), ranks = factors, ranks_of(space)
        mean = signs.to(mass) @ inner_product(F, ranks.own(mass)[:, None], ranks=ranks)[:, 0].to(mass).square()
        square = factored_mean_square(F, signs, mass, ranks)
    else:
        mean, square = mass @ product(space, mass[:, None])[:, 0], mean_squares(space, mass) @ mass
    factor = 1 + side  # h2 = 2 b
    return torch.stack((factor * mean, factor**2 * square, square))


def deviation(moments: Tensor) -> Tensor:
    """Standard deviation () of h from its mean and mean square."""
    return (moments[1] - moments[0].square()).clamp_min(0.0).sqrt()


def _row_means(space: DistanceProvider, index: Tensor, mass: Tensor, f: Function, h: Function) -> Tensor:
    """Means by ``mass`` (N,) of h, h^2 and f of some rows of distances: (m, 3)."""
    rows = space.rows(index).to(mass)
    transformed = h(rows)
    return torch.stack((transformed @ mass, transformed.square() @ mass, f(rows) @ mass), 1)


def _mean_rows(cost: FactoredCost, q: Tensor) -> Tensor:
    """The mean (N,) of each row of a cost by masses q (K,) of sum one."""
    found = cost.a + cost.b @ q - 2 * (cost.U @ (cost.V.T @ q))
    return found if cost.extra is None else found + cost.extra @ q


def linear_energy_scale(cost: FactoredCost, p: Tensor, q: Tensor) -> float:
    """<M, p q^T> minus the larger mean of row and of column minima, for masses
    of any sums: per unit of mass."""
    return max(min(_above_least(side, *ends) for side, ends in ((cost, (p, q)), (cost.T, (q, p)))), 0.0)


def _above_least(cost: FactoredCost, p: Tensor, q: Tensor) -> float:
    """How far the mean of a row of the cost lies above its smallest entry, over
    rows drawn by their masses p (N,)."""
    index, weight = sample_evenly(p, LOOKED_AT)
    some = cost.restrict(index, slice(None))
    above = _mean_rows(some, q / q.sum()) - c_transform(some, torch.zeros_like(q), q)
    return float(weight @ above)

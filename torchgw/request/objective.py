"""The model of a solve, from masses, marginals, cost and supervision as they are given; what float64 cannot resolve is
refused."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torchgw import ranges, validate
from torchgw.losses import SQUARE, SeparableLoss
from torchgw.marginals import Marginals, Partial, mass_scales
from torchgw.objective.bounds import c_transform, dual_bound
from torchgw.objective.features import FeatureCost, features_of
from torchgw.objective.model import Model, largest_entry, largest_loss
from torchgw.objective.supervision import Rules
from torchgw.options import GWOptions
from torchgw.runtime.transfer import to_device
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.spaces.prepare import InputSpace
from torchgw.spaces.resolution import RESOLUTION, measure_resolution, pick_evenly
from torchgw.spaces.scale import largest_of

LEAST_PART = 1e-9
ROUNDED = 16 * sys.float_info.epsilon


def check_alpha(alpha: object, cost: object) -> float:
    """The weight of the quadratic part: 1 without a cost, a half with one, unless given."""
    if isinstance(alpha, Tensor) and alpha.ndim == 0:
        alpha = alpha.item()
    if alpha is None:
        return 1.0 if cost is None else 0.5
    return validate.real("alpha", alpha, least=0.0, most=1.0)


def convert_list_to_pair(cost: Any) -> Any:
    """A linear cost with a list of two feature arrays made a tuple."""
    pair = isinstance(cost, list) and len(cost) == 2 and all(getattr(side, "ndim", 0) == 2 for side in cost)
    return tuple(cost) if pair else cost


def check_cost(cost: Any, n: int, k: int) -> tuple[FactoredCost | None, float]:
    """A float64 linear cost (N, K), and its scale; from a matrix, a pair of feature arrays, or a `FeatureCost`."""
    if cost is None:
        return None, 1.0
    if isinstance(cost, tuple):
        if len(cost) != 2:
            raise ValueError(f"cost must be a matrix (N, K) or a pair of feature arrays, got {len(cost)} entries")
        cost = FeatureCost(*cost)
    if isinstance(cost, FeatureCost):
        return cost.factored(n, k)
    return FactoredCost.from_matrix(torch.from_numpy(validate.cost("cost", cost, n, k))), 1.0


def make_model(
    masses: tuple[Tensor, Tensor],
    marginals: Marginals,
    alpha: float,
    epsilon: float,
    cost: FactoredCost | None,
    loss: SeparableLoss,
    device: torch.device,
) -> tuple[Model, float]:
    """The model in masses that are scaled so that plans have a mass of about one, and that scale."""
    one, other = (mass.sum() for mass in masses)
    sums, total = (float(one.numpy()), float(other.numpy())), marginals.total
    if total is not None and total > min(sums) * (1 + validate.MASS_TOLERANCE):
        raise ValueError(
            f"marginals must ask for at most the smaller of sum(p) = {sums[0]:g} and sum(q) = {sums[1]:g}, got "
            f"Partial(mass={total:g})"
        )
    if total is not None and total < LEAST_PART * min(sums):
        raise ValueError(f"marginals must ask for {LEAST_PART:g} of the smaller mass at least, got {marginals!r}")
    if marginals.balanced:
        validate.same_mass(*sums)
    divisor, ends = mass_scales(marginals, one, other)
    scale = float(divisor.numpy())
    ranges.shares(sums, scale)
    if alpha > 0:
        ranges.loss(loss.name, largest_loss(loss))
    p, q = (to_device(side / end, device) for side, end in zip(masses, ends, strict=True))
    beta = (1 - alpha) / scale
    model = Model(
        p,
        q,
        epsilon=epsilon,
        marginals=marginals if total is None else Partial(1.0),
        alpha=alpha,
        beta=beta,
        cost=None if cost is None else cost.to(device),
        loss=loss,
        log_mass_scale=math.log(scale),
    )
    if cost is not None:
        ranges.cost(_reach(model))
        ranges.weight(beta, largest_entry(cost))
    return model, scale


def add_rules(model: Model, rules: Rules, strength: float) -> Model:
    """The model with rules of a strength in the units of its masses, infinite where they are constraints."""
    device, price = model.p.device, min(model.hard_penalty, strength)
    penalty = FactoredCost.weighted_sum([rules.cost.to(device)], [price])
    points, groups = ((x.to(device), y.to(device)) for x, y in (rules.points, rules.groups))
    return replace(model, strength=strength, penalty=penalty, price=price, points=points, groups=groups)


def check_resolution(model: Model, spaces: Sequence[InputSpace], options: GWOptions, advice: str) -> None:
    """Refuse an epsilon at which float64 could not add up potentials, as far as that is known before any distance is:
    of linear costs, and of distances with a given largest. Potentials of a solve are checked again when it ends."""
    scale, reach = options.spaces.scale, _reach(model)
    # A potential is a smallest cost, so a few large entries do it no harm; they do to marginals that are rounded.
    cost = f"{advice}; or rescale cost, or take a larger alpha"
    ranges.epsilon_ratio("cost", reach, model.epsilon, cost, 1 / torch.finfo(torch.float64).eps)
    if reach > 0 and model.cost is not None and model.cost.extra is not None and not model.marginals.free_mass:
        cheapest = _reach(model, _cheapest(model.cost, model.masses))
        typical = None if model.alpha > 0 else _reach(model, _typical(model.cost.extra))
        ranges.outliers(reach, cheapest, model.epsilon, typical, options.sinkhorn.tol)
    ranges.epsilon_ratio("costs of 1", 1.0, model.epsilon, advice, 1 / ranges.LEAST_EPSILON)
    if not isinstance(scale, float | tuple):
        given = [largest_of(each.data) / each.data.scale if each.kind == "provider" else 1.0 for each in spaces]
        check_distance_resolution(model, max(given), advice)


def check_distance_resolution(model: Model, largest: float, advice: str) -> None:
    """Refuse an epsilon beside which losses of scaled distances up to ``largest`` are too much for float64."""
    if model.loss is SQUARE or largest <= 1:
        loss = largest**2 if model.loss is SQUARE else largest_loss(model.loss)
        reach = model.alpha / float(model.weight(1.0)) * loss
        ranges.epsilon_ratio("squared distances" if model.loss is SQUARE else "losses", reach, model.epsilon, advice)


def compute_least_epsilon(model: Model, largest: float) -> float:
    """The least epsilon that is resolved beside scaled distances up to ``largest``, with some room."""
    loss = largest**2 if model.loss is SQUARE else largest_loss(model.loss)
    return 2 * max(model.alpha / float(model.weight(1.0)) * loss / ranges.LARGEST_RATIO, ranges.LEAST_EPSILON)


def _reach(model: Model, entry: float | None = None) -> float:
    """An entry of the linear cost, the largest unless given, in the units of squared distances."""
    if model.cost is None:
        return 0.0
    return model.beta * (largest_entry(model.cost) if entry is None else entry) / (2 * float(model.weight(1.0)))


def _typical(cost: Tensor) -> float:
    """The lower quartile of the entries of a cost that are more than rounding leaves of zero; some must be."""
    free = int((cost <= ROUNDED * float(cost.max())).sum())
    place, values = free + (cost.numel() - free + 3) // 4, cost.flatten()
    # GPUs have no deterministic selection.
    return float(values.sort().values[place - 1] if values.is_cuda else values.kthvalue(place).values)


def _cheapest(cost: FactoredCost, masses: tuple[Tensor, Tensor]) -> float:
    """What a mass of one costs at least, a lower bound: with the cheapest match of each point of a side."""
    found, free = 0.0, [torch.zeros_like(mass) for mass in masses]
    for side, (p, q), b in zip((cost, cost.T), (masses, masses[::-1]), free[::-1], strict=True):
        a = c_transform(side, b, q).cpu()  # where sums have one order
        found = max(found, float(dual_bound(a, b.cpu(), p.cpu(), q.cpu(), total=1.0)))
    return found


def explain_unresolved_features(cost: Any, numbers: tuple[Tensor, Tensor] | None = None) -> str:
    """Why squared distances between features do not tell most points apart, and what to do; nothing where they do.

    numbers : (N,), (K,), what the points of both sides are called; None where they are counted from 0.
    """
    if isinstance(cost, tuple):
        cost = FeatureCost(*cost)
    if not isinstance(cost, FeatureCost) or cost.metric != "sqeuclidean":
        return ""
    x, y = (validate.points("cost", side, least=1) for side in (cost.X, cost.Y))
    centre = (x.sum(0) + y.sum(0)) / (len(x) + len(y))
    for side, features, called in zip("XY", (x, y), numbers or (None, None), strict=True):
        few = torch.from_numpy(features[pick_evenly(len(features)).numpy()] - centre)
        wanted = float(measure_resolution(few, few.new_ones(few.shape[1])))
        if wanted < RESOLUTION:
            far = int(((features - centre) ** 2).sum(1).argmax())
            far = far if called is None else int(called[far])
            return (
                f"float64 does not tell most of the cost features of {side} apart: squares of their differences are "
                f"{wanted:.1g} of squares; the features of point {far} are farthest from the others: "
                f"leave out such points, or clip the features"
            )
    return ""


def tensors_of(cost: Any) -> tuple[Any, ...]:
    """The arrays of a linear cost, whose kind and device a result follows."""
    return features_of(cost) or (cost,)

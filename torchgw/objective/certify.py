"""Value, Frank-Wolfe gap and lower bound of a stored plan: exact wherever distances and memory allow."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling
from torchgw.diagnostics.evidence import Certificate
from torchgw.losses import SQUARE
from torchgw.objective.bounds import first_bound, frank_wolfe_gap, second_bound
from torchgw.objective.exact import ExactGradient
from torchgw.objective.linearise import linearise
from torchgw.objective.model import Model, Values, mean_cost
from torchgw.objective.sampled import sample_anchors, sampled_cost
from torchgw.objective.value import Objective, affordable, sampled_objective
from torchgw.options import GWOptions
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.types import DistanceProvider

CERTIFICATE_ANCHORS = 1000
ROUNDING_ERROR = 1e-10  # of the largest squared distance


def certify_stored(
    plan: Tensor,
    dual: Tensor,
    source: DistanceProvider,
    target: DistanceProvider,
    model: Model,
    options: GWOptions,
    generator: torch.Generator,
    unit: float,
) -> tuple[Objective, Values, Certificate]:
    """Of a plan (N, K), with column potentials (K,) in units of cost from its last linear problem.

    ``unit`` is the largest squared distance."""
    stored = DenseCoupling(plan)
    rows, columns = model.marginals_of(stored)
    exact = affordable(source, target, options.max_memory)
    if exact:
        gradient = ExactGradient(source, target, rows, columns, model.loss)
        cost = gradient(stored, rows)
        seen = float(mean_cost(cost, stored, rows, columns))
        quadratic = Objective(seen, True, 0.0)
    else:
        mass = float(rows.sum())
        found = sampled_objective(stored, rows, source, target, generator)
        quadratic = Objective(found.value * mass**2, False, found.error * mass**2)
        pairs = sample_anchors(stored, rows, CERTIFICATE_ANCHORS, generator)
        cost = FactoredCost.weighted_sum([sampled_cost(source, target, pairs)], [mass])
        seen = float(mean_cost(cost, stored, rows, columns))
    if model.loss is SQUARE:  # a sum of squares, but for rounding
        quadratic = Objective(max(quadratic.value, 0.0), quadratic.exact, quadratic.error)
    lower = 0.0
    if model.fixed and model.loss is SQUARE and model.alpha > 0:
        lower = second_bound(source, target, model.p, model.q)
        if exact:
            lower = max(lower, first_bound(gradient.a, gradient.b, model.p, model.q))
        lower = max(lower - ROUNDING_ERROR * unit, 0.0)  # an isometric copy has both at zero, up to rounding
    values = model.values(quadratic.value, stored)
    lower = min(model.alpha * lower + linear_bound(model), values.total)  # above it by rounding alone
    expected = model.expected(seen, values.linear, values.violation * model.price)
    cost = linearise(model, cost, model.linear(cost.U.dtype))
    return (
        quadratic,
        values,
        Certificate(
            stationarity=gap(cost, expected, dual, (rows, columns), model),
            stationarity_exact=exact,
            lower_bound=lower,
            gap=max(values.total - lower, 0.0),
        ),
    )


def gap(cost: FactoredCost, value: float, dual: Tensor, marginals: tuple[Tensor, Tensor], model: Model) -> float:
    """The Frank-Wolfe gap of F without its entropy, bounded by dual potentials; NaN where the mass is free.

    ``cost`` is Chat at a plan T with these marginals, ``value`` <Chat, T>, ``dual`` (K,) its column potentials. A
    gradient of F is 2 w Chat, to which a relaxed marginal mu adds 2 w rho log(mu / p); the plans that it points to may
    have any such marginal, whose potentials are zero.
    """
    (p, q), weight = model.masses, float(model.weight(1.0))
    if model.marginals.free_mass:
        return math.nan
    if model.fixed or model.marginals.total is not None:
        return weight * float(frank_wolfe_gap(value, cost, p, q, dual, model.marginals.total))
    if model.marginals.weights[0] < math.inf:
        cost = FactoredCost(cost.b, cost.a, cost.V, cost.U, None if cost.extra is None else cost.extra.T)
        p, q, marginals = q, p, marginals[::-1]
    rho, columns, tiny = min(model.marginals.weights), marginals[1], torch.finfo(q.dtype).tiny
    slope = rho * (columns.clamp_min(tiny) / q.clamp_min(tiny)).log() if rho > 0 else torch.zeros_like(q)
    cost = replace(cost, b=cost.b + slope)
    return weight * float(frank_wolfe_gap(value + float(slope @ columns), cost, p, q, torch.zeros_like(q)))


def linear_bound(model: Model) -> float:
    """A lower bound of beta <M, T> + <P, T>: what each point would pay alone, where its mass must go somewhere.

    Penalties that stand for constraints are no part of the value.
    """
    if model.cost is None and model.penalty is None:
        return 0.0
    counted = model if model.strength < math.inf else replace(model, penalty=None)
    linear = counted.linear(torch.float64)
    if linear is None or model.marginals.free_mass or model.marginals.total is not None:
        return 0.0
    rows, columns = (weight == math.inf for weight in model.marginals.weights)
    least_row, least_column = _least(linear)
    bounds = [float(model.p @ least_row)] if rows else []
    bounds += [float(model.q @ least_column)] if columns else []
    return max(bounds)


def _least(cost: FactoredCost) -> tuple[Tensor, Tensor]:
    """The smallest entries of the rows and of the columns, read in blocks."""
    n, k = len(cost.a), len(cost.b)
    rows, columns = cost.a.new_empty(n), cost.b.new_full((k,), torch.inf)
    for start in range(0, n, step := max(1, 2**22 // k)):
        block = cost.rows(slice(start, start + step))
        rows[start : start + step] = block.amin(1)
        columns = torch.minimum(columns, block.amin(0))
    return rows, columns

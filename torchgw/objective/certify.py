"""Value, Frank-Wolfe gap and lower bound of a plan: exact wherever distances and memory allow.

A certificate needs <C(T), T>, C(T) itself, exact or of sampled pairs, the marginals, and column potentials of the last
linear problem. Stored plans are read whole. Of streamed plans between factored spaces, D_X = F diag(s) F^T and
D_Y = G diag(t) G^T, one small matrix M = F^T T G is enough, and the gap is estimated from a sample of rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling
from torchgw.diagnostics.evidence import Certificate
from torchgw.kernels.sampling import draw
from torchgw.losses import SQUARE
from torchgw.objective.bounds import c_transform, dual_bound, frank_wolfe_gap, lowest_cost, second_bound
from torchgw.objective.exact import ExactGradient, assemble_factored_cost, factored_quadratic
from torchgw.objective.linearise import linearise
from torchgw.objective.model import Model, Values, mean_cost
from torchgw.objective.sampled import Control, sample_anchors, sampled_cost
from torchgw.objective.value import Objective, is_affordable, objective, sampled_objective
from torchgw.runtime.ranks import ALONE, Ranks
from torchgw.runtime.transfer import to_host
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.types import DistanceProvider

CERTIFICATE_ANCHORS = 1000
SAMPLED_ROWS = 1000
ROUNDING_ERROR, FLOAT32_ERROR = 1e-10, 1e-5  # of the largest squared distance


@dataclass(frozen=True)
class PlanStatistics:
    """The cost of a plan T and its inner products, in units of the scaled squared distance, as numbers or as tensors ()
    that nothing has waited for.

    quadratic : <C(T), T>, exact or an estimate from pairs.
    cost : C(T) (N, K), exact or an estimate from anchors.
    exact : whether the cost is exact.
    expected : <cost, T>: of a stored plan with this very cost, elsewhere the value of ``quadratic``.
    means : of the squares of each point's distances, (N,), (K,), None where the cost is not exact.
    marginals : of T, (N,), (K,).
    linear, penalty : <M, T>, <P, T>; zero where the model has none.
    """

    quadratic: Objective
    cost: FactoredCost
    means: tuple[Tensor, Tensor] | None
    expected: Tensor | float
    marginals: tuple[Tensor, Tensor]
    linear: Tensor | float = 0.0
    penalty: Tensor | float = 0.0


def read_dense_plan(
    stored: BlockCoupling,
    spaces: tuple[DistanceProvider, DistanceProvider],
    model: Model,
    max_memory: int,
    generator: torch.Generator,
    cost: FactoredCost | None = None,
) -> PlanStatistics:
    """Of a plan (N, K) that is stored, has few entries or a low rank. Its exact ``cost`` may be known, with means of
    squares as row and column terms."""
    rows, columns = model.marginals_of(stored)
    means = None if cost is None else (cost.a, cost.b)
    if cost is None and is_affordable(*spaces, max_memory):
        gradient = ExactGradient(*spaces, rows, columns, model.loss)
        means, cost = (gradient.a, gradient.b), gradient(stored, rows)
    if cost is None:
        quadratic = sampled_objective(stored, rows, *spaces, generator)
        pairs = sample_anchors(stored, rows, CERTIFICATE_ANCHORS, generator)
        cost = FactoredCost.weighted_sum([sampled_cost(*spaces, pairs)], [float(rows.sum())])
        expected = mean_cost(cost, stored, rows, columns)
    else:
        expected = mean_cost(cost, stored, rows, columns)
        quadratic = Objective(expected, True, 0.0)
    if model.loss is SQUARE:  # a sum of squares, but for rounding
        quadratic = replace(quadratic, value=_not_negative(quadratic.value))
    linear, penalty = (
        0.0 if part is None else mean_cost(part, stored, rows, columns) for part in (model.cost, model.penalty)
    )
    return PlanStatistics(quadratic, cost, means, expected, (rows, columns), linear, penalty)


def read_block_plan(
    coupling: BlockCoupling | None,
    product: Tensor | None,
    spaces: tuple[DistanceProvider, DistanceProvider],
    controls: tuple[Control, Control] | None,
    marginals: tuple[Tensor, Tensor],
    max_memory: int,
    generator: torch.Generator,
    ranks: Ranks = ALONE,
) -> PlanStatistics:
    """Of a plan that is read in blocks, from ``product`` = F^T T G (r, r') where the controls are the spaces' own
    factors, or the ranks' shares of them, and nobody asks the coupling. Elsewhere all distances may be computed where
    they fit ``max_memory``. The caller adds the linear parts of its model."""
    means = None
    if product is None or controls is None:
        assert coupling is not None
        quadratic = objective(coupling, spaces, marginals, max_memory, generator)
        cost = sampled_cost(*spaces, sample_anchors(coupling, marginals[0], CERTIFICATE_ANCHORS, generator))
    else:
        x, y = controls
        value = factored_quadratic(product, (x.F, x.signs), (y.F, y.signs), *marginals, ranks)
        quadratic = Objective(_not_negative(value), True, 0.0)
        means = x.mean_squares, y.mean_squares
        cost = assemble_factored_cost((x.F, x.signs), (y.F, y.signs), product, *means)
    return PlanStatistics(quadratic, cost, means, quadratic.value, marginals)


def _not_negative(value: Tensor | float) -> Tensor | float:
    return value.clamp_min(0.0) if isinstance(value, Tensor) else max(value, 0.0)


def certify(
    found: PlanStatistics,
    dual: Tensor,
    spaces: tuple[DistanceProvider, DistanceProvider],
    model: Model,
    unit: float,
    sample: torch.Generator | None = None,
    ranks: Ranks = ALONE,
) -> tuple[Values, Certificate]:
    """The parts of F, and what is certain of a plan; the host waits once, but for linear and relaxed parts.

    ``dual`` (K,) are column potentials in units of cost, ``unit`` the largest squared distance. With a ``sample`` the
    gap is estimated from 1000 rows, for hard marginals, and costs are not searched for a bound.
    """
    rows, columns = found.marginals
    bounded = model.has_hard_marginals and model.loss is SQUARE and model.alpha > 0
    bound = second_bound(*spaces, model.p, model.q, found.means) if bounded else 0.0
    problem = _linear_problem(found, dual, model, sample, ranks)
    quadratic, linear, penalty, expected, lower, *sides = _to_floats(
        found.quadratic.value, found.linear, found.penalty, found.expected, bound, *(problem or ())
    )
    values = model.values_from_parts(quadratic, linear, penalty, rows, columns)
    error = ROUNDING_ERROR if found.cost.U.dtype == torch.float64 else FLOAT32_ERROR
    # An isometric copy has value and bound at zero, up to rounding.
    lower = model.alpha * max(lower - error * unit, 0.0)
    if sample is None:
        lower += linear_bound(model)
        rounding = error * (unit + abs(values.total))
        lower = min(lower, values.total) if lower <= values.total + rounding else lower  # no bound hides a false one
    return values, Certificate(
        stationarity=_stationarity(model, found, expected, linear, penalty, *sides) if sides else math.nan,
        stationarity_exact=found.means is not None and sample is None,
        lower_bound=lower,
        gap=max(values.total - lower, 0.0),
    )


def _to_floats(*given: Tensor | float) -> list[float]:
    """All of them as numbers, those of a device in one transfer."""
    read = iter(to_host(*(each for each in given if isinstance(each, Tensor))))
    return [float(next(read)) if isinstance(each, Tensor) else each for each in given]


def _stationarity(
    model: Model, found: PlanStatistics, expected: float, linear: float, penalty: float, lowest: float, beside: float
) -> float:
    """The Frank-Wolfe gap of F without its entropy, by inner products of the plan and its `_linear_problem`."""
    weight = float(model.weight(1.0))
    value = (model.alpha * expected + (model.beta * linear + penalty) / 2) / weight  # <Chat, T>
    most, held = math.inf, any(0 < rho < math.inf for rho in model.marginals.weights)
    if model.loss is SQUARE and found.means is not None and not held:
        most = 2 * weight * max(value, 0.0)  # what is summed are squares and costs, so no plan costs less than nothing
    return min(weight * float(frank_wolfe_gap(value + beside, torch.tensor(lowest, dtype=torch.float64))), most)


def _linear_problem(
    found: PlanStatistics, dual: Tensor, model: Model, sample: torch.Generator | None, ranks: Ranks
) -> tuple[Tensor, Tensor | float] | None:
    """What every plan costs at least in the linear problem around a plan, by dual potentials, and what that plan costs
    there beside <Chat, T>; None where the mass is free.

    A gradient of F is 2 w Chat, to which a relaxed marginal mu adds 2 w rho log(mu / p); the plans that it points to
    may have any such marginal, whose potentials are zero.
    """
    (p, q), total = model.masses, model.marginals.total
    beside: Tensor | float = 0.0
    if model.marginals.free_mass or (sample is not None and not model.has_hard_marginals):
        return None
    cost = linearise(model, found.cost, model.linear(found.cost.U.dtype))
    if sample is not None:
        index = draw(p, SAMPLED_ROWS, sample)
        some = FactoredCost(cost.a[index], ranks.own(cost.b), ranks.gather(cost.U, len(p), index), cost.V)
        a = ranks.least(c_transform(some, ranks.own(dual), ranks.own(q)))
        return dual_bound(a, dual, (p.sum() / SAMPLED_ROWS).expand(SAMPLED_ROWS), q), beside
    if not model.has_hard_marginals and total is None:
        sums, rho = found.marginals[1], min(model.marginals.weights)
        if model.marginals.weights[0] < math.inf:
            cost, p, q, sums = cost.T, q, p, found.marginals[0]
        tiny, dual = torch.finfo(q.dtype).tiny, torch.zeros_like(q)
        if rho > 0:
            slope = rho * (sums.clamp_min(tiny) / q.clamp_min(tiny)).log()
            cost, beside = replace(cost, b=cost.b + slope), slope @ sums
    return lowest_cost(cost, p, q, dual, total), beside


def linear_bound(model: Model) -> float:
    """A lower bound of beta <M, T> + <P, T>: each row, or each column, at its smallest cost, under a hard marginal.

    Penalties that stand for constraints are left out, as they are of the value.
    """
    if model.cost is None and model.penalty is None:
        return 0.0
    counted = model if model.strength < math.inf else replace(model, penalty=None)
    linear = counted.linear(torch.float64)
    if linear is None or model.marginals.free_mass or model.marginals.total is not None:
        return 0.0
    bounds = []
    for rho, cost, mass, other in (
        (model.marginals.weights[0], linear, model.p, model.q),
        (model.marginals.weights[1], linear.T, model.q, model.p),
    ):
        if rho == math.inf:
            free = torch.zeros_like(other)
            bounds.append(float(dual_bound(c_transform(cost, free, other), free, mass, other)))
    return max(bounds)

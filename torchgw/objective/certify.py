"""Value, Frank-Wolfe gap and lower bound of a plan: exact wherever distances
and memory allow.

The quadratic part of a plan is <C(T), T>. Where distances or memory forbid
that, M pairs drawn from the plan give the unbiased estimate m^2 mean_{m != m'}
(D_X[i_m, i_m'] - D_Y[j_m, j_m'])^2, m the mass of T, with the standard error of
a U-statistic (W. Hoeffding, 1948).

A certificate needs <C(T), T>, C(T) itself, exact or of sampled pairs, the
marginals, and column potentials of the last linear problem. Stored plans are
read whole. Of streamed plans between factored spaces, D_X = F diag(s) F^T and
D_Y = G diag(t) G^T, one small matrix M = F^T T G is enough, and the gap is
estimated from a sample of rows.
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
from torchgw.objective.exact import ExactGradient, Spaces, assemble_factored_cost, factored_quadratic
from torchgw.objective.linearise import linearise
from torchgw.objective.model import Model, Values, mean_cost
from torchgw.objective.sampled import Control, sample_anchors, sampled_cost
from torchgw.runtime.ranks import ALONE, Ranks
from torchgw.runtime.transfer import to_host
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.types import Coupling, DistanceProvider, multiplies

SEARCHED_ROWS, SAMPLED_PAIRS = 5000, 1000
CERTIFICATE_ANCHORS, SAMPLED_ROWS = 1000, 1000
ROUNDING_ERROR, FLOAT32_ERROR = 1e-10, 1e-5  # of the largest squared distance


@dataclass(frozen=True)
class Objective:
    """A quadratic part, in units of the scaled squared distance.

    value : <C(T), T>, a number or a tensor () that nothing has waited for.
    exact : whether it is no estimate.
    error : its standard error, 0 when exact.
    """

    value: Tensor | float
    exact: bool = True
    error: float = 0.0


@dataclass(frozen=True)
class PlanStatistics:
    """The cost of a plan T and its inner products, in units of the scaled
    squared distance, as numbers or as tensors () that nothing has waited for.

    quadratic : <C(T), T>, exact or an estimate from pairs.
    cost : C(T) (N, K), exact or an estimate from anchors.
    expected : <cost, T>: of a stored plan with this very cost, elsewhere the
        value of ``quadratic``.
    means : of the squares of each point's distances, (N,), (K,), None where the
        cost is not exact.
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


def is_affordable(source: DistanceProvider, target: DistanceProvider, max_memory: int) -> bool:
    """Whether every distance of the spaces without factors is at hand or
    searched soon, and fits the memory."""
    plain = [space for space in (source, target) if space.factors() is None]
    if any(not space.stored and space.size > SEARCHED_ROWS for space in plain):
        return False
    if any(8 * space.size**2 > max_memory for space in plain if not multiplies(space)):
        return False
    dense = 8 * 3 * source.size * target.size if len(plain) == 2 else 0
    return dense <= max_memory


def objective(
    coupling: Coupling, spaces: Spaces, marginals: tuple[Tensor, Tensor], max_memory: int, generator: torch.Generator
) -> Objective:
    """Of a plan with these marginals: exact where all distances can be had
    within the memory, else sampled."""
    if is_affordable(*spaces, max_memory):
        return exact_objective(coupling, *spaces, *marginals)
    return sampled_objective(coupling, marginals[0], *spaces, generator)


def exact_objective(
    coupling: Coupling, source: DistanceProvider, target: DistanceProvider, p: Tensor, q: Tensor
) -> Objective:
    """The objective of a plan with these marginals: nothing of the size of the
    plan is stored where a space has factors."""
    x, y = (space.to(p.device, p.dtype) for space in (source, target))
    left, right = x.factors(), y.factors()
    if left is not None and right is not None:
        product = left[0].T @ coupling.apply(right[0], 1)
        value = factored_quadratic(product, left, right, p, q)
    else:
        cost = ExactGradient(x, y, p, q)(coupling, p)
        value = mean_cost(cost, coupling, p, q)
    return Objective(max(float(value), 0.0))


def sampled_objective(
    coupling: Coupling, p: Tensor, source: DistanceProvider, target: DistanceProvider, generator: torch.Generator
) -> Objective:
    """Estimate from 1000 pairs of the plan with row marginal p (N,): 1000 rows
    of each space, no dense matrix."""
    pairs = sample_anchors(coupling, p, SAMPLED_PAIRS, generator)
    kernel = (source.rows(pairs.rows)[:, pairs.rows] - target.rows(pairs.columns)[:, pairs.columns]).square()
    kernel.fill_diagonal_(0.0)
    projections, unit = kernel.sum(1) / (SAMPLED_PAIRS - 1), p.sum() ** 2
    error = 2 * projections.std() / SAMPLED_PAIRS**0.5
    value, error = map(float, to_host(projections.mean() * unit, error * unit))
    return Objective(value, False, error)


def read_dense_plan(
    stored: BlockCoupling,
    spaces: Spaces,
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
        cost = sampled_cost(*spaces, pairs).times(float(rows.sum()))
        expected = mean_cost(cost, stored, rows, columns)
    else:
        expected = mean_cost(cost, stored, rows, columns)
        # A sum of squares is negative by rounding alone.
        quadratic = Objective(expected.clamp_min(0.0) if model.loss is SQUARE else expected)
    linear, penalty = (
        0.0 if part is None else mean_cost(part, stored, rows, columns) for part in (model.cost, model.penalty)
    )
    return PlanStatistics(quadratic, cost, means, expected, (rows, columns), linear, penalty)


def read_block_plan(
    coupling: BlockCoupling | None,
    product: Tensor | None,
    spaces: Spaces,
    controls: tuple[Control, Control] | None,
    marginals: tuple[Tensor, Tensor],
    max_memory: int,
    generator: torch.Generator,
    ranks: Ranks = ALONE,
) -> PlanStatistics:
    """Of a plan that is read in blocks, from ``product`` = F^T T G (r, r')
    where the controls are the spaces' own factors, or the ranks' shares of
    them, and nobody asks the coupling. Elsewhere all distances may be computed
    where they fit ``max_memory``. The caller adds the linear parts of its
    model."""
    means = None
    if product is None or controls is None:
        assert coupling is not None
        quadratic = objective(coupling, spaces, marginals, max_memory, generator)
        cost = sampled_cost(*spaces, sample_anchors(coupling, marginals[0], CERTIFICATE_ANCHORS, generator))
    else:
        x, y = controls
        left, right = (x.F, x.signs), (y.F, y.signs)
        value = factored_quadratic(product, left, right, *marginals, ranks)
        quadratic = Objective(value.clamp_min(0.0))
        means = x.mean_squares, y.mean_squares
        cost = assemble_factored_cost(left, right, product, *means)
    return PlanStatistics(quadratic, cost, means, quadratic.value, marginals)


def certify(
    found: PlanStatistics,
    dual: Tensor,
    spaces: Spaces,
    model: Model,
    unit: float,
    sample: torch.Generator | None = None,
    ranks: Ranks = ALONE,
) -> tuple[Values, Certificate]:
    """The parts of F, and what is certain of a plan; the host waits once, but
    for linear and relaxed parts.

    ``dual`` (K,) are column potentials in units of cost, ``unit`` the largest
    squared distance. With a ``sample`` the gap is estimated from 1000 rows, for
    hard marginals, and costs are not searched for a bound.
    """
    rows, columns = found.marginals
    bounded = model.has_hard_marginals and model.loss is SQUARE and model.alpha > 0
    bound = second_bound(*spaces, model.p, model.q, found.means) if bounded else 0.0
    problem = _linear_problem(found, dual, model, sample, ranks)
    told = (found.quadratic.value, found.linear, found.penalty, found.expected, bound, *(problem or ()))
    # Filled, not sent: for what is sent a device is waited for.
    read = to_host(*(each if isinstance(each, Tensor) else model.p.new_full((), each) for each in told))
    quadratic, linear, penalty, expected, lower, *sides = map(float, read)
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


def _stationarity(
    model: Model, found: PlanStatistics, expected: float, linear: float, penalty: float, lowest: float, beside: float
) -> float:
    """The Frank-Wolfe gap of F without its entropy, by inner products of the
    plan and its `_linear_problem`."""
    weight = float(model.weight(1.0))
    value = (model.alpha * expected + (model.beta * linear + penalty) / 2) / weight  # <Chat, T>
    most, held = math.inf, any(0 < rho < math.inf for rho in model.marginals.weights)
    if model.loss is SQUARE and found.means is not None and not held:
        most = 2 * weight * max(value, 0.0)  # what is summed are squares and costs, so no plan costs less than nothing
    return min(weight * float(frank_wolfe_gap(value + beside, torch.tensor(lowest, dtype=torch.float64))), most)


def _linear_problem(
    found: PlanStatistics, dual: Tensor, model: Model, sample: torch.Generator | None, ranks: Ranks
) -> tuple[Tensor, Tensor | float] | None:
    """What every plan costs at least in the linear problem around a plan, by
    dual potentials, and what that plan costs there beside <Chat, T>; None where
    the mass is free.

    A gradient of F is 2 w Chat, to which a relaxed marginal mu adds 2 w rho
    log(mu / p); the plans that it points to may have any such marginal, whose
    potentials are zero.
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
    """A lower bound of beta <M, T> + <P, T>: each row, or each column, at its
    smallest cost, under a hard marginal.

    Penalties that stand for constraints are left out, as they are of the value.
    """
    counted = model if model.strength < math.inf else replace(model, penalty=None)
    linear, marginals = counted.linear(torch.float64), model.marginals
    if linear is None or marginals.free_mass or marginals.total is not None:
        return 0.0
    rows = marginals.weights[0], linear, model.p, model.q
    columns = marginals.weights[1], linear.T, model.q, model.p
    return max(
        float(lowest_cost(cost, mass, other, torch.zeros_like(other)))
        for rho, cost, mass, other in (rows, columns)
        if rho == math.inf
    )

"""Value, stationarity and lower bound of plans that are not stored.

With exact marginals the objective needs one small matrix of the plan, M = F^T T G for distances F diag(s) F^T and
G diag(t) G^T,

    <C(T), T> = sum s_k s_l (F^T P F)_kl^2 + sum t_k t_l (G^T Q G)_kl^2 - 2 sum s_k t_l M_kl^2,

with P and Q the diagonal matrices of the masses.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling
from torchgw.diagnostics.evidence import Certificate
from torchgw.kernels.sampling import draw
from torchgw.objective.bounds import first_bound, frank_wolfe_gap, second_bound
from torchgw.objective.certify import CERTIFICATE_ANCHORS, ROUNDING_ERROR
from torchgw.objective.linearise import linearise
from torchgw.objective.model import Values
from torchgw.objective.sampled import sample_anchors, sampled_cost
from torchgw.objective.value import Objective, affordable, exact_objective, sampled_objective
from torchgw.search.coarsen import Side, cost_of_product
from torchgw.strategies.large_problem import Large

SAMPLED_ROWS = 1000
FLOAT32_ERROR = 1e-5  # of the largest squared distance
FEW_POINTS = 300
BLOCK_POINTS = 2**16


class Read(NamedTuple):
    """What was read of a plan: F^T T G (r, r') where both spaces have factors, its marginals (N,), (K,), <M, T> and
    <P, T>."""

    product: Tensor | None
    marginals: tuple[Tensor, Tensor]
    linear: float
    penalty: float


def certify(
    large: Large, coupling: BlockCoupling, read: Read, dual: Tensor, known: Objective | None = None
) -> tuple[Objective, Values, Certificate]:
    """Quadratic part, all parts, Frank-Wolfe gap estimated from 1000 rows, and lower bound.

    ``dual`` (K,) are column potentials in units of cost; ``known`` is the quadratic part where it is known better. The
    gap is NaN where a marginal is relaxed or bounded.
    """
    x, y, p, q = large.x, large.y, large.p, large.q
    model, dtype, lower = large.model, x.control.F.dtype, 0.0
    rows, columns = (p, q) if model.fixed else read.marginals
    if read.product is not None:
        squares = _squares(x, rows) + _squares(y, columns)
        cross = (x.control.signs.double()[:, None] * read.product.square() * y.control.signs.double()).sum()
        quadratic = known or Objective(max(float(squares - 2 * cross), 0.0), True, 0.0)
        cost = cost_of_product(read.product, x, y)
        if model.fixed:
            lower = first_bound(cost.a.double(), cost.b.double(), p, q)
    else:
        quadratic = objective(large, coupling, rows, columns)
        anchors = sample_anchors(coupling, rows, CERTIFICATE_ANCHORS, large.generator)
        cost = sampled_cost(x.space, y.space, anchors)
    values = model.summed(quadratic.value, read.linear, read.penalty, rows, columns)
    gap = math.nan
    if model.fixed:
        lower = max(lower, second_bound(x.space, y.space, p, q))
        error = ROUNDING_ERROR if dtype == torch.float64 else FLOAT32_ERROR
        lower = max(lower - error * large.unit, 0.0)
        chat, index = linearise(model, cost, model.linear(cost.U.dtype)), draw(p, SAMPLED_ROWS, large.generator)
        expected = model.expected(quadratic.value, read.linear, read.penalty)
        rows_seen = p.new_full((SAMPLED_ROWS,), float(p.sum()) / SAMPLED_ROWS)
        found = frank_wolfe_gap(expected, chat.taken(index, slice(None)), rows_seen, q, dual)
        gap = float(model.weight(1.0)) * float(found)
    lower *= model.alpha
    return (
        quadratic,
        values,
        Certificate(stationarity=gap, stationarity_exact=False, lower_bound=lower, gap=max(values.total - lower, 0.0)),
    )


def objective(large: Large, coupling: BlockCoupling, rows: Tensor, columns: Tensor) -> Objective:
    """The quadratic part where a space has no factors: exact where all distances can be had, else sampled."""
    x, y, mass = large.x, large.y, float(rows.sum())
    small = max(len(rows), len(columns)) <= FEW_POINTS
    if (large.exact or small) and affordable(x.space, y.space, large.options.max_memory):
        return exact_objective(coupling, x.space, y.space, rows, columns)
    found = sampled_objective(coupling, rows, x.space, y.space, large.generator)
    return Objective(found.value * mass**2, False, found.error * mass**2)


def dot(one: Tensor, other: Tensor) -> Tensor:
    """one^T other in float64, a block of rows at a time."""
    pairs = zip(torch.split(one, BLOCK_POINTS), torch.split(other, BLOCK_POINTS), strict=True)
    return torch.stack([a.double().T @ b.double() for a, b in pairs]).sum(0)


def _squares(side: Side, sums: Tensor) -> Tensor:
    """The mean square distance of a factored space under masses P, sum s_k s_l (F^T P F)_kl^2."""
    F, signs = side.control.F, side.control.signs.double()
    pairs = zip(torch.split(F, BLOCK_POINTS), torch.split(sums, BLOCK_POINTS), strict=True)
    gram = torch.stack([block.double().T @ (block.double() * mass[:, None]) for block, mass in pairs]).sum(0)
    return (signs[:, None] * gram.square() * signs).sum()

"""Value, stationarity and lower bound of plans that are not stored.

With exact marginals the objective needs one small matrix of the plan, M = F^T T G for distances F diag(s) F^T and
G diag(t) G^T,

    <C(T), T> = sum s_k s_l (F^T P F)_kl^2 + sum t_k t_l (G^T Q G)_kl^2 - 2 sum s_k t_l M_kl^2,

with P and Q the diagonal matrices of the masses.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchgw.couplings import BlockCoupling
from torchgw.evidence import Certificate
from torchgw.gw.anchors import sample_anchors
from torchgw.gw.bounds import first_bound, second_bound
from torchgw.gw.cells import Side, cost_of_product
from torchgw.gw.gradient import sampled_cost
from torchgw.gw.large_problem import Large
from torchgw.gw.objective import Objective, affordable, exact_objective, sampled_objective
from torchgw.gw.outcome import CERTIFICATE_ANCHORS, ROUNDING_ERROR
from torchgw.kernels.sampling import draw

SAMPLED_ROWS = 1000
FLOAT32_ERROR = 1e-5  # of bounds on squared distances up to 1
ROWS_AT_ONCE = 16
BLOCK_POINTS = 2**16


def certify(
    large: Large, coupling: BlockCoupling, product: Tensor | None, dual: Tensor, known: Objective | None = None
) -> tuple[Objective, Certificate]:
    """Value, Frank-Wolfe gap estimated from 1000 rows, and lower bound.

    ``product`` is F^T T G (r, r') where both spaces have factors; ``dual`` (K,) are column potentials in units of cost;
    ``known`` is the value where it is known better.
    """
    x, y, p, q = large.x, large.y, large.p, large.q
    if product is not None:
        squares = _squares(x) + _squares(y)
        cross = (x.control.signs.double()[:, None] * product.square() * y.control.signs.double()).sum()
        value = known or Objective(max(float(squares - 2 * cross), 0.0), True, 0.0)
        cost = cost_of_product(product, x, y)
        lower = max(first_bound(cost.a.double(), cost.b.double(), p, q), second_bound(x.space, y.space, p, q))
    else:
        value = objective(large, coupling)
        cost = sampled_cost(x.space, y.space, sample_anchors(coupling, p, CERTIFICATE_ANCHORS, large.generator))
        lower = second_bound(x.space, y.space, p, q)
    dual = torch.where(q > 0, dual, -torch.inf)
    index = draw(p, SAMPLED_ROWS, large.generator)
    a = torch.empty(len(index), dtype=torch.float64, device=index.device)
    for out, part in zip(torch.split(a, ROWS_AT_ONCE), torch.split(index, ROWS_AT_ONCE), strict=True):
        out.copy_((cost.rows(part) - dual).amin(1))
    bound = float(a.mean() + q[q > 0] @ dual[q > 0])
    lower = max(lower - (ROUNDING_ERROR if x.control.F.dtype == torch.float64 else FLOAT32_ERROR), 0.0)
    return value, Certificate(
        stationarity=max(2 * (value.value - bound), 0.0),
        stationarity_exact=False,
        lower_bound=lower,
        gap=max(value.value - lower, 0.0),
    )


def objective(large: Large, coupling: BlockCoupling) -> Objective:
    """The value of a plan where a space has no factors: exact where all distances can be had, else sampled."""
    x, y = large.x, large.y
    if large.exact and affordable(x.space, y.space, large.options.max_memory):
        return exact_objective(coupling, x.space, y.space, large.p, large.q)
    return sampled_objective(coupling, large.p, x.space, y.space, large.generator)


def dot(one: Tensor, other: Tensor) -> Tensor:
    """one^T other in float64, a block of rows at a time."""
    pairs = zip(torch.split(one, BLOCK_POINTS), torch.split(other, BLOCK_POINTS), strict=True)
    return torch.stack([a.double().T @ b.double() for a, b in pairs]).sum(0)


def _squares(side: Side) -> Tensor:
    """The mean square distance of a factored space, sum s_k s_l (F^T P F)_kl^2."""
    F, signs = side.control.F, side.control.signs.double()
    pairs = zip(torch.split(F, BLOCK_POINTS), torch.split(side.mass, BLOCK_POINTS), strict=True)
    gram = torch.stack([block.double().T @ (block.double() * mass[:, None]) for block, mass in pairs]).sum(0)
    return (signs[:, None] * gram.square() * signs).sum()

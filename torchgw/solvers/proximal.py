"""Proximal point steps on all points: for what landmarks cannot see, a graph's adjacency above all.

    T <- argmin <C(T), S> + epsilon KL(S | T),    over the plans S with marginals p and q,

so that log T gathers -C(T) / epsilon of every step, plus potentials: mirror descent with the entropy. Epsilon falls
from a tenth to a thirtieth of the product plan's energy, so steps become longer. As C(T) moves slowly, a step wants
nearly the same potentials as the last one; begun from those, five Sinkhorn iterations are enough. Begun from nothing,
marginals would drift away, and the steps would end far above.

Sources: H. Xu, D. Luo, H. Zha, L. Carin, "Gromov-Wasserstein learning for graph matching and node embedding", 2019;
Y. Xie, X. Wang, R. Wang, H. Zha, "A fast proximal point method for computing exact Wasserstein distance", 2020.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling
from torchgw.kernels.logsumexp import LOWEST_EXPONENT
from torchgw.objective.linearise import Gradient
from torchgw.objective.model import mean_cost
from torchgw.persist.watch import Watch
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.sinkhorn.loop import cooled
from torchgw.sinkhorn.sides import Side

HOT, COLD = 0.1, 0.03
STEPS = 40
ITERATIONS = 5
MIXED = 0.01


def proximal_plan(gradient: Gradient, p: Tensor, q: Tensor, watch: Watch, first: Tensor | None = None) -> Tensor:
    """A plan (N, K) of mass one, its marginals nearly those of the masses p (N,), q (K,) over their sums.

    From the product plan, or from ``first``, a plan of mass one. O(N K) memory; 40 gradients, and O(N K) work for each.
    """
    p, q = p / p.sum(), q / q.sum()
    row, column = Side(p.log2()), Side(q.log2())
    plan = p[:, None] * q
    unit, cost = product_energy(gradient, p, q)
    if first is not None:
        plan = torch.lerp(first, plan, MIXED)
        cost = gradient(DenseCoupling(plan), p)
    exponent, u, v = plan.log2(), torch.ones_like(p), torch.ones_like(q)
    for step in range(STEPS):
        epsilon = unit * cooled(HOT, COLD, step / (STEPS - 1))
        if watch.cut() or epsilon <= 0:
            break
        exponent += cost.centred(epsilon)[0].stored_score(epsilon, out=plan)
        exponent -= exponent.amax(1, keepdim=True).clamp_min(torch.finfo(p.dtype).min)
        torch.clamp(exponent, min=LOWEST_EXPONENT, out=plan).exp2_()
        for _ in range(ITERATIONS):
            u = row.scaled(row.log_mass, plan @ v)
            v = column.scaled(column.log_mass, u @ plan)
        exponent.add_(u.log2()[:, None]).add_(v.log2())
        plan.mul_(u[:, None]).mul_(v)
        cost = gradient(DenseCoupling(plan), p)
    return plan


def product_energy(gradient: Gradient, p: Tensor, q: Tensor) -> tuple[float, FactoredCost]:
    """<C(T), T> and C(T) for the product plan T of masses of sum one."""
    product = DenseCoupling(p[:, None] * q)
    cost = gradient(product, p)
    return float(mean_cost(cost, product, p, q)), cost

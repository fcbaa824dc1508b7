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

from collections.abc import Callable, Iterable
from typing import TypeAlias

import torch
from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling
from torchgw.kernels.logsumexp import LOWEST_EXPONENT, flush_small
from torchgw.objective.linearise import Gradient
from torchgw.objective.model import mean_cost
from torchgw.persist.watch import Watch
from torchgw.sinkhorn.loop import interpolate_epsilon
from torchgw.sinkhorn.scaling import scale_plans
from torchgw.sinkhorn.sides import MarginalConstraint

BatchScore: TypeAlias = Callable[[Tensor, float], Tensor]
"""-C(T) log2(e) / epsilon (..., N, K) of plans T (..., N, K), up to row and column terms."""

HOT, COLD = 0.1, 0.03
STEPS = 40
ITERATIONS = 5
MIXED = 0.01
NOISE = 0.1  # of the logarithms of the first plan, which otherwise has every symmetry of both spaces, and keeps it


def proximal_plan(gradient: Gradient, p: Tensor, q: Tensor, watch: Watch) -> Tensor:
    """Where steps go from near the product plan: a plan (N, K) of mass one, its marginals nearly those of the masses
    p (N,), q (K,) over their sums. O(N K) memory; 40 gradients, and O(N K) work for each."""
    p, q = p / p.sum(), q / q.sum()
    unit = float(product_energy(gradient, p, q))
    noise = torch.randn(len(p), len(q), generator=torch.Generator().manual_seed(0), dtype=p.dtype).to(p.device)
    exponent = (p[:, None] * q).log2().add_(noise, alpha=NOISE)
    exponent = proximal_steps(make_score(gradient, p), exponent, p, q, epsilon_levels(unit), watch)
    return flush_small(exponent.exp2_())


def epsilon_levels(unit: float, hot: float = HOT, cold: float = COLD, steps: int = STEPS) -> list[float]:
    """Epsilons that fall from ``hot`` to ``cold`` times ``unit``, the product plan's energy."""
    return [unit * interpolate_epsilon(hot, cold, step / (steps - 1)) for step in range(steps)]


def make_score(gradient: Gradient, p: Tensor) -> BatchScore:
    """That of one plan (N, K) at a time, with row sums p (N,)."""
    return lambda plan, epsilon: gradient(DenseCoupling(plan), p).centre_factors(epsilon)[0].stored_score(epsilon)


def proximal_steps(
    score: BatchScore, exponent: Tensor, p: Tensor, q: Tensor, epsilons: Iterable[float], watch: Watch
) -> Tensor:
    """A step at each of ``epsilons`` from plans 2^``exponent`` (..., N, K), which is written over by the exponents of
    the plans that they end in; masses p (N,), q (K,) of sum one."""
    row, column = MarginalConstraint(p.log2()), MarginalConstraint(q.log2())
    plan = flush_small(exponent.exp2())
    v = torch.ones_like(exponent[..., 0, :])
    for epsilon in epsilons:
        if watch.should_skip() or epsilon <= 0:
            break
        exponent += score(plan, epsilon)
        exponent -= exponent.amax(-1, keepdim=True).clamp_min(torch.finfo(p.dtype).min)
        torch.clamp(exponent, min=LOWEST_EXPONENT, out=plan).exp2_()
        for _ in range(ITERATIONS):
            u = row.scaling(row.log_mass, torch.matmul(plan, v[..., None])[..., 0])
            v = column.scaling(column.log_mass, torch.matmul(u[..., None, :], plan)[..., 0, :])
        exponent.add_(u.log2()[..., None]).add_(v.log2()[..., None, :])
        scale_plans(plan, u, v)
    return exponent


def product_energy(gradient: Gradient, p: Tensor, q: Tensor) -> Tensor:
    """<C(T), T> () for the product plan T of masses of sum one."""
    product = DenseCoupling(p[:, None] * q)
    return mean_cost(gradient(product, p), product, p, q)

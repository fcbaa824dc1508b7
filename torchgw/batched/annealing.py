"""Entropic plans of a batch of pairs, annealed together: one linearisation of each at every temperature.

At temperature e the plan is T = 2^(S + f + g) pq with the score S = (2 / e) D_X T' D_Y log2(e) of the plan T' before.
The potentials, in units of cost, move smoothly with the temperature, so each solve starts from their extrapolation; a
few plain Sinkhorn iterations on the stored kernel and some over-relaxed ones then come close enough to its solution.

Shapes: B pairs of n and k points, n and k the same for all of them, multiples of 16, everything in float32. Nothing
here waits for a device, and nothing mixes two pairs.

What a CPU computes for a pair has the same bits whatever stands beside it in the batch, with registers of any width.
That rules out torch's powers: whole runs of registers and what is left over at the end of a tensor go through two
functions that differ in the last bit. So do those of exp2, but a kernel has a multiple of 256 entries, which leaves
nothing over; log, log2 and exp fill up the last register, and everything else here is rounded exactly.

The same linearisation and scaling as in `torchgw.objective.exact` and `torchgw.sinkhorn.scaling`, written here for
these rules alone.

Sources: G. Peyre, M. Cuturi, J. Solomon, "Gromov-Wasserstein averaging of kernel and distance matrices", 2016;
over-relaxation: A. Thibault, L. Chizat, C. Dossal, N. Papadakis, "Overrelaxed Sinkhorn-Knopp algorithm", 2017.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchgw.kernels import LOG2E
from torchgw.sinkhorn.scaling import scaled

RELAXATION = 1.8
EXTRAPOLATION = 0.7
LOWEST_EXPONENT = -110.0


@dataclass(frozen=True)
class Pairs:
    """The problems of B pairs.

    DX, DY : distances (B, n, n), (B, k, k), over the critical ones.
    p, q : masses (B, 1, n), (B, 1, k).
    """

    DX: Tensor
    DY: Tensor
    p: Tensor
    q: Tensor

    def energies(self, plans: Tensor) -> Tensor:
        """-2 <D_X T D_Y, T>, (B,): what of the objective depends on the plan."""
        return -2 * torch.bmm(torch.bmm(self.DX, plans), self.DY).mul_(plans).sum((1, 2))


@dataclass(frozen=True)
class Plans:
    """Where the annealing of B pairs stands.

    T : plans (B, n, k).
    f, g : base-2 potentials (B, 1, n), (B, 1, k) relative to those of the masses.
    epsilon : temperatures (B, 1, 1), over the product of both critical distances.
    """

    T: Tensor
    f: Tensor
    g: Tensor
    epsilon: Tensor


class Effort(NamedTuple):
    """Inner iterations at each temperature.

    plain, relaxed : Sinkhorn iterations, then over-relaxed ones.
    """

    plain: int
    relaxed: int = 0


def anneal_pairs(pairs: Pairs, plans: Plans, levels: Tensor, effort: Effort) -> Plans:
    """One linearisation at each temperature of ``levels`` (L, B), L >= 1; the tensor of ``plans`` is written over.

    O(L B n k (n + k + iterations)).
    """
    DX, DY, p, q = pairs.DX, pairs.DY, pairs.p, pairs.q
    B, n, k = plans.T.shape
    log_p, T, f, epsilon = p.log2(), plans.T, plans.f, plans.epsilon
    product, turned = T.new_empty(B, n, k), T.new_empty(B, k, n)
    cost = before = f * epsilon
    v, shift = q, q
    for step, epsilon in enumerate(levels[:, :, None, None]):
        # The first step of a stage mends what lifting left; the way from there on is smooth.
        ahead = cost if step < 2 else cost + EXTRAPOLATION * (cost - before)
        f, before = ahead / epsilon, cost
        torch.bmm(DX, T, out=product)
        kernel = torch.bmm(product.mul_(2 * LOG2E / epsilon), DY, out=T)
        kernel += (f + log_p).mT
        shift = kernel.amax(1, keepdim=True)
        kernel.sub_(shift).clamp_min_(LOWEST_EXPONENT).exp2_()
        turned.copy_(kernel.mT)
        u, v = scalings(kernel, turned, p, q, effort)
        f = f + u.log2()
        cost = f * epsilon
        T = scaled(kernel, u[:, 0], v[:, 0])
    return Plans(T, f, (v / q).log2() - shift, epsilon)


def scalings(kernel: Tensor, turned: Tensor, p: Tensor, q: Tensor, effort: Effort) -> tuple[Tensor, Tensor]:
    """u (B, 1, n), v (B, 1, k) such that diag(u) K diag(v) has rows p and nearly columns q; ``turned`` is K^T, stored.

    Products are taken of row vectors with stored matrices: batched products with columns are ten times slower on a CPU.
    Where over-relaxed iterations leave the range of float32, a pair keeps its plain ones.
    """
    x, y = torch.empty_like(p), torch.empty_like(q)
    v = q / kernel.sum(1, keepdim=True)
    u = p / torch.bmm(v, turned, out=x)
    for _ in range(effort.plain):
        v = q / torch.bmm(u, kernel, out=y)
        u = p / torch.bmm(v, turned, out=x)
    safe = v
    for _ in range(effort.relaxed):
        v = v * torch.div(q, torch.bmm(u, kernel, out=y), out=y).div_(v).log_().mul_(RELAXATION).exp_()
        u = u * torch.div(p, torch.bmm(v, turned, out=x), out=x).div_(u).log_().mul_(RELAXATION).exp_()
    v = q / torch.bmm(u, kernel, out=y)
    u = p / torch.bmm(v, turned, out=x)
    good = (torch.isfinite(u) & (u > 0)).all(-1, keepdim=True) & (torch.isfinite(v) & (v > 0)).all(-1, keepdim=True)
    v = torch.where(good, v, safe)
    return torch.where(good, u, p / torch.bmm(v, turned, out=x)), v

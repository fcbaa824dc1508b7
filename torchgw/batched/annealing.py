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

The same linearisation, scaling and steps as in `torchgw.objective.exact`, `torchgw.sinkhorn.scaling` and
`torchgw.solvers.entropic.take_steps`, written here and in `torchgw.kernels.small_transport` for these rules alone.

Sources: G. Peyre, M. Cuturi, J. Solomon, "Gromov-Wasserstein averaging of kernel and distance matrices", 2016;
over-relaxation: A. Thibault, L. Chizat, C. Dossal, N. Papadakis, "Overrelaxed Sinkhorn-Knopp algorithm", 2017.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchgw.kernels import LOG2E, small_transport
from torchgw.kernels.dispatch import Workload
from torchgw.kernels.small_transport.reference import IterationCounts
from torchgw.sinkhorn.scaling import scale_plans

EXTRAPOLATION = 0.7
LOWEST_EXPONENT = -110.0


@dataclass(frozen=True)
class PairBatch:
    """The problems of B pairs.

    DX, DY : distances (B, n, n), (B, k, k), over the critical ones.
    p, q : masses (B, 1, n), (B, 1, k).
    """

    DX: Tensor
    DY: Tensor
    p: Tensor
    q: Tensor

    def compute_energies(self, plans: Tensor) -> Tensor:
        """-2 <D_X T D_Y, T>, (B,): what of the objective depends on the plan."""
        return -2 * torch.bmm(torch.bmm(self.DX, plans), self.DY).mul_(plans).sum((1, 2))


@dataclass(frozen=True)
class PlanBatch:
    """Where the annealing of B pairs stands.

    T : plans (B, n, k).
    f, g : base-2 potentials (B, 1, n), (B, 1, k) relative to those of the masses.
    epsilon : temperatures (B, 1, 1), over the product of both critical distances.
    """

    T: Tensor
    f: Tensor
    g: Tensor
    epsilon: Tensor


def choose_scaling(device: torch.device, shape: tuple[int, int]) -> Callable[..., tuple[Tensor, Tensor]]:
    """What scales the kernels of problems of that shape; see `torchgw.kernels.small_transport`."""
    return small_transport.choose("auto", Workload(device, torch.float32, shape)).function.scalings


def anneal_pairs(pairs: PairBatch, plans: PlanBatch, levels: Tensor, effort: IterationCounts) -> PlanBatch:
    """One linearisation at each temperature of ``levels`` (L, B), L >= 1; the tensor of ``plans`` is written over.

    O(L B n k (n + k + iterations)).
    """
    DX, DY, p, q = pairs.DX, pairs.DY, pairs.p, pairs.q
    B, n, k = plans.T.shape
    log_p, T, f, epsilon = p.log2(), plans.T, plans.f, plans.epsilon
    product, scalings = T.new_empty(B, n, k), choose_scaling(T.device, (n, k))
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
        u, v = scalings(kernel, p, q, effort)
        f = f + u.log2()
        cost = f * epsilon
        T = scale_plans(kernel, u[:, 0], v[:, 0])
    return PlanBatch(T, f, (v / q).log2() - shift, epsilon)

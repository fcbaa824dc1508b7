"""One half-step under a hard marginal: the rule that every implementation of a sweep follows.

With the mass inside the potential, f = log2 p - log2 sum_j 2^(S_ij + g_j), and the same for g with rows and columns
exchanged. Only a fused Triton kernel has this rule a second time, and is tested against it. Those of other marginal
models take softmins as they come, see `torchgw.sinkhorn.sides`.
"""

from __future__ import annotations

import torch
from torch import Tensor


def half_step(log_mass: Tensor, softmin: Tensor) -> Tensor:
    """The next potential of a side with masses 2^log_mass; -inf for points without mass."""
    return torch.where(torch.isneginf(log_mass), log_mass, log_mass - softmin)


def relax(old: Tensor, new: Tensor, weight: float) -> Tensor:
    """old + weight (new - old), over-relaxed for weights above 1; -inf, which both have at the same points, stays."""
    if weight == 1.0:
        return new
    return torch.where(torch.isneginf(new), new, old + weight * (new - old))

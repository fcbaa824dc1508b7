"""Divergences of measures from their references, and of the products of measures with themselves.

    KL(x | a)                 = sum x log(x / a) - x + a                              of marginals
    KL(T | p q^T)             = <T, log(T / p q^T)> - sum T + sum p sum q             of plans
    <T, log(T / p q^T)>       = sum T log T - <T 1, log p> - <T^T 1, log q>           (relative entropy)
    KL(x (x) x | a (x) a)     = 2 m KL(x | a) + (m - sum a)^2,    m = sum x

over leading batch dimensions; all can be differentiated, also where entries are zero.

Source: T. Sejourne, F.-X. Vialard, G. Peyre, "The unbalanced Gromov-Wasserstein distance", 2021, section 2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling


def kl(x: Tensor, a: Tensor) -> Tensor:
    """KL(x | a) (...) of measures (..., N). Entries beyond the support of a count as x log x."""
    # Entry by entry the terms are not negative: of nearly equal measures nothing cancels in the sum.
    return (x * (_positive(x) / _positive(a)).log() + a - x).sum(-1)


def product_divergence(divergence: Tensor, mass: Tensor, reference: Tensor) -> Tensor:
    """KL(x (x) x | a (x) a) from KL(x | a), the mass of x and that of a, all (...)."""
    return 2 * mass * divergence + (mass - reference).square()


def negentropy(plan: Tensor | BlockCoupling) -> Tensor:
    """sum T log T (...) of a stored plan (..., N, K), or of one that is read in blocks of rows."""
    if isinstance(plan, Tensor):
        # The logarithm of zero is only kept out where it would be differentiated: that is another pass.
        found: Tensor = torch.special.xlogy(plan, _positive(plan) if plan.requires_grad else plan).sum((-1, -2))
        return found
    total = torch.zeros((), dtype=torch.float64, device=plan.device)
    for _, block in plan.blocks():
        total += torch.special.xlogy(block, block).sum()
    return total


def relative_entropy(negentropy: Tensor, rows: Tensor, columns: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """<T, log(T / p q^T)> (...) from sum T log T and the marginals (..., N), (..., K)."""
    return negentropy - (rows * _positive(p).log()).sum(-1) - (columns * _positive(q).log()).sum(-1)


def _positive(values: Tensor) -> Tensor:
    """The values, 1 for those that are zero: its logarithm, and the derivative of that, are multiplied by zero."""
    return torch.where(values > 0, values, 1.0)

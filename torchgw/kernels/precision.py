"""What float32 may lose, by a bound.

A product of rows a, b of length r in float32, each sum rounded to nearest, is off by

    |error| <= s sum_k |a_k b_k| <= s |a| |b|,     s = sqrt(r) 2^-24 with high probability.

A logsumexp is off by no more than its scores (plus the rounding of the sum itself). An error of e bits in a score is a
factor 2^e in the plan, so it moves the marginals by at most 2^e - 1 of their mass in L1. Early plans are rounded onto
their marginals before they are used, and a gradient that is off costs iterations, not correctness: the last solve, and
all that is reported, are float64. So float32 serves the steps before it up to `UNSAFE`, where the solve warns. Without
mixed precision every step is float64.

Source: N. Higham, T. Mary, "A new approach to probabilistic rounding error analysis", 2019.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchgw.runtime.ranks import ALONE, Ranks

UNSAFE = 1.0
LARGEST_BITS = 1000.0
LAST = "the last solve runs in float64, but the steps before it may have gone astray"


def loop_dtype(mixed_precision: bool) -> torch.dtype:
    """The dtype of the early steps and of gradients; the last solve is float64 always."""
    return torch.float32 if mixed_precision else torch.float64


def reach(A: Tensor, B: Tensor, ranks: Ranks = ALONE) -> Tensor:
    """The largest row norm of A (N, r) times that of B (K, r), the ranks' shares, (): no entry of A B^T is larger."""
    one, other = (ranks.most(torch.linalg.vector_norm(side, dim=1).max()) for side in (A, B))
    found: Tensor = one * other
    return found


def rounding_bound(largest: float, rank: int) -> float:
    """Bound on the L1 marginal error, as a share of the mass, of float32 products of length ``rank``.

    ``largest`` bounds the norms' product, see `reach`.
    """
    bits = math.sqrt(rank) * 2.0**-24 * largest
    return math.expm1(min(bits, LARGEST_BITS) * math.log(2.0))


def dot_precision(asked: str, dtype: torch.dtype, amd: bool) -> str:
    """The name Triton knows for ``asked`` products of ``dtype``: only float32 has a choice, and AMD has no tf32x3."""
    if dtype != torch.float32:
        return "ieee"
    return "ieee" if amd and asked in ("tf32", "tf32x3") else asked or "tf32x3"


def unsafe(largest: float, rank: int) -> str | None:
    """Why float32 cannot carry scores that reach so far, or None."""
    lost = rounding_bound(largest, rank)
    if lost <= UNSAFE:
        return None
    return (
        f"scores reach {largest:.1e} bits, where float32 may leave plan entries off by a factor of {1 + lost:.1g}; "
        f"{LAST}: use a larger epsilon, or GWOptions(mixed_precision=False)"
    )

"""Which precision each stage of a solve runs in, and the bound that justifies it.

A product of rows a, b of length r whose inputs are off by a share u, added up with an error of s, is off by

    |error| <= (2 u + s) sum_k |a_k b_k| <= (2 u + s) |a| |b|

to first order. float32 on ordinary units rounds each sum to nearest, so s = sqrt(r) 2^-24 with high probability. Matrix
units may cut off instead, always downwards: s = r 2^-23 there; and they cut tf32 inputs to 10 bits, u = 2^-10. A
logsumexp is off by no more than its scores (plus the rounding of the sum itself). An error of e bits in a score is a
factor 2^e in the plan, so it moves the marginals by at most 2^e - 1 of their mass in L1. Hence the policy, each stage
with the cheapest arithmetic whose bound stays under what the stage may lose:

| stage    | dtype                    | may lose | why                                                             |
|----------|--------------------------|----------|-----------------------------------------------------------------|
| early    | float32, tf32 if it fits | 0.1      | every plan is rounded onto its marginals before it is used      |
| gradient | float32, tf32x3 or ieee  | 1e-3     | the next cost, and with it the search direction, comes from it  |
| last     | float64                  | 1e-4     | the plan, its value and its certificate are the result          |

Without mixed precision every stage is float64. Scores that are stored are made by torch in the loop's dtype, whatever
they may lose, up to `UNSAFE`, where the solve warns: a gradient that is off by more than the table allows costs
iterations, not correctness, since the last solve and all that is reported are float64. `choose_dot` is for scores that
are made tile by tile.

Source: N. Higham, T. Mary, "A new approach to probabilistic rounding error analysis", 2019.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

INPUT_ERROR = {"bf16": 2.0**-9, "tf32": 2.0**-10, "tf32x3": 1.5 * 2.0**-22, "ieee": 0.0}
FASTEST_FIRST = ("tf32", "tf32x3", "ieee")
MAY_LOSE = {"early": 0.1, "gradient": 1e-3, "last": 1e-4}
UNSAFE = 1.0
LARGEST_BITS = 1000.0


def loop_dtype(mixed_precision: bool) -> torch.dtype:
    """The dtype of the early steps and of gradients; the last solve is float64 always."""
    return torch.float32 if mixed_precision else torch.float64


def reach(A: Tensor, B: Tensor) -> float:
    """The largest row norm of A (N, r) times that of B (K, r): no entry of A B^T is larger. Reads two numbers."""
    return float(torch.linalg.vector_norm(A, dim=1).max() * torch.linalg.vector_norm(B, dim=1).max())


def loss(dot: str, largest: float, rank: int) -> float:
    """Bound on the L1 marginal error, as a share of the mass, of products in ``dot`` of length ``rank``.

    ``largest`` bounds the norms' product, see `reach`.
    """
    adding = math.sqrt(rank) * 2.0**-24 if dot == "ieee" else rank * 2.0**-23
    bits = (2 * INPUT_ERROR[dot] + adding) * largest
    return math.expm1(min(bits, LARGEST_BITS) * math.log(2.0))


def choose_dot(stage: str, largest: float, rank: int) -> str | None:
    """The fastest arithmetic of float32 products that keeps to what ``stage`` may lose; None: only float64 does."""
    return next((dot for dot in FASTEST_FIRST if loss(dot, largest, rank) <= MAY_LOSE[stage]), None)


def dot_precision(asked: str, dtype: torch.dtype, amd: bool) -> str:
    """The name Triton knows for ``asked`` products of ``dtype``: only float32 has a choice, and AMD has no tf32x3."""
    if dtype != torch.float32:
        return "ieee"
    return "ieee" if amd and asked in ("tf32", "tf32x3") else asked or "tf32x3"


LAST = "the last solve runs in float64, but the steps before it may have gone astray"


def unsafe(largest: float, rank: int) -> str | None:
    """Why float32 cannot carry scores that reach so far, or None."""
    lost = loss("ieee", largest, rank)
    if lost <= UNSAFE:
        return None
    return (
        f"scores reach {largest:.1e} bits, where float32 may leave plan entries off by a factor of {1 + lost:.1g}; "
        f"{LAST}: use a larger epsilon, or GWOptions(mixed_precision=False)"
    )

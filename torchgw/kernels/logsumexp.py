"""log2 sum 2^x without overflow: the sum behind every softmin, whole, in running parts, and differentiable.

    log2 sum_j 2^(x_j) = m + log2 sum_j 2^(x_j - m),    m = max(max_j x_j, -1e30)

Exponents are clamped at -120 below the maximum before exp2: what is lost is under 2^-120 of the sum for each term, what
is gained is a factor of ten on the CPU, where underflowing exponentials are slow. The floor of the maximum makes terms
of -inf need no care. What takes ``x`` writes to it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchgw.kernels import LN2

LOWEST_EXPONENT = -120.0
LEAST_ENTRY = 2.0**-100
FLOOR = -1e30


def maxima(x: Tensor, axis: int) -> Tensor:
    """m over ``axis``."""
    return x.amax(axis).clamp_min_(FLOOR)


def exponentials(x: Tensor, highest: Tensor, axis: int) -> Tensor:
    """2^(x - highest) in place, at least 2^-120; ``highest`` lacks ``axis``."""
    return x.sub_(highest.unsqueeze(axis)).clamp_min_(LOWEST_EXPONENT).exp2_()


def flush_small(plan: Tensor) -> Tensor:
    """The plan in place, without entries up to 2^-100: products of smaller ones are no normal numbers of float32, which
    cost some processors a hundred times as much."""
    return torch.threshold_(plan, LEAST_ENTRY, 0.0)


def logarithm(total: Tensor, highest: Tensor) -> Tensor:
    """log2 total + highest in place; -inf where every term was."""
    out = total.log2_().add_(highest)
    return out.masked_fill_(out < FLOOR / 2, -torch.inf)


def logsumexp2_(x: Tensor, axis: int) -> Tensor:
    """log2 sum 2^x over ``axis``."""
    highest = maxima(x, axis)
    return logarithm(exponentials(x, highest, axis).sum(axis), highest)


def merge_sums(highest: Tensor, total: Tensor, x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Running maxima, and sums of 2^(x - maximum), with one more part of the terms; maxima begin at `FLOOR`."""
    higher = torch.maximum(highest, x.amax(axis))
    sums = exponentials(x, higher, axis).sum(axis)
    return higher, total * (highest - higher).exp2_() + sums


def logsumexp2(x: Tensor, axis: int, keepdim: bool = False) -> Tensor:
    """log2 sum 2^x over ``axis`` in operations that autograd records; ``x`` stays."""
    return torch.logsumexp(x * LN2, axis, keepdim) / LN2

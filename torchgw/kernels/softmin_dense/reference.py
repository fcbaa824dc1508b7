"""Base-2 logsumexp of a stored score plus a bias, in plain torch: the eager backend and the oracle.

    axis 1:  out_i = log2 sum_j 2^(S_ij + b_j)          axis 0:  out_j = log2 sum_i 2^(S_ij + b_i)

Rows are taken in blocks that stay in the processor's cache, so the score is read once and nothing of its size is
allocated. Exponents are clamped at -120 below the maximum before exp2: what is lost is under 2^-120 of the sum for each
term, what is gained is a factor of ten on the CPU, where underflowing exponentials are slow.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

BLOCK_ELEMENTS = {"cpu": 2**19, "cuda": 2**26}
LOWEST_EXPONENT = -120.0
FLOOR = -1e30


class SoftminDense(Protocol):
    """Signature of every implementation: score (N, K), bias (K,) for axis 1 or (N,) for axis 0."""

    def __call__(self, score: Tensor, bias: Tensor, axis: int) -> Tensor: ...


def softmin_dense(score: Tensor, bias: Tensor, axis: int) -> Tensor:
    """log2 of the sum of 2^(score + bias) over ``axis``; -inf where every term is."""
    return _over_columns(score, bias) if axis == 1 else _over_rows(score, bias)


def _block_rows(score: Tensor) -> int:
    return max(1, BLOCK_ELEMENTS.get(score.device.type, 2**24) // max(score.shape[1], 1))


def _over_columns(score: Tensor, bias: Tensor) -> Tensor:
    n, k = score.shape
    step = min(_block_rows(score), n)
    out, buffer = score.new_empty(n), score.new_empty(step, k)
    for start in range(0, n, step):
        block = score[start : start + step]
        exponent = torch.add(block, bias, out=buffer[: len(block)])
        highest = exponent.amax(1).clamp_min_(FLOOR)
        total = exponent.sub_(highest[:, None]).clamp_min_(LOWEST_EXPONENT).exp2_().sum(1)
        out[start : start + step] = total.log2_().add_(highest)
    return out.masked_fill_(out < FLOOR / 2, -torch.inf)


def _over_rows(score: Tensor, bias: Tensor) -> Tensor:
    n, k = score.shape
    step = min(_block_rows(score), n)
    highest, total = score.new_full((k,), FLOOR), score.new_zeros(k)
    buffer = score.new_empty(step, k)
    for start in range(0, n, step):
        block = score[start : start + step]
        exponent = torch.add(block, bias[start : start + step, None], out=buffer[: len(block)])
        higher = torch.maximum(highest, exponent.amax(0))
        exponent.sub_(higher).clamp_min_(LOWEST_EXPONENT).exp2_()
        total.mul_((highest - higher).exp2_()).add_(exponent.sum(0))
        highest = higher
    out = total.log2_().add_(highest)
    return out.masked_fill_(out < FLOOR / 2, -torch.inf)

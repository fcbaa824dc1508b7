"""Base-2 logsumexp of the score S = A B^T plus a bias, in plain torch: the eager backend and the oracle,
and with its reduction through torch.compile.

A is (N, r), B is (K, r). A block of rows of the product is made in a buffer that stays in the cache, the bias added by
the product itself; S as a whole never exists. Over the rows it is the same with A and B exchanged.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from torchgw.kernels import compiler
from torchgw.kernels.blocks import WIDE, Fill, block_rows, blocks, over_columns
from torchgw.kernels.blocks import absorb as absorb_blocks
from torchgw.kernels.blocks import sweep as sweep_blocks
from torchgw.kernels.kernel import Kernel, Operands, make_two_read_sweep
from torchgw.kernels.logsumexp import FLOOR, logsumexp2_

# Longer sums are added up in parts of this many: it halves the float32 error at r = 130, and the block is in the cache.
CHUNK = 64


def softmin(A: Tensor, B: Tensor, bias: Tensor, axis: int) -> Tensor:
    """log2 of the sum of 2^(A B^T + bias) over ``axis``; -inf where every term is."""
    kept, summed = (A, B) if axis == 1 else (B, A)
    if len(summed) <= WIDE:
        return over_columns(product(kept, summed), len(kept), bias)
    # A row alone would fill the cache, and a block of one row reads all factors for it.
    highest, total = bias.new_full((len(kept),), FLOOR), bias.new_zeros(len(kept))
    for columns in blocks(len(summed), WIDE):
        found = over_columns(product(kept, summed[columns]), len(kept), bias[columns])
        top = torch.maximum(highest, found)
        total = total * (highest - top).exp2_() + (found - top).exp2_()
        highest = top
    found = total.log2_().add_(highest)
    return found.masked_fill_(found < FLOOR / 2, -torch.inf)


def sweep(A: Tensor, B: Tensor, g: Tensor, log_p: Tensor, f: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """The next f, and the softmin over the rows under it, with one product; see `torchgw.kernels.kernel`."""
    return sweep_blocks(product(A, B), len(A), g, log_p, f, weight)


def absorb(A: Tensor, B: Tensor, f: Tensor, g: Tensor, out: Tensor) -> Tensor:
    """The plan under the potentials f (N,), g (K,) into ``out`` (N, K)."""
    return absorb_blocks(product(A, B), f, g, out)


def prepare(A: Tensor, B: Tensor) -> Operands:
    """bfloat16 factors are taken as they are, but multiplied in float32, which is exact."""
    narrow = A.dtype in (torch.bfloat16, torch.float16)
    return (A.float(), B.float()) if narrow else (A, B)


KERNEL = Kernel(softmin, sweep, absorb, prepare)


def product(kept: Tensor, summed: Tensor) -> Fill:
    """Fills blocks of rows of kept summed^T plus a bias."""
    parts = tuple(zip(torch.split(kept, CHUNK, 1), torch.split(summed, CHUNK, 1), strict=True))

    def fill(where: slice, bias: Tensor, out: Tensor) -> Tensor:
        for left, right in parts:
            bias = torch.addmm(bias, left[where], right.T, out=out)
        return out

    return fill


@cache
def compile_kernel() -> Kernel:
    """The same with compiled reductions: one compilation a dtype, for all sizes, ranks and both axes."""
    reduced = compiler.compile_function(_reduce_rows)

    def by_blocks(A: Tensor, B: Tensor, bias: Tensor, axis: int) -> Tensor:
        kept, summed = (A, B) if axis == 1 else (B, A)
        n, k = len(kept), len(summed)
        fill, step = product(kept, summed), block_rows(n, k, bias.device)
        out, buffer = bias.new_empty(n), bias.new_empty(step, k)
        for where in blocks(n, step):
            exponent = fill(where, bias, buffer[: where.stop - where.start])
            # A size of one would be compiled for itself.
            out[where] = reduced(exponent) if min(exponent.shape) > 1 else _reduce_rows(exponent)
        return out

    return Kernel(by_blocks, make_two_read_sweep(by_blocks), absorb, prepare)


def trial(device_type: str) -> None:
    """Compile the kernel, which tells whether it can be."""
    A = torch.zeros(3, 2, device=device_type)
    compile_kernel().softmin(A, A, A[:, 0], 1)


def _reduce_rows(exponent: Tensor) -> Tensor:
    return logsumexp2_(exponent.clone(), 1)  # a copy that the compiler leaves out: it would write the exponent back

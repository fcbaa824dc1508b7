"""One chunk of rows of the streaming softmin through torch.compile: product, bias and reduction in one graph."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from torchgw.kernels import compiler
from torchgw.kernels.blocks import blocks
from torchgw.kernels.kernel import Kernel, in_two_reads
from torchgw.kernels.softmin_dense.compiled import logsumexp2
from torchgw.kernels.softmin_stream import reference


@cache
def build() -> Kernel:
    """The compiled kernel: one compilation a dtype, for all sizes, ranks and both axes."""
    chunk = compiler.compiled(_chunk)

    def softmin(A: Tensor, B: Tensor, bias: Tensor, axis: int) -> Tensor:
        kept, summed = (A, B) if axis == 1 else (B, A)
        if min(*kept.shape, *summed.shape) < 2:  # a size of one would be compiled for itself
            return reference.softmin(A, B, bias, axis)
        out = bias.new_empty(len(kept))
        for where in blocks(len(kept), len(summed), bias.device):
            if where.stop - where.start < 2:
                out[where] = reference.softmin(kept[where], summed, bias, 1)
            else:
                out[where] = chunk(kept[where], summed, bias)
        return out

    return Kernel(softmin, in_two_reads(softmin), reference.absorb, reference.prepare)


def _chunk(kept: Tensor, summed: Tensor, bias: Tensor) -> Tensor:
    return logsumexp2(torch.addmm(bias, kept, summed.T), 1)

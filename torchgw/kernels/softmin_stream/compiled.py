"""The reduction of a chunk of rows of the streaming softmin through torch.compile; the product is the reference's."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from torchgw.kernels import compiler
from torchgw.kernels.blocks import block_rows, blocks
from torchgw.kernels.dispatch import Workload
from torchgw.kernels.kernel import Kernel, in_two_reads
from torchgw.kernels.logsumexp import logsumexp2_
from torchgw.kernels.softmin_stream import reference


@cache
def build() -> Kernel:
    """The compiled kernel: one compilation a dtype, for all sizes, ranks and both axes."""
    reduced = compiler.compiled(_reduced)

    def softmin(A: Tensor, B: Tensor, bias: Tensor, axis: int) -> Tensor:
        kept, summed = (A, B) if axis == 1 else (B, A)
        n, k = len(kept), len(summed)
        fill = reference.product(kept, summed)
        step = block_rows(n, k, bias.device)
        out, buffer = bias.new_empty(n), bias.new_empty(step, k)
        for where in blocks(n, step):
            exponent = fill(where, bias, buffer[: where.stop - where.start])
            # A size of one would be compiled for itself.
            out[where] = reduced(exponent) if min(exponent.shape) > 1 else _reduced(exponent)
        return out

    return Kernel(softmin, in_two_reads(softmin), reference.absorb, reference.prepare)


def unable(workload: Workload) -> str | None:
    """Why this device has no working compiler, or None; compiles the kernel, the first time."""
    return compiler.failure(workload.device.type, _trial)


def _trial(device_type: str) -> None:
    A = torch.zeros(3, 2, device=device_type)
    build().softmin(A, A, A[:, 0], 1)


def _reduced(exponent: Tensor) -> Tensor:
    return logsumexp2_(exponent.clone(), 1)  # a copy that the compiler leaves out: it would write the exponent back

"""Base-2 logsumexp of a stored score plus a bias, in plain torch: the eager backend and the oracle, and through
torch.compile.

    axis 1:  out_i = log2 sum_j 2^(S_ij + b_j)          axis 0:  out_j = log2 sum_i 2^(S_ij + b_i)

Rows are taken in the blocks of `torchgw.kernels.blocks`, over the rows too, so that the score is read in its own order;
what is compiled takes the score whole.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from torchgw.kernels import compiler
from torchgw.kernels.blocks import Fill, block_rows, blocks, over_columns
from torchgw.kernels.blocks import absorb as absorb_blocks
from torchgw.kernels.blocks import sweep as sweep_blocks
from torchgw.kernels.kernel import Kernel, make_two_read_sweep
from torchgw.kernels.logsumexp import FLOOR, logarithm, logsumexp2_, merge_sums


def softmin(score: Tensor, bias: Tensor, axis: int) -> Tensor:
    """log2 of the sum of 2^(score + bias) over ``axis``, score (N, K); -inf where every term is."""
    return over_columns(_reader(score), len(score), bias) if axis == 1 else _over_rows(score, bias)


def sweep(score: Tensor, g: Tensor, log_p: Tensor, f: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """The next f, and the softmin over the rows under it; see `torchgw.kernels.kernel`."""
    return sweep_blocks(_reader(score), len(score), g, log_p, f, weight)


def absorb(score: Tensor, f: Tensor, g: Tensor, out: Tensor) -> Tensor:
    """The plan under the potentials f (N,), g (K,) into ``out`` (N, K), in one read."""
    return absorb_blocks(_reader(score), f, g, out)


KERNEL = Kernel(softmin, sweep, absorb)


def _reader(score: Tensor) -> Fill:
    def fill(where: slice, bias: Tensor, out: Tensor) -> Tensor:
        return torch.add(score[where], bias, out=out)

    return fill


def _over_rows(score: Tensor, bias: Tensor) -> Tensor:
    n, k = score.shape
    step = block_rows(n, k, score.device)
    highest, total, buffer = bias.new_full((k,), FLOOR), bias.new_zeros(k), bias.new_empty(step, k)
    for where in blocks(n, step):
        block = score[where]
        exponent = torch.add(block, bias[where, None], out=buffer[: len(block)])
        highest, total = merge_sums(highest, total, exponent, 0)
    return logarithm(total, highest)


@cache
def compile_kernel() -> Kernel:
    """The same through torch.compile; sizes are dynamic and nothing else varies: two compilations a dtype."""
    columns = compiler.compile_function(lambda score, bias: logsumexp2_(score + bias[None, :], 1))
    rows = compiler.compile_function(lambda score, bias: logsumexp2_(score + bias[:, None], 0))

    def whole(score: Tensor, bias: Tensor, axis: int) -> Tensor:
        if min(score.shape) < 2:  # a size of one would be compiled for itself
            return softmin(score, bias, axis)
        result: Tensor = (columns if axis == 1 else rows)(score, bias)
        return result

    return Kernel(whole, make_two_read_sweep(whole), absorb)


def trial(device_type: str) -> None:
    """Compile the kernel, which tells whether it can be."""
    compile_kernel().softmin(torch.zeros(3, 2, device=device_type), torch.zeros(2, device=device_type), 1)

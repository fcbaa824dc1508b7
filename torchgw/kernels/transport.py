"""Reading a plan T = 2^(A B^T + f + g) in blocks of rows, in plain torch on any device.

    apply(A, B, f, g, V)            T V, for V (K, d); exchange A with B and f with g for T^T U
    largest(A, B, g, count)         values of S_ij + g_j and columns of the ``count`` largest of each row, largest first
    sample(A, B, g, generator)      a column for each row, drawn in proportion to 2^(S_ij + g_j)

The row potential f does not change which entries of a row are the largest. Row and column sums come from a softmin, see
`torchgw.kernels.kernel`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from torchgw.kernels.blocks import block_rows
from torchgw.kernels.logsumexp import LOWEST_EXPONENT
from torchgw.kernels.sampling import draw

PLAN_BLOCK = 2
LOWEST_WIDE_EXPONENT = -900.0  # of float64: plans have any mass


def scores(A: Tensor, B: Tensor, g: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of rows of A B^T + g. The caller may write to them, and must be done with one before the next."""
    n, k = len(A), len(B)
    step = PLAN_BLOCK * block_rows(n, k, A.device)
    buffer = g.new_empty(min(step, n), k)
    for start in range(0, n, step):
        where = slice(start, min(start + step, n))
        yield where, torch.addmm(g, A[where], B.T, out=buffer[: where.stop - start])


def apply(A: Tensor, B: Tensor, f: Tensor, g: Tensor, V: Tensor) -> Tensor:
    """T V, (N, d)."""
    least = LOWEST_EXPONENT if g.dtype == torch.float32 else LOWEST_WIDE_EXPONENT
    out, V = V.new_empty(len(A), V.shape[1]), V.masked_fill(g.isneginf()[:, None], 0.0)
    for where, block in scores(A, B, g):
        torch.mm(block.add_(f[where, None]).clamp_min_(least).exp2_(), V, out=out[where])
    return out.masked_fill_(f.isneginf()[:, None], 0.0)


def largest(A: Tensor, B: Tensor, g: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Values and columns of the ``count`` largest entries of each row of A B^T + g, both (N, count)."""
    values, columns = g.new_empty(len(A), count), torch.empty(len(A), count, dtype=torch.int64, device=A.device)
    for where, block in scores(A, B, g):
        values[where], columns[where] = block.max(1, keepdim=True) if count == 1 else block.topk(count, dim=1)
    return values, columns


def sample(A: Tensor, B: Tensor, g: Tensor, generator: torch.Generator) -> Tensor:
    """One column for each row, (N,)."""
    drawn = torch.empty(len(A), dtype=torch.int64, device=A.device)
    for where, block in scores(A, B, g):
        weights = block.sub_(block.amax(1, keepdim=True)).clamp_min_(LOWEST_EXPONENT).exp2_()
        drawn[where] = draw(weights.mul_(~g.isneginf()), 1, generator)[:, 0]
    return drawn

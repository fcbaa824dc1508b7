"""Triton kernels over the score S = A B^T in base-2 logarithms, tile by tile; the score is never stored.

The ``factors`` are (A, B), and TILE is a `torchgw.kernels.softmin_stream.triton.Tile`. A tile of the product is made by
`scores`, in chunks of so many columns of A and B, whose width is a multiple of the chunk (the host pads it with zeros).
A chunk of the whole width leaves no loop over chunks, and the rows of A are then read once for all columns. Sums and
maxima have the dtype of the bias.
"""

import triton
import triton.language as tl

from torchgw.kernels.softmin_dense.triton_kernels import FLOOR, merge, store_plan


@triton.jit
def scores(factors, row, column, n, k, TILE: tl.constexpr, dtype: tl.constexpr):
    """S[row, column], a tile; rows and columns outside are those of the last one, so that no load needs a mask."""
    A, B = factors
    WIDTH: tl.constexpr = TILE.width
    CHUNK: tl.constexpr = TILE.chunk
    part = tl.arange(0, CHUNK)
    tile = tl.zeros((row.shape[0], column.shape[0]), dtype)
    left = A + tl.minimum(row, n - 1)[:, None].to(tl.int64) * WIDTH + part[None, :]
    right = B + tl.minimum(column, k - 1)[None, :].to(tl.int64) * WIDTH + part[:, None]
    for start in range(0, WIDTH, CHUNK):
        tile = tl.dot(
            tl.load(left + start), tl.load(right + start), tile, input_precision=TILE.product, out_dtype=dtype
        )
    return tile


@triton.jit(do_not_specialize=["n", "k", "per_split"], do_not_specialize_on_alignment=["bias", "out"])
def softmin_kernel(
    factors, bias, out, n, k, per_split, TILE: tl.constexpr
):  # fmt: skip
    """out[split, i] = log2 sum_j 2^(A_i . B_j + bias_j) over the j of this split."""
    ROWS: tl.constexpr = TILE.rows
    COLUMNS: tl.constexpr = TILE.columns
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(1)
    first = split * per_split
    last = tl.minimum(first + per_split, k)
    dtype: tl.constexpr = out.dtype.element_ty
    highest = tl.full((ROWS,), FLOOR, dtype)
    total = tl.zeros((ROWS,), dtype)
    for start in range(first, last, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        b = tl.load(bias + column, mask=column < last, other=float("-inf"))
        tile = scores(factors, row, column, n, k, TILE, dtype)
        highest, total = merge(highest, total, tile + b[None, :])
    tl.store(out + split.to(tl.int64) * n + row, highest + tl.log2(total), mask=row < n)


@triton.jit(do_not_specialize=["n", "k"])
def absorb_kernel(factors, potentials, out, strides, n, k, TILE: tl.constexpr):
    """`store_plan` of all of S."""
    row = tl.program_id(0) * TILE.rows + tl.arange(0, TILE.rows)
    column = tl.program_id(1) * TILE.columns + tl.arange(0, TILE.columns)
    tile = scores(factors, row, column, n, k, TILE, out.dtype.element_ty)
    store_plan(tile, potentials, out, strides, row, column, n, k)

"""Triton kernels over the score S = A B^T in base-2 logarithms, tile by tile; the score is never stored.

A tile of the product is made by `scores`, in chunks of CHUNK columns of A and B, whose WIDTH is a multiple of CHUNK
(the host pads it with zeros). A chunk of the whole width leaves no loop over chunks, and the rows of A are then read
once for all columns. Sums and maxima have the dtype of the bias.
"""

import triton
import triton.language as tl

from torchgw.kernels.softmin_dense.triton_kernels import FLOOR, merge, store_plan


@triton.jit
def scores(
    A, B, row, column, n, k, WIDTH: tl.constexpr, CHUNK: tl.constexpr, DOT: tl.constexpr, dtype: tl.constexpr
):  # fmt: skip
    """S[row, column], a tile; rows and columns outside are those of the last one, so that no load needs a mask."""
    part = tl.arange(0, CHUNK)
    tile = tl.zeros((row.shape[0], column.shape[0]), dtype)
    left = A + tl.minimum(row, n - 1)[:, None].to(tl.int64) * WIDTH + part[None, :]
    right = B + tl.minimum(column, k - 1)[None, :].to(tl.int64) * WIDTH + part[:, None]
    for start in range(0, WIDTH, CHUNK):
        tile = tl.dot(tl.load(left + start), tl.load(right + start), tile, input_precision=DOT, out_dtype=dtype)
    return tile


@triton.jit(do_not_specialize=["n", "k", "per_split"], do_not_specialize_on_alignment=["bias", "out"])
def softmin_kernel(
    A, B, bias, out, n, k, per_split,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """out[split, i] = log2 sum_j 2^(A_i . B_j + bias_j) over the j of this split."""
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
        tile = scores(A, B, row, column, n, k, WIDTH, CHUNK, DOT, dtype)
        highest, total = merge(highest, total, tile + b[None, :])
    tl.store(out + split.to(tl.int64) * n + row, highest + tl.log2(total), mask=row < n)


@triton.jit(do_not_specialize=["n", "k"])
def absorb_kernel(
    A, B, f, g, out, n, k, out_n, out_k,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """`store_plan` of all of S."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    tile = scores(A, B, row, column, n, k, WIDTH, CHUNK, DOT, out.dtype.element_ty)
    store_plan(tile, f, g, out, row, column, n, k, out_n, out_k)

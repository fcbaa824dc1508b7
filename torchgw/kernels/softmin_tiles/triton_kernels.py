"""Triton kernels over the kept tiles of a score S = A B^T in base-2 logarithms; the score is never stored.

A program has ROWS rows of one row tile. It walks the list of column tiles that this row tile keeps, COLUMNS columns at
a time; SIZE, the points of a tile, is a multiple of both. Blocks of the product are made by `scores`.
"""

import triton
import triton.language as tl

from torchgw.kernels.softmin_dense.triton_kernels import FLOOR, merge
from torchgw.kernels.softmin_stream.triton_kernels import scores


@triton.jit
def steps(first, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SIZE: tl.constexpr, part, parts):
    """The blocks of columns, as positions in the list times blocks a tile, of one of ``parts`` shares of the list."""
    tile = tl.program_id(0) // (SIZE // ROWS)
    begin = tl.load(first + tile)
    length = tl.load(first + tile + 1) - begin
    blocks: tl.constexpr = SIZE // COLUMNS
    return (begin + length * part // parts) * blocks, (begin + length * (part + 1) // parts) * blocks


@triton.jit
def columns_at(column, step, COLUMNS: tl.constexpr, SIZE: tl.constexpr):
    """The columns (COLUMNS,) of a step."""
    blocks: tl.constexpr = SIZE // COLUMNS
    start = tl.load(column + step // blocks) * SIZE + step % blocks * COLUMNS
    return start.to(tl.int32) + tl.arange(0, COLUMNS)


@triton.jit(do_not_specialize=["n", "k"])
def softmin_kernel(
    A, B, bias, first, column, out, n, k,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """out[part, i] = log2 sum_j 2^(A_i . B_j + bias_j) over the kept j of this part of the list."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(1)
    begin, end = steps(first, ROWS, COLUMNS, SIZE, part, tl.num_programs(1))
    dtype: tl.constexpr = out.dtype.element_ty
    highest = tl.full((ROWS,), FLOOR, dtype)
    total = tl.zeros((ROWS,), dtype)
    for step in range(begin, end):
        here = columns_at(column, step, COLUMNS, SIZE)
        b = tl.load(bias + here, mask=here < k, other=float("-inf"))
        tile = scores(A, B, row, here, n, k, WIDTH, CHUNK, DOT, dtype)
        highest, total = merge(highest, total, tile + b[None, :])
    tl.store(out + part.to(tl.int64) * n + row, highest + tl.log2(total), mask=row < n)


@triton.jit(do_not_specialize=["n", "k"])
def read_kernel(
    A, B, f, g, V, first, column, out, largest, at, n, k, d,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
    VALUES: tl.constexpr, DOT: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """out[part] = T V for T = 2^(S + f + g) on this part of the list and V (K, d), d a multiple of VALUES.

    LARGEST: also the largest entry of each row of T and the lowest column that has it; 0 and K where no column is kept.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    value = tl.program_id(1) * VALUES + tl.arange(0, VALUES)
    part = tl.program_id(2)
    begin, end = steps(first, ROWS, COLUMNS, SIZE, part, tl.num_programs(2))
    dtype: tl.constexpr = out.dtype.element_ty
    left = tl.load(f + row, mask=row < n, other=float("-inf"))
    total = tl.zeros((ROWS, VALUES), dtype)
    best = tl.full((ROWS,), float("-inf"), dtype)
    index = tl.zeros((ROWS,), tl.int32) + k
    for step in range(begin, end):
        here = columns_at(column, step, COLUMNS, SIZE)
        right = tl.load(g + here, mask=here < k, other=float("-inf"))
        exponent = scores(A, B, row, here, n, k, WIDTH, CHUNK, DOT, dtype) + right[None, :]
        plan = tl.exp2(exponent + left[:, None])
        values = tl.load(V + here[:, None].to(tl.int64) * d + value[None, :], mask=(here < k)[:, None], other=0.0)
        total = tl.dot(plan, values, total, input_precision=DOT, out_dtype=dtype)
        if LARGEST:
            higher = tl.max(exponent, 1)
            # Columns ascend along the list, so of equal entries the first found is kept.
            where = tl.min(tl.where(exponent == higher[:, None], here[None, :], k), 1)
            better = (higher > best) | (index == k)
            index = tl.where(better, where, index)
            best = tl.where(better, higher, best)
    line = part.to(tl.int64) * n + row
    tl.store(out + line[:, None] * d + value[None, :], total, mask=(row < n)[:, None])
    if LARGEST:
        first_values = tl.program_id(1) == 0
        tl.store(largest + line, tl.exp2(best + left), mask=(row < n) & first_values)
        tl.store(at + line, index.to(tl.int64), mask=(row < n) & first_values)

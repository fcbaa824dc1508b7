"""Triton kernels over the kept tiles of a score S = A B^T in base-2 logarithms; the score is never stored.

A program has ROWS rows of one row tile. It walks the list of column tiles that this row tile keeps, COLUMNS columns at
a time; SIZE, the points of a tile, is a multiple of both. Blocks of the product, each a TILE of the streaming kernels,
are made by `scores`. The ``lists`` are (first, column): where that of each row tile begins, and its column tiles.
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
def softmin_kernel(factors, bias, lists, out, n, k, SIZE: tl.constexpr, TILE: tl.constexpr):
    """out[part, i] = log2 sum_j 2^(A_i . B_j + bias_j) over the kept j of this part of the list."""
    ROWS: tl.constexpr = TILE.rows
    COLUMNS: tl.constexpr = TILE.columns
    first, column = lists
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(1)
    begin, end = steps(first, ROWS, COLUMNS, SIZE, part, tl.num_programs(1))
    dtype: tl.constexpr = out.dtype.element_ty
    highest = tl.full((ROWS,), FLOOR, dtype)
    total = tl.zeros((ROWS,), dtype)
    for step in range(begin, end):
        here = columns_at(column, step, COLUMNS, SIZE)
        b = tl.load(bias + here, mask=here < k, other=float("-inf"))
        tile = scores(factors, row, here, n, k, TILE, dtype)
        highest, total = merge(highest, total, tile + b[None, :])
    tl.store(out + part.to(tl.int64) * n + row, highest + tl.log2(total), mask=row < n)


@triton.jit(do_not_specialize=["n", "k", "d", "m"], do_not_specialize_on_alignment=["f", "g"])
def read_kernel(
    factors, f, g, moved, lists, out, down, n, k, d, m,
    SIZE: tl.constexpr, VALUES: tl.constexpr, DOWN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """out[part] = T V for T = 2^(S + f + g) on this part of the list and V (K, d), d a multiple of VALUES; (V, W) are
    ``moved``.

    With a point a of the row tile and b of the column tile the score splits exactly, and only what is small is in the
    dtype of the factors; the rest is in that of the potentials:

        A_i . B_j = (A_i - a) . B_j + a . (B_j - b) + a . b

    A single column of V is summed up without a product. DOWN: also down[r, e SIZE + j] = sum_i T_ij W_i for column j of
    entry e < m of the list, over the rows i of the r-th program of its row tile.
    """
    A, B = factors
    V, W = moved
    first, column = lists
    ROWS: tl.constexpr = TILE.rows
    COLUMNS: tl.constexpr = TILE.columns
    WIDTH: tl.constexpr = TILE.width
    CHUNK: tl.constexpr = TILE.chunk
    tile = tl.program_id(0) // (SIZE // ROWS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(2)
    begin, end = steps(first, ROWS, COLUMNS, SIZE, part, tl.num_programs(2))
    near: tl.constexpr = A.dtype.element_ty
    wide: tl.constexpr = f.dtype.element_ty
    chunk = tl.arange(0, CHUNK)
    left = A + tl.minimum(row, n - 1)[:, None].to(tl.int64) * WIDTH + chunk[None, :]
    of_rows = A + tl.minimum(tile * SIZE + SIZE // 2, n - 1).to(tl.int64) * WIDTH + chunk
    potential = tl.load(f + row, mask=row < n, other=float("-inf"))
    level = tl.maximum(tl.max(potential, 0), FLOOR)  # without it the potentials of a tile's rows are small
    rows = (potential - level).to(near)
    if VALUES > 1:
        value = tl.program_id(1) * VALUES + tl.arange(0, VALUES)
        total = tl.zeros((ROWS, VALUES), near)
    else:
        total = tl.zeros((ROWS,), out.dtype.element_ty)
    if DOWN:
        weight = tl.load(W + row, mask=row < n, other=0.0)
    a = tl.load(of_rows)  # of the first chunk, which may be the whole width
    local = tl.load(left) - a[None, :]
    for step in range(begin, end):
        here = columns_at(column, step, COLUMNS, SIZE)
        shift = tl.load(g + here, mask=here < k, other=float("-inf"))
        inside = tl.minimum(here, k - 1)
        right = B + inside[None, :].to(tl.int64) * WIDTH + chunk[:, None]
        home = tl.minimum(tl.load(column + step // (SIZE // COLUMNS)) * SIZE + SIZE // 2, k - 1)
        of_columns = B + home.to(tl.int64) * WIDTH + chunk
        if VALUES == 1:
            values = tl.load(V + inside)
        exponent = tl.zeros((ROWS, COLUMNS), near)
        across = tl.zeros((COLUMNS,), near)
        common = level
        for start in range(0, WIDTH, CHUNK):
            if CHUNK < WIDTH:
                a = tl.load(of_rows + start)
                local = tl.load(left + start) - a[None, :]
            b = tl.load(of_columns + start)
            points = tl.load(right + start)
            exponent = tl.dot(local, points, exponent, input_precision=TILE.product, out_dtype=near)
            across += tl.sum((points - b[:, None]) * a[:, None], 0)
            common += tl.sum(a.to(wide) * b.to(wide), 0)
        exponent += (across + (shift + common).to(near))[None, :]
        plan = tl.exp2(exponent + rows[:, None])
        if VALUES == 1:
            total += tl.sum(plan * values[None, :], 1).to(total.dtype)
        elif VALUES > 1:
            values = tl.load(V + inside[:, None].to(tl.int64) * d + value[None, :])
            total = tl.dot(plan, values, total, input_precision=TILE.product, out_dtype=near)
        if DOWN:
            below = tl.sum(plan * weight[:, None], 0)
            line = (tl.program_id(0) % (SIZE // ROWS)).to(tl.int64) * m * SIZE
            tl.store(down + line + tl.cast(step, tl.int64) * COLUMNS + tl.arange(0, COLUMNS), below)
    line = part.to(tl.int64) * n + row
    if VALUES == 1:
        tl.store(out + line, total, mask=row < n)
    elif VALUES > 1:
        tl.store(out + line[:, None] * d + value[None, :], total.to(out.dtype.element_ty), mask=(row < n)[:, None])


@triton.jit(do_not_specialize=["m"])
def down_kernel(
    down, lists, out, k, m, SIZE: tl.constexpr, TILE: tl.constexpr, ENTRIES: tl.constexpr
):  # fmt: skip
    """out_j, the sum of what `read_kernel` has left of column j in each entry of its list, in a fixed order. The
    ``lists`` are (first, entry), and the entries of column tile J are the ``entry[first[J]:first[J + 1]]``."""
    ROWS: tl.constexpr = TILE.rows
    COLUMNS: tl.constexpr = TILE.columns
    first, entry = lists
    blocks: tl.constexpr = SIZE // COLUMNS
    tile = tl.program_id(0) // blocks
    place = tl.program_id(0) % blocks * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), out.dtype.element_ty)
    end = tl.load(first + tile + 1)
    for start in range(tl.load(first + tile), end, ENTRIES):
        at = start + tl.arange(0, ENTRIES)
        line = tl.load(entry + at, mask=at < end, other=0)
        for row in range(0, SIZE // ROWS):
            found = tl.load(
                down + (row * m + line)[:, None] * SIZE + place[None, :], mask=(at < end)[:, None], other=0.0
            )
            total += tl.sum(found.to(total.dtype), 0)
    column = tile * SIZE + place
    tl.store(out + column, total, mask=column < k)

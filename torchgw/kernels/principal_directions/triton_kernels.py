"""A Triton kernel for keys along principal directions: a run of points of one cell a program, which finds the direction
of its cell anew."""

import triton
import triton.language as tl


@triton.jit(
    do_not_specialize=["n", "d", "start", "parts", "shift"],
    do_not_specialize_on_alignment=["places", "runs", "order", "ends"],
)
def keys_kernel(
    standing, places, runs, features, order, ends, out, n, d, start, parts, shift,
    SMALLEST: tl.constexpr, SAMPLED: tl.constexpr, ITERATIONS: tl.constexpr, POINTS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """out[point - start] = the key of each of at most POINTS points of a cell.

    A key is cell 2^(64 - shift) + bits / 2^shift, with the bits of the point's coordinate, in float64, those of a
    negative one but the sign turned over. They rise with the coordinate, whose ends need not be known then.
    """
    cell = tl.program_id(0) // parts
    part = tl.program_id(0) % parts
    first = tl.load(runs + cell)
    size = tl.load(runs + cell + 1) - first
    number, column = tl.arange(0, SAMPLED), tl.arange(0, WIDTH)
    step = (number.to(tl.float32) + 0.5) / SAMPLED
    point = tl.load(places + first + (step * size.to(tl.float32)).to(tl.int64))
    sample = tl.load(
        standing + point[:, None].to(tl.int64) * d + column[None, :], mask=(column < d)[None, :], other=0.0
    )
    sample -= (tl.sum(sample, 0) / SAMPLED)[None, :]
    sign = tl.where(number == SAMPLED - 1, 1.0, 0.0) - tl.where(number == 0, 1.0, 0.0)
    direction = tl.sum(sample * sign.to(sample.dtype)[:, None], 0)
    for _ in tl.static_range(ITERATIONS):
        direction = tl.sum(sample * tl.sum(sample * direction[None, :], 1)[:, None], 0)
        direction = direction / tl.maximum(tl.sqrt(tl.sum(direction * direction, 0)), SMALLEST)
    begin = tl.load(ends + cell) + part * POINTS
    end = tl.minimum(begin + POINTS, tl.load(ends + cell + 1))
    for at in range(begin, end, SAMPLED):
        point = tl.load(order + at + number, mask=at + number < end, other=-1) - start
        here = (at + number < end) & (point >= 0) & (point < n)
        rows = tl.load(
            features + point[:, None].to(tl.int64) * d + column[None, :],
            mask=here[:, None] & (column < d)[None, :], other=0.0,
        )  # fmt: skip
        along = tl.sum(rows * direction[None, :], 1).to(tl.float64)
        bits = tl.where(along == 0.0, 0.0, along).to(tl.int64, bitcast=True)
        bits = bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF)
        tl.store(out + point, (cell.to(tl.int64) << (64 - shift)) + (bits >> shift), mask=here)

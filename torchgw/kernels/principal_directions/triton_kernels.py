"""A Triton kernel for principal directions, a cell a program."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["d"], do_not_specialize_on_alignment=["ends"])
def directions_kernel(
    features, order, ends, out, d,
    SMALLEST: tl.constexpr, POINTS: tl.constexpr, ITERATIONS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """out[pid] = the direction of largest variance of POINTS points of a cell; see the reference."""
    cell = tl.program_id(0)
    first = tl.load(ends + cell)
    size = tl.load(ends + cell + 1) - first
    number, column = tl.arange(0, POINTS), tl.arange(0, WIDTH)
    step = (number.to(tl.float32) + 0.5) / POINTS
    point = tl.load(order + first + (step * size.to(tl.float32)).to(tl.int64))
    sample = tl.load(
        features + point[:, None].to(tl.int64) * d + column[None, :], mask=(column < d)[None, :], other=0.0
    )
    sample -= (tl.sum(sample, 0) / POINTS)[None, :]
    sign = tl.where(number == POINTS - 1, 1.0, 0.0) - tl.where(number == 0, 1.0, 0.0)
    direction = tl.sum(sample * sign.to(sample.dtype)[:, None], 0)
    for _ in tl.static_range(ITERATIONS):
        direction = tl.sum(sample * tl.sum(sample * direction[None, :], 1)[:, None], 0)
        direction = direction / tl.maximum(tl.sqrt(tl.sum(direction * direction, 0)), SMALLEST)
    tl.store(out + cell.to(tl.int64) * d + column, direction, mask=column < d)

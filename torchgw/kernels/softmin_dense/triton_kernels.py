"""Triton kernels over a stored score in base-2 logarithms; sums and maxima in the dtype of the bias. A weight comes as
the bits of a float64 number, see `torchgw.kernels.gpu.float_bits`."""

import triton
import triton.language as tl

FLOOR = tl.constexpr(-1e30)
LOWEST_EXPONENT = tl.constexpr(-120.0)
LEAST_FACTOR = tl.constexpr(2.0**-120)
HIGHEST_EXPONENT = tl.constexpr(100.0)


@triton.jit
def merge(highest, total, exponent):
    """Running maximum and scaled sum of 2^exponent along axis 1; maxima start at FLOOR, so -inf needs no care."""
    higher = tl.maximum(highest, tl.max(exponent, 1))
    total = total * tl.exp2(highest - higher) + tl.sum(tl.exp2(exponent - higher[:, None]), 1)
    return higher, total


@triton.jit(do_not_specialize=["n_kept", "n_summed", "per_split"])
def softmin_kernel(
    S, strides, bias, out, n_kept, n_summed, per_split, BLOCK: tl.constexpr
):  # fmt: skip
    """out[split, i] = log2 sum_j 2^(S[i, j] + bias[j]) over the j of this split; S has ``strides`` along i and j."""
    KEPT: tl.constexpr = BLOCK[0]
    SUMMED: tl.constexpr = BLOCK[1]
    stride_kept, stride_summed = strides
    kept = tl.program_id(0) * KEPT + tl.arange(0, KEPT)
    split = tl.program_id(1)
    first = split * per_split
    last = tl.minimum(first + per_split, n_summed)
    dtype: tl.constexpr = out.dtype.element_ty
    highest = tl.full((KEPT,), FLOOR, dtype)
    total = tl.zeros((KEPT,), dtype)
    rows = S + kept[:, None].to(tl.int64) * stride_kept
    for start in range(first, last, SUMMED):
        summed = start + tl.arange(0, SUMMED)
        inside = summed < last
        b = tl.load(bias + summed, mask=inside, other=float("-inf"))
        exponent = tl.load(
            rows + summed[None, :].to(tl.int64) * stride_summed,
            mask=(kept[:, None] < n_kept) & inside[None, :],
            other=0.0,
        ).to(dtype)
        highest, total = merge(highest, total, exponent + b[None, :])
    tl.store(out + split.to(tl.int64) * n_kept + kept, highest + tl.log2(total), mask=kept < n_kept)


@triton.jit(do_not_specialize=["n", "k", "weight"])
def sweep_kernel(S, stride, given, out, n, k, weight, WIDTH: tl.constexpr):
    """Rows pid, pid + P, ... of a score whose rows fit the registers of a program: their f, then their plan's columns.

    ``given`` is (log_p, f, g), ``out`` is (f', partial), where partial[pid, j] = sum over those rows of
    2^(S + f' + g), added up in registers: no atomics, one read.
    """
    log_p, f, g = given
    new_f, partial = out
    program = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    inside = column < k
    dtype: tl.constexpr = new_f.dtype.element_ty
    columns = tl.zeros((WIDTH,), dtype)
    weight = weight.to(tl.float64, bitcast=True).to(dtype)
    for row in range(program, n, tl.num_programs(0)):
        here = S + tl.cast(row, tl.int64) * stride + column  # a pointer kept from row to row would not fit sm_120
        exponent = tl.load(here, mask=inside, other=0.0).to(dtype)
        exponent += tl.load(g + column, mask=inside, other=float("-inf"))
        highest = tl.maximum(tl.max(exponent, 0), FLOOR)
        factor = tl.exp2(exponent - highest)
        softmin = highest + tl.log2(tl.sum(factor, 0))
        mass = tl.load(log_p + row)
        old = tl.load(f + row)
        new = mass - softmin
        new = tl.where(weight == 1.0, new, old + weight * (new - old))
        new = tl.where(mass == float("-inf"), mass, new)
        tl.store(new_f + row, new)
        columns += tl.exp2(tl.minimum(new + highest, HIGHEST_EXPONENT)) * tl.maximum(factor, LEAST_FACTOR)
    tl.store(partial + program.to(tl.int64) * k + column, columns, mask=inside)


@triton.jit
def store_plan(score, potentials, out, strides, row, column, n, k):
    """out = 2^max(S + f + g, -120) on a tile, zero where f or g is -inf; ``strides`` are those of out."""
    f, g = potentials
    out_n, out_k = strides
    left = tl.load(f + row, mask=row < n, other=0.0)
    right = tl.load(g + column, mask=column < k, other=0.0)
    plan = tl.exp2(tl.maximum(score.to(left.dtype) + left[:, None] + right[None, :], LOWEST_EXPONENT))
    massless = (left == float("-inf"))[:, None] | (right == float("-inf"))[None, :]
    inside = (row[:, None] < n) & (column[None, :] < k)
    where = out + row[:, None].to(tl.int64) * out_n + column[None, :].to(tl.int64) * out_k
    tl.store(where, tl.where(massless, 0.0, plan), mask=inside)


@triton.jit(do_not_specialize=["n", "k"])
def absorb_kernel(
    S, strides, potentials, out, out_strides, n, k, BLOCK: tl.constexpr
):  # fmt: skip
    """`store_plan` of all of S, in one read and one write."""
    ROWS: tl.constexpr = BLOCK[0]
    COLUMNS: tl.constexpr = BLOCK[1]
    stride_n, stride_k = strides
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row[:, None] < n) & (column[None, :] < k)
    score = tl.load(
        S + row[:, None].to(tl.int64) * stride_n + column[None, :].to(tl.int64) * stride_k, mask=inside, other=0.0
    )
    store_plan(score, potentials, out, out_strides, row, column, n, k)


@triton.jit
def update_scaling(mass, sums, old, weight, TINY: tl.constexpr):
    """old (mass / sums / old)^weight."""
    new = mass / tl.maximum(sums, TINY)
    weight = weight.to(tl.float64, bitcast=True).to(new.dtype)
    return tl.where(weight == 1.0, new, old * tl.exp2(weight * tl.log2(new / old)))


@triton.jit(do_not_specialize=["n", "weight"])
def rescale_kernel(
    mass, sums, old, out, n, weight, TINY: tl.constexpr, SIZE: tl.constexpr
):  # fmt: skip
    """out is what `update_scaling` returns."""
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = place < n
    reached = tl.load(sums + place, mask=inside, other=1.0)
    wanted = tl.load(mass + place, mask=inside, other=1.0)
    before = tl.load(old + place, mask=inside, other=1.0)
    tl.store(out + place, update_scaling(wanted, reached, before, weight, TINY), mask=inside)

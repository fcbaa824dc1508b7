"""A Triton kernel for small transport problems, each in the registers of one program."""

import triton
import triton.language as tl

FLOOR = tl.constexpr(-1e30)
LOWEST_EXPONENT = tl.constexpr(-120.0)
LEAST_ENTRY = tl.constexpr(2.0**-100)


@triton.jit
def half_step(exponent, log_mass, axis: tl.constexpr):
    """log_mass - log2 sum 2^exponent over an axis; -inf where there is no mass."""
    highest = tl.maximum(tl.max(exponent, axis), FLOOR, propagate_nan=tl.PropagateNan.ALL)
    total = tl.sum(tl.exp2(exponent - tl.expand_dims(highest, axis)), axis)
    return tl.where(log_mass == float("-inf"), log_mass, log_mass - (highest + tl.log2(total)))


@triton.jit(do_not_specialize=["n", "k", "n_iter"])
def solve_kernel(
    given, strides, out, n, k, n_iter, BLOCK: tl.constexpr, TINY: tl.constexpr
):  # fmt: skip
    """Problem pid of S (B, n, k): an iteration in the log domain from f, then scalings; see the reference.

    ``given`` is (S, log_p, log_q, f), f with ``strides`` along problems and rows; ``out`` is (plan, f, g).
    """
    S, log_p, log_q, f = given
    stride_batch, stride_row = strides
    plan, new_f, new_g = out
    ROWS: tl.constexpr = BLOCK[0]
    COLUMNS: tl.constexpr = BLOCK[1]
    problem = tl.program_id(0).to(tl.int64)
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    there_n, there_k = row < n, column < k
    inside = there_n[:, None] & there_k[None, :]
    where = row[:, None] * k + column[None, :]
    score = tl.load(S + problem * n * k + where, mask=inside, other=float("-inf"))
    a = tl.load(log_p + row, mask=there_n, other=float("-inf"))
    b = tl.load(log_q + column, mask=there_k, other=float("-inf"))
    left = tl.load(f + problem * stride_batch + row * stride_row, mask=there_n, other=float("-inf"))
    right = half_step(score + left[:, None], b, 0)
    left = half_step(score + right[None, :], a, 1)
    exponent = score + left[:, None] + right[None, :]
    kernel = tl.exp2(tl.maximum(exponent, LOWEST_EXPONENT, propagate_nan=tl.PropagateNan.ALL))
    kernel = tl.where(inside, kernel, 0.0)
    # Sums are kept above TINY, so that points without mass, of which nothing is left, are scaled by about one.
    p = tl.where(a == float("-inf"), TINY, tl.exp2(a))
    q = tl.where(b == float("-inf"), TINY, tl.exp2(b))
    u, v = tl.full((ROWS,), 1.0, score.dtype), tl.full((COLUMNS,), 1.0, score.dtype)
    for _ in range(n_iter - 1):
        v = q / tl.maximum(tl.sum(kernel * u[:, None], 0), TINY)
        u = p / tl.maximum(tl.sum(kernel * v[None, :], 1), TINY)
    found = kernel * u[:, None] * v[None, :]
    tl.store(plan + problem * n * k + where, tl.where(found > LEAST_ENTRY, found, 0.0), mask=inside)
    tl.store(new_f + problem * n + row, left + tl.log2(u), mask=there_n)
    tl.store(new_g + problem * k + column, right + tl.log2(v), mask=there_k)


@triton.jit(do_not_specialize=["n", "k", "plain", "relaxed"])
def scalings_kernel(
    given, out, n, k, plain, relaxed, BLOCK: tl.constexpr, WEIGHT: tl.constexpr
):  # fmt: skip
    """Scalings of problem pid of kernels (B, n, k) by plain iterations and over-relaxed ones; see the reference.

    ``given`` is (kernel, p, q), ``out`` is (u, v).
    """
    kernel, p, q = given
    new_u, new_v = out
    ROWS: tl.constexpr = BLOCK[0]
    COLUMNS: tl.constexpr = BLOCK[1]
    problem = tl.program_id(0).to(tl.int64)
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    there_n, there_k = row < n, column < k
    inside = there_n[:, None] & there_k[None, :]
    entry = tl.load(kernel + problem * n * k + row[:, None] * k + column[None, :], mask=inside, other=0.0)
    a = tl.load(p + problem * n + row, mask=there_n, other=1.0)
    b = tl.load(q + problem * k + column, mask=there_k, other=1.0)
    # Beyond the problem sums are one, and so are scalings.
    beyond, below = tl.where(there_n, 0.0, 1.0).to(a.dtype), tl.where(there_k, 0.0, 1.0).to(a.dtype)
    v = b / (tl.sum(entry, 0) + below)
    u = a / (tl.sum(entry * v[None, :], 1) + beyond)
    for _ in range(plain):
        v = b / (tl.sum(entry * u[:, None], 0) + below)
        u = a / (tl.sum(entry * v[None, :], 1) + beyond)
    safe = v
    for _ in range(relaxed):
        v *= tl.exp2(tl.log2(b / (tl.sum(entry * u[:, None], 0) + below) / v) * WEIGHT)
        u *= tl.exp2(tl.log2(a / (tl.sum(entry * v[None, :], 1) + beyond) / u) * WEIGHT)
    v = b / (tl.sum(entry * u[:, None], 0) + below)
    u = a / (tl.sum(entry * v[None, :], 1) + beyond)
    good = tl.min(((u > 0) & (u < float("inf"))).to(tl.int32), 0) * tl.min(
        ((v > 0) & (v < float("inf"))).to(tl.int32), 0
    )
    v = tl.where(good != 0, v, safe)
    u = tl.where(good != 0, u, a / (tl.sum(entry * v[None, :], 1) + beyond))
    tl.store(new_u + problem * n + row, u, mask=there_n)
    tl.store(new_v + problem * k + column, v, mask=there_k)

"""One library call as flat tensor code: no objects, no dispatch, no validation; the same operations in the same order.

What it stands for is

    gw_align(EuclideanDistances(X, squared=True), EuclideanDistances(Y, squared=True), epsilon=epsilon,
             options=GWOptions(coarse=None, gradient="exact", strategy="dense", mixed_precision=dtype == torch.float32))

on a CPU, with uniform masses and few coordinates for the number of points: the product plan, annealed to epsilon by
outer iterations with the exact gradient, the last problem in float64, rounding, value and certificate. Reductions are
blocked as the library blocks them, so that both give the same bits.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LOG2E, LN2 = 1.4426950408889634, 0.6931471805599453
LOWEST, FLOOR = -120.0, -1e30
BLOCK, PLAN_BLOCK, SEARCH_ROWS, N_BINS = 2**19, 2**20, 512, 2**14
LARGEST_DRIFT, LARGEST_EXPONENT, MOVED, ROUNDED = 40.0, 100.0, 10.0, 1e-10


class Flat(NamedTuple):
    """A plan 2^(A B^T + f + g) + x y^T, as a matrix too, and what a result says of it.

    ``seconds`` are those of the parts that a result times too, and "points" before them.
    """

    plan: Tensor
    A: Tensor
    B: Tensor
    f: Tensor
    g: Tensor
    x: Tensor
    y: Tensor
    value: float
    lower_bound: float
    stationarity: float
    gap: float
    reach: float
    marginal_error: float
    marginal_residual: float
    n_iter: int
    n_iter_sinkhorn: int
    seconds: dict[str, float]


def align(
    X: NDArray[np.float64],
    Y: NDArray[np.float64],
    epsilon: float,
    dtype: torch.dtype,
    *,
    annealing: int = 20,
    factor: float = 10.0,
    max_iter: int = 300,
    plan_tol: float = 1e-3,
    exact_max_iter: int = 100,
    final_max_iter: int = 2000,
    tol: float = 1e-4,
    check_every: int = 10,
    relaxation: float = 1.8,
) -> Flat:
    """Align X (N, D) with Y (K, E), iterating in ``dtype``; the other arguments are the library's options."""
    inner = {"tol": tol, "check_every": check_every, "relaxation": relaxation}
    began = time.perf_counter()
    x, y = scaled(X), scaled(Y)
    ready = time.perf_counter()
    n, k = len(x), len(y)
    p, q = torch.full((n,), 1 / n, dtype=torch.float64), torch.full((k,), 1 / k, dtype=torch.float64)
    p, q = p / p.sum(), q / q.sum()
    wide_log_p, wide_log_q = p.log2(), q.log2()
    row, column, log_p, log_q = p.to(dtype), q.to(dtype), wide_log_p.to(dtype), wide_log_q.to(dtype)
    (F, s), (G, t) = factors(x.to(dtype)), factors(y.to(dtype))
    a, b = mean_squares(F, s, row), mean_squares(G, t, column)
    narrow = F.shape[1] <= G.shape[1]

    # The product plan, and its cost.
    f, g = row.log2(), column.log2()
    f, g = f - f.exp2().sum().log2(), g - g.exp2().sum().log2()
    zero_f, zero_g = f.new_zeros(n, 1), g.new_zeros(k, 1)
    moved = G.new_empty(n, G.shape[1])
    step = 2 * max(1, min(n, BLOCK // k))
    for i in range(0, n, step):
        block = torch.addmm(g, zero_f[i : i + step], zero_g.T).add_(f[i : i + step, None]).clamp_min_(LOWEST).exp2_()
        torch.mm(block, G, out=moved[i : i + step])
    core = s[:, None] * (F.T @ moved) * t
    U, V = (F, G @ core.T) if narrow else (F @ core, G)

    # The descent.
    started = time.perf_counter()
    annealing = min(annealing, max_iter - 1)
    score, plan = torch.empty(n, k, dtype=dtype), torch.empty(n, k, dtype=dtype)
    eps = torch.finfo(dtype).eps
    last_epsilon = epsilon_at(0, epsilon, annealing, factor)
    value, iteration, n_inner = float("inf"), 0, 0
    while iteration < max_iter:
        now = epsilon_at(iteration, epsilon, annealing, factor)
        u0, v0 = U.mean(0), V.mean(0)
        of_row, of_column = U @ v0, V @ u0 - u0 @ v0
        unit = 2 * LOG2E / now
        if last_epsilon != now:
            f, g = (
                (m + (side - m) * (last_epsilon / now)).where(~m.isneginf(), m) for side, m in ((f, log_p), (g, log_q))
            )
        torch.mm((U - u0) * unit, (V - v0).T, out=score)
        f, g, warm, residual, done = scaling(
            score, log_p, log_q, f + unit * of_row, g + unit * of_column, plan, max_iter=exact_max_iter, **inner
        )
        # Rounding: rows, then columns, are scaled down, and what is missing is added as a rank-one plan.
        shrink_p, shrink_q, missing_p, missing_q = rounding(plan, row, column)
        plan.mul_(shrink_p[:, None]).mul_(shrink_q).addr_(missing_p, missing_q)
        overlap = score.new_zeros(())
        for i in range(0, n, step := max(1, BLOCK // k)):
            overlap += torch.dot(score[i : i + step].flatten(), plan[i : i + step].flatten())
        f, g, last_epsilon = f - unit * of_row, g - unit * of_column, now
        last_value, noise = value, 4 * eps * float(a @ row + b @ column)
        value = float((a - 2 * of_row) @ row + (b - 2 * of_column) @ column - 2 * (overlap * (now * LN2 / 2)))
        iteration, n_inner = iteration + 1, n_inner + done
        still = abs(last_value - value) <= plan_tol * abs(value) + noise
        if now == epsilon and still and warm <= MOVED * tol:
            break
        if iteration < max_iter:
            core = s[:, None] * (F.T @ applied(plan, G)) * t
            U, V = (F, G @ core.T) if narrow else (F @ core, G)

    # The last problem, in float64; how far the scores of the descent reach says whether float32 carried them.
    del score, plan
    reach = 0.0
    if dtype == torch.float32:
        sides = U - U.mean(0), (V - V.mean(0)) * (2 * LOG2E)
        reach = float(torch.linalg.vector_norm(sides[0], dim=1).max() * torch.linalg.vector_norm(sides[1], dim=1).max())
        reach /= epsilon
    U, V = U.double(), V.double()
    u0, v0 = U.mean(0), V.mean(0)
    of_row, of_column = U @ v0, V @ u0 - u0 @ v0
    A, B = (U - u0) * unit, V - v0
    score = A @ B.T
    plan = torch.empty_like(score)
    start_f, start_g = f.double() + unit * of_row, g.double() + unit * of_column
    end_f, end_g, _, residual, done = scaling(
        score, wide_log_p, wide_log_q, start_f, start_g, plan, max_iter=final_max_iter, **inner
    )
    del score
    rows, columns = sums(plan)
    residual = max(float((rows - p).abs().sum()), float((columns - q).abs().sum()))
    shrink_p, shrink_q, left, right = rounding(plan, p, q)
    plan.mul_(shrink_p[:, None]).mul_(shrink_q).addr_(left, right)
    round_f, round_g = end_f + shrink_p.log2(), end_g + shrink_q.log2()
    off_g = end_g - unit * of_column
    dual = torch.where(q > 0, b.double() + epsilon * LN2 * (off_g - wide_log_q), 0.0)

    ended = time.perf_counter()

    # The value, from the cost of the plan in float64.
    (F, s), (G, t) = factors(x), factors(y)
    a, b = mean_squares(F, s, p), mean_squares(G, t, q)
    core = s[:, None] * (F.T @ applied(plan, G)) * t
    U, V = (F, G @ core.T) if narrow else (F @ core, G)
    value = max(float(a @ p + b @ q - 2 * (U * applied(plan, V)).sum()), 0.0)

    # Lower bounds: all distances, and the root mean square distances of points, transported in one dimension.
    low, high = float("inf"), -float("inf")
    for points in (x, y):
        for i in range(0, len(points), step := max(1, BLOCK // len(points))):
            least, most = torch.aminmax(squares(points[i : i + step], points))
            low, high = min(low, float(least)), max(high, float(most))
    width = max(high - low, torch.finfo(torch.float64).tiny) / N_BINS
    shares = []
    for points, mass in ((x, p), (y, q)):
        total = torch.zeros(N_BINS + 1, dtype=torch.float64)
        for i in range(0, len(points), step := max(1, BLOCK // len(points))):
            position = ((squares(points[i : i + step], points) - low) / width).round_().long()
            weights = (mass[i : i + step, None] * mass).flatten()
            total += torch.bincount(position.flatten(), weights=weights, minlength=N_BINS + 1)
        shares.append(total.numpy() / total.numpy().sum())
    centres = low + np.arange(N_BINS + 1) * width
    lower = max(wasserstein_squared(centres, centres, *shares) ** 0.5 - width, 0.0) ** 2
    roots = (side.clamp_min(0.0).sqrt().numpy() for side in (a, b))
    lower = max(lower, wasserstein_squared(*roots, p.numpy(), q.numpy()))
    lower = min(max(lower - ROUNDED, 0.0), value)

    # The Frank-Wolfe gap, bounded by dual potentials.
    expected, row_dual, column_dual = p.new_zeros(()), torch.empty_like(p), torch.where(q > 0, dual, -torch.inf)
    for i in range(0, n, step := max(1, BLOCK // k)):
        block = torch.addmm(b, U[i : i + step], V.T, alpha=-2.0).add_(a[i : i + step, None])
        expected += torch.dot(block.flatten(), plan[i : i + step].flatten())
        row_dual[i : i + step] = block.sub_(column_dual).amin(1)
    stationarity = max(2 * float(expected - (p[p > 0] @ row_dual[p > 0] + q[q > 0] @ column_dual[q > 0])), 0.0)
    rows, columns = sums(plan)
    error = max(float((rows - p).abs().sum()), float((columns - q).abs().sum()))
    seconds = {"points": ready - began, "search": started - ready, "solve": ended - started}
    seconds["finish"] = time.perf_counter() - ended
    found = value, lower, stationarity, max(value - lower, 0.0), reach, error, residual
    return Flat(plan, A, B, round_f, round_g, left, right, *found, iteration, n_inner + done, seconds)


def scaled(X: NDArray[np.float64]) -> Tensor:
    """The points with a largest distance of one."""
    centred = X - X.mean(0)
    centred /= float(max(centred.max(), -centred.min()))
    points, largest = torch.from_numpy(centred), 0.0
    for i in range(0, len(points), SEARCH_ROWS):
        distance = torch.cdist(points[i : i + SEARCH_ROWS], points, compute_mode="donot_use_mm_for_euclid_dist")
        j, l = divmod(int(distance.argmax()), len(points))  # noqa: E741
        largest = max(largest, float(distance[j, l]))
    return points / largest


def squares(x: Tensor, y: Tensor) -> Tensor:
    """Squared distances, by differences."""
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square()


def factors(x: Tensor) -> tuple[Tensor, Tensor]:
    """F (N, D + 2) and signs s with F diag(s) F^T the squared distances of x (N, D)."""
    a = x.square().sum(1, keepdim=True)
    largest = a.max()
    root = (2 * largest).sqrt()
    F = torch.cat(((a + largest) / root, (a - largest) / root, x * 2**0.5), dim=1)
    signs = -torch.ones(F.shape[1], dtype=F.dtype)
    signs[0] = 1.0
    return F, signs


def mean_squares(F: Tensor, signs: Tensor, mass: Tensor) -> Tensor:
    """(D o D) mass for D = F diag(signs) F^T."""
    signed = F * signs
    return ((signed @ (F.T @ (F * mass[:, None]))) * signed).sum(1)


def epsilon_at(iteration: int, target: float, n_iter: int, factor: float) -> float:
    """Epsilon of an outer iteration: geometric from ``factor`` times the target."""
    first = target * factor
    return target if iteration >= n_iter else first * (target / first) ** (iteration / n_iter)


def applied(plan: Tensor, V: Tensor) -> Tensor:
    """T V, a block of rows at a time."""
    out = V.new_empty(len(plan), V.shape[1])
    for i in range(0, len(plan), step := max(1, PLAN_BLOCK // plan.shape[1])):
        out[i : i + step] = plan[i : i + step] @ V
    return out


def applied_transposed(plan: Tensor, V: Tensor) -> Tensor:
    """T^T V, a block of rows at a time."""
    out = V.new_zeros(plan.shape[1], V.shape[1])
    for i in range(0, len(plan), step := max(1, PLAN_BLOCK // plan.shape[1])):
        out += plan[i : i + step].T @ V[i : i + step]
    return out


def sums(plan: Tensor) -> tuple[Tensor, Tensor]:
    """Of the rows and the columns."""
    n, k = plan.shape
    return applied(plan, plan.new_ones(k, 1))[:, 0], applied_transposed(plan, plan.new_ones(n, 1))[:, 0]


def rounding(plan: Tensor, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Factors of the rows and of the columns, and the rank-one plan x y^T, that bring a plan to its marginals."""
    shrink_p = shrunk(p, sums(plan)[0])
    columns = applied_transposed(plan, shrink_p[:, None])[:, 0]
    shrink_q = shrunk(q, columns)
    rows = shrink_p * applied(plan, shrink_q[:, None])[:, 0]
    x, y = (p - rows).clamp_min(0.0), (q - shrink_q * columns).clamp_min(0.0)
    return shrink_p, shrink_q, x, y / x.sum().clamp_min(torch.finfo(x.dtype).tiny)


def shrunk(target: Tensor, actual: Tensor) -> Tensor:
    """Factors in [0, 1] that bring ``actual`` down to ``target``."""
    return torch.where(actual > target, target / actual.clamp_min(torch.finfo(actual.dtype).tiny), 1.0)


def scaling(
    score: Tensor,
    log_p: Tensor,
    log_q: Tensor,
    f: Tensor,
    g: Tensor,
    out: Tensor,
    *,
    max_iter: int,
    tol: float,
    check_every: int,
    relaxation: float,
) -> tuple[Tensor, Tensor, float, float, int]:
    """Sinkhorn by an absorbed kernel in ``out``: potentials, residuals before and after, iterations."""
    tiny, largest = torch.finfo(f.dtype).tiny, torch.finfo(f.dtype).max
    empty_p, empty_q = log_p.isneginf(), log_q.isneginf()
    p, q = torch.where(empty_p, tiny, log_p.exp2()), torch.where(empty_q, tiny, log_q.exp2())
    warm, residual, weight, n_iter = None, float("inf"), relaxation, 0
    while True:
        column_logs = over_rows(score, f)
        new_g = torch.where(empty_q, log_q, log_q - column_logs)
        if warm is None:
            reached = torch.where(new_g.isneginf(), new_g, new_g + column_logs).exp2()
            off = reached * (torch.nan_to_num(g - new_g).exp2() - 1).abs()
            warm = float(off.masked_fill(reached == 0, 0.0).sum())
        g = new_g
        f = torch.where(empty_p, log_p, log_p - over_columns(score, g))
        n_iter += 1
        absorb(score, f, g, out)
        u, v, safe = torch.ones_like(f), torch.ones_like(g), True
        for at in range(1, max(max_iter - n_iter, 1) + 1):
            columns = u @ out
            new_v = q / columns.clamp_min(tiny)
            checked = at % check_every == 0 or n_iter + 1 >= max_iter or at == 1
            n_iter += 1
            if not checked:
                v = v * (new_v / v) ** weight
                u = u * (p / (out @ v).clamp_min(tiny) / u) ** weight
                continue
            missed = (columns * (v - new_v)).abs().sum()
            v = new_v
            u = p / (out @ v).clamp_min(tiny)
            furthest = torch.maximum(u.log2().abs().max(), v.log2().abs().max())
            last, (residual, drift) = residual, torch.stack((missed, furthest)).tolist()
            solved = residual <= tol and drift <= LARGEST_EXPONENT
            safe = drift <= LARGEST_DRIFT or solved
            if solved or not safe:
                break
            weight = weight if residual <= last or at == 1 else (1 + weight) / 2
        if drift <= largest:
            f, g = f + u.log2(), g + v.log2()
        if safe or n_iter >= max_iter:
            break
    if safe:
        out.mul_(u[:, None]).mul_(v)
    else:
        f = torch.where(empty_p, log_p, log_p - over_columns(score, g))
        absorb(score, f, g, out)
    return f, g, warm, residual, n_iter


def over_columns(score: Tensor, g: Tensor) -> Tensor:
    """log2 sum_j 2^(S_ij + g_j)."""
    n, k = score.shape
    step = max(1, min(n, BLOCK // k))
    out, buffer = g.new_empty(n), g.new_empty(step, k)
    for i in range(0, n, step):
        block = score[i : i + step]
        exponent = torch.add(block, g, out=buffer[: len(block)])
        highest = exponent.amax(1).clamp_min_(FLOOR)
        sums = exponent.sub_(highest[:, None]).clamp_min_(LOWEST).exp2_().sum(1)
        out[i : i + step] = sums.log2_().add_(highest)
    return out.masked_fill_(out < FLOOR / 2, -torch.inf)


def over_rows(score: Tensor, f: Tensor) -> Tensor:
    """log2 sum_i 2^(S_ij + f_i)."""
    n, k = score.shape
    step = max(1, min(n, BLOCK // k))
    highest, total, buffer = f.new_full((k,), FLOOR), f.new_zeros(k), f.new_empty(step, k)
    for i in range(0, n, step):
        block = score[i : i + step]
        exponent = torch.add(block, f[i : i + step, None], out=buffer[: len(block)])
        higher = torch.maximum(highest, exponent.amax(0))
        exponent.sub_(higher).clamp_min_(LOWEST).exp2_()
        total.mul_((highest - higher).exp2_()).add_(exponent.sum(0))
        highest = higher
    out = total.log2_().add_(highest)
    return out.masked_fill_(out < FLOOR / 2, -torch.inf)


def absorb(score: Tensor, f: Tensor, g: Tensor, out: Tensor) -> None:
    """2^(S + f + g)."""
    for i in range(0, len(out), step := max(1, min(len(out), BLOCK // out.shape[1]))):
        torch.add(score[i : i + step], g, out=out[i : i + step])
        out[i : i + step].add_(f[i : i + step, None]).clamp_min_(LOWEST).exp2_()
    out[f.isneginf()] = 0.0
    out[:, g.isneginf()] = 0.0


def wasserstein_squared(
    x: NDArray[np.float64], y: NDArray[np.float64], p: NDArray[np.float64], q: NDArray[np.float64]
) -> float:
    """Squared 2-Wasserstein distance of two weighted sets of numbers."""
    i, j = np.argsort(x, kind="stable"), np.argsort(y, kind="stable")
    level_x, level_y = np.cumsum(p[i]), np.cumsum(q[j])
    level_x, level_y = level_x / level_x[-1], level_y / level_y[-1]
    cuts = np.union1d(level_x, level_y)
    middle = (np.concatenate(([0.0], cuts[:-1])) + cuts) / 2
    at_x = x[i][np.searchsorted(level_x, middle).clip(max=len(x) - 1)]
    at_y = y[j][np.searchsorted(level_y, middle).clip(max=len(y) - 1)]
    return float(np.diff(cuts, prepend=0.0) @ (at_x - at_y) ** 2)

"""Sums whose order is fixed, so that the same numbers have the same sum on a GPU, and that know no limit of entries.

A GPU adds by label (``index_add_``, ``scatter_add_``, ``bincount``) and scans a single row in whatever order its blocks
end, and floating sums depend on the order. Instead

    sum over {i : label_i = c} of x_i       entries sorted by label, stably, and each run added from its beginning to
                                            its end: what ``index_put_(accumulate=True)`` does on a GPU
    sum over {i <= j} of x_i                products of runs of 256 entries with a triangle of ones, and the same of
                                            their totals: torch refuses scans of numbers where it is asked for
                                            deterministic algorithms, whatever the shape
    log sum over {i <= j} of exp(x_i)       two equal rows at once, as one block scans each row of several

CPUs add in the order of the entries, and keep the plain operations.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchgw.kernels.blocks import points_at_once
from torchgw.runtime.ranks import ALONE, Ranks

RUN, BLOCK_POINTS = 256, 2**14
MOST_ENTRIES = 2**30  # cuBLAS counts the entries of a vector in 31 bits


def add_by_label(total: Tensor, label: Tensor, values: Tensor, dim: int = 0) -> Tensor:
    """``total`` (C, ...) with the ``values`` (N, ...) added, in place, to the rows that ``label`` (N,) names; or to
    what lies there along another dimension of both."""
    if not total.is_cuda:
        return total.index_add_(dim, label, values)
    total.movedim(dim, 0).index_put_((label,), values.movedim(dim, 0), accumulate=True)
    return total


def cumulative_sum(values: Tensor, dim: int) -> Tensor:
    """Cumulative sums along ``dim``, of finite numbers."""
    if not (values.is_cuda and values.is_floating_point()):
        return values.cumsum(dim)
    return _in_runs(values.movedim(dim, -1)).movedim(-1, dim)


def _in_runs(values: Tensor) -> Tensor:
    """Cumulative sums (..., n) of the last axis."""
    n = values.shape[-1]
    size = max(min(RUN, n), 1)
    runs = torch.nn.functional.pad(values, (0, -n % size)).reshape(*values.shape[:-1], -(-n // size), size)
    within = runs @ torch.ones(size, size, dtype=values.dtype, device=values.device).triu()
    if runs.shape[-2] > 1:
        totals = within[..., -1]
        within = within + (_in_runs(totals) - totals)[..., None]
    found: Tensor = within.flatten(-2)[..., :n]
    return found


def cumulative_logsumexp(values: Tensor, dim: int) -> Tensor:
    """Logarithms of cumulative sums of exponentials along ``dim``."""
    if values.is_cuda and values.numel() == values.shape[dim]:
        return torch.logcumsumexp(torch.stack((values, values)), dim if dim < 0 else dim + 1)[0]
    return torch.logcumsumexp(values, dim)


def inner(x: Tensor, y: Tensor) -> Tensor:
    """<x, y>, the sum of the products of all entries, in products of at most 2^30."""
    parts = zip(*(torch.split(side.flatten(), MOST_ENTRIES) for side in (x, y)), strict=True)
    return sum((torch.dot(a, b) for a, b in parts), start=x.new_zeros(()))


def inner_product(F: Tensor, G: Tensor, mass: Tensor | None = None, ranks: Ranks = ALONE) -> Tensor:
    """F^T diag(mass) G (r, r') in the dtype of the masses (N,), without which it is F^T G in float64; a block of points
    at a time, so that no wider copy of the factors is made. F and G are the ranks' shares, masses are all."""
    dtype, found = torch.float64 if mass is None else mass.dtype, []
    mass = mass if mass is None else ranks.own(mass)
    size = points_at_once(F.shape[1] + G.shape[1], F.device, BLOCK_POINTS // ranks.count)
    for start in range(0, max(len(F), 1), size):
        where = slice(start, start + size)
        left = F[where].to(dtype)
        right = left if G is F else G[where].to(dtype)
        found.append(left.T @ (right if mass is None else right * mass[where, None]))
    return ranks.sum(found[0] if len(found) == 1 else torch.stack(found).sum(0))


def round_sums(sums: Tensor, dtype: torch.dtype) -> Tensor:
    """Float64 sums in a narrower dtype, the same whatever the order they were added in.

    The mean of two float32 numbers often lies halfway between two others, where the last bit of the sum would decide;
    without its last 13 bits, a sum is there exactly.
    """
    if dtype == sums.dtype:
        return sums
    raised = sums * (2**13 + 1)
    return (raised - (raised - sums)).to(dtype)


def scatter(values: Tensor, index: Tensor, size: int, fill: float = 0.0) -> Tensor:
    """(size, ...) with ``values`` (n, ...) in the places ``index`` (n,), and ``fill`` elsewhere."""
    found = values.new_full((size, *values.shape[1:]), fill)
    return found.index_copy(0, index.to(values.device), values)

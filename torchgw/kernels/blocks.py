"""The eager algorithms on blocks of rows that stay in the processor's cache.

A score is given by a function that fills a buffer with some of its rows plus a bias over the columns: a copy of stored
rows, or a matrix product. So nothing of the score's size is allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from torchgw.kernels.dispatch import Workload
from torchgw.kernels.kernel import HIGHEST_EXPONENT, half_step, relax
from torchgw.kernels.logsumexp import FLOOR, LOWEST_EXPONENT, exponentials, maxima
from torchgw.runtime.threads import share

ON_GPU = 2**23  # entries of a block on a GPU: few launches, and some blocks fit beside what a solve stores
BLOCK_ELEMENTS = {"cpu": 2**19, "cuda": ON_GPU}
WIDE = 2**14  # columns, at most, of a block that is made of factors: of longer rows too few fit to read these once

Fill = Callable[[slice, Tensor, Tensor], Tensor]
"""``fill(rows, bias, out)`` writes S[rows] + bias into ``out`` (len, K) and returns it."""


def block_rows(n: int, k: int, device: torch.device, elements: Mapping[str, int] | None = None) -> int:
    """How many of n rows of k entries a block of so many ``elements``, by type of device, has; one at least."""
    most = (BLOCK_ELEMENTS if elements is None else elements).get(device.type, 2**24)
    return max(1, min(n, most // max(k, 1)))


def rows(workload: Workload) -> dict[str, int]:
    """The block size of implementations that work in blocks of rows."""
    return {"rows": block_rows(*workload.shape, workload.device)}


def points_at_once(k: int, device: torch.device, points: int) -> int:
    """How many points with k numbers are worked on together: on a GPU a block of numbers, elsewhere ``points``, whose
    copies stay small."""
    return max(1, ON_GPU // max(k, 1)) if device.type == "cuda" else max(points, 1)


def parts(index: Tensor, k: int, elements: int = 2**22) -> tuple[Tensor, ...]:
    """Indices (m,) in parts of at most so many ``elements``, with rows of k entries, of which several copies are made;
    a row at least."""
    return torch.split(index, max(1, (ON_GPU // 4 if index.is_cuda else elements) // k))


def blocks(n: int, step: int) -> Iterator[slice]:
    """Consecutive blocks of ``step`` rows."""
    for start in range(0, n, step):
        share()
        yield slice(start, min(start + step, n))


def _exponentials(fill: Fill, where: slice, bias: Tensor, buffer: Tensor) -> tuple[Tensor, Tensor]:
    """2^(S + bias - m) of a block of rows, with m (len,) their maxima."""
    exponent = fill(where, bias, buffer[: where.stop - where.start])
    highest = maxima(exponent, 1)
    return exponentials(exponent, highest, 1), highest


def over_columns(fill: Fill, n: int, bias: Tensor) -> Tensor:
    """log2 sum_j 2^(S_ij + bias_j), (N,); -inf where every term is."""
    k = len(bias)
    step = block_rows(n, k, bias.device)
    out, buffer = bias.new_empty(n), bias.new_empty(step, k)
    for where in blocks(n, step):
        weights, highest = _exponentials(fill, where, bias, buffer)
        out[where] = weights.sum(1).log2_().add_(highest)
    return out.masked_fill_(out < FLOOR / 2, -torch.inf)


def sweep(fill: Fill, n: int, g: Tensor, log_p: Tensor, f: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """One read and one exponential for each entry; see `torchgw.kernels.kernel`."""
    k = len(g)
    step = block_rows(n, k, g.device)
    out, columns, buffer = torch.empty_like(f), torch.zeros_like(g), g.new_empty(step, k)
    for where in blocks(n, step):
        weights, highest = _exponentials(fill, where, g, buffer)
        new = relax(f[where], half_step(log_p[where], weights.sum(1).log2_().add_(highest)), weight)
        columns.addmv_(weights.T, (new + highest).clamp_max_(HIGHEST_EXPONENT).exp2_())
        out[where] = new
    return out, logarithms(columns).sub_(g)


def logarithms(sums: Tensor) -> Tensor:
    """log2 of sums in place, which are kept finite and above zero so that none of them ends an iteration."""
    limits = torch.finfo(sums.dtype)
    return sums.clamp_(limits.tiny, limits.max).log2_()


def absorb(fill: Fill, f: Tensor, g: Tensor, out: Tensor) -> Tensor:
    """2^(S + f + g) into ``out`` (N, K), a block at a time."""
    n, k = out.shape
    for where in blocks(n, block_rows(n, k, out.device)):
        fill(where, g, out[where]).add_(f[where, None]).clamp_min_(LOWEST_EXPONENT).exp2_()
    out[torch.isneginf(f)] = 0.0
    out[:, torch.isneginf(g)] = 0.0
    return out

"""The kept tiles of a score S = A B^T, read without storing it, in plain torch: the eager backend and the oracle.

    softmin(A, B, tiles, bias, axis)    log2 sum 2^(S + bias) over the kept tiles of each row (axis 1), column (axis 0)
    read(A, B, tiles, f, g, V, W)       T V, T^T W and the largest entry of each row of T = 2^(S + f + g) on kept tiles

Factors may be float32 while potentials and sums are float64. The large part of a score is then kept exact: with the
centre a of a row tile, S_ij = (A_i - a) . B_j + a . B_j, and the second term, which depends on the column only, is
added to its potential in float64. What is left for float32 is some tens of bits, so entries are good to about 1e-6.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from torchgw.kernels.kernel import FLOOR, LOWEST_EXPONENT
from torchgw.kernels.tiles import Tiles

BLOCK_ELEMENTS = {"cpu": 2**19, "cuda": 2**26}


class Read(NamedTuple):
    """T V (N, d), T^T W (K, e), and for each row its largest entry (N,) and that one's column (N,)."""

    moved: Tensor
    back: Tensor
    largest: Tensor
    at: Tensor


class _Block(NamedTuple):
    """A block of A B^T + potential of the columns - ``top``, its rows and columns; it may be written to."""

    rows: slice
    columns: slice
    exponent: Tensor
    top: Tensor


def _blocks(A: Tensor, B: Tensor, tiles: Tiles, g: Tensor) -> Iterator[_Block]:
    """Blocks that stay in the cache, row tile by row tile. ``top`` is the same for all blocks of a row tile.

    There are none for a row tile that keeps nothing.
    """
    most = max(1, BLOCK_ELEMENTS.get(A.device.type, 2**24) // tiles.size)
    buffer = A.new_empty(min(tiles.size, len(A)) * min(most, len(B)))
    wide = B.T if B.dtype == g.dtype else B.T.to(g.dtype)
    for tile, spans in enumerate(tiles.spans):
        if not spans:
            continue
        rows = slice(tile * tiles.size, min((tile + 1) * tiles.size, len(A)))
        centre = A[rows].mean(0)
        local, wide_centre = A[rows] - centre, centre.to(g.dtype)
        shifts = [torch.addmv(g[span], wide[:, span].T, wide_centre) for span in spans]
        top = torch.stack([shift.amax() for shift in shifts]).amax().clamp_min(FLOOR)
        for span, shift in zip(spans, shifts, strict=True):
            bias = (shift - top).to(A.dtype)
            for start in range(span.start, span.stop, most):
                columns = slice(start, min(start + most, span.stop))
                out = buffer[: len(local) * (columns.stop - start)].view(len(local), -1)
                part = bias[start - span.start : columns.stop - span.start]
                yield _Block(rows, columns, torch.addmm(part, local, B[columns].T, out=out), top)


def softmin(A: Tensor, B: Tensor, tiles: Tiles, bias: Tensor, axis: int) -> Tensor:
    """log2 of the sum of 2^(A B^T + bias) over the kept tiles, in the dtype of the bias; -inf where every term is."""
    if axis == 0:
        A, B, tiles = B, A, tiles.transposed
    highest = A.new_full((len(A),), FLOOR)
    total, base = bias.new_zeros(len(A)), bias.new_zeros(len(A))
    for rows, _, exponent, top in _blocks(A, B, tiles, bias):
        higher = torch.maximum(highest[rows], exponent.amax(1))
        sums = exponent.sub_(higher[:, None]).clamp_min_(LOWEST_EXPONENT).exp2_().sum(1)
        total[rows] = total[rows] * (highest[rows] - higher).exp2() + sums
        highest[rows], base[rows] = higher, top
    out = (total.log2_() + highest + base).to(bias.dtype)
    return out.masked_fill_(out < FLOOR / 2, -torch.inf)


def read(A: Tensor, B: Tensor, tiles: Tiles, f: Tensor, g: Tensor, V: Tensor, W: Tensor) -> Read:
    """See the head of this file; V (K, d) and W (N, e) are taken in the dtype of A."""
    n, k = len(A), len(B)
    moved, back = f.new_zeros(n, V.shape[1]), f.new_zeros(k, W.shape[1])
    largest, index = A.new_zeros(n), torch.zeros(n, dtype=torch.int64, device=A.device)
    V = V.masked_fill(g.isneginf()[:, None], 0.0).to(A.dtype)
    W = W.masked_fill(f.isneginf()[:, None], 0.0).to(A.dtype)
    for rows, where, exponent, top in _blocks(A, B, tiles, g):
        level = (f[rows] + top).to(A.dtype)
        plan = exponent.add_(level[:, None]).clamp_min_(LOWEST_EXPONENT).exp2_()
        moved[rows] += plan @ V[where]
        back[where] += plan.T @ W[rows]
        best, at = plan.max(1)
        better = best > largest[rows]
        largest[rows] = torch.where(better, best, largest[rows])
        index[rows] = torch.where(better, at + where.start, index[rows])
    absent = f.isneginf()
    moved.masked_fill_(absent[:, None], 0.0)
    back.masked_fill_(g.isneginf()[:, None], 0.0)
    return Read(moved, back, largest.to(f.dtype).masked_fill_(absent, 0.0), index)

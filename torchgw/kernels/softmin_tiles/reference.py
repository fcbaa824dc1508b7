"""The kept tiles of a score S = A B^T, read without storing it, in plain torch: the eager backend and the oracle.

    softmin(A, B, tiles, bias, axis)    log2 sum 2^(S + bias) over the kept tiles of each row (axis 1), column (axis 0)
    read(A, B, tiles, f, g, V, W)       T V and T^T W of T = 2^(S + f + g) on the kept tiles

Factors may be float32 while potentials and sums are float64. The large part of a score is then kept exact: with the
centre a of a row tile, S_ij = (A_i - a) . B_j + a . B_j, and the second term, which depends on the column only, is
added to its potential in float64. What is left for float32 is some tens of bits, so entries are good to about 1e-6.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from torchgw.kernels.blocks import block_rows
from torchgw.kernels.logsumexp import FLOOR, LOWEST_EXPONENT, merge_sums
from torchgw.kernels.softmin_tiles import separable
from torchgw.kernels.softmin_tiles.tile_kernel import PlanProducts
from torchgw.kernels.tiles import Tiles
from torchgw.runtime.surroundings import isolate


class _Reader:
    """Fills blocks with A B^T + f + g, a row tile at a time, so that they stay in the cache.

    ``top`` is taken off the columns' potentials, and added to the rows', so that what is in float32 is small.
    """

    def __init__(self, A: Tensor, B: Tensor, tiles: Tiles, g: Tensor) -> None:
        self.A, self.g, self.tiles = A, g, tiles
        # In whole column tiles.
        self.most = block_rows(-(-len(B) // tiles.size), tiles.size**2, A.device) * tiles.size
        self._buffer = A.new_empty(min(tiles.size, len(A)) * min(self.most, len(B)))
        # With a column of ones the rows' potentials are added by the product itself.
        self._B = torch.cat((B, B.new_ones(len(B), 1)), 1)  # also where B has no column
        self.wide = B.to(g.dtype)

    def row_tiles(self) -> Iterator[tuple[slice, list[slice]]]:
        """Each row tile that keeps something: its rows, and its columns in blocks."""
        for tile, spans in enumerate(self.tiles.spans):
            if not spans:
                continue
            rows = slice(tile * self.tiles.size, min((tile + 1) * self.tiles.size, len(self.A)))
            self._centre(rows, spans)
            starts = [(start, span.stop) for span in spans for start in range(span.start, span.stop, self.most)]
            yield rows, [slice(start, min(start + self.most, stop)) for start, stop in starts]

    def _centre(self, rows: slice, spans: list[slice]) -> None:
        centre = self.A[rows].mean(0)
        self._local = self.A[rows] - centre
        wide = centre.to(self.g.dtype)
        shifts = {span.start: torch.addmv(self.g[span], self.wide[span], wide) for span in spans}
        self.top = torch.stack([shift.amax() for shift in shifts.values()]).amax().clamp_min(FLOOR)
        self._bias = {start: (shift - self.top).to(self.A.dtype) for start, shift in shifts.items()}

    def raise_rows(self, level: Tensor | None) -> None:
        """Potentials (n,) that blocks of this row tile get from now on."""
        added = self._local.new_zeros(len(self._local)) if level is None else level.to(self._local.dtype)
        self._rows = torch.cat((self._local, added[:, None]), 1)

    def block(self, columns: slice) -> Tensor:
        """Exponents of these columns for the rows of the tile; in a buffer that the next one overwrites."""
        start = max(first for first in self._bias if first <= columns.start)
        bias = self._bias[start][columns.start - start : columns.stop - start]
        out = self._buffer[: len(self._rows) * len(bias)].view(len(self._rows), -1)
        return torch.addmm(bias, self._rows, self._B[columns].T, out=out)


def softmin(A: Tensor, B: Tensor, tiles: Tiles, bias: Tensor, axis: int) -> Tensor:
    """log2 of the sum of 2^(A B^T + bias) over the kept tiles, in the dtype of the bias; -inf where every term is."""
    if axis == 0:
        A, B, tiles = B, A, tiles.transpose
    out, reader = bias.new_full((len(A),), -torch.inf), _Reader(A, B, tiles, bias)
    for rows, blocks in reader.row_tiles():
        reader.raise_rows(None)
        highest, total = A.new_full((rows.stop - rows.start,), FLOOR), bias.new_zeros(rows.stop - rows.start)
        for columns in blocks:
            highest, total = merge_sums(highest, total, reader.block(columns), 1)
        out[rows] = total.log2_() + highest + reader.top
    return out.masked_fill_(out < FLOOR / 2, -torch.inf)


@isolate  # results are read when the solve is over
def read(A: Tensor, B: Tensor, tiles: Tiles, f: Tensor, g: Tensor, V: Tensor, W: Tensor) -> PlanProducts:
    """See the head of this file; V (K, d) and W (N, e) are taken in the dtype of A."""
    if tiles.separable:
        return separable.read(A, B, tiles, f, g, V, W)
    n, k = len(A), len(B)
    TV, WtT = f.new_zeros(n, V.shape[1]), f.new_zeros(W.shape[1], k)
    V = V.masked_fill(g.isneginf()[:, None], 0.0).to(A.dtype)
    W = W.masked_fill(f.isneginf()[:, None], 0.0).to(A.dtype)
    reader = _Reader(A, B, tiles, g)
    for rows, blocks in reader.row_tiles():
        reader.raise_rows(f[rows] + reader.top)
        for columns in blocks:
            plan = reader.block(columns).clamp_min_(LOWEST_EXPONENT).exp2_()
            if V.shape[1]:
                TV[rows].add_(plan @ V[columns])
            if W.shape[1]:
                WtT[:, columns].add_(W[rows].T @ plan)
    TV.masked_fill_(f.isneginf()[:, None], 0.0)
    WtT.masked_fill_(g.isneginf(), 0.0)
    return PlanProducts(TV, WtT.T)

"""Kernels whose passes over all pairs are divided among ranks that all have the factors and potentials.

    softmin over axis 1     each rank has a run of rows, the softmins are joined: N numbers are exchanged
    softmin over axis 0     each rank has a run of columns: K numbers
    sweep                   a run of rows, whose half-step is there at once; of columns the running pair of ranks,

        m = max over ranks of x_r,    log2 sum 2^x_r = m + log2 sum 2^(x_r - m)

so a sweep exchanges N + 2 K numbers. Its column sums are rounded where they are merged, which one process alone does
not do, so sweeps of up to `SWEPT_ALONE` pairs are done by every rank: they take less than a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeAlias

import torch
from torch import Tensor

from torchgw.kernels.kernel import Kernel
from torchgw.kernels.softmin_tiles import PlanProducts, TileKernel
from torchgw.kernels.softmin_tiles.tile_kernel import TiledScore
from torchgw.kernels.tiles import UNIT, Tiles
from torchgw.runtime.ranks import Ranks
from torchgw.types import Softmins

FEW_PAIRS, SWEPT_ALONE, MANY_COLUMNS, PASSED = 2**18, 2**25, 2**17, 2**14


def logsumexp_over_ranks(share: Tensor, ranks: Ranks) -> Tensor:
    """log2 of the sum over ranks of 2^share, entry by entry."""
    if ranks.count == 1:
        return share
    highest = ranks.most(share)
    top = highest.masked_fill(highest.isneginf(), 0.0)
    return ranks.sum((share - top).exp2_()).log2_() + top


@dataclass(frozen=True)
class SharedKernel:
    """Makes softmins of products that ranks share.

    kernel : of one rank.
    ranks : that share the pairs.
    """

    kernel: Kernel
    ranks: Ranks

    def bind(self, A: Tensor, B: Tensor) -> Softmins:
        """The score of A (N, r), B (K, r), which all ranks have."""
        return self.kernel.bind(A, B) if _is_small(A, B, self.ranks) else SharedScore(self.kernel, A, B, self.ranks)


@dataclass(frozen=True)
class SharedScore:
    """A `torchgw.types.Softmins` whose pairs ranks share.

    kernel : of one rank.
    A, B : factors (N, r), (K, r).
    ranks : that share the pairs.
    """

    kernel: Kernel
    A: Tensor
    B: Tensor
    ranks: Ranks

    @cached_property
    def rows(self) -> Softmins:
        """The score of this rank's rows."""
        return self.kernel.bind(self.ranks.own(self.A), self.B)

    @cached_property
    def columns(self) -> Softmins:
        """The score of this rank's columns."""
        return self.kernel.bind(self.A, self.ranks.own(self.B))

    def softmin(self, bias: Tensor, axis: int) -> Tensor:
        if axis == 1:
            return self.ranks.all_gather(self.rows.softmin(bias, 1), len(self.A))
        return self.ranks.all_gather(self.columns.softmin(bias, 0), len(self.B))

    @cached_property
    def whole(self) -> Softmins:
        """The score of all pairs."""
        return self.kernel.bind(self.A, self.B)

    def sweep(self, g: Tensor, log_p: Tensor, f: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        if len(self.A) * len(self.B) <= SWEPT_ALONE:
            return self.whole.sweep(g, log_p, f, weight)
        f, softmin = self.rows.sweep(g, self.ranks.own(log_p), self.ranks.own(f), weight)
        return self.ranks.all_gather(f, len(self.A)), logsumexp_over_ranks(softmin, self.ranks)


@dataclass(frozen=True)
class RankSharedTiles:
    """Reads kept tiles, of which each rank has those of a run of rows; see `torchgw.kernels.softmin_tiles`.

    From `MANY_COLUMNS` on a rank reads its tiles by runs of `PASSED` columns, whose factors are passed from rank to
    rank. Fewer are read as one process alone reads them, in the same blocks and with the same rounding.

    kernel : of one rank.
    ranks : that share the tiles, by units of `torchgw.kernels.tiles.UNIT` points.
    """

    kernel: TileKernel
    ranks: Ranks

    def bind(self, A: Tensor, B: Tensor, tiles: Tiles) -> Softmins:
        """The score of A (N, r), B (K, r), which all ranks have, on the kept tiles."""
        if _is_small(A, B, self.ranks):
            return self.kernel.bind(A, B, tiles)
        return TiledScore(partial(self._softmin, A, B, tiles))

    def _softmin(self, A: Tensor, B: Tensor, tiles: Tiles, bias: Tensor, axis: int) -> Tensor:
        """Each rank has a run of what is asked for."""
        if axis == 0:
            A, B, tiles = B, A, tiles.transpose
        rows = self.ranks.share(len(A), UNIT)
        own = tiles.of_rows(rows)
        found = self.kernel.softmin(A[rows], B, own, bias, 1) if own.n else bias[:0]
        return self.ranks.all_gather(found, len(A), UNIT)

    def read(self, A: Tensor, B: Tensor, tiles: Tiles, f: Tensor, g: Tensor, V: Tensor, W: Tensor) -> PlanProducts:
        """T V and T^T W, for V, W that all ranks have, and shares of A, B."""
        rows = self.ranks.share(tiles.n, UNIT)

        def pieces() -> Iterator[tuple[int, PlanProducts]]:
            for columns, part, (theirs,) in self._parts(tiles, B):
                sums = PlanProducts(V.new_zeros(part.n, V.shape[1]), W.new_zeros(part.k, W.shape[1]))
                if len(part.column):
                    sums = self.kernel.read(A, theirs, part, f[rows], g[columns], V[columns], W[rows])
                yield columns.start, sums

        return self._whole(pieces(), tiles)

    def contract(
        self, A: Tensor, B: Tensor, tiles: Tiles, f: Tensor, g: Tensor, left: Tensor, right: Tensor
    ) -> tuple[PlanProducts, Tensor]:
        """Sums and left^T T right, for shares of A, B, left and right."""
        rows = self.ranks.share(tiles.n, UNIT)
        core = torch.zeros(left.shape[1], right.shape[1], dtype=torch.float64, device=A.device)

        def pieces() -> Iterator[tuple[int, PlanProducts]]:
            for columns, part, (theirs, wide) in self._parts(tiles, B, right):
                sums = PlanProducts(f.new_zeros(part.n, 1), f.new_zeros(part.k, 1))
                if len(part.column):
                    sums, own = self.kernel.contract(A, theirs, part, f[rows], g[columns], left, wide)
                    core.add_(own)
                yield columns.start, sums

        return self._whole(pieces(), tiles), self.ranks.sum(core)

    def _parts(self, tiles: Tiles, *shares: Tensor) -> Iterator[tuple[slice, Tiles, Sequence[Tensor]]]:
        """Runs of columns with the tiles of this rank's rows there, and the rows for these columns of matrices that
        ranks share."""
        ranks, k = self.ranks, tiles.k
        own = tiles.of_rows(ranks.share(tiles.n, UNIT))
        if k < MANY_COLUMNS:
            yield slice(0, k), own, [ranks.all_gather(share, k, UNIT) for share in shares]
            return
        for columns, rows in ranks.ring(shares, k, UNIT, PASSED):
            yield columns, own.of_columns(columns), rows

    def _whole(self, pieces: Iterator[tuple[int, PlanProducts]], tiles: Tiles) -> PlanProducts:
        """What all ranks have read, from what this one reads of runs of columns, in turn, each with where it begins."""
        ranks, n, of_columns = self.ranks, tiles.n, list[Tensor]()
        for start, piece in pieces:
            if start == 0:
                TV = torch.zeros_like(piece.TV)
            TV += piece.TV
            of_columns.append(piece.TtW)
        return PlanProducts(ranks.all_gather(TV, n, UNIT), ranks.sum(torch.cat(of_columns)))


StreamedKernel: TypeAlias = Kernel | SharedKernel
TileReader: TypeAlias = TileKernel | RankSharedTiles


def _is_small(A: Tensor, B: Tensor, ranks: Ranks) -> bool:
    """Whether there is too little to share."""
    return len(A) * len(B) < FEW_PAIRS or min(len(A), len(B)) < ranks.count

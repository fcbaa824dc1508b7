"""Entries of a plan of factors that may be above a limit of their row and column, without most others.

The scores A_i . B_j + f_i + g_j of a tile are at most what `torchgw.kernels.tiles.limit_scores` says. A tile is left
out if no entry of it can be above its limit. Of plans whose tiles are short sums of products, entries are those of
`torchgw.kernels.softmin_tiles.separable`, with 1 + x ln 2 for 2^x, and so no larger.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from torchgw.couplings.blocks import largest_entries
from torchgw.kernels.blocks import ON_GPU, blocks, parts
from torchgw.kernels.softmin_tiles import separable
from torchgw.kernels.tiles import UNIT, TiledSide, Tiles, centres, inverse_permutation, limit_scores

TILE = 64
AT_ONCE = 2**24  # scores of points and centres that are held at once
ROUNDING = 2.0**-28  # of entries, beside bounds on them and beside others that count as equal


@dataclass(frozen=True)
class FactoredPlan:
    """The plan 2^(A_i . B_j + f_i + g_j) + x_i y_j, or A_i . B_j, in an order in which neighbours are alike.

    Attributes
    ----------
    A, B : factors (N, r), (K, r).
    f, g : base-2 potentials (N,), (K,), float64; zero without ``power``.
    x, y : the rank-one correction (N,), (K,).
    row_order, column_order : (N,), (K,), position to index of the point.
    power : whether entries are powers of two of the scores, or the scores.
    tiles : those that have more than the correction; None for all.
    """

    A: Tensor
    B: Tensor
    f: Tensor
    g: Tensor
    x: Tensor
    y: Tensor
    row_order: Tensor
    column_order: Tensor
    power: bool = True
    tiles: Tiles | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return len(self.A), len(self.B)

    @cached_property
    def size(self) -> int:
        """How many points the smallest tiles have that bounds are for."""
        return TILE if self.tiles is None or self.tiles.size % TILE == 0 else self.tiles.size

    @cached_property
    def tile_mask(self) -> Tensor:
        """Which tiles of `tiles` are kept, (row tiles, column tiles) of booleans."""
        assert self.tiles is not None
        tiles, row = self.tiles, self.tiles.rows
        kept = row.new_zeros(len(tiles.first) - 1, -(-tiles.k // tiles.size), dtype=torch.bool)
        return kept.index_put_((row, tiles.column), kept.new_ones(()))  # a number of the host is sent there

    @cached_property
    def _first(self) -> list[int]:
        """Where the list of each row tile begins."""
        found: list[int] = [] if self.tiles is None else self.tiles.first.tolist()
        return found

    @cached_property
    def _centres(self) -> tuple[Tensor, Tensor]:
        assert self.tiles is not None
        return centres(self.A, self.tiles.size), centres(self.B, self.tiles.size)

    def on_host(self) -> FactoredPlan:
        """The plan on the CPU, with factors in float64."""
        A, B, f, g, x, y = (side.detach().cpu().double() for side in (self.A, self.B, self.f, self.g, self.x, self.y))
        orders, tiles = (self.row_order.cpu(), self.column_order.cpu()), self.tiles
        if tiles is not None:
            tiles = replace(tiles, first=tiles.first.cpu(), column=tiles.column.cpu())
        return FactoredPlan(A, B, f, g, x, y, *orders, self.power, tiles)

    def block(self, rows: Tensor, columns: Tensor) -> Tensor:
        """The plan at positions ``rows`` (n,) and ``columns`` (k,)."""
        found = self._compute_entries(rows, columns)
        if self.tiles is not None:
            size = self.tiles.size
            found.mul_(self.tile_mask[rows // size][:, columns // size])
        return found.addr_(self.x[rows], self.y[columns])

    def block_in_tiles(self, rows: Tensor, columns: Tensor) -> Tensor:
        """The plan at positions ``rows`` (n,) and ``columns`` (k,), all of them in kept tiles."""
        return self._compute_entries(rows, columns).addr_(self.x[rows], self.y[columns])

    def _compute_entries(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Entries as if all tiles were kept, without the correction."""
        if self.tiles is not None and self.tiles.separable:
            return separable.entries(self.A, self.B, self._centres, self.tiles.size, self.f, self.g, rows, columns)
        A, B = self.A[rows].to(self.f.dtype), self.B[columns].to(self.f.dtype)
        return self.scores_to_entries(torch.addmm(self.g[columns], A, B.T).add_(self.f[rows, None]))

    def top_k(self, k: int, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Values and points of the k largest entries of each row, or of the ascending positions ``rows`` (m,): (m, k).

        Each row reads the tile with its highest bound first. Tiles are left out whose bound is below what that gives.
        O(N K r / 64) time for bounds on kept tiles, and O(r) for each entry that is read.
        """
        every = torch.arange(len(self.A), device=self.f.device)
        rows = every if rows is None else rows
        values, index = self.f.new_zeros(len(rows), k), every.new_zeros(len(rows), k).add_(every.new_tensor(range(k)))
        present = torch.nonzero((self.f[rows] > -torch.inf) | (self.x[rows] > 0))[:, 0]
        candidates, read = self._candidate_columns, self.block_in_tiles
        if self.tiles is not None and present.is_cuda:
            # There the launches that leave entries out take longer than reading them.
            candidates, read = self._kept_columns, self.block
        for place, columns in candidates(k, rows, present):
            values[place], at = largest_entries(read(rows[place], columns), k, exact=False)
            index[place] = self.column_order[columns[at]]
        # Entries outside the kept tiles are those of the correction.
        rival = self.x[rows[present]] * self.y.max() * (1 + ROUNDING)
        spread = present[torch.nonzero(values[present, -1] <= rival)[:, 0]]
        for place in parts(spread, len(self.B)):
            block = self.block(rows[place], inverse_permutation(self.column_order))
            values[place], index[place] = largest_entries(block, k, exact=False)
        return values, index

    def _kept_columns(self, k: int, rows: Tensor, present: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Places of some ``rows``, of the ``present`` ones, and all columns, by their points, in the kept tiles of
        these or of rows near them; none where fewer than k columns are kept."""
        assert self.tiles is not None
        near = torch.split(self.tile_mask, UNIT // self.tiles.size)
        ends = torch.arange(len(near) + 1, device=rows.device) * (UNIT // self.tiles.size * self.tiles.size)
        bounds = torch.searchsorted(rows[present], ends).tolist()
        for mask, (start, stop) in zip(near, pairwise(bounds), strict=True):
            if start < stop and len(columns := self._by_points(self._divide_tiles(mask.any(0).nonzero()[:, 0]))) >= k:
                places = torch.split(present[start:stop], max(1, ON_GPU // len(columns)))
                yield from ((place, columns) for place in places)

    def _candidate_columns(self, k: int, rows: Tensor, present: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Places of some ``rows``, of the ``present`` ones, and kept columns, by their points, among which are the k
        largest entries of these; none where fewer columns are kept."""
        unit = self.size if self.tiles is None else self.tiles.size
        side = TiledSide.of(self.B.double(), self.g, self.size)
        highest = self._tile_maxima(self.y[:, None])[:, 0]
        ends = torch.arange(-(-len(self.A) // unit) + 1, device=rows.device) * unit
        bounds = torch.searchsorted(rows[present], ends).tolist()
        for tile, (start, stop) in enumerate(pairwise(bounds)):
            tiles, every = self._select_column_tiles(tile)
            if start == stop or len(every) < k:
                continue
            at = rows[present[start:stop]]
            own = TiledSide.of(self.A[at].double(), self.f[at], self.size)
            scores, most = limit_scores(own, side.restrict(tiles), slice(0, own.count))
            limits = self.scores_to_entries(scores.add_(most[:, None]))
            for place, limit in zip(torch.split(present[start:stop], self.size), limits, strict=True):
                bound = limit[: len(place)].addr_(self.x[rows[place]], highest[tiles])
                first = torch.unique(bound.topk(min(-(-k // self.size) + 1, len(tiles)), dim=1).indices)
                least = self.block_in_tiles(rows[place], self._columns(tiles[first])).topk(k, dim=1).values[:, -1:]
                yield place, self._by_points(tiles[(bound * (1 + ROUNDING) >= least).any(0)])

    def _select_column_tiles(self, row_tile: int) -> tuple[Tensor, Tensor]:
        """The tiles of ``size`` columns that a row tile keeps, and their columns."""
        if self.tiles is None:
            tiles = torch.arange(-(-len(self.B) // self.size), device=self.f.device)
        else:
            first, last = self._first[row_tile : row_tile + 2]
            tiles = self._divide_tiles(self.tiles.column[first:last])
        return tiles, self._columns(tiles)

    def _divide_tiles(self, kept: Tensor) -> Tensor:
        """The tiles of ``size`` columns that make up kept tiles."""
        assert self.tiles is not None
        wide = self.tiles.size // self.size
        tiles = (kept[:, None] * wide + torch.arange(wide, device=kept.device)).flatten()
        return tiles[tiles * self.size < len(self.B)]

    def _columns(self, tiles: Tensor) -> Tensor:
        columns = (tiles[:, None] * self.size + torch.arange(self.size, device=tiles.device)).flatten()
        return columns[columns < len(self.B)]

    def _by_points(self, tiles: Tensor) -> Tensor:
        """The columns of tiles in the order of their points, the lowest of which counts among equal entries."""
        columns = self._columns(tiles)
        return columns[self.column_order[columns].argsort()]

    def scores_to_entries(self, scores: Tensor) -> Tensor:
        """Entries of the scores, which are written to."""
        return scores.exp2_() if self.power else scores

    def bounds(self) -> Tensor:
        """What the entries of each tile are at most, (N / size, K / size); O((N K / size) r)."""
        rows, columns = TiledSide.of(self.A, self.f, self.size), TiledSide.of(self.B, self.g, self.size)
        step = max(AT_ONCE // len(columns.points), 1)
        limits = (limit_scores(rows, columns, where) for where in blocks(rows.count, step))
        found = self.scores_to_entries(torch.cat([of_rows.amax(1).add_(rest) for of_rows, rest in limits]))
        if self.tiles is not None:
            wide = self.tiles.size // self.size
            kept = self.tile_mask.repeat_interleave(wide, 0).repeat_interleave(wide, 1)
            found *= kept[: rows.count, : columns.count]
        x, y = (self._tile_maxima(side[:, None])[:, 0] for side in (self.x, self.y))
        return found.addr_(x, y)

    def _tile_maxima(self, block: Tensor) -> Tensor:
        """The largest of each tile of rows."""
        missing = -len(block) % self.size
        whole = torch.cat((block, block[-1:].expand(missing, -1))) if missing else block
        return whole.view(-1, self.size, block.shape[1]).amax(1)

    def entries_above(
        self, u: Tensor, v: Tensor, bounds: Tensor, slack: float = 0.0
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Tiles of rows, columns (m,) among which are all with (1 + slack) T_ij > u_i + v_j, and the plan there."""
        low_u, low_v = (-self._tile_maxima(-side[:, None])[:, 0] for side in (u, v))
        for tile, bound in enumerate(bounds):
            which = torch.nonzero(bound * (1 + slack) > low_u[tile] + low_v)[:, 0]
            if len(which) == 0:
                continue
            rows = torch.arange(tile * self.size, min((tile + 1) * self.size, len(self.A)))
            columns = self._columns(which)
            yield slice(int(rows[0]), int(rows[-1]) + 1), columns, self.block(rows, columns)

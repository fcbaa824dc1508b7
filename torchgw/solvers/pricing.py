"""The pairs of points whose cost is below dual potentials, for costs that are products, without most other pairs.

Points are taken in tiles, runs of an order in which neighbours are alike. For rows I and columns J with centres u of
the u_i and v of the v_j, the reduced cost splits exactly into parts of a row or a column each, and one that is small:

    C_ij - a_i - b_j = [alpha_i - 2 u_i . v] + [beta_j - 2 u . v_j] + 2 u . v - 2 (u_i - u) . (v_j - v),

where alpha and beta are what row and column terms have left of a and b. So it is at least the least of each part, less
twice the product of the largest distances from the centres, and a tile whose bound is above a limit is left out. Runs
of tiles are left out first: a product with every point for each run, one with the points of the runs that are left for
each tile, and all pairs of the tiles that are left then. Of a part of the cost that is stored the bound takes the least
entry.

Where a limit is over the cheapest entry of each row, the cheapest of a few tiles stands for that: potentials that are
rough from row to row make no tile look cheaper than it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchgw.kernels.blocks import blocks
from torchgw.kernels.tiles import centres
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.spaces.coarsening import bisect
from torchgw.types import Array

TILE = 64
ROW_TILES, COLUMN_TILES = 32, 64  # in a run of rows, and at most in one of columns
AT_ONCE = 2**24  # pairs of a run and a point
ROUNDING = 1e-14  # of the largest numbers that bounds are sums of
FEW, MOST_TIED = 6, 3  # entries for each point, and times as many where several are as cheap
SAMPLED_ROWS = 32
NEAREST = 4  # runs, and column tiles of them, that say how cheap the cheapest entry of a row is


@dataclass(frozen=True)
class Order:
    """Orders in which neighbours are alike, positions to points.

    rows : of the source, (N,).
    columns : of the target, (K,).
    """

    rows: Tensor
    columns: Tensor

    @classmethod
    def of(cls, cost: FactoredCost) -> Order:
        """By the factors of a cost like those to be ordered."""
        sides = (bisect(side, -(-len(side) // TILE), TILE).order for side in (cost.U, cost.V))
        return cls(*sides)

    @property
    def transpose(self) -> Order:
        """With rows and columns exchanged."""
        return Order(self.columns, self.rows)


@dataclass(frozen=True)
class PricedCost:
    """A cost in float64, in tile order.

    cost : as it is.
    order : of its points.
    U, V : its factors (n, r), (k, r) in that order, filled up to whole tiles, and V to whole runs.
    run : tiles in a run of columns.
    extra : its stored part (n / size, k / size, size, size) by tiles, None where it has none.
    least : of each tile of that, (n / size, k / size).
    largest : absolute entry of it.
    """

    cost: FactoredCost
    order: Order
    U: Tensor
    V: Tensor
    run: int
    extra: Tensor | None = None
    least: Tensor | None = None
    largest: float = 0.0

    @classmethod
    def of(cls, cost: FactoredCost, order: Order, stored: PricedCost | None = None) -> PricedCost:
        """In an order; O((N + K) r), and O(N K) for a stored part that is not that of another cost (``stored``)."""
        tiles = -(-len(cost.V) // TILE)
        run = -(-tiles // -(-tiles // COLUMN_TILES))
        U, V = _pad_to_multiple(cost.U[order.rows], TILE), _pad_to_multiple(cost.V[order.columns], run * TILE)
        if cost.extra is None:
            return cls(cost, order, U, V, run)
        if stored is not None and stored.cost.extra is cost.extra:
            return cls(cost, order, U, V, run, stored.extra, stored.least, stored.largest)
        ordered = cost.extra.new_empty(len(U) // TILE, len(V) // TILE, TILE, TILE)
        for tile, rows in enumerate(torch.split(_pad_to_multiple(order.rows, TILE), TILE)):
            part = _pad_to_multiple(cost.extra[rows][:, order.columns].T, run * TILE).view(-1, TILE, TILE)
            ordered[tile] = part.mT
        least, most = ordered.amin((2, 3)), ordered.amax()
        return cls(cost, order, U, V, run, ordered, least, max(float(most), -float(least.min())))

    def costs_at(self, entries: Array, dual: Tensor) -> Array:
        """C - b of entries (m,), flat positions, under column potentials (K,)."""
        cost, k = self.cost, len(self.cost.b)
        found, offset = np.empty(len(entries)), cost.b - dual
        for part in blocks(len(entries), 2**18):
            i, j = (torch.from_numpy(side).to(dual.device) for side in divmod(entries[part], k))
            costs = torch.linalg.vecdot(cost.U[i], cost.V[j]).mul_(-2.0).add_(cost.a[i]).add_(offset[j])
            found[part] = (costs if cost.extra is None else costs.add_(cost.extra[i, j])).cpu().numpy()
        return found

    def cheapest_entries(self, row_dual: Tensor, dual: Tensor) -> Array:
        """Flat positions, ascending, of the entries that are cheapest under column potentials (K,) and their
        c-transform, near which the row potentials (N,) are: about `FEW` times as many as points."""
        cost, k = self.cost, len(dual)
        index = torch.arange(0, len(row_dual), max(len(row_dual) // SAMPLED_ROWS, 1), device=dual.device)
        sample = cost.restrict(index, slice(None)).rows(slice(None)).sub_(dual)
        sample = sample.sub_(sample.amin(1, keepdim=True)).flatten()
        count = len(index) * FEW * (len(row_dual) + k) // len(row_dual)
        place = min(count, len(sample) - 1)  # GPUs have no deterministic selection
        least = sample.sort().values[place] if sample.is_cuda else sample.kthvalue(place + 1).values
        limit = float(least)
        found = [
            self._positions(rows, kept, costs.sub_(costs.amin(1, keepdim=True)), limit)
            for rows, kept, costs in self._blocks(row_dual, dual, limit, True)
        ]
        return np.sort(np.concatenate(found))

    def c_transform(self, row_dual: Tensor, dual: Tensor) -> tuple[Tensor, Tensor]:
        """The c-transform a_i = min_j (C_ij - b_j) (N,) of column potentials (K,), near which the row potentials (N,)
        are, and where each row has its minimum."""
        found, nearest = torch.zeros_like(row_dual), torch.zeros(len(row_dual), dtype=torch.int64, device=dual.device)
        for rows, kept, costs in self._blocks(row_dual, dual, 0.0, True):
            points, (least, at) = self.order.rows[rows], costs.min(1)
            found[points] = row_dual[points] + least
            nearest[points] = self.order.columns[kept[at // TILE] * TILE + at % TILE]
        return found, nearest

    def entries_below(self, row_dual: Tensor, dual: Tensor, limit: float) -> Array:
        """Flat positions, ascending, of the entries that cost at most a limit more than potentials (N,), (K,); of rows
        that have very many, the cheapest."""
        found = [self._positions(*block, limit) for block in self._blocks(row_dual, dual, limit, False)]
        return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *found]))

    def _positions(self, rows: slice, kept: Tensor, block: Tensor, limit: float) -> Array:
        """Flat positions of the entries up to a limit in a block of rows and the columns of kept tiles."""
        i, j = torch.nonzero(block <= limit).unbind(1)
        few = FEW * -(-(len(self.cost.a) + len(self.cost.b)) // len(self.cost.a))
        if len(i) > MOST_TIED * few * TILE:
            least = block.topk(min(few, block.shape[1]), dim=1, largest=False)
            i, j = torch.nonzero(least.values <= limit)[:, 0], least.indices[least.values <= limit]
        columns = self.order.columns[kept[j // TILE] * TILE + j % TILE]
        return (self.order.rows[rows.start + i] * len(self.cost.b) + columns).cpu().numpy()

    def _blocks(
        self, row_dual: Tensor, dual: Tensor, limit: float, over_least: bool
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Of each row tile its rows, the column tiles (m,) that may have entries up to a limit over
        potentials, or over the cheapest of their row, and the costs (n, m size) of these over potentials."""
        n, beta = len(row_dual), (self.cost.b - dual)[self.order.columns]
        columns = _Columns.of(self.V, beta, self.run)
        alpha = _pad_to_multiple((self.cost.a - row_dual)[self.order.rows], TILE).view(-1, TILE)
        limit += ROUNDING * self._largest_term(alpha, beta)
        shift = columns.shift(self.U, ROW_TILES * TILE)
        for number, tiles in enumerate(blocks(len(alpha), ROW_TILES)):
            U = self.U[tiles.start * TILE : tiles.stop * TILE]
            stored = (None if part is None else part[tiles] for part in (self.extra, self.least))
            run = _RowRun.of(U, alpha[tiles], columns, shift[number], *stored)
            which, within = run.candidate_tiles(limit, over_least)
            for tile, found in enumerate(within):
                if len(kept := which[found]):
                    rows = slice((tiles.start + tile) * TILE, min((tiles.start + tile + 1) * TILE, n))
                    yield rows, kept, run.costs(tile, kept)[: rows.stop - rows.start]

    def _largest_term(self, *terms: Tensor) -> float:
        """A bound on all numbers that a cost and its bounds are sums of, beside some terms."""
        found = [float(side.abs().max()) for side in (self.cost.a, self.cost.b, *terms)]
        found.append(2 * math.prod(float(torch.linalg.vector_norm(side, dim=1).max()) for side in (self.U, self.V)))
        return max(*found, self.largest)


class _Columns(NamedTuple):
    """Columns under potentials, in tiles and in runs of these.

    V : (v, beta, 1) of each, with its factor v (r,) and what potentials leave of its own cost, infinite where there is
        none, (tiles, size, r + 2).
    centre, reach : of tiles, (tiles, r), (tiles,).
    runs, far : likewise, of runs.
    """

    V: Tensor
    centre: Tensor
    reach: Tensor
    runs: Tensor
    far: Tensor

    @classmethod
    def of(cls, V: Tensor, beta: Tensor, run: int) -> _Columns:
        """Of factors in whole runs of so many tiles, and of what is left of the cost of those that there are."""
        beta = torch.nn.functional.pad(beta, (0, len(V) - len(beta)), value=torch.inf)[:, None]
        whole = torch.cat((V, beta, torch.ones_like(beta)), 1).view(-1, TILE, V.shape[1] + 2)
        tiles, runs = centres(V, TILE), centres(V, run * TILE)
        return cls(whole, tiles, _part_radii(V, tiles, TILE), runs, _part_radii(V, runs, run * TILE))

    def shift(self, U: Tensor, size: int) -> Tensor:
        """The part of bounds between runs of ``size`` rows, the last shorter, and runs of columns that no potentials of
        rows change, (row runs, runs)."""
        u, V = centres(U, size), self.V.flatten(0, 1)
        parts = (u[part] for part in blocks(len(u), max(AT_ONCE // len(V), 1)))
        right = torch.cat([(_augment_rows(part) @ V.T).view(len(part), len(self.runs), -1).amin(2) for part in parts])
        far = torch.outer(_part_radii(U, u, size), self.far)
        return right.sub_(far.sub_(u @ self.runs.T), alpha=2.0)


class _RowRun(NamedTuple):
    """A run of row tiles, over columns.

    U : (-2 u, 1, alpha) of each row, with its factor u (r,) and what potentials leave of its own cost, so that its
        product with a column is the cost over potentials, (t, size, r + 2).
    centre, reach : of tiles, (t, r), (t,).
    columns : those.
    shift : see `_Columns.shift`, (runs,).
    extra : the stored part (t, tiles, size, size), or None.
    least : of its tiles.
    """

    U: Tensor
    centre: Tensor
    reach: Tensor
    columns: _Columns
    shift: Tensor
    extra: Tensor | None
    least: Tensor | None

    @classmethod
    def of(
        cls, U: Tensor, alpha: Tensor, columns: _Columns, shift: Tensor, extra: Tensor | None, least: Tensor | None
    ) -> _RowRun:
        """Of whole tiles of factors, and what is left of their cost (t, size)."""
        centre, whole = centres(U, TILE), _augment_rows(U, alpha.view(-1)).view(*alpha.shape, -1)
        return cls(whole, centre, _part_radii(U, centre, TILE), columns, shift, extra, least)

    def run_bounds(self, less: Tensor) -> Tensor:
        """Bounds (runs,) of the least entry in each run of columns, where so much less (t, size) is left of the rows'
        own cost."""
        product = self.U[..., :-2].flatten(0, 1) @ self.columns.runs.T
        found = product.add_((self.U[..., -1] - less).view(-1, 1)).amin(0).add_(self.shift)
        return found if self.least is None else found.add_(self.least.view(len(less), len(found), -1).amin((0, 2)))

    def tile_bounds(self, runs: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The column tiles (m,) of some runs, and what makes of ``less`` bounds (t, m) of the least entry in each row
        tile and these."""
        columns, t = self.columns, len(self.U)
        tiles = torch.arange(len(columns.V), device=runs.device).view(len(columns.runs), -1)[runs].flatten()
        v, m = columns.centre[tiles], len(tiles)
        shift = (_augment_rows(self.centre) @ columns.V[tiles].flatten(0, 1).T).view(t, m, TILE).amin(2)
        shift.sub_(torch.outer(self.reach, columns.reach[tiles]).sub_(self.centre @ v.T), alpha=2.0)
        if self.least is not None:
            shift += self.least[:, tiles]
        product = (self.U[..., :-2].flatten(0, 1) @ v.T).view(t, TILE, m)
        return tiles, lambda less: (product + (self.U[..., -1] - less)[..., None]).amin(1).add_(shift)

    def candidate_tiles(self, limit: float, over_least: bool) -> tuple[Tensor, Tensor]:
        """Some column tiles (m,), and which (t, m) of them may have entries up to a limit, over the cheapest of their
        row or over nothing; no others may."""
        nothing, count = torch.zeros_like(self.U[..., -1]), len(self.columns.runs)
        if not over_least:
            tiles, bounds_of = self.tile_bounds(torch.nonzero(self.run_bounds(nothing) <= limit)[:, 0])
            return tiles, bounds_of(nothing) <= limit
        runs = torch.arange(count, device=nothing.device)
        if count > NEAREST:
            near = self.run_bounds(nothing).topk(NEAREST, largest=False).indices
            runs = torch.nonzero(self.run_bounds(self.cheapest_costs(*self.tile_bounds(near))) <= limit)[:, 0]
        tiles, bounds_of = self.tile_bounds(runs)
        return tiles, bounds_of(self.cheapest_costs(tiles, bounds_of)) <= limit

    def cheapest_costs(self, tiles: Tensor, bounds_of: Callable[[Tensor], Tensor]) -> Tensor:
        """The cost (t, size) of the cheapest of a few entries of each row, those of tiles that look cheapest."""
        bounds = bounds_of(torch.zeros_like(self.U[..., -1]))
        few = tiles[bounds.topk(min(NEAREST, len(tiles)), largest=False).indices]
        return torch.stack([self.costs(tile, kept).amin(1) for tile, kept in enumerate(few)])

    def costs(self, tile: int, kept: Tensor) -> Tensor:
        """Those of a row tile and the columns of some tiles (m,), (size, m size)."""
        block = self.U[tile] @ self.columns.V[kept].flatten(0, 1).T
        if self.extra is not None:
            block += self.extra[tile, kept].transpose(0, 1).reshape(len(block), -1)
        return block


def _augment_rows(U: Tensor, alpha: Tensor | None = None) -> Tensor:
    """(-2 u, 1, alpha) of rows (n, r); with zeros for ``alpha`` (n,) by default."""
    one = U.new_ones(len(U), 1)  # of factors that may have no column
    return torch.cat((U * -2.0, one, torch.zeros_like(one) if alpha is None else alpha[:, None]), 1)


def union(entries: Array, others: Array) -> Array:
    """Flat positions that are in one of two lists, ascending. NumPy's hashes them, and takes several times as long
    where lists are ascending, too."""
    found = np.concatenate((entries, others))
    found.sort(kind="stable")
    return found[np.diff(found, prepend=-1) > 0]


def _pad_to_multiple(side: Tensor, size: int) -> Tensor:
    """Points (n, r) with the last one repeated up to whole parts."""
    missing = -len(side) % size
    return torch.cat((side, side[-1:].expand(missing, *side.shape[1:]))) if missing else side


def _part_radii(side: Tensor, centre: Tensor, size: int) -> Tensor:
    """The largest distance from the centre of each part of ``size`` points, the last shorter."""
    parts = torch.arange(len(side), device=side.device) // size
    far = (side - centre[parts]).square_().sum(1)
    return far.new_zeros(len(centre)).scatter_reduce_(0, parts, far, "amax").sqrt_()

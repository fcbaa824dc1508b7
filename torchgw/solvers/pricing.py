"""The pairs of points whose cost is below dual potentials, for costs that are products, without most other pairs.

Points are taken in tiles, runs of an order in which neighbours are alike. For rows I and columns J with centres u of
the u_i and v of the v_j, the reduced cost splits exactly into parts of a row or a column each, and one that is small:

    C_ij - a_i - b_j = [alpha_i - 2 u_i . v] + [beta_j - 2 u . v_j] + 2 u . v - 2 (u_i - u) . (v_j - v),

where alpha and beta are what row and column terms have left of a and b. So it is at least the least of each part, less
twice the product of the largest distances from the centres, and a tile whose bound is above a limit is left out: one
product with every point for each tile, and all pairs of the tiles that are left. Of a part of the cost that is stored
the bound takes the least entry of each tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchgw.kernels.blocks import blocks
from torchgw.kernels.tiles import centres
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.spaces.hierarchy import bisect
from torchgw.types import Array

TILE = 64
ROW_TILES = 32  # whose bounds are computed at once
FEW, MOST_TIED = 6, 3  # entries for each point, and times as many where several are as cheap
SAMPLED_ROWS = 32
NEAREST = 4  # column tiles, that say how cheap the cheapest entry of a row is


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
    def turned(self) -> Order:
        """With rows and columns exchanged."""
        return Order(self.columns, self.rows)


@dataclass(frozen=True)
class PricedCost:
    """A cost in float64, in tile order.

    cost : as it is.
    order : of its points.
    U, V : its factors (n, r), (k, r) in that order, filled up to whole tiles.
    extra : its stored part (n / size, k / size, size, size) by tiles, None where it has none.
    least : of each tile of that, (n / size, k / size).
    """

    cost: FactoredCost
    order: Order
    U: Tensor
    V: Tensor
    extra: Tensor | None = None
    least: Tensor | None = None

    @classmethod
    def of(cls, cost: FactoredCost, order: Order, stored: PricedCost | None = None) -> PricedCost:
        """In an order; O((N + K) r), and O(N K) for a stored part that is not that of another cost (``stored``)."""
        U, V = _filled(cost.U[order.rows]), _filled(cost.V[order.columns])
        if cost.extra is None:
            return cls(cost, order, U, V)
        if stored is not None and stored.cost.extra is cost.extra:
            return cls(cost, order, U, V, stored.extra, stored.least)
        ordered = cost.extra.new_empty(len(U) // TILE, len(V) // TILE, TILE, TILE)
        for tile, rows in enumerate(torch.split(_filled(order.rows), TILE)):
            part = _filled(cost.extra[rows][:, order.columns].T).view(-1, TILE, TILE)
            ordered[tile] = part.mT
        return cls(cost, order, U, V, ordered, ordered.amin((2, 3)))

    def at(self, entries: Array, dual: Tensor) -> Array:
        """C - b of entries (m,), flat positions, under column potentials (K,)."""
        cost, k = self.cost, len(self.cost.b)
        found, offset = np.empty(len(entries)), cost.b - dual
        for part in blocks(len(entries), 2**18):
            i, j = (torch.from_numpy(side).to(dual.device) for side in divmod(entries[part], k))
            costs = torch.linalg.vecdot(cost.U[i], cost.V[j]).mul_(-2.0).add_(cost.a[i]).add_(offset[j])
            found[part] = (costs if cost.extra is None else costs.add_(cost.extra[i, j])).cpu().numpy()
        return found

    def cheap(self, row_dual: Tensor, dual: Tensor) -> Array:
        """Flat positions, ascending, of the entries that are cheapest under column potentials (K,) and their
        c-transform, near which the row potentials (N,) are: about `FEW` times as many as points."""
        cost, k = self.cost, len(dual)
        index = torch.arange(0, len(row_dual), max(len(row_dual) // SAMPLED_ROWS, 1), device=dual.device)
        sample = cost.taken(index, slice(None)).rows(slice(None)).sub_(dual)
        sample = sample.sub_(sample.amin(1, keepdim=True)).flatten()
        count = len(index) * FEW * (len(row_dual) + k) // len(row_dual)
        limit, found = float(sample.kthvalue(min(count + 1, len(sample))).values), []
        for rows, tiles in self._blocks(row_dual, dual):
            kept = tiles.within(limit)
            block = tiles.costs(kept)
            found.append(self._positions(rows, kept, block.sub_(block.amin(1, keepdim=True)), limit))
        return np.sort(np.concatenate(found))

    def transform(self, row_dual: Tensor, dual: Tensor) -> tuple[Tensor, Tensor]:
        """The c-transform a_i = min_j (C_ij - b_j) (N,) of column potentials (K,), near which the row potentials (N,)
        are, and where each row has its minimum."""
        found, nearest = torch.empty_like(row_dual), torch.empty(len(row_dual), dtype=torch.int64, device=dual.device)
        for rows, tiles in self._blocks(row_dual, dual):
            kept, points = tiles.within(0.0), self.order.rows[rows]
            least, at = tiles.costs(kept).min(1)
            found[points] = row_dual[points] + least
            nearest[points] = self.order.columns[kept[at // TILE] * TILE + at % TILE]
        return found, nearest

    def below(self, row_dual: Tensor, dual: Tensor, limit: float) -> Array:
        """Flat positions, ascending, of the entries that cost at most a limit more than potentials (N,), (K,); of rows
        that have very many, the cheapest."""
        found = [np.empty(0, dtype=np.int64)]
        for rows, tiles in self._blocks(row_dual, dual):
            kept = torch.nonzero(tiles.bounds <= limit)[:, 0]
            if len(kept):
                found.append(self._positions(rows, kept, tiles.costs(kept), limit))
        return np.sort(np.concatenate(found))

    def _positions(self, rows: slice, kept: Tensor, block: Tensor, limit: float) -> Array:
        """Flat positions of the entries up to a limit in a block of rows and the columns of kept tiles."""
        i, j = torch.nonzero(block <= limit).unbind(1)
        few = FEW * -(-(len(self.cost.a) + len(self.cost.b)) // len(self.cost.a))
        if len(i) > MOST_TIED * few * TILE:
            least = block.topk(min(few, block.shape[1]), dim=1, largest=False)
            i, j = torch.nonzero(least.values <= limit)[:, 0], least.indices[least.values <= limit]
        columns = self.order.columns[kept[j // TILE] * TILE + j % TILE]
        return (self.order.rows[rows.start + i] * len(self.cost.b) + columns).cpu().numpy()

    def _blocks(self, row_dual: Tensor, dual: Tensor) -> Iterator[tuple[slice, _RowTile]]:
        """The rows of each row tile, with the bounds and the costs of its tiles under potentials."""
        alpha, beta = (
            torch.nn.functional.pad((own - taken)[at], (0, len(filled) - len(at)), value=torch.inf)
            for own, taken, at, filled in (
                (self.cost.a, row_dual, self.order.rows, self.U),
                (self.cost.b, dual, self.order.columns, self.V),
            )
        )
        V, ends, n = self.V.view(-1, TILE, self.V.shape[1]), beta.view(-1, TILE), len(row_dual)
        centre = centres(self.V, TILE)
        reach = centre, _farthest(self.V, centre)
        for tiles in blocks(len(self.U) // TILE, ROW_TILES):
            for tile, bounds in enumerate(self._bounds(tiles, alpha, beta, *reach), tiles.start):
                rows = slice(tile * TILE, min((tile + 1) * TILE, n))
                extra = None if self.extra is None else self.extra[tile, :, : rows.stop - rows.start]
                yield rows, _RowTile(bounds, self.U[rows], alpha[rows], V, ends, extra)

    def _bounds(self, tiles: slice, alpha: Tensor, beta: Tensor, v: Tensor, reach: Tensor) -> Tensor:
        """Of the least entry in each of some row tiles and every column tile, whose centres and largest distances from
        them are v (k / size, r) and ``reach`` (k / size,)."""
        rows = slice(tiles.start * TILE, min(tiles.stop * TILE, len(self.U)))
        U, u = self.U[rows], centres(self.U[rows], TILE)
        left = torch.addmm(alpha[rows, None], U, v.T, alpha=-2.0).view(len(u), TILE, -1).amin(1)
        right = torch.addmm(beta, u, self.V.T, alpha=-2.0).view(len(u), -1, TILE).amin(2)
        far = (_farthest(U, u)[:, None] * reach).add_(u @ v.T, alpha=-1.0)
        found = left.add_(right).sub_(far, alpha=2.0)
        return found if self.least is None else found.add_(self.least[tiles])


class _RowTile(NamedTuple):
    """A row tile under potentials.

    bounds : of the least entry in each column tile.
    U, alpha : of its rows, (m, r), (m,).
    V, beta : of all column tiles, (tiles, size, r), (tiles, size).
    extra : the stored part (tiles, m, size), or None.
    """

    bounds: Tensor
    U: Tensor
    alpha: Tensor
    V: Tensor
    beta: Tensor
    extra: Tensor | None

    def within(self, limit: float) -> Tensor:
        """The column tiles that may have entries within a limit of the cheapest of their row."""
        few = self.bounds.topk(min(NEAREST, len(self.bounds)), largest=False).indices
        return torch.nonzero(self.bounds <= float(self.costs(few).amin(1).max()) + limit)[:, 0]

    def costs(self, kept: Tensor) -> Tensor:
        """Those of the columns of kept tiles."""
        block = torch.addmm(self.beta[kept].reshape(-1), self.U, self.V[kept].flatten(0, 1).T, alpha=-2.0)
        if self.extra is not None:
            block += self.extra[kept].transpose(0, 1).reshape(len(block), -1)
        return block.add_(self.alpha[:, None])


def union(entries: Array, others: Array) -> Array:
    """Flat positions that are in one of two lists, ascending. NumPy's hashes them, and takes several times as long
    where lists are ascending, too."""
    found = np.concatenate((entries, others))
    found.sort(kind="stable")
    return found[np.diff(found, prepend=-1) > 0]


def _filled(side: Tensor) -> Tensor:
    """Points (n, r) with the last one repeated up to whole tiles."""
    missing = -len(side) % TILE
    return torch.cat((side, side[-1:].expand(missing, *side.shape[1:]))) if missing else side


def _farthest(side: Tensor, centre: Tensor) -> Tensor:
    """The largest distance from the centre of each tile."""
    return (side.view(-1, TILE, side.shape[1]) - centre[:, None]).square_().sum(2).amax(1).sqrt_()

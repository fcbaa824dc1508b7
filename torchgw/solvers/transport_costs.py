"""Costs of linear transport problems: their cheap entries under dual
potentials, without most other pairs.

A cost answers for its value at given entries, for the entries that are
cheapest under column potentials, and for those below potentials, whether it
is stored, a product, or has few entries.

Of products, points are taken in tiles, runs of an order in which neighbours
are alike. The reduced costs are scores less than zero,

    a_i + b_j - C_ij = 2 u_i . v_j - alpha_i - beta_j,

where alpha and beta are what row and column terms have left of a and b. A
tile whose scores `torchgw.kernels.tiles.limit_scores` bounds below those of
a limit is left out. Where a limit is over the cheapest entry of each row,
the cheapest of a few tiles stands for that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from torchgw.kernels.blocks import blocks
from torchgw.kernels.tiles import TiledSide, limit_scores
from torchgw.linalg.sparse_entries import entry_rows, entry_values, largest_per_row, row_maxima, select_entries
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.spaces.coarsening import bisect
from torchgw.types import Array

# Entries for each point, and times as many where several are as cheap.
CANDIDATES, MOST_TIED = 6, 3
SAMPLED_ROWS = 32  # whose entries say which are small
BLUR, SCALINGS = 0.03, 30  # of the mean cost that is left by the potentials
# Points of a tile, row tiles that are looked at together.
TILE, ROW_TILES = 64, 32
NEAREST = 4  # column tiles that say how cheap the cheapest entry of a row is
ROUNDING = 1e-14  # of the largest numbers that bounds are sums of


@dataclass(frozen=True)
class DenseCost:
    """A stored cost.

    C : (N, K), which is not written to.
    p, q : masses (N,), (K,). Points with much of it have as many candidates
        as it asks for: in the first steps of a partial problem the point
        that takes what is left had no room otherwise, and no vertex
        bettered the plan.
    """

    C: Array
    p: Array
    q: Array

    def at(self, entries: Array, dual: Array) -> Array:
        return np.asarray(self.C.reshape(-1)[entries] - dual[entries % len(dual)])

    def cheapest(self, dual: Array) -> Array:
        reduced = reduce_costs(self.C, dual)
        small = _smallest_entries(reduced)
        sides = (reduced, small, self.p), (reduced.T, small.T, self.q)
        for costs, chosen, mass in sides:
            most = CANDIDATES * mass / mass.mean()
            for line in np.flatnonzero(most > CANDIDATES**2):
                last = min(int(most[line]), costs.shape[1]) - 1
                cheap = np.argpartition(costs[line], last)[: last + 1]
                chosen[line, cheap] = True
        return np.flatnonzero(small)

    def below(self, duals: tuple[Array, Array], limit: float) -> Array:
        reduced = self.C - duals[0][:, None]
        reduced -= duals[1]
        low = reduced <= limit
        if np.count_nonzero(low) > MOST_TIED * CANDIDATES * sum(low.shape):
            low &= _smallest_entries(reduced)
        return np.flatnonzero(low)

    def estimate_dual(self, p: Array, q: Array) -> Array:
        """Column potentials (K,) of a plan with a little entropy. A first
        vertex is found several times as fast from these as from zeros; of
        uniform random costs it is not."""
        reduced = torch.from_numpy(reduce_costs(self.C, np.zeros(len(q))))
        columns = reduced.amin(0)
        reduced -= columns
        a, b = (torch.from_numpy(side).to(torch.float32) for side in (p / p.sum(), q / q.sum()))
        tiny = torch.finfo(torch.float32).tiny
        epsilon = BLUR * max(float(a @ (reduced.float() @ b)), tiny)
        kernel, v = reduced.div_(-epsilon).float().exp_(), torch.ones_like(b)
        for _ in range(SCALINGS):
            v = b / ((a / (kernel @ v).clamp_min_(tiny)) @ kernel).clamp_min_(tiny)
        return (columns + epsilon * v.log().nan_to_num_(0.0, 0.0, 0.0)).numpy()


def reduce_costs(C: Array, dual: Array) -> Array:
    """C_ij - a_i - b_j (N, K) with the c-transform a of b = ``dual`` (K,):
    of NumPy's arrays, and from the one C - b that is needed anyway, where
    `torchgw.objective.bounds.c_transform` makes one and drops it."""
    reduced = torch.from_numpy(C) - torch.from_numpy(dual)
    reduced -= reduced.amin(1, keepdim=True)
    return reduced.numpy()


def _smallest_entries(reduced: Array) -> Array:
    """The smallest entries of each row and column, (N, K) of booleans; of
    equal ones all, unless they are many."""
    (n, k), last = reduced.shape, [min(CANDIDATES, size) - 1 for size in reduced.shape]
    in_row = np.partition(reduced, last[1], axis=1)[:, last[1]]
    in_column = np.partition(reduced.T.copy(), last[0], axis=1)[:, last[0]]
    small = (reduced <= in_row[:, None]) | (reduced <= in_column)
    if np.count_nonzero(small) > MOST_TIED * CANDIDATES * (n + k):
        small[:] = False
        np.put_along_axis(small, np.argpartition(reduced, last[1], axis=1)[:, :CANDIDATES], True, 1)
        np.put_along_axis(small, np.argpartition(reduced, last[0], axis=0)[:CANDIDATES], True, 0)
    return small


class SparseCost:
    """-W_ij where W has an entry, nothing in one row and one column more,
    and elsewhere no mass may be.

    W : CSR (N, K), its entries positive.
    """

    def __init__(self, W: Any) -> None:
        self.W = W

    def at(self, entries: Array, dual: Array) -> Array:
        (n, k), (row, column) = self.W.shape, divmod(entries, len(dual))
        costs: Array = -dual[column]
        inside = (row < n) & (column < k)
        costs[inside] -= entry_values(self.W, row[inside], column[inside])
        return costs

    def cheapest(self, dual: Array) -> Array:
        W = self.W
        of_columns = largest_per_row(W.T.tocsr(), CANDIDATES, -self.c_transform(dual)).T.tocsr()
        return union(self.slack, *map(self.positions, (largest_per_row(W, CANDIDATES, -dual[:-1]), of_columns)))

    def c_transform(self, dual: Array) -> Array:
        """Row potentials (N,) of column potentials (K + 1,)."""
        over = csr_array((self.W.data + dual[self.W.indices], self.W.indices, self.W.indptr), shape=self.W.shape)
        return np.asarray(-row_maxima(over).clip(min=dual[-1]))

    def below(self, duals: tuple[Array, Array], limit: float) -> Array:
        (a, b), W = duals, self.W
        over = W.data + a[entry_rows(W)] + b[W.indices]
        priced = select_entries(csr_array((over, W.indices, W.indptr), shape=W.shape), over >= -limit)
        return union(self.positions(largest_per_row(priced, CANDIDATES)))

    @property
    def slack(self) -> Array:
        """Flat positions, ascending, of the entries that cost nothing."""
        n, k = self.W.shape
        return np.concatenate((np.arange(n) * (k + 1) + k, n * (k + 1) + np.arange(k + 1)))

    def positions(self, W: Any) -> Array:
        """Flat positions of the entries of a matrix (N, K)."""
        return np.asarray(entry_rows(W) * (self.W.shape[1] + 1) + W.indices)


@dataclass(frozen=True)
class Order:
    """Orders in which neighbours are alike, positions to points.

    rows : of the source, (N,).
    columns : of the target, (K,).
    """

    rows: Tensor
    columns: Tensor

    @property
    def T(self) -> Order:
        """Those of the transposed cost."""
        return Order(self.columns, self.rows)

    @classmethod
    def of(cls, cost: FactoredCost) -> Order:
        """By the factors of a cost like those to be ordered."""
        return cls(*(bisect(side, -(-len(side) // TILE), TILE).order for side in (cost.U, cost.V)))


class TiledCost:
    """A cost of factors in float64, whose points are taken in an order.

    O((N + K) r) work and memory.

    rows, columns : its factors 2 U (n, r), V (k, r) in that order, filled
        up to whole tiles, whose products are scores.
    """

    def __init__(self, cost: FactoredCost, order: Order) -> None:
        self.cost, self.order = cost, order
        self.rows = TiledSide.of(2.0 * cost.U[order.rows], cost.a[order.rows], TILE)
        self.columns = TiledSide.of(cost.V[order.columns], cost.b[order.columns], TILE)

    def at(self, entries: Array, dual: Array) -> Array:
        found, reduced = np.empty(len(entries)), replace(self.cost, b=self.cost.b - self._to_tensor(dual))
        for part in blocks(len(entries), 2**18):
            i, j = (self._to_tensor(side) for side in divmod(entries[part], len(dual)))
            found[part] = reduced.entries(i, j).cpu().numpy()
        return found

    def cheapest(self, dual: Array) -> Array:
        n = len(self.cost.a)
        index = self._to_tensor(np.arange(0, n, max(n // SAMPLED_ROWS, 1)))
        reduced = reduce_costs(self.cost.rows(index).cpu().numpy(), dual)
        last = min(len(reduced) * CANDIDATES * (n + len(dual)) // n, reduced.size - 1)
        limit = float(np.partition(reduced, last, axis=None)[last])
        over_least = (
            # Costs over the least of their row.
            (rows, kept, costs.sub_(costs.amin(1, keepdim=True)))
            for rows, kept, costs in self._blocks(np.zeros(n), dual, limit, True)
        )
        return self._entries_up_to(over_least, limit)

    def below(self, duals: tuple[Array, Array], limit: float) -> Array:
        return self._entries_up_to(self._blocks(*duals, limit, False), limit)

    def c_transform(self, dual: Tensor) -> tuple[Tensor, Tensor]:
        """The c-transform a_i = min_j (C_ij - b_j) (N,) of column
        potentials (K,), and where each row has its minimum: without the
        pairs of most tiles, which
        `torchgw.objective.bounds.c_transform` looks at where points have no
        order."""
        found, nearest = torch.empty_like(self.cost.a), torch.empty_like(self.order.rows)
        for rows, kept, costs in self._blocks(torch.zeros_like(found), dual, 0.0, True):
            points = self.order.rows[rows]
            found[points], at = costs.min(1)
            nearest[points] = self.order.columns[kept[at // TILE] * TILE + at % TILE]
        return found, nearest

    def _to_tensor(self, side: Array | Tensor) -> Tensor:
        return torch.as_tensor(side, device=self.cost.b.device)

    def _entries_up_to(self, found: Iterable[tuple[slice, Tensor, Tensor]], limit: float) -> Array:
        """Flat positions, ascending, of the entries up to a limit in blocks
        of rows and the columns of kept tiles."""
        n, k = len(self.cost.a), len(self.cost.b)
        few, positions = CANDIDATES * -(-(n + k) // n), [np.empty(0, dtype=np.int64)]
        for rows, kept, block in found:
            i, j = torch.nonzero(block <= limit).unbind(1)
            if len(i) > MOST_TIED * few * TILE:
                least = block.topk(min(few, block.shape[1]), dim=1, largest=False)
                i, j = torch.nonzero(least.values <= limit)[:, 0], least.indices[least.values <= limit]
            columns = self.order.columns[kept[j // TILE] * TILE + j % TILE]
            positions.append((self.order.rows[rows.start + i] * k + columns).cpu().numpy())
        return np.sort(np.concatenate(positions))

    def _blocks(
        self, row_dual: Array | Tensor, dual: Array | Tensor, limit: float, over_least: bool
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Of each row tile its rows, the column tiles (m,) that may have
        entries up to a limit over potentials, or over the cheapest of their
        row, and the costs (n, m size) of these over potentials."""
        cost, order, n = self.cost, self.order, len(row_dual)
        f = _fill_tiles((self._to_tensor(row_dual) - cost.a)[order.rows])
        g = (self._to_tensor(dual) - cost.b)[order.columns]
        terms = [float(side.abs().max()) for side in (cost.a, cost.b, f, g)]
        lengths = [float(torch.linalg.vector_norm(side.points, dim=1).max()) for side in (self.rows, self.columns)]
        limit += ROUNDING * max(*terms, math.prod(lengths))
        g = torch.nn.functional.pad(g, (0, len(self.columns.points) - len(g)), value=-torch.inf)
        sides = replace(self.rows, potential=f), replace(self.columns, potential=g)
        # The product of a row with a column is its cost over potentials.
        U = torch.cat((-self.rows.points, torch.stack((torch.ones_like(f), -f), 1)), 1)
        V = torch.cat((self.columns.points, torch.stack((-g, torch.ones_like(g)), 1)), 1)
        U, V = (side.view(-1, TILE, side.shape[1]) for side in (U, V))

        def costs(tile: int, kept: Tensor) -> Tensor:
            return U[tile] @ V[kept].flatten(0, 1).T

        for tiles in blocks(len(U), ROW_TILES):
            of_rows, rest = limit_scores(*sides, tiles)
            if over_least:
                near = (of_rows - of_rows.amax(2, keepdim=True)).amax(1).add_(rest)
                few = near.topk(min(NEAREST, len(V))).indices
                least = [costs(tile, kept).amin(1) for tile, kept in enumerate(few, tiles.start)]
                of_rows += torch.stack(least)[..., None]
            within = of_rows.amax(1).add_(rest) >= -limit
            for tile, found in enumerate(within, tiles.start):
                if len(kept := found.nonzero()[:, 0]):
                    rows = slice(tile * TILE, min((tile + 1) * TILE, n))
                    yield rows, kept, costs(tile, kept)[: rows.stop - rows.start]


TransportCost: TypeAlias = DenseCost | SparseCost | TiledCost
"""C (N, K), of which few entries are looked at. Flat positions of entries
are ascending.

    at(entries, dual)       C - b of entries (m,) under column potentials (K,)
    cheapest(dual)          the entries that are cheapest under column
                            potentials (K,) and their c-transform: about
                            `CANDIDATES` times as many as points
    below(duals, limit)     those that cost at most a limit more than
                            potentials (N,), (K,); of very many the cheapest
"""


def _fill_tiles(side: Tensor) -> Tensor:
    """Points (n, ...) with the last one repeated up to whole tiles."""
    missing = -len(side) % TILE
    return torch.cat((side, side[-1:].expand(missing, *side.shape[1:]))) if missing else side


def union(*entries: Array) -> Array:
    """Flat positions that are in one of some lists, ascending. NumPy's
    hashes them, and takes several times as long where lists are ascending,
    too."""
    found = np.concatenate(entries)
    found.sort(kind="stable")
    return found[np.diff(found, prepend=-1) > 0]

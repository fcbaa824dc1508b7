"""Which tiles of a plan T = 2^(A B^T + f + g) are worth evaluating, with a bound on the mass of the others.

The points of each side are taken in runs of ``size``. For rows I and columns J with centres a of the A_i and b of the
B_j, the score splits exactly into parts that are cheap to sum, and one that is small:

    A_i . B_j = A_i . b + a . B_j - a . b + (A_i - a) . (B_j - b)

    mass(I, J) <= [sum_i 2^(A_i . b + f_i)] [sum_j 2^(a . B_j + g_j)] 2^(|A_I - a| |B_J - b| - a . b)

with the largest distances from the centres in the last factor. That is one product with every point for each tile, the
share 2 / size of the work of a pass over all pairs. A tile is left out when its bound is so small that all tiles left
out together stay under the stated share, of the whole as of each run of points.

With the largest exponents in place of the sums, the same split limits every score of a tile: `limit_scores`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from torchgw.kernels import LN2
from torchgw.kernels.blocks import ON_GPU, block_rows
from torchgw.kernels.logsumexp import LOWEST_EXPONENT, exponentials, maxima
from torchgw.kernels.sums import cumulative_sum
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.runtime.ranks import ALONE, Ranks
from torchgw.runtime.transfer import to_host

TILE, UNIT = 128, 2048  # points of the tiles that most is read in, and of the largest ones, which shares end with
CHUNK_ELEMENTS = {"cpu": 2**22, "cuda": ON_GPU}
SLACK_BITS = 0.02  # covers the rounding of float32 scores of up to some ten thousand bits


@dataclass(frozen=True)
class Tiles:
    """The kept tiles of a score (n, k): those of row tile I are ``column[first[I]:first[I + 1]]``, ascending.

    Attributes
    ----------
    size : points of a tile on either side.
    n, k : shape of the score.
    first : (row tiles + 1,), where the list of each row tile begins.
    column : (kept tiles,), their column tiles.
    separable : whether a tile stands for a short sum of products, see `softmin_tiles.separable`.
    """

    size: int
    n: int
    k: int
    first: Tensor
    column: Tensor
    separable: bool = False

    @property
    def pairs(self) -> int:
        """How many pairs of points the kept tiles hold."""
        return int(_pairs(self))

    @property
    def rows(self) -> Tensor:
        """The row tile of each kept tile, (kept tiles,)."""
        every = torch.arange(len(self.first) - 1, device=self.first.device)
        return torch.repeat_interleave(every, self.first.diff(), output_size=len(self.column))

    @cached_property
    def spans(self) -> list[list[slice]]:
        """For each row tile the runs of columns that it keeps, merged where tiles are neighbours."""
        first, column = self.first.cpu(), self.column.cpu()
        if len(column) == 0:
            return [[] for _ in first[1:]]
        starts = torch.ones_like(column, dtype=torch.bool)
        starts[1:] = column[1:] != column[:-1] + 1
        starts[first[:-1][first[:-1] < len(column)]] = True
        begin = torch.nonzero(starts)[:, 0]
        end = torch.cat((begin[1:], torch.tensor([len(column)]))) - 1
        runs = [
            slice(a * self.size, min((b + 1) * self.size, self.k))
            for a, b in zip(column[begin].tolist(), column[end].tolist(), strict=True)
        ]
        cuts = torch.searchsorted(begin, first).tolist()
        return [runs[a:b] for a, b in pairwise(cuts)]

    @cached_property
    def by_column(self) -> Tensor:
        """(kept tiles,), the places in the list in the order in which `transpose` has them."""
        return torch.argsort(self.column, stable=True)

    @cached_property
    def transpose(self) -> Tiles:
        """The same tiles, listed by columns."""
        column, order = self.column[self.by_column], self.by_column
        first = torch.searchsorted(column, torch.arange(-(-self.k // self.size) + 1, device=column.device))
        return Tiles(self.size, self.k, self.n, first, self.rows[order], self.separable)

    def of_rows(self, rows: slice) -> Tiles:
        """The tiles of a run of rows that begins with a row tile, and ends with one."""
        ends = self.first[rows.start // self.size : -(-rows.stop // self.size) + 1]
        begin, end = (int(ends[0]), int(ends[-1])) if len(ends) else (0, 0)
        n = rows.stop - rows.start
        return Tiles(self.size, n, self.k, ends - begin, self.column[begin:end], self.separable)

    def of_columns(self, columns: slice) -> Tiles:
        """The tiles of a run of columns that begins with a column tile, and ends with one."""
        begin, end = columns.start // self.size, -(-columns.stop // self.size)
        kept = (self.column >= begin) & (self.column < end)
        first = torch.nn.functional.pad(kept.cumsum(0), (1, 0))[self.first]
        return Tiles(self.size, self.n, columns.stop - columns.start, first, self.column[kept] - begin, self.separable)

    def is_complete(self) -> bool:
        return len(self.column) == (len(self.first) - 1) * -(-self.k // self.size)


class TiledPlan(NamedTuple):
    """The plan 2^(A B^T + f + g) on kept tiles.

    A, B : factors (N, r), (K, r) of the score, or the ranks' shares of them by `UNIT`.
    f, g : base-2 potentials (N,), (K,).
    tiles : those that are kept.
    """

    A: Tensor
    B: Tensor
    f: Tensor
    g: Tensor
    tiles: Tiles


@as_cuda_graph()
def _pairs(tiles: Tiles) -> Tensor:
    """How many pairs of points the kept tiles hold, ()."""
    rows, columns = (
        (points - torch.arange(0, points, tiles.size, device=tiles.first.device)).clamp_max(tiles.size)
        for points in (tiles.n, tiles.k)
    )
    return (rows[tiles.rows] * columns[tiles.column]).sum()


def inverse_permutation(order: Tensor) -> Tensor:
    """The position (N,) of each point in an order (N,), position to point."""
    found = torch.empty_like(order)
    found[order] = torch.arange(len(order), device=order.device)
    return found


def centres(A: Tensor, size: int) -> Tensor:
    """Means (tiles, r) of runs of ``size`` rows of A, the last one shorter; float64, rounded to the dtype of A."""
    whole = len(A) // size * size
    parts = [
        A[:whole].reshape(len(A) // size, size, A.shape[1]).double().mean(1),
        A[whole:].double().mean(0, keepdim=True),
    ]
    return torch.cat(parts[: 1 + (whole < len(A))]).to(A.dtype).double()


def all_tiles(n: int, k: int, size: int, device: torch.device) -> Tiles:
    """Every tile."""
    rows, columns = -(-n // size), -(-k // size)
    first = torch.arange(rows + 1, device=device) * columns
    return Tiles(size, n, k, first, torch.arange(columns, device=device).repeat(rows))


class TileSelection(NamedTuple):
    """The tiles to evaluate, and bounds on what that leaves out.

    Attributes
    ----------
    tiles : those that are kept.
    omitted : bound on the mass of all others.
    displaced : bound on the mass that moves if every kept tile is taken as `softmin_tiles.separable` does.
    displaced_in_run : the same for any run of points, relative to its own mass.
    cross : bound on what is then expanded, in bits.
    """

    tiles: Tiles
    omitted: float
    displaced: float
    displaced_in_run: float
    cross: float


def choose_tiles(
    A: Tensor,
    B: Tensor,
    f: Tensor,
    g: Tensor,
    masses: tuple[Tensor, Tensor],
    size: int,
    share: float,
    ranks: Ranks = ALONE,
) -> TileSelection:
    """The tiles that hold mass, leaving out at most ``share`` of the total.

    A (N, r), B (K, r), shares of them by `UNIT`, in an order in which neighbours are near, base-2 potentials f (N,), g
    (K,), masses (N,), (K,).
    No run of points on either side loses more than that share of its own mass, so every point keeps its matches. The
    bound counts a tile left out as 2^-120 at least: smaller ones would come out as no mass at all in float32.
    O(N K r / size) work, which ranks share, O(N K / size^2) memory.
    """
    n, k = len(f), len(g)
    keep, first, told = _select_tiles(A, B, f, g, masses, size, share, ranks)
    tiles = Tiles(size, n, k, first, keep.nonzero()[:, 1])
    omitted_mass, moved, *in_runs, widest_cross = to_host(told)[0].tolist()
    return TileSelection(tiles, omitted_mass, moved, max(in_runs), widest_cross)


@as_cuda_graph()
def _select_tiles(
    A: Tensor, B: Tensor, f: Tensor, g: Tensor, masses: tuple[Tensor, Tensor], size: int, share: float, ranks: Ranks
) -> tuple[Tensor, Tensor, Tensor]:
    """Which tiles to keep (row tiles, column tiles), where the list of each row tile begins (row tiles + 1,), and the
    numbers (5,) of `TileSelection`, that of runs for either side."""
    n, k = len(f), len(g)
    own = TiledSide.of(A, f[ranks.share(n, UNIT)], size)
    found, widest = [], []
    for where, (theirs,) in ranks.ring((B,), k, UNIT):
        columns = TiledSide.of(theirs, g[where], size)
        widest.append(columns.widest)
        step = block_rows(own.count, max(k, size * columns.count), A.device, CHUNK_ELEMENTS)
        parts = [own.centre.new_empty(2, 0, columns.count)]
        parts += [torch.stack(_bounds(own, columns, slice(i, i + step))) for i in range(0, own.count, step)]
        found.append(torch.cat(parts, 1))
    most = -(-n // size)
    bound, second = ranks.all_gather(torch.cat(found, 2).transpose(0, 1), most, UNIT // size).unbind(1)
    rows_widest, columns_widest = ranks.all_gather(own.widest, most, UNIT // size), torch.cat(widest)
    rows_mass, columns_mass = (
        torch.nn.functional.pad(mass, (0, -len(mass) % size)).reshape(-1, size).sum(1) for mass in masses
    )
    small = _smallest_within(bound, share * rows_mass) & _smallest_within(bound.T, share * columns_mass).T
    row, column = (torch.arange(len(mass), device=A.device) for mass in (rows_mass, columns_mass))
    no = small.new_zeros(())  # which a number of the host is sent for
    small.index_put_((row, bound.argmax(1)), no).index_put_((bound.argmax(0), column), no)
    least = bound.clamp_min(LOWEST_EXPONENT)
    omitted = torch.where(small, least, -torch.inf).exp2_().sum(dtype=torch.float64)
    displaced = second.exp2_().masked_fill_(small, 0.0).double()
    tiny = torch.finfo(torch.float64).tiny
    in_runs = (rows_mass, columns_mass)
    runs = [(displaced.sum(1 - i) / mass.clamp_min(tiny)).max() for i, mass in enumerate(in_runs)]
    cross = torch.where(small, 0.0, (rows_widest[:, None] * columns_widest).sqrt())
    keep = small.logical_not_()
    count = keep.sum(1)
    first = torch.cat((count.new_zeros(1), count.cumsum(0)))
    told = torch.stack((omitted, displaced.sum(), *(each.double() for each in (*runs, cross.max()))))
    return keep, first, told


def _smallest_within(bound: Tensor, most: Tensor) -> Tensor:
    """For each row the entries that are smallest and sum, as 2^bound, to no more than ``most``."""
    ordered, order = bound.sort(1)
    within = cumulative_sum(ordered.exp2_(), 1) <= most[:, None].to(bound.dtype)
    return torch.zeros_like(within).scatter_(1, order, within)


@dataclass(frozen=True)
class TiledSide:
    """A run of points of one side in tiles, padded with points of potential -inf to n points.

    points : factors (n, r).
    potential : base-2 potentials (n,).
    centre : means (tiles, r) of the factors.
    squares : squared distances (tiles, size) of the factors from their centre.
    size : points of a tile.
    """

    points: Tensor
    potential: Tensor
    centre: Tensor
    squares: Tensor
    size: int

    @classmethod
    def of(cls, A: Tensor, f: Tensor, size: int) -> TiledSide:
        missing = -len(A) % size
        points = torch.cat((A, A[-1:].expand(missing, -1))) if missing else A
        potential = torch.nn.functional.pad(f.to(A.dtype), (0, missing), value=-torch.inf)
        centre = centres(A, size).to(A.dtype)
        cells = points.reshape(len(centre), size, A.shape[1])
        squares = (cells - centre[:, None]).square().sum(2)
        return cls(points, potential, centre, squares, size)

    def restrict(self, tiles: Tensor) -> TiledSide:
        """Some of the tiles (m,)."""
        at = (tiles[:, None] * self.size + torch.arange(self.size, device=tiles.device)).flatten()
        return TiledSide(self.points[at], self.potential[at], self.centre[tiles], self.squares[tiles], self.size)

    @property
    def count(self) -> int:
        return len(self.centre)

    @property
    def widest(self) -> Tensor:
        """The largest of the squared distances of each tile, (tiles,)."""
        return self.squares.amax(1)


def limit_scores(rows: TiledSide, columns: TiledSide, where: slice) -> tuple[Tensor, Tensor]:
    """x (len, size, column tiles) and y (len, column tiles), so that no score of the row i of a row tile ``where`` with
    a point of the column tile J is above x_iJ + y_J."""
    left, right, rest = _split_scores(rows, columns, where)
    return left, right.amax(2).add_(rest)


def _split_scores(rows: TiledSide, columns: TiledSide, where: slice) -> tuple[Tensor, Tensor, Tensor]:
    """The scores of the row tiles ``where`` in parts: A_i . b + f_i (len, size, column tiles), a . B_j + g_j (len,
    column tiles, size), and what the rest is at most (len, column tiles)."""
    size, centre = rows.size, rows.centre[where]
    points = slice(where.start * size, where.start * size + len(centre) * size)
    left = torch.addmm(rows.potential[points, None], rows.points[points], columns.centre.T)
    right = torch.addmm(columns.potential, centre, columns.points.T)
    cross = (rows.squares[where].amax(1)[:, None] * columns.widest).sqrt()
    rest = cross - centre @ columns.centre.T
    return left.reshape(len(centre), size, -1), right.reshape(len(centre), -1, size), rest


def _bounds(rows: TiledSide, columns: TiledSide, where: slice) -> tuple[Tensor, Tensor]:
    """log2 of bounds for each tile of the row tiles ``where``, (len, column tiles): on its mass, and on how much of it
    moves where 2^x is replaced by 1 + x ln 2, which is off by at most (x ln 2)^2 / 2 times 2^|x|."""
    left, right, rest = _split_scores(rows, columns, where)
    of_rows, rows_spread = _sums(left, rows.squares[where][..., None], 1)
    of_columns, columns_spread = _sums(right, columns.squares, 2)
    rest = rest + SLACK_BITS
    return of_rows + of_columns + rest, rows_spread + columns_spread + rest + 2 * math.log2(LN2) - 1


def _sums(exponent: Tensor, weight: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """log2 of the sums of 2^exponent over ``axis``, and of the sums weighted by ``weight``; the exponents go."""
    highest = maxima(exponent, axis)
    entries = exponentials(exponent, highest, axis)
    plain = entries.sum(axis).log2_() + highest
    return plain, entries.mul_(weight).sum(axis).log2_() + highest

"""Entries of a plan of factors that may be above a limit of their row and column, without most others.

For rows I and columns J with centres a of the A_i and b of the B_j, the score A_i . B_j + f_i + g_j splits exactly into
parts that are cheap, and one that is small:

    [A_i . b + f_i] + [a . (B_j - b) + g_j] + (A_i - a) . (B_j - b),

so it is at most the largest of each part, with the product of the largest distances from the centres for the last. A
tile is left out if no entry of it can be above its limit. Of plans whose tiles are short sums of products, entries are
those of `torchgw.kernels.softmin_tiles.separable`, with 1 + x ln 2 for 2^x, and so no larger.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling
from torchgw.couplings.low_rank import LowRankCoupling
from torchgw.couplings.potential import PotentialCoupling
from torchgw.couplings.tiled import TiledCoupling
from torchgw.kernels import LN2
from torchgw.kernels.tiles import centres

TILE = 64
AT_ONCE = 2**24  # scores of points and centres that are held at once


@dataclass(frozen=True)
class FactoredPlan:
    """The plan 2^(A_i . B_j + f_i + g_j) + x_i y_j, or A_i . B_j, in an order in which neighbours are alike.

    Attributes
    ----------
    A, B : factors (N, r), (K, r), float64.
    f, g : base-2 potentials (N,), (K,); zero without ``power``.
    x, y : the rank-one correction (N,), (K,).
    row_order, column_order : (N,), (K,), position to index of the point.
    power : whether entries are powers of two of the scores, or the scores.
    size : points of a tile.
    kept : which tiles (N / size, K / size) have more than the correction; None for all.
    moved : factors less the centres of the tiles that are short sums of products, (N, r) and (K, r); None without.
    """

    A: Tensor
    B: Tensor
    f: Tensor
    g: Tensor
    x: Tensor
    y: Tensor
    row_order: Tensor
    column_order: Tensor
    power: bool
    size: int = TILE
    kept: Tensor | None = None
    moved: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(cls, coupling: BlockCoupling, orders: tuple[Tensor, Tensor] | None = None) -> FactoredPlan | None:
        """Of a coupling that has factors, else None; ``orders`` of the points where it has none of its own."""
        if isinstance(coupling, TiledCoupling):
            held, tiles = {name: side.cpu() for name, side in coupling.tensors().items()}, coupling.tiles
            size = TILE if tiles.size % TILE == 0 else tiles.size
            kept = torch.zeros(-(-tiles.n // tiles.size), -(-tiles.k // tiles.size), dtype=torch.bool)
            kept[tiles.rows.cpu(), tiles.column.cpu()] = True
            kept = kept.repeat_interleave(tiles.size // size, 0).repeat_interleave(tiles.size // size, 1)
            kept = kept[: -(-tiles.n // size), : -(-tiles.k // size)]
            A, B, f, g, x, y = (held[name].double() for name in "ABfgxy")
            moved = (A - _centre(A, tiles.size), B - _centre(B, tiles.size)) if tiles.separable else None
            return cls(A, B, f, g, x, y, held["row_order"], held["column_order"], True, size, kept, moved)
        if isinstance(coupling, LowRankCoupling):
            A, B = coupling.Q / coupling.g, coupling.R
            f, g, x, y = (side.new_zeros(len(side)) for side in (A[:, 0], B[:, 0], A[:, 0], B[:, 0]))
        elif isinstance(coupling, PotentialCoupling):
            A, B, f, g = coupling.A, coupling.B, coupling.f, coupling.g
            x, y = (torch.zeros_like(one) if side is None else side for one, side in ((f, coupling.x), (g, coupling.y)))
        else:
            return None
        row, column = (torch.arange(n) for n in coupling.shape) if orders is None else orders
        sides = ((A, row), (B, column), (f, row), (g, column), (x, row), (y, column))
        A, B, f, g, x, y = (side.detach().cpu().double()[order] for side, order in sides)
        return cls(A, B, f, g, x, y, row, column, isinstance(coupling, PotentialCoupling))

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return len(self.A), len(self.B)

    @property
    def turned(self) -> FactoredPlan:
        """The transposed plan."""
        kept = None if self.kept is None else self.kept.T
        moved = None if self.moved is None else self.moved[::-1]
        factors = self.B, self.A, self.g, self.f, self.y, self.x
        return FactoredPlan(*factors, self.column_order, self.row_order, self.power, self.size, kept, moved)

    def entries(self, scores: Tensor) -> Tensor:
        """Entries of the scores, which are written to."""
        return scores.exp2_() if self.power else scores

    def bounds(self) -> Tensor:
        """What the entries of each tile are at most, (N / size, K / size); O((N K / size) r)."""
        a, b = (centres(side, self.size) for side in (self.A, self.B))
        far = torch.outer(self._reach(self.A, a), self._reach(self.B, b))
        step = max(AT_ONCE // (len(b) * self.size), 1) * self.size
        parts = zip(torch.split(self.A, step), torch.split(self.f, step), strict=True)
        rows = torch.cat([self._largest(torch.addmm(f[:, None], A, b.T)) for A, f in parts])
        step = max(AT_ONCE // (len(a) * self.size), 1) * self.size
        parts = zip(torch.split(self.B - _centre(self.B, self.size), step), torch.split(self.g, step), strict=True)
        columns = torch.cat([self._largest(torch.addmm(g[:, None], B, a.T)) for B, g in parts])
        found = self.entries(rows.add_(columns.T).add_(far))
        if self.kept is not None:
            found *= self.kept
        x, y = (self._largest(side[:, None])[:, 0] for side in (self.x, self.y))
        return found.addr_(x, y)

    def _largest(self, block: Tensor) -> Tensor:
        """The largest of each tile of rows."""
        missing = -len(block) % self.size
        whole = torch.cat((block, block[-1:].expand(missing, -1))) if missing else block
        return whole.view(-1, self.size, block.shape[1]).amax(1)

    def _reach(self, side: Tensor, centre: Tensor) -> Tensor:
        far = torch.linalg.vector_norm(side - centre.repeat_interleave(self.size, 0)[: len(side)], dim=1)
        return self._largest(far[:, None])[:, 0]

    def runners_up(self, column: Tensor) -> Tensor:
        """The second largest entry (N,) among a position ``column`` (N,) of each row and those of its tile."""
        found = torch.zeros_like(self.f)
        if self.size == 1:
            return found
        within = torch.arange(self.size)
        for part in torch.split(torch.arange(len(column)), AT_ONCE // self.size // max(self.A.shape[1], 1)):
            near = (column[part] // self.size * self.size)[:, None] + within
            here = near.clamp(max=len(self.B) - 1)
            scores = (self.B[here] @ self.A[part, :, None])[..., 0] + self.g[here] + self.f[part, None]
            if self.moved is None:
                block = self.entries(scores)
            else:
                block = _separable(scores, (self.moved[1][here] @ self.moved[0][part, :, None])[..., 0])
            if self.kept is not None:
                block *= self.kept[part // self.size, column[part] // self.size][:, None]
            block.addcmul_(self.x[part, None], self.y[here])
            found[part] = block.masked_fill_(near >= len(self.B), 0.0).topk(2, dim=1).values[:, -1]
        return found

    def above(self, u: Tensor, v: Tensor, bounds: Tensor, slack: float = 0.0) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Tiles of rows, columns (m,) among which are all with (1 + slack) T_ij > u_i + v_j, and the plan there."""
        low_u, low_v = (-self._largest(-side[:, None])[:, 0] for side in (u, v))
        within = torch.arange(self.size)
        for tile, bound in enumerate(bounds):
            which = torch.nonzero(bound * (1 + slack) > low_u[tile] + low_v)[:, 0]
            if len(which) == 0:
                continue
            rows = slice(tile * self.size, min((tile + 1) * self.size, len(self.A)))
            columns = (which[:, None] * self.size + within).flatten()
            columns = columns[columns < len(self.B)]
            scores = torch.addmm(self.g[columns], self.A[rows], self.B[columns].T).add_(self.f[rows, None])
            if self.moved is None:
                block = self.entries(scores)
            else:
                block = _separable(scores, self.moved[0][rows] @ self.moved[1][columns].T)
            if self.kept is not None and not bool(self.kept[tile, which].all()):
                block *= self.kept[tile, columns // self.size]
            yield rows, columns, block.addr_(self.x[rows], self.y[columns])


def _centre(side: Tensor, size: int) -> Tensor:
    """The centre of each point's tile, (n, r)."""
    return centres(side, size).repeat_interleave(size, 0)[: len(side)]


def _separable(scores: Tensor, near: Tensor) -> Tensor:
    """2^(score - x) (1 + x ln 2); the scores are written to."""
    return scores.sub_(near).exp2_().mul_(near.mul_(LN2).add_(1.0))

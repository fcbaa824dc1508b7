"""Reading kept tiles that are so small that each is a short sum of products of row and column factors.

With the centres a of a row tile and b of a column tile the score splits,

    A_i . B_j = (A_i - a) . b + a . B_j + x_ij,      x_ij = (A_i - a) . (B_j - b),

and where x is small a tile of the plan has rank r + 1 up to x^2 / 2,

    T_ij = 2^((A_i - a) . b + f_i) 2^(a . B_j + g_j) (1 + x_ij ln 2).

Sums over it need the factors only, not its entries: the work of a pass falls by about the tile size over the rank. This
is the coupling that `torchgw.couplings.tiled` then holds: its marginals, products and entries are all those of this
formula.

Source: hierarchical matrices, W. Hackbusch, "A sparse matrix arithmetic based on H-matrices", 1999.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchgw.kernels import LN2
from torchgw.kernels.logsumexp import FLOOR, LOWEST_EXPONENT
from torchgw.kernels.softmin_tiles.tile_kernel import PlanProducts
from torchgw.kernels.tiles import Tiles, centres


def read(A: Tensor, B: Tensor, tiles: Tiles, f: Tensor, g: Tensor, V: Tensor, W: Tensor) -> PlanProducts:
    """T V and T^T W, see `torchgw.kernels.softmin_tiles.reference`; O((N + K) r (d + e) k / size) work for k kept
    columns of a row tile."""
    n, k, size = len(A), len(B), tiles.size
    TV, TtW = f.new_zeros(n, V.shape[1]), f.new_zeros(k, W.shape[1])
    V = V.masked_fill(g.isneginf()[:, None], 0.0).to(A.dtype)
    absent, W = f.isneginf(), W.to(A.dtype)
    a, b, wide = centres(A, size).to(A.dtype), centres(B, size).to(A.dtype), B.to(g.dtype)
    near_B, first = _with_ones(B - b.repeat_interleave(size, 0)[:k]), tiles.first.tolist()
    for tile, spans in enumerate(tiles.spans):
        if not spans:
            continue
        rows = slice(tile * size, min((tile + 1) * size, n))
        kept = tiles.column[first[tile] : first[tile + 1]]
        right, top = _right(wide, g, spans, a[tile])
        local, level = A[rows] - a[tile], (f[rows] + top).to(A.dtype)
        left = torch.addmm(level[:, None], local, b[kept].T).clamp_min_(LOWEST_EXPONENT).exp2_()
        near_A, terms = _with_ones(local * LN2), near_B.shape[1]
        by_tile = _by_tile(right.to(A.dtype), size)
        weighted = by_tile[..., None] * _by_tile(_gather_spans(near_B, spans), size)
        if V.shape[1]:
            sums = torch.bmm(weighted.mT, _by_tile(_gather_spans(V, spans), size)).flatten(1)
            TV[rows] = ((left @ sums).reshape(len(left), terms, -1) * near_A[..., None]).sum(1).to(f.dtype)
        if W.shape[1]:
            own = W[rows].masked_fill(absent[rows, None], 0.0)
            products = (near_A[..., None] * own[:, None]).flatten(1)
            sums = (left.T @ products).reshape(len(kept), terms, -1)
            _add(TtW, torch.bmm(weighted, sums).flatten(0, 1), spans)
    TV.masked_fill_(absent[:, None], 0.0)
    TtW.masked_fill_(g.isneginf()[:, None], 0.0)
    return PlanProducts(TV, TtW)


def entries(
    A: Tensor, B: Tensor, centre: tuple[Tensor, Tensor], size: int, f: Tensor, g: Tensor, index: Tensor, columns: Tensor
) -> Tensor:
    """Rows ``index`` (m,) and ``columns`` (k,) of the plan as if every tile were kept, (m, k) float64.

    ``centre`` holds those of the row and column tiles, see `torchgw.kernels.tiles.centres`.
    """
    left, right = A[index].double(), B[columns].double()
    near = (left - centre[0][index // size]) @ (right - centre[1][columns // size]).T
    exponent = torch.addmm(g[columns], left, right.T).add_(f[index, None]).sub_(near)
    return exponent.exp2_().mul_(near.mul_(LN2).add_(1.0))


def _right(wide: Tensor, g: Tensor, spans: list[slice], centre: Tensor) -> tuple[Tensor, Tensor]:
    """2^(a . B_j + g_j - top) of the kept columns, and ``top``, which keeps it in range."""
    shift = torch.cat([torch.addmv(g[span], wide[span], centre.to(g.dtype)) for span in spans])
    top = shift.amax().clamp_min(FLOOR)
    return (shift - top).clamp_min_(LOWEST_EXPONENT).exp2_(), top


def _with_ones(near: Tensor) -> Tensor:
    return torch.cat((near.new_ones(len(near), 1), near), 1)


def _gather_spans(values: Tensor, spans: list[slice]) -> Tensor:
    return torch.cat([values[span] for span in spans])


def _add(total: Tensor, found: Tensor, spans: list[slice]) -> None:
    """Add rows of the kept columns, in their order, where they belong."""
    start = 0
    for span in spans:
        total[span].add_(found[start : start + span.stop - span.start])  # += would copy it onto itself as well
        start += span.stop - span.start


def _by_tile(values: Tensor, size: int) -> Tensor:
    """(tiles, size, ...) from the kept columns' (columns, ...); a shorter last tile is filled with zeros."""
    missing = -len(values) % size
    if missing:
        values = torch.cat((values, values.new_zeros(missing, *values.shape[1:])))
    return values.reshape(-1, size, *values.shape[1:])

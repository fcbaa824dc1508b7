"""The largest entries of some rows or columns of a plan, and the share of their mass that each is.

Columns are rows of the transposed plan, which every coupling has in its own form, so neither needs more memory than a
block of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchgw.couplings.blocks import BLOCK_ELEMENTS, BlockCoupling, DenseCoupling, PotentialCoupling
from torchgw.couplings.low_rank import LowRankCoupling
from torchgw.couplings.tiled import TiledCoupling
from torchgw.types import Array


@dataclass(frozen=True)
class Matches:
    """Of m points: their mass (m,), and the indices (m, k) of the points that share most of it, with the shares (m, k)
    in [0, 1], the largest first. Where fewer than k have a share, and for points without mass, indices are -1."""

    mass: Array
    index: Array
    share: Array


def matches_of(coupling: BlockCoupling, chosen: Tensor, axis: int, k: int) -> Matches:
    """The k best matches of the rows (``axis`` 1) or columns (``axis`` 0) ``chosen`` (m,) of a plan.

    O(m K) time for rows, O(m N) for columns, times the rank of the plan where it is not stored; of a large plan, only
    what is in its kept tiles counts.
    """
    read = coupling if axis == 1 else turned(coupling)
    k = min(k, read.shape[1])
    chosen = chosen.to(read.device)
    mass, value, index = _of_tiles(read, chosen, k) if isinstance(read, TiledCoupling) else _of_rows(read, chosen, k)
    share = torch.where(mass[:, None] > 0, value / mass[:, None], 0.0)
    return Matches(*(side.cpu().numpy() for side in (mass, index.masked_fill(share <= 0, -1), share)))


def _of_tiles(coupling: TiledCoupling, chosen: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mass (m,), largest entries (m, k) and their columns, from the tiles that are kept."""
    return coupling.marginal(1)[chosen], *coupling.top_k(k, chosen)


def _of_rows(coupling: BlockCoupling, chosen: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The same from whole rows, in blocks."""
    mass = torch.empty(len(chosen), dtype=coupling.dtype, device=coupling.device)
    value = mass.new_empty(len(chosen), k)
    index = torch.empty(len(chosen), k, dtype=torch.int64, device=coupling.device)
    step = max(1, BLOCK_ELEMENTS.get(coupling.device.type, 2**20) // coupling.shape[1])
    for start in range(0, len(chosen), step):
        where = slice(start, start + step)
        block = coupling.rows(chosen[where]).detach()
        mass[where] = block.sum(1)
        value[where], index[where] = block.topk(k, dim=1)
    return mass, value, index


def turned(coupling: BlockCoupling) -> BlockCoupling:
    """The transposed coupling."""
    if isinstance(coupling, TiledCoupling):
        return coupling.turned()
    if isinstance(coupling, DenseCoupling):
        return DenseCoupling(coupling.plan.T)
    if isinstance(coupling, LowRankCoupling):
        return LowRankCoupling(coupling.R, coupling.Q, coupling.g)
    if isinstance(coupling, PotentialCoupling):
        return PotentialCoupling(coupling.B, coupling.A, coupling.g, coupling.f, coupling.y, coupling.x)
    raise TypeError(f"a report knows the library's own couplings, got {type(coupling).__name__}")

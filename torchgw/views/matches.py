"""The largest entries of some rows or columns of a plan, and the share of their mass that each is.

Columns are rows of the transposed plan, which every coupling has in its own form, so neither needs more memory than a
block of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling
from torchgw.couplings.tiled import TiledCoupling
from torchgw.types import Array

WHOLE_ROWS = 2**28  # entries up to which whole rows of a large plan are read, and not all of its tiles


@dataclass(frozen=True)
class Matches:
    """The k best matches of m points, the largest first.

    Attributes
    ----------
    mass : (m,) of each point in the plan.
    index : (m, k) of the other side; -1 where fewer than k have a share, and for points without mass.
    share : (m, k) of the point's mass that goes to each, in [0, 1].
    """

    mass: Array
    index: Array
    share: Array


def matches_of(coupling: BlockCoupling, chosen: Tensor, axis: int, k: int) -> Matches:
    """The k best matches of the rows (``axis`` 1) or columns (``axis`` 0) ``chosen`` (m,) of a plan.

    O(m K) time for rows, O(m N) for columns, times the rank of the plan where it is not stored; of many points of a
    large plan, a pass over its kept tiles, outside of which its correction alone counts.
    """
    read = coupling if axis == 1 else coupling.transpose()
    k = min(k, read.shape[1])
    chosen = chosen.to(read.device)
    if isinstance(read, TiledCoupling) and len(chosen) * read.shape[1] > WHOLE_ROWS:
        mass = read.marginal(1)[chosen]
    else:
        mass = torch.empty(len(chosen), dtype=read.dtype, device=read.device)
        for where, block in read.blocks(chosen):
            mass[where] = block.detach().sum(1)
    value, index = (side.detach() for side in read.top_k(k, chosen))
    share = torch.where(mass[:, None] > 0, value / mass[:, None], 0.0)
    return Matches(*(side.cpu().numpy() for side in (mass, index.masked_fill(share <= 0, -1), share)))

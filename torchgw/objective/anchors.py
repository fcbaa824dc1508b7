"""Anchor pairs drawn from a plan, and their partial renewal, which is the loop's momentum.

A pair (i, j) with probability T_ij: the row from the row marginal, then the column from that row, so only M rows of the
plan are ever formed. Keeping each pair with probability 1 - step and drawing the rest from the new plan gives, in
expectation, the anchors of the plan (1 - step) T_old + step T_new, with O(M) memory and rows that a cache still holds.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchgw.kernels.sampling import draw
from torchgw.types import Coupling


class Anchors(NamedTuple):
    """Index pairs (i_m, j_m): rows (M,) and columns (M,), int64."""

    rows: Tensor
    columns: Tensor


def sample_anchors(coupling: Coupling, row_marginal: Tensor, count: int, generator: torch.Generator) -> Anchors:
    """``count`` independent pairs from the plan. A plan without mass yields uniform pairs."""
    rows = draw(row_marginal, count, generator)
    return Anchors(rows, coupling.sample_columns(rows, generator))


def refresh(old: Anchors, new: Anchors, step: float, generator: torch.Generator) -> Anchors:
    """Each pair of ``old`` replaced by its counterpart in ``new`` with probability ``step``."""
    coin = torch.rand(old.rows.shape, generator=generator, device=old.rows.device) < step
    return Anchors(torch.where(coin, new.rows, old.rows), torch.where(coin, new.columns, old.columns))

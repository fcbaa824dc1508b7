"""What an implementation of the tiled score offers, and its binding to one score for the Sinkhorn loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from torchgw.kernels.kernel import Softmin, two_softmins
from torchgw.kernels.sums import inner_product
from torchgw.kernels.tiles import Tiles


class PlanProducts(NamedTuple):
    """What is read of a plan T (N, K) on kept tiles in one pass.

    Attributes
    ----------
    TV, TtW : T V (N, d) and T^T W (K, e).
    """

    TV: Tensor
    TtW: Tensor


@dataclass(frozen=True)
class TileKernel:
    """One implementation of the family.

    softmin : of (A, B, tiles, bias, axis), see `reference`; takes any factors.
    read : of (A, B, tiles, f, g, V, W), likewise.
    prepare : brings factors into the form that both are fastest with, once where many softmins follow.
    """

    softmin: Callable[[Tensor, Tensor, Tiles, Tensor, int], Tensor]
    read: Callable[[Tensor, Tensor, Tiles, Tensor, Tensor, Tensor, Tensor], PlanProducts]
    prepare: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None

    def contract(
        self, A: Tensor, B: Tensor, tiles: Tiles, f: Tensor, g: Tensor, left: Tensor, right: Tensor
    ) -> tuple[PlanProducts, Tensor]:
        """Products of T with one column of ones, either way; and left^T T right (l, r), float64, of left (N, l) and
        right (K, r), in one pass that reads the narrower side."""
        one_p, one_q = left.new_ones(len(f), 1), right.new_ones(len(g), 1)
        if left.shape[1] <= right.shape[1]:
            found = self.read(A, B, tiles, f, g, one_q, torch.cat((one_p, left), 1))
            core = inner_product(found.TtW[:, 1:], right)
        else:
            found = self.read(A, B, tiles, f, g, torch.cat((one_q, right), 1), one_p)
            core = inner_product(left, found.TV[:, 1:])
        TV, TtW = found.TV[:, :1].clone(), found.TtW[:, :1].clone()  # views would keep all columns
        return PlanProducts(TV, TtW), core

    def bind(self, A: Tensor, B: Tensor, tiles: Tiles) -> TiledScore:
        """The score of A (N, r), B (K, r) on the kept tiles."""
        factors = (A, B) if self.prepare is None else self.prepare(A, B)
        return TiledScore(partial(self.softmin, *factors, tiles))


@dataclass(frozen=True)
class TiledScore:
    """A `torchgw.types.Softmins` of which only the kept tiles are evaluated.

    softmin : of the score, takes (bias, axis).
    """

    softmin: Softmin

    def sweep(self, g: Tensor, log_p: Tensor, f: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        return two_softmins(self.softmin, g, log_p, f, weight)

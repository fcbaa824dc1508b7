"""What the objective needs of a plan T + s W: sums, entropy, and products F^T (T + s W) G, as functions of s, F and G.

T and W are constants. Derivatives in s, in the distances and costs, and in both (one each) are right, which is all that
first derivatives of values and of plans need.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling, DenseCoupling
from torchgw.sinkhorn.implicit import Answer


class Reading(Protocol):
    """Of a plan (N, K) with ``rows`` (N,) and ``columns`` (K,); ``entropy`` is sum T log T."""

    rows: Tensor
    columns: Tensor
    entropy: Tensor

    def through(self, F: Tensor, G: Tensor) -> Tensor:
        """F^T T G (r, r') for F (N, r) and G (K, r')."""

    def matrix(self) -> Tensor:
        """The entries (N, K)."""


class Stored:
    """Of a stored plan, by matrix products; ``along`` is W with its sums, and s."""

    def __init__(self, plan: Tensor, along: tuple[Answer, Tensor] | None = None) -> None:
        self._plan = plan
        self.rows, self.columns = plan.sum(1), plan.sum(0)
        self.entropy = (plan * torch.where(plan > 0, plan, 1.0).log()).sum()  # xlogy has no derivative at 0
        if along is not None:
            answer, s = along
            assert isinstance(answer.change, DenseCoupling)
            change = answer.change.plan
            slope = torch.special.xlogy(change, plan).sum() + change.sum()
            self.rows, self.columns = self.rows + s * answer.rows, self.columns + s * answer.columns
            self.entropy = self.entropy + s * slope
            self._plan = plan + s * change

    def matrix(self) -> Tensor:
        return self._plan

    def through(self, F: Tensor, G: Tensor) -> Tensor:
        return F.T @ (self._plan @ G)


class Streamed:
    """Of a plan that is read in blocks. F^T T G is linearised at the F and G it is asked for, which gives the same
    first derivatives with two products and no graph over blocks."""

    def __init__(self, plan: BlockCoupling, along: tuple[Answer, Tensor] | None = None) -> None:
        self._plan, self._along = plan, along
        self.rows, self.columns = plan.marginal(1), plan.marginal(0)
        self.entropy, slope = self.rows.new_zeros(()), self.rows.new_zeros(())
        for where, block in plan.blocks():
            self.entropy = self.entropy + torch.special.xlogy(block, block).sum()
            if along is not None:
                change = along[0].change.rows(where)
                slope += torch.special.xlogy(change, block).sum() + change.sum()
        if along is not None:
            answer, s = along
            self.rows, self.columns = self.rows + s * answer.rows, self.columns + s * answer.columns
            self.entropy = self.entropy + s * slope

    def matrix(self) -> Tensor:
        raise TypeError("a streaming plan is read by the factors of both spaces")

    def through(self, F: Tensor, G: Tensor) -> Tensor:
        at_F, at_G = F.detach(), G.detach()
        moved, back = self._plan.apply(at_G, 1), self._plan.apply(at_F, 0)
        if self._along is not None:
            answer, s = self._along
            moved = moved + s * answer.change.apply(at_G, 1)
            back = back + s * answer.change.apply(at_F, 0)
        return F.T @ moved + back.T @ G - at_F.T @ moved

"""What the objective needs of a plan T + s W: sums, entropy, and products F^T (T + s W) G, as functions of s, F and G.

T and W are constants. Derivatives in s, in the distances and costs, and in both (one each) are right, which is all that
first derivatives of values and of plans need.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from torchgw.couplings import BlockCoupling, DenseCoupling
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
    """Of a stored plan, by matrix products."""

    def __init__(self, plan: Tensor, answer: Answer | None = None, s: Tensor | None = None) -> None:
        self._plan, self._s = plan, s
        self._change = answer.change.plan if answer is not None and isinstance(answer.change, DenseCoupling) else None
        self.rows, self.columns = plan.sum(1), plan.sum(0)
        self.entropy = torch.special.xlogy(plan, plan).sum()
        if answer is not None and s is not None and self._change is not None:
            slope = torch.special.xlogy(self._change, plan).sum() + self._change.sum()
            self.rows, self.columns = self.rows + s * answer.rows, self.columns + s * answer.columns
            self.entropy = self.entropy + s * slope

    def matrix(self) -> Tensor:
        return self._plan if self._change is None else self._plan + self._s * self._change

    def through(self, F: Tensor, G: Tensor) -> Tensor:
        found = F.T @ (self._plan @ G)
        return found if self._change is None else found + self._s * (F.T @ (self._change @ G))


class Streamed:
    """Of a plan that is read in blocks. F^T T G is linearised at the F and G it is asked for, which gives the same
    first derivatives with two products and no graph over blocks."""

    def __init__(self, plan: BlockCoupling, answer: Answer | None = None, s: Tensor | None = None) -> None:
        self._plan, self._change, self._s = plan, None if answer is None else answer.change, s
        self.rows, self.columns = plan.marginal(1), plan.marginal(0)
        self.entropy, slope = self.rows.new_zeros(()), self.rows.new_zeros(())
        for where, block in plan.blocks():
            self.entropy = self.entropy + torch.special.xlogy(block, block).sum()
            if self._change is not None:
                change = self._change.rows(where)
                slope += torch.special.xlogy(change, block).sum() + change.sum()
        if answer is not None and s is not None:
            self.rows, self.columns = self.rows + s * answer.rows, self.columns + s * answer.columns
            self.entropy = self.entropy + s * slope

    def matrix(self) -> Tensor:
        raise TypeError("a streaming plan is read by the factors of both spaces")

    def through(self, F: Tensor, G: Tensor) -> Tensor:
        at_F, at_G = F.detach(), G.detach()
        moved, back = self._plan.apply(at_G, 1), self._plan.apply(at_F, 0)
        if self._change is not None and self._s is not None:
            moved = moved + self._s * self._change.apply(at_G, 1)
            back = back + self._s * self._change.apply(at_F, 0)
        return F.T @ moved + back.T @ G - at_F.T @ moved

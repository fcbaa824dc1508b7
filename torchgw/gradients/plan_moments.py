"""What the objective needs of a plan T + s W: marginals, entropy, and products with it, as functions of s.

T and W are constants. Derivatives in s, in what is multiplied, and in both (one each) are right, which is all that
first derivatives of values and of plans need. To first order in s,

    sum (T + s W) log(T + s W) = sum T log T + s (<W, log T> + sum W).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling, DenseCoupling
from torchgw.objective.model import negentropy
from torchgw.sinkhorn.implicit import PlanSensitivity


class PlanMoments:
    """Of T + s W, given T, stored (N, K) or read in blocks, and ``along`` = (W with its sums, s) or None.

    rows, columns : the marginals, (N,) and (K,).
    entropy : sum T log T ().
    """

    def __init__(self, plan: BlockCoupling, along: tuple[PlanSensitivity, Tensor] | None = None) -> None:
        self._plan, self._along = plan, along
        self._stored = plan.plan if isinstance(plan, DenseCoupling) else None
        self.rows, self.columns = plan.marginal(1), plan.marginal(0)
        self.entropy = negentropy(plan).to(self.rows)
        if along is None:
            return
        answer, s = along
        slope = answer.rows.sum()
        for where, block in plan.blocks():
            slope = slope + torch.special.xlogy(answer.change.rows(where), block).sum()
        self.rows, self.columns = self.rows + s * answer.rows, self.columns + s * answer.columns
        self.entropy = self.entropy + s * slope
        if self._stored is not None:
            assert isinstance(answer.change, DenseCoupling)
            self._stored = self._stored + s * answer.change.plan

    def matrix(self) -> Tensor:
        """The entries (N, K) of a stored plan."""
        assert self._stored is not None  # streaming plans are read by the factors of both spaces
        return self._stored

    def apply(self, V: Tensor, axis: int) -> Tensor:
        """(T + s W) V for axis 1, its transpose times V for axis 0."""
        if self._stored is not None:
            return (self._stored if axis == 1 else self._stored.T) @ V
        found = apply_function(ConstantProduct, self._plan.apply, V, axis)
        if self._along is None:
            return found
        return found + self._along[1] * apply_function(ConstantProduct, self._along[0].change.apply, V, axis)


class ConstantProduct(torch.autograd.Function):
    """A V for axis 1, A^T V for axis 0, of a constant A that is known by its products."""

    @staticmethod
    def forward(ctx: Any, multiply: Callable[[Tensor, int], Tensor], V: Tensor, axis: int) -> Tensor:
        ctx.multiply, ctx.axis = multiply, axis
        return multiply(V, axis)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, apply_function(ConstantProduct, ctx.multiply, gradients[0], 1 - ctx.axis), None


def apply_function(function: type[torch.autograd.Function], *arguments: Any) -> Tensor:
    """The result of a differentiable function."""
    found: Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]
    return found

"""Gradients that may be taken once: a second differentiation is refused rather than wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class _Refusing(torch.autograd.Function):
    """A cotangent as it is, whose derivative in all that it depends on is refused."""

    @staticmethod
    def forward(ctx: Any, message: str, value: Tensor, *inputs: Tensor) -> Tensor:
        ctx.message = message
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *unused: Tensor) -> Any:
        raise RuntimeError(ctx.message)


def refuse_double_backward(
    message: str, cotangents: Sequence[Tensor | None], inputs: Sequence[Tensor]
) -> list[Tensor | None]:
    """The cotangents of a backward pass, tied to what they depend on; differentiating them raises RuntimeError."""
    if not torch.is_grad_enabled():
        return list(cotangents)
    return [None if c is None else _Refusing.apply(message, c, *inputs) for c in cotangents]  # type: ignore[no-untyped-call]

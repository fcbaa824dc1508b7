"""Graphs of automatic differentiation that run apart from the caller's, and gradients that may be taken once.

A backward pass runs wherever the caller asks for it, in surroundings of the caller's: under autocast torch's own
formulas round float32 to 8 bits. So an expression is made of own copies of its inputs, and what leads from it to the
inputs themselves is one node, which pulls gradients through the expression in the surroundings of a solve.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchgw.runtime.surroundings import own_surroundings


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


def own_copies(inputs: Sequence[Tensor]) -> list[Tensor]:
    """The inputs as leaves of a graph of their own, for `reattach`."""
    own = [given.detach().clone() if given.is_inference() else given.detach() for given in inputs]
    return [copy.requires_grad_(given.requires_grad) for copy, given in zip(own, inputs, strict=True)]


def reattach(values: Sequence[Tensor], own: Sequence[Tensor], inputs: Sequence[Tensor], refused: str) -> list[Tensor]:
    """Values that are expressions of ``own`` copies of inputs, as functions of the inputs.

    A second differentiation is refused with the message ``refused``.
    """
    recorded = [value for value in values if value.requires_grad]
    if not recorded:
        return list(values)
    found = iter(_Reattach.apply(recorded, own, refused, *inputs))  # type: ignore[no-untyped-call]
    return [next(found) if value.requires_grad else value for value in values]


class _Reattach(torch.autograd.Function):
    """The values of `reattach`."""

    @staticmethod
    def forward(ctx: Any, values: list[Tensor], own: list[Tensor], refused: str, *inputs: Tensor) -> Any:
        ctx.values, ctx.own, ctx.refused = values, own, refused
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs)
        return tuple(value.detach() for value in values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        needed, keep = ctx.needs_input_grad[3:], torch._C._autograd._get_current_graph_task_keep_graph()
        values = [value for value, gradient in zip(ctx.values, gradients, strict=True) if gradient is not None]
        given = [gradient for gradient in gradients if gradient is not None]
        if not given:
            return (None,) * len(ctx.needs_input_grad)
        wanted = [copy for copy, need in zip(ctx.own, needed, strict=True) if need]
        with own_surroundings():
            some = list(torch.autograd.grad(values, wanted, given, keep, allow_unused=True))
        found = [some.pop(0) if need else None for need in needed]
        return None, None, None, *refuse_double_backward(ctx.refused, found, (*given, *ctx.saved_tensors))

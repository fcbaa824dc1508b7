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


def reattach(
    values: Sequence[Tensor], own: Sequence[Tensor], inputs: Sequence[Tensor], refused: str = "", shared: bool = False
) -> list[Tensor]:
    """Values that are expressions of ``own`` copies of inputs, as functions of the inputs.

    A second differentiation is refused with the message ``refused``, where there is one. A graph that is ``shared``
    with other values outlives a backward pass.
    """
    recorded = [value for value in values if value.requires_grad]
    if not recorded:
        return list(values)
    found = iter(_Reattach.apply(recorded, own, refused, shared, *inputs))  # type: ignore[no-untyped-call]
    return [next(found) if value.requires_grad else value for value in values]


class _Reattach(torch.autograd.Function):
    """The values of `reattach`."""

    @staticmethod
    def forward(ctx: Any, values: list[Tensor], own: list[Tensor], refused: str, shared: bool, *inputs: Tensor) -> Any:
        ctx.values, ctx.own, ctx.refused, ctx.shared = values, own, refused, shared
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs)
        return tuple(value.detach() for value in values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        inputs, needed, recorded = ctx.saved_tensors, ctx.needs_input_grad[4:], torch.is_grad_enabled()
        again = recorded and not ctx.refused
        ctx.shared = ctx.shared or again
        keep = ctx.shared or torch._C._autograd._get_current_graph_task_keep_graph()
        values = [value for value, gradient in zip(ctx.values, gradients, strict=True) if gradient is not None]
        given = [gradient for gradient in gradients if gradient is not None]
        if not given:
            return (None,) * len(ctx.needs_input_grad)
        seeds = own_copies(given) if any(gradient.requires_grad for gradient in given) else given
        wanted = [copy for copy, need in zip(ctx.own, needed, strict=True) if need]
        with own_surroundings():
            some = torch.autograd.grad(values, wanted, seeds, keep, again, allow_unused=True)
            if again:
                known = [gradient for gradient in some if gradient is not None]
                reached = reattach(known, [*ctx.own, *seeds], [*inputs, *given], shared=True)
                some = tuple(None if gradient is None else reached.pop(0) for gradient in some)
        left = list(some)
        found = [left.pop(0) if need else None for need in needed]
        if recorded and ctx.refused:
            found = refuse_double_backward(ctx.refused, found, (*given, *inputs))
        return None, None, None, None, *found

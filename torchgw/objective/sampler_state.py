"""What a gradient remembers between two calls: the anchors of a sampled one, and the costs that it averages."""

from __future__ import annotations

from typing import TypeAlias

from torchgw.objective.anchors import Anchors
from torchgw.objective.gradient import Gradient, Sample, SampledGradient
from torchgw.objective.linearise import ModelGradient

Memory: TypeAlias = "tuple[Anchors | None, list[Sample]] | None"


NOTHING: Memory = (None, [])


def memory_of(gradient: Gradient) -> Memory:
    """What `recall` needs to make the next call of the gradient what it would have been; None for an exact one."""
    inner = _quadratic(gradient)
    return (inner.anchors, list(inner.window)) if isinstance(inner, SampledGradient) else None


def recall(gradient: Gradient, memory: Memory) -> None:
    """Put a gradient into the state that `memory_of` found."""
    inner = _quadratic(gradient)
    if isinstance(inner, SampledGradient) and memory is not None:
        inner.anchors = memory[0]
        inner.window.clear()
        inner.window.extend(memory[1])


def _quadratic(gradient: Gradient) -> Gradient:
    return gradient.quadratic if isinstance(gradient, ModelGradient) else gradient

"""The one scale of a space: its largest known distance, or what a user gave, by which all its distances are divided.

Distances that no path attains are 1.5 times the largest finite one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from torchgw import validate
from torchgw.runtime.caller import warn_caller
from torchgw.runtime.surroundings import isolate, isolate_methods
from torchgw.types import Array, DistanceProvider, GraphWarning

UNREACHABLE = 1.5

ScaledT = TypeVar("ScaledT", bound="ScaledDistances")
HeldT = TypeVar("HeldT", Array, Tensor)


@partial(isolate_methods, traced=True)
class ScaledDistances(ABC):
    """What the library's own providers share beside `torchgw.types.DistanceProvider`.

    Attributes
    ----------
    scale : the divisor of all distances.
    largest : the largest known distance, before scaling.
    fixed : whether the scale was set by `with_scale`.
    leaf : the tensor that the distances came from, where it requires gradients.
    metric, symmetric : see `torchgw.types.DistanceProvider`.
    divided : whether what it holds is divided by the scale already.
    """

    stored = metric = symmetric = True
    fixed = divided = False
    leaf: Tensor | None = None
    scale: float
    largest: float

    def __init_subclass__(cls) -> None:
        if "__init__" in vars(cls):
            setattr(cls, "__init__", isolate(vars(cls)["__init__"], refusing=cls.__name__))  # noqa: B010 - mypy
        isolate_methods(cls, traced=True)

    def with_scale(self: ScaledT, scale: float) -> ScaledT:
        """The same distances divided by ``scale``, a constant."""
        wanted = validate.real("scale", scale, above=0.0)
        return self._rescale_storage(self.scale / wanted)._with(scale=wanted, fixed=True)

    @abstractmethod
    def _rescale_storage(self: ScaledT, ratio: float) -> ScaledT:
        """A copy whose stored distances are ``ratio`` times these, for a caller
        that sets the scale; of those that are divided by the scale when they are
        read, a copy."""

    def _with(self: ScaledT, **changed: object) -> ScaledT:
        """A copy with other attributes."""
        other = object.__new__(type(self))
        vars(other).update(vars(self), **changed)
        return other

    def factors(self) -> tuple[Tensor, Tensor] | None:
        return None


def without_scale(space: DistanceProvider) -> DistanceProvider:
    """A space without what its distances were divided by, where it holds them divided; others as they are."""
    if isinstance(space, ScaledDistances) and space.divided:
        return space._with(scale=1.0, largest=1.0, leaf=None)
    return space


def positive_scale(largest: float) -> float:
    """The divisor for a space whose largest known distance this is: 1 when all points coincide."""
    return largest if largest > 0 else 1.0


def largest_of(space: DistanceProvider) -> float:
    """The largest known distance of a space before scaling; its scale where it does not say."""
    return float(getattr(space, "largest", space.scale))


def compute_squared_diameter(spaces: tuple[DistanceProvider, DistanceProvider]) -> float:
    """The square of the largest known scaled distance, beside which energies are small or large; 1 for no distances."""
    return max(largest_of(space) / space.scale for space in spaces) ** 2 or 1.0


def fill_unreachable(distance: HeldT, scale: float) -> HeldT:
    """Replace infinite distances, in place, by 1.5 times ``scale``, the largest finite one."""
    held = torch.as_tensor(distance)
    held.masked_fill_(held.isinf(), UNREACHABLE * scale)
    return distance


def warn_unreachable(name: str) -> None:
    """Say that a space is not connected and what was done, at the line that called a provider's constructor."""
    warn_caller(
        f"{name} is not connected: infinite distances were replaced by {UNREACHABLE} x the largest finite one; align "
        f"connected parts one by one, or where {name} comes of points take distances='euclidean'",
        GraphWarning,
    )

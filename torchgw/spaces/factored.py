"""Distances that are given by signed factors, D = F diag(s) F^T."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from torchgw import validate
from torchgw.persist.codec import storable
from torchgw.runtime.transfer import to_device
from torchgw.spaces.scale import ScaledDistances, positive_scale
from torchgw.spaces.traced import DifferentiableDistances, constant
from torchgw.types import Array

FactoredT = TypeVar("FactoredT", bound="FactoredDistances")


@storable
class FactoredDistances(ScaledDistances):
    """Distances D = F diag(signs) F^T / scale of N points, never stored.

    Parameters
    ----------
    F : (N, r), finite.
    signs : (r,), each 1 or -1.
    scale : what the product is divided by, > 0; distances should be at most about 1
        afterwards.
    name : what the argument is called in error messages.

    Attributes
    ----------
    largest : ``scale``, which stands for the largest distance.
    fixed : whether the scale was set by `with_scale`.
    leaf : F, where it is a tensor that requires gradients.

    Raises
    ------
    ValueError, TypeError
        When the arrays do not fit together.
    """

    divided = True
    _signed: Tensor | None = None  # F diag(signs), where a launch is worth its memory

    def __init__(self, F: Array | Tensor, signs: Array | Tensor, scale: float = 1.0, *, name: str = "F") -> None:
        factors = validate.as_tensor(validate.points(name, F))
        given = torch.from_numpy(validate.read("signs", signs)).to(torch.float64)
        if given.shape != (factors.shape[1],) or not bool((given.abs() == 1).all()):
            raise ValueError(
                f"signs must be {factors.shape[1]} numbers, each 1 or -1, got {tuple(given.shape)}: {given}"
            )
        self.scale = self.largest = positive_scale(validate.real("scale", scale, above=0.0))
        self.leaf = F if isinstance(F, Tensor) and F.requires_grad else None
        self._F, self._signs = factors / self.scale**0.5, given

    @classmethod
    def of(cls: type[FactoredT], F: Tensor, signs: Tensor, scale: float) -> FactoredT:
        """Factors of distances that are scaled already, taken as they are."""
        other = object.__new__(cls)
        other.scale, other.largest, other._F, other._signs = scale, scale, F, signs
        return other

    @property
    def size(self) -> int:
        return len(self._F)

    def to(self: FactoredT, device: torch.device, dtype: torch.dtype) -> FactoredT:
        F, signs = to_device(self._F.to(dtype), device), to_device(self._signs.to(dtype), device)
        return self._with(_F=F, _signs=signs, _signed=F * signs if F.is_cuda else None)

    def _rescale_storage(self: FactoredT, ratio: float) -> FactoredT:
        return self._with(_F=self._F * ratio**0.5, _signed=None)

    def at(self: FactoredT, index: Tensor) -> FactoredT:
        """The points ``index`` (n,) under the same scale."""
        F, leaf, signed = (
            None if each is None else each[index.to(each.device)] for each in (self._F, self.leaf, self._signed)
        )
        return self._with(_F=F, leaf=leaf, _signed=signed)

    def trace(self, leaf: Tensor, k: int | None, device: torch.device) -> DifferentiableDistances:
        # Factors that were given never come from points.
        found = constant(self, device)
        return found if self.leaf is None else replace(found, tensor=leaf.to(found.tensor) / self.scale**0.5)

    def rows(self, index: Tensor) -> Tensor:
        signed = self._F[index] * self._signs if self._signed is None else self._signed[index]
        found: Tensor = signed @ self._F.T
        return found

    def factors(self) -> tuple[Tensor, Tensor] | None:
        return self._F, self._signs

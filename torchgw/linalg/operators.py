"""Self-adjoint operators that are known by products, in an inner product that is known by products, too.

An operator A on vectors of length n is self-adjoint in <v, w> = v^T M w, M symmetric and not negative:

    <v, A w> = <A v, w>,    the pencil (M A, M).

Vectors come with what M makes of them, U = M V: it is the dear part where M is the inverse of something, and once it is
known A V takes little. Where M is singular, vectors may have parts that it does not see and that would grow unseen; the
product takes them off. M = 1 is the usual inner product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Operator(Protocol):
    """A self-adjoint operator."""

    @property
    def size(self) -> int:
        """n."""

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def squared_norm_floor(self, V: Tensor) -> Tensor:
        """Squared lengths (m,) of V (n, m), as it is given to `metric`, up to which these are rounding."""

    def metric(self, V: Tensor) -> tuple[Tensor, Tensor]:
        """V (n, m) without parts that M does not see, as far as these are known, and M V."""

    def image(self, V: Tensor, U: Tensor) -> Tensor:
        """A V (n, m) from V and U = M V."""


@dataclass(frozen=True)
class Matrix:
    """A matrix that is known by its product, in the usual inner product or in that of a subspace.

    product : with (n, m).
    size, device, dtype : see `Operator`.
    project : the orthogonal projection on the subspace.
    """

    product: Callable[[Tensor], Tensor]
    size: int
    device: torch.device
    dtype: torch.dtype
    project: Callable[[Tensor], Tensor] | None = None

    def squared_norm_floor(self, V: Tensor) -> Tensor:
        return V.new_zeros(V.shape[1])

    def metric(self, V: Tensor) -> tuple[Tensor, Tensor]:
        V = V if self.project is None else self.project(V)
        return V, V

    def image(self, V: Tensor, U: Tensor) -> Tensor:
        return self.product(V)

"""Self-adjoint operators that are known by products, in an inner product that is known by products, too.

An operator A on vectors of length n is self-adjoint in <v, w> = v^T M w, M symmetric and not negative:

    <v, A w> = <A v, w>,    the pencil (M A, M).

Vectors come with what M makes of them, U = M V: it is the dear part where M is the inverse of something, and once it is
known A V takes little. Where M is singular, vectors may have parts that it does not see and that would grow unseen; the
product takes them off. M = 1 is the usual inner product. Sums, shifts and projections of operators with one
inner product are such operators again.
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


def matvec(operator: Operator, V: Tensor) -> Tensor:
    """A V (n, m)."""
    return operator.image(*operator.metric(V))


@dataclass(frozen=True)
class Symmetric:
    """A symmetric matrix in the usual inner product.

    product : with (n, m).
    size, device, dtype : see `Operator`.
    """

    product: Callable[[Tensor], Tensor]
    size: int
    device: torch.device
    dtype: torch.dtype

    def squared_norm_floor(self, V: Tensor) -> Tensor:
        return V.new_zeros(V.shape[1])

    def metric(self, V: Tensor) -> tuple[Tensor, Tensor]:
        return V, V

    def image(self, V: Tensor, U: Tensor) -> Tensor:
        return self.product(V)


@dataclass(frozen=True)
class Derived:
    """An operator that is made of another one, with its inner product.

    of : the other one.
    """

    of: Operator

    @property
    def size(self) -> int:
        return self.of.size

    @property
    def device(self) -> torch.device:
        return self.of.device

    @property
    def dtype(self) -> torch.dtype:
        return self.of.dtype

    def squared_norm_floor(self, V: Tensor) -> Tensor:
        return self.of.squared_norm_floor(V)

    def metric(self, V: Tensor) -> tuple[Tensor, Tensor]:
        return self.of.metric(V)


@dataclass(frozen=True)
class Shifted(Derived):
    """factor A + shift.

    shift, factor : numbers.
    """

    shift: float = 0.0
    factor: float = 1.0

    def image(self, V: Tensor, U: Tensor) -> Tensor:
        return torch.add(self.shift * V, self.of.image(V, U), alpha=self.factor)


@dataclass(frozen=True)
class Sum(Derived):
    """A + B, for operators with one inner product.

    other : B.
    """

    other: Operator

    def image(self, V: Tensor, U: Tensor) -> Tensor:
        return self.of.image(V, U) + self.other.image(V, U)


@dataclass(frozen=True)
class Projected(Derived):
    """P A P with P = 1 - Q Q^T M.

    vectors, duals : Q (n, d), orthonormal, which are taken out, and M Q.
    """

    vectors: Tensor
    duals: Tensor

    def image(self, V: Tensor, U: Tensor) -> Tensor:
        inside, held = V - self.vectors @ (self.duals.T @ V), U - self.duals @ (self.vectors.T @ U)
        found = self.of.image(inside, held)
        return found - self.vectors @ (self.duals.T @ found)

"""Transport plans that are read in blocks of rows: stored ones, and ones given by potentials.

A potential coupling is T_ij = 2^(A_i . B_j + f_i + g_j) + x_i y_j. The second term is the rank-one correction that the
rounding onto exact marginals leaves. Only ``to_dense`` stores an N x K tensor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchgw.kernels import transport
from torchgw.kernels.sampling import draw
from torchgw.kernels.sums import running
from torchgw.persist.codec import storable
from torchgw.types import Coupling

BLOCK_ELEMENTS = {"cpu": 2**20, "cuda": 2**26}


class BlockCoupling(ABC):
    """Everything a `Coupling` offers, derived from ``rows``."""

    shape: tuple[int, int]

    @property
    def potentials(self) -> tuple[Tensor, Tensor] | None:
        """Base-2 potentials f (N,), g (K,), or None where there are none."""
        return None

    @abstractmethod
    def rows(self, index: Tensor | slice) -> Tensor:
        """T[index], shape (len(index), K)."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """The tensors that define this coupling, by name: its constructor's arguments."""

    @abstractmethod
    def times(self, mass: float) -> BlockCoupling:
        """The coupling with ``mass`` times the mass."""

    def blocks(self, points: Tensor | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Consecutive blocks of all rows, or of the rows ``points`` (m,), with their positions among these.

        Readers write what they find to one tensor: small results kept from between the blocks would hold the heap open
        at each of them, until all blocks together are resident.
        """
        n = self.shape[0] if points is None else len(points)
        step = max(1, BLOCK_ELEMENTS.get(self.device.type, 2**20) // self.shape[1])
        for start in range(0, n, step):
            where = slice(start, min(start + step, n))
            yield where, self.rows(where if points is None else points[where])

    @property
    def device(self) -> torch.device:
        return next(iter(self.tensors().values())).device

    @property
    def dtype(self) -> torch.dtype:
        return next(iter(self.tensors().values())).dtype

    def marginal(self, axis: int) -> Tensor:
        ones = torch.ones(self.shape[axis], 1, dtype=self.dtype, device=self.device)
        return self.apply(ones, axis)[:, 0]

    def apply(self, V: Tensor, axis: int) -> Tensor:
        self._check_rows(V, axis)
        if axis == 1:
            out = V.new_empty((self.shape[0], *V.shape[1:]))
            for where, block in self.blocks():
                out[where] = block @ V
            return out
        out = V.new_zeros((self.shape[1], *V.shape[1:]))
        for where, block in self.blocks():
            out += block.T @ V[where]
        return out

    def _check_rows(self, V: Tensor, axis: int) -> None:
        if V.shape[0] != self.shape[axis]:
            raise ValueError(f"V must have {self.shape[axis]} rows for axis {axis}, got shape {tuple(V.shape)}")

    def sample_columns(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        return draw(self.rows(rows), 1, generator)[:, 0]

    def top_k(self, k: int) -> tuple[Tensor, Tensor]:
        values = torch.empty(self.shape[0], k, dtype=self.dtype, device=self.device)
        index = torch.empty(self.shape[0], k, dtype=torch.int64, device=self.device)
        for where, block in self.blocks():
            values[where], index[where] = block.topk(k, dim=1)
        return values, index

    def argmax(self, axis: int) -> Tensor:
        if axis == 1:
            found = torch.empty(self.shape[0], dtype=torch.int64, device=self.device)
            for where, block in self.blocks():
                found[where] = block.argmax(1)
            return found
        best = torch.full((self.shape[1],), -torch.inf, dtype=self.dtype, device=self.device)
        index = torch.zeros(self.shape[1], dtype=torch.int64, device=self.device)
        for where, block in self.blocks():
            value, row = block.max(0)
            index = torch.where(value > best, row + where.start, index)
            best = torch.maximum(best, value)
        return index

    def to_dense(self) -> Tensor:
        out = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        for where, block in self.blocks():
            out[where] = block
        return out

    def to_sparse(self, mass: float) -> Any:
        from scipy.sparse import csr_matrix, vstack

        pieces = []
        for _, block in self.blocks():
            value, column = block.sort(dim=1, descending=True)
            before = running(value, 1) - value
            keep = ((before < mass * value.sum(1, keepdim=True)) & (value > 0)).cpu().numpy()
            pointer = np.concatenate(([0], keep.sum(1).cumsum()))
            kept = csr_matrix(
                (value.cpu().numpy()[keep], column.cpu().numpy()[keep], pointer), shape=tuple(block.shape)
            )
            kept.sort_indices()
            pieces.append(kept)
        return vstack(pieces, format="csr")


def in_blocks(coupling: Coupling, reader: str) -> BlockCoupling:
    """The coupling itself, where ``reader`` can read it: only the library's own have blocks of rows."""
    if not isinstance(coupling, BlockCoupling):
        raise TypeError(f"{reader} knows the library's own couplings, got {type(coupling).__name__}")
    return coupling


@storable
class DenseCoupling(BlockCoupling):
    """A stored plan (N, K), with the base-2 potentials f (N,), g (K,) it came from where there are any."""

    def __init__(self, plan: Tensor, f: Tensor | None = None, g: Tensor | None = None) -> None:
        self.plan, self.f, self.g = plan, f, g
        self.shape = (plan.shape[0], plan.shape[1])

    def rows(self, index: Tensor | slice) -> Tensor:
        return self.plan[index]

    @property
    def potentials(self) -> tuple[Tensor, Tensor] | None:
        return None if self.f is None or self.g is None else (self.f, self.g)

    def tensors(self) -> dict[str, Tensor]:
        found = {"plan": self.plan}
        if self.f is not None and self.g is not None:
            found |= {"f": self.f, "g": self.g}
        return found

    def to_dense(self) -> Tensor:
        return self.plan

    def times(self, mass: float) -> DenseCoupling:
        """The coupling with ``mass`` times the mass."""
        f = None if self.f is None else self.f + torch.tensor(mass, dtype=self.dtype).log2().to(self.device)
        return DenseCoupling(self.plan * mass if mass != 1.0 else self.plan, f, self.g)


@storable
class PotentialCoupling(BlockCoupling):
    """T_ij = 2^(A_i . B_j + f_i + g_j) + x_i y_j, in base-2 potentials; O((N + K) r) memory.

    A (N, r), B (K, r), f (N,), g (K,), x (N,), y (K,); x and y are zero when not given.
    """

    def __init__(
        self, A: Tensor, B: Tensor, f: Tensor, g: Tensor, x: Tensor | None = None, y: Tensor | None = None
    ) -> None:
        self.A, self.B, self.f, self.g = A, B, f, g
        self.x, self.y = x, y
        self.shape = (A.shape[0], B.shape[0])

    @property
    def potentials(self) -> tuple[Tensor, Tensor] | None:
        return self.f, self.g

    def rows(self, index: Tensor | slice) -> Tensor:
        block = torch.addmm(self.g, self.A[index], self.B.T).add_(self.f[index][:, None]).exp2_()
        if self.x is not None and self.y is not None:
            block.addr_(self.x[index], self.y)
        return block

    def apply(self, V: Tensor, axis: int) -> Tensor:
        self._check_rows(V, axis)
        sides = ((self.A, self.f, self.x), (self.B, self.g, self.y))
        (A, f, x), (B, g, y) = sides if axis == 1 else sides[::-1]
        moved = transport.apply(A, B, f, g, V.reshape(len(V), -1).contiguous())
        if x is not None and y is not None:
            moved = moved + x[:, None] * (y @ V.reshape(len(V), -1))
        return moved.reshape(len(A), *V.shape[1:])

    def sample_columns(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        if self.x is not None:
            return super().sample_columns(rows, generator)
        return transport.sample(self.A[rows], self.B, self.g, generator)

    def top_k(self, k: int) -> tuple[Tensor, Tensor]:
        if self.x is not None:
            return super().top_k(k)
        values, columns = transport.largest(self.A, self.B, self.g, k)
        return values.add_(self.f[:, None]).exp2_(), columns

    def argmax(self, axis: int) -> Tensor:
        if self.x is not None:
            return super().argmax(axis)
        A, B, g = (self.A, self.B, self.g) if axis == 1 else (self.B, self.A, self.f)
        return transport.largest(A, B, g, 1)[1][:, 0]

    def tensors(self) -> dict[str, Tensor]:
        found = {"A": self.A, "B": self.B, "f": self.f, "g": self.g}
        if self.x is not None and self.y is not None:
            found |= {"x": self.x, "y": self.y}
        return found

    def times(self, mass: float) -> PotentialCoupling:
        """The coupling with ``mass`` times the mass."""
        scaled = dict(self.tensors())
        scaled["f"] = self.f + torch.tensor(mass, dtype=self.dtype).log2().to(self.device)
        if self.x is not None:
            scaled["x"] = self.x * mass
        return PotentialCoupling(**scaled)

    def to(self, dtype: torch.dtype) -> PotentialCoupling:
        """The same coupling in another dtype."""
        return PotentialCoupling(**{name: tensor.to(dtype) for name, tensor in self.tensors().items()})

    def rescaled(self, row: Tensor, column: Tensor) -> PotentialCoupling:
        """diag(row) T diag(column) of a coupling without a correction."""
        return PotentialCoupling(self.A, self.B, self.f + row.log2(), self.g + column.log2())

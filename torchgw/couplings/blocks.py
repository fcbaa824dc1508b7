"""Transport plans that are read in blocks of rows, and stored ones. Only ``to_dense`` stores an N x K tensor."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchgw.kernels.blocks import ON_GPU, block_rows
from torchgw.kernels.sampling import draw
from torchgw.kernels.sums import cumulative_sum, scatter
from torchgw.persist.codec import storable
from torchgw.runtime.surroundings import isolate_methods
from torchgw.types import Array, Coupling

HALF = 2**21  # half of the last digit that `round_digits` keeps, in those of float64
BLOCK_ELEMENTS = {"cpu": 2**20, "cuda": ON_GPU}


@partial(isolate_methods, traced=True)
class BlockCoupling(ABC):
    """Everything a `Coupling` offers, derived from ``rows``."""

    shape: tuple[int, int]
    exact = False  # whether an entry is the same number however it is read, as stored ones are

    def __init_subclass__(cls) -> None:
        isolate_methods(cls, traced=True)

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

    def transpose(self) -> BlockCoupling:
        """The transposed coupling."""
        raise NotImplementedError(f"{type(self).__name__} is no plan of a result")

    def zero_pad(self, rows: Tensor, columns: Tensor, shape: tuple[int, int]) -> BlockCoupling:
        """The coupling of ``shape`` (N, K) that is this one between the points ``rows`` (n,) and ``columns`` (k,), in
        order; the others have no mass."""
        raise NotImplementedError(f"{type(self).__name__} is no plan of a result")

    def blocks(self, points: Tensor | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Consecutive blocks of all rows, or of the rows ``points`` (m,), with their positions among these.

        Readers write what they find to one tensor: small results kept from between the blocks would hold the heap open
        at each of them, until all blocks together are resident.
        """
        n = self.shape[0] if points is None else len(points)
        step = block_rows(max(n, 1), self.shape[1], self.device, BLOCK_ELEMENTS)
        for start in range(0, n, step):
            where = slice(start, min(start + step, n))
            yield where, self.rows(where if points is None else points[where])

    def with_tensors(self, tensors: dict[str, Tensor]) -> Any:
        """A plan of this kind of other tensors, see `tensors`."""
        return type(self)(**tensors)

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

    def top_k(self, k: int, points: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Values and columns of the k largest entries of each row, or of the rows ``points`` (m,), largest first; of
        equal entries the lowest column. Every other reader of matches asks this one."""
        n = self.shape[0] if points is None else len(points)
        values = torch.empty(n, k, dtype=self.dtype, device=self.device)
        index = torch.empty(n, k, dtype=torch.int64, device=self.device)
        for where, block in self.blocks(points):
            values[where], index[where] = largest_entries(block, k, self.exact)
        return values, index

    def argmax(self, axis: int) -> Tensor:
        return (self if axis == 1 else self.transpose()).top_k(1)[1][:, 0]

    def to_dense(self) -> Tensor:
        out = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        for where, block in self.blocks():
            out[where] = block
        return out

    def to_sparse(self, mass: float) -> Any:
        found = SparseEntries(self.shape)
        for where, block in self.blocks():
            value, column = block.sort(dim=1, descending=True)
            row = torch.arange(where.start, where.stop, device=block.device)
            found.add(row, column, value, mark_leading_entries(value, mass * value.sum(1)))
        return found.matrix()


def largest_entries(block: Tensor, k: int, exact: bool = True) -> tuple[Tensor, Tensor]:
    """The k largest entries of each row of a block (n, K) and their columns, both (n, k), the largest first.

    Of equal entries the lowest column comes first. Where an entry is computed anew in each block, not ``exact``,
    entries that agree to nine digits are equal: their order must not depend on rounding.
    """
    compared = block.detach() if exact else round_digits(block.detach())
    if k == 1:
        index = compared.argmax(1, keepdim=True)
        return block.gather(1, index), index
    value, index = compared.topk(min(k + 1, block.shape[1]), dim=1)
    index = index[:, :k]
    tied = torch.nonzero((value[:, 1:] == value[:, :-1]).any(1))[:, 0]
    if len(tied):
        some, last = compared[tied], value[tied, k - 1 : k]
        above, equal = some > last, some == last
        kept = above | (equal & (equal.cumsum(1) <= k - above.sum(1, keepdim=True)))
        columns = torch.nonzero(kept)[:, 1].view(-1, k)
        index[tied] = columns.gather(1, some.gather(1, columns).sort(dim=1, descending=True, stable=True).indices)
    return block.gather(1, index).sort(1, descending=True).values, index


def round_digits(value: Tensor) -> Tensor:
    """Float64 numbers to nine digits, 30 bits; others as they are."""
    if value.dtype != torch.float64:
        return value
    return value.view(torch.int64).add(HALF).bitwise_and_(~(2 * HALF - 1)).view(torch.float64)


def mark_leading_entries(value: Tensor, wanted: Tensor) -> Tensor:
    """Which of the entries ``value`` (n, k), descending along each row, are the fewest that sum to ``wanted`` (n,)."""
    return (cumulative_sum(value, 1) - value < wanted[:, None]) & (value > 0)


class SparseEntries:
    """Entries of a sparse matrix, collected by blocks of rows."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape = shape
        self.rows: list[Array] = []
        self.columns: list[Array] = []
        self.values: list[Array] = []

    def add(self, rows: Tensor, columns: Tensor, values: Tensor, keep: Tensor) -> None:
        """The entries marked ``keep`` (n, k) of a block of ``rows`` (n,), with columns (n, k) and values (n, k)."""
        row, _ = keep.nonzero(as_tuple=True)
        self.rows.append(rows[row].cpu().numpy())
        self.columns.append(columns[keep].cpu().numpy())
        self.values.append(values[keep].cpu().numpy())

    def matrix(self) -> Any:
        """As SciPy CSR."""
        from scipy.sparse import csr_matrix

        entries = np.concatenate(self.values), (np.concatenate(self.rows), np.concatenate(self.columns))
        found = csr_matrix(entries, shape=self.shape)
        found.sort_indices()
        return found


def as_block_coupling(coupling: Coupling, reader: str) -> BlockCoupling:
    """The coupling itself, where ``reader`` can read it: only the library's own have blocks of rows."""
    if not isinstance(coupling, BlockCoupling):
        raise TypeError(f"{reader} knows the library's own couplings, got {type(coupling).__name__}")
    return coupling


@storable
class DenseCoupling(BlockCoupling):
    """A stored plan (N, K), with the base-2 potentials f (N,), g (K,) it came from where there are any."""

    exact = True

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

    def transpose(self) -> DenseCoupling:
        return DenseCoupling(self.plan.T, self.g, self.f)

    def times(self, mass: float) -> DenseCoupling:
        """The coupling with ``mass`` times the mass."""
        f = None if self.f is None else self.f + math.log2(mass)
        return DenseCoupling(self.plan * mass if mass != 1.0 else self.plan, f, self.g)

    def zero_pad(self, rows: Tensor, columns: Tensor, shape: tuple[int, int]) -> DenseCoupling:
        plan = scatter(scatter(self.plan, rows, shape[0]).T, columns, shape[1]).T.contiguous()
        f, g = (
            None if side is None else scatter(side, index, size, -math.inf)
            for side, index, size in zip((self.f, self.g), (rows, columns), shape, strict=True)
        )
        return DenseCoupling(plan, f, g)

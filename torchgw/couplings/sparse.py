"""Transport plans of few entries, stored as these: a matching of many points, or a vertex of the transport polytope."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array, csr_matrix
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling
from torchgw.kernels.sums import cumulative_sum, scatter
from torchgw.persist.codec import storable
from torchgw.runtime.transfer import to_device
from torchgw.types import Array


@storable
class SparseCoupling(BlockCoupling):
    """A plan (N, K) by its m entries, row by row; O(m) memory, and O(m d) for products with V (., d).

    ``first`` (N + 1,) says where each row begins in ``column`` (m,), ascending within it, and ``mass`` (m,), float64;
    ``width`` () is K.
    """

    exact = True

    def __init__(self, mass: Tensor, column: Tensor, first: Tensor, width: Tensor) -> None:
        self.mass, self.column, self.first, self.width = mass, column, first, width
        self.shape = (len(first) - 1, int(width))

    @classmethod
    def of(cls, plan: Any, device: torch.device) -> SparseCoupling:
        """Of a SciPy CSR array (N, K), whose stored zeros are dropped."""
        plan = plan.sorted_indices()  # a copy
        plan.eliminate_zeros()
        parts = (torch.from_numpy(np.array(part, dtype=np.int64)) for part in (plan.indices, plan.indptr))
        column, first = (to_device(part, device) for part in parts)
        return cls(to_device(torch.from_numpy(plan.data), device), column, first, torch.tensor(plan.shape[1]))

    @property
    def matrix(self) -> Any:
        """The plan as a SciPy CSR array."""
        parts: tuple[Array, ...] = tuple(part.cpu().numpy() for part in (self.mass, self.column, self.first))
        return csr_array(parts, shape=self.shape)

    @cached_property
    def row(self) -> Tensor:
        """The row of each entry (m,)."""
        rows = torch.arange(self.shape[0], device=self.device)
        return rows.repeat_interleave(self.first.diff(), output_size=len(self.column))

    def rows(self, index: Tensor | slice) -> Tensor:
        points = torch.arange(self.shape[0], device=self.device)[index]
        count = self.first.diff()[points]
        known = len(self.column) if isinstance(index, slice) and len(points) == self.shape[0] else None
        place = torch.arange(len(points), device=self.device).repeat_interleave(count, output_size=known)
        entry = torch.arange(len(place), device=self.device) + (self.first[points] - count.cumsum(0) + count)[place]
        out = self.mass.new_zeros(len(points), self.shape[1])
        out[place, self.column[entry]] = self.mass[entry]
        return out

    def tensors(self) -> dict[str, Tensor]:
        return {"mass": self.mass, "column": self.column, "first": self.first, "width": self.width}

    def apply(self, V: Tensor, axis: int) -> Tensor:
        self._check_rows(V, axis)
        plan = self.matrix if axis == 1 else self.matrix.T
        return torch.from_numpy(plan @ V.detach().cpu().numpy()).to(V)

    def sample_columns(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        """One column for each of ``rows`` (M,), O(M log m); a row without mass gets a uniform one."""
        below = torch.cat((self.mass.new_zeros(1), cumulative_sum(self.mass, 0)))
        start, end = self.first[rows], self.first[rows + 1]
        uniform = torch.rand(rows.shape, generator=generator, dtype=self.dtype, device=self.device)
        level = below[start] + uniform * (below[end] - below[start])
        entry = torch.searchsorted(below, level, right=True) - 1
        empty = below[end] <= below[start]
        found = self.column[torch.minimum(entry, end - 1).clamp(min=0)]
        return torch.where(empty, (uniform * self.shape[1]).long(), found)

    def _sort_by_mass(self) -> tuple[Tensor, Tensor]:
        """Order of the entries (m,), row by row and the largest of each first, and their places within the row."""
        row, column = self.row.cpu().numpy(), self.column.cpu().numpy()
        order = torch.from_numpy(np.lexsort((column, -self.mass.cpu().numpy(), row))).to(self.device)
        return order, torch.arange(len(order), device=self.device) - self.first[self.row]

    def top_k(self, k: int, points: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """See `BlockCoupling.top_k`; O(m log m + N k); columns that a row has no mass on follow those that it has."""
        order, place = self._sort_by_mass()
        leads = place < k
        where, entry = (self.row[leads], place[leads]), order[leads]
        n, count = self.shape[0], self.first.diff()
        values, index = self.mass.new_zeros(n, k), self.column.new_zeros(n, k)
        values[where], index[where] = self.mass[entry], self.column[entry]
        short = torch.nonzero(count < k)[:, 0]
        taken = torch.zeros(n, k, dtype=torch.bool, device=self.device)
        low = self.column < k
        taken[self.row[low], self.column[low]] = True
        free = taken[short].long().argsort(dim=1, stable=True)  # of the first k columns; of a row of c entries, k - c
        rank = torch.arange(k, device=self.device)
        later = rank >= count[short][:, None]
        filled = free.gather(1, (rank - count[short][:, None]).clamp(min=0))
        index[short] = torch.where(later, filled, index[short])
        return (values, index) if points is None else (values[points], index[points])

    def to_sparse(self, mass: float) -> Any:
        order, _ = self._sort_by_mass()
        sums = self.marginal(1)[self.row]
        before = cumulative_sum(self.mass[order], 0) - self.mass[order]
        start = before[self.first[self.row]]
        keep = order[before - start < mass * sums].cpu().numpy()
        entries = self.row.cpu().numpy()[keep], self.column.cpu().numpy()[keep]
        found = csr_array((self.mass.cpu().numpy()[keep], entries), shape=self.shape)
        return csr_matrix(found)

    def transpose(self) -> SparseCoupling:
        """The transposed plan."""
        return SparseCoupling.of(self.matrix.T.tocsr(), self.device)

    def times(self, mass: float) -> SparseCoupling:
        """The coupling with ``mass`` times the mass."""
        return SparseCoupling(self.mass * mass, self.column, self.first, self.width)

    def zero_pad(self, rows: Tensor, columns: Tensor, shape: tuple[int, int]) -> SparseCoupling:
        count = scatter(self.first.diff(), rows, shape[0])
        first = torch.cat((count.new_zeros(1), count.cumsum(0)))
        return SparseCoupling(self.mass, columns.to(self.device)[self.column], first, torch.tensor(shape[1]))

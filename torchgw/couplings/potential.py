"""Transport plans given by potentials, T_ij = 2^(A_i . B_j + f_i + g_j) + x_i y_j, never stored.

The second term is the rank-one correction that the rounding onto exact marginals leaves. Plans without one are read in
blocks of rows of the product, in plain torch on any device:

    plan_product(A, B, f, g, V)     T V, for V (K, d); exchange A with B and f with g for T^T U
    largest(A, B, g, count)         values of S_ij + g_j and columns of the ``count`` largest of each row, largest first
    sampled(A, B, g, generator)     a column for each row, drawn in proportion to 2^(S_ij + g_j)

The row potential f does not change which entries of a row are the largest. Row and column sums come from a softmin, see
`torchgw.kernels.kernel`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling, largest_entries
from torchgw.kernels.blocks import block_rows
from torchgw.kernels.logsumexp import LOWEST_EXPONENT
from torchgw.kernels.sampling import draw
from torchgw.kernels.sums import scatter
from torchgw.persist.codec import storable

PLAN_BLOCK = 2
LOWEST_WIDE_EXPONENT = -900.0  # of float64: plans have any mass


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
        found = plan_product(A, B, f, g, V.reshape(len(V), -1).contiguous())
        if x is not None and y is not None:
            found = found + x[:, None] * (y @ V.reshape(len(V), -1))
        return found.reshape(len(A), *V.shape[1:])

    def sample_columns(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        if self.x is not None:
            return super().sample_columns(rows, generator)
        return draw_columns(self.A[rows], self.B, self.g, generator)

    def top_k(self, k: int, points: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """See `BlockCoupling.top_k`; without a correction by the scores, which also rank entries that are too small."""
        if self.x is not None:
            return super().top_k(k, points)
        A, f = (self.A, self.f) if points is None else (self.A[points], self.f[points])
        values, columns = top_k_scores(A, self.B, self.g, k)
        absent = f.isneginf()[:, None]
        return values.add_(f[:, None]).exp2_(), torch.where(absent, torch.arange(k, device=f.device), columns)

    def tensors(self) -> dict[str, Tensor]:
        found = {"A": self.A, "B": self.B, "f": self.f, "g": self.g}
        if self.x is not None and self.y is not None:
            found |= {"x": self.x, "y": self.y}
        return found

    def transpose(self) -> PotentialCoupling:
        return PotentialCoupling(self.B, self.A, self.g, self.f, self.y, self.x)

    def times(self, mass: float) -> PotentialCoupling:
        """The coupling with ``mass`` times the mass."""
        x = None if self.x is None else self.x * mass
        return PotentialCoupling(self.A, self.B, self.f + math.log2(mass), self.g, x, self.y)

    def zero_pad(self, rows: Tensor, columns: Tensor, shape: tuple[int, int]) -> PotentialCoupling:
        places = dict(zip("AfxBgy", (rows, rows, rows, columns, columns, columns), strict=True))
        sizes = {name: shape[0] if name in "Afx" else shape[1] for name in places}
        return PotentialCoupling(
            **{
                name: scatter(tensor, places[name], sizes[name], -math.inf if name in "fg" else 0.0)
                for name, tensor in self.tensors().items()
            }
        )

    def to(self, dtype: torch.dtype) -> PotentialCoupling:
        """The same coupling in another dtype."""
        return PotentialCoupling(**{name: tensor.to(dtype) for name, tensor in self.tensors().items()})

    def rescale(self, row: Tensor, column: Tensor) -> PotentialCoupling:
        """diag(row) T diag(column) of a coupling without a correction."""
        return PotentialCoupling(self.A, self.B, self.f + row.log2(), self.g + column.log2())


def score_blocks(A: Tensor, B: Tensor, g: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of rows of A B^T + g. The caller may write to them, and must be done with one before the next."""
    n, k = len(A), len(B)
    step = PLAN_BLOCK * block_rows(n, k, A.device)
    buffer = g.new_empty(min(step, n), k)
    for start in range(0, n, step):
        where = slice(start, min(start + step, n))
        yield where, torch.addmm(g, A[where], B.T, out=buffer[: where.stop - start])


def plan_product(A: Tensor, B: Tensor, f: Tensor, g: Tensor, V: Tensor) -> Tensor:
    """T V, (N, d)."""
    least = LOWEST_EXPONENT if g.dtype == torch.float32 else LOWEST_WIDE_EXPONENT
    out, V = V.new_empty(len(A), V.shape[1]), V.masked_fill(g.isneginf()[:, None], 0.0)
    for where, block in score_blocks(A, B, g):
        torch.mm(block.add_(f[where, None]).clamp_min_(least).exp2_(), V, out=out[where])
    return out.masked_fill_(f.isneginf()[:, None], 0.0)


def top_k_scores(A: Tensor, B: Tensor, g: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Values and columns of the ``count`` largest entries of each row of A B^T + g, both (N, count)."""
    values, columns = g.new_empty(len(A), count), torch.empty(len(A), count, dtype=torch.int64, device=A.device)
    for where, block in score_blocks(A, B, g):
        values[where], columns[where] = largest_entries(block, count, exact=False)
    return values, columns


def draw_columns(A: Tensor, B: Tensor, g: Tensor, generator: torch.Generator) -> Tensor:
    """One column for each row, (N,)."""
    drawn = torch.empty(len(A), dtype=torch.int64, device=A.device)
    for where, block in score_blocks(A, B, g):
        weights = block.sub_(block.amax(1, keepdim=True)).clamp_min_(LOWEST_EXPONENT).exp2_()
        drawn[where] = draw(weights.mul_(~g.isneginf()), 1, generator)[:, 0]
    return drawn

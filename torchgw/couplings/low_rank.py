"""Transport plans of low rank, T = Q diag(1/g) R^T: mass g_c goes through component c, from Q[:, c] to R[:, c].

Source: M. Scetbon, M. Cuturi, G. Peyre, "Low-rank Sinkhorn factorization", 2021.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling
from torchgw.kernels.sampling import draw
from torchgw.kernels.sums import cumulative_sum, scatter
from torchgw.persist.codec import storable

LARGEST_UNIFORM = 1 - 2**-40


@storable
class LowRankCoupling(BlockCoupling):
    """T = Q diag(1/g) R^T with Q (N, r), R (K, r) >= 0 and g (r,) > 0, float64; O((N + K) r) memory.

    Products with V (., d) take O((N + K) r d). The largest entries are found in blocks of rows, O(N K r).
    """

    def __init__(self, Q: Tensor, R: Tensor, g: Tensor) -> None:
        self.Q, self.R, self.g = Q, R, g
        self.shape = (Q.shape[0], R.shape[0])

    @property
    def rank(self) -> int:
        """r, the number of components."""
        return len(self.g)

    def rows(self, index: Tensor | slice) -> Tensor:
        return (self.Q[index] / self.g) @ self.R.T

    def tensors(self) -> dict[str, Tensor]:
        return {"Q": self.Q, "R": self.R, "g": self.g}

    def apply(self, V: Tensor, axis: int) -> Tensor:
        self._check_rows(V, axis)
        near, far = (self.Q, self.R) if axis == 1 else (self.R, self.Q)
        through = (far.T @ V.reshape(len(V), -1)) / self.g[:, None]
        return (near @ through).reshape(len(near), *V.shape[1:])

    def sample_columns(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        """One column for each of ``rows`` (M,): a component from its row of Q, a column from that component of R.

        O((M + K) r) memory. A row without mass gets a uniform component.
        """
        size = self.R.shape[0]
        component = draw(self.Q[rows] * (self.R.sum(0) / self.g), 1, generator)[:, 0]
        # The components' distribution functions, one behind the other on the line: component c fills (c, c + 1].
        below = cumulative_sum(self.R, 0)
        levels = (below / below[-1]).T + torch.arange(self.rank, device=self.device)[:, None]
        uniform = torch.rand(rows.shape, generator=generator, dtype=self.dtype, device=self.device)
        found = torch.searchsorted(levels.flatten(), uniform.clamp_max(LARGEST_UNIFORM) + component, right=True)
        return (found - component * size).clamp(0, size - 1)

    def transpose(self) -> LowRankCoupling:
        return LowRankCoupling(self.R, self.Q, self.g)

    def times(self, mass: float) -> LowRankCoupling:
        """The coupling with ``mass`` times the mass; its factors keep Q^T 1 = R^T 1 = g where they had it."""
        return LowRankCoupling(self.Q * mass, self.R * mass, self.g * mass)

    def zero_pad(self, rows: Tensor, columns: Tensor, shape: tuple[int, int]) -> LowRankCoupling:
        return LowRankCoupling(scatter(self.Q, rows, shape[0]), scatter(self.R, columns, shape[1]), self.g)

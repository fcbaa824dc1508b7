"""Rounding a plan onto exact marginals.

Rows, then columns, are scaled down where they carry too much; what is missing is added as a rank-one plan, so the
result is feasible and its L1 distance from the input is at most twice the marginal error.

Source: J. Altschuler, J. Weed, P. Rigollet, "Near-linear time approximation algorithms for optimal transport via
Sinkhorn iteration", 2017, algorithm 2.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchgw.couplings import PotentialCoupling
from torchgw.kernels.softmin_tiles import Read, TileKernel
from torchgw.kernels.tiles import Tiles
from torchgw.tiled import TiledCoupling
from torchgw.types import Coupling


def round_to_marginals(
    coupling: PotentialCoupling, p: Tensor, q: Tensor, stored: Coupling | None = None
) -> tuple[PotentialCoupling, float]:
    """The rounded coupling, still factored, and the larger L1 marginal error that it had before.

    ``p`` (N,) and ``q`` (K,) must have equal sums. ``stored`` is the same plan where it is at hand as a matrix, for
    faster products. Four products, O((N + K) r) memory.
    """
    plan: Coupling = coupling if stored is None else stored
    row_sums = plan.marginal(1)
    residual = max(float((row_sums - p).abs().sum()), float((plan.marginal(0) - q).abs().sum()))
    row = _shrink(p, row_sums)
    column_sums = plan.apply(row[:, None], 0)[:, 0]
    column = _shrink(q, column_sums)
    missing_p = (p - row * plan.apply(column[:, None], 1)[:, 0]).clamp_min(0.0)
    missing_q = (q - column * column_sums).clamp_min(0.0)
    # The two sums agree up to rounding; dividing by either leaves the other side off by that much only.
    total = missing_p.sum().clamp_min(torch.finfo(p.dtype).tiny)
    scaled = coupling.rescaled(row, column)
    return PotentialCoupling(scaled.A, scaled.B, scaled.f, scaled.g, missing_p, missing_q / total), residual


class RoundedTiles(NamedTuple):
    """A rounded plan on kept tiles, in the order of its points: potentials, correction, and what was read on the way.

    ``read`` is that of the plan without the correction, of ones and then of what was asked for; ``residual`` the larger
    L1 marginal error before rounding.
    """

    A: Tensor
    B: Tensor
    f: Tensor
    g: Tensor
    x: Tensor
    y: Tensor
    tiles: Tiles
    read: Read
    residual: float

    def coupling(
        self, row_order: Tensor | None = None, column_order: Tensor | None = None, matching: Tensor | None = None
    ) -> TiledCoupling:
        """As a coupling; the orders give the user's index of each position, the same by default."""
        n, k, device = len(self.A), len(self.B), self.A.device
        return TiledCoupling(
            self.A,
            self.B,
            self.f,
            self.g,
            self.x,
            self.y,
            torch.arange(n, device=device) if row_order is None else row_order,
            torch.arange(k, device=device) if column_order is None else column_order,
            torch.tensor(self.tiles.size),
            self.tiles.first,
            self.tiles.column,
            torch.tensor(self.tiles.separable),
            matching,
        )


def round_tiles(
    kernel: TileKernel,
    A: Tensor,
    B: Tensor,
    tiles: Tiles,
    f: Tensor,
    g: Tensor,
    p: Tensor,
    q: Tensor,
    V: Tensor | None = None,
    W: Tensor | None = None,
    find: bool = False,
) -> RoundedTiles:
    """`round_to_marginals` of the plan 2^(A B^T + f + g) on kept tiles, in two reads.

    V (K, d) and W (N, e) are read in the second, and the largest entries if ``find``. Rows and columns are scaled down
    by the sums of the same plan, so that one read gives both: what is added may be a little more than with columns
    scaled after the rows, at most the sum of both residuals.
    """
    one_p, one_q = torch.ones_like(p)[:, None], torch.ones_like(q)[:, None]
    before = kernel.read(A, B, tiles, f, g, one_q, one_p, False)
    rows, columns = before.moved[:, 0], before.back[:, 0]
    residual = max(float((rows - p).abs().sum()), float((columns - q).abs().sum()))
    f, g = f + _shrink(p, rows).log2(), g + _shrink(q, columns).log2()
    V = one_q if V is None else torch.cat((one_q, V.to(q.dtype)), 1)
    W = one_p if W is None else torch.cat((one_p, W.to(p.dtype)), 1)
    after = kernel.read(A, B, tiles, f, g, V, W, find)
    # Where rounding has left a point with more than its mass, all give up as much: then what is missing is exact.
    most = max(1.0, _excess(after.moved[:, 0], p), _excess(after.back[:, 0], q))
    f, after = f - math.log2(most), Read(after.moved / most, after.back / most, after.largest / most, after.at)
    missing_p, missing_q = (p - after.moved[:, 0]).clamp_min(0.0), (q - after.back[:, 0]).clamp_min(0.0)
    total = missing_p.sum().clamp_min(torch.finfo(p.dtype).tiny)
    return RoundedTiles(A, B, f, g, missing_p, missing_q / total, tiles, after, residual)


def _excess(actual: Tensor, wanted: Tensor) -> float:
    """The largest ratio of a point's mass to the mass it should have."""
    tiny = torch.finfo(wanted.dtype).tiny
    return float(torch.where(wanted > 0, actual / wanted.clamp_min(tiny), 0.0).max())


def _shrink(target: Tensor, actual: Tensor) -> Tensor:
    """Factors in [0, 1] that bring ``actual`` down to ``target`` where it is above."""
    return torch.where(actual > target, target / actual.clamp_min(torch.finfo(actual.dtype).tiny), 1.0)

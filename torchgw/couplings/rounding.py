"""Rounding a plan onto exact marginals.

Rows, then columns, are scaled down where they carry too much; what is missing is added as a rank-one plan, so the
result is feasible and its L1 distance from the input is at most twice the marginal error.

Source: J. Altschuler, J. Weed, P. Rigollet, "Near-linear time approximation algorithms for optimal transport via
Sinkhorn iteration", 2017, algorithm 2.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling
from torchgw.couplings.factored import FactoredPlan
from torchgw.couplings.potential import PotentialCoupling
from torchgw.couplings.tiled import TiledCoupling
from torchgw.kernels.shared import TileReader
from torchgw.kernels.tiles import TiledPlan, Tiles
from torchgw.marginals import Balanced, Marginals
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.runtime.transfer import to_device, to_host
from torchgw.types import Coupling


class Rounding(NamedTuple):
    """The plan diag(row) T diag(column) + x y^T.

    Attributes
    ----------
    row, column : scalings (N,), (K,).
    x, y : factors (N,), (K,) of the rank-one correction.
    marginal_errors : L1 errors (m,) of the marginals that T should have had.
    """

    row: Tensor
    column: Tensor
    x: Tensor
    y: Tensor
    marginal_errors: Tensor

    def apply_to(self, coupling: PotentialCoupling) -> PotentialCoupling:
        """The rounded plan, still factored; O((N + K) r)."""
        scaled = coupling.rescale(self.row, self.column)
        return PotentialCoupling(scaled.A, scaled.B, scaled.f, scaled.g, self.x, self.y)


def compute_rounding(plan: Coupling, p: Tensor, q: Tensor, marginals: Marginals) -> Rounding:
    """The rounding of a plan onto its hard marginals p (N,), q (K,); four products at the most.

    Where one marginal is hard, its side is scaled; where both are only bounded, they are shrunk to their bounds, and
    what a total misses is spread over what room is left. Marginals that KL relaxes stay as they are.
    """
    row_sums, column_sums = plan.marginal(1).to(p), plan.marginal(0).to(q)
    missed = residuals(row_sums, column_sums, p, q, marginals)
    if min(marginals.weights) < math.inf:
        row, column = (
            _ratio(mass, sums) if weight == math.inf else torch.ones_like(mass)
            for mass, sums, weight in zip((p, q), (row_sums, column_sums), marginals.weights, strict=True)
        )
        return Rounding(row, column, torch.zeros_like(p), torch.zeros_like(q), missed)
    row = _shrink(p, row_sums)
    columns = plan.apply(row[:, None], 0)[:, 0]
    column = _shrink(q, columns)
    rows = row * plan.apply(column[:, None], 1)[:, 0]
    if marginals.total is not None:
        most = (marginals.total / rows.sum()).clamp_max(1.0)
        row, rows, columns = row * most, rows * most, columns * most
    x, y = _rank_one_correction(
        (p - rows).clamp_min(0.0), (q - column * columns).clamp_min(0.0), rows.sum(), marginals.total
    )
    return Rounding(row, column, x, y, missed)


def _rank_one_correction(
    missing_p: Tensor, missing_q: Tensor, mass: Tensor | None = None, total: float | None = None
) -> tuple[Tensor, Tensor]:
    """The plan x y^T on the masses (..., N), (..., K) that a plan of ``mass`` () leaves free, up to the ``total``."""
    tiny = torch.finfo(missing_p.dtype).tiny
    if mass is None or total is None:
        # The two sums agree up to rounding; dividing by either leaves the other side off by that much only.
        return missing_p, missing_q / missing_p.sum(-1, keepdim=True).clamp_min(tiny)
    wanted = (total - mass).clamp_min(0.0)
    return missing_p * (wanted / missing_p.sum().clamp_min(tiny)), missing_q / missing_q.sum().clamp_min(tiny)


@as_cuda_graph()
def residuals(rows: Tensor, columns: Tensor, p: Tensor, q: Tensor, marginals: Marginals) -> Tensor:
    """All L1 residuals (m,) of hard marginals, or of bounds and a total."""
    if marginals.total is not None:
        missed = [(sums - mass).clamp_min(0.0).sum() for sums, mass in ((rows, p), (columns, q))]
        missed.append((rows.sum() - marginals.total).abs())
    else:
        ends = zip((rows, columns), (p, q), marginals.weights, strict=True)
        missed = [(sums - mass).abs().sum() for sums, mass, weight in ends if weight == math.inf]
    return torch.stack(missed) if missed else rows.new_empty(0)


@as_cuda_graph("plan")
def round_plan(plan: Tensor, p: Tensor, q: Tensor, marginals: Marginals) -> Rounding:
    """Rounds a stored plan (N, K) in place, and says how."""
    found = compute_rounding(DenseCoupling(plan), p, q, marginals)
    plan.mul_(found.row[:, None]).mul_(found.column).addr_(found.x, found.y)
    return found


def make_feasible(plan: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Stored plans (..., N, K) rounded, in place, onto marginals p (..., N), q (..., K) of equal sums."""
    plan.mul_(_shrink(p, plan.sum(-1)).unsqueeze(-1))
    columns = plan.sum(-2)
    shrink = _shrink(q, columns)
    plan.mul_(shrink.unsqueeze(-2))
    x, y = _rank_one_correction((p - plan.sum(-1)).clamp_min(0.0), (q - columns * shrink).clamp_min(0.0))
    return plan.add_(x[..., :, None] * y[..., None, :]) if plan.ndim > 2 else plan.addr_(x, y)


class TileRounding(NamedTuple):
    """A rounded plan on kept tiles, in the order of its points.

    Attributes
    ----------
    f, g : base-2 potentials (N,), (K,).
    x, y : factors (N,), (K,) of the rank-one correction.
    tiles : those that are kept.
    rows, columns : sums (N,), (K,) of the plan.
    core : left^T T right (l, r) of the plan without the correction, for what was asked for.
    residual : the larger L1 marginal error before rounding, or the share of its mass that the plan gave up where a
        point had too much.
    """

    f: Tensor
    g: Tensor
    x: Tensor
    y: Tensor
    tiles: Tiles
    rows: Tensor
    columns: Tensor
    core: Tensor
    residual: float

    def coupling(
        self, A: Tensor, B: Tensor, row_order: Tensor | None = None, column_order: Tensor | None = None
    ) -> TiledCoupling:
        """As a coupling with the factors (N, r), (K, r) of the score; the orders give the user's index of each
        position, the same by default."""
        n, k, device = len(A), len(B), A.device
        rows = torch.arange(n, device=device) if row_order is None else row_order
        columns = torch.arange(k, device=device) if column_order is None else column_order
        tiles = replace(self.tiles, n=n, k=k)  # without what these have computed
        return TiledCoupling(FactoredPlan(A, B, self.f, self.g, self.x, self.y, rows, columns, tiles=tiles))


@as_cuda_graph()
def sweep_tiles(
    kernel: TileReader, A: Tensor, B: Tensor, tiles: Tiles, f: Tensor, g: Tensor, p: Tensor, q: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Base-2 potentials f (N,), g (K,) after a half-step of each side of the plan on kept tiles, in two reads; and the
    most () that any of them and any of the others have risen together."""
    one_p, one_q, no_p, no_q = (
        p.new_ones(len(p), 1),
        q.new_ones(len(q), 1),
        p.new_empty(len(p), 0),
        q.new_empty(len(q), 0),
    )
    new_f = f + _ratio(p, kernel.read(A, B, tiles, f, g, one_q, no_p).TV[:, 0]).log2()
    new_g = g + _ratio(q, kernel.read(A, B, tiles, new_f, g, no_q, one_p).TtW[:, 0]).log2()
    one, other = ((new - old).nan_to_num(nan=0.0).max() for new, old in ((new_f, f), (new_g, g)))
    return new_f, new_g, one + other


def round_tiles(
    kernel: TileReader,
    plan: TiledPlan,
    p: Tensor,
    q: Tensor,
    marginals: Marginals = Balanced(),  # noqa: B008
    left: Tensor | None = None,
    right: Tensor | None = None,
) -> TileRounding:
    """`compute_rounding` of a plan on kept tiles, in two reads.

    Products with ``left`` (N, l) and ``right`` (K, r), or the ranks' shares of them, are read in the second. Rows and
    columns are scaled down by the sums of the same plan, so that one read gives both: what is added may be a little
    more than with columns scaled after the rows, at most the sum of both residuals.
    """
    bounded = min(marginals.weights) == math.inf
    scaled, told = _scale_to_marginals(kernel, plan, p, q, marginals, bounded, left, right)
    missed, beyond = (part.tolist() for part in to_host(*told))
    residual = max(missed, default=0.0)
    if bounded:
        # Where rounding has left a point with more than its mass, all give up as much: then what is missing is exact.
        most = max(1.0, *beyond)
        residual = max(residual, 1 - 1 / most)
        given_up = to_device(torch.tensor([most, math.log2(most)], dtype=torch.float64), p.device)
        f, g, rows, columns, core, x, y = _add_correction(scaled, given_up, p, q, marginals)
    else:
        (f, g, rows, columns, core), x, y = scaled, torch.zeros_like(p), torch.zeros_like(q)
    return TileRounding(f, g, x, y, plan.tiles, rows, columns, core, residual)


class _ScaledTiles(NamedTuple):
    """A plan whose rows and columns are scaled, without a correction.

    f, g : base-2 potentials (N,), (K,).
    rows, columns : sums (N,), (K,) of the plan.
    core : left^T T right (l, r).
    """

    f: Tensor
    g: Tensor
    rows: Tensor
    columns: Tensor
    core: Tensor


@as_cuda_graph()
def _scale_to_marginals(
    kernel: TileReader,
    plan: TiledPlan,
    p: Tensor,
    q: Tensor,
    marginals: Marginals,
    bounded: bool,
    left: Tensor | None,
    right: Tensor | None,
) -> tuple[_ScaledTiles, tuple[Tensor, Tensor]]:
    """The scaled plan; the L1 errors (m,) before, and how many times the mass that they should have points, and the
    plan where it has a total, have then (l,)."""
    (A, B, f, g, tiles), one_p, one_q = plan, torch.ones_like(p)[:, None], torch.ones_like(q)[:, None]
    before = kernel.read(A, B, tiles, f, g, one_q, one_p)
    rows, columns = before.TV[:, 0], before.TtW[:, 0]
    missed = residuals(rows, columns, p, q, marginals)
    for_rows, for_columns = (
        _shrink if bounded else _ratio if weight == math.inf else _keep_sums for weight in marginals.weights
    )
    f, g = f + for_rows(p, rows).log2(), g + for_columns(q, columns).log2()
    left, right = (one[:, :0] if side is None else side for one, side in ((one_p, left), (one_q, right)))
    after, core = kernel.contract(A, B, tiles, f, g, left, right)
    rows, columns = after.TV[:, 0], after.TtW[:, 0]
    beyond = [_excess(rows, p), _excess(columns, q)] if bounded else []
    beyond += [] if marginals.total is None else [rows.sum() / marginals.total]
    exceeding = torch.stack(beyond) if beyond else missed[:0]
    return _ScaledTiles(f, g, rows, columns, core), (missed, exceeding)


@as_cuda_graph()
def _add_correction(
    scaled: _ScaledTiles, given_up: Tensor, p: Tensor, q: Tensor, marginals: Marginals
) -> tuple[Tensor, ...]:
    """The members of the scaled plan, divided by the first of two numbers, of which the second is the base-2 logarithm;
    with the correction, and its factors x (N,), y (K,)."""
    most, bits = given_up
    rows, columns, core = (part / most for part in scaled[2:])
    x, y = _rank_one_correction((p - rows).clamp_min(0.0), (q - columns).clamp_min(0.0), rows.sum(), marginals.total)
    return scaled.f - bits, scaled.g, rows + x * y.sum(), columns + y * x.sum(), core, x, y


def _excess(actual: Tensor, wanted: Tensor) -> Tensor:
    """The largest ratio () of a point's mass to the mass it should have, of points with more than rounding too much.

    The whole plan is divided by it: a point of next to no mass, whose entries kernels clamp, must not take part.
    """
    beyond = actual - wanted > torch.finfo(wanted.dtype).eps * wanted.sum()
    return torch.where(beyond & (wanted > 0), actual / wanted.clamp_min(torch.finfo(wanted.dtype).tiny), 0.0).max()


def _keep_sums(target: Tensor, actual: Tensor) -> Tensor:
    return torch.ones_like(actual)


def _ratio(target: Tensor, actual: Tensor) -> Tensor:
    """Factors that bring ``actual`` to ``target``; 1 where it is zero."""
    return torch.where(actual > 0, target / actual.clamp_min(torch.finfo(actual.dtype).tiny), 1.0)


def _shrink(target: Tensor, actual: Tensor) -> Tensor:
    """Factors in [0, 1] that bring ``actual`` down to ``target`` where it is above."""
    return (target / actual.clamp_min(torch.finfo(actual.dtype).tiny)).masked_fill_(actual <= target, 1.0)

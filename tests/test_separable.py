"""Kept tiles as short sums of products: every way to read them agrees with their own formula."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tests.simulated_device import simulated_gpu
from tests.simulated_kernels import triton_stands_in
from torchgw.couplings.rounding import round_tiles
from torchgw.kernels import softmin_tiles
from torchgw.kernels.dispatch import Workload
from torchgw.kernels.softmin_tiles import reference, separable
from torchgw.kernels.softmin_tiles.tile_kernel import TileKernel
from torchgw.kernels.tiles import TiledPlan, Tiles, all_tiles, centres, choose_tiles
from torchgw.spaces.coarsening import bisect
from torchgw.strategies import streaming

KERNEL = TileKernel(reference.softmin, reference.read)


def problem(n: int, k: int, size: int, scale: float = 6.0) -> tuple[torch.Tensor, ...]:
    """Factors of points along a curve, in order, with potentials that make the rows of the plan sum to about 1 / n."""
    s, t = torch.linspace(0, 1, n, dtype=torch.float64), torch.linspace(0, 1, k, dtype=torch.float64)
    A, B = (scale * torch.stack((x, x.square(), (3 * x).sin()), 1) for x in (s, t))
    score = A @ B.T
    g = -B.square().sum(1) / 2
    f = -math.log2(n) - (score + g).exp2().sum(1).log2()
    return A, B, f, g


def kept(n: int, k: int, size: int) -> Tiles:
    """About two thirds of the tiles, and each one's diagonal."""
    rows, columns = -(-n // size), -(-k // size)
    mask = torch.rand(rows, columns, generator=torch.Generator().manual_seed(0)) < 0.66
    mask[torch.arange(rows), torch.arange(rows).clamp_max(columns - 1)] = True
    count = mask.sum(1)
    first = torch.cat((count.new_zeros(1), count.cumsum(0)))
    return Tiles(size, n, k, first, mask.nonzero()[:, 1], separable=True)


def stored(tiles: Tiles, *given: torch.Tensor) -> torch.Tensor:
    """The plan by its formula, entry by entry."""
    A, B, f, g = given
    plan = torch.zeros(tiles.n, tiles.k, dtype=torch.float64)
    for tile, spans in enumerate(tiles.spans):
        rows = slice(tile * tiles.size, min((tile + 1) * tiles.size, tiles.n))
        a = A[rows].mean(0)
        for span in spans:
            for start in range(span.start, span.stop, tiles.size):
                columns = slice(start, min(start + tiles.size, tiles.k))
                b = B[columns].mean(0)
                exponent = ((A[rows] - a) @ b + f[rows])[:, None] + B[columns] @ a + g[columns]
                cross = (A[rows] - a) @ (B[columns] - b).T
                plan[rows, columns] = exponent.exp2() * (1 + math.log(2) * cross)
    return plan


@pytest.mark.parametrize(("n", "k", "size"), [(64, 96, 16), (70, 45, 16), (33, 50, 64)])
def test_products_both_ways_are_those_of_the_formula(n: int, k: int, size: int) -> None:
    given, tiles = problem(n, k, size), kept(n, k, size)
    plan = stored(tiles, *given)
    generator = torch.Generator().manual_seed(1)
    V, W = (torch.randn(m, d, generator=generator, dtype=torch.float64) for m, d in ((k, 3), (n, 2)))
    found = separable.read(given[0], given[1], tiles, given[2], given[3], V, W)
    torch.testing.assert_close(found.TV, plan @ V)
    torch.testing.assert_close(found.TtW, plan.T @ W)
    A, B, f, g = given
    turned = separable.read(B, A, tiles.transpose, g, f, W, V)
    torch.testing.assert_close(turned.TV, plan.T @ W)
    torch.testing.assert_close(turned.TtW, plan @ V)
    index = torch.tensor([n - 1, 0, n // 2])
    mask = (plan != 0)[index]
    every, centre = torch.arange(k), (centres(A, size), centres(B, size))
    torch.testing.assert_close(separable.entries(A, B, centre, size, f, g, index, every) * mask, plan[index])


def test_points_without_mass_give_nothing() -> None:
    (A, B, f, g), tiles = problem(64, 64, 16), kept(64, 64, 16)
    f[5], g[7] = -torch.inf, -torch.inf
    ones = torch.ones(64, 1, dtype=torch.float64)
    found = separable.read(A, B, tiles, f, g, ones, ones)
    assert float(found.TV[5]) == 0.0
    assert float(found.TtW[7]) == 0.0
    assert bool(found.TV.isfinite().all() and found.TtW.isfinite().all())
    f[5] = -1e4
    assert float(separable.read(A, B, tiles, f, g, ones, ones).TV[5]) == pytest.approx(0.0, abs=1e-30)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_moves_is_within_the_bound_and_the_rounded_plan_is_exact(dtype: torch.dtype) -> None:
    A, B, f, g = problem(512, 640, 32, scale=4.0)
    p = torch.full((512,), 1 / 512, dtype=torch.float64)
    plan = ((A @ B.T) + f[:, None] + g).exp2()
    q = plan.sum(0)
    rows, columns = bisect(A, 16, 32).order, bisect(B, 20, 32).order
    A, B, f, g, q = A[rows].to(dtype), B[columns].to(dtype), f[rows], g[columns], q[columns]
    tiles, omitted, moved, _, cross = choose_tiles(A, B, f, g, (p, q), 32, 1e-3)
    tiles = replace(tiles, separable=True)
    rounded = round_tiles(KERNEL, TiledPlan(A, B, f, g, tiles), p, q)
    coupling = rounded.coupling(A, B)
    dense = coupling.to_dense()
    whole = ((A.double() @ B.double().T) + rounded.f[:, None] + rounded.g).exp2()
    correction = torch.outer(rounded.x, rounded.y)
    assert float((dense - correction - whole).abs().sum()) <= omitted + moved
    assert 0 < moved < 0.1
    assert cross < 1.44
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    assert float((dense.sum(1) - p).abs().sum()) < tolerance
    assert float((dense.sum(0) - q).abs().sum()) < tolerance
    torch.testing.assert_close(coupling.marginal(0), dense.sum(0), rtol=1e-5, atol=0)
    assert float(dense.min()) >= 0


def test_rounding_in_float32_leaves_no_point_with_more_than_its_mass() -> None:
    """Rough scores are off by some 1e-4 of an entry; what is missing must be missing exactly, not clipped at zero."""
    generator = torch.Generator().manual_seed(0)
    A, B = (torch.randn(n, 4, generator=generator) * 12 for n in (150, 170))
    g = -B.double().square().sum(1) / 2
    f = -math.log2(150) - ((A.double() @ B.double().T) + g).exp2().sum(1).log2()
    plan = ((A.double() @ B.double().T) + f[:, None] + g).exp2()
    p, q = plan.sum(1), plan.sum(0)
    rounded = round_tiles(KERNEL, TiledPlan(A, B, f, g, all_tiles(150, 170, 64, torch.device("cpu"))), p, q)
    rows, columns = rounded.rows, rounded.columns
    # Both are float32 sums of the same entries, of all mass 1, and each is off by about half a unit in its last place,
    # to either side. By what their totals differ the rows must be off: what is added has the columns' total.
    apart = abs(float(rows.sum() - columns.sum()))
    assert apart < torch.finfo(torch.float32).eps / 2
    # Beyond that a point's mass is rounded by its product, sum and difference in float64.
    exact = 4 * torch.finfo(torch.float64).eps
    assert float((rows - p).abs().sum()) < apart + exact
    assert float((columns - q).abs().sum()) < exact
    # Columns of next to no mass took nothing from the others.
    assert float(rows.sum() - rounded.x.sum() * rounded.y.sum()) > 0.999
    assert rounded.residual < 1e-3


@pytest.mark.parametrize("outlier", [False, True])
def test_a_point_far_from_its_tile_keeps_tiles_whole(outlier: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Expanded there, 1 + x ln 2 would be below zero, however little mass the point has."""
    monkeypatch.setattr(streaming, "EVERY_PAIR", 0)
    monkeypatch.setattr(streaming, "SIZES", (32,))
    A, B, _, g = problem(512, 640, 32, scale=4.0)
    p = torch.full((512,), 1 / 512, dtype=torch.float64)
    if outlier:
        A[100] += torch.tensor([1.5, 0.0, 0.0])
        B[130] -= torch.tensor([1.5, 0.0, 0.0])
        p[100] = 1e-12
        g[130] = -60.0
    f = p.log2() - ((A @ B.T) + g).exp2().sum(1).log2()
    q = ((A @ B.T) + f[:, None] + g).exp2().sum(0)
    tiles, omitted = streaming.select_tiles(A, B, f, g, p, q, 0.2)
    assert tiles.separable is not outlier
    assert omitted <= 0.2


def test_a_gpu_takes_short_sums_where_pairs_are_very_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "EVERY_PAIR", 0)
    monkeypatch.setattr(streaming, "SIZES", (32,))
    A, B, f, g = problem(512, 640, 32, scale=4.0)
    p, q = torch.full((512,), 1 / 512, dtype=torch.float64), ((A @ B.T) + f[:, None] + g).exp2().sum(0)
    here, _ = streaming.select_tiles(A, B, f, g, p, q, 0.2)
    assert here.separable
    V, W = torch.stack((q, q.sqrt()), 1), p[:, None]
    known = separable.read(A, B, here, f, g, V, W)
    with simulated_gpu() as simulation, triton_stands_in(simulation):
        given = [part.cuda() for part in (A, B, f, g, p, q)]
        assert not streaming.select_tiles(*given, 0.2)[0].separable
        monkeypatch.setattr(streaming, "SEPARABLE_PAIRS", {"cuda": 512 * 640})
        tiles, _ = streaming.select_tiles(*given, 0.2)
        assert tiles.separable
        kernel = softmin_tiles.choose("triton", Workload(given[0].device, torch.float64, (512, 640), 3)).function
        found = kernel.read(*given[:2], tiles, *given[2:4], V.cuda(), W.cuda())
        for one, other in zip(found, known, strict=True):
            torch.testing.assert_close(one.cpu(), other)
        assert not any("read_kernel" in place for place in simulation.launches)

"""The claims that hold for every implementation of the score on kept tiles, whatever runs them; see `kernel_cases`.

The oracle is the definition: the dense plan 2^(A B^T + f + g) in float64, zero outside the kept tiles.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tests.kernel_cases import TOLERANCE, close, strided, swept
from tests.kernels import factors, log_masses, potential, softmin_oracle, wide
from torchgw.kernels.softmin_tiles import TileKernel
from torchgw.kernels.tiles import Tiles

F32, F64 = torch.float32, torch.float64
# (points of a tile, N, K): tiles that blocks fill and tiles that they do not, partial and single ones
SHAPES = ((16, 1, 1), (32, 33, 95), (32, 64, 31), (128, 200, 130), (128, 60, 257))


class Listed(NamedTuple):
    """Kept tiles, and the same as a mask of the tiles and of the pairs."""

    tiles: Tiles
    kept: Tensor
    mask: np.ndarray


def listed(kept: Tensor, size: int, n: int, k: int) -> Listed:
    """The list of a mask (row tiles, column tiles)."""
    count = kept.sum(1)
    tiles = Tiles(size, n, k, torch.cat((count.new_zeros(1), count.cumsum(0))), kept.nonzero()[:, 1])
    return Listed(tiles, kept, pairs(kept, size, n, k))


def pairs(kept: Tensor, size: int, n: int, k: int) -> np.ndarray:
    """The mask of the pairs of points (n, k) in kept tiles."""
    spread = kept.numpy().repeat(size, 0)[:n].repeat(size, 1)[:, :k]
    return np.asarray(spread)


def some_tiles(size: int, n: int, k: int, seed: int, share: float = 0.5) -> Listed:
    """A random list in which every row and every column of tiles keeps one."""
    gen = torch.Generator().manual_seed(seed)
    rows, columns = -(-n // size), -(-k // size)
    kept = torch.rand(rows, columns, generator=gen) < share
    kept[torch.arange(rows), torch.randint(columns, (rows,), generator=gen)] = True
    kept[torch.randint(rows, (columns,), generator=gen), torch.arange(columns)] = True
    return listed(kept, size, n, k)


def on(tiles: Tiles, device: str) -> Tiles:
    return Tiles(tiles.size, tiles.n, tiles.k, tiles.first.to(device), tiles.column.to(device))


def masked(A: Tensor, B: Tensor, mask: np.ndarray) -> np.ndarray:
    """A B^T in float64, -inf outside the mask."""
    a, b = wide(A, B)
    return np.where(mask, a @ b.T, -np.inf)


def softmins(kernel: TileKernel, device: str, size: int, n: int, k: int, rank: int, dtype: torch.dtype) -> None:
    """Both softmins of a product of range +-200 on half of the tiles, with -inf in the biases."""
    A, B = factors(n, k, rank, dtype, n * 7919 + k * 31 + rank)
    tiles, _, mask = some_tiles(size, n, k, rank)
    score, given = masked(A, B, mask), (A.to(device), B.to(device), on(tiles, device))
    for axis, points in ((0, n), (1, k)):
        (bias,) = strided(potential(points, dtype, n + k, holes=True), device=device)
        expected = softmin_oracle(score, wide(bias)[0], axis)
        for found in (kernel.softmin(*given, bias, axis), kernel.bind(*given).softmin(bias, axis)):
            assert found.dtype == dtype
            close(found, expected, dtype)


def sums_of_nothing(kernel: TileKernel, device: str, dtype: torch.dtype) -> None:
    """Rows and columns whose kept tiles hold only -inf come out as -inf, and so do those that keep no tile."""
    A, B = factors(100, 70, 3, dtype, 1)
    kept = torch.tensor([[1, 0, 0], [0, 0, 0], [0, 1, 0], [1, 1, 0]], dtype=torch.bool)
    tiles, _, mask = listed(kept, 32, 100, 70)
    f, g = potential(100, dtype, 2), potential(70, dtype, 3)
    f[64:96], g[:32] = -torch.inf, -torch.inf
    score, bound = masked(A, B, mask), kernel.bind(A.to(device), B.to(device), on(tiles, device))
    rows, columns = bound.softmin(g.to(device), 1), bound.softmin(f.to(device), 0)
    assert torch.isneginf(rows).sum() == 64
    assert torch.isneginf(columns).sum() == 6
    close(rows, softmin_oracle(score, wide(g)[0], 1), dtype)
    close(columns, softmin_oracle(score, wide(f)[0], 0), dtype)
    moved, back = kernel.read(
        A.to(device), B.to(device), on(tiles, device), f.to(device), g.to(device) - 300, B.to(device), A.to(device)
    )
    assert (moved[32:64] == 0).all()
    assert (back[64:] == 0).all()


def sweeps(kernel: TileKernel, device: str, dtype: torch.dtype) -> None:
    size, n, k = 32, 70, 45
    A, B = factors(n, k, 20, dtype, 1, reach=30.0)
    tiles, _, mask = some_tiles(size, n, k, 2)
    swept(kernel.bind(A.to(device), B.to(device), on(tiles, device)), masked(A, B, mask), dtype, device)


def reads(
    kernel: TileKernel, device: str, size: int, n: int, k: int, rank: int, width: int, dtypes: tuple[torch.dtype, ...]
) -> None:
    """T V and T^T W; factors and potentials of these two dtypes."""
    narrow, dtype = dtypes
    A, B = factors(n, k, rank, narrow, n + k + rank, reach=20.0)
    tiles, _, mask = some_tiles(size, n, k, rank + width)
    f, g = log_masses(n, dtype, 1, holes=True), log_masses(k, dtype, 2, holes=True)
    V, W = (torch.randn(points, width, generator=torch.Generator().manual_seed(points)).to(dtype) for points in (k, n))
    V[g.isneginf()], W[f.isneginf()] = torch.nan, torch.inf  # what has no mass moves nothing, whatever it is
    found = kernel.read(
        A.to(device), B.to(device), on(tiles, device), *strided(f, g, device=device), V.to(device), W.to(device)
    )
    assert [side.dtype for side in found] == [dtype, dtype]
    left, right, v, w = wide(f, g, V, W)
    plan = np.exp2(masked(A, B, mask) + left[:, None] + right)
    moved, back = wide(*found)
    tolerance = TOLERANCE[narrow] * max(plan.sum(1).max(), plan.sum(0).max(), 1)
    np.testing.assert_allclose(moved, plan @ np.nan_to_num(v), rtol=0, atol=tolerance)
    np.testing.assert_allclose(back, plan.T @ np.nan_to_num(w, posinf=0), rtol=0, atol=tolerance)


def reads_of_two_widths(kernel: TileKernel, device: str, dtypes: tuple[torch.dtype, ...]) -> None:
    """Products either way of any widths, with rows and columns of tiles that are partial or keep one tile alone."""
    size, n, k = 32, 70, 145
    narrow, dtype = dtypes
    A, B = factors(n, k, 9, narrow, 3, reach=20.0)
    tiles, _, mask = some_tiles(size, n, k, 4, share=0.2)
    f, g = log_masses(n, dtype, 1, holes=True), log_masses(k, dtype, 2, holes=True)
    plan = np.exp2(masked(A, B, mask) + wide(f)[0][:, None] + wide(g)[0])
    given = [A.to(device), B.to(device), on(tiles, device), f.to(device), g.to(device)]
    gen = torch.Generator().manual_seed(1)
    for d, e in ((1, 1), (1, 5), (5, 1), (0, 1), (1, 0), (17, 2)):
        V, W = (torch.randn(points, width, generator=gen).to(dtype) for points, width in ((k, d), (n, e)))
        found = kernel.read(*given, V.to(device), W.to(device))
        assert (found.TV.shape, found.TtW.shape) == ((n, d), (k, e))
        tolerance = TOLERANCE[narrow] * max(plan.sum(1).max(), plan.sum(0).max(), 1)
        np.testing.assert_allclose(wide(found.TV)[0], plan @ wide(V)[0], rtol=0, atol=tolerance)
        np.testing.assert_allclose(wide(found.TtW)[0], plan.T @ wide(W)[0], rtol=0, atol=tolerance)


def wide_potentials_keep_large_scores(kernel: TileKernel, device: str) -> None:
    """Scores of thousands of bits, float32 factors: what float64 potentials cancel is not lost.

    Points are near the centre of their tile, so only common parts of the scores are large.
    """
    n, k, size = 90, 100, 32
    gen = torch.Generator().manual_seed(0)
    centres = [torch.randn(4, 6, generator=gen, dtype=F64).repeat_interleave(32, 0)[:points] for points in (n, k)]
    A, B = ((30 * centre + 0.05 * torch.randn(centre.shape, generator=gen, dtype=F64)).to(F32) for centre in centres)
    tiles, _, mask = some_tiles(size, n, k, 5)
    score = masked(A, B, mask)
    assert np.abs(score[mask]).max() > 2000
    g = potential(k, F64, 1)
    operands = (A.to(device), B.to(device), on(tiles, device))
    softmin = kernel.bind(*operands).softmin(g.to(device), 1)
    expected = softmin_oracle(score, wide(g)[0], 1)
    np.testing.assert_allclose(wide(softmin)[0], expected, rtol=0, atol=3e-5)
    f = -torch.from_numpy(expected)
    one, other = (torch.ones(points, 1, dtype=F64, device=device) for points in (k, n))
    read = kernel.read(*operands, f.to(device), g.to(device), one, other)
    np.testing.assert_allclose(wide(read.TV)[0], 1.0, atol=3e-5)
    columns = np.exp2(score + wide(f)[0][:, None] + wide(g)[0]).sum(0)
    np.testing.assert_allclose(wide(read.TtW)[0][:, 0], columns, rtol=3e-5, atol=1e-9)


def what_is_not_asked_for_is_empty_or_zero(kernel: TileKernel, device: str) -> None:
    """Values without columns."""
    n, k = 70, 50
    A, B = factors(n, k, 3, F64, 1, reach=5.0)
    tiles, _, mask = some_tiles(32, n, k, 3)
    f, g = log_masses(n, F64, 1), log_masses(k, F64, 2)
    plan = np.exp2(masked(A, B, mask) + wide(f)[0][:, None] + wide(g)[0])
    given = [A.to(device), B.to(device), on(tiles, device), f.to(device), g.to(device)]
    none = given[0].new_zeros(k, 0), given[0].new_zeros(n, 0)
    found = kernel.read(*given, *none)
    assert (found.TV.shape, found.TtW.shape) == ((n, 0), (k, 0))
    for V, W in ((none[0], given[0]), (given[1], none[1])):
        found = kernel.read(*given, V, W)
        np.testing.assert_allclose(wide(found.TV)[0], plan @ wide(V)[0], rtol=0, atol=1e-11)
        np.testing.assert_allclose(wide(found.TtW)[0], plan.T @ wide(W)[0], rtol=0, atol=1e-11)

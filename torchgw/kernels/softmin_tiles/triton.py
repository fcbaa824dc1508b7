"""The Triton implementation of the score on kept tiles: host side. The kernels are loaded on first use.

Everything is computed in the wider dtype of factors and potentials, float32 at least. Potentials in float64 say that a
plan is read for good, so float32 factors are then multiplied in float64: exact products, where the reference keeps the
large part of a score exact and the small part in float32.
"""

from __future__ import annotations

import math
from functools import cache, reduce
from typing import Any

import torch
from torch import Tensor

from torchgw.kernels import gpu
from torchgw.kernels.dispatch import Workload
from torchgw.kernels.precision import dot_precision
from torchgw.kernels.softmin_dense.triton import sum_of_parts
from torchgw.kernels.softmin_stream import triton as stream
from torchgw.kernels.softmin_tiles import reference
from torchgw.kernels.softmin_tiles.tile_kernel import PlanProducts, TileKernel
from torchgw.kernels.tiles import TILE, Tiles

LEAST_BLOCK = 16
# How many columns of V a program reads at a time; 32 would spill on sm_100 in float32, and 64 in float64.
VALUES = {torch.float32: (0, 1, 16, 64), torch.float64: (0, 1, 16, 32)}
ENTRIES = 16  # of a list, whose sums of a column are read at once
MOST_BELOW = 2**26  # such sums, at the most; beyond it columns are read on their own
PROGRAMS_PER_PROCESSOR = 4


def block(size: int, width: int, dtype: torch.dtype, product: str) -> stream.Tile:
    """The block of a launch on tiles of ``size`` points: that of the streaming kernels, or the part of it that fits.

    Raises
    ------
    ValueError
        When ``size`` is not a multiple of 16, the least that matrix units take.
    """
    if size < LEAST_BLOCK or size % LEAST_BLOCK:
        raise ValueError(f"tiles must have a multiple of {LEAST_BLOCK} points for the Triton kernels, got {size}")
    chosen = stream.tile(width, dtype, product)
    return chosen._replace(rows=math.gcd(size, chosen.rows), columns=math.gcd(size, chosen.columns))


def read_block(size: int, width: int, dtype: torch.dtype, product: str, d: int) -> stream.Tile:
    """The block of a read of ``d`` columns, the largest whose registers no target spills.

    Without products with V they suffice for programs of few warps, many of which wait for their lists at a time.
    """
    if dtype == torch.float32 and product != "ieee" and d <= 1:
        chosen = stream.Tile(64, 32, 16 if width <= 16 else 32, 4, 3, width, product)
    else:
        rows = 32 if product == "ieee" and dtype == torch.float32 else 64
        chosen = stream.Tile(rows, 32, 16, 8, 2, width, product)
    return chosen._replace(rows=math.gcd(size, chosen.rows), columns=math.gcd(size, chosen.columns))


def blocks(workload: Workload) -> dict[str, int]:
    """The block sizes that a workload gets; into how many parts a list is split depends on the list."""
    product = dot_precision(workload.dot, workload.dtype, gpu.is_amd())
    return stream.sizes(block(TILE, workload.rank, workload.dtype, product))


def splits(tiles: Tiles, programs: int, device: torch.device) -> int:
    """Into how many parts the lists are split, so that every processor has work; at most the mean length of a list."""
    wanted = PROGRAMS_PER_PROCESSOR * gpu.processors(device) // programs
    return max(min(wanted, len(tiles.column) // (len(tiles.first) - 1)), 1)


def working_dtype(*tensors: Tensor) -> torch.dtype:
    """The widest of their dtypes, at least float32."""
    return reduce(torch.promote_types, (tensor.dtype for tensor in tensors), torch.float32)


def prepare(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """Factors in the width that `softmin_stream` pads to; as they are where they have it."""
    ready = A.shape[1] == stream.padded_width(A.shape[1])
    return (A.contiguous(), B.contiguous()) if ready else (stream.pad_factor(A), stream.pad_factor(B))


@cache
def build(dot: str = "") -> TileKernel:
    """The implementation with products in ``dot``, see `dispatch.Workload`; loads triton."""
    from torchgw.kernels.softmin_tiles import triton_kernels

    kernels: Any = triton_kernels

    def softmin(A: Tensor, B: Tensor, tiles: Tiles, bias: Tensor, axis: int) -> Tensor:
        if axis == 0:
            A, B, tiles = B, A, tiles.transpose
        dtype, given = working_dtype(A, bias), bias.dtype
        (A, B), bias = prepare(A.to(dtype), B.to(dtype)), bias.to(dtype).contiguous()
        product = dot_precision(dot, dtype, gpu.is_amd())
        n, chosen = len(A), block(tiles.size, A.shape[1], dtype, product)
        programs = gpu.count_blocks(n, chosen.rows)
        parts = splits(tiles, programs, A.device)
        out = bias.new_empty(parts, n)
        with gpu.activate_device(A):
            kernels.softmin_kernel[(programs, parts)](
                (A, B), bias, (tiles.first, tiles.column), out, n, len(B), SIZE=tiles.size, **stream.launch(chosen)
            )
        return sum_of_parts(out).to(given)

    def one_way(
        A: Tensor, B: Tensor, tiles: Tiles, f: Tensor, g: Tensor, V: Tensor, w: Tensor
    ) -> tuple[Tensor, Tensor]:
        """T V (N, d), and T^T w (K, 1) or (K, 0) as w is (N, 1) or (N, 0). Factors, V and w have one dtype, potentials
        another; the factors are prepared."""
        (n, width), d, k, m = A.shape, V.shape[1], len(B), len(tiles.column)
        product = dot_precision(dot, A.dtype, gpu.is_amd())
        chosen = read_block(tiles.size, width, A.dtype, product, d)
        values = next((size for size in VALUES[A.dtype] if size >= d), VALUES[A.dtype][-1])
        V = torch.nn.functional.pad(V, (0, -d % values if values else 0))
        groups, subs = gpu.count_blocks(V.shape[1], values or 1) or 1, tiles.size // chosen.rows
        programs = gpu.count_blocks(n, tiles.size) * subs
        parts = splits(tiles, programs * groups, A.device)
        out, below = f.new_empty(parts, n, V.shape[1]), f.new_empty(k, w.shape[1])
        down = A.new_empty(subs * w.shape[1], m, tiles.size)
        with gpu.activate_device(A):
            kernels.read_kernel[(programs, groups, parts)](
                (A, B), f.contiguous(), g.contiguous(), (V.contiguous(), w.contiguous()), (tiles.first, tiles.column),
                out, down, n, k, V.shape[1], m,
                SIZE=tiles.size, VALUES=values, DOWN=w.shape[1] == 1, **stream.launch(chosen),
            )  # fmt: skip
            if w.shape[1]:
                turned = tiles.transpose
                kernels.down_kernel[(gpu.count_blocks(k, chosen.columns),)](
                    down, (turned.first, tiles.by_column), below, k, m, SIZE=tiles.size, TILE=chosen, ENTRIES=ENTRIES
                )
        return out[:, :, :d].sum(0), below

    def read(A: Tensor, B: Tensor, tiles: Tiles, f: Tensor, g: Tensor, V: Tensor, W: Tensor) -> PlanProducts:
        if tiles.separable:
            return reference.read(A, B, tiles, f, g, V, W)
        if V.shape[1] == 1 < W.shape[1]:  # the wider side is summed in registers
            found = read(B, A, tiles.transpose, g, f, W, V)
            return PlanProducts(found.TtW, found.TV)
        given, near = f.dtype, working_dtype(A)
        A, B = prepare(A.to(near), B.to(near))
        wide = working_dtype(A, f, g)
        # Points without mass move nothing, whatever their values are.
        V, W = (side.to(near).masked_fill(at.isneginf()[:, None], 0.0) for side, at in ((V, g), (W, f)))
        f, g, none = f.to(wide), g.to(wide), W[:, :0]
        TV, TtW = f.new_zeros(len(A), V.shape[1]), f.new_zeros(len(B), W.shape[1])
        forward = V.shape[1] > 0
        both = forward and W.shape[1] == 1 and len(tiles.column) * tiles.size <= MOST_BELOW
        if forward:
            TV, below = one_way(A, B, tiles, f, g, V, W if both else none)
            TtW = below if both else TtW
        if W.shape[1] and not both:
            TtW = one_way(B, A, tiles.transpose, g, f, W, V[:, :0])[0]
        return PlanProducts(TV.to(given), TtW.to(given))

    return TileKernel(softmin, read, prepare)

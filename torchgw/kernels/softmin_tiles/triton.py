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
# How many columns of V a program reads at a time, chosen as the blocks are; 32 would spill on sm_100 in float32.
VALUES = {torch.float32: (16, 64), torch.float64: (16, 32, 64, 128)}
PROGRAMS_PER_PROCESSOR = 4


def block(size: int, width: int, dtype: torch.dtype, dot: str) -> stream.Tile:
    """The block of a launch on tiles of ``size`` points: that of the streaming kernels, or the part of it that fits.

    Raises
    ------
    ValueError
        When ``size`` is not a multiple of 16, the least that matrix units take.
    """
    if size < LEAST_BLOCK or size % LEAST_BLOCK:
        raise ValueError(f"tiles must have a multiple of {LEAST_BLOCK} points for the Triton kernels, got {size}")
    chosen = stream.tile(width, dtype, dot_precision(dot, dtype, gpu.amd()))
    return chosen._replace(rows=math.gcd(size, chosen.rows), columns=math.gcd(size, chosen.columns))


def blocks(workload: Workload) -> dict[str, int]:
    """The block sizes that a workload gets; into how many parts a list is split depends on the list."""
    return block(TILE, workload.rank, workload.dtype, workload.dot)._asdict()


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
    return (A.contiguous(), B.contiguous()) if ready else (stream.padded(A), stream.padded(B))


@cache
def build(dot: str = "") -> TileKernel:
    """The implementation with products in ``dot``, see `dispatch.Workload`; loads triton."""
    from torchgw.kernels.softmin_tiles import triton_kernels

    kernels: Any = triton_kernels

    def softmin(A: Tensor, B: Tensor, tiles: Tiles, bias: Tensor, axis: int) -> Tensor:
        if axis == 0:
            A, B, tiles = B, A, tiles.transposed
        dtype, given = working_dtype(A, bias), bias.dtype
        (A, B), bias = prepare(A.to(dtype), B.to(dtype)), bias.to(dtype).contiguous()
        (n, width), chosen = A.shape, block(tiles.size, A.shape[1], dtype, dot)
        programs = gpu.divided(n, chosen.rows)
        parts = splits(tiles, programs, A.device)
        out = bias.new_empty(parts, n)
        with gpu.active(A):
            kernels.softmin_kernel[(programs, parts)](
                A, B, bias, tiles.first, tiles.column, out, n, len(B),
                SIZE=tiles.size, **stream.launch(chosen, width, dot_precision(dot, dtype, gpu.amd())),
            )  # fmt: skip
        return sum_of_parts(out).to(given)

    def one_way(
        A: Tensor, B: Tensor, tiles: Tiles, f: Tensor, g: Tensor, V: Tensor, largest: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """T V (N, d) for factors, potentials and V (K, d) of one dtype, the factors prepared; for each part of the
        lists the largest entries of the rows and their columns (parts, N), where they were asked for."""
        (n, width), d, k = A.shape, V.shape[1], len(B)
        # The product with V takes registers: with half the columns no target spills.
        chosen = block(tiles.size, width, A.dtype, dot)
        chosen = chosen._replace(columns=min(chosen.columns, 32))
        values = next((size for size in VALUES[A.dtype] if size >= d), VALUES[A.dtype][-1])
        # Points without mass move nothing, whatever their values are.
        V = torch.nn.functional.pad(V.masked_fill(g.isneginf()[:, None], 0.0), (0, max(-d % values, values - d)))
        programs = gpu.divided(n, chosen.rows)
        parts = splits(tiles, programs * (V.shape[1] // values), A.device)
        out = V.new_empty(parts, n, V.shape[1])
        best, argmax = V.new_empty(parts, n), torch.empty(parts, n, dtype=torch.int64, device=V.device)
        with gpu.active(A):
            kernels.read_kernel[(programs, V.shape[1] // values, parts)](
                A, B, f.contiguous(), g.contiguous(), V.contiguous(), tiles.first, tiles.column, out, best, argmax,
                n, k, V.shape[1],
                SIZE=tiles.size, VALUES=values, LARGEST=largest,
                **stream.launch(chosen, width, dot_precision(dot, A.dtype, gpu.amd())),
            )  # fmt: skip
        return out[:, :, :d].sum(0), best, argmax

    def read(
        A: Tensor, B: Tensor, tiles: Tiles, f: Tensor, g: Tensor, V: Tensor, W: Tensor, find: bool = False
    ) -> PlanProducts:
        if tiles.separable:
            return reference.read(A, B, tiles, f, g, V, W, find)
        given, dtype = f.dtype, working_dtype(A, f, g)
        A, B = prepare(A.to(dtype), B.to(dtype))
        f, g, V, W = (side.to(dtype) for side in (f, g, V, W))
        TV, TtW = V.new_zeros(len(A), V.shape[1]), W.new_zeros(len(B), W.shape[1])
        largest, argmax = f.new_zeros(len(A)), torch.zeros(len(A), dtype=torch.int64, device=f.device)
        if V.shape[1] or find:
            TV, best, place = one_way(A, B, tiles, f, g, V, find)
            if find:  # of all parts the lowest column that has the largest; 0 and 0 for rows that keep nothing
                largest = best.amax(0)
                argmax = place.masked_fill(best < largest, len(B)).amin(0)
                argmax.masked_fill_(argmax == len(B), 0)
        if W.shape[1]:
            TtW = one_way(B, A, tiles.transposed, g, f, W, False)[0]
        return PlanProducts(TV.to(given), TtW.to(given), largest.to(given), argmax)

    return TileKernel(softmin, read, prepare)

"""The Triton implementation of the streaming score: host side. The kernels are loaded on first use."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchgw.kernels import gpu
from torchgw.kernels.dispatch import Workload
from torchgw.kernels.kernel import Kernel, Operands, in_two_reads
from torchgw.kernels.precision import dot_precision
from torchgw.kernels.softmin_dense.triton import sum_of_parts


class Tile(NamedTuple):
    """The launch of a kernel on tiles of the score.

    rows, columns : of a tile.
    chunk : columns of the factors in one product.
    warps, stages : of a program, and of its pipeline.
    """

    rows: int
    columns: int
    chunk: int
    warps: int
    stages: int


def tile(width: int, dtype: torch.dtype, dot: str) -> Tile:
    """The tile for factors of ``width`` columns.

    Chosen on an H200 among those that compile for sm_80 to sm_120 and gfx942 without spills and within shared memory.
    Products on ordinary units ("ieee") hold their operands in registers, and tf32x3 holds more than one copy of them on
    sm_80, so these take thin chunks.
    """
    if dtype == torch.float64:
        return Tile(32, 32, 16, 8, 2)
    thin = width <= 16 or (dtype == torch.float32 and dot_precision(dot, dtype, gpu.amd()) != "tf32")
    return Tile(64, 128, 16 if thin else 32, 4, 3)


def blocks(workload: Workload) -> dict[str, int]:
    """The block sizes that a workload gets."""
    chosen = tile(workload.rank, workload.dtype, workload.dot)
    n, k = workload.shape
    return chosen._asdict() | {"splits": splits(n, k, chosen, workload.device)}


def splits(n: int, k: int, chosen: Tile, device: torch.device) -> int:
    """Into how many parts the columns are split, so that every processor has work."""
    wanted = 4 * gpu.processors(device) // gpu.divided(n, chosen.rows)
    return max(min(wanted, gpu.divided(k, 4 * chosen.columns)), 1)


def prepare(A: Tensor, B: Tensor) -> Operands:
    """Contiguous factors, padded with zero columns to 16 or a multiple of 32: every load is then whole and aligned."""
    width = A.shape[1]
    missing = 16 - width if width <= 16 else -width % 32
    return tuple(torch.nn.functional.pad(side, (0, missing)).contiguous() for side in (A, B))


@cache
def build(dot: str = "") -> Kernel:
    """The kernel with products in ``dot``, see `dispatch.Workload`; loads triton."""
    from torchgw.kernels.softmin_stream import triton_kernels

    kernels: Any = triton_kernels

    def softmin(A: Tensor, B: Tensor, bias: Tensor, axis: int) -> Tensor:
        kept, summed = (A, B) if axis == 1 else (B, A)
        (n, width), k = kept.shape, len(summed)
        chosen = tile(width, kept.dtype, dot)
        part = gpu.divided(gpu.divided(k, splits(n, k, chosen, kept.device)), chosen.columns) * chosen.columns
        parts = gpu.divided(k, part)
        out = bias.new_empty(parts, n)
        with gpu.active(kept):
            kernels.softmin_kernel[(gpu.divided(n, chosen.rows), parts)](
                kept, summed, bias.contiguous(), out, n, k, part, **launch(chosen, width, dot, kept.dtype)
            )
        return sum_of_parts(out)

    def absorb(A: Tensor, B: Tensor, f: Tensor, g: Tensor, out: Tensor) -> Tensor:
        (n, width), k = A.shape, len(B)
        chosen = tile(width, A.dtype, dot)
        grid = (gpu.divided(n, chosen.rows), gpu.divided(k, chosen.columns))
        with gpu.active(A):
            kernels.absorb_kernel[grid](
                A, B, f.contiguous(), g.contiguous(), out, n, k, out.stride(0), out.stride(1),
                **launch(chosen, width, dot, A.dtype),
            )  # fmt: skip
        return out

    return Kernel(softmin, in_two_reads(softmin), absorb, prepare)


def launch(chosen: Tile, width: int, dot: str, dtype: torch.dtype) -> dict[str, Any]:
    """The compile-time arguments of a launch on factors of ``width`` columns."""
    return {
        "WIDTH": width,
        "ROWS": chosen.rows,
        "COLUMNS": chosen.columns,
        "CHUNK": chosen.chunk,
        "DOT": dot_precision(dot, dtype, gpu.amd()),
        "num_warps": chosen.warps,
        "num_stages": chosen.stages,
    }

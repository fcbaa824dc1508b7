"""The Triton implementation of the streaming score: host side. The kernels are loaded on first use."""

from __future__ import annotations

from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchgw.kernels import gpu
from torchgw.kernels.dispatch import Workload
from torchgw.kernels.kernel import Kernel, Operands, make_two_read_sweep
from torchgw.kernels.precision import dot_precision
from torchgw.kernels.softmin_dense.triton import sum_of_parts


class Tile(NamedTuple):
    """The launch of a kernel on tiles of the score.

    rows, columns : of a tile.
    chunk : columns of the factors in one product.
    warps, stages : of a program, and of its pipeline.
    width, product : columns of the factors, and the arithmetic of a product, see `products`.
    """

    rows: int
    columns: int
    chunk: int
    warps: int
    stages: int
    width: int
    product: str


def tile(width: int, dtype: torch.dtype, product: str) -> Tile:
    """The tile for factors of ``width`` columns and a product of `products`.

    Chosen on an H200 among those that compile for sm_80 to sm_120 and gfx942 without spills and within shared memory.
    Products on ordinary units ("ieee") hold their operands in registers, and tf32x3 holds more than one copy of them on
    sm_80, so these take thin chunks.
    """
    if dtype == torch.float64:
        return Tile(32, 32, 16, 8, 2, width, product)
    thin = width <= 16 or (dtype == torch.float32 and product != "tf32")
    return Tile(64, 128, 16 if thin else 32, 4, 3, width, product)


def products(dot: str, dtype: torch.dtype) -> tuple[str, bool]:
    """The products of a kernel on factors of ``dtype``, and whether these are `split` for them: tf32x3 is tf32 then."""
    asked = dot_precision(dot, dtype, gpu.is_amd())
    return ("tf32", True) if asked == "tf32x3" else (asked, False)


def blocks(workload: Workload) -> dict[str, int]:
    """The block sizes that a workload gets."""
    chosen = tile(workload.rank, workload.dtype, products(workload.dot, workload.dtype)[0])
    n, k = workload.shape
    return sizes(chosen) | {"splits": splits(n, k, chosen, workload.device)}


def sizes(chosen: Tile) -> dict[str, int]:
    """The sizes that a tile is chosen by, and its warps and stages."""
    return dict(zip(Tile._fields[:5], chosen[:5], strict=True))


def splits(n: int, k: int, chosen: Tile, device: torch.device) -> int:
    """Into how many parts the columns are split, so that every processor has work."""
    wanted = 4 * gpu.processors(device) // gpu.count_blocks(n, chosen.rows)
    return max(min(wanted, gpu.count_blocks(k, 4 * chosen.columns)), 1)


def prepare(A: Tensor, B: Tensor, dot: str = "") -> Operands:
    """The factors as a kernel takes them: by `split` where that makes ``dot``, else by `pad_factor`."""
    if products(dot, A.dtype)[1]:
        return split(A, slice(1, 3), 0), split(B, slice(0, 3, 2), 1)
    return pad_factor(A), pad_factor(B)


def padded_width(width: int) -> int:
    """16 or a multiple of 32, so that every load is whole and aligned."""
    return 16 if width <= 16 else gpu.count_blocks(width, 32) * 32


def pad_factor(A: Tensor) -> Tensor:
    """A contiguous factor, with zero columns up to its `padded_width`."""
    return torch.nn.functional.pad(A, (0, padded_width(A.shape[1]) - A.shape[1])).contiguous()


def split(A: Tensor, large: slice, rest: int) -> Tensor:
    """A float32 factor as a + a', where a has the 11 digits of tf32, three times as wide and padded by `pad_factor`.

    With [a' a a] and [b b' b] on the two sides a product in tf32 is a' b + a b' + a b, which is A B^T to 2^-20 of its
    terms. ``large`` and ``rest`` are the places of a and a'.
    """
    n, width = A.shape
    out = A.new_zeros(n, padded_width(3 * width))
    parts = out[:, : 3 * width].view(n, 3, width)
    digits = (A.view(torch.int32) + 2**12)[:, None].expand(n, 2, width)
    torch.bitwise_and(digits, -(2**13), out=parts[:, large].view(torch.int32))
    torch.sub(A, parts[:, large.start], out=parts[:, rest])
    return out


@cache
def build(dot: str = "") -> Kernel:
    """The kernel with products in ``dot``, see `dispatch.Workload`; loads triton."""
    from torchgw.kernels.softmin_stream import triton_kernels

    kernels: Any = triton_kernels

    def softmin(A: Tensor, B: Tensor, bias: Tensor, axis: int) -> Tensor:
        kept, summed = (A, B) if axis == 1 else (B, A)
        (n, width), k = kept.shape, len(summed)
        product, _ = products(dot, kept.dtype)
        chosen = tile(width, kept.dtype, product)
        part = gpu.count_blocks(gpu.count_blocks(k, splits(n, k, chosen, kept.device)), chosen.columns) * chosen.columns
        parts = gpu.count_blocks(k, part)
        out = bias.new_empty(parts, n)
        with gpu.activate_device(kept):
            kernels.softmin_kernel[(gpu.count_blocks(n, chosen.rows), parts)](
                (kept, summed), bias.contiguous(), out, n, k, part, **launch(chosen)
            )
        return sum_of_parts(out)

    def absorb(A: Tensor, B: Tensor, f: Tensor, g: Tensor, out: Tensor) -> Tensor:
        (n, width), k = A.shape, len(B)
        product, _ = products(dot, A.dtype)
        chosen = tile(width, A.dtype, product)
        grid = (gpu.count_blocks(n, chosen.rows), gpu.count_blocks(k, chosen.columns))
        with gpu.activate_device(A):
            kernels.absorb_kernel[grid](
                (A, B), (f.contiguous(), g.contiguous()), out, out.stride(), n, k, **launch(chosen)
            )
        return out

    return Kernel(softmin, make_two_read_sweep(softmin), absorb, partial(prepare, dot=dot))


def launch(chosen: Tile) -> dict[str, Any]:
    """The compile-time arguments of a launch."""
    return {"TILE": chosen, "num_warps": chosen.warps, "num_stages": chosen.stages}

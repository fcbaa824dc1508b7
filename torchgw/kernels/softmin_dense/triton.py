"""The Triton implementation of the stored score: host side. The kernels are loaded on first use."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from torchgw.kernels import gpu
from torchgw.kernels.blocks import logarithms
from torchgw.kernels.dispatch import Workload
from torchgw.kernels.kernel import Kernel, make_two_read_sweep

# Widest row that one program keeps in registers, by bytes of an element: measured by compiling, without spills.
WIDEST = {4: 16384, 8: 8192}
SWEEP_ELEMENTS = {4: 16, 8: 8}
WARPS_PER_PROCESSOR = 32
PROGRAMS_PER_PROCESSOR = 8
ABSORB_ROWS = {4: 8, 8: 4}
ABSORB_COLUMNS = 256
RESCALED = 256


def softmin_blocks(n_kept: int, n_summed: int, contiguous_kept: bool, processors: int) -> tuple[int, int, int]:
    """Tile of the softmin, and into how many parts the sum is split so that every processor has work."""
    kept, summed = (64, 32) if contiguous_kept else (16, 128)
    programs = gpu.count_blocks(n_kept, kept)
    splits = min(max(PROGRAMS_PER_PROCESSOR * processors // programs, 1), gpu.count_blocks(n_summed, 4 * summed))
    return kept, summed, max(splits, 1)


def sweep_blocks(k: int, size: int) -> tuple[int, int]:
    """Width of the row buffer, and warps for about 16 four-byte elements a thread."""
    width = max(gpu.power_of_two(k), 128)
    lanes = 64 if gpu.is_amd() else 32
    return width, min(max(width // (SWEEP_ELEMENTS[size] * lanes), 1), 1024 // lanes)


def blocks(workload: Workload) -> dict[str, int]:
    """The block sizes that a workload gets."""
    n, k = workload.shape
    size = 8 if workload.dtype == torch.float64 else 4
    kept, summed, splits = softmin_blocks(n, k, False, gpu.processors(workload.device))
    width, warps = sweep_blocks(k, size)
    found = {"rows": kept, "columns": summed, "splits": splits}
    return found | {"sweep_width": width, "sweep_warps": warps} if width <= WIDEST[size] else found


@cache
def build() -> Kernel:
    """The kernel; loads triton."""
    from torchgw.kernels.softmin_dense import triton_kernels

    kernels: Any = triton_kernels

    def softmin(score: Tensor, bias: Tensor, axis: int) -> Tensor:
        kept_axis = 1 - axis
        n_kept, n_summed = score.shape[kept_axis], score.shape[axis]
        by_columns = score.stride(kept_axis) < score.stride(axis)
        kept, summed, splits = softmin_blocks(n_kept, n_summed, by_columns, gpu.processors(score.device))
        part = gpu.count_blocks(gpu.count_blocks(n_summed, splits), summed) * summed
        splits = gpu.count_blocks(n_summed, part)
        out = bias.new_empty(splits, n_kept)
        with gpu.activate_device(score):
            kernels.softmin_kernel[(gpu.count_blocks(n_kept, kept), splits)](
                score, (score.stride(kept_axis), score.stride(axis)), bias.contiguous(), out, n_kept, n_summed, part,
                BLOCK=(kept, summed),
            )  # fmt: skip
        return sum_of_parts(out)

    two_reads = make_two_read_sweep(softmin)

    def sweep(score: Tensor, g: Tensor, log_p: Tensor, f: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        (n, k), size = score.shape, g.element_size()
        width, warps = sweep_blocks(k, size)
        if width > WIDEST[size] or score.stride(1) != 1:
            return two_reads(score, g, log_p, f, weight)
        programs = min(n, max(WARPS_PER_PROCESSOR // warps, 1) * gpu.processors(score.device))
        given = log_p.contiguous(), f.contiguous(), g.contiguous()
        new_f, partial = torch.empty_like(given[1]), g.new_empty(programs, k)
        with gpu.activate_device(score):
            kernels.sweep_kernel[(programs,)](
                score,
                score.stride(0),
                given,
                (new_f, partial),
                n,
                k,
                gpu.float_bits(weight),
                WIDTH=width,
                num_warps=warps,
            )
        return new_f, logarithms(partial.sum(0)).sub_(g)

    def absorb(score: Tensor, f: Tensor, g: Tensor, out: Tensor) -> Tensor:
        n, k = score.shape
        rows = ABSORB_ROWS[out.element_size()]
        grid = (gpu.count_blocks(n, rows), gpu.count_blocks(k, ABSORB_COLUMNS))
        with gpu.activate_device(score):
            kernels.absorb_kernel[grid](
                score, score.stride(), (f.contiguous(), g.contiguous()), out, out.stride(), n, k,
                BLOCK=(rows, ABSORB_COLUMNS),
            )  # fmt: skip
        return out

    def update_scaling(mass: Tensor, sums: Tensor, old: Tensor, weight: float) -> Tensor:
        out = torch.empty_like(sums)
        with gpu.activate_device(sums):
            kernels.rescale_kernel[(gpu.count_blocks(len(sums), RESCALED),)](
                mass, sums, old, out, len(sums), gpu.float_bits(weight),
                TINY=torch.finfo(sums.dtype).tiny, SIZE=RESCALED,
            )  # fmt: skip
        return out

    return Kernel(softmin, sweep, absorb, update_scaling=update_scaling)


def sum_of_parts(parts: Tensor) -> Tensor:
    """log2 of the sum of 2^parts over the splits of a list, (N,) of (splits, N)."""
    return parts[0] if len(parts) == 1 else build().softmin(parts, parts.new_zeros(len(parts)), 0)

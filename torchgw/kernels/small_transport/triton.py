"""The Triton implementation of small problems: host side. The kernels are loaded on first use."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from torchgw.kernels import gpu
from torchgw.kernels.dispatch import Workload
from torchgw.kernels.small_transport.reference import RELAXATION, IterationCounts

# Largest tile that a program keeps in registers, by bytes of an element: measured by compiling, without spills.
LARGEST = {4: 64 * 128, 8: 64 * 64}
ELEMENTS = {4: 16, 8: 8}  # of it in a thread
LEAST, LEAST_WARPS = 16, 4  # fewer warps spill


def tile(n: int, k: int, size: int) -> tuple[int, int, int]:
    """Rows and columns of a program's tile, and its warps."""
    rows, columns = (max(gpu.power_of_two(side), LEAST) for side in (n, k))
    lanes = 64 if gpu.is_amd() else 32
    return rows, columns, min(max(rows * columns // (ELEMENTS[size] * lanes), LEAST_WARPS), 512 // lanes)


def reason_unavailable(workload: Workload) -> str | None:
    """Why the kernel cannot run this workload."""
    rows, columns, _ = tile(*workload.shape, 4)
    size = 8 if workload.dtype == torch.float64 else 4
    if rows * columns > LARGEST[size]:
        return f"a problem of {workload.shape[0]} x {workload.shape[1]} does not fit the registers of a program"
    return gpu.reason_unavailable(workload)


def blocks(workload: Workload) -> dict[str, int]:
    """The block sizes that a workload gets."""
    rows, columns, warps = tile(*workload.shape, 8 if workload.dtype == torch.float64 else 4)
    return {"rows": rows, "columns": columns, "warps": warps}


@cache
def build() -> Any:
    """`torchgw.kernels.small_transport.reference`, each in one launch; loads triton."""
    from torchgw.kernels.small_transport import triton_kernels

    kernels: Any = triton_kernels

    def solve(
        score: Tensor, log_p: Tensor, log_q: Tensor, f: Tensor, g: Tensor, n_iter: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        (batch, n, k), score = score.shape, score.contiguous()
        f = f.expand(batch, n)
        plan, new_f, new_g = torch.empty_like(score), score.new_empty(batch, n), score.new_empty(batch, k)
        rows, columns, warps = tile(n, k, score.element_size())
        with gpu.activate_device(score):
            kernels.solve_kernel[(batch,)](
                (score, log_p.contiguous(), log_q.contiguous(), f), f.stride(), (plan, new_f, new_g), n, k, n_iter,
                BLOCK=(rows, columns), TINY=torch.finfo(score.dtype).tiny, num_warps=warps,
            )  # fmt: skip
        return plan, new_f, new_g

    def scalings(kernel: Tensor, p: Tensor, q: Tensor, effort: IterationCounts) -> tuple[Tensor, Tensor]:
        (batch, n, k), u, v = kernel.shape, torch.empty_like(p), torch.empty_like(q)
        rows, columns, warps = tile(n, k, kernel.element_size())
        with gpu.activate_device(kernel):
            kernels.scalings_kernel[(batch,)](
                (kernel.contiguous(), p.contiguous(), q.contiguous()), (u, v), n, k, *effort,
                BLOCK=(rows, columns), WEIGHT=RELAXATION, num_warps=warps,
            )  # fmt: skip
        return u, v

    return solve, scalings

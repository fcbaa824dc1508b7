"""The Triton implementation of principal directions: host side. The kernel is loaded on first use."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import Tensor

from torchgw.kernels import gpu
from torchgw.kernels.dispatch import Workload
from torchgw.kernels.principal_directions.reference import (
    POWER_ITERATIONS,
    SAMPLED_POINTS,
    SMALLEST_NORM,
    collect_sample,
)
from torchgw.runtime.ranks import ALONE, Ranks

MOST_FEATURES = 256
LEAST = 16
POINTS = 256  # of a cell that a program has, at most


def reason_unavailable(workload: Workload) -> str | None:
    """Why the kernel cannot run this workload."""
    if workload.rank > MOST_FEATURES:
        return f"the {workload.rank} features of a cell's points do not fit the registers of a program"
    return gpu.reason_unavailable(workload)


@cache
def build() -> Any:
    """`torchgw.kernels.principal_directions.reference.keys` in one launch; loads triton."""
    from torchgw.kernels.principal_directions import triton_kernels

    kernels: Any = triton_kernels

    def keys(features: Tensor, order: Tensor, ends: Tensor, largest: int, ranks: Ranks = ALONE) -> Tensor:
        given = collect_sample(features, order, ends, ranks)
        features, (n, d), cells = features.contiguous(), features.shape, len(ends) - 1
        out, parts = order.new_empty(n), gpu.count_blocks(largest, POINTS)
        with gpu.activate_device(features):
            kernels.keys_kernel[(cells * parts,)](
                *(each.contiguous() for each in given), features, order, ends, out, n, d, ranks.share(len(order)).start,
                parts, (cells - 1).bit_length() + 1, SMALLEST=SMALLEST_NORM, SAMPLED=SAMPLED_POINTS,
                ITERATIONS=POWER_ITERATIONS, POINTS=POINTS, WIDTH=max(gpu.power_of_two(d), LEAST),
            )  # fmt: skip
        return ranks.all_gather(out, len(order))

    return keys

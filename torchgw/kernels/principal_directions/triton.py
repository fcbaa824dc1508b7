"""The Triton implementation of principal directions: host side. The kernel is loaded on first use."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import Tensor

from torchgw.kernels import gpu
from torchgw.kernels.dispatch import Workload
from torchgw.kernels.principal_directions.reference import POWER_ITERATIONS, SAMPLED_POINTS, SMALLEST_NORM

MOST_FEATURES = 256
LEAST = 16


def unable(workload: Workload) -> str | None:
    """Why the kernel cannot run this workload."""
    if workload.rank > MOST_FEATURES:
        return f"the {workload.rank} features of a cell's points do not fit the registers of a program"
    return gpu.unable(workload)


@cache
def build() -> Any:
    """`torchgw.kernels.principal_directions.reference.directions` in one launch; loads triton."""
    from torchgw.kernels.principal_directions import triton_kernels

    kernels: Any = triton_kernels

    def directions(features: Tensor, order: Tensor, ends: Tensor) -> Tensor:
        features, (cells, d) = features.contiguous(), (len(ends) - 1, features.shape[1])
        out = features.new_empty(cells, d)
        with gpu.active(features):
            kernels.directions_kernel[(cells,)](
                features, order.contiguous(), ends.contiguous(), out, d, SMALLEST=SMALLEST_NORM,
                POINTS=SAMPLED_POINTS, ITERATIONS=POWER_ITERATIONS, WIDTH=max(gpu.power_of_two(d), LEAST),
            )  # fmt: skip
        return out

    return directions

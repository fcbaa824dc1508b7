"""The Triton implementation of shortest paths: host side. The kernels are loaded on first use."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from torchgw.kernels import gpu
from torchgw.kernels.dispatch import Workload
from torchgw.kernels.shortest_paths.searches import Searches

NODES, EDGES, WARPS = 64, 32, 16  # of a step: no thread holds what another does, as atomics are taken once
BLOCK, MANY_WARPS = 4096, 16  # of points that one program goes through
AT_ONCE = 2**26  # distances that are searched at once, of 20 bytes each


def unable(workload: Workload) -> str | None:
    """Why the kernels cannot run this workload."""
    return gpu.unable(workload)


def blocks(_: Workload) -> dict[str, int]:
    """The block sizes that a workload gets."""
    return {"nodes": NODES, "edges": EDGES, "warps": WARPS}


@cache
def build() -> Searches:
    """What `torchgw.kernels.shortest_paths.reference` computes, on the device; loads triton."""
    from torchgw.kernels.shortest_paths import triton_kernels

    kernels: Any = triton_kernels
    tile: Any = {"NODES": NODES, "EDGES": EDGES, "num_warps": WARPS}

    def paths(pointer: Tensor, target: Tensor, length: Tensor, sources: Tensor) -> Tensor:
        n = len(pointer) - 1
        found, size = length.new_empty(len(sources), n), max(1, AT_ONCE // n)
        for part, into in zip(torch.split(sources.contiguous(), size), torch.split(found, size), strict=True):
            queued, queue = target.new_empty(len(part), n), target.new_empty(len(part), 2, n)
            with gpu.active(length):
                kernels.search_kernel[(len(part),)](
                    pointer, target, length, part, into.view(torch.int64), queued, queue, n, **tile
                )
        return found

    def spread(
        pointer: Tensor, target: Tensor, length: Tensor, distance: Tensor, label: Tensor
    ) -> tuple[Tensor, Tensor]:
        new, n = (torch.empty_like(distance), torch.empty_like(label)), len(label)
        with gpu.active(length):
            kernels.spread_kernel[(gpu.divided(n, NODES),)](pointer, target, length, distance, label, *new, n, **tile)
        return new

    def farthest(rows: Tensor, count: int) -> Tensor:
        n, chosen = len(rows), rows.new_empty(count, dtype=torch.int64)
        with gpu.active(rows):
            kernels.farthest_kernel[(1,)](
                rows, torch.empty_like(rows[0]), chosen, n, count, BLOCK=min(BLOCK, gpu.power_of_two(n)),
                num_warps=MANY_WARPS,
            )  # fmt: skip
        return chosen

    return Searches(paths, spread, farthest)

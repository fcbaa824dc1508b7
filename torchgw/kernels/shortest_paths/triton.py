"""The Triton implementation of shortest paths: host side. The kernels are loaded on first use."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from torchgw.kernels import gpu
from torchgw.kernels.dispatch import Workload
from torchgw.kernels.shortest_paths.searches import Searches

NODES, EDGES, WARPS = 16, 32, 8  # of a step: no thread holds what another does, as atomics are taken once
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
        found, size = length.new_full((len(sources), n), torch.inf), max(1, AT_ONCE // n)
        for part, into in zip(torch.split(sources, size), torch.split(found, size), strict=True):
            with gpu.active(length):
                kernels.search_kernel[(len(part),)](
                    pointer, target, length, part, length, target, target, into.view(torch.int64),
                    target.new_zeros(len(part), n), target.new_empty(len(part), 2, n), n, 0, 0, CHOSEN=False, **tile,
                )  # fmt: skip
        return found

    def search(
        pointer: Tensor, target: Tensor, length: Tensor, peak: Tensor, height: Tensor, place: Tensor, count: Tensor,
        rows: Tensor, queued: Tensor, queue: Tensor, most: int,
    ) -> None:  # fmt: skip
        n = len(place)
        with gpu.active(rows):
            kernels.search_kernel[(len(peak),)](
                pointer, target, length, peak, height, place, count, rows.view(torch.int64),
                queued, queue, n, most, len(rows), CHOSEN=True, **tile,
            )  # fmt: skip

    def farthest(rows: Tensor, height: Tensor, place: Tensor, nearest: Tensor, landmark: Tensor, count: Tensor) -> None:
        n, m = len(nearest), len(height)
        with gpu.active(rows):
            kernels.farthest_kernel[(1,)](
                rows, height, place, nearest, landmark, count, n, m, len(landmark), len(rows),
                BLOCK=min(BLOCK, gpu.power_of_two(n)), CANDIDATES=gpu.power_of_two(m), num_warps=MANY_WARPS,
            )  # fmt: skip

    def peaks(
        pointer: Tensor, target: Tensor, nearest: Tensor, place: Tensor, landmark: Tensor, count: Tensor
    ) -> Tensor:
        (n,), around, height = nearest.shape, torch.empty_like(nearest), torch.empty_like(nearest)
        grid = (gpu.divided(n, NODES),)
        with gpu.active(nearest):
            kernels.around_kernel[grid](pointer, target, nearest, around, n, **tile)
            kernels.peaks_kernel[grid](
                pointer, target, nearest, around, place, landmark, count, height, n, len(landmark), **tile
            )
        return height

    return Searches(paths, search, farthest, peaks)

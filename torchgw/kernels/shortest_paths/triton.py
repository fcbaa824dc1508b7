"""The Triton implementation of shortest paths: host side. The kernels are loaded on first use."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from torchgw.kernels import gpu
from torchgw.kernels.dispatch import Workload
from torchgw.kernels.shortest_paths.searches import Searches

# Nodes, edges of each, and warps of a step: no thread holds what another does, as atomics are taken once. Few searches
# end sooner by large steps (measured on an H200), more than a device runs at once by small ones (on an H100).
STEP = {"NODES": 16, "EDGES": 32, "num_warps": 8}
MANY = {**STEP, "QUEUED": 256}  # of those that wait, looked at together
FEW = {**STEP, "NODES": 64, "QUEUED": 512}
FEW_AT_ONCE, MANY_AT_ONCE = 1, 4  # searches by such steps that a multiprocessor has the registers for
BLOCK, MANY_WARPS = 4096, 16  # of points that one program goes through
ROUNDS, ALL = 2**17, 2**31 - 1  # of a search in one launch: some tenths of a second; and in the last, which ends it
ENTRIES = 1024  # of a row of a matrix, at a time
AT_ONCE = 2**26  # distances of one launch, of 20 bytes each, where a device runs no more at once


def reason_unavailable(workload: Workload) -> str | None:
    """Why the kernels cannot run this workload."""
    return gpu.reason_unavailable(workload)


def blocks(workload: Workload) -> dict[str, int]:
    """The block sizes that a workload gets, of which n points are searched from."""
    return step(workload.shape[0], workload.device)


def step(searches: int, device: torch.device) -> dict[str, int]:
    """The nodes, edges and warps of a step."""
    return FEW if searches <= FEW_AT_ONCE * gpu.processors(device) else MANY


@cache
def build() -> Searches:
    """What `torchgw.kernels.shortest_paths.reference` computes, on the device; loads triton."""
    from torchgw.kernels.shortest_paths import triton_kernels

    kernels: Any = triton_kernels

    def run_search(low: Tensor, high: Tensor, target: Tensor, length: Tensor, sources: Tensor) -> Tensor:
        n = len(high)
        most = max(MANY_AT_ONCE * gpu.processors(length.device), AT_ONCE // n)
        budgets = [*[ROUNDS] * (n // ROUNDS), ALL]
        found = length.new_empty(len(sources), n)
        for part, into in zip(torch.split(sources.contiguous(), most), torch.split(found, most), strict=True):
            queued, queue = target.new_empty(len(part), n), target.new_empty(len(part), 2, n)
            state, chosen = target.new_empty(len(part), 2), step(len(part), length.device)
            with gpu.activate_device(length):
                for launch, rounds in enumerate(budgets):
                    kernels.search_kernel[(len(part),)](
                        (low, high, target, length), part, into.view(torch.int64), (queued, queue, state), n, launch,
                        rounds, STEP=(chosen["NODES"], chosen["EDGES"], chosen["QUEUED"]),
                        num_warps=chosen["num_warps"],
                    )  # fmt: skip
        return found

    def paths(pointer: Tensor, target: Tensor, length: Tensor, sources: Tensor) -> Tensor:
        return run_search(pointer, pointer[1:], target, length, sources)

    def cell_distances(
        pointer: Tensor, target: Tensor, length: Tensor, distance: Tensor, label: Tensor, count: int
    ) -> Tensor:
        n, m, every = len(label), count + 1, torch.arange(count, device=label.device)
        matrix, listed = length.new_full((m, m), torch.inf), length.new_empty(count, count)
        column, high = target.new_empty(count, count), target.new_empty(count)
        with gpu.activate_device(length):
            kernels.ways_kernel[(gpu.count_blocks(n, STEP["NODES"]),)](
                (pointer, target, length), distance, label, matrix.view(torch.int64), n, m, **STEP
            )
            kernels.entries_kernel[(count,)](matrix, high, column, listed, count, m, BLOCK=ENTRIES)
        low = torch.arange(0, count * count, count, dtype=high.dtype, device=label.device)
        return run_search(low, high, column, listed, every)

    def spread_labels(
        pointer: Tensor, target: Tensor, length: Tensor, distance: Tensor, label: Tensor
    ) -> tuple[Tensor, Tensor]:
        new, n = (torch.empty_like(distance), torch.empty_like(label)), len(label)
        with gpu.activate_device(length):
            kernels.spread_kernel[(gpu.count_blocks(n, STEP["NODES"]),)](
                (pointer, target, length), distance, label, *new, n, **STEP
            )
        return new

    def farthest(rows: Tensor, count: int) -> Tensor:
        n, chosen = len(rows), rows.new_empty(count, dtype=torch.int64)
        with gpu.activate_device(rows):
            kernels.farthest_kernel[(1,)](
                rows, torch.empty_like(rows[0]), chosen, n, count, BLOCK=min(BLOCK, gpu.power_of_two(n)),
                num_warps=MANY_WARPS,
            )  # fmt: skip
        return chosen

    return Searches(paths, cell_distances, spread_labels, farthest)

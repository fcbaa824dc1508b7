"""The Triton implementation of neighbour graphs: host side. The kernels are loaded on first use."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from torchgw.kernels import gpu
from torchgw.kernels.dispatch import Workload
from torchgw.kernels.neighbour_graphs.graphs import AT_ONCE, TOLD, CsrEdges, DoubtfulEdges, GraphKernels

ROWS, COLUMNS = 16, 128  # of a tile of distances
BLOCK = 256  # entries
EDGES = 32  # of a point, at a time
TOGETHER = {"LISTED": 1024, "num_warps": 16}  # of the one program that joins parts
LINKED = 64  # edges of a point that link their ends together, a thread each at most, on GPUs of either maker
SEARCHES = 4  # that a multiprocessor runs at once
ALIGNED = 4  # numbers of 32 bits in 16 bytes
ROUNDS, SWEEPS = 4, 4  # of tries: launches, and turns of each program in one
# Of a search: nodes of a step, edges of each, and sweeps; no thread holds what another does.
STEP = {"STEP": (16, 32, SWEEPS), "num_warps": 8}


def reason_unavailable(workload: Workload) -> str | None:
    """Why the kernels cannot run this workload."""
    return gpu.reason_unavailable(workload)


def at_once(n: int, device: torch.device) -> int:
    """How many searches among n points run at once."""
    return max(1, min(SEARCHES * gpu.processors(device), AT_ONCE // n))


@cache
def build() -> GraphKernels:
    """What `torchgw.kernels.neighbour_graphs.reference` computes, on the device; loads triton."""
    from torchgw.kernels.neighbour_graphs import triton_kernels

    kernels: Any = triton_kernels

    def neighbours(points: Tensor, k: int, order: Tensor | None) -> tuple[CsrEdges, DoubtfulEdges]:
        (n, d), device = points.shape, points.device
        keys = torch.empty(2 * n * k, dtype=torch.int64, device=device)
        axes = (points if order is None else points[order]).T.contiguous()
        boxes = None if order is None else _boxes(axes)
        order = torch.arange(n, device=device) if order is None else order
        with gpu.activate_device(points):
            kernels.nearest_kernel[(gpu.count_blocks(n, ROWS),)](
                axes, order, boxes, keys, n, k, d, BLOCK=(ROWS, COLUMNS, gpu.power_of_two(k)), num_warps=8
            )
        keys = keys.sort().values
        place = (keys[1:] != keys[:-1]).cumsum(0, dtype=torch.int32)
        entries = len(keys)
        # Rows begin at multiples of 16 bytes whatever their length is: kernels are compiled anew for others.
        ints = place.new_empty(6, gpu.count_blocks(entries, ALIGNED) * ALIGNED)[:, :entries]
        mutual = torch.empty(entries, dtype=torch.int8, device=device)
        made = CsrEdges(place.new_empty(n + 1), ints[0], ints[1], points.new_empty(entries), mutual)
        waiting, label = torch.empty_like(made.length), torch.empty_like(made.pointer[1:])
        rank, low, high, state = ints[2:]
        with gpu.activate_device(points):
            kernels.edges_kernel[(gpu.count_blocks(entries, BLOCK),)](
                (keys, place), points, made, (waiting, rank, state, label), n, d, entries, BLOCK=BLOCK
            )
            kernels.doubts_kernel[(n,)](*made[:1], *made[2:], waiting, label, EDGES=EDGES, LINKED=LINKED, num_warps=1)
            length, order = waiting.sort(stable=True)
            kernels.list_doubtful_kernel[(gpu.count_blocks(entries, ROWS),)](
                (length, order), made[:3], (rank, low, high), entries, BLOCK=ROWS, EDGES=EDGES, num_warps=1
            )
        return made, DoubtfulEdges(rank, length, low, high, state, label)

    def join_parts(edges: CsrEdges, doubtful: DoubtfulEdges) -> Tensor:
        n, parts = len(edges.pointer) - 1, edges.pointer.new_empty(1)
        with gpu.activate_device(parts):
            kernels.join_parts_kernel[(1,)](doubtful, parts, n, len(edges.row), **TOGETHER)
        return parts

    def decide_edges(points: Tensor, edges: CsrEdges, doubtful: DoubtfulEdges, factor: float) -> None:
        n, d = points.shape
        programs, whole = at_once(n, points.device), edges.pointer
        distance = torch.full((programs, n), torch.inf, dtype=torch.float64, device=points.device).view(torch.int64)
        queued, queue = whole.new_zeros(programs, n), whole.new_empty(programs, 2, n)
        touched = whole.new_empty(programs, n)
        with gpu.activate_device(points):
            for _ in range(ROUNDS):
                kernels.decide_edges_kernel[(programs,)](
                    (points, edges.pointer, edges.target, edges.length), doubtful, (distance, queued, queue, touched),
                    n, d, len(edges.row), gpu.float_bits(factor), **STEP,
                )  # fmt: skip

    def finish_graph(edges: CsrEdges, doubtful: DoubtfulEdges, size: Tensor) -> Tensor:
        told = edges.pointer.new_zeros(2 + 3 * TOLD)
        with gpu.activate_device(told):
            kernels.finish_graph_kernel[(gpu.count_blocks(len(edges.row), BLOCK),)](
                edges, doubtful, told, size, len(edges.row), MOST=TOLD, BLOCK=BLOCK
            )
        return told

    return GraphKernels(neighbours, join_parts, decide_edges, finish_graph)


def _boxes(axes: Tensor) -> tuple[Tensor, Tensor]:
    """The least and largest coordinates (D, tiles) of each tile of the points (D, N)."""
    d, n = axes.shape
    tiles = torch.nn.functional.pad(axes, (0, -n % COLUMNS), mode="replicate").view(d, -1, COLUMNS)
    return tiles.amin(2), tiles.amax(2)

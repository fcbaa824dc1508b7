"""The Triton kernels on a simulated device: each is one launch, and computes what its reference does.

`triton_stands_in` puts these in the place of the compiled kernels, so that what the host does around them, allocating,
padding, merging parts, is what it does on a GPU and is counted with them.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import operator
import struct
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.simulated_device import Simulation
from torchgw.kernels import gpu
from torchgw.kernels.kernel import update_scaling
from torchgw.kernels.neighbour_graphs import reference as graphs
from torchgw.kernels.neighbour_graphs.graphs import CsrEdges, DoubtfulEdges
from torchgw.kernels.principal_directions import reference as directions
from torchgw.kernels.shortest_paths import reference as paths
from torchgw.kernels.small_transport import reference as small
from torchgw.kernels.softmin_dense import reference as dense
from torchgw.kernels.softmin_stream import reference as stream
from torchgw.kernels.softmin_tiles import reference as tiled
from torchgw.kernels.tiles import Tiles

Grid = tuple[int, ...]
Tensors = tuple[Tensor, ...]


def number(bits: int) -> float:
    """The number that kernels are given the bits of, see `torchgw.kernels.gpu.float_bits`."""
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])


def dense_softmin(
    grid: Grid, S: Tensor, strides: tuple[int, int], bias: Tensor, out: Tensor, n: int, k: int, part: int, **_: Any
) -> None:
    as_it_is = S.stride() == strides if n == k else tuple(S.shape) == (n, k)
    score = S if as_it_is else S.T
    for split in range(grid[1]):
        here = slice(split * part, min((split + 1) * part, k))
        out[split] = dense.softmin(score[:, here].contiguous(), bias[here], 1)


def dense_sweep(
    grid: Grid, S: Tensor, stride: int, given: Tensors, out: Tensors, n: int, k: int, weight: int, **_: Any
) -> None:
    (log_p, f, g), (new_f, sums) = given, out
    found, softmin = dense.sweep(S, g, log_p, f, number(weight))
    new_f.copy_(found)
    sums.zero_()
    sums[0] = (softmin + g).exp2()


def dense_absorb(grid: Grid, S: Tensor, strides: Any, potentials: Tensors, out: Tensor, *_: Any, **__: Any) -> None:
    dense.absorb(S, *potentials, out)


def dense_rescale(
    grid: Grid, mass: Tensor, sums: Tensor, old: Tensor, out: Tensor, n: int, weight: int, **_: Any
) -> None:
    out.copy_(update_scaling(mass, sums, old, number(weight)))


def stream_softmin(
    grid: Grid, factors: Tensors, bias: Tensor, out: Tensor, n: int, k: int, part: int, **_: Any
) -> None:
    A, B = factors
    for split in range(grid[1]):
        here = slice(split * part, min((split + 1) * part, k))
        out[split] = stream.softmin(A, B[here], bias[here], 1)


def stream_absorb(grid: Grid, factors: Tensors, potentials: Tensors, out: Tensor, *_: Any, **__: Any) -> None:
    stream.absorb(*factors, *potentials, out)


def tiled_softmin(
    grid: Grid, factors: Tensors, bias: Tensor, lists: Tensors, out: Tensor, n: int, k: int, **more: Any
) -> None:
    out.fill_(-torch.inf)
    out[0] = tiled.softmin(*factors, Tiles(more["SIZE"], n, k, *lists), bias, 1)


def tiled_read(
    grid: Grid, factors: Tensors, f: Tensor, g: Tensor, moved: Tensors, lists: Tensors, out: Tensor, down: Tensor,
    n: int, k: int, *_: Any, **more: Any,
) -> None:  # fmt: skip
    tiles = Tiles(more["SIZE"], n, k, *lists)
    found = tiled.read(*factors, tiles, f, g, *moved)
    out.zero_()
    out[0] = found.TV
    if more["DOWN"]:  # all of a column in the first entry of its list
        ends = tiles.transpose.first
        kept = ends[:-1] < ends[1:]
        sums = torch.nn.functional.pad(found.TtW[:, 0], (0, -k % tiles.size)).view(-1, tiles.size)
        down.zero_()
        down[0, tiles.by_column[ends[:-1][kept]]] = sums[kept].to(down.dtype)


def tiled_down(grid: Grid, down: Tensor, lists: Tensors, out: Tensor, k: int, m: int, **_: Any) -> None:
    first, entry = lists
    every = torch.arange(len(first) - 1, device=first.device)
    own = torch.repeat_interleave(every, first.diff()) == every[:, None]
    out.copy_((own.to(out.dtype) @ down.sum(0)[entry].to(out.dtype)).flatten()[:k, None])


def principal(
    grid: Grid, standing: Tensor, places: Tensor, runs: Tensor, features: Tensor, order: Tensor, ends: Tensor,
    out: Tensor, n: int, d: int, start: int, parts: int, shift: int, **_: Any,
) -> None:  # fmt: skip
    if n == len(order):
        out.copy_(directions.keys(features, order, ends, parts))
        return
    cell = torch.empty_like(order)
    cell[order] = torch.repeat_interleave(torch.arange(len(ends) - 1, device=order.device), ends.diff())
    cell = cell[start : start + n]
    bits = (features * directions.directions(standing, places, runs)[cell]).sum(1).double().view(torch.int64)
    out.copy_((cell << (64 - shift)) + ((bits ^ ((bits >> 63) & 2**63 - 1)) >> shift))


def small_solve(grid: Grid, given: Tensors, strides: Any, out: Tensors, n: int, k: int, n_iter: int, **_: Any) -> None:
    for held, new in zip(out, small.solve(*given, out[-1], n_iter), strict=True):
        held.copy_(new)


def small_scalings(
    grid: Grid, given: Tensors, out: Tensors, n: int, k: int, plain: int, relaxed: int, **_: Any
) -> None:
    for held, new in zip(out, small.scalings(*given, small.IterationCounts(plain, relaxed)), strict=True):
        held.copy_(new)


def ways(grid: Grid, graph: Tensors, distance: Tensor, label: Tensor, matrix: Tensor, n: int, m: int, **_: Any) -> None:
    matrix.view(torch.float64).copy_(paths.direct_cell_distances(*graph, distance, label, m))


def entries(
    grid: Grid, matrix: Tensor, high: Tensor, target: Tensor, length: Tensor, m: int, *_: Any, **__: Any
) -> None:
    for row, values in enumerate(matrix[:m, :m]):
        which = values.isfinite().nonzero()[:, 0]
        target[row, : len(which)], length[row, : len(which)] = which.int(), values[which]
        high[row] = row * m + len(which)


def search(
    grid: Grid, graph: Tensors, source: Tensor, distance: Tensor, scratch: Tensors, n: int, *_: Any, **__: Any
) -> None:
    low, high, target, length = graph
    count = high - low[:n]
    pointer = torch.nn.functional.pad(count.cumsum(0), (1, 0)).int()
    shift = torch.repeat_interleave(low[:n] - pointer[:-1], count)
    edge = torch.arange(len(shift), device=shift.device) + shift
    rows = paths.paths(pointer, target.flatten()[edge], length.flatten()[edge], source)
    distance.view(torch.float64).copy_(rows)


def spread(grid: Grid, graph: Tensors, distance: Tensor, label: Tensor, *given: Any, **_: Any) -> None:
    for held, new in zip(given[:2], paths.spread_labels(*graph, distance, label), strict=True):
        held.copy_(new)


def nearest(
    grid: Grid, axes: Tensor, order: Tensor, boxes: Tensors | None, keys: Tensor, n: int, k: int, d: int, **_: Any
) -> None:
    points = torch.empty_like(axes.T)
    points[order] = axes.T
    keys.copy_(graphs.keys_of(graphs.nearest(points, k)))


def edges(grid: Grid, found: Tensors, points: Tensor, edges: Tensors, doubtful: Tensors, *_: Any, **__: Any) -> None:
    for held, new in zip(edges, graphs.edges_of(found[0], points), strict=True):
        held.copy_(new)
    *rest, label = doubtful
    for held, value in zip(rest, (torch.inf, -1, 0), strict=True):
        held.fill_(value)
    label.copy_(torch.arange(len(label)))


def doubts(
    grid: Grid, pointer: Tensor, target: Tensor, length: Tensor, mutual: Tensor, waiting: Tensor, label: Tensor,
    **_: Any,
) -> None:  # fmt: skip
    row = torch.repeat_interleave(torch.arange(len(pointer) - 1, device=pointer.device), pointer.diff())
    padded = torch.nn.functional.pad(row.int(), (0, len(target) - len(row)))
    held = CsrEdges(pointer, padded, target, length, mutual)
    waiting.copy_(graphs.doubtful_lengths(held))
    label.copy_(graphs.label_parts(held, waiting))


def listed(grid: Grid, given: Tensors, graph: Tensors, out: Tensors, entries: int, **_: Any) -> None:
    (length, order), (pointer, row, target) = given, graph
    found = torch.full_like(length, torch.inf)
    found[order] = length
    held = CsrEdges(pointer, row, target, _real(pointer, target), row)
    for into, new in zip(out, operator.itemgetter(0, 2, 3)(graphs.list_doubtful(held, found)), strict=True):
        into.copy_(new)


def _real(pointer: Tensor, target: Tensor) -> Tensor:
    """Any length for the entries that rows hold, and infinity for those behind them."""
    every = torch.arange(len(target), device=target.device)
    return torch.where(every < pointer[-1], 1.0, torch.inf).double()


def joined(grid: Grid, doubtful: Tensors, parts: Tensor, *_: Any, **__: Any) -> None:
    parts.copy_(graphs.join_parts(CsrEdges(doubtful[-1], *doubtful[:4]), DoubtfulEdges(*doubtful)))


def tries(
    grid: Grid, graph: Tensors, doubtful: Tensors, scratch: Tensors, n: int, d: int, entries: int, factor: int, **_: Any
) -> None:
    points, pointer, target, length = graph
    row = torch.repeat_interleave(torch.arange(n, device=pointer.device), pointer.diff()).int()
    padded = torch.nn.functional.pad(row, (0, len(target) - len(row)))
    graphs.decide_edges(
        points, CsrEdges(pointer, padded, target, length, target), DoubtfulEdges(*doubtful), number(factor)
    )


def closed(grid: Grid, edges: Tensors, doubtful: Tensors, told: Tensor, size: Tensor, *_: Any, **__: Any) -> None:
    told.copy_(graphs.finish_graph(CsrEdges(*edges), DoubtfulEdges(*doubtful), size))


def farthest(grid: Grid, rows: Tensor, nearest: Tensor, chosen: Tensor, n: int, most: int, **_: Any) -> None:
    chosen.copy_(paths.farthest(rows, most))


KERNELS: dict[str, dict[str, Callable[..., None]]] = {
    "softmin_dense": {
        "softmin_kernel": dense_softmin,
        "sweep_kernel": dense_sweep,
        "absorb_kernel": dense_absorb,
        "rescale_kernel": dense_rescale,
    },
    "softmin_stream": {"softmin_kernel": stream_softmin, "absorb_kernel": stream_absorb},
    "softmin_tiles": {"softmin_kernel": tiled_softmin, "read_kernel": tiled_read, "down_kernel": tiled_down},
    "principal_directions": {"keys_kernel": principal},
    "small_transport": {"solve_kernel": small_solve, "scalings_kernel": small_scalings},
    "neighbour_graphs": {
        "nearest_kernel": nearest,
        "edges_kernel": edges,
        "doubts_kernel": doubts,
        "list_doubtful_kernel": listed,
        "join_parts_kernel": joined,
        "decide_edges_kernel": tries,
        "finish_graph_kernel": closed,
    },
    "shortest_paths": {
        "ways_kernel": ways,
        "entries_kernel": entries,
        "search_kernel": search,
        "spread_kernel": spread,
        "farthest_kernel": farthest,
    },
}


WITHOUT_STRIDES = ("neighbour_graphs", "shortest_paths")  # which take it that tensors lie in rows


@cache
def by_value(family: str) -> dict[str, tuple[bool, ...]]:
    """For each Triton kernel of a family, whether it is compiled anew for kinds of values, or of alignment, of each
    argument, by its source, as Triton need not be there."""
    package = importlib.import_module(f"torchgw.kernels.{family}")
    tree, found = ast.parse((Path(inspect.getfile(package)).parent / "triton_kernels.py").read_text()), {}
    for node in (each for each in tree.body if isinstance(each, ast.FunctionDef)):
        given = [more for call in node.decorator_list if isinstance(call, ast.Call) for more in call.keywords]
        exempt = {name for more in given for name in ast.literal_eval(more.value)}
        found[node.name] = tuple(argument.arg not in exempt for argument in node.args.args)
    return found


def variant(values: Iterable[Any], by_value: Iterable[bool], constants: dict[str, Any]) -> Hashable:
    """What Triton tells compiled kernels apart by: dtypes of tensors, the width of integers, constants, and where it
    asks, whether a tensor is aligned and an integer is 1 or a multiple of 16."""
    key: list[Hashable] = []
    for value, asked in zip(values, by_value, strict=False):
        if isinstance(value, tuple):  # of whose elements Triton always asks
            key.append(variant(value, [True] * len(value), {}))
        elif value is None:
            key.append(None)
        elif isinstance(value, Tensor):
            key.append((value.dtype, asked and getattr(value, "held", value).data_ptr() % 16 == 0))
        elif isinstance(value, int):
            key.append((abs(value) >= 2**31, asked and (value == 1, value % 16 == 0)))
    return *key, *sorted(constants.items())


def leaves(values: Iterable[Any]) -> Iterator[Any]:
    """The values, and what tuples among them have."""
    for value in values:
        yield from leaves(value) if isinstance(value, tuple) else (value,)


class _Kernel:
    """A kernel that is launched on a grid."""

    def __init__(self, simulation: Simulation, name: str, body: Callable[..., None]) -> None:
        self._simulation, self._name, self._body = simulation, name, body
        family, kernel = name.split()
        self._by_value = by_value(family)[kernel]

    def __getitem__(self, grid: Grid) -> Callable[..., None]:
        return partial(self._launch, grid)

    def _launch(self, grid: Grid, *given: Any, num_warps: int = 4, num_stages: int = 2, **constants: Any) -> None:
        if self._name.startswith(WITHOUT_STRIDES):
            assert all(each.is_contiguous() for each in leaves(given) if isinstance(each, Tensor)), self._name
        # Triton before 3.4 takes every float for a float32, whatever is annotated.
        assert not any(isinstance(each, float) for each in leaves(given)), (
            f"{self._name}: a number that is rounded on its way"
        )
        options = {"num_warps": num_warps, "num_stages": num_stages}
        self._simulation.variants[self._name].add(variant(given, self._by_value, constants | options))
        body = partial(self._body, grid, **constants)
        with self._simulation.one_launch(self._name, body, given):
            body(*given)


@contextmanager
def triton_stands_in(simulation: Simulation) -> Iterator[None]:
    """Within it ``backend="triton"`` launches the kernels above."""
    families = [importlib.import_module(f"torchgw.kernels.{name}.triton") for name in KERNELS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "failure", lambda _: None)
        for name, bodies in KERNELS.items():
            made = SimpleNamespace(
                **{kernel: _Kernel(simulation, f"{name} {kernel}", bodies[kernel]) for kernel in bodies}
            )
            package = f"torchgw.kernels.{name}"
            patch.setitem(sys.modules, f"{package}.triton_kernels", made)
            patch.setattr(sys.modules[package], "triton_kernels", made, raising=False)
        for family in families:
            family.build.cache_clear()
        try:
            yield
        finally:
            for family in families:
                family.build.cache_clear()

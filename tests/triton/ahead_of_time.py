"""Every Triton kernel compiles for GPUs that are not here: no spills, shared memory in limits, matrix units in use.

Run in a process without TRITON_INTERPRET, see tests/test_triton.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.triton.targets import KIBIBYTES, MATRIX_INSTRUCTION, TARGETS, compiled_for, resources
from torchgw.kernels import gpu
from torchgw.kernels import triton_kernels as trial_kernels
from torchgw.kernels.neighbour_graphs import triton as graphs
from torchgw.kernels.neighbour_graphs.graphs import CsrEdges, DoubtfulEdges
from torchgw.kernels.principal_directions import triton as principal
from torchgw.kernels.shortest_paths import triton as paths
from torchgw.kernels.small_transport import triton as small
from torchgw.kernels.small_transport.reference import IterationCounts
from torchgw.kernels.softmin_dense import triton as dense
from torchgw.kernels.softmin_stream import triton as stream
from torchgw.kernels.softmin_stream import triton_kernels as stream_kernels
from torchgw.kernels.softmin_tiles import triton as tiled
from torchgw.kernels.tiles import TILE, all_tiles

F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16


Case = tuple[str, bool, Callable[[], object]]


def dense_launches(dtype: torch.dtype, n: int, k: int) -> Iterator[Case]:
    """(name, whether it must use a matrix unit, a call) for the kernels over a stored score."""
    score, f, g = torch.zeros(n, k, dtype=dtype), torch.zeros(n, dtype=dtype), torch.zeros(k, dtype=dtype)
    bound, name = dense.build().bind(score), f"{n} x {k} {dtype}"
    yield f"dense softmin {name}", False, lambda: bound.softmin(g, 1)
    yield f"dense softmin over rows {name}", False, lambda: bound.softmin(f, 0)
    yield f"dense sweep {name}", False, lambda: bound.sweep(g, f, f, 1.8)
    yield f"dense absorb {name}", False, lambda: bound.absorb(f, g, torch.zeros(n, k, dtype=dtype))


def stream_launches(dtype: torch.dtype, dot: str, rank: int, target: str) -> Iterator[Case]:
    """The same for the kernels over a product, for one arithmetic and rank."""
    wide = F64 if dtype == F64 else F32
    A, B = torch.zeros(1001, rank, dtype=dtype), torch.zeros(777, rank, dtype=dtype)
    f, g = torch.zeros(1001, dtype=wide), torch.zeros(777, dtype=wide)
    bound, name = stream.build(dot).bind(A, B), f"{dtype} {dot} rank {rank}"
    # Products of float32 as they are (ieee) and of float64 run on the ordinary units of some of these devices.
    matrix = dtype == BF16 or (dtype == F32 and (target == "gfx942" or dot != "ieee"))
    yield f"stream softmin {name}", matrix, lambda: bound.softmin(g, 1)
    yield f"stream absorb {name}", matrix, lambda: bound.absorb(f, g, torch.zeros(1001, 777, dtype=wide))


def tile_launches(dtype: torch.dtype, dot: str, rank: int, size: int, width: int, target: str) -> Iterator[Case]:
    """The same for the kernels over kept tiles, for one arithmetic, rank, size of tiles, and width of what is moved."""
    A, B = torch.zeros(1001, rank, dtype=dtype), torch.zeros(777, rank, dtype=dtype)
    f, g = torch.zeros(1001, dtype=dtype), torch.zeros(777, dtype=dtype)
    V, W = torch.zeros(777, width, dtype=dtype), torch.zeros(1001, width, dtype=dtype)
    tiles, kernel = all_tiles(1001, 777, size, A.device), tiled.build(dot)
    name = f"{dtype} {dot} rank {rank}, tiles of {size}"
    # The matrix units of sm_90 and sm_100 that are looked for take 64 rows, which smaller tiles do not have.
    matrix = dtype == F32 and size >= 64 and (target == "gfx942" or dot != "ieee")
    yield f"tiled softmin {name}", matrix, lambda: kernel.softmin(A, B, tiles, g, 1)
    yield f"tiled read {name} of {width}", matrix, lambda: kernel.read(A, B, tiles, f, g, V, W)


def small_launches(dtype: torch.dtype, n: int, k: int) -> Iterator[Case]:
    """The same for the kernel on batches of small problems."""
    score, f, g = torch.zeros(3, n, k, dtype=dtype), torch.zeros(3, n, dtype=dtype), torch.zeros(3, k, dtype=dtype)
    yield f"small transport {n} x {k} {dtype}", False, lambda: small.build()[0](score, f[0], g[0], f, g, 8)
    masses, effort = (f[:, None], g[:, None]), IterationCounts(2, 3)
    yield f"small scalings {n} x {k} {dtype}", False, lambda: small.build()[1](score, *masses, effort)


def direction_launches(dtype: torch.dtype, d: int) -> Iterator[Case]:
    """The same for the kernel on cells with d features."""
    features, order, ends = torch.zeros(100, d, dtype=dtype), torch.arange(100), torch.tensor([0, 40, 100])
    yield f"principal directions of {d} {dtype}", False, lambda: principal.build()(features, order, ends, 60)


def path_launches() -> Iterator[Case]:
    """The same for the kernels on graphs."""
    pointer, target, length = torch.arange(5001).int(), torch.zeros(5000).int(), torch.zeros(5000, dtype=F64)
    graph, searches = (pointer, target, length), paths.build()
    yield "shortest paths", False, lambda: searches.paths(*graph, torch.tensor([0, 5]))
    yield "many shortest paths", False, lambda: searches.paths(*graph, torch.arange(100))
    yield "spread", False, lambda: searches.spread_labels(*graph, torch.zeros(5000, dtype=F64), torch.zeros(5000).int())
    yield "farthest", False, lambda: searches.farthest(torch.zeros(5000, 5000, dtype=F64), 9)


def graph_launches(d: int) -> Iterator[Case]:
    """The same for the kernels that make graphs of points with d coordinates."""
    points, built = torch.zeros(300, d, dtype=F64), graphs.build()
    numbers, lengths = torch.zeros(3000).int(), torch.zeros(3000, dtype=F64)
    edges = CsrEdges(numbers[:301], numbers, numbers, lengths, numbers.to(torch.int8))
    doubtful = DoubtfulEdges(numbers, lengths, *[numbers] * 4)
    for order in (None, torch.arange(300)):
        yield f"neighbours of {d}", False, lambda order=order: built.neighbours(points, 20, order)
    yield "joined", False, lambda: built.join_parts(edges, doubtful)
    yield f"tried of {d}", False, lambda: built.decide_edges(points, edges, doubtful, 5.0)
    yield "closed", False, lambda: built.finish_graph(edges, doubtful, lengths[0])


def trial_launches() -> Iterator[Case]:
    """The same for what a device is tried with."""
    yield "trial", False, lambda: trial_kernels.one_kernel[(1,)]((torch.zeros(1),), ONE=(1.0,))


def rescale_launches(dtype: torch.dtype) -> Iterator[Case]:
    """The same for what scales."""
    mass = torch.ones(100, dtype=dtype)
    for weight in (1.0, 1.8):
        yield (
            f"rescale {dtype} by {weight}",
            False,
            lambda weight=weight: dense.build().update_scaling(mass, mass, mass, weight),
        )


def usual(target: str) -> Iterator[Case]:
    """Every kernel once or twice, in the sizes and arithmetic that matter most."""
    yield from trial_launches()
    yield from dense_launches(F32, 64, 6001)
    yield from list(dense_launches(F32, 48, 12001))[2:3]
    yield from list(dense_launches(F64, 48, 8000))[2:3]
    yield from stream_launches(F32, "ieee" if target == "gfx942" else "tf32x3", 50, target)
    for dtype, dot in ((F32, "ieee"), (BF16, ""), (F64, "")):
        yield from list(stream_launches(dtype, dot, 64, target))[:1]
    for n, k in ((60, 60), (128, 40)):
        yield from small_launches(F32, n, k)
    yield from small_launches(F64, 60, 60)
    yield from direction_launches(F32, 200)
    yield from path_launches()
    yield from graph_launches(3)
    yield from rescale_launches(F32)
    yield from tile_launches(F32, "ieee" if target == "gfx942" else "tf32x3", 50, TILE, 51, target)
    yield from list(tile_launches(F64, "", 50, TILE, 51, target))[1:]


def fewest(target: str) -> Iterator[Case]:
    """A kernel of each family, with a matrix unit where there is one."""
    yield from list(dense_launches(F32, 64, 6001))[2:3]
    yield from small_launches(F32, 60, 60)
    yield from direction_launches(F32, 60)
    yield from list(path_launches())[:1]
    yield from list(graph_launches(3))[:1]
    yield from rescale_launches(F64)
    yield from list(stream_launches(F32, "tf32x3", 50, target))[:1]
    yield from list(tile_launches(F32, "tf32x3", 50, TILE, 51, target))[:1]


def all_of_them(target: str) -> Iterator[Case]:
    """The full product of kernel, dtype, arithmetic and kind of size."""
    for dtype in (F32, F64):
        for n, k in ((64, 6001), (48, 12001 if dtype == F32 else 8000), (65, 128)):
            yield from dense_launches(dtype, n, k)
        for n, k in ((5, 20), (17, 120), (60, 60), (64, 64)):
            yield from small_launches(dtype, n, k)
        yield from rescale_launches(dtype)
        for d in (1, 60, 256):
            yield from direction_launches(dtype, d)
    for dtype, dot in ((F32, "ieee"), (F32, "tf32x3"), (F32, "tf32"), (BF16, ""), (F64, "")):
        for rank in (16, 50, 130):
            yield from stream_launches(dtype, dot, rank, target)
            if dtype != BF16:
                for size, width in ((TILE, 1), (2 * TILE, 33), (32, 131)):
                    yield from tile_launches(dtype, dot, rank, size, width, target)


DAILY, OTHER_MAKER = "sm_90", "gfx942"  # other targets are slow tests


@pytest.mark.parametrize(
    "target", [DAILY, *(pytest.param(name, marks=pytest.mark.slow) for name in TARGETS if name != DAILY)]
)
def test_every_kernel_compiles_well(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(usual, target, tmp_path, monkeypatch)


def test_a_kernel_of_each_family_compiles_well_for_a_gpu_of_another_maker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(fewest, OTHER_MAKER, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_every_variant_compiles_well(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(all_of_them, target, tmp_path, monkeypatch)


def check(cases: Callable[[str], Iterator[Case]], target: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No spills, shared memory in limits, matrix units in one kernel of a call where they are due."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))  # cold: a real compilation, and nothing left behind
    monkeypatch.setattr(gpu, "is_amd", lambda: target.startswith("gfx"))
    faults = []
    for name, wants_matrix, call in cases(target):
        with compiled_for(target) as made:
            call()
        assert made, name
        every = [resources(kernel) for kernel in made]
        used = any(entry.startswith(MATRIX_INSTRUCTION[target]) for found in every for entry in found["matrix"])
        for found in every:
            good = found["spilled"] == 0 and found["shared"] <= KIBIBYTES[target] * 1024 and (used or not wants_matrix)
            print(target, name, found)
            if not good:
                faults.append((name, found))
    assert not faults


def test_the_check_finds_spills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    A, f = torch.zeros(64, 64), torch.zeros(64)
    with compiled_for("sm_80") as made:
        tile = stream.Tile(64, 64, 32, 4, 3, 64, "tf32x3")
        stream_kernels.softmin_kernel[(1,)]((A, A), f, f, 64, 64, 64, TILE=tile, maxnreg=64)
    assert resources(made[0])["spilled"] > 0

"""Numbers of the Triton kernels, on the interpreter.

Run in a process with TRITON_INTERPRET=1, see tests/test_triton.py. The interpreter rounds no product to tf32 and gets
those of bfloat16 wrong, so these two are left to a GPU.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from triton.runtime import interpreter

from tests import kernel_cases as cases
from tests import tile_cases
from tests.kernels import RANKS, factors, wide
from tests.problems import daily, in_turn
from torchgw import CoarseOptions, GWOptions, StoppingOptions, gw_align
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.kernels import (
    gpu,
    neighbour_graphs,
    principal_directions,
    shortest_paths,
    small_transport,
    softmin_dense,
    softmin_stream,
    softmin_tiles,
)
from torchgw.kernels.dispatch import Workload
from torchgw.kernels.tiles import all_tiles
from torchgw.solvers import inner
from torchgw.strategies import streaming

assert os.environ.get("TRITON_INTERPRET") == "1", "set TRITON_INTERPRET=1 before triton is imported"

_patch_tensor, _given = interpreter._patch_lang_tensor, interpreter._implicit_cvt


def _patched(tensor: Any, *scope: Any) -> None:
    # Triton before 3.7 hands arrays of one entry to int(), which NumPy 2.5 does not take.
    _patch_tensor(tensor, *scope)
    tensor.__index__ = lambda self: int(self.handle.data.squeeze())


def _exact(argument: Any) -> Any:
    # The interpreter keeps the digits of a float that Triton before 3.4 rounds to float32.
    assert not isinstance(argument, float), "a kernel is given a float: give it `gpu.float_bits` of it"
    return _given(argument)


interpreter._patch_lang_tensor, interpreter._implicit_cvt = _patched, _exact

CPU = torch.device("cpu")
WORKLOAD = Workload(CPU, torch.float32, (64, 64), 16, dot="ieee")
DENSE = softmin_dense.choose("triton", WORKLOAD).function
STREAM = softmin_stream.choose("triton", WORKLOAD).function
TILES = softmin_tiles.choose("triton", WORKLOAD).function
DTYPES = (torch.float32, torch.float64)
SMALL = ((1, 1), (2, 63), (65, 64), (64, 2), (63, 65))

# The interpreter works in NumPy, which warns of the infinities that the kernels are made for.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def _poisoned() -> Iterator[None]:
    yield from cases.poisoned()


def test_a_device_is_tried_by_a_kernel() -> None:
    assert gpu.failure(CPU) is None


@pytest.mark.parametrize(
    ("size", "dtype", "axis"), in_turn([*SMALL, (500, 130), (90, 1000), (1000, 65)], DTYPES, [0, 1])
)
def test_dense_softmin(size: tuple[int, int], dtype: torch.dtype, axis: int) -> None:
    n, k = size
    cases.dense_softmin(DENSE, "cpu", n, k, dtype, axis, holes=n != 65)


@pytest.mark.parametrize("axis", [0, 1])
def test_dense_layouts(axis: int) -> None:
    cases.dense_layouts(DENSE, "cpu", axis)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), [(2, 63), (17, 65), (9, 500)])
def test_dense_sweep(n: int, k: int, dtype: torch.dtype) -> None:
    cases.dense_sweep(DENSE, "cpu", n, k, dtype)


def test_dense_sweep_of_rows_too_wide_for_the_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(softmin_dense.triton.WIDEST, 4, 64)
    cases.dense_sweep(DENSE, "cpu", 3, 130, torch.float32)


@pytest.mark.parametrize(("rank", "dtype", "axis"), in_turn(RANKS, DTYPES, [0, 1]))
def test_stream_softmin_of_any_rank(rank: int, dtype: torch.dtype, axis: int) -> None:
    cases.stream_softmin(STREAM, "cpu", 65, 130, rank, dtype, axis, holes=rank % 2 == 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), [*SMALL, (500, 63), (2, 1000)])
def test_stream_softmin_of_any_size(n: int, k: int, dtype: torch.dtype) -> None:
    cases.stream_softmin(STREAM, "cpu", n, k, 7, dtype, 1, holes=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 33), (17, 5), (60, 60), (65, 20)])
def test_small_transport(n: int, k: int, dtype: torch.dtype) -> None:
    small = small_transport.choose("triton", Workload(CPU, dtype, (n, k))).function
    cases.small_transport(small, "cpu", 2, n, k, dtype, holes=n != 60)


@pytest.mark.parametrize("kind", daily([("duplicates",), ("star",), ("ties",)], cases.graphs()))
def test_shortest_paths(kind: str) -> None:
    searches = shortest_paths.choose("triton", Workload(CPU, torch.float64, (1, 1))).function
    assert searches is not None
    cases.shortest_paths(searches, "cpu", cases.graphs()[kind])


def test_searches_go_on_from_one_launch_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = shortest_paths.choose("triton", Workload(CPU, torch.float64, (1, 1))).function
    assert searches is not None
    monkeypatch.setattr(shortest_paths.triton, "ROUNDS", 9)
    cases.shortest_paths(searches, "cpu", cases.graphs()["ties"])


@pytest.mark.parametrize("kind", daily([("ties",), ("two",)], cases.clouds()))
def test_neighbour_graphs(kind: str) -> None:
    built = neighbour_graphs.choose("triton", Workload(CPU, torch.float64, (1, 1))).function
    assert built is not None
    points = cases.clouds()[kind]
    cases.neighbour_graphs(built, "cpu", points, min(7, len(points) - 1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "d"), [(8, 1), (1500, 3), (333, 60)])
def test_principal_directions(n: int, d: int, dtype: torch.dtype) -> None:
    find = principal_directions.choose("triton", Workload(CPU, dtype, (n, 9), d)).function
    cases.principal_directions(find, "cpu", n, d, dtype)


@pytest.mark.parametrize("weight", [1.0, 1.8])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 63, 300])
def test_scalings(n: int, dtype: torch.dtype, weight: float) -> None:
    cases.rescaled(DENSE, "cpu", n, dtype, weight)


def test_stream_layouts() -> None:
    cases.stream_layouts(STREAM, "cpu")


def test_stream_sweep() -> None:
    cases.stream_sweep(STREAM, "cpu", 65, 70, 20, torch.float32)


def operands(n: int, k: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
    A, B = factors(n, k, 6, torch.float64, 1, reach=20.0)
    return (A, B), A @ B.T


def test_absorbing() -> None:
    (A, B), score = operands(65, 300)
    cases.absorbs(DENSE, (score,), wide(score)[0], "cpu")
    cases.absorbs(STREAM, (A, B), wide(score)[0], "cpu")


@pytest.mark.parametrize(("rank", "dtype"), in_turn(RANKS, DTYPES))
def test_tiled_softmins_of_any_rank(rank: int, dtype: torch.dtype) -> None:
    tile_cases.softmins(TILES, "cpu", 32, 70, 50, rank, dtype)


@pytest.mark.parametrize(("shape", "dtype"), in_turn(tile_cases.SHAPES, DTYPES))
def test_tiled_softmins_of_any_size(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    tile_cases.softmins(TILES, "cpu", *shape, 7, dtype)


@pytest.mark.parametrize(
    ("shape", "dtypes"),
    in_turn(
        tile_cases.SHAPES,
        [(torch.float32, torch.float32), (torch.float32, torch.float64), (torch.float64, torch.float64)],
    ),
)
def test_tiled_reads_of_any_size(shape: tuple[int, int, int], dtypes: tuple[torch.dtype, ...]) -> None:
    tile_cases.reads(TILES, "cpu", *shape, 7, 3, dtypes)


@pytest.mark.parametrize(("rank", "width"), [(1, 0), (7, 1), (16, 16), (64, 65), (65, 64), (130, 130)])
def test_tiled_reads_of_any_rank_and_width(rank: int, width: int) -> None:
    for dtypes in ((torch.float32, torch.float32), (torch.float32, torch.float64)):
        tile_cases.reads(TILES, "cpu", 32, 70, 50, rank, width, dtypes)


@pytest.mark.parametrize("below", [softmin_tiles.triton.MOST_BELOW, 0])
def test_tiled_reads_of_two_widths(below: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmin_tiles.triton, "MOST_BELOW", below)
    tile_cases.reads_of_two_widths(TILES, "cpu", (torch.float32, torch.float64))


@pytest.mark.parametrize("parts", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_tiled_kernels_merge_the_parts_of_a_list(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmin_tiles.triton, "splits", lambda *_: parts)
    tile_cases.softmins(TILES, "cpu", 16, 20, 90, 7, torch.float64)
    tile_cases.reads(TILES, "cpu", 16, 20, 90, 7, 3, (torch.float64, torch.float64))
    tile_cases.sums_of_nothing(TILES, "cpu", torch.float64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tiled_sweeps_and_sums_of_nothing(dtype: torch.dtype) -> None:
    tile_cases.sweeps(TILES, "cpu", dtype)
    tile_cases.sums_of_nothing(TILES, "cpu", dtype)


def test_tiled_large_scores_and_empty_values() -> None:
    tile_cases.wide_potentials_keep_large_scores(TILES, "cpu")
    tile_cases.what_is_not_asked_for_is_empty_or_zero(TILES, "cpu")


def test_tiles_that_blocks_do_not_divide_are_refused() -> None:
    A, B = factors(30, 50, 6, torch.float64, 1)
    for size in (8, 24, 1):
        with pytest.raises(ValueError, match=f"multiple of 16 points for the Triton kernels, got {size}"):
            TILES.softmin(A, B, all_tiles(30, 50, size, CPU), B[:, 0], 1)


@pytest.mark.parametrize(
    ("damping", "weight"),
    daily({((1.0, 1.0), 1.4), ((0.3, 0.9), 1.4)}, [(1.0, 1.0), (0.5, 1.0), (1.0, 0.8), (0.3, 0.9)], [1.0, 1.4]),
)
def test_relaxed_marginals_give_the_potentials_of_the_eager_kernel(damping: tuple[float, float], weight: float) -> None:
    cases.relaxed_agree(DENSE, STREAM, damping, weight, n_iter=20)


@pytest.mark.parametrize("gradient", ["exact", "sampled"])
def test_a_whole_alignment_agrees_with_the_eager_one(gradient: str) -> None:
    X, Y = make_spiral(40)[0], make_swiss_roll(45, random_state=1)[0]
    options = GWOptions(
        gradient=gradient, coarse=None, mixed_precision=False, stopping=StoppingOptions(max_iter=3, min_iter=1)
    )
    given = {"distances": "euclidean", "epsilon": 0.05, "options": options, "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager, triton = (gw_align(X, Y, backend=name, **given) for name in ("eager", "triton"))
    assert triton.backend == "triton"
    assert {"rows", "columns", "splits", "sweep_width", "sweep_warps"} == set(triton.blocks)
    assert np.abs(eager.plan - triton.plan).sum() < 1e-6


def test_a_streamed_alignment_on_kept_tiles_agrees_with_the_eager_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (inner, streaming):
        monkeypatch.setattr(place, "TILE", 16)
    monkeypatch.setattr(inner, "SKIPPED_FROM", 1)
    monkeypatch.setattr(streaming, "EVERY_PAIR", 1)
    X, Y = make_spiral(34)[0], make_swiss_roll(41, random_state=1)[0]
    given = {
        "distances": "euclidean",
        "epsilon": 0.1,
        # Every start of a search is a program, which the interpreter takes one by one.
        "options": GWOptions(
            strategy="streaming", mixed_precision=False, coarse=CoarseOptions(n_starts=4, n_landmarks=10)
        ),
        "random_state": 0,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager, triton = (gw_align(X, Y, backend=name, **given) for name in ("eager", "triton"))
    assert triton.backend == "triton"
    assert np.abs(eager.plan - triton.plan).sum() < 1e-6

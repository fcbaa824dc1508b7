"""What a solve asks of a GPU: no more launches and waits than it is said to."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.launches import CASES, Case, counted, largest_crossing
from tests.problems import quietly
from tests.simulated_device import simulated_gpu
from tests.simulated_kernels import triton_stands_in
from torchgw import GWOptions, StoppingOptions, estimate, gw_align, gw_pairwise
from torchgw.couplings.rounding import round_tiles, sweep_tiles
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.kernels.softmin_tiles import reference, triton
from torchgw.kernels.softmin_tiles.tile_kernel import TileKernel
from torchgw.kernels.tiles import TiledPlan, all_tiles, choose_tiles
from torchgw.runtime import cuda_graphs, scratch
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.sinkhorn.score import factored_score
from torchgw.spaces.coarsening import bisect

REFERENCE = TileKernel(reference.softmin, reference.read)
SMALL, DENSE, STREAMED = CASES
MEGABYTES = {SMALL: (40, 50), DENSE: (620, 700), STREAMED: (160, 220)}  # of a first solve, and with what is kept
BINS = (2 * (2**14 + 1) + 3) * 8  # bytes of what lower bounds are made of: histograms of distances and three numbers
STARTS = 47 * 60**2  # entries of first guesses between landmarks


@pytest.fixture(autouse=True)
def _no_graphs_of_before() -> Iterator[None]:
    """Simulated graphs keep all that was computed on their way."""
    yield
    cuda_graphs.forget()
    scratch.forget()


@pytest.mark.parametrize(
    "case", [SMALL, *(pytest.param(case, marks=pytest.mark.slow) for case in (DENSE, STREAMED))], ids=str
)
def test_a_solve_launches_and_waits_no_more_than_is_said(case: Case) -> None:
    found = counted(case)
    assert 0 < found.n_launches <= case.launches
    assert 0 < found.n_waits <= case.waits, found.table()
    assert 0 < found.memory.peak <= MEGABYTES[case][1] * 10**6, found.memory.place
    assert sum(count for place, count in found.launches.items() if place.endswith(" graph")) > 50
    assert found.captured.total() <= (30 if case is DENSE else 0)  # a user's plan may lie where one did before
    assert largest_crossing(found) <= max(BINS, STARTS)  # whatever the number of points


@pytest.mark.parametrize(
    "case", [SMALL, *(pytest.param(case, marks=pytest.mark.slow) for case in (DENSE, STREAMED))], ids=str
)
def test_a_first_solve_takes_the_memory_that_is_forecast(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "_HERE", threading.local())
    monkeypatch.setattr(scratch, "_HERE", threading.local())
    found = counted(case, before=0)
    assert 0 < found.memory.peak <= MEGABYTES[case][0] * 10**6, found.memory.place
    if case is not SMALL:
        given = {"epsilon": 1e-3, "options": GWOptions(strategy=case.strategy), "device": "cuda"}
        assert estimate(case.n, case.k, **given)[case.strategy].memory == pytest.approx(found.memory.peak, rel=0.2)


@pytest.mark.slow
def test_other_data_of_a_size_find_the_same_graphs() -> None:
    with simulated_gpu() as simulation, triton_stands_in(simulation):
        for seed in range(4):
            simulation.reset()
            X, Y = make_spiral(SMALL.n, random_state=seed)[0], make_swiss_roll(SMALL.k, random_state=seed)[0]
            quietly(gw_align, X, Y, epsilon=1e-3, device="cuda", backend="triton", random_state=seed)
    assert simulation.captured.total() < 0.5 * simulation.n_launches < SMALL.launches


def parts_of_a_streaming_solve(device: str, kernel: TileKernel) -> dict[str, Callable[[], Tensor]]:
    """What is replayed between points, cells and tiles, as functions without arguments."""
    draws = torch.Generator().manual_seed(0)
    A, B, f, g = (torch.randn(size, generator=draws).double().to(device) for size in ((300, 3), (280, 3), 300, 280))
    p, q = torch.full_like(f, 1 / 300), torch.full_like(g, 1 / 280)
    tiles = all_tiles(300, 280, 64, p.device)
    return {
        "cells": lambda: bisect(A, 16).cells.means(A, p),
        "score": lambda: factored_score(FactoredCost(f, g, A, B), p, q, 1.0, 1e-6).A,
        "tiles": lambda: choose_tiles(A, B, f, g, (p, q), 64, 1e-3)[0].column,
        "steps": lambda: torch.cat(sweep_tiles(kernel, A, B, tiles, f, g, p, q)[:2]),
        "rounded": lambda: round_tiles(kernel, TiledPlan(A, B, f, g, tiles), p, q).rows,
    }


@pytest.mark.parametrize("name", parts_of_a_streaming_solve("cpu", REFERENCE))
def test_parts_of_a_streaming_solve_are_a_few_launches_from_the_third_call_on(name: str) -> None:
    expected = parts_of_a_streaming_solve("cpu", REFERENCE)[name]()
    with simulated_gpu() as simulation, triton_stands_in(simulation):
        call = parts_of_a_streaming_solve("cuda", triton.build())[name]
        for _ in range(3):
            simulation.launches.clear()
            simulation.captured.clear()
            torch.testing.assert_close(call().cpu(), expected)
    assert simulation.captured.total() == 0
    assert 0 < simulation.n_launches <= 12


@pytest.mark.slow
def test_a_streaming_solve_is_replayed_from_the_third_on() -> None:
    X, Y = make_spiral(900)[0], make_swiss_roll(1100, random_state=1)[0]
    given = {"epsilon": 1e-3, "device": "cuda", "backend": "triton", "options": GWOptions(strategy="streaming")}
    found = []
    with simulated_gpu() as simulation, triton_stands_in(simulation):
        for _ in range(3):
            simulation.launches.clear()
            simulation.captured.clear()
            tensors = quietly(gw_align, X, Y, random_state=0, **given).coupling.tensors()
            found.append([part.cpu() for part in tensors.values()])
    assert simulation.captured.total() == 0
    assert 0 < simulation.n_launches <= 600
    first, *others = found
    assert all(torch.equal(one, same) for other in others for one, same in zip(first, other, strict=True))


def clouds(n: int, k: int, dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Points, and a rotated copy of them in another order with others beside."""
    rng = np.random.default_rng(0)
    X, turn = rng.normal(size=(n, dimension)), np.linalg.qr(rng.normal(size=(dimension, dimension)))[0]
    return X, np.concatenate(((X @ turn)[rng.permutation(n)], rng.normal(size=(k - n, dimension))))


def graphs(n: int) -> list[Any]:
    return [nx.connected_watts_strogatz_graph(n, 4, 0.3, seed=seed) for seed in (1, 2)]


# What is solved, and how often the host may wait: a tenth more than it did when this was written.
WAITS: dict[str, tuple[Any, dict[str, Any], int]] = {
    "ends crossed": (clouds(100, 130, 10), {"distances": "euclidean", "epsilon": 2e-3}, 118),
    "clouds": (clouds(90, 100, 3), {"epsilon": 1e-2}, 80),
    "conditional gradients": (clouds(90, 100, 3), {"distances": "euclidean"}, 112),
    "edges of graphs": (graphs(40), {"distances": "adjacency"}, 152),
    "edges of graphs, with entropy": (graphs(40), {"distances": "adjacency", "epsilon": 1e-2}, 112),
}


@pytest.mark.parametrize("name", WAITS)
def test_the_host_waits_no_more_often_than_is_said(name: str) -> None:
    (X, Y), given, most = WAITS[name]
    with simulated_gpu() as simulation, triton_stands_in(simulation):
        quietly(gw_align, X, Y, device="cuda", backend="triton", random_state=0, **given)
    assert 0 < simulation.n_waits <= most, simulation.table()


def variants(n: int, k: int, **given: Any) -> set[tuple[str, Hashable]]:
    """What a solve compiles."""
    X, Y = make_spiral(n)[0], make_swiss_roll(k, random_state=1)[0]
    with simulated_gpu() as simulation, triton_stands_in(simulation):
        quietly(gw_align, X, Y, epsilon=1e-3, device="cuda", backend="triton", random_state=0, **given)
    return {(name, kind) for name, kinds in simulation.variants.items() for kind in kinds}


def test_a_size_compiles_kernels_anew_for_one_reason_only() -> None:
    """Rows of the score begin at multiples of 16 entries, or they do not."""
    given = {"init": [[0, 0], [20, 26]], "options": GWOptions(stopping=StoppingOptions(max_iter=2, min_iter=1))}
    known = variants(21, 27, **given) | variants(32, 48, **given)
    assert 0 < len(known) <= 24
    assert variants(23, 29, **given) <= known
    counts = Counter(name for name, _ in known)
    assert {count for name, count in counts.items() if not name.startswith("softmin_dense")} == {1}


@pytest.mark.slow
def test_a_size_of_a_streamed_problem_compiles_few_kernels_anew() -> None:
    given = {"options": GWOptions(strategy="streaming")}
    known = variants(497, 513, **given) | variants(544, 560, **given) | variants(501, 527, **given)
    assert len(known) <= 37
    assert len(variants(530, 601, **given) - known) <= 1  # columns that a plan is read by, a power of two


def test_pairs_of_spaces_wait_for_their_chunks_alone() -> None:
    rng = np.random.default_rng(0)
    spaces = [rng.normal(size=(size, 3)) for size in (40, 52, 63, 41, 60)]
    with simulated_gpu() as simulation, triton_stands_in(simulation):
        found = gw_pairwise(spaces, device="cuda", random_state=0, n_jobs=1)
    np.testing.assert_allclose(found.square(), gw_pairwise(spaces, random_state=0, n_jobs=1).square(), atol=1e-6)
    scaled = sum(count for place, count in simulation.launches.items() if place.endswith("scalings_kernel"))
    assert 0 < scaled < 0.1 * simulation.n_launches
    assert 0 < simulation.n_waits <= 40, simulation.table()

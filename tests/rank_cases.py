"""What one rank of a test does: `run_ranks` starts it with the variables that ``torchrun`` sets, and each case writes
what it found to the folder, as JSON."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.simulated_device import CUDA, _inner, simulated_gpu
from tests.simulated_kernels import triton_stands_in
from torchgw import (
    Checkpoint,
    FactoredDistances,
    GWOptions,
    GWResult,
    LadderOptions,
    Partial,
    SemiRelaxed,
    SpaceOptions,
    Supervision,
    Unbalanced,
    distributed,
    gw_align,
    types,
)
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.distributed import processes
from torchgw.distributed.align import DEFAULTS, align_by_ranks
from torchgw.distributed.groups import open_ranks
from torchgw.solvers import linear_oracle
from torchgw.spaces.graph import build_graph
from torchgw.spaces.prepare import InputSpace
from torchgw.spaces.shared_graph import graphs_of_shares
from torchgw.spaces.shortest_paths import shortest_paths
from torchgw.strategies import vertex_levels

HOME = Path(__file__).parent.parent
STREAMING = GWOptions(strategy="streaming")
FINE = replace(STREAMING, ladder=LadderOptions(n_cells=64, marginal_tol=1e-3))


def clouds(n: int, k: int) -> tuple[Any, Any]:
    return make_spiral(n)[0], make_swiss_roll(k)[0]


def features(n: int, k: int) -> tuple[Any, Any]:
    draws = np.random.default_rng(0)
    return draws.random((n, 4)), draws.random((k, 4))


def factored(n: int) -> FactoredDistances:
    draws = np.random.default_rng(n)
    F = np.concatenate([draws.random((n, 3)), np.ones((n, 1))], 1)
    return FactoredDistances(F, np.array([1.0, 1, 1, -1]), 3.0)


def lifted(points: Any) -> Any:
    """The same points in a plane, or a space, of R^20, off it by a little and far from the origin."""
    draws = np.random.default_rng(len(points))
    there = points @ np.linalg.qr(draws.normal(size=(20, 20)))[0][: points.shape[1]]
    return there + 1e-3 * draws.normal(size=there.shape) + 1000.0


def parted(points: Any) -> Any:
    """The same points with two thirds of them elsewhere, a third twice as far."""
    return points + 50.0 * (np.arange(len(points)) % 3)[:, None]


def problems(n: int, k: int) -> dict[str, dict[str, Any]]:
    """Every marginal model, fused costs, rules, masses and kinds of spaces, between n and k points."""
    X, Y = clouds(n, k)
    masses = np.random.default_rng(1).random(n) * (np.arange(n) % 7 > 0)
    own: dict[str, Any] = {"X": X, "Y": Y, "distances": "landmark", "epsilon": 2e-3, "random_state": 0}
    own |= {"options": STREAMING}
    neighbours = replace(STREAMING, spaces=SpaceOptions(k=12))
    return {
        "balanced": own,
        "left to the solve": own | {"epsilon": "auto"},
        "fused": own | {"cost": features(n, k)},
        "semi-relaxed": own | {"marginals": SemiRelaxed(0.1)},
        "unbalanced": own | {"marginals": Unbalanced(0.1, 0.2)},
        "partial": own | {"marginals": Partial(0.8)},
        "fused and unbalanced": own | {"cost": features(n, k), "marginals": Unbalanced(0.1, 0.1)},
        "masses": own | {"p": masses / masses.sum()},
        "pairs": own | {"supervision": Supervision(pairs=[(0, 0), (n - 1, k - 1)])},
        "start": own | {"init": np.array([[0, 0], [n - 1, k - 1]])},
        "scale": own | {"options": replace(STREAMING, spaces=SpaceOptions(scale="common"))},
        "factors": own | {"X": factored(n), "Y": factored(k), "distances": "auto"},
        "float64": own | {"options": replace(STREAMING, mixed_precision=False)},
        "cells of cells": own | {"options": FINE},
        "sharp": own | {"epsilon": 0},
        "sharp, masses": own | {"epsilon": 0, "p": masses / masses.sum()},
        "sharp, factors": own | {"X": factored(n), "Y": factored(k), "distances": "auto", "epsilon": 0},
        "many dimensions": own | {"X": lifted(X), "Y": lifted(Y)},
        "parts": own | {"X": parted(lifted(X)), "Y": parted(lifted(Y))},
        "neighbours": own | {"X": lifted(X), "Y": parted(Y), "options": neighbours},
        "all points": own | {"options": replace(FINE, ladder=LadderOptions(n_cells=64, marginal_tol=1e-4))},
    }


DAILY = ("left to the solve", "fused and unbalanced", "partial", "masses", "pairs", "factors", "sharp, masses", "parts")


def alone(given: dict[str, Any]) -> GWResult:
    """The solve in one process, with one thread as the ranks have."""
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", types.TorchGWWarning)
        return gw_align(**given)


def summary(result: GWResult) -> dict[str, Any]:
    return {
        "value": result.value,
        "marginal_error": result.marginal_error,
        "matching": np.asarray(result.argmax()).tolist(),
        "stationarity": result.certificate.stationarity,
        "basins": len(result.basins),
    }


def by_ranks(names: list[str], n: int, k: int) -> dict[str, Any]:
    """The problems of these names, solved by all ranks."""
    found = {}
    for name, given in problems(n, k).items():
        if name in names:
            found[name] = summary(distributed.gw_align(**given))
    return found


LEVELS: dict[str, Any] = problems(600, 700)["sharp"]


def with_levels(solve: Callable[..., GWResult], **given: Any) -> GWResult:
    """A solve without entropy between so few points as if they were many: cells first, and flows."""
    with mock.patch.object(linear_oracle, "MOST_MASSES", 300), mock.patch.object(vertex_levels, "MOST_MASSES", 300):
        return solve(**given)


def on_the_simulated_device() -> dict[str, Any]:
    """A solve on a simulated GPU of each rank; exchanges carry what its tensors hold."""

    class Unwrapped:
        def __getattr__(self, name: str) -> Any:
            found = getattr(dist, name)
            if name not in ("all_reduce", "broadcast", "all_to_all_single", "send", "recv"):
                return found
            return lambda *given: found(*map(_inner, given))

    with simulated_gpu() as simulation, triton_stands_in(simulation), mock.patch.object(processes, "dist", Unwrapped()):
        ranks = processes.Processes(dist.group.WORLD, CUDA)  # type: ignore[arg-type]
        return summary(align_by_ranks(ranks, DEFAULTS | problems(120, 140)["balanced"]))


def cut_off(folder: Path) -> dict[str, Any]:
    """Rank 2 is killed when the climb is over; what becomes of the others, and when."""
    given = problems(600, 700)["cells of cells"] | {"checkpoint": Checkpoint(folder / "kept", every=0.0)}
    if dist.get_rank() == 2:

        def killed(*_: object) -> None:
            (folder / "killed").write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)

        mock.patch("torchgw.strategies.streaming.keep_tiles", killed).start()
    try:
        distributed.gw_align(**given)
    except distributed.RankError as error:
        return {"error": str(error), "after": time.time() - float((folder / "killed").read_text())}
    return {}


class InFile:
    """Points that are read when they are sliced."""

    def __init__(self, points: Any) -> None:
        self.points, self.shape, self.dtype = points, points.shape, points.dtype

    def __getitem__(self, where: Any) -> Any:
        return self.points[where]


def refused() -> dict[str, Any]:
    """Messages of what the ranks refuse."""
    X, Y = clouds(40, 50)
    rank = dist.get_rank()
    cases: dict[str, dict[str, Any]] = {
        "another": {"X": X + rank, "Y": Y, "p": None},
        "options": {"X": X, "Y": Y, "options": replace(STREAMING, max_memory=2**30 + rank)},
        "dense": {"X": X, "Y": Y, "options": GWOptions(strategy="dense")},
        "sharp and partial": {"X": X, "Y": Y, "epsilon": 0, "marginals": Partial(0.8)},
        "straight": {"X": X, "Y": Y, "distances": "euclidean"},
        "few": {"X": X, "Y": Y[:2].tolist()},
        "square": {"X": X, "Y": InFile(np.eye(20))},
        "few in a file": {"X": X, "Y": InFile(np.eye(2, 20))},
        "result": {"X": X, "Y": Y, "init": alone(problems(40, 50)["balanced"])},
        "other": {"X": X, "Y": Y, "epsilon": 0.0 if rank else 1e-3},
        "seed": {"X": X, "Y": Y, "random_state": np.int64(rank)},
        "device": {"X": X, "Y": Y, "device": "cuda"},
        "callback": {"X": X, "Y": Y, "callback": 5},
        "start": {"X": X, "Y": Y, "init": np.full((40, 50), 1.0)},
        "wrong": {"X": X, "Y": Y, "epsilon": -1.0},
        "checkpoint": {"X": X, "Y": Y, "checkpoint": "/nowhere/at/all"},
    }
    found = {}
    for name, given in cases.items():
        with pytest.raises((ValueError, TypeError)) as refusal:
            distributed.gw_align(**given)
        found[name] = str(refusal.value)
    return found


def parts(folder: Path) -> dict[str, Any]:
    """A result written in parts by all ranks."""
    result = distributed.gw_align(**problems(300, 350)["fused"])
    distributed.save(result, folder / "result")
    result.save(folder / f"whole-{dist.get_rank()}.npz")
    return {}


def graphs() -> dict[str, Any]:
    """Neighbour graphs of points that ranks share, each against that of all points, on the rank that has it."""
    draws, found = np.random.default_rng(3), {}
    X, Y = (lifted(points) for points in clouds(300, 350))
    clusters = draws.normal(size=(200, 24)) + 8.0 * np.eye(24)[np.arange(200) % 7]
    cases = {
        "one piece": (X, Y, None),
        "parts": (parted(X), parted(Y), None),
        "clusters": (clusters, Y, None),
        "duplicates": (np.repeat(X, 2, 0), np.repeat(clusters[:30], 30, 0), None),
        "few neighbours": (parted(X), clusters, 3),
        "many neighbours": (X, parted(Y), 40),
        "few points": (X[:4], Y[:6], None),
    }
    with open_ranks(None, "cpu") as ranks:
        for name, (*points, k) in cases.items():
            spaces = [InputSpace(side, each, "landmark") for side, each in zip("XY", points, strict=True)]
            shares = {number: each[ranks.share(len(each))] for number, each in enumerate(points)}
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for number, made in graphs_of_shares(shares, spaces, k, ranks).items():
                    graph, report = made.finish(k, "XY"[number])
                    said = [str(each.message) for each in caught]
                    caught.clear()
                    known, expected = build_graph(points[number], k, "XY"[number])
                    paths, others = (shortest_paths([(each, np.arange(2))])[0] for each in (graph, known))
                    found[f"{name} {number}"] = {
                        "report": report == expected and np.array_equal(report.short_cuts, expected.short_cuts),
                        "edges": np.array_equal(graph.indices, known.indices),
                        "off": float(abs(paths - others).max() / others.max()),
                        "told": said == [str(each.message) for each in caught],
                        "parts": report.n_components,
                    }
                    caught.clear()
    return found


def files(folder: Path) -> dict[str, Any]:
    """Points that stay in files: a memory map and arrays of HDF5, of few and of many dimensions; and such points that
    cannot be used."""
    import h5py

    given = problems(300, 350)["balanced"]
    if dist.get_rank() == 0:
        np.save(folder / "x.npy", given["X"])
        with h5py.File(folder / "y.h5", "w") as made:
            made["Y"] = given["Y"]
            made["bad"] = np.where(np.arange(350)[:, None] == 100, np.nan, given["Y"])
            made["many"] = lifted(given["Y"])
            made["many bad"] = np.where(np.arange(350)[:, None] == 300, np.nan, lifted(given["Y"]))
    dist.barrier()
    with h5py.File(folder / "y.h5") as opened:
        X = np.load(folder / "x.npy", mmap_mode="r")
        found = summary(distributed.gw_align(**given | {"X": X, "Y": opened["Y"]}))
        with pytest.raises(ValueError, match="Y must be finite") as refusal:
            distributed.gw_align(**given | {"X": X, "Y": opened["bad"]})
        many = summary(distributed.gw_align(**given | {"X": X, "Y": opened["many"]}))
        with pytest.raises(ValueError, match="Y must be finite") as other:
            distributed.gw_align(**given | {"X": X, "Y": opened["many bad"]})
        with pytest.raises(ValueError, match="rank 1 has another Y"):
            distributed.gw_align(**given | {"X": X, "Y": opened["Y" if dist.get_rank() == 1 else "many"]})
        own = given | {"X": factored(300), "distances": ("auto", "landmark")}
        beside = [distributed.gw_align(**own | {"Y": Y}).value for Y in (opened["Y"], given["Y"])]
        assert beside[0] == beside[1]  # whoever reads it
        return {"found": found, "many": many, "said": [str(refusal.value), str(other.value)]}


def stopped(folder: Path) -> dict[str, Any]:
    """A callback of the first rank asks all of them to end, or raises."""
    given = problems(300, 350)["cells of cells"]
    result = distributed.gw_align(**given, callback=lambda progress: True, checkpoint=Checkpoint(folder / "kept", 0.0))

    class OwnError(Exception):
        def __init__(self, one: int, other: int) -> None:
            super().__init__(f"{one} and {other}")

    def raising(progress: object) -> None:
        raise OwnError(1, 2)

    with pytest.raises(Exception, match="1 and 2") as error:
        distributed.gw_align(**given, callback=raising)
    return {"status": result.status.name, "error": error.type.__name__}


def on_gpus() -> dict[str, Any]:
    """A solve by NCCL, whatever the number of ranks: one has its exchanges too."""
    with open_ranks(None, None) as ranks:
        share = torch.arange(12.0, device=ranks.device).reshape(6, 2)[ranks.share(6)]
        order = torch.tensor([5, 0, 3, 1, 4, 2], device=ranks.device)
        moved = ranks.all_gather(ranks.permute(share, order), 6)
        known, names = problems(5000, 6000), ("balanced", "factors")
        if ranks.count == 1:
            found = {name: summary(align_by_ranks(ranks, DEFAULTS | known[name])) for name in names}
        else:
            found = by_ranks(list(names), 5000, 6000)
        return found | {"moved": moved[:, 0].tolist(), "sum": float(ranks.sum(torch.ones(1, device=ranks.device)))}


CASES: dict[str, Callable[[Path], Any]] = {
    "models": lambda folder: by_ranks(list(DAILY), 300, 350),
    "more models": lambda folder: by_ranks([name for name in problems(2, 2) if name not in DAILY], 300, 350),
    "large": lambda folder: by_ranks(["balanced"], 5000, 6000),
    "larger": lambda folder: by_ranks(["balanced"], 45000, 45000),
    "models at 3000": lambda folder: by_ranks(
        ["fused", "semi-relaxed", "unbalanced", "partial", "fused and unbalanced", "sharp"], 3000, 3500
    ),
    "levels": lambda folder: summary(with_levels(distributed.gw_align, **LEVELS)),
    "device": lambda folder: on_the_simulated_device(),
    "killed": cut_off,
    "resumed": lambda folder: summary(distributed.resume(folder / "kept")),
    "refused": lambda folder: refused(),
    "graphs": lambda folder: graphs(),
    "parts": parts,
    "files": files,
    "stopped": stopped,
    "gpus": lambda folder: on_gpus(),
}


def run_ranks(case: str, count: int, folder: Path, seconds: float = 120.0) -> list[Any]:
    """What each of ``count`` ranks found, None for one that wrote nothing.

    They are forked from a process that has imported this file: a rank that starts afresh spends seconds on imports.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    start = multiprocessing.get_context("forkserver")
    start.set_forkserver_preload([__name__, "sklearn.neighbors", "ortools.graph.python.min_cost_flow"])
    running = [
        start.Process(target=main, args=(case, folder, common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}))
        for rank in range(count)
    ]
    ends = time.monotonic() + seconds
    with mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "1"}):  # which the first call's server keeps
        for process in running:
            process.start()
    try:
        for process in running:
            process.join(ends - time.monotonic())
    finally:
        for process in running:
            process.kill()
    files = [folder / f"{case}-{rank}.json" for rank in range(count)]
    said = [file.read_text() for file in folder.glob(f"{case}-*.txt")]
    assert any(file.exists() for file in files), "\n".join(said)
    return [json.loads(file.read_text()) if file.exists() else None for file in files]


def main(case: str, folder: Path, variables: dict[str, str]) -> None:
    os.environ.update(variables)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", types.TorchGWWarning)
    try:
        with distributed.started(timeout=60.0, device="cuda" if case == "gpus" else "cpu"):
            found = CASES[case](folder)
            (folder / f"{case}-{dist.get_rank()}.json").write_text(json.dumps(found))
    except BaseException:
        (folder / f"{case}-{variables['RANK']}.txt").write_text(traceback.format_exc())
        raise

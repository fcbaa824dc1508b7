"""One solve by 1, 2 and 4 processes: the same result, bytes as modelled, memory of a rank, and time where each process
has a core of its own.

The model counts what `torchgw.distributed.processes` exchanges, from the algorithm alone; measured is what the loopback
interface has carried meanwhile. With R ranks, N + K points, landmarks L, ranks r of the distances' factors and s of the
score, in bytes sent by all ranks together:

    sweep over all pairs           4 (R - 1) (N + 4 K)
    rows of landmark distances     b L (N + K) (R - 1) / R                        b = 8, from 200 000 points on 4
    cells                          10 levels of 8 (N + K) (R - 1), and features of 32 points for each cell
    order of tiles                 log2(N / 64) levels of the same, by factors of the score
    factors, brought in order      4 (r + s) (N + K) (R - 1) / R
    passes over kept tiles         4 s K (R - 1) for each of four, and for each size of tiles that is tried; 4 r K once
    vectors                        8 (N + K) (R - 1) for each of some thirty

Between GPUs the same bytes go through NVLink, between machines through the network.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import show, write
from torchgw import GWOptions, GWResult, gw_align
from torchgw.datasets import make_spiral, make_swiss_roll

Row = dict[str, Any]
HOME = Path(__file__).parent.parent
EPSILON = 1e-3
COUNTS = (2, 4)
SAME = ((5000, 6000), (45_000, 45_000))
SENT = ((20_000, 20_000), (45_000, 45_000))
SWEPT = 12_000
WEAK = 20_000  # points of either space for each process
MANY = 300_000
LANDMARKS, FACTORS, TRIED = 100, (35, 62), 3  # of these clouds: landmarks, ranks of distances, sizes of tiles tried
SEARCHED = 9.7e6  # bytes of a search's result, between 1024 cells (measured)
CELLS, STANDING, SMALLEST = 1024, 32, 64


def modelled(n: int, k: int, ranks: int, landmarks: int, factors: tuple[int, int], score: int, tried: int) -> float:
    """Bytes that all ranks send in a solve whose climb ends at its first rung; ``tried`` sizes of tiles."""
    others, share, total = ranks - 1, (ranks - 1) / ranks, float(SEARCHED * (ranks - 1))
    for size, r, back in ((n, factors[0], False), (k, factors[1], True)):
        width = 4 if size >= 200_000 else 8
        total += width * landmarks * size * share + 2 * others * width * landmarks**2
        levels = math.ceil(math.log2(CELLS))
        total += 8 * size * others * levels + 2 * others * 4 * r * STANDING * (CELLS - 1)
        total += 2 * others * 8 * r * CELLS
        levels = math.ceil(math.log2(max(size / SMALLEST, 2)))
        cells = 2**levels - 1
        total += 8 * size * others * levels + 2 * others * 4 * score * STANDING * cells
        total += 4 * (r + score) * size * share
        total += (4 + 4 + 8 + 4) * size * others  # squares, nearest, score's rows, lifted
        total += 4 * score * size * others  # the coupling's factors
        if back:
            total += 4 * score * size * others * (4 + tried) + 4 * r * size * others
            total += 2 * 8 * size * others * 3
        else:
            total += 8 * size * others * (3 + 2 * 4)
    return total


def swept(n: int, k: int, ranks: int) -> float:
    """Bytes that all ranks send in a sweep: the rows' potentials, and twice reduced the columns' running pairs."""
    return 4.0 * (ranks - 1) * (n + 4 * k)


def solved(n: int, k: int) -> dict[str, Any]:
    X, Y = make_spiral(n)[0], make_swiss_roll(k, random_state=1)[0]
    options = GWOptions(strategy="streaming")
    return {"X": X, "Y": Y, "distances": "landmark", "epsilon": EPSILON, "random_state": 0, "options": options}


def carried() -> int:
    """Bytes that the loopback interface has carried."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        if line.strip().startswith("lo:"):
            return int(line.split(":")[1].split()[0])
    return 0


def memory() -> dict[str, float]:
    """MiB: the most that was resident, and the most of it that is this process's own: without files it maps, as the
    libraries that all ranks of a machine share."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak, files = (int(status[name].split()[0]) / 1024 for name in ("VmHWM", "RssFile"))
    return {"peak": peak, "own": peak - files}


def told(result: GWResult, folder: Path, name: str, seconds: float) -> Row:
    np.save(folder / f"{name}.npy", np.asarray(result.argmax()))
    row = {"value": result.value, "marginal_error": result.marginal_error, "seconds": seconds}
    return row | {"timings": result.timings, "evaluated": result.evaluated} | memory()


def one(n: int, k: int, folder: Path) -> Row:
    """The solve of this process alone."""
    given = solved(n, k)
    began = time.perf_counter()
    return told(gw_align(**given), folder, "alone", time.perf_counter() - began)


def several(n: int, k: int, folder: Path) -> Row:
    """The same by all ranks; what is sent in one more sweep over all pairs where n and k are those of `SWEPT`."""
    import torch.distributed as dist

    from torchgw.distributed.align import DEFAULTS, align_by_ranks
    from torchgw.distributed.groups import open_ranks

    with open_ranks(None, "cpu") as ranks:
        if n == k == SWEPT:
            return _sweeps(n, ranks)
        given = DEFAULTS | solved(n, k)
        dist.barrier()
        before, began = carried(), time.perf_counter()
        result = align_by_ranks(ranks, given)
        seconds = time.perf_counter() - began
        dist.barrier()
        row = told(result, folder, f"rank-{ranks.rank}", seconds)
        score = getattr(result.coupling, "A", torch.empty(0, 0)).shape[1]
        return row | {
            "bytes": carried() - before,
            "counted": sum(ranks.sent.values()),
            "waited": ranks.waited,
            "score": score,
        }


def _sweeps(n: int, ranks: Any) -> Row:
    """Bytes of a sweep, over three of them."""
    import torch.distributed as dist

    from torchgw.kernels import softmin_stream
    from torchgw.kernels.dispatch import Workload
    from torchgw.kernels.shared import SharedKernel

    A, B = (torch.randn(n, 16, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    kernel = softmin_stream.choose("eager", Workload(A.device, A.dtype, (n, n), 16)).function
    score, zeros = SharedKernel(kernel, ranks).bind(A, B), torch.zeros(n)
    score.sweep(zeros, zeros, zeros, 1.0)
    dist.barrier()
    before = carried()
    for _ in range(3):
        score.sweep(zeros, zeros, zeros, 1.0)
    dist.barrier()
    return {"bytes": (carried() - before) / 3}


def ran(case: str, n: int, k: int, count: int, folder: Path, threads: int = 1) -> list[Row]:
    """What each of ``count`` processes tells, each pinned to a core as far as there are some."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "OMP_NUM_THREADS": str(threads)}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    running = []
    for rank in range(count):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if case == "several" else {}
        words = [case, *map(str, (n, k, rank, folder, threads))]
        command = [sys.executable, "-m", "benchmarks.ranks", *words]
        running.append(subprocess.Popen(command, env=os.environ | common | own, cwd=HOME))
    codes = [process.wait() for process in running]
    if any(codes):
        raise RuntimeError(f"{case} of {n} x {k} by {count} ended with {codes}")
    return [json.loads((folder / f"{case}-{rank}.json").read_text()) for rank in range(count)]


def same() -> list[Row]:
    """Matching and value of ranks against one process with as many threads."""
    rows = []
    for n, k in SAME:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (alone,) = ran("one", n, k, 1, folder)
            for count in COUNTS:
                every = ran("several", n, k, count, folder)
                matched = [
                    np.load(folder / f"rank-{rank}.npy") == np.load(folder / "alone.npy") for rank in range(count)
                ]
                rows.append(
                    {
                        "points": f"{n} x {k}",
                        "ranks": count,
                        "matched": float(min(each.mean() for each in matched)),
                        "value": max(abs(each["value"] / alone["value"] - 1) for each in every),
                        "marginal_error": max(each["marginal_error"] for each in every),
                        "seconds": every[0]["seconds"],
                        "alone": alone["seconds"],
                    }
                )
    return rows


def sent() -> list[Row]:
    """Bytes of a sweep, and of a whole solve, against the model."""
    rows = []
    for count in COUNTS:
        with tempfile.TemporaryDirectory() as name:
            found = ran("several", SWEPT, SWEPT, count, Path(name))[0]["bytes"]
        model = swept(SWEPT, SWEPT, count)
        rows.append({"what": f"a sweep, {SWEPT} x {SWEPT}", "ranks": count, "measured": found, "model": model})
    for n, k in SENT:
        for count in COUNTS:
            with tempfile.TemporaryDirectory() as name:
                found = ran("several", n, k, count, Path(name))[0]
            model = modelled(n, k, count, LANDMARKS, FACTORS, found["score"], TRIED)
            rows.append({"what": f"a solve, {n} x {k}", "ranks": count, "measured": found["bytes"], "model": model})
    return [row | {"ratio": row["measured"] / row["model"]} for row in rows]


def weak() -> list[Row]:
    """As many points for each process, by 1, 2 and 4, on cores of their own as far as there are some."""
    rows = []
    for count in (1, 2, 4):
        n = WEAK * count
        with tempfile.TemporaryDirectory() as name:
            every = ran("one" if count == 1 else "several", n, n, count, Path(name))
        rows.append(
            {
                "ranks": count,
                "points": n,
                "seconds": every[0]["seconds"],
                "prepare": every[0]["timings"]["prepare"],
                "search": every[0]["timings"]["search"],
                "solve": every[0]["timings"]["solve"],
                "finish": every[0]["timings"]["finish"],
                "waited": every[0].get("waited", 0.0),
            }
        )
    cores = len(os.sched_getaffinity(0))
    for row in rows:
        # Points for each process are as many, and so are passes over pairs for each row: they double with the points.
        row["efficiency"] = rows[0]["seconds"] / row["seconds"] * max(1.0, row["ranks"] / cores)
    return rows


def largest() -> list[Row]:
    """The most memory of a rank among four, and of one process with all threads, which has the other cores' too."""
    with tempfile.TemporaryDirectory() as name:
        (alone,) = ran("one", MANY, MANY, 1, Path(name), threads=len(os.sched_getaffinity(0)))
        every = ran("several", MANY, MANY, 4, Path(name))
    rows = [
        {"ranks": 1, "seconds": alone["seconds"], "peak": alone["peak"], "own": alone["own"], "value": alone["value"]}
    ]
    most: Mapping[str, float] = {name: max(each[name] for each in every) for name in ("peak", "own")}
    rows.append({"ranks": 4, "seconds": every[0]["seconds"], **most, "value": every[0]["value"]})
    return [row | {"of_one": row["peak"] / alone["peak"], "own_of_one": row["own"] / alone["own"]} for row in rows]


GROUPS: dict[str, Callable[[], list[Row]]] = {"same": same, "bytes": sent, "weak": weak, "memory": largest}


def run(groups: list[str] | None = None) -> None:
    """Run the groups and show their rows, which are stored where all have run."""
    found = dict[str, list[Row]]()
    for name in groups or GROUPS:
        found[name] = GROUPS[name]()
        print(f"# {name}")
        show(found[name])
    if groups is None:
        columns = dict.fromkeys(column for rows in found.values() for row in rows for column in row)
        rows = [{"group": name} | dict.fromkeys(columns) | row for name, own in found.items() for row in own]
        write("ranks", rows, groups=found)


def main() -> None:
    """What one process does."""
    given = argparse.ArgumentParser()
    given.add_argument("case", choices=("one", "several"))
    for name in ("n", "k", "rank"):
        given.add_argument(name, type=int)
    given.add_argument("folder", type=Path)
    given.add_argument("threads", type=int)
    found = given.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if found.threads == 1:
        os.sched_setaffinity(0, {cores[found.rank % len(cores)]})
    torch.set_num_threads(found.threads)
    warnings.simplefilter("ignore")
    row = {"one": one, "several": several}[found.case](found.n, found.k, found.folder)
    (found.folder / f"{found.case}-{found.rank}.json").write_text(json.dumps(row))


if __name__ == "__main__":
    main()

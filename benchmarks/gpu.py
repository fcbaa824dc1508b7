"""What only a GPU can tell, within ten minutes: ceilings, tests, whole solves, kernels against their floors.

``python -m benchmarks gpu`` runs all sections, the most telling first, ``python -m benchmarks gpu jobs kernels`` these
only. Each is a process of its own with a time limit, so that a crash or a hang of one does not cost the others, and a
short table comes last. Nothing is installed, and rows are written to the folder ``$OUT`` as they are found.

They are stored in ``benchmarks/results`` where the tests have passed on this code (``python -m benchmarks verify``). A
machine with a GPU need not run the tests: ``python -m benchmarks gpu --store FILE`` stores elsewhere what it measured,
on the same code. ``--cpu-check`` runs every section at toy sizes on a simulated GPU, and stores nothing.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch

from benchmarks import jobs, kernels
from benchmarks.common import QUICK, RESULTS, environment, fastest, kept, once, rehearsal, rehearsed, write
from benchmarks.threads import cores, pinned
from benchmarks.verify import fingerprint, is_green, require_green
from torchgw import gw_align
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.kernels import neighbour_graphs, shortest_paths, softmin_dense, softmin_stream, softmin_tiles
from torchgw.kernels.compilations import COMPILED
from torchgw.kernels.dispatch import Workload
from torchgw.kernels.tiles import choose_tiles
from torchgw.spaces.device_graph import DeviceGraph
from torchgw.spaces.device_neighbours import count_neighbours
from torchgw.spaces.graph import build_graph
from torchgw.types import Array

TOTAL = 560.0  # seconds of all sections
LEAST = 10.0  # left, for another one to begin
PROCESSES = 8  # that test at once
CUDA = torch.device("cuda")
GRAPHS = Workload(CUDA, torch.float64, (1, 1))
COLUMNS = ("what", "size", "figure", "against")
FAILED = re.compile(r"(?:FAILED|ERROR) (tests/\S+)|^(tests/\S+) (?:FAILED|ERROR)")
Row = dict[str, Any]
Rows = Iterator[Row]


def line(what: str, size: str, figure: str, against: str = "-", **detail: Any) -> Row:
    """A row: what the short table shows of it, and all else that is stored."""
    return {"what": what, "size": size, "figure": figure, "against": against} | detail


def seconds(call: Callable[[], object], runs: int = 10) -> float:
    """How long the GPU computes for one call, by the profiler, after two that do not count."""
    if rehearsed():
        return once(call)
    for _ in range(2):
        call()
    return jobs.traced(lambda: [call() for _ in range(runs)]).busy / runs


def on_host(call: Callable[[], object], runs: int = 2000) -> float:
    """How long the host takes for one of many calls whose work is queued."""
    runs = 1 if rehearsed() else runs
    once(call)
    began = time.perf_counter()
    for _ in range(runs):
        call()
    taken = time.perf_counter() - began
    torch.cuda.synchronize()
    return taken / runs


def ceilings(sizes: Sequence[tuple[int, int]]) -> Rows:
    """What the machine can do: bytes copied, products, matrix-vector products, and what the host pays for a call."""
    single, double = (kernels.Rates(CUDA, dtype) for dtype in (torch.float32, torch.float64))
    yield line("copy", "2 GiB", f"{1 / single.byte / 1e12:.2f} TB/s", "the vendor's datasheet", s=single.byte)
    for name, rates in (("tf32", single), ("float64", double)):
        figure = f"{2 / rates.product / 1e12:.0f} TFLOP/s"
        yield line(f"product, {name}", "-", figure, "the vendor's datasheet", s=rates.product)
    for n, k in sizes:
        for dtype in (torch.float32, torch.float64):
            M = torch.rand(n, k, device=CUDA, dtype=dtype)
            u, v = M.new_ones(n), M.new_ones(k)
            floor = n * k * dtype.itemsize * single.byte
            for name, call in (("M v", partial(torch.mv, M, v)), ("u M", partial(torch.matmul, u, M))):
                yield against(f"{name}, {str(dtype)[6:]}", f"{n} x {k}", seconds(call), floor)
    zero, here = torch.zeros(64, device=CUDA), torch.zeros(8)
    kernel = softmin_dense.choose("triton", Workload(CUDA, torch.float32, (8, 8))).function
    costs: dict[str, Callable[[], object]] = {
        "an operation of torch": lambda: zero.add_(1),
        "a Triton launch": lambda: kernel.update_scaling(zero, zero, zero, 1.8),
        "an upload that is waited for": lambda: here.to(CUDA),
    }
    for name, call in costs.items():
        taken = on_host(call)
        yield line(f"host: {name}", "-", f"{taken * 1e6:.1f} us", s=taken)


def against(what: str, size: str, taken: float, floor: float, **detail: Any) -> Row:
    """A row of a kernel: its time, and the share of it that the floor is."""
    figure = f"{taken * 1e6:.1f} us" if taken < 1e-3 else f"{taken * 1e3:.2f} ms"
    return line(what, size, figure, f"{100 * floor / taken:.0f} % of the floor", s=taken, floor_s=floor, **detail)


def tests(files: Sequence[str], *more: str) -> Rows:
    """Which GPU tests fail."""
    side_by_side = ("-n", str(PROCESSES)) if find_spec("xdist") else ()
    command = [sys.executable, "-m", "pytest", "-v", "-m", "gpu", *side_by_side, *more, *files]
    command += ["-p", "no:cacheprovider", "-p", "no:benchmark"]
    failed, text = set[str](), ""
    threads = os.environ | pinned(max(cores() // PROCESSES, 1))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=threads) as run:
        assert run.stdout is not None
        for text in run.stdout:
            print(text, end="", flush=True)
            for name in (found[1] or found[2] for found in FAILED.finditer(text)):
                if name not in failed:
                    failed.add(name)
                    yield line("test", name, "failed")
    yield line("tests", "-m gpu", text.strip("= \n"), "none failed", failed=sorted(failed))


def cloud(kind: str, n: int) -> Array:
    """Points (N, D) of a kind."""
    rng = np.random.default_rng(0)
    if kind == "spiral":
        return make_spiral(n)[0]
    if kind == "roll":
        return make_swiss_roll(n, random_state=1)[0]
    points: Array = rng.normal(size=(n, 3 if kind == "sphere" else 10))
    return points / np.linalg.norm(points, axis=1, keepdims=True) if kind == "sphere" else points


def graphs(clouds: Sequence[tuple[str, int]]) -> Rows:
    """Neighbour graphs that the GPU builds, thrice, against the CPU's, entry by entry."""
    made, searched = (family.choose("triton", GRAPHS).function for family in (neighbour_graphs, shortest_paths))
    assert made is not None
    assert searched is not None
    for kind, n in clouds:
        points, found, taken = cloud(kind, n), list[Array](), list[float]()
        began = time.perf_counter()
        entries = build_graph(points)[0].tocoo()
        cpu = time.perf_counter() - began
        for _ in range(3):
            began = time.perf_counter()
            graph = DeviceGraph.from_points(points, made, searched, CUDA, "triton")
            assert graph.build_record is not None
            parts, undecided = graph.build_record.summary[:2].tolist()
            taken.append(time.perf_counter() - began)
            pointer, target, length = (part.cpu().numpy() for part in (graph.pointer, graph.target, graph.length))
            held = np.isfinite(length[: pointer[-1]])
            rows = np.repeat(np.arange(n), np.diff(pointer))[held]
            found.append(np.sort(rows * n + target[: pointer[-1]][held]))
        apart = np.setxor1d(found[0], entries.row.astype(np.int64) * n + entries.col).size
        same = all(np.array_equal(found[0], each) for each in found)
        figure = f"{apart} of {entries.nnz} entries differ, thrice {'the same' if same else 'DIFFERENT'}"
        left = parts > 1 or undecided
        said = "left to the CPU" if left else "0 differ"
        detail = {"apart": apart, "same": same, "undecided": undecided, "parts": parts, "s": min(taken), "CPU s": cpu}
        yield line(f"neighbour graph, {kind}", str(n), figure, said, **detail)


def whole(sizes: Sequence[tuple[int, int, str]], counted: bool = True) -> Rows:
    """Whole solves."""
    for n, k, strategy in sizes:
        row = jobs.job(n, k, strategy, counted)
        figure = f"{row['s']:.3g} s, {row['GPU GiB']:.2f} GiB"
        if "busy ms" in row:
            figure += f", busy {row['busy ms']:.0f} ms, {row['launches']} launches, {row['waits']} waits"
        stages = ", ".join(f"{name} {row[f'{name} s']:.3f}" for name in ("prepare", "search", "solve", "finish"))
        bits = "same" if row["same bits"] else "OTHER"
        yield line(f"gw_align, {row['strategy']}", f"{n} x {k}", figure, f"{stages}; {bits} bits twice", **row)


def cold(sizes: Sequence[tuple[int, int]], warmed: bool = False) -> Rows:
    """First calls with nothing on disk, or with what ``torchgw warm`` has put there, in turn in one process: seconds,
    and kernels compiled so far."""
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, TRITON_CACHE_DIR=folder):
        if warmed and not rehearsed():
            done = subprocess.run(
                [sys.executable, "-m", "torchgw", "warm"], capture_output=True, text=True, check=False
            )
            yield line("torchgw warm", "-", (done.stdout + done.stderr).strip().splitlines()[-1].partition(";")[0])
        for n, k in sizes:
            X, Y = make_spiral(n)[0], make_swiss_roll(k, random_state=1)[0]
            began = time.perf_counter()
            result = gw_align(X, Y, epsilon=1e-3, device=CUDA, random_state=0)
            result.argmax()
            taken, count = time.perf_counter() - began, len(COMPILED)
            what = "call in a new process, " + ("kernels on disk" if warmed else "no kernels on disk")
            yield line(what, f"{n} x {k}", f"{taken:.2f} s, {count} compiled so far", s=taken, kernels=count)


def default(sizes: Sequence[tuple[int, int]]) -> Rows:
    """`gw_align` of points with every default, on the CPU and on the GPU: the least of the calls after the first."""
    for n, k in sizes:
        X, Y, taken, detail = make_spiral(n)[0], make_swiss_roll(k, random_state=1)[0], dict[str, float](), Row()
        for device in ("cpu", "cuda"):
            solve = partial(gw_align, X, Y, device=device, random_state=0)
            result = solve()
            taken[device] = min(once(lambda solve=solve: solve().argmax()) for _ in range(1 if rehearsed() else 3))
            found = {"s": taken[device], "epsilon": result.epsilon, "value": result.value, **result.timings}
            detail |= {f"{device} {name}": value for name, value in found.items()}
        figure = f"{taken['cuda']:.3f} s, value {detail['cuda value']:.5g}"
        said = f"CPU {taken['cpu']:.3f} s, {detail['cpu value']:.5g}"
        yield line("gw_align by default", f"{n} x {k}", figure, said, **detail)


def floors(sizes: tuple[Sequence[tuple[int, int]], Sequence[tuple[int, int, int]], Sequence[tuple[int, int]]]) -> Rows:
    """Kernels against the least that bytes or products take: stored scores, products, kept tiles."""
    stored, products, kept_tiles = sizes
    single = kernels.Rates(CUDA, torch.float32)
    for n, k in stored:
        for dtype in (torch.float32, torch.float64):
            yield from _stored(n, k, dtype, n * k * dtype.itemsize * single.byte)
    for n, k, rank in products:
        A, B = kernels.problem(n, k, rank, CUDA, torch.float32)
        g = A.new_full((k,), 1 / k).log2()
        for dot, times in (("tf32", 1), ("tf32x3", 3)):
            bound = softmin_stream.choose("triton", Workload(CUDA, A.dtype, (n, k), rank, dot)).function.bind(A, B)
            taken, floor = seconds(partial(bound.softmin, g, 1), 3), times * rank * single.product * n * k
            ps = taken / n / k * 1e12
            yield against(f"streaming half-step, r = {rank}, {dot}, {ps:.2f} ps", f"{n} x {k}", taken, floor, ps=ps)
    for n, rank in kept_tiles:
        yield from _tiles(n, rank)


def _stored(n: int, k: int, dtype: torch.dtype, read: float) -> Rows:
    """Kernels on a stored score (N, K) that one read of takes so long."""
    size, name = f"{n} x {k}", str(dtype)[6:]
    score = torch.randn(n, k, device=CUDA, dtype=dtype).mul_(20)
    f, g = score.new_full((n,), 1 / n).log2(), score.new_full((k,), 1 / k).log2()
    bound = softmin_dense.choose("triton", Workload(CUDA, dtype, (n, k))).function.bind(score)
    for axis, bias in ((1, g), (0, f)):
        yield against(f"dense half-step, axis {axis}, {name}", size, seconds(partial(bound.softmin, bias, axis)), read)
    yield against(f"dense iteration, one read, {name}", size, seconds(partial(bound.sweep, g, f, f, 1.0)), read)
    taken = kernels.iteration(bound, f, g, torch.empty_like(score))
    yield against(f"dense iteration by scaling, two reads, {name}", size, taken, 2 * read)


def _tiles(n: int, rank: int) -> Rows:
    """Softmin and reads over the tiles with mass of points along a curve."""
    place = torch.linspace(0, 1, n, device=CUDA)[:, None]
    waves = torch.arange(1, rank + 1, device=CUDA)
    A = 20 * (place * waves).sin() / waves
    g = -A.square().sum(1).double() / 2
    f, p = g - n.bit_length(), torch.full((n,), 1 / n, device=CUDA, dtype=torch.float64)
    chosen = choose_tiles(A, A, f, g, (p, p), 128, 1e-4)[0]
    kernel = softmin_tiles.choose("triton", Workload(CUDA, torch.float32, (n, n), rank)).function
    rates = {dtype: kernels.Rates(CUDA, dtype).product for dtype in (torch.float32, torch.float64)}
    calls: list[tuple[str, Callable[[], object], float]] = [
        ("softmin, float32", partial(kernel.softmin, A, A, chosen, g.float(), 1), 3 * rank * rates[torch.float32])
    ]
    for dtype, times in ((torch.float32, 3), (torch.float64, 1)):
        for d in (1, 33):
            V = torch.ones(n, d, device=CUDA, dtype=dtype)
            call = partial(kernel.read, A, A, chosen, f.to(dtype), g.to(dtype), V, V[:, :0])
            calls.append((f"read, d = {d}, {str(dtype)[6:]}", call, times * (rank + d) * rates[dtype]))
    for name, call, floor in calls:
        taken = seconds(call, 3)
        ps = taken / chosen.pairs * 1e12
        what = f"kept tiles, r = {rank}, {name}, {ps:.2f} ps"
        yield against(what, f"{n} x {n}", taken, floor * chosen.pairs, ps=ps, kept=chosen.pairs / n**2)


def prepared(sizes: Sequence[int]) -> Rows:
    """The steps of graphs and landmark distances of a spiral, each with those before it."""
    made, searched = (family.choose("triton", GRAPHS).function for family in (neighbour_graphs, shortest_paths))
    assert made is not None
    assert searched is not None
    for n in sizes:
        points = make_spiral(n)[0]
        there, built = torch.from_numpy(points).to(CUDA), partial(DeviceGraph.from_points, points, made, searched, CUDA)
        graph, few = built("triton"), torch.arange(0, n, max(n // 100, 1), device=CUDA)
        calls: dict[str, Callable[[], object]] = {
            "nearest points and edges": partial(made.neighbours, there, count_neighbours(n), None),
            "graph": partial(built, "triton"),
            "landmarks": lambda: graph.landmarks(graph.centres(100), 100),
            "searches from 100 points": partial(graph.distances, few),
        }
        for what, taken in fastest(calls, least=3).items():
            yield line(what, str(n), f"{taken * 1e3:.1f} ms", s=taken)


class Section(NamedTuple):
    """A part of the suite: its limit in seconds, what it measures, at which sizes, and at which to check it."""

    limit: float
    measure: Callable[..., Rows]
    sizes: tuple[Any, ...]
    toy: tuple[Any, ...]


CLOUDS = (("spiral", 45_000), ("roll", 20_000), ("R^10", 8000), ("sphere", 30_000))
JOBS = ((400, 500, "auto"), (4000, 5000, "auto"), (45_000, 45_000, "auto"),
        (10_000, 12_000, "dense"), (10_000, 12_000, "streaming"))  # fmt: skip
FIRST = ((400, 500), (400, 500), (401, 499), (4000, 5000), (45_000, 45_000), (45_000, 45_000))
WARMED = ((400, 500), (4000, 5000), (45_000, 45_000))
DEFAULT = ((30, 40), (100, 120), (150, 170), (250, 300), (400, 500), (1000, 1200), (1000, 1000), (2000, 2500))
STORED = ((400, 500), (4000, 5000), (10_001, 12_001))
PRODUCTS = ((45_000, 45_000, 64), (45_000, 45_000, 100))
LARGE = tuple((n, n, "auto") for n in (100_000, 300_000, 1_000_000))
GROUPS = {
    "ceilings": Section(30, ceilings, (((4000, 5000),),), (((20, 24),),)),
    "tests": Section(130, tests, (("tests",),), (("tests/test_cuda_graphs.py",), "--collect-only", "-n0")),
    "graphs": Section(30, graphs, (CLOUDS,), ((("sphere", 60),),)),
    "jobs": Section(75, whole, (JOBS,), (((8, 9, "auto"),),)),
    "cold": Section(45, cold, (FIRST,), (((8, 9),),)),
    "warm": Section(50, cold, (WARMED, True), (((8, 9),), True)),
    "default": Section(60, default, (DEFAULT,), (((8, 9),),)),
    "kernels": Section(
        40, floors, ((STORED, PRODUCTS, ((45_000, 32),)),), ((((20, 24),), ((20, 24, 8),), ((256, 4),)),)
    ),
    "prepared": Section(20, prepared, ((400, 4000, 45_000),), ((60,),)),
    "million": Section(80, whole, (LARGE, False), (((8, 9, "streaming"),), False)),
}


def inside(name: str, path: Path) -> None:
    """Run a section here; each row is a line of the file as soon as it is found."""
    warnings.simplefilter("ignore")
    section = GROUPS[name]
    with path.open("a") as file:
        for row in section.measure(*section.sizes):
            print(json.dumps(row), file=file, flush=True)


def command(name: str, path: Path) -> list[str]:
    """What runs a section in a process of its own."""
    return [sys.executable, "-m", "benchmarks.gpu", name, str(path)]


def limited(command: Sequence[str], log: Path, limit: float) -> str:
    """Run a command with what it starts, and end all of that at the limit; how it ended, or "done"."""
    with log.open("w") as file:
        run = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = run.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
            return f"stopped after {limit:.0f} s"
    return "done" if code == 0 else f"ended with status {code}"


def measured(names: Sequence[str], folder: Path) -> Row:
    """Run sections, each in a process, and keep what they found in ``folder``."""
    began, made = time.monotonic(), {"environment": environment(), "code": fingerprint(), "sections": {}, "groups": {}}
    for name in names:
        left = TOTAL - (time.monotonic() - began)
        if left < LEAST:
            made["sections"][name] = "no time was left"
            (folder / "gpu.json").write_text(json.dumps(made, indent=1) + "\n")
            continue
        rows, log = folder / f"{name}.jsonl", folder / f"{name}.log"
        rows.unlink(missing_ok=True)
        start = time.monotonic()
        ended = limited(command(name, rows), log, min(left, GROUPS[name].limit))
        made["sections"][name] = f"{ended}, {time.monotonic() - start:.0f} s"
        made["groups"][name] = [json.loads(text) for text in rows.read_text().splitlines()] if rows.exists() else []
        (folder / "gpu.json").write_text(json.dumps(made, indent=1) + "\n")
        print(f"# {name}: {made['sections'][name]}", flush=True)
        if ended != "done":
            print("".join(log.read_text().splitlines(keepends=True)[-6:]), flush=True)
    return made


def short(groups: dict[str, list[Row]]) -> list[Row]:
    """What the table shows of all rows, in the order of the sections."""
    return [{column: row[column] for column in COLUMNS} for name in GROUPS for row in groups.get(name, [])]


def told(groups: dict[str, list[Row]]) -> None:
    """Print the table, in few characters."""
    for row in short(groups):
        print("  ".join(row.values()))


def stored(path: Path) -> None:
    """Store what a run has found; on the code that it ran on, and where the tests have passed on that.

    Sections that it did not run keep the rows of an earlier run on the same machine.
    """
    require_green()
    found, here = json.loads(path.read_text()), environment()
    if found["code"] != fingerprint():
        raise SystemExit(f"{path} was measured on other code than this, so it is not stored")
    made = found["environment"]
    if made["commit"] == "unknown":  # of a copy without its history
        made |= {name: here[name] for name in ("commit", "uncommitted_changes")}
    some = set(found["sections"]) != set(GROUPS)
    before = kept(RESULTS / "gpu.json", [*found["sections"]], made) if some else {}
    groups = before.get("groups", {}) | found["groups"]
    write("gpu", short(groups), partial=bool(before), made=made, groups=groups)


@contextmanager
def simulated() -> Iterator[None]:
    """Within it a simulated GPU stands in, and nothing is stored."""
    from tests.simulated_device import simulated_gpu
    from tests.simulated_kernels import triton_stands_in

    with ExitStack() as stack:
        stack.enter_context(rehearsal())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(triton_stands_in(stack.enter_context(simulated_gpu())))
        yield


def checked(names: Sequence[str]) -> dict[str, list[Row]]:
    """The rows of sections at toy sizes on a simulated GPU."""
    with simulated():
        return {name: [*GROUPS[name].measure(*GROUPS[name].toy)] for name in names}


def run(groups: list[str] | None = None, cpu_check: bool = False, store: str | None = None) -> None:
    """Measure, print, and store where the tests have passed; or check the suite; or store what was measured."""
    names = groups or [*GROUPS]
    if store is not None:
        stored(Path(store))
    elif cpu_check:
        told(checked(names))
    elif not torch.cuda.is_available():
        raise SystemExit("no GPU here; benchmarks/GPU_PENDING.md lists what waits for one")
    else:
        folder = Path(os.environ.get("OUT") or QUICK)
        folder.mkdir(exist_ok=True)
        found = measured(names, folder)
        told(found["groups"])
        if is_green():
            stored(folder / "gpu.json")
        else:
            print(f"not stored: where the tests have passed, python -m benchmarks gpu --store {folder / 'gpu.json'}")


if __name__ == "__main__":
    inside(sys.argv[1], Path(sys.argv[2]))

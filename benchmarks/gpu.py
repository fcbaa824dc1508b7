"""Everything that needs a GPU in one command: kernels against their floors, phases, whole solves; a short table last.

``python -m benchmarks gpu`` runs all groups, ``python -m benchmarks gpu dense phases`` these only, and keeps the other
rows that are stored; results are written after each group. ``python -m benchmarks gpu --cpu-check`` runs every line of
it once on the CPU, at toy sizes, and stores nothing: what breaks there would break on the GPU.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from scipy.stats import spearmanr

from benchmarks import jobs, kernels, phases
from benchmarks.common import RESULTS, fastest, kept, rehearsal, rehearsed, show, write
from torchgw import GWOptions, LadderOptions, SinkhornOptions, gw_align
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.kernels import neighbour_graphs, shortest_paths, softmin_dense, softmin_stream, softmin_tiles
from torchgw.kernels.dispatch import Workload
from torchgw.kernels.kernel import half_step, in_two_reads
from torchgw.kernels.tiles import choose_tiles
from torchgw.sinkhorn.scaling import Scaler, scaling
from torchgw.sinkhorn.sides import Side
from torchgw.spaces.device_graph import DeviceGraph
from torchgw.spaces.device_neighbours import fewest, ordered
from torchgw.spaces.graph import build_graph

ITERATIONS = 100
UNREAD = SinkhornOptions(tol=1e-300, check_every=ITERATIONS + 1, relaxation=1.0)  # residuals, before the end
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Where everything runs, by which kernels, and how large it is."""

    device: torch.device
    kernel: str
    backends: tuple[str, ...]
    dense: tuple[tuple[int, int], ...]
    stream: tuple[tuple[int, int, int], ...]
    tiles: tuple[tuple[int, int], ...]
    alignments: tuple[tuple[int, int, str], ...]
    sharp: tuple[int, int]
    large: tuple[int, ...]
    jobs: tuple[tuple[int, int], ...]
    million: tuple[tuple[int, int], ...]
    variants: tuple[tuple[int, int], ...]
    prepared: tuple[int, ...]


FULL = Scope(
    device=torch.device("cuda"),
    kernel="triton",
    backends=("eager", "compile", "triton"),
    dense=((400, 500), (5001, 6001), (10001, 12001)),
    stream=((45000, 45000, 32), (45000, 45000, 64), (45000, 45000, 128)),
    tiles=((45_000, 16), (100_000, 16), (100_000, 64)),
    alignments=((400, 500, "precomputed"), (400, 500, "dijkstra"), (400, 500, "landmark"), (4000, 5000, "landmark")),
    sharp=(2000, 2500),
    large=(20_000, 45_000, 1_000_000),  # the first compiles and does not count
    jobs=tuple(jobs.ASKED)[:-1],
    million=tuple(jobs.ASKED)[-1:],
    variants=((400, 500), (4000, 5000)),
    prepared=(400, 4000, 45_000, 300_000),
)
TOY = Scope(
    device=torch.device("cpu"),
    kernel="eager",
    backends=("eager",),
    dense=((40, 50),),
    stream=((40, 50, 8),),
    tiles=((300, 4),),
    alignments=((40, 50, "precomputed"), (40, 50, "dijkstra"), (40, 50, "landmark")),
    sharp=(40, 50),
    large=(60, 60),
    jobs=((40, 50),),
    million=((50, 60),),
    variants=((40, 50),),
    prepared=(60,),
)


def hundred(scope: Scope, dtype: torch.dtype) -> list[Row]:
    """100 Sinkhorn iterations on a stored score: one read, two reads, one read in a CUDA graph, scaling, eager."""
    device, rows = scope.device, []
    rates = kernels.Rates(device, dtype)
    for n, k in scope.dense:
        score = torch.randn(n, k, device=device, dtype=dtype).mul_(20)
        log_p, log_q = score.new_full((n,), 1 / n).log2(), score.new_full((k,), 1 / k).log2()
        workload, out = Workload(device, dtype, (n, k)), torch.empty_like(score)
        best, eager = (softmin_dense.choose(name, workload).function for name in (scope.kernel, "eager"))
        two_reads = in_two_reads(best.softmin)

        def loop(sweep: Callable[..., Any]) -> None:
            f, g = log_p, log_q
            for _ in range(ITERATIONS):
                f, softmin = sweep(score, g, log_p, f, 1.0)
                g = half_step(log_q, softmin)

        def scaled() -> None:
            sides = Side(log_p), Side(log_q)
            scaling(Scaler(best.on(score), *sides, out), log_p, log_q, options=UNREAD, max_iter=ITERATIONS)

        floor = 2 * n * k * score.element_size() * rates.byte * ITERATIONS
        calls: dict[str, Callable[[], object]] = {
            "one read": partial(loop, best.sweep),
            "two reads": partial(loop, two_reads),
            "one read, CUDA graph": captured(partial(loop, best.sweep), device),
            "scaling": scaled,
            "eager": partial(loop, eager.sweep),
        }
        for name, call in calls.items():
            taken = fastest({name: call})[name]
            rows.append(
                {
                    "what": f"{ITERATIONS} iterations, {name}",
                    "size": f"{n} x {k} {str(dtype)[6:]}",
                    "ms": taken * 1e3,
                    "two-read floor / time": floor / taken,
                }
            )
    return rows


def captured(call: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """The call as one CUDA graph; on the CPU, which has none, as it is."""
    if device.type == "cpu":
        return call
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def streaming(scope: Scope) -> list[Row]:
    """Half-steps over a product by arithmetic, in picoseconds a pair."""
    device, rows = scope.device, []
    for n, k, rank in scope.stream:
        A, B = kernels.problem(n, k, rank, device, torch.float32)
        g = A.new_full((k,), 1 / k).log2()
        for dot, dtype in (
            ("tf32", torch.float32),
            ("tf32x3", torch.float32),
            ("ieee", torch.float32),
            ("", torch.bfloat16),
        ):
            kernel = softmin_stream.choose(scope.kernel, Workload(device, dtype, (n, k), rank, dot)).function
            bound = kernel.on(A.to(dtype), B.to(dtype))
            taken = fastest({dot: partial(bound.softmin, g, 1)})[dot]
            name = f"streaming half-step, r = {rank}, {dot or 'bfloat16'}"
            rows.append({"what": name, "size": f"{n} x {k}", "ms": taken * 1e3, "ps a pair": taken / n / k * 1e12})
    return rows


def alignments(scope: Scope) -> list[Row]:
    """Whole solves by backend."""
    rows = []
    for n, k, distances in scope.alignments:
        X, angle_x = make_spiral(n)
        Y, angle_y = make_swiss_roll(k, random_state=1)
        for backend in scope.backends:
            solve = partial(gw_align, X, Y, distances=distances, backend=backend, device=scope.device)
            solve(random_state=1)
            result = solve(random_state=0)
            rows.append(
                {
                    "size": f"{n} x {k}",
                    "distances": distances,
                    "backend": result.backend,
                    "prepare s": result.timings["prepare"],
                    "search s": result.timings["search"],
                    "solve s": result.timings["solve"],
                    "|rho|": abs(float(spearmanr(angle_x, angle_y[result.argmax()])[0])),
                    "value": result.value,
                }
            )
    return rows


def large(scope: Scope) -> list[Row]:
    """Streaming solves from points to matching; the first call compiles and does not count."""
    rows = []
    for n in scope.large:
        X, angle_x = make_spiral(n)
        Y, angle_y = make_swiss_roll(n, random_state=1)
        if scope.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        options = GWOptions(strategy="streaming", ladder=LadderOptions(marginal_tol=5e-2))
        result = gw_align(X, Y, options=options, device=scope.device, random_state=0)
        match = result.argmax()
        seconds = time.perf_counter() - began
        rows.append(
            {
                "size": f"{n} x {n}",
                "s": seconds,
                **{f"{phase} s": taken for phase, taken in result.timings.items()},
                "GPU GiB": torch.cuda.max_memory_allocated() / 2**30,
                "rho": float(spearmanr(angle_x, angle_y[match])[0]),
                "residual": result.marginal_residual,
                "evaluated": result.evaluated,
                "omitted": result.omitted_mass,
                "backend": result.backend,
            }
        )
    return rows[1:]


def tiles(scope: Scope) -> list[Row]:
    """Softmin and read over the kept fifth of the tiles of points along a curve, by backend."""
    device, rows = scope.device, []
    for n, rank in scope.tiles:
        place = torch.linspace(0, 1, n, device=device)[:, None]
        waves = torch.arange(1, rank + 1, device=device)
        A = 20 * (place * waves).sin() / waves
        g = -A.square().sum(1).double() / 2
        f = g - n.bit_length()
        p = torch.full((n,), 1 / n, device=device, dtype=torch.float64)
        chosen = choose_tiles(A, A, f, g, p, p, 128, 1e-4)[0]
        ones = torch.ones(n, 1, device=device, dtype=torch.float64)
        for name in dict.fromkeys(("eager", scope.kernel)):
            kernel = softmin_tiles.choose(name, Workload(device, torch.float32, (n, n), rank)).function
            calls: dict[str, Callable[[], object]] = {
                "softmin": partial(kernel.softmin, A, A, chosen, g.float(), 1),
                "read": partial(kernel.read, A, A, chosen, f, g, ones, ones, True),
            }
            for what, taken in fastest(calls, least=3).items():
                entry = {"what": f"{what} on kept tiles, r = {rank}, {name}", "size": f"{n} x {n}", "ms": taken * 1e3}
                rows.append(entry | {"kept": chosen.pairs / n**2, "ps a pair": taken / chosen.pairs * 1e12})
    return rows


def preparation(scope: Scope) -> list[Row]:
    """Graphs and landmark distances of a spiral: the steps on the device, each with those before it, and SciPy's on the
    CPU."""
    rows = []
    given = Workload(scope.device, torch.float64, (1, 1))
    graphs, searches = (family.choose(scope.kernel, given).function for family in (neighbour_graphs, shortest_paths))
    for n in scope.prepared:
        points = make_spiral(n)[0]
        calls: dict[str, Callable[[], object]] = {"graph, CPU": partial(build_graph, points)}
        if graphs is not None and searches is not None:
            made = partial(DeviceGraph.between, points, graphs, searches, scope.device, scope.kernel)
            graph, there, k = made(), torch.from_numpy(points).to(scope.device), fewest(n)
            few = torch.arange(0, n, max(n // 100, 1), device=scope.device)
            calls |= {
                "nearest points and edges": partial(graphs.neighbours, there, k, None),
                "graph": made,
                "landmarks": partial(graph.landmarks, 100),
                "searches from 100 points": partial(graph.distances, few),
            }
            if (order := ordered(there, scope.kernel)) is not None:
                calls["nearest points and edges, in an order"] = partial(graphs.neighbours, there, k, order)
        found = fastest(calls, least=3)
        rows += [{"what": what, "size": n, "ms": taken * 1e3} for what, taken in found.items()]
    return rows


def sharp(scope: Scope) -> list[Row]:
    """The landmark search and the end without entropy, whose linear programs run on the CPU."""
    n, k = scope.sharp
    X, angle_x = make_spiral(n)
    Y, angle_y = make_swiss_roll(k, random_state=1)
    rows = []
    for epsilon in (1e-3, 0.0):
        gw_align(X, Y, epsilon=epsilon, device=scope.device, random_state=1)
        result = gw_align(X, Y, epsilon=epsilon, device=scope.device, random_state=0)
        rows.append(
            {
                "size": f"{n} x {k}",
                "epsilon": epsilon,
                **{f"{phase} s": taken for phase, taken in result.timings.items()},
                "rho": float(spearmanr(angle_x, angle_y[result.argmax()])[0]),
                "value": result.value,
            }
        )
    return rows


GROUPS: dict[str, Callable[[Scope], list[Row]]] = {
    "machine": lambda scope: jobs.machine(scope.device),
    "jobs": lambda scope: jobs.jobs(scope.device, scope.jobs),
    "million": lambda scope: jobs.jobs(scope.device, scope.million),
    "variants": lambda scope: jobs.variants(scope.device, scope.variants, scope.backends),
    "dense": lambda scope: [*hundred(scope, torch.float32), *hundred(scope, torch.float64)],
    "stream": streaming,
    "tiles": tiles,
    "preparation": preparation,
    "rows": alignments,
    "sharp": sharp,
    "large": large,
    "phases": lambda scope: phases.run(device=str(scope.device), quick=rehearsed()),
}


def job(r: Row) -> tuple[str, str, str, str]:
    """What a row of a whole solve says."""
    counts = "" if r["launches"] is None else f", {r['launches']} launches, {r['waits']} waits"
    asked = "-" if r["asked s"] is None else r["asked s"]
    figure, bits = f"{r['s']:.3g} s{counts}, {r['GPU GiB']:.2f} GiB", "same" if r["same bits"] else "other"
    return f"gw_align, {r['strategy']}", r["size"], figure, f"{asked} s; {bits} bits twice"


# What a row of each group says in one line: what, size, figure, and what to hold it against.
LINES: dict[str, Callable[[Row], tuple[str, str, str, str]]] = {
    "machine": lambda r: (r["what"], r["device"], f"{r['figure']:.3g} {r['unit']}", "the vendor's datasheet"),
    "jobs": job,
    "million": job,
    "variants": lambda r: (
        f"{r['backend']}, {'graphs' if r['graphs'] else 'no graphs'}",
        r["size"],
        f"{r['s']:.3g} s, value {r['value']:.5g}",
        "the other variants",
    ),
    "dense": lambda r: (r["what"], r["size"], f"{r['ms']:.3g} ms", f"{r['two-read floor / time']:.2f} of the floor"),
    "stream": lambda r: (r["what"], r["size"], f"{r['ps a pair']:.2f} ps a pair", "under 1.2 at r = 64"),
    "tiles": lambda r: (r["what"], r["size"], f"{r['ps a pair']:.2f} ps a kept pair", "the half-step above"),
    "preparation": lambda r: (r["what"], str(r["size"]), f"{r['ms']:.3g} ms", "the CPU's graph"),
    "rows": lambda r: (
        f"gw_align, {r['distances']}, {r['backend']}",
        r["size"],
        f"{r['search s'] + r['solve s']:.2f} s",
        f"|rho| {r['|rho|']:.4f}",
    ),
    "sharp": lambda r: (
        f"gw_align, epsilon {r['epsilon']:g}",
        r["size"],
        f"{r['search s'] + r['solve s']:.2f} s",
        f"rho {r['rho']:.4f}",
    ),
    "large": lambda r: (
        "streaming solve",
        r["size"],
        f"{r['s']:.1f} s, {r['GPU GiB']:.1f} GiB",
        f"rho {r['rho']:.4f}, residual {r['residual']:.1e}",
    ),
    "phases": lambda r: (r["phase"], r["problem"], f"{r['ratio']:.2f}x ({r['how']})", r["verdict"]),
}


def summary(held: dict[str, list[Row]]) -> list[Row]:
    """One line for each figure that is waited for."""
    columns = "what", "size", "figure", "against"
    lines = (line(row) for name, line in LINES.items() for row in held.get(name, []))
    return [dict(zip(columns, line, strict=True)) for line in lines]


def require_gpu() -> None:
    """End the program where there is none."""
    if not torch.cuda.is_available():
        raise SystemExit("no GPU here; benchmarks/GPU_PENDING.md lists what waits for one")


def run(groups: list[str] | None = None, cpu_check: bool = False) -> None:
    """Measure, print, store; or, to check the suite itself, once on the CPU without storing."""
    if not cpu_check:
        require_gpu()
    names = ("kernels", *GROUPS)
    unknown = set(groups or ()) - set(names)
    if unknown:
        raise SystemExit(f"groups must be among {', '.join(names)}, got {', '.join(sorted(unknown))}")
    with rehearsal() if cpu_check else nullcontext(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _run(groups, TOY if cpu_check else FULL)


def _run(groups: list[str] | None, scope: Scope) -> None:
    path = RESULTS / "gpu.json"
    before = kept(path, groups) if groups and not rehearsed() else {}
    held: dict[str, list[Row]] = before.get("groups", {})
    if groups is None or "kernels" in groups:
        kernels.run(scope.device)
    for name in groups or GROUPS:
        if name in GROUPS:
            held[name] = GROUPS[name](scope)
            show(held[name])
            write("gpu", summary(held), partial=bool(before), groups=held)
    if held:
        print()
        show(summary(held))


def tell() -> None:
    """The short table of what is stored, and on what it was measured."""
    path = RESULTS / "gpu.json"
    if path.exists():
        held = json.loads(path.read_text())
        made = held["environment"]
        print(f"stored figures: {made['gpu']}, commit {made['commit'][:10]}, {made['date']}")
        show(summary(held["groups"]))

"""Every kernel implementation against its floor, against plain torch, and against the libraries that are installed.

The floors come from rates measured on the same device in the same run: a copy (bytes), a matrix product (operations),
an exp2 in the cache (exponentials). ``python -m benchmarks kernels`` also writes the table that ``backend="auto"``
reads.
Times are the fastest of several runs: the work is the same each time, and what else a shared machine does only adds.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable
from functools import cached_property, partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import environment, fastest, rehearsed, show, write
from torchgw.kernels import LN2, dispatch, softmin_dense, softmin_stream
from torchgw.kernels.dispatch import Workload
from torchgw.kernels.kernel import make_two_read_sweep
from torchgw.options import SinkhornOptions
from torchgw.sinkhorn.scaling import Scaler, solve_by_scaling
from torchgw.sinkhorn.sides import MarginalConstraint
from torchgw.types import Score

REACH = 200.0
SIZES = {
    "cpu": ((400, 500), (1000, 1200), (2000, 2500), (4000, 5000)),
    "cuda": ((1000, 1200), (5001, 6001), (10001, 12001)),
    "rehearsal": ((40, 50),),
}
STREAMS = {
    "cpu": ((1000, 1000, 16), (1000, 1000, 64), (4000, 4000, 16), (4000, 4000, 64), (4000, 4000, 130)),
    "cuda": ((4000, 4000, 64), (20000, 20000, 32), (20000, 20000, 64), (20000, 20000, 128), (45000, 45000, 64)),
    "rehearsal": ((40, 50, 8),),
}
PEER_RANK = 64
CHAIN = 64
BACKENDS = ("eager", "compile", "triton")
Row = dict[str, Any]


class Rates:
    """Seconds for one byte read, one multiply-add of a product, and one exp2, on a device and dtype; each is measured
    when it is first asked for."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype

    @cached_property
    def byte(self) -> float:
        """By a copy, which reads and writes."""
        length = copied_bytes(self.device) // self.dtype.itemsize
        large = torch.rand(length, device=self.device, dtype=self.dtype)
        copy = large.clone()
        return fastest({"copy": lambda: copy.copy_(large)})["copy"] / (2 * large.nbytes)

    @cached_property
    def product(self) -> float:
        """By a product of matrices."""
        large = 8192 if self.dtype == torch.float32 else 4096  # so long that the launch does not show
        n = 64 if rehearsed() else large if self.device.type == "cuda" else 2048
        block = torch.rand(n, n, device=self.device, dtype=self.dtype)
        return fastest({"product": partial(product, block, torch.empty_like(block))})["product"] / n**3

    @cached_property
    def exp(self) -> float:
        """By exponentials of values in the cache."""
        on_gpu = self.device.type == "cuda"
        values = torch.rand(2**22 if on_gpu else 2**20, device=self.device, dtype=self.dtype)
        found = fastest({"exp": partial(exponentials(self.device), values, torch.empty_like(values))})
        return found["exp"] / len(values) / (CHAIN if on_gpu else 1)


def copied_bytes(device: torch.device) -> int:
    """The bytes of a copy: more than a cache holds, and so many that its launch does not show, if there is room."""
    if rehearsed():
        return 2**20
    return min(2**31, torch.cuda.mem_get_info(device)[0] // 4) if device.type == "cuda" else 2**26


def product(block: Tensor, out: Tensor) -> None:
    """A matrix product, on a GPU in tf32: the fastest that float32 factors can have."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if block.is_cuda else precision)
    torch.mm(block, block, out=out)
    torch.set_float32_matmul_precision(precision)


def exponentials(device: torch.device) -> Callable[[Tensor, Tensor], object]:
    """Exponentials of cached values; on a GPU a chain of them in registers, so that memory is not what is measured."""
    if device.type == "cpu":
        return lambda values, out: torch.exp2(values, out=out)

    def chain(values: Tensor, out: Tensor) -> Tensor:
        for _ in range(CHAIN):
            values = torch.exp2(-values)
        return values

    compiled: Callable[[Tensor, Tensor], object] = torch.compile(chain)
    return compiled


def problem(n: int, k: int, rank: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Factors of a score of range +-200."""
    gen = torch.Generator().manual_seed(n + k + rank)
    A, B = torch.randn(n, rank, generator=gen), torch.randn(k, rank, generator=gen)
    scale = REACH / max(float((block @ B.T).abs().max()) for block in A.split(1024))
    return (A * scale).to(device, dtype), B.to(device, dtype)


def _sizes(device: torch.device) -> str:
    return "rehearsal" if rehearsed() else device.type


def choose(family: Any, backend: str, workload: Workload) -> Any:
    """The kernel, or None where that backend cannot run."""
    with contextlib.suppress(ValueError):
        return family.choose(backend, workload).function
    return None


def dense(device: torch.device, dtype: torch.dtype) -> list[Row]:
    """Half-steps and iterations on a stored score, milliseconds."""
    rates, rows = Rates(device, dtype), []
    for n, k in SIZES[_sizes(device)]:
        A, B = problem(n, k, 8, device, dtype)
        score, workload = A @ B.T, Workload(device, dtype, (n, k))
        f, g = score.new_full((n,), 1 / n).log2(), score.new_full((k,), 1 / k).log2()
        size = n * k * score.element_size()
        kernels = {name: kernel for name in BACKENDS if (kernel := choose(softmin_dense, name, workload))}
        base = {"family": "softmin_dense", "n": n, "k": k, "rank": 0, "dtype": str(dtype)[6:]}
        for axis, bias in ((1, g), (0, f)):
            plain = partial(naive, score, bias, axis)
            floor = max(size * rates.byte, n * k * rates.exp)
            calls = {name: partial(kernel.bind(score).softmin, bias, axis) for name, kernel in kernels.items()}
            rows.append(base | {"what": f"softmin, axis {axis}"} | timings(floor, plain, calls))
        plain = partial(plain_iteration, score, f, g)
        calls = {name: partial(kernel.bind(score).sweep, g, f, f, 1.0) for name, kernel in kernels.items()}
        calls["two reads"] = partial(make_two_read_sweep(kernels["eager"].softmin), score, g, f, f, 1.0)
        floor = max(size * rates.byte, n * k * rates.exp)
        rows.append(base | {"what": "iteration, log domain"} | timings(floor, plain, calls))
        rows.append(base | {"what": "iteration, scaling"} | scaled(score, f, g, 2 * size * rates.byte))
    return rows


def naive(score: Tensor, bias: Tensor, axis: int) -> Tensor:
    """The half-step as torch offers it."""
    return torch.logsumexp(score + (bias if axis == 1 else bias[:, None]), axis)


def plain_iteration(score: Tensor, f: Tensor, g: Tensor) -> None:
    """Both half-steps as torch offers them."""
    naive(score, f, 0)
    naive(score, g, 1)


def scaled(score: Tensor, f: Tensor, g: Tensor, floor: float) -> Row:
    """An iteration on the absorbed kernel."""
    found = iteration(softmin_dense.reference.KERNEL.bind(score / 20), f, g, torch.empty_like(score))
    plain = partial(plain_iteration, score, f, g)
    return timings(floor, plain, {}) | {"eager": found * 1e3}


def iteration(score: Score, f: Tensor, g: Tensor, out: Tensor) -> float:
    """Seconds of an iteration by scaling: the difference of long and short solves, so that absorbing cancels."""
    options = SinkhornOptions(tol=1e-300, check_every=1000, relaxation=1.0)  # never read on the way
    solve = partial(
        solve_by_scaling, Scaler(score, MarginalConstraint(f), MarginalConstraint(g), out), f, g, options=options
    )
    found = fastest({"long": partial(solve, max_iter=102), "short": partial(solve, max_iter=2)})
    return max(found["long"] - found["short"], 1e-9) / 100


def timings(floor: float, plain: Callable[[], object] | None, calls: dict[str, Callable[[], object]]) -> Row:
    """Milliseconds of the floor, of plain torch, and of each implementation."""
    found = fastest(calls | ({} if plain is None else {"torch": plain}))
    return {"floor": floor * 1e3} | {
        name: found[name] * 1e3 if name in found else None for name in ("torch", *BACKENDS, "two reads")
    }


def stream(device: torch.device, dtype: torch.dtype) -> list[Row]:
    """Half-steps and iterations on a product that is not stored, milliseconds."""
    rates, rows = Rates(device, dtype), []
    for n, k, rank in STREAMS[_sizes(device)]:
        A, B = problem(n, k, rank, device, dtype)
        f, g = A.new_full((n,), 1 / n).log2(), A.new_full((k,), 1 / k).log2()
        workload = Workload(device, dtype, (n, k), rank)
        kernels = {name: kernel for name in BACKENDS if (kernel := choose(softmin_stream, name, workload))}
        base = {"family": "softmin_stream", "n": n, "k": k, "rank": rank, "dtype": str(dtype)[6:]}
        fits = n * k * A.element_size() * 3 < 8 * 2**30
        plain = partial(plain_stream, A, B, g) if fits else None
        floor = n * k * (rank * rates.product + rates.exp)
        calls = {name: partial(kernel.bind(A, B).softmin, g, 1) for name, kernel in kernels.items()}
        memory = {"extra MB": peak_memory(n, k, rank, device, calls["eager"])}
        rows.append(base | {"what": "softmin, axis 1"} | timings(floor, plain, calls) | memory)
        calls = {name: partial(kernel.bind(A, B).sweep, g, f, f, 1.0) for name, kernel in kernels.items()}
        calls["two reads"] = partial(make_two_read_sweep(kernels["eager"].softmin), A, B, g, f, f, 1.0)
        both = partial(plain_streams, A, B, f, g) if fits else None
        rows.append(base | {"what": "iteration, log domain"} | timings(floor, both, calls))
    # After everything of ours: the threads of some of these keep spinning, which slows whatever runs next.
    for row in rows:
        if row["what"].startswith("iteration") and row["rank"] == PEER_RANK:
            row["others"] = peers(*problem(row["n"], row["k"], PEER_RANK, device, dtype))
    return rows


def plain_stream(A: Tensor, B: Tensor, bias: Tensor) -> Tensor:
    """The half-step as torch offers it."""
    return torch.logsumexp(torch.addmm(bias, A, B.T), 1)


def plain_streams(A: Tensor, B: Tensor, f: Tensor, g: Tensor) -> None:
    """Both half-steps as torch offers them."""
    plain_stream(A, B, g)
    plain_stream(B, A, f)


def peers(A: Tensor, B: Tensor) -> Row:
    """An iteration, both half-steps, of the same problem by other libraries, where they are installed: ms.

    They take points and the squared Euclidean cost, whose row and column terms change nothing in a balanced plan. What
    a solve costs besides its iterations cancels in the difference of two solves.
    """
    x, y, epsilon = A, B, 2.0 / LN2  # -|x - y|^2 / epsilon has the products x . y as base-2 scores
    solvers: dict[str, Callable[[int], object]] = {}
    if find_spec("geomloss") and find_spec("pykeops"):
        from geomloss import ot

        solvers["GeomLoss with KeOps"] = lambda count: ot.solve_sample(x, y, reg=epsilon, max_iter=count).potential_a
    if x.is_cuda and find_spec("flash_sinkhorn"):
        from flash_sinkhorn.sinkhorn_solvers import sinkhorn_flashstyle_alternating as flash

        p, q = (side.new_full((len(side),), 1 / len(side)) for side in (x, y))
        for name, tf32 in (("flash-sinkhorn tf32", True), ("flash-sinkhorn fp32", False)):
            solvers[name] = partial(_flash, flash, x, y, p, q, epsilon, tf32)
    found: Row = {}
    for name, solver in solvers.items():
        solver(2)  # what it compiles, it compiles now
        times = fastest({"long": partial(solver, 7), "short": partial(solver, 2)}, least=3)
        found[name] = max(times["long"] - times["short"], 0.0) / 5 * 1e3
    return found


def _flash(solver: Any, x: Tensor, y: Tensor, p: Tensor, q: Tensor, epsilon: float, tf32: bool, count: int) -> object:
    return solver(x, y, p, q, eps=epsilon, n_iters=count, allow_tf32=tf32)


ALONE = """
from pathlib import Path
import torch
from torchgw.kernels.softmin_stream.reference import KERNEL

def resident(key):
    return int(next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(key)).split()[1])

KERNEL.bind(torch.ones(8, {rank}), torch.ones(9, {rank})).softmin(torch.zeros(9), 1)
A, B, g = torch.randn({n}, {rank}), torch.randn({k}, {rank}), torch.zeros({k})
Path("/proc/self/clear_refs").write_text("5")
before = resident("VmRSS")
KERNEL.bind(A, B).softmin(g, 1)
print((resident("VmHWM") - before) / 1024)
"""


def peak_memory(n: int, k: int, rank: int, device: torch.device, call: Callable[[], object]) -> float:
    """Megabytes that a half-step needs beyond its operands: on the device, or resident in a process of its own."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    code = ALONE.format(n=n, k=k, rank=rank)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def run(device: torch.device | None = None) -> None:
    """Measure, print, store, and renew the device's rows of the dispatcher's table."""
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = [row for family in (dense, stream) for row in family(device, torch.float32)]
    if device.type == "cuda" or rehearsed():
        rows += dense(device, torch.float64)
    lines = [summary(row) for row in rows]
    write("kernels" if device.type == "cpu" else "kernels_gpu", lines, milliseconds=rows)
    table = renewed(json.loads(dispatch.MEASURED.read_text()), device.type, rows)
    if not rehearsed():
        dispatch.MEASURED.write_text(json.dumps(table, indent=1) + "\n")
    show(lines)


def renewed(stored: Row, device: str, rows: list[Row]) -> Row:
    """The dispatcher's table with these rows instead of what it had of the device."""
    wanted = ("family", "n", "k", "rank", *BACKENDS)
    new = [
        {"device": device} | {key: row[key] for key in wanted}
        for row in rows
        if row["what"] == "iteration, log domain" and row["dtype"] == "float32"
    ]
    kept = [row for row in stored["rows"] if row["device"] != device]
    return {"environments": stored["environments"] | {device: environment()}, "rows": kept + new}


def summary(row: Row) -> Row:
    """One line of the printed table."""
    size = f"{row['n']} x {row['k']}" + (f", r = {row['rank']}" if row["rank"] else "")
    best = min(row[name] for name in BACKENDS if row[name] is not None)
    times = "-" if row["torch"] is None else round(row["torch"] / best, 1)
    line = {"what": f"{row['what']}, {row['family'][8:]}, {row['dtype']}", "size": size}
    line |= {f"{name} ms": _short(row.get(name)) for name in ("floor", "torch", *BACKENDS, "two reads")}
    line |= {"torch / best": times, "best / floor": round(best / row["floor"], 1)}
    line["extra MB"] = _short(row.get("extra MB"))
    others = row.get("others", {})
    return line | {"others ms": ", ".join(f"{key} {value:.3g}" for key, value in others.items()) or "-"}


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"

"""Whole solves on a GPU, as a user calls them: seconds by stage, launches, waits, memory, and the same bits twice.

Launches are those of the runtime by torch's profiler, a graph one of them; waits are torch's warnings of synchronising
operations, which do not speak of numbers that are read behind other work. Each is counted in a run of its own that is
not timed. `benchmarks.launches` counts both on a simulated device, which these figures are to be held against.
"""

from __future__ import annotations

import os
import statistics
import time
import warnings
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from scipy.stats import spearmanr

from benchmarks.common import rehearsed
from benchmarks.kernels import Rates
from torchgw import GWOptions, GWResult, gw_align
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.runtime.repeated import SWITCH

Row = dict[str, Any]
RUNS, LONG = 5, 10.0  # of each job; seconds from which one that is timed is enough, and nothing is counted
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "hipLaunchKernel", "hipGraphLaunch")
ASKED = {(400, 500): 0.05, (4000, 5000): 0.15, (45_000, 45_000): 1.0, (1_000_000, 1_000_000): 20.0}  # seconds


def machine(device: torch.device) -> list[Row]:
    """The ceilings of the machine, as measured: bytes copied, read and written, and products of matrices."""
    rates = Rates(device, torch.float32)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return [
        {"what": "copy", "device": name, "figure": 1 / rates.byte / 1e12, "unit": "TB/s"},
        {"what": "product, tf32 on a GPU", "device": name, "figure": 2 / rates.product / 1e12, "unit": "TFLOP/s"},
    ]


def jobs(device: torch.device, sizes: tuple[tuple[int, int], ...]) -> list[Row]:
    """A job of each size, a spiral onto a roll with all defaults but the epsilon of 1e-3."""
    return [job(device, *size) for size in sizes]


def job(device: torch.device, n: int, k: int) -> Row:
    """One of them."""
    (X, angle_x), (Y, angle_y) = make_spiral(n), make_swiss_roll(k, random_state=1)
    solve = partial(gw_align, X, Y, epsilon=1e-3, device=device, random_state=0)
    first, began = solve(), time.perf_counter()
    last = solve()
    taken = [time.perf_counter() - began]
    same = bool(torch.equal(*(torch.as_tensor(result.argmax()) for result in (first, last)))) and same_bits(first, last)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    while len(taken) < RUNS and taken[0] < LONG and not rehearsed():
        began = time.perf_counter()
        last = solve()
        last.argmax()
        taken.append(time.perf_counter() - began)
    seconds = statistics.median(taken)
    return {
        "size": f"{n} x {k}",
        "strategy": last.strategy,
        "s": seconds,
        "asked s": ASKED.get((n, k)),
        **{f"{stage} s": of_stage for stage, of_stage in last.timings.items()},
        "launches": launches(solve) if seconds < LONG else None,
        "waits": waits(solve) if seconds < LONG else None,
        "GPU GiB": torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else 0.0,
        "same bits": same,
        "rho": float(spearmanr(angle_x, angle_y[last.argmax()])[0]),
        "value": last.value,
        "backend": last.backend,
    }


def same_bits(one: GWResult, other: GWResult) -> bool:
    """Whether two solves ended in the same numbers."""
    same = (
        torch.equal(torch.as_tensor(a), torch.as_tensor(b))
        for a, b in zip(one.potentials, other.potentials, strict=True)
    )
    return one.value == other.value and all(same)


def launches(solve: Any) -> int:
    """How often the host launches a kernel or a graph in one solve; zero where there is no GPU."""
    if not torch.cuda.is_available():
        solve()
        return 0
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        solve()
        torch.cuda.synchronize()
    return sum(event.name.startswith(LAUNCHES) for event in profile.events())


def waits(solve: Any) -> int:
    """How often the host waits in one solve; zero where there is no GPU."""
    if not torch.cuda.is_available():
        return 0
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            solve()
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return sum("synchroniz" in str(each.message) for each in caught)


def variants(device: torch.device, sizes: tuple[tuple[int, int], ...], backends: tuple[str, ...]) -> list[Row]:
    """The same with and without graphs, by backend."""
    rows = []
    for n, k in sizes:
        X, Y = make_spiral(n)[0], make_swiss_roll(k, random_state=1)[0]
        for backend in backends:
            for graphs in (True, False):
                with patch.dict(os.environ, {SWITCH: str(int(graphs))}):
                    solve = partial(gw_align, X, Y, epsilon=1e-3, device=device, random_state=0, backend=backend)
                    solve(options=GWOptions())
                    taken = []
                    for _ in range(1 if rehearsed() else RUNS):
                        began = time.perf_counter()
                        result = solve()
                        result.argmax()
                        taken.append(time.perf_counter() - began)
                rows.append(
                    {
                        "size": f"{n} x {k}",
                        "backend": backend,
                        "graphs": graphs,
                        "s": statistics.median(taken),
                        "value": result.value,
                    }
                )
    return rows

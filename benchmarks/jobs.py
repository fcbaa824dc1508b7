"""Whole solves on a GPU, as a user calls them: seconds by stage, launches, waits, memory, and the same bits twice.

A trace of torch's profiler says what the host launched, a graph once, and how long the GPU computed. Waits are torch's
warnings of synchronising operations, which do not speak of numbers that are read behind other work. Both come from runs
of their own that are not timed. `benchmarks.launches` counts on a simulated device, to which these figures compare.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from scipy.stats import spearmanr

from benchmarks.common import rehearsed
from torchgw import GWOptions, GWResult, gw_align
from torchgw.datasets import make_spiral, make_swiss_roll

Row = dict[str, Any]
RUNS, LONG = 5, 10.0  # of each job; seconds from which one that is timed is enough, and nothing is counted
TOP = 12  # kernels that are told of each job
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "hipLaunchKernel", "hipGraphLaunch")
HOST = (*LAUNCHES, "cudaStreamSync", "cudaEventSync", "cudaMemcpy", "cudaStreamBeginCapture", "cudaGraphInstantiate",
        "cudaMalloc", "cudaHostAlloc")  # fmt: skip


class Trace(NamedTuple):
    """What a call did on a GPU.

    busy : seconds that the GPU computed.
    kernels : name, count and milliseconds of each kernel, the longest first.
    host : how often the host made each kind of call.
    """

    busy: float
    kernels: list[tuple[str, int, float]]
    host: dict[str, int]

    @property
    def launches(self) -> int:
        """How often the host launched a kernel or a graph."""
        return sum(count for name, count in self.host.items() if name.startswith(LAUNCHES))


def traced(call: Callable[[], object]) -> Trace:
    """One run of ``call`` under torch's profiler; nothing in a rehearsal, where there is no GPU."""
    if rehearsed():
        return Trace(0.0, [], {})
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        call()
        torch.cuda.synchronize()
    events = profile.key_averages()
    there = [each for each in events if each.device_type == torch.autograd.DeviceType.CUDA]
    there.sort(key=lambda each: -each.self_device_time_total)
    kernels = [(each.key[:70], each.count, each.self_device_time_total / 1e3) for each in there]
    host = {each.key: each.count for each in events if each.key.startswith(HOST)}
    return Trace(sum(ms for *_, ms in kernels) / 1e3, kernels, host)


def job(n: int, k: int, strategy: str = "auto", counted: bool = True) -> Row:
    """A spiral onto a roll at an epsilon of 1e-3, all else by default: the median after a first call."""
    (X, angle_x), (Y, angle_y) = make_spiral(n), make_swiss_roll(k, random_state=1)
    options = GWOptions(strategy=strategy)  # type: ignore[arg-type]
    solve = partial(gw_align, X, Y, epsilon=1e-3, device="cuda", random_state=0, options=options)
    first, taken = solve(), list[float]()
    torch.cuda.reset_peak_memory_stats()
    while not taken or (counted and len(taken) < RUNS and taken[0] < LONG and not rehearsed()):
        began = time.perf_counter()
        last = solve()
        match = last.argmax()
        taken.append(time.perf_counter() - began)
    seconds, memory = statistics.median(taken), torch.cuda.max_memory_allocated() / 2**30
    row = {
        "strategy": last.strategy,
        "s": seconds,
        "runs s": taken,
        **{f"{stage} s": of_stage for stage, of_stage in last.timings.items()},
        "GPU GiB": memory,
        "same bits": same_bits(first, last),
        "rho": float(spearmanr(angle_x, angle_y[match])[0]),
        "value": last.value,
        "residual": last.marginal_residual,
        "omitted": last.omitted_mass,
        "backend": last.backend,
    }
    if not counted or seconds > LONG:
        return row
    trace = traced(solve)
    counts = {"launches": trace.launches, "waits": waits(solve), "busy ms": trace.busy * 1e3}
    return row | counts | {"kernels": trace.kernels[:TOP], "host": trace.host}


def same_bits(one: GWResult, other: GWResult) -> bool:
    """Whether two solves ended in the same numbers, and in the same matching."""
    pairs = (*zip(one.potentials, other.potentials, strict=True), (one.argmax(), other.argmax()))
    return one.value == other.value and all(torch.equal(*map(torch.as_tensor, pair)) for pair in pairs)


def waits(solve: Callable[[], object]) -> int:
    """How often the host waits in one solve; zero in a rehearsal."""
    if rehearsed():
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

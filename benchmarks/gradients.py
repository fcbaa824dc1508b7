"""Gradients of plans by implicit differentiation: time and memory of one backward pass, and which solver it takes.

Each cell runs in a process of its own, which reports its time (the least of three runs) and the memory it took beyond
what the problem itself takes.

``linear`` is entropic transport of a squared cost of features, ``gw`` Gromov-Wasserstein between Euclidean distances; a
gradient is taken with respect to the features or to the distances. ``streaming`` is Gromov-Wasserstein between squared
distances without a stored plan.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import torchgw
from benchmarks.common import fastest, show, write
from torchgw.couplings.blocks import DenseCoupling
from torchgw.gradients.adjoint import Adjoint
from torchgw.gradients.differentiable import Differentiable
from torchgw.sinkhorn.costs import FactoredCost

SIZES = (50, 100, 500, 1000, 2000)
STREAMED = (1000, 2000, 4000)
REPEATS = 3
EPSILON = {"linear": 1e-2, "gw": 5e-3, "streaming": 5e-3}
DIRECT = (250, 500, 1000, 2000, 3000)


def problem(kind: str, n: int, dtype: torch.dtype) -> Differentiable:
    """Solved to its fixed point: n points in 3-D and n in 2-D."""
    generator = torch.Generator().manual_seed(n)
    X, Y = (torch.rand(n, d, generator=generator, dtype=torch.float64).square() for d in (3, 2))
    X, Y = (side * torch.tensor(lengths).to(side) for side, lengths in ((X, (1.0, 0.5, 0.2)), (Y, (1.0, 0.5))))
    X, Y = X.to(dtype), Y.to(dtype)  # without symmetries
    more: dict[str, Any] = {"distances": "euclidean"}
    if kind == "linear":
        features = torch.cat((Y, torch.rand(n, 1, generator=generator, dtype=torch.float64).to(dtype)), 1)
        more |= {"cost": (X.requires_grad_(), features), "alpha": 0.0}
        X = Y = None  # type: ignore[assignment]
    elif kind == "streaming":
        more = {"options": torchgw.GWOptions(strategy="streaming")}
        X, Y = (torchgw.EuclideanDistances(side, squared=True) for side in (X.requires_grad_(), Y))
    else:
        X.requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mode = torchgw.Implicit(tol=1e-9)
        result = torchgw.gw_align(X, Y, epsilon=EPSILON[kind], random_state=0, gradient_mode=mode, **more)
    assert isinstance(result.differentiated, Differentiable)
    return result.differentiated


def backward_of(found: Differentiable, size: int | None = None) -> Callable[[], object]:
    """A backward pass through the plan, or through what a plan that is not stored carries; the systems are factored up
    to ``size``."""
    theta, model = found.theta, found.solution.model
    needed = [tensor.requires_grad for tensor in theta.tensors()]
    n, k = len(model.p), len(model.q)
    generator = torch.Generator().manual_seed(1)
    if isinstance(found.solution.plan, DenseCoupling):
        G = FactoredCost.from_matrix(torch.randn(n, k, generator=generator, dtype=torch.float64).to(theta.p))
    else:
        V = torch.rand(n, 2, generator=generator, dtype=torch.float64).to(theta.p)
        G = FactoredCost(theta.p.new_zeros(n), theta.p.new_zeros(k), V, V)

    def backward() -> object:
        adjoint = Adjoint(found.solution, torchgw.Implicit())
        if size is not None:
            adjoint.response.direct_size = size
        return adjoint.pull_back(G, theta, needed)

    return backward


def resident(name: str) -> float:
    """Resident memory of this process in bytes: VmRSS now, VmHWM at most."""
    return int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024.0  # type: ignore[index]


def measured(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds, the least of a few runs, and the memory of the first, in bytes."""
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    times, memory = [], 0.0
    for turn in range(REPEATS):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
        memory = memory or resident("VmHWM") - before
        if turn == 0 and times[0] > 20:
            break
    return min(times), memory


def cell(kind: str, n: int, dtype: str) -> dict[str, float]:
    """One measurement, in the process that was started for it."""
    precision = getattr(torch, dtype)
    if kind != "streaming":
        backward_of(problem(kind, 30, precision))()  # what libraries allocate at their first call
    seconds, taken = measured(backward_of(problem(kind, n, precision)))
    return {"seconds": seconds, "bytes": taken}


def in_process(*arguments: object) -> dict[str, float]:
    """A cell in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.gradients", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def row(kind: str, n: int, dtype: str) -> dict[str, Any]:
    """One problem whose plan is stored."""
    found = in_process(kind, n, dtype)
    return {
        "problem": kind,
        "N": n,
        "dtype": dtype,
        "implicit s": found["seconds"],
        "plan MiB": {"float32": 4, "float64": 8}[dtype] * n**2 / 2**20,
        "implicit MiB": found["bytes"] / 2**20,
    }


def direct(kind: str, n: int) -> dict[str, Any]:
    """The backward pass with the system factored, and with conjugate gradients, on one problem in float64."""
    found = problem(kind, n, torch.float64)
    times = fastest({"direct": backward_of(found, n), "conjugate gradients": backward_of(found, 0)}, least=3)
    return {"problem": kind, "N": n} | times | {"ratio": times["conjugate gradients"] / times["direct"]}


def streaming(n: int) -> dict[str, Any]:
    """One problem whose plan is not stored."""
    found = in_process("streaming", n, "float64")
    return {"N": n, "seconds": found["seconds"], "plan MiB": 8 * n**2 / 2**20, "MiB": found["bytes"] / 2**20}


def run() -> None:
    """All cells, one after another."""
    rows = [row(kind, n, dtype) for kind in ("linear", "gw") for n in SIZES for dtype in ("float32", "float64")]
    show(rows)
    factored = [direct(kind, n) for kind in ("linear", "gw") for n in (DIRECT if kind == "linear" else DIRECT[:-1])]
    show(factored)
    streamed = [streaming(n) for n in STREAMED]
    show(streamed)
    write("gradients", rows, factored=factored, streamed=streamed)


if __name__ == "__main__":
    kind, n, dtype = sys.argv[1:]
    print(json.dumps(cell(kind, int(n), dtype)))

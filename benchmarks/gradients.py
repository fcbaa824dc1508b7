"""Gradients of plans: implicit differentiation against automatic differentiation of recorded iterations.

Both take the same number of iterations from the same start. With an implicit backward pass any will do, so they are the
library's own, which scale a stored plan; those that are recorded are in the log domain. That number is the smallest
power of two (times ten) at which the plan is solved: its L1 distance from the solution is at most 1e-4 of its mass.
``linear`` starts at the product of the masses, ``gw`` at the solution for twice the entropy, with 20 half-steps of each
side for each linearisation. Each cell runs in a
process of its own, which reports its time (the least of three runs) and the memory it took beyond what the problem
itself takes.

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
from torch import Tensor

import torchgw
from benchmarks.common import fastest, show, write
from torchgw.couplings.blocks import DenseCoupling
from torchgw.gradients.adjoint import Adjoint
from torchgw.gradients.differentiable import Differentiable
from torchgw.gradients.lagrangian import Parameters
from torchgw.gradients.unrolled import unroll_fixed_point
from torchgw.kernels import softmin_dense
from torchgw.kernels.dispatch import Workload
from torchgw.objective.linearise import gradient_of
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.solvers.inner import StoredSolver
from torchgw.solvers.warm_start import WarmStart

SIZES = (50, 100, 500, 1000, 2000)
STREAMED = (1000, 2000, 4000)
CLOSE = 1e-4
MOST = 2560
INNER = 20
MEMORY = 18 * 2**30
REPEATS = 3
EPSILON = {"linear": 1e-2, "gw": 5e-3, "streaming": 5e-3}
DIRECT = (250, 500, 1000, 2000, 3000)


def problem(kind: str, n: int, dtype: torch.dtype, blur: float = 1.0) -> Differentiable:
    """Solved to its fixed point: n points in 3-D and n in 2-D, with ``mean_row_entropy`` times the entropy."""
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
        result = torchgw.gw_align(X, Y, epsilon=blur * EPSILON[kind], random_state=0, gradient_mode=mode, **more)
    assert isinstance(result.differentiated, Differentiable)
    return result.differentiated


def leaves(theta: Parameters) -> tuple[Parameters, list[Tensor]]:
    """The parameters cut off from what they were made of, and those that gradients are taken for."""
    tensors = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in theta.tensors()]
    return theta.with_tensors(tensors), [tensor for tensor in tensors if tensor.requires_grad]


def implicit(found: Differentiable, G: Tensor, steps: tuple[int, int], start: Tensor) -> list[Tensor]:
    """As many iterations of the library's solver, and an implicit backward pass."""
    theta, wanted = leaves(found.theta)
    forward(found, steps, start)
    adjoint = Adjoint(found.solution, torchgw.Implicit())
    needed = [tensor.requires_grad for tensor in theta.tensors()]
    assert len(wanted) == sum(needed)
    return [side for side in adjoint.pull_back(FactoredCost.from_matrix(G), theta, needed) if side is not None]


def forward(found: Differentiable, steps: tuple[int, int], start: Tensor) -> None:
    """Linearise and solve from a plan, as often and with as many iterations as asked."""
    model, quadratic = found.solution.model, found.solution.curvature.quadratic
    p, q = (mass.to(start.dtype) for mass in model.masses)
    kernel = softmin_dense.choose("eager", Workload(start.device, start.dtype, tuple(start.shape))).function
    options = torchgw.SinkhornOptions(exact_max_iter=max(steps[1], 2), tol=1e-12)
    inner, gradient = StoredSolver(kernel, model, options), gradient_of(model, quadratic)
    cost = gradient(DenseCoupling(start), p)
    warm = WarmStart(cost, p.log2(), q.log2(), model.epsilon)
    for _ in range(steps[0]):
        coupling, warm, *_ = inner.solve_linearization(cost, model.epsilon, warm)
        cost = gradient(coupling, p)


def recorded(found: Differentiable, G: Tensor, steps: tuple[int, int], start: Tensor) -> list[Tensor]:
    """Iterations with a record, and automatic differentiation of it."""
    theta, wanted = leaves(found.theta)
    g = torch.zeros_like(found.solution.g)
    T = unroll_fixed_point(theta, found.solution.model, start, g, torchgw.Unrolled(n_outer=steps[0], n_inner=steps[1]))
    return list(torch.autograd.grad((T * G).sum(), wanted, allow_unused=True))


def difference(one: list[Tensor], other: list[Tensor]) -> float:
    """Relative, over all tensors that have a gradient; of distances, which are symmetric, only that part counts."""
    pairs = [(_symmetric(a), _symmetric(b)) for a, b in zip(one, other, strict=True) if b is not None]
    total = sum(float((a - b).square().sum()) for a, b in pairs)
    return (total / sum(float(a.square().sum()) for a, _ in pairs)) ** 0.5


def _symmetric(G: Tensor) -> Tensor:
    return (G + G.T) / 2 if G.ndim == 2 and G.shape[0] == G.shape[1] else G


def setting(kind: str, n: int, dtype: torch.dtype) -> tuple[Differentiable, Tensor, Tensor]:
    """A problem, dL/dT and the plan that iterations begin at."""
    found = problem(kind, n, dtype)
    G = torch.randn(n, n, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    p, q = (mass.to(dtype) for mass in found.solution.model.masses)
    start = torch.outer(p, q) if kind == "linear" else problem(kind, n, dtype, 2.0).solution.plan.to_dense()
    return found, G, start


def steps_for(kind: str, n: int) -> tuple[tuple[int, int], float]:
    """Iterations that solve a problem in float64, and the relative error of the gradient if they are recorded."""
    found, G, start = setting(kind, n, torch.float64)
    theta, _ = leaves(found.theta)
    zeros, truth = torch.zeros_like(found.solution.g), found.solution.plan.to_dense()
    count, off = 10, 1.0
    while off > CLOSE and count < MOST:
        count *= 2
        steps = (1, count) if kind == "linear" else (count // INNER, INNER)
        with torch.no_grad():
            mode = torchgw.Unrolled(n_outer=steps[0], n_inner=steps[1])
            T = unroll_fixed_point(theta, found.solution.model, start, zeros, mode)
        off = float((T - truth).abs().sum() / truth.sum())
    return steps, difference(implicit(found, G, (1, 1), start), recorded(found, G, steps, start))


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


def cell(kind: str, n: int, dtype: str, method: str, outer: int, inner: int) -> dict[str, float]:
    """One measurement, in the process that was started for it."""
    if method == "streamed":
        found = problem(kind, n, getattr(torch, dtype))
        theta, _ = leaves(found.theta)
        needed = [tensor.requires_grad for tensor in theta.tensors()]
        V = torch.rand(n, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(theta.p)
        zero = theta.p.new_zeros(n)

        def backward() -> object:
            adjoint = Adjoint(found.solution, torchgw.Implicit())
            return adjoint.pull_back(FactoredCost(zero, zero, V, V), theta, needed)

        taken = measured(backward)
    else:
        found, G, start = setting(kind, n, getattr(torch, dtype))
        function = implicit if method == "implicit" else recorded
        small = setting(kind, 30, getattr(torch, dtype))
        function(small[0], small[1], (outer, inner), small[2])  # what libraries allocate at their first call
        taken = measured(lambda: function(found, G, (outer, inner), start))
    return {"seconds": taken[0], "bytes": taken[1]}


def in_process(*arguments: object) -> dict[str, float] | None:
    """A cell in a process of its own; None where it did not end well."""
    command = [sys.executable, "-m", "benchmarks.gradients", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found: dict[str, float] | None = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None
    return found


def row(kind: str, n: int, dtype: str, steps: tuple[int, int]) -> dict[str, Any]:
    """Both methods on one problem."""
    size = {"float32": 4, "float64": 8}[dtype] * n * n
    fast = in_process(kind, n, dtype, "implicit", *steps)
    assert fast is not None
    foreseen = 5.5 * size * steps[0] * steps[1]
    slow = in_process(kind, n, dtype, "recorded", *steps) if foreseen < MEMORY else None
    return {
        "problem": kind,
        "N": n,
        "dtype": dtype,
        "iterations": steps[0] * steps[1],
        "implicit s": fast["seconds"],
        "recorded s": slow["seconds"] if slow else f"beyond memory ({foreseen / 2**30:.0f} GiB)",
        "ratio": slow["seconds"] / fast["seconds"] if slow else "-",
        "plan MiB": size / 2**20,
        "implicit MiB": fast["bytes"] / 2**20,
        "recorded MiB": slow["bytes"] / 2**20 if slow else "-",
    }


def direct(kind: str, n: int) -> dict[str, Any]:
    """The backward pass with the system factored, and with conjugate gradients, on one problem in float64."""
    found, G, _ = setting(kind, n, torch.float64)
    theta, _ = leaves(found.theta)
    needed = [tensor.requires_grad for tensor in theta.tensors()]

    def backward(size: int) -> Callable[[], object]:
        def call() -> object:
            adjoint = Adjoint(found.solution, torchgw.Implicit())
            adjoint.response.direct_size = size
            return adjoint.pull_back(FactoredCost.from_matrix(G), theta, needed)

        return call

    times = fastest({"direct": backward(n), "conjugate gradients": backward(0)}, least=3)
    return {"problem": kind, "N": n} | times | {"ratio": times["conjugate gradients"] / times["direct"]}


def run() -> None:
    """All cells, one after another."""
    rows: list[dict[str, Any]] = []
    factored: list[dict[str, Any]] = []
    for kind in ("linear", "gw"):
        for n in SIZES:
            steps, error = steps_for(kind, min(n, SIZES[2]))
            for dtype in ("float32", "float64"):
                rows.append(row(kind, n, dtype, steps) | {"gradient off by": error})
                show(rows[-1:])
    for kind in ("linear", "gw"):
        for n in DIRECT if kind == "linear" else DIRECT[:-1]:
            factored.append(direct(kind, n))
            show(factored[-1:])
    streamed = []
    for n in STREAMED:
        found = in_process("streaming", n, "float64", "streamed", 0, 0)
        assert found is not None
        plan = 8 * n**2 / 2**20
        streamed.append({"N": n, "seconds": found["seconds"], "plan MiB": plan, "MiB": found["bytes"] / 2**20})
        show(streamed[-1:])
    print()
    show(rows)
    show(factored)
    show(streamed)
    write("gradients", rows, factored=factored, streamed=streamed)


if __name__ == "__main__":
    kind, n, dtype, method, outer, inner = sys.argv[1:]
    print(json.dumps(cell(kind, int(n), dtype, method, int(outer), int(inner))))

"""The curvature of plans: what a product with the Hessian and its ends cost, what is firm.

Products are compared with automatic differentiation of the objective (two backward passes), by themselves and as what
Lanczos takes; the floor of a product between stored distances is that of the two matrix products in it.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import interleaved, run_groups
from benchmarks.quality import clouds, row, timed
from torchgw import GWResult, curvature, gw_align
from torchgw.linalg.lanczos import lanczos
from torchgw.linalg.operators import Matrix, Operator

Row = dict[str, Any]
Array = np.ndarray
SIZES, STEPS = (250, 500, 1000), 20
LARGE, LARGE_SECONDS, LARGE_GIB, NEAR = 45_000, 30.0, 1.5, 0.01


def matvec(operator: Operator, V: Tensor) -> Tensor:
    """A V (n, m)."""
    return operator.image(*operator.metric(V))


def cloud(n: int, d: int, seed: int) -> Array:
    return np.random.default_rng(seed).normal(size=(n, d)) * (3.0, 2.0, 1.0)[:d]


def solved(n: int) -> GWResult:
    """Clouds in three and in two dimensions, with their Euclidean distances."""
    return gw_align(cloud(n, 3, 0), cloud(n, 2, 1), distances="euclidean", epsilon=5e-3, random_state=0)


def by_autograd(result: GWResult) -> Matrix:
    """Half the second derivative on all changes, in units of sqrt(T / epsilon), by two backward passes."""
    assert result.known is not None
    D, E = (side.space.rows(torch.arange(side.space.size)).double() for side in result.known)
    T = torch.as_tensor(result.plan).double()
    root = (T / result.epsilon).sqrt()

    def objective(plan: Tensor) -> Tensor:
        p, q = plan.sum(1), plan.sum(0)
        quadratic = p @ D.square() @ p + q @ E.square() @ q - 2 * ((D @ plan @ E) * plan).sum()
        return quadratic + 2 * result.epsilon * torch.special.xlogy(plan, plan).sum()

    def product(V: Tensor) -> Tensor:
        found = []
        for v in V.T:
            plan = T.clone().requires_grad_()
            (slope,) = torch.autograd.grad(objective(plan), plan, create_graph=True)
            (image,) = torch.autograd.grad(slope, plan, (v.view(T.shape) * root))
            found.append((image * root / 2).flatten())
        return torch.stack(found, 1)

    return Matrix(product, T.numel(), T.device, torch.float64)


def products() -> list[Row]:
    """A product with the Hessian, and twenty steps of Lanczos, against automatic differentiation, one vector each."""
    rows = []
    for n in SIZES:
        result = solved(n)
        hessian, other = curvature(result, 1, whole=True, max_steps=1).hessian, by_autograd(result)
        V = torch.randn(hessian.size, 1, dtype=torch.float64)
        D = torch.randn(n, n, dtype=torch.float64)
        torch.compiler.reset()
        compiled = torch.compile(partial(matvec, hessian), dynamic=True)
        _, first = timed(lambda compiled=compiled, V=V: compiled(V))
        times = interleaved(
            {
                "ours": lambda hessian=hessian, V=V: matvec(hessian, V),
                "compiled": lambda compiled=compiled, V=V: compiled(V),
                "autograd": lambda other=other, V=V: matvec(other, V),
                "floor": lambda D=D: D @ D @ D,
            },
            5,
        )
        least = {name: min(seconds) for name, seconds in times.items()}
        ours = least["ours"]
        said = (
            f"{1e3 * ours:.3g} ms, {least['autograd'] / ours:.2g}x as fast as autograd, {ours / least['floor']:.2g}x "
            f"the floor; torch.compile {least['compiled'] / ours:.2g}x the time, after {first:.2g} s"
        )
        rows.append(row(f"product {n} x {n}", "", said, True, first_compiled=first, **least))
    for n in SIZES[:2]:
        ours, theirs = measured_lanczos(n, "ours"), measured_lanczos(n, "autograd")
        said = (
            f"{ours['seconds']:.3g} s and {ours['mib']:.3g} MiB; autograd {theirs['seconds'] / ours['seconds']:.2g}x "
            f"the time, {theirs['mib'] / ours['mib']:.2g}x the memory"
        )
        rows.append(row(f"{STEPS} steps of Lanczos, {n} x {n}", "", said, True, ours=ours, autograd=theirs))
    return rows


def measured_lanczos(n: int, kind: str) -> dict[str, float]:
    """Seconds and MiB, beyond those of the problem, in a process of its own."""
    code = f"from benchmarks.curvature import lanczos_of; lanczos_of({n}, {kind!r})"
    command = [sys.executable, "-W", "ignore", "-c", code]
    found: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def lanczos_of(n: int, kind: str) -> None:
    """Prints what twenty steps took."""
    result = solved(n)
    operator = curvature(result, 1, whole=True, max_steps=1).hessian if kind == "ours" else by_autograd(result)
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far, which was that of the solve
    before, began = resident("VmRSS"), time.perf_counter()
    lanczos(operator, 1, 1, tol=1e-12, max_steps=STEPS)
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "mib": resident("VmHWM") - before}))


def resident(kind: str) -> float:
    """MiB of this process, now (VmRSS) or at most (VmHWM), as Linux says."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(kind))) / 2**10


def ring(n: int, minor: float = 1.0, noise: float = 0.0, seed: int = 0) -> Array:
    t = 2 * np.pi * np.arange(n) / n
    return np.stack((np.cos(t), minor * np.sin(t)), 1) + noise * np.random.default_rng(seed).normal(size=(n, 2))


def firm() -> list[Row]:
    """Circles, noisy circles and ellipses."""
    least = {}
    for name, minor, noise in (("circle", 1.0, 0.0), ("noise 0.01", 1.0, 0.01), ("noise 0.05", 1.0, 0.05),
                               ("noise 0.2", 1.0, 0.2), ("ellipse", 0.6, 0.0)):  # fmt: skip
        pair = ring(80, minor, noise), ring(100, minor, noise, 1)
        found = curvature(gw_align(*pair, distances="euclidean", epsilon=0.01, random_state=0), 3)
        least[name] = {"values": found.smallest.tolist(), "flat": len(found.flat)}
    values = [run["values"][0] for run in least.values()]
    met = least["circle"]["flat"] == 1 and least["ellipse"]["flat"] == 0 and values[:4] == sorted(values[:4])
    said = ", ".join(f"{name} {run['values'][0]:.3g} ({run['flat']} flat)" for name, run in least.items())
    return [row("smallest curvature", "one flat mode, none, in order", said, met, runs=least)]


def large() -> list[Row]:
    """The ends of the spectrum around a plan that streams, against tighter ones."""
    X, _, Y, _ = clouds(LARGE, LARGE, 0)
    result = gw_align(X, Y, random_state=0)
    found, seconds = timed(lambda: curvature(result, 1))
    gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    tight = curvature(result, 1, tol=3e-4)
    ends = np.array([found.smallest[0], found.largest[0]]), np.array([tight.smallest[0], tight.largest[0]])
    off = float(np.abs(ends[0] / ends[1] - 1).max())
    said = f"{seconds:.3g} s, {gib:.2f} GiB with its solve, {ends[0][0]:.4f} to {ends[0][1]:.4f}, within {off:.1e}"
    required = f"<= {LARGE_SECONDS:g} s, {LARGE_GIB} GiB, within {NEAR:.0%}"
    met = bool(seconds <= LARGE_SECONDS and gib <= LARGE_GIB and off <= NEAR)
    return [row(f"both ends at {LARGE} x {LARGE}", required, said, met)]


GROUPS: dict[str, Callable[[], list[Row]]] = {"products": products, "firm": firm, "large": large}


def run(groups: list[str] | None = None) -> None:
    """Measure, print, store."""
    run_groups("curvature", GROUPS, groups)

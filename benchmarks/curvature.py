"""The curvature of plans: what a product with the Hessian and its ends cost, which saddles are left, what is firm.

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
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import interleaved, run_groups
from benchmarks.quality import clouds, row, timed
from torchgw import GWResult, curvature, gw_align
from torchgw.linalg.eigenpairs import lanczos
from torchgw.linalg.operators import Symmetric, matvec
from torchgw.objective.hessian import FLAT

Row = dict[str, Any]
Array = np.ndarray
SIZES, STEPS = (250, 500, 1000), 20
SADDLES, PROBLEMS = 100, 40
LARGE, LARGE_SECONDS, LARGE_GIB, NEAR = 45_000, 30.0, 1.5, 0.01


def cloud(n: int, d: int, seed: int) -> Array:
    return np.random.default_rng(seed).normal(size=(n, d)) * (3.0, 2.0, 1.0)[:d]


def solved(n: int) -> GWResult:
    """Clouds in three and in two dimensions, with their Euclidean distances."""
    return gw_align(cloud(n, 3, 0), cloud(n, 2, 1), distances="euclidean", epsilon=5e-3, random_state=0)


def by_autograd(result: GWResult) -> Symmetric:
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

    return Symmetric(product, T.numel(), T.device, torch.float64)


def products() -> list[Row]:
    """A product with the Hessian, and twenty steps of Lanczos, against automatic differentiation, one vector each."""
    rows = []
    for n in SIZES:
        result = solved(n)
        hessian, other = curvature(result, 1, whole=True, max_steps=1).hessian, by_autograd(result)
        V = torch.randn(hessian.size, 1, dtype=torch.float64)
        D = torch.randn(n, n, dtype=torch.float64)
        times = interleaved(
            {
                "ours": lambda hessian=hessian, V=V: matvec(hessian, V),
                "autograd": lambda other=other, V=V: matvec(other, V),
                "floor": lambda D=D: D @ D @ D,
            },
            5,
        )
        ours, theirs, floor = (min(times[name]) for name in ("ours", "autograd", "floor"))
        said = f"{1e3 * ours:.3g} ms, {theirs / ours:.2g}x as fast as autograd, {ours / floor:.2g}x the floor"
        rows.append(row(f"product {n} x {n}", "", said, True, ours=ours, autograd=theirs, floor=floor))
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
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    lanczos(operator, 1, 1, tol=1e-12, max_steps=STEPS)
    seconds = time.perf_counter() - began
    mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10
    print(json.dumps({"seconds": seconds, "mib": max(mib, 1.0)}))


def symmetric_starts(seed: int) -> tuple[Array, Array]:
    """Points, and a plan that has the symmetries of their distances: mixtures of turns, mirrors and swaps, or all."""
    rng = np.random.default_rng(seed)
    n, fold = int(rng.integers(4, 13)), int(rng.integers(2, 6))
    if seed % 2:
        t = 2 * np.pi * np.arange(n * fold) / (n * fold)
        r = 1 + 0.3 * np.cos(fold * t)
        X = np.stack((r * np.cos(t), r * np.sin(t)), 1)
        turned = [np.roll(np.eye(len(X)), n * i, 1) for i in range(fold)]
        return X, (np.mean(turned, 0) if seed % 4 == 1 else np.ones((len(X), len(X))) / len(X)) / len(X)
    half = rng.normal(size=(n, 2)) * (1, 0.5)
    X = np.concatenate((half, half + np.array((6, 0)))) if seed % 4 else np.concatenate((half, half * (-1, 1)))
    return X, (np.eye(2 * n) + np.roll(np.eye(2 * n), n, 1)) / (4 * n)


def escapes() -> list[Row]:
    """A hundred starts that have the symmetry of their problem."""
    runs, cost = [], []
    for seed in range(SADDLES):
        X, init = symmetric_starts(seed)
        gain = gw_align(X, X, distances="euclidean", epsilon=0.05, random_state=0).gain
        asked: dict[str, Any] = {"distances": "euclidean", "epsilon": (0.03, 0.01, 0.003)[seed % 3] * gain}
        result = gw_align(X, X, init=init, random_state=0, **asked)
        searched, seconds = timed(lambda asked=asked, X=X: gw_align(X, X, random_state=0, **asked))
        least, spent = timed(lambda result=result: curvature(result, 1, largest=0, tol=1e-3, max_steps=16).smallest[0])
        cost.append(spent / seconds)
        runs.append({"escapes": result.escapes, "curvature": least, "value": result.value, "search": searched.value})
    left = sum(run["escapes"] > 0 for run in runs)
    second = sum(run["curvature"] >= -FLAT for run in runs)
    said = f"{second} of {SADDLES}; {left} began at a saddle and left it"
    found = [row(f"{SADDLES} symmetric starts: second-order points", "all", said, second == SADDLES, runs=runs)]
    share = float(np.median(cost))
    found.append(row("looking for a saddle, of a default solve", "<= 20 %", f"{share:.1%}", share <= 0.2, runs=cost))
    return found


def solves() -> list[Row]:
    """What the look costs and finds where solves begin with a search: kinds of clouds and graphs."""
    import networkx as nx

    from torchgw import AdjacencyDistances

    found = []
    for seed in range(PROBLEMS):
        rng, n = np.random.default_rng(seed), 30 + 5 * (seed % 9)
        kind = ("cloud", "clusters", "sphere", "random graph", "scale-free graph")[seed % 5]
        more: dict[str, Any] = {"distances": "euclidean"}
        if kind.endswith("graph"):
            graphs = [
                nx.erdos_renyi_graph(n, 0.2, seed=seed + s) if kind == "random graph" else
                nx.barabasi_albert_graph(n, 2, seed=seed + s) for s in (0, 1000)
            ]  # fmt: skip
            spaces, more = [AdjacencyDistances(nx.to_numpy_array(graph)) for graph in graphs], {}
        else:
            sides = [rng.normal(size=(n, 2 + seed % 3)) for _ in range(2)]
            if kind == "clusters":
                sides = [side * 0.2 + rng.integers(0, 3, size=(n, 1)) for side in sides]
            if kind == "sphere":
                sides = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in sides]
            spaces = sides
        gain = gw_align(*spaces, epsilon=0.05, random_state=0, **more).gain
        result = gw_align(*spaces, epsilon=(0.03, 0.01, 0.003)[seed % 3] * gain, random_state=0, **more)
        found.append(
            {"kind": kind, "n": n, "escapes": result.escapes, "curvature": result.certificate.curvature,
             "converged": result.converged}
        )  # fmt: skip
    left, negative = (sum(run[name] > 0 for run in found) for name in ("escapes", "curvature"))
    said = f"{left} of {PROBLEMS} left a saddle; {negative} end at a positive curvature"
    return [row(f"{PROBLEMS} searched solves of five kinds", "values never higher", said, True, runs=found)]


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
    met = seconds <= LARGE_SECONDS and gib <= LARGE_GIB and off <= NEAR
    return [row(f"both ends at {LARGE} x {LARGE}", required, said, met)]


GROUPS: dict[str, Callable[[], list[Row]]] = {
    "products": products,
    "escapes": escapes,
    "solves": solves,
    "firm": firm,
    "large": large,
}


def run(groups: list[str] | None = None) -> None:
    """Measure, print, store."""
    run_groups("curvature", GROUPS, groups)

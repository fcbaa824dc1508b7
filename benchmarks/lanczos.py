"""Gradients of exp(-t A) v on a graph of 20000 nodes: the Lanczos adjoint against back-propagation.

A is the Laplacian of a neighbour graph, its parameters the edges' weights. Both re-orthogonalise in full and take the
same steps, so their gradients agree. Back-propagation through the iteration is written in two ways: with products of
the stacked basis, and vector by vector, which keeps the least. Each case runs in processes of its own, one for seconds
and one for memory, which returns what it frees at once: the peak of one forward and backward pass over what was held
before.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import once, show, write
from torchgw.datasets import make_swiss_roll
from torchgw.linalg.matrix_functions import Exponential, Matvec, matrix_function
from torchgw.spaces.graph import neighbour_graph

N, COLUMNS, TIME, STEPS = 20000, 1, 0.05, (10, 20, 40, 80)


def laplacian(ends: Tensor) -> Matvec:
    """The product with a graph's Laplacian, whose parameter is the weights of the edges ``ends`` (2, E)."""

    def product(parameters: tuple[Tensor, ...], X: Tensor) -> Tensor:
        flow = parameters[0][:, None] * (X[ends[0]] - X[ends[1]])
        return torch.zeros_like(X).index_add(0, ends[0], flow).index_add(0, ends[1], -flow)

    return product


def stacked(basis: list[Tensor], w: Tensor) -> Tensor:
    """w (M, N) without its parts along the basis, from products with all of it."""
    Q = torch.stack(basis, 1)
    return w - torch.bmm(torch.bmm(w[:, None], Q.mT), Q)[:, 0]


def one_by_one(basis: list[Tensor], w: Tensor) -> Tensor:
    """The same from one vector after the other."""
    parts = [(q * w).sum(1, keepdim=True) for q in basis]
    for part, q in zip(parts, basis, strict=True):
        w = w - part * q
    return w


def iterated(product: Matvec, weights: Tensor, V: Tensor, n_steps: int, project: Callable[..., Tensor]) -> Tensor:
    """exp(-t A) V by the recurrence in plain torch."""
    norm = V.norm(dim=0)
    basis, alphas, betas = [(V / norm).T.contiguous()], [], []
    for k in range(n_steps):
        w = product((weights,), basis[-1].T).T
        alphas.append((basis[-1] * w).sum(1))
        if k + 1 < n_steps:
            w = project(basis, project(basis, w))
            betas.append(w.norm(dim=1))
            basis.append(w / betas[-1][:, None])
    T = torch.diag_embed(torch.stack(alphas, 1))
    T = T + torch.diag_embed(torch.stack(betas, 1), 1) + torch.diag_embed(torch.stack(betas, 1), -1)
    values, vectors = torch.linalg.eigh(T)
    column = (vectors @ (torch.exp(-TIME * values) * vectors[:, 0])[:, :, None])[:, :, 0] * norm[:, None]
    return sum((column[:, k : k + 1] * q for k, q in enumerate(basis)), torch.zeros_like(basis[0])).T


def adjoint(product: Matvec, weights: Tensor, V: Tensor, n_steps: int) -> Tensor:
    time = torch.tensor(TIME, dtype=torch.float64)
    return matrix_function(product, (weights,), V, Exponential(), n_steps, (time,))


WAYS: dict[str, Callable[[Matvec, Tensor, Tensor, int], Tensor]] = {
    "adjoint": adjoint,
    "stacked": lambda *problem: iterated(*problem, stacked),
    "one by one": lambda *problem: iterated(*problem, one_by_one),
}


def held(key: str) -> float:
    """MiB of this process: ``VmRSS`` now or ``VmHWM`` at its peak."""
    found = re.search(key + r":\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else float("nan")


def measure(way: str, n_steps: int, n: int, repeats: int, edges: str) -> None:
    """Print seconds, MiB and two numbers of the gradient of one case as JSON."""
    ends = torch.load(edges)
    weights = torch.rand(ends.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    V = torch.randn(n, COLUMNS, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    product, w = laplacian(ends), weights.requires_grad_()

    def solve() -> Tensor:
        return torch.autograd.grad(WAYS[way](product, w, V, n_steps).square().sum(), w)[0]

    torch.autograd.grad(WAYS[way](product, w, V[:, :1], 2).sum(), w)
    before = held("VmRSS")
    gradient = solve()
    memory = held("VmHWM") - before
    seconds = min((once(solve) for _ in range(repeats)), default=None)
    print(json.dumps({"seconds": seconds, "memory": memory, "gradient": [float(gradient.norm()), float(gradient[0])]}))


def case(*arguments: object, **environment: str) -> dict[str, Any]:
    """What `measure` finds in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-c", f"from benchmarks.lanczos import measure; measure{arguments!r}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | environment)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def run(n: int = N, steps: tuple[int, ...] = STEPS, repeats: int = 2) -> None:
    """Measure, print, store; each case in a process of its own."""
    graph = neighbour_graph(make_swiss_roll(n)[0]).tocoo()
    upper = graph.row < graph.col
    with tempfile.TemporaryDirectory() as folder:
        edges = str(Path(folder) / "edges.pt")
        torch.save(
            torch.stack([torch.from_numpy(side[upper].astype("int64")) for side in (graph.row, graph.col)]), edges
        )
        rows = [compared(n, n_steps, repeats, edges) for n_steps in steps]
    write("lanczos", rows)
    show(rows)


def compared(n: int, n_steps: int, repeats: int, edges: str) -> dict[str, Any]:
    """All ways of one number of steps."""
    found = {}
    for way in WAYS:
        memory = case(way, n_steps, n, 0, edges, MALLOC_MMAP_THRESHOLD_="65536")["memory"]
        found[way] = case(way, n_steps, n, repeats, edges) | {"memory": memory}
    row: dict[str, Any] = {"nodes": n, "columns": COLUMNS, "steps": n_steps, "basis MiB": n * COLUMNS * n_steps / 2**17}
    for way, got in found.items():
        row |= {f"{way} seconds": got["seconds"], f"{way} MiB": got["memory"]}
    reference = found["adjoint"]
    for way in list(WAYS)[1:]:
        row[f"{way} time ratio"] = found[way]["seconds"] / reference["seconds"]
        row[f"{way} memory ratio"] = found[way]["memory"] / reference["memory"]
    row["gradients differ by"] = max(
        abs(a / b - 1) for got in found.values() for a, b in zip(got["gradient"], reference["gradient"], strict=True)
    )
    return row

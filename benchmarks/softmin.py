"""Row and column logsumexp of a stored score: eager and compiled kernels against torch.logsumexp, scores +-200."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.common import seconds, show, write
from torchgw.kernels.dispatch import Request
from torchgw.kernels.softmin_dense import choose

SIZES = ((400, 500), (1000, 1200), (2000, 2500), (4000, 5000))


def measure(device: torch.device, sizes: tuple[tuple[int, int], ...]) -> list[dict[str, Any]]:
    """One row for each size and axis, milliseconds; the floor is one read of the score at the measured copy rate."""
    rows = []
    for n, k in sizes:
        score = torch.randn(n, k, device=device).mul_(70).clamp_(-200, 200)
        copy = seconds(lambda s=score: s.clone()) / 2
        for axis in (1, 0):
            bias = torch.zeros(k if axis == 1 else n, device=device)
            wide = bias if axis == 1 else bias[:, None]
            times = {"torch.logsumexp": seconds(lambda s=score, w=wide, a=axis: torch.logsumexp(s + w, a))}
            for backend in ("eager", "compile"):
                kernel = choose(backend, Request(device, torch.float32, (n, k))).function
                times[backend] = seconds(lambda f=kernel, s=score, b=bias, a=axis: f(s, b, a))
            ratio = times["torch.logsumexp"] / times["eager"]
            row: dict[str, Any] = {"size": f"{n} x {k}", "axis": axis, "one read ms": copy * 1e3}
            rows.append(row | {f"{name} ms": 1e3 * t for name, t in times.items()} | {"logsumexp / eager": ratio})
    return rows


def run() -> None:
    """Measure on the CPU, print, store."""
    rows = measure(torch.device("cpu"), SIZES)
    write("softmin", rows)
    show(rows)

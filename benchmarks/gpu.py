"""Everything that needs a GPU in one command: softmin against its floor, whole alignments, a short table last."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from scipy.stats import spearmanr

from benchmarks.common import show, write
from benchmarks.softmin import measure
from torchgw import gw_align
from torchgw.datasets import make_spiral, make_swiss_roll

KERNEL_SIZES = ((1000, 1200), (5001, 6001), (10001, 12001))
ALIGNMENTS = ((400, 500, "precomputed"), (400, 500, "dijkstra"), (400, 500, "landmark"), (4000, 5000, "landmark"))


def run() -> None:
    """Measure, print, store."""
    if not torch.cuda.is_available():
        raise SystemExit("no GPU here; benchmarks/GPU_PENDING.md lists what waits for one")
    kernels = measure(torch.device("cuda"), KERNEL_SIZES)
    show(kernels)
    rows: list[dict[str, Any]] = []
    for n, k, distances in ALIGNMENTS:
        X, angle_x = make_spiral(n)
        Y, angle_y = make_swiss_roll(k, random_state=1)
        for backend in ("eager", "compile"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                gw_align(X, Y, distances=distances, backend=backend, device="cuda", random_state=1)
                result = gw_align(X, Y, distances=distances, backend=backend, device="cuda", random_state=0)
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
    write("gpu", rows, kernels=kernels)
    print()
    show(rows)

"""Points to plan at 1000 x 1200 against the published sampled solver, same data, anchors, epsilon, k and limits.

Each run is a process of its own, after a small warm-up call; ours and theirs take turns. The objective of both plans is
computed on the same landmark distances. The published solver scales its cost at every iteration, so that an epsilon of
0.005 gives it a sharper plan than here; the second row of ours is at an epsilon that gives about its value.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr

from benchmarks.common import show, write
from torchgw import LandmarkDistances
from torchgw.couplings import DenseCoupling
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.gw.objective import objective
from torchgw.spaces.graph import neighbour_graph

HERE = Path(__file__).parent
PEER = HERE.parent / ".venv-published" / "bin" / "python"
N, K, REPEATS = 1000, 1200, 3
SOLVERS = {
    "this library": [sys.executable, HERE / "peers" / "ours.py", "0.005"],
    "this library, epsilon 0.0005": [sys.executable, HERE / "peers" / "ours.py", "0.0005"],
    "torchgw 0.4.2": [PEER, HERE / "peers" / "published.py", "full"],
    "torchgw 0.4.2, mixed precision": [PEER, HERE / "peers" / "published.py", "mixed"],
}


def run() -> None:
    """Measure, print, store."""
    if not PEER.exists():
        raise SystemExit("the published package is not installed here; run `make bench-env` first")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(REPEATS):
            X, angle_x = make_spiral(N, random_state=repeat)
            Y, angle_y = make_swiss_roll(K, random_state=100 + repeat)
            given, got = Path(folder) / "in.npz", Path(folder) / "out.npz"
            np.savez(given, X=X, Y=Y)
            for name, (python, script, *more) in SOLVERS.items():
                command = [str(python), str(script), str(given), str(got), str(repeat), *more]
                subprocess.run(command, check=True, cwd=folder)
                with np.load(got) as out:
                    plan, seconds, iterations = out["plan"], float(out["seconds"]), int(out["iterations"])
                rows.append(
                    {"solver": name, "seed": repeat, "seconds": seconds, "iterations": iterations}
                    | quality(plan, X, Y, angle_x, angle_y)
                )
                show(rows[-1:])
    ours = median(rows, "this library")
    summary = [
        {
            "solver": name,
            "median seconds": median(rows, name),
            "ratio to ours": median(rows, name) / ours,
            "median value": statistics.median(row["gw_value"] for row in rows if row["solver"] == name),
            "worst marginal error": max(row["marginal_error"] for row in rows if row["solver"] == name),
        }
        for name in SOLVERS
    ]
    write(
        "published", rows, summary=summary, size=[N, K], settings="landmark, M 80, epsilon 0.005, k 5, 300 iterations"
    )
    print()
    show(summary)


def median(rows: list[dict[str, Any]], solver: str) -> float:
    """Median time of one solver."""
    return statistics.median(row["seconds"] for row in rows if row["solver"] == solver)


def quality(
    plan: np.ndarray, X: np.ndarray, Y: np.ndarray, angle_x: np.ndarray, angle_y: np.ndarray
) -> dict[str, float]:
    """Signed Spearman, marginal error, and the objective on landmark distances that both solvers share."""
    p, q = np.full(len(X), 1 / len(X)), np.full(len(Y), 1 / len(Y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spaces = [LandmarkDistances(neighbour_graph(points, 5)) for points in (X, Y)]
    value = objective(
        DenseCoupling(torch.from_numpy(plan)),
        torch.from_numpy(plan.sum(1)),
        torch.from_numpy(plan.sum(0)),
        *spaces,
        2**32,
        torch.Generator(),
    )
    return {
        "signed_spearman": float(spearmanr(angle_x, angle_y[plan.argmax(1)])[0]),
        "gw_value": value.value,
        "marginal_error": float(max(np.abs(plan.sum(1) - p).sum(), np.abs(plan.sum(0) - q).sum())),
    }

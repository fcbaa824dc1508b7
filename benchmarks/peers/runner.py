"""What every runner script shares: one solve, timed after a warm-up, with the memory it took.

A runner is started by its path, with the Python of its own environment, as

    python run_pot.py METHOD SETTINGS OUT SOURCE TARGET

METHOD is one of its functions, SETTINGS its keyword arguments in JSON, SOURCE and TARGET are .npy files of points or of
distances. OUT is a folder, which gets the plan, plan.npy, and what was measured, report.json. Numpy is needed here and
no more, for that is what all environments have.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
Solve = partial[Any]  # of two spaces, with the settings as its keywords
Call = Callable[[], Any]


def main(*methods: Callable[..., Any], prepare: Callable[[Solve, Any, Any], Call] | None = None) -> None:
    """Do what the command line says with one of ``methods``, which take two spaces and settings and return a plan.

    ``prepare`` turns a method and the two spaces into a call without arguments, warmed up.
    """
    name, settings, out, *files = sys.argv[1:]
    solve = partial({method.__name__: method for method in methods}[name], **json.loads(settings))
    began = time.perf_counter()
    call = (prepare or on_few_points)(solve, *(np.load(file) for file in files))
    warm_up = time.perf_counter() - began
    plan, seconds, peak = measured(call)
    np.save(Path(out) / "plan.npy", dense(plan))
    report = {"seconds": seconds, "warm_up_seconds": warm_up, "peak_mib": peak}
    (Path(out) / "report.json").write_text(json.dumps(report))


def on_few_points(solve: Solve, A: np.ndarray, B: np.ndarray) -> Call:
    """Warm up with a solve of about a hundred points of each space."""
    solve(thinned(A), thinned(B))
    return lambda: solve(A, B)


def thinned(A: np.ndarray, most: int = 120) -> np.ndarray:
    """Evenly spaced points, at most ``most``, or the distances between them."""
    kept = np.linspace(0, len(A) - 1, min(len(A), most)).astype(int)
    return A[np.ix_(kept, kept)] if A.shape[0] == A.shape[1] else A[kept]


def measured(call: Call) -> tuple[Any, float, float | None]:
    """What a call returns, its seconds, and the most MiB that it held over what was there before.

    The last is None where the system does not tell.
    """
    before = memory_from_now()
    began = time.perf_counter()
    found = call()
    seconds = time.perf_counter() - began
    return found, seconds, None if before is None else (memory("VmHWM") - before) / 1024


def memory_from_now() -> int | None:
    """This process's memory in KiB, which is made its high-water mark, as Linux allows."""
    try:
        CLEAR.write_text("5")
    except OSError:
        return None
    return memory("VmRSS")


def memory(field: str) -> int:
    """A field of this process's memory status, in KiB."""
    return next(int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith(f"{field}:"))


def uniform(*spaces: np.ndarray) -> list[np.ndarray]:
    """Equal masses of sum 1 for each space."""
    return [np.full(len(space), 1 / len(space)) for space in spaces]


def factors(D: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """A (N, rank), B (N, rank) with A B^T closest to the symmetric D: its largest eigenvalues. The one use of SciPy."""
    from scipy.sparse.linalg import eigsh

    values, vectors = eigsh(D, k=rank, v0=np.ones(len(D)))
    return vectors * values, vectors


def dense(plan: Any) -> np.ndarray:
    """A plan as an array (N, K): from an array, or from the factors of Q diag(1/g) R^T."""
    if isinstance(plan, tuple):
        Q, R, g = (np.asarray(part, dtype=np.float64) for part in plan)
        return (Q / g) @ R.T
    return np.asarray(plan, dtype=np.float64)

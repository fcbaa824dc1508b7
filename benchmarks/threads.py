"""How many threads a measurement has: every pool at the number of cores, whatever the shell says."""

from __future__ import annotations

import os

POOLS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NPROC")


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pinned(threads: int | None = None) -> dict[str, str]:
    """Variables that set every pool, for a process that has not imported anything yet; NPROC is what XLA's reads."""
    return dict.fromkeys(POOLS, str(threads or cores()))

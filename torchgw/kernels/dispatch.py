"""Choice of an implementation, once per solve: triton -> compile -> eager.

``auto`` takes the first implementation that is able and that the table of measurements does not find slower than the
last one: ``measured.json`` holds, for each device type, family and size, the milliseconds of one iteration by each
implementation; it is written by ``python -m benchmarks kernels`` and nothing else. A named one that is not able is
refused with the reason. An implementation's error at run time is never caught: only its absence is handled, here,
before the solve.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

BACKENDS = ("auto", "triton", "compile", "eager")
MEASURED = Path(__file__).parent / "measured.json"
WORTH = 0.8

Function = TypeVar("Function")


@dataclass(frozen=True)
class Workload:
    """What a solve will run through a kernel family.

    Attributes
    ----------
    device, dtype : of the potentials.
    shape : (N, K).
    rank : length of the products that scores are made by; 0 for a stored score.
    dot : of float32 products on matrix units: "tf32", "tf32x3", "ieee", or "" for the most exact that is fast.
    """

    device: torch.device
    dtype: torch.dtype
    shape: tuple[int, int]
    rank: int = 0
    dot: str = ""


Reason = Callable[[Workload], "str | None"]


@dataclass(frozen=True)
class Implementation(Generic[Function]):
    """One way to run a kernel family.

    Attributes
    ----------
    name : one of `BACKENDS`.
    reason_unavailable : why a workload cannot run, or None.
    reason_to_avoid : why ``auto`` should pass it over although it could, or None.
    build : makes the callable.
    blocks : the block sizes that a workload gets, by name; none where the implementation chooses none.
    """

    name: str
    reason_unavailable: Reason
    reason_to_avoid: Reason
    build: Callable[[Workload], Function]
    blocks: Callable[[Workload], dict[str, int]] = field(default=lambda _: {})


@dataclass(frozen=True)
class Selection(Generic[Function]):
    """The implementation chosen.

    Attributes
    ----------
    name, function : which, and its callable.
    passed_over : why each one before it was not taken, by name.
    blocks : its block sizes, by name.
    """

    name: str
    function: Function
    passed_over: dict[str, str] = field(default_factory=dict)
    blocks: dict[str, int] = field(default_factory=dict)


def select(family: Sequence[Implementation[Function]], backend: str, workload: Workload) -> Selection[Function]:
    """The first implementation of ``family`` that may run ``workload``, or the one that ``backend`` names.

    Raises
    ------
    ValueError
        When the named backend cannot run, with its reason.
    """
    passed_over: dict[str, str] = {}
    for implementation in family:
        if backend not in ("auto", implementation.name):
            continue
        # The cheap question first: finding out whether a compiler works takes seconds.
        reason = implementation.reason_to_avoid(workload) if backend == "auto" else None
        reason = reason or implementation.reason_unavailable(workload)
        if reason is None:
            return Selection(
                implementation.name, implementation.build(workload), passed_over, implementation.blocks(workload)
            )
        passed_over[implementation.name] = reason
    reasons = "; ".join(f"{name}: {reason}" for name, reason in passed_over.items())
    raise ValueError(f"backend {backend!r} cannot run here ({reasons}); use backend='auto' or 'eager'")


@cache
def timings() -> tuple[dict[str, Any], ...]:
    """The rows: device, family, n, k, rank, and the time of each implementation."""
    return tuple(json.loads(MEASURED.read_text())["rows"])


def slower_than_eager(name: str, family: str, workload: Workload) -> str | None:
    """Why ``name`` should not run a workload: at the nearest size measured it saves less than a fifth of eager's time.

    None where it does better, and where nothing was measured on such a device.
    """
    rows = [
        row
        for row in timings()
        if row["family"] == family and row["device"] == workload.device.type and row.get(name) is not None
    ]
    if not rows:
        return None
    nearest = min(rows, key=lambda row: _distance(row, workload))
    ratio = nearest[name] / nearest["eager"]
    if ratio <= WORTH:
        return None
    size = f"{nearest['n']} x {nearest['k']}"
    return f"measured on {workload.device.type}: {ratio:.2f}x the time of the eager kernel at {size}"


def _distance(row: dict[str, Any], workload: Workload) -> float:
    n, k = workload.shape
    size = abs(math.log(row["n"] * row["k"]) - math.log(max(n * k, 1)))
    return size + abs(math.log((row["rank"] + 1) / (workload.rank + 1)))

"""The committed table of kernel times, from which ``backend="auto"`` learns what not to take.

``measured.json`` holds, for each device type, family and size, the milliseconds of one iteration by each
implementation. It is written by ``python -m benchmarks kernels`` and nothing else.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

from torchgw.kernels.dispatch import Request

PATH = Path(__file__).parent / "measured.json"
WORTH = 0.8


@cache
def table() -> tuple[dict[str, Any], ...]:
    """The rows: device, family, n, k, rank, and the time of each implementation."""
    return tuple(json.loads(PATH.read_text())["rows"])


def slower_than_eager(name: str, family: str, request: Request) -> str | None:
    """Why ``name`` should not run a request: at the nearest size measured it saves less than a fifth of eager's time.

    None where it does better, and where nothing was measured on such a device.
    """
    rows = [
        row
        for row in table()
        if row["family"] == family and row["device"] == request.device.type and row.get(name) is not None
    ]
    if not rows:
        return None
    nearest = min(rows, key=lambda row: _distance(row, request))
    ratio = nearest[name] / nearest["eager"]
    if ratio <= WORTH:
        return None
    size = f"{nearest['n']} x {nearest['k']}"
    return f"measured on {request.device.type}: {ratio:.2f}x the time of the eager kernel at {size}"


def _distance(row: dict[str, Any], request: Request) -> float:
    n, k = request.shape
    size = abs(math.log(row["n"] * row["k"]) - math.log(max(n * k, 1)))
    return size + abs(math.log((row["rank"] + 1) / (request.rank + 1)))

"""Whether what a solve would store fits, before anything is built."""

from __future__ import annotations

from typing import Any

import torch

from torchgw import validate
from torchgw.gw.planner import dense_bytes, refuse
from torchgw.gw.prepare import why_not_exact
from torchgw.options import GWOptions


def check_room(
    strategy: str,
    checked: list[tuple[str, Any, str]],
    shape: tuple[int, int],
    epsilon: float,
    device: torch.device,
    options: GWOptions,
) -> str | None:
    """Why the exact gradient cannot run, or None; ``checked`` are name, validated space and kind of both sides.

    Raises
    ------
    MemoryError
        When something that the solve needs does not fit, or the exact gradient is needed and does not.
    """
    n, k = shape
    refuse(strategy, n, k, epsilon, options)
    if strategy == "dense":
        sharp = "use epsilon > 0, which streams, or GWOptions(strategy='low-rank')"
        advice = sharp if epsilon == 0 else "use GWOptions(strategy='streaming')"
        validate.memory(f"score and plan ({n} x {k})", dense_bytes(n, k, epsilon), options.max_memory, advice)
    for (name, _, kind), size in zip(checked, shape, strict=True):
        stored = 8 * size**2 if kind in ("precomputed", "matrix") else 0
        validate.memory(f"the distance matrix of {name}", stored, options.max_memory, "use distances='landmark'")
    sides = [(kind, space, size) for (_, space, kind), size in zip(checked, shape, strict=True)]
    against = why_not_exact(sides, device, options)
    if against is not None and (options.gradient == "exact" or epsilon == 0):
        asked = "epsilon=0 needs the exact gradient: " if epsilon == 0 else "options.gradient='exact' cannot run: "
        raise MemoryError(asked + against)
    return against

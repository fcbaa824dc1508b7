"""Whether what a solve would store fits, before anything is built."""

from __future__ import annotations

import torch

from torchgw import validate
from torchgw.gradients.modes import GradientMode, Unrolled
from torchgw.losses import SQUARE
from torchgw.objective.model import Model
from torchgw.options import GWOptions
from torchgw.planner import dense_bytes, refuse
from torchgw.request.spaces import why_not_exact, without_matrix
from torchgw.spaces.prepare import Space


def check_room(
    strategy: str,
    checked: list[Space],
    model: Model,
    device: torch.device,
    options: GWOptions,
    mode: GradientMode | None,
) -> str | None:
    """Why the exact gradient cannot run, or None; ``checked`` are name, validated space and kind of both sides.

    Raises
    ------
    MemoryError
        When something that the solve needs does not fit, or the exact gradient is needed and does not.
    """
    n, k = shape = len(model.p), len(model.q)
    epsilon = model.epsilon
    refuse(strategy, n, k, epsilon, options)
    if strategy == "dense":
        sharp = "use epsilon > 0, which streams, or GWOptions(strategy='low-rank')"
        streams = "use fewer points" if _dense_only(model, mode) else "use GWOptions(strategy='streaming')"
        advice = sharp if epsilon == 0 else streams
        validate.memory(f"score and plan ({n} x {k})", dense_bytes(n, k, epsilon), options.max_memory, advice)
    for (name, _, kind), size in zip(checked, shape, strict=True):
        stored = 8 * size**2 if kind in ("precomputed", "matrix") else 0
        validate.memory(f"the distance matrix of {name}", stored, options.max_memory, without_matrix(kind))
    sides = [(kind, space, size) for (_, space, kind), size in zip(checked, shape, strict=True)]
    against = why_not_exact(sides, device, options)
    if against is not None and (options.gradient == "exact" or epsilon == 0):
        asked = "epsilon=0 needs the exact gradient: " if epsilon == 0 else "options.gradient='exact' cannot run: "
        raise MemoryError(asked + against)
    return against


def sharp_fits(model: Model, against: str | None, asked: GWOptions, mode: GradientMode | None) -> bool:
    """Whether `gw_align` would take epsilon=0 for this problem, with the options as the user gave them."""
    plain = model.plain and asked.loss == "square"
    allowed = asked.strategy != "streaming" and asked.gradient != "sampled" and mode is None
    stored = asked.strategy == "low-rank" or dense_bytes(len(model.p), len(model.q), 0.0) <= asked.max_memory
    return plain and allowed and stored and against is None


def _dense_only(model: Model, mode: GradientMode | None) -> bool:
    """Whether no other strategy than the dense one has the objective, or the gradient, that was asked for."""
    stored = any(side is not None and side.extra is not None for side in (model.cost, model.penalty))
    return stored or model.loss is not SQUARE or isinstance(mode, Unrolled)

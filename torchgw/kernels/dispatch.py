"""Choice of an implementation, once per solve: triton -> compile -> eager.

``auto`` takes the first implementation that is able and that the table of measurements does not find slower than the
last one. A named one that is not able is refused with the reason. An implementation's error at run time is never
caught: only its absence is handled, here, before the solve.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch

BACKENDS = ("auto", "triton", "compile", "eager")

Function = TypeVar("Function")


@dataclass(frozen=True)
class Request:
    """What a solve is about to ask of a kernel family.

    N x K pairs; products of length ``rank`` (0: a stored score); ``dot``, for float32 products on matrix units, one of
    "tf32", "tf32x3", "ieee", or "" for the most exact that is fast.
    """

    device: torch.device
    dtype: torch.dtype
    shape: tuple[int, int]
    rank: int = 0
    dot: str = ""


Reason = Callable[[Request], "str | None"]


def no_blocks(request: Request) -> dict[str, int]:
    """For implementations that choose none."""
    return {}


@dataclass(frozen=True)
class Implementation(Generic[Function]):
    """One way to run a kernel family.

    ``unable`` gives the reason why a request cannot run, or None. ``unwise`` gives the reason why ``auto`` should pass
    it over although it could. ``build`` makes the callable. ``blocks`` names the block sizes that a request gets.
    """

    name: str
    unable: Reason
    unwise: Reason
    build: Callable[[Request], Function]
    blocks: Callable[[Request], dict[str, int]] = no_blocks


@dataclass(frozen=True)
class Selection(Generic[Function]):
    """The implementation chosen, its block sizes, and why each one before it was not taken."""

    name: str
    function: Function
    passed_over: dict[str, str] = field(default_factory=dict)
    blocks: dict[str, int] = field(default_factory=dict)


def select(family: Sequence[Implementation[Function]], backend: str, request: Request) -> Selection[Function]:
    """The first implementation of ``family`` that may run ``request``, or the one that ``backend`` names.

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
        reason = implementation.unwise(request) if backend == "auto" else None
        reason = reason or implementation.unable(request)
        if reason is None:
            return Selection(
                implementation.name, implementation.build(request), passed_over, implementation.blocks(request)
            )
        passed_over[implementation.name] = reason
    reasons = "; ".join(f"{name}: {reason}" for name, reason in passed_over.items())
    raise ValueError(f"backend {backend!r} cannot run here ({reasons}); use backend='auto' or 'eager'")

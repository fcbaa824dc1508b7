"""What float32 may lose, by a bound; which arithmetic products run in, whatever the process has allowed.

A product of rows a, b of length r in float32, each sum rounded to nearest, is off by

    |error| <= s sum_k |a_k b_k| <= s |a| |b|,     s = sqrt(r) 2^-24 with high probability.

A logsumexp is off by no more than its scores (plus the rounding of the sum itself). An error of e bits in a score is a
factor 2^e in the plan, so it moves the marginals by at most 2^e - 1 of their mass in L1. Early plans are rounded onto
their marginals before they are used, and a gradient that is off costs iterations, not correctness: the last solve, and
all that is reported, are float64. So float32 serves the steps before it up to `UNSAFE`, where the solve warns. Without
mixed precision every step is float64.

``torch.set_float32_matmul_precision("high")``, ``allow_tf32`` and ``fp32_precision`` let every product round its inputs
to the 10 bits of tf32, on some CPUs to bfloat16. Scores reach a few hundred bits, so they would be off by up to half a
bit without a word. The settings are the process's, so the first call that begins turns them off and the last one that
ends restores them.

Source: N. Higham, T. Mary, "A new approach to probabilistic rounding error analysis", 2019.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from torchgw.runtime.ranks import ALONE, Ranks
from torchgw.runtime.threads import lock_across_forks

UNSAFE = 1.0
LARGEST_BITS = 1000.0
LAST = "the last solve runs in float64, but the steps before it may have gone astray"

_PARENTS: tuple[tuple[Any, Any], ...] = (
    (torch.backends.cuda, torch.backends.cudnn),  # which sets all of CUDA
    (torch.backends.mkldnn, torch.backends.mkldnn),
)
_LOCK = lock_across_forks()
_RUNNING: list[Callable[[], None]] = []


def loop_dtype(mixed_precision: bool) -> torch.dtype:
    """The dtype of the early steps and of gradients; the last solve is float64 always."""
    return torch.float32 if mixed_precision else torch.float64


def reach(A: Tensor, B: Tensor, ranks: Ranks = ALONE) -> Tensor:
    """The largest row norm of A (N, r) times that of B (K, r), the ranks' shares, (): no entry of A B^T is larger."""
    one, other = (ranks.most(torch.linalg.vector_norm(side, dim=1).max()) for side in (A, B))
    found: Tensor = one * other
    return found


def rounding_bound(largest: float, rank: int) -> float:
    """Bound on the L1 marginal error, as a share of the mass, of float32 products of length ``rank``.

    ``largest`` bounds the norms' product, see `reach`.
    """
    bits = math.sqrt(rank) * 2.0**-24 * largest
    return math.expm1(min(bits, LARGEST_BITS) * math.log(2.0))


def dot_precision(asked: str, dtype: torch.dtype, amd: bool) -> str:
    """The name Triton knows for ``asked`` products of ``dtype``: only float32 has a choice, and AMD has no tf32x3."""
    if dtype != torch.float32:
        return "ieee"
    return "ieee" if amd and asked in ("tf32", "tf32x3") else asked or "tf32x3"


def unsafe(largest: float, rank: int) -> str | None:
    """Why float32 cannot carry scores that reach so far, or None."""
    lost = rounding_bound(largest, rank)
    if lost <= UNSAFE:
        return None
    return (
        f"scores reach {largest:.1e} bits, where float32 may leave plan entries off by a factor of {1 + lost:.1g}; "
        f"{LAST}: use a larger epsilon, or GWOptions(mixed_precision=False)"
    )


@contextmanager
def exact_products() -> Iterator[None]:
    """Within it products of float32 matrices round like float32."""
    with _LOCK:
        _RUNNING.append(_RUNNING[0] if _RUNNING else _insist())
    try:
        yield
    finally:
        with _LOCK:
            restore = _RUNNING.pop()
            if not _RUNNING:
                restore()


def _insist() -> Callable[[], None]:
    """Ask for exact products; what to call to have the settings back.

    Torch has two vocabularies for them and refuses to read the older one where the newer says something else; so the
    older is used where it can be read, and the newer, which alone knows "as the parent", brings back what that hides.
    """
    old = _old_words()
    if old == "highest":
        return lambda: None
    new = [pair for pair in _PARENTS if hasattr(pair[0].matmul, "fp32_precision")]
    held = [(backend.matmul, backend.matmul.fp32_precision, parent.fp32_precision) for backend, parent in new]
    if old is None:
        for matmul, _, _ in held:
            matmul.fp32_precision = "ieee"
    else:
        torch.set_float32_matmul_precision("highest")

    def restore() -> None:
        if old is not None:
            torch.set_float32_matmul_precision(old)
        for matmul, before, parent in held:
            matmul.fp32_precision = "none" if before == parent else before

    return restore


def _old_words() -> str | None:
    """The setting in the older words; None where it was made in the newer ones."""
    try:
        allowed = torch.backends.cuda.matmul.allow_tf32
        found = torch.get_float32_matmul_precision()
    except RuntimeError:
        return None
    return found if allowed == (found != "highest") else None

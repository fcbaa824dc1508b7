"""Products of float32 matrices as such, whatever the process has allowed.

``torch.set_float32_matmul_precision("high")``, ``allow_tf32`` and ``fp32_precision`` let every product round its inputs
to the 10 bits of tf32, on some CPUs to bfloat16. Scores reach a few hundred bits, so they would be off by up to half a
bit without a word; see `torchgw.kernels.precision` for what a solve may lose. The settings are the process's, so the
first call that begins turns them off and the last one that ends restores them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torchgw.runtime.threads import lock_across_forks

_PARENTS: tuple[tuple[Any, Any], ...] = (
    (torch.backends.cuda, torch.backends.cudnn),  # which sets all of CUDA
    (torch.backends.mkldnn, torch.backends.mkldnn),
)
_LOCK = lock_across_forks()
_RUNNING: list[Callable[[], None]] = []


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

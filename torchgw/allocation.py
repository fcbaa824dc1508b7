"""Memory that cannot be had, said once: whatever torch, NumPy or the interpreter raise becomes a `MemoryError`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

FAILED = ("not enough memory", "can't allocate memory", "ALLOC_FAILED", "bad_alloc", "MemoryError")


def out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on a GPU, on the CPU, or in a process whose results were read (in its cause)."""
    said = f"{error} {error.__cause__!r}"
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(text in said for text in FAILED)


@contextmanager
def allocating(what: str, advice: str) -> Iterator[None]:
    """Raise a `MemoryError` with the advice where an allocation fails within; refusals of ours pass as they are."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        said = str(error).strip().partition("\n")[0]
        refused = type(error) is MemoryError and said not in ("", *FAILED, "std::bad_alloc")
        if refused or not out_of_memory(error):
            raise
        raise MemoryError(f"memory ran out in {what} ({said or type(error).__name__}); {advice}") from error

"""Memory that cannot be had, said once: whatever torch, NumPy or the interpreter raise becomes a `MemoryError`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from torchgw.runtime.caller import is_theirs

# What torch's allocators, NumPy, the driver, the runtime under torch or Triton, and NVIDIA's and AMD's libraries say.
# A kernel that needs more shared memory than there is (Triton's OutOfResources: "out of resource") is another matter.
FAILED = (
    "not enough memory",
    "can't allocate memory",
    "out of memory",
    "alloc_failed",
    "bad_alloc",
    "memoryerror",
    "errormemoryallocation",
    "outofmemory",
)


def out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on a GPU, on the CPU, or in a process whose results were read (in its cause).
    What a callback raised is its author's own matter, whatever it says."""
    if is_theirs(error):
        return False
    said = f"{error} {error.__cause__!r}".lower()
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(text in said for text in FAILED)


@contextmanager
def allocating(what: str, advice: str) -> Iterator[None]:
    """Raise a `MemoryError` with the advice where an allocation fails within; refusals of ours pass as they are."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        said = str(error).strip().partition("\n")[0]
        refused = type(error) is MemoryError and said.lower() not in ("", "memoryerror", "std::bad_alloc")
        if refused or not out_of_memory(error):
            raise
        raise MemoryError(f"memory ran out in {what} ({said or type(error).__name__}); {advice}") from error

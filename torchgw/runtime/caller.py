"""What reaches whoever called the library: warnings that point at their line and are collected for the result,
exceptions of their own callbacks as they are, and memory that cannot be had, said once: whatever torch, NumPy or the
interpreter raise becomes a `MemoryError`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

# Packages whose frames lie between a user and a warning.
BETWEEN = ("torchgw", "torch", "sklearn", "joblib", "contextlib")
THEIRS = "raised by a callback of torchgw"
_ISSUED: ContextVar[dict[tuple[str, str], None] | None] = ContextVar("issued warnings", default=None)
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


def warn_caller(text: str, category: type[Warning], shown: bool = True) -> None:
    """Warn at the innermost line that belongs to none of these packages: a user's own, however deep the call.

    The warning is collected too; one that is not ``shown``, as another rank shows it, is collected alone.
    """
    collect_warnings((category.__name__, text))
    if not shown:
        return
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


@contextmanager
def collecting_warnings() -> Iterator[dict[tuple[str, str], None]]:
    """Collect the category and the text of each warning that is given in this context, once, in order; contexts within
    this one collect theirs for themselves."""
    given: dict[tuple[str, str], None] = {}
    before = _ISSUED.set(given)
    try:
        yield given
    finally:
        _ISSUED.reset(before)


def collect_warnings(*given: tuple[str, str]) -> None:
    """Add warnings to those of the context, if there is one."""
    found = _ISSUED.get()
    if found is not None:
        found.update(dict.fromkeys(given))


def collected_warnings() -> tuple[tuple[str, str], ...]:
    """Category and text of the warnings that the context has collected."""
    return tuple(_ISSUED.get() or ())


def mark_as_theirs(error: BaseException) -> None:
    """A callback raised it: it passes through as it is, whatever it says."""
    vars(error)[THEIRS] = True


def is_theirs(error: BaseException) -> bool:
    """Whether a callback raised it."""
    return THEIRS in vars(error)


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

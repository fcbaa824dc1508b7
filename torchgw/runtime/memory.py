"""Memory that is free and not given back."""

from __future__ import annotations

import ctypes
from contextlib import suppress


def give_back() -> None:
    """Let the C library return freed memory to the system, where it has a call for it.

    It keeps what small blocks were freed from, and large ones once it has freed some, for the next to come: after the
    phase of a solve that needed most, a process would stay as large. Takes some ten milliseconds.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)

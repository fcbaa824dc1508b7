"""Whoever called the library: warnings that point at their line, and exceptions that are their own."""

from __future__ import annotations

import sys
import warnings

# Packages whose frames lie between a user and a warning.
BETWEEN = ("torchgw", "torch", "sklearn", "joblib", "contextlib")
THEIRS = "raised by a callback of torchgw"


def warn_caller(text: str, category: type[Warning]) -> None:
    """Warn at the innermost line that belongs to none of these packages: a user's own, however deep the call."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def mark_as_theirs(error: BaseException) -> None:
    """A callback raised it: it passes through as it is, whatever it says."""
    vars(error)[THEIRS] = True


def is_theirs(error: BaseException) -> bool:
    """Whether a callback raised it."""
    return THEIRS in vars(error)

"""Warnings that point at the line of whoever called the library."""

from __future__ import annotations

import sys
import warnings

BETWEEN = (
    "torchgw",
    "torch",
    "sklearn",
    "joblib",
    "contextlib",
)  # packages whose frames lie between a user and a warning


def warn_caller(text: str, category: type[Warning]) -> None:
    """Warn at the innermost line that belongs to none of these packages: a user's own, however deep the call."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)

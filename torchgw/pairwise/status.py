"""How the solve of a pair ended."""

from __future__ import annotations

from enum import IntEnum


class PairStatus(IntEnum):
    """One for each pair. ``text`` says what happened and what to do."""

    PENDING = 0
    SETTLED = 1
    UNSETTLED = 2
    FAILED = 3

    @property
    def text(self) -> str:
        """What happened and what to do."""
        return TEXTS[self]

    def __str__(self) -> str:
        return f"{self.name.lower()}: {self.text}"


TEXTS = {
    PairStatus.PENDING: "not solved yet; the same call with the same store goes on",
    PairStatus.SETTLED: "no plan nearby betters this one by more than tol times the value, to first order",
    PairStatus.UNSETTLED: "the gap is above tol after the last step; the value is an upper bound, and "
    "gw_align(X, Y, epsilon=0) may find a lower one",
    PairStatus.FAILED: "no finite value was found; gw_align(X, Y) may say why",
}

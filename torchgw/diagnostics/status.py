"""How a solve ended, and what it went through."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum

from torchgw.persist.codec import storable
from torchgw.runtime.keywords import hide_constructor


@storable
class Status(Enum):
    """How a solve ended. The text says what happened and what to change."""

    PLATEAU = "the cost stopped improving"
    SETTLED = "the plan stopped changing"
    TRANSPORT = "a linear transport problem was not solved, so the plan before it was returned; use a small epsilon > 0"
    STATIONARY = (
        "no plan nearby is better to first order; how many starts were searched for a better one elsewhere is in "
        "result.certificate"
    )
    MAX_ITER = (
        "the iteration limit was reached before the cost had settled; raise options.stopping.max_iter "
        "(options.low_rank.max_iter where the plan is of low rank) or epsilon"
    )
    CANCELLED = (
        "it was ended from outside, and this is the best so far; torchgw.resume goes on with it where gw_align was "
        "given a checkpoint"
    )
    MARGINALS = (
        "the last Sinkhorn solve did not reach its tolerance, so rounding onto the marginals moved some mass, "
        "or marginals that divergences hold are off; "
        "raise options.sinkhorn.final_max_iter or options.sinkhorn.tol (options.ladder.marginal_tol where the solve "
        "streamed), or epsilon"
    )

    def __str__(self) -> str:
        return f"{self.name.lower()}: {self.value}"

    @property
    def converged(self) -> bool:
        return self in (Status.PLATEAU, Status.SETTLED, Status.STATIONARY)


@hide_constructor
@storable
@dataclass(frozen=True)
class History:
    """One entry for each check of the outer loop, all of equal length.

    Attributes
    ----------
    iteration : outer iterations at the check.
    cost : the scaled objective that steers the loop, <C(T), T'> of a plan T and the next one T' (sampled where the
        gradient is, the objective of T itself at the sharp end).
    marginal_error : L1 residual of the inner solve.
    epsilon : of that iteration.
    elapsed : seconds since the loop began.
    """

    iteration: list[int] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)
    marginal_error: list[float] = field(default_factory=list)
    epsilon: list[float] = field(default_factory=list)
    elapsed: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Seconds at the last check, 0 before the first."""
        return self.elapsed[-1] if self.elapsed else 0.0

    def copy(self) -> History:
        """The same entries, to be gone on with."""
        return History(**{entry.name: list(getattr(self, entry.name)) for entry in fields(self)})

    def go_on_from(self, other: History) -> None:
        """Take over the entries of another history."""
        for entry in fields(self):
            getattr(self, entry.name)[:] = getattr(other, entry.name)

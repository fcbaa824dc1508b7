"""The one driver of every outer loop: history, the iteration limit, cancelling, checkpoints and resuming.

    state_0 = begin(),    (state_{k+1}, check, status) = step(state_k)    until a step has a status

A loop is a state, a frozen dataclass of tensors and numbers that a checkpoint stores as it is, and a step from one
state to the next. A step reads nothing that it has changed in an earlier call: what it needs of them is in the state,
random draws of the solve's own generator excepted, which checkpoints keep as well. A sampled gradient changes with each
call, so a step first gives it the memory that the state holds. A step may write into the tensors of the state that it
was given, whose memory is donated to the next one; what a solver keeps besides is scratch memory.

To put a loop on it: derive its state from `State`, mark it with `torchgw.persist.codec.storable`, let ``begin`` make
the first one (it is not called where a checkpoint has a later one), and return from ``step`` the next state with
``n_iter`` one higher, the `Check` that the history and the callback get (None between checks), and the `Status` with
which the loop ends, or None. `History` and `torchgw.persist.watch.Watch` stay out of steps, but of those that run other
loops. A stage of the watch has one loop, whose state it keeps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import NamedTuple, TypeVar

from torchgw.diagnostics.status import History, Status
from torchgw.persist.watch import Watch
from torchgw.types import Progress


@dataclass(frozen=True, kw_only=True)
class State:
    """Where an outer loop stands.

    n_iter : outer iterations of this loop.
    n_iter_sinkhorn : inner iterations over all of them.
    """

    n_iter: int = 0
    n_iter_sinkhorn: int = 0

    @property
    def complete(self) -> bool:
        """Whether a loop that is cancelled here has something to return; if not, it goes on to its first check."""
        return self.n_iter > 0


class Check(NamedTuple):
    """The entry of one check in the `History`.

    cost : objective, in units of the scaled squared distance.
    marginal_error : L1 marginal residual.
    epsilon : at which it was solved.
    """

    cost: float
    marginal_error: float
    epsilon: float


@dataclass(frozen=True)
class Loop:
    """How far an outer loop goes, and who follows it.

    watch : hears of every check, cancels, and has the state to resume from.
    history : gets the checks; where it has entries of earlier loops, iterations are counted on from them.
    max_iter : most outer iterations of this loop, None for no limit.
    tol : of conditional gradients, the gap over the value at which a plan is stationary.
    least : a value no further from zero is zero.
    """

    watch: Watch
    history: History
    max_iter: int | None
    tol: float = 0.0
    least: float = 0.0


S = TypeVar("S", bound=State)


def iterate(
    kind: type[S],
    step: Callable[[S], tuple[S, Check | None, Status | None]],
    begin: Callable[[], S],
    loop: Loop,
    limit: int = 0,
) -> tuple[S, Status]:
    """The last state, and why the loop ended.

    Parameters
    ----------
    kind : class of its states.
    step, begin : the loop, see above.
    loop : how far it goes, and who follows it.
    limit : most iterations of the whole solve. The callback is told it, or earlier ones and ``max_iter`` where that is
        more.

    Raises
    ------
    TypeError
        When the state to resume from is that of another loop.
    """
    watch, history, max_iter = loop.watch, loop.history, loop.max_iter
    earlier = history.iteration[-1] if history.iteration else 0
    restored = watch.last_state()
    if restored is None:
        state = begin()
    else:
        state, entries = restored
        if type(state) is not kind:
            raise TypeError(f"a stage has one loop, but a {kind.__name__} found a {type(state).__name__} in it")
        history.go_on_from(entries)
    began = time.perf_counter() - history.seconds
    while max_iter is None or state.n_iter < max_iter:
        if state.complete and watch.should_stop_after_storing((state, history)):
            return state, Status.CANCELLED
        state, check, status = step(state)
        if check is not None:
            progress = Progress(
                iteration=earlier + state.n_iter,
                max_iter=max(limit, earlier + (max_iter or state.n_iter)),
                cost=check.cost,
                marginal_error=check.marginal_error,
                epsilon=check.epsilon,
                elapsed=time.perf_counter() - began,
            )
            for entry in fields(history):
                getattr(history, entry.name).append(getattr(progress, entry.name))
            watch.report(progress)
        if status is not None:
            return state, status
    return state, Status.MAX_ITER

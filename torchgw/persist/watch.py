"""The watch of a solve: progress to a callback, cancellation by the callback or Ctrl-C (a second one ends at once), and
a journal of what is done.

A solve is made of stages. The result of a stage that was finished before is read from the journal. A loop within a
stage offers its state at the top of each iteration; the journal writes some of these, and the loop continues from the
last one. Random states are stored with them, so a resumed solve gives the same result.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import Any, Protocol, TypeVar

import numpy as np

from torchgw.runtime.caller import mark_as_theirs
from torchgw.runtime.threads import share
from torchgw.types import Callback, Progress

logger = logging.getLogger("torchgw")

Result = TypeVar("Result")


class Journal(Protocol):
    """Where stages and loops are kept."""

    def within(self, name: str) -> AbstractContextManager[None]:
        """Stages in this context are parts of another one, which is not kept itself."""

    def stage(self, name: str, compute: Callable[[], Result], keep: Callable[[], bool]) -> Result:
        """The result of the stage, computed unless it is there already, and kept if ``keep`` says so afterwards."""

    def last_state(self) -> Any:
        """The last state of the loop of this stage, or None."""

    def store_state_if_due(self, state: Any, now: bool) -> None:
        """Keep the state of the loop of this stage if it is time, or ``now``."""


class Signal:
    """Cancellation of a solve, shared by all its watches.

    stopped : whether it was requested.
    acted_on : whether work was skipped because of it; from then on the journal takes no states, since an uncancelled
        solve would not reach them.
    """

    stopped = False
    acted_on = False


class Watch:
    """Follows one solve; the same object all the way down."""

    def __init__(
        self, callback: Callback | None = None, journal: Journal | None = None, signal: Signal | None = None
    ) -> None:
        self.callback, self.journal = callback, journal
        self.signal = Signal() if signal is None else signal

    @property
    def should_stop(self) -> bool:
        """Whether the best so far is asked for."""
        return self.signal.stopped

    def without_callback(self) -> Watch:
        """The same, but the callback hears nothing."""
        return Watch(None, self.journal, self.signal)

    def stop(self) -> None:
        """Ask for the best so far: every loop ends after its iteration, the sampled one not before its first check."""
        self.signal.stopped = True

    def detach(self) -> Watch:
        """A watch with the same cancellation, without callback and journal: for auxiliary loops."""
        return Watch(signal=self.signal)

    def report(self, progress: Progress) -> None:
        """Tell the callback, which asks for an end by returning True or raising StopIteration.

        What else it raises passes through as it is.
        """
        if self.callback is None:
            return
        try:
            answer = self.callback(progress)
        except StopIteration:
            answer = True
        except BaseException as error:
            mark_as_theirs(error)
            raise
        if isinstance(answer, bool | np.bool_) and answer:
            self.stop()

    def within(self, name: str) -> AbstractContextManager[None]:
        """Stages in this context are parts of another one, which is not kept itself."""
        return nullcontext() if self.journal is None else self.journal.within(name)

    def stage(self, name: str, compute: Callable[[], Result]) -> Result:
        """The result of a stage. One that was cut short is not kept."""
        share()
        if self.journal is None:
            return compute()
        return self.journal.stage(name, compute, lambda: not self.should_stop)

    def last_state(self) -> Any:
        """Where the loop of this stage was when it was last written down, or None."""
        return None if self.journal is None else self.journal.last_state()

    def should_stop_after_storing(self, state: Any) -> bool:
        """Store the state from which the loop goes on, if it is due; whether it should end before that."""
        share()
        stopped, acted_on = self._read_cancellation_flags()
        if self.journal is not None and not acted_on:
            self.journal.store_state_if_due(state, stopped)
        self.signal.acted_on = acted_on or stopped
        return stopped

    def should_skip(self) -> bool:
        """Whether cancellation skips the next piece of work; the skip is recorded in the signal."""
        stopped, acted_on = self._read_cancellation_flags()
        self.signal.acted_on = acted_on or stopped
        return stopped

    def _read_cancellation_flags(self) -> tuple[bool, bool]:
        """Whether cancellation was requested, and whether work was skipped because of it."""
        return self.signal.stopped, self.signal.acted_on


@contextmanager
def stopped_by_interrupt(watch: Watch) -> Iterator[None]:
    """Let SIGINT stop the watch in this context.

    Only in the main thread, and only where Python's own handler is in place: somebody else's has its reasons.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    pressed = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        watch.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if pressed:  # not in the handler, which may have come while a line was being written
            logger.warning("interrupted: this is the best so far")

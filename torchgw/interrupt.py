"""Ctrl-C during a solve asks for the best so far; a second one ends it at once."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from torchgw.watch import Watch

logger = logging.getLogger("torchgw")


@contextmanager
def stopped_by_interrupt(watch: Watch) -> Iterator[None]:
    """Let SIGINT stop the watch in this context.

    Only in the main thread, and only where Python's own handler is in place: somebody else's has its reasons.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        watch.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        logger.warning("interrupted: ending with the best so far; interrupt again to give it up")

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)

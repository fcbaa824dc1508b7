"""Ctrl-C during a solve asks for the best so far; a second one ends it at once."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from torchgw.persist.watch import Watch

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

"""Reading one number from the device while it goes on working."""

from __future__ import annotations

import torch
from torch import Tensor


class Reading:
    """A number on its way to the host.

    On a GPU the copy goes to pinned memory behind the work that is queued; between asking and `value` more work can be
    queued, so the device does not run dry. Elsewhere the number is at hand.
    """

    def __init__(self, number: Tensor) -> None:
        self.overlaps = number.is_cuda
        if self.overlaps:
            self._host = torch.empty((), dtype=number.dtype, pin_memory=True)
            self._host.copy_(number.detach(), non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record(torch.cuda.current_stream(number.device))
        else:
            self._host = number.detach()

    def value(self) -> float:
        """The number; waits for it."""
        if self.overlaps:
            self._copied.synchronize()
        return float(self._host)

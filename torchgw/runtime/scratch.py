"""Large memory of a GPU that is taken again where it was: a graph that works in it is of use in the next solve, too.

See `torchgw.runtime.replayed`: what is large is not copied to where a graph reads it, so the graph belongs to its
address. Memory is free again when the last tensor in it is gone, views among them.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable

import torch
from torch import Tensor

from torchgw.runtime.replayed import SHARE

_HERE = threading.local()


class _Free:
    """Memory of a thread that nothing uses, on a device and one of its streams.

    kept : by shape and dtype, the last that became free last.
    """

    def __init__(self, device: torch.device) -> None:
        self.limit = SHARE * torch.cuda.get_device_properties(device).total_memory
        self.kept: OrderedDict[Hashable, list[Tensor]] = OrderedDict()

    def taken(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory that was free, or new."""
        key = shape, dtype
        free = self.kept.get(key)
        whole = free.pop() if free else torch.empty(shape, dtype=dtype, device=device)
        lent = whole.detach()
        weakref.finalize(lent, self.given_back, key, whole).atexit = False
        return lent

    def given_back(self, key: Hashable, whole: Tensor) -> None:
        """Keep it, and what was free for longest no more where all is too much."""
        self.kept.setdefault(key, []).append(whole)
        self.kept.move_to_end(key)
        while sum(each.nbytes for free in self.kept.values() for each in free) > self.limit:
            oldest = next(iter(self.kept))
            self.kept[oldest].pop(0)
            if not self.kept[oldest]:
                del self.kept[oldest]


def forget() -> None:
    """Drop this thread's memory that nothing uses."""
    _HERE.__dict__.pop("free", None)


def scratch(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory that holds anything."""
    if device.type != "cuda" or torch.is_inference_mode_enabled():  # which does not tell what is a view
        return torch.empty(shape, dtype=dtype, device=device)
    held: dict[Hashable, _Free] = _HERE.__dict__.setdefault("free", {})
    place = device, torch.cuda.current_stream(device).cuda_stream
    if place not in held:
        held[place] = _Free(device)
    return held[place].taken(shape, dtype, device)

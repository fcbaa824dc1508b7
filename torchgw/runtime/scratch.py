"""Large memory of a GPU that is taken again where it was: a graph that works in it is of use in the next solve, too.

See `torchgw.runtime.cuda_graphs`: what is large is not copied to where a graph reads it, so the graph belongs to its
address. Memory is free again when the last tensor in it is gone, views among them.
"""

from __future__ import annotations

import math
import threading
import weakref
from bisect import insort
from collections import OrderedDict
from collections.abc import Hashable
from itertools import count

import torch
from torch import Tensor

from torchgw.runtime.cuda_graphs import SHARE
from torchgw.runtime.threads import lock_across_forks

UNIT = 64  # entries, a multiple of which comes before a tensor: nothing else depends on the parity of its size

_HERE = threading.local()
_LOCK = lock_across_forks()


class _MemoryPool:
    """Memory of a thread that nothing uses, on a device and one of its streams.

    kept : by its bytes, the size that became free last at the end; of each size by its age, so that what is taken does
        not depend on the order in which it was given back.
    """

    def __init__(self, device: torch.device) -> None:
        self.limit = SHARE * torch.cuda.get_device_properties(device).total_memory
        self.kept: OrderedDict[int, list[tuple[int, Tensor]]] = OrderedDict()
        self.ages = count()

    def allocate(self, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory of so many bytes: the oldest that was free, or new."""
        with _LOCK:
            free = self.kept.get(size)
            age, whole = free.pop(0) if free else (next(self.ages), torch.empty(size, dtype=torch.uint8, device=device))
        lent = whole.detach().view(dtype)  # the base of all its views, which that of another dtype is not
        weakref.finalize(lent, self.release, age, whole).atexit = False
        return lent

    def release(self, age: int, whole: Tensor) -> None:
        """Keep it, and what was free for longest no more where all is too much. Any thread may drop its last view."""
        with _LOCK:
            insort(self.kept.setdefault(whole.nbytes, []), (age, whole))
            self.kept.move_to_end(whole.nbytes)
            while sum(size * len(free) for size, free in self.kept.items()) > self.limit:
                oldest, free = next(iter(self.kept.items()))
                if free:
                    free.pop()
                else:
                    del self.kept[oldest]


def forget() -> None:
    """Drop this thread's memory that nothing uses."""
    _HERE.__dict__.pop("free", None)


def scratch(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory that holds anything."""
    return scratches(1, *shape, dtype=dtype, device=device)[0]


def scratches(number: int, *shape: int, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Tensors of this shape, one behind the other: two of float32 take the memory that one of float64 took."""
    if device.type != "cuda" or torch.is_inference_mode_enabled():  # which does not tell what is a view
        return [torch.empty(shape, dtype=dtype, device=device) for _ in range(number)]
    held: dict[Hashable, _MemoryPool] = _HERE.__dict__.setdefault("free", {})
    place = device, torch.cuda.current_stream(device).cuda_stream
    if place not in held:
        held[place] = _MemoryPool(device)
    entries = math.prod(shape)
    each = entries + -entries % UNIT
    whole = held[place].allocate(number * each * dtype.itemsize, dtype, device)
    return [whole[start : start + entries].view(shape) for start in range(0, number * each, each)]


def own(lent: Tensor) -> Tensor:
    """What scratch memory holds, for a user, who may keep it in ways that none can see: it is never lent again."""
    return lent.clone() if lent.is_cuda else lent

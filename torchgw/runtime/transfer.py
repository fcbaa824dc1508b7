"""Tensors brought to the host together, numbers behind other work, and tensors sent behind other work.

A transfer from or to a GPU waits until all that is queued there is done, unless it is asked not to block and its memory
on the host is pinned; or, on the way to the GPU, so small that CUDA copies it aside at once.

Source: NVIDIA, "API synchronization behavior", in the manual of the CUDA runtime.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchgw.runtime.cuda_graphs import refuse_within

ASIDE, PINNED = 2**16, 2**26  # bytes that CUDA copies aside at once, and that at most are pinned to be sent


def to_host(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors on the CPU, of whatever shapes and dtypes, in one transfer; those that are there are not copied."""
    if not any(each.is_cuda for each in tensors):
        return tensors
    if len(tensors) == 1:
        return (tensors[0].detach().cpu(),)
    # Of wide numbers first: each part then begins where its dtype can be read from.
    order = sorted(range(len(tensors)), key=lambda place: -tensors[place].element_size())
    flat = [tensors[place].detach().contiguous().view(-1).view(torch.uint8) for place in order]
    parts = torch.split(torch.cat(flat).cpu(), [len(each) for each in flat])
    found = dict(zip(order, parts, strict=True))
    return tuple(found[place].view(each.dtype).view(each.shape) for place, each in enumerate(tensors))


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; on a GPU behind what is queued there, for which the host waits only if it is large."""
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    refuse_within("what the host sends")
    if ASIDE < tensor.nbytes <= PINNED and not tensor.requires_grad:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class AsyncNumbers:
    """A few numbers on their way to the host.

    On a GPU the copy goes to pinned memory behind the work that is queued; between asking and `values` more work can be
    queued, so the device does not run dry. Elsewhere the numbers are at hand.
    """

    def __init__(self, numbers: Tensor) -> None:
        self.overlaps = numbers.is_cuda
        if self.overlaps:
            self._host = torch.empty(numbers.shape, dtype=numbers.dtype, device="cpu", pin_memory=True)
            self._host.copy_(numbers.detach(), non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record(torch.cuda.current_stream(numbers.device))
        else:
            self._host = numbers.detach()

    def values(self) -> list[float]:
        """All numbers, row by row; waits for them."""
        if self.overlaps:
            self._copied.synchronize()
        found: list[float] = self._host.flatten().tolist()
        return found

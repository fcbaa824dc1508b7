"""Tensors brought to the host together: each transfer from a GPU waits until all that is queued there is done."""

from __future__ import annotations

import torch
from torch import Tensor


def fetched(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors on the CPU, of whatever shapes and dtypes, in one transfer; those that are there are not copied."""
    if not any(each.is_cuda for each in tensors):
        return tensors
    flat = [each.detach().contiguous().view(-1).view(torch.uint8) for each in tensors]
    parts = torch.split(torch.cat(flat).cpu(), [len(each) for each in flat])
    # Each part in memory of its own, which any dtype can be read from.
    return tuple(part.clone().view(each.dtype).view(each.shape) for part, each in zip(parts, tensors, strict=True))

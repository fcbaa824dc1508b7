"""Where a solve runs: on the device that is asked for, on that of a tensor, or on a GPU that is there and pays."""

from __future__ import annotations

import logging
import math
from functools import cache

import torch
from torch import Tensor

from torchgw import validate
from torchgw.kernels.compiler import summarise_error
from torchgw.request.limits import FULL, SMALL_PAIRS, free_memory

logger = logging.getLogger("torchgw")


def pick_device(device: object, inputs: tuple[object, ...], pairs: float = math.inf) -> torch.device:
    """The device asked for, else that of the first tensor given, else a GPU if it can be used and the problem has more
    than `SMALL_PAIRS` pairs of points, else the CPU."""
    if device is not None:
        return validate.device("device", device)
    for given in inputs:
        if isinstance(given, Tensor) and given.device.type != "meta":  # those hold nothing, which is said when read
            return validate.device("the device of a tensor", given.device)
    if why := validate.no_gpu():
        logger.debug("on the CPU: %s", why)
        return torch.device("cpu")
    if pairs <= SMALL_PAIRS:
        logger.info("on the CPU, which is as fast for %d pairs of points; device='cuda' insists on the GPU", pairs)
        return torch.device("cpu")
    if why := reason_unusable():
        _warn(why)
        return torch.device("cpu")
    found = torch.device("cuda", torch.cuda.current_device())
    logger.info("on %s, %s; device='cpu' insists on the CPU", found, torch.cuda.get_device_properties(found).name)
    return found


def reason_unusable(index: int | None = None) -> str | None:
    """Why a GPU, the current one by default, is only used if it is asked for; None if nothing stands against it."""
    try:
        device = torch.device("cuda", torch.cuda.current_device() if index is None else index)
        _try_device(device)
        free = free_memory(device)
    except RuntimeError as error:
        return summarise_error(error)
    return None if free >= FULL else f"only {free / 2**20:.0f} MiB of its memory are free"


@cache
def _try_device(device: torch.device) -> None:
    """Run the smallest kernel of torch; what it raises is not kept, so that a GPU may recover."""
    (torch.zeros(1, device=device) + 1).cpu()


@cache
def _warn(why: str) -> None:
    """Once for each reason."""
    logger.warning("solving on the CPU, because the GPU cannot be used: %s; device='cuda' insists on the GPU", why)

"""`resume`: a solve that was ended or killed goes on from its checkpoint."""

from __future__ import annotations

from os import PathLike
from typing import Any

import torch
from torch import Tensor

from torchgw import validate
from torchgw.align import gw_align
from torchgw.persist.checkpoint import reopened
from torchgw.request.checkpoint import Continued, looks_of
from torchgw.results.result import GWResult
from torchgw.types import Callback


def resume(path: str | PathLike[str], *, X: Any = None, Y: Any = None, callback: Callback | None = None) -> GWResult:
    """Go on with a `gw_align` that was given ``checkpoint=path``, to the result that it would have had.

    On a CPU, on the same machine and with the same number of threads, it has the same bits, however often and wherever
    the solve was killed. A checkpoint whose solve had ended gives its result once more.

    Parameters
    ----------
    path : the folder of the checkpoint. It stays, and the solve goes on being written there.
    X, Y : spaces that were distance providers, which files do not hold, once more; the others are in the checkpoint.
    callback : called like that of `gw_align`.

    Raises
    ------
    ValueError
        When the folder holds no checkpoint of this version, a file in it is damaged or of another checkpoint, a solve
        is at it, a provider is missing, or the device that it was begun on; before anything is computed, naming the
        file.

    Warns
    -----
    CheckpointWarning
        When it was begun by another version, or with another number of threads, and when it cannot be written.

    Notes
    -----
    Files of a checkpoint hold numbers and names of known classes. Nothing in them is run.
    """
    call, every, random = reopened(path)
    if not isinstance(call, dict) or not isinstance(again := call.pop("again", None), dict):
        raise ValueError(f"{path} holds no call of gw_align")
    for name, space in (("X", X), ("Y", Y)):
        if space is None and name in again:
            raise ValueError(
                f"{name} of the checkpoint {path} is a distance provider, which files do not hold: give it"
            )
        if space is not None and name not in again:
            raise ValueError(f"{name} of the checkpoint {path} is in it; leave it out")
        if name in again:
            check_looks(name, space, again[name])
            call[name] = space
    return gw_align(**call, checkpoint=Continued(path, every, random), callback=callback)


def check_looks(name: str, space: Any, looks: tuple[int, float, Tensor]) -> None:
    """Refuse a provider that is another one than the solve began with."""
    size, scale, row = looks
    validate.provider(name, space)
    now = looks_of(space)
    if now[:2] != (size, scale) or not torch.allclose(now[2].double(), row.double()):
        raise ValueError(f"{name} must be the provider that the solve began with: other size, scale or distances")

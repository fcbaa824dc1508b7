"""`resume`: a solve that was ended or killed goes on from its checkpoint."""

from __future__ import annotations

from os import PathLike
from typing import Any

from torchgw.checkpoint import reopened
from torchgw.gw.align import gw_align
from torchgw.gw.checkpoints import CODEC, Continued
from torchgw.result import GWResult
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
        When the folder holds no checkpoint of this version, or a provider is missing.

    Notes
    -----
    Files of a checkpoint hold numbers and names of known classes. Nothing in them is run.
    """
    call, every, random = reopened(path, CODEC)
    again = call.pop("again")
    for name, space in (("X", X), ("Y", Y)):
        if (space is None) == (name in again):
            what = "a distance provider, which a checkpoint does not hold: give it" if name in again else "in it"
            raise ValueError(f"{name} of the checkpoint {path} is {what}{'' if name in again else '; leave it out'}")
        call[name] = space if name in again else call[name]
    return gw_align(**call, checkpoint=Continued(path, every, random), callback=callback)

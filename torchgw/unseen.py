"""The former place of `torchgw.results.out_of_sample`, whose public name works with a warning."""

from __future__ import annotations

from typing import Any

from torchgw.runtime.caller import warn_caller


def __getattr__(name: str) -> Any:
    if name != "Unseen":
        raise AttributeError(f"module 'torchgw.unseen' has no attribute {name!r}")
    from torchgw.results.out_of_sample import Unseen

    warn_caller("torchgw.unseen.Unseen is now torchgw.results.out_of_sample.Unseen", DeprecationWarning)
    return Unseen

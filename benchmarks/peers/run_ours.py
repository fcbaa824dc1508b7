"""Runner of this library, see runner.py."""

from typing import Any

from runner import main

from torchgw import GWOptions, LowRankOptions, gw_align


def align(A: Any, B: Any, **settings: Any) -> Any:
    """Points or distances to a dense plan."""
    return gw_align(A, B, random_state=0, **settings).plan


def sampled(A: Any, B: Any, **settings: Any) -> Any:
    """The loop with sampled gradients, which takes over where the exact one is out of reach."""
    return align(A, B, options=GWOptions(gradient="sampled"), **settings)


def low_rank(A: Any, B: Any, rank: int, **settings: Any) -> Any:
    """The factors of a plan of low rank."""
    options = GWOptions(strategy="low-rank", low_rank=LowRankOptions(rank=rank))
    coupling = gw_align(A, B, options=options, random_state=0, **settings).coupling
    return coupling.Q, coupling.R, coupling.g


main(align, sampled, low_rank)

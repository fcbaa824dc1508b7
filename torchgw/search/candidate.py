"""What the steps of the search hand on to each other."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torchgw.diagnostics.evidence import TINY, Basin
from torchgw.persist.codec import storable
from torchgw.search.anneal import CoarseBasin
from torchgw.solvers.warm_start import WarmStart

SAME_ENERGY = 1.01


def is_as_low(energy: float, least: float, unit: float) -> bool:
    """Whether an energy is the ``least`` one up to 1 % and rounding; ``unit`` is the largest squared distance."""
    return energy <= SAME_ENERGY * least + TINY * unit


@storable
@dataclass(frozen=True)
class Candidate:
    """A basin on its way through the search.

    start : where to begin on all points.
    matching : target index (N,) of each source point.
    energy : its objective on the level reached, in units of the scaled squared distances.
    count : starts that ended in it.
    level : "landmarks", "subset", "full", or "given" by the user.
    selected, best_of_kind : whether it is among the lowest of its kind of landmarks, and whether it is the lowest.
    basin : the basin between landmarks that it came from.
    origin : what the search began from there.
    is_local_optimum : whether it is the end of a descent without entropy, with its energy.
    has_annealed_plan : whether it brings the plan of a search without entropy, on all points or between cells, with its
        energy.
    entropy : what the entropy adds to the energy, where both are minimised.
    rejected : ends of its contest that are too high to go on from, without differences from the best.
    """

    start: WarmStart
    matching: Tensor
    energy: float
    count: int
    level: str
    selected: bool
    best_of_kind: bool = False
    basin: CoarseBasin | None = None
    origin: str = "given"
    is_local_optimum: bool = False
    has_annealed_plan: bool = False
    entropy: float = 0.0
    rejected: tuple[Basin, ...] = ()

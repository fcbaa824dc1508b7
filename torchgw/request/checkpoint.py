"""What a checkpoint of `gw_align` knows: the classes that its files may name, and how a call is written down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling, PotentialCoupling
from torchgw.couplings.low_rank import LowRankCoupling
from torchgw.couplings.tiled import TiledCoupling
from torchgw.diagnostics.evidence import Basin, Rung
from torchgw.diagnostics.status import History, Status
from torchgw.objective.features import FeatureCost
from torchgw.objective.sampled import Anchors, Sample
from torchgw.objective.supervision import Supervision
from torchgw.options import GWOptions
from torchgw.persist.checkpoint import Checkpoint, Folder, begin
from torchgw.persist.codec import KIND, Codec
from torchgw.persist.files import path_of
from torchgw.persist.watch import Watch
from torchgw.results.result import GWResult
from torchgw.results.storage import GROUPS, MARGINALS
from torchgw.search.anneal import CoarseBasin
from torchgw.search.coarsen import CellSpace
from torchgw.search.problem import Candidate
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.sinkhorn.lowrank import LowRankFactors
from torchgw.sinkhorn.score import FactoredScore
from torchgw.sinkhorn.sides import Side
from torchgw.solvers.damping import Mixture
from torchgw.solvers.fixed_point import Descent
from torchgw.solvers.inner import Linear
from torchgw.solvers.low_rank import LowRankSolve
from torchgw.solvers.sampled import Solution
from torchgw.solvers.stopping import Plateau
from torchgw.solvers.warm_start import Start
from torchgw.spaces import (
    DijkstraDistances,
    EuclideanDistances,
    FactoredDistances,
    LandmarkDistances,
    PrecomputedDistances,
)
from torchgw.spaces.dijkstra import RowCache
from torchgw.spaces.graph import GraphReport
from torchgw.spaces.hierarchy import Cells
from torchgw.spaces.representatives import Landmarks
from torchgw.strategies.dense import Ended
from torchgw.strategies.ladder import Climbed, Step
from torchgw.types import Callback, is_provider

ARGUMENTS = (GWOptions, *GROUPS.values(), *MARGINALS.values(), FeatureCost, Supervision)
SPACES = (DijkstraDistances, EuclideanDistances, FactoredDistances, LandmarkDistances, PrecomputedDistances)
COUPLINGS = (DenseCoupling, LowRankCoupling, PotentialCoupling, TiledCoupling)
STAGES = (Candidate, Climbed, Descent, Ended, LowRankSolve, Solution, Step)
PARTS = (
    *(Anchors, Basin, Cells, CellSpace, CoarseBasin, FactoredCost, FactoredScore, GraphReport, History, Landmarks),
    *(Linear, LowRankFactors, Mixture, Plateau, RowCache, Rung, Sample, Side, Start, Status),
)
CODEC = Codec((*ARGUMENTS, *SPACES, *COUPLINGS, *STAGES, *PARTS))


@dataclass(frozen=True)
class Continued(Checkpoint):
    """A checkpoint that is there and goes on, and the random state that its solve began with."""

    random: Tensor | None = None


@contextmanager
def followed(
    callback: Callback | None,
    checkpoint: str | PathLike[str] | Checkpoint | None,
    call: dict[str, Any],
    generator: torch.Generator,
) -> Iterator[Watch]:
    """Who follows a solve with these arguments, in this context.

    Raises
    ------
    ValueError, TypeError
        For a checkpoint that cannot be made, and arguments that it cannot hold.
    """
    if checkpoint is None:
        yield Watch(callback)
        return
    if isinstance(checkpoint, Continued):
        assert checkpoint.random is not None
        generator.set_state(checkpoint.random)
        folder = Folder(checkpoint, CODEC, generator)
    else:
        if not isinstance(checkpoint, Checkpoint):
            checkpoint = Checkpoint(path_of("checkpoint", checkpoint, "a folder, or be a Checkpoint"))
        folder = begin(checkpoint, CODEC, kept(call), generator)
    with closing(folder):
        yield Watch(callback, folder)


def kept(call: dict[str, Any]) -> Any:
    """Arguments as they are written down, encoded. Of spaces that are providers it is their looks, see `looks_of`.

    Raises
    ------
    TypeError
        For an argument that files cannot hold, by name.
    """
    if isinstance(call["init"], GWResult):
        call = call | {"init": call["init"].plan}
    again = {name: looks_of(call[name]) for name in "XY" if is_provider(call[name])}
    items = [[name, _encoded(name, value)] for name, value in (call | dict.fromkeys(again)).items()]
    return {KIND: "dict", "items": [*items, ["again", CODEC.encode(again)]]}


def _encoded(name: str, value: Any) -> Any:
    try:
        return CODEC.encode(value)
    except TypeError as error:
        raise TypeError(f"checkpoint cannot hold {name}: {error}") from error


def looks_of(space: Any) -> tuple[int, float, Tensor]:
    """What a provider is known by when it is given again: its size, its scale, and its first row."""
    return space.size, float(space.scale), space.rows(torch.tensor([0]))[0].cpu()

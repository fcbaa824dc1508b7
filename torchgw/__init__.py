"""Gromov-Wasserstein alignment of point clouds, graphs and metric spaces."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from torchgw import datasets
from torchgw._version import __version__
from torchgw.align import gw_align, gw_loss, resume
from torchgw.diagnostics.evidence import Basin, Certificate, Confidence, EpsilonStep, Rung
from torchgw.diagnostics.status import History, Status
from torchgw.gradients.adjoint import GradientReport
from torchgw.gradients.modes import Envelope, Implicit, Unrolled
from torchgw.losses import SeparableLoss
from torchgw.marginals import Balanced, Partial, SemiRelaxed, Unbalanced
from torchgw.objective.features import FeatureCost
from torchgw.objective.supervision import Supervision
from torchgw.options import (
    AnnealingOptions,
    CoarseOptions,
    GWOptions,
    LadderOptions,
    LowRankOptions,
    SamplingOptions,
    SinkhornOptions,
    SpaceOptions,
    StoppingOptions,
)
from torchgw.path import EpsilonPath, epsilon_path
from torchgw.persist.checkpoint import Checkpoint
from torchgw.planner import Estimate, Forecast, estimate
from torchgw.progress import ProgressBar, ProgressLog
from torchgw.results.result import GWResult
from torchgw.spaces import (
    AdjacencyDistances,
    DijkstraDistances,
    EuclideanDistances,
    FactoredDistances,
    HeatDistances,
    LandmarkDistances,
    PrecomputedDistances,
)
from torchgw.types import (
    AmbiguityWarning,
    BlurWarning,
    CheckpointWarning,
    ConvergenceWarning,
    GradientWarning,
    GraphWarning,
    OutOfMemoryWarning,
    PrecisionWarning,
    Progress,
    SamplingWarning,
    SupervisionWarning,
    TorchGWWarning,
)

if TYPE_CHECKING:
    from torchgw import anndata, plot
    from torchgw.embedding import JointEmbedding, joint_embedding
    from torchgw.estimator import GromovWasserstein
    from torchgw.pairwise import PairwiseResult, gw_neighbours, gw_pairwise

# What needs scikit-learn, matplotlib, pandas or joblib is imported when it is first asked for.
LATER = {
    "GromovWasserstein": "torchgw.estimator",
    "JointEmbedding": "torchgw.embedding",
    "PairwiseResult": "torchgw.pairwise",
    "gw_neighbours": "torchgw.pairwise",
    "gw_pairwise": "torchgw.pairwise",
    "joint_embedding": "torchgw.embedding",
}

__all__ = [
    "AdjacencyDistances",
    "AmbiguityWarning",
    "AnnealingOptions",
    "Balanced",
    "Basin",
    "BlurWarning",
    "Certificate",
    "Checkpoint",
    "CheckpointWarning",
    "CoarseOptions",
    "Confidence",
    "ConvergenceWarning",
    "DijkstraDistances",
    "Envelope",
    "EpsilonPath",
    "EpsilonStep",
    "Estimate",
    "EuclideanDistances",
    "FactoredDistances",
    "FeatureCost",
    "Forecast",
    "GWOptions",
    "GWResult",
    "GradientReport",
    "GradientWarning",
    "GraphWarning",
    "GromovWasserstein",
    "HeatDistances",
    "History",
    "Implicit",
    "JointEmbedding",
    "LadderOptions",
    "LandmarkDistances",
    "LowRankOptions",
    "OutOfMemoryWarning",
    "PairwiseResult",
    "Partial",
    "PrecisionWarning",
    "PrecomputedDistances",
    "Progress",
    "ProgressBar",
    "ProgressLog",
    "Rung",
    "SamplingOptions",
    "SamplingWarning",
    "SemiRelaxed",
    "SeparableLoss",
    "SinkhornOptions",
    "SpaceOptions",
    "Status",
    "StoppingOptions",
    "Supervision",
    "SupervisionWarning",
    "TorchGWWarning",
    "Unbalanced",
    "Unrolled",
    "__version__",
    "anndata",
    "datasets",
    "epsilon_path",
    "estimate",
    "gw_align",
    "gw_loss",
    "gw_neighbours",
    "gw_pairwise",
    "joint_embedding",
    "plot",
    "resume",
]


def __getattr__(name: str) -> Any:
    if name in ("anndata", "plot"):
        return import_module(f"torchgw.{name}")
    if name in LATER:
        return getattr(import_module(LATER[name]), name)
    raise AttributeError(f"module 'torchgw' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

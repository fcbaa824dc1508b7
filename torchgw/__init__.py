"""Gromov-Wasserstein alignment of point clouds, graphs and metric spaces."""

from torchgw import datasets
from torchgw._version import __version__
from torchgw.evidence import Basin, Certificate, Confidence, Rung
from torchgw.gw.align import gw_align
from torchgw.gw.planner import Estimate, Forecast, estimate
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
from torchgw.result import GWResult
from torchgw.sinkhorn.marginals import Balanced
from torchgw.spaces import (
    DijkstraDistances,
    EuclideanDistances,
    FactoredDistances,
    LandmarkDistances,
    PrecomputedDistances,
)
from torchgw.status import History, Status
from torchgw.types import (
    AmbiguityWarning,
    ConvergenceWarning,
    GraphWarning,
    OutOfMemoryWarning,
    PrecisionWarning,
    Progress,
    TorchGWWarning,
)

__all__ = [
    "AmbiguityWarning",
    "AnnealingOptions",
    "Balanced",
    "Basin",
    "Certificate",
    "CoarseOptions",
    "Confidence",
    "ConvergenceWarning",
    "DijkstraDistances",
    "Estimate",
    "EuclideanDistances",
    "FactoredDistances",
    "Forecast",
    "GWOptions",
    "GWResult",
    "GraphWarning",
    "History",
    "LadderOptions",
    "LandmarkDistances",
    "LowRankOptions",
    "OutOfMemoryWarning",
    "PrecisionWarning",
    "PrecomputedDistances",
    "Progress",
    "Rung",
    "SamplingOptions",
    "SinkhornOptions",
    "SpaceOptions",
    "Status",
    "StoppingOptions",
    "TorchGWWarning",
    "__version__",
    "datasets",
    "estimate",
    "gw_align",
]

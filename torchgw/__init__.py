"""Gromov-Wasserstein alignment of point clouds, graphs and metric spaces."""

from torchgw import datasets
from torchgw._version import __version__
from torchgw.evidence import Basin, Certificate, Confidence
from torchgw.gw.align import gw_align
from torchgw.options import (
    AnnealingOptions,
    CoarseOptions,
    GWOptions,
    SamplingOptions,
    SinkhornOptions,
    SpaceOptions,
    StoppingOptions,
)
from torchgw.result import GWResult
from torchgw.sinkhorn.marginals import Balanced
from torchgw.spaces import DijkstraDistances, EuclideanDistances, LandmarkDistances, PrecomputedDistances
from torchgw.status import History, Status
from torchgw.types import (
    AmbiguityWarning,
    ConvergenceWarning,
    GraphWarning,
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
    "EuclideanDistances",
    "GWOptions",
    "GWResult",
    "GraphWarning",
    "History",
    "LandmarkDistances",
    "PrecisionWarning",
    "PrecomputedDistances",
    "Progress",
    "SamplingOptions",
    "SinkhornOptions",
    "SpaceOptions",
    "Status",
    "StoppingOptions",
    "TorchGWWarning",
    "__version__",
    "datasets",
    "gw_align",
]

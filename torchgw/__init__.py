"""Gromov-Wasserstein alignment of point clouds, graphs and metric spaces."""

from torchgw import datasets
from torchgw._version import __version__
from torchgw.gw.align import gw_align
from torchgw.options import (
    AnnealingOptions,
    GWOptions,
    SamplingOptions,
    SinkhornOptions,
    SpaceOptions,
    StoppingOptions,
)
from torchgw.result import GWResult, History, Status
from torchgw.sinkhorn.marginals import Balanced
from torchgw.spaces import DijkstraDistances, EuclideanDistances, LandmarkDistances, PrecomputedDistances
from torchgw.types import ConvergenceWarning, GraphWarning, Progress, TorchGWWarning

__all__ = [
    "AnnealingOptions",
    "Balanced",
    "ConvergenceWarning",
    "DijkstraDistances",
    "EuclideanDistances",
    "GWOptions",
    "GWResult",
    "GraphWarning",
    "History",
    "LandmarkDistances",
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

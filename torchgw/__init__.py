"""Gromov-Wasserstein alignment of point clouds, graphs and metric spaces."""

from __future__ import annotations

from importlib import import_module
from typing import Any
from warnings import warn

from torchgw._version import __version__ as __version__

# Imported when it is first asked for: torch alone takes a second. `__init__.pyi` says the same to type checkers.
MODULES = ("anndata", "datasets", "distributed", "metrics", "plot")
HOMES = {
    "torchgw.align": ("gw_align", "gw_loss", "resume"),
    "torchgw.certified": ("gw_certify",),
    "torchgw.diagnostics.evidence": ("Basin", "Certificate", "Confidence", "EpsilonStep", "IssuedWarning", "Rung"),
    "torchgw.diagnostics.status": ("History", "Status"),
    "torchgw.diagnostics.verdict": ("Verdict",),
    "torchgw.embedding": ("JointEmbedding", "joint_embedding"),
    "torchgw.estimator": ("GromovWasserstein",),
    "torchgw.gradients.adjoint": ("GradientReport",),
    "torchgw.gradients.modes": ("Envelope", "Implicit"),
    "torchgw.losses": ("SeparableLoss",),
    "torchgw.marginals": ("Balanced", "Partial", "SemiRelaxed", "Unbalanced"),
    "torchgw.objective.features": ("FeatureCost",),
    "torchgw.objective.supervision": ("Supervision",),
    "torchgw.options": (
        "AnnealingOptions",
        "CoarseOptions",
        "GWOptions",
        "LadderOptions",
        "LowRankOptions",
        "SamplingOptions",
        "SinkhornOptions",
        "SpaceOptions",
        "StoppingOptions",
    ),
    "torchgw.pairwise": ("PairwiseResult", "gw_neighbours", "gw_pairwise"),
    "torchgw.path": ("EpsilonPath", "epsilon_path"),
    "torchgw.persist.checkpoint": ("Checkpoint",),
    "torchgw.planner": ("Estimate", "Forecast", "estimate"),
    "torchgw.progress": ("ProgressBar", "ProgressLog"),
    "torchgw.results.result": ("GWResult",),
    "torchgw.results.curvature": ("PlanCurvature", "PlanMode", "curvature"),
    "torchgw.spaces": (
        "AdjacencyDistances",
        "DijkstraDistances",
        "EuclideanDistances",
        "FactoredDistances",
        "HeatDistances",
        "LandmarkDistances",
        "PrecomputedDistances",
    ),
    "torchgw.types": (
        "AmbiguityWarning",
        "CheckpointWarning",
        "ConvergenceWarning",
        "GradientWarning",
        "GraphWarning",
        "OutOfMemoryWarning",
        "PrecisionWarning",
        "Progress",
        "RegularizationWarning",
        "SamplingWarning",
        "SupervisionWarning",
        "TorchGWWarning",
    ),
}

RENAMED = {"BlurWarning": "RegularizationWarning"}  # earlier names, which warn
REMOVED = {"Unrolled": "use torchgw.Implicit"}  # what to use instead

_HOME = {name: home for home, names in HOMES.items() for name in names}
__all__ = sorted([*_HOME, *MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _HOME:
        globals()[name] = found = getattr(import_module(_HOME[name]), name)
        return found
    if name in RENAMED:
        warn(f"torchgw.{name} is called torchgw.{RENAMED[name]}", DeprecationWarning, stacklevel=2)
        return getattr(import_module(__name__), RENAMED[name])
    if name in REMOVED:
        raise AttributeError(f"torchgw.{name} was removed: {REMOVED[name]}")
    missing = AttributeError(f"module 'torchgw' has no attribute {name!r}")
    if name.startswith("_") or not name.isidentifier():
        raise missing
    try:
        return import_module(f"torchgw.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"torchgw.{name}":
            raise
        raise missing from None


def __dir__() -> list[str]:
    return sorted(__all__)

"""Distance providers: one object for each space, serving scaled rows and, where they exist, signed factors."""

from torchgw.spaces.adjacency import AdjacencyDistances
from torchgw.spaces.euclidean import EuclideanDistances
from torchgw.spaces.factored import FactoredDistances
from torchgw.spaces.heat import HeatDistances
from torchgw.spaces.landmark import LandmarkDistances
from torchgw.spaces.precomputed import PrecomputedDistances
from torchgw.spaces.shortest_paths import DijkstraDistances

__all__ = [
    "AdjacencyDistances",
    "DijkstraDistances",
    "EuclideanDistances",
    "FactoredDistances",
    "HeatDistances",
    "LandmarkDistances",
    "PrecomputedDistances",
]

"""Gromov-Wasserstein distances between all pairs of many small spaces, and nearest neighbours among them."""

from torchgw.pairwise.api import gw_pairwise
from torchgw.pairwise.neighbours import Neighbours, gw_neighbours
from torchgw.pairwise.result import PairStatus, PairwiseResult

__all__ = ["Neighbours", "PairStatus", "PairwiseResult", "gw_neighbours", "gw_pairwise"]

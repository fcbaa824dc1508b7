"""What the expressions of `tests.fuzz_kinds` are made of: makers of arrays, graphs and providers, and the package."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext  # noqa: F401 - the expressions have it
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from tests.problems import Own  # noqa: F401 - the expressions have it
from torchgw import (  # noqa: F401 - the expressions have them
    AnnealingOptions,
    Balanced,
    CoarseOptions,
    DijkstraDistances,
    Envelope,
    EuclideanDistances,
    FactoredDistances,
    FeatureCost,
    GWOptions,
    HeatDistances,
    Implicit,
    LadderOptions,
    LandmarkDistances,
    LowRankOptions,
    Partial,
    PrecomputedDistances,
    SamplingOptions,
    SemiRelaxed,
    SeparableLoss,
    SinkhornOptions,
    SpaceOptions,
    StoppingOptions,
    Supervision,
    Unbalanced,
    gw_align,
)


@contextlib.contextmanager
def setting(change: Callable[[Any], object], value: object, usual: object) -> Iterator[None]:
    """Within it a setting of the process has this value."""
    change(value)
    try:
        yield
    finally:
        change(usual)


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def apart(points: Any) -> np.ndarray:
    """Distances between points."""
    points = np.asarray(points, dtype=np.float64)
    return np.linalg.norm(points[:, None] - points, axis=-1)


def ultrametric(n: int) -> np.ndarray:
    """Distances in a binary tree."""
    levels = np.arange(n)[:, None] ^ np.arange(n)
    return np.ceil(np.log2(levels + 1.0))


def cut_off(D: np.ndarray) -> np.ndarray:
    """The second half of the points out of the reach of the first."""
    half = np.arange(len(D)) < len(D) / 2
    return np.where(half[:, None] == half, D, np.inf)


def edited(array: np.ndarray, row: int, column: int, value: float) -> np.ndarray:
    """An array with one other entry."""
    array = np.array(array, dtype=np.float64)
    array[row, column] = value
    return array


def walk(n: int, seed: int, share: float = 0.2) -> sparse.csr_matrix:
    """A path with some more edges, of lengths between 1 and 2."""
    lengths = np.triu(rng(seed).uniform(1, 2, (n, n)), 1)
    kept = (rng(seed + 1).random((n, n)) < share) | (np.arange(n)[:, None] + 1 == np.arange(n))
    return sparse.csr_matrix((lengths + lengths.T) * (kept | kept.T))


def parted(graph: sparse.csr_matrix) -> sparse.csr_matrix:
    """The graph without edges between its first and its second half."""
    half = np.arange(graph.shape[0]) < graph.shape[0] / 2
    return sparse.csr_matrix(graph.toarray() * (half[:, None] == half))


def with_zero_edge(graph: sparse.csr_matrix) -> sparse.csr_matrix:
    """The graph with an edge of length zero between its first two points."""
    graph = graph.tolil().tocoo()
    row, column = np.append(graph.row, [0, 1]), np.append(graph.col, [1, 0])
    at = ~((row < 2) & (column < 2) & (np.append(graph.data, [0, 0]) > 0))
    return sparse.csr_matrix((np.append(graph.data, [0.0, 0.0])[at], (row[at], column[at])), shape=graph.shape)


def shares(weights: Any) -> np.ndarray:
    """The weights over their sum."""
    weights = np.asarray(weights, dtype=np.float64)
    return weights / weights.sum()


def locked(array: Any) -> np.ndarray:
    """An array that must not be written to."""
    array = np.array(array)
    array.flags.writeable = False
    return array


def learned(array: Any) -> Tensor:
    """A tensor whose gradient is wanted."""
    return torch.tensor(np.asarray(array, dtype=np.float64), requires_grad=True)


class Bare:
    """What has rows and nothing else."""

    def rows(self, index: Tensor) -> Tensor:
        return torch.ones(len(index), 5)

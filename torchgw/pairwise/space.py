"""One space as the solver of all pairs reads it: prepared once, used in every pair that it belongs to.

A ladder of resolutions, from a few cells to all points. A cell holds points that are close together (Ward's clusters);
the distance of two cells is the mean distance between their points, so that the energy of a plan between cells is that
of the plan between points which spreads each entry over its two cells: coarse problems are the fine one on fewer plans.

Numbers of points are filled up to multiples of 16 with points of no mass. Vectors then begin and end at whole SIMD
registers, and what a CPU computes for a pair has the same bits whichever pairs share its batch.

Sources: J. Ward, "Hierarchical grouping to optimize an objective function", 1963; F. Memoli, "Gromov-Wasserstein
distances and the metric approach to object matching", 2011 (distributions of distances).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

from torchgw.gw.starts import quantiles
from torchgw.types import Array

CELLS = (32, 80, 144)
WORTHWHILE = 1.25
MULTIPLE = 16
NO_MASS = 1e-30
N_QUANTILES = 16
MODES, N_MODES = 2, 3  # the place of modes among the features
ANCHORS = (2, 3, 4, 2, 3)


@dataclass(frozen=True)
class Level:
    """A resolution: distances (n, n), masses (n,), and for each cell the cell of the level before it that it lies in,
    (n,), and its share of that one's mass, (n,).

    ``size`` is n before it was filled up; ``spread`` how far distances from a point to cells are from those of its own
    cell, their root mean square.
    """

    size: int
    spread: float
    distances: Tensor
    mass: Tensor
    parent: Tensor
    share: Tensor


@dataclass(frozen=True)
class Space:
    """Distances (N, N) and masses (N,) of sum one in float64, of the points that have mass.

    Attributes
    ----------
    support : (N,) indices of those points among all ``total`` of the space.
    levels : resolutions, coarsest first; the last has all points.
    features : of the coarsest cells, (n, .) each; matching by any of them is a first guess.
    squared : mean squared distance.
    critical : temperature scale, the largest eigenvalue of the centred distances: at an epsilon of twice the product of
        both spaces' the product plan stops being stable.
    """

    distances: Array
    mass: Array
    support: Array
    total: int
    levels: tuple[Level, ...]
    features: tuple[Tensor, ...]
    squared: float
    critical: float

    @property
    def size(self) -> int:
        """Points with mass."""
        return len(self.mass)


def prepare(distances: Array, mass: Array, seed: int) -> Space:
    """A space of scaled distances (N, N) and masses (N,) of any sum. O(N^2 log N).

    The same space gives the same result wherever it stands in a list: ``seed`` draws anchors from its own masses.
    """
    support = np.flatnonzero(mass > 0)
    D = np.ascontiguousarray(distances[np.ix_(support, support)])
    p = mass[support] / mass[support].sum()
    levels = _ladder(D, p)
    coarse = levels[0]
    rows = slice(0, coarse.size)
    coarse_D, coarse_p = coarse.distances[rows, rows].to(torch.float64), coarse.mass[rows].to(torch.float64)
    coarse_p = coarse_p / coarse_p.sum()
    values, vectors = _modes(coarse_D, coarse_p)
    features = _features(coarse_D, coarse_p, values, vectors, seed)
    return Space(
        distances=D,
        mass=p,
        support=support,
        total=len(mass),
        levels=levels,
        features=tuple(_filled(feature.to(torch.float32), len(coarse.mass)) for feature in features),
        squared=float(p @ np.square(D) @ p),
        critical=float(values[0].abs()) if len(p) > 1 else 0.0,
    )


def _ladder(D: Array, p: Array) -> tuple[Level, ...]:
    """All resolutions, each nested in the one before."""
    n = len(p)
    tree = linkage(squareform(D, checks=False), "ward") if n > WORTHWHILE * CELLS[0] else None
    levels, before = [], np.zeros(n, dtype=np.int64)
    for cells in (*CELLS, n):
        whole = tree is None or n <= WORTHWHILE * cells
        label = np.arange(n) if whole else fcluster(tree, cells, "maxclust").astype(np.int64) - 1
        count = int(label.max()) + 1
        m = np.bincount(label, p, count)
        parent = np.zeros(count, dtype=np.int64)
        parent[label] = before
        weights = np.zeros((n, count))
        weights[np.arange(n), label] = p / m[label]
        to_cells = D if whole else D @ weights
        between = D if whole else weights.T @ to_cells
        spread = float(np.sqrt(p @ np.square(to_cells - between[label]) @ m))
        share = m / np.bincount(parent, m)[parent]
        levels.append(_level(between, m, parent, share, spread))
        before = label
    return tuple(levels)


def _level(D: Array, mass: Array, parent: Array, share: Array, spread: float) -> Level:
    n = len(mass)
    size = -(-n // MULTIPLE) * MULTIPLE
    distances = torch.zeros(size, size)
    distances[:n, :n] = torch.from_numpy(D)
    filled = torch.full((size,), NO_MASS)
    filled[:n] = torch.from_numpy(mass)
    return Level(n, spread, distances, filled, _filled(torch.from_numpy(parent), size), _filled(_single(share), size))


def _single(values: Array) -> Tensor:
    return torch.from_numpy(values).to(torch.float32)


def _filled(values: Tensor, size: int) -> Tensor:
    """Rows of zeros added up to ``size``."""
    found = values.new_zeros(size, *values.shape[1:])
    found[: len(values)] = values
    return found


def _modes(D: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (n,) and functions (n, n) of the centred distances under masses p (n,), largest first."""
    root = p.sqrt()
    symmetric = root[:, None] * D * root
    mean = symmetric @ root
    centred = symmetric - mean[:, None] * root - root[:, None] * mean + (root @ mean) * root[:, None] * root
    values, vectors = torch.linalg.eigh(centred)
    order = values.abs().argsort(descending=True)
    return values[order], vectors[:, order] / root[:, None]


def _features(D: Tensor, p: Tensor, values: Tensor, vectors: Tensor, seed: int) -> list[Tensor]:
    """Distributions of distances, their means, leading modes, and distances to a few random cells at a time."""
    count = min(N_MODES, len(p))
    modes = D.new_zeros(len(p), N_MODES)
    modes[:, :count] = vectors[:, :count] * values[:count].abs().sqrt()
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.multinomial(p, sum(ANCHORS), replacement=True, generator=generator)
    anchors = [D[:, index] for index in drawn.split(list(ANCHORS))]
    return [quantiles(D, p, N_QUANTILES), (D @ p)[:, None], modes, *anchors]

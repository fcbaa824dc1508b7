"""One space as the solver of all pairs reads it: prepared once, used in every pair that it belongs to.

A ladder of resolutions, from a few cells to all points. A cell holds points that are close together (Ward's clusters);
the distance of two cells is the mean distance between their points, so that the energy of a plan between cells is that
of the plan between points which spreads each entry over its two cells: coarse problems are the fine one on fewer plans.

Numbers of points are filled up to multiples of 16 with points of no mass. Each matrix of a batch then begins at a line
of the cache and fills whole registers of any width, and what a CPU computes for a pair has the same bits whichever
pairs share its batch. Products are torch's, in a thread that has no others, so that they do not depend on the number of
threads either.

Sources: J. Ward, "Hierarchical grouping to optimize an objective function", 1963; F. Memoli, "Gromov-Wasserstein
distances and the metric approach to object matching", 2011 (distributions of distances).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

from torchgw.kernels.sampling import draw
from torchgw.search.initial_guesses import compute_profiles, leading_modes
from torchgw.spaces.coarsening import Cells, Coarsening
from torchgw.types import Array

CELLS = (32, 80, 144)
WORTHWHILE = 1.25
NO_VALUE = 1e-14  # of the mean squared distance
MULTIPLE = 16
NO_MASS, LEAST_MASS = 1e-30, 1e-15  # of points that fill up, and of real ones in float32
MODES = 2  # their place among the features
ANCHORS = (2, 3, 4, 2, 3)


@dataclass(frozen=True)
class Level:
    """A resolution, in float32 and filled up to n points.

    size : points or cells before it was filled up.
    spread : root mean square of what distances from a point to cells differ by from those of its own cell, over the
        critical distance.
    distances : (n, n), over the critical distance.
    mass : (n,).
    parent : for each cell the cell of the level before that it lies in, (n,).
    share : its share of that one's mass, (n,).
    """

    size: int
    spread: float
    distances: Tensor
    mass: Tensor
    parent: Tensor
    share: Tensor


@dataclass(frozen=True)
class PreparedSpace:
    """A space restricted to its points with mass, with its resolutions.

    Attributes
    ----------
    distances : (N, N), scaled, float64.
    mass : (N,), of sum one, float64.
    support : (N,) indices of those points among all of the space.
    total : number of all points.
    levels : resolutions, coarsest first; the last has all points.
    features : of the coarsest cells, (n, .) each; matching by any of them is a first guess.
    mean_square : mean squared distance.
    rounding : values of a pair up to the sum of both spaces' ones are nothing but rounding of distances and masses.
    digest : a hash of distances and masses.
    metric : whether small distances say what is near; entries of adjacencies do not.
    critical : the largest eigenvalue of the centred distances. At an epsilon of twice the product of both spaces' ones
        the product plan stops being stable.
    """

    distances: Array
    mass: Array
    support: Array
    total: int
    levels: tuple[Level, ...]
    features: tuple[Tensor, ...]
    mean_square: float
    rounding: float
    critical: float
    digest: bytes
    metric: bool

    def __setstate__(self, state: dict[str, Any]) -> None:
        # In memory of its own: what other processes share may not be written to, and begins anywhere, which moves bits.
        arrays = {name: part.copy() for name, part in state.items() if isinstance(part, np.ndarray)}
        vars(self).update(state | arrays)

    @property
    def sort_key(self) -> tuple[int, bytes]:
        """An order of spaces that is the same wherever they stand in a list."""
        return self.size, self.digest

    @property
    def size(self) -> int:
        """Points with mass."""
        return len(self.mass)


def prepare_space(distances: Array, mass: Array, seed: int, large: bool = False, *, metric: bool) -> PreparedSpace:
    """A space of masses (N,) of any sum and scaled distances (n, n) between its n points with mass. O(n^2 log n).

    A ``large`` one has no resolutions, and one without a ``metric`` no cells: all points are its only resolution.

    The same space gives the same result wherever it stands in a list: ``seed`` draws anchors from its own masses.
    """
    support = np.flatnonzero(mass > 0)
    D = np.ascontiguousarray(distances)
    p = mass[support] / mass[support].sum()
    weights = torch.from_numpy(p)
    squared = float((torch.from_numpy(D).square() @ weights) @ weights)
    rounding = max(NO_VALUE * squared, float(np.finfo(float).eps * np.abs(D).max() ** 2))
    digest = hashlib.sha256(D.tobytes() + p.tobytes()).digest()
    if large:
        return PreparedSpace(D, p, support, len(mass), (), (), squared, rounding, 0.0, digest, metric)
    cells = _make_levels(torch.from_numpy(D), weights, metric)
    coarse_D, coarse_p = cells[0].distances, cells[0].mass
    values, modes = leading_modes(coarse_D, coarse_p)
    critical = float(values[0].abs()) if len(p) > 1 else 0.0
    drawn = draw(coarse_p, sum(ANCHORS), torch.Generator().manual_seed(seed))
    anchors = [coarse_D[:, index] for index in torch.split(drawn, list(ANCHORS))]
    features = *compute_profiles(coarse_D, coarse_p), modes, *anchors
    levels = tuple(_fill_up(each, critical or 1.0) for each in cells)
    return PreparedSpace(
        distances=D,
        mass=p,
        support=support,
        total=len(mass),
        levels=levels,
        features=tuple(_pad_rows(feature / (critical or 1.0), len(levels[0].mass)) for feature in features),
        mean_square=squared,
        rounding=rounding,
        critical=critical,
        digest=digest,
        metric=metric,
    )


def _make_levels(D: Tensor, p: Tensor, metric: bool) -> list[Level]:
    """All resolutions in float64 and not filled up, with distances as they are, each nested in the one before."""
    n = len(p)
    tree = linkage(squareform(D.numpy(), checks=False), "ward") if metric and n > WORTHWHILE * CELLS[0] else None
    found, before = [], torch.zeros(n, dtype=torch.int64)
    for wanted in (*CELLS, n):
        whole = tree is None or n <= WORTHWHILE * wanted
        cells = Coarsening.of_points(D, p)
        if not whole:
            cells = Coarsening.of_means(Cells.of(torch.from_numpy(fcluster(tree, wanted, "maxclust"))), D, p)
        parent = torch.zeros(cells.count, dtype=torch.int64)
        parent[cells.label] = before
        share = cells.mass / Cells(parent, cells.count).sums(cells.mass)[parent]
        spread = float(cells.square_error(p).sqrt())
        found.append(Level(cells.count, spread, cells.distances, cells.mass, parent, share))
        before = cells.label
    return found


def _fill_up(cells: Level, critical: float) -> Level:
    """In float32, filled up to a multiple of 16, and over the critical distance."""
    n = cells.size
    size = -(-n // MULTIPLE) * MULTIPLE
    distances, mass = torch.zeros(size, size, dtype=torch.float32), torch.full((size,), NO_MASS, dtype=torch.float32)
    distances[:n, :n] = cells.distances / critical
    mass[:n] = cells.mass.clamp_min(LEAST_MASS)
    parent, share = _pad_rows(cells.parent, size), _pad_rows(cells.share, size)
    return Level(n, cells.spread / critical, distances, mass, parent.to(torch.int64), share)


def _pad_rows(values: Tensor, size: int) -> Tensor:
    """In float32, with rows of zeros added up to ``size``."""
    found = torch.zeros(size, *values.shape[1:], dtype=torch.float32)
    found[: len(values)] = values
    return found

"""Where the points of the two spaces are drawn: in two or three coordinates each.

Points with up to three coordinates are drawn where they are; of others, the two principal components. A space that was
given by distances is laid out by landmark multidimensional scaling: classical scaling of L landmarks, and every point
placed by its squared distances to them, see `torchgw.linalg.centring`.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch

from torchgw import validate
from torchgw.linalg.centring import centred_modes
from torchgw.spaces.out_of_sample import KnownPoints
from torchgw.types import Array, DistanceProvider

N_LANDMARKS = 200
MOST = 3  # coordinates that are drawn as they are
FLAT = 1e-9  # of the largest eigenvalue: below it there is no direction


class Placed(Protocol):
    """What a layout asks of a result."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def known(self) -> tuple[KnownPoints, KnownPoints] | None: ...


def both(result: Placed, X: Any = None, Y: Any = None) -> tuple[Array, Array]:
    """Coordinates to draw the source (N, 2 or 3) and the target (K, 2 or 3) of a result at.

    Raises
    ------
    ValueError
        For points whose number is not that of the result, and without points for a result that was read from a file.
    """
    return side(result, 0, X), side(result, 1, Y)


def side(result: Placed, which: int, points: Any = None) -> Array:
    """Coordinates of the source (``which`` 0) or the target (1): of ``points`` if given, else of those aligned."""
    name = "XY"[which]
    if points is not None:
        found = validate.points(name, points)
        if len(found) != result.shape[which]:
            raise ValueError(f"{name} must have {result.shape[which]} rows, as the result has, got shape {found.shape}")
        return of_points(found)
    if result.known is None:
        raise ValueError(f"a result that was read from a file keeps no points, so pass {name}= to say where to draw it")
    known = result.known[which]
    if known.points is None and not bool(known.space.rows(torch.tensor([0])).any()):
        raise ValueError(
            f"a linear problem has no distances to lay points out by, so pass {name}= to say where they are"
        )
    return of_distances(known.space) if known.points is None else of_points(known.points)


def of_points(points: Array) -> Array:
    """The points (N, d) themselves where d is 2 or 3, a line as (N, 2), else two principal components (N, 2)."""
    if points.shape[1] == 1:
        return np.column_stack((points, np.zeros(len(points))))
    return points if points.shape[1] <= MOST else principal(points, 2)


def principal(points: Array, count: int) -> Array:
    """Coordinates (N, count) of points (N, d) along the directions in which they spread most."""
    from sklearn.decomposition import PCA

    found: Array = PCA(count, random_state=0).fit_transform(points)
    return found


def subset(n: int, most: int) -> Array:
    """Indices of all of n points, or of ``most`` of them drawn at random, increasing; the same at every call."""
    if n <= most:
        return np.arange(n)
    return np.sort(np.random.default_rng(0).permutation(n)[:most])


def of_distances(space: DistanceProvider) -> Array:
    """Two coordinates (N, 2) whose distances resemble those of the space; O(N L) for L = 200 landmarks."""
    chosen = torch.from_numpy(subset(space.size, N_LANDMARKS))
    squared = space.rows(chosen).double().cpu().square()
    between = squared[:, chosen]
    mean = between.mean(1)
    mass = torch.full_like(mean, 1 / len(mean))
    values, modes = centred_modes(-0.5 * between, mass)
    lengths = values[-2:].flip(0)
    spread = lengths > FLAT * lengths[0]  # a line has one direction; the other would be rounding
    scaled = torch.where(spread, lengths, 1.0).rsqrt() * spread
    axes = modes[:, -2:].flip(1) * mass[:, None] * scaled
    found: Array = (-0.5 * (squared - mean[:, None]).T @ axes).numpy()
    return found

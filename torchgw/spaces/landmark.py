"""Geodesic distances from farthest-point landmarks, as signed Nystrom factors.

With landmarks Z, W = D[Z, Z] = V diag(lam) V^T (indefinite) and F = D[:, Z] V |lam|^(-1/2),

    D ~ F diag(sign(lam)) F^T,

exact at the landmarks up to the eigenvalues left out. On curves and surfaces 50-100 landmarks give a relative
Frobenius error of 0.3-1 %. Source: C. Williams and M. Seeger, "Using the Nystrom method to speed up kernel machines",
2000, with the signs kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchgw import validate
from torchgw.spaces.farthest import farthest_points
from torchgw.spaces.paths import fill_unreachable, positive_scale, warn_unreachable
from torchgw.types import Array

SMALLEST_EIGENVALUE = 1e-3
SINGLE_FROM = 200_000


class LandmarkDistances:
    """Factored geodesic distances on a graph.

    Parameters
    ----------
    graph : SciPy sparse (N, N), symmetric, edge lengths >= 0; explicit zeros are edges of length zero.
    n_landmarks : L; at most N are used, and at least one for each component of the graph.

    Attributes
    ----------
    landmarks : (L,) int64 tensor, indices of the farthest-point landmarks.

    Raises
    ------
    ValueError, TypeError
        When the graph or the number of landmarks cannot be used.

    Notes
    -----
    The distances of this space ARE the factored ones, for rows, factors and the objective alike, so they can miss the
    graph's by about a percent. The scale is the largest landmark distance. O(L N log N) to build, memory O(N L). From
    200 000 points on, landmark distances and factors are stored in float32, which adds 1e-6 to the error.
    """

    stored = True

    def __init__(self, graph: Any, n_landmarks: int = 100, *, name: str = "graph") -> None:
        checked = validate.graph(name, graph)
        n_landmarks = validate.integer("n_landmarks", n_landmarks, least=2)
        self._take(*farthest_points(checked, n_landmarks, storage(checked.shape[0])), name)

    @classmethod
    def from_search(cls, index: Array, columns: Array, name: str = "graph") -> LandmarkDistances:
        """From what `farthest_points` found, which is overwritten."""
        made = object.__new__(cls)
        made._take(index, columns, name)
        return made

    def _take(self, index: Array, columns: Array, name: str) -> None:
        reached = np.isfinite(columns)
        self.scale = positive_scale(float(columns.max(where=reached, initial=0.0)))
        if not reached.all():
            warn_unreachable(name, stacklevel=4)
            fill_unreachable(columns, self.scale)
        del reached
        columns /= self.scale
        F, signs = signed_factors(columns, index)
        self.landmarks = torch.from_numpy(index)
        self._F, self._signs = torch.from_numpy(F), torch.from_numpy(signs)

    @property
    def size(self) -> int:
        return len(self._F)

    def to(self, device: torch.device, dtype: torch.dtype) -> LandmarkDistances:
        other = object.__new__(LandmarkDistances)
        other.scale, other.landmarks = self.scale, self.landmarks.to(device)
        other._F, other._signs = self._F.to(device, dtype), self._signs.to(device, dtype)
        return other

    def rows(self, index: Tensor) -> Tensor:
        return (self._F[index] * self._signs) @ self._F.T

    def factors(self) -> tuple[Tensor, Tensor] | None:
        return self._F, self._signs


def storage(n: int) -> str:
    """The dtype in which landmark distances of n points are kept."""
    return "float64" if n < SINGLE_FROM else "float32"


def signed_factors(columns: Array, index: Array) -> tuple[Array, Array]:
    """F (N, r) and signs (r,) from the landmark columns (N, L) of a distance matrix and their indices (L,)."""
    W = columns[index].astype(np.float64)
    eigenvalues, V = np.linalg.eigh((W + W.T) / 2)
    keep = np.abs(eigenvalues) > SMALLEST_EIGENVALUE * np.abs(eigenvalues).max()
    back = V[:, keep] / np.sqrt(np.abs(eigenvalues[keep]))
    return columns @ back.astype(columns.dtype), np.sign(eigenvalues[keep]).astype(columns.dtype)

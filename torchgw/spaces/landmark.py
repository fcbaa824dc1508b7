"""Geodesic distances from farthest-point landmarks, as signed Nystrom factors.

With landmarks Z, W = D[Z, Z] = V diag(lam) V^T (indefinite) and F = D[:, Z] V |lam|^(-1/2),

    D ~ F diag(sign(lam)) F^T,

exact at the landmarks up to the eigenvalues left out. On curves and surfaces 50-100 landmarks give a relative
Frobenius error of 0.3-1 %. Source: C. Williams and M. Seeger, "Using the Nystrom method to speed up kernel machines",
2000, with the signs kept; landmarks as in T. Gonzalez, "Clustering to minimize the maximum intercluster distance",
1985.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchgw import validate
from torchgw.spaces.paths import fill_unreachable, positive_scale, warn_unreachable
from torchgw.types import Array

SMALLEST_EIGENVALUE = 1e-3


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
    graph's by about a percent. The scale is the largest landmark distance. O(L N log N) to build, memory O(N L).
    """

    stored = True

    def __init__(self, graph: Any, n_landmarks: int = 100, *, name: str = "graph") -> None:
        from scipy.sparse.csgraph import connected_components

        checked = validate.graph(name, graph)
        n_components = connected_components(checked, directed=False)[0]
        n_landmarks = max(validate.integer("n_landmarks", n_landmarks, least=2), n_components)
        n_landmarks = min(n_landmarks, checked.shape[0])
        index, columns = farthest_points(checked, n_landmarks)
        unreachable = np.isinf(columns)
        self.scale = positive_scale(float(np.where(unreachable, 0.0, columns).max()))
        if unreachable.any():
            warn_unreachable(name)
            fill_unreachable(columns, self.scale)
        F, signs = signed_factors(columns / self.scale, index)
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


def farthest_points(graph: Any, n_landmarks: int) -> tuple[Array, Array]:
    """Landmark indices (L,) and distances to them (N, L), infinite where there is no path.

    Each landmark is the point farthest from those before it, so every component gets one while they last.
    """
    from scipy.sparse.csgraph import dijkstra

    columns = np.empty((graph.shape[0], n_landmarks))
    index = np.zeros(n_landmarks, dtype=np.int64)
    nearest = np.full(graph.shape[0], np.inf)
    for step in range(n_landmarks):
        columns[:, step] = dijkstra(graph, indices=index[step])
        nearest = np.minimum(nearest, columns[:, step])
        if step + 1 < n_landmarks:
            index[step + 1] = nearest.argmax()
    return index, columns


def signed_factors(columns: Array, index: Array) -> tuple[Array, Array]:
    """F (N, r) and signs (r,) from the landmark columns (N, L) of a distance matrix and their indices (L,)."""
    W = columns[index]
    eigenvalues, V = np.linalg.eigh((W + W.T) / 2)
    keep = np.abs(eigenvalues) > SMALLEST_EIGENVALUE * np.abs(eigenvalues).max()
    return columns @ V[:, keep] / np.sqrt(np.abs(eigenvalues[keep])), np.sign(eigenvalues[keep])

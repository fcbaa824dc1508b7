"""Farthest-point landmarks of a graph and the distances to them: one Dijkstra search after the other.

Each landmark is the point farthest from those before it, so the searches of one graph cannot run side by side, but
those of two graphs can. SciPy's Dijkstra holds the interpreter lock, so the other graph needs a process of its own:
this file, run as a script. It imports NumPy and SciPy only, so that the process starts in a third of a second.

Source: T. Gonzalez, "Clustering to minimize the maximum intercluster distance", 1985.
"""

from __future__ import annotations

import pickle
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torchgw.types import Array


def farthest_points(graph: Any, n_landmarks: int, dtype: str = "float64") -> tuple[Array, Array]:
    """Landmark indices (L,) and distances to them (N, L), infinite where there is no path.

    Parameters
    ----------
    graph : symmetric SciPy CSR (N, N), edge lengths >= 0.
    n_landmarks : L; at most N are used, and at least one for each component.
    dtype : of the distances returned; the searches are in float64.

    Notes
    -----
    O(L N log N). The nodes are renumbered by the reverse Cuthill-McKee order, which puts neighbours near each other in
    memory: half the time at a million nodes in random order.
    """
    from scipy.sparse.csgraph import connected_components, dijkstra, reverse_cuthill_mckee

    n = graph.shape[0]
    n_landmarks = min(max(n_landmarks, connected_components(graph, directed=True, connection="strong")[0]), n)
    order = reverse_cuthill_mckee(graph, symmetric_mode=True)
    place = np.empty_like(order)
    place[order] = np.arange(n, dtype=order.dtype)
    graph = renumbered(graph, order, place)
    columns = np.empty((n_landmarks, n), dtype=dtype)
    index = np.zeros(n_landmarks, dtype=np.int64)
    nearest = np.full(n, np.inf)
    for step in range(n_landmarks):
        distance = dijkstra(graph, indices=place[index[step]])[place]
        columns[step] = distance
        np.minimum(nearest, distance, out=nearest)
        if step + 1 < n_landmarks:
            index[step + 1] = nearest.argmax()
    return index, columns.T


def renumbered(graph: Any, order: Array, place: Array) -> Any:
    """The graph whose node i is node ``order[i]`` of the given one; ``place`` is the inverse of ``order``."""
    rows = graph[order]
    rows.indices = place[rows.indices]
    rows.has_sorted_indices = False
    return rows


def serve() -> None:
    """Read (graph, n_landmarks, dtype) from standard input; write the landmarks and the raw columns (L, N)."""
    index, columns = farthest_points(*pickle.load(sys.stdin.buffer))
    pickle.dump(index, sys.stdout.buffer)
    sys.stdout.buffer.write(columns.T.data)


if __name__ == "__main__":
    serve()

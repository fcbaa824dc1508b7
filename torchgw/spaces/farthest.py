"""Farthest points of any space; of a graph they are landmarks, and each needs the distances of one Dijkstra search.

Each landmark is the point farthest from those before it, so the searches of one
graph cannot run side by side, but those of two graphs can. SciPy's Dijkstra holds
the interpreter lock, so the other graph needs a process of its own: this file, run
as a script. It imports NumPy and SciPy only, so that the process starts in a third
of a second.

Source: T. Gonzalez, "Clustering to minimize the maximum intercluster distance",
1985.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    from torchgw.types import Array

SECONDS_PER_STEP = 2e-8
# The working directory must not stand in for anybody's modules.
RUN = "import sys; sys.path[:] = filter(None, sys.path); import runpy; runpy.run_path(sys.argv[1], run_name='__main__')"


def farthest_in_turn(rows: Callable[[Any], Any], first: Any) -> Iterator[tuple[Any, Any]]:
    """The point ``first`` (1,), then always the one farthest from those before it, each with its distances (1, N).

    ``rows(index)`` are distances to points (1,), NumPy's or torch's like ``first``. No
    point comes twice before all have, even where others lie at distance zero.
    """
    index, nearest = first, np.inf
    while True:
        found = rows(index)
        yield index, found
        nearest = found[0].clip(max=nearest)
        nearest[index] = 0.0 * nearest[index] - 1.0  # a number of the host would be sent to a GPU
        index = nearest.argmax(axis=0, keepdims=True)


def farthest_points(
    graph: Any, n_landmarks: int, dtype: str = "float64", among: Array | None = None
) -> tuple[Array, Array]:
    """Landmark indices (L,) and distances to them (N, L), infinite where there is no path.

    Parameters
    ----------
    graph : symmetric SciPy CSR (N, N), edge lengths >= 0.
    n_landmarks : L; at most N are used, and at least one for each component.
    dtype : of the distances returned; the searches are in float64.
    among : nodes (n,) that landmarks and distances are of, numbered from 0; None
        for all. Every component has one.

    Notes
    -----
    O(L N log N).
    """
    size = graph.shape[0] if among is None else len(among)
    n_landmarks = landmark_count(graph, n_landmarks, size)
    columns = np.empty((n_landmarks, size), dtype=dtype)
    index = np.zeros(n_landmarks, dtype=np.int64)
    for step, (index[step], distance) in enumerate(search_landmarks(graph, n_landmarks, among)):
        columns[step] = distance
    return index, columns.T


def landmark_count(graph: Any, n_landmarks: int, size: int) -> int:
    """The landmarks that a graph gets where so many are asked for, of ``size`` nodes that may be some."""
    from scipy.sparse.csgraph import connected_components

    parts = int(connected_components(graph, directed=True, connection="strong")[0])
    return min(max(n_landmarks, parts), size)


def search_landmarks(graph: Any, n_landmarks: int, among: Array | None = None) -> Iterator[tuple[int, Array]]:
    """Each landmark in turn, and the distances (N,) to it; see `farthest_points`.

    The nodes are renumbered by the reverse Cuthill-McKee order, which puts
    neighbours near each other in memory: half the time at a million nodes in random
    order.
    """
    from scipy.sparse.csgraph import dijkstra, reverse_cuthill_mckee

    order = reverse_cuthill_mckee(graph, symmetric_mode=True)
    place = np.empty_like(order)
    place[order] = np.arange(graph.shape[0], dtype=order.dtype)
    graph = graph[order]
    graph.indices = place[graph.indices]
    graph.has_sorted_indices = False
    place = place if among is None else place[among]
    in_turn = farthest_in_turn(lambda index: dijkstra(graph, indices=place[index])[:, place], np.zeros(1, dtype=int))
    return ((int(index[0]), rows[0]) for index, rows in islice(in_turn, n_landmarks))


def is_worthwhile(n: int, k: int, n_landmarks: int) -> bool:
    """Whether the searches of spaces of n and k points, side by side, gain more than a process costs (0.3 s)."""
    fewer = min(n, k)
    seconds = SECONDS_PER_STEP * n_landmarks * fewer * np.log2(fewer)
    return bool(sys.executable) and (os.cpu_count() or 1) > 1 and seconds > 0.4


class SearchProcess:
    """A process for one search, started early so that it is ready when the graph is; to be used in a ``with``."""

    def __init__(self) -> None:
        # The package last: it may have been found through the working directory
        # alone.
        path = os.pathsep.join([*filter(None, sys.path), str(Path(__file__).resolve().parents[2])])
        command, pipe = [sys.executable, "-c", RUN, __file__], subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env={**os.environ, "PYTHONPATH": path})

    def start(self, graph: Any, n_landmarks: int, dtype: str) -> None:
        """Hand over a graph; no reference is kept."""
        # Of a process that has ended, `result` tells.
        with contextlib.suppress(BrokenPipeError), cast(IO[bytes], self._process.stdin) as to:
            pickle.dump((graph, n_landmarks, dtype), to, protocol=5)

    def result(self) -> tuple[Array, Array]:
        """What `farthest_points` found, once it has."""
        try:
            index, rows = pickle.load(cast(IO[bytes], self._process.stdout))
        except (EOFError, pickle.UnpicklingError):
            code = self._process.wait()
            raise RuntimeError(
                f"the process that searched the second graph ended with code {code}; its own message is above. "
                f"Out of memory shows as a negative code"
            ) from None
        return index, rows.T

    def __enter__(self) -> SearchProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        # A pipe that broke breaks again when what it still holds is flushed.
        with contextlib.suppress(BrokenPipeError), self._process:
            pass


if __name__ == "__main__":
    landmarks, distances = farthest_points(*pickle.load(sys.stdin.buffer))
    pickle.dump((landmarks, distances.T), sys.stdout.buffer, protocol=5)

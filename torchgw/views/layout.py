"""Where the points of the two spaces are drawn: in two or three coordinates each, with edges or faces if there are any.

Points with up to three coordinates are drawn where they are; of others, the two principal components. A space that was
given by distances is laid out by landmark multidimensional scaling: classical scaling of L landmarks, and every point
placed by its squared distances to them, see `torchgw.linalg.centring`. A graph is laid out by the lengths d_il of the
shortest paths from all nodes i to pivots l, which are all nodes of a small graph: the stress

    sum_il (|z_i - z_l| / d_il - 1)^2

of T. Kamada and S. Kawai, "An algorithm for drawing general undirected graphs", 1989, is minimised from there on.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from torchgw import validate
from torchgw.couplings.blocks import as_block_coupling
from torchgw.linalg.centring import centred_modes
from torchgw.spaces.adjacency import AdjacencyDistances
from torchgw.spaces.out_of_sample import KnownPoints
from torchgw.spaces.scale import fill_unreachable
from torchgw.types import Array, Coupling, DistanceProvider, is_graph
from torchgw.views.point_labels import averages

N_LANDMARKS = 200
MOST = 3  # coordinates that are drawn as they are
OWN = "its own coordinates"
FLAT = 1e-9  # of the largest eigenvalue: below it there is no direction
PAIRS = 2**18  # of nodes and pivots that a graph is laid out by
MOST_STEPS = 100  # of the minimisation of its stress
APART = 1e-3  # of the mean path: a random displacement that parts nodes with the same paths
MESHES = (("vertices", "faces"), ("vertices", "triangles"), ("coordinates", "faces"), ("points", "faces"))


@dataclass(frozen=True)
class Layout:
    """A space as it is drawn.

    Attributes
    ----------
    points : (n, 2 or 3) coordinates.
    origin : what they are, in words.
    edges : (m, 2) indices of points that are joined.
    faces : (t, 3) indices of the corners of triangles; points have three coordinates then.
    """

    points: Array
    origin: str
    edges: Array = field(default_factory=lambda: np.empty((0, 2), dtype=np.int64))
    faces: Array = field(default_factory=lambda: np.empty((0, 3), dtype=np.int64))


class LayoutSource(Protocol):
    """What a layout asks of a result."""

    @property
    def coupling(self) -> Coupling: ...

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def known(self) -> tuple[KnownPoints, KnownPoints] | None: ...


def make_layouts(result: LayoutSource, X: Any = None, Y: Any = None) -> tuple[Layout, Layout]:
    """The layouts of source and target of a result; a target graph is placed near the nodes that it is matched with.

    Raises
    ------
    ValueError, TypeError
        As `make_layout` does.
    """
    source = make_layout(result, 0, X)
    return source, make_layout(result, 1, Y, source.points)


def make_layout(result: LayoutSource, which: int, given: Any = None, other: Array | None = None) -> Layout:
    """The layout of the source (``which`` 0) or the target (1).

    Parameters
    ----------
    result : whose space it is.
    which : the side.
    given : what to draw, by default what was aligned: points (N, d); a graph, a SciPy sparse matrix or of networkx,
        whose edges count as equally long; a mesh, an object with ``vertices`` and ``faces``; or a pair of points (N, d)
        and edges (m, 2) or faces (t, 3) between them.
    other : places (N, d) of the other side, from which a graph is laid out; the plan carries them.

    Raises
    ------
    ValueError, TypeError
        For points whose number is not that of the result, and without points for a result that was read from a file.
    """
    name = "XY"[which]
    found = _layout_of_input(result, which) if given is None else _read(name, given)
    size, expected = found.shape[0] if is_graph(found) else len(found.points), result.shape[which]
    if size != expected:
        raise ValueError(f"{name} must have {expected} points, as the result has, got {size}")
    if isinstance(found, Layout):
        return found
    start = None
    if other is not None and other.shape[1] == 2:
        coupling = as_block_coupling(result.coupling, "a layout")
        start = np.column_stack([averages(coupling, column) for column in other.T.astype(np.float64)])
    return Layout(of_graph(found, start), "a layout of its graph", edges_of(found))


def _layout_of_input(result: LayoutSource, which: int) -> Any:
    """The layout of what was aligned, or its graph (N, N)."""
    name = "XY"[which]
    if result.known is None:
        raise ValueError(f"a result that was read from a file keeps no points, so pass {name}= to say where to draw it")
    known = result.known[which]
    if known.points is not None:
        return _of_cloud(known.points)
    graph = known.support_distances if known.graph is None and known.index is None else known.graph
    if isinstance(graph, AdjacencyDistances):
        return graph.compressed().matrix != 0
    if is_graph(graph):
        return graph
    if not bool(known.space.rows(torch.tensor([0])).any()):
        raise ValueError(
            f"a linear problem has no distances to lay points out by, so pass {name}= to say where they are"
        )
    return Layout(of_distances(known.space), "two coordinates whose distances resemble those that were given")


def _read(name: str, given: Any) -> Any:
    """The layout of what is to be drawn, or its graph (N, N) with edges of length 1."""
    if is_graph(given) or validate.is_networkx(given):
        return validate.adjacency(name, given, None) != 0
    held = next((pair for pair in MESHES if all(hasattr(given, member) for member in pair)), None)
    if held is not None:
        given = tuple(np.asarray(getattr(given, member)) for member in held)
    if not isinstance(given, tuple):
        return _of_cloud(validate.points(name, given))
    if len(given) != 2:
        raise ValueError(f"{name} must be a pair of points and edges or faces, got {len(given)} entries")
    points, cells = validate.points(name, given[0]), validate.read(f"{name}[1]", given[1])
    shape, width = cells.shape, cells.shape[-1] if cells.ndim == 2 else 0
    if cells.dtype.kind not in "iu" or width not in (2, 3):
        raise ValueError(
            f"{name}[1] must be edges (m, 2) or faces (t, 3), integers, got shape {shape} of dtype {cells.dtype}"
        )
    if cells.size and not 0 <= cells.min() <= cells.max() < len(points):
        raise ValueError(f"{name}[1] must hold indices of the {len(points)} points, got {cells.min()} to {cells.max()}")
    if width == 2:
        return replace(_of_cloud(points), edges=cells.astype(np.int64))
    if points.shape[1] != MOST:
        raise ValueError(f"{name} must have three coordinates to have faces, got points of shape {points.shape}")
    return replace(_of_cloud(points), faces=cells.astype(np.int64))


def _of_cloud(points: Array) -> Layout:
    """The layout of points (N, d)."""
    d = points.shape[1]
    return Layout(of_points(points), OWN if d <= MOST else f"two principal components of {d} coordinates")


def edges_of(graph: Any) -> Array:
    """Pairs (m, 2) of nodes that are joined, each once, without those of a node with itself."""
    entries = graph.tocoo()
    pairs = np.sort(np.column_stack((entries.row, entries.col)), axis=1)
    found: Array = np.unique(pairs[pairs[:, 0] < pairs[:, 1]], axis=0).astype(np.int64)
    return found


def of_points(points: Array) -> Array:
    """The points (N, d) themselves where d is 2 or 3, a line as (N, 2), else two principal components (N, 2)."""
    if points.shape[1] == 1:
        return np.column_stack((points, np.zeros(len(points))))
    return points if points.shape[1] <= MOST else principal(points, 2)


def principal(points: Array, count: int) -> Array:
    """Coordinates (N, count) of points (N, d) along the directions in which they spread most, 0 where they spread in
    fewer."""
    from sklearn.decomposition import PCA

    made = np.zeros((len(points), count))
    if len(points) > 1:  # a single point has no spread
        found = PCA(min(count, *points.shape), random_state=0).fit_transform(points)
        made[:, : found.shape[1]] = found
    return made


def subset(n: int, most: int) -> Array:
    """Indices of all of n points, or of ``most`` of them drawn at random, increasing; the same at every call."""
    if n <= most:
        return np.arange(n)
    return np.sort(np.random.default_rng(0).permutation(n)[:most])


def of_distances(space: DistanceProvider) -> Array:
    """Two coordinates (N, 2) whose distances resemble those of the space; O(N L) for L = 200 landmarks."""
    chosen = torch.from_numpy(subset(space.size, N_LANDMARKS))
    return _classical_scaling(space.rows(chosen).double().cpu(), chosen)


def _classical_scaling(rows: Tensor, chosen: Tensor) -> Array:
    """Two coordinates (N, 2) by classical scaling of distances (L, N) from the points ``chosen`` (L,)."""
    squared = rows.square()
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


def of_graph(graph: Any, start: Array | None = None) -> Array:
    """Places (N, 2) of the nodes of a graph (N, N) of edge lengths at which its stress has a minimum.

    Parameters
    ----------
    graph : a SciPy sparse matrix, taken in both directions; parts without a path between them are set apart.
    start : (N, 2) to go on from, NaN where there is none; by default classical scaling of the shortest paths.

    Notes
    -----
    The pivots are N nodes, or `PAIRS` / N of a larger graph; O(`PAIRS`) in each of at most `MOST_STEPS` steps.
    """
    from scipy.optimize import minimize

    n = graph.shape[0]
    pivots = subset(n, max(PAIRS // n, 1))
    length = _paths(graph, pivots)
    if n == 1 or not length.any():
        return np.zeros((n, 2))
    if start is None:
        landmarks = subset(n, N_LANDMARKS)
        start = _classical_scaling(torch.from_numpy(_paths(graph, landmarks)), torch.from_numpy(landmarks))
    inverse = np.divide(1.0, length, out=np.zeros_like(length), where=length > 0)
    known = np.isfinite(start)
    middle = np.array(
        [column[some].mean() if some.any() else 0.0 for column, some in zip(start.T, known.T, strict=True)]
    )
    start = np.where(known, start, middle) - middle
    ratio = np.linalg.norm(start[pivots][:, None] - start, axis=2) * inverse
    if ratio.any():
        start = start * (ratio.sum() / np.square(ratio).sum())  # the size of least stress
    start = start + APART * length.mean() * np.random.default_rng(0).normal(size=(n, 2))

    def stress(flat: Array) -> tuple[float, Array]:
        z = flat.reshape(n, 2)
        apart = z[pivots][:, None] - z
        far = np.linalg.norm(apart, axis=2)
        miss = np.where(inverse > 0, far * inverse - 1, 0.0)
        slope = (2 * miss * inverse / np.where(far > 0, far, 1.0))[..., None] * apart
        gradient = -slope.sum(0)
        gradient[pivots] += slope.sum(1)
        return float(np.square(miss).sum()), gradient.ravel()

    found: Array = minimize(stress, start.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": MOST_STEPS}).x
    return found.reshape(n, 2)


def _paths(graph: Any, index: Array) -> Array:
    """Lengths (L, N) of the shortest paths from the nodes ``index`` (L,), whichever way edges point."""
    from scipy.sparse.csgraph import dijkstra

    found = torch.from_numpy(dijkstra(graph, directed=False, indices=index))
    finite = found[found.isfinite()]
    return fill_unreachable(found, float(finite.max()) or 1.0).numpy()

"""The joint graph of several spaces: affinities W_i as edges within them, transport plans T_ij as edges between.

    W_ab = exp(-d_ab^2 / (s_a s_b)) on the edges of a neighbour graph of lengths d,   s_a = the longest edge at a

The scale s is local, so neither units nor densities matter, and every weight lies in [1/e, 1]: no edge is so weak that
the graph falls apart in floating point. Each W_i is divided by its sum, so that graphs of any number of points weigh
the same. The normalised Laplacian, with the degrees D 1 = W_i 1 + sum_j T_ij 1 on space i, is the operator

    V  ->  V - D^-1/2 (W + T) D^-1/2 V,

which never stores a plan. Sources: J. Ham, D. Lee, L. Saul, "Semisupervised alignment of manifolds", 2005; of local
scales: L. Zelnik-Manor, P. Perona, "Self-tuning spectral clustering", 2004.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchgw import validate
from torchgw.spaces.graph import GraphReport, build_graph, candidates
from torchgw.spaces.neighbours import components, symmetrise_edges, union
from torchgw.types import Array, Coupling

READ = 1e-6
TINY = float(np.finfo(float).tiny)


class Plan(NamedTuple):
    """A coupling between two spaces as edges of the joint graph.

    Attributes
    ----------
    i, j : the spaces of its rows and of its columns.
    coupling, scale : the plan, and the factor that makes its mass mu.
    masses : (N_i,), (N_j,), scaled.
    like : a tensor of the dtype and device that the plan is read in.
    """

    i: int
    j: int
    coupling: Coupling
    scale: float
    masses: tuple[Array, Array]
    like: Tensor

    def apply(self, V: Array, axis: int) -> Array:
        """The scaled T V for axis 1, T^T V for axis 0."""
        TV = self.coupling.apply(torch.from_numpy(np.ascontiguousarray(V)).to(self.like), axis)
        found: Array = self.scale * TV.detach().cpu().to(torch.float64).numpy()
        return found


def make_plan(i: int, j: int, coupling: Coupling, mass: float, name: str) -> Plan:
    """A coupling between spaces i and j, scaled to ``mass``; checked to have one."""
    sides = [coupling.marginal(axis).detach() for axis in (1, 0)]
    rows, columns = (side.cpu().to(torch.float64).numpy() for side in sides)
    total = float(rows.sum())
    if not (np.isfinite(rows).all() and np.isfinite(columns).all() and total > 0):
        raise ValueError(f"{name} must have finite masses with a positive sum, got a sum of {total}")
    scale = mass / total
    return Plan(i, j, coupling, scale, (scale * rows, scale * columns), sides[0])


class JointGraph:
    """The joint graph, and its normalised Laplacian on the points ``kept`` that are joined with the anchor."""

    def __init__(self, weights: list[Any], plans: list[Plan], anchor: int) -> None:
        self.plans = plans
        self.offsets = np.concatenate(([0], np.cumsum([W.shape[0] for W in weights])))
        masses = [np.zeros(W.shape[0]) for W in weights]
        for plan in plans:
            masses[plan.i] += plan.masses[0]
            masses[plan.j] += plan.masses[1]
        self.kept = self._find_component([components(W) for W in weights], np.concatenate(masses), anchor)
        self.weights = [W / max(W[kept].sum(), TINY) for W, kept in zip(weights, self.split(self.kept), strict=True)]
        degrees = [np.asarray(W.sum(1)).ravel() + mass for W, mass in zip(self.weights, masses, strict=True)]
        self.root = np.sqrt(np.concatenate(degrees)[self.kept])
        self.null = self.root / np.linalg.norm(self.root)

    def split(self, values: Array) -> list[Array]:
        """Values on all points, space by space."""
        return np.split(values, self.offsets[1:-1])

    def apply_plans(self, V: Array) -> list[Array]:
        """All plans applied to V (sum N_i, b), in both directions."""
        parts = self.split(V)
        found = [np.zeros_like(part) for part in parts]
        for plan in self.plans:
            found[plan.i] += plan.apply(parts[plan.j], 1)
            found[plan.j] += plan.apply(parts[plan.i], 0)
        return found

    def apply_laplacian(self, V: Array) -> Array:
        """V - D^-1/2 W D^-1/2 V on the kept points, W being the graphs and the plans."""
        root = self.root[:, None]
        smooth = self._extend_to_all(V / root, 0.0)
        found = self.apply_plans(smooth)
        for W, part, out in zip(self.weights, self.split(smooth), found, strict=True):
            out += W @ part
        smoothed: Array = np.concatenate(found)[self.kept] / root
        return V - smoothed

    def to_coordinates(self, vectors: Array) -> Array:
        """Unit eigenvectors as functions on all points, of variance 1; NaN on those not kept."""
        return self._extend_to_all(vectors / self.null[:, None], np.nan)

    def _extend_to_all(self, values: Array, elsewhere: float) -> Array:
        found = np.full((len(self.kept), values.shape[1]), elsewhere)
        found[self.kept] = values
        return found

    def _find_component(self, parts: list[tuple[int, Array]], mass: Array, anchor: int) -> Array:
        """Which points edges and plans join with the part of the anchor's graph that has most mass, (sum N_i,) bool.

        A part of a graph is joined where more than `READ` of its mass, the precision to which plans are read, goes to
        what is joined already. O(cost of applying the plans) for each step away from the anchor, where a graph has
        several parts.
        """
        counts, labels = zip(*parts, strict=True)
        if max(counts) == 1:
            return np.ones(len(mass), dtype=bool)
        before = np.concatenate(([0], np.cumsum(counts)))
        part = np.concatenate([label + first for label, first in zip(labels, before, strict=False)])
        own = before[anchor] + np.arange(counts[anchor])
        joined = np.zeros(before[-1], dtype=bool)
        sums = np.bincount(part, mass)
        new = np.zeros_like(joined)
        new[own[sums[own].argmax()]] = True
        while (new & ~joined).any():
            joined |= new
            received = np.concatenate(self.apply_plans(joined[part, None].astype(np.float64)))[:, 0]
            new = np.bincount(part, received) > READ * sums
        kept: Array = joined[part]
        return kept


def check_data_sets(spaces: Any, k: int | None) -> list[Any]:
    """A list of at least two data sets, each checked by `check_data_set`."""
    if not isinstance(spaces, list | tuple):
        raise TypeError(f"spaces must be a list of data sets, got {type(spaces).__name__}")
    if len(spaces) < 2:
        raise ValueError(f"spaces must hold at least 2 data sets, got {len(spaces)}")
    if k is not None:
        validate.integer("k", k, least=1)
    return [check_data_set(f"spaces[{i}]", space, k) for i, space in enumerate(spaces)]


def check_data_set(name: str, space: Any, k: int | None) -> Any:
    """A space that can be used: a symmetric CSR graph, a square distance matrix, or points (N, D), as float64."""
    if hasattr(space, "tocsr"):
        return validate.graph(name, space)
    shape = validate.shape_of(space)
    square = len(shape) == 2 and shape[0] == shape[1] and shape[0] > 1
    found = _check_matrix(name, space) if square else validate.points(name, space)
    if k is not None:
        validate.check_neighbour_count(name, k, len(found))
    return found


def _check_matrix(name: str, space: Any) -> Array:
    try:
        return validate.distance_matrix(name, space)
    except ValueError as error:
        reason = str(error).split(";")[0]
        raise ValueError(
            f"{reason}; if its rows are points, give torchgw.spaces.graph.neighbour_graph(points)"
        ) from None


def make_space_graph(space: Any, k: int | None, name: str) -> tuple[Any, GraphReport | None]:
    """Symmetric CSR graph of edge lengths of a checked space, and how it was made where points were given.

    A graph is taken as it is.
    """
    if hasattr(space, "tocsr"):
        return space, None
    if space.shape[0] == space.shape[1]:
        return make_matrix_graph(space, k), None
    return build_graph(space, k, name)


def make_matrix_graph(distances: Array, k: int | None) -> Any:
    """The k-nearest-neighbour graph of a distance matrix (N, N) and its minimum spanning tree, as symmetric CSR.

    The tree joins all points that finite distances join. O(N^2) time and memory.
    """
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import minimum_spanning_tree

    n = len(distances)
    k = min(candidates(n)[0] if k is None else k, n - 1)
    others = distances.copy()
    np.fill_diagonal(others, np.inf)
    nearest = np.argpartition(others, k - 1, axis=1)[:, :k]
    tree = minimum_spanning_tree(others).tocoo()
    pattern = (union(nearest) + symmetrise_edges(n, tree.row, tree.col)).tocoo()
    length = distances[pattern.row, pattern.col]
    kept = np.isfinite(length)
    return csr_matrix((length[kept], (pattern.row[kept], pattern.col[kept])), shape=(n, n))


def compute_affinities(graph: Any) -> Any:
    """W of a symmetric CSR graph of edge lengths, in which explicit zeros are edges; O(E)."""
    from scipy.sparse import csr_matrix

    degree = np.diff(graph.indptr)
    row = np.repeat(np.arange(graph.shape[0]), degree)
    longest = np.zeros(graph.shape[0])
    np.maximum.at(longest, row, graph.data)
    scale = np.sqrt(longest[row]) * np.sqrt(longest[graph.indices])  # zero only where the length is
    weight = np.exp(-np.square(np.divide(graph.data, scale, out=np.zeros_like(graph.data), where=scale > 0)))
    return csr_matrix((weight, graph.indices, graph.indptr), shape=graph.shape)

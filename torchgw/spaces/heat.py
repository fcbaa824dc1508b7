"""Distances from the heat kernel of a neighbour graph, differentiable in the points.

    d^2 = -4 t log(k_t(i, j) / sqrt(k_t(i, i) k_t(j, j)))

tends to the squared geodesic distance as t falls (Varadhan). In float64 the kernel is right down to 1e-10 of its
diagonal, so distances end at ``reach`` = sqrt(4 t log 1e10) = 9.6 sqrt(t), and below 2 sqrt(t) they are blurred. A time
at which the farthest points are just within reach is the best, and the default. The dimension n that `heat_kernel`
needs is the one with which distances agree in the mean with the shortest paths of the graph between farthest points.

`docs/lanczos.md` has measured errors. Sources: S. Varadhan, 1967; K. Crane, C. Weischedel, M. Wardetzky, "Geodesics in
heat", 2013, for the trade-off in t.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchgw import validate
from torchgw.options import SpaceOptions
from torchgw.runtime.autograd import own_copies, reattach
from torchgw.runtime.caller import warn_caller
from torchgw.spaces.edges import components
from torchgw.spaces.farthest import farthest_points
from torchgw.spaces.graph import neighbour_graph
from torchgw.spaces.heat_kernel import (
    FLOOR,
    build_edge_topology,
    dense_rows,
    estimate_largest_eigenvalue,
    fit_dimension_and_time,
    heat_rows,
    log_diagonal,
    log_kernel,
    steps_for,
    varadhan,
)
from torchgw.spaces.landmark import LandmarkDistances
from torchgw.spaces.precomputed import PrecomputedDistances
from torchgw.spaces.scale import UNREACHABLE, ScaledDistances
from torchgw.spaces.traced import DifferentiableDistances, by_landmarks, growth_of
from torchgw.types import Array, PrecisionWarning

EXACT_SIZE = 2000
N_PROBES = 16
ONCE = "heat distances have first derivatives only: differentiate them once, without create_graph=True"
REACH = math.sqrt(4 * math.log(1 / FLOOR))


class HeatDistances(ScaledDistances):
    """Heat distances of a space: all pairs of up to 2000 points, factors from landmarks beyond.

    Parameters
    ----------
    points_or_graph : points (N, D), joined by `neighbour_graph`; or a symmetric SciPy sparse graph of edge lengths.
    time : t, in squared units of length. None takes (largest path)^2 / 77, which just reaches the farthest points.
    n_steps : terms of the Chebyshev expansion beyond 2000 points. None takes what exp(-t S) needs in float64, about
        6 sqrt(t x largest eigenvalue).
    n_landmarks : L of the factors above 2000 points.
    k : neighbours of each point, as for `neighbour_graph`; only for points.
    name : what the argument is called in error messages.

    Attributes
    ----------
    time, n_steps, dimension : t; steps taken; n.
    reach : the largest distance that float64 resolves at this time. Farther pairs are ``reach`` apart: a lower bound.
    landmarks : (L,) indices, or None where all pairs are stored.

    Raises
    ------
    ValueError, TypeError
        For points, graphs or numbers that cannot be used.

    Warns
    -----
    PrecisionWarning
        When pairs are farther apart than the reach, or ``n_steps`` is fewer than the time needs.
    GraphWarning
        When the graph is not connected: pairs without a path are 1.5 x the largest other distance apart.

    Notes
    -----
    Up to 2000 points the kernel comes from a dense eigendecomposition, O(N^3). Beyond, L rows of it come from a
    Chebyshev expansion, O(L n_steps E). All in float64.
    """

    def __init__(
        self,
        points_or_graph: Any,
        time: float | None = None,
        n_steps: int | None = None,
        n_landmarks: int = 100,
        *,
        k: int | None = None,
        name: str | None = None,
    ) -> None:
        graph, self._name = _graph(points_or_graph, k, name)
        tracked = isinstance(points_or_graph, Tensor) and points_or_graph.requires_grad
        self.leaf = points_or_graph if tracked else None
        n_landmarks = validate.integer("n_landmarks", n_landmarks, least=2)
        self._given_steps = None if n_steps is None else validate.integer("n_steps", n_steps, least=1)
        given = None if time is None else validate.real("time", time, above=0.0)
        if not (graph.data > 0).any():
            raise ValueError(f"{self._name} must have an edge longer than zero; heat distances have no scale otherwise")
        self._edges = build_edge_topology(graph)
        self._label = torch.from_numpy(components(graph)[1].astype(np.int64))
        row = np.repeat(np.arange(self.size), np.diff(graph.indptr))
        self._roots = self._edges.inverse_roots(torch.from_numpy(graph.data[graph.indices != row] ** 2))
        probes, paths = farthest_points(graph, N_PROBES)
        self.dimension, default = fit_dimension_and_time(self._edges, self._roots, probes, paths.T)
        self.time = default if given is None else given
        self.reach = REACH * math.sqrt(self.time)
        needed = steps_for(estimate_largest_eigenvalue(self._edges, self._roots), self.time * self.dimension)
        self.n_steps = self._given_steps or needed
        if self.n_steps < needed:
            self._warn(f"n_steps = {n_steps} is below the {needed} that time = {self.time:.3g} needs; raise it")
        all_pairs = self.size <= EXACT_SIZE
        index = np.arange(self.size) if all_pairs else farthest_points(graph, n_landmarks)[0]
        self.landmarks = None if all_pairs else torch.from_numpy(index)
        rows = self._distances(torch.from_numpy(index))
        self._space: PrecomputedDistances | LandmarkDistances = (
            PrecomputedDistances.from_checked((rows + rows.T) / 2, self._name)
            if all_pairs
            else LandmarkDistances.from_search(index, rows.T.copy(), self._name)
        )
        self.scale = self.largest = self._space.scale

    def _log_kernel(self, roots: Tensor, index: Tensor, time: Tensor | float) -> Tensor:
        """The rows ``index`` (M, N) of log k at a time, where masses have these inverse ``roots``."""
        edges, scaled = self._edges.to(roots.device), time * self.dimension
        if self.landmarks is None:
            return log_kernel(dense_rows(edges, roots, index, scaled), roots, index)
        return log_kernel(heat_rows(edges, roots, index, scaled, self._given_steps), roots, index)

    def _distances(self, source: Tensor) -> Array:
        """Distances (M, N) from these points, infinite where there is no path."""
        log_k, time = self._log_kernel(self._roots, source, self.time), torch.tensor(self.time, dtype=torch.float64)
        self._log_diagonal = log_k.diagonal() if len(source) == self.size else log_diagonal(log_k, source)[0]
        found = varadhan(log_k, source, self._log_diagonal, time, torch.tensor(self.reach, dtype=torch.float64))
        joined = self._label[source][:, None] == self._label
        beyond = float((found >= self.reach)[joined].double().mean())
        if beyond:
            self._warn(
                f"{beyond:.1%} of the distances exceed the reach {self.reach:.3g} of time = {self.time:.3g}, and were "
                f"replaced by it; raise time"
            )
        distances: Array = torch.where(joined, found, torch.inf).numpy()
        return distances

    @property
    def size(self) -> int:
        return len(self._label)

    def _rescale_storage(self, ratio: float) -> HeatDistances:
        return self._with(_space=self._space._rescale_storage(ratio))

    def traced(self, leaf: Tensor, options: SpaceOptions, device: torch.device) -> DifferentiableDistances:
        """Scaled distances as an expression of the points, as in `traced_rows`."""
        points = leaf.to(device)
        if self.landmarks is None:
            D = self.traced_rows(points, torch.arange(self.size)) / self.scale
            return DifferentiableDistances((D + D.T) / 2, growth=growth_of(D))
        return by_landmarks(self.traced_rows(points, self.landmarks).T / self.scale, self, self.landmarks)

    def to(self, device: torch.device, dtype: torch.dtype) -> HeatDistances:
        return self._with(
            _space=self._space.to(device, dtype),
            _edges=self._edges.to(device),
            _label=self._label.to(device),
            landmarks=None if self.landmarks is None else self.landmarks.to(device),
        )

    def rows(self, index: Tensor) -> Tensor:
        return self._space.rows(index)

    def factors(self) -> tuple[Tensor, Tensor] | None:
        return self._space.factors()

    def traced_rows(self, points: Tensor, sources: Tensor, time: Tensor | float | None = None) -> Tensor:
        """Unscaled distances (M, N) in float64 from ``sources``, differentiable in points and time.

        Parameters
        ----------
        points : (N, D) floating point tensor, on any device: where the points of this space are now. Its edges and its
            dimension stay, their lengths follow.
        sources : (M,) indices. With all N of them, the result is the matrix of distances.
        time : t, a number or a tensor (), this space's by default.

        Raises
        ------
        ValueError, TypeError
            For points, sources or a time that cannot be used.

        Notes
        -----
        The gradient is that of the numbers returned, once. Where they end at the reach, and between parts without a
        path, it is zero. Let sources cover the space to about sqrt(t), as `landmarks` do: k_jj of points that are far
        from all of them follows their mean. Up to 2000 points take a dense eigendecomposition; beyond, the backward
        pass expands a few rows at a time once more, so that it holds at most 256 MiB of vectors.
        """
        index = self._sources(points, sources)
        given = points, _time(self.time if time is None else time, points.device)
        own = own_copies(given)
        where, t = own
        edges, label = self._edges.to(points.device), self._label.to(points.device)
        log_k = self._log_kernel(edges.inverse_roots(edges.square_lengths(where.double())), index, t)
        found = varadhan(log_k, index, self._diagonal(log_k, index), t, REACH * t.sqrt())
        found = torch.where(label == label[index][:, None], found, UNREACHABLE * self.scale)
        return reattach([found], own, given, ONCE)[0]

    def _diagonal(self, log_k: Tensor, index: Tensor) -> Tensor:
        """log k_jj (N,): what it is for this space, and the change of what the rows ``index`` of log k say of it."""
        here = self._log_diagonal.to(log_k.device)
        if len(torch.bincount(index).nonzero()) == self.size:
            return here
        with torch.no_grad():
            before, near = log_diagonal(self._log_kernel(self._roots.to(log_k.device), index, self.time), index)
        return here + log_diagonal(log_k, index, near)[0] - before

    def _sources(self, points: Tensor, sources: Tensor) -> Tensor:
        """Checked indices on the device of the points."""
        validate.instance("points", points, Tensor)
        validate.instance("sources", sources, Tensor)
        if points.ndim != 2 or len(points) != self.size or not points.is_floating_point():
            raise ValueError(
                f"points must be floating point (N, D) with N = {self.size}, got shape {tuple(points.shape)} of dtype "
                f"{points.dtype}"
            )
        if not bool(torch.isfinite(points).all()):
            raise ValueError("points must be finite, got NaN or infinite coordinates")
        whole = not sources.is_floating_point() and not sources.is_complex() and sources.dtype != torch.bool
        if sources.ndim != 1 or not whole or len(sources) == 0:
            raise ValueError(f"sources must be indices (M,), got shape {tuple(sources.shape)} of dtype {sources.dtype}")
        if int(sources.min()) < 0 or int(sources.max()) >= self.size:
            span = f"[{int(sources.min())}, {int(sources.max())}]"
            raise ValueError(f"sources must be indices in [0, {self.size}), got some in {span}")
        return sources.to(points.device, torch.int64)

    def _warn(self, text: str) -> None:
        warn_caller(f"{self._name}: {text}", PrecisionWarning)


def _graph(value: Any, k: int | None, name: str | None) -> tuple[Any, str]:
    """The graph that was given or that of the points, and what messages call it."""
    if not hasattr(value, "tocsr"):
        name = name or "points"
        return neighbour_graph(validate.points(name, value), k, name), name
    name = name or "graph"
    if k is not None:
        raise ValueError(f"k must be None where {name} is given instead of points, got {k}")
    return validate.graph(name, value), name


def _time(value: Tensor | float, device: torch.device) -> Tensor:
    """The time as a float64 tensor (), with the gradient that it came with."""
    if not isinstance(value, Tensor):
        return torch.tensor(validate.real("time", value, above=0.0), dtype=torch.float64, device=device)
    if value.ndim != 0 or not value.is_floating_point():
        raise ValueError(f"time must be a number or a floating point tensor (), got shape {tuple(value.shape)}")
    validate.real("time", float(value.detach()), above=0.0)
    return value.to(device, torch.float64)

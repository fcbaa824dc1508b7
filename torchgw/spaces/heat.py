"""Distances from the heat kernel of a neighbour graph, differentiable in the points.

The edges of the graph all conduct alike, and its nodes have masses by the lengths
of their edges. With edges i ~ j of length l_ij, G the graph's combinatorial
Laplacian (unit conductances) and n a dimension,

    m_i = sum_j (l_ij^2 + delta^2) / (2 n),    L = M^-1 G,    S = M^-1/2 G M^-1/2,    K = exp(-t S).

One unit of time moves a walker of -L by a mean square of 2 n from anywhere, as
Brownian motion in n dimensions: L approximates the Laplacian whatever the density
of the points. On a surface m_i falls with the density, so that mass is spread
evenly, as by diffusion maps with alpha = 1. delta, a tenth of the median length,
keeps the rates of duplicates finite. With k_ij = K_ij / sqrt(m_i m_j),

    d^2 = -4 t log(k_ij / sqrt(k_ii k_jj))

tends to the squared geodesic distance as t falls (Varadhan). In float64 the kernel
is right down to 1e-10 of its diagonal, so distances end at ``reach`` = sqrt(4 t log
1e10) = 9.6 sqrt(t), and below 2 sqrt(t) they are blurred. A time at which the
farthest points are just within reach is the best, and the default. The dimension n
is the one with which distances agree in the mean with the shortest paths of the
graph between farthest points.

Rows of K come from the Chebyshev expansion, in [0, s] with x = t s / 2,

    exp(-t S) = e^-x [I_0(x) + 2 sum_k I_k(x) T_k(1 - 2 S / s)],    d I_k / dx = (I_{k-1} + I_{k+1}) / 2,

and their derivatives from the recurrence of the T_k, a few rows at a time. Lanczos would
store and orthogonalise a basis for each row; the expansion keeps three vectors of it.

`docs/lanczos.md` has measured errors. Sources: S. Varadhan, "On the behavior of the
fundamental solution of the heat equation", 1967; R. Coifman, S. Lafon, "Diffusion
maps", 2006; K. Crane, C. Weischedel, M. Wardetzky, "Geodesics in heat", 2013, for
the trade-off in t; H. Tal-Ezer, R. Kosloff, 1984, for the expansion and the number
of its terms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchgw import validate
from torchgw.kernels.blocks import parts
from torchgw.kernels.sums import add_by_label
from torchgw.linalg.lanczos import lanczos
from torchgw.linalg.matrix_functions import Exponential, as_matrix
from torchgw.runtime.autograd import own_copies, reattach
from torchgw.runtime.caller import warn_caller
from torchgw.spaces.adjacency import sparse_tensor
from torchgw.spaces.farthest import farthest_points
from torchgw.spaces.graph import neighbour_graph
from torchgw.spaces.landmark import LandmarkDistances, trace_landmarks
from torchgw.spaces.neighbours import components
from torchgw.spaces.precomputed import PrecomputedDistances
from torchgw.spaces.scale import UNREACHABLE, ScaledDistances
from torchgw.spaces.traced import DifferentiableDistances, growth_of
from torchgw.types import Array, PrecisionWarning

FLOOR = 1e-10
BASIS_ENTRIES = 2**25
EXACT_SIZE = 2000
ONCE = "heat distances have first derivatives only: differentiate them once, without create_graph=True"
REACH = math.sqrt(4 * math.log(1 / FLOOR))


class HeatDistances(ScaledDistances):
    """Heat distances of a space: all pairs of up to 2000 points, factors from landmarks beyond.

    Parameters
    ----------
    points_or_graph : points (N, D), joined by `neighbour_graph`; or a symmetric
        SciPy sparse graph of edge lengths.
    time : t, in squared units of length. None takes (largest path)^2 / 77, which
        just reaches the farthest points.
    n_steps : terms of the Chebyshev expansion beyond 2000 points. None takes what
        exp(-t S) needs in float64, about 6 sqrt(t x largest eigenvalue).
    n_landmarks : L of the factors above 2000 points.
    k : neighbours of each point, as for `neighbour_graph`; only for points.
    name : what the argument is called in error messages.

    Attributes
    ----------
    time, n_steps, dimension : t; steps taken; n.
    reach : the largest distance that float64 resolves at this time. Farther pairs
        are ``reach`` apart: a lower bound.
    landmarks : (L,) indices, or None where all pairs are stored.

    Raises
    ------
    ValueError, TypeError
        For points, graphs or numbers that cannot be used.

    Warns
    -----
    PrecisionWarning
        When pairs are farther apart than the reach, or ``n_steps`` is fewer than
        the time needs.
    GraphWarning
        When the graph is not connected: pairs without a path are 1.5 x the largest
        other distance apart.

    Notes
    -----
    Up to 2000 points the kernel comes from a dense eigendecomposition, O(N^3).
    Beyond, L rows of it come from a Chebyshev expansion, O(L n_steps E). All in
    float64.
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
        graph, name = _graph(points_or_graph, k, name)
        tracked = isinstance(points_or_graph, Tensor) and points_or_graph.requires_grad
        self.leaf = points_or_graph if tracked else None
        n_landmarks = validate.integer("n_landmarks", n_landmarks, least=2)
        self._given_steps = None if n_steps is None else validate.integer("n_steps", n_steps, least=1)
        given = None if time is None else validate.real("time", time, above=0.0)
        if not (graph.data > 0).any():
            raise ValueError(f"{name} must have an edge longer than zero; heat distances have no scale otherwise")
        self._edges = build_edge_topology(graph)
        self._label = torch.from_numpy(components(graph)[1].astype(np.int64))
        row = np.repeat(np.arange(self.size), np.diff(graph.indptr))
        self._roots = self._edges.inverse_roots(torch.from_numpy(graph.data[graph.indices != row] ** 2))
        probes, paths = farthest_points(graph, 16)
        self.dimension, default = fit_dimension_and_time(self._edges, self._roots, probes, paths.T)
        self.time = default if given is None else given
        self.reach = REACH * math.sqrt(self.time)
        needed = steps_for(estimate_largest_eigenvalue(self._edges, self._roots), self.time * self.dimension)
        self.n_steps = self._given_steps or needed
        if self.n_steps < needed:
            text = f"n_steps = {n_steps} is below the {needed} that time = {self.time:.3g} needs; raise it"
            warn_caller(f"{name}: {text}", PrecisionWarning)
        all_pairs = self.size <= EXACT_SIZE
        index = np.arange(self.size) if all_pairs else farthest_points(graph, n_landmarks)[0]
        self.landmarks = None if all_pairs else torch.from_numpy(index)
        rows = self._distances(torch.from_numpy(index), name)
        self._space: PrecomputedDistances | LandmarkDistances
        if all_pairs:
            self._space = PrecomputedDistances.from_checked((rows + rows.T) / 2, name)
        else:
            self._space = LandmarkDistances.from_search(index, rows.T.copy(), name)
        self.scale = self.largest = self._space.scale

    def _log_kernel(self, roots: Tensor, index: Tensor, time: Tensor | float) -> Tensor:
        """The rows ``index`` (M, N) of log k at a time, where masses have these inverse ``roots``."""
        edges, scaled = self._edges.to(roots.device), time * self.dimension
        if self.landmarks is None:
            return log_kernel(dense_rows(edges, roots, index, scaled), roots, index)
        return log_kernel(heat_rows(edges, roots, index, scaled, self._given_steps), roots, index)

    def _distances(self, source: Tensor, name: str) -> Array:
        """Distances (M, N) from these points, infinite where there is no path."""
        log_k = self._log_kernel(self._roots, source, self.time)
        self._log_diagonal = log_k.diagonal() if len(source) == self.size else log_diagonal(log_k, source)[0]
        time = torch.tensor(self.time, dtype=torch.float64)
        found = varadhan(log_k, source, self._log_diagonal, time)
        joined = self._label[source][:, None] == self._label
        beyond = float((found >= self.reach)[joined].double().mean())
        if beyond:
            warn_caller(
                f"{name}: {beyond:.1%} of the distances exceed the reach {self.reach:.3g} of time = {self.time:.3g}, "
                f"and were replaced by it; raise time",
                PrecisionWarning,
            )
        distances: Array = torch.where(joined, found, torch.inf).numpy()
        return distances

    @property
    def size(self) -> int:
        return len(self._label)

    def _rescale_storage(self, ratio: float) -> HeatDistances:
        return self._with(_space=self._space._rescale_storage(ratio))

    def trace(self, leaf: Tensor, k: int | None, device: torch.device) -> DifferentiableDistances:
        points = leaf.to(device)
        if self.landmarks is None:
            D = self.traced_rows(points, torch.arange(self.size)) / self.scale
            return DifferentiableDistances((D + D.T) / 2, growth=growth_of(D))
        return trace_landmarks(self.traced_rows(points, self.landmarks).T / self.scale, self, self.landmarks)

    def to(self, device: torch.device, dtype: torch.dtype) -> HeatDistances:
        return self._with(_space=self._space.to(device, dtype))

    def rows(self, index: Tensor) -> Tensor:
        return self._space.rows(index)

    def factors(self) -> tuple[Tensor, Tensor] | None:
        return self._space.factors()

    def traced_rows(self, points: Tensor, sources: Tensor, time: Tensor | float | None = None) -> Tensor:
        """Unscaled distances (M, N) in float64 from ``sources``, differentiable in points and time.

        Parameters
        ----------
        points : (N, D) floating point tensor, on any device: where the points of
            this space are now. Its edges and its dimension stay, their lengths
            follow.
        sources : (M,) indices. With all N of them, the result is the matrix of
            distances.
        time : t, a number or a tensor (), this space's by default.

        Raises
        ------
        ValueError, TypeError
            For points, sources or a time that cannot be used.

        Notes
        -----
        The gradient is that of the numbers returned, once. Where they end at the
        reach, and between parts without a path, it is zero. Let sources cover the
        space to about sqrt(t), as `landmarks` do: k_jj of points that are far from
        all of them follows their mean. Up to 2000 points take a dense
        eigendecomposition; beyond, the backward pass expands a few rows at a time
        once more, so that it holds at most 256 MiB of vectors.
        """
        index = self._sources(points, sources)
        given = points, _time(self.time if time is None else time, points.device)
        own = own_copies(given)
        where, t = own
        edges, label = self._edges.to(points.device), self._label.to(points.device)
        log_k = self._log_kernel(edges.inverse_roots(edges.square_lengths(where.double())), index, t)
        found = varadhan(log_k, index, self._diagonal(log_k, index), t)
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
    if isinstance(value, Tensor) and (value.ndim != 0 or not value.is_floating_point()):
        raise ValueError(f"time must be a number or a floating point tensor (), got shape {tuple(value.shape)}")
    number = validate.real("time", float(value.detach()) if isinstance(value, Tensor) else value, above=0.0)
    time = value if isinstance(value, Tensor) else torch.tensor(number, dtype=torch.float64)
    return time.to(device, torch.float64)


@dataclass(frozen=True)
class EdgeTopology:
    """The edges of a graph without their lengths.

    Attributes
    ----------
    row, column : ends of each edge (E,), both directions.
    laplacian : G (N, N), sparse CSR.
    shortest : delta, a tenth of the median length, in units of length.
    """

    row: Tensor
    column: Tensor
    laplacian: Tensor
    shortest: float

    def to(self, device: torch.device) -> EdgeTopology:
        moved = (self.row.to(device), self.column.to(device), self.laplacian.to(device))
        return EdgeTopology(*moved, self.shortest)

    def square_lengths(self, points: Tensor) -> Tensor:
        """Squared edge lengths (E,) between points (N, D)."""
        return (points[self.row] - points[self.column]).square().sum(1)

    def inverse_roots(self, square_lengths: Tensor) -> Tensor:
        """(n m_i)^-1/2 for all nodes (N,)."""
        mass = square_lengths.new_zeros(self.laplacian.shape[0])
        return (add_by_label(mass, self.row, square_lengths + self.shortest**2) / 2).rsqrt()

    def product(self, parameters: tuple[Tensor, ...], X: Tensor) -> Tensor:
        """S X / n (N, M), where the one parameter is what `inverse_roots` gives."""
        root = parameters[0][:, None]
        image: Tensor = self.laplacian @ (root * X)
        return root * image

    def dense(self, roots: Tensor) -> Tensor:
        """S / n (N, N)."""
        S = roots[:, None] * self.laplacian.to_dense() * roots
        return (S + S.T) / 2


def build_edge_topology(graph: Any) -> EdgeTopology:
    """The edges of a symmetric SciPy CSR graph with some positive length."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import laplacian

    edges = graph.tocoo()
    apart = edges.row != edges.col
    row, column, lengths = edges.row[apart].astype(np.int64), edges.col[apart].astype(np.int64), edges.data[apart]
    matrix = laplacian(csr_matrix((np.ones(len(row)), (row, column)), shape=graph.shape)).tocsr()
    matrix.sort_indices()
    shortest = 0.1 * float(np.median(lengths[lengths > 0]))
    return EdgeTopology(torch.from_numpy(row), torch.from_numpy(column), sparse_tensor(matrix), shortest)


def estimate_largest_eigenvalue(edges: EdgeTopology, roots: Tensor) -> float:
    """An estimate from above of the largest eigenvalue of S / n: the largest Ritz value, with five per cent added."""
    found = lanczos(as_matrix(edges.product, (roots,), roots), 0, 1, tol=1e-3)
    return 1.05 * float(found.values[-1])


def steps_for(largest: float, time: float) -> int:
    """Terms after which the expansion of exp(-time S) v misses less than 1e-15 |v|, of eigenvalues up to ``largest``.

    Its coefficients are exp(-x) I_k(x) with x = time largest / 2, below exp(-k^2 /
    (2 x + k)): about 6 sqrt(time largest) of them count.
    """
    from scipy.special import ive

    half, digits = time * largest / 2, -math.log(1e-15)
    order = np.arange(1, 2 + int(digits + math.sqrt(2 * digits * half)))
    return int(order[ive(order, half) < 1e-15][0])


def heat_rows(
    edges: EdgeTopology, roots: Tensor, index: Tensor, time: Tensor | float, n_steps: int | None = None
) -> Tensor:
    """Rows K[index] (M, N) at a time in units of the squared length over n, by so many terms or those that it needs.

    Differentiable in ``roots`` and in the time once. A few rows at a time are
    expanded again for their derivatives.
    """
    largest = estimate_largest_eigenvalue(edges, roots.detach())
    time = torch.as_tensor(time, dtype=roots.dtype, device=roots.device)
    n_steps = n_steps or steps_for(largest, float(time.detach()))
    found: Tensor = _Rows.apply(edges, index, largest, n_steps, roots, time)  # type: ignore[no-untyped-call]
    return found


class _Rows(torch.autograd.Function):
    """The rows of `heat_rows`."""

    @staticmethod
    def forward(
        ctx: Any, edges: EdgeTopology, index: Tensor, largest: float, n_steps: int, roots: Tensor, time: Tensor
    ) -> Tensor:
        ctx.edges, ctx.index, ctx.numbers = edges, index, (largest, n_steps)
        ctx.save_for_backward(roots, time)
        return torch.cat([_expand(edges, part, largest, n_steps, roots, time) for part in parts(index, len(roots))])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        largest, n_steps = ctx.numbers
        roots, time = own_copies(ctx.saved_tensors)
        few = max(1, BASIS_ENTRIES // (2 * n_steps * len(roots)))
        for part, cotangent in zip(torch.split(ctx.index, few), torch.split(grads[0], few), strict=True):
            with torch.enable_grad():
                rows = _expand(ctx.edges, part, largest, n_steps, roots, time)
            torch.autograd.backward(rows, cotangent)
        return None, None, None, None, roots.grad, time.grad


def _expand(edges: EdgeTopology, index: Tensor, largest: float, n_steps: int, roots: Tensor, time: Tensor) -> Tensor:
    """Rows K[index] (M, N) by the expansion, in torch operations."""
    from scipy.special import ive

    half = largest / 2
    x = time * half
    terms = torch.from_numpy(ive(np.arange(-1, n_steps + 1), float(x.detach()))).to(roots)
    slopes = (terms[:-2] + terms[2:]) / 2 - terms[1:-1]
    coefficients = 2 * (terms[1:-1] + slopes * (x - x.detach()))
    before = q = torch.nn.functional.one_hot(index, len(roots)).T.to(roots.dtype)
    total = coefficients[0] / 2 * q
    for coefficient in coefficients[1:]:
        image = q - edges.product((roots,), q) / half
        before, q = q, image if before is q else 2 * image - before
        total += coefficient * q
    return total.T


def dense_rows(edges: EdgeTopology, roots: Tensor, index: Tensor, time: Tensor | float) -> Tensor:
    """The same from one eigendecomposition, O(N^3), for spaces of few points."""
    S = edges.dense(roots)
    time = torch.as_tensor(time, dtype=S.dtype)
    values, vectors = torch.linalg.eigh(S.detach())
    K: Tensor = (vectors * torch.exp(-time * values)) @ vectors.T
    if S.requires_grad:  # by divided differences, whatever the gaps of eigenvalues: zero, with its derivative
        divided = Exponential().divided_difference(values[:, None], values, time.detach())
        K = K + vectors @ (divided * (vectors.T @ (S - S.detach()) @ vectors)) @ vectors.T
    return K[index]


def log_kernel(K: Tensor, roots: Tensor, index: Tensor) -> Tensor:
    """log(n k) (M, N) from the rows K[index]; what rounding made zero or negative is the smallest float."""
    return torch.log(K.clamp(min=torch.finfo(K.dtype).tiny)) + roots[index].log()[:, None] + roots.log()


def log_diagonal(log_k: Tensor, index: Tensor, near: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """log k_jj (N,) of all points from the rows ``index`` (L,) of log k, by Nystrom, and where that can be (N,).

    The kernel is smooth, so its diagonal is known wherever one of these points is
    closer than about sqrt(t). Nystrom's value is never above the true one. Where it
    is less than half of the mean over ``index`` with weights k_lj, that mean stands
    in; ``near`` fixes the choice.
    """
    own = log_k[torch.arange(len(index), device=index.device), index]
    R = (log_k[:, index] - (own[:, None] + own) / 2).exp()
    R = (R + R.T) / 2 + 1e-9 * torch.eye(len(index), dtype=R.dtype, device=R.device)
    features = torch.linalg.solve_triangular(torch.linalg.cholesky(R), (log_k - own[:, None] / 2).exp(), upper=False)
    nystrom, mean = features.square().sum(0), (torch.softmax(log_k, 0) * own[:, None]).sum(0)
    near = nystrom > 0.5 * mean.exp() if near is None else near
    return torch.where(near, torch.where(near, nystrom, 1.0).log(), mean), near


def varadhan(log_k: Tensor, index: Tensor, diagonal: Tensor, time: Tensor) -> Tensor:
    """Distances (M, N) from the rows ``index`` of log k: at most the reach, from each source to itself zero.

    Of log k_jj, ``diagonal`` (N,) is what is used for points that are no sources.
    """
    at = torch.arange(len(index), device=log_k.device)
    own = log_k[at, index]
    diagonal = diagonal.index_put((index,), own)
    square = -4 * time * (log_k - (own[:, None] + diagonal) / 2)
    inside = (square > 0) & (index[:, None] != torch.arange(log_k.shape[1], device=log_k.device))
    distance = torch.where(inside, square, 1.0).sqrt()
    return torch.where(inside, torch.minimum(distance, REACH * time.sqrt()), 0.0)


def fit_dimension_and_time(edges: EdgeTopology, roots: Tensor, probes: Array, paths: Array) -> tuple[float, float]:
    """The dimension n, and the time at which points as far apart as any probes are just within reach.

    ``paths`` (P, N) are shortest paths from the ``probes`` (P,). n makes the
    distances between probes agree with their paths, in least squares over those of
    at least 0.3 of the longest. It depends on the time, so it is found twice.
    """
    reached = np.isfinite(paths)
    longest = float(paths.max(where=reached, initial=0.0))
    time = 1.2 * longest**2 / (-4 * math.log(FLOOR))
    path = torch.from_numpy(np.ascontiguousarray(paths[:, probes]))
    dimension = 2.0
    for _ in range(2):
        K = heat_rows(edges, roots, torch.from_numpy(probes), dimension * time)[:, probes]
        ratio = K / (K.diagonal()[:, None] * K.diagonal()).sqrt()
        use = (ratio > FLOOR) & (ratio < 1) & (path > 0.3 * longest) & path.isfinite()
        if not bool(use.any()):
            break
        far = path[use]
        distance = (-4 * dimension * time * ratio[use].log()).sqrt()
        dimension = float((distance * far).sum() / far.square().sum()) ** 2
    return dimension, time

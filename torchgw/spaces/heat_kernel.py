"""The heat kernel of a neighbour graph whose edges all conduct alike, and whose nodes' masses come from edge lengths.

With edges i ~ j of length l_ij, G the graph's combinatorial Laplacian (unit conductances) and n a dimension,

    m_i = sum_j (l_ij^2 + delta^2) / (2 n),    L = M^-1 G,    S = M^-1/2 G M^-1/2,    K = exp(-t S).

One unit of time moves a walker of -L by a mean square of 2 n from anywhere, as Brownian motion in n dimensions: L
approximates the Laplacian whatever the density of the points. On a surface m_i falls with the density, so that mass is
spread evenly, as by diffusion maps with alpha = 1. delta, a tenth of the median length, keeps the rates of duplicates
finite. Distances follow from Varadhan's formula d^2 = -4 t log k with k_ij = K_ij / sqrt(m_i m_j), normalised by k_ii.

Rows of K come from the Chebyshev expansion, in [0, s] with x = t s / 2,

    exp(-t S) = e^-x [I_0(x) + 2 sum_k I_k(x) T_k(1 - 2 S / s)],    d I_k / dx = (I_{k-1} + I_{k+1}) / 2,

and their derivatives from the recurrence of the T_k, a few rows at a time.

Sources: S. Varadhan, "On the behavior of the fundamental solution of the heat equation", 1967; R. Coifman and S. Lafon,
"Diffusion maps", 2006; H. Tal-Ezer and R. Kosloff, 1984, for the expansion and the number of its terms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchgw.kernels.blocks import parts
from torchgw.kernels.sums import add_by_label
from torchgw.linalg.lanczos import lanczos
from torchgw.linalg.matrix_functions import Exponential, as_matrix
from torchgw.runtime.autograd import own_copies
from torchgw.spaces.adjacency import sparse_tensor
from torchgw.types import Array

SHORTEST = 0.1
FLOOR = 1e-10
TRUNCATION = 1e-15
NEARLY, SAFETY = 1e-3, 1.05  # tolerance of the largest eigenvalue, and what it is multiplied by
FIRST_DIMENSION = 2.0
MARGIN = 1.2
NEAREST_FITTED = 0.3
JITTER = 1e-9
BASIS_ENTRIES = 2**25


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
        return root * (self.laplacian @ (root * X))

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
    shortest = SHORTEST * float(np.median(lengths[lengths > 0]))
    return EdgeTopology(torch.from_numpy(row), torch.from_numpy(column), sparse_tensor(matrix), shortest)


def estimate_largest_eigenvalue(edges: EdgeTopology, roots: Tensor) -> float:
    """An estimate from above of the largest eigenvalue of S / n: the largest Ritz value, with five per cent added."""
    found = lanczos(as_matrix(edges.product, (roots,), roots), 0, 1, tol=NEARLY)
    return SAFETY * float(found.values[-1])


def steps_for(largest: float, time: float) -> int:
    """Terms after which the expansion of exp(-time S) v misses less than 1e-15 |v|, of eigenvalues up to ``largest``.

    Its coefficients are exp(-x) I_k(x) with x = time largest / 2, below exp(-k^2 / (2 x + k)): about
    6 sqrt(time largest) of them count.
    """
    from scipy.special import ive

    half, digits = time * largest / 2, -math.log(TRUNCATION)
    order = np.arange(1, 2 + int(digits + math.sqrt(2 * digits * half)))
    return int(order[ive(order, half) < TRUNCATION][0])


def heat_rows(
    edges: EdgeTopology,
    roots: Tensor,
    index: Tensor,
    time: Tensor | float,
    n_steps: int | None = None,
) -> Tensor:
    """Rows K[index] (M, N) at a time in units of the squared length over n, by so many terms or those that it needs.

    Differentiable in ``roots`` and in the time once. A few rows at a time are expanded again for their derivatives.
    """
    largest = estimate_largest_eigenvalue(edges, roots.detach())
    time = torch.as_tensor(time, dtype=roots.dtype, device=roots.device)
    n_steps = n_steps or steps_for(largest, float(time.detach()))
    found: Tensor = _Rows.apply(edges, index, largest, n_steps, roots, time)  # type: ignore[no-untyped-call]
    return found


class _Rows(torch.autograd.Function):
    """The rows of `heat_rows`."""

    @staticmethod
    def forward(ctx: Any, edges: EdgeTopology, index: Tensor, largest: float, n_steps: int, *given: Tensor) -> Tensor:
        ctx.edges, ctx.index, ctx.numbers = edges, index, (largest, n_steps)
        ctx.save_for_backward(*given)
        return torch.cat([_expand(edges, part, largest, n_steps, *given) for part in parts(index, len(given[0]))])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        roots, time = own_copies(ctx.saved_tensors)
        few = max(1, BASIS_ENTRIES // (2 * ctx.numbers[1] * len(roots)))
        for part, cotangent in zip(torch.split(ctx.index, few), torch.split(grads[0], few), strict=True):
            with torch.enable_grad():
                rows = _expand(ctx.edges, part, *ctx.numbers, roots, time)
            rows.backward(cotangent)
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
    K = (vectors * torch.exp(-time * values)) @ vectors.T
    if S.requires_grad:  # by divided differences, whatever the gaps of eigenvalues: zero, with its derivative
        divided = Exponential().divided_difference(values[:, None], values, time.detach())
        K = K + vectors @ (divided * (vectors.T @ (S - S.detach()) @ vectors)) @ vectors.T
    return K[index]


def log_kernel(K: Tensor, roots: Tensor, index: Tensor) -> Tensor:
    """log(n k) (M, N) from the rows K[index]; what rounding made zero or negative is the smallest float."""
    return torch.log(K.clamp(min=torch.finfo(K.dtype).tiny)) + roots[index].log()[:, None] + roots.log()


def log_diagonal(log_k: Tensor, index: Tensor, near: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """log k_jj (N,) of all points from the rows ``index`` (L,) of log k, by Nystrom, and where that can be (N,).

    The kernel is smooth, so its diagonal is known wherever one of these points is closer than about sqrt(t). Nystrom's
    value is never above the true one. Where it is less than half of the mean over ``index`` with weights k_lj, that
    mean stands in; ``near`` fixes the choice.
    """
    own = log_k[torch.arange(len(index), device=index.device), index]
    R = (log_k[:, index] - (own[:, None] + own) / 2).exp()
    R = (R + R.T) / 2 + JITTER * torch.eye(len(index), dtype=R.dtype, device=R.device)
    features = torch.linalg.solve_triangular(torch.linalg.cholesky(R), (log_k - own[:, None] / 2).exp(), upper=False)
    nystrom, mean = features.square().sum(0), (torch.softmax(log_k, 0) * own[:, None]).sum(0)
    near = nystrom > 0.5 * mean.exp() if near is None else near
    return torch.where(near, torch.where(near, nystrom, 1.0).log(), mean), near


def varadhan(log_k: Tensor, index: Tensor, diagonal: Tensor, time: Tensor, reach: Tensor) -> Tensor:
    """Distances (M, N) from the rows ``index`` of log k: at most ``reach``, from each source to itself zero.

    Of log k_jj, ``diagonal`` (N,) is what is used for points that are no sources.
    """
    at = torch.arange(len(index), device=log_k.device)
    own = log_k[at, index]
    diagonal = diagonal.index_put((index,), own)
    square = -4 * time * (log_k - (own[:, None] + diagonal) / 2)
    inside = (square > 0) & (index[:, None] != torch.arange(log_k.shape[1], device=log_k.device))
    distance = torch.where(inside, square, 1.0).sqrt()
    return torch.where(inside, torch.minimum(distance, reach), 0.0)


def fit_dimension_and_time(edges: EdgeTopology, roots: Tensor, probes: Array, paths: Array) -> tuple[float, float]:
    """The dimension n, and the time at which points as far apart as any probes are just within reach.

    ``paths`` (P, N) are shortest paths from the ``probes`` (P,). n makes the distances between probes agree with their
    paths, in least squares over those of at least 0.3 of the longest. It depends on the time, so it is found twice.
    """
    reached = np.isfinite(paths)
    longest = float(paths.max(where=reached, initial=0.0))
    time = MARGIN * longest**2 / (-4 * math.log(FLOOR))
    path = torch.from_numpy(np.ascontiguousarray(paths[:, probes]))
    dimension = FIRST_DIMENSION
    for _ in range(2):
        K = heat_rows(edges, roots, torch.from_numpy(probes), dimension * time)[:, probes]
        ratio = K / (K.diagonal()[:, None] * K.diagonal()).sqrt()
        use = (ratio > FLOOR) & (ratio < 1) & (path > NEAREST_FITTED * longest) & path.isfinite()
        if not bool(use.any()):
            break
        far = path[use]
        distance = (-4 * dimension * time * ratio[use].log()).sqrt()
        dimension = float((distance * far).sum() / far.square().sum()) ** 2
    return dimension, time

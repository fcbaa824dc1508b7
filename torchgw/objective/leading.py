"""Factors that lead, products that finish: the exact gradient between large spaces that have no factors.

Plans see distances centred by their masses, D_c = D - u 1^T - 1 u^T with D_c m = 0. Their leading eigenvectors, by
randomised subspace iteration, give signed factors

    D_c ~ Q B Q^T = (Q V |lam|^1/2) diag(sign(lam)) (Q V |lam|^1/2)^T,        B = Q^T D_c Q = V diag(lam) V^T,
    D ~ F diag(s) F^T,    F = [Q V |lam|^1/2, (u + 1) / sqrt 2, (u - 1) / sqrt 2],    s = (sign(lam), 1, -1),

whose relative Frobenius error on centred distances is (1 - |B|^2 / |D_c|^2)^1/2, because Q Q^T projects. Their gradient
costs O(N K r), and leads an iteration nearly to its end. There the exact one is taken, O(N K (N + K)) or, of a plan
with few entries, O(N K min(N, K)): what it has beyond the factors' changes slowly, and is kept between two of them,

    C(T) ~ C_F(T) + (C(T_0) - C_F(T_0)).

Sources: N. Halko, P.-G. Martinsson, J. Tropp, "Finding structure with randomness", 2011, algorithms 4.4 and 5.3, with
the signs kept.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling
from torchgw.couplings.sparse import SparseCoupling
from torchgw.kernels.blocks import blocks
from torchgw.kernels.sums import cumulative_sum
from torchgw.losses import SQUARE
from torchgw.objective.exact import ExactGradient, dense
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.spaces import FactoredDistances, PrecomputedDistances
from torchgw.types import Coupling, is_metric

logger = logging.getLogger("torchgw")

DENSE_WORK = {"cpu": 4e10, "cuda": 4e12}  # multiplications of dense products from which factors lead
MOST_LEFT = 0.05  # residual up to which corrections settle
VERTEX_WORK = 5e9  # and between vertices, which are found without matrices where they do
RESIDUAL, SHARP_RESIDUAL = 0.02, 0.0025  # the latter where vertices are corrected at their ends (measured)
BLOCK, MOST_RANK, POINTS_A_RANK = 64, 512, 8
POWERS, OVERSAMPLED = 1, 8
ROWS = 256
FEW_ENTRIES = 0.01  # share of a plan's, up to which a sparse product takes less
ROUNDING, SUMS_ROUNDING = 1e-15, 1e-12  # of the largest entry


@dataclass(frozen=True)
class SurrogateFactors:
    """Signed factors of rank r of stored distances D (N, N).

    F : (N, r).
    signs : (r,), each 1 or -1.
    residual : relative Frobenius error on the distances centred by their masses.
    """

    F: Tensor
    signs: Tensor
    residual: float


def compute_surrogate_factors(
    D: Tensor, mass: Tensor, generator: torch.Generator, residual: float = RESIDUAL, most: int | None = None
) -> SurrogateFactors:
    """Of the least rank found that leaves at most this ``residual``, or of the ``most``; masses (N,) of any sum.

    O(N^2 r) work and O(N r) memory beside D; in the dtype of D. Draws from the generator.
    """
    n = len(D)
    most = min(max(n // POINTS_A_RANK, 1), MOST_RANK) if most is None else most
    u = mean_terms(D, mass.to(D.dtype))
    centred = _centre_matrix(D, u, D.dtype)
    whole = sum(float(centred[where].square().sum(dtype=torch.float64)) for where in blocks(n, ROWS))

    basis, image, kept = D.new_zeros(n, 0), D.new_zeros(n, 0), 0.0
    widest = min(most + OVERSAMPLED, n)
    while basis.shape[1] < widest and whole > 0:
        count = min(max(BLOCK, basis.shape[1]), widest - basis.shape[1])
        draws = torch.randn(n, count, generator=generator, device=D.device, dtype=D.dtype)
        for _ in range(POWERS + 1):
            draws = _orthogonal(centred @ draws, basis)
        basis, image = torch.cat((basis, draws), 1), torch.cat((image, centred @ draws), 1)
        B = (basis.T @ image).to(torch.float64)
        kept = float(B.square().sum())
        if whole - kept <= residual**2 * whole:
            break
    values, vectors = (
        torch.linalg.eigh((B + B.T) / 2)
        if basis.shape[1]
        else (u.new_zeros(0, dtype=torch.float64), u.new_zeros(0, 0, dtype=torch.float64))
    )
    order = values.abs().argsort(descending=True)
    left = (whole - cumulative_sum(values[order].square(), 0)).clamp_min(0.0)
    rank = min(int((left > residual**2 * whole).sum()) + 1, most, len(order))
    order = order[:rank]
    root = values[order].abs().sqrt().to(D.dtype)
    half = 0.5**0.5
    F = torch.cat(
        (basis @ vectors[:, order].to(D.dtype) * root, (half * (u + 1))[:, None], (half * (u - 1))[:, None]), 1
    )
    signs = torch.cat((values[order].sign().to(D.dtype), D.new_tensor([1.0, -1.0])))
    error = float(left[rank - 1] / whole) ** 0.5 if rank else 0.0
    logger.info("leading factors of %d points: rank %d, residual %.3g", n, rank, error)
    return SurrogateFactors(F, signs, error)


def _orthogonal(V: Tensor, basis: Tensor) -> Tensor:
    """An orthonormal basis of the columns of V (N, k) beyond those of ``basis`` (N, r)."""
    for _ in range(2):
        V = torch.linalg.qr(V - basis @ (basis.T @ V))[0]
    return V


class SurrogateGradient(ExactGradient):
    """The gradient of leading factors, corrected to the exact one at the plan of `with_correction_at`, if any.

    Row and column terms are the exact ones. ``residual`` is the larger one of the factors, ``rest`` (N, K) what a cost
    lacks at that plan, whose ``entries`` are kept where it has few.
    """

    def __init__(
        self, exact: ExactGradient, p: Tensor, q: Tensor, generator: torch.Generator, residual: float = RESIDUAL
    ) -> None:
        self.exact, self.loss, self.sides = exact, exact.loss, exact.sides
        self.a, self.b = exact.a, exact.b
        self.rest: Tensor | None = None
        self.entries: SparseCoupling | None = None
        sides = (exact.source, p), (exact.target, q)
        found = [compute_surrogate_factors(dense(space), mass, generator, residual) for space, mass in sides]
        self.residual = max(each.residual for each in found)
        self.source, self.target = (
            FactoredDistances.of(each.F, each.signs, space.scale) for each, (space, _) in zip(found, sides, strict=True)
        )

    def means(self, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        return self.exact.means(p, q)

    def __call__(self, coupling: Coupling, p: Tensor, q: Tensor | None = None) -> FactoredCost:
        cost = super().__call__(coupling, p, q)
        return cost if self.rest is None else replace(cost, extra=self.rest)

    def to(self, dtype: torch.dtype, exact: ExactGradient) -> SurrogateGradient:
        """The factors' gradient in another dtype, uncorrected, that leads to ``exact``."""
        other = object.__new__(SurrogateGradient)
        other.exact, other.loss, other.sides, other.a, other.b = exact, exact.loss, exact.sides, exact.a, exact.b
        other.source, other.target = (space.to(exact.a.device, dtype) for space in (self.source, self.target))
        other.rest, other.entries, other.residual = None, None, self.residual
        return other

    def with_correction_at(self, coupling: DenseCoupling, p: Tensor, q: Tensor | None = None) -> SurrogateGradient:
        """The same, corrected at this plan."""
        other = self.to(p.dtype, self.exact)
        cost, led = stored_cost(self.exact, coupling, p, q), other(coupling, p, q)
        assert cost.extra is not None
        other.rest = cost.extra.addmm_(led.U, led.V.T, alpha=2.0).addmm_(cost.U, cost.V.T, alpha=-2.0)
        return other

    def with_correction_at_sparse(self, plan: SparseCoupling, p: Tensor) -> SurrogateGradient:
        """The same, corrected at a plan of few entries; O(N K min(N, K)), or O(N K n) from the correction at another
        plan, by the n rows in which they differ."""
        D, E = dense(self.exact.source), dense(self.exact.target)
        T, other = matrix_of(plan), self.to(p.dtype, self.exact)
        apart = None if self.entries is None or self.rest is None else _plan_difference(plan, self.entries)
        led = other(plan if apart is None else apart, p)
        if apart is not None and self.rest is not None:
            rows, part = _compress_rows(apart)
            rest = torch.addmm(self.rest, D[:, rows], torch.sparse.mm(part, E), alpha=-2.0)
        else:
            rest = (D @ (T @ E) if plan.shape[0] <= plan.shape[1] else (T.T @ D).T @ E).mul_(-2.0)
        other.rest, other.entries = rest.addmm_(led.U, led.V.T, alpha=2.0), plan
        return other


def _plan_difference(plan: SparseCoupling, other: SparseCoupling) -> SparseCoupling | None:
    """The difference of two plans; None where most rows differ."""
    apart = plan.matrix - other.matrix
    apart.data[np.abs(apart.data) <= ROUNDING * float(plan.mass.max())] = 0.0
    apart.eliminate_zeros()
    many = np.count_nonzero(np.diff(apart.indptr)) > plan.shape[0] // 2
    return None if many else SparseCoupling.of(apart, plan.device)


def _compress_rows(plan: SparseCoupling) -> tuple[Tensor, Tensor]:
    """The rows (n,) that have entries, and the plan on these (n, K), as a sparse tensor."""
    rows = torch.nonzero(plan.first.diff())[:, 0]
    at, shape = torch.stack((torch.searchsorted(rows, plan.row), plan.column)), (len(rows), plan.shape[1])
    return rows, torch.sparse_coo_tensor(at, plan.mass, shape, check_invariants=False, is_coalesced=True)


def should_use_surrogate(exact: ExactGradient, work: float | None = None) -> bool:
    """Whether factors should lead: where both spaces are stored metrics, and their products take long, more than so
    many multiplications."""
    spaces = (exact.source, exact.target)
    if exact.loss is not SQUARE or not all(isinstance(s, PrecomputedDistances) and is_metric(s) for s in spaces):
        return False
    return products_are_slow(exact.source.size, exact.target.size, exact.a.device, work)


def products_are_slow(n: int, k: int, device: torch.device, work: float | None = None) -> bool:
    """Whether products of stored distances with a plan (n, k) take long."""
    return n * k * (n + k) > (DENSE_WORK.get(device.type, DENSE_WORK["cpu"]) if work is None else work)


def stored_cost(
    exact: ExactGradient, coupling: DenseCoupling, p: Tensor, q: Tensor | None = None, dtype: torch.dtype | None = None
) -> FactoredCost:
    """The exact cost with D_X T D_Y stored but for a rank of three, its products in ``dtype``; O(N K (N + K)).

    With distances centred by the plan's own marginals r, c of mass m, D_X = A + u 1^T + 1 u^T,
    D_Y = B + v 1^T + 1 v^T,

        D_X T D_Y = A T B + m u v^T + (A T v + (c . v) u) 1^T + 1 (B T^T u + (r . u) v + (u . T v) 1)^T,

    so that what is stored is small and float32 keeps its digits.
    """
    a, b = (exact.a, exact.b) if q is None else exact.means(p, q)
    D, E = dense(exact.source), dense(exact.target)
    dtype = D.dtype if dtype is None else dtype
    T, narrow = coupling.plan.to(D.dtype), coupling.plan.to(dtype)
    rows, columns = T.sum(1), T.sum(0)
    u, v = mean_terms(D, rows), mean_terms(E, columns)
    A, B = (_centre_matrix(matrix, means, dtype) for matrix, means in ((D, u), (E, v)))
    Tv, Tu = T @ v, u @ T
    row, column = (A @ Tv.to(dtype)).to(D.dtype) + (columns @ v) * u, (B @ Tu.to(dtype)).to(D.dtype) + (rows @ u) * v
    U, V = (
        torch.stack((u, row, torch.ones_like(u)), 1),
        torch.stack((rows.sum() * v, torch.ones_like(v), column + u @ Tv), 1),
    )
    return FactoredCost(a, b, U, V, (A @ narrow @ B).mul_(-2.0))


def mean_terms(D: Tensor, mass: Tensor) -> Tensor:
    """u (N,) for which D - u 1^T - 1 u^T is centred by masses (N,) of any sum."""
    m = mass / mass.sum()
    means = D @ m
    return means - (m @ means) / 2


def _centre_matrix(D: Tensor, u: Tensor, dtype: torch.dtype) -> Tensor:
    """D - u 1^T - 1 u^T (N, N) in another dtype, a block of rows at a time."""
    found = torch.empty(D.shape, dtype=dtype, device=D.device)
    room = torch.empty_like(D[:ROWS])
    for where in blocks(len(D), ROWS):
        found[where] = torch.sub(D[where], u[where, None], out=room[: where.stop - where.start]).sub_(u)
    return found


def matrix_of(plan: SparseCoupling) -> Tensor:
    """A plan of few entries as a sparse tensor (N, K)."""
    at = torch.stack((plan.row, plan.column))
    return torch.sparse_coo_tensor(at, plan.mass, plan.shape, check_invariants=False, is_coalesced=True)


class MatchingGradient:
    """The exact gradient of plans with few entries, as those without entropy are: one product instead of two.

    Of the difference of two plans only the rows count in which they differ, so near the end it takes nearly nothing.
    """

    def __init__(self, exact: ExactGradient) -> None:
        self.exact = exact

    @classmethod
    def of(cls, exact: ExactGradient) -> MatchingGradient | None:
        """None where a product takes less anyway, or is another: of factors, sparse or asymmetric matrices."""
        factors = any(space.factors() is not None for space in (exact.source, exact.target))
        return None if factors or exact.stores_product else cls(exact)

    def __call__(self, coupling: Coupling, p: Tensor, q: Tensor | None = None) -> FactoredCost:
        plan = coupling.to_dense().to(p.dtype)
        if int(plan.count_nonzero()) > FEW_ENTRIES * plan.numel():
            return self.exact(coupling, p, q)
        ends = (self.exact.a, self.exact.b) if q is None else self.means(p, q)
        return FactoredCost.from_product(*ends, self._product(plan))

    def means(self, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """The row (N,) and column (K,) terms of the cost of a plan with these marginals."""
        return self.exact.means(p, q)

    def change(self, vertex: SparseCoupling, plan: Tensor, cost: Tensor) -> Tensor:
        """C(S) - C(T) (N, K) of a plan S of few entries, from T and C(T): by the rows in which they differ, or by S."""
        found = self.cross(vertex, plan)
        if found is not None:
            return found
        found = dense(self.exact.source) @ (matrix_of(vertex) @ dense(self.exact.target))
        return found.mul_(-2.0).add_(self.exact.b).add_(self.exact.a[:, None]).sub_(cost)

    def cross(self, vertex: SparseCoupling, plan: Tensor) -> Tensor | None:
        """-2 D_X (S - T) D_Y (N, K) by the rows in which the plans differ; None where these are most."""
        row, column, mass = vertex.row, vertex.column, vertex.mass
        most = float(mass.max()) if len(mass) else 0.0
        negligible, rest = ROUNDING * most, (plan.sum(1) - vertex.marginal(1)).abs() > SUMS_ROUNDING * most
        apart = (plan[row, column] - mass).abs() > negligible
        rows = torch.unique(
            torch.cat((row[apart], torch.nonzero(rest)[:, 0]))
        )  # elsewhere entries of S are all that a row of T has, too
        if len(rows) > len(plan) // 2:
            return None
        part = vertex.rows(rows) - plan[rows]
        part[part.abs() <= negligible] = 0.0  # what rounding a plan onto its marginals left
        return self._times(rows, part).mul_(-2.0)

    def _product(self, T: Tensor) -> Tensor:
        """D_X T D_Y (N, K)."""
        rows = torch.nonzero((T != 0).any(1))[:, 0]
        return self._times(rows, T[rows])

    def _times(self, rows: Tensor, part: Tensor) -> Tensor:
        """D_X[:, rows] part D_Y (N, K)."""
        D, E = dense(self.exact.source), dense(self.exact.target)
        few = int(part.count_nonzero()) <= FEW_ENTRIES * D.shape[0] * E.shape[0]
        return D[:, rows] @ (torch.sparse.mm(part.to_sparse(), E) if few else part @ E)

"""The linearised quadratic part of a plan, exactly.

For marginals p and q of the plan T, the gradient of the quadratic part is 2 C
with

    C = (D_X o D_X) p 1^T + 1 ((D_Y o D_Y) q)^T - 2 D_X T D_Y,

whose last term needs one product of T with the factors of a space that has
them, D = F diag(s) F^T, so that the rank of C is the smaller of the two; where
neither has any, D_X T is stored. Where a space multiplies by itself, as a
sparse adjacency does, D_X T D_Y (N, K) is, and no matrix of distances. A plan
of few entries, as one without entropy is, takes one product of matrices instead
of two, and the difference of two plans only the rows in which they differ.

The value of asymmetric D, <(D_X o D_X) p, p> + <(D_Y o D_Y) q, q> - 2 <D_X T
D_Y^T, T>, is a quadratic form of T all the same, whose symmetric bilinear form
is C with the mean of D o D and its transpose, and with

    (D_X T D_Y^T + D_X^T T D_Y) / 2    in place of D_X T D_Y,

which is D_X T (D_Y + D_Y^T) / 2 where D_X alone is symmetric.

Between two sparse matrices, of plans with few entries, nothing of the size N K
is stored:

    W = (D_X T D_Y^T + D_X^T T D_Y) / 2,    <C(T), T> = a . p + b . q - 2 <W, T>,

with the mean squares a = (D_X o D_X) p and b = (D_Y o D_Y) q. Where T has a few
entries in each row, W has about as many as the products of the degrees of its
matches, and is zero everywhere else, so that C(T) is known at all pairs of
points by the entries of W, and linear problems over all plans are problems on
these.

Sources: G. Peyre, M. Cuturi, J. Solomon, "Gromov-Wasserstein averaging of
kernel and distance matrices", 2016; M. Scetbon, G. Peyre, M. Cuturi,
"Linear-time Gromov Wasserstein distances using low rank couplings and costs",
2022 (factored distances).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from torchgw.couplings.sparse import SparseCoupling
from torchgw.kernels.blocks import block_rows, blocks, points_at_once
from torchgw.kernels.sums import inner_product
from torchgw.linalg.sparse_entries import entry_rows, inner
from torchgw.losses import SQUARE, SeparableLoss, loss_factors
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.runtime.ranks import ALONE, Ranks
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.spaces import PrecomputedDistances
from torchgw.spaces.scale import without_scale
from torchgw.types import Array, Coupling, DistanceProvider, is_symmetric, multiplies

BLOCK_ROWS = 256
FEW_ENTRIES = 0.01  # share of a plan's, up to which a sparse product takes less
ROUNDING, SUMS_ROUNDING = 1e-15, 1e-12  # of the largest entry

Spaces: TypeAlias = tuple[DistanceProvider, DistanceProvider]
Factors: TypeAlias = tuple[Tensor, Tensor]
"""F (N, r) and signs s (r,) of distances F diag(s) F^T."""


class ExactGradient:
    """The gradient itself, for couplings with marginals p (N,) and q (K,)
    unless it is told others.

    Spaces that have neither factors nor products of their own are stored as
    matrices, so construction may take all graph searches. Losses other than the
    square need the matrices of both spaces.
    """

    def __init__(
        self, source: DistanceProvider, target: DistanceProvider, p: Tensor, q: Tensor, loss: SeparableLoss = SQUARE
    ) -> None:
        self.loss, self.sides = loss, (source, target)
        if loss is SQUARE:
            self.source, self.target = (ensure_products(space, p.device) for space in (source, target))
        else:
            self.sides = x, y = PrecomputedDistances.of(source, p.device), PrecomputedDistances.of(target, p.device)
            h1, h2 = loss_factors(loss, x.matrix, y.matrix)
            self.source = PrecomputedDistances.stored_matrix(h1, x.scale, x.symmetric)
            self.target = PrecomputedDistances.stored_matrix(h2, y.scale, y.symmetric)
        self.a, self.b = self.means(p, q)

    @property
    def without_scale(self) -> ExactGradient:
        """The same of spaces with their scaled distances alone, see
        `torchgw.spaces.scale.without_scale`."""
        made, known = copy(self), vars(self)
        spaces = {name: without_scale(known[name]) for name in ("source", "target")}
        vars(made).update(spaces, sides=tuple(map(without_scale, self.sides)))
        return made

    def means(self, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """The row (N,) and column (K,) terms of the cost of a plan with these
        marginals."""
        if self.loss is SQUARE:
            return mean_squares(without_scale(self.source), p), mean_squares(without_scale(self.target), q)
        x, y = self.sides
        f1, f2 = self.loss.f1(dense(x)), self.loss.f2(dense(y))
        return mean_of(f1, p, is_symmetric(x)), mean_of(f2, q, is_symmetric(y))

    def __call__(self, coupling: Coupling, p: Tensor, q: Tensor | None = None) -> FactoredCost:
        gradient = self.without_scale if p.is_cuda else self
        return gradient.cost(coupling, p, q)

    @as_cuda_graph()
    def cost(self, coupling: Coupling, p: Tensor, q: Tensor | None = None) -> FactoredCost:
        """What the gradient is called for."""
        a, b = (self.a, self.b) if q is None else self.means(p, q)
        left, right = self.source.factors(), self.target.factors()
        if left is not None and right is not None:
            return assemble_factored_cost(left, right, left[0].T @ coupling.apply(right[0], 1), a, b)
        if left is not None:
            F, s = left
            U, V = F * s, symmetric_product(self.target, coupling.apply(F, 0))
        elif right is not None:
            G, t = right
            U, V = symmetric_product(self.source, coupling.apply(G, 1)), G * t
        elif isinstance(coupling, SparseCoupling) and self.has_matrices:
            at, mass = torch.stack((coupling.row, coupling.column)), coupling.mass.to(p.dtype)
            few = torch.sparse_coo_tensor(at, mass, coupling.shape, check_invariants=False, is_coalesced=True)
            return FactoredCost.from_product(a, b, dense(self.source) @ (few @ dense(self.target)))
        else:
            T, D, E = coupling.to_dense().to(p.dtype), self.source, self.target
            if not (is_symmetric(D) or is_symmetric(E)):
                return FactoredCost.from_product(a, b, directed_product(partial(product, D), partial(product, E), T))
            if self._stores_product:
                return FactoredCost.from_product(a, b, symmetric_product(D, symmetric_product(E, T.T).T))
            # The cheaper order of D_X T D_Y: the product that is left has the
            # smaller inner dimension.
            U, V = (dense(D), dense(E) @ T.T) if T.shape[0] <= T.shape[1] else (dense(D) @ T, dense(E))
        return FactoredCost(a, b, U, V)

    @property
    def _stores_product(self) -> bool:
        """Whether D_X T D_Y is stored, of spaces without factors."""
        return any(multiplies(space) or not is_symmetric(space) for space in (self.source, self.target))

    @property
    def has_matrices(self) -> bool:
        """Whether both spaces are symmetric matrices on the CPU, of which plans
        of few entries need less."""
        factors = any(space.factors() is not None for space in (self.source, self.target))
        return not (factors or self._stores_product or self.a.is_cuda)

    def change(self, vertex: SparseCoupling, plan: Tensor, cost: Tensor) -> Tensor:
        """C(S) - C(T) (N, K) of a plan S of few entries, from T and C(T): by
        the rows in which they differ, or by S."""
        found = self.change_by_rows(vertex, plan)
        return self(vertex, self.a).rows(slice(None)).sub_(cost) if found is None else found

    def change_by_rows(self, vertex: SparseCoupling, plan: Tensor) -> Tensor | None:
        """-2 D_X (S - T) D_Y (N, K) by the rows in which the plans differ; None
        where these are most, and but for matrices."""
        if not self.has_matrices:
            return None
        row, column, mass = vertex.row, vertex.column, vertex.mass
        most = float(mass.max()) if len(mass) else 0.0
        rest = (plan.sum(1) - vertex.marginal(1)).abs() > SUMS_ROUNDING * most
        apart = (plan[row, column] - mass).abs() > ROUNDING * most
        # Elsewhere entries of S are all that a row of T has, too.
        rows = torch.unique(torch.cat((row[apart], torch.nonzero(rest)[:, 0])))
        if len(rows) > len(plan) // 2:
            return None
        part, E = vertex.rows(rows) - plan[rows], dense(self.target)
        part[part.abs() <= ROUNDING * most] = 0.0  # what rounding a plan onto its marginals left
        few = int(part.count_nonzero()) <= FEW_ENTRIES * plan.numel()
        right = torch.sparse.mm(part.to_sparse(), E) if few else part @ E
        return (dense(self.source)[:, rows] @ right).mul_(-2.0)

    def cost_from_factored_plan(self, product: Tensor, p: Tensor, q: Tensor) -> FactoredCost:
        """The cost from F^T T G, where both spaces have factors F and G, and
        from the marginals of T."""
        left, right = self.source.factors(), self.target.factors()
        assert left is not None
        assert right is not None
        return assemble_factored_cost(left, right, product, *self.means(p, q))

    def cost_between_points(self, rows: Tensor, columns: Tensor, T: Tensor) -> FactoredCost:
        """The cost of a plan T (L, L') that lives on a few points of each
        space, given by their indices, up to row and column terms: those are of
        the masses that were asked for."""
        left, right = self.source.factors(), self.target.factors()
        if left is not None and right is not None:
            (F, s), (G, t) = left, right
            return FactoredCost(self.a, self.b, F @ (s[:, None] * (F[rows].T @ T @ G[columns]) * t), G)
        return FactoredCost(self.a, self.b, self.source.rows(rows).T @ T, self.target.rows(columns).T)


class PairLoss(NamedTuple):
    """L(D_X[i,i'], D_Y[j,j']) = f1[i,i'] + f2[j,j'] - 2 h1[i,i'] h2[j,j'] for
    stored distances.

    f1, h1 : (N, N).
    f2, h2 : (K, K). Their first sizes may be of other points than those of the
        plan.
    symmetric : whether all of them are, of the points of the plan.
    """

    f1: Tensor
    f2: Tensor
    h1: Tensor
    h2: Tensor
    symmetric: bool = True

    @classmethod
    def of(cls, loss: SeparableLoss, D: Tensor, E: Tensor) -> PairLoss:
        """Of scaled distances D, E."""
        return cls(loss.f1(D), loss.f2(E), *loss_factors(loss, D, E))

    def cost(self, plan: Tensor, rows: Tensor, columns: Tensor) -> FactoredCost:
        """C(T) of plans (..., N, K) with these marginals (..., N), (..., K); of
        one plan where they are asymmetric."""
        if self.symmetric:
            return FactoredCost(rows @ self.f1.mT, columns @ self.f2.mT, self.h1 @ plan, self.h2)
        cross = directed_product(partial(matrix_product, self.h1), partial(matrix_product, self.h2), plan)
        return FactoredCost.from_product(mean_of(self.f1, rows, False), mean_of(self.f2, columns, False), cross)


def assemble_factored_cost(left: Factors, right: Factors, product: Tensor, a: Tensor, b: Tensor) -> FactoredCost:
    """C(T) between factored spaces from F^T T G (r, r') and its row (N,) and
    column (K,) terms, at the smaller rank."""
    (F, s), (G, t) = left, right
    core = s[:, None] * product.to(F.dtype) * t
    U, V = (F, G @ core.T) if F.shape[1] <= G.shape[1] else (F @ core, G)
    return FactoredCost(a, b, U, V)


@as_cuda_graph()
def factored_quadratic(
    product: Tensor, left: Factors, right: Factors, p: Tensor, q: Tensor, ranks: Ranks = ALONE
) -> Tensor:
    """<C(T), T> between factored spaces from M = F^T T G (r, r') and the
    marginals p (N,), q (K,) of T,

    sum s_k s_l (F^T diag(p) F)_kl^2 + sum t_k t_l (G^T diag(q) G)_kl^2 - 2 sum
    s_k t_l M_kl^2, in their dtype. The factors are the ranks' shares.
    """
    (F, s), (G, t) = left, right
    cross: Tensor = (s.to(p)[:, None] * product.square() * t.to(q)).sum()
    return factored_mean_square(F, s, p, ranks) + factored_mean_square(G, t, q, ranks) - 2 * cross


def dense(space: DistanceProvider) -> Tensor:
    """The stored matrix of a space that has one."""
    assert isinstance(space, PrecomputedDistances)
    return space.matrix


def ensure_products(space: DistanceProvider, device: torch.device) -> DistanceProvider:
    """The space where it has factors or products of its own, else its distances
    stored as a matrix."""
    by_itself = space.factors() is not None or multiplies(space)
    return space if by_itself else PrecomputedDistances.of(space, device)


def product(space: DistanceProvider, V: Tensor, axis: int = 1) -> Tensor:
    """D V (N, d), for axis 0 D^T V, by the factors, the space itself, or the
    matrix, which is stored."""
    factors = space.factors()
    if factors is not None:
        F, signs = (part.to(V.dtype) for part in factors)
        return (F * signs) @ (F.T @ V)
    if multiplies(space):
        found: Tensor = space.apply(V, axis)  # type: ignore[attr-defined]
        return found
    D = PrecomputedDistances.of(space, V.device).matrix
    return matrix_product(D.to(V.dtype), V, axis)


def matrix_product(D: Tensor, V: Tensor, axis: int) -> Tensor:
    """D V for axis 1, D^T V for axis 0."""
    return (D if axis == 1 else D.mT) @ V


def symmetric_product(space: DistanceProvider, V: Tensor) -> Tensor:
    """(D + D^T) V / 2 (N, d)."""
    found = product(space, V)
    return found if is_symmetric(space) else (found + product(space, V, 0)) / 2


def directed_product(
    source: Callable[[Tensor, int], Tensor], target: Callable[[Tensor, int], Tensor], T: Tensor
) -> Tensor:
    """(D_X T D_Y^T + D_X^T T D_Y) / 2 (..., N, K) from the products with each
    space, over both axes."""
    one, other = (source(target(T.mT, axis).mT, axis) for axis in (1, 0))
    return (one + other) / 2


@as_cuda_graph()
def mean_squares(space: DistanceProvider, mass: Tensor) -> Tensor:
    """(D o D) mass (N,), the squared eccentricities; of asymmetric D their mean
    over both directions."""
    factors = space.factors()
    if factors is not None:
        F, signs = (part.to(mass.dtype) for part in factors)
        return factored_mean_squares(F, signs, mass)
    if hasattr(space, "squares"):
        return symmetric_product(space.squares(), mass[:, None])[:, 0]
    n, every = space.size, torch.arange(space.size, device=mass.device)
    stored = space.matrix if isinstance(space, PrecomputedDistances) else None
    out = mass.new_zeros(n)
    for where in blocks(
        n, points_at_once(n, mass.device, BLOCK_ROWS) if stored is None else block_rows(n, n, mass.device)
    ):
        squares = (space.rows(every[where]) if stored is None else stored[where]).to(mass.dtype).square()
        out[where] += squares @ mass
        if not is_symmetric(space):
            out += mass[where] @ squares
    return out if is_symmetric(space) else out / 2


def mean_of(f: Tensor, mass: Tensor, symmetric: bool) -> Tensor:
    """f mass (N,), of asymmetric f (N, N) the mean with f^T mass."""
    found = f @ mass
    return found if symmetric else (found + f.T @ mass) / 2


@as_cuda_graph()
def factored_mean_squares(F: Tensor, signs: Tensor, mass: Tensor, ranks: Ranks = ALONE) -> Tensor:
    """(D o D) mass (N,) for D = F diag(signs) F^T, in the dtype of F, the
    ranks' shares; O(N r^2)."""
    signed = F * signs
    return ranks.all_gather(((signed @ inner_product(F, F, mass, ranks).to(F.dtype)) * signed).sum(1), len(mass))


@as_cuda_graph()
def factored_mean_square(F: Tensor, signs: Tensor, mass: Tensor, ranks: Ranks = ALONE) -> Tensor:
    """<mass, (D o D) mass> for D = F diag(signs) F^T, in the dtype of the
    masses; O(N r^2), memory of a block."""
    signs = signs.to(mass.dtype)
    return (signs[:, None] * inner_product(F, F, mass, ranks).square() * signs).sum()


class SparseObjective:
    """Two matrices, with what the marginals decide: no `ExactGradient`, whose
    costs have all N K entries or factors, neither of which fits here.

    Parameters
    ----------
    X, Y : D_X (N, N), D_Y (K, K), SciPy CSR arrays, float64.
    p, q : masses (N,), (K,), the marginals of all plans.
    symmetric : whether both matrices are.

    Attributes
    ----------
    a, b : mean squares of rows and columns (N,), (K,), in units of cost.
    """

    def __init__(self, X: Any, Y: Any, p: Array, q: Array, symmetric: bool) -> None:
        self.X, self.Y, self.symmetric = X, Y, symmetric
        self.p, self.q = p, q
        self.a, self.b = (((D**2) @ mass + (D**2).T @ mass) / 2 for D, mass in ((X, p), (Y, q)))

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return len(self.p), len(self.q)

    @property
    def constant(self) -> float:
        """a . p + b . q."""
        return float(self.a @ self.p + self.b @ self.q)

    def cross(self, T: Any) -> Any:
        """W (N, K) of a plan, CSR."""
        if self.symmetric:
            return (self.X @ T @ self.Y).tocsr()
        return ((self.X @ T @ self.Y.T + self.X.T @ T @ self.Y) / 2).tocsr()

    def value(self, W: Any, T: Any) -> float:
        """<C(T), T> of a plan on the marginals, with its W."""
        return self.constant - 2 * inner(W, T)

    def similarity(self, T: Any) -> Any:
        """2 W_ij / (a_i + b_j), CSR: 1 where T carries all neighbours of i to
        those of j."""
        W = self.cross(T)
        W.data *= 2 / (self.a[entry_rows(W)] + self.b[W.indices]).clip(min=1e-300)
        return W

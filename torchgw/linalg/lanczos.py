"""Lanczos: a Krylov space of a self-adjoint operator A, and what A does in it.

A space grows from a start vector by what A makes of its last vectors. With an orthonormal basis Q and its duals M Q in
the operator's inner product, every new vector w = A q is orthogonalised twice against all those before,

    w = Q c + r,    c = (M Q)^T w,    b = |r|,    the next q = r / b,

which leaves nothing for a third time. So A Q = Q' C with the coordinates C of all products; the part of C inside the
space is symmetric, and tridiagonal, T = tridiag(b, a, b), where one vector is added at a time.

*Eigenpairs.* Ritz pairs, A y ~ mu y with y = Q s and T s = mu s, approximate the ends of the spectrum; |A y - mu y| is
read off the last coordinates and bounds the distance from mu to the nearest eigenvalue. Where the space would grow
beyond what may be stored, it is restarted from the Ritz vectors that are wanted and the last block, which loses nothing
of what they have converged to. A block finds eigenvalues of its multiplicity.

Sources: C. Lanczos, 1950; K. Wu, H. Simon, "Thick-restart Lanczos method for large symmetric eigenvalue problems",
2000; B. Parlett, "The symmetric eigenvalue problem", 1998, chapters 4, 11 and 13.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchgw.linalg.operators import Matrix, Operator

BREAKDOWN_POWER = 0.75  # of the precision: the share of a product below which what is left of it is rounding
LOST = 100.0  # times the rounding of a squared length, below which it is unknown
SEED = 20
TRIES = 3  # random starts, before a space is taken to have no directions
TOLERANCE = 1e-8  # residual over the largest absolute value of the spectrum
MOST_STEPS = 300  # blocks
STORED_BYTES = 2**30  # of a basis and its duals
FIRST_CHECK, CHECKED = 4, 1.15  # steps before the first look at the Ritz values, and growth between two
EXTRA = 4  # Ritz vectors that are kept beside those that are wanted, on each side
SLOW, CONVERGED, FEWEST = 0.3, 1e-3, 8  # values that are slow, their errors, and steps at least


class KrylovBasis:
    """Orthonormal vectors (M, count, N) of M spaces and their duals, in an operator's inner product.

    A direction in which a new vector has no more than rounding is none: its vector is zero.
    """

    def __init__(self, operator: Operator, most: int, n_spaces: int = 1) -> None:
        self.operator, self.count = operator, 0
        self._vectors = torch.empty(n_spaces, most, operator.size, dtype=operator.dtype, device=operator.device)
        self._duals = self._vectors if isinstance(operator, Matrix) else torch.empty_like(self._vectors)
        self._scale = self._vectors.new_zeros(n_spaces)  # the largest squared length of a product

    @property
    def vectors(self) -> Tensor:
        return self._vectors[:, : self.count]

    def image(self, where: slice) -> Tensor:
        """A q (N, ...) of vectors of the first space, or of one vector of each space where ``where`` has one."""
        V, U = (side[:, where].flatten(0, 1).T for side in (self._vectors, self._duals))
        return self.operator.image(V, U)

    def add(self, W: Tensor, is_product: bool = True) -> Tensor:
        """Add what W (M, N) has outside the spaces; its coordinates (M, count), the last one its length there."""
        vectors, duals = self.vectors, self._duals[:, : self.count]
        inside = inner_products(duals, W)
        rest = (W - combine_vectors(vectors, inside)).T
        least = LOST * self.operator.squared_norm_floor(rest)
        x, u = (side.T for side in self.operator.metric(rest))
        more = inner_products(duals, x)
        x = x - combine_vectors(vectors, more)
        u = x if self._duals is self._vectors else u - combine_vectors(duals, more)
        square, inside = (x * u).sum(1).clamp_min(0.0), inside + more
        scale = torch.maximum(self._scale, inside.square().sum(1) + square)
        self._scale = scale if is_product else self._scale
        least = torch.maximum(least, torch.finfo(W.dtype).eps ** (2 * BREAKDOWN_POWER) * scale)
        length = torch.where(square > least, square, 0.0).sqrt()
        inverse = torch.where(length > 0, 1 / length, 0.0)[:, None]
        self._vectors[:, self.count], self._duals[:, self.count] = x * inverse, u * inverse
        self.count += 1
        return torch.cat((inside, length[:, None]), 1)

    def extend(self, X: Tensor, is_product: bool = True) -> Tensor:
        """Add a block X (n, b) to the only space, without vectors that are zero; its coordinates (count, b)."""
        found = X.new_zeros(self.count + X.shape[1], X.shape[1])
        for column, x in enumerate(X.T):
            inside = self.add(x[None], is_product)[0]
            found[: self.count, column] = inside
            self.count -= int(inside[-1] == 0)  # one wait
        return found[: self.count]

    def draw(self, count: int, generator: torch.Generator) -> int:
        """Extend the only space by random vectors; how many that are."""
        before, n = self.count, self.operator.size
        for _ in range(TRIES if n > 0 else 0):
            X = torch.randn(n, min(count, n), generator=generator, dtype=torch.float64)
            self.extend(X.to(self._vectors), is_product=False)
            if self.count > before:
                break
        return self.count - before

    def restart(self, weights: Tensor, width: int) -> None:
        """Keep combinations (m, d) of the only space's vectors but the last ``width``, and these."""
        ended = self.count - width
        for side in (self._vectors[0], self._duals[0])[: 1 + (self._duals is not self._vectors)]:
            kept = torch.cat((weights.T @ side[:ended], side[ended : self.count]))
            side[: len(kept)] = kept
        self.count = weights.shape[1] + width


class ExtremeEigenpairs(NamedTuple):
    """Ends of a spectrum.

    values : (k,), ascending: first the smallest, then the largest; on the CPU.
    vectors : (n, k), orthonormal in the operator's inner product.
    errors : (k,), likewise, bounds on the distance from each value to an eigenvalue.
    n_smallest : how many of them are the smallest.
    n_products : with the operator, vectors counted.
    converged : whether all errors are within the tolerance.
    """

    values: Tensor
    vectors: Tensor
    errors: Tensor
    n_smallest: int
    n_products: int
    converged: bool


def lanczos(
    operator: Operator,
    smallest: int = 1,
    largest: int = 0,
    *,
    block: int = 1,
    tol: float = TOLERANCE,
    max_steps: int = MOST_STEPS,
    stored_bytes: int = STORED_BYTES,
    enough: Callable[[Tensor, Tensor], bool] | None = None,
) -> ExtremeEigenpairs:
    """The smallest and the largest eigenpairs, fewer where the operator has fewer; O(n m) memory for a basis of m.

    Parameters
    ----------
    smallest, largest : how many of each.
    block : vectors at a time, in [1, n].
    tol : error over the largest absolute Ritz value.
    max_steps : most products with a block.
    stored_bytes : of the basis, beyond which it is restarted.
    enough : of the Ritz values (m,), ascending, and their errors: whether to end before ``tol`` is reached.
    """
    n, wanted = operator.size, min(smallest + largest, operator.size)
    most = max(
        int(stored_bytes // max(2 * n * torch.finfo(operator.dtype).bits // 8, 1)),
        least_basis_size(smallest, largest, block),
    )
    most = min(most, (max_steps + 1) * block, n + block)
    space, generator = KrylovBasis(operator, most), torch.Generator().manual_seed(SEED)
    C = space.vectors.new_zeros(most, most)
    n_products, step, check, width = 0, 0, min(FIRST_CHECK, wanted), space.draw(block, generator)
    if width == 0:
        none = C.new_empty(0)
        return ExtremeEigenpairs(none, C.new_empty(n, 0), none, 0, 0, True)
    while True:
        size, n_products, step = space.count, n_products + width, step + 1
        found = space.extend(space.image(slice(size - width, size)))
        C[: len(found), size - width : size] = found
        width = space.count - size
        full = space.count + block > most
        if step < check and step < max_steps and width > 0 and not full:
            continue
        check = max(step + 1, int(CHECKED * step))
        held = C[: space.count, :size].cpu()  # one wait
        values, weights = torch.linalg.eigh((held[:size] + held[:size].T) / 2)
        errors = torch.linalg.vector_norm(held[size:] @ weights, dim=0)
        if width == 0 and size < wanted:  # an eigenvalue of more vectors than a block has
            width = space.draw(block, generator)
        ends = _end_positions(size, smallest, largest)
        settled = size >= wanted and bool((errors[ends] <= tol * values.abs().max()).all())
        if settled or width == 0 or step >= max_steps or (enough is not None and enough(values, errors)):
            break
        if full and size < n:
            some = _end_positions(size, smallest + EXTRA * (smallest > 0), largest + EXTRA * (largest > 0))
            space.restart(weights[:, some].to(C), width)
            C = torch.zeros_like(C)
            kept = torch.cat((torch.diag(values[some]), held[size:] @ weights[:, some]))
            C[: len(kept), : len(some)] = kept
    vectors = space.vectors[0, :size].T @ weights[:, ends].to(C)
    converged = settled or width == 0
    return ExtremeEigenpairs(values[ends], vectors, errors[ends], min(smallest, len(ends)), n_products, converged)


def least_basis_size(smallest: int, largest: int, block: int) -> int:
    """Vectors, each with its dual, that `lanczos` stores at least for so many eigenpairs."""
    return smallest + largest + EXTRA * ((smallest > 0) + (largest > 0)) + 2 * block


def _end_positions(count: int, smallest: int, largest: int) -> Tensor:
    """Positions of the smallest and the largest of values in ascending order; none twice."""
    first = min(smallest, count)
    return torch.cat((torch.arange(first), torch.arange(max(count - largest, first), count)))


class Spectrum(NamedTuple):
    """The slow end of the spectrum of a symmetric positive operator whose eigenvalues are of the order of one.

    Attributes
    ----------
    values : Ritz values below 0.3 that have converged (d,), ascending.
    vectors : their Ritz vectors (n, d).
    smallest, largest : the extreme Ritz values.
    """

    values: Tensor
    vectors: Tensor
    smallest: float
    largest: float


def find_slow_eigenpairs(operator: Operator, n_steps: int) -> Spectrum:
    """The eigenpairs of an operator that iterations leave last, and its least and largest Ritz values.

    Steps are at most ``n_steps``, memory O(n n_steps).
    """

    def is_enough(values: Tensor, errors: Tensor) -> bool:
        slow = values < SLOW
        slow[0] = True
        return len(values) >= FEWEST and bool((errors <= CONVERGED * values)[slow].all())

    found = lanczos(operator, n_steps, max_steps=n_steps, enough=is_enough)
    slow = (found.values < SLOW) & (found.errors < CONVERGED)
    ends = (1.0, 1.0) if len(found.values) == 0 else (float(found.values[0]), float(found.values[-1]))
    return Spectrum(found.values[slow].to(found.vectors), found.vectors[:, slow.to(found.vectors.device)], *ends)


class Krylov(NamedTuple):
    """What m steps found from M start vectors of length N, each in a space of its own.

    Attributes
    ----------
    basis : Q^T, (M, m, N).
    alphas, betas : a (M, m) and b (M, m - 1). Where a beta is zero, the Krylov space is invariant, and all that follows
        is zero.
    residual : (M,), the next beta, which has no derivative.
    norm : lengths of the start vectors (M,).
    """

    basis: Tensor
    alphas: Tensor
    betas: Tensor
    residual: Tensor
    norm: Tensor


def recurrence(
    operator: Operator, V: Tensor, n_steps: int, stop: Callable[[Tensor, Tensor], bool] | None = None
) -> Krylov:
    """The recurrence from each column of V (N, M); a zero column breaks down at once.

    ``stop(alphas, betas)``, both (M, k), may end it after any step k.
    """
    space = KrylovBasis(operator, n_steps + 1, V.shape[1])
    norm = space.add(V.T, is_product=False)[:, 0]
    steps = V.new_zeros(2, V.shape[1], n_steps)
    for k in range(n_steps):
        steps[..., k] = space.add(space.image(slice(k, k + 1)).T)[:, -2:].T
        alphas, betas = steps[..., : k + 1]
        if stop is not None and stop(alphas, betas):
            break
    return Krylov(space.vectors[:, :-1], alphas, betas[:, :-1], betas[:, -1], norm)


def ritz_pairs(alphas: Tensor, betas: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (M, m) and eigenvectors (M, m, m) of the tridiagonal matrices.

    After a breakdown the diagonal goes on with its first entry: values that f is defined for and that nothing reads.
    """
    alive = torch.cat((torch.ones_like(alphas[:, :1]), (betas > 0).to(alphas.dtype).cumprod(1)), 1) > 0
    T = torch.diag_embed(torch.where(alive, alphas, alphas[:, :1])) + torch.diag_embed(betas, -1)
    values, vectors = torch.linalg.eigh(T)  # of the lower triangle
    return values, vectors


def inner_products(basis: Tensor, w: Tensor) -> Tensor:
    """Inner products (M, k) of basis vectors (M, k, N) with vectors w (M, N)."""
    return torch.bmm(w[:, None], basis.mT)[:, 0]


def combine_vectors(basis: Tensor, coefficients: Tensor) -> Tensor:
    """Linear combinations (M, N) of basis vectors (M, k, N) with coefficients (M, k)."""
    return torch.bmm(coefficients[:, None], basis)[:, 0]

"""The ends of the spectrum of a self-adjoint operator, with bounds.

*Lanczos.* A block of vectors X at a time, orthonormal in the operator's inner product: the space of all blocks so far
gets A X, whose part outside it is the next block. Every vector is orthogonalised twice against all before, so that the
Ritz pairs of the space, A y ~ mu y, have residuals in the last block alone; |A y - mu y| bounds the distance from mu to
the nearest eigenvalue. Where the space would grow beyond what may be stored, it is restarted from the Ritz vectors that
are wanted and the last block, which loses nothing of what they have converged to. A block finds eigenvalues of its
multiplicity.

Sources: C. Lanczos, 1950; K. Wu, H. Simon, "Thick-restart Lanczos method for large symmetric eigenvalue problems",
2000; B. Parlett, "The symmetric eigenvalue problem", 1998, chapters 4, 11 and 13.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchgw.linalg.lanczos import SEED
from torchgw.linalg.operators import Operator

TOLERANCE = 1e-8  # residual over the largest absolute value of the spectrum
MOST_STEPS = 300  # blocks
STORED_BYTES = 2**30  # of a basis and its duals
FIRST_CHECK = 4  # steps before the first look at the Ritz values
CHECKED = 1.15  # steps between two looks at the Ritz values, growing
EXTRA = 4  # Ritz vectors that are kept beside those that are wanted, on each side
NOTHING = 1e-10  # share of a product's length below which what is left of it is rounding
LITTLE, PASSES = 0.1, 4  # share of a vector that a pass took off, up to which none is left to take; passes at most
LOST = 100.0  # times the rounding of a squared length, below which it is unknown
TRIES = 3  # random starts, before a space is taken to have no directions


class ExtremeEigenpairs(NamedTuple):
    """Ends of a spectrum.

    values : (k,), ascending: first the smallest, then the largest; on the CPU from `lanczos`.
    vectors : (n, k), orthonormal in the operator's inner product.
    duals : (n, k), what its metric makes of them.
    errors : (k,), likewise, bounds on the distance from each value to an eigenvalue.
    n_smallest : how many of them are the smallest.
    n_products : with the operator, vectors counted.
    converged : whether all errors are within the tolerance.
    """

    values: Tensor
    vectors: Tensor
    duals: Tensor
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
    enough: Callable[[Tensor], bool] | None = None,
) -> ExtremeEigenpairs:
    """The smallest and the largest eigenpairs, fewer where the operator has fewer; O(n m) memory for a basis of m.

    Parameters
    ----------
    smallest, largest : how many of each.
    block : vectors at a time, in [1, n].
    tol : error over the largest absolute Ritz value.
    max_steps : most products with a block.
    stored_bytes : of the basis, beyond which it is restarted.
    enough : of the Ritz values (m,), ascending: whether to end before ``tol`` is reached.
    """
    n, wanted = operator.size, min(smallest + largest, operator.size)
    most = max(int(stored_bytes // _bytes_per_vector(operator)), least_basis_size(smallest, largest, block))
    most = min(most, (max_steps + 1) * block, n + block)
    space, generator = OrthonormalBasis(operator, most), torch.Generator().manual_seed(SEED)
    T = space.vectors.new_empty(0, 0)
    width, _ = space.add(_draw_vectors(operator, block, generator))
    for _ in range(TRIES):
        width = width or space.add(_draw_vectors(operator, block, generator))[0]
    n_products, step, check = 0, 0, min(FIRST_CHECK, wanted)
    if width == 0:
        nothing, none = space.vectors.T, space.vectors.new_empty(0)
        return ExtremeEigenpairs(none, nothing, nothing, none, 0, 0, True)
    while True:
        V, U = space.select_last_with_duals(width)
        image, n_products, step = operator.image(V, U), n_products + width, step + 1
        T, size, before = _extend_matrix(T, space.duals @ image), space.count, width
        width, beside = space.add(image)
        full = size + width + block > most
        if step < check and step < max_steps and width > 0 and not full:
            continue
        check = max(step + 1, int(CHECKED * step))
        held = torch.cat((T, torch.nn.functional.pad(beside, (size - before, 0)))).cpu()  # one wait
        values, weights = torch.linalg.eigh(held[:size])
        errors = torch.linalg.vector_norm(held[size:] @ weights, dim=0)
        if width == 0 and size < wanted:  # an eigenvalue of more vectors than a block has
            width, _ = space.add(_draw_vectors(operator, block, generator))
        ends = _end_positions(size, smallest, largest)
        settled = size >= wanted and bool((errors[ends] <= tol * values.abs().max()).all())
        if settled or width == 0 or step >= max_steps or (enough is not None and enough(values)):
            break
        if full and size < n:
            some = _end_positions(size, smallest + EXTRA * (smallest > 0), largest + EXTRA * (largest > 0))
            space.restart(weights[:, some].to(T), width)
            T = torch.diag(values[some]).to(T)
    vectors, duals = (side[:size].T @ weights[:, ends].to(side) for side in (space.vectors, space.duals))
    converged = settled or width == 0
    return ExtremeEigenpairs(
        values[ends], vectors, duals, errors[ends], min(smallest, len(ends)), n_products, converged
    )


def least_basis_size(smallest: int, largest: int, block: int) -> int:
    """Vectors, each with its dual, that `lanczos` stores at least for so many eigenpairs."""
    return smallest + largest + EXTRA * ((smallest > 0) + (largest > 0)) + 2 * block


def _bytes_per_vector(operator: Operator) -> int:
    """Of a vector and its dual."""
    return 2 * operator.size * torch.finfo(operator.dtype).bits // 8


def _end_positions(count: int, smallest: int, largest: int) -> Tensor:
    """Positions of the smallest and the largest of values in ascending order; none twice."""
    first = min(smallest, count)
    return torch.cat((torch.arange(first), torch.arange(max(count - largest, first), count)))


def _extend_matrix(T: Tensor, new: Tensor) -> Tensor:
    """A symmetric matrix (m, m) with more rows and columns (m + b, b)."""
    m, b = len(T), new.shape[1]
    found = T.new_zeros(m + b, m + b)
    found[:m, :m] = T
    found[:, m:], found[m:, :] = new, new.T
    found[m:, m:] = (new[m:] + new[m:].T) / 2
    return found


def _draw_vectors(operator: Operator, count: int, generator: torch.Generator) -> Tensor:
    """Random vectors (n, count)."""
    found = torch.randn(operator.size, min(count, operator.size), generator=generator, dtype=torch.float64)
    return found.to(operator.device, operator.dtype)


class OrthonormalBasis:
    """Vectors that are orthonormal in an operator's inner product, with their duals, one in each row; up to ``most``.

    Directions in which the inner product is no more than its rounding are none: what lies along them grows unseen.
    """

    def __init__(self, operator: Operator, most: int) -> None:
        self.operator, self.count = operator, 0
        self._vectors, self._duals = (
            torch.empty(most, operator.size, dtype=operator.dtype, device=operator.device) for _ in range(2)
        )

    @property
    def vectors(self) -> Tensor:
        return self._vectors[: self.count]

    @property
    def duals(self) -> Tensor:
        return self._duals[: self.count]

    def select_last_with_duals(self, width: int) -> tuple[Tensor, Tensor]:
        """The last ones, and their duals, (n, width)."""
        return self.vectors[-width:].T, self.duals[-width:].T

    def append(self, vectors: Tensor, duals: Tensor) -> None:
        """Store vectors (n, b) that are orthonormal and have no part in the space, and their duals (n, b)."""
        where = slice(self.count, self.count + vectors.shape[1])
        self._vectors[where], self._duals[where] = vectors.T, duals.T
        self.count = where.stop

    def add(self, X: Tensor) -> tuple[int, Tensor]:
        """Add what a block (n, b) has outside the space; how many vectors that are, b', and its coordinates there
        (b', b)."""
        inside = self.duals @ X
        first = self.count
        rest = X - self.vectors.T @ inside
        least = LOST * self.operator.squared_norm_floor(rest)
        rest, U = self.operator.metric(rest)
        least = torch.maximum(least, NOTHING**2 * (inside.square().sum(0) + (rest * U).sum(0)))
        for x, u, length in zip(rest.T, U.T, least, strict=True):
            if self.count == len(self._vectors):
                break
            found = self._orthonormalise(x, u, length)
            if found is not None:
                self.append(found[0][:, None], found[1][:, None])
        return self.count - first, self.duals[first:] @ rest

    def project_out(self, X: Tensor) -> Tensor:
        """Vectors (n, b) without their parts in the space."""
        return X - self.vectors.T @ (self.duals @ X)

    def _orthonormalise(self, x: Tensor, u: Tensor, least: Tensor) -> tuple[Tensor, Tensor] | None:
        """What a vector has outside the space, of length one, and its dual; None where its squared length is ``least``
        or below."""
        for _ in range(PASSES):
            more = self.duals @ x
            x, u = x - self.vectors.T @ more, u - self.duals.T @ more
            square = x @ u
            alive, clean = torch.stack((square > least, more @ more <= LITTLE**2 * square)).tolist()  # one wait
            if not alive:
                return None
            x, u, least = x / square.sqrt(), u / square.sqrt(), torch.full_like(least, NOTHING**2)
            if clean:
                break
        return x, u

    def restart(self, weights: Tensor, width: int) -> None:
        """Keep combinations (m, d) of the vectors but the last ``width``, and these."""
        ended = self.count - width
        for side in (self._vectors, self._duals):
            kept = torch.cat((weights.T @ side[:ended], side[ended : self.count]))
            side[: len(kept)] = kept
        self.count = weights.shape[1] + width

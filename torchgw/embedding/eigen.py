"""The smallest eigenpairs of a symmetric operator A that is dear to apply: SciPy's LOBPCG, in rounds.

Each iteration minimises tr X^T A X over orthonormal X in the span of a block, its residuals and its last step. One
application of A takes a whole block: 32 columns of a transport plan that is computed on the fly cost two or three times
what one does, so the block has many more columns than are wanted, and converges with the gap above its last eigenvalue.

LOBPCG stops where the absolute residual of every column is small. Here the residuals of the wanted columns count, over
their eigenvalues, so it runs in rounds that are judged one by one. Every round forgets the last step, which costs
iterations where there are many: later rounds are longer. Small problems are solved densely. Memory stays at 17 blocks
however many iterations it takes, where `torchgw.linalg.lanczos` stores a basis of all blocks or restarts.

Source: A. Knyazev, "Toward the optimal preconditioned eigensolver: locally optimal block preconditioned conjugate
gradient method", 2001.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from torchgw.types import Array

Operator: TypeAlias = "Callable[[Array], Array]"
Start: TypeAlias = "Callable[[int, int], Array]"

BLOCK, GUARD = 32, 16
# LOBPCG wants at least 5 times as many rows as columns. Beside ``maxiter`` times, it applies A to the block that it
# starts from, to that of one more iteration and to that which it returns, and again where residuals have grown by
# 2^restartControl: of numbers below 2, at 2^60, none have.
DENSE, RANK = 1000, 5
ROUND, LEAST, NEVER = 8, 3, 60
RESOLVED = 1e-8
PATIENCE, SETTLED, PROGRESS = 2, 1e-6, 0.9


class Eigenpairs(NamedTuple):
    """The smallest eigenvalues of an operator A and their eigenvectors.

    values : (m,), ascending.
    vectors : (n, m), orthonormal.
    residuals : (m,), norms |A v - value v| over the values, see `relative_residuals`.
    n_iter : applications of A.
    solver : "dense" or "lobpcg".
    """

    values: Array
    vectors: Array
    residuals: Array
    n_iter: int
    solver: str


def relative_residuals(residuals: Array, values: Array) -> Array:
    """Residuals over values, of which those below `RESOLVED` count as that: float64 resolves no less."""
    found: Array = residuals / np.maximum(values, RESOLVED)
    return found


def smallest_eigenpairs(A: Operator, null: Array, count: int, start: Start, tol: float, max_iter: int) -> Eigenpairs:
    """The ``count`` smallest eigenpairs of A (n, n) with eigenvalues in [0, 2] orthogonal to ``null``.

    Parameters
    ----------
    A : (n, b) to (n, b).
    null : (n,), a unit vector with A null = 0.
    count : at most n - 1.
    start : (n, b) to random numbers of that shape.
    tol : residual over eigenvalue at which to stop.
    max_iter : most applications of A, at least `LEAST`.

    Notes
    -----
    O(n_iter (cost of A + n b^2)), and about 17 b n floats, with b = max(32, count + 16). Dense up to n = 1000 or 5 b,
    the bound of LOBPCG: O(n^3), and 3 n^2 floats.
    """
    n, block = len(null), max(BLOCK, count + GUARD)
    if n <= max(DENSE, RANK * block):
        return solve_dense(A, null, count)
    return solve_by_lobpcg(A, null, count, start(n, block), tol, max_iter)


def solve_dense(A: Operator, null: Array, count: int) -> Eigenpairs:
    """The same by a full decomposition of A, in which ``null`` is moved above the other eigenvectors."""
    from scipy.linalg import eigh

    matrix = A(np.eye(len(null)))
    matrix = (matrix + matrix.T) / 2
    values, vectors = eigh(matrix + 3 * np.outer(null, null), subset_by_index=(0, count - 1))
    left = np.linalg.norm(matrix @ vectors - vectors * values, axis=0)
    return Eigenpairs(values, vectors, relative_residuals(left, values), 1, "dense")


def solve_by_lobpcg(A: Operator, null: Array, count: int, block: Array, tol: float, max_iter: int) -> Eigenpairs:
    """The same from a random ``block`` (n, b), n > 5 b and b >= count, by rounds of LOBPCG."""
    used = 0

    def multiply(V: Array) -> Array:
        nonlocal used
        used += 1
        return A(V)

    low = RESOLVED
    sums: list[float] = []
    worst: list[float] = []
    while max_iter - used >= LEAST:
        length = min(ROUND * max(1, len(sums)), max_iter - used - LEAST)
        every, block, norms = run_round(multiply, null, block, tol * low, length)
        values, residuals = every[:count], relative_residuals(norms[:count], every[:count])
        low = max(RESOLVED, float(values[0]))
        sums.append(float(values.sum()))
        worst.append(float(residuals.max()))
        if worst[-1] <= tol or has_reached_rounding(sums, worst):
            break
    return Eigenpairs(values, block[:, :count].copy(), residuals, used, "lobpcg")


def run_round(A: Operator, null: Array, block: Array, tol: float, length: int) -> tuple[Array, Array, Array]:
    """All Ritz values, vectors and residual norms after ``length`` + 3 applications of A, or once all reach ``tol``.

    The norms are those of A applied to the returned vectors. LOBPCG warns where they are above ``tol``, as those of the
    columns beyond the wanted ones mostly are; the caller judges.
    """
    from scipy.sparse.linalg import lobpcg

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(Exited|Failed|eigh failed) ", UserWarning)
        values, vectors, norms = lobpcg(
            A,
            block,
            Y=null[:, None],
            tol=tol,
            maxiter=length,
            largest=False,
            retResidualNormsHistory=True,
            restartControl=NEVER,
        )
    return values, vectors, norms[-1]


def has_reached_rounding(sums: list[float], worst: list[float]) -> bool:
    """Whether neither values nor residuals have fallen of late: what is left is the rounding of A."""
    if len(sums) <= PATIENCE:
        return False
    settled = sums[-1] > (1 - SETTLED) * sums[-1 - PATIENCE]
    return settled and min(worst[-PATIENCE:]) > PROGRESS * min(worst[:-PATIENCE])

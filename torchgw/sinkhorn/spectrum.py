"""The slow directions of a symmetric positive operator, by a short Lanczos run.

Of the Schur complement that `torchgw.sinkhorn.implicit` solves, I - M^T M with M the plan scaled by the roots of its
marginals, the smallest eigenvalue 1 - s^2 says three things: Sinkhorn's residual falls by s^2 an iteration, its best
over-relaxation is 2 / (1 + sqrt(1 - s^2)), and errors grow by up to 1 / (1 - s^2) when the system is solved.

Sources: C. Lanczos, 1950; A. Thibault, L. Chizat, C. Dossal, N. Papadakis, "Overrelaxed Sinkhorn-Knopp algorithm for
regularized optimal transport", 2021.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

SLOW = 0.3
CONVERGED = 1e-3
SEED = 20
CHECK_EVERY = 8
EXHAUSTED = 2 / 3  # power of the precision at which what is left of a step is nothing but its rounding


@dataclass(frozen=True)
class Spectrum:
    """Ritz values (d,), ascending, and vectors (n, d) of the slow directions; the smallest and the largest value."""

    values: Tensor
    vectors: Tensor
    smallest: float
    largest: float

    @property
    def condition(self) -> float:
        """The ratio of the largest to the smallest eigenvalue."""
        return self.largest / max(self.smallest, torch.finfo(torch.float64).eps * self.largest)

    @property
    def relaxation(self) -> float:
        """The over-relaxation with which Sinkhorn converges fastest near its fixed point."""
        return 2 / (1 + math.sqrt(max(min(self.smallest, 1.0), 0.0)))


def lanczos(operator: Callable[[Tensor], Tensor], start: Tensor, n_steps: int, null: Tensor | None = None) -> Spectrum:
    """Of an operator on vectors like ``start`` (n,), in at most ``n_steps``; O(n n_steps) memory.

    ``null`` (n, m), orthonormal, is what is known of the null space; the spectrum is that of the rest.
    """
    known = start.new_zeros(len(start), 0) if null is None else null
    start = start - known @ (known.T @ start)
    norm = torch.linalg.vector_norm(start)
    if n_steps < 1 or not bool(norm > 0):
        return Spectrum(start.new_zeros(0), start.new_zeros(len(start), 0), 1.0, 1.0)
    basis = start.new_zeros(len(start), n_steps)
    diagonal, off_diagonal = start.new_zeros(n_steps), start.new_zeros(n_steps)
    v, count = start / norm, 0
    while True:
        basis[:, count] = v
        w = operator(v)
        diagonal[count] = v @ w
        count += 1
        for _ in range(2):  # against the whole basis, twice: slow directions are found to their last digits
            w = w - basis[:, :count] @ (basis[:, :count].T @ w)
            w = w - known @ (known.T @ w)
        off_diagonal[count - 1] = size = torch.linalg.vector_norm(w)
        last = count == n_steps or bool(size <= torch.finfo(w.dtype).eps ** EXHAUSTED)
        if last or count % CHECK_EVERY == 0:
            beside = off_diagonal[: count - 1]
            T = torch.diag(diagonal[:count]) + torch.diag(beside, 1) + torch.diag(beside, -1)
            values, vectors = torch.linalg.eigh(T)
            error = size * vectors[-1].abs()
            slow = values < SLOW
            slow[0] = True
            if last or bool((error[slow] <= CONVERGED * values[slow]).all()):
                break
        v = w / size
    slow &= (values < SLOW) & (error < CONVERGED)
    return Spectrum(values[slow], basis[:, :count] @ vectors[:, slow], float(values[0]), float(values[-1]))


def random_like(given: Tensor) -> Tensor:
    """A fixed Gaussian vector of the shape, dtype and device given."""
    generator = torch.Generator().manual_seed(SEED)
    return torch.randn(given.shape, generator=generator, dtype=torch.float64).to(given)

"""Linear systems that are known by products: GMRES for any operator, conjugate gradients for symmetric positive ones.

GMRES takes the vector of a Krylov space with the smallest residual, restarted so that memory stays bounded. Both are
written here because the vectors stay on their device, and because the Hessenberg matrix gives a condition number.

Sources: Y. Saad, M. Schultz, "GMRES: a generalized minimal residual algorithm", 1986; M. Hestenes, E. Stiefel, "Methods
of conjugate gradients for solving linear systems", 1952.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchgw.linalg.lanczos import KrylovBasis
from torchgw.linalg.operators import Matrix

NO_PROGRESS = 0.99


class LinearSolution(NamedTuple):
    """What an iterative solver ended with.

    Attributes
    ----------
    x : (n,).
    residual : |right - operator(x)| / |right|.
    n_iter : applications of the operator.
    condition : the operator's condition number as far as seen; nan where the method does not see it.
    """

    x: Tensor
    residual: float
    n_iter: int
    condition: float = math.nan


def gmres(
    operator: Callable[[Tensor], Tensor], right: Tensor, *, tol: float, max_iter: int, restart: int
) -> LinearSolution:
    """Solve operator(x) = right for vectors (n,); O(n restart) memory."""
    x, size = torch.zeros_like(right), float(torch.linalg.vector_norm(right))
    count, condition, residual, rest = 0, 1.0, 1.0, right
    if not 0 < size < math.inf:  # what comes from outside may overflow; it passes through, as NaN
        missed = math.inf if size else 0.0
        return LinearSolution(missed * x, missed, 0, 1.0)
    matrix = Matrix(lambda X: operator(X[:, 0])[:, None], len(right), right.device, right.dtype)
    while count < max_iter and residual > tol:
        before = residual
        change, steps, seen = _cycle(matrix, rest, tol * size, min(restart, max_iter - count))
        x, count, condition = x + change, count + steps, max(condition, seen)
        rest = right - operator(x)
        residual = float(torch.linalg.vector_norm(rest)) / size
        if residual > NO_PROGRESS * before:
            break
    return LinearSolution(x, residual, count, condition)


def _cycle(operator: Matrix, rest: Tensor, goal: float, steps: int) -> tuple[Tensor, int, float]:
    """What reduces the residual most within a Krylov space, its dimension, and the condition number seen in it."""
    steps = min(steps, operator.size)
    basis, H, right = KrylovBasis(operator, steps + 1), np.zeros((steps + 1, steps)), np.zeros(steps + 1)
    right[0] = float(basis.add(rest[None], is_product=False))
    for j in range(steps):
        H[: j + 2, j] = basis.add(basis.image(slice(j, j + 1)).T)[0].double().cpu().numpy()  # one wait
        seen = H[: j + 2, : j + 1]
        y = np.linalg.lstsq(seen, right[: j + 2], rcond=None)[0]
        if H[j + 1, j] == 0 or np.linalg.norm(right[: j + 2] - seen @ y) <= goal:
            break
    values = np.linalg.svd(seen, compute_uv=False)
    condition = float(values[0] / max(values[-1], np.finfo(float).tiny))
    return torch.from_numpy(y).to(rest) @ basis.vectors[0, : j + 1], j + 1, condition


def conjugate_gradients(
    operator: Callable[[Tensor], Tensor],
    right: Tensor,
    precondition: Callable[[Tensor], Tensor],
    *,
    tol: float,
    max_iter: int,
) -> LinearSolution:
    """Solve operator(x) = right for vectors (n,), where operator and preconditioner are symmetric and positive."""
    x, rest, size = torch.zeros_like(right), right, torch.linalg.vector_norm(right)
    direction, last, count = torch.zeros_like(right), right.new_ones(()), 0
    residual = 1.0 if bool(size > 0) else 0.0
    while count < max_iter and residual > tol:
        eased = precondition(rest)
        now = rest @ eased
        direction = eased + (now / last if count else 0.0) * direction
        image = operator(direction)
        step = now / (direction @ image)
        x, rest, last, count = x + step * direction, rest - step * image, now, count + 1
        residual = float(torch.linalg.vector_norm(rest) / size)
    return LinearSolution(x, residual, count)

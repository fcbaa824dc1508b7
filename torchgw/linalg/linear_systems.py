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
    if not math.isfinite(size):  # what comes from outside may overflow; it passes through
        return LinearSolution(torch.full_like(right, torch.nan), math.inf, 0, 1.0)
    if size == 0:
        return LinearSolution(x, 0.0, 0, 1.0)
    while count < max_iter and residual > tol:
        before = residual
        change, steps, seen = _cycle(operator, rest, tol * size, min(restart, max_iter - count))
        x, count, condition = x + change, count + steps, max(condition, seen)
        rest = right - operator(x)
        residual = float(torch.linalg.vector_norm(rest)) / size
        if residual > NO_PROGRESS * before:
            break
    return LinearSolution(x, residual, count, condition)


def _cycle(operator: Callable[[Tensor], Tensor], rest: Tensor, goal: float, steps: int) -> tuple[Tensor, int, float]:
    """What reduces the residual most within a Krylov space, its dimension, and the condition number seen in it.

    The Hessenberg matrix is made triangular by rotations as it grows, so the residual is known at every step.
    """
    steps = min(steps, len(rest))
    basis, H, R = rest.new_empty(steps, len(rest)), np.zeros((steps + 1, steps)), np.zeros((steps, steps))
    norm = float(torch.linalg.vector_norm(rest))
    w, right = rest / norm, [norm]
    turns: list[tuple[float, float]] = []
    for j in range(steps):
        basis[j] = w
        w = operator(w)
        for _ in range(2):
            overlap = basis[: j + 1] @ w
            w = w - overlap @ basis[: j + 1]
            H[: j + 1, j] += overlap.double().cpu().numpy()
        H[j + 1, j] = beside = float(torch.linalg.vector_norm(w))
        column = H[: j + 1, j].tolist()
        for i, (c, s) in enumerate(turns):
            column[i], column[i + 1] = c * column[i] + s * column[i + 1], c * column[i + 1] - s * column[i]
        length = math.hypot(column[j], beside)
        c, s = (column[j] / length, beside / length) if length > 0 else (1.0, 0.0)
        turns.append((c, s))
        column[j] = length
        R[: j + 1, j] = column
        right[j:] = [c * right[j], -s * right[j]]
        if abs(right[-1]) <= goal or beside <= 10 * torch.finfo(rest.dtype).eps * length:
            break
        w = w / beside
    y = np.linalg.lstsq(R[: j + 1, : j + 1], np.array(right[: j + 1]), rcond=None)[0]
    values = np.linalg.svd(H[: j + 2, : j + 1], compute_uv=False)
    seen = float(values[0] / max(values[-1], np.finfo(float).tiny))
    return torch.from_numpy(y).to(rest) @ basis[: j + 1], j + 1, seen


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

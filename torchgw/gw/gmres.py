"""GMRES: the vector of a Krylov space with the smallest residual, restarted so that memory stays bounded.

Source: Y. Saad, M. Schultz, "GMRES: a generalized minimal residual algorithm", 1986. Written here because the vectors
stay on their device, and because the Hessenberg matrix gives a condition number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Solved(NamedTuple):
    """The solution, its relative residual, the operator's applications, and its condition number as far as seen."""

    x: Tensor
    residual: float
    n_iter: int
    condition: float


def gmres(operator: Callable[[Tensor], Tensor], right: Tensor, *, tol: float, max_iter: int, restart: int) -> Solved:
    """Solve operator(x) = right for vectors (n,); O(n restart) memory."""
    x, size = torch.zeros_like(right), float(torch.linalg.vector_norm(right))
    count, condition, residual = 0, 1.0, 1.0
    if size == 0:
        return Solved(x, 0.0, 0, 1.0)
    rest = right
    while count < max_iter and residual > tol:
        steps = min(restart, max_iter - count, len(right))
        norm = float(torch.linalg.vector_norm(rest))
        basis = right.new_zeros(steps + 1, len(right))
        basis[0] = rest / norm
        H = torch.zeros(steps + 1, steps, dtype=torch.float64)
        for j in range(steps):
            w = operator(basis[j])
            for _ in range(2):
                overlap = basis[: j + 1] @ w
                w = w - overlap @ basis[: j + 1]
                H[: j + 1, j] += overlap.double().cpu()
            H[j + 1, j] = float(torch.linalg.vector_norm(w))
            count += 1
            beside = torch.zeros(j + 2, dtype=torch.float64)
            beside[0] = norm
            y = torch.linalg.lstsq(H[: j + 2, : j + 1], beside[:, None], driver="gelsd").solution[:, 0]
            residual = float(torch.linalg.vector_norm(H[: j + 2, : j + 1] @ y - beside)) / size
            if residual <= tol or float(H[j + 1, j]) <= 10 * torch.finfo(right.dtype).eps * norm:
                break
            basis[j + 1] = w / H[j + 1, j].to(w)
        values = torch.linalg.svdvals(H[: j + 2, : j + 1])
        condition = max(condition, float(values[0] / values[-1].clamp_min(torch.finfo(torch.float64).tiny)))
        x = x + y.to(x) @ basis[: j + 1]
        if residual > tol and count < max_iter:
            rest = right - operator(x)
            before, residual = residual, float(torch.linalg.vector_norm(rest)) / size
            count += 1
            if residual >= 0.99 * before * (1 + 1e-3) and residual > 0.99 * norm / size:
                break  # a whole cycle without progress
    return Solved(x, residual, count, condition)

"""The Lanczos recurrence of a symmetric matrix A, and its adjoint.

For k = 1, ..., m with q_1 = v / |v| and Q_k = [q_1 ... q_k], the re-orthogonalised recurrence is

    w_k = A q_k,    a_k = q_k . w_k,    r_k = (I - Q_k Q_k^T) w_k,    b_k = |r_k|,    q_{k+1} = r_k / b_k.

Its adjoint runs backwards. With bars for cotangents and g_k for the whole cotangent of q_k,

    rbar_k = (I - q_{k+1} q_{k+1}^T) g_{k+1} / b_k + bbar_k q_{k+1},    c_k = Q_k^T rbar_k,
    lambda_k = rbar_k - Q_k c_k + abar_k q_k                            (the re-orthogonalised multiplier of A q_k),
    g_k = qbar_k + A lambda_k - a_k rbar_k - b_k rbar_{k+1} + abar_k w_k - sum_{i >= k} c_i[k] w_i,
    thetabar += lambda_k . d(A q_k) / d theta,                          vbar = (I - q_1 q_1^T) g_1 / |v|.

The last sum is a product with Q, because A Q = Q T. A step costs one vector-Jacobian product, and no graph outlives it.

Source: N. Kraemer, P. Moreno-Munoz, H. Roy, S. Hauberg, "Gradients of functions of large matrices", NeurIPS 2024.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

Matvec: TypeAlias = "Callable[[tuple[Tensor, ...], Tensor], Tensor]"
BREAKDOWN_POWER = 0.75


class Krylov(NamedTuple):
    """What m steps of the recurrence found for M start vectors.

    ``basis`` (M, m, N); ``alphas`` (M, m); ``betas`` (M, m - 1); ``residual`` (M,), the next beta, which has no
    derivative. Where a beta is zero, the Krylov space is invariant, and all that follows is zero.
    """

    basis: Tensor
    alphas: Tensor
    betas: Tensor
    residual: Tensor


def recurrence(matvec: Matvec, parameters: tuple[Tensor, ...], V: Tensor, n_steps: int) -> tuple[Krylov, Tensor]:
    """The recurrence from each column of V and the columns' lengths (M,); a zero column breaks down at once.

    Every vector is orthogonalised twice against all those before, which leaves nothing for a third time.
    """
    norm = torch.linalg.vector_norm(V, dim=0)
    basis = V.new_zeros(V.shape[1], n_steps, len(V))
    alphas, betas = V.new_zeros(V.shape[1], n_steps), V.new_zeros(V.shape[1], n_steps)
    q, scale = V.T / torch.where(norm > 0, norm, 1.0)[:, None], torch.zeros_like(norm)
    for k in range(n_steps):
        basis[:, k] = q
        w = matvec(parameters, q.T).T.contiguous()
        scale = torch.maximum(scale, torch.linalg.vector_norm(w, dim=1))
        alphas[:, k] = (q * w).sum(1)
        before = basis[:, : k + 1]
        for _ in range(2):
            w = w - combined(before, products(before, w)).T
        beta = _alive(torch.linalg.vector_norm(w, dim=1), scale)
        betas[:, k] = beta
        q = torch.where(beta > 0, 1 / beta, 0.0)[:, None] * w
    return Krylov(basis, alphas, betas[:, :-1], betas[:, -1]), norm


def bare_recurrence(
    matvec: Matvec, parameters: tuple[Tensor, ...], start: Tensor, n_steps: int
) -> tuple[Tensor, Tensor]:
    """Alphas (M, m) and betas (M, m - 1) from unit columns (N, M), by three terms and without a basis."""
    alphas, betas = start.new_zeros(start.shape[1], n_steps), start.new_zeros(start.shape[1], n_steps)
    before, q, scale, beta = torch.zeros_like(start), start, start.new_zeros(()), start.new_zeros(start.shape[1])
    for k in range(n_steps):
        w = matvec(parameters, q)
        scale = torch.maximum(scale, torch.linalg.vector_norm(w, dim=0))
        alphas[:, k] = (q * w).sum(0)
        w = w - alphas[:, k] * q - beta * before
        beta = _alive(torch.linalg.vector_norm(w, dim=0), scale)
        betas[:, k] = beta
        before, q = q, torch.where(beta > 0, 1 / beta, 0.0) * w
    return alphas, betas[:, :-1]


def bare_combination(
    matvec: Matvec, parameters: tuple[Tensor, ...], start: Tensor, alphas: Tensor, betas: Tensor, weights: Tensor
) -> Tensor:
    """The combination (N, M) with ``weights`` (M, m) of the vectors of `bare_recurrence`, which come a second time."""
    before, q = torch.zeros_like(start), start
    total = weights[:, 0] * q
    for k in range(alphas.shape[1] - 1):
        w = matvec(parameters, q) - alphas[:, k] * q
        w = w - betas[:, k - 1] * before if k else w
        before, q = q, torch.where(betas[:, k] > 0, 1 / betas[:, k], 0.0) * w
        total += weights[:, k + 1] * q
    return total


def _alive(beta: Tensor, scale: Tensor) -> Tensor:
    """Zero where only rounding is left."""
    return torch.where(beta > torch.finfo(beta.dtype).eps ** BREAKDOWN_POWER * scale, beta, 0.0)


def products(basis: Tensor, w: Tensor) -> Tensor:
    """Inner products (M, k) of basis vectors (M, k, N) with vectors w (M, N)."""
    return torch.bmm(w[:, None], basis.mT)[:, 0]


def combined(basis: Tensor, coefficients: Tensor) -> Tensor:
    """Linear combinations (N, M) of basis vectors (M, k, N) with coefficients (M, k)."""
    return torch.bmm(coefficients[:, None], basis)[:, 0].T


def adjoint(
    matvec: Matvec,
    parameters: tuple[Tensor, ...],
    found: Krylov,
    norm: Tensor,
    basis_bar: Callable[[int], Tensor],
    alphas_bar: Tensor,
    betas_bar: Tensor,
) -> tuple[Tensor, list[Tensor | None]]:
    """Cotangents of V and of the parameters, from those of basis, alphas and betas; ``basis_bar(k)`` is (M, N)."""
    basis, alphas, betas, _ = found
    n_steps = alphas.shape[1]
    ended = torch.zeros_like(norm)[:, None]
    betas, betas_bar = torch.cat((betas, ended), 1), torch.cat((betas_bar, ended), 1)
    later = torch.zeros_like(alphas)[:, :, None].repeat(1, 1, n_steps)  # (M, k, j): of q_j in the sum of step k
    g, r_next = torch.zeros_like(basis[:, 0]), torch.zeros_like(basis[:, 0])
    totals: list[Tensor | None] = [None] * len(parameters)
    for k in reversed(range(n_steps)):
        q, before = basis[:, k], basis[:, : k + 1]
        r = torch.zeros_like(g)
        if k + 1 < n_steps:
            after, beta = basis[:, k + 1], betas[:, k : k + 1]
            tangent = g - after * (after * g).sum(1, keepdim=True)
            r = torch.where(beta > 0, tangent / torch.where(beta > 0, beta, 1.0), 0.0) + betas_bar[:, k : k + 1] * after
        c = products(before, r)
        multiplier = r - combined(before, c).T + alphas_bar[:, k : k + 1] * q
        image, pulled = pull_back(matvec, parameters, q, multiplier, totals)
        later[:, : k + 1, k] -= alphas[:, k : k + 1] * c
        if k:
            later[:, : k + 1, k - 1] -= betas[:, k - 1 : k] * c
        if k + 1 < n_steps:
            later[:, : k + 1, k + 1] -= betas[:, k : k + 1] * c
        g = basis_bar(k) + pulled - alphas[:, k : k + 1] * r - betas[:, k : k + 1] * r_next
        g = g + alphas_bar[:, k : k + 1] * image + combined(basis[:, max(0, k - 1) :], later[:, k, max(0, k - 1) :]).T
        r_next = r
    q = basis[:, 0]
    return ((g - q * (q * g).sum(1, keepdim=True)) / norm[:, None]).T, totals


def pull_back(
    matvec: Matvec, parameters: tuple[Tensor, ...], q: Tensor, multiplier: Tensor, totals: list[Tensor | None]
) -> tuple[Tensor, Tensor]:
    """A q and A multiplier, both (M, N); the parameters' cotangents of multiplier . A q are added to ``totals``."""
    wanted = [i for i, parameter in enumerate(parameters) if parameter.requires_grad]
    with torch.enable_grad():
        leaves = tuple(p.detach().requires_grad_(p.requires_grad) for p in parameters)
        start = q.T.detach().requires_grad_()
        image = matvec(leaves, start)
    found = torch.autograd.grad(image, [start, *(leaves[i] for i in wanted)], multiplier.T, allow_unused=True)
    for i, part in zip(wanted, found[1:], strict=True):
        if part is not None:
            before = totals[i]
            totals[i] = part if before is None else before + part
    pulled = torch.zeros_like(q) if found[0] is None else found[0].T
    return image.detach().T, pulled

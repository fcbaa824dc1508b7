"""The Lanczos recurrence of a symmetric matrix A, and its adjoint.

For k = 1, ..., m with q_1 = v / |v| and Q_k = [q_1 ... q_k], the re-orthogonalised recurrence is

    w_k = A q_k,    a_k = q_k . w_k,    r_k = (I - Q_k Q_k^T) w_k,    b_k = |r_k|,    q_{k+1} = r_k / b_k.

Its adjoint runs backwards. With bars for cotangents and g_k for the whole cotangent of q_k,

    rbar_k = (I - q_{k+1} q_{k+1}^T) g_{k+1} / b_k + bbar_k q_{k+1},    c_k = Q_k^T rbar_k,
    lambda_k = rbar_k - Q_k c_k + abar_k q_k                            (the re-orthogonalised multiplier of A q_k),
    g_k = qbar_k + A lambda_k - a_k rbar_k - b_k rbar_{k+1} + abar_k w_k - sum_{i >= k} c_i[k] w_i,
    thetabar += lambda_k . d(A q_k) / d theta,                          vbar = (I - q_1 q_1^T) g_1 / |v|.

The last sum is a product with Q, because A Q = Q T. A step costs one vector-Jacobian product, and no graph outlives it.

Spectrum. The Ritz pairs (mu, y) of T = tridiag(b, a, b) approximate the ends of the spectrum of A: mu is off by at most
b_m |y_m|.

Sources: C. Lanczos, 1950; N. Kraemer, P. Moreno-Munoz, H. Roy, S. Hauberg, "Gradients of functions of large matrices",
NeurIPS 2024.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from torchgw.runtime.transfer import to_host

Matvec: TypeAlias = "Callable[[tuple[Tensor, ...], Tensor], Tensor]"
Stop: TypeAlias = "Callable[[Tensor, Tensor], bool]"
BREAKDOWN_POWER = 0.75
FEW_STEPS = 128
SLOW = 0.3
CONVERGED = 1e-3
CHECK_EVERY = 8
SEED = 20
EXHAUSTED = 2 / 3  # power of the precision at which what is left of a step is nothing but its rounding


class Krylov(NamedTuple):
    """What m steps of the recurrence found for M start vectors of length N.

    Attributes
    ----------
    basis : Q^T, (M, m, N).
    alphas, betas : a (M, m) and b (M, m - 1). Where a beta is zero, the Krylov space is invariant, and all that follows
        is zero.
    residual : (M,), the next beta, which has no derivative.
    """

    basis: Tensor
    alphas: Tensor
    betas: Tensor
    residual: Tensor


def recurrence(
    matvec: Matvec,
    parameters: tuple[Tensor, ...],
    V: Tensor,
    n_steps: int,
    null: Tensor | None = None,
    stop: Stop | None = None,
    metric: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None,
) -> tuple[Krylov, Tensor]:
    """The recurrence from each column of V and the columns' lengths (M,); a zero column breaks down at once.

    Every vector is orthogonalised twice against all those before, which leaves nothing for a third time; and against
    ``null`` (N, d), orthonormal vectors that V is orthogonal to. ``stop(alphas, betas)``, both (M, k), may end it after
    any step k. With a ``metric`` all inner products are those of `torchgw.linalg.operators`, in which A is
    self-adjoint, and A's parameters are the vector's dual.
    """
    V, dual = (V, V) if metric is None else metric(V)
    norm = (V * dual).sum(0).clamp_min(0.0).sqrt()
    first = 0 if null is None else null.shape[1]
    basis = V.new_zeros(V.shape[1], first + n_steps, len(V))
    if null is not None:
        basis[:, :first] = null.T
    duals = basis if metric is None else torch.zeros_like(basis)
    alphas, betas = V.new_zeros(V.shape[1], n_steps), V.new_zeros(V.shape[1], n_steps)
    inverse, scale = torch.where(norm > 0, 1 / norm, 0.0)[:, None], torch.zeros_like(norm)
    q, u = V.T * inverse, dual.T * inverse
    for k in range(n_steps):
        basis[:, first + k] = q
        if metric is not None:
            duals[:, first + k] = u
        w = matvec(parameters if metric is None else (u.T,), q.T).T.contiguous()
        before, held = basis[:, : first + k + 1], duals[:, : first + k + 1]
        inside = inner_products(held, w)
        alphas[:, k] = inside[:, -1]
        for again in (False, True):
            w = w - combine_vectors(before, inner_products(held, w) if again else inside).T
        w, dual = (w, w) if metric is None else (side.T for side in metric(w.T))
        length = (w * dual).sum(1).clamp_min(0.0)
        scale = torch.maximum(scale, (inside.square().sum(1) + length).sqrt())
        beta = _zero_breakdown(length.sqrt(), scale)
        betas[:, k] = beta
        if stop is not None and stop(alphas[:, : k + 1], betas[:, : k + 1]):
            n_steps = k + 1
            break
        inverse = torch.where(beta > 0, 1 / beta, 0.0)[:, None]
        q, u = inverse * w, inverse * dual
    betas = betas[:, :n_steps]
    return Krylov(basis[:, first : first + n_steps], alphas[:, :n_steps], betas[:, :-1], betas[:, -1]), norm


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
        beta = _zero_breakdown(torch.linalg.vector_norm(w, dim=0), scale)
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


def _zero_breakdown(beta: Tensor, scale: Tensor) -> Tensor:
    """Zero where only rounding is left."""
    return torch.where(beta > torch.finfo(beta.dtype).eps ** BREAKDOWN_POWER * scale, beta, 0.0)


def inner_products(basis: Tensor, w: Tensor) -> Tensor:
    """Inner products (M, k) of basis vectors (M, k, N) with vectors w (M, N)."""
    return torch.bmm(w[:, None], basis.mT)[:, 0]


def combine_vectors(basis: Tensor, coefficients: Tensor) -> Tensor:
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
        c = inner_products(before, r)
        multiplier = r - combine_vectors(before, c).T + alphas_bar[:, k : k + 1] * q
        image, pulled = pull_back(matvec, parameters, q, multiplier, totals)
        later[:, : k + 1, k] -= alphas[:, k : k + 1] * c
        if k:
            later[:, : k + 1, k - 1] -= betas[:, k - 1 : k] * c
        if k + 1 < n_steps:
            later[:, : k + 1, k + 1] -= betas[:, k : k + 1] * c
        g = basis_bar(k) + pulled - alphas[:, k : k + 1] * r - betas[:, k : k + 1] * r_next
        g = (
            g
            + alphas_bar[:, k : k + 1] * image
            + combine_vectors(basis[:, max(0, k - 1) :], later[:, k, max(0, k - 1) :]).T
        )
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


def ritz_pairs(alphas: Tensor, betas: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (M, m) and eigenvectors (M, m, m) of the tridiagonal matrices.

    After a breakdown the diagonal goes on with its first entry: values that f is defined for and that nothing reads.
    """
    alive = torch.cat((torch.ones_like(alphas[:, :1]), (betas > 0).to(alphas.dtype).cumprod(1)), 1) > 0
    alphas = torch.where(alive, alphas, alphas[:, :1])
    if alphas.device.type == "cpu" and alphas.shape[1] >= FEW_STEPS:
        return _tridiagonal_eigenvectors(alphas, betas)
    T = torch.diag_embed(alphas) + torch.diag_embed(betas, 1) + torch.diag_embed(betas, -1)
    values, vectors = torch.linalg.eigh(T)
    return values, vectors


def _tridiagonal_eigenvectors(alphas: Tensor, betas: Tensor) -> tuple[Tensor, Tensor]:
    """The same by LAPACK's routine for tridiagonal matrices, three times as fast at 250 steps and more."""
    from scipy.linalg import eigh_tridiagonal

    pairs = [eigh_tridiagonal(a, b) for a, b in zip(alphas.detach().numpy(), betas.detach().numpy(), strict=True)]
    values, vectors = (np.stack(parts) for parts in zip(*pairs, strict=True))
    return torch.from_numpy(values), torch.from_numpy(vectors)


@dataclass(frozen=True)
class Spectrum:
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


def find_slow_eigenpairs(
    operator: Callable[[Tensor], Tensor], start: Tensor, n_steps: int, null: Tensor | None = None
) -> Spectrum:
    """The eigenpairs of an operator that iterations leave last, and its least and largest Ritz values.

    Vectors are like ``start`` (n,), steps at most ``n_steps``, memory O(n n_steps).

    ``null`` (n, d), orthonormal, is what is known of the null space; the spectrum is that of the rest.
    """
    if null is not None:
        start = start - null @ (null.T @ start)
    if n_steps < 1 or not bool(torch.linalg.vector_norm(start) > 0):
        return Spectrum(start.new_zeros(0), start.new_zeros(len(start), 0), 1.0, 1.0)
    exhausted = torch.finfo(start.dtype).eps ** EXHAUSTED

    def should_stop(alphas: Tensor, betas: Tensor) -> bool:
        if bool(betas[0, -1] <= exhausted):
            return True
        if alphas.shape[1] % CHECK_EVERY:
            return False
        values, _, error = _ritz_errors(alphas, betas)
        slow = values < SLOW
        slow[0] = True
        return bool((~slow | (error <= CONVERGED * values)).all())

    found, _ = recurrence(
        lambda _, x: operator(x[:, 0])[:, None], (), start[:, None], n_steps, null=null, stop=should_stop
    )
    values, vectors, error = _ritz_errors(found.alphas, torch.cat((found.betas, found.residual[:, None]), 1))
    slow = ((values < SLOW) & (error < CONVERGED)).nonzero()[:, 0]
    least, largest = to_host(values[0], values[-1])
    return Spectrum(values[slow], found.basis[0].T @ vectors[:, slow], float(least), float(largest))


def _ritz_errors(alphas: Tensor, betas: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Ritz values (k,), vectors (k, k) and bounds (k,) on the values' errors, from alphas and betas (1, k)."""
    values, vectors = (part[0] for part in ritz_pairs(alphas, betas[:, :-1]))
    return values, vectors, betas[0, -1] * vectors[-1].abs()


def random_like(given: Tensor) -> Tensor:
    """A fixed Gaussian start vector of the shape, dtype and device given."""
    generator = torch.Generator().manual_seed(SEED)
    return torch.randn(given.shape, generator=generator, dtype=torch.float64).to(given)

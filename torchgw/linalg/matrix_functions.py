"""Functions of large symmetric matrices times vectors, by Lanczos, with exact derivatives.

    f(A) v ~ |v| Q f(T) e_1,    Q and T = tridiag(b, a, b) from the recurrence of `torchgw.linalg.lanczos`

The derivative goes through f(T) e_1 by divided differences (Daleckii and Krein),

    f[x, y] = (f(x) - f(y)) / (x - y),    f[x, x] = f'(x),

which are finite where eigenvalues of T meet, and through the recurrence by its adjoint. That runs backwards. With
q_1 = v / |v|, w_k = A q_k, r_k what is left of w_k, bars for cotangents and g_k for the whole cotangent of q_k,

    rbar_k = (I - q_{k+1} q_{k+1}^T) g_{k+1} / b_k + bbar_k q_{k+1},    c_k = Q_k^T rbar_k,
    lambda_k = rbar_k - Q_k c_k + abar_k q_k                            (the re-orthogonalised multiplier of A q_k),
    g_k = qbar_k + A lambda_k - a_k rbar_k - b_k rbar_{k+1} + abar_k w_k - sum_{i >= k} c_i[k] w_i,
    thetabar += lambda_k . d(A q_k) / d theta,                          vbar = (I - q_1 q_1^T) g_1 / |v|.

The last sum is a product with Q, because A Q = Q T. A step costs one vector-Jacobian product, and no graph outlives it:
memory is that of the basis, forward and backward.

Where a b_k vanishes, the Krylov space K of v is invariant and f(A) v is exact, but a change of A or v leads out of K,
where the recurrence has no derivative. There the cotangent y is split. Its part in K goes through the adjoint; the rest
z meets the derivative of f(A) v itself. With Ritz values mu, lambda and vectors U of the spaces of z and v,

    vbar += f(A) z,    Abar += Q_z X Q_v^T,    X = |z| |v| U_z diag(U_z^T e_1) f[mu, lambda] diag(U_v^T e_1) U_v^T.

Sources: N. Higham, "Functions of Matrices", 2008, theorem 3.11; N. Kraemer, P. Moreno-Munoz, H. Roy, S. Hauberg,
"Gradients of functions of large matrices", NeurIPS 2024; P. Kandolf, A. Koskela, S. Relton, M. Schweitzer, "Computing
low-rank approximations of the Frechet derivative of a matrix function using Krylov subspace methods", 2021.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from torchgw import validate
from torchgw.linalg.lanczos import BREAKDOWN_POWER, Krylov, combine_vectors, inner_products, recurrence, ritz_pairs
from torchgw.linalg.operators import Matrix
from torchgw.runtime.autograd import refuse_double_backward

Matvec: TypeAlias = "Callable[[tuple[Tensor, ...], Tensor], Tensor]"
ONCE = "Lanczos has first derivatives only: differentiate it once, without create_graph=True"


class ScalarFunction(Protocol):
    """An elementwise function of eigenvalues, with tensors of coefficients that broadcast against them, (M, m)."""

    def value(self, x: Tensor, *coefficients: Tensor) -> Tensor:
        """f(x), in differentiable torch operations as far as coefficients need derivatives."""

    def divided_difference(self, x: Tensor, y: Tensor, *coefficients: Tensor) -> Tensor:
        """(f(x) - f(y)) / (x - y), and f'(x) where x = y, of x (M, m, 1) and y (M, 1, n)."""


class Exponential:
    """exp(-t x), the heat kernel of eigenvalues; its one coefficient is the time t, () or (M, 1)."""

    def value(self, x: Tensor, *coefficients: Tensor) -> Tensor:
        return torch.exp(-coefficients[0] * x)

    def divided_difference(self, x: Tensor, y: Tensor, *coefficients: Tensor) -> Tensor:
        t = coefficients[0] if coefficients[0].ndim == 0 else coefficients[0][..., None]
        s = t * (x - y).abs()
        mean = torch.where(s > 0, -torch.expm1(-s) / torch.where(s > 0, s, 1.0), 1.0)
        return -t * torch.exp(-t * torch.minimum(x, y)) * mean


def matrix_function(
    matvec: Matvec,
    parameters: Sequence[Tensor],
    V: Tensor,
    f: ScalarFunction,
    n_steps: int,
    coefficients: Sequence[Tensor] = (),
) -> Tensor:
    """f(A) V (N, M) after ``n_steps`` steps of Lanczos, differentiable in V, ``parameters`` and ``coefficients``.

    Parameters
    ----------
    matvec : ``matvec(parameters, X)`` is A X (N, M) for X (N, M), with A symmetric whatever the parameters, in
        differentiable torch operations. It must not change its arguments.
    parameters : tensors that A depends on; what else ``matvec`` reads is constant.
    V : (N, M) start vectors, none of them zero.
    f : `Exponential()`, or another `ScalarFunction`.
    n_steps : m, at most N are taken.
    coefficients : tensors, () or broadcasting against the eigenvalues (M, m), such as the time of `Exponential`.

    Raises
    ------
    ValueError, TypeError
        For start vectors or steps that cannot be used.
    RuntimeError
        When the gradient is differentiated again.

    Notes
    -----
    The gradient is that of what was computed, not that of the limit of many steps, but for columns whose Krylov space
    ended early: theirs is that of f(A) v itself. m products and O(M N m^2) work, memory O(M N m). The adjoint takes m
    vector-Jacobian products of ``matvec``, one at a time, and keeps no graph.
    """
    validate.instance("V", V, Tensor)
    if V.ndim != 2 or not V.is_floating_point() or 0 in V.shape:
        raise ValueError(f"V must be floating point start vectors (N, M), got {tuple(V.shape)} of dtype {V.dtype}")
    lengths = torch.linalg.vector_norm(V.detach(), dim=0)
    if not bool((torch.isfinite(lengths) & (lengths > 0)).all()):
        raise ValueError("V must have columns that are finite and not zero; leave out the others, for which f(A) 0 = 0")
    n_steps = min(validate.integer("n_steps", n_steps, least=1), len(V))
    given = (len(parameters), V, *parameters, *coefficients)
    result: Tensor = _MatrixFunction.apply(matvec, f, n_steps, *given)  # type: ignore[no-untyped-call]
    return result


def _first_column(f: ScalarFunction, values: Tensor, vectors: Tensor, coefficients: Sequence[Tensor]) -> Tensor:
    """f(T) e_1, (M, m)."""
    return inner_products(vectors, f.value(values, *coefficients) * vectors[:, 0])


def as_matrix(matvec: Matvec, parameters: tuple[Tensor, ...], V: Tensor) -> Matrix:
    """A on vectors like V (N, M), for values of its parameters."""
    return Matrix(lambda X: matvec(parameters, X), len(V), V.device, V.dtype)


class _MatrixFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matvec: Matvec, f: ScalarFunction, n_steps: int, n: int, V: Tensor, *rest: Tensor) -> Tensor:
        found, norm = recurrence(as_matrix(matvec, rest[:n], V), V, n_steps)
        values, vectors = ritz_pairs(found.alphas, found.betas)
        ctx.matvec, ctx.f, ctx.n = matvec, f, n
        ctx.save_for_backward(V, *rest, *found, norm, values, vectors)
        return combine_vectors(found.basis, norm[:, None] * _first_column(f, values, vectors, rest[n:])).T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        V, *rest, basis, alphas, betas, residual, norm, values, vectors = ctx.saved_tensors
        parameters, coefficients = tuple(rest[: ctx.n]), tuple(rest[ctx.n :])
        with torch.no_grad():
            solved = _LanczosEvaluation(
                ctx.matvec, ctx.f, Krylov(basis, alphas, betas, residual), norm, values, vectors
            )
            cotangents = solved.cotangents_of(parameters, coefficients, grads[0].T)
        return None, None, None, None, *refuse_double_backward(ONCE, cotangents, (V, *rest, *grads))


class _LanczosEvaluation(NamedTuple):
    """f(A) V as it was computed, and its adjoint.

    matvec, f : the matrix A (N, N) as a product, and the function.
    krylov : the Krylov basis (M, m, N), and the entries of the tridiagonal matrix T (M, m, m).
    norm : of the start vectors, (M,).
    values, vectors : eigenvalues (M, m) and eigenvectors (M, m, m) of T.
    """

    matvec: Matvec
    f: ScalarFunction
    krylov: Krylov
    norm: Tensor
    values: Tensor
    vectors: Tensor

    def cotangents_of(
        self, parameters: tuple[Tensor, ...], coefficients: tuple[Tensor, ...], y: Tensor
    ) -> list[Tensor | None]:
        """Cotangents of V, parameters and coefficients from that of the result, y (M, N)."""
        basis, _, betas, residual = self.krylov
        broken = (betas == 0).any(1) | (residual == 0)
        inside = inner_products(basis, y)
        within = combine_vectors(basis, inside)
        rest = (y - within) * broken[:, None]
        size = torch.linalg.vector_norm(y, dim=1)
        tiny = torch.finfo(y.dtype).eps ** BREAKDOWN_POWER
        rest = rest * (torch.linalg.vector_norm(rest, dim=1) > tiny * size)[:, None]
        y = torch.where(broken[:, None], within, y)
        column = _first_column(self.f, self.values, self.vectors, coefficients)
        column_bar = self.norm[:, None] * inside
        T_bar = self._matrix_cotangent(coefficients, column_bar)
        V_bar, totals = _adjoint(
            self.matvec,
            parameters,
            self.krylov,
            self.norm,
            lambda k: (self.norm * column[:, k])[:, None] * y,
            T_bar.diagonal(dim1=1, dim2=2),
            T_bar.diagonal(1, 1, 2) + T_bar.diagonal(-1, 1, 2),
        )
        V_bar = V_bar + (basis[:, 0] * (column * inside).sum(1, keepdim=True)).T
        if bool(rest.any()):
            V_bar = V_bar + self._residual_cotangent(parameters, coefficients, rest, totals)
        return [V_bar, *totals, *self._coefficient_cotangents(coefficients, column_bar)]

    def _matrix_cotangent(self, coefficients: tuple[Tensor, ...], column_bar: Tensor) -> Tensor:
        """Cotangent (M, m, m) of T from that of f(T) e_1, by Daleckii and Krein."""
        divided = self.f.divided_difference(self.values[:, :, None], self.values[:, None], *coefficients)
        left = inner_products(self.vectors.mT, column_bar)
        return self.vectors @ (divided * left[:, :, None] * self.vectors[:, :1]) @ self.vectors.mT

    def _coefficient_cotangents(self, coefficients: tuple[Tensor, ...], column_bar: Tensor) -> list[Tensor | None]:
        """Cotangents of the coefficients, by torch."""
        wanted = [i for i, c in enumerate(coefficients) if c.requires_grad]
        cotangents: list[Tensor | None] = [None] * len(coefficients)
        if wanted:
            with torch.enable_grad():
                leaves = tuple(c.detach().requires_grad_(c.requires_grad) for c in coefficients)
                value = self.f.value(self.values, *leaves)
            weight = inner_products(self.vectors.mT, column_bar) * self.vectors[:, 0]
            found = torch.autograd.grad(value, [leaves[i] for i in wanted], weight, allow_unused=True)
            for i, part in zip(wanted, found, strict=True):
                cotangents[i] = part
        return cotangents

    def _residual_cotangent(
        self, parameters: tuple[Tensor, ...], coefficients: tuple[Tensor, ...], z: Tensor, totals: list[Tensor | None]
    ) -> Tensor:
        """Cotangent of V from the part z (M, N) of the result's that is orthogonal to an invariant Krylov space."""
        other, norm = recurrence(as_matrix(self.matvec, parameters, z.T), z.T, self.values.shape[1])
        values, vectors = ritz_pairs(other.alphas, other.betas)
        divided = self.f.divided_difference(values[:, :, None], self.values[:, None], *coefficients)
        X = vectors @ (divided * vectors[:, 0, :, None] * self.vectors[:, :1]) @ self.vectors.mT
        X = X * (norm * self.norm)[:, None, None]
        for k in range(X.shape[2]):
            multiplier = combine_vectors(other.basis, X[:, :, k])
            _pull_back(self.matvec, parameters, self.krylov.basis[:, k], multiplier, totals)
        return combine_vectors(other.basis, norm[:, None] * _first_column(self.f, values, vectors, coefficients)).T


def _adjoint(
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
        multiplier = r - combine_vectors(before, c) + alphas_bar[:, k : k + 1] * q
        image, pulled = _pull_back(matvec, parameters, q, multiplier, totals)
        later[:, : k + 1, k] -= alphas[:, k : k + 1] * c
        if k:
            later[:, : k + 1, k - 1] -= betas[:, k - 1 : k] * c
        if k + 1 < n_steps:
            later[:, : k + 1, k + 1] -= betas[:, k : k + 1] * c
        g = basis_bar(k) + pulled - alphas[:, k : k + 1] * r - betas[:, k : k + 1] * r_next
        g = (
            g
            + alphas_bar[:, k : k + 1] * image
            + combine_vectors(basis[:, max(0, k - 1) :], later[:, k, max(0, k - 1) :])
        )
        r_next = r
    q = basis[:, 0]
    return ((g - q * (q * g).sum(1, keepdim=True)) / norm[:, None]).T, totals


def _pull_back(
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

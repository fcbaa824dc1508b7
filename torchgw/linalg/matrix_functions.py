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
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from torchgw import validate
from torchgw.linalg.lanczos import BREAKDOWN_POWER, Krylov, combine_vectors, inner_products, recurrence, ritz_pairs
from torchgw.linalg.operators import Matrix
from torchgw.runtime.autograd import own_copies, refuse_double_backward

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


def as_matrix(matvec: Matvec, parameters: tuple[Tensor, ...], V: Tensor) -> Matrix:
    """A on vectors like V (N, M), for values of its parameters."""
    return Matrix(lambda X: matvec(parameters, X), len(V), V.device, V.dtype)


class _MatrixFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matvec: Matvec, f: ScalarFunction, n_steps: int, n: int, V: Tensor, *rest: Tensor) -> Tensor:
        solved = _Evaluation.of(matvec, f, rest[:n], rest[n:], V, n_steps)
        ctx.matvec, ctx.f, ctx.n = matvec, f, n
        ctx.save_for_backward(V, *rest, *solved.krylov, solved.values, solved.vectors)
        return solved.result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        V, *rest, basis, alphas, betas, residual, norm, values, vectors = ctx.saved_tensors
        krylov = Krylov(basis, alphas, betas, residual, norm)
        solved = _Evaluation(ctx.matvec, ctx.f, tuple(rest[: ctx.n]), tuple(rest[ctx.n :]), krylov, values, vectors)
        with torch.no_grad():
            cotangents = solved.cotangents_of(grads[0].T)
        return None, None, None, None, *refuse_double_backward(ONCE, cotangents, (V, *rest, *grads))


class _Evaluation(NamedTuple):
    """f(A) V as it was computed, and its adjoint.

    matvec, f : the matrix A (N, N) as a product, and the function.
    parameters, coefficients : of either.
    krylov : the basis (M, m, N), and the entries of T (M, m, m).
    values, vectors : eigenvalues (M, m) and eigenvectors (M, m, m) of T.
    """

    matvec: Matvec
    f: ScalarFunction
    parameters: tuple[Tensor, ...]
    coefficients: tuple[Tensor, ...]
    krylov: Krylov
    values: Tensor
    vectors: Tensor

    @classmethod
    def of(
        cls,
        matvec: Matvec,
        f: ScalarFunction,
        parameters: tuple[Tensor, ...],
        coefficients: tuple[Tensor, ...],
        V: Tensor,
        n_steps: int,
    ) -> _Evaluation:
        """After so many steps from V (N, M)."""
        krylov = recurrence(as_matrix(matvec, parameters, V), V, n_steps)
        pairs = ritz_pairs(krylov.alphas, krylov.betas)
        return cls(matvec, f, parameters, coefficients, krylov, *pairs)

    @property
    def column(self) -> Tensor:
        """f(T) e_1, (M, m)."""
        values = self.f.value(self.values, *self.coefficients)
        return inner_products(self.vectors, values * self.vectors[:, 0])

    @property
    def result(self) -> Tensor:
        """f(A) V, (N, M)."""
        weights = self.krylov.norm[:, None] * self.column
        return combine_vectors(self.krylov.basis, weights).T

    def cotangents_of(self, y: Tensor) -> list[Tensor | None]:
        """Cotangents of V, parameters and coefficients from that of the result, y (M, N)."""
        basis, _, betas, residual, norm = self.krylov
        broken = ((betas == 0).any(1) | (residual == 0))[:, None]
        inside = inner_products(basis, y)
        within = combine_vectors(basis, inside)
        rest = (y - within) * broken
        size, left = (torch.linalg.vector_norm(part, dim=1) for part in (y, rest))
        rest[left <= torch.finfo(y.dtype).eps ** BREAKDOWN_POWER * size] = 0.0
        y = torch.where(broken, within, y)
        totals = [torch.zeros_like(parameter) for parameter in self.parameters]
        # That of f(T) e_1 in the coordinates of the eigenvectors.
        turned = inner_products(self.vectors.mT, norm[:, None] * inside)
        T_bar = self._divided_differences(self.values, self.vectors, turned)
        V_bar = self._adjoint(y, T_bar, totals)
        V_bar = V_bar + (basis[:, 0] * (self.column * inside).sum(1, keepdim=True)).T
        if bool(rest.any()):
            V_bar = V_bar + self._residual_cotangent(rest, totals)
        value = partial(self.f.value, self.values)
        _, found = _differentiate(value, self.coefficients, turned * self.vectors[:, 0])
        return [V_bar, *totals, *found]

    def _divided_differences(self, values: Tensor, vectors: Tensor, weights: Tensor) -> Tensor:
        """U diag(w) f[mu, lambda] diag(U_T^T e_1) U_T^T (M, m, m), for mu, U and w (M, m), lambda and U_T of T."""
        divided = self.f.divided_difference(values[:, :, None], self.values[:, None], *self.coefficients)
        weighted = divided * weights[:, :, None] * self.vectors[:, :1]
        return vectors @ weighted @ self.vectors.mT

    def _residual_cotangent(self, z: Tensor, totals: list[Tensor]) -> Tensor:
        """Cotangent of V from the part z (M, N) of the result's that is orthogonal to an invariant Krylov space."""
        n_steps = self.values.shape[1]
        other = self.of(self.matvec, self.f, self.parameters, self.coefficients, z.T, n_steps)
        X = self._divided_differences(other.values, other.vectors, other.vectors[:, 0])
        X = X * (other.krylov.norm * self.krylov.norm)[:, None, None]
        for k in range(n_steps):
            multiplier = combine_vectors(other.krylov.basis, X[:, :, k])
            self._pull_back(self.krylov.basis[:, k], multiplier, totals)
        return other.result

    def _adjoint(self, y: Tensor, T_bar: Tensor, totals: list[Tensor]) -> Tensor:
        """Cotangent of V through the recurrence, from those of the result (M, N) and of T (M, m, m)."""
        basis, alphas, betas, _, norm = self.krylov
        n_steps = alphas.shape[1]
        weights, alphas_bar = norm[:, None] * self.column, T_bar.diagonal(dim1=1, dim2=2)
        beyond = betas.new_zeros(len(betas), 1)
        betas_bar = T_bar.diagonal(1, 1, 2) + T_bar.diagonal(-1, 1, 2)
        betas_bar = torch.cat((betas_bar, beyond), 1)
        T = torch.diag_embed(alphas) + torch.diag_embed(betas, 1) + torch.diag_embed(betas, -1)
        betas = torch.cat((betas, beyond), 1)
        C = torch.zeros_like(T)  # c_k in row k
        g = r = after = torch.zeros_like(basis[:, 0])
        for k in reversed(range(n_steps)):
            here, first = slice(k, k + 1), max(0, k - 1)
            q, before, beta = basis[:, k], basis[:, : k + 1], betas[:, here]
            tangent = g - after * (after * g).sum(1, keepdim=True)
            last, scaled = r, tangent / torch.where(beta > 0, beta, 1.0)
            r = torch.where(beta > 0, scaled, 0.0) + betas_bar[:, here] * after
            c = inner_products(before, r)
            C[:, k, : k + 1] = c
            multiplier = r - combine_vectors(before, c) + alphas_bar[:, here] * q
            image, pulled = self._pull_back(q, multiplier, totals)
            # Of the vectors in the sum of the w_i, as A Q = Q T.
            known = combine_vectors(T[:, k:, first:], C[:, k:, k])
            g = weights[:, here] * y + pulled - alphas[:, here] * r - beta * last
            g = g + alphas_bar[:, here] * image - combine_vectors(basis[:, first:], known)
            after = q
        return ((g - after * (after * g).sum(1, keepdim=True)) / norm[:, None]).T

    def _pull_back(self, q: Tensor, multiplier: Tensor, totals: list[Tensor]) -> tuple[Tensor, Tensor]:
        """A q and A multiplier, both (M, N); the parameters' cotangents of multiplier . A q are added to ``totals``."""
        start = q.T.detach().requires_grad_()
        image, (pulled, *found) = _differentiate(
            lambda X, *held: self.matvec(held, X), (start, *self.parameters), multiplier.T
        )
        for total, part in zip(totals, found, strict=True):
            if part is not None:
                total += part
        return image.T, torch.zeros_like(q) if pulled is None else pulled.T


def _differentiate(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], cotangent: Tensor
) -> tuple[Tensor, list[Tensor | None]]:
    """The value of a function, and the cotangents of those of its inputs that require a gradient."""
    leaves = own_copies(inputs)
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    with torch.enable_grad():
        value = function(*leaves)
    found = iter(torch.autograd.grad(value, wanted, cotangent, materialize_grads=True) if wanted else ())
    return value.detach(), [next(found) if leaf.requires_grad else None for leaf in leaves]

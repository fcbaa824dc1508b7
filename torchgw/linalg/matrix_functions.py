"""Functions of large symmetric matrices times vectors, by Lanczos, with exact derivatives.

    f(A) v ~ |v| Q f(T) e_1,    Q and T = tridiag(b, a, b) from the recurrence of `torchgw.linalg.lanczos`

The derivative of f(A) v in a cotangent y is

    vbar = f(A) y,    Abar = |y| |v| Q_y U_y diag(U_y^T e_1) f[mu, lambda] diag(U_v^T e_1) U_v^T Q_v^T,

with the Ritz values mu, lambda and vectors U_y, U_v of the Krylov spaces of y and of v (Daleckii and Krein), and

    f[x, y] = (f(x) - f(y)) / (x - y),    f[x, x] = f'(x),

which are finite where eigenvalues meet. It converges with the steps as f(A) v does, also where a Krylov space ends.
Abar is never formed: a step costs one vector-Jacobian product with a column of Q_v, and no graph outlives it.

Sources: N. Higham, "Functions of Matrices", 2008, theorem 3.11; P. Kandolf, A. Koskela, S. Relton, M. Schweitzer,
"Computing low-rank approximations of the Frechet derivative of a matrix function using Krylov subspace methods", 2021.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from torchgw import validate
from torchgw.linalg.lanczos import combine_vectors, inner_products, recurrence, ritz_pairs
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
    Value and gradient are those of f(A) V, as far as m steps find them. m products and O(M N m^2) work, memory
    O(M N m). The gradient takes as many again and m vector-Jacobian products of ``matvec``, one at a time, and keeps no
    graph.
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


class _Spaces(NamedTuple):
    """Krylov spaces of M vectors.

    basis : Q^T (M, m, N).
    norm : lengths of the vectors (M,).
    values, vectors : eigenvalues (M, m) and eigenvectors (M, m, m) of T.
    """

    basis: Tensor
    norm: Tensor
    values: Tensor
    vectors: Tensor

    @classmethod
    def of(cls, operator: Matrix, V: Tensor, n_steps: int) -> _Spaces:
        """From the columns of V (N, M)."""
        found = recurrence(operator, V, n_steps)
        return cls(found.basis, found.norm, *ritz_pairs(found))

    def apply(self, f: ScalarFunction, coefficients: Sequence[Tensor]) -> Tensor:
        """f(A) V (N, M)."""
        column = inner_products(self.vectors, f.value(self.values, *coefficients) * self.vectors[:, 0])
        return combine_vectors(self.basis, self.norm[:, None] * column).T


def _swapped(matvec: Matvec, X: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
    return matvec(parameters, X)


class _MatrixFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matvec: Matvec, f: ScalarFunction, n_steps: int, n: int, V: Tensor, *rest: Tensor) -> Tensor:
        found = _Spaces.of(as_matrix(matvec, rest[:n], V), V, n_steps)
        ctx.matvec, ctx.f, ctx.n = matvec, f, n
        ctx.save_for_backward(V, *rest, *found)
        return found.apply(f, rest[n:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        V, *rest, basis, norm, values, vectors = ctx.saved_tensors
        parameters, coefficients, y = tuple(rest[: ctx.n]), tuple(rest[ctx.n :]), grads[0]
        with torch.no_grad():
            lengths = torch.linalg.vector_norm(y, dim=0)
            known = torch.isfinite(lengths) & (lengths > 0)  # what overflowed passes through
            operator = as_matrix(ctx.matvec, parameters, V)
            other = _Spaces.of(operator, torch.where(known, y, V), values.shape[1])
            other = other._replace(norm=torch.where(known, other.norm, lengths))
            divided = ctx.f.divided_difference(other.values[:, :, None], values[:, None], *coefficients)
            X = other.vectors @ (divided * other.vectors[:, 0, :, None] * vectors[:, :1]) @ vectors.mT
            X = X * (other.norm * norm)[:, None, None]
            totals: list[Tensor | None] = [None] * ctx.n
            for k in range(X.shape[2] if any(parameter.requires_grad for parameter in parameters) else 0):
                image = partial(_swapped, ctx.matvec, basis[:, k].T)
                parts = _pull_back(image, parameters, combine_vectors(other.basis, X[:, :, k]).T)
                totals = [
                    old if new is None else new if old is None else old + new
                    for old, new in zip(totals, parts, strict=True)
                ]
            weight = inner_products(vectors.mT, norm[:, None] * inner_products(basis, y.T)) * vectors[:, 0]
            found = _pull_back(lambda leaves: ctx.f.value(values, *leaves), coefficients, weight)
            cotangents = [other.apply(ctx.f, coefficients), *totals, *found]
        return None, None, None, None, *refuse_double_backward(ONCE, cotangents, (V, *rest, *grads))


def _pull_back(
    function: Callable[[tuple[Tensor, ...]], Tensor], given: tuple[Tensor, ...], cotangent: Tensor
) -> list[Tensor | None]:
    """The cotangents of what a function is given, None for tensors that need none."""
    wanted = [i for i, each in enumerate(given) if each.requires_grad]
    found: list[Tensor | None] = [None] * len(given)
    if wanted:
        with torch.enable_grad():
            leaves = tuple(each.detach().requires_grad_(each.requires_grad) for each in given)
            value = function(leaves)
        parts = torch.autograd.grad(value, [leaves[i] for i in wanted], cotangent, allow_unused=True)
        for i, part in zip(wanted, parts, strict=True):
            found[i] = part
    return found

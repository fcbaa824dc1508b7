"""Self-adjoint operators, the ends of their spectra, traces and densities: against dense eigenvalues."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tests.problems import generator, normal
from torchgw.linalg.lanczos import ExtremeEigenpairs, lanczos
from torchgw.linalg.operators import Matrix, Operator
from torchgw.linalg.quadrature import lanczos_quadrature

N = 60
CPU = torch.device("cpu")


def symmetric(A: Tensor) -> Matrix:
    return Matrix(lambda V: A @ V, len(A), CPU, A.dtype)


def random_matrix(n: int = N, seed: int = 0) -> Tensor:
    A = normal(n, n, seed=seed)
    return (A + A.T) / 2


@dataclass(frozen=True)
class Pencil:
    """A = C B in the inner product of M = B C^-1 B^T ... of any symmetric positive M: A v = v + Z M v."""

    M: Tensor
    Z: Tensor
    size: int = N
    device: torch.device = CPU
    dtype: torch.dtype = torch.float64

    def metric(self, V: Tensor) -> tuple[Tensor, Tensor]:
        return V, self.M @ V

    def squared_norm_floor(self, V: Tensor) -> Tensor:
        return V.new_zeros(V.shape[1])

    def image(self, V: Tensor, U: Tensor) -> Tensor:
        return V + self.Z @ U

    @property
    def values(self) -> Tensor:
        root = torch.linalg.cholesky(self.M)
        return torch.linalg.eigvalsh(torch.eye(self.size, dtype=self.dtype) + root.T @ self.Z @ root)


def pencil(seed: int = 1) -> Pencil:
    L = normal(N, N, seed=seed)
    return Pencil(L @ L.T / N + 0.01 * torch.eye(N, dtype=torch.float64), random_matrix(seed=seed + 1))


def check(operator: Operator, found: ExtremeEigenpairs, values: Tensor, tol: float) -> None:
    few = found.n_smallest
    expected = torch.cat((values[:few], values[len(values) - len(found.values) + few :]))
    off = (found.values - expected).abs()
    assert float(off.max()) <= tol * float(values.abs().max())
    assert bool((off <= found.errors + 1e-12 * values.abs().max()).all())
    together = found.vectors.T @ operator.metric(found.vectors)[1]
    torch.testing.assert_close(together, torch.eye(len(together), dtype=torch.float64), rtol=1e-9, atol=1e-9)
    rest = operator.image(*operator.metric(found.vectors)) - found.vectors * found.values
    residual = (rest * operator.metric(rest)[1]).sum(0).clamp_min(0.0).sqrt()
    torch.testing.assert_close(residual, found.errors, rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("block", [1, 2, 5])
@pytest.mark.parametrize("stored", [2**30, 2 * N * 8 * 20])
@pytest.mark.parametrize(("smallest", "largest"), [(3, 2), (1, 0), (0, 2), (N, 0)])
def test_lanczos_finds_the_ends(block: int, stored: int, smallest: int, largest: int) -> None:
    A, other = random_matrix(), pencil()
    for operator, values in ((symmetric(A), torch.linalg.eigvalsh(A)), (other, other.values)):
        found = lanczos(operator, smallest, largest, block=block, stored_bytes=stored, max_steps=1000)
        assert found.converged
        assert len(found.values) == smallest + largest
        check(operator, found, values, 1e-12)


def test_a_basis_that_may_not_grow_is_restarted() -> None:
    A = torch.diag(torch.linspace(0, 1, 400, dtype=torch.float64))
    most = 2 * 400 * 8 * 30
    found = lanczos(symmetric(A), 2, 1, stored_bytes=most, max_steps=5000)
    whole = lanczos(symmetric(A), 2, 1)
    assert found.converged
    assert found.n_products > whole.n_products
    torch.testing.assert_close(found.values, whole.values, rtol=0, atol=1e-9)


@pytest.mark.parametrize("block", [1, 2, 3])
def test_eigenvalues_of_several_vectors(block: int) -> None:
    Q, _ = torch.linalg.qr(normal(N, N))
    values = torch.ones(N, dtype=torch.float64)
    values[:2], values[2] = -1.0, 5.0
    found = lanczos(symmetric(Q @ torch.diag(values) @ Q.T), 3, 1, block=block)
    torch.testing.assert_close(found.values, torch.tensor([-1.0, -1.0, 1.0, 5.0], dtype=torch.float64))


@pytest.mark.parametrize("n", [1, 2, 5])
def test_small_operators_have_as_many_eigenvalues_as_they_have(n: int) -> None:
    A = random_matrix(n)
    found = lanczos(symmetric(A), 3, 2, block=4)
    assert found.converged
    torch.testing.assert_close(found.values, torch.linalg.eigvalsh(A))
    assert len(lanczos(symmetric(torch.zeros_like(A)), 2, 0).values) == min(n, 2)


def test_too_few_steps_are_said() -> None:
    A = random_matrix()
    found = lanczos(symmetric(A), 2, 2, max_steps=8)
    assert not found.converged
    values = torch.linalg.eigvalsh(A)
    ends = torch.cat((values[:2], values[-2:]))
    assert bool(((found.values - ends).abs() <= found.errors).all())


def isotropic(operator: Pencil) -> object:
    root = torch.linalg.cholesky(torch.linalg.inv(operator.M))

    def drawn(count: int, generator: torch.Generator) -> Tensor:
        return root @ torch.randn(N, count, generator=generator, dtype=torch.float64)

    return drawn


def test_traces_are_within_their_errors() -> None:
    operator = pencil()
    draw = isotropic(operator)
    found = lanczos_quadrature(operator, draw, 40, 30, generator())
    for f in (torch.ones_like, lambda x: x, torch.square, lambda x: torch.exp(-x)):
        value, error = found.trace(f)
        assert 0 < error < 0.5 * abs(value)
        assert abs(value - float(f(operator.values).sum())) < 4 * error


def test_the_density_is_that_of_the_spectrum() -> None:
    A = random_matrix(300)
    values = torch.linalg.eigvalsh(A)

    def draw(count: int, generator: torch.Generator) -> Tensor:
        return torch.randn(300, count, generator=generator, dtype=torch.float64)

    found = lanczos_quadrature(symmetric(A), draw, 16, 60, generator())
    assert found.dimension == pytest.approx(300, rel=0.1)
    x = torch.linspace(float(values[0]) - 1, float(values[-1]) + 1, 2000, dtype=torch.float64)
    below, error = found.shares_below(x)
    true = (values[:, None] < x).double().mean(0)
    apart = float(torch.trapezoid((below - true).abs(), x))
    assert apart <= 0.01 * float(values[-1] - values[0])
    assert float(((below - true).abs() - 4 * error).max()) < 0.01

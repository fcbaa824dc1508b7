"""Functions of large matrices times vectors, and the adjoint of the Lanczos recurrence."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.problems import normal
from torchgw.linalg.lanczos import recurrence
from torchgw.linalg.matrix_functions import Exponential, ScalarFunction, as_matrix, matrix_function


class Resolvent:
    """1 / (1 + t + x)."""

    def value(self, x: Tensor, *coefficients: Tensor) -> Tensor:
        return 1 / (1 + coefficients[0] + x)

    def divided_difference(self, x: Tensor, y: Tensor, *coefficients: Tensor) -> Tensor:
        return -self.value(x, *coefficients) * self.value(y, *coefficients)


EXP, RESOLVENT = Exponential(), Resolvent()


def laplacian(ends: Tensor) -> Callable[[tuple[Tensor, ...], Tensor], Tensor]:
    """The product with the Laplacian of edges ``ends`` (2, E), whose one parameter is their weights (E,)."""

    def product(parameters: tuple[Tensor, ...], X: Tensor) -> Tensor:
        flow = parameters[0][:, None] * (X[ends[0]] - X[ends[1]])
        return torch.zeros_like(X).index_add(0, ends[0], flow).index_add(0, ends[1], -flow)

    return product


def random_graph(n: int, extra: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A cycle with chords: its edges (2, E) and weights (E,)."""
    generator = torch.Generator().manual_seed(seed)
    here = torch.arange(n)
    chords = torch.randint(0, n, (2, extra), generator=generator)
    ends = torch.cat((torch.stack((here, (here + 1) % n)), chords[:, chords[0] != chords[1]]), 1)
    return ends, 0.1 + torch.rand(ends.shape[1], dtype=torch.float64, generator=generator)


def dense(product: Callable[[tuple[Tensor, ...], Tensor], Tensor], weights: Tensor, n: int) -> Tensor:
    return product((weights,), torch.eye(n, dtype=torch.float64))


def by_eigenvectors(A: Tensor, V: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    values, vectors = torch.linalg.eigh(A)
    return vectors @ (f(values)[:, None] * (vectors.T @ V))


def relative(found: Tensor, truth: Tensor) -> float:
    return float(((found - truth).norm() / truth.norm()).detach())


FUNCTIONS = {"exp": (EXP, lambda x, t: torch.exp(-t * x)), "resolvent": (RESOLVENT, lambda x, t: 1 / (1 + t + x))}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_equal_the_dense_eigendecomposition(name: str) -> None:
    f, truth = FUNCTIONS[name]
    ends, weights = random_graph(200, 400)
    V, t = normal(200, 3), torch.tensor(0.7, dtype=torch.float64)
    product = laplacian(ends)
    expected = by_eigenvectors(dense(product, weights, 200), V, lambda x: truth(x, t))
    for n_steps in (60, 150):
        found = matrix_function(product, (weights,), V, f, n_steps, (t,))
        assert float((found - expected).abs().max()) < 1e-10


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_equal_those_of_the_dense_eigendecomposition(name: str) -> None:
    f, truth = FUNCTIONS[name]
    ends, weights = random_graph(200, 400)
    product, Y = laplacian(ends), normal(200, 3, seed=2)
    inputs = (weights.requires_grad_(), normal(200, 3).requires_grad_(), torch.tensor(0.7).double().requires_grad_())
    found = (matrix_function(product, inputs[:1], inputs[1], f, 60, inputs[2:]) * Y).sum()
    expected = (by_eigenvectors(dense(product, weights, 200), inputs[1], lambda x: truth(x, inputs[2])) * Y).sum()
    pairs = zip(torch.autograd.grad(found, inputs), torch.autograd.grad(expected, inputs), strict=True)
    assert max(relative(a, b) for a, b in pairs) < 1e-9


@pytest.mark.parametrize("n_steps", [1, pytest.param(4, marks=pytest.mark.slow), 9])
def test_the_adjoint_is_exact_for_the_steps_taken(n_steps: int) -> None:
    """However far from convergence: the derivative is that of what was computed."""
    ends, weights = random_graph(9, 5)
    product, V = laplacian(ends), normal(9, 2).requires_grad_()
    weights, t = weights.requires_grad_(), torch.tensor([[0.4], [1.3]]).double().requires_grad_()

    def value(w: Tensor, v: Tensor, time: Tensor) -> Tensor:
        return matrix_function(product, (w,), v, EXP, n_steps, (time,))

    assert torch.autograd.gradcheck(value, (weights, V, t))


def test_the_basis_is_orthonormal_and_the_recurrence_holds() -> None:
    ends, weights = random_graph(300, 300)
    product = laplacian(ends)
    V = normal(300, 2)
    found = recurrence(as_matrix(product, (weights,), V), V, 120)
    T = torch.diag_embed(found.alphas) + torch.diag_embed(found.betas, 1) + torch.diag_embed(found.betas, -1)
    for Q, t, last in zip(found.basis, T, found.residual, strict=True):
        torch.testing.assert_close(Q @ Q.T, torch.eye(120, dtype=torch.float64), atol=1e-13, rtol=0)
        gap = product((weights,), Q.T) - Q.T @ t
        assert float(gap[:, :-1].abs().max()) < 1e-12
        assert float(gap[:, -1].norm()) == pytest.approx(float(last), rel=1e-10)


PARTS = torch.tensor([[0, 1, 2, 0, 4, 5, 6, 7], [1, 2, 3, 3, 5, 6, 7, 8]])


@pytest.mark.parametrize("n_steps", [7, 9, 40])
@pytest.mark.parametrize("f", [EXP, RESOLVENT])
def test_breakdown_gives_the_value_and_gradient_of_the_matrix_function(n_steps: int, f: ScalarFunction) -> None:
    """Starts in one of two parts, on an eigenvector, on a sum of two, and everywhere."""
    product = laplacian(PARTS)
    weights = (0.5 + torch.rand(8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))).requires_grad_()
    start = torch.zeros(9, 5, dtype=torch.float64)
    start[0, 0] = start[4, 1] = 1.0
    start[:, 2] = 1.0
    start[:4, 3], start[4:, 3] = 1.0, -2.0
    start[:, 4] = normal(9)
    V, t, Y = start.requires_grad_(), torch.tensor(0.6).double().requires_grad_(), normal(9, 5, seed=4)
    found = matrix_function(product, (weights,), V, f, n_steps, (t,))
    A = dense(product, weights, 9)
    if f is EXP:
        expected = torch.matrix_exp(-t * A) @ V
    else:
        expected = torch.linalg.solve(A + (1 + t) * torch.eye(9, dtype=torch.float64), V)
    assert relative(found, expected) < (1e-12 if n_steps >= 9 else 1e-7)  # seven steps end before the last column does
    inputs = (weights, V, t)
    got = torch.autograd.grad((found * Y).sum(), inputs)
    for a, b in zip(got, torch.autograd.grad((expected * Y).sum(), inputs), strict=True):
        assert relative(a, b) < (1e-10 if n_steps >= 9 else 1e-3)


def test_a_breakdown_needs_no_value_where_the_function_has_none() -> None:
    """1 / x from a start in one part; nothing after the breakdown may divide by zero."""
    weights, start = torch.ones(8, dtype=torch.float64).requires_grad_(), torch.zeros(9, 1, dtype=torch.float64)
    start[0, 0] = 1.0
    shifted = laplacian(PARTS)
    found = matrix_function(lambda p, X: X + shifted(p, X), (weights,), start, RESOLVENT, 8, (torch.tensor(-1.0),))
    expected = torch.linalg.solve(torch.eye(9, dtype=torch.float64) + dense(shifted, weights, 9), start)
    torch.testing.assert_close(found, expected, atol=1e-14, rtol=0)
    (got,) = torch.autograd.grad(found.square().sum(), weights)
    torch.testing.assert_close(got, torch.autograd.grad(expected.square().sum(), weights)[0], atol=1e-13, rtol=0)


def test_a_breakdown_ends_basis_and_coefficients_with_zeros() -> None:
    weights = torch.ones(8, dtype=torch.float64)
    start = torch.zeros(9, 2, dtype=torch.float64)
    start[:, 0] = 1.0
    start[0, 1] = 1.0
    found = recurrence(as_matrix(laplacian(PARTS), (weights,), start), start, 6)
    assert (found.basis[:, :, 0] != 0).any()
    norms = found.basis.norm(dim=2)
    torch.testing.assert_close(norms[0], torch.tensor([1.0, 0, 0, 0, 0, 0], dtype=torch.float64))
    assert norms[1].sum().item() == pytest.approx(3)  # a cycle of four, from one of its nodes
    assert (found.betas[0] == 0).all()
    assert (found.betas[1] == 0).tolist() == [False, False, True, True, True]
    assert (found.residual == 0).all()


def test_one_node_and_single_precision() -> None:
    one = matrix_function(lambda p, X: p[0] * X, (torch.tensor(2.0),), torch.ones(1, 1), EXP, 5, (torch.tensor(0.5),))
    assert one.item() == pytest.approx(torch.exp(torch.tensor(-1.0)).item())
    ends, weights = random_graph(60, 60)
    V, t = normal(60, 2), torch.tensor(0.5)
    single = matrix_function(laplacian(ends), (weights.float(),), V.float(), EXP, 40, (t,))
    assert single.dtype == torch.float32
    double = matrix_function(laplacian(ends), (weights,), V, EXP, 40, (t.double(),))
    assert relative(single.double(), double) < 1e-5


def test_divided_differences_meet_the_derivative() -> None:
    x = torch.tensor([[[0.0], [1.0], [1.0 + 1e-9], [1.0 + 1e-4], [30.0]]], dtype=torch.float64)
    t = torch.tensor(0.8, dtype=torch.float64)
    mean = (x + x.mT) / 2
    half = (x - x.mT).abs() / 2
    sinhc = torch.where(half > 0, torch.sinh(t * half) / torch.where(half > 0, t * half, 1.0), 1.0)
    expected = -t * torch.exp(-t * mean) * sinhc
    torch.testing.assert_close(EXP.divided_difference(x, x.mT, t), expected, rtol=1e-12, atol=1e-15)


def test_a_second_derivative_is_refused() -> None:
    ends, weights = random_graph(12, 6)
    V, weights = normal(12, 1).requires_grad_(), weights.requires_grad_()
    t = torch.tensor(0.5, dtype=torch.float64)
    value = matrix_function(laplacian(ends), (weights,), V, EXP, 5, (t,)).square().sum()
    first = torch.autograd.grad(value, (weights, V), create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        first[0].sum().backward()


def test_bad_input() -> None:
    ends, weights = random_graph(12, 6)
    product, t = laplacian(ends), torch.tensor(0.5, dtype=torch.float64)
    zero = torch.zeros(12, 2, dtype=torch.float64)
    for V, n_steps, error, text in (
        (zero, 3, ValueError, "V must have columns that are finite and not zero"),
        (zero / 0, 3, ValueError, "V must have columns that are finite"),
        (zero[0], 3, ValueError, r"V must be floating point start vectors \(N, M\), got \(2,\)"),
        (zero.long(), 3, ValueError, "torch.int64"),
        ([1.0], 3, TypeError, "V must be a Tensor"),
        (zero + 1, 0, ValueError, "n_steps must be >= 1"),
        (zero + 1, 2.0, TypeError, "n_steps must be an integer"),
    ):
        with pytest.raises(error, match=text):
            matrix_function(product, (weights,), V, EXP, n_steps, (t,))  # type: ignore[arg-type]


def test_what_needs_no_gradient_gets_none() -> None:
    ends, weights = random_graph(20, 10)
    t = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    out = matrix_function(laplacian(ends), (weights,), normal(20, 2), EXP, 8, (t,)).sum()
    out.backward()
    assert t.grad is not None
    assert weights.grad is None


def saved_bytes(n_steps: int) -> int:
    """Bytes that the forward pass keeps for the backward pass, each storage once."""
    ends, weights = random_graph(500, 1000)
    storages: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        matrix_function(
            laplacian(ends), (weights.requires_grad_(),), normal(500, 2), EXP, n_steps, (torch.tensor(0.5).double(),)
        )
    return sum(storages.values())


def test_the_forward_pass_keeps_the_basis_and_no_graph() -> None:
    growth = saved_bytes(40) - saved_bytes(10)
    basis = 30 * 500 * 2 * 8
    assert basis <= growth < basis + 2 * 8 * (4 * 40**2 + 300)


PEAK = r"""
import re
from pathlib import Path
import torch
from tests.test_lanczos import EXP, laplacian, normal, random_graph

def read(key):
    return int(re.search(key + r":\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024

n, columns = 40000, 2
ends, weights = random_graph(n, 120000)
t = torch.tensor(0.3, dtype=torch.float64)
from torchgw.linalg.matrix_functions import matrix_function
start = normal(n, columns)
for n_steps in (3, 20, 60):
    w = weights.clone().requires_grad_()
    matrix_function(laplacian(ends), (w,), start, EXP, n_steps, (t,)).square().sum().backward()
    print(read("VmHWM"))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_peak_memory_grows_by_the_basis_alone() -> None:
    """40 steps more of 40000 nodes and 2 columns: 26 MB of basis, beside which pages of a busy machine are few. Graphs
    of the steps would keep 8 times that."""
    root = Path(__file__).parent.parent
    at_once = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed leaves the process at once
    done = subprocess.run(
        [sys.executable, "-c", PEAK], capture_output=True, text=True, check=False, cwd=root, env=at_once
    )
    assert done.returncode == 0, done.stderr
    _, short, long = map(int, done.stdout.split())
    assert 0.9 * 40 * 40000 * 2 * 8 < long - short < 1.2 * 40 * 40000 * 2 * 8

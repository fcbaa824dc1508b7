"""The inner solver against plain scaling, its laws, and its honesty about convergence."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.problems import random_masses, sinkhorn_oracle
from torchgw import AnnealingOptions
from torchgw.kernels import LOG2E
from torchgw.kernels.softmin_dense.reference import KERNEL
from torchgw.options import SinkhornOptions
from torchgw.runtime.transfer import AsyncNumbers
from torchgw.sinkhorn.loop import SinkhornState, epsilon_at, rescale, sinkhorn
from torchgw.sinkhorn.sides import MarginalConstraint


def solve(
    C: np.ndarray,
    p: np.ndarray,
    q: np.ndarray,
    epsilon: float,
    relaxation: float = 1.0,
    *,
    max_iter: int = 5000,
    tol: float = 1e-13,
    check_every: int = 10,
) -> tuple[Tensor, SinkhornState]:
    score = torch.from_numpy(-C * LOG2E / epsilon)
    log_p, log_q = torch.from_numpy(p).log2(), torch.from_numpy(q).log2()
    options = SinkhornOptions(tol=tol, check_every=check_every, relaxation=relaxation)
    state = sinkhorn(
        KERNEL.bind(score),
        MarginalConstraint(log_p),
        MarginalConstraint(log_q),
        log_p,
        options=options,
        max_iter=max_iter,
    )
    return (score + state.f[:, None] + state.g).exp2(), state


@pytest.mark.parametrize("relaxation", [1.0, 1.5, 1.8])
def test_the_plan_is_that_of_plain_scaling(relaxation: float) -> None:
    rng = np.random.default_rng(0)
    C, p, q = rng.uniform(size=(20, 25)), random_masses(20, rng), random_masses(25, rng)
    plan, state = solve(C, p, q, 0.05, relaxation)
    np.testing.assert_allclose(plan.numpy(), sinkhorn_oracle(C, p, q, 0.05), atol=1e-12)
    assert state.residual <= 1e-13


@given(n=st.integers(1, 15), k=st.integers(1, 15), seed=st.integers(0, 10**6), shift=st.floats(-5, 5))
@settings(max_examples=30, deadline=None)
def test_a_constant_added_to_the_cost_changes_nothing(n: int, k: int, seed: int, shift: float) -> None:
    rng = np.random.default_rng(seed)
    C, p, q = rng.uniform(size=(n, k)), random_masses(n, rng), random_masses(k, rng)
    np.testing.assert_allclose(solve(C + shift, p, q, 0.1)[0], solve(C, p, q, 0.1)[0], atol=1e-11)


@given(n=st.integers(1, 15), k=st.integers(1, 15), seed=st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_transposing_the_cost_transposes_the_plan(n: int, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    C, p, q = rng.uniform(size=(n, k)), random_masses(n, rng), random_masses(k, rng)
    np.testing.assert_allclose(solve(C.T, q, p, 0.1)[0].T, solve(C, p, q, 0.1)[0], atol=1e-11)


def test_relabelling_points_relabels_the_plan() -> None:
    rng = np.random.default_rng(1)
    C, p, q = rng.uniform(size=(13, 17)), random_masses(13, rng), random_masses(17, rng)
    i, j = rng.permutation(13), rng.permutation(17)
    np.testing.assert_allclose(solve(C[i][:, j], p[i], q[j], 0.1)[0], solve(C, p, q, 0.1)[0][i][:, j], atol=1e-12)


def test_a_large_epsilon_gives_the_product_plan() -> None:
    rng = np.random.default_rng(2)
    C, p, q = rng.uniform(size=(9, 8)), random_masses(9, rng), random_masses(8, rng)
    np.testing.assert_allclose(solve(C, p, q, 1e6)[0], np.outer(p, q), atol=1e-6)


def test_points_without_mass_get_none_and_disturb_nobody() -> None:
    rng = np.random.default_rng(3)
    C, p, q = rng.uniform(size=(10, 12)), random_masses(10, rng), random_masses(12, rng)
    p[[0, 4]], q[[11]] = 0, 0
    p, q = p / p.sum(), q / q.sum()
    for relaxation in (1.0, 1.8):
        plan, state = solve(C, p, q, 0.05, relaxation)
        assert torch.isfinite(plan).all()
        assert np.isfinite(float(state.residual))
        keep = np.ix_(p > 0, q > 0)
        np.testing.assert_allclose(plan[keep], sinkhorn_oracle(C[keep], p[p > 0], q[q > 0], 0.05), atol=1e-11)
        assert float(plan.sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("n_iter", [1, 7, 30])
def test_rows_are_exact_and_the_residual_is_that_of_the_columns(n_iter: int) -> None:
    rng = np.random.default_rng(4)
    C, p, q = rng.uniform(size=(20, 25)), random_masses(20, rng), random_masses(25, rng)
    plan, state = solve(C, p, q, 0.01, max_iter=n_iter)
    np.testing.assert_allclose(plan.sum(1), p, atol=1e-14)
    error = float((plan.sum(0) - torch.from_numpy(q)).abs().sum())
    assert float(state.residual) == pytest.approx(error, rel=1e-9)
    assert state.n_iter == n_iter


def test_the_host_reads_at_checks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted(AsyncNumbers):
        count = 0

        def values(self) -> list[float]:
            Counted.count += 1
            return super().values()

    rng = np.random.default_rng(4)
    C, p, q = rng.uniform(size=(20, 25)), random_masses(20, rng), random_masses(25, rng)
    monkeypatch.setattr("torchgw.sinkhorn.loop.AsyncNumbers", Counted)
    with Reads() as reads:
        _, state = solve(C, p, q, 0.01, max_iter=57, tol=1e-300, check_every=10)
    assert state.n_iter == 57
    assert Counted.count == 5
    assert reads.count == 0


def test_a_reading_that_overlaps_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(AsyncNumbers):
        def __init__(self, numbers: Tensor) -> None:
            super().__init__(numbers.clone())
            self.overlaps = True

        def values(self) -> list[float]:
            return self._host.tolist()

    rng = np.random.default_rng(4)
    C, p, q = rng.uniform(size=(20, 25)), random_masses(20, rng), random_masses(25, rng)
    for relaxation, max_iter in itertools.product((1.0, 1.7), (37, 5000)):
        expected = solve(C, p, q, 0.02, relaxation, tol=1e-6, max_iter=max_iter)
        with monkeypatch.context() as patched:
            patched.setattr("torchgw.sinkhorn.loop.AsyncNumbers", Late)
            plan, state = solve(C, p, q, 0.02, relaxation, tol=1e-6, max_iter=max_iter)
        assert torch.equal(plan, expected[0])
        assert state.n_iter == expected[1].n_iter
        assert float(state.residual) == float(expected[1].residual)


class Reads(TorchDispatchMode):
    """Counts what a GPU would have to be waited for: numbers read, and sizes that depend on values."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        waits = (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero, torch.ops.aten.masked_select)
        self.count += function.overloadpacket in waits
        return function(*args, **(kwargs or {}))


def test_warm_potentials_need_no_iterations() -> None:
    rng = np.random.default_rng(5)
    C, p, q = rng.uniform(size=(20, 25)), random_masses(20, rng), random_masses(25, rng)
    _, first = solve(C, p, q, 0.02, tol=1e-9)
    score = torch.from_numpy(-C * LOG2E / 0.02)
    again = sinkhorn(
        KERNEL.bind(score),
        MarginalConstraint(torch.from_numpy(p).log2()),
        MarginalConstraint(torch.from_numpy(q).log2()),
        first.f,
        options=SinkhornOptions(tol=1e-9, check_every=1, relaxation=1.0),
        max_iter=1000,
    )
    assert again.n_iter == 1


def test_over_relaxation_needs_fewer_iterations_and_recovers_where_it_diverges() -> None:
    x, y = np.linspace(0, 1, 60), np.linspace(0, 1, 70)
    C, p, q = (x[:, None] - y) ** 2, np.full(60, 1 / 60), np.full(70, 1 / 70)
    plain = solve(C, p, q, 1e-3, 1.0, tol=1e-6)[1]
    faster = solve(C, p, q, 1e-3, 1.8, tol=1e-6)[1]
    assert faster.residual <= 1e-6
    assert faster.n_iter < plain.n_iter / 2
    assert solve(C, p, q, 1e-3, 1.99, tol=1e-6)[1].residual <= 1e-6


def test_annealing_falls_from_the_factor_to_the_target_and_stays() -> None:
    options = AnnealingOptions(factor=10.0, n_iter=5)
    path = [epsilon_at(i, 0.01, options) for i in range(8)]
    assert path[0] == pytest.approx(0.1)
    assert path[5:] == [0.01] * 3
    ratios = np.array(path[1:6]) / np.array(path[:5])
    np.testing.assert_allclose(ratios, 10 ** (-1 / 5))
    assert epsilon_at(0, 0.01, AnnealingOptions(n_iter=0)) == 0.01


def test_rescaling_keeps_the_cost_part_of_a_potential() -> None:
    log_mass = torch.tensor([-2.0, -1.0, -torch.inf])
    potential = log_mass + torch.tensor([4.0, -3.0, 0.0])
    rescaled = rescale(potential, log_mass, 0.1 / 0.05)
    torch.testing.assert_close(rescaled[:2] - log_mass[:2], torch.tensor([8.0, -6.0]))
    assert torch.isneginf(rescaled[2])
    assert rescale(potential, log_mass, 1.0) is potential

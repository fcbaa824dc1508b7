"""Sinkhorn by scaling a stored kernel, against the plain oracle and the log domain."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.problems import random_masses, sinkhorn_oracle
from torchgw.couplings.rounding import make_feasible
from torchgw.kernels import LOG2E
from torchgw.kernels.softmin_dense.reference import KERNEL
from torchgw.options import SinkhornOptions
from torchgw.sinkhorn.loop import SinkhornState, sinkhorn
from torchgw.sinkhorn.scaling import Scaler, _continue_scaling, iterate_and_absorb, solve_by_scaling, solve_plans
from torchgw.sinkhorn.sides import MarginalConstraint


def problem(n: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.uniform(size=(n, k)), random_masses(n, rng), random_masses(k, rng)


def solve(
    C: np.ndarray,
    p: np.ndarray,
    q: np.ndarray,
    epsilon: float,
    *,
    max_iter: int = 5000,
    tol: float = 1e-12,
    relaxation: float = 1.8,
    f: torch.Tensor | None = None,
    g: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, SinkhornState]:
    score = torch.from_numpy(-C * LOG2E / epsilon).to(dtype)
    log_p, log_q = (torch.from_numpy(m).log2().to(dtype) for m in (p, q))
    out = torch.empty_like(score)
    state = solve_by_scaling(
        Scaler(KERNEL.bind(score), MarginalConstraint(log_p), MarginalConstraint(log_q), out),
        log_p if f is None else f,
        log_q if g is None else g,
        options=SinkhornOptions(tol=tol, relaxation=relaxation),
        max_iter=max_iter,
    )
    return out, state


@pytest.mark.parametrize(("n", "k", "epsilon"), [(20, 25, 0.05), (33, 7, 0.02), (1, 5, 0.1), (5, 1, 0.1)])
def test_the_plan_is_that_of_plain_scaling(n: int, k: int, epsilon: float) -> None:
    C, p, q = problem(n, k, n)
    plan, state = solve(C, p, q, epsilon)
    np.testing.assert_allclose(plan, sinkhorn_oracle(C, p, q, epsilon), atol=1e-11)
    score = torch.from_numpy(-C * LOG2E / epsilon)
    np.testing.assert_allclose((score + state.f[:, None] + state.g).exp2(), plan, rtol=1e-9, atol=1e-14)
    assert state.residual <= 1e-12


def test_a_cold_start_at_a_tiny_epsilon_agrees_with_the_log_domain() -> None:
    """Kernels that underflow everywhere must be absorbed anew instead of dividing by zero."""
    C, p, q = problem(40, 50, 1)
    C = C**2
    plan, state = solve(C, p, q, 2e-4, dtype=torch.float32, tol=1e-3, max_iter=3000)
    score = torch.from_numpy(-C * LOG2E / 2e-4)
    log_p, log_q = torch.from_numpy(p).log2(), torch.from_numpy(q).log2()
    options = SinkhornOptions(tol=1e-5, check_every=50, relaxation=1.0)
    expected = sinkhorn(
        KERNEL.bind(score),
        MarginalConstraint(log_p),
        MarginalConstraint(log_q),
        log_p,
        options=options,
        max_iter=100_000,
    )
    reference = (score + expected.f[:, None] + expected.g).exp2()
    assert state.residual <= 1e-3
    assert torch.isfinite(plan).all()
    assert float((plan - reference).abs().sum()) < 0.02


def test_scalings_that_grow_are_absorbed_before_clamped_entries_matter() -> None:
    C, p, q = problem(20, 25, 2)
    plan, state = solve(C**2, p, q, 1e-3, tol=1e-4, max_iter=1000)
    score = torch.from_numpy(-(C**2) * LOG2E / 1e-3)
    assert float(((score + state.f[:, None] + state.g).exp2() - plan).abs().sum()) < 1e-12


def test_potentials_far_from_the_solution_do_no_harm() -> None:
    C, p, q = problem(20, 25, 2)
    rng = np.random.default_rng(0)
    f, g = (torch.from_numpy(500 * rng.normal(size=size)) for size in (20, 25))
    plan, _ = solve(C, p, q, 0.05, f=f, g=g)
    np.testing.assert_allclose(plan, sinkhorn_oracle(C, p, q, 0.05), atol=1e-11)


def test_points_without_mass_get_none() -> None:
    C, p, q = problem(12, 15, 3)
    p[[0, 5]], q[[14]] = 0, 0
    p, q = p / p.sum(), q / q.sum()
    plan, state = solve(C, p, q, 0.05)
    assert float(plan[[0, 5]].sum() + plan[:, 14].sum()) == 0
    keep = np.ix_(p > 0, q > 0)
    np.testing.assert_allclose(plan[keep], sinkhorn_oracle(C[keep], p[p > 0], q[q > 0], 0.05), atol=1e-11)
    assert torch.isneginf(state.f[[0, 5]]).all()


def test_the_residuals_say_how_far_the_columns_are_and_were() -> None:
    C, p, q = problem(20, 25, 4)
    plan, state = solve(C, p, q, 0.05, tol=1e-300, max_iter=4, relaxation=1.0)
    np.testing.assert_allclose(plan.sum(1), p, atol=1e-14)
    before = torch.from_numpy(-C * LOG2E / 0.05) + torch.from_numpy(p).log2()[:, None] + torch.from_numpy(q).log2()
    columns = before.exp2().sum(0)
    assert state.warm_residual == pytest.approx(float((columns - torch.from_numpy(q)).abs().sum()), rel=1e-9)
    again, warm = solve(C, p, q, 0.05, f=state.f, g=state.g, tol=1e-12)
    assert warm.warm_residual == pytest.approx(float((plan.sum(0) - torch.from_numpy(q)).abs().sum()), rel=1e-6)
    assert torch.isfinite(again).all()


def test_warm_potentials_stop_at_once() -> None:
    C, p, q = problem(20, 25, 5)
    _, first = solve(C, p, q, 0.05)
    _, second = solve(C, p, q, 0.05, f=first.f, g=first.g, tol=1e-9)
    assert second.n_iter == 2
    assert second.warm_residual < 1e-9


def test_over_relaxation_needs_fewer_iterations() -> None:
    x, y = np.linspace(0, 1, 60), np.linspace(0, 1, 70)
    C, p, q = (x[:, None] - y) ** 2, np.full(60, 1 / 60), np.full(70, 1 / 70)
    plain, faster = (solve(C, p, q, 1e-3, relaxation=w, tol=1e-6)[1] for w in (1.0, 1.8))
    assert faster.n_iter < plain.n_iter / 2
    assert solve(C, p, q, 3e-3, relaxation=1.99, tol=1e-6)[1].n_iter < 120  # 211 where the weight stays


def test_a_batch_is_solved_like_its_members() -> None:
    C, p, q = problem(10, 12, 6)
    scores = torch.from_numpy(-np.stack((C, C**2, 2 * C)) * LOG2E / 0.3)
    row, column = (MarginalConstraint(torch.from_numpy(mass).log2()) for mass in (p, q))
    plans, f, g = solve_plans(scores, row, column, *(torch.zeros(3, n, dtype=torch.float64) for n in (10, 12)), 500)
    torch.testing.assert_close(plans, (scores + f[:, :, None] + g[:, None, :]).exp2())
    for plan, cost in zip(plans, (C, C**2, 2 * C), strict=True):
        np.testing.assert_allclose(plan, sinkhorn_oracle(cost, p, q, 0.3), atol=1e-12)


@pytest.mark.parametrize("shape", [(9, 11), (3, 9, 11)])
def test_rounded_plans_are_feasible_and_near(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(7)
    p, q = (torch.from_numpy(random_masses(size, rng)) for size in (9, 11))
    plan = p[:, None] * q * torch.from_numpy(rng.uniform(0.9, 1.1, size=shape))
    error = (plan.sum(-1) - p).abs().sum(-1) + (plan.sum(-2) - q).abs().sum(-1)
    rounded = make_feasible(plan.clone(), p, q)
    np.testing.assert_allclose(rounded.sum(-1), p.expand(*shape[:-2], -1), atol=1e-15)
    np.testing.assert_allclose(rounded.sum(-2), q.expand(*shape[:-2], -1), atol=1e-15)
    assert float(rounded.min()) >= 0
    assert ((rounded - plan).abs().sum((-1, -2)) <= 2 * error + 1e-12).all()


@pytest.mark.parametrize("relaxation", [1.0, 1.8])
def test_checks_that_are_taken_together_go_on_as_long_as_single_ones(relaxation: float) -> None:
    """A residual that rises ends them only where the weight is brought down by it."""
    score = 4 * torch.randn(60, 80, generator=torch.Generator().manual_seed(0))
    log_p, log_q = (torch.full((size,), 1 / size).log2() for size in score.shape)
    scaler = Scaler(KERNEL.bind(score), MarginalConstraint(log_p), MarginalConstraint(log_q), torch.empty_like(score))
    first = iterate_and_absorb(scaler.score, scaler.row, scaler.column, scaler.out, log_p, log_q)
    first = first._replace(readings=torch.zeros_like(first.readings))  # any residual is above that
    one = _continue_scaling(scaler, first, [2], relaxation, 1e-30)
    two = _continue_scaling(scaler, one, [2], relaxation, 1e-30)
    both = _continue_scaling(scaler, first, [2, 2], relaxation, 1e-30)
    assert torch.equal(both.u, (one if relaxation > 1 else two).u)
    assert not torch.equal(one.u, two.u)

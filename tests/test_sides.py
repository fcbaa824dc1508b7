"""Half-steps of one side: every marginal model, in the log domain and as scalings of a stored plan."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.problems import generator
from torchgw.kernels import LOG2E
from torchgw.kernels.softmin_dense.reference import KERNEL, softmin
from torchgw.options import SinkhornOptions
from torchgw.sinkhorn.loop import sinkhorn
from torchgw.sinkhorn.scaling import Scaler, solve_by_scaling
from torchgw.sinkhorn.sides import MarginalConstraint, translation, water_level

F64 = torch.float64


@given(n=st.integers(1, 30), seed=st.integers(0, 10**6), share=st.floats(0.01, 1.0), reach=st.floats(0.1, 300.0))
@settings(max_examples=60, deadline=None)
def test_the_water_level_fills_up_to_the_total(n: int, seed: int, share: float, reach: float) -> None:
    gen = generator(seed)
    x = reach * torch.randn(2, n, dtype=F64, generator=gen)
    mass = torch.rand(2, n, dtype=F64, generator=gen) + 1e-3
    mass[:, : n // 4] = 0.0
    for row, weight in zip(x, mass, strict=True):
        total = share * float(weight.sum())
        level = water_level(row, weight, total)
        filled = (weight * (level - row).clamp_max(0.0).exp2()).sum()
        assert float(filled) == pytest.approx(total, rel=1e-9)
    total = share * float(mass.sum(1).min())
    together = water_level(x, mass, total)
    torch.testing.assert_close(together[0], water_level(x[0], mass[0], total))


SIDES = {
    "hard": {},
    "relaxed": {"tau": 0.7},
    "nearly free": {"tau": 0.01},
    "free": {"tau": 0.0},
    "bounded": {"total": 0.6},
}


@pytest.mark.parametrize("kind", SIDES)
def test_scalings_of_a_stored_plan_are_half_steps(kind: str) -> None:
    gen = generator(1)
    score = -5 * torch.rand(9, 12, dtype=F64, generator=gen)
    mass = torch.rand(9, dtype=F64, generator=gen)
    mass[3] = 0.0
    offset = torch.randn(9, dtype=F64, generator=gen)
    side = MarginalConstraint((mass / mass.sum()).log2(), offset=offset, **SIDES[kind])
    f, g = torch.randn(9, dtype=F64, generator=gen), torch.randn(12, dtype=F64, generator=gen)
    f[3] = -torch.inf
    plan = (score + f[:, None] + g).exp2()
    u = side.scaling(f, plan.sum(1))
    expected = side.potential(softmin(score, g, 1))
    torch.testing.assert_close(f + u.log2(), expected)
    assert u[3] == 1.0


@pytest.mark.parametrize("kind", SIDES)
def test_half_steps_reach_what_each_model_asks(kind: str) -> None:
    """Sums of rows after a half-step, from the definitions."""
    gen = generator(2)
    mass = torch.rand(8, dtype=F64, generator=gen)
    mass = mass / mass.sum()
    side = MarginalConstraint(mass.log2(), offset=torch.randn(8, dtype=F64, generator=gen), **SIDES[kind])
    softmins = 3 * torch.randn(8, dtype=F64, generator=gen)
    potential, zero = side.potential(softmins), torch.zeros_like(softmins)
    sums = (potential + softmins).exp2()
    torch.testing.assert_close(side.potential_from_sums(sums, zero), potential if side.has_divergence else zero)
    torch.testing.assert_close(side.sums_after_step(softmins, mass), sums)
    tau = SIDES[kind].get("tau", 1.0)
    if kind == "bounded":
        assert float(sums.sum()) == pytest.approx(0.6, rel=1e-12)
        assert (sums <= mass * (1 + 1e-12)).all()
    elif tau == 1.0:
        torch.testing.assert_close(sums, mass)
    else:  # the minimiser of epsilon KL(row) + rho KL(sums | mass) moves the sums by (1 - tau) of the way in logarithms
        pull = softmins - side.offset
        torch.testing.assert_close(sums.log2(), mass.log2() + (1 - tau) * pull)


@pytest.mark.parametrize("kind", SIDES)
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_scaling_and_the_log_domain_end_in_the_same_plan(kind: str, dtype: torch.dtype) -> None:
    gen = generator(3)
    C = torch.rand(30, 40, dtype=F64, generator=gen)
    score = (-C * LOG2E / 0.05).to(dtype)
    p, q = (torch.rand(size, dtype=F64, generator=gen) for size in (30, 40))
    log_p, log_q = ((m / m.sum()).log2().to(dtype) for m in (p, q))
    offset = torch.rand(40, dtype=F64, generator=gen).to(dtype)
    row = MarginalConstraint(log_p, total=SIDES[kind].get("total"), offset=torch.zeros_like(log_p))
    column = MarginalConstraint(log_q, offset=offset, **SIDES[kind])
    plan, tol = torch.empty_like(score), 1e-5 if dtype == torch.float32 else 1e-12
    relaxed, plain = ({"options": SinkhornOptions(tol=tol, relaxation=w), "max_iter": 5000} for w in (1.5, 1.0))
    state = solve_by_scaling(Scaler(KERNEL.bind(score), row, column, plan), log_p, log_q, **relaxed)
    other = sinkhorn(KERNEL.bind(score), row, column, log_p, log_q, **plain)
    expected = (score + other.f[:, None] + other.g).exp2()
    assert float((plan - expected).abs().sum()) < 20 * tol
    assert state.residual <= tol
    if column.has_divergence:  # its potential alone says where to begin
        again = solve_by_scaling(Scaler(KERNEL.bind(score), row, column, plan), log_p, state.g, **relaxed)
        assert again.warm_residual < 20 * tol
        assert sinkhorn(KERNEL.bind(score), row, column, log_p, other.g, **plain).warm_residual < 20 * tol


@pytest.mark.parametrize(("tau_x", "tau_y"), [(0.7, 1.0), (1.0, 0.6), (0.7, 0.6)])
def test_translations_end_where_the_dual_is_highest(tau_x: float, tau_y: float) -> None:
    """There sum_i m_i 2^(-phi_i / r) is the mass of the plan, for both sides."""
    gen, mass, levels, sides, potentials = generator(6), torch.tensor([0.8], dtype=F64), [], [], []
    for size, tau in ((8, tau_x), (9, tau_y)):
        m, offset, potential = torch.rand(3, size, dtype=F64, generator=gen)
        sides.append(MarginalConstraint((m / m.sum()).log2(), tau, offset))
        potentials.append(potential)
    shifts = translation(*sides, *potentials, mass.log2())
    for side, potential, shift, tau in zip(sides, potentials, shifts, (tau_x, tau_y), strict=True):
        phi = potential + shift + side.offset - side.log_mass
        levels.append((side.log_mass - (1 / tau - 1) * phi).exp2().sum().log2())
    torch.testing.assert_close(torch.stack(levels), (mass.log2() + sum(shifts)).expand(2))


def test_the_mass_of_a_plan_between_relaxed_sides_is_found_at_once() -> None:
    """Weak entropies would move the mass by one part in a thousand at each iteration."""
    gen = generator(4)
    C = torch.rand(20, 25, dtype=F64, generator=gen)
    epsilon, rho = 1e-2, 10.0
    score = -(C + 3.0) * LOG2E / epsilon
    masses = [torch.rand(size, dtype=F64, generator=gen) for size in (20, 25)]
    tau = rho / (rho + epsilon)
    row, column = (MarginalConstraint((mass / mass.sum()).log2(), tau, torch.zeros_like(mass)) for mass in masses)
    options = SinkhornOptions(tol=1e-12, relaxation=1.0)
    state = sinkhorn(KERNEL.bind(score), row, column, row.log_mass, options=options, max_iter=3000)
    assert state.n_iter < 500
    plan = (score + state.f[:, None] + state.g).exp2()
    shifts = translation(row, column, state.f, state.g, plan.sum()[None].log2())
    assert max(abs(float(shift)) for shift in shifts) < 1e-9
    # The derivative along the ray of the objective vanishes.
    p, q = row.log_mass.exp2(), column.log_mass.exp2()
    relative = torch.special.xlogy(plan, plan / (p[:, None] * q)).sum()
    slopes = [float(torch.special.xlogy(x, x / m).sum()) for x, m in ((plan.sum(1), p), (plan.sum(0), q))]
    slope = float(((C + 3.0) * plan).sum() + epsilon * relative) + rho * sum(slopes)
    assert slope == pytest.approx(0.0, abs=1e-8)


def test_batches_are_solved_like_their_members() -> None:
    gen = generator(5)
    log_mass = torch.rand(7, dtype=F64, generator=gen).log2()
    softmins, offset = torch.randn(4, 7, dtype=F64, generator=gen), torch.randn(4, 7, dtype=F64, generator=gen)
    tau = torch.tensor([0.2, 0.5, 0.9, 0.0], dtype=F64)
    together = MarginalConstraint(log_mass, tau[:, None], offset).potential(softmins)
    for i in range(4):
        torch.testing.assert_close(
            together[i], MarginalConstraint(log_mass, float(tau[i]), offset[i]).potential(softmins[i])
        )
    bounded = MarginalConstraint(log_mass, offset=offset, total=0.5).potential(softmins)
    for i in range(4):
        torch.testing.assert_close(
            bounded[i], MarginalConstraint(log_mass, offset=offset[i], total=0.5).potential(softmins[i])
        )
    assert math.isfinite(float(bounded.sum()))
    assert np.isfinite(together.numpy()).all()

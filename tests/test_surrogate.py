"""Factors near stored distances: how near they are, and that solves which begin between them end where others do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

import torchgw
from tests.problems import quietly, random_masses
from torchgw.couplings.blocks import DenseCoupling
from torchgw.couplings.sparse import SparseCoupling
from torchgw.objective.certify import exact_objective
from torchgw.objective.exact import ExactGradient
from torchgw.solvers.linear_oracle import solve_transport
from torchgw.solvers.transport_costs import DenseCost
from torchgw.spaces import PrecomputedDistances
from torchgw.spaces.low_rank import approximate_distances
from torchgw.strategies import dense, sharp, surrogate


def best_plan(C: np.ndarray, p: torch.Tensor, q: torch.Tensor) -> Any:
    masses = p.numpy(), q.numpy()
    return solve_transport(DenseCost(C, *masses), *masses, np.zeros(len(q))).plan


def cloud(n: int, d: int, seed: int = 0) -> torch.Tensor:
    """Scaled distances (n, n) of a Gaussian cloud in R^d."""
    x = np.random.default_rng(seed).standard_normal((n, d))
    D = np.linalg.norm(x[:, None] - x, axis=-1)
    return torch.from_numpy(D / D.max())


def noisy_pair(n: int, k: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Scaled distances of a Gaussian cloud, uneven along its axes, and of a noisy part of it."""
    rng = np.random.default_rng(n)
    x = rng.standard_normal((n, d)) * np.linspace(2, 1, d) + 0.3 * rng.standard_exponential((n, d))
    found = []
    for points in (x, x[:k] + 0.05 * rng.standard_normal((k, d))):
        D = np.linalg.norm(points[:, None] - points, axis=-1)
        found.append(D / D.max())
    return found[0], found[1]


def masses(n: int, seed: int = 0) -> torch.Tensor:
    """Uneven masses (n,) of sum one; the first has none."""
    m = torch.from_numpy(np.random.default_rng(seed).random(n))
    m[0] = 0.0
    return m / m.sum()


def centred(D: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    means = D @ m
    return D - means[:, None] - means + m @ means


def plan_of(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """An uneven plan with these marginals."""
    T = torch.from_numpy(np.random.default_rng(5).random((len(p), len(q)))) ** 8
    for _ in range(500):
        T = T * (p / T.sum(1)).nan_to_num()[:, None]
        T = T * (q / T.sum(0)).nan_to_num()
    return T


@pytest.fixture
def led(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surrogate, "SLOW_WORK", {"cpu": 0.0})


def factors(
    D: torch.Tensor, m: torch.Tensor, residual: float = 0.0, most: int | None = None
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """F, signs and residual."""
    stored = PrecomputedDistances.stored_matrix(D, 1.0)
    space, left = approximate_distances(stored, m, residual, most)
    own = space.factors()
    assert own is not None
    return *own, left


@pytest.mark.parametrize(("n", "d"), [(63, 2), (301, 10)])
def test_the_residual_is_the_relative_error_of_centred_distances(n: int, d: int) -> None:
    D, m = cloud(n, d), masses(n)
    F, signs, residual = factors(D, m, 0.02, 20)
    error = centred(D, m) - centred((F * signs) @ F.T, m)
    assert residual == pytest.approx(float(error.norm() / centred(D, m).norm()), rel=1e-6)


def test_factors_are_hardly_worse_than_the_best_of_their_rank() -> None:
    D, m = cloud(301, 3), masses(301)
    F, _, residual = factors(D, m, most=30)
    values = torch.linalg.eigvalsh(centred(D, m)).square().sort(descending=True)[0]
    best = float(values[30:].sum() / values.sum()) ** 0.5
    assert F.shape == (301, 32)
    assert best <= residual <= 1.1 * best


def test_a_residual_that_is_asked_for_is_met_with_few_factors() -> None:
    D, m = cloud(301, 2), masses(301)
    F, _, residual = factors(D, m, 0.05, 100)
    assert residual <= 0.05 < factors(D, m, most=F.shape[1] - 4)[2]


def test_factors_keep_eigenvalues_of_both_signs_and_are_exact_where_the_rank_is_small() -> None:
    x = torch.linspace(0, 1, 90, dtype=torch.float64)
    S = torch.outer(x, x) - torch.outer(x.square(), x.square()) + torch.outer(x.sin(), x.sin())
    F, signs, _ = factors(S, masses(90), 1e-6)
    assert {-1.0, 1.0} == set(signs[:-2].tolist())
    torch.testing.assert_close((F * signs) @ F.T, S, rtol=0, atol=1e-7)


def test_points_that_coincide_have_factors_without_error() -> None:
    F, signs, residual = factors(torch.zeros(9, 9), torch.ones(9), 0.02)
    assert residual == 0.0
    torch.testing.assert_close((F * signs) @ F.T, torch.zeros(9, 9), rtol=0, atol=1e-6)


def test_plans_with_few_entries_have_the_exact_gradient_and_its_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    counted, by_rows = [], ExactGradient.change_by_rows
    monkeypatch.setattr(ExactGradient, "change_by_rows", lambda *own: counted.append(by_rows(*own)) or counted[-1])
    p, q = torch.full((90,), 1 / 90, dtype=torch.float64), torch.full((90,), 1 / 90, dtype=torch.float64)
    x, y = (PrecomputedDistances.stored_matrix(cloud(90, 4, seed), 1.0) for seed in (1, 2))
    exact, whole = ExactGradient(x, y, p, q), slice(0, 90)
    one = torch.diag(p)
    other = one[torch.cat((torch.arange(80), torch.arange(80, 90).flip(0)))]
    blurred = torch.lerp(one, p[:, None] * q, 0.5)
    for plan in (one, other, blurred):
        wanted = exact.a[:, None] + exact.b - 2 * x.matrix @ plan @ y.matrix
        torch.testing.assert_close(exact(DenseCoupling(plan), p).rows(whole), wanted, rtol=0, atol=1e-14)
        change = exact(DenseCoupling(other), p).rows(whole) - wanted
        found = exact.change(SparseCoupling.of(csr_array(other.numpy()), p.device), plan, wanted)
        torch.testing.assert_close(found, change, rtol=0, atol=1e-14)
    assert [way is None for way in counted] == [False, False, True]  # all rows of what is blurred differ


@pytest.mark.parametrize("sizes", [pytest.param((150, 180), marks=pytest.mark.slow), (170, 140)])
def test_vertices_that_factors_lead_to_end_where_exact_gradients_do(
    sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    spaces = noisy_pair(max(sizes), min(sizes), 2)
    spaces = spaces if sizes[0] > sizes[1] else spaces[::-1]
    given = {"epsilon": 0, "distances": "precomputed", "random_state": 0}
    by_matrices = quietly(torchgw.gw_align, *spaces, **given)
    for name, value in (("VERTEX_WORK", 1), ("SHARP_RESIDUAL", 0.05)):
        monkeypatch.setattr(surrogate, name, value)
    monkeypatch.setattr(sharp, "FACTORED_PAIRS", 1)
    left: list[float] = []
    leave = dense._leave_surrogate
    monkeypatch.setattr(dense, "_leave_surrogate", lambda *own: left.append(own[1].energy) or leave(*own))
    found = quietly(torchgw.gw_align, *spaces, **given)
    assert len(left) == 1
    assert found.value <= 1.01 * by_matrices.value
    assert found.converged
    assert found.certificate.stationarity <= 2e-6 * found.value


def test_a_vertex_between_unequal_masses_has_few_entries_and_the_exact_change() -> None:
    rng = np.random.default_rng(3)
    p, q = (torch.from_numpy(random_masses(n, rng)) for n in (300, 320))
    x, y = (PrecomputedDistances.stored_matrix(cloud(n, 4, n), 1.0) for n in (300, 320))
    exact, whole, product = ExactGradient(x, y, p, q), slice(0, 300), p[:, None] * q
    found = best_plan(rng.normal(size=(300, 320)), p, q)
    vertex, cost = SparseCoupling.of(found, p.device), exact(DenseCoupling(product), p).rows(whole)
    assert len(vertex.mass) < 2 * 620
    torch.testing.assert_close(vertex.marginal(1), p, rtol=0, atol=1e-16)
    torch.testing.assert_close(vertex.marginal(0), q, rtol=0, atol=1e-16)
    change = exact.change(vertex, product, cost)
    wanted = exact(DenseCoupling(vertex.to_dense()), p).rows(whole) - cost
    torch.testing.assert_close(change, wanted, rtol=0, atol=1e-13)
    near = vertex.to_dense()
    near[:40] = product[:40] * (vertex.to_dense()[:40].sum(0) / product[:40].sum(0))
    cost = exact(DenseCoupling(near), p).rows(whole)
    change = exact.change(vertex, near, cost)
    wanted = exact(DenseCoupling(vertex.to_dense()), p).rows(whole) - cost
    torch.testing.assert_close(change, wanted, rtol=0, atol=1e-13)


@pytest.mark.usefixtures("led")
@pytest.mark.parametrize("epsilon", [0.0, 5e-4])
def test_a_solve_that_factors_lead_ends_where_exact_products_do(
    epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    D, E = noisy_pair(101, 90, 3)
    found = torchgw.gw_align(D, E, epsilon=epsilon, random_state=0)
    monkeypatch.setattr(surrogate, "SLOW_WORK", {"cpu": 1e99})
    wanted = torchgw.gw_align(D, E, epsilon=epsilon, random_state=0, init=found)
    assert found.gradient == "exact"
    assert found.value_exact
    assert found.value == pytest.approx(wanted.value, rel=2e-3)
    assert epsilon == 0 or np.abs(found.plan - wanted.plan).sum() < 0.05


@pytest.mark.usefixtures("led")
@pytest.mark.parametrize("marginals", [torchgw.Partial(0.7), torchgw.Unbalanced(0.1, 0.1), torchgw.SemiRelaxed(0.2)])
def test_factors_lead_whatever_the_marginals(marginals: object, monkeypatch: pytest.MonkeyPatch) -> None:
    D, E = noisy_pair(91, 80, 3)
    call = {"epsilon": 2e-3, "random_state": 0, "marginals": marginals}
    found = torchgw.gw_align(D, E, **call)
    monkeypatch.setattr(surrogate, "SLOW_WORK", {"cpu": 1e99})
    wanted = torchgw.gw_align(D, E, init=found, **call)
    assert found.value == pytest.approx(wanted.value, rel=1e-2)


@pytest.mark.usefixtures("led")
@pytest.mark.parametrize("epsilon", [0.0, 2e-4])
def test_a_rotated_cloud_is_found_by_factors(epsilon: float) -> None:
    D, order = cloud(200, 10), np.random.default_rng(1).permutation(200)
    found = torchgw.gw_align(D, D[order][:, order], epsilon=epsilon, random_state=0)
    np.testing.assert_array_equal(order[found.argmax()], np.arange(200))


def curves() -> tuple[np.ndarray, np.ndarray]:
    """Distances of unevenly spread points along a line, and of a part of them; not squared, so of no small rank."""
    t = np.sort(np.random.default_rng(2).random(400) ** 2)
    D = np.abs(t[:, None] - t) ** 0.9
    return D, D[60:, 60:]


@pytest.mark.usefixtures("led")
def test_smooth_distances_stream_between_leading_factors() -> None:
    D, E = curves()
    options = torchgw.GWOptions(strategy="streaming", ladder=torchgw.LadderOptions(n_cells=128))
    found = torchgw.gw_align(D, E, epsilon=2e-3, random_state=0, options=options)
    wanted = torchgw.gw_align(D, E, epsilon=2e-3, random_state=0, init=found)
    assert (found.strategy, wanted.strategy) == ("streaming", "dense")
    assert (found.gradient, found.gradient_passed_over) == ("leading factors", "")
    spaces = PrecomputedDistances(D), PrecomputedDistances(E)
    exact = exact_objective(found.coupling, *spaces, found.coupling.marginal(1), found.coupling.marginal(0))
    assert found.value_exact
    assert found.value == pytest.approx(exact.value, rel=1e-5)
    assert found.value == pytest.approx(wanted.value, rel=0.1)  # rounding counts


@pytest.mark.usefixtures("led")
def test_values_of_large_plans_are_estimates_with_their_error(monkeypatch: pytest.MonkeyPatch) -> None:
    D, E = curves()
    options = torchgw.GWOptions(strategy="streaming", ladder=torchgw.LadderOptions(n_cells=128))
    exact = torchgw.gw_align(D, E, epsilon=2e-3, random_state=0, options=options)
    monkeypatch.setattr("torchgw.strategies.within_memory.CERTIFIED_WORK", 0)
    found = torchgw.gw_align(D, E, epsilon=2e-3, random_state=0, options=options)
    assert not found.value_exact
    assert not found.certificate.stationarity_exact
    assert found.value == pytest.approx(exact.value, abs=5 * found.value_error)


@pytest.mark.usefixtures("led")
def test_distances_that_factors_do_not_carry_are_solved_with_a_stored_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgw.request.limits.DENSE_PAIRS", {"cpu": 100})
    D, order = cloud(300, 10), np.random.default_rng(1).permutation(300)
    found = torchgw.gw_align(D, D[order][:, order], epsilon=2e-4, random_state=0)
    assert (found.strategy, found.gradient) == ("dense", "exact")
    np.testing.assert_array_equal(order[found.argmax()], np.arange(300))


def test_a_sampled_gradient_that_nobody_asked_for_is_warned_of() -> None:
    X, Y = (torchgw.datasets.make_spiral(n)[0] for n in (300, 100))
    call = {"distances": "dijkstra", "epsilon": 5e-3, "random_state": 0}
    with pytest.warns(torchgw.SamplingWarning, match="a dense distance matrix of 300 points exceeds"):
        found = torchgw.gw_align(X, Y, options=torchgw.GWOptions(max_memory=600_000), **call)
    assert found.gradient == "sampled"
    asked = torchgw.GWOptions(max_memory=600_000, gradient="sampled")
    assert torchgw.gw_align(X, Y, options=asked, **call).gradient == "sampled"

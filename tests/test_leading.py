"""Factors that lead: how near they are, and that solves which they lead end where exact products do."""

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
from torchgw.objective import leading
from torchgw.objective.exact import ExactGradient
from torchgw.objective.leading import MatchingGradient, SurrogateGradient, compute_surrogate_factors, stored_cost
from torchgw.objective.value import exact_objective
from torchgw.solvers import problem
from torchgw.solvers.linear_oracle import solve_transport
from torchgw.solvers.transport_costs import DenseCost
from torchgw.spaces import PrecomputedDistances
from torchgw.strategies import sharp


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
    monkeypatch.setattr(leading, "DENSE_WORK", {"cpu": 0.0})


@pytest.mark.parametrize(("n", "d"), [(63, 2), (301, 10)])
def test_the_residual_is_the_relative_error_of_centred_distances(n: int, d: int) -> None:
    D, m = cloud(n, d), masses(n)
    found = compute_surrogate_factors(D, m, torch.Generator().manual_seed(0), most=20)
    error = centred(D, m) - centred((found.F * found.signs) @ found.F.T, m)
    assert found.residual == pytest.approx(float(error.norm() / centred(D, m).norm()), rel=1e-6)


def test_leading_factors_are_hardly_worse_than_the_best_of_their_rank() -> None:
    D, m = cloud(301, 3), masses(301)
    found = compute_surrogate_factors(D, m, torch.Generator().manual_seed(0), most=30)
    values = torch.linalg.eigvalsh(centred(D, m)).square().sort(descending=True)[0]
    best = float(values[30:].sum() / values.sum()) ** 0.5
    assert found.F.shape == (301, 32)
    assert best <= found.residual <= 1.1 * best


def test_a_residual_that_is_asked_for_is_met_with_few_factors() -> None:
    D, m = cloud(301, 2), masses(301)
    found = compute_surrogate_factors(D, m, torch.Generator().manual_seed(0), residual=0.05, most=100)
    fewer = compute_surrogate_factors(D, m, torch.Generator().manual_seed(0), most=found.F.shape[1] - 4)
    assert found.residual <= 0.05 < fewer.residual


def test_factors_keep_eigenvalues_of_both_signs_and_are_exact_where_the_rank_is_small() -> None:
    x = torch.linspace(0, 1, 90, dtype=torch.float64)
    S = torch.outer(x, x) - torch.outer(x.square(), x.square()) + torch.outer(x.sin(), x.sin())
    found = compute_surrogate_factors(S, masses(90), torch.Generator().manual_seed(0), residual=1e-6)
    assert {-1.0, 1.0} == set(found.signs[:-2].tolist())
    torch.testing.assert_close((found.F * found.signs) @ found.F.T, S, rtol=0, atol=1e-7)


def test_points_that_coincide_have_factors_without_error() -> None:
    found = compute_surrogate_factors(torch.zeros(9, 9), torch.ones(9), torch.Generator().manual_seed(0))
    assert found.residual == 0.0
    torch.testing.assert_close((found.F * found.signs) @ found.F.T, torch.zeros(9, 9), rtol=0, atol=1e-6)


@pytest.mark.parametrize("relaxed", [False, True])
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-14), (torch.float32, 2e-8)])
def test_the_stored_cost_is_the_exact_one(relaxed: bool, dtype: torch.dtype, atol: float) -> None:
    p, q = masses(101), masses(63, 1)
    x, y = (PrecomputedDistances.stored_matrix(cloud(n, 4, n), 1.0) for n in (101, 63))
    exact, T = ExactGradient(x, y, p, q), plan_of(p, q)
    if relaxed:
        T = T * torch.linspace(0.5, 2, 63)
    rows, columns = T.sum(1), T.sum(0)
    found = stored_cost(exact, DenseCoupling(T), rows, columns if relaxed else None, dtype=dtype)
    a, b = (rows, columns) if relaxed else (p, q)
    C = (x.matrix.square() @ a)[:, None] + y.matrix.square() @ b - 2 * x.matrix @ T @ y.matrix
    torch.testing.assert_close(found.rows(slice(0, 101)), C, rtol=0, atol=atol)


@pytest.mark.parametrize("relaxed", [False, True])
def test_a_corrected_gradient_is_exact_at_its_plan_and_near_it_nearly(relaxed: bool) -> None:
    p, q = masses(101), masses(63, 1)
    x, y = (PrecomputedDistances.stored_matrix(cloud(n, 4, n), 1.0) for n in (101, 63))
    exact, T = ExactGradient(x, y, p, q), plan_of(p, q)
    if relaxed:
        T = T * torch.linspace(0.5, 2, 63)
    other = torch.lerp(T, T.roll(1, 0), 0.01)
    gradient = SurrogateGradient(exact, p, q, torch.Generator().manual_seed(0))
    whole = slice(0, 101)

    def errors(gradient: SurrogateGradient) -> list[float]:
        found = []
        for plan in (T, other):
            ends = plan.sum(1), plan.sum(0)
            wanted = exact(DenseCoupling(plan), *ends).rows(whole)
            found.append(float((gradient(DenseCoupling(plan), *ends).rows(whole) - wanted).abs().max()))
        return found

    before, after = errors(gradient), errors(gradient.with_correction_at(DenseCoupling(T), T.sum(1), T.sum(0)))
    assert after[0] < 1e-14
    assert after[1] < 0.05 * before[1]


def test_plans_with_few_entries_have_the_exact_gradient_and_its_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    counted, times = [], MatchingGradient._times
    monkeypatch.setattr(MatchingGradient, "_times", lambda *given: counted.append(len(given[1])) or times(*given))
    p, q = torch.full((90,), 1 / 90, dtype=torch.float64), torch.full((90,), 1 / 90, dtype=torch.float64)
    x, y = (PrecomputedDistances.stored_matrix(cloud(90, 4, seed), 1.0) for seed in (1, 2))
    exact, whole = ExactGradient(x, y, p, q), slice(0, 90)
    gradient, one = MatchingGradient(exact), torch.diag(p)
    other = one[torch.cat((torch.arange(80), torch.arange(80, 90).flip(0)))]
    blurred = torch.lerp(one, p[:, None] * q, 0.5)
    for plan in (one, other, blurred):
        wanted = exact(DenseCoupling(plan), p).rows(whole)
        torch.testing.assert_close(gradient(DenseCoupling(plan), p).rows(whole), wanted, rtol=0, atol=1e-14)
        change = exact(DenseCoupling(other), p).rows(whole) - wanted
        found = gradient.change(SparseCoupling.of(csr_array(other.numpy()), p.device), plan, wanted)
        torch.testing.assert_close(found, change, rtol=0, atol=1e-14)
    assert counted == [10, 0]  # rows that differ; of what is blurred all do, and the vertex is multiplied alone


def test_a_gradient_corrected_at_a_plan_of_few_entries_is_exact_there() -> None:
    D, E = (torch.from_numpy(each) for each in noisy_pair(140, 110, 3))
    p, q = torch.full((140,), 1 / 140, dtype=torch.float64), torch.full((110,), 1 / 110, dtype=torch.float64)
    exact = ExactGradient(PrecomputedDistances.stored_matrix(D, 1.0), PrecomputedDistances.stored_matrix(E, 1.0), p, q)
    led = SurrogateGradient(exact, p, q, torch.Generator().manual_seed(0), 0.1)
    plan = SparseCoupling.of(best_plan((D[:, :110] - E[:1]).numpy(), p, q), p.device)
    expected, found = (
        exact(plan, p).rows(slice(None)),
        led.with_correction_at_sparse(plan, p)(plan, p).rows(slice(None)),
    )
    off = float((led(plan, p).rows(slice(None)) - expected).abs().max())
    assert float((found - expected).abs().max()) < 1e-6 * off
    assert off > 1e-4


@pytest.mark.parametrize("shape", [(140, 110), (110, 140)])
def test_a_correction_at_another_plan_counts_the_rows_in_which_it_differs(shape: tuple[int, int]) -> None:
    D, E = (torch.from_numpy(each) for each in noisy_pair(140, 110, 3)[:: 1 if shape[0] == 140 else -1])
    p, q = (torch.full((n,), 1 / n, dtype=torch.float64) for n in shape)
    exact = ExactGradient(PrecomputedDistances.stored_matrix(D, 1.0), PrecomputedDistances.stored_matrix(E, 1.0), p, q)
    led = SurrogateGradient(exact, p, q, torch.Generator().manual_seed(0), 0.1)
    rng = np.random.default_rng(4)
    C = rng.normal(size=shape)
    first = best_plan(C, p, q)
    C[:1] += 0.3 * rng.normal(size=(1, shape[1]))
    near = best_plan(C, p, q)
    far = best_plan(rng.normal(size=shape), p, q)
    one = SparseCoupling.of(first, p.device)
    for other, few in ((near, True), (first.copy(), True), (far, False)):
        two = SparseCoupling.of(other, p.device)
        assert (leading._plan_difference(two, one) is not None) == few
        afresh, further = (
            led.with_correction_at_sparse(two, p).rest,
            led.with_correction_at_sparse(one, p).with_correction_at_sparse(two, p).rest,
        )
        torch.testing.assert_close(further, afresh, rtol=0, atol=1e-14)


@pytest.mark.parametrize("sizes", [pytest.param((150, 180), marks=pytest.mark.slow), (170, 140)])
def test_vertices_that_factors_lead_to_end_where_exact_gradients_do(
    sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    spaces = noisy_pair(max(sizes), min(sizes), 2)
    spaces = spaces if sizes[0] > sizes[1] else spaces[::-1]
    given = {"epsilon": 0, "distances": "precomputed", "random_state": 0}
    by_matrices = quietly(torchgw.gw_align, *spaces, **given)
    for name, value in (("VERTEX_WORK", 1), ("SHARP_RESIDUAL", 0.05)):
        monkeypatch.setattr(problem, name, value)
    monkeypatch.setattr(sharp, "FACTORED_PAIRS", 1)
    corrected: list[float] = []
    at_entries = SurrogateGradient.with_correction_at_sparse
    monkeypatch.setattr(
        SurrogateGradient, "with_correction_at_sparse", lambda *own: corrected.append(1.0) or at_entries(*own)
    )
    found = quietly(torchgw.gw_align, *spaces, **given)
    assert corrected
    assert found.value <= 1.01 * by_matrices.value
    assert found.converged
    assert found.certificate.stationarity <= 2e-6 * found.value
    monkeypatch.setattr(sharp, "CORRECTIONS", 1)
    assert quietly(torchgw.gw_align, *spaces, **given).value == pytest.approx(found.value, rel=0.01)


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
    change = MatchingGradient(exact).change(vertex, product, cost)
    wanted = exact(DenseCoupling(vertex.to_dense()), p).rows(whole) - cost
    torch.testing.assert_close(change, wanted, rtol=0, atol=1e-13)
    near = vertex.to_dense()
    near[:40] = product[:40] * (vertex.to_dense()[:40].sum(0) / product[:40].sum(0))
    cost = exact(DenseCoupling(near), p).rows(whole)
    change = MatchingGradient(exact).change(vertex, near, cost)
    wanted = exact(DenseCoupling(vertex.to_dense()), p).rows(whole) - cost
    torch.testing.assert_close(change, wanted, rtol=0, atol=1e-13)


@pytest.mark.usefixtures("led")
@pytest.mark.parametrize("epsilon", [0.0, 5e-4])
def test_a_solve_that_factors_lead_ends_where_exact_products_do(
    epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    D, E = noisy_pair(101, 90, 3)
    found = torchgw.gw_align(D, E, epsilon=epsilon, random_state=0)
    monkeypatch.setattr(leading, "DENSE_WORK", {"cpu": 1e99})
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
    monkeypatch.setattr(leading, "DENSE_WORK", {"cpu": 1e99})
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
    monkeypatch.setattr("torchgw.strategies.surrogate.CERTIFIED_WORK", 0)
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

"""The certificate: bounds that hold, gaps that are exact, and confidence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from tests.problems import all_rows, linearised_cost, quietly, random_distances, random_masses, random_plan
from tests.simulated_device import simulated_gpu
from torchgw import EuclideanDistances, GWResult, PrecomputedDistances, gw_align
from torchgw.couplings.blocks import DenseCoupling
from torchgw.datasets import make_spiral
from torchgw.diagnostics.evidence import entropy_and_margin
from torchgw.kernels import blocks
from torchgw.marginals import Balanced, Marginals, Partial, SemiRelaxed
from torchgw.objective import bounds as bounds_module
from torchgw.objective.bounds import consistent_bound, first_bound, frank_wolfe_gap, lowest_cost, second_bound
from torchgw.objective.certify import certify, linear_bound, read_block_plan, read_dense_plan
from torchgw.objective.exact import ExactGradient, factored_mean_squares
from torchgw.objective.model import Model
from torchgw.objective.sampled import Control
from torchgw.sinkhorn.costs import FactoredCost


def wasserstein_squared(x: np.ndarray, y: np.ndarray, p: np.ndarray, q: np.ndarray) -> float:
    """By the linear program."""
    n, k = len(x), len(y)
    sums = np.zeros((n + k, n * k))
    for i in range(n):
        sums[i, i * k : (i + 1) * k] = 1
    for j in range(k):
        sums[n + j, j::k] = 1
    cost = (x[:, None] - y) ** 2
    return float(linprog(cost.ravel(), A_eq=sums, b_eq=np.concatenate((p, q))).fun)


def problem(seed: int, n: int = 6, k: int = 7) -> tuple:  # type: ignore[type-arg]
    rng = np.random.default_rng(seed)
    DX, DY = random_distances(n, rng), random_distances(k, rng)
    DX, DY = DX / DX.max(), DY / DY.max()
    return DX, DY, random_masses(n, rng), random_masses(k, rng), rng


@pytest.mark.parametrize("seed", range(4))
def test_the_bounds_are_the_transport_problems_they_stand_for(seed: int) -> None:
    DX, DY, p, q, _ = problem(seed)
    P, Q = torch.from_numpy(p), torch.from_numpy(q)
    gradient = ExactGradient(PrecomputedDistances(DX), PrecomputedDistances(DY), P, Q)
    first = wasserstein_squared(np.sqrt(DX**2 @ p), np.sqrt(DY**2 @ q), p, q)
    assert first_bound(gradient.a, gradient.b, P, Q) == pytest.approx(first, abs=1e-9)
    second = wasserstein_squared(DX.ravel(), DY.ravel(), np.outer(p, p).ravel(), np.outer(q, q).ravel())
    found = float(second_bound(PrecomputedDistances(DX), PrecomputedDistances(DY), P, Q))
    assert second - 2e-4 <= found <= second + 1e-9


@pytest.mark.parametrize("seed", range(5))
def test_no_plan_is_below_the_bounds(seed: int) -> None:
    DX, DY, p, q, rng = problem(seed)
    P, Q = torch.from_numpy(p), torch.from_numpy(q)
    gradient = ExactGradient(PrecomputedDistances(DX), PrecomputedDistances(DY), P, Q)
    lower = max(
        float(first_bound(gradient.a, gradient.b, P, Q)),
        float(second_bound(PrecomputedDistances(DX), PrecomputedDistances(DY), P, Q)),
    )
    for _ in range(20):
        T = random_plan(p, q, rng)
        assert float((linearised_cost(DX, DY, T) * T).sum()) >= lower
    best = quietly(gw_align, DX, DY, p=p, q=q, epsilon=0, random_state=0)
    assert best.value >= lower
    assert best.certificate.lower_bound == pytest.approx(lower, abs=1e-9)
    assert best.certificate.gap == pytest.approx(best.value - lower, abs=1e-9)


def test_bounds_hold_for_signed_factors_and_blocks_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    spaces = [EuclideanDistances(rng.normal(size=(n, 2)), squared=True) for n in (50, 60)]
    p, q = (torch.full((n,), 1 / n, dtype=torch.float64) for n in (50, 60))
    whole = float(second_bound(*spaces, p, q))
    monkeypatch.setattr(bounds_module, "BINNED_PAIRS", 200)
    assert float(second_bound(*spaces, p, q)) == pytest.approx(whole, rel=1e-9)
    monkeypatch.setattr(bounds_module, "MOST_PAIRS", 100)
    assert second_bound(*spaces, p, q) == 0.0


def test_a_gpu_bounds_by_integers_and_a_block_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    spaces = [EuclideanDistances(rng.normal(size=(n, 2))) for n in (700, 800)]
    p, q = (torch.from_numpy(rng.dirichlet(np.full(n, 0.3))) for n in (700, 800))
    known = float(second_bound(*spaces, p, q))
    monkeypatch.setattr(blocks, "ON_GPU", 40_000)
    with simulated_gpu() as simulation:
        x, y = (space.to(torch.device("cuda"), torch.float64) for space in spaces)
        given, held = (p.to("cuda"), q.to("cuda")), simulation.memory.now
        found = float(second_bound(x, y, *given))
        assert simulation.memory.peak - held < 6 * 8 * 10_000 + 24 * 8 * bounds_module.N_BINS
    widest = max(float(space.rows(torch.arange(space.size)).max()) for space in spaces)
    assert known**0.5 - widest * 1500 / 2**31 - 1e-7 <= found**0.5 <= known**0.5


@pytest.mark.parametrize("seed", range(3))
def test_the_gap_is_that_of_the_linear_program_for_optimal_duals(seed: int) -> None:
    DX, DY, p, q, rng = problem(seed)
    T = random_plan(p, q, rng)
    P, Q = torch.from_numpy(p), torch.from_numpy(q)
    gradient = ExactGradient(PrecomputedDistances(DX), PrecomputedDistances(DY), P, Q)
    cost = gradient(DenseCoupling(torch.from_numpy(T)), P)
    C = linearised_cost(DX, DY, T)
    sums = np.zeros((13, 42))
    for i in range(6):
        for j in range(7):
            sums[[i, 6 + j], i * 7 + j] = 1
    program = linprog(C.ravel(), A_eq=sums, b_eq=np.concatenate((p, q)))
    exact = 2 * ((C * T).sum() - program.fun)
    value, dual = (C * T).sum(), torch.from_numpy(program.eqlin.marginals[6:].copy())
    for seen in (cost, cost.rows(slice(None))):
        assert float(frank_wolfe_gap(value, lowest_cost(seen, P, Q, dual))) == pytest.approx(exact, abs=1e-9)
    zero = torch.zeros(7, dtype=torch.float64)
    loose = float(frank_wolfe_gap(value, lowest_cost(cost, P, Q, zero)))
    assert loose >= exact - 1e-12
    bound, better = consistent_bound(cost.rows(slice(None)), P, Q, zero)
    assert value - loose / 2 <= float(bound) <= program.fun + 1e-12
    assert float(frank_wolfe_gap(value, lowest_cost(cost, P, Q, better))) == pytest.approx(
        2 * (value - float(bound)), abs=1e-12
    )


def test_gaps_of_a_batch_are_those_of_its_problems_without_the_points_that_fill_it_up() -> None:
    rng = np.random.default_rng(0)
    sizes, costs = ((6, 7), (4, 5)), torch.full((2, 6, 7), -9.0, dtype=torch.float64)
    p, q = torch.zeros(2, 6, dtype=torch.float64), torch.zeros(2, 7, dtype=torch.float64)
    for row, (n, k) in enumerate(sizes):
        costs[row, :n, :k] = torch.from_numpy(rng.uniform(size=(n, k)))
        p[row, :n], q[row, :k] = (torch.from_numpy(random_masses(size, rng)) for size in (n, k))
    dual = torch.from_numpy(rng.uniform(size=(2, 7)))
    gaps, bounds = frank_wolfe_gap(1.0, lowest_cost(costs, p, q, dual)), consistent_bound(costs, p, q, dual)[0]
    partial = frank_wolfe_gap(1.0, lowest_cost(costs, p, q, dual, 0.6))
    for row, (n, k) in enumerate(sizes):
        own = costs[row, :n, :k], p[row, :n], q[row, :k], dual[row, :k]
        assert float(gaps[row]) == pytest.approx(float(frank_wolfe_gap(1.0, lowest_cost(*own))), rel=1e-12)
        assert float(partial[row]) == pytest.approx(float(frank_wolfe_gap(1.0, lowest_cost(*own, 0.6))), rel=1e-12)
        assert float(bounds[row]) == pytest.approx(float(consistent_bound(*own)[0]), rel=1e-12)


def test_a_certificate_belongs_to_its_value_and_scales_with_it() -> None:
    X, Y = make_spiral(80)[0], make_spiral(90, random_state=1)[0]
    one = gw_align(X, Y, epsilon=1e-3, random_state=0)
    two = gw_align(X, Y, p=np.full(80, 2 / 80), q=np.full(90, 2 / 90), epsilon=1e-3, random_state=0)
    assert 0 < one.certificate.lower_bound < one.value
    assert one.certificate.gap == pytest.approx(one.value - one.certificate.lower_bound)
    assert one.certificate.stationarity_exact
    assert 0 < one.certificate.stationarity < 0.01
    assert two.certificate.lower_bound == pytest.approx(4 * one.certificate.lower_bound, rel=1e-6)
    assert "no plan has a value below" in str(one.certificate)
    sharper = gw_align(X, Y, epsilon=2e-4, random_state=0)
    assert sharper.certificate.stationarity < 0.5 * one.certificate.stationarity


def test_entropy_and_margin_of_known_rows() -> None:
    plan = torch.tensor([[0.25, 0.25, 0.0], [0.5, 0.0, 0.0], [0.3, 0.15, 0.0]], dtype=torch.float64)
    entropy, margin = entropy_and_margin(DenseCoupling(plan))
    np.testing.assert_allclose(entropy, [np.log(2), 0, -(2 / 3) * np.log(2 / 3) - np.log(1 / 3) / 3])
    np.testing.assert_allclose(margin, [0, 1, 0.5])


def test_confidence_falls_with_epsilon_and_with_a_rival_basin() -> None:
    X, Y = make_spiral(80)[0], make_spiral(90, random_state=1)[0]
    sharp, blurred = (gw_align(X, Y, epsilon=e, random_state=0).confidence() for e in (5e-4, 1e-2))
    assert sharp.entropy.shape == (80,)
    assert sharp.entropy.mean() < blurred.entropy.mean()
    assert ((sharp.margin >= 0) & (sharp.margin <= 1)).all()
    assert ((sharp.stability >= 0) & (sharp.stability <= 1)).all()
    assert "80 points; means: entropy" in repr(sharp)
    unsearched = gw_align(X, Y, init=np.array([[0, 0], [79, 89]]), random_state=0).confidence()
    assert np.isnan(unsearched.stability).all()
    line = np.abs(np.linspace(0, 1, 50)[:, None] - np.linspace(0, 1, 50))
    symmetric = quietly(gw_align, line, line, random_state=0)
    assert symmetric.ambiguous
    stability = symmetric.confidence().stability
    assert stability[[0, -1]].max() < 0.2
    assert stability[24] > 0.8


def test_confidence_of_some_points_is_theirs_among_all(result: GWResult) -> None:
    some = np.random.default_rng().permutation(result.shape[0])[:17]
    every, asked = result.confidence(), result.confidence(some)
    for name in ("entropy", "margin", "stability"):
        # Other blocks round scores of hundreds of bits otherwise, and a margin is one minus a ratio of two entries.
        np.testing.assert_allclose(getattr(asked, name), getattr(every, name)[some], rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match=r"indices in \[0, 90\), got some from 3 to 90"):
        result.confidence([3, 90])
    with pytest.raises(ValueError, match="integer indices"):
        result.confidence(np.array([0.5]))


@pytest.mark.parametrize("seed", range(3))
def test_the_gap_of_a_partial_plan_reaches_below_the_cheapest_one(seed: int) -> None:
    """Whatever the prices; and with those of the linear program, no further."""
    rng = np.random.default_rng(seed)
    n, k, total, C = 4, 6, 0.6, rng.uniform(size=(4, 6))
    p, q = random_masses(n, rng), random_masses(k, rng)
    sums = np.concatenate((np.kron(np.eye(n), np.ones(k)), np.kron(np.ones(n), np.eye(k))))
    best = linprog(C.ravel(), A_ub=sums, b_ub=np.concatenate((p, q)), A_eq=np.ones((1, n * k)), b_eq=[total])
    cost, value = FactoredCost.from_matrix(torch.from_numpy(C)), total * float((C * np.outer(p, q)).sum())
    masses = torch.from_numpy(p), torch.from_numpy(q)

    def lowest(prices: np.ndarray) -> float:
        return value - float(frank_wolfe_gap(value, lowest_cost(cost, *masses, torch.from_numpy(prices), total))) / 2

    assert max(lowest(-rng.uniform(size=k)) for _ in range(20)) <= best.fun + 1e-12
    assert lowest(best.ineqlin.marginals[n:]) == pytest.approx(best.fun, abs=1e-9)


def test_a_streamed_plan_has_the_certificate_of_the_stored_one() -> None:
    rng = np.random.default_rng(0)
    n, k = 40, 50
    spaces = tuple(EuclideanDistances(rng.normal(size=(size, 2)), squared=True) for size in (n, k))
    p, q = random_masses(n, rng), random_masses(k, rng)
    P, Q = torch.from_numpy(p), torch.from_numpy(q)
    model, gen = Model(P, Q, 1e-3), torch.Generator().manual_seed(0)
    stored = DenseCoupling(torch.from_numpy(random_plan(p, q, rng)))
    whole = read_dense_plan(stored, spaces, model, 2**30, gen)
    DX, DY = (all_rows(space).numpy() for space in spaces)
    value = float((linearised_cost(DX, DY, stored.plan.numpy()) * stored.plan.numpy()).sum())
    assert whole.quadratic.value == pytest.approx(value, rel=1e-10)
    factors = [space.factors() for space in spaces]
    x, y = (Control(*f, factored_mean_squares(*f, mass)) for f, mass in zip(factors, (P, Q), strict=True))
    product = x.F.T @ stored.apply(y.F, 1)
    factored = read_block_plan(stored, product, spaces, (x, y), (P, Q), 0, gen)
    plain = read_block_plan(stored, None, spaces, (x, y), (P, Q), 2**30, gen)
    sampled = read_block_plan(stored, None, spaces, (x, y), (P, Q), 0, gen)
    assert factored.quadratic.value == pytest.approx(value, rel=1e-10)
    assert plain.quadratic.value == pytest.approx(value, rel=1e-10)
    torch.testing.assert_close(factored.cost.rows(slice(None)), whole.cost.rows(slice(None)))
    dual = torch.zeros(k, dtype=torch.float64)
    first, second = certify(whole, dual, spaces, model, 1.0)[1], certify(factored, dual, spaces, model, 1.0, gen)[1]
    assert second.lower_bound == pytest.approx(first.lower_bound, rel=1e-9)
    assert second.stationarity == pytest.approx(first.stationarity, rel=0.2)
    assert first.stationarity_exact
    assert not second.stationarity_exact
    assert sampled.means is None


@pytest.mark.parametrize("marginals", [Balanced(), SemiRelaxed(0.1), Partial(0.6)])
def test_for_a_certificate_of_hard_marginals_a_gpu_is_waited_for_once(marginals: Marginals) -> None:
    rng = np.random.default_rng(0)
    p, q = random_masses(40, rng), random_masses(50, rng)
    given = [torch.from_numpy(each) for each in (p, q, random_plan(p, q, rng), rng.normal(size=50))]
    spaces = [PrecomputedDistances(random_distances(n, rng)) for n in (40, 50)]
    found = []
    with simulated_gpu() as simulation:
        for device in map(torch.device, ("cpu", "cuda")):
            P, Q, plan, dual = (each.to(device) for each in given)
            x, y = (space.to(device, torch.float64) for space in spaces)
            model, before = Model(P, Q, 1e-3, marginals), simulation.n_waits
            read = read_dense_plan(DenseCoupling(plan), (x, y), model, 2**30, torch.Generator(device))
            found.append(certify(read, dual, (x, y), model, 1.0)[1])
        assert simulation.n_waits - before == (1 if model.has_hard_marginals else 2)
    assert found[0].stationarity == pytest.approx(found[1].stationarity, rel=1e-9)
    assert found[0].lower_bound == pytest.approx(found[1].lower_bound, abs=1e-3)


@pytest.mark.parametrize("marginals", [Balanced(), SemiRelaxed(0.1, "x"), SemiRelaxed(0.1, "y"), Partial(1.0)])
def test_what_points_pay_alone_bounds_every_plan(marginals: Marginals) -> None:
    rng = np.random.default_rng(0)
    C, p, q = rng.uniform(size=(6, 7)), random_masses(6, rng), random_masses(7, rng)
    masses, cost = (torch.from_numpy(p), torch.from_numpy(q)), FactoredCost.from_matrix(torch.from_numpy(C))
    found = linear_bound(Model(*masses, 1e-3, marginals, alpha=0.5, beta=0.5, cost=cost))
    ends = {"x": 0.5 * (q @ C.min(0)), "y": 0.5 * (p @ C.min(1))}
    expected = ends[marginals.side] if isinstance(marginals, SemiRelaxed) else max(ends.values())
    assert found == pytest.approx(0.0 if isinstance(marginals, Partial) else expected, rel=1e-12)

"""Vertices of few entries between spaces with factors: the linear problem, its prices by tiles, and whole solves."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from scipy.sparse import coo_array

from tests.problems import quietly, random_masses
from torchgw import Checkpoint, GWOptions, gw_align, resume
from torchgw.couplings.blocks import DenseCoupling
from torchgw.couplings.sparse import SparseCoupling
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.diagnostics.status import History
from torchgw.objective.exact import ExactGradient
from torchgw.persist.watch import Watch
from torchgw.request import limits
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.solvers import linear_oracle as solver
from torchgw.solvers import minimum_cost_flow as minimum_cost_flow_module
from torchgw.solvers.conditional_gradient import DenseProgram, conditional_gradient
from torchgw.solvers.iterate import Loop
from torchgw.solvers.linear_oracle import north_west_corner, solve_transport
from torchgw.solvers.minimum_cost_flow import TransportError, minimum_cost_flow
from torchgw.solvers.minimum_cost_flow import _to_integers as integers
from torchgw.solvers.sparse_descent import FactoredProgram
from torchgw.solvers.transport_costs import DenseCost, Order, TiledCost, union
from torchgw.spaces import EuclideanDistances, FactoredDistances
from torchgw.spaces.coarsening import Cells
from torchgw.strategies import sparse
from torchgw.strategies.sparse import expand_cell_pairs

flows = pytest.mark.skipif(find_spec("ortools") is None, reason="OR-tools is not installed")
SIZES = [(1, 1), (2, 2), (2, 5), (70, 64), (130, 257), (300, 300)]
STREAMING = GWOptions(strategy="streaming")
SPIRALS = make_spiral(200)[0], make_spiral(240, random_state=1)[0]


@pytest.fixture(params=[pytest.param("flow", marks=flows), "simplex"])
def linear_problems(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Linear problems that are all flows, or all simplex."""
    monkeypatch.setattr(solver, "MOST_MASSES", 0 if request.param == "flow" else 10**9)
    return str(request.param)


def random_cost(n: int, k: int, rng: np.random.Generator, r: int = 3) -> FactoredCost:
    a, b, U, V = (torch.from_numpy(rng.normal(size=shape)) for shape in ((n,), (k,), (n, r), (k, r)))
    return FactoredCost(a, b, U, V)


def masses(n: int, k: int, rng: np.random.Generator, equal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    p, q = (np.full(size, 1 / size) if equal else random_masses(size, rng) for size in (n, k))
    return torch.from_numpy(p), torch.from_numpy(q)


def best_plan(C: np.ndarray, p: np.ndarray, q: np.ndarray) -> Any:
    return solve_transport(DenseCost(C, p, q), p, q, np.zeros(len(q))).plan


@flows
@pytest.mark.parametrize("equal", [True, False])
def test_a_flow_is_the_program_s_optimum_and_its_prices_prove_it(equal: bool) -> None:
    rng = np.random.default_rng(0)
    for n, k in SIZES:
        p, q = (side.numpy() for side in masses(n, k, rng, equal))
        entries = np.union1d(north_west_corner(p, q), rng.integers(n * k, size=4 * (n + k)))
        row, column, cost = entries // k, entries % k, rng.uniform(size=len(entries))
        x, a, b = minimum_cost_flow(cost, row, column, p, q)
        sums = np.zeros((n + k, len(entries)))
        sums[row, np.arange(len(entries))] = sums[n + column, np.arange(len(entries))] = 1
        best = linprog(cost, A_eq=sums, b_eq=np.concatenate((p, q)), method="highs").fun
        assert cost @ x == pytest.approx(best, rel=1e-7)
        assert np.abs(np.bincount(row, x, n) - p).max() < 1e-11
        assert np.abs(np.bincount(column, x, k) - q).max() < 1e-11
        reduced = cost - a[row] - b[column]
        assert reduced.min() > -1e-13
        assert reduced[x > 0].max() < 1e-7


@flows
def test_entries_that_carry_no_flow_are_refused() -> None:
    with pytest.raises(TransportError, match="not solved"):
        minimum_cost_flow(np.ones(2), np.array([0, 1]), np.array([0, 0]), np.full(2, 0.5), np.array([0.25, 0.75]))


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_tiles_leave_out_no_entry_below_potentials(n: int, k: int) -> None:
    rng = np.random.default_rng(n)
    cost = random_cost(n, k, rng)
    C, dual = cost.rows(slice(None)).numpy(), rng.normal(size=k)
    ordered, row_dual = TiledCost(cost, Order.of(cost)), (C - dual).min(1)
    found, nearest = ordered.c_transform(torch.from_numpy(dual))
    np.testing.assert_allclose(found, row_dual, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(nearest, (C - dual).argmin(1))
    reduced = C - row_dual[:, None] - dual
    limit = float(np.quantile(reduced, 0.02))
    expected = np.flatnonzero(reduced <= limit)
    assert set(expected) <= set(ordered.below((row_dual, dual), limit + 1e-12))
    assert len(ordered.below((row_dual, dual), -1e-9)) == 0
    cheap = ordered.cheapest(dual)
    assert (np.diff(cheap) > 0).all()
    assert set(cheap // k) == set(range(n)), "each row has its cheapest entry"
    np.testing.assert_allclose(ordered.at(cheap, dual), (C - dual).ravel()[cheap], atol=1e-12)


def test_most_tiles_of_curves_are_left_out_and_no_entry_that_is_cheap() -> None:
    """Several runs of row tiles, each with a part that is not whole."""
    rng = np.random.default_rng(0)
    (x, n), (y, k) = ((rng.uniform(0, 40, size=size), size) for size in (2100, 4300))
    U, V = (torch.from_numpy(np.stack((np.cos(t), np.sin(t), t), 1)) for t in (x, y))
    cost = FactoredCost(U.square().sum(1), V.square().sum(1), U, V)
    C, dual = cost.rows(slice(None)).numpy(), rng.normal(size=k) / 10
    ordered = TiledCost(cost, Order(*(torch.from_numpy(np.argsort(t)) for t in (x, y))))
    least = (C - dual).min(1)
    found, nearest = ordered.c_transform(torch.from_numpy(dual))
    np.testing.assert_allclose(found, least, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(nearest, (C - dual).argmin(1))
    looked = sum(costs.numel() for _, _, costs in ordered._blocks(0 * least, dual, 0.0, True))
    assert looked < 0.5 * n * k
    expected = np.flatnonzero(C - least[:, None] - dual <= 1e-3)
    assert set(expected) <= set(ordered.below((least, dual), 1e-3))
    assert len(ordered.below((least - 1.0, dual), -1.0)) == 0
    assert set(ordered.cheapest(dual) // k) == set(range(n))


@pytest.mark.parametrize("seed", range(10))
def test_bounds_allow_for_the_rounding_of_what_cancels(seed: int) -> None:
    """Factors whose products are a thousandth of their terms, points all alike: bounds are equal to costs on paper."""
    rng, (n, k) = np.random.default_rng(seed), (63, 151)
    u, v = rng.normal(size=(2, 3))
    v -= (v @ u) / (u @ u) * u * (1 - 1e-3)
    U, V = (torch.from_numpy(np.repeat(side[None], size, 0)) for side, size in ((u, n), (v, k)))
    cost = FactoredCost(torch.zeros(n).double(), torch.zeros(k).double(), U, V)
    dual = rng.normal(size=k) * 1e-4
    least = (cost.rows(slice(None)).numpy() - dual).min(1)
    found, nearest = TiledCost(cost, Order(torch.arange(n), torch.arange(k))).c_transform(torch.from_numpy(dual))
    np.testing.assert_allclose(found, least, rtol=0, atol=1e-12)
    assert (nearest == dual.argmax()).all()


def test_a_union_of_positions_is_ascending_and_has_each_once() -> None:
    rng = np.random.default_rng(3)
    for size in (0, 1, 50):
        entries, others = (np.unique(rng.integers(0, 80, size=size)) for size in (40, size))
        np.testing.assert_array_equal(union(entries, rng.permutation(others)), np.union1d(entries, others))


def test_many_entries_as_cheap_are_not_all_taken() -> None:
    zeros = [torch.zeros(shape, dtype=torch.float64) for shape in ((500,), (400,), (500, 2), (400, 2))]
    ordered = TiledCost(FactoredCost(*zeros), Order.of(FactoredCost(*zeros)))
    assert len(ordered.cheapest(np.zeros(400))) <= 9 * 6 * 500


@pytest.mark.parametrize("equal", [True, False])
def test_a_priced_vertex_is_the_optimum_of_all_entries(linear_problems: str, equal: bool) -> None:
    rng = np.random.default_rng(1)
    for n, k in SIZES:
        cost, (p, q) = random_cost(n, k, rng), masses(n, k, rng, equal)
        order, given = Order.of(cost), (p.numpy(), q.numpy())
        entries = north_west_corner(*given, order, rng.integers(n, size=k))
        found = solve_transport(TiledCost(cost, order), *given, np.zeros(k), entries)
        C = cost.rows(slice(None)).numpy()
        best = best_plan(C, *given)
        value = float((found.plan.toarray() * C).sum())
        assert value == pytest.approx(float((best.toarray() * C).sum()), abs=1e-7)
        a, b = found.duals
        assert float((C - a[:, None] - b).min()) > -1e-7
        assert float(given[0] @ a + given[1] @ b) == pytest.approx(value, abs=1e-7)
        assert np.abs(found.plan.sum(1) - p.numpy()).max() < 1e-15
        assert np.abs(found.plan.sum(0) - q.numpy()).max() < 1e-15


@pytest.mark.parametrize("equal", [True, False])
def test_descents_by_entries_and_by_whole_matrices_end_alike(linear_problems: str, equal: bool) -> None:
    rng = np.random.default_rng(2)
    X, Y = rng.normal(size=(90, 3)) * (3, 2, 1), rng.normal(size=(110, 3)) * (3, 2, 1)
    p, q = masses(90, 110, rng, equal)
    x, y = (EuclideanDistances(points, squared=True).to(torch.device("cpu"), torch.float64) for points in (X, Y))
    gradient = ExactGradient(x, y, p, q)
    plan = torch.outer(p, q) * torch.from_numpy(rng.uniform(0.5, 1.5, size=(90, 110)))
    cost, dual = gradient(DenseCoupling(plan), p), torch.zeros(110, dtype=torch.float64)
    order = Order.of(cost)
    start = cost, dual, north_west_corner(p.numpy(), q.numpy(), order, plan.argmax(0).numpy())
    factored = FactoredProgram(gradient, order, p, q)
    end, _ = factored.descend_from_vertex(*start, Loop(Watch(), History(), 100, 1e-6, 1e-15))
    loop = Loop(Watch(), History(), 100, 1e-6, 1e-15)
    stored = DenseProgram(gradient, p, q)
    other, _ = conditional_gradient(stored, end.plan.to_dense(), dual, loop)
    assert end.value == pytest.approx(other.value, rel=1e-5)
    assert end.gap <= 1e-6 * end.value
    assert len(end.plan.mass) < 3 * (90 + 110)
    assert float((end.plan.marginal(1) - p).abs().max()) < 1e-15


@pytest.mark.parametrize(("n", "k"), [(400, 500), (420, 420)])
def test_a_streamed_solve_without_entropy_is_the_stored_one(linear_problems: str, n: int, k: int) -> None:
    (X, x), (Y, y) = make_spiral(n), make_swiss_roll(k)
    streamed, stored = (
        quietly(gw_align, X, Y, epsilon=0, options=GWOptions(strategy=name), random_state=0)
        for name in ("streaming", "dense")
    )
    assert (streamed.strategy, stored.strategy) == ("streaming", "dense")
    assert streamed.value <= stored.value * 1.001
    assert streamed.converged
    assert streamed.certificate.stationarity_exact
    assert streamed.certificate.stationarity <= 2e-5 * streamed.value
    assert streamed.certificate.lower_bound <= streamed.value
    assert streamed.coupling.to_sparse(1.0).nnz <= 3 * (n + k)
    assert streamed.marginal_error < 1e-12
    assert np.corrcoef(x, y[streamed.argmax()])[0, 1] > 0.99


def test_masses_ties_and_doubled_points(linear_problems: str) -> None:
    rng = np.random.default_rng(3)
    X = np.repeat(rng.integers(0, 4, size=(60, 2)), 2, 0).astype(float)
    p, q = random_masses(120, rng), random_masses(150, rng)
    Y = rng.integers(0, 4, size=(150, 2)).astype(float)
    result = quietly(
        gw_align,
        EuclideanDistances(X, squared=True),
        EuclideanDistances(Y, squared=True),
        p=p,
        q=q,
        epsilon=0,
        options=STREAMING,
        random_state=0,
    )
    assert result.strategy == "streaming"
    assert result.marginal_error < 1e-12
    pairs = (EuclideanDistances(Y[:2] + i, squared=True) for i in (0, 1))
    few = quietly(gw_align, *pairs, epsilon=0, options=STREAMING)
    assert few.coupling.to_dense().sum() == pytest.approx(1.0)


def test_points_without_mass_are_left_out(linear_problems: str) -> None:
    X, Y, p = make_spiral(100)[0], make_spiral(120, random_state=1)[0], np.ones(100)
    p[::7] = 0
    result = quietly(gw_align, X, Y, p=p / p.sum(), epsilon=0, options=STREAMING, random_state=0)
    assert result.marginal_error < 1e-12
    assert float(result.coupling.to_dense()[::7].abs().sum()) == 0


def test_masses_that_few_parts_make_up_are_small_integers() -> None:
    rng = np.random.default_rng(4)
    rows, columns = rng.multinomial(1000, np.full(70, 1 / 70)), rng.multinomial(1200, np.full(80, 1 / 80))
    supply, demand, unit = integers(rows / 1000, columns / 1200)
    np.testing.assert_array_equal(supply, 6 * rows)
    np.testing.assert_array_equal(demand, 5 * columns)
    assert unit == pytest.approx(1 / 6000)
    supply, demand, unit = integers(random_masses(70, rng), columns / 1200)
    assert unit == 2.0**-50
    assert supply.sum() == demand.sum() == pytest.approx(2**50)


@pytest.mark.parametrize("kind", ["spread over decades", "two clusters", "one is nothing"])
@flows
def test_flows_of_masses_that_integers_hardly_hold(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    n, k = 200, 300
    p, q = rng.uniform(0.5, 1.5, n), rng.uniform(0.5, 1.5, k)
    if kind == "spread over decades":
        p = np.exp(-40 * rng.uniform(size=n))
    if kind == "one is nothing":
        p[-1] = q[7] = 1e-14
    groups = np.arange(n) < n // 2, np.arange(k) < k // 2
    for side, group in zip((p, q), groups, strict=True):
        for part in (group, ~group):
            side[part] /= 2 * side[part].sum()
    cost = random_cost(n, k, rng)
    if kind == "two clusters":  # far apart: no cheap entry leads from one to the other
        for factor, group in zip((cost.U, cost.V), groups, strict=True):
            factor[:, 0] = torch.from_numpy(np.where(group, 30.0, -30.0))
    ordered, ends = TiledCost(cost, Order.of(cost)), []
    for most in (0, 10**9):
        monkeypatch.setattr(solver, "MOST_MASSES", most)
        found = solve_transport(ordered, p, q, np.zeros(k))
        assert np.abs(found.plan.sum(1) - p).max() < 1e-15
        assert np.abs(found.plan.sum(0) - q).max() < 1e-15
        ends.append(float((found.plan.toarray() * cost.rows(slice(None)).numpy()).sum()))
    assert ends[0] == pytest.approx(ends[1], abs=1e-6)


def test_sides_of_very_different_sizes(linear_problems: str) -> None:
    rng = np.random.default_rng(7)
    for n, k in ((20, 1500), (1500, 20)):
        cost, given = random_cost(n, k, rng), tuple(mass.numpy() for mass in masses(n, k, rng, True))
        found = solve_transport(TiledCost(cost, Order.of(cost)), *given, np.zeros(k))
        C = cost.rows(slice(None)).numpy()
        best = best_plan(C, *given)
        assert float((found.plan.toarray() * C).sum()) == pytest.approx(float((best.toarray() * C).sum()), abs=1e-7)


def test_costs_that_are_all_alike_are_priced(linear_problems: str) -> None:
    rng = np.random.default_rng(8)
    cost, (p, q) = random_cost(200, 300, rng), masses(200, 300, rng, False)
    cost = FactoredCost(cost.a, cost.b, cost.U * 0, cost.V * 0)
    found = solve_transport(TiledCost(cost, Order.of(cost)), p.numpy(), q.numpy(), np.zeros(300))
    expected = float(cost.a @ p + cost.b @ q)
    assert float((found.plan.toarray() * cost.rows(slice(None)).numpy()).sum()) == pytest.approx(expected, abs=1e-12)


def test_what_streamed_is_kept_where_no_vertex_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise TransportError("no")

    monkeypatch.setattr(FactoredProgram, "descend_from_vertex", fails)
    result = quietly(gw_align, *SPIRALS, distances="landmark", epsilon=0, options=STREAMING, random_state=0)
    assert result.status.name == "TRANSPORT"
    assert result.marginal_error < 1e-6


@pytest.mark.parametrize("heard", [1, 12])
def test_a_solve_that_is_stopped_has_a_plan_and_goes_on(linear_problems: str, heard: int, tmp_path: Path) -> None:
    seen: list[int] = []

    def stop(progress: Any) -> bool:
        seen.append(progress.iteration)
        return len(seen) == heard

    given = {"distances": "landmark", "epsilon": 0, "options": STREAMING, "random_state": 0}
    cut = quietly(gw_align, *SPIRALS, **given, callback=stop, checkpoint=tmp_path / "solve")
    assert cut.status.name == "CANCELLED"
    assert cut.marginal_error < 1e-6
    whole = quietly(gw_align, *SPIRALS, **given)
    assert quietly(resume, tmp_path / "solve").value == pytest.approx(whole.value, rel=1e-9)


@flows
@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_solve_that_is_stopped_at_any_level_goes_on(
    left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (solver, sparse):
        monkeypatch.setattr(module, "MOST_MASSES", 100)
    heard: list[int] = []

    def count(progress: Any) -> bool:
        heard.append(progress.iteration)
        return len(heard) == last

    given = {"distances": "landmark", "epsilon": 0, "options": STREAMING, "random_state": 0}
    last = -1
    whole = quietly(gw_align, *SPIRALS, **given, callback=count)
    last = len(heard) - left
    heard.clear()
    kept = Checkpoint(tmp_path / "solve", every=0.0)
    assert quietly(gw_align, *SPIRALS, **given, callback=count, checkpoint=kept).status.name == "CANCELLED"
    assert quietly(resume, tmp_path / "solve").value == pytest.approx(whole.value, rel=1e-9)


def test_points_in_one_place_are_matched_with_anything() -> None:
    X, one = SPIRALS[0], np.ones((150, 2))
    known = quietly(gw_align, X, one, distances="landmark", epsilon=1e-2, random_state=0).value  # of every plan
    for spaces, value in (((X, one), known), ((one, X), known), ((one, one[:140]), 0.0)):
        found = quietly(gw_align, *spaces, distances="landmark", epsilon=0, options=STREAMING, random_state=0)
        assert found.value == pytest.approx(value, rel=1e-6, abs=1e-12)
        assert found.marginal_error < 1e-12


def test_distances_without_factors_do_not_stream_without_entropy() -> None:
    D = np.random.default_rng(4).uniform(0.5, 1.0, size=(30, 30))
    np.fill_diagonal(D, 0.0)
    with pytest.raises(ValueError, match="between factored distances alone; use strategy='dense'"):
        gw_align(D + D.T, D + D.T, distances="precomputed", epsilon=0, options=STREAMING)


def test_what_is_not_installed_is_said_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    X = make_spiral(80)[0]
    monkeypatch.setattr(solver, "has_ortools", lambda: False)
    monkeypatch.setattr(solver, "MOST_MASSES", 100)
    with pytest.raises(ImportError, match="pip install ortools"):
        gw_align(X, X, epsilon=0, options=STREAMING)
    with pytest.raises(MemoryError, match=r"pip install ortools"):
        gw_align(X, X, distances="landmark", epsilon=0, options=GWOptions(max_memory=10**5))
    assert quietly(gw_align, X, X, epsilon=0, random_state=0).strategy == "dense"


def test_large_problems_stream_without_entropy_by_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = make_spiral(200)[0], make_spiral(240, random_state=1)[0]
    monkeypatch.setattr(limits, "DENSE_PAIRS", {"cpu": 10_000})
    result = quietly(gw_align, X, Y, distances="landmark", epsilon=0, random_state=0)
    assert (result.strategy, result.epsilon) == ("streaming", 0)


def test_spaces_of_factors_stream_with_them() -> None:
    rng = np.random.default_rng(5)
    F = rng.normal(size=(80, 3))
    D = torch.from_numpy(np.square(F[:, None] - F[None]).sum(2))
    squares = torch.from_numpy(np.square(F).sum(1))
    ones = torch.ones(80, dtype=torch.float64)
    half = 0.5**0.5
    factors = torch.cat(
        ((half * (squares + ones))[:, None], (half * (squares - ones))[:, None], torch.from_numpy(2**0.5 * F)), 1
    )
    space = FactoredDistances(factors, [1, -1, -1, -1, -1])
    assert torch.allclose(space.rows(torch.arange(80)), D)
    result = quietly(gw_align, space, space, epsilon=0, options=STREAMING, random_state=0)
    assert result.value < 1e-6 * float(D.max()) ** 2
    assert coo_array(result.coupling.to_sparse(1.0)).nnz < 200


def test_matched_cells_have_all_pairs_of_their_points() -> None:
    rng = np.random.default_rng(11)
    rows, columns = (torch.from_numpy(rng.permutation(np.arange(n) % m)) for n, m in ((30, 7), (41, 9)))
    plan = coo_array(([1.0, 1.0, 1.0], ([0, 3, 6], [8, 8, 1])), shape=(7, 9)).tocsr()
    found = expand_cell_pairs(SparseCoupling.of(plan, rows.device), Cells(rows, 7), Cells(columns, 9))
    wanted = plan.toarray()[rows.numpy()][:, columns.numpy()] > 0
    np.testing.assert_array_equal(found, np.flatnonzero(wanted))


@flows
def test_prices_that_have_not_settled_leave_a_bound_that_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    X, Y = rng.normal(size=(150, 3)), rng.normal(size=(170, 3))
    x, y = (EuclideanDistances(points, squared=True).to(torch.device("cpu"), torch.float64) for points in (X, Y))
    p, q = masses(150, 170, rng, equal=True)
    monkeypatch.setattr(solver, "MOST_MASSES", 0)
    gaps = {}
    for visits in (0, 2**24):  # no round, until no path grows shorter
        monkeypatch.setattr(minimum_cost_flow_module, "VISITS", visits)
        found = quietly(gw_align, x, y, epsilon=0, options=STREAMING, random_state=0)
        cost = ExactGradient(x, y, p, q)(DenseCoupling(torch.as_tensor(found.plan)), p).rows(slice(None)).numpy()
        lowest = float((best_plan(cost, p.numpy(), q.numpy()).toarray() * cost).sum())
        true = float((cost * np.asarray(found.plan)).sum()) - lowest
        gaps[visits] = found.certificate.stationarity, true, found.value
    assert all(stated >= true - 1e-12 for stated, true, _ in gaps.values())
    assert gaps[0][2] <= 1.1 * gaps[2**24][2]
    assert gaps[2**24][0] <= 1e-6 * gaps[2**24][2]


@flows
@pytest.mark.parametrize(("n", "k"), [(900, 1100), (1500, 400)])
def test_vertices_between_cells_lead_to_those_of_all_points(n: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = make_spiral(n, random_state=2)[0], make_swiss_roll(k, random_state=3)[0]
    whole = quietly(gw_align, X, Y, epsilon=0, options=STREAMING, random_state=0)
    asked = []

    def followed(program: FactoredProgram, *arguments: Any) -> Any:
        asked.append(len(program.p) + len(program.q))
        return descend(program, *arguments)

    descend = FactoredProgram.descend_from_vertex
    monkeypatch.setattr(FactoredProgram, "descend_from_vertex", followed)
    for module in (solver, sparse):
        monkeypatch.setattr(module, "MOST_MASSES", 300)
    found = quietly(gw_align, X, Y, epsilon=0, options=STREAMING, random_state=0)
    assert len(asked) > 1
    assert asked == sorted(asked)
    assert asked[0] <= 300
    assert asked[-1] == n + k
    assert found.value <= 1.005 * whole.value
    assert found.plan_sparse.nnz <= 3 * (n + k)
    np.testing.assert_allclose(found.plan.sum(1), 1 / n, atol=1e-12)
    np.testing.assert_allclose(found.plan.sum(0), 1 / k, atol=1e-12)
    assert found.certificate.stationarity <= 0.02 * found.value
    assert str(found.status).startswith(("settled", "stationary"))

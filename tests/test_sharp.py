"""The optimum without entropy: exact transport, conditional gradients, and exhaustive search on tiny problems."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment, linprog
from scipy.spatial.distance import cdist, pdist, squareform

from tests.problems import gw_by_enumeration, quietly, random_distances, random_masses, random_plan
from torchgw import CoarseOptions, GWOptions, GWResult, Partial, SpaceOptions, Status, gw_align
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.diagnostics.status import History
from torchgw.objective.bounds import consistent_bound, frank_wolfe_gap, monotone_coupling
from torchgw.objective.exact import ExactGradient
from torchgw.persist.watch import Watch
from torchgw.solvers import conditional_gradient as solver
from torchgw.solvers import transport_lp
from torchgw.solvers.conditional_gradient import DenseProgram, DescentState, TransportPlans, conditional_gradient
from torchgw.solvers.iterate import Loop
from torchgw.solvers.transport_lp import TransportError, Vertex, estimate_duals, transport
from torchgw.spaces import PrecomputedDistances


def descended(
    DX: np.ndarray, DY: np.ndarray, T: torch.Tensor, p: torch.Tensor, q: torch.Tensor, history: History
) -> tuple[DescentState[torch.Tensor, torch.Tensor], Status]:
    gradient = ExactGradient(PrecomputedDistances(DX), PrecomputedDistances(DY), p, q)
    loop = Loop(Watch(), history, 100, 1e-6, 1e-15)
    return conditional_gradient(DenseProgram(gradient, TransportPlans(p, q)), T, torch.zeros_like(q), loop)


def sharp(*spaces: np.ndarray, **keywords: object) -> GWResult:
    return quietly(gw_align, *spaces, epsilon=0, random_state=0, **keywords)  # type: ignore[arg-type]


def exhaustive(DX: np.ndarray, DY: np.ndarray) -> float:
    """The lowest value over all permutations, of distances scaled to 1, uniform masses."""
    n = len(DX)
    DX, DY = DX / DX.max(), DY / DY.max()
    orders = np.array(list(itertools.permutations(range(n))))
    return float(((DX[None] - DY[orders[:, :, None], orders[:, None]]) ** 2).sum((1, 2)).min() / n**2)


@pytest.mark.parametrize("scale", [1e-6, 1e8])
def test_the_optimum_does_not_depend_on_the_unit_of_distances(scale: float) -> None:
    rng = np.random.default_rng(1)
    DX, DY, few = random_distances(12, rng), random_distances(14, rng), CoarseOptions(n_starts=4, n_landmarks=14)
    unit = float(max(DX.max(), DY.max()))
    one, other = (
        sharp(DX, DY, options=GWOptions(spaces=SpaceOptions(scale=each * unit), coarse=few)) for each in (1.0, scale)
    )
    assert other.value * scale**2 == pytest.approx(one.value, rel=1e-9)
    np.testing.assert_array_equal(other.argmax(), one.argmax())


@pytest.mark.parametrize(
    ("n", "k", "equal"), [(3, 3, False), (12, 17, False), (30, 9, False), (1, 4, False), (25, 25, True)]
)
def test_transport_is_the_optimum_of_the_full_linear_program(n: int, k: int, equal: bool) -> None:
    rng = np.random.default_rng(n)
    C, start = rng.normal(size=(n, k)), 50 * rng.normal(size=k)
    p, q = (np.full(m, 1 / m) if equal else random_masses(m, rng) for m in (n, k))
    plan, dual, _ = transport(C, p, q, [start])
    plan = plan.toarray()
    sums = np.zeros((n + k, n * k))
    for i, j in itertools.product(range(n), range(k)):
        sums[[i, n + j], i * k + j] = 1
    full = linprog(C.ravel(), A_eq=sums, b_eq=np.concatenate((p, q)))
    assert float((C * plan).sum()) == pytest.approx(full.fun, abs=1e-9)
    np.testing.assert_allclose(plan.sum(1), p, atol=1e-9)
    np.testing.assert_allclose(plan.sum(0), q, atol=1e-9)
    lower = p @ (C - dual).min(1) + q @ dual
    assert lower == pytest.approx(full.fun, abs=1e-7)


def test_transport_among_candidates_is_feasible_and_no_better_than_the_optimum() -> None:
    rng = np.random.default_rng(6)
    C, p, q = rng.normal(size=(30, 41)), random_masses(30, rng), random_masses(41, rng)
    best = transport(C, p, q, [np.zeros(41)])
    few = transport(C, p, q, [50 * rng.normal(size=41)], priced=False)
    near = transport(C, p, q, [np.zeros(41), best.dual], priced=False)
    np.testing.assert_allclose(few.plan.sum(1), p, atol=1e-12)
    np.testing.assert_allclose(few.plan.sum(0), q, atol=1e-12)
    cost, found, lowest = ((C * each.plan).sum() for each in (few, near, best))
    assert cost > found == pytest.approx(lowest, rel=1e-9)


def test_the_point_that_takes_what_is_left_has_as_many_candidates_as_its_mass_asks_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Six of them are no room for it, and a first step would better no plan."""
    costs, rng = list[float](), np.random.default_rng(0)
    D, E = (squareform(pdist(rng.gamma(2.0, size=shape))) for shape in ((205, 3), (210, 2)))

    def compared(C: Any, p: Any, q: Any, duals: Any, priced: bool = True, basis: Any = None) -> Vertex:
        found = transport(C, p, q, duals, priced, basis)
        if basis is None:
            costs.append(float(found.plan.multiply(C).sum() / transport(C, p, q, duals).plan.multiply(C).sum()))
        return found

    monkeypatch.setattr(solver, "transport", compared)
    quietly(lambda: gw_align(D, E, epsilon=0.0, marginals=Partial(0.8), random_state=0))
    assert len(costs) >= 6
    assert max(costs) <= 1.01


@pytest.mark.parametrize(("n", "k"), [(12, 17), (30, 9), (60, 70)])
def test_transport_goes_on_from_the_basis_of_another_program_to_the_same_optimum(n: int, k: int) -> None:
    rng = np.random.default_rng(n)
    C, p, q = rng.normal(size=(n, k)), random_masses(n, rng), random_masses(k, rng)
    before = transport(C, p, q, [np.zeros(k)])
    assert before.basis is not None
    assert len(before.basis) == n + k
    basic = np.zeros(n * k, dtype=bool)
    basic[before.basis[before.basis >= 0]] = True
    assert before.plan.toarray().ravel()[~basic].max() < 1e-12  # rounding
    for change in (0.0, 0.1, 10.0):
        other = C + change * rng.normal(size=(n, k))
        cold, warm = transport(other, p, q, [np.zeros(k)]), transport(other, p, q, [before.dual], basis=before.basis)
        assert float((other * warm.plan).sum()) == pytest.approx(float((other * cold.plan).sum()), abs=1e-9)
        np.testing.assert_allclose(warm.plan.sum(1), p, atol=1e-9)
        np.testing.assert_allclose(warm.plan.sum(0), q, atol=1e-9)


@pytest.mark.parametrize("far", [False, True])
def test_potentials_from_nothing_leave_few_entries_to_be_priced_in(far: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    C = cdist(rng.normal(size=(150, 2)), rng.normal(size=(170, 2))) ** 2
    if far:  # a row and a column that cost as much everywhere
        C[3] += 1e3
        C[:, 5] += 1e3
    p, q = random_masses(150, rng), random_masses(170, rng)
    taken, solve = list[int](), transport_lp.linear_program
    monkeypatch.setattr(transport_lp, "linear_program", lambda *given: taken.append(len(given[0])) or solve(*given))
    nothing = np.zeros(170)
    best = float(transport(C, p, q, [nothing]).plan.multiply(C).sum())
    rounds, size = len(taken), max(taken)
    taken.clear()
    duals = estimate_duals(torch.from_numpy(C), p, q, nothing)
    assert float(transport(C, p, q, [duals]).plan.multiply(C).sum()) == pytest.approx(best, rel=1e-9)
    assert len(taken) <= rounds
    assert max(taken) < size
    left, before = (best - float(p @ (C - dual).min(1) + q @ dual) for dual in (duals, nothing))
    assert left <= 0.5 * before


def test_a_basis_is_gone_on_from_where_costs_are_tied() -> None:
    rng = np.random.default_rng(3)
    C, p, q = rng.integers(0, 3, size=(40, 50)).astype(float), random_masses(40, rng), random_masses(50, rng)
    before = transport(C, p, q, [np.zeros(50)])
    other = rng.integers(0, 3, size=(40, 50)).astype(float)
    cold, warm = transport(other, p, q, [np.zeros(50)]), transport(other, p, q, [before.dual], basis=before.basis)
    assert float((other * warm.plan).sum()) == pytest.approx(float((other * cold.plan).sum()), abs=1e-9)


def test_the_simplex_takes_few_exchanges_from_the_basis_of_a_program_nearby(monkeypatch: pytest.MonkeyPatch) -> None:
    core, took = transport_lp._load_bindings(), []
    if core is None:
        pytest.skip("HiGHS does not tell its basis here")
    solver = core._Highs

    class Counting(solver):  # type: ignore[misc, valid-type]
        def run(self) -> object:
            status = super().run()
            took.append(self.getInfo().simplex_iteration_count)
            return status

    monkeypatch.setattr(core, "_Highs", Counting)
    rng = np.random.default_rng(8)
    C, p, q = rng.uniform(size=(150, 180)), random_masses(150, rng), random_masses(180, rng)
    before = transport(C, p, q, [np.zeros(180)])
    first = sum(took)
    transport(C + 1e-3 * rng.uniform(size=C.shape), p, q, [before.dual], basis=before.basis)
    assert sum(took) - first < first / 5


def test_linear_programs_are_the_same_without_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    C, p, q = rng.normal(size=(30, 41)), random_masses(30, rng), random_masses(41, rng)
    assert transport_lp._load_bindings() is not None
    direct = transport(C, p, q, [np.zeros(41)])
    monkeypatch.setattr(transport_lp, "_load_bindings", lambda: None)
    public = transport(C, p, q, [np.zeros(41)])
    np.testing.assert_allclose(direct.plan.toarray(), public.plan.toarray(), atol=1e-12)


@pytest.mark.parametrize("off", [0.0, 1e-9, -1e-9])
def test_entries_of_a_vertex_sum_up_to_the_masses(off: float) -> None:
    rng = np.random.default_rng(4)
    p, q = random_masses(9, rng), random_masses(12, rng)
    row, column, mass = monotone_coupling(p, q)
    plan = transport_lp.repair_marginals(row, column, mass * (1 + off * rng.uniform(size=len(mass))), p, q)
    np.testing.assert_allclose(plan.sum(1), p, rtol=0, atol=1e-16)
    np.testing.assert_allclose(plan.sum(0), q, rtol=0, atol=1e-16)
    assert plan.data.min() > 0
    assert plan.nnz <= 2 * len(mass)
    assert abs(plan.toarray()[row, column] - mass).max() < 1e-8


def test_bindings_that_do_not_work_as_expected_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_lp, "BINDINGS", ("torchgw.no_such_module", "math"))
    assert transport_lp._load_bindings.__wrapped__() is None


def test_transport_of_equal_masses_is_an_assignment() -> None:
    C = np.random.default_rng(0).normal(size=(60, 60))
    plan = transport(C, np.full(60, 1 / 60), np.full(60, 1 / 60), [np.zeros(60)]).plan
    np.testing.assert_array_equal(plan.argmax(1), linear_sum_assignment(C)[1])


def test_transport_that_is_not_priced_out_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgw.solvers.transport_lp.PRICING_ROUNDS", 1)
    rng = np.random.default_rng(5)
    C, p, q = rng.normal(size=(30, 41)), random_masses(30, rng), random_masses(41, rng)
    with pytest.raises(TransportError, match=r"30 x 41.*not priced out in 1 rounds"):
        transport(C, p, q, [50 * rng.normal(size=41)])


def test_the_gap_is_that_of_the_dual_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    DX, DY = random_distances(12, rng), random_distances(15, rng)
    p, q = (torch.from_numpy(random_masses(n, rng)) for n in (12, 15))
    solve = solver.TransportPlans.vertex

    def without_dual(plans: object, C: torch.Tensor, dual: object, priced: bool, basis: None) -> object:
        """Of exact problems the plan alone, so that their potentials say little."""
        found = solve(plans, C, dual, True, basis)
        return found._replace(dual=0 * q) if priced else found

    monkeypatch.setattr(solver.TransportPlans, "vertex", without_dual)
    found, _ = descended(DX, DY, torch.from_numpy(random_plan(p.numpy(), q.numpy(), rng)), p, q, History())
    bound, _ = consistent_bound(found.cost, p, q, found.dual)
    assert float(frank_wolfe_gap(found.value, bound)) == pytest.approx(found.gap, abs=1e-9)


def test_conditional_gradients_descend_to_a_stationary_plan() -> None:
    rng = np.random.default_rng(1)
    DX, DY = random_distances(12, rng), random_distances(15, rng)
    p, q = random_masses(12, rng), random_masses(15, rng)
    tensors = [torch.from_numpy(a) for a in (p, q)]
    history = History()
    found, status = descended(DX, DY, torch.from_numpy(random_plan(p, q, rng)), *tensors, history)
    expected = gw_by_enumeration(DX / DX.max(), DY / DY.max(), found.plan)
    assert found.value == pytest.approx(expected, rel=1e-9)
    assert found.gap <= 1e-4 * found.value
    assert status is Status.STATIONARY
    assert history.cost == sorted(history.cost, reverse=True)
    np.testing.assert_allclose(found.plan.sum(1), p, atol=1e-12)
    np.testing.assert_allclose(found.plan.sum(0), q, atol=1e-12)


@pytest.mark.parametrize("n", [2, 5])
def test_a_plan_that_is_stationary_but_no_minimum_is_left(n: int) -> None:
    """Of the product plan of a space in which all points are alike, every plan is as good to first order."""
    D, p = 1 - np.eye(n), torch.full((n,), 1 / n, dtype=torch.float64)
    found, status = descended(D, D, torch.outer(p, p), p, p, History())
    assert found.value == pytest.approx(0.0, abs=1e-15)
    assert status is Status.STATIONARY


def test_the_sharp_plan_is_better_than_the_entropic_one_and_matching_like() -> None:
    X, Y = make_spiral(150)[0], make_swiss_roll(180, random_state=50)[0]
    smooth, plan = gw_align(X, Y, epsilon=1e-3, random_state=0), sharp(X, Y)
    assert plan.value < 0.7 * smooth.value
    assert int((plan.plan > 1e-12).sum()) <= 150 + 180
    assert plan.marginal_error < 1e-12
    assert plan.status is Status.STATIONARY
    assert plan.certificate.stationarity <= 1e-3 * plan.value
    assert plan.potentials is None
    assert plan.epsilon == 0


def test_masses_and_missing_points_are_respected() -> None:
    rng = np.random.default_rng(2)
    DX, DY = random_distances(20, rng), random_distances(24, rng)
    p, q = 3 * random_masses(20, rng), 3 * random_masses(24, rng)
    p[[2, 7]], q[5] = 0, 0
    p, q = 3 * p / p.sum(), 3 * q / q.sum()
    result = sharp(DX, DY, p=p, q=q)
    np.testing.assert_allclose(result.plan.sum(1), p, atol=1e-12)
    np.testing.assert_allclose(result.plan.sum(0), q, atol=1e-12)
    (DX, rows), (DY, columns) = (
        (D[np.ix_(at, at)], at) for D, at in ((DX, np.flatnonzero(p)), (DY, np.flatnonzero(q)))
    )
    plan = result.plan[np.ix_(rows, columns)]
    assert result.value == pytest.approx(gw_by_enumeration(DX / DX.max(), DY / DY.max(), plan), rel=1e-9)


def test_an_isometric_copy_has_value_zero() -> None:
    rng = np.random.default_rng(3)
    D, order = random_distances(40, rng), rng.permutation(40)
    result = sharp(D, 5 * D[order][:, order])
    assert result.value == pytest.approx(0, abs=1e-12)
    np.testing.assert_array_equal(order[result.argmax()], np.arange(40))


@pytest.mark.parametrize("seed", range(12))
def test_the_exhaustive_optimum_of_seven_points_is_reached(seed: int) -> None:
    """The optimum over all plans is at most that over permutations, and every plan is above the lower bound."""
    rng = np.random.default_rng(seed)
    DX, DY = random_distances(7, rng), random_distances(7, rng)
    result = sharp(DX, DY)
    best = exhaustive(DX, DY)
    assert result.value <= best * 1.0001 + 1e-12
    assert result.certificate.lower_bound <= result.value


def test_the_largest_problem_that_fits_no_dense_gradient_says_what_to_use() -> None:
    rng = np.random.default_rng(4)
    with pytest.raises(MemoryError, match="epsilon=0 needs the exact gradient"):
        gw_align(
            rng.normal(size=(300, 2)), rng.normal(size=(20, 2)), distances="euclidean", epsilon=0, options=_small()
        )


def test_the_iteration_limit_holds_at_the_sharp_end_and_the_clock_runs_on() -> None:
    from torchgw import GWOptions, StoppingOptions

    X, Y = make_spiral(120)[0], make_swiss_roll(130, random_state=50)[0]
    heard = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = gw_align(
            X,
            Y,
            epsilon=0,
            options=GWOptions(stopping=StoppingOptions(max_iter=6)),
            callback=heard.append,
            random_state=0,
        )
    assert result.n_iter <= 12
    assert [one.iteration for one in heard] == list(range(1, len(heard) + 1))
    assert all(one.iteration <= one.max_iter for one in heard)
    assert result.history.elapsed == sorted(result.history.elapsed)


def _small() -> object:
    from torchgw import GWOptions

    return GWOptions(max_memory=8 * 250**2)


def test_the_hardest_of_two_hundred_problems_ends_in_the_best_permutation() -> None:
    rng = np.random.default_rng(139)
    DX, DY = (squareform(pdist(x)) for x in (rng.normal(size=(7, 3)), rng.normal(size=(7, 3))))
    found = quietly(gw_align, DX, DY, random_state=139)
    assert found.value == pytest.approx(exhaustive(DX, DY), rel=1e-9)
    assert found.status.converged
    assert found.certificate.stationarity <= 1e-6 * found.value


def test_exchanges_better_ends_that_steps_to_first_order_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    def values() -> list[float]:
        found = []
        for seed in (2, 25, 49):
            rng = np.random.default_rng(seed)
            spaces = random_distances(12, rng), random_distances(12, rng)
            found.append(quietly(gw_align, *spaces, epsilon=0, random_state=seed).value)
        return found

    exchanged = values()
    monkeypatch.setattr("torchgw.strategies.sharp.EXCHANGED_PAIRS", 0)
    ratios = [left / bettered for left, bettered in zip(values(), exchanged, strict=True)]
    assert min(ratios) >= 1 - 1e-9
    assert max(ratios) > 1.0005

"""The optimum without entropy: exact transport, conditional gradients, and exhaustive search on tiny problems."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment, linprog
from scipy.sparse import coo_array
from scipy.spatial.distance import cdist, pdist, squareform

from tests.problems import gw_by_enumeration, quietly, random_distances, random_masses, random_plan
from torchgw import CoarseOptions, GWOptions, GWResult, Partial, SpaceOptions, Status, gw_align
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.diagnostics.status import History
from torchgw.objective.bounds import consistent_bound, frank_wolfe_gap, monotone_coupling
from torchgw.objective.exact import ExactGradient
from torchgw.persist.watch import Watch
from torchgw.solvers import conditional_gradient as solver
from torchgw.solvers import linear_oracle
from torchgw.solvers.conditional_gradient import DenseProgram, DescentState, conditional_gradient
from torchgw.solvers.iterate import Loop
from torchgw.solvers.linear_oracle import Vertex, repair_marginals, solve_transport
from torchgw.solvers.transport_costs import DenseCost
from torchgw.spaces import PrecomputedDistances


def transport(C: np.ndarray, p: np.ndarray, q: np.ndarray, dual: np.ndarray | None = None, **more: Any) -> Vertex:
    return solve_transport(DenseCost(C, p, q), p, q, np.zeros(len(q)) if dual is None else dual, **more)


def descended(
    DX: np.ndarray, DY: np.ndarray, T: torch.Tensor, p: torch.Tensor, q: torch.Tensor, history: History
) -> tuple[DescentState[torch.Tensor, torch.Tensor], Status]:
    gradient = ExactGradient(PrecomputedDistances(DX), PrecomputedDistances(DY), p, q)
    loop = Loop(Watch(), history, 100, 1e-6, 1e-15)
    return conditional_gradient(DenseProgram(gradient, p, q), T, torch.zeros_like(q), loop)


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
    found = transport(C, p, q, start)
    plan, (_, dual) = found.plan.toarray(), found.duals
    sums = np.zeros((n + k, n * k))
    for i, j in itertools.product(range(n), range(k)):
        sums[[i, n + j], i * k + j] = 1
    full = linprog(C.ravel(), A_eq=sums, b_eq=np.concatenate((p, q)))
    assert float((C * plan).sum()) == pytest.approx(full.fun, abs=1e-9)
    np.testing.assert_allclose(plan.sum(1), p, atol=1e-9)
    np.testing.assert_allclose(plan.sum(0), q, atol=1e-9)
    lower = p @ (C - dual).min(1) + q @ dual
    assert lower == pytest.approx(full.fun, abs=1e-7)


def test_linear_programs_are_the_same_without_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    C, p, q = rng.normal(size=(30, 41)), random_masses(30, rng), random_masses(41, rng)
    assert linear_oracle._load_bindings() is not None
    direct = transport(C, p, q)
    monkeypatch.setattr(linear_oracle, "_load_bindings", lambda: None)
    public = transport(C, p, q)
    np.testing.assert_allclose(direct.plan.toarray(), public.plan.toarray(), atol=1e-12)


def test_transport_among_candidates_is_feasible_and_no_better_than_the_optimum() -> None:
    rng = np.random.default_rng(6)
    C, p, q = rng.normal(size=(30, 41)), random_masses(30, rng), random_masses(41, rng)
    best = transport(C, p, q)
    far, near = (transport(C, p, q, dual, rounds=1) for dual in (50 * rng.normal(size=41), best.duals[1]))
    for found in (far, near):
        np.testing.assert_allclose(found.plan.sum(1), p, atol=1e-12)
        np.testing.assert_allclose(found.plan.sum(0), q, atol=1e-12)
    cost, found, lowest = ((C * each.plan).sum() for each in (far, near, best))
    assert cost > found == pytest.approx(lowest, rel=1e-9)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("n", "k"), [(12, 17), (30, 9), (60, 70)])
def test_transport_goes_on_from_the_basis_of_another_program_to_the_same_optimum(n: int, k: int, tied: bool) -> None:
    rng = np.random.default_rng(n)
    C, p, q = rng.normal(size=(n, k)), random_masses(n, rng), random_masses(k, rng)
    C = np.rint(C) if tied else C
    before = transport(C, p, q)
    assert before.basis is not None
    assert len(before.basis) == n + k
    basic = np.zeros(n * k, dtype=bool)
    basic[before.basis[before.basis >= 0]] = True
    assert before.plan.toarray().ravel()[~basic].max() < 1e-12  # rounding
    for change in (0.0, 0.1, 10.0):
        other = C + change * rng.normal(size=(n, k))
        cold, warm = transport(other, p, q), transport(other, p, q, before.duals[1], basis=before.basis)
        assert float((other * warm.plan).sum()) == pytest.approx(float((other * cold.plan).sum()), abs=1e-9)
        np.testing.assert_allclose(warm.plan.sum(1), p, atol=1e-9)
        np.testing.assert_allclose(warm.plan.sum(0), q, atol=1e-9)


def test_the_simplex_takes_few_exchanges_from_the_basis_of_a_program_nearby(monkeypatch: pytest.MonkeyPatch) -> None:
    core, took = linear_oracle._load_bindings(), []
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
    before = transport(C, p, q)
    first = sum(took)
    transport(C + 1e-3 * rng.uniform(size=C.shape), p, q, before.duals[1], basis=before.basis)
    assert sum(took) - first < first / 5


def test_each_round_of_pricing_leads_no_higher_and_its_potentials_prove_what_is_left() -> None:
    rng = np.random.default_rng(5)
    C, p, q = rng.normal(size=(30, 41)), random_masses(30, rng), random_masses(41, rng)
    start, costs = 50 * rng.normal(size=41), list[float]()
    lowest = float((C * transport(C, p, q).plan).sum())
    for rounds in (1, 2, 3, 20):
        found = transport(C, p, q, start, rounds=rounds)
        costs.append(float((C * found.plan).sum()))
        assert p @ (C - found.duals[1]).min(1) + q @ found.duals[1] <= lowest + 1e-9
    assert costs == sorted(costs, reverse=True)
    assert costs[0] > costs[-1] == pytest.approx(lowest, abs=1e-9)


def test_the_point_that_takes_what_is_left_has_as_many_candidates_as_its_mass_asks_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Six of them are no room for it, and a first step would better no plan."""
    costs, rng = list[float](), np.random.default_rng(0)
    D, E = (squareform(pdist(rng.gamma(2.0, size=shape))) for shape in ((205, 3), (210, 2)))

    def compared(cost: DenseCost, p: Any, q: Any, dual: Any, entries: Any, rounds: int, basis: Any) -> Vertex:
        found, best = (solve_transport(cost, p, q, dual, entries, most, basis) for most in (rounds, 20))
        if basis is None:
            costs.append(float(found.plan.multiply(cost.C).sum() / best.plan.multiply(cost.C).sum()))
        return found

    monkeypatch.setattr(solver, "solve_transport", compared)
    quietly(lambda: gw_align(D, E, epsilon=0.0, marginals=Partial(0.8), random_state=0))
    assert len(costs) >= 6
    assert max(costs) <= 1.01


@pytest.mark.parametrize("far", [False, True])
def test_costs_alone_lead_to_few_entries_to_be_priced_in(far: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Potentials that are zero say nothing: those of a little entropy are nearer to the optimal ones."""
    rng = np.random.default_rng(7)
    C = cdist(rng.normal(size=(150, 2)), rng.normal(size=(170, 2))) ** 2
    if far:  # a row and a column that cost as much everywhere
        C[3] += 1e3
        C[:, 5] += 1e3
    p, q = random_masses(150, rng), random_masses(170, rng)
    taken, solve = list[int](), linear_oracle.linear_program
    monkeypatch.setattr(linear_oracle, "linear_program", lambda *given: taken.append(len(given[0])) or solve(*given))
    best = float(transport(C, p, q, np.full(170, 1e-300)).plan.multiply(C).sum())
    rounds, size = len(taken), max(taken)
    taken.clear()
    assert float(transport(C, p, q).plan.multiply(C).sum()) == pytest.approx(best, rel=1e-9)
    assert len(taken) <= rounds
    assert max(taken) < size
    estimated = DenseCost(C, p, q).estimate_dual(p, q)
    left, before = (best - float(p @ (C - dual).min(1) + q @ dual) for dual in (estimated, 0 * estimated))
    assert left <= 0.5 * before


@pytest.mark.parametrize("off", [0.0, 1e-9, -1e-9])
def test_entries_of_a_vertex_sum_up_to_the_masses(off: float) -> None:
    rng = np.random.default_rng(4)
    p, q = random_masses(9, rng), random_masses(12, rng)
    row, column, mass = monotone_coupling(p, q)
    near = coo_array((mass * (1 + off * rng.uniform(size=len(mass))), (row, column)), shape=(9, 12))
    plan = repair_marginals(near, p, q)
    np.testing.assert_allclose(plan.sum(1), p, rtol=0, atol=1e-16)
    np.testing.assert_allclose(plan.sum(0), q, rtol=0, atol=1e-16)
    assert plan.data.min() > 0
    assert plan.nnz <= 2 * len(mass)
    assert abs(plan.toarray()[row, column] - mass).max() < 1e-8


def test_bindings_that_do_not_work_as_expected_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_oracle, "BINDINGS", ("torchgw.no_such_module", "math"))
    assert linear_oracle._load_bindings.__wrapped__() is None


def test_transport_of_equal_masses_is_an_assignment() -> None:
    C = np.random.default_rng(0).normal(size=(60, 60))
    plan = transport(C, np.full(60, 1 / 60), np.full(60, 1 / 60)).plan
    np.testing.assert_array_equal(plan.argmax(1), linear_sum_assignment(C)[1])


def test_the_gap_is_that_of_the_dual_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    DX, DY = random_distances(12, rng), random_distances(15, rng)
    p, q = (torch.from_numpy(random_masses(n, rng)) for n in (12, 15))
    solve = DenseProgram.vertex

    def without_dual(program: DenseProgram, state: Any, priced: bool) -> object:
        """Of exact problems the plan alone, so that their potentials say little."""
        plan, dual, basis = solve(program, state, True)
        return plan, 0 * q if priced else dual, basis

    monkeypatch.setattr(DenseProgram, "vertex", without_dual)
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

"""How a solved plan answers a change of its cost: against the dense system and against differences of tight solves."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.fuzz_makers import apart, rng, shares
from tests.problems import generator, potential_coupling
from torchgw import GWOptions, Unbalanced, gw_align
from torchgw.couplings.blocks import BlockCoupling, DenseCoupling
from torchgw.couplings.potential import PotentialCoupling
from torchgw.kernels import LOG2E
from torchgw.kernels.softmin_dense.reference import KERNEL
from torchgw.linalg.lanczos import find_slow_eigenpairs
from torchgw.linalg.linear_systems import gmres
from torchgw.linalg.operators import Matrix
from torchgw.options import SinkhornOptions
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.sinkhorn.implicit import PlanSensitivity, Response
from torchgw.sinkhorn.loop import sinkhorn
from torchgw.sinkhorn.sides import MarginalConstraint

EPSILON = 0.1
SHAPES = [(9, 14), (14, 9), (11, 11)]
EMPTY_ROW, EMPTY_COLUMN = 3, 5


@dataclass(frozen=True)
class Demands:
    """What is asked of the marginals: weights of the divergences, and the total of a partial plan."""

    rho_x: float = math.inf
    rho_y: float = math.inf
    total: float | None = None

    def taus(self) -> list[float]:
        return [1.0 if rho == math.inf else rho / (rho + EPSILON) for rho in (self.rho_x, self.rho_y)]

    def held(self, plan: BlockCoupling, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        sums = plan.marginal(1), plan.marginal(0)
        if self.total is None:
            one, other = (torch.full_like(found, tau) for found, tau in zip(sums, self.taus(), strict=True))
        else:
            one, other = ((found >= mass * (1 - 1e-9)).to(found) for found, mass in zip(sums, (p, q), strict=True))
        return one, other


def test_a_plan_on_one_column_answers_with_numbers() -> None:
    """What is left of the system is a constant, so that conjugate gradients have nothing to do."""
    A, B, f, g = torch.zeros(5, 1), torch.zeros(13, 1), torch.full((5,), -math.log2(5)), torch.full((13,), -math.inf)
    g[6] = 0.0
    plan = PotentialCoupling(*(side.double() for side in (A, B, f, g)))
    held = torch.ones(5, dtype=torch.float64), torch.ones(13, dtype=torch.float64)
    response = Response(plan, held, EPSILON, direct_size=0)
    U, V = torch.ones(5, 1, dtype=torch.float64), torch.linspace(0, 1, 13, dtype=torch.float64)[:, None]
    answer = response(FactoredCost(U[:, 0], V[:, 0], U, V))
    assert all(bool(part.isfinite().all()) for part in (answer.change.marginal(1), answer.a, answer.b))
    assert response.error < 1e-9


DEMANDS = {
    "balanced": Demands(),
    "rows relaxed": Demands(rho_x=0.3),
    "columns relaxed": Demands(rho_y=0.02),
    "both relaxed": Demands(rho_x=0.3, rho_y=0.05),
    "rows free": Demands(rho_x=0.0),
    "columns free": Demands(rho_y=0.0),
    "partial": Demands(total=0.6),
}
KINDS = ["direct", "iterated", "streaming"]


def masses(n: int, seed: int) -> Tensor:
    """Positive masses of sum one but for one point without any."""
    found = torch.rand(n, generator=generator(seed), dtype=torch.float64) + 0.5
    found[EMPTY_ROW if seed == 1 else EMPTY_COLUMN] = 0.0
    return found / found.sum()


def factored(n: int, k: int, seed: int, rank: int = 3, stored: bool = False) -> FactoredCost:
    """A random factored matrix of non-negative entries about one, with a stored part where asked for."""
    a, b, U, V, extra = (
        torch.randn(*shape, generator=generator(seed + i), dtype=torch.float64)
        for i, shape in enumerate(((n,), (k,), (n, rank), (k, rank), (n, k)))
    )
    found = FactoredCost(a, b, U / 2, V / 2, extra if stored else None)
    return replace(found, a=found.a - found.rows(slice(None)).min())


def solved(cost: FactoredCost, p: Tensor, q: Tensor, demands: Demands, n_iter: int = 6000) -> PotentialCoupling:
    """The plan by block ascent of the dual: f and g at most 0 and a price c of the total where there is one."""
    C, (tau_x, tau_y), c = cost.rows(slice(None)), demands.taus(), p.new_zeros(())
    f, g = torch.zeros_like(p), torch.zeros_like(q)
    for _ in range(n_iter):
        before = f, g, c
        f = -tau_x * EPSILON * torch.logsumexp((g + c - C) / EPSILON + q.log(), 1)
        f = f if demands.total is None else f.clamp_max(0.0)
        g = -tau_y * EPSILON * torch.logsumexp((f[:, None] + c - C) / EPSILON + p.log()[:, None], 0)
        if demands.total is not None:
            g = g.clamp_max(0.0)
            logs = (f[:, None] + g - C) / EPSILON + p.log()[:, None] + q.log()
            c = EPSILON * (math.log(demands.total) - torch.logsumexp(logs.flatten(), 0))
        if all(float((new - old).abs().max()) < 1e-15 for new, old in zip((f, g, c), before, strict=True)):
            break
    unit = LOG2E / EPSILON
    row, column = (f + c - cost.a) * unit + p.log2(), (g - cost.b) * unit + q.log2()
    return PotentialCoupling(cost.U * (2 * unit), cost.V, row, column)


def response(plan: PotentialCoupling, kind: str, held: tuple[Tensor, Tensor], total: bool) -> Response:
    found = plan if kind == "streaming" else DenseCoupling(plan.to_dense())
    return Response(found, held, EPSILON, total, direct_size=1000 if kind == "direct" else 0)


def by_dense_system(T: Tensor, held: tuple[Tensor, Tensor], total: bool, R: Tensor) -> Tensor:
    """W from the whole system at the head of `torchgw.sinkhorn.implicit`, by least squares."""
    (n, _), sums = T.shape, torch.cat((T.sum(1), T.sum(0)))
    firm = torch.cat(held)
    system = torch.diag(sums / firm.clamp_min(1e-300))
    system[:n, n:], system[n:, :n] = T, T.T
    right = torch.cat(((T * R).sum(1), (T * R).sum(0), (T * R).sum()[None]))
    system = torch.cat((system, sums[:, None]), 1)
    system = torch.cat((system, torch.cat((sums, T.sum()[None]))[None]), 0)
    kept = torch.cat(((firm > 0) & (sums > 0), torch.tensor([total])))
    x = torch.zeros_like(right)
    x[kept] = torch.linalg.pinv(system[kept][:, kept], hermitian=True, rtol=1e-12) @ right[kept]
    return T * (R - x[:n, None] - x[n:-1] - x[-1]) / EPSILON


@lru_cache
def problem(name: str, shape: tuple[int, int]) -> tuple[PotentialCoupling, tuple[Tensor, Tensor], bool]:
    """A solved plan with a point of either side without mass, how its marginals are held, and whether its total is."""
    demands, (n, k) = DEMANDS[name], shape
    p, q = masses(n, 1), masses(k, 2)
    plan = solved(factored(n, k, 10), p, q, demands)
    return plan, demands.held(plan, p, q), demands.total is not None


def moved(answer: PlanSensitivity) -> Tensor:
    return answer.change.to_dense()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", DEMANDS)
def test_the_answer_is_that_of_the_dense_system(name: str, shape: tuple[int, int], kind: str) -> None:
    plan, held, total = problem(name, shape)
    R = factored(*shape, seed=20, stored=shape == (11, 11))
    respond = response(plan, kind, held, total)
    answer = respond(R)
    W = by_dense_system(plan.to_dense(), held, total, R.rows(slice(None)))
    size = float(W.abs().max())
    torch.testing.assert_close(moved(answer), W, rtol=0, atol=1e-12 * size * respond.condition)
    torch.testing.assert_close(answer.rows, W.sum(1), rtol=0, atol=1e-11 * size)
    torch.testing.assert_close(answer.columns, W.sum(0), rtol=0, atol=1e-11 * size)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", DEMANDS)
def test_the_answer_is_the_derivative_of_the_solved_plan(name: str, kind: str) -> None:
    n, k, demands, step = 7, 9, DEMANDS[name], 1e-5
    p, q, C, R = masses(n, 1), masses(k, 2), factored(n, k, 10), factored(n, k, 20)
    ends = [solved(FactoredCost.weighted_sum([C, R], [1.0, -s]), p, q, demands).to_dense() for s in (step, -step)]
    plan = solved(C, p, q, demands)
    found = moved(response(plan, kind, demands.held(plan, p, q), demands.total is not None)(R))
    expected = (ends[0] - ends[1]) / (2 * step)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 * float(expected.abs().max()))


def test_a_partial_plan_has_points_that_give_all_and_points_that_do_not() -> None:
    _, (h, k), total = problem("partial", (9, 14))
    assert total
    assert 0 < int(h.sum()) < 8
    assert 0 < int(k.sum()) < 13


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", DEMANDS)
def test_the_response_is_symmetric(name: str, kind: str) -> None:
    plan, held, total = problem(name, (9, 14))
    respond = response(plan, kind, held, total)
    A, B = factored(9, 14, 30), factored(9, 14, 40)
    one = (A.rows(slice(None)) * moved(respond(B))).sum()
    other = (moved(respond(A)) * B.rows(slice(None))).sum()
    assert float(one) == pytest.approx(float(other), rel=1e-9)
    assert abs(float(one)) > 1e-3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", DEMANDS)
def test_no_mass_moves_where_the_demands_hold_it(name: str, kind: str) -> None:
    plan, (h, k), total = problem(name, (14, 9))
    answer = response(plan, kind, (h, k), total)(factored(14, 9, 20, stored=True))
    W = moved(answer)
    for sums, dim, firm, price in ((answer.rows, 1, h, answer.a), (answer.columns, 0, k, answer.b)):
        torch.testing.assert_close(sums, W.sum(dim), rtol=0, atol=1e-12)
        assert not bool((sums[firm == 1].abs() > 1e-10).any())
        assert not bool(price[firm == 0].any())
    assert not bool(W[EMPTY_ROW].any())
    assert not bool(W[:, EMPTY_COLUMN].any())
    if total or 1.0 in DEMANDS[name].taus():
        assert abs(float(W.sum())) < 1e-10


@pytest.mark.parametrize("name", ["balanced", "rows relaxed", "partial"])
def test_a_change_that_demands_absorb_moves_nothing(name: str) -> None:
    plan, (h, k), total = problem(name, (9, 14))
    a, b = (torch.randn(size, generator=generator(size), dtype=torch.float64) for size in (9, 14))
    constant = 1.0 if total else 0.0
    R = FactoredCost(a * (h == 1) + constant, b * (k == 1), torch.zeros(9, 0).double(), torch.zeros(14, 0).double())
    for kind in KINDS:
        assert float(moved(response(plan, kind, (h, k), total)(R)).abs().max()) < 1e-11


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_plan_with_a_correction_streams_as_it_is_stored(shape: tuple[int, int]) -> None:
    plan, R = potential_coupling(*shape, r=2, seed=0), factored(*shape, seed=20)
    held = torch.ones(shape[0]).double(), torch.ones(shape[1]).double()
    W = by_dense_system(plan.to_dense(), held, False, R.rows(slice(None)))
    for kind in KINDS:
        found = moved(response(plan, kind, held, False)(R))
        torch.testing.assert_close(found, W, rtol=0, atol=1e-8 * float(W.abs().max()))


def test_a_plan_in_float32_is_answered_to_its_precision() -> None:
    plan, held, total = problem("balanced", (9, 14))
    R = factored(9, 14, 20)
    wide = moved(response(plan, "direct", held, total)(R))
    for kind in KINDS:
        narrow = response(plan.to(torch.float32), kind, (held[0].float(), held[1].float()), total)(R.to(torch.float32))
        assert moved(narrow).dtype == torch.float32
        torch.testing.assert_close(moved(narrow).double(), wide, rtol=0, atol=1e-4 * float(wide.abs().max()))


def test_what_conjugate_gradients_leave_is_reported() -> None:
    plan, held, total = problem("balanced", (9, 14))
    R = factored(9, 14, 20)
    done, cut = (
        Response(DenseCoupling(plan.to_dense()), held, EPSILON, total, n_lanczos=2, max_iter=n, direct_size=0)
        for n in (200, 2)
    )
    exact, short = moved(done(R)), moved(cut(R))
    assert done.error <= 1e-12
    assert 2 < done.n_iter < 50
    assert cut.n_iter == 2
    assert cut.error > 1e-6
    assert float((short - exact).abs().max()) > 1e-9


def blocks_apart(sizes: tuple[tuple[int, int], ...]) -> Tensor:
    """A plan of components that share no mass."""
    parts = [torch.rand(*shape, generator=generator(i), dtype=torch.float64) + 0.1 for i, shape in enumerate(sizes)]
    plan = torch.block_diag(*parts)
    return plan / plan.sum()


@pytest.mark.parametrize("sizes", [((4, 6), (5, 3)), ((3, 3), (3, 3), (4, 2))], ids=str)
@pytest.mark.parametrize("direct_size", [1000, 0])
def test_components_that_share_no_mass_are_answered_each(sizes: tuple[tuple[int, int], ...], direct_size: int) -> None:
    T = blocks_apart(sizes)
    n, k = T.shape
    held = torch.ones(n).double(), torch.ones(k).double()
    R = factored(n, k, 20)
    respond = Response(DenseCoupling(T), held, EPSILON, direct_size=direct_size)
    answer = respond(R)
    assert (respond.n_iter == 0) == (direct_size > 0)
    assert all(bool(torch.isfinite(part).all()) for part in (moved(answer), answer.a, answer.b, answer.c))
    W = by_dense_system(T, held, False, R.rows(slice(None)))
    torch.testing.assert_close(moved(answer), W, rtol=0, atol=1e-11 * float(W.abs().max()))


@pytest.mark.parametrize("direct_size", [1000, 0])
@pytest.mark.parametrize("leak", [1e-10, 1e-13, 1e-15, 1e-17])
def test_components_that_share_next_to_no_mass_get_finite_answers(leak: float, direct_size: int) -> None:
    T = blocks_apart(((6, 6), (5, 7))) + leak
    held = torch.ones(11).double(), torch.ones(13).double()
    respond = Response(DenseCoupling(T), held, EPSILON, direct_size=direct_size)
    answer = respond(factored(11, 13, 20))
    assert bool(torch.isfinite(moved(answer)).all())
    assert float(moved(answer).abs().max()) < 10
    assert respond.condition > 1e-3 / max(leak, 1e-15)


@pytest.mark.parametrize("name", [name for name in DEMANDS if name != "columns free"])
def test_the_spectrum_is_that_of_the_dense_operator(name: str) -> None:
    plan, held, total = problem(name, (14, 9))
    respond = response(plan, "streaming", held, total)
    system = response(plan, "direct", held, total).system
    assert system is not None
    assert respond.system is None
    unit = torch.eye(len(system)).double()
    firm = torch.cat((held[1] * (plan.marginal(0) > 0), torch.ones(int(total)).double())) > 0
    operator = torch.stack([respond.apply_scaled_schur_complement(column) for column in unit[firm]])[:, firm]
    torch.testing.assert_close(operator, system[firm][:, firm])
    values = torch.linalg.eigvalsh(operator)
    values = values[1:] if name == "balanced" else values
    found = respond.spectrum
    assert found.smallest == pytest.approx(float(values[0]), rel=1e-8)
    assert found.largest == pytest.approx(float(values[-1]), rel=1e-8)
    assert respond.condition == pytest.approx(float(values[-1] / values[0]), rel=1e-8)
    assert respond.relaxation == pytest.approx(2 / (1 + math.sqrt(float(values[0]))), rel=1e-8)
    slow = values[values < 0.3]
    torch.testing.assert_close(found.values, slow, rtol=1e-8, atol=0)
    applied = (
        torch.stack([respond.apply_scaled_schur_complement(v) for v in found.vectors.T], 1)
        if len(slow)
        else found.vectors
    )
    torch.testing.assert_close(applied, found.vectors * found.values, rtol=0, atol=1e-8)


def test_a_side_that_is_free_leaves_nothing_to_solve() -> None:
    plan, held, total = problem("columns free", (14, 9))
    respond = response(plan, "streaming", held, total)
    assert respond.spectrum.values.shape == (0,)
    assert respond.condition == respond.relaxation == 1.0


def test_few_lanczos_steps_find_the_ends_of_a_large_spectrum() -> None:
    gap = torch.logspace(-6, -1, 5, dtype=torch.float64)
    values = torch.cat((gap, torch.linspace(0.5, 1, 495, dtype=torch.float64)))
    basis = torch.linalg.qr(torch.randn(500, 500, generator=generator(), dtype=torch.float64))[0]
    matrix = (basis * values) @ basis.T
    found = find_slow_eigenpairs(Matrix(lambda X: matrix @ X, 500, values.device, values.dtype), 40)
    torch.testing.assert_close(found.values, gap, rtol=1e-3, atol=0)
    assert found.largest / found.smallest == pytest.approx(1e6, rel=1e-3)
    assert float((found.vectors * basis[:, :5]).sum(0).abs().min()) > 1 - 1e-4


def test_a_known_null_space_is_left_out_of_the_spectrum() -> None:
    basis = torch.linalg.qr(torch.randn(20, 20, generator=generator(), dtype=torch.float64))[0]
    values = torch.cat((torch.zeros(2).double(), torch.linspace(0.1, 1, 18, dtype=torch.float64)))
    matrix = (basis * values) @ basis.T

    def project(X: Tensor) -> Tensor:
        return X - basis[:, :2] @ (basis[:, :2].T @ X)

    found = find_slow_eigenpairs(Matrix(lambda X: matrix @ X, 20, values.device, values.dtype, project), 18)
    assert found.smallest == pytest.approx(0.1, rel=1e-8)
    assert float((found.vectors.T @ basis[:, :2]).abs().max()) < 1e-12


@pytest.mark.parametrize("epsilon", [1e-3, 2e-3])
def test_the_relaxation_of_the_spectrum_needs_the_fewest_iterations(epsilon: float) -> None:
    x, y = np.linspace(0, 1, 60), np.linspace(0, 1, 70)
    score = torch.from_numpy(-((x[:, None] - y) ** 2) * LOG2E / epsilon)
    log_p, log_q = (torch.full((size,), -math.log2(size), dtype=torch.float64) for size in (60, 70))

    def count(relaxation: float) -> tuple[int, Tensor]:
        options = SinkhornOptions(tol=1e-11, check_every=20, relaxation=relaxation)
        state = sinkhorn(
            KERNEL.bind(score),
            MarginalConstraint(log_p),
            MarginalConstraint(log_q),
            log_p,
            options=options,
            max_iter=20_000,
        )
        assert float(state.residual) <= 1e-11
        return state.n_iter, (score + state.f[:, None] + state.g).exp2()

    plain, plan = count(1.0)
    found = Response(DenseCoupling(plan), (torch.ones(60).double(), torch.ones(70).double()), epsilon)
    assert 1.0 < found.relaxation < 1.95
    best = count(found.relaxation)[0]
    assert best < plain / 2
    assert best < count(1.5)[0]
    assert best < count(1.9)[0]


@given(n=st.integers(1, 30), seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_gmres_solves_random_systems(n: int, seed: int) -> None:
    A = torch.randn(n, n, generator=generator(seed), dtype=torch.float64) / math.sqrt(n) + 3 * torch.eye(n).double()
    x = torch.randn(n, generator=generator(seed + 1), dtype=torch.float64)
    found = gmres(lambda v: A @ v, A @ x, tol=1e-12, max_iter=n, restart=n)
    torch.testing.assert_close(found.x, x, rtol=0, atol=1e-9)
    assert found.n_iter <= n
    assert float((A @ (found.x - x)).norm() / (A @ x).norm()) == pytest.approx(found.residual, abs=1e-13)


@pytest.mark.parametrize("restart", [1, 3, 7])
def test_gmres_solves_with_a_restart_smaller_than_the_system(restart: int) -> None:
    A = torch.randn(40, 40, generator=generator(), dtype=torch.float64) / 20 + torch.eye(40).double()
    right = torch.randn(40, generator=generator(1), dtype=torch.float64)
    found = gmres(lambda v: A @ v, right, tol=1e-10, max_iter=400, restart=restart)
    assert found.residual <= 1e-10
    assert float((A @ found.x - right).norm() / right.norm()) <= 1.01e-10


def test_gmres_of_one_unknown_is_a_division() -> None:
    found = gmres(lambda v: -4 * v, torch.tensor([2.0]).double(), tol=1e-14, max_iter=10, restart=5)
    assert found.x.tolist() == [-0.5]
    assert found.n_iter == 1
    assert found.residual <= 1e-15
    assert found.condition == pytest.approx(1.0)


def test_gmres_of_a_zero_right_hand_side_asks_nothing_of_the_operator() -> None:
    def never(v: Tensor) -> Tensor:
        raise AssertionError(v)

    found = gmres(never, torch.zeros(5).double(), tol=1e-12, max_iter=10, restart=5)
    assert found == (pytest.approx(torch.zeros(5)), 0.0, 0, 1.0)


@pytest.mark.parametrize("restart", [4, 20])
def test_gmres_reports_what_too_few_iterations_leave(restart: int) -> None:
    A = torch.diag(torch.logspace(-3, 0, 20, dtype=torch.float64))
    right = torch.ones(20).double()
    found = gmres(lambda v: A @ v, right, tol=1e-12, max_iter=6, restart=restart)
    assert found.n_iter <= 6
    left = float((A @ found.x - right).norm() / right.norm())
    assert 1e-3 < left < 1
    assert found.residual == pytest.approx(left, rel=1e-10)


def test_gmres_that_makes_no_progress_ends_and_says_so() -> None:
    turned = torch.roll(torch.eye(12).double(), 1, 0)  # no vector of a short Krylov space comes nearer
    right = torch.eye(12)[0].double()
    found = gmres(lambda v: turned @ v, right, tol=1e-10, max_iter=500, restart=4)
    assert found.n_iter < 20
    assert found.residual == pytest.approx(1.0)
    assert bool(torch.isfinite(found.x).all())


def test_gmres_ends_at_an_invariant_space() -> None:
    A = torch.diag(torch.tensor([1.0, 2.0, 5.0, 7.0, 9.0]).double())
    right = torch.tensor([1.0, 0.0, 3.0, 0.0, 0.0]).double()
    found = gmres(lambda v: A @ v, right, tol=1e-14, max_iter=50, restart=5)
    torch.testing.assert_close(found.x, right / A.diagonal())
    assert found.n_iter == 2


def test_gmres_finds_the_condition_number_of_a_diagonal() -> None:
    values = torch.tensor([1.0, 3.0, 10.0, 40.0, 200.0]).double()
    found = gmres(lambda v: values * v, torch.ones(5).double(), tol=1e-13, max_iter=20, restart=5)
    assert found.condition == pytest.approx(200.0, rel=1e-9)


def test_gmres_of_a_singular_system_has_a_finite_answer() -> None:
    values = torch.tensor([0.0, 1.0, 2.0]).double()
    found = gmres(lambda v: values * v, torch.tensor([1.0, 1.0, 1.0]).double(), tol=1e-12, max_iter=30, restart=3)
    assert bool(torch.isfinite(found.x).all())
    assert found.residual == pytest.approx(1 / math.sqrt(3), rel=1e-6)


@pytest.mark.parametrize("total", [False, True])
def test_a_plan_without_mass_is_known_to_be_empty(total: bool) -> None:
    stiffness = torch.full((3,), 0.5, dtype=torch.float64), torch.full((4,), 0.5, dtype=torch.float64)
    some = torch.full((3, 4), 0.1, dtype=torch.float64)
    assert Response(DenseCoupling(0 * some), stiffness, 0.1, total).empty
    assert not Response(DenseCoupling(some), stiffness, 0.1, total).empty


def test_plans_whose_mass_vanishes_are_refused_in_words() -> None:
    X, Y = rng(46).normal(size=(3, 2)) + 1e3 * (np.arange(3) % 2)[:, None], apart(rng(57).normal(size=(8, 2)))
    features = rng(43).normal(size=(3, 3)), rng(44).normal(size=(8, 3))
    given = {
        "p": shares(rng(17).random(3) ** 8 + 1e-9),
        "cost": tuple(1e-100 * side for side in features),
        "alpha": 0.3,
        "marginals": Unbalanced(1e-3, 1e-4),
        "options": GWOptions(coarse=None, mixed_precision=False),
    }
    with pytest.raises(FloatingPointError, match=r"must leave a plan of some mass.*raise rho_x, rho_y"):
        gw_align(X, Y, random_state=5, **given)

"""Fused, semi-relaxed, partial and supervised problems, and other losses, without entropy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path
from scipy.spatial.distance import cdist

from tests import oracle
from tests.problems import daily, random_masses
from torchgw import Balanced, GWOptions, Partial, SemiRelaxed, SpaceOptions, Supervision, gw_align
from torchgw.couplings.sparse import SparseCoupling
from torchgw.losses import LOSSES
from torchgw.marginals import Marginals
from torchgw.objective.exact import ExactGradient
from torchgw.objective.model import Model
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.solvers.conditional_gradient import DescentState
from torchgw.solvers.model_form import ModelForm
from torchgw.solvers.warm_start import WarmStart
from torchgw.spaces import PrecomputedDistances
from torchgw.strategies import dense

pytestmark = pytest.mark.filterwarnings("ignore::torchgw.AmbiguityWarning", "ignore::torchgw.ConvergenceWarning")

FIXED: dict[str, Any] = {"distances": "precomputed", "epsilon": 0.0, "random_state": 0}


def clouds(n: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """Distances of two independent clouds over their largest, and a generator."""
    rng = np.random.default_rng((n, k, seed))
    DX, DY = cdist(x := rng.normal(size=(n, 3)), x), cdist(y := rng.normal(size=(k, 2)), y)
    return DX / DX.max(), DY / DY.max(), rng


def value(DX: np.ndarray, DY: np.ndarray, T: np.ndarray, M: np.ndarray | None = None, alpha: float = 1.0) -> float:
    """alpha times the quadratic part, which sums over all pairs of pairs, and the rest of the linear one."""
    problem = oracle.Problem(DX, DY, T.sum(1), T.sum(0), 0.0, alpha, M)
    quadratic = float(T.ravel() @ oracle.pair_costs(problem) @ T.ravel())
    return alpha * quadratic + (0.0 if M is None else (1 - alpha) * float((M * T).sum()))


def form_of(model: Model, DX: np.ndarray, DY: np.ndarray) -> ModelForm:
    spaces = (PrecomputedDistances.stored_matrix(torch.from_numpy(D), 1.0) for D in (DX, DY))
    return ModelForm(model, ExactGradient(*spaces, model.p, model.q, model.loss))


def models(n: int = 7, k: int = 9) -> Iterator[tuple[str, dict[str, Any]]]:
    M = torch.from_numpy(np.random.default_rng(5).uniform(-0.3, 1.0, size=(n, k)))
    fused = {"alpha": 0.6, "beta": 0.4, "cost": FactoredCost.from_matrix(M)}
    yield "fused", fused
    yield "semi-relaxed", {"marginals": SemiRelaxed(0.0, "y")}
    yield "semi-relaxed rows", {"marginals": SemiRelaxed(0.0, "x"), **fused}
    yield "partial", {"marginals": Partial(1.0)}
    yield "fused partial", {"marginals": Partial(1.0), **fused}
    yield "another loss", {"loss": LOSSES["kl"]}


@pytest.mark.parametrize(("name", "more"), list(models()))
def test_the_form_is_the_objective_and_self_adjoint(name: str, more: dict[str, Any]) -> None:
    DX, DY, rng = clouds(7, 9, 1)
    p, q = (torch.from_numpy(random_masses(m, rng) * (1.4 if "partial" in name else 1.0)) for m in (7, 9))
    model = Model(p, q, 0.0, **more)
    form = form_of(model, DX, DY)
    plans = [form.extend(torch.from_numpy(rng.exponential(size=(7, 9)) ** 2)) for _ in range(2)]
    ends = form.p, form.q
    for plan in plans:
        torch.testing.assert_close(plan.sum(1), ends[0])
        if not form.free:
            torch.testing.assert_close(plan.sum(0), ends[1])
    costs = [form.linearise(plan) for plan in plans]
    loss = "kl" if model.loss is not LOSSES["square"] else "square"
    M = None if model.cost is None else model.cost.rows(slice(None)).numpy()
    for plan, cost in zip(plans, costs, strict=True):
        T = form.restrict(plan).numpy()
        problem = oracle.Problem(DX, DY, T.sum(1), T.sum(0), 0.0, model.alpha, M, loss=loss)
        parts = T.ravel() @ oracle.pair_costs(problem) @ T.ravel() * model.alpha
        parts += 0.0 if M is None else model.beta * (M * T).sum()
        assert float((cost * plan).sum()) == pytest.approx(parts, rel=1e-9)
    assert float((costs[0] * plans[1]).sum()) == pytest.approx(float((costs[1] * plans[0]).sum()), rel=1e-9)


@pytest.mark.parametrize(("name", "more"), list(models(40, 44)))
def test_the_change_towards_a_vertex_is_that_of_the_cost(name: str, more: dict[str, Any]) -> None:
    DX, DY, rng = clouds(40, 44, 3)
    p, q = (torch.from_numpy(random_masses(m, rng) * (1.4 if "partial" in name else 1.0)) for m in (40, 44))
    exact = form_of(Model(p, q, 0.0, **more), DX, DY).quadratic
    assert isinstance(exact, ExactGradient)
    form, ways = ModelForm(Model(p, q, 0.0, **more), exact, True), []
    plan = form.extend(torch.from_numpy(rng.exponential(size=(40, 44))))
    for step in range(4):  # the first vertex differs from the plan everywhere, others from the one before in few rows
        cost = form.linearise(plan)
        lower = torch.where(plan > 0, -1.0, 1.0) if step else cost.clone()
        lower[step : step + 1] = torch.from_numpy(rng.normal(size=(1, cost.shape[1])))
        state = DescentState(plan=plan, cost=lower, dual=torch.zeros_like(form.q), value=0.0)
        vertex, _, _ = form.vertex(state, True)
        ahead = form.linearise(vertex)
        change = form.change(vertex, plan, cost)
        apart = ahead - cost - change
        if form.model.marginals.total is not None:  # the corner only has to cost too much
            assert float(cost[-1, -1] + change[-1, -1]) > float(ahead[:-1, :-1].max())
            apart[-1, -1] = 0.0
        assert float(apart.abs().max()) <= 1e-13
        ways.append(exact.change_by_rows(_sparse(form, vertex), form.restrict(plan)))
        plan = vertex.to_dense()
    assert any(way is not None for way in ways)


def _sparse(form: ModelForm, vertex: SparseCoupling) -> SparseCoupling:
    """The plan that one of the form's stands for."""
    return SparseCoupling.of(csr_array(form.restrict(vertex.to_dense()).numpy()), vertex.device)


@pytest.mark.parametrize(("name", "more"), list(models()))
def test_vertices_are_the_best_of_their_polytope(name: str, more: dict[str, Any]) -> None:
    DX, DY, rng = clouds(7, 9, 2)
    p, q = (torch.from_numpy(random_masses(m, rng) * (1.4 if "partial" in name else 1.0)) for m in (7, 9))
    p[3] = 0.0
    p /= p.sum() / (1.4 if "partial" in name else 1.0)
    form = form_of(Model(p, q, 0.0, **more), DX, DY)
    plan = form.extend(torch.from_numpy(rng.exponential(size=(7, 9))))
    cost = form.linearise(plan)
    state = DescentState(plan=plan, cost=cost, dual=torch.zeros_like(form.q), value=0.0)
    vertex, dual, _ = form.vertex(state, True)
    bound, _ = form.bound(replace(state, dual=dual))
    lowest = float(vertex.mass @ cost[vertex.row, vertex.column])
    assert lowest == pytest.approx(float(bound), abs=1e-9)
    assert lowest <= float((cost * plan).sum())
    torch.testing.assert_close(vertex.marginal(1), form.p)
    stands = form.restrict(vertex.to_dense())
    assert float(stands.sum()) == pytest.approx(1.0)
    if "partial" in name:
        assert float((stands.sum(0) - q).max()) <= 1e-12


@pytest.mark.parametrize(("seed", "mass"), daily([(0, 0.4), (1, 0.8)], range(4), [0.4, 0.8]))
def test_partial_plans_are_no_higher_than_exact_steps_from_the_product_plan(seed: int, mass: float) -> None:
    DX, DY, rng = clouds(12, 14, seed)
    p, q = random_masses(12, rng), random_masses(14, rng)
    found = gw_align(DX, DY, p=p, q=q, marginals=Partial(mass), **FIXED)
    plan = np.asarray(found.plan)
    assert found.value == pytest.approx(value(DX, DY, plan), abs=1e-12)
    assert found.value <= _descended(DX, DY, np.outer(p, q) * mass, p, q) * (1 + 1e-9)
    assert plan.sum() == pytest.approx(mass, abs=1e-14)
    assert max((plan.sum(1) - p).max(), (plan.sum(0) - q).max()) <= 1e-14
    assert found.certificate.stationarity <= 1e-6 * found.value


def _descended(DX: np.ndarray, DY: np.ndarray, T: np.ndarray, p: np.ndarray, q: np.ndarray) -> float:
    """The value that conditional gradients by SciPy's linear programs reach from a partial plan."""
    (n, k), total = T.shape, T.sum()
    sums = np.concatenate((np.kron(np.eye(n), np.ones(k)), np.kron(np.ones(n), np.eye(k))))

    def cost(T: np.ndarray) -> np.ndarray:
        return (DX**2 @ T.sum(1))[:, None] + DY**2 @ T.sum(0) - 2 * DX @ T @ DY

    for _ in range(200):
        given = {"A_ub": sums, "b_ub": np.concatenate((p, q)), "A_eq": np.ones((1, n * k)), "b_eq": [total]}
        way = linprog(cost(T).ravel(), **given).x.reshape(n, k) - T
        slope, curvature = (cost(T) * way).sum(), (cost(way) * way).sum()
        step = min(-slope / curvature, 1.0) if curvature > 0 else 1.0
        if slope > -1e-12:
            break
        T = T + step * way
    return value(DX, DY, T)


@pytest.mark.parametrize(("seed", "side"), daily([(0, "x"), (1, "y")], range(3), ["x", "y"]))
def test_semi_relaxed_plans_are_no_higher_than_any_map(seed: int, side: str) -> None:
    DX, DY, rng = clouds(5, 3, seed)
    p, q = random_masses(5, rng), random_masses(3, rng)
    if side == "x":
        DX, DY, p, q = DY, DX, q, p
    found = gw_align(DX, DY, p=p, q=q, marginals=SemiRelaxed(0.0, side), **FIXED)
    best = np.inf
    for target in itertools.product(range(3), repeat=5):
        T = np.zeros((5, 3))
        T[range(5), target] = p if side == "y" else q
        best = min(best, value(DX, DY, T if side == "y" else T.T))
    plan = np.asarray(found.plan)
    assert found.value <= best + 1e-12
    assert found.value == pytest.approx(value(DX, DY, plan), abs=1e-12)
    np.testing.assert_allclose(plan.sum(1) if side == "y" else plan.sum(0), p if side == "y" else q, rtol=1e-12)


def test_a_relaxed_side_is_the_other_way_round() -> None:
    DX, DY, rng = clouds(10, 12, 3)
    M = rng.uniform(size=(10, 12))
    one = gw_align(DX, DY, cost=M, alpha=0.5, marginals=SemiRelaxed(0.0, "y"), **FIXED)
    other = gw_align(DY, DX, cost=M.T, alpha=0.5, marginals=SemiRelaxed(0.0, "x"), **FIXED)
    assert one.value == pytest.approx(other.value, rel=1e-6)


def test_linear_problems_are_solved_to_the_vertex() -> None:
    rng = np.random.default_rng(4)
    M, p, q = rng.uniform(size=(12, 15)), random_masses(12, rng), random_masses(15, rng)
    sums = np.concatenate((np.kron(np.eye(12), np.ones(15)), np.kron(np.ones(12), np.eye(15))))
    found = gw_align(None, None, cost=M, alpha=0.0, p=p, q=q, epsilon=0.0)
    best = linprog(M.ravel(), A_eq=sums, b_eq=np.concatenate((p, q)))
    assert found.value == pytest.approx(best.fun, abs=1e-9)
    part = gw_align(None, None, cost=M, alpha=0.0, p=p, q=q, epsilon=0.0, marginals=Partial(0.4))
    best = linprog(M.ravel(), A_ub=sums, b_ub=np.concatenate((p, q)), A_eq=np.ones((1, M.size)), b_eq=[0.4])
    assert part.value == pytest.approx(best.fun, abs=1e-9)


def grown(seed: int, n: int = 150) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Path lengths of a tree without one of its branches, of the whole tree with other lengths and another order, and
    where the points of the first are in the second."""
    rng = np.random.default_rng(seed)
    parent = [0, *(max(0, i - 1 - int(rng.integers(0, 8)) * (rng.random() < 0.25)) for i in range(1, n))]
    W = np.zeros((n, n))
    for i in range(1, n):
        W[i, parent[i]] = rng.uniform(0.5, 1.5)
    whole, other = (shortest_path(lengths, directed=False) for lengths in (W, W * rng.uniform(0.97, 1.03, W.shape)))
    size = np.ones(n, dtype=int)
    for i in range(n - 1, 0, -1):
        size[parent[i]] += size[i]
    inside = np.arange(n) == max(i for i in range(n) if 0.2 * n <= size[i] <= 0.4 * n)
    for i in range(1, n):
        inside[i] |= inside[parent[i]]
    kept, order = np.flatnonzero(~inside), rng.permutation(n)
    return whole[np.ix_(kept, kept)], other[np.ix_(order, order)], np.argsort(order)[kept]


@pytest.mark.parametrize(("seed", "turned"), daily([(4, False)], [4, 6], [False, True]))
def test_a_tree_finds_itself_in_one_with_a_further_branch(seed: int, turned: bool) -> None:
    """Searched for beside points that all can take, it is lost."""
    DX, DY, true = grown(seed)
    (n, k), largest = (len(DX), len(DY)), max(DX.max(), DY.max())
    p, q, options = np.full(n, 1 / n), np.full(k, 1 / n), GWOptions(spaces=SpaceOptions(scale=largest))
    given: dict[str, Any] = {"options": options, **FIXED}
    if turned:
        found = gw_align(DY, DX, p=q, q=p, marginals=SemiRelaxed(0.0, "x"), **given)
    else:
        found = gw_align(DX, DY, p=p, q=q, marginals=SemiRelaxed(0.0), **given)
    assert found.value <= 1.1 * ((DX - DY[np.ix_(true, true)]) ** 2).mean() / largest**2


@pytest.mark.parametrize(
    ("marginals", "n"), daily([(Partial(0.6), 20)], [Partial(0.6), SemiRelaxed(0.0, "x")], [20, 205]), ids=str
)
def test_a_callback_hears_of_one_solve(n: int, marginals: Marginals) -> None:
    DX, DY, _ = clouds(n, n + 6, 3)
    heard = list[int]()
    gw_align(DX, DY, marginals=marginals, callback=lambda progress: heard.append(progress.iteration), **FIXED)
    assert heard == sorted(heard)
    assert len(heard) > 1


@pytest.mark.parametrize(
    ("marginals", "fused"),
    daily([(Partial(0.8), True), (SemiRelaxed(0.0), False)], [Partial(0.8), SemiRelaxed(0.0)], [False, True]),
    ids=str,
)
def test_a_given_plan_is_gone_down_from(marginals: Marginals, fused: bool) -> None:
    DX, DY, rng = clouds(20, 24, 5)
    given: dict[str, Any] = {"cost": rng.uniform(size=(20, 24)), "alpha": 0.5} if fused else {}
    first = gw_align(DX, DY, marginals=marginals, **given, **FIXED)
    again = gw_align(DX, DY, marginals=marginals, init=first.plan, **given, **FIXED)
    assert again.value <= first.value * (1 + 1e-9)
    assert first.converged
    assert first.certificate.stationarity <= 1e-6 * first.value


def test_a_partial_plan_is_entered_as_it_is() -> None:
    DX, DY, _ = clouds(3, 3, 0)
    mass = torch.full((3,), 0.25, dtype=torch.float64)
    form = form_of(Model(mass, mass, 0.0, marginals=Partial(0.5)), DX, DY)
    T = torch.diag(torch.tensor([0.25, 0.05, 0.20], dtype=torch.float64))
    torch.testing.assert_close(form.restrict(form.extend(4.0 * T)), T)


@pytest.mark.slow
def test_what_is_listed_is_the_plan_that_is_returned() -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        DX, DY = (rng.uniform(size=(m, m)) for m in (12, 13))
        given: dict[str, Any] = {"distances": "adjacency", "epsilon": 0.0, "random_state": 0}
        found = gw_align(DX + DX.T, DY + DY.T, marginals=Partial(0.5), **given)
        assert found.basins[0].energy == pytest.approx(found.value, rel=1e-6)
        np.testing.assert_array_equal(found.basins[0].matching, np.asarray(found.plan).argmax(1))


def test_a_constraint_costs_more_than_a_cycle_of_exchanges_saves() -> None:
    n = 8
    mask = np.eye(n, dtype=bool) | np.eye(n, k=1, dtype=bool)
    rules = Supervision(mask=mask)
    found = gw_align(None, None, cost=np.eye(n), alpha=0.0, epsilon=0.0, supervision=rules)
    np.testing.assert_allclose(found.plan, np.eye(n) / n, atol=1e-12)
    assert found.violation <= 1e-12


def test_rules_are_kept_without_entropy() -> None:
    DX, DY, rng = clouds(24, 24, 6)
    order = rng.permutation(24)
    DY = DX[np.ix_(order, order)]
    wrong = [(0, int(np.flatnonzero(order == 5)[0])), (5, int(np.flatnonzero(order == 0)[0]))]
    free = gw_align(DX, DY, **FIXED)
    held = gw_align(DX, DY, supervision=Supervision(pairs=wrong), **FIXED)
    assert held.plan[wrong[0][0], wrong[0][1]] == pytest.approx(1 / 24, rel=1e-9)
    assert held.plan[wrong[1][0], wrong[1][1]] == pytest.approx(1 / 24, rel=1e-9)
    assert held.value > free.value + 1e-6
    assert held.violation <= 1e-12


def test_another_loss_ends_at_a_vertex() -> None:
    DX, DY, _ = clouds(24, 24, 7)
    given = {"options": GWOptions(loss="kl"), "distances": "adjacency", "random_state": 0}
    found, blurred = (gw_align(DX + 0.1, DY + 0.1, epsilon=epsilon, **given) for epsilon in (0.0, 3e-3))
    assert int((found.plan > 1e-12).sum()) <= 2 * 24 - 1
    assert found.value <= blurred.value


@pytest.mark.parametrize(
    ("kind", "marginals"),
    daily(
        [
            ("two points", Partial(0.5)),
            ("ties", SemiRelaxed(0.0, "y")),
            ("copies", SemiRelaxed(0.0, "x")),
            ("no mass", Partial(0.5)),
        ],
        ["two points", "ties", "copies", "no mass"],
        [Partial(0.5), SemiRelaxed(0.0, "y"), SemiRelaxed(0.0, "x")],
    ),
    ids=str,
)
def test_degenerate_spaces_end(kind: str, marginals: Marginals) -> None:
    rng = np.random.default_rng(8)
    DX, DY, _ = clouds(2, 3, 0) if kind == "two points" else clouds(20, 25, 0)
    p, q = np.full(len(DX), 1 / len(DX)), np.full(len(DY), 1 / len(DY))
    if kind == "ties":
        DX, DY = np.rint(3 * DX), np.rint(3 * DY)
    if kind == "copies":
        half = rng.integers(0, 6, size=20)
        DX = DX[np.ix_(half, half)]
    if kind == "no mass":
        p[:5], q[::4] = 0.0, 0.0
        p, q = p / p.sum(), q / q.sum()
    found = gw_align(DX, DY, p=p, q=q, marginals=marginals, **FIXED)
    plan = np.asarray(found.plan)
    assert plan.min() >= 0
    assert plan.sum() == pytest.approx(marginals.total or 1.0, abs=1e-12)
    assert found.value == pytest.approx(value(DX / found.scales[0], DY / found.scales[1], plan), abs=1e-9)
    assert plan[p == 0].sum() == plan[:, q == 0].sum() == 0
    assert found.certificate.gap <= 1e-15 or found.certificate.stationarity <= 1e-6 * found.value


@pytest.mark.parametrize("marginals", [SemiRelaxed(1.0), SemiRelaxed(0.5, "x")], ids=str)
def test_what_divergences_hold_needs_entropy(marginals: Marginals) -> None:
    DX, DY, _ = clouds(6, 7, 0)
    with pytest.raises(ValueError, match=r"marginals must be Balanced\(\), Partial\(\) or SemiRelaxed\(0.0\) with"):
        gw_align(DX, DY, marginals=marginals, **FIXED)


def test_a_cancelled_solve_is_feasible() -> None:
    DX, DY, _ = clouds(30, 40, 9)
    found = gw_align(DX, DY, marginals=Partial(0.7), callback=lambda progress: True, **FIXED)
    assert float(found.plan.sum()) == pytest.approx(0.7, abs=1e-12)
    assert not found.converged


@pytest.mark.parametrize("marginals", [Partial(0.6), pytest.param(SemiRelaxed(0.0), marks=pytest.mark.slow)], ids=str)
def test_few_entries_are_read_as_they_are(marginals: Marginals) -> None:
    DX, DY, rng = clouds(20, 24, 10)
    p, q = random_masses(20, rng), random_masses(24, rng)
    found = gw_align(DX, DY, p=p, q=q, marginals=marginals, **FIXED)
    sparse = found.plan_sparse
    assert sparse.nnz <= 20 + 24
    np.testing.assert_allclose(sparse.toarray(), found.plan, atol=1e-11)
    source, target, mass = found.matching()
    np.testing.assert_array_equal(source, np.flatnonzero(np.asarray(found.plan).sum(1) > 0))
    np.testing.assert_array_equal(target, np.asarray(found.plan)[source].argmax(1))
    np.testing.assert_allclose(mass, np.asarray(found.plan)[source].max(1))


def test_points_that_are_left_out_keep_nothing() -> None:
    A = np.random.default_rng(1).gamma(2.0, size=(24, 3))
    B = np.r_[A[:18], np.random.default_rng(2).gamma(2.0, size=(10, 3))]
    found = gw_align(A, B, distances="euclidean", epsilon=0, random_state=0, marginals=Partial(0.6))
    kept = np.asarray(found.marginal(1)) > 0
    assert kept.sum() <= 18
    assert len(found.matching()[0]) == kept.sum() == (found.plan_sparse.sum(1) > 0).sum()
    np.testing.assert_array_equal(np.isnan(found.pull(B)).all(1), ~kept)
    assert float(found.plan.sum()) == pytest.approx(0.6, abs=1e-12)
    assert found.marginal_error <= 1e-12


def test_the_mass_of_a_free_side_is_no_part_of_the_problem() -> None:
    rng = np.random.default_rng(1)
    C, D = (cdist(x := rng.gamma(2.0, size=(n, d)), x) for n, d in ((16, 3), (16, 2)))
    p, q = rng.dirichlet(np.ones(16)), rng.dirichlet(np.ones(16))
    given: dict[str, Any] = {"q": q, "marginals": SemiRelaxed(0.0, "x"), **FIXED}
    plain = gw_align(C, D, **given)
    assert gw_align(C, D, p=p, **given).value <= 1.1 * plain.value


@pytest.mark.parametrize(
    ("marginals", "alpha"),
    [
        (Balanced(), 0.6),
        pytest.param(Partial(0.6), 1.0, marks=pytest.mark.slow),
        pytest.param(SemiRelaxed(0.0), 1.0, marks=pytest.mark.slow),
        (SemiRelaxed(0.0, "x"), 0.5),
    ],
    ids=str,
)
def test_many_points_are_searched_without_entropy(
    marginals: Marginals, alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact, made = list[float](), dense.descend_from_plan

    def spied(*given: Any, **named: Any) -> Any:
        found = made(*given, **named)
        exact.extend([found.energy] * bool(named.get("exact")))
        return found

    monkeypatch.setattr(dense, "descend_from_plan", spied)
    DX, DY, rng = clouds(200, 210, 11)
    given = FIXED if alpha == 1 else FIXED | {"cost": rng.uniform(size=(200, 210)), "alpha": alpha}
    found = gw_align(DX, DY, marginals=marginals, **given)
    assert found.converged
    assert found.certificate.stationarity <= 1e-6 * found.value
    assert any("landmarks" in basin.origin for basin in found.basins)
    assert found.basins[0].energy == pytest.approx(found.value, rel=1e-6)
    np.testing.assert_array_equal(found.basins[0].matching, np.asarray(found.plan).argmax(1))
    assert exact  # best steps from the product plan
    assert found.value <= exact[-1] * float(found.plan.sum()) ** 2 * (1 + 1e-9)
    again = gw_align(DX, DY, marginals=marginals, **given)
    assert torch.equal(torch.as_tensor(again.plan), torch.as_tensor(found.plan))


@pytest.mark.parametrize("seed", [12, 24])
def test_the_product_plan_that_is_given_is_left_by_best_steps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    DX, DY = (cdist(x := rng.normal(size=(n, 2)), x) for n in (20, 24))
    largest = max(DX.max(), DY.max())
    p, q, options = np.full(20, 1 / 20), np.full(24, 1 / 24), GWOptions(spaces=SpaceOptions(scale=1.0))
    DX, DY, given = DX / largest, DY / largest, {"init": 0.6 * np.outer(p, q), "options": options}
    found = gw_align(DX, DY, marginals=Partial(0.6), **given, **FIXED)
    assert found.value <= _descended(DX, DY, 0.6 * np.outer(p, q), p, q) * (1 + 1e-6)


@pytest.mark.parametrize("marginals", [Balanced(), SemiRelaxed(0.0, "y"), SemiRelaxed(0.0, "x")], ids=str)
def test_potentials_that_are_far_off_stand_for_plans_with_the_masses(marginals: Marginals) -> None:
    rng = np.random.default_rng(12)
    p, q = (torch.from_numpy(random_masses(n, rng)) for n in (6, 8))
    p[2] = q[5] = 0.0
    cost = FactoredCost.squared_distance(*(torch.from_numpy(rng.normal(size=(n, 2))) for n in (6, 8)))
    far = (torch.from_numpy(rng.normal(size=n) * 1e3) + side.log2() for n, side in ((6, p), (8, q)))
    start = WarmStart(cost, *far, 1e-3)
    axis = 0 if marginals.weights[0] < np.inf else 1
    plan, mass = start.dense_plan(Model(p, q, 0.0, marginals=marginals)), (q, p)[axis]
    assert bool(torch.isfinite(plan).all())
    torch.testing.assert_close(plan.sum(axis), mass)
    near = replace(start, f=p.log2(), g=q.log2(), epsilon=10.0)
    plan = near.coupling().to_dense()
    torch.testing.assert_close(
        near.dense_plan(Model(p, q, 0.0, marginals=marginals)),
        plan * (mass / plan.sum(axis)).nan_to_num().unsqueeze(axis),
    )

"""The curvature of the objective around a plan: against automatic differentiation, dense eigenvalues, symmetries."""

from __future__ import annotations

import math
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import torchgw
from tests.problems import daily, generator, potential_coupling, quietly, tiled_coupling
from torchgw import Balanced, GWOptions, GWResult, Partial, PlanCurvature, SemiRelaxed, Unbalanced, curvature, gw_align
from torchgw.couplings.blocks import BlockCoupling, DenseCoupling
from torchgw.linalg.lanczos import lanczos
from torchgw.linalg.matrix_functions import Exponential
from torchgw.linalg.operators import Operator
from torchgw.marginals import Marginals
from torchgw.objective.curvature import Hessian
from torchgw.objective.model import Model, divergences, negentropy, product_divergence, relative_entropy
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.solvers.hessian import hessian_of
from torchgw.spaces import FactoredDistances, PrecomputedDistances
from torchgw.types import DistanceProvider

EPSILON = 0.05
MODELS: dict[str, Marginals] = {
    "balanced": Balanced(),
    "rows relaxed": SemiRelaxed(0.3, "x"),
    "columns free": SemiRelaxed(0.0, "y"),
    "both relaxed": Unbalanced(0.2, 0.4),
    "partial": Partial(0.6),
}


def matvec(operator: Operator, V: Tensor) -> Tensor:
    """A V (n, m)."""
    return operator.image(*operator.metric(V))


def space(n: int, factored: bool, seed: int) -> DistanceProvider:
    """Symmetric numbers of rank four, given by their factors or stored."""
    F = torch.randn(n, 4, generator=generator(seed), dtype=torch.float64) / 4
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    return (
        FactoredDistances.of(F, signs, 1.0) if factored else PrecomputedDistances.stored_matrix((F * signs) @ F.T, 1.0)
    )


def objective(T: Tensor, D: Tensor, E: Tensor, model: Model) -> Tensor:
    """F of a plan with its entropy, as it is written down."""
    rows, columns = T.sum(1), T.sum(0)
    quadratic = rows @ D.square() @ rows + columns @ E.square() @ columns - 2 * ((D @ T @ E) * T).sum()
    single, double = divergences(model.marginals, rows, columns, model.p, model.q)
    reference = model.p.sum() * model.q.sum()
    entropy = relative_entropy(negentropy(T), rows, columns, model.p, model.q) - T.sum() + reference
    linear = torch.zeros(()) if model.cost is None else (model.cost.rows(slice(None)) * T).sum()
    double = quadratic + double + model.epsilon * product_divergence(entropy, T.sum(), reference)
    return model.alpha * double + model.beta * (linear + single + model.epsilon * entropy)


def around(plan: BlockCoupling, marginals: Marginals, alpha: float, factored: bool) -> tuple[Hessian, Model, Any]:
    """The Hessian of a plan, its model and its two matrices of distances."""
    n, k = plan.shape
    if marginals.balanced:
        p, q = plan.marginal(1), plan.marginal(0)
    else:
        p, q = (torch.rand(size, generator=generator(size), dtype=torch.float64) + 0.2 for size in (n, k))
        p, q = p / p.sum(), q / q.sum()
    cost = (
        FactoredCost.from_matrix(torch.rand(n, k, generator=generator(5), dtype=torch.float64)) if alpha < 1 else None
    )
    model = Model(p, q, epsilon=EPSILON, marginals=marginals, alpha=alpha, beta=1 - alpha, cost=cost)
    spaces = space(n, factored, 1), space(k, factored, 2)
    return hessian_of(plan, model, spaces), model, tuple(each.rows(slice(None)) for each in spaces)


def random_plan(n: int, k: int, seed: int) -> DenseCoupling:
    plan = torch.rand(n, k, generator=generator(seed), dtype=torch.float64) ** 3
    return DenseCoupling(plan / plan.sum())


def check_form(hessian: Hessian, T: Tensor, model: Model, matrices: tuple[Tensor, Tensor]) -> None:
    V = torch.randn(hessian.size, 3, generator=generator(7), dtype=torch.float64)
    V, U = hessian.metric(V)
    form = U.T @ hessian.image(V, U)
    T = T.clone().requires_grad_()
    (slope,) = torch.autograd.grad(objective(T, *matrices, model), T, create_graph=True)
    W = [hessian.change(v).change.to_dense() for v in V.T]
    images = [torch.autograd.grad((slope * w).sum(), T, retain_graph=True)[0] / 2 for w in W]
    expected = torch.stack([torch.stack([(w * image).sum() for image in images]) for w in W])
    size = float(expected.abs().max())
    assert float((form - expected).abs().max()) < 1e-9 * size
    assert float((form - form.T).abs().max()) < 1e-12 * size
    together = V.T @ U
    assert float((together - together.T).abs().max()) < 1e-12 * float(together.abs().max())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("alpha", "factored"), list(product([1.0, 0.6], [False, True])))
def test_products_are_those_of_double_backward(name: str, alpha: float, factored: bool) -> None:
    plan = random_plan(30, 40, 0)
    hessian, model, matrices = around(plan, MODELS[name], alpha, factored)
    check_form(hessian, plan.plan, model, matrices)


@pytest.mark.parametrize("name", ["balanced", "rows relaxed", "columns free", "partial"])
@pytest.mark.parametrize("kind", ["potentials", "tiles"])
@pytest.mark.parametrize("alpha", [1.0, 0.6])
def test_products_of_plans_that_are_not_stored(name: str, kind: str, alpha: float) -> None:
    plan = potential_coupling(30, 40, 3, 0) if kind == "potentials" else tiled_coupling(30, 40, 3, 0)
    plan = plan.times(1 / float(plan.marginal(1).sum()))
    hessian, model, matrices = around(plan, MODELS[name], alpha, True)
    hessian.respond.tol = 1e-13
    check_form(hessian, plan.to_dense(), model, matrices)


def test_a_product_is_one_graph() -> None:
    """So torch.compile takes all of it, where many products are worth its first call."""
    hessian, _, _ = around(random_plan(10, 12, 0), MODELS["balanced"], 1.0, False)
    V = torch.randn(hessian.size, 2, generator=generator(0), dtype=torch.float64)
    expected = matvec(hessian, V)
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    found = torch.compile(partial(matvec, hessian), backend=backend, fullgraph=True, dynamic=True)
    torch.testing.assert_close(found(V), expected)
    torch.testing.assert_close(found(V[:, :1]), expected[:, :1])
    assert 1 <= len(graphs) <= 2, "one for several vectors, and torch takes a single one for a case of its own"


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("factored", [False, True])
def test_eigenvalues_are_those_of_the_dense_hessian(name: str, factored: bool) -> None:
    """Of the form written down with automatic differentiation, relative to that of entropy and divergences."""
    plan = random_plan(6, 7, 3)
    hessian, model, matrices = around(plan, MODELS[name], 1.0, factored)
    T = plan.plan
    whole = torch.autograd.functional.hessian(lambda t: objective(t, *matrices, model), T).view(42, 42) / 2
    base = model.epsilon * torch.diag(1 / T.flatten())
    sums = torch.stack([torch.eye(6 + 7, dtype=torch.float64)[i] for i in range(13)])
    incidence = torch.zeros(13, 6, 7, dtype=torch.float64)
    for i in range(6):
        incidence[i, i] = 1
    for j in range(7):
        incidence[6 + j, :, j] = 1
    incidence = sums @ incidence.view(13, 42)
    held, free = [], []
    total = model.marginals.total is not None
    for rho, mass, at, reach in zip(
        model.marginals.weights, hessian.respond.sums, (0, 6), (model.p, model.q), strict=True
    ):
        for i, m in enumerate(mass):
            line = incidence[at + i]
            if rho == math.inf and (not total or float(m) >= float(reach[i])):
                held.append(line)
            elif 0 < rho < math.inf:
                base = base + rho / m * torch.outer(line, line)
            free.append(line)
    if total:
        held.append(torch.ones(42, dtype=torch.float64))
    basis = torch.eye(42, dtype=torch.float64)
    if held:
        _, sizes, right = torch.linalg.svd(torch.stack(held))
        basis = right[int((sizes > 1e-12).sum()) :].T
    weight = float(model.weight(T.sum()))
    root = torch.linalg.cholesky(basis.T @ base @ basis * weight)
    inner = torch.linalg.solve_triangular(root, basis.T @ whole @ basis, upper=False)
    expected = torch.linalg.eigvalsh(torch.linalg.solve_triangular(root, inner.T, upper=False))
    found = lanczos(hessian, 2, 1, tol=1e-11)
    torch.testing.assert_close(found.values[:2], expected[:2], rtol=0, atol=1e-8)
    largest = float(expected[-1])
    if largest > 1 + 1e-6:  # that of one is not read, but by chance
        assert float(found.values[-1]) == pytest.approx(largest, abs=1e-8)
    assert float(found.values[-1]) <= largest + 1e-8


def test_the_density_is_that_of_all_eigenvalues() -> None:
    hessian, _, _ = around(random_plan(9, 11, 3), Balanced(), 1.0, False)
    V = torch.eye(hessian.size, dtype=torch.float64)
    M = hessian.metric(V)[1]
    values, vectors = torch.linalg.eigh(M)
    alive = values > 1e-12 * values[-1]
    root = vectors[:, alive] * values[alive].sqrt()
    Z = hessian.image(torch.zeros_like(V), V)
    spectrum = 1 + torch.linalg.eigvalsh(root.T @ Z @ root)
    assert int(alive.sum()) == 8 * 10
    found = PlanCurvature(
        smallest=np.zeros(1),
        largest=np.zeros(0),
        smallest_error=np.zeros(1),
        largest_error=np.zeros(0),
        modes=(),
        epsilon=EPSILON,
        converged=True,
        n_products=0,
        hessian=hessian,
    ).density(32, 40, random_state=0)
    assert found.dimension == pytest.approx(80, rel=0.1)
    x = torch.linspace(float(spectrum[0]) - 0.1, float(spectrum[-1]) + 0.1, 1000, dtype=torch.float64)
    below, _ = found.shares_below(x)
    true = (spectrum[:, None] < x).double().mean(0)
    assert float(torch.trapezoid((below - true).abs(), x)) <= 0.01 * float(spectrum[-1] - spectrum[0])


def ellipse(n: int, minor: float, noise: float = 0.0, seed: int = 0) -> np.ndarray:
    t = np.linspace(0, 2 * np.pi, n, endpoint=False)
    return np.stack((np.cos(t), minor * np.sin(t)), 1) + noise * np.random.default_rng(seed).normal(size=(n, 2))


def curved(X: np.ndarray, Y: np.ndarray, **more: Any) -> tuple[GWResult, PlanCurvature]:
    result = quietly(gw_align, X, Y, distances="euclidean", epsilon=0.01, random_state=0)
    return result, curvature(result, k=2, **more)


def test_a_circle_slides_and_an_ellipse_does_not() -> None:
    result, circle = curved(ellipse(50, 1.0), ellipse(60, 1.0))
    assert len(circle.flat) == 1
    assert not circle.saddle
    assert abs(circle.smallest[0]) < 0.01 < 0.5 < circle.smallest[1]
    mode = circle.flat[0]
    np.testing.assert_allclose(mode.moved, 1, atol=0.3)  # all points slide alike
    i = result.argmax()
    steps = [(side - i + 30) % 60 - 30 for side in (mode.gains, mode.loses)]
    assert min(abs(step).min() for step in steps) > 0
    assert len(np.unique(np.sign(steps[0]))) == len(np.unique(np.sign(steps[1]))) == 1
    assert steps[0][0] * steps[1][0] < 0
    W = mode.rows()
    np.testing.assert_allclose(W[[3, 5]], mode.rows([3, 5]))
    assert np.abs(W).sum() / 2 == pytest.approx(1)
    assert np.abs(W.sum(0)).max() < 1e-9 > np.abs(W.sum(1)).max()
    assert circle.stiffness.max() < 1e-2 * result.value
    firm = curved(ellipse(50, 0.6), ellipse(60, 0.6))[1]
    np.testing.assert_allclose(firm.stiffness, np.minimum(*(m.energy / m.moved**2 for m in firm.modes)))
    assert firm.stiffness.min() > 10 * circle.stiffness.max()
    assert firm.flat == ()
    noisy = [curved(ellipse(50, 1.0, noise), ellipse(60, 1.0, noise, 1))[1].smallest[0] for noise in (0.01, 0.1)]
    assert circle.smallest[0] < noisy[0] < noisy[1]


def test_a_saddle_is_called_one() -> None:
    """The mean of a matching of two clusters and of its exchange is stationary, and falls both ways."""
    X = np.concatenate((ellipse(12, 0.6), ellipse(12, 0.6) + np.array([6, 0])))
    half = np.kron([[1.0, 1.0], [1.0, 1.0]], np.ones((12, 12))) / 24**2
    result = quietly(gw_align, X, X, distances="euclidean", epsilon=0.01, init=half, random_state=0)
    plan = torch.as_tensor(result.plan)
    crossed = (plan + plan.roll(12, 1)) / 2
    assert result.model is not None
    assert result.known is not None
    hessian = hessian_of(DenseCoupling(crossed), result.model, (result.known[0].space, result.known[1].space))
    assert float(lanczos(hessian, 1).values[0]) < -1


@pytest.mark.parametrize(("alpha", "n_steps"), daily([(1.0, 6), (0.7, 25)], [1.0, 0.7], [6, 25]))
def test_traces_are_differentiated_in_the_distances(n_steps: int, alpha: float) -> None:
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(14, 2)), rng.normal(size=(17, 3))
    fused = {"alpha": alpha, "cost": rng.uniform(size=(14, 17))} if alpha < 1 else {}
    result = quietly(gw_align, X, Y, distances="euclidean", epsilon=0.02, random_state=0, **fused)
    found = curvature(result, k=1, whole=True)
    D, E = (
        torch.cdist(points, points) / scale
        for points, scale in zip(map(torch.from_numpy, (X, Y)), result.scales, strict=True)
    )
    t = torch.tensor(1.3, dtype=torch.float64)

    def value(D: Tensor, E: Tensor, t: Tensor, n_probes: int = 3) -> Tensor:
        more: dict[str, Any] = {"coefficients": (t,), "n_probes": n_probes, "n_steps": n_steps, "random_state": 0}
        return found.trace(Exponential(), D, E, **more)

    sampled, error = found.density(30, 20, random_state=1).trace(lambda x: torch.exp(-1.3 * x))
    assert abs(float(value(D, E, t, 30)) - sampled) < 6 * error
    leaves = [part.clone().requires_grad_() for part in (D, E, t)]
    value(*leaves).backward()
    for i, part in enumerate((D, E, t)):
        S = torch.randn(part.shape, generator=generator(i), dtype=torch.float64)
        S = S + S.T if S.ndim else S
        ends = [[side + h * S if j == i else side for j, side in enumerate((D, E, t))] for h in (1e-5, -1e-5)]
        slope = (float(value(*ends[0])) - float(value(*ends[1]))) / 2e-5
        gradient = leaves[i].grad
        assert gradient is not None
        assert float((gradient * S).sum()) == pytest.approx(slope, rel=1e-4)
    with pytest.raises(ValueError, match=r"D_X must be float64 of shape \(14, 14\)"):
        value(E, E, t)
    relaxed = quietly(gw_align, X, Y, distances="euclidean", epsilon=0.02, marginals=SemiRelaxed(0.1))
    with pytest.raises(ValueError, match="hard marginals"):
        curvature(relaxed, k=1).trace(Exponential(), D, E, coefficients=(t,))


def test_a_start_with_the_symmetry_of_its_problem_ends_at_a_saddle_and_a_mode_leads_away() -> None:
    t = 2 * np.pi * np.arange(15) / 15
    X = (1 + 0.3 * np.cos(3 * t))[:, None] * np.stack((np.cos(t), np.sin(t)), 1)  # the same after a third of a turn
    turns = sum(np.roll(np.eye(15), 5 * i, 1) for i in range(3)) / 45
    asked: dict[str, Any] = {"distances": "euclidean", "epsilon": 0.01, "random_state": 0}
    result = quietly(gw_align, X, X, init=turns, **asked)
    found = curvature(result, k=1)
    assert result.converged
    assert found.saddle
    away = np.clip(np.asarray(result.plan) + 0.05 * found.modes[0].rows(), 0, None)
    left = quietly(gw_align, X, X, init=away, **asked)
    assert not curvature(left, k=1).saddle
    assert left.value < 0.9 * result.value


@pytest.mark.parametrize("n", [7, 50])
def test_entries_below_rounding_move_nothing(n: int) -> None:
    """Permutations with a few entries down to 1e-29, along which rounding alone curved by -700."""
    rng = np.random.default_rng(0)
    A = np.triu(rng.uniform(size=(n, n)) < 0.3, 1).astype(float)
    result = quietly(gw_align, A + A.T, A + A.T, distances="adjacency", epsilon=1e-3, random_state=0)
    assert result.model is not None
    assert result.known is not None
    spaces = result.known[0].space, result.known[1].space
    for seed in range(8):
        rng, T = np.random.default_rng(seed), np.eye(n) / n
        T[rng.integers(0, n, 7), rng.integers(0, n, 7)] += 10.0 ** rng.uniform(-29, -18, size=7)
        hessian = hessian_of(DenseCoupling(torch.from_numpy(T)), result.model, spaces)
        assert len(lanczos(hessian, 1).values) == 0


def test_a_plan_in_parts_has_a_curvature() -> None:
    """Two components hardly exchange mass, so the linear system has several directions that are singular to rounding;
    of which one was seen, and eigenvalues of -300 to 3000 came out without an error. A dense computation has 1."""
    import networkx as nx

    graph = nx.gnp_random_graph(18, 0.25, seed=3)
    A = nx.to_numpy_array(nx.disjoint_union(graph, graph))
    for epsilon, seed in zip((8e-4, 1.2e-3, 2e-3), (1, 2, 3), strict=True):
        order = np.random.default_rng(seed).permutation(36)
        asked: dict[str, Any] = {"distances": "adjacency", "epsilon": epsilon, "random_state": 0}
        result = quietly(gw_align, A, A[order][:, order], **asked)
        found = curvature(result)
        np.testing.assert_allclose(found.smallest, 1, atol=1e-4)


@pytest.mark.parametrize("loss", ["square", "kl"])
def test_other_losses_are_read_entry_by_entry(loss: str) -> None:
    rng = np.random.default_rng(1)
    X, Y = rng.normal(size=(25, 3)), rng.normal(size=(30, 2))
    result = quietly(gw_align, X, Y, distances="landmark", epsilon=0.01, options=GWOptions(loss=loss), random_state=0)
    found, whole = (curvature(result, k=2, tol=1e-8, whole=whole).smallest for whole in (False, True))
    np.testing.assert_allclose(found, whole, atol=1e-7)


def test_plans_without_changes_have_no_curvature() -> None:
    """Two points each, and exact copies at a small epsilon, whose plan is a permutation."""
    line, longer = np.array([[0.0, 0.0], [1.0, 0.0]]), np.array([[0.0, 0.0], [2.0, 0.0]])
    X = np.random.default_rng(0).normal(size=(10, 3))
    for one, other, epsilon in ((line, longer, 1e-3), (X, X, 1e-5)):
        result = quietly(gw_align, one, other, distances="euclidean", epsilon=epsilon, random_state=0)
        found = curvature(result)
        assert len(found.smallest) == len(found.modes) == 0
        assert not found.saddle
        assert found.condition == 1
        assert (found.stiffness == np.inf).all()
    with pytest.raises(ValueError, match="the plan has no mode"):
        torchgw.plot.modes(result)


def test_streamed_plans_between_stored_distances_are_read_entry_by_entry() -> None:
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(40, 2)), rng.normal(size=(45, 3))
    streaming = GWOptions(strategy="streaming")
    result = quietly(gw_align, X, Y, distances="euclidean", epsilon=0.01, options=streaming, random_state=0)
    with pytest.raises(ValueError, match="whole=True"):
        curvature(result)
    assert curvature(result, whole=True).converged


def test_points_without_mass_do_not_move() -> None:
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(20, 2)), rng.normal(size=(25, 3))
    p = np.r_[0.0, 0.0, np.ones(18)] / 18
    result = quietly(gw_align, X, Y, p=p, distances="euclidean", epsilon=0.02, random_state=0)
    without = quietly(gw_align, X[2:], Y, distances="euclidean", epsilon=0.02, init=np.asarray(result.plan)[2:])
    found = curvature(result, k=2, tol=1e-8)
    np.testing.assert_allclose(found.smallest, curvature(without, k=2, tol=1e-8).smallest, atol=1e-3)
    assert (found.modes[0].moved[:2] == 0).all()
    assert (found.stiffness[:2] == np.inf).all()


def test_streamed_plans_have_the_curvature_of_stored_ones() -> None:
    X, Y = torchgw.datasets.make_spiral(200)[0], torchgw.datasets.make_swiss_roll(240)[0]
    found = []
    for strategy in ("dense", "streaming"):
        result = quietly(
            gw_align, X, Y, distances="landmark", epsilon=3e-3, options=GWOptions(strategy=strategy), random_state=0
        )
        found.append(curvature(result, k=2, tol=1e-5))
    stored, streamed = found
    np.testing.assert_allclose(streamed.smallest, stored.smallest, rtol=0.01)
    np.testing.assert_allclose(streamed.largest, stored.largest, rtol=0.01)
    near = np.abs(streamed.modes[0].moved - stored.modes[0].moved)
    assert np.median(near) < 0.05


def test_the_energy_of_a_mode_is_what_the_objective_gains_along_it() -> None:
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(20, 2)), rng.normal(size=(25, 3))
    p, q = np.full(20, 0.15), np.full(25, 0.12)  # of sum three
    result = quietly(gw_align, X, Y, p=p, q=q, distances="euclidean", epsilon=0.05, random_state=0)
    mode = curvature(result, k=1, tol=1e-9).modes[0]
    D, E = (np.linalg.norm(Z[:, None] - Z, axis=2) / scale for Z, scale in zip((X, Y), result.scales, strict=True))
    T, W = np.asarray(result.plan), mode.rows()

    def value(plan: np.ndarray) -> float:
        fixed = p @ D**2 @ p + q @ E**2 @ q
        return float(fixed - 2 * (D @ plan @ E * plan).sum() + 2 * 3 * 0.05 * (plan * np.log(plan)).sum())

    h = 1e-3 * (T / np.abs(W)).min()
    second = (value(T + h * W) - 2 * value(T) + value(T - h * W)) / h**2
    assert mode.energy == pytest.approx(second / 2, rel=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_a_curvature(name: str) -> None:
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(30, 2)), rng.normal(size=(35, 3))
    result = quietly(gw_align, X, Y, distances="euclidean", epsilon=0.01, marginals=MODELS[name], random_state=0)
    found = curvature(result, k=3)
    assert found.converged
    assert not found.saddle
    assert list(found.smallest) == sorted(found.smallest)
    assert found.condition >= 1
    whole = curvature(result, k=3, whole=True, tol=1e-8)
    np.testing.assert_allclose(whole.smallest, found.smallest, atol=1e-3)
    shares, _ = whole.density(4, 30, random_state=0).shares_below(torch.tensor([-0.2, 5.0], dtype=torch.float64))
    np.testing.assert_allclose(shares, [0, 1], atol=1e-12)


def test_what_has_no_curvature_is_refused(tmp_path: Any) -> None:
    X = np.random.default_rng(0).normal(size=(20, 2))
    sharp = quietly(gw_align, X, X, distances="euclidean", epsilon=0)
    with pytest.raises(ValueError, match="epsilon above 0"):
        curvature(sharp)
    result = quietly(gw_align, X, X, distances="euclidean", epsilon=0.01)
    result.save(tmp_path / "result.npz")
    with pytest.raises(ValueError, match="in this process"):
        curvature(GWResult.load(tmp_path / "result.npz"))
    linear = quietly(gw_align, X, X, cost=np.ones((20, 20)), alpha=0, epsilon=0.01)
    with pytest.raises(ValueError, match="alpha > 0"):
        curvature(linear)
    with pytest.raises(TypeError, match="GWResult"):
        curvature(X)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="k must be >= 1"):
        curvature(result, k=0)
    found = curvature(result, k=1)
    with pytest.raises(ValueError, match=r"points must be indices in \[0, 20\)"):
        found.modes[0].rows([20])
    landmarks = quietly(gw_align, X, X, distances="landmark", epsilon=0.01)
    with pytest.raises(ValueError, match="whole=True"):
        curvature(landmarks).density()

"""Adjacencies taken as they are: weights, diagonal, signs and directions, dense and sparse, against four-index sums."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from scipy import sparse
from torch import Tensor

from tests.problems import all_rows, in_turn, normal, quietly, uniform
from torchgw import (
    AdjacencyDistances,
    Envelope,
    EuclideanDistances,
    GromovWasserstein,
    GWOptions,
    GWResult,
    Implicit,
    PrecomputedDistances,
    SpaceOptions,
    StoppingOptions,
    cli,
    gw_align,
    gw_neighbours,
    gw_pairwise,
    resume,
)
from torchgw.couplings.blocks import DenseCoupling
from torchgw.losses import KULLBACK_LEIBLER, SQUARE, SeparableLoss
from torchgw.objective.bounds import first_bound, second_bound
from torchgw.objective.certify import exact_objective
from torchgw.objective.exact import ExactGradient, PairLoss, mean_squares, product
from torchgw.objective.model import mean_cost
from torchgw.persist.codec import decode, encode
from torchgw.request import limits
from torchgw.search import basins
from torchgw.spaces.scale import compute_squared_diameter
from torchgw.strategies import dense

N, K = 9, 7
RNG = np.random.default_rng(0)


def graph(n: int, seed: int, directed: bool = True, density: float = 0.4, negative: bool = True) -> np.ndarray:
    """A weighted adjacency with a diagonal, none of whose rows need to have an entry."""
    rng = np.random.default_rng(seed)
    A = (rng.uniform(size=(n, n)) < density) * (rng.normal(size=(n, n)) if negative else rng.uniform(size=(n, n)))
    return A if directed else A + A.T


def masses(n: int, seed: int) -> np.ndarray:
    """Different masses of sum one, one of them zero."""
    found = np.random.default_rng(seed).uniform(size=n)
    found[1] = 0.0
    return found / found.sum()


def plan_of(p: np.ndarray, q: np.ndarray, seed: int = 0) -> np.ndarray:
    """A plan with nearly these marginals, far from their product."""
    plan = np.random.default_rng(seed).uniform(size=(len(p), len(q))) ** 3 * p[:, None] * q
    for _ in range(200):
        plan *= np.divide(p, plan.sum(1), out=np.zeros_like(p), where=p > 0)[:, None]
        plan *= np.divide(q, plan.sum(0), out=np.zeros_like(q), where=q > 0)
    return plan


def four_index(D: np.ndarray, E: np.ndarray, T: np.ndarray, S: np.ndarray, loss: Any = np.square) -> float:
    """sum L(D_ii', E_jj') T_ij S_i'j'."""
    table = D[:, None, :, None] - E[None, :, None, :] if loss is np.square else None
    kernel = np.square(table) if table is not None else loss(D[:, None, :, None], E[None, :, None, :])
    return float(np.einsum("ijkl,ij,kl->", kernel, T, S))


def scaled(A: np.ndarray) -> np.ndarray:
    return A / np.abs(A).max()


KINDS: dict[str, Callable[[np.ndarray], Any]] = {
    "dense": AdjacencyDistances,
    "sparse": lambda A: AdjacencyDistances(sparse.csr_array(A)),
    "matrix": lambda A: Served(A, apply=False),
    "served": lambda A: Served(A, apply=True),
}
DIRECTIONS = list(itertools.product((True, False), (True, False)))


class Served:
    """A provider of a user's, with its own products or without."""

    stored, scale, metric = True, 1.0, False

    def __init__(self, A: np.ndarray, apply: bool) -> None:
        self.D, self.symmetric = torch.from_numpy(scaled(A)), bool((A == A.T).all())
        if apply:
            self.apply = lambda V, axis=1: (self.D if axis else self.D.T).to(V.dtype) @ V

    @property
    def size(self) -> int:
        return len(self.D)

    def to(self, device: torch.device, dtype: torch.dtype) -> Served:
        return self

    def rows(self, index: Tensor) -> Tensor:
        return self.D[index]

    def factors(self) -> None:
        return None


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("directed", [True, False])
def test_rows_products_and_squares_are_those_of_the_scaled_matrix(kind: str, directed: bool) -> None:
    A = graph(N, 0, directed)
    space, D = KINDS[kind](A), torch.from_numpy(scaled(A))
    assert space.scale == space.largest == np.abs(A).max()
    assert space.symmetric is not directed
    assert not space.metric
    assert space.factors() is None
    index = torch.tensor([3, 0, 3, 8])
    torch.testing.assert_close(space.rows(index), D[index], rtol=0, atol=0)
    V = normal(N, 4)
    for axis, matrix in ((1, D), (0, D.T)):
        torch.testing.assert_close(space.apply(V, axis), matrix @ V)
        torch.testing.assert_close(space.squares().apply(V, axis), matrix.square() @ V)
        torch.testing.assert_close(product(space, V, axis), matrix @ V)
    half = space.with_scale(2 * space.scale).to(torch.device("cpu"), torch.float32)
    assert half.scale == 2 * space.scale
    torch.testing.assert_close(half.rows(index), D[index].float() / 2)
    torch.testing.assert_close(half.apply(V.float(), 0), (D.T @ V).float() / 2)


@pytest.mark.parametrize("kinds", list(itertools.product(KINDS, KINDS)))
@pytest.mark.parametrize("directed", DIRECTIONS)
def test_the_cost_is_the_bilinear_form_of_the_objective(kinds: tuple[str, str], directed: tuple[bool, bool]) -> None:
    A, B = graph(N, 1, directed[0]), graph(K, 2, directed[1])
    p, q = masses(N, 3), masses(K, 4)
    T, S = plan_of(p, q, 5), plan_of(p, q, 6)
    x, y = KINDS[kinds[0]](A), KINDS[kinds[1]](B)
    D, E = scaled(A), scaled(B)
    gradient = ExactGradient(x, y, torch.from_numpy(p), torch.from_numpy(q))
    cost = gradient(DenseCoupling(torch.from_numpy(T)), torch.from_numpy(p)).rows(slice(None)).numpy()
    value = four_index(D, E, T, T)
    assert float((cost * T).sum()) == pytest.approx(value, rel=1e-12)
    both = (four_index(D, E, T, S) + four_index(D, E, S, T)) / 2
    assert float((cost * S).sum()) == pytest.approx(both, rel=1e-12)
    coupling, marginals = DenseCoupling(torch.from_numpy(T)), (torch.from_numpy(T.sum(1)), torch.from_numpy(T.sum(0)))
    found = exact_objective(coupling, x, y, *marginals)
    assert found.value == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("directed", DIRECTIONS)
def test_the_cost_is_half_the_derivative_by_finite_differences(directed: tuple[bool, bool]) -> None:
    D, E = (scaled(graph(n, n, way)) for n, way in zip((N, K), directed, strict=True))
    T, rng = RNG.uniform(size=(N, K)), np.random.default_rng(7)
    x, y = AdjacencyDistances(sparse.csr_array(D)), AdjacencyDistances(E)
    rows, columns = torch.from_numpy(T.sum(1)), torch.from_numpy(T.sum(0))
    cost = ExactGradient(x, y, rows, columns)(DenseCoupling(torch.from_numpy(T)), rows).rows(slice(None)).numpy()
    for _ in range(5):
        W, step = rng.normal(size=T.shape), 1e-6
        slope = (four_index(D, E, T + step * W, T + step * W) - four_index(D, E, T - step * W, T - step * W)) / step / 2
        assert 2 * float((cost * W).sum()) == pytest.approx(slope, rel=1e-7)


@pytest.mark.parametrize("directed", DIRECTIONS)
@pytest.mark.parametrize("loss", [SQUARE, KULLBACK_LEIBLER], ids=lambda loss: loss.name)
def test_other_losses_have_the_bilinear_form_too(loss: SeparableLoss, directed: tuple[bool, bool]) -> None:
    A, B = (graph(n, n, way, 1.0, negative=False) + 0.1 for n, way in zip((N, K), directed, strict=True))
    D, E = scaled(A), scaled(B)
    p, q = masses(N, 1), masses(K, 2)
    T, S = plan_of(p, q, 3), plan_of(p, q, 4)

    def table(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return loss(torch.from_numpy(a), torch.from_numpy(b)).numpy()

    expected = (four_index(D, E, T, S, table) + four_index(D, E, S, T, table)) / 2
    spaces = AdjacencyDistances(A), AdjacencyDistances(sparse.csr_array(B))
    gradient = ExactGradient(*spaces, torch.from_numpy(p), torch.from_numpy(q), loss)
    cost = gradient(DenseCoupling(torch.from_numpy(T)), torch.from_numpy(p)).rows(slice(None)).numpy()
    assert float((cost * S).sum()) == pytest.approx(expected, rel=1e-12)
    pair = PairLoss.of(loss, *map(torch.from_numpy, (D, E)))._replace(symmetric=not any(directed))
    cost = pair.cost(*map(torch.from_numpy, (T, T.sum(1), T.sum(0)))).rows(slice(None)).numpy()
    assert float((cost * S).sum()) == pytest.approx(expected, rel=1e-6)


def test_the_mean_squares_of_a_provider_in_blocks_are_those_of_its_matrix() -> None:
    A, mass = graph(N, 0), torch.from_numpy(masses(N, 1))
    expected = (torch.from_numpy(scaled(A)).square() @ mass + mass @ torch.from_numpy(scaled(A)).square()) / 2
    for kind in KINDS:
        torch.testing.assert_close(mean_squares(KINDS[kind](A), mass), expected)
    points = EuclideanDistances(normal(N, 2))  # searched in blocks, where nothing is stored
    torch.testing.assert_close(mean_squares(points, mass), all_rows(points).square() @ mass)


def test_symmetric_adjacencies_have_the_cost_of_a_distance_matrix() -> None:
    D, E = (np.triu(graph(n, n, False, negative=False), 1) for n in (N, K))
    D, E = D + D.T, E + E.T
    p, q = (torch.from_numpy(masses(n, n)) for n in (N, K))
    coupling = DenseCoupling(torch.from_numpy(plan_of(p.numpy(), q.numpy())))
    one = ExactGradient(PrecomputedDistances(D), PrecomputedDistances(E), p, q)(coupling, p)
    for make in (AdjacencyDistances, lambda A: AdjacencyDistances(sparse.csr_array(A))):
        other = ExactGradient(make(D), make(E), p, q)(coupling, p)
        assert other.U.shape[1] == 0
        torch.testing.assert_close(one.rows(slice(None)), other.rows(slice(None)), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(mean_cost(one, coupling, p, q), mean_cost(other, coupling, p, q))


@pytest.mark.parametrize(("directed", "epsilon"), in_turn(DIRECTIONS, [0.0, 1e-3]))
def test_a_call_has_the_value_of_its_plan_and_true_bounds(epsilon: float, directed: tuple[bool, bool]) -> None:
    A, B = graph(14, 1, directed[0]), graph(11, 2, directed[1])
    p, q = masses(14, 3), masses(11, 4)
    asked = {"p": p, "q": q, "epsilon": epsilon, "distances": "adjacency", "random_state": 0}
    found = [quietly(gw_align, *spaces, **asked) for spaces in ((A, B), (sparse.coo_array(A), sparse.csc_array(B)))]
    for result in found:
        T = result.plan
        np.testing.assert_allclose(T.sum(1), p, atol=1e-9)
        np.testing.assert_allclose(T.sum(0), q, atol=1e-9)
        assert result.value == pytest.approx(four_index(scaled(A), scaled(B), T, T), rel=1e-9)
        assert (result.strategy, result.gradient, result.value_exact) == ("dense", "exact", True)
        assert 0 < result.certificate.lower_bound <= result.value
        S = np.outer(p, q)
        cost_gap = 2 * (
            result.value - (four_index(scaled(A), scaled(B), T, S) + four_index(scaled(A), scaled(B), S, T)) / 2
        )
        assert result.certificate.stationarity >= cost_gap - 1e-9
    assert found[0].value == pytest.approx(found[1].value, rel=1e-5)
    assert compute_squared_diameter((AdjacencyDistances(A), AdjacencyDistances(B))) == 1


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("density", [0.2, 0.5])
def test_no_plan_lies_below_a_bound(directed: bool, density: float) -> None:
    """Neither the best plan nor any other's certificate is contradicted by it, and bounds are those of the matrices."""
    A, order = graph(30, 5, directed, density), np.random.default_rng(6).permutation(30)
    B = A[order][:, order]
    B[0, 1:4] = B[1:4, 0] = 1.5
    p = torch.full((30,), 1 / 30, dtype=torch.float64)
    rows = [torch.from_numpy(scaled(side) ** 2).mean(1) / 2 for side in (A, A.T, B, B.T)]
    first = float(first_bound(rows[0] + rows[1], rows[2] + rows[3], p, p))
    true = max(first, float(second_bound(AdjacencyDistances(A), AdjacencyDistances(B), p, p)))
    results = [
        quietly(gw_align, *spaces, distances="adjacency", epsilon=epsilon, random_state=0)
        for spaces in ((A, B), (sparse.csr_array(A), sparse.csr_array(B)))
        for epsilon in (0.0, 1e-2, 0.3)
    ]
    lowest = min(result.value for result in results)
    for result in results:
        bound = result.certificate.lower_bound
        assert bound == pytest.approx(true, abs=1e-9)
        assert bound <= lowest
        assert result.certificate.gap == pytest.approx(result.value - bound)


@pytest.mark.parametrize("directed", [True, False])
def test_a_relabelled_graph_is_found(directed: bool) -> None:
    A = graph(40, 5, directed, 0.15)
    order = np.random.default_rng(6).permutation(40)
    for X, Y in ((A, A[order][:, order]), (sparse.csr_array(A), sparse.csr_array(A)[order][:, order])):
        result = gw_align(X, Y, distances="adjacency", epsilon=0, random_state=0)
        assert result.value <= 1e-12
        assert (order[result.argmax()] == np.arange(40)).all()


def entropic(A: Tensor, B: Tensor, p: Tensor, T: Tensor, mode: Any) -> Any:
    options = GWOptions(stopping=StoppingOptions(max_iter=2000))
    asked = {"distances": "adjacency", "p": p, "init": T, "epsilon": 0.05, "options": options, "random_state": 0}
    return gw_align(A, B, gradient_mode=mode, **asked)


@pytest.mark.parametrize(
    ("directed", "mode"),
    in_turn([(True, True), (True, False), (False, False)], [Envelope(tol=1e-12), Implicit(tol=1e-12)]),
)
def test_gradients_are_those_of_finite_differences(mode: Any, directed: tuple[bool, bool]) -> None:
    """Of the objective in both matrices, the largest entry's scale included, and in the masses; of the plan in one."""
    A, B = (torch.from_numpy(graph(n, n + 20, way)) for n, way in zip((7, 6), directed, strict=True))
    p, T = torch.from_numpy(masses(7, 1) + 0.05), quietly(entropic, A, B, None, None, None).plan
    leaves = [side.clone().requires_grad_() for side in (A, B, p / p.sum())]
    weight = normal(7, 6, seed=9)

    def of(A: Tensor, B: Tensor, p: Tensor, mode: Any) -> tuple[Tensor, Tensor]:
        result = quietly(entropic, A, B, p, T, mode)
        return result.loss, (result.plan * weight).sum()

    loss, moved = of(*leaves, mode)
    loss.backward(retain_graph=True)
    slopes = [leaf.grad.clone() for leaf in leaves]
    if isinstance(mode, Implicit):
        (of_plan,) = torch.autograd.grad(moved, leaves[:1])
    rng, step = np.random.default_rng(3), 1e-5
    for place, leaf in enumerate(leaves):
        W = torch.from_numpy(rng.normal(size=tuple(leaf.shape)))
        W = W + W.T if place < 2 and not directed[place] else W - W.mean() if place == 2 else W
        ends = []
        for sign in (1, -1):
            near = [each.detach() for each in leaves]
            near[place] = near[place] + sign * step * W
            ends.append([float(value.detach()) for value in of(*near, Implicit(tol=1e-12))])
        assert float((slopes[place] * W).sum()) == pytest.approx((ends[0][0] - ends[1][0]) / (2 * step), rel=1e-5)
        if place == 0 and isinstance(mode, Implicit):
            assert float((of_plan * W).sum()) == pytest.approx((ends[0][1] - ends[1][1]) / (2 * step), rel=1e-4)


MODES = [Envelope(tol=1e-12), Implicit(tol=1e-12)]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: type(mode).__name__)
@pytest.mark.parametrize("scale", [None, "common"])
@pytest.mark.parametrize("partner", ["directed", "symmetric", "sparse", "points"])
def test_gradients_beside_a_sparse_graph_are_those_beside_its_matrix(mode: Any, scale: Any, partner: str) -> None:
    A, B = graph(7, 1), graph(6, 2, partner == "directed")
    points = normal(6, 2, seed=4)
    weight = normal(7, 6, seed=9)
    options = GWOptions(spaces=SpaceOptions(scale=scale), stopping=StoppingOptions(max_iter=2000))
    found = []
    for make in (np.array, sparse.csr_array):
        p = torch.full((7,), 1 / 7, dtype=torch.float64, requires_grad=True)
        leaf = (points if partner == "points" else torch.from_numpy(B)).clone().requires_grad_()
        Y = {"points": leaf, "sparse": make(B)}.get(partner, leaf)
        Y = EuclideanDistances(leaf, squared=True) if partner == "points" else Y
        kinds = ("adjacency", "auto" if partner == "points" else "adjacency")
        asked = {"distances": kinds, "p": p, "epsilon": 0.05, "options": options, "random_state": 0}
        result = quietly(gw_align, make(A), Y, gradient_mode=mode, **asked)
        quantity = result.loss if isinstance(mode, Envelope) else result.loss + (result.plan * weight).sum()
        leaves = [p] if partner == "sparse" else [p, leaf]
        found.append(torch.autograd.grad(quantity, leaves))
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-9)


def test_large_graphs_have_the_exact_gradient_while_a_plan_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DENSE_PAIRS", {"cpu": 100})
    A = sparse.csr_array(graph(30, 1, False, 0.2))
    result = quietly(gw_align, A, A, distances="adjacency", epsilon=1e-2, random_state=0)
    assert (result.strategy, result.gradient) == ("dense", "exact")


def test_points_and_a_graph_go_together() -> None:
    points = normal(12, 2).numpy()
    A = graph(10, 3)
    result = quietly(gw_align, points, A, distances=("euclidean", "adjacency"), epsilon=1e-2, random_state=0)
    D = EuclideanDistances(points).rows(torch.arange(12)).numpy()
    assert result.value == pytest.approx(four_index(D, scaled(A), result.plan, result.plan), rel=1e-9)


def test_files_keep_an_adjacency_and_guard_its_indices() -> None:
    for A in (graph(N, 0), graph(N, 0, False)):
        for made in (AdjacencyDistances(A), AdjacencyDistances(sparse.csr_array(A)).with_scale(3.0)):
            again = decode(encode(made))
            assert vars(again).keys() | {"leaf"} == vars(made).keys() | {"leaf"}
            assert (again.scale, again.symmetric, again.fixed) == (made.scale, made.symmetric, made.fixed)
            V = uniform(N, 2)
            for axis in (0, 1):
                assert torch.equal(again.apply(V, axis), made.apply(V, axis))
    plain = encode(AdjacencyDistances(sparse.csr_array(graph(N, 0))))
    plain["members"]["matrix"]["indices"][0] = 10**6
    with pytest.raises(ValueError, match="indices"):
        decode(plain)
    assert pickle.loads(pickle.dumps(AdjacencyDistances(sparse.csr_array(graph(N, 0))))).size == N


GRAPHS = {
    "graph": nx.Graph([(0, 1), (1, 2), (2, 2), (0, 3)]),
    "weighted graph": nx.Graph([("c", "a", {"weight": 2}), ("a", "b", {"weight": -0.5}), ("b", "b", {"weight": 3.0})]),
    "directed graph": nx.DiGraph([(2, 1), (1, 2), (2, 0, {"weight": 4})]),
    "multigraph": nx.MultiGraph([(0, 1), (0, 1, {"weight": 2.5}), (1, 2), (2, 2), (2, 2)]),
    "directed multigraph": nx.MultiDiGraph([(0, 1), (0, 1), (1, 0), (2, 1)]),
}


@pytest.mark.parametrize("kind", GRAPHS)
def test_a_graph_of_networkx_is_its_adjacency_matrix(kind: str) -> None:
    graph = GRAPHS[kind]
    space, A = AdjacencyDistances(graph), nx.to_numpy_array(graph)
    assert space.sparse
    assert space.scale == np.abs(A).max()
    assert space.symmetric == (A == A.T).all()
    np.testing.assert_array_equal(all_rows(space).numpy(), A / space.scale)


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("weight", [None, "strength"])
def test_entries_are_the_attribute_that_is_asked_for(kind: str, weight: str | None, tmp_path: Path) -> None:
    graph = GRAPHS[kind].copy()
    for at, (*_, attributes) in enumerate(graph.edges(data=True)):
        attributes["strength"] = at + 0.5
    A, options = nx.to_numpy_array(graph, weight=weight), GWOptions(spaces=SpaceOptions(weight=weight))
    np.testing.assert_array_equal(all_rows(AdjacencyDistances(graph, weight=weight)).numpy(), A / np.abs(A).max())
    asked = {"distances": "adjacency", "epsilon": 1e-2, "random_state": 0}
    found = quietly(gw_align, graph, graph, options=options, checkpoint=tmp_path / "kept", **asked)
    assert found.value == quietly(gw_align, A, A, **asked).value
    assert quietly(resume, tmp_path / "kept").value == found.value


def test_an_attribute_that_an_edge_lacks_is_refused() -> None:
    graph = nx.Graph([("a", "b", {"strength": 2.0}), ("b", "c")])
    with pytest.raises(
        ValueError, match=r"'strength' on each edge, .* none on \('b', 'c'\); SpaceOptions\(weight=None\)"
    ):
        gw_align(
            graph,
            graph,
            distances="adjacency",
            options=GWOptions(spaces=SpaceOptions(weight="strength")),
            random_state=0,
        )
    with pytest.raises(TypeError, match="weight must be a str, the name of an attribute of edges, or None, got int"):
        SpaceOptions(weight=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64, np.float32])
def test_kinds_of_numbers_are_one(dtype: Any) -> None:
    A = graph(N, 0) > 0
    given = A.astype(dtype)
    for made in (given, torch.from_numpy(given), sparse.coo_matrix(given), given.tolist()):
        np.testing.assert_array_equal(all_rows(AdjacencyDistances(made)).numpy(), A)


def test_asymmetry_of_rounding_is_mended_and_no_other() -> None:
    A = graph(N, 0, False)
    for make in (np.array, sparse.csr_array):
        assert AdjacencyDistances(make(A * (1 + 1e-16 * RNG.integers(-4, 4, size=A.shape)))).symmetric
        assert not AdjacencyDistances(make(A * (1 + 1e-12 * RNG.uniform(size=A.shape)))).symmetric


def test_a_checkpoint_keeps_a_graph_of_networkx(tmp_path: Path) -> None:
    graph = nx.karate_club_graph()
    order = np.random.default_rng(0).permutation(34)
    other = sparse.csr_array(nx.to_scipy_sparse_array(graph))[order][:, order]
    asked = {"distances": "adjacency", "epsilon": 1e-3, "random_state": 0}
    first = quietly(gw_align, graph, other, checkpoint=tmp_path / "kept", **asked)
    again = quietly(resume, tmp_path / "kept")
    assert np.array_equal(first.plan, again.plan)
    assert first.providers == again.providers == ("AdjacencyDistances",) * 2
    first.save(tmp_path / "result.npz")
    assert GWResult.load(tmp_path / "result.npz").value == first.value


def test_the_command_takes_adjacencies(tmp_path: Path) -> None:
    A = graph(12, 4)
    order = np.random.default_rng(1).permutation(12)
    sparse.save_npz(tmp_path / "x.npz", sparse.csr_matrix(A))
    np.save(tmp_path / "y.npy", A[order][:, order])
    files = [str(tmp_path / name) for name in ("x.npz", "y.npy", "out.npz")]
    assert cli.main(["align", *files[:2], "-o", files[2], "--distances", "adjacency", "--epsilon", "0"]) == 0
    assert (order[GWResult.load(files[2]).argmax()] == np.arange(12)).all()


def test_the_estimator_takes_adjacencies() -> None:
    A = graph(12, 4)
    order = np.random.default_rng(1).permutation(12)
    found = GromovWasserstein(distances="adjacency", epsilon=1e-4, random_state=0).fit(A, A[order][:, order])
    assert found.value_ < 1e-4
    with pytest.raises(ValueError, match="points must have distances to be placed by"):
        found.transform(A + 1)


PEAK = r"""
import re
from pathlib import Path
import networkx as nx
import torch
from torchgw import Envelope, gw_align

def peak():
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024

small, large = (nx.gnm_random_graph(n, 5 * n, seed=n) for n in (50, 6000))
for spaces in ((small, small), (small, large)):
    before = peak()
    result = gw_align(*spaces, distances="adjacency", epsilon=1e-2, random_state=0)
    assert result.value_exact and result.gradient == "exact"
    p = torch.full((50,), 0.02, dtype=torch.float64, requires_grad=True)
    gw_align(*spaces, distances="adjacency", epsilon=1e-2, p=p, init=result, gradient_mode=Envelope()).loss.backward()
    assert p.grad.isfinite().all()
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_nothing_of_a_sparse_graph_is_made_dense() -> None:
    """6000 x 6000: the matrix would take 288 MB in float64, 144 MB in float32."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", PEAK], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) < 1e8


@pytest.mark.peer
@pytest.mark.parametrize("directed", DIRECTIONS)
def test_values_and_descents_agree_with_pot(directed: tuple[bool, bool]) -> None:
    gromov = pytest.importorskip("ot.gromov")
    A, B = (scaled(graph(n, n, way, 0.3)) for n, way in zip((25, 20), directed, strict=True))
    p, q = (np.random.default_rng(n).uniform(0.5, 1.5, size=n) for n in (25, 20))
    p, q = p / p.sum(), q / q.sum()
    plan, log = gromov.gromov_wasserstein(A, B, p, q, symmetric=not any(directed), log=True)
    x, y = AdjacencyDistances(A), AdjacencyDistances(sparse.csr_array(B))
    sums = torch.from_numpy(p), torch.from_numpy(q)
    assert exact_objective(DenseCoupling(torch.from_numpy(plan)), x, y, *sums).value == pytest.approx(log["gw_dist"])
    asked = {"distances": "adjacency", "p": p, "q": q, "epsilon": 0, "random_state": 0}
    for X, Y in ((A, B), (sparse.csr_array(A), sparse.csr_array(B))):
        assert quietly(gw_align, X, Y, init=plan, **asked).value <= log["gw_dist"] + 1e-9
        assert quietly(gw_align, X, Y, **asked).value <= log["gw_dist"] + 1e-9


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_directed_graph_on_a_gpu_is_that_on_the_cpu(kind: str) -> None:
    A, B = graph(40, 1, density=0.2), graph(30, 2, density=0.2)
    T = torch.from_numpy(plan_of(masses(40, 3), masses(30, 4)))
    found = []
    for device in map(torch.device, ("cpu", "cuda")):
        x, y = (KINDS[kind](side).to(device, torch.float64) for side in (A, B))
        coupling, p, q = DenseCoupling(T.to(device)), T.sum(1).to(device), T.sum(0).to(device)
        found.append(ExactGradient(x, y, p, q)(coupling, p).rows(slice(None)).cpu())
        asked = {"distances": "adjacency", "epsilon": 1e-2, "device": device, "random_state": 0}
        result = quietly(gw_align, *((A, B) if kind == "dense" else map(sparse.csr_array, (A, B))), **asked)
        assert result.value == pytest.approx(four_index(scaled(A), scaled(B), *[result.plan] * 2), rel=1e-8)
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("depth", [3, 4])
def test_plans_do_not_swap_for_ever(depth: int) -> None:
    """Each of two plans solved the problem that the other one posed, from the same potentials, at 2000 times the value:
    such a pair is no fixed point, and the gap of an optimum at this epsilon is about its value at most."""
    A = nx.to_numpy_array(nx.balanced_tree(2, depth))
    result = gw_align(A, A, distances="adjacency", epsilon=0.01, random_state=0)
    assert result.converged
    assert result.value < 0.002
    assert result.certificate.stationarity < 0.002
    assert result.history.cost[-1] == pytest.approx(result.value, rel=0.05)


def test_a_lone_basin_has_the_energy_of_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SHARP_BASINS_PAIRS", "PRODUCT_PAIRS"):
        monkeypatch.setattr(dense, name, 0)
    monkeypatch.setattr(basins, "MOST_CONTEST_PAIRS", 0)
    rng = np.random.default_rng(0)
    A, B = rng.random((30, 30)), rng.random((30, 30))
    result = quietly(gw_align, A, B, distances="adjacency", epsilon=0, random_state=0)
    (basin,) = result.basins
    assert basin.energy == pytest.approx(result.value, rel=1e-9)


COMPARED = (nx.path_graph(6), nx.gnm_random_graph(9, 15, seed=1), nx.gnm_random_graph(50, 120, seed=2))


@pytest.mark.parametrize(
    "of", [lambda g: g, nx.to_numpy_array, nx.to_scipy_sparse_array], ids=["nx", "array", "sparse"]
)
def test_all_pairs_of_adjacencies_have_the_values_of_one_pair(of: Callable[[Any], Any], tmp_path: Path) -> None:
    spaces = [of(graph) for graph in (COMPARED[0], *COMPARED)]
    keywords: dict[str, Any] = {"distances": "adjacency", "random_state": 0, "store": tmp_path / "pairs"}
    found = quietly(gw_pairwise, spaces, scale="own", **keywords)
    again = quietly(gw_pairwise, spaces, scale="own", **keywords)
    assert (again.n_solved, again.n_stored) == (0, 6)
    assert np.array_equal(again.values, found.values)
    assert found.values[0] == 0
    one = quietly(gw_align, spaces[1], spaces[2], distances="adjacency", epsilon=0, random_state=0).value
    assert one <= found.values[3] * (1 + 1e-9)
    assert found.values[3] <= 1.1 * one
    matrices = [nx.to_numpy_array(g) for g in (COMPARED[0], *COMPARED)]
    with pytest.raises(ValueError, match="with other scale"):  # of distances it is another problem
        quietly(gw_pairwise, matrices, **keywords | {"distances": "precomputed"})


def test_all_pairs_keep_signs_diagonals_and_units_of_adjacencies() -> None:
    A, B = graph(8, 1, directed=False), graph(9, 2, directed=False)
    own, common = (
        quietly(gw_pairwise, [A, B], distances="adjacency", scale=scale, random_state=0, keep="matchings")
        for scale in ("own", "common")
    )
    small, large = sorted((A, B), key=len)
    for found, (x, y) in ((own, (small / np.abs(small).max(), large / np.abs(large).max())), (common, (small, large))):
        least = second_bound_of(x, y)
        assert least <= found.values[0] * (1 + 1e-9) <= four_index(x, y, *2 * [np.full((8, 9), 1 / 72)]) * (1 + 1e-6)
    assert quietly(gw_neighbours, [A, B, A], 1, distances="adjacency", random_state=0).indices.tolist() == [
        [2],
        [0],
        [0],
    ]
    one_node = quietly(gw_pairwise, [nx.empty_graph(1), COMPARED[0]], distances="adjacency", random_state=0)
    assert one_node.values[0] == pytest.approx(np.square(nx.to_numpy_array(COMPARED[0])).mean())


def second_bound_of(A: np.ndarray, B: np.ndarray) -> float:
    """The squared Wasserstein distance between the distributions of all entries."""
    cuts = np.linspace(0, 1, 64 * 81 + 1)[:-1] + 0.5 / (64 * 81)
    one, other = (np.sort(side.ravel())[(cuts * side.size).astype(int)] for side in (A, B))
    return float(np.square(one - other).mean())

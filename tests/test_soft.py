"""Soft plans of sharp results: the linear problem, its marginals and ranking, for every kind of coupling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from scipy.special import logsumexp

import torchgw
from torchgw import GWOptions, GWResult, LowRankOptions, Partial, SemiRelaxed, gw_align
from torchgw.couplings.potential import PotentialCoupling
from torchgw.couplings.sparse import SparseCoupling
from torchgw.solvers.soft_plan import BYTES

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 3)) * [1, 2, 3]
ORDER = RNG.permutation(30)
COPY = (X + 0.05 * RNG.normal(size=X.shape))[ORDER]
MORE = np.concatenate((COPY, RNG.normal(size=(6, 3))))
M = RNG.random((30, 36))
GRAPH = nx.barabasi_albert_graph(40, 2, seed=1)
OTHER = nx.relabel_nodes(nx.double_edge_swap(GRAPH.copy(), 3, 100, seed=2), dict(enumerate(RNG.permutation(40))))
A, B = (nx.to_scipy_sparse_array(graph, nodelist=range(40), format="csr", dtype=float) for graph in (GRAPH, OTHER))
PAIRS = np.stack((ORDER, np.arange(30)), 1)
HELD = np.r_[0, np.full(29, 1 / 29)]
EUCLIDEAN = {"distances": "euclidean"}
KINDS = {
    "permutation": (X, COPY, EUCLIDEAN),
    "vertex": (X, MORE, EUCLIDEAN),
    "torch, mass 3": (X, MORE, EUCLIDEAN | {"p": np.full(30, 0.1), "q": np.full(36, 1 / 12)}),
    "a point without mass": (X, MORE, EUCLIDEAN | {"p": HELD}),
    "fused": (X, MORE, EUCLIDEAN | {"cost": M, "alpha": 0.5}),
    "fused without a point": (X, MORE, EUCLIDEAN | {"cost": M, "alpha": 0.5, "p": HELD}),
    "linear": (X, MORE, {"cost": M, "alpha": 0}),
    "partial": (X, MORE, EUCLIDEAN | {"marginals": Partial(0.7)}),
    "semi-relaxed": (X, MORE, EUCLIDEAN | {"marginals": SemiRelaxed()}),
    "few entries": (X, MORE, {"distances": "landmark", "options": GWOptions(strategy="streaming")}),
    "streamed": (
        X,
        MORE,
        {"distances": "landmark", "options": GWOptions(strategy="streaming", max_memory=BYTES * 30 * 36 - 1)},
    ),
    "adjacency": (A, B, {"distances": "adjacency"}),
    "sparse": (A, B, {"distances": "adjacency", "options": GWOptions(strategy="sparse")}),
}


@pytest.fixture(scope="module")
def solved() -> Callable[[str], GWResult]:
    kept: dict[str, GWResult] = {}

    def solve(kind: str) -> GWResult:
        if kind not in kept:
            x, y, keywords = KINDS[kind]
            begun = {} if kind in ("sparse", "adjacency", "linear") else {"init": PAIRS[PAIRS[:, 0] > 0]}
            kept[kind] = gw_align(x, y, epsilon=0, random_state=0, **begun, **keywords)
        return kept[kind]

    return solve


def cost_at(result: GWResult, kind: str) -> np.ndarray:
    """C(T) over the weight of the linear problem, from matrices; row and column terms do not matter."""
    assert result.known is not None
    T = result.plan
    T = T / (3.0 if "mass 3" in kind else 1.0)
    D, E = (side.space.rows(torch.arange(side.space.size)).numpy() for side in result.known)
    beta = 1 - result.alpha
    linear = beta * M / result.cost_scale / 2 if beta else 0.0
    cost: np.ndarray = (-2 * result.alpha * D @ T @ E + linear) / (result.alpha * T.sum() + beta / 2)
    return np.where((D @ T @ E > 0) | (T > 0), cost, np.inf) if kind == "sparse" else cost


def sinkhorn_plan(cost: np.ndarray, p: np.ndarray, q: np.ndarray, epsilon: float) -> np.ndarray:
    with np.errstate(divide="ignore"):
        log_p, log_q, f, g = np.log(p), np.log(q), np.zeros_like(p), np.zeros_like(q)
    for step in range(8, -1, -1):
        at = epsilon * 2**step
        for _ in range(20 if step else 1500):
            g = log_q - logsumexp(np.where(p > 0, f, -np.inf)[:, None] - cost / at, axis=0)
            f = log_p - logsumexp(g - cost / at, axis=1)
        if step:
            f, g = 2 * (f - np.where(p > 0, log_p, 0)), 2 * g
    return np.asarray(np.exp(f[:, None] + g - cost / epsilon))


@pytest.mark.parametrize("kind", KINDS)
def test_the_soft_plan_solves_the_linear_problem(kind: str, solved: Callable[[str], GWResult]) -> None:
    result = solved(kind)
    epsilon = 0.05 * (1.0 if np.isnan(result.gain) else result.gain)
    soft = result.soft(epsilon)
    plan, T = soft.plan.astype(np.float64), result.plan
    expected = sinkhorn_plan(cost_at(result, kind), T.sum(1), T.sum(0), epsilon)
    np.testing.assert_allclose(plan, expected, rtol=2e-2, atol=1e-3 * T.max())
    for axis in (0, 1):
        assert np.abs(plan.sum(axis) - T.sum(axis)).sum() < 1e-3 * T.sum()
    assert soft.epsilon == epsilon
    assert soft.value >= result.value * (1 - 1e-6)
    assert isinstance(soft.coupling, PotentialCoupling) == (kind == "streamed")
    assert isinstance(soft.coupling, SparseCoupling) == (kind == "sparse")


@pytest.mark.parametrize("kind", KINDS)
def test_candidates_begin_with_the_match_and_follow_by_mass(kind: str, solved: Callable[[str], GWResult]) -> None:
    result = solved(kind)
    masses, index = (np.asarray(found) for found in result.top_k(5))
    np.testing.assert_array_equal(index[:, 0], np.asarray(result.argmax()))
    assert all(len(set(row)) == 5 for row in index.tolist())
    plan = result.soft().plan
    np.testing.assert_allclose(masses, np.take_along_axis(plan, index, 1), rtol=1e-5, atol=1e-12)
    assert (np.diff(masses[:, 1:], axis=1) <= 1e-12).all()
    rest = plan.copy()
    np.put_along_axis(rest, index, -1.0, 1)
    assert (rest.max(1) <= masses[:, 1:].min(1) + 1e-12).all()
    matched = result.plan.sum(1) > 0
    np.testing.assert_array_equal(np.asarray(result.top_k(1)[1])[matched, 0], index[matched, 0])


def test_the_soft_plan_is_found_once(solved: Callable[[str], GWResult]) -> None:
    result = solved("vertex")
    assert result.soft().coupling is result.soft().coupling
    entropy = np.asarray(result.confidence().entropy)
    np.testing.assert_allclose(entropy, result.soft().confidence().entropy)
    assert 0.01 < entropy.mean() < np.log(36) / 2
    blurred = result.soft()
    assert blurred.soft() is blurred
    assert blurred.soft(blurred.epsilon * 2).epsilon == blurred.epsilon * 2


def test_the_default_epsilon_ranks_as_well_as_any_named_one() -> None:
    rng = np.random.default_rng(3)
    cloud = rng.normal(size=(6, 20))[rng.integers(6, size=150)] + 0.7 * rng.normal(size=(150, 20))
    order = rng.permutation(150)
    moved = (cloud + 0.8 * rng.normal(size=cloud.shape)) @ np.linalg.qr(rng.normal(size=(20, 20)))[0]
    result = gw_align(cloud, moved[order], distances="euclidean", epsilon=0, random_state=0)

    def hits(read: GWResult) -> float:
        return float((order[np.asarray(read.top_k(5)[1])] == np.arange(150)[:, None]).any(1).mean())

    assert hits(result) >= max(hits(result.soft(share * result.gain)) for share in (0.3, 0.1, 0.03, 0.01, 3e-3)) - 0.02


def test_it_does_not_depend_on_units_or_the_order_of_points() -> None:
    one = gw_align(X, MORE, distances="euclidean", epsilon=0, random_state=0)
    turn = np.arange(36)[::-1]
    other = gw_align(X * 7, MORE[turn] * 7, init=one.plan[:, turn], distances="euclidean", epsilon=0)
    assert other.soft().epsilon == pytest.approx(one.soft().epsilon, rel=1e-6)
    np.testing.assert_allclose(other.soft().plan[:, turn], one.soft().plan, atol=1e-4)


def test_the_curvature_is_read_of_the_soft_plan(solved: Callable[[str], GWResult]) -> None:
    with pytest.raises(ValueError, match="without entropy"):
        torchgw.curvature(solved("permutation"), k=1)
    assert torchgw.curvature(solved("permutation").soft(), k=1).smallest[0] > 0


def test_files_with_points_are_soft_as_the_result_was(solved: Callable[[str], GWResult], tmp_path: Path) -> None:
    for kind in ("vertex", "torch, mass 3"):
        result = solved(kind)
        result.save(tmp_path / "known.npz", points=True)
        loaded = GWResult.load(tmp_path / "known.npz")
        assert loaded.soft().epsilon == pytest.approx(result.soft().epsilon, rel=1e-6)
        assert loaded.soft().value == pytest.approx(result.soft().value, rel=1e-6)
        np.testing.assert_allclose(loaded.top_k(5)[0], result.top_k(5)[0], rtol=1e-4)
    result = solved("semi-relaxed")
    result.save(tmp_path / "known.npz", points=True)
    loaded = GWResult.load(tmp_path / "known.npz")
    np.testing.assert_array_equal(loaded.top_k(5)[1], result.top_k(5)[1])
    with pytest.raises(ValueError, match="needs the masses that were asked for"):
        loaded.soft()


def test_files_keep_soft_plans_and_refuse_to_make_them(solved: Callable[[str], GWResult], tmp_path: Path) -> None:
    result = solved("vertex")
    result.save(tmp_path / "sharp.npz")
    sharp = GWResult.load(tmp_path / "sharp.npz")
    np.testing.assert_array_equal(np.asarray(sharp.top_k(2)[1])[:, 0], sharp.argmax())
    with pytest.raises(ValueError, match="save what it returns"):
        sharp.soft()
    np.testing.assert_array_equal(sharp.top_k(1)[1], result.top_k(1)[1])
    result.soft().save(tmp_path / "soft.npz")
    kept = GWResult.load(tmp_path / "soft.npz")
    np.testing.assert_array_equal(kept.top_k(3)[1], result.soft().top_k(3)[1])


def test_an_epsilon_that_is_too_small_is_told_of(solved: Callable[[str], GWResult]) -> None:
    result = solved("vertex")
    with pytest.warns(torchgw.ConvergenceWarning, match="off the masses of its points"):
        cold = result.soft(1e-12)
    assert np.isfinite(cold.plan).all()
    np.testing.assert_allclose(cold.plan.sum(1), result.plan.sum(1), rtol=1e-4)
    with pytest.raises(ValueError, match="epsilon must be larger, got 1e-60"):
        result.soft(1e-60)


def test_what_has_no_soft_plan_says_so(solved: Callable[[str], GWResult]) -> None:
    with pytest.raises(ValueError, match="epsilon must be a finite number > 0"):
        solved("vertex").soft(0.0)
    narrow = replace(solved("vertex"), options=GWOptions(max_memory=BYTES * 30 * 36 - 1))
    with pytest.raises(MemoryError, match="the soft plan"):
        narrow.soft()


def test_a_plan_of_low_rank_ranks_by_itself() -> None:
    options = GWOptions(strategy="low-rank", low_rank=LowRankOptions(rank=4))
    result = gw_align(X, MORE, distances="landmark", epsilon=0, options=options, random_state=0)
    np.testing.assert_allclose(result.top_k(3)[0], -np.sort(-result.plan, 1)[:, :3])
    assert result.soft().epsilon > 0


def test_the_match_is_first_even_where_the_soft_plan_ranks_it_far_down(solved: Callable[[str], GWResult]) -> None:
    result = replace(solved("permutation"))
    blurred = result._soften(10 * result.gain)
    vars(result)["_soft_plan"] = blurred
    best = blurred.coupling.top_k(2)[1].numpy()
    far = ~(best == np.asarray(result.argmax())[:, None]).any(1)
    assert far.any()
    masses, index = (np.asarray(found) for found in result.top_k(2))
    np.testing.assert_array_equal(index[:, 0], np.asarray(result.argmax()))
    np.testing.assert_array_equal(index[far, 1], best[far, 0])
    np.testing.assert_allclose(masses, np.take_along_axis(blurred.coupling.to_dense().numpy(), index, 1))

"""Bounds of all plans: what they are made of, that they hold, and how tight they become."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist

from tests.problems import daily, gw_by_enumeration, random_masses, random_plan
from torchgw import ConvergenceWarning, EuclideanDistances, GWOptions, gw_align, gw_certify
from torchgw.solvers import branch_and_bound
from torchgw.solvers.branch_and_bound import CrossCovariance, third_bound
from torchgw.spaces import FactoredDistances, PrecomputedDistances

pytestmark = pytest.mark.filterwarnings("ignore::torchgw.AmbiguityWarning", "ignore::torchgw.ConvergenceWarning")


def squares(n: int, d: int, rng: np.random.Generator) -> np.ndarray:
    D = cdist(x := rng.normal(size=(n, d)), x, "sqeuclidean")
    return D / D.max()


def stored(D: np.ndarray) -> PrecomputedDistances:
    return PrecomputedDistances.stored_matrix(torch.from_numpy(D), 1.0)


def cross_of(DX: np.ndarray, DY: np.ndarray, p: np.ndarray, q: np.ndarray) -> CrossCovariance:
    return CrossCovariance(stored(DX), stored(DY), torch.from_numpy(p), torch.from_numpy(q))


@pytest.mark.parametrize("kind", ["squares", "metric", "mixed signs"])
def test_the_cross_covariance_has_the_value_of_every_plan(kind: str) -> None:
    rng = np.random.default_rng(0)
    if kind == "squares":
        DX, DY = squares(12, 2, rng), squares(14, 3, rng)
    else:
        DX, DY = (cdist(x := rng.normal(size=(n, 2)), x) for n in (12, 14))
    if kind == "mixed signs":
        DX, DY = (np.abs(D - D.mean()) for D in (DX, DY))
    p, q = random_masses(12, rng), random_masses(14, rng)
    cross = cross_of(DX, DY, p, q)
    assert cross.is_concave == (kind != "mixed signs")
    assert cross.weights.shape == ((2, 3) if kind == "squares" else (11, 13))
    low, high = cross.ranges()
    for _ in range(5):
        T = random_plan(p, q, rng)
        T *= 1 / T.sum()
        plan = csr_array(T)
        W = cross.covariance(plan)
        assert cross.value(plan) == pytest.approx(gw_by_enumeration(DX, DY, T), rel=1e-6)
        assert (low - 1e-9 <= W).all()
        assert (high + 1e-9 >= W).all()


def test_factors_have_the_directions_of_their_distances() -> None:
    rng = np.random.default_rng(1)
    F, p = torch.from_numpy(rng.normal(size=(20, 4))), torch.from_numpy(random_masses(20, rng))
    signs = torch.tensor([1.0, -1.0, 1.0, 1.0], dtype=torch.float64)
    one = branch_and_bound.Directions(FactoredDistances.of(F, signs, 1.0), p)
    other = branch_and_bound.Directions(stored(((F * signs) @ F.T).numpy()), p)
    np.testing.assert_allclose(one.values, other.values, atol=1e-10)
    np.testing.assert_allclose(one.linear, other.linear, atol=1e-10)
    np.testing.assert_allclose([one.mean, one.square], [other.mean, other.square], atol=1e-10)
    np.testing.assert_allclose(np.abs(np.sum(one.vectors * other.vectors * p.numpy()[:, None], 0)), 1.0, atol=1e-8)


@pytest.mark.parametrize("seed", range(6))
def test_the_bound_of_every_box_is_below_the_plans_in_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    DX, DY, p, q = squares(9, 2, rng), squares(11, 1 + seed % 3, rng), random_masses(9, rng), random_masses(11, rng)
    cross = cross_of(DX, DY, p, q)
    for _ in range(20):
        T = random_plan(p, q, rng)
        W = cross.covariance(csr_array(T / T.sum()))
        shift, width = rng.uniform(-1, 1, size=(2, *W.shape)) * rng.uniform(0.0, 0.1)
        low, high = W + shift - np.abs(shift) - np.abs(width), W + shift + np.abs(shift) + np.abs(width)
        lower, _, _ = branch_and_bound.bound_box(cross, low, high, np.zeros(11), np.inf)
        assert lower <= gw_by_enumeration(DX, DY, T / T.sum()) + 1e-9


@pytest.mark.parametrize("seed", range(10))
def test_few_points_are_proven_to_be_at_the_best_permutation(seed: int) -> None:
    rng = np.random.default_rng(seed)
    DX, DY = (cdist(x := rng.normal(size=(6, 2 + seed % 3)), x) for _ in range(2))
    found = gw_certify(DX, DY, distances="precomputed", random_state=0)
    DX, DY = DX / DX.max(), DY / DY.max()
    best = min(((DX - DY[np.ix_(s, s)]) ** 2).sum() / 36 for s in map(list, itertools.permutations(range(6))))
    assert found.value == pytest.approx(best, rel=1e-9)
    assert found.certificate.gap_global <= 1e-6
    assert found.certificate.lower_bound <= found.value


@pytest.mark.parametrize(
    ("n", "k", "d"),
    [(20, 24, 2), (60, 50, 1), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((40, 40, 2), (24, 24, 3)))],
)
def test_squares_in_few_dimensions_are_proven_to_the_gap_asked_for(n: int, k: int, d: int) -> None:
    rng = np.random.default_rng((n, k))
    X, Y = (EuclideanDistances(rng.normal(size=(m, d)), squared=True) for m in (n, k))
    given: dict[str, Any] = {"p": random_masses(n, rng), "q": random_masses(k, rng)} if n != k else {}
    plain = gw_align(X, Y, epsilon=0, random_state=0, **given)
    found = gw_certify(X, Y, gap=0.02, random_state=0, **given)
    assert found.certificate.gap_global <= 0.02
    assert found.value <= plain.value
    assert plain.certificate.lower_bound <= found.certificate.lower_bound <= found.value
    assert str(found.certificate).startswith("no plan has a value below")


def test_a_search_that_went_wrong_is_led_to_the_optimum() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(40, 2)) * (1, 0.5)
    X, Y = EuclideanDistances(x, squared=True), EuclideanDistances(x + 0.1 * rng.normal(size=x.shape), squared=True)
    wrong = np.eye(40)[np.argsort(np.argsort(-x[:, 0]))][:, np.argsort(np.argsort(x[:, 0]))] / 40
    stuck = gw_align(X, Y, epsilon=0, init=torch.from_numpy(wrong), options=GWOptions(coarse=None))
    free = gw_align(X, Y, epsilon=0, random_state=0)
    found = gw_certify(X, Y, init=torch.from_numpy(wrong), options=GWOptions(coarse=None))
    assert stuck.value > 1.5 * free.value
    assert found.value <= free.value * 1.05
    assert found.certificate.gap_global <= 0.05
    assert found.certificate.stationarity <= 1e-6 * found.value


def test_points_without_mass_and_a_short_time() -> None:
    rng = np.random.default_rng(4)
    D = [squares(30, 2, rng) for _ in range(2)]
    p = random_masses(30, rng)
    p[::4] = 0.0
    found = gw_certify(*D, p=p / p.sum(), distances="precomputed", random_state=0)
    assert found.certificate.gap_global <= 0.05
    hurried = gw_certify(*D, p=p / p.sum(), distances="precomputed", gap=1e-9, seconds=1e-3, random_state=0)
    assert 0 <= hurried.certificate.lower_bound <= found.value


@pytest.mark.parametrize("total", daily([(3.0,)], [0.1, 1.0, 3.0]))
def test_bounds_are_of_the_masses_that_were_given(total: float) -> None:
    rng = np.random.default_rng(9)
    squared = [squares(20, 2, rng) for _ in range(2)]
    metric = [cdist(x := rng.normal(size=(16, 2)), x) for _ in range(2)]
    tiny = [D[:6, :6] for D in metric]
    for DX, DY in (squared, metric, tiny):
        p = np.full(len(DX), total / len(DX))
        one = gw_certify(DX, DY, distances="precomputed", random_state=0)
        found = gw_certify(DX, DY, p=p, q=p, distances="precomputed", random_state=0)
        assert found.value == pytest.approx(total**2 * one.value, rel=1e-6)
        assert found.certificate.lower_bound == pytest.approx(total**2 * one.certificate.lower_bound, rel=1e-3)


def test_squares_in_float32_are_proven() -> None:
    rng = np.random.default_rng(10)
    D = [squares(30, 2, rng).astype(np.float32) for _ in range(2)]
    assert gw_certify(*D, distances="precomputed", random_state=0).certificate.gap_global <= 0.05


def test_a_cancelled_solve_is_not_proven() -> None:
    D = [squares(30, 2, np.random.default_rng(seed)) for seed in range(2)]
    found = gw_certify(*D, distances="precomputed", random_state=0, callback=lambda progress: True)
    assert found.status.name == "CANCELLED"
    assert found.certificate.gap_global > 0.05


def test_an_interrupted_proof_keeps_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(12)
    D = [squares(30, 2, rng) for _ in range(2)]
    solved, seen = branch_and_bound.solve_transport, []

    def interrupted(*arguments: Any) -> Any:
        seen.append(arguments)
        if len(seen) > 20:
            raise KeyboardInterrupt
        return solved(*arguments)

    monkeypatch.setattr(branch_and_bound, "solve_transport", interrupted)
    found = gw_certify(*D, distances="precomputed", random_state=0, gap=1e-6)
    assert 0 <= found.certificate.lower_bound <= found.value


@pytest.mark.parametrize("noise", [0.0, 1e-6])
def test_copies_are_proven_at_once(noise: float) -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(100, 2))
    turned = x @ np.linalg.qr(rng.normal(size=(2, 2)))[0] + noise * rng.normal(size=x.shape)
    spaces = (EuclideanDistances(points, squared=True) for points in (x, turned))
    found = gw_certify(*spaces, random_state=0)
    assert found.certificate.gap_global == 0
    assert found.value < 1e-9


def test_few_points_with_factors_have_the_optimum_of_their_matrices() -> None:
    x, y = (np.random.default_rng(seed).normal(size=(7, 2)) for seed in (1, 2))
    by_factors = gw_certify(EuclideanDistances(x, squared=True), EuclideanDistances(y, squared=True), random_state=0)
    by_matrices = gw_certify(
        cdist(x, x, "sqeuclidean"), cdist(y, y, "sqeuclidean"), distances="precomputed", random_state=0
    )
    assert by_factors.value == pytest.approx(by_matrices.value, rel=1e-9)
    assert by_factors.certificate.gap_global < 1e-9


def test_a_gap_that_is_left_is_said() -> None:
    rng = np.random.default_rng(14)
    D = [cdist(x := rng.normal(size=(20, 2)), x) for _ in range(2)]
    with pytest.warns(ConvergenceWarning, match="5% was asked for: beyond Memoli's bounds only EuclideanDistances"):
        gw_certify(*D, distances="precomputed", random_state=0)
    with pytest.warns(ConvergenceWarning, match=r"give it more than 0\.001 seconds, or a larger gap"):
        gw_certify(*(E**2 for E in D), distances="precomputed", random_state=0, seconds=1e-3, gap=1e-6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gap": 0.0}, "gap must be"),
        ({"seconds": -1.0}, "seconds must be"),
        ({"options": GWOptions(loss="kl")}, "options.loss must be 'square' in gw_certify"),
    ],
)
def test_what_cannot_be_bounded_is_refused(given: dict[str, Any], message: str) -> None:
    D = cdist(x := np.random.default_rng(6).normal(size=(30, 2)), x)
    with pytest.raises(ValueError, match=message):
        gw_certify(D, D, distances="precomputed", **given)


def test_distances_of_many_directions_have_the_third_bound() -> None:
    rng = np.random.default_rng(8)
    x = rng.normal(size=(60, 3))
    DX, DY = cdist(x, x), cdist(y := x + 0.1 * rng.normal(size=x.shape), y)
    plain = gw_align(DX, DY, distances="precomputed", epsilon=0, random_state=0)
    found = gw_certify(DX, DY, distances="precomputed", random_state=0)
    assert found.value == plain.value
    assert 1.3 * plain.certificate.lower_bound < found.certificate.lower_bound <= found.value


@pytest.mark.parametrize("seed", range(10))
def test_the_third_bound_is_that_of_sorted_distances_and_below_every_plan(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, k = (16, 16) if seed % 2 else (12, 18)
    DX, DY = (cdist(x := rng.normal(size=(m, 1 + seed % 3)), x) for m in (n, k))
    p, q = (np.full(m, 1 / m) for m in (n, k)) if seed % 2 else (random_masses(n, rng), random_masses(k, rng))
    bound = third_bound(stored(DX), stored(DY), torch.from_numpy(p), torch.from_numpy(q))
    if seed % 2:  # 512 parts are those of 16 points
        C = cdist(np.sort(DX, 1), np.sort(DY, 1), "sqeuclidean") / n
        assert bound == pytest.approx(C[linear_sum_assignment(C)].sum() / n, rel=1e-6)
    for _ in range(5):
        T = random_plan(p, q, rng)
        assert bound <= gw_by_enumeration(DX, DY, T / T.sum())


def test_too_many_points_and_directed_distances_are_refused() -> None:
    X = np.zeros((2001, 2))
    with pytest.raises(ValueError, match="X must have at most 2000 points in gw_certify, got 2001"):
        gw_certify(X, X)
    A = np.random.default_rng(7).uniform(size=(10, 10))
    with pytest.raises(ValueError, match="X must be symmetric in gw_certify"):
        gw_certify(A, A, distances="adjacency")


@pytest.mark.slow
def test_five_hundred_points_in_the_plane_are_proven_to_five_per_cent() -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X, Y = (EuclideanDistances(rng.normal(size=(500, 2)), squared=True) for _ in range(2))
        assert gw_certify(X, Y, random_state=0, seconds=300.0).certificate.gap_global <= 0.05

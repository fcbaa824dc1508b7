"""Points without mass are no part of a space: with them and without them a problem has one solution, whatever the
distances, the model, the strategy and the function that is called."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix, diags_array
from scipy.spatial.distance import cdist

import torchgw
from torchgw import (
    Envelope,
    EuclideanDistances,
    FactoredDistances,
    GWOptions,
    GWResult,
    HeatDistances,
    Implicit,
    LandmarkDistances,
    LowRankOptions,
    Partial,
    PrecomputedDistances,
    SemiRelaxed,
    Supervision,
    Unbalanced,
    curvature,
    epsilon_path,
    gw_align,
    gw_certify,
    gw_loss,
    gw_neighbours,
    gw_pairwise,
    resume,
)  # fmt: skip
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.distributed.inputs import is_in_file, load_spaces
from torchgw.estimator import GromovWasserstein
from torchgw.spaces.resolution import explain_unresolved_points, sample_differences
from torchgw.spaces.subspace import subspace

pytestmark = pytest.mark.filterwarnings("ignore::torchgw.types.TorchGWWarning")

N, MORE = 14, 4
X, Y = make_spiral(N, random_state=0)[0], make_swiss_roll(12, random_state=0)[0]
PLACE = np.array([0, 1, 3, 4, 5, 7, 8, 9, 10, 11, 13, 14, 15, 16])
OTHERS = np.setdiff1d(np.arange(N + MORE), PLACE)
P = np.random.default_rng(1).uniform(0.5, 1.5, N)
P /= P.sum()


def padded(array: np.ndarray, fill: Any) -> np.ndarray:
    """Rows of points with mass, in their places among others."""
    found = np.empty((N + MORE, *array.shape[1:]))
    found[:] = fill
    found[PLACE] = array
    return found


MASS = padded(P, 0.0)
Q = np.random.default_rng(3).uniform(0.5, 1.5, len(Y))
Q /= Q.sum()
Y_PLACE = np.delete(np.arange(len(Y) + 3), [0, 6, 14])
Y_MASS, Y_CLOUD = np.zeros(len(Y) + 3), np.full((len(Y) + 3, Y.shape[1]), -40.0)
Y_MASS[Y_PLACE], Y_CLOUD[Y_PLACE] = Q, Y
CLOUDS = {"far": padded(X, 50.0), "near": padded(X, X.mean(0) + 0.01), "duplicates": padded(X, X[3])}


def similarity(x: np.ndarray) -> np.ndarray:
    return np.exp(-cdist(x, x))


def edges(x: np.ndarray) -> np.ndarray:
    D = cdist(X, X)
    return np.where(np.sort(D, 1)[:, 4].max() > D, D, 0.0) if len(x) == N else _with_others(edges(X))


def _with_others(W: np.ndarray) -> np.ndarray:
    """A graph with a node that hangs on it, two that join each other, and one alone."""
    found = np.zeros((N + MORE, N + MORE))
    found[np.ix_(PLACE, PLACE)] = W
    for i, j in ((OTHERS[0], PLACE[2]), (OTHERS[1], OTHERS[2])):
        found[i, j] = found[j, i] = 9.0
    return found


class Own:
    """A provider of a user's."""

    scale, stored = 1.0, True

    def __init__(self, D: Any) -> None:
        self.D = torch.as_tensor(D)
        self.size = len(self.D)

    def to(self, device: torch.device, dtype: torch.dtype) -> Own:
        return Own(self.D.to(device, dtype))

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        return self.D[index]

    def factors(self) -> None:
        return None


SPACES: dict[str, tuple[Any, dict[str, Any]]] = {
    "euclidean": (lambda x: x, {"distances": "euclidean"}),
    "landmark": (lambda x: x, {"distances": "landmark"}),
    "dijkstra": (lambda x: x, {"distances": "dijkstra"}),
    "geodesic": (lambda x: x, {"distances": "precomputed"}),
    "matrix": (lambda x: cdist(x, x), {"distances": ("precomputed", "euclidean")}),
    "tensor": (lambda x: torch.from_numpy(cdist(x, x)), {"distances": ("precomputed", "euclidean")}),
    "list": (lambda x: x.tolist(), {"distances": "euclidean"}),
    "similarity": (similarity, {"distances": ("adjacency", "euclidean")}),
    "sparse adjacency": (lambda x: csr_matrix(edges(x)), {"distances": ("adjacency", "euclidean")}),
    "networkx": (lambda x: nx.from_numpy_array(edges(x)), {"distances": ("adjacency", "euclidean")}),
    "graph": (lambda x: csr_matrix(edges(x)), {}),
    "graph, landmark": (lambda x: csr_matrix(edges(x)), {"distances": ("landmark", "euclidean")}),
    "graph, dijkstra": (lambda x: csr_matrix(edges(x)), {"distances": ("dijkstra", "euclidean")}),
    "Euclidean provider": (EuclideanDistances, {}),
    "squared provider": (lambda x: EuclideanDistances(x, squared=True), {}),
    "matrix provider": (lambda x: PrecomputedDistances(cdist(x, x)), {}),
    "factors": (lambda x: FactoredDistances(x / 9, np.ones(x.shape[1])), {}),
    "own provider": (lambda x: Own(cdist(x, x) / 9), {}),
}
PROBLEMS: dict[str, dict[str, Any]] = {
    "auto": {},
    "sharp": {"epsilon": 0},
    "entropic": {"epsilon": 1e-2},
    "semi-relaxed": {"epsilon": 1e-2, "marginals": SemiRelaxed(0.3)},
    "sharp semi-relaxed": {"epsilon": 0, "marginals": SemiRelaxed(0.0)},
    "unbalanced": {"epsilon": 1e-2, "marginals": Unbalanced(0.3, 0.5)},
    "partial": {"epsilon": 1e-2, "marginals": Partial(0.5)},
    "sharp partial": {"epsilon": 0, "marginals": Partial(0.5)},
    "streaming": {"epsilon": 1e-2, "distances": "landmark", "options": GWOptions(strategy="streaming")},
    "sharp streaming": {"epsilon": 0, "distances": "landmark", "options": GWOptions(strategy="streaming")},
    "low rank": {
        "epsilon": 1e-2,
        "distances": "landmark",
        "options": GWOptions(strategy="low-rank", low_rank=LowRankOptions(rank=3)),
    },
}
DAILY = [pytest.param(name, marks=pytest.mark.slow if name.startswith("sharp ") else ()) for name in PROBLEMS]


def same(one: GWResult, other: GWResult, columns: np.ndarray | None = None, tolerance: float = 1e-9) -> None:
    """A result without and with points of no mass; ``columns`` are the places of Y's points with mass."""
    T, U = (np.asarray(each.plan) for each in (one, other))
    columns = np.arange(len(Y)) if columns is None else columns
    assert U.shape[0] == N + MORE
    np.testing.assert_allclose(U[np.ix_(PLACE, columns)], T, rtol=0, atol=tolerance)
    assert not U[OTHERS].any()
    assert not np.delete(U, columns, axis=1).any()
    for name in ("value", "epsilon", "gain", "unit", "marginal_error", "chance", "distance_correlation"):
        assert getattr(other, name) == pytest.approx(getattr(one, name), abs=tolerance, nan_ok=True)
    assert (other.verdict, other.reasons) == (one.verdict, one.reasons)
    assert other.scales == pytest.approx(one.scales, rel=1e-9)
    assert other.certificate.lower_bound == pytest.approx(one.certificate.lower_bound, abs=tolerance)
    if one.known is not None and other.known is not None:
        D, E = (each.known[0].space.rows(torch.arange(at))[:, :at] for each, at in ((one, N), (other, N + MORE)))
        torch.testing.assert_close(E[PLACE][:, PLACE], D, rtol=1e-9, atol=1e-12)
    assert [basin.count for basin in other.basins] == [basin.count for basin in one.basins]
    for basin, known in zip(other.basins, one.basins, strict=True):
        np.testing.assert_array_equal(basin.matching[PLACE], columns[known.matching])
    matched, found = T.any(1), np.asarray(other.argmax())[PLACE]  # the first column is that of rows without any entry
    np.testing.assert_array_equal(found[matched], columns[np.asarray(one.argmax())[matched]])
    assert not found[~matched].any()
    assert not np.asarray(other.argmax())[OTHERS].any()


def both(make: Any = lambda x: x, cloud: str = "far", **given: Any) -> tuple[GWResult, GWResult]:
    arguments = {"distances": "euclidean", "random_state": 0} | given
    if arguments["distances"] is None:
        arguments["distances"] = "auto"
    one, other = (gw_align(make(x), Y, p=mass, **arguments) for x, mass in ((X, P), (CLOUDS[cloud], MASS)))
    return one, other


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize(
    "cloud", ["far", *(pytest.param(name, marks=pytest.mark.slow) for name in CLOUDS if name != "far")]
)
def test_points_without_mass_change_nothing_whatever_the_distances(name: str, cloud: str) -> None:
    make, given = SPACES[name]
    same(*both(make, cloud, distances=given.get("distances"), epsilon=1e-2))


@pytest.mark.parametrize("name", DAILY)
def test_points_without_mass_change_nothing_whatever_is_minimised(name: str) -> None:
    same(*both(**PROBLEMS[name]))


@pytest.mark.parametrize("name", DAILY)
def test_points_of_both_sides_without_mass_change_nothing(name: str) -> None:
    given = {"distances": "euclidean", "random_state": 0} | PROBLEMS[name]
    one = gw_align(X, Y, p=P, q=Q, **given)
    other = gw_align(CLOUDS["far"], Y_CLOUD, p=MASS, q=Y_MASS, **given)
    same(one, other, columns=Y_PLACE)


def test_points_without_mass_change_nothing_whichever_side_they_are_on() -> None:
    one = gw_align(X, Y, p=P, distances="euclidean", random_state=0)
    turned = gw_align(Y, X, q=P, distances="euclidean", random_state=0)
    other = gw_align(Y, CLOUDS["far"], q=MASS, distances="euclidean", random_state=0)
    assert other.value == turned.value == pytest.approx(one.value, rel=1e-9)
    np.testing.assert_allclose(np.asarray(turned.plan).T, one.plan, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(np.asarray(other.plan)[:, PLACE], turned.plan)
    assert not np.asarray(other.plan)[:, OTHERS].any()


def test_costs_rules_and_starts_of_points_without_mass_do_not_count() -> None:
    M, features = np.random.default_rng(0).random((N, len(Y))), np.random.default_rng(2).random((N + len(Y), 2))
    F, G = features[:N], features[N:]
    pairs, more = np.array([(0, 1), (3, 4)]), [(OTHERS[0], 2)]
    known, labels = np.concatenate((np.stack((PLACE[pairs[:, 0]], pairs[:, 1]), 1), more)), np.arange(N) % 2
    others = np.arange(len(Y)) % 2
    plan = np.outer(P, np.ones(len(Y)))
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"cost": M}, {"cost": padded(M, 99.0)}),
        ({"cost": torch.from_numpy(M), "alpha": 0.0}, {"cost": torch.from_numpy(padded(M, 99.0)), "alpha": 0.0}),
        ({"cost": (F, G)}, {"cost": (padded(F, 99.0), G)}),
        ({"init": pairs}, {"init": known}),
        ({"init": plan}, {"init": padded(plan, 1.0)}),
        ({"init": np.arange(N) % 5}, {"init": padded(np.arange(N) % 5, 9).astype(int)}),
        ({"supervision": Supervision(pairs=pairs)}, {"supervision": Supervision(pairs=known)}),
        (
            {"supervision": Supervision(labels=(labels, others), forbidden=[(5, 4)])},
            {"supervision": Supervision(
                labels=(padded(labels, 7).astype(int), others), forbidden=[(PLACE[5], 4), (OTHERS[1], 1)]
            )},
        ),
        (
            {"supervision": Supervision(mask=np.abs(labels[:, None] - others) + (M > 0.3))},
            {"supervision": Supervision(mask=padded(np.abs(labels[:, None] - others) + (M > 0.3), 0.0))},
        ),
    ]  # fmt: skip
    for one, other in cases:
        given = {"distances": "euclidean", "epsilon": 1e-2, "random_state": 0}
        same(gw_align(X, Y, p=P, **given, **one), gw_align(CLOUDS["far"], Y, p=MASS, **given, **other))


@pytest.mark.parametrize("mode", [Envelope(), Implicit()])
@pytest.mark.parametrize("make", [lambda x: x, EuclideanDistances, lambda x: PrecomputedDistances(torch.cdist(x, x))])
def test_gradients_of_the_other_points_are_the_same_and_those_without_mass_have_none(mode: Any, make: Any) -> None:
    def gradients(points: np.ndarray, mass: np.ndarray) -> tuple[torch.Tensor, ...]:
        x, p = (torch.tensor(array, requires_grad=True) for array in (points, mass))
        kind = {"distances": "euclidean"} if make(x) is x else {}
        loss = gw_loss(make(x), Y, p=p, epsilon=1e-2, random_state=0, gradient_mode=mode, **kind)
        return loss.detach(), *torch.autograd.grad(loss, (x, p))

    (value, x, p), (found, x_all, p_all) = gradients(X, P), gradients(CLOUDS["far"], MASS)
    assert float(found) == pytest.approx(float(value), rel=1e-9)
    torch.testing.assert_close(x_all[PLACE], x, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(p_all[PLACE], p, rtol=1e-7, atol=1e-9)
    assert not x_all[OTHERS].any()
    assert not p_all[OTHERS].any()


def test_plans_and_products_that_carry_gradients_have_all_points() -> None:
    given = {"distances": "euclidean", "epsilon": 1e-2, "random_state": 0, "gradient_mode": Implicit()}
    x, x_all = (torch.tensor(points, requires_grad=True) for points in (X, CLOUDS["far"]))
    one, other = gw_align(x, Y, p=P, **given), gw_align(x_all, Y, p=MASS, **given)
    same(replace(one, differentiated=None), replace(other, differentiated=None))
    V = torch.from_numpy(Y)
    (found,) = torch.autograd.grad(other.pull(V)[PLACE].square().sum() + other.plan.square().sum(), x_all)
    (expected,) = torch.autograd.grad(one.pull(V).square().sum() + one.plan.square().sum(), x)
    torch.testing.assert_close(found[PLACE], expected, rtol=1e-7, atol=1e-9)
    assert bool(torch.isnan(other.pull(V)[OTHERS]).all())


def test_heat_distances_have_the_scale_of_points_with_mass() -> None:
    space = HeatDistances(CLOUDS["near"])
    result = gw_align(space, Y, p=MASS, random_state=0)
    D = space.rows(torch.arange(N + MORE))[PLACE][:, PLACE].numpy()
    expected = gw_align(D, Y, p=P, random_state=0, distances=("precomputed", "auto"))
    assert result.scales[0] == pytest.approx(D.max() * space.scale)
    assert result.value == pytest.approx(expected.value, rel=1e-6)
    assert result.providers[0] == "HeatDistances"


@dataclass(frozen=True)
class Solved:
    one: GWResult
    other: GWResult


@pytest.fixture(scope="module", params=["euclidean", "landmark", "streaming"])
def solved(request: pytest.FixtureRequest) -> Solved:
    streams = {"distances": "landmark", "options": GWOptions(strategy="streaming")}
    given = streams if request.param == "streaming" else {"distances": request.param}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Solved(*both(epsilon=1e-2, **given))


def test_what_is_read_of_a_result_has_all_points(solved: Solved, tmp_path: Path) -> None:
    one, other = solved.one, solved.other
    np.testing.assert_allclose(other.push(CLOUDS["far"]), one.push(X), atol=1e-9)
    np.testing.assert_allclose(other.pull(Y)[PLACE], one.pull(Y), atol=1e-9)
    assert np.isnan(other.pull(Y)[OTHERS]).all()
    np.testing.assert_array_equal(other.top_k(3)[1][PLACE], one.top_k(3)[1])
    assert abs(other.sparsify(0.9)[PLACE] - one.sparsify(0.9)).max() < 1e-9
    assert np.isneginf(np.asarray(other.potentials[0])[OTHERS]).all()
    assert np.isin(other.sample(50, random_state=0)[0], PLACE).all()
    np.testing.assert_allclose(other.confidence().entropy[PLACE], one.confidence().entropy, atol=1e-9)
    other.save(tmp_path / "result.npz")
    np.testing.assert_array_equal(GWResult.load(tmp_path / "result.npz").plan, other.plan)


def test_new_points_are_mapped_alike(solved: Solved) -> None:
    new = X[:3] + 0.01
    np.testing.assert_allclose(solved.other.transform(new).plan, solved.one.transform(new).plan, atol=1e-9)
    found = np.asarray(solved.other.transform(Y[:3], side="target").plan)
    np.testing.assert_allclose(found[PLACE], solved.one.transform(Y[:3], side="target").plan, atol=1e-9)
    assert not found[OTHERS].any()


def test_the_curvature_is_the_same(solved: Solved) -> None:
    one, other = curvature(solved.one, k=1), curvature(solved.other, k=1)
    np.testing.assert_allclose(other.smallest, one.smallest, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(other.modes[0].moved[PLACE], one.modes[0].moved, rtol=1e-4, atol=1e-6)
    assert not other.modes[0].moved[OTHERS].any()


def test_other_functions_see_no_points_without_mass(tmp_path: Path) -> None:
    given: dict[str, Any] = {"distances": "euclidean", "random_state": 0}
    small, large = {"X": X, "p": P}, {"X": CLOUDS["far"], "p": MASS}
    one, other = (epsilon_path(Y=Y, n_points=2, **given, **side) for side in (small, large))
    assert other.values == pytest.approx(one.values, rel=1e-9)
    assert other.reason == one.reason
    bounds = [
        gw_certify(EuclideanDistances(side["X"], squared=True), EuclideanDistances(Y), p=side["p"], random_state=0)
        for side in (small, large)
    ]
    assert bounds[1].certificate.lower_bound == pytest.approx(bounds[0].certificate.lower_bound, abs=1e-9)
    kept = gw_align(Y=Y, **given, **large, checkpoint=tmp_path / "kept")
    np.testing.assert_array_equal(resume(tmp_path / "kept").plan, kept.plan)
    fits = [GromovWasserstein(**given).fit(side["X"], Y, p=side["p"]).transform(side["X"]) for side in (small, large)]
    np.testing.assert_allclose(fits[1][PLACE], fits[0], atol=1e-9)


def test_ranks_read_a_file_whole_where_some_of_its_points_have_no_mass(tmp_path: Path) -> None:
    np.save(tmp_path / "points.npy", CLOUDS["far"])
    space = np.load(tmp_path / "points.npy", mmap_mode="r")
    assert is_in_file(load_spaces({"X": space, "Y": Y, "p": None, "q": None})["X"])
    found = load_spaces({"X": space, "Y": Y, "p": MASS, "q": None})["X"]
    assert not is_in_file(found)
    np.testing.assert_array_equal(found, space)


@pytest.mark.parametrize("kind", ["points", "graph"])
def test_many_spaces_have_no_points_without_mass(kind: str) -> None:
    make = (lambda x: csr_matrix(edges(x))) if kind == "graph" else lambda x: x
    spaces = [[make(x), Y, X[:9]] for x in (X, CLOUDS["far"])]
    masses = [[mass, None, None] for mass in (P, MASS)]
    one, other = (
        gw_pairwise(all_of, masses=mass, keep="matchings", random_state=0)
        for all_of, mass in zip(spaces, masses, strict=True)
    )
    np.testing.assert_array_equal(other.condensed, one.condensed)
    np.testing.assert_array_equal(other.matching(0, 1)[PLACE], one.matching(0, 1))
    assert (other.matching(0, 1)[OTHERS] == -1).all()
    near = [gw_neighbours(all_of, 2, masses=mass, random_state=0) for all_of, mass in zip(spaces, masses, strict=True)]
    np.testing.assert_array_equal(near[1].distances, near[0].distances)


def test_masses_of_no_point_that_is_named_are_refused() -> None:
    with pytest.raises(ValueError, match="init must have a pair of points that both have mass"):
        gw_align(CLOUDS["far"], Y, p=MASS, init=[(int(OTHERS[0]), 1)], distances="euclidean")
    plan = np.zeros((N + MORE, len(Y)))
    plan[OTHERS] = 1.0
    with pytest.raises(ValueError, match="init must have an entry for a pair of points that both have mass"):
        gw_align(CLOUDS["far"], Y, p=MASS, init=plan, distances="euclidean")
    with pytest.raises(ValueError, match="k must be smaller than the number of points of X, got k = 15 and N = 14"):
        gw_align(
            CLOUDS["far"], Y, p=MASS, distances=("landmark", "euclidean"),
            options=GWOptions(spaces=torchgw.SpaceOptions(k=15)),
        )  # fmt: skip
    with pytest.raises(ValueError, match=r"shape \(N, K\) = \(18, 12\)"):
        gw_align(CLOUDS["far"], Y, p=MASS, cost=np.zeros((N, len(Y))), distances="euclidean")
    some, mask = np.ones((2, 12)), np.ones((12, 12))
    some[:, 0] = mask[0] = mask[9, 1:] = 0.0  # which leaves point 9 of X point 0 of Y alone
    with pytest.raises(ValueError, match="an empty row 9 of X"):
        gw_align(X[:12], Y, p=some[0], q=some[1], supervision=Supervision(mask=mask), distances="euclidean")


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("far", [1e3, 1e9, 1e15])
def test_a_point_without_mass_rounds_no_other_however_far_it_is(far: float, squared: bool) -> None:
    mass = np.append(P, 0.0)
    spaces = [
        EuclideanDistances(points, squared=squared) for points in (np.vstack((X, np.full((1, X.shape[1]), far))), X)
    ]
    one, other = (
        gw_align(x, spaces[1], p=p, q=P, epsilon=0, random_state=0) for x, p in zip(spaces, (mass, P), strict=True)
    )
    assert one.value == other.value == pytest.approx(0.0, abs=1e-12)
    assert one.scales == other.scales
    np.testing.assert_array_equal(np.asarray(one.plan)[:-1], other.plan)


def test_landmark_distances_of_points_with_mass_stay_landmark_distances() -> None:
    points = X.copy()
    points[5] = 1e4
    D = cdist(points, points)
    graphs = csr_matrix(
        np.pad(D, (0, 1)) + np.pad([[1.0]], ((3, N - 3), (N, 0))) + np.pad([[1.0]], ((N, 0), (3, N - 3)))
    )
    whole, alone = LandmarkDistances(graphs, N + 1), LandmarkDistances(csr_matrix(D), N)
    part = subspace(whole, torch.arange(N))
    assert isinstance(part, LandmarkDistances)
    assert part.scale == pytest.approx(alone.scale)
    torch.testing.assert_close(part.rows(torch.arange(N)), alone.rows(torch.arange(N)), rtol=0, atol=1e-2)
    assert set(part.landmarks.tolist()) == set(range(N))
    mass = [torch.from_numpy(P)]
    (said,) = explain_unresolved_points(["X"], [part], mass, *sample_differences([part], mass))
    assert said.startswith("landmark distances, which are right to 0.001")
    factors, again = part.factors(), part.factors()
    assert factors is not None
    assert again is not None
    assert factors[0] is again[0]
    assert subspace(part, torch.arange(N)) is part


def test_gradients_reach_factors_of_points_with_mass_alone() -> None:
    def gradient(points: np.ndarray, mass: np.ndarray) -> torch.Tensor:
        F = torch.tensor(points / 9, requires_grad=True)
        space = FactoredDistances(F, np.ones(F.shape[1]))
        loss = gw_loss(space, Y, p=mass, epsilon=1e-2, random_state=0)
        return torch.autograd.grad(loss, F)[0]

    found = gradient(CLOUDS["near"], MASS)
    torch.testing.assert_close(found[PLACE], gradient(X, P), rtol=1e-7, atol=1e-9)
    assert not found[OTHERS].any()


@pytest.mark.parametrize("seed", [3, 4])
def test_one_point_with_mass_has_no_distances_however_they_are_approximated(seed: int) -> None:
    points = np.random.default_rng(seed).normal(size=(55, 3)).cumsum(0)
    steps = np.linalg.norm(np.diff(points, axis=0), axis=1)
    path = diags_array([steps, steps], offsets=[1, -1]).tocsr()
    for place in (0, 7, 54):
        result = gw_align(LandmarkDistances(path, 5), Y, p=np.eye(55)[place], distances=("auto", "euclidean"))
        one = gw_align(X[:1], Y, distances="euclidean")
        assert result.value == pytest.approx(one.value, rel=1e-9)

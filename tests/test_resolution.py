"""Points that rounding does not tell apart are named, in every kind of space; where all are told apart, nothing is."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist

from tests.problems import quietly
from torchgw import (
    EuclideanDistances,
    GWOptions,
    LandmarkDistances,
    PrecisionWarning,
    StoppingOptions,
    datasets,
    gw_align,
    gw_loss,
    gw_pairwise,
)
from torchgw.estimator import GromovWasserstein
from torchgw.spaces import resolution
from torchgw.spaces.graph import neighbour_graph
from torchgw.spaces.resolution import RESOLUTION, measure_resolution
from torchgw.types import DistanceProvider

N, FAR = 40, 17
CUT_SHORT = GWOptions(coarse=None, stopping=StoppingOptions(max_iter=1))


def stretched(far: float, n: int = N, at: int = FAR) -> np.ndarray:
    """Points of a normal cloud, of which one lies ``far`` away."""
    X = np.random.default_rng(0).normal(size=(n, 2))
    X[at] = far
    return X


def copies(far: float, n: int = N) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points, the same turned and in another order, and the place of each there."""
    X, order = stretched(far, n), np.random.default_rng(1).permutation(n)
    turn = np.array([[np.cos(1.1), -np.sin(1.1)], [np.sin(1.1), np.cos(1.1)]])
    return X, (X @ turn.T)[order], np.argsort(order)


def told(call: Callable[[], object]) -> list[str]:
    """The warnings of precision that a call gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(each.message) for each in caught if issubclass(each.category, PrecisionWarning)]


def explained(space: DistanceProvider, mass: torch.Tensor) -> str:
    """What is said of one space."""
    return resolution.explain_unresolved_points(
        ["X"], [space], [mass], *resolution.sample_differences([space], [mass])
    )[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("exponent", [3, 5, 6, 7, 8, 9, 10, 12])
def test_where_points_are_matched_wrong_the_point_that_stretches_the_space_is_named(
    exponent: int, dtype: type[np.floating[Any]]
) -> None:
    X, Y, right = copies(10.0**exponent, 100)
    found = []

    def solve() -> None:
        given = X.astype(dtype), Y.astype(dtype)
        found.append(gw_align(*given, distances="euclidean", epsilon=0, random_state=0).argmax())

    texts = told(solve)
    share = np.mean(np.delete(np.asarray(found[0]) == right, FAR))
    if share < 0.95 or exponent >= 7:
        assert len(texts) == 1
        assert "most points of X apart" in texts[0]
        assert f"point {FAR} is farthest" in texts[0]
        assert f"point {right[FAR]} is farthest" in texts[0]
    else:
        assert not texts
        assert share == 1


SPACES: dict[str, tuple[Callable[[np.ndarray], Any], dict[str, Any]]] = {
    "points": (lambda X: X, {"distances": "euclidean"}),
    "tensors": (lambda X: torch.from_numpy(X).requires_grad_(), {"distances": "euclidean"}),
    "paths": (lambda X: X, {"distances": "dijkstra"}),
    "matrix": (lambda X: cdist(X, X), {}),
    "entries": (lambda X: cdist(X, X), {"distances": "adjacency"}),
    "lengths of edges": (lambda X: csr_array(np.triu(cdist(X, X)) + np.tril(cdist(X, X))), {}),
    "provider": (EuclideanDistances, {}),
    "features": (lambda X: None, {"alpha": 0.0}),
}


@pytest.mark.parametrize("entry", [gw_align, gw_loss])
@pytest.mark.parametrize("kind", SPACES)
def test_every_kind_of_space_is_looked_at(kind: str, entry: Callable[..., Any]) -> None:
    make, keywords = SPACES[kind]
    for far, count in ((1e4, 0), (1e9, 1)):
        X, Y, _ = copies(far)
        given: dict[str, Any] = {"epsilon": 1.0, "options": CUT_SHORT, **keywords}
        given |= {"cost": (X, Y)} if kind == "features" else {}
        texts = told(lambda given=given, X=X, Y=Y: entry(make(X), make(Y), **given))  # type: ignore[misc]
        assert len(texts) == count, (far, texts)
        assert not count or f"{FAR} " in texts[0]


def test_all_pairs_and_the_estimator_say_so_too() -> None:
    for far, count in ((1e4, 0), (1e9, 1)):
        X, Y, _ = copies(far)
        texts = told(lambda X=X, Y=Y: gw_pairwise([X, X[:9], Y], distances="euclidean", random_state=0))  # type: ignore[misc]
        assert len(texts) == count
        assert not count or ("most points of spaces[0] apart" in texts[0] and "1 other spaces" in texts[0])
        model = GromovWasserstein(distances="euclidean", epsilon=1.0, options=CUT_SHORT)
        assert len(told(lambda X=X, Y=Y, model=model: model.fit(X, Y))) == count  # type: ignore[misc]


def test_a_far_point_without_mass_stretches_nothing() -> None:
    mass = torch.full((N,), 1 / N, dtype=torch.float64)
    space = EuclideanDistances(stretched(1e9))
    assert "point 17" in explained(space, mass)
    mass[FAR] = 0.0
    assert not explained(space, mass)


def test_points_are_named_by_their_number_among_all_that_were_given() -> None:
    X, mass = stretched(1e9), np.ones(N)
    mass[[0, FAR - 1, FAR + 1]] = 0.0
    given: dict[str, Any] = {"p": mass, "q": mass, "epsilon": 1.0, "options": CUT_SHORT}
    texts = told(lambda: gw_align(X, X, distances="euclidean", **given))
    texts += told(lambda: gw_align(None, None, cost=(X, X), alpha=0.0, **given))
    texts += told(lambda: gw_pairwise([X, X], masses=[mass, mass], distances="euclidean", random_state=0))
    assert len(texts) == 3
    assert all(f"point {FAR} is" in text or f"point {FAR} are" in text for text in texts)


def test_each_of_several_spaces_is_explained() -> None:
    spaces, mass = [EuclideanDistances(stretched(far)) for far in (1.0, 1e9, 1.0)], torch.full((N,), 1 / N)
    sampled = resolution.sample_differences(spaces, [mass] * 3)
    texts = resolution.explain_unresolved_points("abc", spaces, [mass] * 3, *sampled)
    assert [bool(text) for text in texts] == [False, True, False]


def test_a_distance_matrix_has_no_coordinates() -> None:
    X = np.random.default_rng(0).normal(size=(100, 2)) / 3
    X[::2] += 300
    D = cdist(X, X).astype(np.float16)
    texts = told(lambda: gw_align(D, D, epsilon=1.0, options=CUT_SHORT))
    texts += told(lambda: gw_pairwise([D, D], random_state=0))
    assert not any("coordinates" in text for text in texts)


@pytest.mark.parametrize("offset", [1e3, 1e5, 1e6, 1e7])
def test_coordinates_that_are_too_coarse_for_their_dtype_are_named(offset: float) -> None:
    X, Y, _ = copies(1.0)

    def solve(dtype: str) -> None:
        given = [(side + offset).astype(dtype) for side in (X, Y)]
        gw_align(*given, distances="euclidean", epsilon=1.0, options=CUT_SHORT)

    assert not told(lambda: solve("float64"))
    texts = told(lambda: solve("float32"))
    assert len(texts) == (offset >= 1e6)
    assert not texts or "coordinates of X reach 1e+0" in texts[0]


@pytest.mark.parametrize(
    "solve",
    [
        lambda X, Y: gw_align(X.astype(np.float64), Y, distances="euclidean", epsilon=1.0, options=CUT_SHORT),
        lambda X, Y: gw_align(EuclideanDistances(X), Y, epsilon=1.0, options=CUT_SHORT),
        lambda X, Y: GromovWasserstein(distances="euclidean", epsilon=1.0, options=CUT_SHORT).fit(X, Y),
        lambda X, Y: gw_pairwise([X.astype(np.float64), Y], distances="euclidean", random_state=0),
    ],
    ids=["float64", "provider", "estimator", "pairs"],
)
def test_coordinates_stay_too_coarse_whatever_makes_float64_of_them(solve: Callable[[Any, Any], object]) -> None:
    X, Y, _ = copies(1.0)
    assert not told(lambda: solve(X + 1e6, Y))
    (text,) = told(lambda: solve((X + 1e6).astype(np.float32), Y))
    assert "coordinates of" in text


def test_landmarks_are_not_taken_for_what_they_do_not_tell_apart() -> None:
    X, Y, right = copies(1e4, 510)  # of so many, landmarks are looked at first
    found = quietly(gw_align, X, Y, random_state=0)
    assert np.mean(np.delete(np.asarray(found.argmax()) == right, FAR)) == 1
    graph = neighbour_graph(X)
    assert "take distances='precomputed'" in explained(LandmarkDistances(graph), torch.full((510,), 1 / 510))


def ordinary() -> dict[str, DistanceProvider]:
    rng = np.random.default_rng(0)
    points = {
        "a spiral": datasets.make_spiral(800)[0],
        "a line": np.linspace(0, 1, 20_000)[:, None],
        "heavy tails": rng.standard_cauchy((2000, 2)),
        "many dimensions": rng.normal(size=(500, 100)),
        "duplicates": np.repeat(rng.normal(size=(20, 2)), 40, 0),
        "dense clusters": np.repeat(rng.normal(size=(5, 2)), 100, 0) + 1e-4 * rng.normal(size=(500, 2)),
        "two points": rng.normal(size=(2, 3)),
        "one place": np.ones((5, 2)),
        "labels": np.eye(4)[rng.integers(0, 4, 200)],
    }
    found: dict[str, DistanceProvider] = {name: EuclideanDistances(X) for name, X in points.items()}
    squares = {f"{name}, squared": EuclideanDistances(X, squared=True) for name, X in points.items()}
    paths = {f"{name}, paths": LandmarkDistances(neighbour_graph(points[name])) for name in ("a spiral",)}
    return found | squares | paths


@pytest.mark.parametrize("space", ordinary().values(), ids=ordinary().keys())
def test_ordinary_spaces_are_resolved(space: DistanceProvider) -> None:
    assert not explained(space, torch.full((space.size,), 1 / space.size, dtype=torch.float64))


def test_the_resolution_needed_does_not_depend_on_units() -> None:
    rows, weight = torch.rand(9, 30, dtype=torch.float64), torch.rand(30, dtype=torch.float64)
    expected = float(measure_resolution(rows, weight))
    assert float(measure_resolution(1e3 * rows, 1e-5 * weight)) == pytest.approx(expected)
    differences = (rows[:, None] - rows[None]).square() @ weight
    least = (differences + torch.eye(9, dtype=torch.float64) * 1e9).amin(1)
    assert expected == pytest.approx(float(least.median() / (rows.square() @ weight).median()))
    assert 1e-13 < RESOLUTION < 1e-11

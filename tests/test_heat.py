"""Distances from the heat kernel, against shortest paths, and their gradients."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import block_diag, csr_matrix
from scipy.sparse.csgraph import dijkstra
from scipy.special import ive
from torch import Tensor

import torchgw
from tests.problems import all_rows
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.spaces import heat
from torchgw.spaces.graph import neighbour_graph
from torchgw.spaces.heat import (
    HeatDistances,
    build_edge_topology,
    dense_rows,
    heat_rows,
    log_diagonal,
    log_kernel,
    steps_for,
)
from torchgw.spaces.landmark import LandmarkDistances
from torchgw.spaces.precomputed import PrecomputedDistances
from torchgw.types import Array, DistanceProvider, GraphWarning, PrecisionWarning

ROLL = make_swiss_roll(300)[0]
GRAPH = neighbour_graph(ROLL)
CPU, DOUBLE = torch.device("cpu"), torch.float64


@pytest.fixture(scope="module")
def roll() -> HeatDistances:
    return HeatDistances(ROLL)


@pytest.fixture(scope="module")
def factored() -> HeatDistances:
    """The roll of 1200 points with factors from 80 landmarks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heat, "EXACT_SIZE", 1000)
        return HeatDistances(make_swiss_roll(1200)[0], n_landmarks=80)


def relative(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).norm() / truth.norm())


def test_it_is_a_provider_of_symmetric_scaled_distances(roll: HeatDistances) -> None:
    assert isinstance(roll, DistanceProvider)
    assert roll.size == 300
    assert roll.stored
    D = all_rows(roll)
    assert float(D.diagonal().abs().max()) == 0
    assert float((D - D.T).abs().max()) < 1e-12
    assert float(D.max()) == pytest.approx(1)
    assert bool((D + torch.eye(300) > 0).all())
    assert roll.factors() is None
    single = roll.to(CPU, torch.float32)
    assert single.rows(torch.tensor([3, 3])).dtype == torch.float32
    assert PrecomputedDistances.of(roll, CPU).scale == roll.scale == single.scale


@pytest.mark.parametrize(
    ("make", "n"), [(make_spiral, 200), (make_spiral, 900), (make_swiss_roll, 400), (make_swiss_roll, 1000)]
)
def test_distances_are_near_shortest_paths(make: object, n: int) -> None:
    """Within 7 % overall, and 4 % in the mean beyond a third of the diameter; close pairs are blurred."""
    points = make(n)[0]  # type: ignore[operator]
    space, paths = HeatDistances(points), torch.from_numpy(dijkstra(neighbour_graph(points)))
    found = all_rows(space) * space.scale
    assert relative(found, paths) < 0.07
    far = paths > paths.max() / 3
    ratio = found[far] / paths[far]
    assert abs(float(ratio.mean()) - 1) < 0.04
    assert float(ratio.std()) < 0.05
    assert space.reach > 0.99 * float(paths.max())


@pytest.mark.parametrize("densest", [1.0, 10.0])
def test_density_does_not_distort(densest: float) -> None:
    """A line and a square whose density grows across them: lengths, and the dimension that makes them right."""
    generator = np.random.default_rng(0)
    uniform, slope = generator.uniform(size=(2, 700)), (densest - 1) / 2
    x = uniform[0] if densest == 1 else (np.sqrt(1 + 4 * slope * (1 + slope) * uniform[0]) - 1) / (2 * slope)
    line = np.cumsum(np.linspace(1.0, densest, 300))[:, None]
    for points, k, dimension, spread in ((line, 4, 1, 0.04), (np.stack((x, uniform[1]), 1), None, 2, 0.07)):
        space = HeatDistances(points, k=k)
        truth = torch.cdist(torch.from_numpy(points), torch.from_numpy(points))
        far = truth > truth.max() / 4
        ratio = (all_rows(space) * space.scale)[far] / truth[far]
        assert float(ratio.std() / ratio.mean()) < spread
        assert space.dimension == pytest.approx(dimension, rel=0.1)


def test_lengths_scale_and_order_does_not_matter(roll: HeatDistances) -> None:
    order = np.random.default_rng(0).permutation(300)
    graph = GRAPH[order][:, order] * 7.0
    graph.sort_indices()
    other = HeatDistances(graph)
    assert other.scale == pytest.approx(7 * roll.scale, rel=0.02)
    assert other.time == pytest.approx(49 * roll.time, rel=0.05)
    fixed = HeatDistances(GRAPH * 7.0, time=49 * roll.time)
    torch.testing.assert_close(all_rows(fixed), all_rows(roll), atol=1e-7, rtol=0)


def test_expanded_rows_equal_the_dense_kernel() -> None:
    edges = build_edge_topology(GRAPH)
    roots = edges.inverse_roots(torch.from_numpy(GRAPH.data**2))
    index, time = torch.tensor([0, 20, 299]), 0.8
    dense = dense_rows(edges, roots, index, time)
    torch.testing.assert_close(heat_rows(edges, roots, index, time), dense, atol=1e-14, rtol=0)
    assert float(dense.min()) < 1e-8
    few = heat_rows(edges, roots, index, time, 20)
    assert float((few - dense).abs().max()) > 1e-14


def test_the_number_of_steps_grows_with_the_root_of_time() -> None:
    counts = [steps_for(10.0, time) for time in (1.0, 100.0, 10000.0)]
    assert counts == sorted(counts)
    assert counts[2] / counts[1] == pytest.approx(10, rel=0.15)
    for x in (0.0, 1e-8, 0.5, 30.0, 4000.0, 1e6):  # twice as many coefficients have no larger ones
        n = steps_for(2.0, x)
        tail = ive(np.arange(n, 2 * n + 60), x)
        assert tail.max() < 1e-15
        assert n == 1 or ive(n - 1, x) >= 1e-15


def test_the_diagonal_of_the_kernel_follows_from_landmarks() -> None:
    edges = build_edge_topology(GRAPH)
    roots = edges.inverse_roots(torch.from_numpy(GRAPH.data**2))
    space = HeatDistances(GRAPH)
    all_points, some = torch.arange(300), torch.arange(0, 300, 5)
    K = dense_rows(edges, roots, all_points, space.time * space.dimension)
    truth = log_kernel(K, roots, all_points).diagonal()
    found, near = log_diagonal(log_kernel(K[some], roots, some), some)
    assert near.double().mean() > 0.95
    assert float((found - truth)[near].abs().mean()) < 0.02
    torch.testing.assert_close(found[some], truth[some], atol=1e-6, rtol=0)


def test_factors_are_those_of_the_stored_distances(factored: HeatDistances) -> None:
    found = factored.factors()
    assert found is not None
    F, signs = found
    assert F.shape[0] == factored.size == 1200
    assert factored.landmarks is not None
    assert len(factored.landmarks) == 80
    torch.testing.assert_close((F[:5] * signs) @ F.T, factored.rows(torch.arange(5)))
    exact = HeatDistances(make_swiss_roll(1200)[0], time=factored.time)
    assert relative(all_rows(factored) * factored.scale, all_rows(exact) * exact.scale) < 0.01
    moved = factored.to(CPU, torch.float32)
    assert moved.factors()[0].dtype == torch.float32  # type: ignore[index]
    torch.testing.assert_close(
        moved.rows(torch.tensor([7])).double(), factored.rows(torch.tensor([7])), atol=1e-5, rtol=0
    )


def test_pairs_beyond_the_reach_are_set_to_it_and_said(roll: HeatDistances) -> None:
    with pytest.warns(PrecisionWarning, match=r"points: .* of the distances exceed the reach .* raise time"):
        short = HeatDistances(ROLL, time=roll.time / 10)
    assert short.reach == pytest.approx(roll.reach / 10**0.5)
    found = all_rows(short) * short.scale
    assert float(found.max()) == pytest.approx(short.reach)
    paths = torch.from_numpy(dijkstra(GRAPH))
    assert bool((found[paths > 2 * short.reach] == found.max()).all())
    assert short.traced_rows(torch.from_numpy(ROLL), torch.tensor([0])).max().item() == pytest.approx(short.reach)


def test_too_few_steps_are_said(roll: HeatDistances) -> None:
    with pytest.warns(PrecisionWarning, match=f"n_steps = 12 is below the {roll.n_steps} that time"):
        HeatDistances(ROLL, n_steps=12)


def test_parts_without_a_path() -> None:
    graph = csr_matrix(block_diag((GRAPH, GRAPH)))
    with pytest.warns(GraphWarning, match="graph is not connected"):
        space = HeatDistances(graph)
    D = all_rows(space)
    torch.testing.assert_close(D[:300, 300:], torch.full((300, 300), 1.5, dtype=DOUBLE), rtol=1e-15, atol=0)
    assert float(D[D < 1.4].max()) == 1
    torch.testing.assert_close(D[:300, :300], D[300:, 300:], atol=1e-6, rtol=0)
    points = torch.from_numpy(np.concatenate((ROLL, ROLL + 9))).requires_grad_()
    rows = space.traced_rows(points, torch.tensor([0, 300]))
    torch.testing.assert_close(rows[0, 300:], torch.full((300,), 1.5 * space.scale, dtype=DOUBLE))
    (gradient,) = torch.autograd.grad(rows[0].sum(), points)
    assert float(gradient[:300].abs().max()) > 0.1
    assert float(gradient[300:].abs().max()) < 1e-200


def test_duplicated_points_and_two_points() -> None:
    twice = np.repeat(ROLL[:100], 2, axis=0)
    space = HeatDistances(twice)
    assert float(space.rows(torch.tensor([0]))[0, 1]) < 0.05
    two = HeatDistances(np.array([[0.0], [3.0]]), k=1)
    torch.testing.assert_close(all_rows(two), 1 - torch.eye(2, dtype=DOUBLE))
    assert two.scale > 1


def test_traced_rows_are_the_rows(roll: HeatDistances) -> None:
    index = torch.tensor([5, 0, 299, 5])
    points = torch.from_numpy(ROLL)
    for sources in (index, torch.arange(300)):
        found = roll.traced_rows(points, sources)
        torch.testing.assert_close(found, roll.rows(sources) * roll.scale, atol=2e-7, rtol=1e-6)
    single = roll.traced_rows(points.float(), index)
    assert single.dtype == DOUBLE
    assert relative(single, roll.rows(index) * roll.scale) < 1e-4


def test_traced_rows_of_a_factored_space(factored: HeatDistances) -> None:
    """Beyond the error of the factors."""
    assert factored.landmarks is not None
    points = torch.from_numpy(make_swiss_roll(1200)[0])
    some = factored.landmarks[:3]
    with torch.no_grad():
        assert relative(factored.traced_rows(points, some), factored.rows(some) * factored.scale) < 0.01


def differences(cloud: Array, sources: Tensor, step: float) -> tuple[float, float]:
    """Errors, relative to central differences, of the gradients in one direction of the points and in the time."""
    space, generator = HeatDistances(cloud, n_landmarks=30), torch.Generator().manual_seed(2)
    points = torch.from_numpy(cloud).requires_grad_()
    time = torch.tensor(space.time, dtype=DOUBLE, requires_grad=True)
    weight = torch.rand(len(sources), len(cloud), dtype=DOUBLE, generator=generator)
    direction = torch.randn(cloud.shape, dtype=DOUBLE, generator=generator)

    def value(x: Tensor, t: Tensor) -> Tensor:
        return (space.traced_rows(x, sources, t) * weight).sum()

    by_points, by_time = torch.autograd.grad(value(points, time), (points, time))
    with torch.no_grad():
        moved = value(points + step * direction, time) - value(points - step * direction, time)
        later = value(points, time * (1 + step)) - value(points, time * (1 - step))
    slope, rate = float(moved) / (2 * step), float(later) / (2 * step * space.time)
    found = float((by_points * direction).sum())
    return abs(found / slope - 1), abs(float(by_time) / rate - 1)


@pytest.mark.parametrize(("n", "spacing", "exact"), [(120, 1, 2000), (300, 6, 2000), (120, 1, 100), (300, 6, 100)])
def test_gradients_equal_central_differences(monkeypatch: pytest.MonkeyPatch, n: int, spacing: int, exact: int) -> None:
    """Of the eigendecomposition, and of the expansion."""
    monkeypatch.setattr(heat, "EXACT_SIZE", exact)
    assert max(differences(make_swiss_roll(n)[0], torch.arange(0, n, spacing), 1e-4)) < 1e-5


def test_chunks_change_nothing(factored: HeatDistances, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = torch.arange(0, 1200, 120)
    points = torch.from_numpy(make_swiss_roll(1200)[0]).requires_grad_()
    whole = factored.traced_rows(points, sources)
    (expected,) = torch.autograd.grad(whole.sum(), points)
    monkeypatch.setattr(heat, "BASIS_ENTRIES", 6 * 1200 * factored.n_steps)
    parts = factored.traced_rows(points, sources)
    (found,) = torch.autograd.grad(parts.sum(), points)
    torch.testing.assert_close(parts, whole, atol=1e-8, rtol=0)
    assert relative(found, expected) < 1e-6


def test_descent_on_a_distance_shortens_it(roll: HeatDistances) -> None:
    points = torch.from_numpy(ROLL).requires_grad_()
    before = roll.traced_rows(points, torch.tensor([0]))[0, 299]
    (gradient,) = torch.autograd.grad(before, points)
    after = roll.traced_rows(points.detach() - 1e-3 * gradient, torch.tensor([0]))[0, 299]
    assert float((before - after).detach()) == pytest.approx(1e-3 * float(gradient.square().sum()), rel=0.1)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"points_or_graph": ROLL[:, 0]}, ValueError, r"points must have shape \(N, D\)"),
        ({"points_or_graph": np.zeros((9, 2))}, ValueError, "points must have an edge longer than zero"),
        ({"points_or_graph": GRAPH, "k": 5}, ValueError, "k must be None where graph is given"),
        (
            {"points_or_graph": GRAPH - csr_matrix(np.triu(GRAPH.toarray()))},
            ValueError,
            "graph must be a symmetric graph",
        ),
        ({"points_or_graph": ROLL, "time": 0.0}, ValueError, "time must be a finite number > 0"),
        ({"points_or_graph": ROLL, "time": "long"}, TypeError, "time must be a number"),
        ({"points_or_graph": ROLL, "n_steps": 0}, ValueError, "n_steps must be >= 1"),
        ({"points_or_graph": ROLL, "n_landmarks": 1}, ValueError, "n_landmarks must be >= 2"),
    ],
)
def test_bad_spaces(arguments: dict[str, object], error: type[Exception], text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)
        with pytest.raises(error, match=text):
            HeatDistances(**arguments)  # type: ignore[arg-type]


def test_bad_traced_rows(roll: HeatDistances) -> None:
    points, index = torch.from_numpy(ROLL), torch.tensor([0])
    for arguments, error, text in (
        ((ROLL, index), TypeError, "points must be a Tensor"),
        ((points[:9], index), ValueError, r"points must be floating point \(N, D\) with N = 300, got shape \(9, 3\)"),
        ((points / 0, index), ValueError, "points must be finite"),
        ((points, [0]), TypeError, "sources must be a Tensor"),
        ((points, index.double()), ValueError, "sources must be indices"),
        ((points, index[:0]), ValueError, "sources must be indices"),
        ((points, index + 300), ValueError, r"sources must be indices in \[0, 300\), got some in \[300, 300\]"),
        ((points, index, -1.0), ValueError, "time must be a finite number > 0"),
        ((points, index, torch.ones(2)), ValueError, "time must be a number or a floating point tensor"),
    ):
        with pytest.raises(error, match=text):
            roll.traced_rows(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("n_landmarks", [None, 12])
def test_a_loss_between_heat_distances_has_the_gradient_of_finite_differences(
    monkeypatch: pytest.MonkeyPatch, n_landmarks: int | None
) -> None:
    """Of all pairs, and of factors from landmarks; graph, time and dimension are constants."""
    if n_landmarks is not None:
        monkeypatch.setattr("torchgw.spaces.heat.EXACT_SIZE", 10)
    points = torch.from_numpy(make_swiss_roll(60, random_state=0)[0])
    Y = torch.from_numpy(make_spiral(50, random_state=1)[0])
    space = HeatDistances(points.requires_grad_(), n_landmarks=n_landmarks or 100, n_steps=40)
    options = torchgw.GWOptions(spaces=torchgw.SpaceOptions(scale=(space.scale, 30.0)))

    def loss(of: HeatDistances, plan: torch.Tensor | None = None) -> torchgw.GWResult:
        mode = torchgw.Envelope(tol=1e-11)
        return torchgw.gw_align(of, Y, epsilon=2e-2, options=options, init=plan, gradient_mode=mode, random_state=0)

    found = loss(space, torch.eye(60, 50) + 0.05)
    (gradient,) = torch.autograd.grad(found.loss, points)
    along = gradient / gradient.norm()

    def moved(step: float) -> float:
        other = (points.detach() + step * along).requires_grad_()
        D = space.traced_rows(other, torch.arange(60) if n_landmarks is None else space.landmarks).detach()
        if n_landmarks is None:
            near: Any = torchgw.PrecomputedDistances(((D + D.T) / 2).fill_diagonal_(0.0).requires_grad_())
        else:
            near = LandmarkDistances.from_search(space.landmarks.numpy(), D.T.contiguous().numpy().copy())
        return float(loss(near, found.plan).loss.detach())

    h = 1e-3
    expected = (8 * (moved(h) - moved(-h)) - (moved(2 * h) - moved(-2 * h))) / (12 * h)
    assert float((gradient * along).sum()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("time", "n_steps"), [(None, None), (4.0, None), (20.0, None), (0.5, 150)])
def test_gradients_are_right_at_every_time_and_number_of_steps(time: float | None, n_steps: int | None) -> None:
    points = torch.from_numpy(make_swiss_roll(150, random_state=1)[0]).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)
        space = HeatDistances(points, time=time, n_steps=n_steps)
        weights = torch.rand(150, 150, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
        along = torch.randn(150, 3, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
        every = torch.arange(150)
        with torch.no_grad():  # a distance near zero is the root of a difference
            weights *= space.traced_rows(points, every) > space.time**0.5
        (gradient,) = torch.autograd.grad((space.traced_rows(points, every) * weights).sum(), points)

        def at(step: float) -> float:
            return float((space.traced_rows(points.detach() + step * along, every) * weights).sum())

        expected = (8 * (at(1e-4) - at(-1e-4)) - (at(2e-4) - at(-2e-4))) / 1.2e-3
    assert float((gradient * along).sum()) == pytest.approx(expected, rel=1e-4)

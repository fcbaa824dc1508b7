"""Scaled distances as differentiable expressions: values, gradients against central differences, and the scales."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse.csgraph import dijkstra
from torch import Tensor

from tests.problems import Own, all_rows, normal
from torchgw import (
    DijkstraDistances,
    EuclideanDistances,
    GWOptions,
    GWResult,
    LandmarkDistances,
    PrecomputedDistances,
    SpaceOptions,
    gw_align,
)
from torchgw.datasets import make_spiral
from torchgw.request.spaces import check_space
from torchgw.spaces import FactoredDistances, shortest_paths
from torchgw.spaces.graph import neighbour_graph
from torchgw.spaces.low_rank import differentiable_factors
from torchgw.spaces.prepare import InputSpace, make_providers
from torchgw.spaces.shortest_paths import edge_lengths, path_distances
from torchgw.spaces.traced import DifferentiableDistances, make_differentiable
from torchgw.types import AmbiguityWarning, GraphWarning

CPU = torch.device("cpu")
KINDS = ("euclidean", "squared", "matrix", "precomputed", "landmark", "dijkstra")
SCALES: tuple[Any, ...] = (None, "common", 2.7, (0.8, 3.0))
N, K = 30, 20


def cloud(n: int, seed: int = 0, size: float = 1.0) -> Tensor:
    return size * normal(n, 2, seed=seed)


def given_as(kind: str, points: Tensor) -> Tensor:
    """The leaf of a kind: the points, or a distance matrix of theirs."""
    return torch.cdist(points, points) if kind == "matrix" else points


def providers(leaves: tuple[Tensor, Tensor], kind: str, options: SpaceOptions) -> Any:
    """What `gw_align` makes of arrays, through its own checks."""
    spaces = []
    for name, leaf in zip("XY", leaves, strict=True):
        if kind == "squared":
            spaces.append(InputSpace(name, EuclideanDistances(leaf.detach(), squared=True), "provider"))
        else:
            asked = "auto" if kind == "matrix" else kind
            spaces.append(check_space(name, leaf.detach(), asked, options))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)
        return make_providers(spaces, options)[0]


def dense(found: DifferentiableDistances) -> Tensor:
    return found.dense(CPU)


def loss(x: Tensor, y: Tensor) -> Tensor:
    """A function of both spaces' distances with random weights."""
    A, B = (
        torch.randn(len(D), len(D), dtype=torch.float64, generator=torch.Generator().manual_seed(7)) for D in (x, y)
    )
    return (A * x.square()).sum() + (B * y).sum() + x.square().sum() * y.sum() / 100


def slope(function: Callable[[Tensor], float], at: Tensor, along: Tensor, step: float = 1e-6) -> float:
    at = at.detach()
    return (function(at + step * along) - function(at - step * along)) / (2 * step)


def direction(kind: str, leaf: Tensor, seed: int = 5) -> Tensor:
    found = torch.randn(leaf.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (found + found.T).fill_diagonal_(0) if kind == "matrix" else found


@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize("size", [0.3, 3.0], ids=["larger", "smaller"])
@pytest.mark.parametrize("kind", KINDS)
def test_values_are_the_providers_and_gradients_the_central_differences(kind: str, size: float, scale: Any) -> None:
    options = SpaceOptions(k=4, n_landmarks=9, scale=scale)
    leaves = tuple(given_as(kind, cloud(n, n, s)).requires_grad_() for n, s in ((N, 1.0), (K, size)))
    made = providers(leaves, kind, options)
    found = make_differentiable(made, leaves, options, torch.float64, CPU)
    for space, one in zip(made, found, strict=True):
        torch.testing.assert_close(dense(one).detach(), all_rows(space), rtol=0, atol=1e-12)
        assert (one.factors is None) == (space.factors() is None)
    gradients = torch.autograd.grad(loss(*map(dense, found)), leaves)

    for side in (0, 1):

        def value(moved: Tensor, side: int = side) -> float:
            both = (moved, leaves[1]) if side == 0 else (leaves[0], moved)
            return float(loss(*map(all_rows, providers(both, kind, options))))

        along = direction(kind, leaves[side])
        size_of = float(gradients[side].norm() * along.norm())
        assert abs(slope(value, leaves[side], along) - float((gradients[side] * along).sum())) < 1e-6 * size_of


@pytest.mark.parametrize("kind", KINDS)
def test_single_precision_and_single_leaves(kind: str) -> None:
    options = SpaceOptions(k=4, n_landmarks=9)
    leaves = tuple(given_as(kind, cloud(n, n)).float().requires_grad_() for n in (N, K))
    if kind == "matrix":
        leaves = tuple(((D + D.T) / 2).detach().requires_grad_() for D in leaves)
    made = providers(leaves, kind, options)
    found = make_differentiable(made, leaves, options, torch.float32, CPU)
    assert all(dense(one).dtype == torch.float32 for one in found)
    for space, one in zip(made, found, strict=True):
        torch.testing.assert_close(dense(one).detach().double(), all_rows(space), rtol=0, atol=5e-6)
    gradients = torch.autograd.grad(loss(*(dense(one).double() for one in found)), leaves)
    assert all(g.dtype == torch.float32 and bool(torch.isfinite(g).all()) for g in gradients)


@pytest.mark.parametrize("kind", KINDS)
def test_points_that_coincide_have_finite_gradients(kind: str) -> None:
    base = cloud(12, 3)
    options = SpaceOptions(k=4, n_landmarks=9)
    leaves = tuple(given_as(kind, torch.cat((base, base, size * base))).requires_grad_() for size in (2.0, 0.5))
    found = make_differentiable(providers(leaves, kind, options), leaves, options, torch.float64, CPU)
    gradients = torch.autograd.grad(loss(*map(dense, found)), leaves)
    assert all(bool(torch.isfinite(g).all()) and float(g.abs().sum()) > 0 for g in gradients)
    same = given_as(kind, torch.ones(8, 2, dtype=torch.float64)).requires_grad_()
    alone = make_differentiable(providers((same, same), kind, options), (same, same), options, torch.float64, CPU)
    (gradient,) = torch.autograd.grad(sum(dense(one).square().sum() for one in alone), same)
    assert float(gradient.abs().max()) == 0


@pytest.mark.parametrize("scale", [None, 2.0])
def test_distances_of_own_scale_see_no_stretch_and_of_a_given_one_grow_with_it(scale: float | None) -> None:
    """By Euler's theorem the gradient along the points themselves is the degree of the distances."""
    options = SpaceOptions(k=4, n_landmarks=9, scale=scale)
    for kind in KINDS:
        leaf = given_as(kind, cloud(N)).requires_grad_()
        found, _ = make_differentiable(
            providers((leaf, leaf), kind, options), (leaf, leaf), options, torch.float64, CPU
        )
        total = dense(found).sum()
        (gradient,) = torch.autograd.grad(total, leaf)
        degree = 0 if scale is None else 2 if kind == "squared" else 1
        assert (gradient * leaf).sum().item() == pytest.approx(degree * total.item(), abs=1e-9)


def test_a_matrix_with_missing_paths_is_filled_in_proportion() -> None:
    D = given_as("matrix", cloud(10)).clone()
    D[:4, 4:] = D[4:, :4] = torch.inf
    D.requires_grad_()
    for options in (SpaceOptions(), SpaceOptions(scale=2.0)):
        made = providers((D, D), "matrix", options)
        found, _ = make_differentiable(made, (D, D), options, torch.float64, CPU)
        assert torch.equal(found.tensor[0, 4:].isfinite(), torch.ones(6, dtype=torch.bool))  # type: ignore[index]
        torch.testing.assert_close(dense(found).detach(), all_rows(made[0]))
        (gradient,) = torch.autograd.grad(loss(dense(found), dense(found)), D)
        along = direction("matrix", D)

        def value(moved: Tensor, options: SpaceOptions = options) -> float:
            same = all_rows(providers((moved, moved), "matrix", options)[0])
            return float(loss(same, same))

        assert slope(value, D, along) == pytest.approx(float((gradient * along).sum()), rel=1e-6)


def test_the_furthest_pair_of_many_points_attains_the_scale() -> None:
    points = cloud(1300, 6)
    points[900] = torch.tensor([9.0, 9.0])
    points[700] = -points[900]
    space = EuclideanDistances(points)
    assert sorted(space.furthest) == [700, 900]
    assert space.scale == pytest.approx(float((points[700] - points[900]).norm()))


def test_the_pair_found_by_sweeps_carries_the_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgw.spaces.euclidean.EXACT_SIZE", 10)
    leaf, other = cloud(N, 2).requires_grad_(), cloud(K, 3)
    i, j = EuclideanDistances(leaf).furthest
    assert (leaf[i] - leaf[j]).norm().item() == pytest.approx(EuclideanDistances(leaf).scale)
    found, _ = make_differentiable(
        providers((leaf, other), "euclidean", SpaceOptions()), (leaf, None), SpaceOptions(), leaf.dtype, CPU
    )
    (gradient,) = torch.autograd.grad(dense(found).sum(), leaf)
    along = direction("euclidean", leaf)
    expected = slope(lambda moved: float(all_rows(EuclideanDistances(moved)).sum()), leaf, along)
    assert float((gradient * along).sum()) == pytest.approx(expected, rel=1e-6)


def test_a_largest_distance_short_of_the_diameter_carries_the_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortest_paths, "SWEEPS", 1)
    leaf, options = cloud(N, 2).requires_grad_(), SpaceOptions(k=4)
    made = providers((leaf, leaf), "dijkstra", options)
    assert float(all_rows(made[0]).max()) > 1.01
    found, _ = make_differentiable(made, (leaf, None), options, leaf.dtype, CPU)
    (gradient,) = torch.autograd.grad(dense(found).sum(), leaf)
    along = direction("dijkstra", leaf)
    expected = slope(lambda moved: float(all_rows(providers((moved, leaf), "dijkstra", options)[0]).sum()), leaf, along)
    assert (gradient * along).sum().item() == pytest.approx(expected, rel=1e-6)


def test_spaces_without_a_leaf_are_constants_that_a_common_scale_still_moves() -> None:
    leaf = cloud(N, 1, 5.0).requires_grad_()
    graph = neighbour_graph(cloud(K, 2).numpy(), 4)
    for constant in (LandmarkDistances(graph, 9), DijkstraDistances(graph), EuclideanDistances(cloud(K, 2))):
        alone = make_differentiable((constant, constant), (leaf.detach(), None), SpaceOptions(), torch.float64, CPU)
        assert not any(dense(one).requires_grad for one in alone)
        torch.testing.assert_close(dense(alone[0]), all_rows(constant), rtol=0, atol=1e-13)
        for scale in (None, "common"):
            options = SpaceOptions(scale=scale)
            spaces = [InputSpace("X", leaf.detach().numpy(), "euclidean"), InputSpace("Y", constant, "provider")]
            made = make_providers(spaces, options)[0]
            _, found = make_differentiable(made, (leaf, None), options, torch.float64, CPU)
            assert dense(found).requires_grad == (scale == "common")
            if scale == "common":
                (gradient,) = torch.autograd.grad(dense(found).sum(), leaf)
                assert (gradient * leaf).sum().item() == pytest.approx(-dense(found).sum().item())


def test_providers_made_by_the_user_remember_a_tensor_that_requires_gradients() -> None:
    x, F = cloud(N).requires_grad_(), torch.randn(N, 3, dtype=torch.float64).requires_grad_()
    signs = torch.tensor([1.0, -1.0, 1.0])
    D = given_as("matrix", cloud(N))
    D.requires_grad_()
    spaces = (
        (EuclideanDistances(x), x),
        (EuclideanDistances(x, squared=True), x),
        (PrecomputedDistances(D), D),
        (FactoredDistances(F, signs, 3.0), F),
    )
    for space, leaf in spaces:
        moved = space.to(CPU, torch.float64)
        assert moved.leaf is leaf
        found, again = make_differentiable(
            (space, moved.with_scale(2.0)), (None, space), SpaceOptions(), torch.float64, CPU
        )
        torch.testing.assert_close(dense(found).detach(), all_rows(space))
        torch.testing.assert_close(dense(again).detach(), all_rows(space) * space.scale / 2)
        (own,), (fixed,) = (torch.autograd.grad(dense(one).sum(), leaf) for one in (found, again))
        assert not torch.allclose(own * space.scale / 2, fixed) or space.leaf is F
    assert EuclideanDistances(x.detach()).leaf is None
    assert PrecomputedDistances(D.detach()).leaf is None
    assert FactoredDistances(F.detach(), signs).leaf is None


def test_factors_that_stand_for_no_distances_depend_on_no_points() -> None:
    """With alpha = 0 the solve replaces the points that were given."""
    space = FactoredDistances.of(torch.zeros(N, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64), 1.0)
    found, _ = make_differentiable(
        (space, space), (cloud(N).requires_grad_(), None), SpaceOptions(), torch.float64, CPU
    )
    assert not dense(found).requires_grad


def test_a_provider_may_say_itself_how_it_depends_on_its_leaf() -> None:
    class Own(EuclideanDistances):
        def trace(self, leaf: Tensor, k: int | None, device: torch.device) -> DifferentiableDistances:
            return DifferentiableDistances(leaf.sum() * torch.ones(2, 2, dtype=torch.float64))

    space = Own(cloud(2).requires_grad_())
    found, _ = make_differentiable((space, space), (None, None), SpaceOptions(), torch.float64, CPU)
    assert torch.equal(dense(found), space.leaf.sum().expand(2, 2))  # type: ignore[union-attr]


def test_paths_pass_gradcheck_and_are_those_of_dijkstra() -> None:
    points = cloud(14, 4)
    graph = neighbour_graph(points.numpy(), 4)
    lengths = edge_lengths(points, graph)
    np.testing.assert_allclose(lengths, graph.data, rtol=1e-12)
    sources = np.array([3, 0, 9])
    np.testing.assert_allclose(path_distances(graph, lengths, sources), dijkstra(graph, indices=sources), rtol=1e-12)
    uneven = (lengths + torch.rand(len(lengths), dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(lambda e: path_distances(graph, e, sources), uneven, eps=1e-5)
    assert torch.autograd.gradcheck(lambda x: edge_lengths(x, graph), points.requires_grad_())


@pytest.mark.parametrize(("n", "every", "rank"), [(9, 3, 3), (15, 3, 5), (12, 2, 6), (15, 1, 9)])
def test_factors_pass_gradcheck_where_eigenvalues_are_degenerate(n: int, every: int, rank: int) -> None:
    """Distances on a regular polygon are a circulant matrix, whose eigenvalues come in pairs."""
    angle = 2 * torch.pi * torch.arange(n, dtype=torch.float64) / n
    polygon = torch.stack((angle.cos(), angle.sin()), 1)
    index = torch.arange(0, n, every)
    columns = torch.cdist(polygon, polygon)[:, index]
    eigenvalues = torch.linalg.eigvalsh(columns[index])
    assert float(eigenvalues.diff().min()) < 1e-14

    def product(C: Tensor) -> Tensor:
        F, signs = differentiable_factors(C, index, rank)
        return (F * signs) @ F.T

    assert torch.autograd.gradcheck(product, columns.requires_grad_(), eps=1e-6, atol=1e-7, rtol=1e-6)


SPIRAL, ARC = make_spiral(60)[0], make_spiral(60)[0][15:45]
FAST = GWOptions(spaces=SpaceOptions(k=5, n_landmarks=20))


def aligned(X: Any, Y: Any, epsilon: float = 5e-3, distances: str = "auto", **options: Any) -> GWResult:
    given = replace(FAST, spaces=replace(FAST.spaces, **options))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AmbiguityWarning)  # which end of an arc is which
        return gw_align(X, Y, epsilon=epsilon, distances=distances, options=given, random_state=0)


@pytest.mark.parametrize("distances", ["precomputed", "landmark", "euclidean"])
def test_a_common_scale_keeps_sizes_and_own_scales_do_not(distances: str) -> None:
    own, common = (aligned(SPIRAL, ARC, distances=distances, scale=scale) for scale in (None, "common"))
    assert own.scales[1] < own.scales[0]
    assert common.scales == (own.scales[0], own.scales[0])
    assert aligned(ARC, SPIRAL, distances=distances, scale="common").scales == common.scales
    assert np.abs(common.plan - own.plan).sum() > 0.1


def test_raw_units_and_epsilon_scale_together() -> None:
    one = aligned(SPIRAL, ARC, scale=4.0)
    two = aligned(2 * SPIRAL, 2 * ARC, scale=8.0)
    wide = aligned(SPIRAL, ARC, 4 * 5e-3, scale=2.0)
    pair = aligned(SPIRAL, 3 * ARC, scale=(4.0, 12.0))
    assert pair.scales == (4.0, 12.0)
    for other, factor in ((two, 1), (wide, 4), (pair, 1)):
        np.testing.assert_allclose(other.plan, one.plan, atol=1e-6)
        assert other.value == pytest.approx(factor * one.value, rel=1e-4)


def test_new_points_are_placed_in_the_scale_of_the_solve() -> None:
    whole = [aligned(SPIRAL, ARC, distances=kind, scale=4.0).known for kind in ("euclidean", "precomputed")]
    for known in whole:
        found = known[0].distances(SPIRAL[:5], torch.arange(60))  # type: ignore[index]
        np.testing.assert_allclose(found, all_rows(known[0].space)[:5], atol=1e-9)  # type: ignore[index]


def test_points_without_a_path_are_as_far_as_without_a_scale() -> None:
    graph = neighbour_graph(cloud(10).numpy(), 3).tolil()
    graph[0, :] = graph[:, 0] = 0
    graph = graph.tocsr()
    graph.eliminate_zeros()
    with pytest.warns(GraphWarning):
        space, other = DijkstraDistances(graph), DijkstraDistances(graph).with_scale(2.0)
    torch.testing.assert_close(all_rows(other) * 2, all_rows(space) * space.scale)


def test_a_saved_result_remembers_its_scales(tmp_path: Path) -> None:
    result = aligned(SPIRAL, ARC, scale=(4.0, 2.0))
    result.save(tmp_path / "result.npz")
    assert GWResult.load(tmp_path / "result.npz").options == result.options


def test_a_provider_of_the_users_own_needs_a_method_for_another_scale_only() -> None:
    own = Own(all_rows(EuclideanDistances(ARC)))
    assert aligned(SPIRAL, own).scales[1] == 1.0
    for scale in ("common", 2.0):
        with pytest.raises(TypeError, match=r"Y must have a method with_scale\(scale\) .* got Own without one"):
            aligned(SPIRAL, own, scale=scale)


@pytest.mark.parametrize("value", ["own", 0.0, -1.0, float("nan"), float("inf"), (1.0, 0.0)])
def test_scales_that_mean_nothing_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="scale"):
        SpaceOptions(scale=value)


@pytest.mark.parametrize("value", [True, b"common", {}, ("common", 1.0), (1.0,), (1.0, 2.0, 3.0)])
def test_scales_of_other_kinds_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="scale"):
        SpaceOptions(scale=value)

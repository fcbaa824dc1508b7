"""The parts of the search: gradients, landmarks, starts, basins of the landmark problem, and the lift."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.problems import (
    all_rows,
    generator,
    linearised_cost,
    path_graph,
    random_distances,
    random_masses,
    random_plan,
    random_space,
    sinkhorn_oracle,
)
from tests.simulated_device import simulated_gpu
from torchgw import CoarseOptions, EuclideanDistances, PrecomputedDistances, SamplingOptions
from torchgw.couplings.blocks import DenseCoupling
from torchgw.kernels import LOG2E
from torchgw.objective.bounds import quantiles
from torchgw.objective.exact import ExactGradient
from torchgw.objective.model import Model
from torchgw.objective.sampled import SampledGradient, landmark_control
from torchgw.search.anneal import SAME_PLAN, CoarseBasin, LandmarkProblem, find_coarse_basins, group_into_basins
from torchgw.search.initial_guesses import leading_modes, make_start_costs
from torchgw.search.lift import lift
from torchgw.spaces.coarsening import KINDS, choose_landmarks, coverage

F64 = torch.float64


@pytest.mark.parametrize("left", ["dense", "factored"])
@pytest.mark.parametrize("right", ["dense", "factored"])
@pytest.mark.parametrize(("n", "k"), [(8, 11), (11, 8)])
def test_the_exact_gradient_is_the_four_index_sum(left: str, right: str, n: int, k: int) -> None:
    rng = np.random.default_rng(n)
    source, target = random_space(left, n, 1), random_space(right, k, 2)
    DX, DY = (all_rows(s).numpy() for s in (source, target))
    p, q = random_masses(n, rng), random_masses(k, rng)
    T = random_plan(p, q, rng)
    gradient = ExactGradient(source, target, torch.from_numpy(p), torch.from_numpy(q))
    cost = gradient(DenseCoupling(torch.from_numpy(T)), torch.from_numpy(p))
    np.testing.assert_allclose(cost.rows(slice(0, n)), linearised_cost(DX, DY, T), atol=1e-12)
    centred, row, column = cost.centre_factors(2 * LOG2E)
    np.testing.assert_allclose(centred.rows(slice(0, n)), linearised_cost(DX, DY, T), atol=1e-12)
    np.testing.assert_allclose(centred.U @ centred.V.T + row[:, None] + column, cost.U @ cost.V.T, atol=1e-12)
    # A plan that lives on a few points.
    i, j = torch.tensor([0, 3, 5]), torch.tensor([1, 2])
    small = torch.from_numpy(rng.uniform(size=(3, 2)))
    spread = torch.zeros(n, k, dtype=F64)
    spread[i[:, None], j] = small
    few = gradient.cost_between_points(i, j, small)
    np.testing.assert_allclose(few.U @ few.V.T, DX @ spread.numpy() @ DY, atol=1e-12)


def test_control_variates_keep_the_expectation_and_cut_the_error() -> None:
    rng = np.random.default_rng(11)
    graphs = [path_graph(list(rng.uniform(0.5, 1.5, size=n - 1)))[0] for n in (60, 70)]
    x, y = PrecomputedDistances.from_graphs(graphs)
    p, q = (random_masses(n, rng) for n in (60, 70))
    T = torch.from_numpy(random_plan(p, q, rng))
    P, Q = torch.from_numpy(p), torch.from_numpy(q)
    exact = ExactGradient(x, y, P, Q)(DenseCoupling(T), P).rows(slice(0, 60))
    errors = {}
    for count in (0, 6):
        gen = generator(3)
        controls = None if count == 0 else tuple(landmark_control(s, m, count, gen) for s, m in ((x, P), (y, Q)))
        draws = torch.stack(
            [
                SampledGradient(x, y, SamplingOptions(n_anchors=20), gen, controls)(DenseCoupling(T), P).rows(
                    slice(0, 60)
                )
                for _ in range(300)
            ]
        )
        bias = (draws.mean(0) - exact).norm() / exact.norm()
        errors[count] = float((draws - exact).norm(dim=(1, 2)).mean() / exact.norm())
        assert float(bias) < 4 * errors[count] / 300**0.5
    assert errors[6] < 0.3 * errors[0]


@pytest.mark.parametrize("kind", KINDS)
def test_landmarks_are_distinct_points_that_share_all_mass(kind: str) -> None:
    rng = np.random.default_rng(0)
    space = EuclideanDistances(rng.normal(size=(80, 3)))
    mass = torch.from_numpy(random_masses(80, rng))
    found = choose_landmarks(space, mass, kind, 25, generator())
    assert len(set(found.medoids.tolist())) == 25
    assert float(found.mass.sum()) == pytest.approx(float(mass.sum()))
    assert float(found.mass.min()) > 0
    torch.testing.assert_close(found.features, space.rows(found.medoids))
    nearest = found.features.argmin(0)
    for position in range(25):
        assert float(found.mass[position]) == pytest.approx(float(mass[nearest == position].sum()))
    everything = choose_landmarks(space, mass, kind, 200, generator())
    assert everything.medoids.tolist() == list(range(80))
    assert coverage(everything, mass) == 0
    assert 0 < coverage(found, mass) < 0.5


def test_named_points_that_are_landmarks_already_ask_for_no_rows() -> None:
    class Rows(EuclideanDistances):
        def rows(self, index: Tensor) -> Tensor:
            assert len(index)
            return super().rows(index)

    space, mass = Rows(np.random.default_rng(2).normal(size=(8, 2))), torch.full((8,), 1 / 8, dtype=F64)
    found = choose_landmarks(space, mass, "farthest", 9, generator(), named=torch.tensor([3, 5]))
    assert found.medoids.tolist() == list(range(8))


def test_farthest_landmarks_of_a_rotated_copy_are_the_same_points() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 3))
    order = rng.permutation(60)
    mass = torch.full((60,), 1 / 60, dtype=F64)
    chosen = []
    for points in (x, 2.0 * x[order] @ np.linalg.qr(rng.normal(size=(3, 3)))[0]):
        space = EuclideanDistances(points)
        first = (space.rows(torch.arange(60)).square() @ mass).argmax()
        chosen.append(choose_landmarks(space, mass, "farthest", 12, generator(), first).medoids.numpy())
    np.testing.assert_array_equal(order[chosen[1]], chosen[0])


@pytest.mark.parametrize("count", [1, 4, 16])
def test_quantiles_are_means_of_the_weighted_quantile_function(count: int) -> None:
    rng = np.random.default_rng(2)
    D, mass = random_distances(9, rng), random_masses(9, rng)
    found = quantiles(torch.from_numpy(D), torch.from_numpy(mass), count).numpy()
    fine = (np.arange(200_000) + 0.5) / 200_000
    for row in range(9):
        order = np.argsort(D[row])
        level = np.cumsum(mass[order])
        values = D[row][order][np.searchsorted(level / level[-1], fine).clip(max=8)]
        np.testing.assert_allclose(found[row], values.reshape(count, -1).mean(1), atol=1e-4)


def test_start_costs_are_finite_distinct_and_of_mean_one() -> None:
    rng = np.random.default_rng(3)
    DX, DY = (torch.from_numpy(random_distances(n, rng)) for n in (15, 18))
    p, q = (torch.from_numpy(random_masses(n, rng)) for n in (15, 18))
    costs = make_start_costs(DX, DY, p, q, 30, generator())
    assert costs.shape == (30, 15, 18)
    np.testing.assert_allclose(torch.einsum("i,bij,j->b", p, costs, q), np.ones(30), rtol=1e-9)
    single = torch.cat((costs[:12:2], costs[12:]))  # two distributions and four signs come twice in the plane
    torch.testing.assert_close(costs[:12:2], costs[1:12:2])
    apart = torch.cdist(single.flatten(1), single.flatten(1)) + torch.eye(24) * 9
    assert float(apart.min()) > 1e-3


def test_leading_modes_are_those_of_the_centred_distances_and_zero_where_there_are_fewer() -> None:
    rng = np.random.default_rng(5)
    D, mass = random_distances(12, rng), random_masses(12, rng)
    values, features = leading_modes(torch.from_numpy(D), torch.from_numpy(mass))
    centre = np.eye(12) - np.ones((12, 1)) * mass
    root = np.sqrt(mass)
    spectrum = np.linalg.eigvalsh(root[:, None] * (centre @ D @ centre.T) * root)
    np.testing.assert_allclose(values, spectrum[np.argsort(-np.abs(spectrum))][:3], rtol=1e-9)
    np.testing.assert_allclose(
        features.numpy().T @ (mass[:, None] * features.numpy()), np.diag(np.abs(values.numpy())), atol=1e-12
    )
    two = leading_modes(torch.from_numpy(D[:2, :2]), torch.tensor([0.3, 0.7], dtype=torch.float64))
    assert [float(value) for value in two[0]] == pytest.approx([-0.42 * D[0, 1], 0, 0])
    assert not two[1][:, 2].any()


def test_energies_of_a_batch_are_those_of_each_plan_and_equal_plans_are_one_basin() -> None:
    rng = np.random.default_rng(4)
    DX, DY = random_distances(6, rng), random_distances(7, rng)
    p, q = random_masses(6, rng), random_masses(7, rng)
    plans = np.stack([random_plan(p, q, rng) for _ in range(3)])
    spaces, masses = (PrecomputedDistances(DX), PrecomputedDistances(DY)), (torch.from_numpy(p), torch.from_numpy(q))
    x, y = (choose_landmarks(s, m, "random", 9, generator()) for s, m in zip(spaces, masses, strict=True))
    found = LandmarkProblem.of(x, y, Model(*masses, 1e-3)).energies(torch.from_numpy(plans))
    DX, DY = DX / DX.max(), DY / DY.max()
    for plan, energy in zip(plans, found, strict=True):
        assert float(energy) == pytest.approx(float((linearised_cost(DX, DY, plan) * plan).sum()), rel=1e-9)
    twice = torch.from_numpy(np.concatenate((plans, plans + 1e-4)))
    groups = group_into_basins(twice, torch.arange(6.0), 3)
    assert groups == [[0, 3], [1, 4], [2, 5]]
    assert group_into_basins(twice, -torch.arange(6.0), 2) == [[5, 2], [4, 1]]


@pytest.mark.parametrize("most", [1, 3, 20])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_group_is_the_lowest_plan_that_is_in_none_and_what_agrees_with_it(device: str, most: int) -> None:
    rng = np.random.default_rng(most)
    plans = rng.uniform(size=(12, 4, 5))[rng.integers(12, size=30)] ** 4 + rng.uniform(0, 0.1, size=(30, 4, 5))
    plans[7], energies = np.nan, rng.permutation(30) / 30
    share = (plans / plans.sum((1, 2), keepdims=True)).reshape(30, -1)
    rest, expected = list(np.argsort(energies)), list[list[int]]()
    while rest and len(expected) < most:
        near = [i for i in rest if i == rest[0] or np.abs(share[i] - share[rest[0]]).sum() <= SAME_PLAN]
        expected, rest = [*expected, near], [i for i in rest if i not in near]
    assert most < 20 or [7] in expected
    with simulated_gpu() as simulation:
        given = (torch.from_numpy(each).to(device) for each in (plans, energies))
        assert group_into_basins(*given, most) == expected
        assert simulation.n_waits <= 1 + 2  # the two sides that are sent


def test_where_no_basin_stands_out_the_other_kinds_of_landmarks_are_cooled_side_by_side() -> None:
    points = np.random.default_rng(0).normal(size=(2, 150, 3))
    with simulated_gpu() as simulation:
        device = torch.device("cuda")
        x, y = (EuclideanDistances(each).to(device, F64) for each in points)
        mass = torch.full((150,), 1 / 150, dtype=F64).to(device)
        given, before = (Model(mass, mass, 1e-3), 1e-3, CoarseOptions(), torch.Generator(device)), simulation.n_waits
        found = find_coarse_basins((x, y), (mass, mass), *given)
        waits = simulation.n_waits - before
    assert list(found[0]) == list(KINDS)
    assert waits == 4  # for landmarks and basins, of the first kind and of the others


def test_few_points_get_more_starts_but_not_as_many_as_landmarks_were_asked_for() -> None:
    two, mass = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=F64), torch.full((2,), 0.5, dtype=F64)
    space, options = PrecomputedDistances(two.numpy()), CoarseOptions(n_landmarks=10**6, n_starts=4)
    found = find_coarse_basins((space, space), (mass, mass), Model(mass, mass, 1e-3), 1e-3, options, generator())
    (basins,) = found[0].values()
    assert sum(basin.count for basin in basins) == 3 * 4 * 30


def test_the_coarse_stage_finds_both_orientations_of_a_path_and_their_energies() -> None:
    rng = np.random.default_rng(5)
    graph, D = path_graph(list(rng.uniform(0.5, 1.5, size=39) * np.linspace(0.3, 2.0, 39)))
    space = PrecomputedDistances(D)
    mass = torch.full((40,), 1 / 40, dtype=F64)
    found = find_coarse_basins(
        (space, space), (mass, mass), Model(mass, mass, 1e-3), 1e-3, CoarseOptions(), generator()
    )
    (basins,) = found[0].values()
    assert len(basins) == 2
    assert basins[0].energy < 0.2 * basins[1].energy
    assert sum(basin.count for basin in basins) == 3 * 48
    np.testing.assert_allclose(basins[0].plan.argmax(1), np.arange(40), atol=1)
    assert np.corrcoef(basins[1].plan.argmax(1), np.arange(40))[0, 1] < -0.9
    np.testing.assert_allclose(basins[0].plan.sum(1), mass, atol=1e-12)
    assert graph.nnz == 78


def test_potentials_lifted_from_all_points_are_those_of_the_problem() -> None:
    rng = np.random.default_rng(6)
    DX, DY = random_distances(20, rng), random_distances(24, rng)
    p, q = random_masses(20, rng), random_masses(24, rng)
    T = random_plan(p, q, rng)
    source, target = PrecomputedDistances(DX), PrecomputedDistances(DY)
    scaled = [all_rows(s).numpy() for s in (source, target)]
    epsilon = 0.05
    S = -2 * scaled[0] @ T @ scaled[1]
    plan = torch.from_numpy(sinkhorn_oracle(S, p, q, epsilon))
    model = Model(torch.from_numpy(p), torch.from_numpy(q), epsilon)
    x, y = (choose_landmarks(s, torch.from_numpy(m), "random", 99, generator()) for s, m in ((source, p), (target, q)))
    exponent = plan.log2() + torch.from_numpy(S) / epsilon * np.log2(np.e)
    f = exponent.mean(1)
    g = (exponent - f[:, None]).mean(0)
    solved = CoarseBasin(x, y, torch.from_numpy(T), f, g, epsilon)
    gradient = ExactGradient(source, target, torch.from_numpy(p), torch.from_numpy(q))
    for made, matching in (lift(solved, model, gradient), lift(solved, model, None)):
        np.testing.assert_allclose(made.f, f, atol=1e-9)
        np.testing.assert_allclose(made.g, g, atol=1e-9)
        np.testing.assert_array_equal(matching, plan.argmax(1))
        np.testing.assert_allclose(made.coupling().to_dense(), plan, atol=1e-10)

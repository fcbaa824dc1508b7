"""Couplings of low rank: the factored plan, the projection onto its constraints, and the descent."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.problems import all_rows, generator, gw_by_enumeration, linearised_cost, random_masses
from torchgw import GWOptions, gw_align
from torchgw.couplings import blocks
from torchgw.couplings.low_rank import LowRankCoupling
from torchgw.diagnostics.status import Status
from torchgw.objective.exact import ExactGradient
from torchgw.objective.model import Model
from torchgw.options import LowRankOptions
from torchgw.sinkhorn.low_rank import LowRankFactors, project, round_factors
from torchgw.solvers.low_rank import evaluate, group_cells, remove_null_terms, solve_low_rank, warm_factors
from torchgw.solvers.solution import Solution
from torchgw.spaces import EuclideanDistances
from torchgw.spaces.coarsening import choose_landmarks
from torchgw.types import Coupling, DistanceProvider


class FactoredSpace:
    """A space that is known by a symmetric matrix, with the factors of its eigenvectors."""

    scale, stored = 1.0, True

    def __init__(self, D: np.ndarray) -> None:
        values, vectors = np.linalg.eigh(D)
        kept = np.abs(values) > 1e-12 * np.abs(values).max()
        self.D = torch.from_numpy(D)
        self.F = torch.from_numpy(vectors[:, kept] * np.abs(values[kept]) ** 0.5)
        self.signs = torch.from_numpy(np.sign(values[kept]))
        self.size = len(D)

    def to(self, device: torch.device, dtype: torch.dtype) -> FactoredSpace:
        return self

    def rows(self, index: Tensor) -> Tensor:
        return self.D[index]

    def factors(self) -> tuple[Tensor, Tensor]:
        return self.F, self.signs


def uniform(n: int) -> Tensor:
    return torch.full((n,), 1 / n, dtype=torch.float64)


def masses(n: int, seed: int) -> Tensor:
    return torch.from_numpy(random_masses(n, np.random.default_rng(seed)))


def random_factors(n: int, k: int, r: int, seed: int, sharpness: float = 1.0) -> LowRankFactors:
    """Positive factors of total mass about one that meet no constraint."""
    shapes, gen = ((n, r), (k, r), (r,)), generator(seed)
    noise = [sharpness * torch.randn(shape, dtype=torch.float64, generator=gen) for shape in shapes]
    return LowRankFactors(*(torch.softmax(side.flatten(), 0).reshape(side.shape) for side in noise))


def feasible_factors(p: Tensor, q: Tensor, r: int, seed: int, sharpness: float = 1.0) -> LowRankFactors:
    return round_factors(random_factors(len(p), len(q), r, seed, sharpness), p, q)


def clouds(n: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two unlike point clouds in the plane and in space."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 2)) * (2.0, 1.0), rng.normal(size=(k, 3)) * (1.5, 1.0, 0.5)


def squared_spaces(n: int, k: int, seed: int) -> tuple[EuclideanDistances, EuclideanDistances]:
    x, y = clouds(n, k, seed)
    return EuclideanDistances(x, squared=True), EuclideanDistances(y, squared=True)


def matrix(space: EuclideanDistances | FactoredSpace) -> np.ndarray:
    found: np.ndarray = all_rows(space).numpy()
    return found


def spread_start(
    spaces: tuple[DistanceProvider, DistanceProvider], p: Tensor, q: Tensor, rank: int, seed: int = 0
) -> LowRankFactors:
    """Points shared out among landmarks of their space, one for each component; in the order of their mean if even."""
    sides = []
    for space, mass in zip(spaces, (p, q), strict=True):
        rows = choose_landmarks(space, mass, "spread", rank, generator(seed)).features.clamp_min(0.0)
        rows = rows[(rows.square() @ mass).argsort()] if seed % 2 == 0 else rows
        beyond = rows - rows.amin(0)
        sides.append(mass[:, None] * torch.softmax(-8 * beyond.T / (beyond @ mass).mean(), dim=1))
    return LowRankFactors(sides[0], sides[1], uniform(rank))


def problem_of(spaces: Sequence[DistanceProvider], p: Tensor, q: Tensor, epsilon: float) -> tuple[ExactGradient, Model]:
    """The gradient, in float64, and the masses and epsilon of a problem."""
    x, y = (space.to(p.device, torch.float64) for space in spaces)
    return ExactGradient(x, y, p, q), Model(p, q, epsilon)


def solve(
    spaces: tuple[EuclideanDistances, EuclideanDistances] | tuple[FactoredSpace, FactoredSpace],
    rank: int,
    epsilon: float = 0.0,
    n_starts: int = 1,
    **options: float,
) -> Solution:
    """The best of the solves from several starts."""
    p, q = (uniform(space.size) for space in spaces)
    chosen = LowRankOptions(rank=rank, **options)  # type: ignore[arg-type]
    starts = (spread_start(spaces, p, q, rank, seed) for seed in range(n_starts))
    return min(
        (solve_low_rank(*problem_of(spaces, p, q, epsilon), chosen, generator(), start=start) for start in starts),
        key=lambda done: done.energy,
    )


@pytest.fixture
def coupling(monkeypatch: pytest.MonkeyPatch) -> LowRankCoupling:
    monkeypatch.setitem(blocks.BLOCK_ELEMENTS, "cpu", 5 * 31)  # several blocks and a short last one
    factors = random_factors(23, 31, 4, 0, sharpness=2.0)  # no constraint holds: nothing may rest on one
    factors.R[:3] = 0.0
    factors.R[-2:] = 0.0
    return LowRankCoupling(*factors)


def by_hand(coupling: LowRankCoupling) -> Tensor:
    """The dense plan as the sum over its components."""
    return sum(torch.outer(coupling.Q[:, c], coupling.R[:, c]) / coupling.g[c] for c in range(coupling.rank))


def test_it_is_a_coupling_of_its_rank(coupling: LowRankCoupling) -> None:
    assert isinstance(coupling, Coupling)
    assert (coupling.shape, coupling.rank) == ((23, 31), 4)
    torch.testing.assert_close(coupling.to_dense(), by_hand(coupling), rtol=1e-13, atol=0.0)
    assert torch.linalg.matrix_rank(coupling.to_dense()) == 4
    rebuilt = LowRankCoupling(**coupling.tensors())
    torch.testing.assert_close(rebuilt.to_dense(), coupling.to_dense())


@pytest.mark.parametrize("axis", [0, 1])
def test_products_marginals_and_largest_entries_are_those_of_the_plan(coupling: LowRankCoupling, axis: int) -> None:
    plan = by_hand(coupling) if axis == 1 else by_hand(coupling).T
    V = torch.randn(plan.shape[1], 3, dtype=torch.float64, generator=generator())
    torch.testing.assert_close(coupling.apply(V, axis), plan @ V)
    torch.testing.assert_close(coupling.apply(V[:, 0], axis), plan @ V[:, 0])
    torch.testing.assert_close(coupling.marginal(axis), plan.sum(1))
    torch.testing.assert_close(coupling.argmax(axis), plan.argmax(1))
    with pytest.raises(ValueError, match="V must have"):
        coupling.apply(V[1:], axis)


def test_rows_and_largest_entries_of_rows_are_those_of_the_plan(coupling: LowRankCoupling) -> None:
    index = torch.tensor([22, 0, 7, 7])
    torch.testing.assert_close(coupling.rows(index), by_hand(coupling)[index])
    values, columns = coupling.top_k(4)
    expected = by_hand(coupling).topk(4, dim=1)
    torch.testing.assert_close(values, expected.values)
    torch.testing.assert_close(columns, expected.indices)
    np.testing.assert_allclose(coupling.to_sparse(1.0).toarray(), by_hand(coupling).numpy(), rtol=1e-12)


def test_columns_are_sampled_through_the_components_as_from_the_rows(coupling: LowRankCoupling) -> None:
    rows = torch.full((40_000,), 5)
    share = torch.bincount(coupling.sample_columns(rows, generator()), minlength=31) / len(rows)
    expected = by_hand(coupling)[5]
    expected = expected / expected.sum()
    error = (expected * (1 - expected) / len(rows)).sqrt()
    assert ((share - expected).abs() <= 4.5 * error + 1e-9).all()
    assert (share[:3] == 0).all()
    assert (share[-2:] == 0).all()


def test_more_mass_scales_every_factor() -> None:
    p, q = masses(9, 0), masses(12, 1)
    before = LowRankCoupling(*feasible_factors(p, q, 3, 2))
    after = before.times(2.5)
    torch.testing.assert_close(after.to_dense(), 2.5 * before.to_dense())
    torch.testing.assert_close(after.Q.sum(0), after.g)


@pytest.mark.parametrize("sharpness", [1.0, 20.0])
@pytest.mark.parametrize("floor", [1e-10, 0.2])
def test_the_projection_is_the_nearest_point_of_the_set(sharpness: float, floor: float) -> None:
    """Feasible, and KL(other, given) >= KL(other, found) + KL(found, given), which no other point satisfies."""
    p, q, given = masses(11, 0), masses(8, 1), random_factors(11, 8, 4, 3, sharpness)
    found, residual, _ = project(given.logarithms(), p, q, floor=floor, tol=1e-11, max_iter=100)
    torch.testing.assert_close(found.Q.sum(1), p, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(found.R.sum(1), q, rtol=1e-12, atol=0.0)
    assert residual <= 1e-11
    assert float((found.Q.sum(0) - found.g).abs().sum() + (found.R.sum(0) - found.g).abs().sum()) <= 2e-11
    assert float(found.g.min()) >= floor * (1 - 1e-12)
    assert (float(found.g.min()) <= floor * (1 + 1e-9)) == (floor == 0.2)  # the bound is at work where it is high

    def divergence(one: LowRankFactors, other: LowRankFactors) -> float:
        return float(sum((torch.xlogy(x, x / y) - x + y).sum() for x, y in zip(one, other, strict=True)))

    least = divergence(found, given)
    for seed in range(20):
        g = floor + (1 - 4 * floor) * torch.softmax(torch.randn(4, dtype=torch.float64, generator=generator(seed)), 0)
        other = round_factors(random_factors(11, 8, 4, seed)._replace(g=g), p, q)
        assert divergence(other, given) >= (divergence(other, found) + least) * (1 - 1e-6)


def test_rounding_gives_exact_marginals_to_the_coupling() -> None:
    p, q = masses(30, 0), masses(40, 1)
    plan = LowRankCoupling(*feasible_factors(p, q, 5, 2)).to_dense()
    assert float((plan.sum(1) - p).abs().sum()) < 1e-14
    assert float((plan.sum(0) - q).abs().sum()) < 1e-14
    assert float(plan.min()) >= 0


def test_value_and_gradient_are_those_of_the_four_index_sum() -> None:
    """The value exactly; the gradient, by differentiation, up to what the constraints do not see."""
    spaces = squared_spaces(12, 15, 0)
    p, q = masses(12, 1), masses(15, 2)
    problem = problem_of(spaces, p, q, 0.02)
    factors = feasible_factors(p, q, 4, 5, sharpness=2.0)
    value, objective, slopes = evaluate(*problem, factors)
    DX, DY = (matrix(space) for space in spaces)
    plan = LowRankCoupling(*factors).to_dense().numpy()
    assert value == pytest.approx(gw_by_enumeration(DX, DY, plan), rel=1e-12)
    entropy = sum(float((side * (1 - side.log())).sum()) for side in factors)
    assert objective == pytest.approx(value / 2 - 0.02 * entropy, rel=1e-12)
    leaves = [side.clone().requires_grad_() for side in factors]
    T = (leaves[0] / leaves[2]) @ leaves[1].T
    (torch.from_numpy(linearised_cost(DX, DY, plan)) * T).sum().backward()
    wanted = remove_null_terms(LowRankFactors(*(leaf.grad for leaf in leaves)), p, q)  # type: ignore[arg-type]
    for found, expected in zip(remove_null_terms(slopes, p, q), wanted, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    other = feasible_factors(p, q, 4, 6)
    for gradient in (slopes, remove_null_terms(slopes, p, q)):
        slope = sum(float((side * (x - y)).sum()) for side, x, y in zip(gradient, other, factors, strict=True))
        steps = [LowRankFactors(*(x + t * (y - x) for x, y in zip(factors, other, strict=True))) for t in (1e-5, -1e-5)]
        change = (evaluate(*problem, steps[0])[0] - evaluate(*problem, steps[1])[0]) / 4e-5
        assert slope == pytest.approx(change, rel=1e-5)


@pytest.mark.parametrize("epsilon", [0.0, 1e-3])
def test_a_solve_has_exact_marginals_and_the_value_of_its_plan(epsilon: float) -> None:
    spaces = squared_spaces(40, 55, 3)
    done = solve(spaces, 6, epsilon)
    assert done.status is Status.SETTLED
    plan = done.coupling.to_dense()
    assert float((plan.sum(1) - 1 / 40).abs().sum()) < 1e-12
    assert float((plan.sum(0) - 1 / 55).abs().sum()) < 1e-12
    assert float(plan.min()) >= 0
    assert done.coupling.rank == 6
    value = gw_by_enumeration(*(matrix(space) for space in spaces), plan.numpy())
    assert done.energy == pytest.approx(value, rel=1e-9)
    product = gw_by_enumeration(*(matrix(space) for space in spaces), np.full((40, 55), 1 / 2200))
    assert done.energy < 0.5 * product


@pytest.mark.parametrize("step", [30.0, 1e4])
@pytest.mark.parametrize("epsilon", [0.0, 2e-3])
def test_the_objective_falls_from_iteration_to_iteration(epsilon: float, step: float) -> None:
    """Also where it would rise: distances against similarities make it convex, and the steps asked for are long."""
    distances, others = (matrix(space) for space in squared_spaces(30, 36, 4))
    values = []
    for most in (1, 2, 3, 5, 8, 13, 21, 34):
        spaces = FactoredSpace(distances), FactoredSpace(1 - others)
        done = solve(spaces, 5, epsilon, max_iter=most, step=step)
        entropy = sum(float((side - torch.xlogy(side, side)).sum()) for side in done.coupling.tensors().values())
        values.append(done.energy / 2 - epsilon * entropy)
        if epsilon == 0.0:
            assert (np.diff(done.history.cost) <= 1e-12).all()
    assert (np.diff(values) <= 1e-9).all()
    assert values[-1] < values[0]


@pytest.mark.parametrize("epsilon", [5e-4, 2e-3])
def test_no_feasible_direction_lowers_the_entropic_objective(epsilon: float) -> None:
    """The slope of <C(T), T> / 2 less epsilon times the entropies, by differentiation, towards other factors."""
    spaces = squared_spaces(20, 24, 4)
    done = solve(spaces, 3, epsilon, tol=1e-14, max_iter=5000)
    assert done.status is Status.SETTLED
    DX, DY = (torch.from_numpy(matrix(space)) for space in spaces)
    leaves = [side.clone().requires_grad_() for side in done.coupling.tensors().values()]
    T = (leaves[0] / leaves[2]) @ leaves[1].T
    (-(DX @ T @ DY * T).sum() + epsilon * sum((x * (x.log() - 1)).sum() for x in leaves)).backward()
    for seed in range(10):
        other = feasible_factors(uniform(20), uniform(24), 3, seed, sharpness=2.0)
        slope = sum(
            float((x.grad * (y - x.detach())).sum()) for x, y in zip(leaves, other, strict=True) if x.grad is not None
        )
        assert slope >= -1e-5


def test_the_iteration_limit_is_reported() -> None:
    done = solve(squared_spaces(30, 36, 4), 5, max_iter=3)
    assert done.status is Status.MAX_ITER
    assert (done.n_iter, len(done.history.cost)) == (3, 3)


def test_entropy_spreads_the_plan_until_it_is_the_product() -> None:
    spaces = squared_spaces(20, 25, 5)

    def spread(epsilon: float) -> float:
        plan = solve(spaces, 4, epsilon, n_starts=2).coupling.to_dense()
        return float(-torch.xlogy(plan, plan).sum())

    found = [spread(epsilon) for epsilon in (0.0, 3e-3, 1.0)]
    assert found == sorted(found)
    assert found[2] == pytest.approx(math.log(20 * 25), abs=1e-4)


def test_at_full_rank_it_comes_near_the_best_matching() -> None:
    """Squared distances make the objective concave on the plans, so a permutation is optimal."""
    for seed in range(4):
        spaces = squared_spaces(6, 6, seed)
        DX, DY = (matrix(space) for space in spaces)
        product, best = gw_by_enumeration(DX, DY, np.full((6, 6), 1 / 36)), best_map(DX, DY)
        value = solve(spaces, 6, n_starts=3).energy
        assert best * (1 - 1e-9) <= value <= best + 0.05 * (product - best)


def best_map(A: np.ndarray, B: np.ndarray) -> float:
    """The lowest objective among the one-to-one maps between points of equal masses."""
    maps = map(list, itertools.permutations(range(len(A))))
    return min(float(((A - B[np.ix_(to, to)]) ** 2).mean()) for to in maps)


def clustered(seed: int) -> tuple[FactoredSpace, FactoredSpace, float]:
    """Four clusters of equal mass on either side, distances constant within and between; the optimal value.

    Clusters lie at points of the plane, at squared distances, so a one-to-one map of clusters is optimal.
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(4, 2))
    y = (x + 0.1 * rng.normal(size=x.shape))[rng.permutation(4)]
    A, B = (((side[:, None] - side[None]) ** 2).sum(-1) for side in (x, y))
    A, B = A / A.max(), B / B.max()
    in_x, in_y = rng.permutation(np.repeat(np.arange(4), 8)), rng.permutation(np.repeat(np.arange(4), 12))
    return FactoredSpace(A[np.ix_(in_x, in_x)]), FactoredSpace(B[np.ix_(in_y, in_y)]), best_map(A, B)


@pytest.mark.parametrize("seed", range(4))
def test_clusters_are_matched_by_as_many_components(seed: int) -> None:
    source, target, best = clustered(seed)
    done = solve((source, target), 4, n_starts=8)
    assert best * (1 - 1e-9) <= done.energy <= 1.01 * best


def test_all_mass_on_one_point_leaves_nothing_to_descend() -> None:
    rng = np.random.default_rng(74)
    points = (1e8 + rng.normal(size=(10, 2))).astype(np.float32)  # few distinct ones: rounding makes squares negative
    options = GWOptions(strategy="low-rank", coarse=None, low_rank=LowRankOptions(rank=1))
    one = np.eye(10)[5]
    result = gw_align(points, rng.normal(size=(10, 2)), q=one, epsilon=0.01, options=options, random_state=0)
    assert result.converged
    np.testing.assert_allclose(result.plan, np.outer(np.full(10, 0.1), one), atol=1e-12)


def test_equal_components_are_left_behind() -> None:
    spaces = squared_spaces(40, 40, 7)
    p = uniform(40)
    alike = LowRankFactors(p[:, None].repeat(1, 5) / 5, p[:, None].repeat(1, 5) / 5, uniform(5))
    product = evaluate(*problem_of(spaces, p, p, 0.0), alike)[0]
    done = solve_low_rank(*problem_of(spaces, p, p, 0.0), LowRankOptions(rank=5), generator(), start=alike)
    assert done.energy < 0.3 * product


def test_a_warm_start_sends_groups_where_the_plan_sends_their_cells() -> None:
    source, target, best = clustered(1)
    # Each cluster is a cell.
    cells, centres = [], []
    for space in (source, target):
        _, first, label = np.unique(matrix(space).round(9), axis=0, return_index=True, return_inverse=True)
        cells.append(torch.from_numpy(label))
        centres.append(matrix(space)[np.ix_(first, first)])
    match = min(
        itertools.permutations(range(4)), key=lambda to: float(((centres[0] - centres[1][np.ix_(to, to)]) ** 2).sum())
    )
    plan = torch.zeros(4, 4, dtype=torch.float64)
    plan[torch.arange(4), torch.tensor(match)] = 0.25
    p, q, options = uniform(32), uniform(48), LowRankOptions(rank=4)
    start = warm_factors(source, (cells[0], cells[1]), plan, p, q, options, generator())
    for c in range(4):
        (cell,) = cells[0][start.Q[:, c] > 0.5 / 32].unique().tolist()
        assert cells[1][start.R[:, c] > 0.5 / 48].unique().tolist() == [match[cell]]
    done = solve_low_rank(*problem_of((source, target), p, q, 0.0), options, generator(), start=start)
    assert best * (1 - 1e-9) <= done.energy <= 1.01 * best


@pytest.mark.parametrize("rank", [1, 3, 7, 10])
def test_cells_are_grouped_with_their_neighbours_into_any_number_of_groups(rank: int) -> None:
    """Seven cells in three clumps on a line."""
    at = torch.tensor([0.0, 0.1, 0.2, 5.0, 5.1, 9.0, 9.1], dtype=torch.float64)
    mass = torch.tensor([0.1, 0.1, 0.1, 0.2, 0.2, 0.2, 0.1], dtype=torch.float64)
    shares = group_cells(at[:, None], mass, rank, generator())
    assert shares.shape == (7, rank)
    torch.testing.assert_close(shares.sum(1), torch.ones(7, dtype=torch.float64))
    assert (shares.sum(0) > 0).all()
    if rank == 3:
        assert torch.equal(shares @ shares.T, (torch.cdist(at[:, None], at[:, None]) < 1).double())


def test_a_rank_above_the_number_of_points_with_mass_is_refused() -> None:
    spaces = squared_spaces(20, 25, 9)
    few = (torch.arange(20) < 3).double()
    for rank, p, most in ((21, None, 20), (4, few, 3)):
        options = GWOptions(strategy="low-rank", low_rank=LowRankOptions(rank=rank))
        with pytest.raises(ValueError, match=rf"options.low_rank.rank must be in .1, {most}., got {rank}"):
            gw_align(*spaces, p=p, options=options)


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match=r"floor must be < 1 / rank = 0.25, got 0.25"):
        LowRankOptions(rank=4, floor=0.25)
    with pytest.raises(ValueError, match="rank must be >= 1"):
        LowRankOptions(rank=0)
    with pytest.raises(TypeError, match="rank must be an integer"):
        LowRankOptions(rank=2.5)  # type: ignore[arg-type]


LARGE = """
import re, torch
from pathlib import Path
from tests.problems import generator
from tests.test_lowrank import problem_of, spread_start
from torchgw.solvers.low_rank import solve_low_rank
from torchgw.options import LowRankOptions
from torchgw.spaces import EuclideanDistances
x = torch.randn(20000, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 0.6, 0.3])
spaces = [EuclideanDistances(side, squared=True) for side in (x, x.flip(0, 1))]
p = torch.full((20000,), 1 / 20000, dtype=torch.float64)
options = LowRankOptions(rank=20, max_iter=100)
problem = problem_of(spaces, p, p, 0.0)
done = solve_low_rank(*problem, options, generator(), start=spread_start(spaces, p, p, 20))
error = max(float((done.coupling.marginal(axis) - p).abs().sum()) for axis in (0, 1))
memory = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 2**20
print(memory, error, done.energy)
"""


@pytest.mark.slow
def test_twenty_thousand_points_fit_a_gibibyte() -> None:
    """One plan of that size would take three."""
    done = subprocess.run(
        [sys.executable, "-c", LARGE], capture_output=True, text=True, check=True, cwd=Path(__file__).parent.parent
    )
    memory, error, value = map(float, done.stdout.split())
    assert memory <= 1.0
    assert error <= 1e-6
    assert 0 <= value < 0.005

"""Joint coordinates are those of the dense eigenproblem, depend on nothing they should not, and store no plan."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import torch
from scipy.sparse import block_diag, csr_matrix
from scipy.stats import spearmanr

from tests.problems import generator, path_graph
from tests.test_examples import DOCS, run_blocks
from torchgw import ConvergenceWarning, GraphWarning, GWResult, PrecomputedDistances, gw_align
from torchgw.couplings.blocks import DenseCoupling
from torchgw.couplings.factored import FactoredPlan
from torchgw.couplings.low_rank import LowRankCoupling
from torchgw.couplings.potential import PotentialCoupling
from torchgw.couplings.tiled import TiledCoupling
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.embedding import eigen
from torchgw.embedding.graph import compute_affinities, make_matrix_graph
from torchgw.embedding.joint import JointEmbedding, joint_embedding
from torchgw.kernels.tiles import Tiles
from torchgw.spaces.graph import build_graph

SIZES = (140, 170, 150)


def curve(n: int, seed: int, dimension: int = 2, noise: float = 0.02) -> tuple[np.ndarray, np.ndarray]:
    """Points along half a turn, in any dimension, and their positions in [0, 1]."""
    rng = np.random.default_rng(seed)
    position = np.sort(rng.uniform(size=n))
    arc = np.stack((np.cos(3 * position), 1.5 * np.sin(3 * position)), 1)
    frame, _ = np.linalg.qr(rng.normal(size=(dimension, dimension)))
    return (arc @ frame[:2]) + noise * rng.normal(size=(n, dimension)), position


def matched(s: np.ndarray, t: np.ndarray, blur: float = 0.05) -> PotentialCoupling:
    """The plan exp(-(s_i - t_j)^2 / 2 blur^2), divided by its row sums and by N, by potentials of rank one."""
    base2 = 1 / (2 * np.log(2) * blur**2)
    row = torch.from_numpy(1 / np.exp(-((s[:, None] - t) ** 2) / (2 * blur**2)).sum(1) / len(s)).log2()
    f, g = row - torch.from_numpy(base2 * s**2), -torch.from_numpy(base2 * t**2)
    return PotentialCoupling(torch.from_numpy(2 * base2 * s)[:, None], torch.from_numpy(t.copy())[:, None], f, g)


@pytest.fixture(scope="module")
def problem() -> tuple[list[np.ndarray], list[np.ndarray], list[PotentialCoupling]]:
    """Three curves, the positions on them, and the plans from the second and third to the first."""
    made = [curve(n, seed, dimension) for seed, (n, dimension) in enumerate(zip(SIZES, (2, 3, 5), strict=True))]
    spaces, positions = [space for space, _ in made], [position for _, position in made]
    return spaces, positions, [matched(positions[i], positions[0]) for i in (1, 2)]


@pytest.fixture
def iterative(monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems of this size are solved by iteration, too."""
    monkeypatch.setattr(eigen, "DENSE", 0)


def foscttm(z: np.ndarray, s: np.ndarray, w: np.ndarray, t: np.ndarray) -> float:
    """Fraction of points of w closer to a point of z than its true match, the point at the nearest position."""
    distance = np.linalg.norm(z[:, None] - w, axis=2)
    true = distance[np.arange(len(z)), np.abs(s[:, None] - t).argmin(1)]
    return float((distance < true[:, None]).mean())


def dense_oracle(
    spaces: list[np.ndarray], plans: dict[tuple[int, int], np.ndarray], mu: float, count: int
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The generalised eigenproblem of the block Laplacian, all stored."""
    sizes = [len(space) for space in spaces]
    ends = np.concatenate(([0], np.cumsum(sizes)))
    joint = np.zeros((ends[-1], ends[-1]))
    for i, space in enumerate(spaces):
        edge = build_graph(space)[0].toarray()
        longest = edge.max(1)
        weight = np.where(edge > 0, np.exp(-(edge**2) / np.outer(longest, longest)), 0.0)
        joint[ends[i] : ends[i + 1], ends[i] : ends[i + 1]] = weight / weight.sum()
    for (i, j), T in plans.items():
        joint[ends[i] : ends[i + 1], ends[j] : ends[j + 1]] += mu * T / T.sum()
        joint[ends[j] : ends[j + 1], ends[i] : ends[i + 1]] += mu * T.T / T.sum()
    degrees = joint.sum(1)
    values, z = scipy.linalg.eigh(np.diag(degrees) - joint, np.diag(degrees))
    z = z[:, 1 : count + 1] * np.sqrt(degrees.sum())
    own = z[: sizes[0]]
    z *= np.sign(own[np.abs(own).argmax(0), np.arange(count)])
    return values[1 : count + 1], np.split(z, ends[1:-1])


def assert_equal(found: JointEmbedding, wanted: list[np.ndarray] | tuple[np.ndarray, ...], atol: float) -> None:
    for have, want in zip(found.coordinates, wanted, strict=True):
        np.testing.assert_allclose(have, want, atol=atol, rtol=0)


def test_the_dense_solution_equals_the_generalised_eigenproblem(problem) -> None:
    spaces, _, plans = problem
    wanted, z = dense_oracle(spaces, {(1, 0): plans[0].to_dense().numpy(), (2, 0): plans[1].to_dense().numpy()}, 3.0, 4)
    found = joint_embedding(spaces, plans, 4)
    assert found.solver == "dense"
    np.testing.assert_allclose(found.eigenvalues, wanted, rtol=1e-8)
    assert_equal(found, z, 1e-6)


@pytest.mark.usefixtures("iterative")
def test_the_iterated_solution_equals_it_too_for_any_pairs_of_spaces(problem) -> None:
    spaces, positions, plans = problem
    pairs = {(1, 0): plans[0], (2, 0): plans[1], (1, 2): matched(positions[1], positions[2], 0.1)}
    stored = {key: plan.to_dense().numpy() for key, plan in pairs.items()}
    wanted, z = dense_oracle(spaces, stored, 0.7, 4)
    found = joint_embedding(spaces, pairs, 4, coupling_weight=0.7, tol=1e-9, random_state=0)
    assert found.solver == "lobpcg"
    assert found.converged
    assert (found.residuals <= 1e-9).all()
    np.testing.assert_allclose(found.eigenvalues, wanted, rtol=1e-8)
    assert_equal(found, z, 1e-6)


def test_a_space_aligned_with_itself_has_one_embedding_the_eigenmap_of_its_graph(problem) -> None:
    space = problem[0][0]
    n = len(space)
    found = joint_embedding([space, space], [DenseCoupling(torch.eye(n, dtype=torch.float64) / n)], 3)
    assert_equal(found, [found.coordinates[1], found.coordinates[0]], 1e-9)
    W = compute_affinities(build_graph(space)[0]).toarray()
    W /= W.sum()
    values, z = scipy.linalg.eigh(np.diag(W.sum(1)) - W, np.diag(W.sum(1) + 3.0 / n))
    np.testing.assert_allclose(found.eigenvalues, values[1:4], rtol=1e-8)
    for own, other in zip(found.coordinates[0].T, z[:, 1:4].T, strict=True):
        np.testing.assert_allclose(own, other * (own @ other) / (other @ other), atol=1e-7)


def test_components_are_centred_of_variance_one_and_uncorrelated(problem) -> None:
    spaces, _, plans = problem
    found = joint_embedding(spaces, plans, 3)
    graphs = [compute_affinities(build_graph(space)[0]) for space in spaces]
    degrees = [np.asarray(W.sum(1)).ravel() / W.sum() for W in graphs]
    for i, plan in enumerate(plans, 1):
        degrees[i] = degrees[i] + 3 * plan.marginal(1).numpy()
        degrees[0] = degrees[0] + 3 * plan.marginal(0).numpy()
    weight, z = np.concatenate(degrees), np.concatenate(found.coordinates)
    weight /= weight.sum()
    np.testing.assert_allclose(weight @ z, 0, atol=1e-9)
    np.testing.assert_allclose(z.T @ (weight[:, None] * z), np.eye(3), atol=1e-9)


def test_units_and_masses_do_not_matter(problem) -> None:
    spaces, _, plans = problem
    wanted = joint_embedding(spaces, plans)
    sized = [1e-4 * spaces[0] + 5, spaces[1], 2e5 * spaces[2] - 1e6]
    assert_equal(joint_embedding(sized, [plans[0].times(9.0), plans[1].times(1e-3)]), wanted.coordinates, 1e-6)


@pytest.mark.usefixtures("iterative")
def test_points_and_spaces_in_another_order_have_the_same_coordinates(problem) -> None:
    spaces, _, plans = problem
    wanted = joint_embedding(spaces, plans, tol=1e-9, random_state=0)
    order = np.random.default_rng(0).permutation(SIZES[1])
    turned = DenseCoupling(plans[0].to_dense()[order].T)
    shuffled = [spaces[2], spaces[1][order], spaces[0]]
    found = joint_embedding(shuffled, {(0, 2): plans[1], (2, 1): turned}, anchor=2, tol=1e-9, random_state=1)
    assert_equal(found, [wanted.coordinates[2], wanted.coordinates[1][order], wanted.coordinates[0]], 1e-6)


def test_a_list_of_results_belongs_to_the_spaces_without_the_anchor(problem) -> None:
    spaces, _, plans = problem
    wanted = joint_embedding(spaces, plans, anchor=0)
    found = joint_embedding([spaces[1], spaces[0], spaces[2]], plans, anchor=1)
    assert_equal(found, [wanted.coordinates[i] for i in (1, 0, 2)], 1e-8)
    assert found.anchor == 1


@pytest.mark.usefixtures("iterative")
def test_a_seed_gives_the_same_bits_and_other_seeds_the_same_to_tolerance(problem) -> None:
    spaces, _, plans = problem
    first, again, other = (joint_embedding(spaces, plans, 3, tol=1e-6, random_state=seed) for seed in (0, 0, 1))
    for one, two in zip(first.coordinates, again.coordinates, strict=True):
        assert (one == two).all()
    assert any((one != two).any() for one, two in zip(first.coordinates, other.coordinates, strict=True))
    assert_equal(other, first.coordinates, 1e-5)
    drawn = joint_embedding(spaces, plans, 3, tol=1e-6, random_state=generator(3))
    assert_equal(drawn, first.coordinates, 1e-5)


def test_the_largest_entry_in_the_anchor_is_positive(problem) -> None:
    spaces, _, plans = problem
    for anchor, pairs in ((0, plans), (1, {(1, 0): plans[0], (2, 0): plans[1]})):
        own = joint_embedding(spaces, pairs, 5, anchor=anchor).coordinates[anchor]
        assert (own[np.abs(own).argmax(0), np.arange(5)] > 0).all()


def test_of_equal_largest_entries_the_first_is_positive() -> None:
    """A path whose ends differ by less than one part in a thousand; which end is the larger does not matter."""
    graph, _ = path_graph([1.0] * 20)
    for larger in (0, -1):
        plan = torch.eye(21, dtype=torch.float64)
        plan[larger, larger] -= 1e-3
        found = joint_embedding([graph, graph], [DenseCoupling(plan)], 1).coordinates[0][:, 0]
        assert found[0] == pytest.approx(-found[-1], rel=1e-3)
        assert np.abs(found).argmax() == range(21)[larger]
        assert found[0] > 0


def tiled(plan: PotentialCoupling) -> TiledCoupling:
    """The same plan on tiles, all of them kept, and a small correction."""
    n, k = plan.shape
    size = 64
    rows, columns = -(-n // size), -(-k // size)
    tiles = Tiles(size, n, k, torch.arange(rows + 1) * columns, torch.arange(columns).repeat(rows))
    factored = FactoredPlan(
        plan.A,
        plan.B,
        plan.f,
        plan.g,
        torch.full((n,), 1e-3 / n, dtype=torch.float64),
        torch.full((k,), 1 / k, dtype=torch.float64),
        torch.randperm(n, generator=generator()),
        torch.randperm(k, generator=generator(1)),
        tiles=tiles,
    )
    return TiledCoupling(factored)


def low_rank(n: int, k: int) -> LowRankCoupling:
    rng = np.random.default_rng(0)
    Q, R = (torch.from_numpy(rng.exponential(size=(size, 4)) ** 2) for size in (n, k))
    g = torch.full((4,), 0.25, dtype=torch.float64)
    return LowRankCoupling(Q / Q.sum(0) * g, R / R.sum(0) * g, g)


@pytest.mark.parametrize("kind", ["tiled", "low-rank", "float32"])
def test_every_kind_of_coupling_gives_the_coordinates_of_its_dense_plan(problem, kind: str) -> None:
    spaces, _, plans = problem
    n, k = SIZES[1], SIZES[0]
    single = DenseCoupling(plans[0].to_dense().float())
    plan = {"tiled": tiled(plans[0]), "low-rank": low_rank(n, k), "float32": single}[kind]
    wanted = joint_embedding(spaces[:2], [DenseCoupling(plan.to_dense().double())])
    assert_equal(joint_embedding(spaces[:2], [plan]), wanted.coordinates, 2e-5)


class Reluctant:
    """A coupling that can be applied and nothing else, to bounded numbers of columns."""

    def __init__(self, plan: PotentialCoupling) -> None:
        self._plan, self.shape, self.widest = plan, plan.shape, 0

    def marginal(self, axis: int) -> torch.Tensor:
        return self._plan.marginal(axis)

    def apply(self, V: torch.Tensor, axis: int) -> torch.Tensor:
        self.widest = max(self.widest, V.shape[1])
        return self._plan.apply(V, axis)

    def refuse(self, *_: object) -> torch.Tensor:
        raise AssertionError("a plan was read entry by entry")

    rows = sample_columns = top_k = argmax = to_dense = to_sparse = refuse


@pytest.mark.usefixtures("iterative")
def test_plans_are_applied_to_a_block_of_columns_and_never_stored(problem) -> None:
    spaces, _, plans = problem
    reluctant = [Reluctant(plan) for plan in plans]
    found = joint_embedding(spaces, reluctant, tol=1e-9, random_state=0)
    assert_equal(found, joint_embedding(spaces, plans, tol=1e-9, random_state=0).coordinates, 0)
    assert [plan.widest for plan in reluctant] == [eigen.BLOCK] * 2


PEAK = r"""
import re
from pathlib import Path
import numpy as np
import torch
from tests.test_embedding import curve, foscttm, matched
from torchgw.couplings.potential import PotentialCoupling
from torchgw.embedding import joint_embedding

def peak():
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024

n, k = 6000, 7000
(x, s), (y, t) = curve(n, 0), curve(k, 1, 3)
small = joint_embedding([x[::20], y[::20]], [matched(t[::20], s[::20])], random_state=0)  # loads what has to be loaded
base2 = 1 / (2 * np.log(2) * 0.05**2)
log_row = torch.cat([matched(part, t).f for part in np.array_split(s, 60)])
plan = PotentialCoupling(
    torch.from_numpy(2 * base2 * s)[:, None], torch.from_numpy(t)[:, None], log_row, torch.from_numpy(-base2 * t**2)
)
before = peak()
found = joint_embedding([x, y], {(0, 1): plan}, random_state=0)
assert found.converged and found.solver == "lobpcg"
assert foscttm(*(part[::20] for part in (found.coordinates[0], s, found.coordinates[1], t))) < 0.05
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.slow
def test_a_large_embedding_stores_no_pairs() -> None:
    """6000 x 7000: the plan would take 336 MB in float64, 168 MB in float32."""
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) < 1.2e8


@pytest.fixture(scope="module")
def aligned() -> tuple[list[np.ndarray], list[np.ndarray], list[GWResult]]:
    """A spiral, a Swiss roll and a rotated spiral in five dimensions, their angles, and the results of `gw_align`."""
    (x, s), (y, t), (z, u) = make_spiral(150), make_swiss_roll(150, random_state=12), make_spiral(160, random_state=4)
    frame, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 5)))
    spaces, angles = [x, y, 30 * z @ frame[:2] + 7], [s, t, u]
    return spaces, angles, [gw_align(spaces[i], x, epsilon=5e-3, random_state=0) for i in (1, 2)]


def test_matched_points_of_a_spiral_a_roll_and_a_noisy_copy_are_close(aligned) -> None:
    spaces, angles, results = aligned
    found = joint_embedding(spaces, results, random_state=0)
    z = found.coordinates
    for i in (1, 2):
        assert foscttm(z[i], angles[i], z[0], angles[0]) < 0.02
        assert foscttm(z[0], angles[0], z[i], angles[i]) < 0.02
    for own, angle in zip(z, angles, strict=True):
        assert abs(spearmanr(own[:, 0], angle)[0]) > 0.998
    nearest = np.abs(angles[1][:, None] - angles[2]).argmin(1)
    assert np.linalg.norm(z[1] - z[2][nearest], axis=1).mean() < 0.15  # beside coordinates of variance 1


def test_spaces_of_very_different_sizes_are_joined_as_well() -> None:
    (x, s), (y, t) = curve(600, 0), curve(40, 1, 3)
    found = joint_embedding([x, y], [matched(t, s)], random_state=0)
    assert foscttm(found.coordinates[1], t, found.coordinates[0], s) < 0.03


def test_a_larger_coupling_weight_draws_matched_points_together(problem) -> None:
    spaces, positions, _ = problem
    plan = matched(positions[1], positions[0], 0.01)
    T = plan.to_dense().numpy()
    gaps = []
    for weight in (0.03, 0.3, 3.0, 30.0):
        z = joint_embedding(spaces[:2], [plan], coupling_weight=weight).coordinates
        gaps.append(np.linalg.norm(z[1] - T @ z[0] / T.sum(1, keepdims=True), axis=1).mean())
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 0.2 * gaps[0]


def test_views_of_digits_share_coordinates_in_which_classes_are_found_across_them() -> None:
    """The right half of a digit takes the class of the left halves nearest to it; a quarter of the pairs are wrong."""
    from sklearn.datasets import load_digits
    from sklearn.neighbors import KNeighborsClassifier

    images, label = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    chosen = rng.permutation(len(images))[:400]
    left, right = (images[chosen].reshape(-1, 8, 8)[:, :, half].reshape(-1, 32) for half in (slice(4), slice(4, 8)))
    partner, wrong = np.arange(400), rng.permutation(400)[:100]
    partner[wrong] = rng.permutation(partner[wrong])
    plan = DenseCoupling(torch.from_numpy(np.eye(400)[partner] / 400))
    z = joint_embedding([left, right], [plan], 9, random_state=0).coordinates
    judge = KNeighborsClassifier(5).fit(z[0], label[chosen])
    assert judge.score(z[1], label[chosen]) > 0.8


def test_tensors_come_out_for_tensors_and_arrays_for_all_else(problem) -> None:
    spaces, _, plans = problem
    wanted = joint_embedding(spaces, plans)
    given = [torch.from_numpy(spaces[0]).requires_grad_(), spaces[1].tolist(), torch.from_numpy(spaces[2])]
    found = joint_embedding(given, plans)
    assert [type(part) for part in found.coordinates] == [torch.Tensor, np.ndarray, torch.Tensor]
    assert {part.dtype for part in found.coordinates} == {torch.float64, np.dtype(np.float64)}
    assert_equal(found, wanted.coordinates, 1e-12)


def test_a_graph_is_taken_as_it_is_and_points_as_their_neighbour_graph(problem) -> None:
    spaces, _, plans = problem
    wanted = joint_embedding(spaces, plans, k=10)
    found = joint_embedding([spaces[0], build_graph(spaces[1], 10)[0], spaces[2]], plans, k=10)
    assert_equal(found, wanted.coordinates, 1e-12)
    assert found.graphs[1] is None
    assert [found.graphs[i].k for i in (0, 2)] == [10, 10]


def test_a_distance_matrix_does_as_well_as_its_points(problem) -> None:
    spaces, positions, plans = problem
    matrix = np.linalg.norm(spaces[1][:, None] - spaces[1], axis=2)
    found = joint_embedding([spaces[0], matrix], plans[:1]).coordinates
    assert foscttm(found[1], positions[1], found[0], positions[0]) < 0.05
    own = joint_embedding(spaces[:2], plans[:1]).coordinates
    assert np.corrcoef(found[1][:, 0], own[1][:, 0])[0, 1] > 0.999


def test_the_graph_of_a_distance_matrix_joins_what_is_near_and_all_that_can_be_joined() -> None:
    points = np.concatenate((np.arange(20.0), np.arange(20.0) + 100.0, [5.0]))[:, None]
    matrix = np.abs(points - points.T)
    graph = make_matrix_graph(matrix, 2)
    assert (graph != graph.T).nnz == 0
    assert not (graph.indices == np.repeat(np.arange(41), np.diff(graph.indptr))).any()
    assert graph[19, 20] == 81.0
    assert graph[0, 1] == 1.0
    assert graph[0, 10] == 0
    assert graph.indptr[41] - graph.indptr[40] >= 2  # the duplicate of point 5
    from scipy.sparse.csgraph import connected_components

    assert connected_components(graph + 1e-9 * (graph != 0))[0] == 1
    apart = np.where(np.abs((points > 50) * 1.0 - (points > 50).T), np.inf, matrix)
    assert np.isfinite(make_matrix_graph(apart, 30).data).all()


def test_affinities_are_nowhere_negligible(problem) -> None:
    W = compute_affinities(build_graph(problem[0][2])[0])
    assert W.data.min() >= np.exp(-1) - 1e-12
    assert W.data.max() <= 1
    zero = csr_matrix((np.array([0.0, 0.0, 2.0, 2.0]), ([0, 1, 1, 2], [1, 0, 2, 1])), shape=(3, 3))
    np.testing.assert_allclose(compute_affinities(zero).data, [1, 1, np.exp(-1), np.exp(-1)])
    assert compute_affinities(csr_matrix((4, 4))).nnz == 0


def without_mass(plan: PotentialCoupling, rows: np.ndarray) -> DenseCoupling:
    T = plan.to_dense().clone()
    T[torch.from_numpy(rows)] = 0
    return DenseCoupling(T)


def test_points_without_mass_hang_on_their_own_graph(problem) -> None:
    spaces, positions, plans = problem
    idle = np.flatnonzero((positions[1] > 0.4) & (positions[1] < 0.6))
    found = joint_embedding(spaces, [without_mass(plans[0], idle), plans[1]]).coordinates
    assert all(np.isfinite(part).all() for part in found)
    assert spearmanr(found[1][idle, 0], positions[1][idle])[0] ** 2 > 0.98
    assert foscttm(found[1], positions[1], found[0], positions[0]) < 0.1


def test_parts_of_a_graph_that_plans_join_have_coordinates(problem) -> None:
    """Two halves of a graph without an edge between them; one of them leads to the anchor by the third space alone."""
    spaces, positions, plans = problem
    half = int((positions[1] < 0.5).sum())
    graph = block_diag([build_graph(part)[0] for part in (spaces[1][:half], spaces[1][half:])], format="csr")
    through = matched(positions[2], positions[1])
    pairs = {(1, 0): without_mass(plans[0], np.arange(half)), (2, 0): plans[1], (2, 1): through}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = joint_embedding([spaces[0], graph, spaces[2]], pairs).coordinates
    assert foscttm(found[1], positions[1], found[0], positions[0]) < 0.05


@pytest.mark.parametrize("solver", ["dense", "lobpcg"])
def test_parts_that_nothing_joins_are_nan_and_the_others_as_if_alone(problem, monkeypatch, solver: str) -> None:
    if solver == "lobpcg":
        monkeypatch.setattr(eigen, "DENSE", 0)
    spaces, _, plans = problem
    own = build_graph(spaces[1])[0]
    longer = block_diag([own, path_graph([1.0, 1.0])[0], csr_matrix((1, 1))], format="csr")
    plan = DenseCoupling(torch.cat((plans[0].to_dense(), torch.zeros(4, SIZES[0], dtype=torch.float64))))
    with pytest.warns(GraphWarning, match=r"4 points of spaces\[1\]"):
        found = joint_embedding([spaces[0], longer, spaces[2]], [plan, plans[1]], tol=1e-9, random_state=0)
    assert found.solver == solver
    wanted = joint_embedding([spaces[0], own, spaces[2]], plans, tol=1e-9, random_state=0).coordinates
    assert np.isnan(found.coordinates[1][-4:]).all()
    found_finite = [found.coordinates[0], found.coordinates[1][:-4], found.coordinates[2]]
    for have, want in zip(found_finite, wanted, strict=True):
        np.testing.assert_allclose(have, want, atol=1e-6)


def test_a_space_whose_mass_goes_nowhere_near_the_anchor_is_refused() -> None:
    """Two parts of the anchor's graph, each with a space of its own."""
    part = path_graph([1.0] * 9)[0]
    anchor, identity, zero = block_diag([part, part], format="csr"), torch.eye(10), torch.zeros(10, 10)
    first, second = (DenseCoupling(torch.cat(halves, 1)) for halves in ((identity, zero), (zero, identity)))
    with pytest.raises(ValueError, match=r"results must join spaces\[2\] with the anchor, got plans without mass"):
        joint_embedding([anchor, part, part], [first, second])


def test_data_in_separate_parts_are_stitched_with_a_warning() -> None:
    x = np.random.default_rng(0).normal(size=(60, 2)) + np.repeat([0.0, 100.0], 30)[:, None]
    plan = DenseCoupling(torch.eye(60, dtype=torch.float64))
    with pytest.warns(GraphWarning, match=r"spaces\[0\] has 2 components"):
        found = joint_embedding([x, make_spiral(60)[0]], [plan])
    assert all(np.isfinite(part).all() for part in found.coordinates)


@pytest.mark.usefixtures("iterative")
def test_what_is_not_converged_warns_and_says_so(problem) -> None:
    spaces, _, plans = problem
    with pytest.warns(ConvergenceWarning, match="after 4 applications of each plan.*raise max_iter"):
        found = joint_embedding(spaces, plans, max_iter=4, tol=1e-6, random_state=0)
    assert not found.converged
    assert found.n_iter == 4
    assert found.residuals.max() > 1e-6
    assert "not converged" in repr(found)


@pytest.mark.usefixtures("iterative")
def test_residuals_are_measured_so_that_a_plan_in_single_precision_cannot_pass_for_exact(problem) -> None:
    spaces, _, plans = problem
    single = [DenseCoupling(plan.to_dense().float()) for plan in plans]
    with pytest.warns(ConvergenceWarning, match="not read more precisely, so raise tol"):
        found = joint_embedding(spaces, single, tol=1e-9, random_state=0)
    assert not found.converged
    assert found.n_iter < 100
    assert_equal(found, joint_embedding(spaces, plans, tol=1e-9, random_state=0).coordinates, 1e-4)


@pytest.mark.usefixtures("iterative")
def test_as_many_components_as_the_smallest_space_has_points_but_one(problem) -> None:
    spaces, _, plans = problem
    found = joint_embedding(spaces, plans, min(SIZES) - 1, random_state=0)
    assert found.coordinates[0].shape == (SIZES[0], min(SIZES) - 1)
    assert (np.diff(found.eigenvalues) >= -1e-12).all()


@pytest.mark.usefixtures("iterative")
def test_lobpcg_finds_a_spectrum_that_is_known_with_multiplicities_through_rounds() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate(([0.0, 1e-4, 1e-4, 1e-4, 3e-4, 1e-3], np.linspace(2e-3, 2.0, 494)))
    Q, _ = np.linalg.qr(rng.normal(size=(500, 500)))
    matrix = (Q * values) @ Q.T
    calls = []

    def apply(V: np.ndarray) -> np.ndarray:
        calls.append(V.shape)
        return matrix @ V

    found = eigen.smallest_eigenpairs(apply, Q[:, 0], 5, lambda n, b: rng.normal(size=(n, b)), 1e-7, 500)
    assert len(calls) == found.n_iter > eigen.ROUND + eigen.LEAST  # more than one round
    np.testing.assert_allclose(found.values, values[1:6], rtol=1e-10)
    np.testing.assert_allclose(np.linalg.svd(found.vectors[:, :3].T @ Q[:, 1:4])[1], 1, rtol=1e-10)
    true = np.linalg.norm(matrix @ found.vectors - found.vectors * found.values, axis=0)
    np.testing.assert_allclose(found.residuals, true / found.values, rtol=1e-3)
    assert found.residuals.max() <= 1e-7


def test_an_eigenvalue_of_two_does_not_hide_behind_the_constant() -> None:
    """Graphs without edges: plan and constant alone, a bipartite graph whose largest eigenvalue is 2."""
    none = csr_matrix((6, 6))
    T = torch.eye(6, dtype=torch.float64) + torch.eye(6, dtype=torch.float64).roll(1, 1)
    ring = np.sort(1 - np.cos(np.pi * np.arange(12) / 6))
    found = joint_embedding([none, none], [DenseCoupling(T)], 5)
    np.testing.assert_allclose(found.eigenvalues, ring[1:6], atol=1e-12)
    adjacency = torch.kron(torch.tensor([[0, 1], [0, 0]]), T) / 2
    laplacian = (torch.eye(12) - adjacency - adjacency.T).numpy()
    whole = eigen.solve_dense(lambda V: laplacian @ V, np.full(12, 12**-0.5), 11)
    np.testing.assert_allclose(whole.values, ring[1:], atol=1e-12)
    np.testing.assert_allclose(whole.vectors.sum(0), 0, atol=1e-12)


def test_bad_spaces_are_refused(problem) -> None:
    spaces, _, plans = problem
    with pytest.raises(TypeError, match="spaces must be a list of data sets, got ndarray"):
        joint_embedding(spaces[0], plans)
    with pytest.raises(ValueError, match="spaces must hold at least 2 data sets, got 1"):
        joint_embedding(spaces[:1], [])
    broken = spaces[2].copy()
    broken[3, 1] = np.nan
    with pytest.raises(ValueError, match=r"spaces\[2\] must be finite, got 1 NaN"):
        joint_embedding([spaces[0], spaces[1], broken], plans)
    with pytest.raises(ValueError, match=r"spaces\[1\] must be a symmetric.*give .*neighbour_graph\(points\)"):
        joint_embedding([spaces[0], np.arange(9.0).reshape(3, 3)], plans[:1])
    with pytest.raises(TypeError, match=r"spaces\[1\] must be an array of real numbers"):
        joint_embedding([spaces[0], PrecomputedDistances(np.ones((3, 3)) - np.eye(3))], plans[:1])
    with pytest.raises(ValueError, match=r"spaces\[1\] must be an array of shape \(N, D\), got an unreadable one"):
        joint_embedding([spaces[0], [[1.0], [1.0, 2.0]]], plans[:1])
    with pytest.raises(ValueError, match=r"k must be smaller than the number of points of spaces\[1\], got k = 20"):
        joint_embedding([spaces[0], spaces[1][:10]], plans[:1], k=20)
    with pytest.raises(ValueError, match="k must be >= 1, got 0"):
        joint_embedding(spaces, plans, k=0)


def test_bad_results_are_refused(problem) -> None:
    spaces, positions, plans = problem
    with pytest.raises(ValueError, match="one result for each space but the anchor, 2, got 1"):
        joint_embedding(spaces, plans[:1])
    with pytest.raises(TypeError, match=r"results must be a list or a dict.*give one result as \[result\]"):
        joint_embedding(spaces[:2], plans[0])
    with pytest.raises(TypeError, match=r"results\[0\] must be a result of gw_align or a coupling, got ndarray"):
        joint_embedding(spaces[:2], [plans[0].to_dense().numpy()])
    turned = r"\(170, 140\), got \(140, 170\); it is turned: .* or a dict \{\(0, 1\): this result"
    with pytest.raises(ValueError, match=turned):
        joint_embedding(spaces[:2], [matched(positions[0], positions[1])])
    with pytest.raises(ValueError, match=r"results\[1\] must have the points of spaces\[2\] as rows.*give gw_align"):
        joint_embedding(spaces, [plans[0], plans[0]])
    with pytest.raises(ValueError, match=r"got none that leads to spaces \[2\]"):
        joint_embedding(spaces, {(1, 0): plans[0]})
    with pytest.raises(ValueError, match="got none that leads to spaces"):
        joint_embedding(spaces, {})
    with pytest.raises(TypeError, match="pairs of indices"):
        joint_embedding(spaces, {1: plans[0]})
    with pytest.raises(ValueError, match="two different spaces"):
        joint_embedding(spaces, {(1, 1): plans[0]})
    with pytest.raises(ValueError, match=r"key \(3, 0\) of results must be in \[0, 2\], got 3"):
        joint_embedding(spaces, {(3, 0): plans[0]})
    for bad in (0.0, torch.nan, torch.inf):
        with pytest.raises(ValueError, match=r"results\[0\] must have finite masses with a positive sum"):
            joint_embedding(spaces[:2], [DenseCoupling(torch.full((170, 140), bad, dtype=torch.float64))])


def test_a_result_of_the_reversed_spaces_is_refused_where_shapes_cannot_tell(aligned) -> None:
    (x, y, _), _, (result, _) = aligned  # rows y, columns x
    assert result.shape == (150, 150)
    with pytest.raises(ValueError, match="from the spaces in reverse order; it is turned"):
        joint_embedding([y, x], [result])
    turned = joint_embedding([y, x], {(0, 1): result}, anchor=1)
    assert_equal(joint_embedding([x, y], [result]), turned.coordinates[::-1], 1e-6)
    assert joint_embedding([y + 1, x], [result]).converged  # not the points that it was solved for: nothing is known


def test_bad_numbers_are_refused(problem) -> None:
    spaces, _, plans = problem
    with pytest.raises(ValueError, match=r"n_components must be below .* got 140 and 140 points in spaces\[0\]"):
        joint_embedding(spaces, plans, 140)
    with pytest.raises(ValueError, match="n_components must be >= 1, got 0"):
        joint_embedding(spaces, plans, 0)
    with pytest.raises(ValueError, match=r"anchor must be in \[0, 2\], got 3"):
        joint_embedding(spaces, plans, anchor=3)
    for name, value in (("coupling_weight", 0.0), ("coupling_weight", np.inf), ("tol", 0.0), ("max_iter", 2)):
        with pytest.raises(ValueError, match=f"{name} must be"):
            joint_embedding(spaces, plans, **{name: value})
    with pytest.raises(TypeError, match="random_state must be"):
        joint_embedding(spaces, plans, random_state="0")


def test_the_code_in_the_document_runs(capsys: pytest.CaptureFixture[str]) -> None:
    left = run_blocks(DOCS / "embedding.md")
    assert foscttm(left["y"], left["t"], left["x"], left["s"]) < 0.02
    assert "JointEmbedding(300 + 350 + 320 points, 2 components, converged, solver dense)" in capsys.readouterr().out

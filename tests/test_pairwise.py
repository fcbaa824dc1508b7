"""All pairs of many spaces: values against oracles, exactness, independence of everything but the two spaces."""

from __future__ import annotations

import itertools
import math
import os
import signal
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from joblib import parallel_config
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist, squareform
from sklearn.cluster import AgglomerativeClustering

from benchmarks.pairwise import hops
from tests.problems import ROLL, SPIRAL, gw_by_enumeration, random_distances, random_masses
from torchgw import (
    ConvergenceWarning,
    EuclideanDistances,
    GWOptions,
    PairwiseResult,
    Progress,
    SpaceOptions,
    TorchGWWarning,
    gw_align,
    gw_neighbours,
    gw_pairwise,
)
from torchgw.batched import solve as batch
from torchgw.batched.polish import polish
from torchgw.batched.space import prepare_space
from torchgw.objective.bounds import lower_bounds, signature
from torchgw.pairwise import PairStatus, inputs, schedule
from torchgw.pairwise.result import condensed_index
from torchgw.pairwise.schedule import make_tiles
from torchgw.solvers import linear_oracle
from torchgw.spaces.graph import neighbour_graph

CPU = torch.device("cpu")


def shape(kind: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """Points on a segment, a circle, or in two balls; turned at random."""
    t = rng.uniform(size=n)
    if kind == 0:
        x = np.stack((2 * t, np.zeros(n), np.zeros(n)), 1)
    elif kind == 1:
        x = np.stack((np.cos(2 * np.pi * t), np.sin(2 * np.pi * t), np.zeros(n)), 1)
    else:
        x = 0.2 * rng.normal(size=(n, 3)) + np.where(t < 0.5, -1.0, 1.0)[:, None] * np.array([1.0, 0, 0])
    turned = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    return (x + 0.01 * rng.normal(size=(n, 3))) @ turned


SIZES = (17, 90, 41, 64, 120, 33)
KINDS = (0, 1, 2, 0, 1, 2)
CLOUDS = [shape(kind, n, np.random.default_rng(n)) for kind, n in zip(KINDS, SIZES, strict=True)]
MATRICES = [cdist(x, x) for x in CLOUDS]


def pairwise(spaces: Any, **keywords: Any) -> PairwiseResult:
    return gw_pairwise(spaces, **{"random_state": 0, "distances": "euclidean", **keywords})


@pytest.fixture(scope="module")
def found() -> PairwiseResult:
    return pairwise(CLOUDS, keep="matchings")


def test_plans_have_exact_marginals_and_values_are_theirs() -> None:
    rng = np.random.default_rng(0)
    for n, k in ((9, 9), (12, 7), (45, 38), (100, 70)):
        DX, DY = random_distances(n, rng), random_distances(k, rng)
        p, q = (random_masses(n, rng), random_masses(k, rng)) if n != 9 else (np.full(9, 1 / 9), np.full(9, 1 / 9))
        (solved,) = batch.solve_batch(
            [(prepare_space(DX, p, 0, metric=True), prepare_space(DY, q, 0, metric=True))], 1e-2, CPU
        )
        T = solved.plan.numpy()
        assert T.min() >= 0
        np.testing.assert_allclose(T.sum(1), p, atol=1e-13)
        np.testing.assert_allclose(T.sum(0), q, atol=1e-13)
        if n < 40:
            value = gw_by_enumeration(DX, DY, T)
        else:
            value = p @ DX**2 @ p + q @ DY**2 @ q - 2 * np.sum(DX @ T @ DY * T)
        assert solved.value == pytest.approx(value, rel=1e-10)


def test_the_best_matching_of_a_few_points_is_mostly_found() -> None:
    """Of all 720; a gap of tol is all that is promised, and tol bounds what it costs."""
    shares: dict[float, list[float]] = {1e-9: [], 1e-2: []}
    for seed in range(30):
        rng = np.random.default_rng(seed)
        DX, DY = random_distances(6, rng), random_distances(6, rng)
        best = min(np.square(DX - DY[np.ix_(order, order)]).mean() for order in itertools.permutations(range(6)))
        for tol, found in shares.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                found.append(pairwise([DX, DY], distances="precomputed", tol=tol).values[0] / best)
    assert np.mean(np.array(shares[1e-9]) <= 1 + 1e-9) >= 0.9
    assert max(shares[1e-9]) <= 1.02
    assert np.mean(shares[1e-2]) <= 1.005


def test_turned_and_shuffled_copies_are_at_no_distance() -> None:
    rng = np.random.default_rng(3)
    for x in CLOUDS:
        copy = (x @ np.linalg.qr(rng.normal(size=(3, 3)))[0])[rng.permutation(len(x))]
        own = pairwise([x, copy], scale="own")
        assert own.values[0] < 1e-10, len(x)
        assert own.converged


@pytest.mark.bits
def test_spaces_of_one_size_may_change_places() -> None:
    rng = np.random.default_rng(20)
    x, y = rng.normal(size=(2, 25, 2))
    there, back = (pairwise(order, keep="matchings") for order in ([x, y], [y, x]))
    assert there.values[0] == back.values[0]
    np.testing.assert_array_equal(there.matching(0, 1), back.matching(1, 0))


@pytest.mark.parametrize("sizes", [(120, 120), (120, 90)])
def test_hop_counts_of_many_ties_are_settled(sizes: tuple[int, int]) -> None:
    """The exact gap of an optimal vertex counts, not only what potentials can show."""
    D = [hops(np.random.default_rng(0), n) for n in sizes]
    order = np.random.default_rng(1).permutation(len(D[1]))
    result = pairwise([D[0], D[1][np.ix_(order, order)]], distances="precomputed", tol=1e-6)
    assert result.converged


def test_masses_of_any_range_give_plans_with_their_marginals() -> None:
    """Of a range that float32 cannot have as well."""
    rng = np.random.default_rng(43)
    x, y = rng.uniform(-9, 9, (50, 2)), rng.uniform(-9, 9, (40, 2))
    for masses in (
        [np.exp(-np.square(z).sum(1) / 2) for z in (x, y)],
        [10.0 ** rng.uniform(-12, 0, len(z)) for z in (x, y)],
        [10.0 ** rng.uniform(-60, 0, len(z)) for z in (x, y)],
    ):
        result = pairwise([x, y], masses=masses)
        assert result.marginal_errors[0] < 1e-13
        assert result.converged
        p, q = (mass / mass.sum() for mass in masses)
        assert result.values[0] <= p @ cdist(x, x) ** 2 @ p + q @ cdist(y, y) ** 2 @ q


@pytest.mark.filterwarnings("ignore::torchgw.ConvergenceWarning")
@pytest.mark.parametrize("rest", [1e-4, 1e-6, 1e-9, 1e-14])
def test_a_space_with_nearly_all_mass_at_one_point_is_found_or_said_not_to_be(rest: float) -> None:
    x = np.random.default_rng(0).normal(size=(30, 2))
    mass = np.r_[1.0, np.full(29, rest)]
    result = pairwise([x, x[::-1]], masses=[mass, mass[::-1]])
    assert (result.values[0] == 0) == result.converged >= (rest > 1e-8)


def test_copies_tie_at_exactly_nothing() -> None:
    result = pairwise([CLOUDS[2]] * 3)
    np.testing.assert_array_equal(result.condensed, np.zeros(3))
    near = [MATRICES[3] * (1 + 1e-10 * i) for i in range(6)]
    square = pairwise(near, distances="precomputed").square()
    np.fill_diagonal(square, np.inf)
    nearest = gw_neighbours(near, 2, distances="precomputed", random_state=0)
    np.testing.assert_array_equal(nearest.indices, np.argsort(square, 1, kind="stable")[:, :2])


def test_values_are_no_worse_than_those_of_single_solves(found: PairwiseResult) -> None:
    pairs, single = list(itertools.combinations((0, 2, 3, 5), 2)), []
    unscaled = GWOptions(spaces=SpaceOptions(scale=1.0))
    for i, j in pairs:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TorchGWWarning)
            solved = gw_align(CLOUDS[i], CLOUDS[j], distances="euclidean", epsilon=0, random_state=0, options=unscaled)
        assert solved.scales == (1.0, 1.0)
        single.append(solved.value)
    values = np.array([found.values[found.pair(*pair)] for pair in pairs])
    assert values.mean() <= 1.01 * np.mean(single)
    assert (values <= 1.05 * np.array(single)).all()


def test_a_point_is_as_far_as_the_other_space_is_wide() -> None:
    rng = np.random.default_rng(1)
    D, mass = random_distances(30, rng), random_masses(30, rng)
    one, same = np.zeros((1, 1)), np.zeros((4, 4))
    spread = mass @ D**2 @ mass
    result = gw_pairwise([one, D, same], masses=[None, mass, None], distances="precomputed", random_state=0)
    np.testing.assert_allclose(result.values, [spread, 0.0, spread], rtol=1e-12, atol=1e-15)
    assert result.converged
    np.testing.assert_array_equal(gw_pairwise([np.zeros((1, 2)), np.ones((1, 5))]).condensed, [0.0])


def test_points_without_mass_are_as_if_they_were_not_there() -> None:
    rng = np.random.default_rng(2)
    D, mass = random_distances(40, rng), random_masses(40, rng)
    kept = np.flatnonzero(rng.uniform(size=40) < 0.7)
    sparse = np.zeros(40)
    sparse[kept] = mass[kept]
    D[0, 1] = D[1, 0] = D.max()  # shared by both calls: the unit is the largest distance
    sparse[:2], kept = 0.1, np.union1d(kept, [0, 1])
    both = [
        gw_pairwise([MATRICES[2], left], masses=[None, own], distances="precomputed", random_state=0, keep="matchings")
        for left, own in ((D, sparse), (D[np.ix_(kept, kept)], sparse[kept]))
    ]
    assert both[0].values[0] == both[1].values[0]
    matching = both[0].matching(1, 0)
    np.testing.assert_array_equal(matching[kept], both[1].matching(1, 0))
    assert (np.delete(matching, kept) == -1).all()
    assert np.isin(both[0].matching(0, 1), kept).all()


def test_bits_depend_on_the_two_spaces_alone(found: PairwiseResult) -> None:
    """Not on the other pairs, the number of threads or of processes."""
    largest = int(np.argmax([D.max() for D in MATRICES]))
    for i, j in ((0, 3), (2, 5), (1, 3)):
        alone = pairwise([CLOUDS[k] for k in (i, j, largest)])
        assert alone.values[0] == found.values[found.pair(i, j)]
    threads = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            seen: list[int] = []
            again = pairwise(CLOUDS, callback=lambda _, seen=seen: seen.append(torch.get_num_threads()))
            np.testing.assert_array_equal(again.values, found.values)
            with ThreadPoolExecutor(1) as pool:
                seen.append(pool.submit(torch.get_num_threads).result())
            assert {*seen, torch.get_num_threads()} == {count}
            with parallel_config("threading", n_jobs=2):
                np.testing.assert_array_equal(pairwise(CLOUDS).values, found.values)
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(torch.get_num_threads).result() == torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)
    np.testing.assert_array_equal(pairwise(CLOUDS, n_jobs=2).values, found.values)


def test_bits_do_not_depend_on_how_many_pairs_go_together() -> None:
    """Pairs of one shape share batches; what fills a batch up to whole registers must not show."""
    rng = np.random.default_rng(7)
    clouds = [rng.normal(size=(33, 2)) for _ in range(7)]
    together = pairwise(clouds, scale="own")
    for i, j in itertools.combinations(range(7), 2):
        assert pairwise([clouds[i], clouds[j]], scale="own").values[0] == together.values[together.pair(i, j)], (i, j)
    np.testing.assert_array_equal(pairwise(clouds[::-1], scale="own").square()[::-1, ::-1], together.square())


@pytest.mark.bits
def test_a_batch_has_the_bits_of_its_pairs_alone() -> None:
    """Of odd numbers of registers of any width, wherever in it a pair stands: as annealed, for polished plans are
    vertices, which tell nothing of the last bits that led to them."""
    rng = np.random.default_rng(8)
    with schedule.one_thread_each(1) as pool:
        for (n, k), many in (((15, 12), 7), ((47, 20), 5), ((33, 33), 4), ((20, 12), 5)):
            drawn = [
                [prepare_space(random_distances(m, rng), random_masses(m, rng), 0, metric=True) for m in (n, k)]
                for _ in range(many)
            ]
            sides = [(x, y) for x, y in drawn]
            together = pool.submit(batch.solve_batch, sides, math.inf, CPU).result()
            for pair, both in zip(sides, together, strict=True):
                (alone,) = pool.submit(batch.solve_batch, [pair], math.inf, CPU).result()
                assert np.array_equal(alone.plan, both.plan), (n, k)
                assert (alone.value, alone.gap) == (both.value, both.gap)


@pytest.mark.bits
def test_temperatures_do_not_depend_on_their_place() -> None:
    ends = np.random.default_rng(9).uniform((0.5, 0.05), (2.0, 0.2), size=(45, 2)).tolist()
    together = batch._geometric_temperatures(*zip(*ends, strict=True), 7, CPU)
    alone = [batch._geometric_temperatures([first], [last], 7, CPU) for first, last in ends]
    assert torch.equal(together, torch.cat(alone, 1))


@pytest.mark.parametrize("seed", [3, 6])
def test_polishing_steps_do_not_overshoot(seed: int) -> None:
    """Where the value is convex between two plans, a whole step would raise it."""
    rng = np.random.default_rng(seed)
    drawn = rng.uniform(size=(2, 8, 8)) ** 4
    x, y = (prepare_space((D + D.T) * (1 - np.eye(8)), np.full(8, 1 / 8), 0, metric=True) for D in drawn)
    plan = torch.full((8, 8), 1 / 64, dtype=torch.float64)
    moved = torch.from_numpy(x.distances) @ plan @ torch.from_numpy(y.distances)
    found = polish(x, y, plan, torch.zeros(8, dtype=torch.float64), 1e-3)
    assert found.value < x.mean_square + y.mean_square - 2 * float((moved * plan).sum())
    assert found.gap <= 1e-3


def test_pairs_are_the_same_without_bindings_of_linear_programs(
    found: PairwiseResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    by_linprog = linear_oracle._solve_by_linprog
    monkeypatch.setattr(linear_oracle, "_load_bindings", lambda: None)
    monkeypatch.setattr(
        linear_oracle, "_solve_by_linprog", lambda *given: (seen.append(len(given[0])), by_linprog(*given))[1]
    )
    # Without a basis the candidates of a step are others, and a few steps may lead to an end nearby.
    np.testing.assert_allclose(pairwise(CLOUDS).values, found.values, rtol=1e-3)
    assert seen


def test_units_are_those_of_the_data_and_own_scales_leave_shapes() -> None:
    three, seven = CLOUDS[:3], [7 * x for x in CLOUDS[:3]]
    np.testing.assert_allclose(pairwise(seven).condensed, 7 * pairwise(three).condensed, rtol=1e-6)
    own = pairwise([three[0], 5 * three[1], 0.1 * three[2]], scale="own")
    np.testing.assert_allclose(own.condensed, pairwise(three, scale="own").condensed, rtol=1e-6)
    np.testing.assert_allclose(own.scales, [MATRICES[0].max(), 5 * MATRICES[1].max(), 0.1 * MATRICES[2].max()])


def test_points_matrices_providers_and_tensors_are_the_same_spaces(found: PairwiseResult) -> None:
    np.testing.assert_array_equal(gw_pairwise(CLOUDS, random_state=0).values, found.values)
    mixed = [MATRICES[0], torch.from_numpy(MATRICES[1]), EuclideanDistances(CLOUDS[2]), *MATRICES[3:]]
    result = gw_pairwise(mixed, distances="auto", random_state=0)
    np.testing.assert_allclose(result.values, found.values, rtol=1e-6)
    joined = [SPIRAL, ROLL]
    by_graph = gw_pairwise([neighbour_graph(x, 5) for x in joined], scale="common", random_state=0)
    by_points = pairwise(joined, options=GWOptions(spaces=SpaceOptions(k=5)), distances="dijkstra")
    np.testing.assert_allclose(by_graph.values, by_points.values, rtol=1e-9)
    assert by_graph.values[0] != pytest.approx(pairwise(joined).values[0], rel=0.05)


def test_the_condensed_vector_is_what_scipy_and_scikit_learn_take(found: PairwiseResult) -> None:
    n = len(CLOUDS)
    assert found.complete
    assert found.converged
    np.testing.assert_array_equal(found.square(), squareform(found.condensed))
    assert [found.pair(i, j) for i, j in itertools.combinations(range(n), 2)] == list(range(n * (n - 1) // 2))
    assert found.pair(3, 1) == found.pair(1, 3) == condensed_index(1, 3, n)
    labels = fcluster(linkage(found.condensed, "average"), 3, "maxclust")
    assert len(set(zip(labels, KINDS, strict=True))) == 3
    merged = AgglomerativeClustering(3, metric="precomputed", linkage="average").fit_predict(found.square())
    assert len(set(zip(merged, KINDS, strict=True))) == 3
    assert "6 spaces, 15 pairs: 15 settled" in repr(found)


def test_matchings_of_a_shuffled_copy_are_the_shuffle() -> None:
    order = np.random.default_rng(4).permutation(SIZES[2])
    # The copy is larger than none and smaller than none; the third space turns the pair round.
    result = pairwise([CLOUDS[2], CLOUDS[2][order], CLOUDS[1]], keep="matchings")
    np.testing.assert_array_equal(result.matching(0, 1), np.argsort(order))
    np.testing.assert_array_equal(result.matching(1, 0), order)
    assert result.matching(0, 2).shape == (SIZES[2],)
    assert result.matching(2, 0).shape == (SIZES[1],)
    with pytest.raises(ValueError, match="i and j must differ, got 1 twice"):
        result.matching(1, 1)
    with pytest.raises(ValueError, match="matchings were not kept"):
        pairwise(CLOUDS[:2]).matching(0, 1)


def test_another_loss_of_large_spaces_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "LARGEST", 40)
    with pytest.raises(ValueError, match=r"options\.loss must be 'square' between many spaces, got 'kl'"):
        pairwise([CLOUDS[k] for k in (0, 2)], options=GWOptions(loss="kl"))


def test_large_spaces_are_aligned_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "LARGEST", 40)
    result = pairwise([CLOUDS[k] for k in (0, 2, 5)], keep="matchings", scale="own")
    expected = pairwise([CLOUDS[k] for k in (0, 5, 2)], scale="own")
    assert result.status.tolist() == [PairStatus.SETTLED] * 3
    assert result.values[1] == expected.values[0]  # of small spaces
    np.testing.assert_allclose(result.values[[0, 2]], expected.values[1:], rtol=0.02)
    assert result.matching(0, 1).shape == (SIZES[0],)
    assert (result.gaps <= 1e-2).all()
    assert pairwise([CLOUDS[2], CLOUDS[2][::-1]]).status[0] == PairStatus.SETTLED
    assert pairwise([CLOUDS[2], CLOUDS[2][::-1]]).condensed[0] == 0
    tiny = pairwise([CLOUDS[0] * 1e-9, CLOUDS[2] * 1e-9, np.eye(2)])
    own = pairwise([CLOUDS[0], CLOUDS[2]])
    assert tiny.values[0] / 1e-18 == pytest.approx(own.values[0], rel=1e-6)
    assert tiny.gaps[0] == pytest.approx(own.gaps[0], rel=1e-3, abs=1e-9)


def test_callbacks_hear_of_batches_and_end_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Progress] = []
    pairwise(CLOUDS, callback=heard.append)
    assert [told.iteration for told in heard] == sorted({told.iteration for told in heard})
    assert heard[-1].iteration == heard[-1].max_iter == 15
    assert heard[-1].marginal_error < 1e-12
    many = [CLOUDS[i % 6] for i in range(24)]
    begun: list[tuple[int, int]] = []
    solve = schedule.solve_task
    monkeypatch.setattr(schedule, "solve_task", lambda task: (begun.extend(task.pairs), solve(task))[1])
    with pytest.warns(ConvergenceWarning, match="pairs are pending: not solved yet"):
        cut = pairwise(many, callback=lambda told: told.iteration > 3)
    assert cut.n_solved == len(begun)  # what was at work is kept
    assert not cut.complete
    assert 3 < cut.n_solved < len(cut.values)
    assert np.isfinite(cut.values).sum() == cut.n_solved
    np.testing.assert_array_equal(np.isnan(cut.values), cut.status == PairStatus.PENDING)


def test_an_interrupt_returns_what_is_done_and_the_second_one_gives_up() -> None:
    before = signal.getsignal(signal.SIGINT)
    many = [CLOUDS[i % 6] for i in range(24)]

    def press(_: Progress) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.warns(ConvergenceWarning, match="pending"):
        cut = pairwise(many, callback=press)
    assert 0 < cut.n_solved < len(cut.values)
    with pytest.raises(KeyboardInterrupt):
        pairwise(many, callback=lambda told: (press(told), press(told)))
    with pytest.raises(KeyboardInterrupt):
        pairwise(many, n_jobs=1, callback=lambda told: (press(told), press(told)))
    assert signal.getsignal(signal.SIGINT) is before


def test_pairs_that_are_not_settled_or_fail_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    loose, strict = pairwise(CLOUDS[1:4]), pairwise(CLOUDS[1:4], tol=1e-6)
    assert (loose.gaps <= 1e-2).all()
    assert (strict.gaps <= 1e-6).all()
    assert (strict.values <= loose.values * (1 + 1e-9)).all()
    monkeypatch.setattr("torchgw.batched.polish.MOST_STEPS", 0)
    with pytest.warns(ConvergenceWarning, match="3 of 3 pairs are unsettled"):
        assert not pairwise(CLOUDS[1:4], tol=1e-6).converged
    monkeypatch.setattr("torchgw.batched.polish.make_feasible", lambda plans, p, q: torch.full_like(plans, torch.nan))
    with pytest.warns(ConvergenceWarning, match=r"1 of 1 pairs are failed: no finite value was found"):
        failed = pairwise(CLOUDS[1:3])
    assert np.isnan(failed.values[0])
    assert failed.status[0] == PairStatus.FAILED


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"spaces": [MATRICES[0]]}, ValueError, "spaces must hold at least 2 spaces, got 1"),
    ({"spaces": np.zeros((3, 4, 4))}, TypeError, r"spaces must be a list, or a dict by name, got ndarray; for a stack"),
    ({"spaces": [CLOUDS[0], np.zeros((4, 3, 2))]}, ValueError, r"spaces\[1\]"),
    ({"spaces": [CLOUDS[0], np.full((5, 2), np.nan)]}, ValueError, r"spaces\[1\]"),
    ({"spaces": [CLOUDS[0], np.zeros((0, 2))]}, ValueError, r"spaces\[1\]"),
    ({"spaces": [CLOUDS[0], "cloud.npy"]}, TypeError, r"spaces\[1\]"),
    ({"masses": [None, np.ones(3)]}, ValueError, r"masses\[1\] must have shape \(N,\) = \(41,\), got \(3,\)"),
    ({"masses": [None]}, ValueError, "masses must have one entry for each of 2 spaces, got 1"),
    ({"masses": [None, -np.ones(41)]}, ValueError, r"masses\[1\]"),
    ({"distances": "manhattan"}, ValueError, "distances must be one of"),
    ({"scale": "mine"}, ValueError, "scale must be one of"),
    ({"keep": "plans"}, ValueError, "keep must be one of"),
    ({"tol": 0.0}, ValueError, "tol"),
    ({"tol": 2.0}, ValueError, "tol"),
    ({"n_jobs": 0}, ValueError, "n_jobs must be -1, a positive number or None, got 0"),
    ({"n_jobs": -2}, ValueError, "n_jobs"),
    ({"store": "no/where.sqlite"}, ValueError, "needs a folder"),
    ({"spaces": [CLOUDS[0], csr_array((1, 3))]}, ValueError, r"needs points, got a sparse matrix as spaces\[1\]"),
    (
        {"spaces": [CLOUDS[0] * 1e20, CLOUDS[1] * 1e-60]},
        ValueError,
        r"spaces\[1\] must have a largest distance .*; use scale='own'",
    ),
    (
        {"spaces": [CLOUDS[0] * 1e-90, CLOUDS[1] * 1e-90]},
        ValueError,
        r"spaces\[0\] must have a largest distance .*; use other units",
    ),
    (
        {"spaces": [CLOUDS[0], np.zeros((1001, 2))], "options": GWOptions(gradient="sampled")},
        ValueError,
        r"epsilon must be > 0 with options.gradient='sampled'.*spaces\[1\] has 1001 points",
    ),
    ({"callback": 3}, TypeError, "callback must be callable or None, got int"),
    ({"store": 3}, TypeError, "store must name a file, or be None, got int"),
    ({"options": {}}, TypeError, "options"),
    ({"options": GWOptions(spaces=SpaceOptions(scale=1.0))}, ValueError, r"options.spaces.scale must be None here"),
    ({"options": GWOptions(max_memory=1000)}, MemoryError, "distances within all spaces"),
]


@pytest.mark.parametrize(("given", "error", "text"), BAD)
def test_bad_input_is_refused_before_any_work(
    given: dict[str, Any], error: type[Exception], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchgw.pairwise.schedule.prepare_space", None)
    with pytest.raises(error, match=text):
        pairwise(**{"spaces": [CLOUDS[0], CLOUDS[2]], **given})


def test_sizes_are_counted_once() -> None:
    """They are asked for with every pair."""
    found = inputs.Inputs([np.zeros((1, 1))], [np.array([1.0, 0.0])], [1.0], 1.0, [True])
    assert found.sizes == [1]
    assert found.sizes is found.sizes


def test_tiles_hold_every_pair_once_whatever_is_wanted() -> None:
    rng = np.random.default_rng(5)
    sizes = rng.integers(1, 400, size=23).tolist()
    every = list(itertools.combinations(range(23), 2))
    assert sorted(itertools.chain.from_iterable(make_tiles(sizes, every))) == every
    some = every[::7]
    whole = {pair: at for at, tile in enumerate(make_tiles(sizes, every)) for pair in tile}
    for tile in make_tiles(sizes, some):
        assert len({whole[pair] for pair in tile}) == 1
    assert sorted(itertools.chain.from_iterable(make_tiles(sizes, some))) == some


def test_bounds_are_below_the_values(found: PairwiseResult) -> None:
    made = [signature(D, np.full(len(D), 1 / len(D))) for D in MATRICES]
    bounds = lower_bounds(made, made)
    rows, columns = np.triu_indices(len(MATRICES), 1)
    assert (bounds[rows, columns] <= found.values).all()
    assert (bounds[rows, columns] > 0.1 * found.values).any()
    np.testing.assert_array_equal(np.diag(bounds), 0.0)


def test_neighbours_are_those_of_all_pairs_and_few_pairs_are_solved() -> None:
    rng = np.random.default_rng(6)
    spaces = [shape(i % 3, int(rng.integers(20, 50)), rng) * (1 + (i % 4)) for i in range(24)]
    square = pairwise(spaces).square()
    np.fill_diagonal(square, np.inf)
    for k, queries in ((1, None), (3, None), (4, [5, 0])):
        nearest = gw_neighbours(spaces, k, queries=queries, distances="euclidean", random_state=0)
        rows = square if queries is None else square[queries]
        np.testing.assert_array_equal(nearest.indices, np.argsort(rows, 1, kind="stable")[:, :k])
        np.testing.assert_array_equal(nearest.distances, np.sort(rows, 1)[:, :k])
        assert nearest.n_solved + nearest.n_pruned == nearest.n_pairs
        assert nearest.n_pruned > 0.4 * nearest.n_pairs
    with pytest.raises(ValueError, match="n_jobs must be"):
        gw_neighbours(spaces, 2, n_jobs=0)
    with pytest.raises(TypeError, match="queries must be a list"):
        gw_neighbours(spaces, 2, queries=3)
    with pytest.raises(ValueError, match="n_neighbours"):
        gw_neighbours(spaces, 24)
    with pytest.raises(ValueError, match=r"queries\[1\]"):
        gw_neighbours(spaces, 1, queries=[0, 24])
    with pytest.raises(ValueError, match="queries must name at least one space"):
        gw_neighbours(spaces, 1, queries=[])


@pytest.mark.gpu
def test_values_on_a_gpu_are_close(found: PairwiseResult) -> None:
    result = pairwise(CLOUDS, device="cuda")
    np.testing.assert_allclose(result.values, found.values, rtol=0.05)
    assert abs(result.values.mean() / found.values.mean() - 1) < 0.01
    assert result.converged


GRAPHS = [csr_array(np.where(np.median(D) > D, D, 0.0)) for D in MATRICES[:3]]


@pytest.mark.parametrize(
    ("spaces", "distances", "scale"),
    [
        (GRAPHS, "auto", "own"),
        ([graph.toarray() for graph in GRAPHS], "adjacency", "own"),
        (GRAPHS, "adjacency", "own"),
        ([nx.Graph(graph) for graph in GRAPHS], "adjacency", "own"),
        ([*GRAPHS[:2], CLOUDS[0]], "auto", "common"),
        (CLOUDS[:3], "auto", "common"),
        (MATRICES[:3], "auto", "common"),
    ],
)
@pytest.mark.filterwarnings("ignore::torchgw.TorchGWWarning")
def test_graphs_alone_are_compared_by_their_shapes(spaces: list[Any], distances: str, scale: str) -> None:
    found, named = (
        gw_pairwise(spaces, distances=distances, random_state=0, **more)  # type: ignore[arg-type]
        for more in ({}, {"scale": scale})
    )
    np.testing.assert_array_equal(found.values, named.values)
    np.testing.assert_array_equal(found.scales, named.scales)
    assert (len(set(found.scales)) == 1) == (scale == "common") or distances == "adjacency"


def test_pairs_against_others_are_those_of_all(found: PairwiseResult) -> None:
    """Of the condensed matrix of all spaces, the rows of some and the columns of the others."""
    part = pairwise(CLOUDS[:2], against=CLOUDS[2:], keep="matchings")
    whole = pairwise(CLOUDS, keep="matchings")
    np.testing.assert_array_equal(part.square(), whole.square()[:2, 2:])
    assert (part.n_spaces, part.n_against, part.n_solved) == (2, len(CLOUDS) - 2, 2 * (len(CLOUDS) - 2))
    for i in range(2):
        for j in range(len(CLOUDS) - 2):
            assert part.values[part.pair(i, j)] == whole.values[whole.pair(i, j + 2)]
            np.testing.assert_array_equal(part.matching(i, j), whole.matching(i, j + 2))
    single = pairwise(CLOUDS[:1], against=CLOUDS[1:2], masses=[None, np.ones(len(CLOUDS[1]))])
    assert single.square().shape == (1, 1)
    assert repr(single).startswith("PairwiseResult(1 x 1 spaces, 1 pairs")
    with pytest.raises(ValueError, match="j must be"):
        part.pair(0, len(CLOUDS))
    with pytest.raises(ValueError, match=r"against\[1\] must be finite"):
        pairwise(CLOUDS[:2], against=[CLOUDS[2], np.full((5, 2), np.nan)])
    with pytest.raises(ValueError, match="against must hold at least 1 spaces"):
        pairwise(CLOUDS[:2], against=[])
    with pytest.raises(ValueError, match="masses must have one entry for each of 3 spaces, got 2"):
        pairwise(CLOUDS[:2], against=CLOUDS[2:3], masses=[None, None])


def test_spaces_and_points_keep_their_names(found: PairwiseResult) -> None:
    """By a dict of spaces, an index and nodes; the numbers are those of a list."""
    names = [f"cloud {i}" for i in range(len(CLOUDS))]
    framed = pd.DataFrame(CLOUDS[0], index=[f"p{i}" for i in range(len(CLOUDS[0]))])
    weights = np.r_[0.0, np.ones(len(CLOUDS[1]) - 1)]
    spaces = dict(zip(names, [framed, *CLOUDS[1:]], strict=True))
    named = pairwise(spaces, keep="matchings", masses={"cloud 1": weights})
    masses = [None, weights, *[None] * (len(CLOUDS) - 2)]
    listed = pairwise(CLOUDS, keep="matchings", masses=masses)
    np.testing.assert_array_equal(named.values, listed.values)
    assert named.names == tuple(names)
    table = named.table()
    assert [*table.index] == [*table.columns] == names
    np.testing.assert_array_equal(table, listed.square())
    assert [*found.table().columns] == list(range(len(CLOUDS)))
    assert named.pair("cloud 3", "cloud 1") == named.pair(1, 3) == named.pair("cloud 1", np.int64(3))
    for i, j in ((0, 1), (1, 0), (2, 1)):
        expected = listed.matching(i, j)
        np.testing.assert_array_equal(named.matching(names[i], names[j]), expected)
        matches, called = named.matches(names[i], names[j]), [framed.index if k == 0 else range(10**6) for k in (i, j)]
        assert [*matches.source] == [called[0][at] for at in range(len(expected))]
        assert [None if pd.isna(at) else at for at in matches.target] == [
            None if at < 0 else called[1][at] for at in expected
        ]
    assert named.matches(1, 0).target.isna().sum() == 1
    part = pairwise({"a": CLOUDS[1]}, against={"x": CLOUDS[2], "a": framed}, keep="matchings")
    assert ([*part.table().index], [*part.table().columns]) == (["a"], ["x", "a"])
    assert set(part.matches("a", "a").target) <= {*framed.index}
    with pytest.raises(
        ValueError, match=r"j must be the name of a space or its index, got 'y'; names begin \('x', 'a'"
    ):
        part.pair("a", "y")
    with pytest.raises(ValueError, match=r"spaces\['b'\] must be finite"):
        pairwise({"a": CLOUDS[0], "b": np.full((5, 2), np.nan)})
    with pytest.raises(ValueError, match="masses must be given by the names of spaces, got 'cloud 9'"):
        pairwise(spaces, masses={"cloud 9": weights})

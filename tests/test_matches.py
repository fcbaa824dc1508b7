"""Tables, mutual matches and one-to-one assignments of every kind of plan agree with those of the dense plan."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array

from tests.problems import ROLL, SPIRAL, dense_coupling, generator, potential_coupling, tiled_coupling
from tests.simulated_device import simulated_gpu
from torchgw import GWOptions, GWResult, gw_align
from torchgw.couplings.blocks import BlockCoupling, DenseCoupling, round_digits
from torchgw.couplings.factored import FactoredPlan
from torchgw.couplings.low_rank import LowRankCoupling
from torchgw.couplings.sparse import SparseCoupling
from torchgw.couplings.tiled import TiledCoupling
from torchgw.kernels.tiles import all_tiles
from torchgw.results.matches import MatchMixin
from torchgw.solvers.linear_oracle import solve_transport
from torchgw.solvers.one_to_one import _make_factored_plan, assign, assign_sparse
from torchgw.solvers.transport_costs import SparseCost
from torchgw.types import Array
from torchgw.views.matches import matches_of


def low_rank(n: int, k: int) -> LowRankCoupling:
    gen = generator(5)
    Q, R, g = (torch.rand(*shape, generator=gen, dtype=torch.float64) for shape in ((n, 3), (k, 3), (3,)))
    return LowRankCoupling(Q / n, R / k, g + 0.1)


def sparse(n: int, k: int) -> SparseCoupling:
    plan = dense_coupling(n, k, 3).plan.numpy()
    return SparseCoupling.of(csr_array(np.where(plan > 2 / (n * k), plan, 0.0)), torch.device("cpu"))


def separable(n: int, k: int) -> BlockCoupling:
    held = tiled_coupling(n, k, 4, 2).tensors()
    held |= {"A": 0.2 * held["A"], "B": 0.2 * held["B"], "tile_separable": torch.tensor(True)}
    return tiled_coupling(n, k, 4, 2).with_tensors(held)


KINDS: dict[str, Callable[[int, int], BlockCoupling]] = {
    "dense": lambda n, k: dense_coupling(n, k, 0),
    "potential": lambda n, k: potential_coupling(n, k, 4, 0, correction=False),
    "corrected": lambda n, k: potential_coupling(n, k, 4, 1),
    "tiled": lambda n, k: tiled_coupling(n, k, 4, 2),
    "separable": separable,
    "low rank": low_rank,
    "sparse": sparse,
}
FLOWS = pytest.mark.skipif(find_spec("ortools") is None, reason="OR-tools is not installed")
SHAPES = ((23, 31), (31, 23), (24, 24), (1, 5), (5, 1))


class Plan(MatchMixin):
    """A coupling that is read as a result is."""

    def __init__(self, coupling: BlockCoupling, **members: Any) -> None:
        self.coupling, self.numpy_input, self.epsilon, self.names_x, self.names_y = coupling, True, 0.5, None, None
        vars(self).update(members)


def best_total(plan: Array) -> float:
    return float(plan[linear_sum_assignment(plan, maximize=True)].sum())


def doubled(coupling: BlockCoupling) -> BlockCoupling:
    """With every point twice, in another order: all entries four times, up to rounding."""
    held = coupling.tensors()
    row, column = (torch.randperm(2 * m, generator=generator(m)) % m for m in coupling.shape)
    if isinstance(coupling, SparseCoupling):
        return SparseCoupling.of(csr_array(coupling.to_dense()[row][:, column].numpy()), torch.device("cpu"))
    if isinstance(coupling, TiledCoupling):  # all tiles, far from each other, and next to no correction
        sizes = [2 * m for m in coupling.shape]
        tiles = all_tiles(*sizes, 4, torch.device("cpu"))
        held |= {"tile_first": tiles.first, "tile_column": tiles.column, "x": 1e-9 * held["x"]}
        held |= {"A": 3 * held["A"], "B": 3 * held["B"]} if not tiles.separable else {}
        held |= {"row_order": torch.arange(sizes[0]), "column_order": torch.randperm(sizes[1], generator=generator(1))}
    sides = {"A": row, "f": row, "x": row, "Q": row, "B": column, "y": column, "R": column}
    sides["g"] = column if "Q" not in held else torch.arange(len(held["g"]))
    if isinstance(coupling, DenseCoupling):
        return DenseCoupling(coupling.plan[row][:, column])
    return coupling.with_tensors({name: side[sides[name]] if name in sides else side for name, side in held.items()})


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_all_readers_name_the_lowest_of_the_largest_entries(kind: str, shape: tuple[int, int], twice: bool) -> None:
    """The match of a row, its runners-up, and the match of a column, of plans whose points come once or twice."""
    coupling = doubled(KINDS[kind](*shape)) if twice else KINDS[kind](*shape)
    plan = coupling.to_dense()
    n, k = plan.shape
    order, back = (round_digits(each).sort(dim=1, descending=True, stable=True).indices for each in (plan, plan.T))
    for count in {1, min(2, k), min(7, k), k}:
        some = torch.tensor([n - 1, 0, n // 2])
        for value, index in (coupling.top_k(count), coupling.top_k(count, torch.arange(n))):
            np.testing.assert_array_equal(index, order[:, :count])
            torch.testing.assert_close(value, plan.gather(1, index))
        np.testing.assert_array_equal(coupling.top_k(count, some)[1], order[some, :count])
    match, backwards = order[:, 0], back[:, 0]
    read = Plan(coupling)
    np.testing.assert_array_equal(read.argmax(), match)
    np.testing.assert_array_equal(read.argmax(0), backwards)
    source, target, _ = read.matching()
    np.testing.assert_array_equal(target, match[torch.from_numpy(np.asarray(source))])
    table, has = read.table(), plan.sum(1) > 0
    np.testing.assert_array_equal(table["target"][has.numpy()].astype(int), match[has])
    mutual = (backwards[match] == torch.arange(n)) & has
    np.testing.assert_array_equal(table["mutual"], mutual)
    np.testing.assert_array_equal(np.asarray(read.mutual())[:, 0], torch.nonzero(mutual)[:, 0])
    for axis, best, mass in ((1, match, plan.sum(1)), (0, backwards, plan.sum(0))):
        shown = matches_of(coupling, torch.arange(len(best)), axis, 1).index[:, 0]
        np.testing.assert_array_equal(shown, torch.where(mass > 0, best, -1))


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["tiled", "separable"])
def test_a_gpu_reads_kept_tiles_as_the_cpu_does(
    kind: str, shape: tuple[int, int], twice: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There all entries of runs of tiles are read."""
    monkeypatch.setattr("torchgw.couplings.factored.UNIT", 8)
    coupling = doubled(KINDS[kind](*shape)) if twice else KINDS[kind](*shape)
    n, k = coupling.shape
    with simulated_gpu():
        there = coupling.with_tensors({name: tensor.to("cuda") for name, tensor in coupling.tensors().items()})
        for count in {1, min(2, k), min(7, k), k}:
            for points in (None, torch.tensor([n - 1, 0, n // 2])):
                known = coupling.top_k(count, points)
                value, index = there.top_k(count, None if points is None else points.to("cuda"))
                np.testing.assert_array_equal(index.cpu(), known[1])
                torch.testing.assert_close(value.cpu(), known[0])


@pytest.mark.parametrize("count", [1, 2, 70, 400])
def test_tiles_of_many_points_are_left_out_by_parts(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given = tiled_coupling(300, 400, 1, 2, 128).tensors()
    order = {name: given[name[:1]][:, 0].argsort() for name in ("A", "B")}
    given |= {"A": 3 * given["A"][order["A"]], "B": 3 * given["B"][order["B"]], "x": 1e-9 * given["x"]}
    coupling, seen = TiledCoupling.of(given), []
    within = FactoredPlan.block_in_tiles
    monkeypatch.setattr(FactoredPlan, "block_in_tiles", lambda *on: seen.append(len(on[1]) * len(on[2])) or within(*on))
    found = coupling.top_k(count)[1]
    np.testing.assert_array_equal(found, coupling.to_dense().topk(count, dim=1).indices)
    assert count > 2 or sum(seen) < 0.8 * 300 * 400


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_the_table_says_what_the_dense_plan_does(kind: str, shape: tuple[int, int]) -> None:
    coupling = KINDS[kind](*shape)
    plan = coupling.to_dense().numpy()
    found = Plan(coupling).table()
    order = np.argsort(-plan, axis=1, kind="stable")
    first, match, some = plan.max(1), order[:, 0], plan.sum(1) > 0
    assert list(found["source"]) == list(range(shape[0]))
    np.testing.assert_array_equal(found["target"].isna(), ~some)
    np.testing.assert_array_equal(found["target"][some].astype(int), match[some])
    np.testing.assert_allclose(found["share"][some], first[some] / plan.sum(1)[some], rtol=1e-9)
    np.testing.assert_array_equal(found["mutual"], some & (plan.argmax(0)[match] == np.arange(shape[0])))
    second = np.take_along_axis(plan, order[:, 1:2], 1)[:, 0] if shape[1] > 1 else np.zeros(shape[0])
    np.testing.assert_array_equal(found["runner_up"].isna(), second <= 0)
    np.testing.assert_array_equal(
        found["runner_up"][second > 0].astype(int), order[second > 0][:, -1 if shape[1] == 1 else 1]
    )
    np.testing.assert_allclose(found["confidence"][some], 1 - second[some] / first[some], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_mutual_pairs_are_each_others_largest_entries(kind: str) -> None:
    coupling = KINDS[kind](23, 31)
    plan = coupling.to_dense().numpy()
    pairs = Plan(coupling).mutual()
    expected = [(i, j) for i, j in enumerate(plan.argmax(1)) if plan[i, j] > 0 and plan[:, j].argmax() == i]
    assert [tuple(pair) for pair in np.asarray(pairs).tolist()] == expected
    assert expected


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("stored", [0, 2**25])
@pytest.mark.parametrize("kind", KINDS)
def test_one_to_one_has_the_mass_of_the_best_assignment(kind: str, stored: int, shape: tuple[int, int]) -> None:
    coupling = KINDS[kind](*shape)
    plan = coupling.to_dense().numpy()
    found = assign(coupling, 1e-9, stored)
    best, total = best_total(plan), float(found.mass.sum())
    np.testing.assert_allclose(plan[found.source, found.target], found.mass, rtol=1e-9)
    assert len(set(found.source)) == len(set(found.target)) == len(found.source)
    assert (np.diff(found.source) > 0).all()
    np.testing.assert_allclose(total, best, rtol=1e-9)
    assert best <= found.bound * (1 + 1e-12) <= total * (1 + 1e-8)


def test_the_smallest_numbers_are_assigned() -> None:
    plan = 5e-324 * np.random.default_rng(0).integers(0, 3, size=(12, 10))
    assert len(assign_sparse(csr_array(plan)).source) == 10


def test_fifty_dense_problems_have_the_totals_of_scipy() -> None:
    """As stored plans and as plans of few entries; half of them full of ties, some with few entries."""
    rng = np.random.default_rng(0)
    for case in range(50):
        n, k = rng.integers(1, 60, size=2)
        k = n if case % 3 == 0 else k
        plan = rng.random((n, k)) if case % 2 else rng.integers(0, 4, size=(n, k)) / 4
        plan *= rng.random((n, k)) < (0.2 if case % 5 == 0 else 1.0)
        best = best_total(plan)
        np.testing.assert_allclose(assign(DenseCoupling(torch.from_numpy(plan))).mass.sum(), best)
        found = assign_sparse(csr_array(plan))
        assert len(set(found.source)) == len(set(found.target)) == len(found.source)
        np.testing.assert_allclose((plan[found.source, found.target].sum(), found.bound), best, rtol=1e-9)


@pytest.mark.parametrize("flow", [False, pytest.param(True, marks=FLOWS)])
def test_duals_of_points_that_may_stay_alone_prove_the_assignment(flow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgw.solvers.linear_oracle.MOST_MASSES", 0 if flow else 10**9)
    rng = np.random.default_rng(1)
    for case in range(20):
        n, k = rng.integers(1, 60, size=2)
        plan = rng.random((n, k)) if case % 2 else rng.integers(1, 4, size=(n, k)) / 4
        best, cost = best_total(plan), SparseCost(csr_array(plan))
        masses, prices = (np.append(np.ones(n), k), np.append(np.ones(k), n)), rng.random(k + 1) * rng.integers(0, 2)
        found = solve_transport(cost, *masses, -prices, cost.slack)
        (a, b), share = found.duals, found.plan[:n, :k].toarray()
        np.testing.assert_allclose((share * plan).sum(), best, rtol=1e-9)
        u, v = -a[:-1] - b[-1], -b[:-1] - a[-1]
        np.testing.assert_allclose(u.sum() + v.sum(), best, rtol=1e-9)
        assert (u[:, None] + v + 1e-9 >= plan).all()
        assert min(u.min(), v.min()) >= -1e-9


@pytest.mark.parametrize("kind", ["potential", "corrected", "tiled", "separable", "low rank"])
def test_no_entry_is_above_the_bound_of_its_tile(kind: str) -> None:
    coupling = KINDS[kind](130, 70)
    for one in (coupling, coupling.transpose()):
        plan = _make_factored_plan(one)
        assert plan is not None
        ordered, bounds = one.to_dense()[plan.row_order][:, plan.column_order], plan.bounds()
        size = plan.size
        for i, j in np.ndindex(*bounds.shape):
            tile = ordered[i * size : (i + 1) * size, j * size : (j + 1) * size]
            assert float(tile.max()) <= float(bounds[i, j]) * (1 + 1e-9)


def test_a_match_and_its_runner_up_differ_by_their_reduced_costs() -> None:
    """With entropy, of stored plans and of factors."""
    coupling = potential_coupling(23, 31, 4, 0, correction=False)
    stored = DenseCoupling(coupling.to_dense(), coupling.f, coupling.g)
    reduced = -0.5 * np.log(2) * (coupling.A @ coupling.B.T + coupling.g).numpy()
    order = np.argsort(-coupling.to_dense().numpy(), axis=1)
    rows = np.arange(23)
    for each in (coupling, stored):
        found = Plan(each).table()["cost_difference"]
        np.testing.assert_allclose(found, reduced[rows, order[:, 0]] - reduced[rows, order[:, 1]], atol=1e-12)
    for each in (sparse(23, 31), low_rank(23, 31), dense_coupling(23, 31, 0)):
        assert "cost_difference" not in Plan(each).table()


def test_a_table_without_entropy_reads_the_soft_plan() -> None:
    rng = np.random.default_rng(0)
    one = rng.normal(size=(40, 3))
    other = np.concatenate((one + 0.3 * rng.normal(size=one.shape), rng.normal(size=(8, 3))))
    result = gw_align(one, other, distances="euclidean", epsilon=0, random_state=0)
    table, soft = result.table(), result.soft()
    masses, index = result.top_k(2)
    np.testing.assert_array_equal(table["target"], result.argmax())
    np.testing.assert_array_equal(table["runner_up"], index[:, 1])
    np.testing.assert_allclose(table["confidence"], np.clip(1 - masses[:, 1] / masses[:, 0], 0, None))
    np.testing.assert_allclose(table["cost_difference"], soft.epsilon * np.log(masses[:, 1] / masses[:, 0]))
    assert (table["cost_difference"] > 0).any()
    assert (table["cost_difference"] < 0).any()
    first = table["target"] == soft.argmax()
    np.testing.assert_allclose(table["confidence"][first], soft.confidence().margin[first])
    np.testing.assert_allclose(table["confidence"], result.confidence().margin, atol=1e-12)
    some = np.flatnonzero(~first)[::-1]
    np.testing.assert_allclose(result.confidence(some).margin, 0.0)
    np.testing.assert_allclose(table["share"], result.plan.max(1) * 40)


@pytest.fixture(scope="module")
def solved() -> GWResult:
    return gw_align(SPIRAL, ROLL, epsilon=1e-3, random_state=0)


def test_a_result_a_loaded_one_and_one_of_new_points_have_them(solved: GWResult, tmp_path: Path) -> None:
    solved.save(tmp_path / "r.npz")
    loaded = GWResult.load(tmp_path / "r.npz")
    pd.testing.assert_frame_equal(loaded.table(), solved.table())
    assert "cost_difference" in solved.table()
    new = solved.transform(SPIRAL[:5])
    assert list(new.table()["target"]) == new.argmax().tolist()
    found = solved.one_to_one()
    assert len(found.source) == 90
    assert len(found.left_source) == 0
    assert len(found.left_target) == 20
    assert found.gap < 1e-12
    assert repr(found).startswith("OneToOne(90 pairs, mass 0.")
    assert len(new.one_to_one().source) == 5
    assert len(new.mutual()) <= 5


def test_names_stand_for_points() -> None:
    x, y = (np.array([f"{letter}{i}" for i in range(m)], dtype=object) for letter, m in (("x", 23), ("y", 31)))
    plain, named = Plan(sparse(23, 31)).table(), Plan(sparse(23, 31), names_x=x, names_y=y).table()
    assert list(named["source"]) == list(x)
    some = plain["target"].notna()
    assert list(named["target"][some]) == list(y[plain["target"][some].astype(int)])
    assert list(named["runner_up"].isna()) == list(plain["runner_up"].isna())


def test_points_without_mass_have_no_match() -> None:
    plan = dense_coupling(6, 7, 0).plan.clone()
    plan[2], plan[:, 3] = 0.0, 0.0
    found, kept = Plan(DenseCoupling(plan)), Plan(DenseCoupling(plan)).one_to_one()
    row = found.table().iloc[2]
    assert row[["target", "runner_up", "share", "confidence"]].isna().all()
    assert not row["mutual"]
    assert 2 in kept.left_source
    assert 3 in kept.left_target
    assert 2 not in found.mutual()[:, 0]


def test_a_table_without_pandas_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *given: Any, **more: Any) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return real(name, *given, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ImportError, match="pip install pandas"):
        Plan(dense_coupling(3, 4, 0)).table()


def test_a_tolerance_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="tolerance"):
        Plan(dense_coupling(3, 4, 0)).one_to_one(0.0)


def test_a_tile_of_points_without_mass_is_read_as_the_dense_plan_is() -> None:
    """No tile of such rows is kept."""
    points = np.random.default_rng(0).normal(size=(300, 2))
    mass = np.repeat([0.0, 1 / 170], [130, 170])
    streaming = GWOptions(strategy="streaming")
    common: dict[str, Any] = {"p": mass, "epsilon": 0.05, "distances": "landmark", "random_state": 0}
    result = gw_align(points, points, options=streaming, **common)
    absent = mass == 0
    np.testing.assert_array_equal(np.isnan(result.confidence().entropy), absent)
    kept = result.sparsify(0.9)
    assert float(kept.sum(1)[absent].max()) == 0
    assert kept.sum() >= 0.9 - 1e-9

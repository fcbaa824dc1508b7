"""The score on kept tiles by every implementation, against the definition; and which tiles are chosen to be kept."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from tests import kernel_cases
from tests import tile_cases as cases
from tests.kernels import RANKS
from torchgw.kernels import blocks, softmin_tiles
from torchgw.kernels.dispatch import Workload
from torchgw.kernels.softmin_tiles import TileKernel
from torchgw.kernels.tiles import Tiles, all_tiles, choose_tiles

CPU = torch.device("cpu")
F32, F64 = torch.float32, torch.float64
DTYPES = (F32, F64)
MIXED = ((F32, F32), (F32, F64), (F64, F64))
SHARES = (1e-12, 1e-6, 1e-3, 0.05, 0.9)
EAGER = softmin_tiles.choose("eager", Workload(CPU, F32, (64, 64), 16)).function


@pytest.fixture
def poison() -> Iterator[None]:
    yield from kernel_cases.poisoned()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", [0, *RANKS])
def test_softmins_of_any_rank(rank: int, dtype: torch.dtype, poison: None) -> None:
    cases.softmins(EAGER, "cpu", 32, 70, 130, rank, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("size", "n", "k"), [*cases.SHAPES, (7, 50, 23), (1, 5, 9)])
def test_softmins_of_any_size(size: int, n: int, k: int, dtype: torch.dtype, poison: None) -> None:
    cases.softmins(EAGER, "cpu", size, n, k, 7, dtype)


@pytest.mark.parametrize("dtypes", MIXED)
@pytest.mark.parametrize(("size", "n", "k"), [*cases.SHAPES, (7, 50, 23), (1, 5, 9)])
def test_reads_of_any_size(size: int, n: int, k: int, dtypes: tuple[torch.dtype, ...], poison: None) -> None:
    cases.reads(EAGER, "cpu", size, n, k, 7, 3, dtypes)


@pytest.mark.parametrize(("rank", "width"), [(0, 1), (1, 0), (7, 1), (16, 16), (64, 65), (65, 64), (130, 130)])
def test_reads_of_any_rank_and_width(rank: int, width: int, poison: None) -> None:
    for dtypes in MIXED:
        cases.reads(EAGER, "cpu", 32, 70, 50, rank, width, dtypes)


@pytest.mark.parametrize("dtypes", MIXED)
def test_reads_of_two_widths(dtypes: tuple[torch.dtype, ...], poison: None) -> None:
    cases.reads_of_two_widths(EAGER, "cpu", dtypes)


def test_blocks_narrower_than_what_a_tile_keeps(monkeypatch: pytest.MonkeyPatch, poison: None) -> None:
    monkeypatch.setitem(blocks.BLOCK_ELEMENTS, "cpu", 320)
    cases.softmins(EAGER, "cpu", 32, 70, 130, 7, F64)
    cases.reads(EAGER, "cpu", 32, 70, 130, 7, 3, (F64, F64))


@pytest.mark.parametrize("dtype", DTYPES)
def test_sweeps_and_sums_of_nothing(dtype: torch.dtype, poison: None) -> None:
    cases.sweeps(EAGER, "cpu", dtype)
    cases.sums_of_nothing(EAGER, "cpu", dtype)


def test_large_scores_and_empty_values(poison: None) -> None:
    cases.wide_potentials_keep_large_scores(EAGER, "cpu")
    cases.what_is_not_asked_for_is_empty_or_zero(EAGER, "cpu")


@pytest.mark.parametrize("axis", [0, 1])
def test_the_result_has_the_dtype_of_the_bias(axis: int) -> None:
    A, B = torch.ones(5, 2, dtype=F64), torch.ones(6, 2, dtype=F64)
    assert EAGER.softmin(A, B, all_tiles(5, 6, 4, CPU), torch.zeros(6 if axis else 5), axis).dtype == F32


def test_a_named_compiler_leaves_this_family_to_the_eager_implementation() -> None:
    assert softmin_tiles.choose("compile", Workload(CPU, F32, (64, 64), 16)).name == "eager"


@pytest.mark.parametrize("seed", range(20))
def test_what_a_list_says_of_itself_agrees_with_its_mask(seed: int) -> None:
    gen = torch.Generator().manual_seed(seed)
    size, n, k = (int(torch.randint(1, most, (), generator=gen)) for most in (9, 60, 60))
    tiles, kept, mask = cases.some_tiles(size, n, k, seed, share=0.1 + 0.04 * seed)
    assert tiles.pairs == mask.sum()
    assert tiles.is_complete() == bool(kept.all())
    assert len(tiles.spans) == len(kept)
    for row, spans in enumerate(tiles.spans):
        covered = np.zeros(k, dtype=bool)
        for span in spans:
            assert not covered[span].any()
            covered[span] = True
        assert (covered == mask[row * size]).all()
        assert all(a.stop < b.start for a, b in pairwise(spans))
    turned = cases.listed(kept.T.contiguous(), size, k, n).tiles
    for found, wanted in ((tiles.transpose, turned), (tiles.transpose.transpose, tiles)):
        assert (found.size, found.n, found.k) == (wanted.size, wanted.n, wanted.k)
        assert torch.equal(found.first, wanted.first)
        assert torch.equal(found.column, wanted.column)


def test_row_tiles_that_keep_nothing_have_no_spans() -> None:
    kept = torch.tensor([[0, 0, 0], [1, 0, 1], [0, 0, 0], [0, 0, 1], [0, 0, 0]], dtype=torch.bool)
    tiles = cases.listed(kept, 4, 20, 11).tiles
    assert tiles.spans == [[], [slice(0, 4), slice(8, 11)], [], [slice(8, 11)], []]
    assert [len(spans) for spans in tiles.transpose.spans] == [1, 0, 2]


def test_all_tiles_are_all() -> None:
    tiles = all_tiles(50, 23, 8, CPU)
    assert tiles.is_complete()
    assert tiles.pairs == 50 * 23
    assert tiles.spans == [[slice(0, 23)]] * 7


class Problem:
    """Clustered points in order, masses with zeros, potentials that give the plan about these masses."""

    def __init__(self, n: int, k: int, size: int, dtype: torch.dtype, seed: int) -> None:
        gen = torch.Generator().manual_seed(seed)
        self.size = size

        def side(points: int) -> tuple[Tensor, Tensor]:
            time = torch.sort(torch.rand(points, generator=gen, dtype=F64)).values * 6
            noise = torch.randn(points, 3, generator=gen, dtype=F64) * 0.1
            mass = torch.rand(points, generator=gen, dtype=F64) + 0.05
            mass[torch.rand(points, generator=gen) < 0.1] = 0.0
            mass[: size if points > 2 * size else 0] = 0.0  # a whole tile without mass
            return torch.stack((time.cos(), time.sin(), time / 3), 1) + noise, mass / mass.sum()

        (X, self.p), (Y, self.q) = side(n), side(k)
        sharpness = 10.0 ** (1 + seed % 3)
        self.A, self.B = (X * sharpness).to(dtype), Y.to(dtype)
        score, f, g = self.A.double() @ self.B.double().T, self.p.log2(), self.q.log2()
        for _ in range(20):
            f = self.p.log2() - torch.logsumexp((score + g) * np.log(2), 1) / np.log(2)
            g = self.q.log2() - torch.logsumexp((score + f[:, None]) * np.log(2), 0) / np.log(2)
        self.f, self.g = f.to(dtype), g.to(dtype)
        plan = (score + self.f.double()[:, None] + self.g.double()).exp2()
        self.mass = _by_tiles(plan, size)

    def choose(self, share: float) -> tuple[Tiles, float]:
        return choose_tiles(self.A, self.B, self.f, self.g, (self.p, self.q), self.size, share)[:2]

    def run_masses(self) -> tuple[Tensor, Tensor]:
        return tuple(_by_tiles(side[:, None], self.size)[:, 0] for side in (self.p, self.q))  # type: ignore[return-value]


def _by_tiles(plan: Tensor, size: int) -> Tensor:
    """The sums of a matrix over tiles of ``size`` rows, and as many columns unless it has one."""
    n, k = plan.shape
    plan = torch.nn.functional.pad(plan, (0, -k % size if k > 1 else 0, 0, -n % size))
    return plan.reshape(-1, size, plan.shape[1] // (size if k > 1 else 1), size if k > 1 else 1).sum((1, 3))


def mask_of(tiles: Tiles) -> Tensor:
    """(row tiles, column tiles) of booleans."""
    kept = torch.zeros(-(-tiles.n // tiles.size), -(-tiles.k // tiles.size), dtype=torch.bool)
    kept[torch.repeat_interleave(torch.arange(len(kept)), tiles.first.diff()), tiles.column] = True
    return kept


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k", "size"), [(200, 170, 8), (257, 64, 16), (90, 300, 32), (20, 20, 32)])
@pytest.mark.parametrize("seed", range(6))
def test_tiles_left_out_hold_no_more_than_stated(n: int, k: int, size: int, dtype: torch.dtype, seed: int) -> None:
    problem = Problem(n, k, size, dtype, seed)
    of_rows, of_columns = problem.run_masses()
    for share in SHARES:
        tiles, omitted = problem.choose(share)
        kept = mask_of(tiles)
        assert (tiles.n, tiles.k, tiles.size) == (n, k, size)
        assert kept.any(0).all()
        assert kept.any(1).all()
        assert len(tiles.column) == kept.sum()
        held = torch.where(kept, 0.0, problem.mass)
        assert float(held.sum()) <= omitted * (1 + 1e-12)
        assert omitted <= share * (1 + 1e-5)
        assert (held.sum(1) <= share * of_rows * (1 + 1e-5)).all()
        assert (held.sum(0) <= share * of_columns * (1 + 1e-5)).all()
        large = problem.mass > share * (1 + 1e-5) * torch.minimum(of_rows[:, None], of_columns)
        assert kept[large].all()


def test_the_bound_is_the_mass_where_points_of_a_tile_are_equal() -> None:
    """But for the slack; partial tiles count the points that they have."""
    gen = torch.Generator().manual_seed(3)
    n, k, size = 30, 37, 8
    A, B = (torch.randn(5, 2, generator=gen, dtype=F64).repeat_interleave(size, 0)[:points] * 2 for points in (n, k))
    f, g = (torch.randn(points, generator=gen, dtype=F64) - 9 for points in (n, k))
    plan = (A @ B.T + f[:, None] + g).exp2()
    tiles, omitted = choose_tiles(A, B, f, g, (plan.sum(1), plan.sum(0)), size, 0.3)[:2]
    kept = mask_of(tiles)
    held = float(torch.where(kept, 0.0, _by_tiles(plan, size)).sum())
    assert not kept[-1].all()
    assert not kept[:, -1].all()
    assert held > 1e-3 * float(plan.sum())
    assert held <= omitted <= held * 2**0.03


def test_the_bound_holds_where_the_mass_is_at_opposite_ends_of_its_tiles() -> None:
    """Two points a tile, on either side of the centre, one of them with mass: there the bound is the mass as well."""
    n = 40
    side = torch.tensor([1.0, -1.0], dtype=F64).repeat(n // 2)
    reach = torch.linspace(0.5, 3.0, n // 2, dtype=F64).repeat_interleave(2)
    A = B = (side * reach)[:, None]
    f = torch.where(side > 0, -20.0 * torch.rand(n, generator=torch.Generator().manual_seed(1), dtype=F64), -torch.inf)
    plan = (A @ B.T + f[:, None] + f).exp2()
    tiles, omitted = choose_tiles(A, B, f, f, (plan.sum(1), plan.sum(0)), 2, 0.1)[:2]
    held = float(torch.where(mask_of(tiles), 0.0, _by_tiles(plan, 2)).sum())
    assert held > 1e-3 * float(plan.sum())
    assert held <= omitted <= held * 2**0.03


def test_a_sharp_plan_leaves_most_tiles_out() -> None:
    tiles, omitted = Problem(800, 800, 8, F64, 2).choose(1e-6)
    assert 0 < omitted <= 1e-6
    assert tiles.pairs < 0.35 * 800 * 800


def test_more_tiles_are_kept_for_a_smaller_share() -> None:
    problem = Problem(300, 300, 8, F64, 1)
    pairs = [problem.choose(share)[0].pairs for share in (0.0, *SHARES)]
    assert pairs == sorted(pairs, reverse=True)
    assert pairs[-1] < pairs[0]


def test_bounds_in_chunks_choose_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(200, 170, 8, F64, 1)
    whole = problem.choose(1e-3)
    monkeypatch.setattr("torchgw.kernels.tiles.CHUNK_ELEMENTS", {"cpu": 600})
    chunked = problem.choose(1e-3)
    assert torch.equal(whole[0].column, chunked[0].column)
    assert torch.equal(whole[0].first, chunked[0].first)
    assert abs(whole[1] - chunked[1]) < 1e-12


@pytest.mark.gpu
def test_the_tiles_chosen_are_those_chosen_on_the_cpu() -> None:
    problem = Problem(200, 170, 8, F64, 1)
    wanted, omitted = problem.choose(1e-3)
    sides, masses = (problem.A, problem.B, problem.f, problem.g), (problem.p.cuda(), problem.q.cuda())
    found, bound = choose_tiles(*(side.cuda() for side in sides), masses, 8, 1e-3)[:2]
    assert torch.equal(found.column.cpu(), wanted.column)
    assert abs(bound - omitted) < 1e-9


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["eager", "triton"])
class TestOnTheGPU:
    """Every claim about the score on kept tiles, on every backend."""

    @pytest.fixture(autouse=True)
    def _poisoned(self, poison: None) -> None:
        """Outputs start as NaN."""

    def kernel(self, backend: str, dtype: torch.dtype) -> TileKernel:
        return softmin_tiles.choose(backend, Workload(torch.device("cuda"), dtype, (65, 64), 16)).function

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_softmins(self, backend: str, dtype: torch.dtype) -> None:
        kernel = self.kernel(backend, dtype)
        for size, n, k in (*cases.SHAPES, (256, 1000, 3000), (128, 9000, 700)):
            cases.softmins(kernel, "cuda", size, n, k, 7, dtype)
        for rank in RANKS:
            cases.softmins(kernel, "cuda", 32, 70, 130, rank, dtype)
        cases.sweeps(kernel, "cuda", dtype)
        cases.sums_of_nothing(kernel, "cuda", dtype)

    @pytest.mark.parametrize("dtypes", MIXED)
    def test_reads(self, backend: str, dtypes: tuple[torch.dtype, ...]) -> None:
        kernel = self.kernel(backend, dtypes[0])
        for size, n, k in (*cases.SHAPES, (256, 1000, 3000), (128, 9000, 700)):
            cases.reads(kernel, "cuda", size, n, k, 7, 3, dtypes)
        for rank in RANKS:
            cases.reads(kernel, "cuda", 32, 70, 130, rank, 70, dtypes)
        cases.reads_of_two_widths(kernel, "cuda", dtypes)

    def test_large_scores_and_empty_values(self, backend: str) -> None:
        cases.wide_potentials_keep_large_scores(self.kernel(backend, F32), "cuda")
        cases.what_is_not_asked_for_is_empty_or_zero(self.kernel(backend, F64), "cuda")

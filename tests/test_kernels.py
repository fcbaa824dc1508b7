"""The kernel families against float64 oracles, by every implementation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from tests import kernel_cases as cases
from tests.kernels import RANKS, SIZES, factors, wide
from tests.problems import daily, in_turn
from torchgw.kernels import (
    blocks,
    compiler,
    neighbour_graphs,
    principal_directions,
    shortest_paths,
    small_transport,
    softmin_dense,
    softmin_stream,
)
from torchgw.kernels.dispatch import Workload
from torchgw.kernels.kernel import Kernel, make_two_read_sweep
from torchgw.options import SinkhornOptions
from torchgw.sinkhorn.loop import sinkhorn
from torchgw.sinkhorn.sides import MarginalConstraint

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.float64)
DENSE, STREAM = softmin_dense.reference.KERNEL, softmin_stream.reference.KERNEL
SMALL = ((1, 1), (2, 63), (17, 5), (60, 60), (65, 64), (64, 100))
EVERY_SIZE = [*((n, 65) for n in SIZES), *((64, k) for k in SIZES), (1000, 1000)]


@pytest.fixture
def poison() -> Iterator[None]:
    yield from cases.poisoned()


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), EVERY_SIZE)
def test_eager_dense_softmin(n: int, k: int, dtype: torch.dtype, holes: bool, axis: int, poison: None) -> None:
    cases.dense_softmin(DENSE, "cpu", n, k, dtype, axis, holes)


@pytest.mark.parametrize("axis", [0, 1])
def test_eager_kernels_merge_many_blocks(axis: int, poison: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(blocks.BLOCK_ELEMENTS, "cpu", 100)
    cases.dense_softmin(DENSE, "cpu", 97, 41, torch.float64, axis, True)
    cases.stream_softmin(STREAM, "cpu", 97, 41, 7, torch.float64, axis, True)
    cases.dense_sweep(DENSE, "cpu", 97, 41, torch.float64)
    cases.transports("cpu", 97, 41, 7, torch.float64)


@pytest.mark.parametrize("axis", [0, 1])
def test_eager_dense_softmin_reads_any_layout(axis: int) -> None:
    cases.dense_layouts(DENSE, "cpu", axis)


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), SMALL)
def test_eager_small_transport(n: int, k: int, dtype: torch.dtype, holes: bool, poison: None) -> None:
    cases.small_transport(small_transport.EAGER, "cpu", 3, n, k, dtype, holes)


@pytest.mark.parametrize("weight", [1.0, 1.8])
@pytest.mark.parametrize("dtype", DTYPES)
def test_eager_scalings(dtype: torch.dtype, weight: float) -> None:
    cases.rescaled(DENSE, "cpu", 65, dtype, weight)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "d"), [(8, 1), (100, 3), (500, 60), (333, 130)])
def test_eager_principal_directions(n: int, d: int, dtype: torch.dtype, poison: None) -> None:
    cases.principal_directions(principal_directions.reference.keys, "cpu", n, d, dtype)


def test_problems_too_large_for_a_program_and_a_compiler_are_solved_eagerly() -> None:
    for backend, shape in (("triton", (60, 300)), ("compile", (60, 60)), ("eager", (60, 60))):
        assert small_transport.choose(backend, Workload(CPU, torch.float32, shape)).name == "eager"
    reason = small_transport.triton.reason_unavailable(Workload(CPU, torch.float64, (64, 100)))
    assert reason is not None
    assert "64 x 100 does not fit the registers" in reason


@pytest.mark.parametrize("axis", [0, 1])
def test_sums_of_nothing_are_minus_infinity(axis: int) -> None:
    assert torch.isneginf(DENSE.softmin(torch.zeros(3, 3), torch.full((3,), -torch.inf), axis)).all()


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", RANKS)
def test_eager_stream_softmin_of_any_rank(rank: int, dtype: torch.dtype, axis: int, poison: None) -> None:
    cases.stream_softmin(STREAM, "cpu", 65, 130, rank, dtype, axis, holes=rank % 2 == 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), EVERY_SIZE)
def test_eager_stream_softmin_of_any_size(n: int, k: int, dtype: torch.dtype, poison: None) -> None:
    cases.stream_softmin(STREAM, "cpu", n, k, 16, dtype, 1, holes=True)


@pytest.mark.parametrize("holes", [False, True])
def test_long_rows_are_summed_in_parts(holes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    A, B, bias = 5 * torch.randn(7, 3), 5 * torch.randn(100, 3), torch.randn(100)
    if holes:
        bias[:40] = -torch.inf
    whole = STREAM.softmin(A, B, bias, 1)
    monkeypatch.setattr(softmin_stream.reference, "WIDE", 16)
    torch.testing.assert_close(STREAM.softmin(A, B, bias, 1), whole)
    torch.testing.assert_close(STREAM.softmin(B, A, bias, 0), whole)
    nothing = STREAM.softmin(A, B, torch.full((100,), -torch.inf), 1)
    assert torch.isneginf(nothing).all()


def test_eager_stream_softmin_reads_any_layout_and_bfloat16() -> None:
    cases.stream_layouts(STREAM, "cpu")
    cases.stream_bfloat16(STREAM, "cpu")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 63), (65, 64), (300, 500)])
def test_eager_sweeps(n: int, k: int, dtype: torch.dtype, poison: None) -> None:
    cases.dense_sweep(DENSE, "cpu", n, k, dtype)
    cases.stream_sweep(STREAM, "cpu", n, k, 7, dtype)


def test_a_sweep_moves_far_columns_towards_where_two_softmins_put_them() -> None:
    """Beyond 2^-120 a sweep moves a column by what it can, and repeated sweeps end in the same potentials."""
    score = torch.tensor([[0.0, -500.0], [-3.0, -900.0]], dtype=torch.float64)
    mass = torch.tensor([0.5, 0.5], dtype=torch.float64).log2()
    given = {"options": SinkhornOptions(tol=1e-13, check_every=1, relaxation=1.0), "max_iter": 300}
    two_reads = Kernel(DENSE.softmin, make_two_read_sweep(DENSE.softmin), DENSE.absorb)
    slow = sinkhorn(two_reads.bind(score), MarginalConstraint(mass), MarginalConstraint(mass), mass, **given)
    fast = sinkhorn(DENSE.bind(score), MarginalConstraint(mass), MarginalConstraint(mass), mass, **given)
    plans = [(score + state.f[:, None] + state.g).exp2() for state in (slow, fast)]
    torch.testing.assert_close(plans[1], plans[0], atol=1e-10, rtol=0)


def test_absorbing() -> None:
    A, B = factors(97, 41, 6, torch.float64, 1, reach=200.0)
    score = wide(A @ B.T)[0]
    cases.absorbs(DENSE, (A @ B.T,), score, "cpu")
    cases.absorbs(STREAM, (A, B), score, "cpu")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k", "rank"), [(1, 1, 1), (65, 63, 20), (300, 500, 65)])
def test_reading_a_plan(n: int, k: int, rank: int, dtype: torch.dtype, poison: None) -> None:
    cases.transports("cpu", n, k, rank, dtype)


def test_draws_follow_the_rows() -> None:
    cases.draws_follow_the_rows("cpu")


@pytest.mark.parametrize("damping", [(1.0, 1.0), (0.5, 1.0), (1.0, 0.8), (0.3, 0.9)])
@pytest.mark.parametrize("weight", [1.0, 1.4])
def test_relaxed_marginals_give_the_same_potentials_by_sweeps_softmins_and_products(
    damping: tuple[float, float], weight: float
) -> None:
    cases.relaxed_agree(DENSE, STREAM, damping, weight)


@pytest.mark.parametrize(("damping", "dtype"), in_turn([(1.0, 1.0), (0.9, 0.9), (1.0, 0.9), (0.6, 0.6)], DTYPES))
def test_outliers_get_their_potentials(dtype: torch.dtype, damping: tuple[float, float]) -> None:
    cases.outliers(DENSE, "cpu", dtype, damping)


def test_forbidden_entries_in_a_sweep() -> None:
    score = torch.randn(30, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    score[::3, :10] = -torch.inf
    cases.sweeps(DENSE, (score,), score.numpy(), torch.float64, "cpu")


@pytest.mark.parametrize(("dtype", "axis"), daily({(torch.float32, 1)}, DTYPES, [0, 1]))
def test_compiled_kernels_agree_with_the_oracle(dtype: torch.dtype, axis: int) -> None:
    assert compiler.reason_unavailable(softmin_dense.reference.trial, Workload(CPU, torch.float32, (9, 9))) is None
    dense, stream = softmin_dense.reference.compile_kernel(), softmin_stream.reference.compile_kernel()
    for n, k in EVERY_SIZE:
        cases.dense_softmin(dense, "cpu", n, k, dtype, axis, holes=n % 2 == 1)
        cases.stream_softmin(stream, "cpu", n, k, 16, dtype, axis, holes=n % 2 == 1)
    for rank in RANKS:
        cases.stream_softmin(stream, "cpu", 65, 130, rank, dtype, axis, holes=rank % 2 == 0)
    cases.dense_layouts(dense, "cpu", axis)
    cases.stream_layouts(stream, "cpu")
    assert torch.isneginf(dense.softmin(torch.zeros(3, 3), torch.full((3,), -torch.inf), axis)).all()


@pytest.mark.parametrize(("damping", "weight"), in_turn([(1.0, 1.0), (0.5, 1.0), (1.0, 0.8), (0.3, 0.9)], [1.4, 1.0]))
def test_relaxed_marginals_give_the_same_potentials_compiled(damping: tuple[float, float], weight: float) -> None:
    cases.relaxed_agree(
        softmin_dense.reference.compile_kernel(), softmin_stream.reference.compile_kernel(), damping, weight
    )


def test_sizes_and_epsilons_do_not_compile_again() -> None:
    """12 sizes and 10 epsilons: one graph for the product, one for each axis of a stored score."""
    from torch._dynamo import reset
    from torch._dynamo.utils import counters

    reset()  # what other tests have compiled in this process
    counters.clear()
    for n, k in [*((10 * i + 3, 7 * i + 5) for i in range(1, 10)), (64, 64), (1, 9), (500, 300)]:
        A, B, f, g = torch.randn(n, 11), torch.randn(k, 11), torch.randn(n), torch.randn(k)
        workload = Workload(CPU, torch.float32, (n, k), 11)
        for epsilon in torch.logspace(-4, 0, 10).tolist():
            softmin_stream.choose("compile", workload).function.bind(A / epsilon, B).sweep(g, f, f, 1.0)
            softmin_dense.choose("compile", workload).function.bind(A @ B.T / epsilon).sweep(g, f, f, 1.0)
    assert counters["stats"]["unique_graphs"] == 3


@pytest.mark.parametrize("rank", [0, 1, 5, 33, 100])
def test_factors_split_for_tf32_give_products_near_those_of_float32(rank: int) -> None:
    """Matrix units see the first 11 digits of each number; the order in which sums are added up is theirs."""
    A, B = factors(60, 70, rank, torch.float32, 1) if rank else (torch.zeros(60, 0), torch.zeros(70, 0))
    given = softmin_stream.triton.prepare(A.T.contiguous().T, B, "tf32x3")
    assert given[0].shape[1] == given[1].shape[1] == softmin_stream.triton.padded_width(3 * rank)
    found, plain = _on_matrix_units(*given), _on_matrix_units(A, B)
    exact, terms = A.double() @ B.double().T, A.double().abs() @ B.double().abs().T
    assert ((found - exact).abs() <= 2.0**-20 * terms).all()
    assert rank == 0 or ((plain - exact).abs() > 2.0**-14 * terms).any()


def _on_matrix_units(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    left, right = ((side.view(torch.int32) & -(2**13)).view(torch.float32).double() for side in (A, B))
    return left @ right.T


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["eager", "compile", "triton"])
class TestOnTheGPU:
    """Every claim, on every backend."""

    @pytest.fixture(autouse=True)
    def _poisoned(self, backend: str, request: pytest.FixtureRequest) -> None:
        """Outputs start as NaN, but those of code that torch has yet to trace."""
        if backend != "compile":
            request.getfixturevalue("poison")

    def kernels(self, backend: str, dtype: torch.dtype) -> tuple[Kernel, Kernel]:
        workload = Workload(torch.device("cuda"), dtype, (65, 64), 16)
        return softmin_dense.choose(backend, workload).function, softmin_stream.choose(backend, workload).function

    @pytest.mark.parametrize("axis", [0, 1])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_softmins(self, backend: str, dtype: torch.dtype, axis: int) -> None:
        dense, stream = self.kernels(backend, dtype)
        # What `softmin_stream.triton.split` promises: matrix units cut partial sums off instead of rounding them.
        lost = 2.0**-20 if backend == "triton" and dtype == torch.float32 else 0.0
        for n, k in [*EVERY_SIZE, (300, 17000)]:
            cases.dense_softmin(dense, "cuda", n, k, dtype, axis, holes=n % 2 == 1)
            cases.stream_softmin(stream, "cuda", n, k, 16, dtype, axis, holes=n % 2 == 1, lost=lost)
        for rank in RANKS:
            cases.stream_softmin(stream, "cuda", 65, 130, rank, dtype, axis, holes=rank % 2 == 0, lost=lost)
        cases.dense_layouts(dense, "cuda", axis)
        cases.stream_layouts(stream, "cuda")

    @pytest.mark.parametrize("holes", [False, True])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_small_transport(self, backend: str, dtype: torch.dtype, holes: bool) -> None:
        for n, k in SMALL:
            workload = Workload(torch.device("cuda"), dtype, (n, k))
            cases.small_transport(small_transport.choose(backend, workload).function, "cuda", 3, n, k, dtype, holes)

    @pytest.mark.parametrize("kind", cases.graphs())
    def test_shortest_paths(self, backend: str, kind: str) -> None:
        searches = shortest_paths.choose(backend, Workload(torch.device("cuda"), torch.float64, (1, 1))).function
        if searches is None:
            pytest.skip("SciPy's searches on the CPU, which are the oracle")
        cases.shortest_paths(searches, "cuda", cases.graphs()[kind])

    @pytest.mark.parametrize("kind", cases.clouds())
    def test_neighbour_graphs(self, backend: str, kind: str) -> None:
        built = neighbour_graphs.choose(backend, Workload(torch.device("cuda"), torch.float64, (1, 1))).function
        if built is None:
            pytest.skip("SciPy's trees and searches on the CPU")
        points = cases.clouds()[kind]
        cases.neighbour_graphs(built, "cuda", points, min(7, len(points) - 1))

    @pytest.mark.parametrize("weight", [1.0, 1.8])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_scalings(self, backend: str, dtype: torch.dtype, weight: float) -> None:
        for n in (1, 65, 1000):
            cases.rescaled(self.kernels(backend, dtype)[0], "cuda", n, dtype, weight)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_principal_directions(self, backend: str, dtype: torch.dtype) -> None:
        for n, d in ((8, 1), (100, 3), (500, 60), (333, 130)):
            workload = Workload(torch.device("cuda"), dtype, (n, 9), d)
            cases.principal_directions(principal_directions.choose(backend, workload).function, "cuda", n, d, dtype)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_sweeps_and_plans(self, backend: str, dtype: torch.dtype) -> None:
        dense, stream = self.kernels(backend, dtype)
        for n, k in ((1, 1), (2, 63), (65, 64), (300, 500), (1000, 6001), (40, 9000), (30, 17000)):
            cases.dense_sweep(dense, "cuda", n, k, dtype)
            cases.stream_sweep(stream, "cuda", n, k, 20, dtype)
        A, B = factors(97, 41, 6, torch.float64, 1, reach=200.0)
        cases.absorbs(dense, (A @ B.T,), wide(A @ B.T)[0], "cuda")
        cases.absorbs(stream, (A, B), wide(A @ B.T)[0], "cuda")

    def test_products_on_matrix_units(self, backend: str) -> None:
        if backend != "triton":
            pytest.skip("the arithmetic of products is a choice of the Triton kernels")
        for dot, tolerance in (("ieee", 1.0), ("tf32x3", 1.0), ("tf32", 1e4)):
            A, B = factors(300, 500, 130, torch.float32, 1)
            a, b = wide(A, B)
            workload = Workload(torch.device("cuda"), torch.float32, (300, 500), 130, dot)
            bound = softmin_stream.choose(backend, workload).function.bind(A.cuda(), B.cuda())
            found = bound.softmin(torch.zeros(500, device="cuda"), 1)
            cases.close(found, cases.softmin_oracle(a @ b.T, np.zeros(500), 1), torch.float32, tolerance)

    @pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
    def test_the_device_of_the_tensors_is_the_one_that_works(self, backend: str) -> None:
        for kernel in self.kernels(backend, torch.float32)[:1]:
            cases.dense_softmin(kernel, "cuda:1", 300, 500, torch.float32, 1, holes=True)

    def test_outliers(self, backend: str) -> None:
        cases.outliers(self.kernels(backend, torch.float32)[0], "cuda", torch.float32, (0.9, 0.9))

    def test_bfloat16(self, backend: str) -> None:
        cases.stream_bfloat16(self.kernels(backend, torch.bfloat16)[1], "cuda")

    @pytest.mark.parametrize("damping", [(1.0, 1.0), (0.5, 1.0), (1.0, 0.8), (0.3, 0.9)])
    @pytest.mark.parametrize("weight", [1.0, 1.4])
    def test_relaxed_marginals(self, backend: str, damping: tuple[float, float], weight: float) -> None:
        cases.relaxed_agree(*self.kernels(backend, torch.float64), damping, weight, device="cuda")

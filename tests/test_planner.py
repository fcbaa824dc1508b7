"""What a solve would cost, which strategy it takes, and what happens when memory ends."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from tests.problems import all_rows
from torchgw import GWOptions, GWResult, LadderOptions, LowRankOptions, OutOfMemoryWarning, estimate, gw_align
from torchgw.datasets import make_spiral
from torchgw.request import limits
from torchgw.runtime.caller import out_of_memory
from torchgw.solvers import linear_oracle
from torchgw.solvers.problem import Problem
from torchgw.strategies import within_memory

X, Y = make_spiral(80)[0], make_spiral(90, random_state=1)[0]


@pytest.mark.parametrize(
    ("n", "epsilon", "options", "chosen"),
    [
        (1000, 1e-3, GWOptions(), "dense"),
        (20_000, 1e-3, GWOptions(), "streaming"),
        (1000, 1e-3, GWOptions(max_memory=10**6), "streaming"),
        (2000, 0.0, GWOptions(), "dense"),
        (1000, 1e-3, GWOptions(strategy="low-rank"), "low-rank"),
        (1000, 1e-3, GWOptions(strategy="streaming"), "streaming"),
    ],
)
def test_the_strategy_follows_from_size_memory_and_options(
    n: int, epsilon: float, options: GWOptions, chosen: str
) -> None:
    found = estimate(n, n, epsilon=epsilon, options=options, device="cpu")
    assert found.chosen == chosen
    assert found[chosen].against == ""
    assert f"* {chosen}" in str(found)
    assert {forecast.strategy for forecast in found.forecasts} == {"dense", "streaming", "low-rank"}


def test_what_would_run_is_what_runs() -> None:
    for options in (GWOptions(), GWOptions(max_memory=50_000), GWOptions(strategy="low-rank")):
        ladder = LadderOptions(marginal_tol=0.5)
        options = GWOptions(strategy=options.strategy, max_memory=options.max_memory, ladder=ladder)
        result = gw_align(X, Y, distances="landmark", epsilon=1e-2, options=options, random_state=0)
        assert result.strategy == estimate(80, 90, epsilon=1e-2, options=options, device="cpu").chosen


def test_where_nothing_would_run_the_estimate_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_oracle, "has_ortools", lambda: False)
    found = estimate(30_000, 30_000, epsilon=0)
    assert "pip install ortools" in found["streaming"].against
    assert found.chosen == ""
    assert "none would run" in str(found)
    assert "max_memory" in found["dense"].against
    with pytest.raises(TypeError, match=r"pass len\(X\), len\(Y\)"):
        estimate(X, Y)  # type: ignore[arg-type]


def test_only_the_dense_strategy_grows_with_the_pairs() -> None:
    small, large = estimate(10**4, 10**4, device="cpu"), estimate(10**6, 10**6, device="cpu")
    assert large["dense"].memory > 16 * 10**12
    assert large["streaming"].memory < 20 * 2**30
    assert large["streaming"].memory < 100 * small["streaming"].memory
    assert large["dense"].seconds > large["streaming"].seconds


def test_no_time_is_claimed_where_none_was_measured() -> None:
    assert all(math.isnan(forecast.seconds) for forecast in estimate(1000, 1000, device="cuda").forecasts)


def test_rank_costs_memory() -> None:
    thin, thick = (GWOptions(low_rank=LowRankOptions(rank=r)) for r in (2, 200))
    assert (
        estimate(10**4, 10**4, options=thick)["low-rank"].memory
        > estimate(10**4, 10**4, options=thin)["low-rank"].memory
    )


@pytest.mark.parametrize(("n", "k"), [(0, 5), (5, -1), (2.5, 5)])
def test_sizes_that_are_none_are_refused(n: float, k: float) -> None:
    with pytest.raises((ValueError, TypeError), match=r"N must|K must"):
        estimate(n, k)  # type: ignore[arg-type]


@cache
def streamed() -> GWResult:
    options = GWOptions(strategy="streaming")
    return gw_align(X, Y, distances="landmark", epsilon=1e-2, options=options, random_state=0)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("no"),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes"
        ),
    ],
)
def test_memory_that_ends_moves_to_the_next_strategy_once_and_says_so(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(problem: Problem) -> None:
        torch.rand(5, generator=problem.generator)
        raise error

    monkeypatch.setitem(within_memory.SOLVERS, "dense", fails)
    with pytest.warns(OutOfMemoryWarning, match="dense strategy ran out of memory"):
        result = gw_align(X, Y, distances="landmark", epsilon=1e-2, random_state=0)
    assert result.strategy == "streaming"
    at_once = streamed()
    assert result.value == at_once.value
    assert result.backend == at_once.backend
    assert result.coupling.marginal(1).dtype == torch.float64
    np.testing.assert_allclose(result.marginal(1), 1 / 80, atol=1e-6)
    with pytest.raises(MemoryError):
        gw_align(X, Y, distances="landmark", options=GWOptions(strategy="dense"), random_state=0)


def test_the_allocator_of_this_machine_is_understood() -> None:
    with pytest.raises((RuntimeError, MemoryError)) as caught:
        torch.empty(10**16)
    assert out_of_memory(caught.value)


@pytest.mark.parametrize(
    "said",
    [
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call",
        "CUDA driver error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "Triton Error [CUDA]: out of memory",
        "Triton Error [HIP]: Code: 2, Messsage: out of memory",
        "HIP out of memory. Tried to allocate 2.00 GiB",
        "CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        "cudaErrorMemoryAllocation",
        "hipErrorOutOfMemory",
    ],
)
def test_what_drivers_and_libraries_say_is_understood(said: str) -> None:
    assert out_of_memory(RuntimeError(said))


@pytest.mark.parametrize(
    "said",
    [
        "out of resource: shared memory, Required: 262144, Hardware limit: 232448. Reducing block sizes may help",
        "CUDA error: an illegal memory access was encountered",
        "CUBLAS_STATUS_EXECUTION_FAILED",
        "misaligned address",
    ],
)
def test_what_is_no_allocation_is_not(said: str) -> None:
    assert not out_of_memory(RuntimeError(said))


@pytest.mark.parametrize(
    ("options", "epsilon", "message"),
    [
        (GWOptions(gradient="sampled"), 0.0, "epsilon must be > 0"),
        (GWOptions(), 1e300, r"epsilon must be .* <= 1e\+30"),
        (GWOptions(strategy="streaming", loss="kl"), 1e-3, r"options.strategy must be .*, got 'streaming'"),
        (GWOptions(strategy="low-rank", loss="kl"), 1e-3, r"options.loss must be .*, got 'kl'"),
        (GWOptions(strategy="low-rank", low_rank=LowRankOptions(rank=101)), 1e-3, "rank must be"),
    ],
)
def test_an_estimate_refuses_what_the_solve_would(options: GWOptions, epsilon: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        estimate(100, 100, epsilon=epsilon, options=options)
    with pytest.raises(ValueError, match=message):
        gw_align(X, Y, epsilon=epsilon, options=options)


def test_an_estimate_takes_the_strategy_that_options_leave() -> None:
    stored = GWOptions(loss="kl")
    found = estimate(10**5, 10**5, options=stored, device="cpu")
    assert found.chosen == ""
    assert "max_memory" in found["dense"].against
    assert estimate(10**4, 10**4, options=stored, device="cpu").chosen == "dense"
    assert estimate(10**4, 10**4, device="cpu").chosen == "streaming"


def test_what_only_the_solve_knows_is_no_reason_for_its_log_to_refuse(caplog: pytest.LogCaptureFixture) -> None:
    options = GWOptions(strategy="streaming", loss="kl", ladder=LadderOptions(marginal_tol=0.5))
    with caplog.at_level("INFO", logger="torchgw"):
        result = gw_align(None, None, cost=(X, Y), alpha=0.0, epsilon=1e-2, options=options, random_state=0)
    assert result.strategy == "streaming"
    assert "strategy streaming: " in caplog.text


def test_other_errors_are_not_taken_for_missing_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> GWResult:
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setitem(within_memory.SOLVERS, "dense", fails)
    with pytest.raises(RuntimeError, match="shapes"):
        gw_align(X, Y, distances="landmark", random_state=0)
    assert not out_of_memory(ValueError("memory"))


def test_low_rank_needs_factors_and_says_so_before_any_work() -> None:
    options = GWOptions(strategy="low-rank")
    for kind in ("dijkstra", "euclidean"):
        with pytest.raises(ValueError, match=f"factored distances .* got '{kind}': .*; use distances='landmark'"):
            gw_align(X, Y, distances=kind, options=options)
    with pytest.raises(ValueError, match="rank must be"):
        gw_align(X, Y, options=GWOptions(strategy="low-rank", low_rank=LowRankOptions(rank=81)))


def test_a_low_rank_result_is_a_result() -> None:
    options = GWOptions(strategy="low-rank", low_rank=LowRankOptions(rank=8))
    result = gw_align(X, Y, epsilon=0, options=options, random_state=0)
    assert result.marginal_error < 1e-9
    assert int(np.linalg.matrix_rank(result.plan)) == 8
    D, E = (all_rows(known.space) for known in result.known or ())
    T = torch.from_numpy(result.plan)
    value = T.sum(1) @ D.square() @ T.sum(1) + T.sum(0) @ E.square() @ T.sum(0) - 2 * ((D @ T @ E) * T).sum()
    assert result.value == pytest.approx(float(value), rel=1e-5)
    with pytest.raises(ValueError, match="LowRankCoupling has none"):
        result.transform(X)


def test_a_solve_without_entropy_takes_longer() -> None:
    blurred, sharp = (estimate(2000, 2500, epsilon=e, device="cpu")["dense"].seconds for e in (1e-3, 0.0))
    assert sharp > 3 * blurred
    assert estimate(2000, 2000, epsilon=0, device="cpu")["dense"].seconds < sharp, "assignments"


def test_what_stands_against_a_strategy_is_what_decided() -> None:
    def against(**given: Any) -> str:
        return estimate(1000, 1000, device="cpu", **given)["streaming"].against

    cheap = "the dense strategy is cheap here"
    assert against(epsilon="auto") == f"{cheap}, and epsilon='auto' ends without entropy"
    curves = estimate(1000, 1200, device="cpu")["streaming"].against
    assert curves == f"{cheap}, and epsilon='auto' ends without entropy, but between points on curves"
    assert against(epsilon=0.0) == cheap
    assert against(options=GWOptions(strategy="low-rank")) == "the low-rank strategy is asked for"
    assert against(epsilon=1e-2, options=GWOptions(loss="kl")) == "it is evaluated on stored plans"
    assert against(epsilon=1e-2) == "the dense strategy is cheap here"


def test_the_log_names_the_strategy_that_the_spaces_decide(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SHARP_ASSIGNED_PAIRS", "SHARP_PAIRS"):
        monkeypatch.setattr(limits, name, 100)
    monkeypatch.setattr(limits, "DENSE_PAIRS", {"cpu": 100})
    points = np.random.default_rng(0).normal(size=(250, 10))
    with caplog.at_level("INFO", logger="torchgw"):
        result = gw_align(points, points, distances="euclidean", random_state=0)
    assert (result.strategy, result.epsilon) == ("dense", 0)
    assert "strategy dense: " in caplog.text
    assert "streaming" not in caplog.text

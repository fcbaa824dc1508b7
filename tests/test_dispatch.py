"""The choice of an implementation, what it rests on, and how often it compiles."""

from __future__ import annotations

import json
import subprocess
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from tests.problems import quietly
from tests.simulated_device import simulated_gpu
from torchgw import gw_align
from torchgw.kernels import compiler, dispatch, gpu, softmin_dense, softmin_stream, softmin_tiles
from torchgw.kernels.dispatch import Implementation, Workload
from torchgw.kernels.kernel import Kernel

CPU = torch.device("cpu")
DENSE = softmin_dense.reference.KERNEL


SOLVING = """
import warnings
import numpy as np
from torch._dynamo.utils import counters
from torchgw import gw_align
warnings.simplefilter("ignore")
for n, k in [(40, 40), (20, 30), (33, 57), (64, 21)]:
    X, Y = (np.random.default_rng(size).normal(size=(size, 2)) for size in (n, k))
    for epsilon in (1e-1, 1e-2, 1e-3):
        assert gw_align(X, Y, epsilon=epsilon, distances="euclidean", backend="compile").backend == "compile"
print(counters["stats"]["unique_graphs"])
"""


@pytest.mark.slow
def test_whole_solves_compile_each_axis_once_a_dtype() -> None:
    """Two axes in two dtypes, and the trial of the kernel that streams, to which a solve may have to turn."""
    done = subprocess.run([sys.executable, "-c", SOLVING], capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) == 5


@pytest.mark.parametrize("family", [softmin_dense, softmin_stream])
def test_auto_on_the_cpu_takes_the_eager_kernel_and_says_why_not_the_others(family: ModuleType) -> None:
    chosen = family.choose("auto", Workload(CPU, torch.float32, (2000, 2500), 64))
    assert chosen.name == "eager"
    assert chosen.function is family.reference.KERNEL
    assert "GPU" in chosen.passed_over["triton"]
    assert "measured on cpu" in chosen.passed_over["compile"]
    assert chosen.blocks["rows"] == 209


def test_a_named_backend_that_cannot_run_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="triton: Triton kernels need a GPU"):
        softmin_dense.choose("triton", Workload(CPU, torch.float32, (10, 10)))


def test_an_old_gpu_is_told_what_triton_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = Workload(torch.device("cuda"), torch.float32, (9, 9))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert "capability 8.0" in str(gpu.reason_unavailable(workload))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(gpu, "failure", lambda _: None)
    assert gpu.reason_unavailable(workload) is None


NO_COMPILER = "no C compiler: install gcc or set CC"
# What keeps Triton from its first launch: the error of that, whether there is a C compiler, and the reason given.
LAUNCHES: dict[str, tuple[Exception, bool, str]] = {
    "no compiler": (RuntimeError("Failed to find C compiler. Please specify via CC"), False, NO_COMPILER),
    "no headers": (subprocess.CalledProcessError(1, ["gcc"]), True, "failed on a trial: CalledProcessError: Command"),
    "no driver": (AssertionError("libcuda.so cannot found!"), True, "failed on a trial: AssertionError: libcuda.so"),
}


@pytest.mark.skipif(not gpu.has_package("triton"), reason="triton is not installed (it is for Linux only)")
@pytest.mark.parametrize("name", LAUNCHES)
def test_where_triton_cannot_launch_the_next_backend_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchgw.kernels import triton_kernels

    error, there, reason = LAUNCHES[name]

    class Failing:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            launches.append(grid)
            raise error

    launches: list[tuple[int, ...]] = []
    monkeypatch.setattr(triton_kernels, "one_kernel", Failing())
    monkeypatch.setattr(compiler.shutil, "which", lambda _: "/bin/cc" if there else None)
    monkeypatch.setattr(compiler, "failure", lambda *_: "not here")
    gpu.failure.cache_clear()
    X = np.random.default_rng(0).normal(size=(9, 2))
    with simulated_gpu():
        for family in (softmin_dense, softmin_stream, softmin_tiles):
            chosen = family.choose("auto", Workload(torch.device("cuda", 0), torch.float32, (9, 9), 8))
            assert chosen.name == "eager"
            assert reason in chosen.passed_over["triton"]
        with pytest.raises(ValueError, match=rf"backend 'triton' cannot run here \(triton: .*{reason}"):
            gw_align(X, X, backend="triton", device="cuda")
        assert launches == [(1,)]  # it is tried once
        if not there:
            found = quietly(gw_align, X, X, cost=np.eye(9), alpha=0.0, device="cuda")
            assert (found.backend, found.backends_passed_over["triton"]) == ("eager", reason)
    gpu.failure.cache_clear()


@pytest.mark.skipif(not gpu.has_package("triton"), reason="triton is not installed (it is for Linux only)")
def test_the_trial_is_a_launch_of_triton_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.failure.cache_clear()
    assert "Triton failed on a trial: RuntimeError: 0 active drivers" in str(gpu.failure(CPU))
    monkeypatch.setattr(compiler.shutil, "which", lambda _: None)
    gpu.failure.cache_clear()
    assert gpu.failure(CPU) == NO_COMPILER
    gpu.failure.cache_clear()


def test_the_table_of_measurements_decides_by_the_nearest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (
        {"device": "cpu", "family": "softmin_dense", "n": 100, "k": 100, "rank": 0, "eager": 1.0, "compile": 2.0},
        {"device": "cpu", "family": "softmin_dense", "n": 5000, "k": 5000, "rank": 0, "eager": 9.0, "compile": 3.0},
    )
    monkeypatch.setattr(dispatch, "timings", lambda: rows)
    small, large = (Workload(CPU, torch.float32, (n, n)) for n in (200, 4000))
    assert "2.00x" in str(dispatch.slower_than_eager("compile", "softmin_dense", small))
    assert dispatch.slower_than_eager("compile", "softmin_dense", large) is None
    assert dispatch.slower_than_eager("triton", "softmin_dense", small) is None
    assert dispatch.slower_than_eager("compile", "softmin_stream", small) is None


def test_the_committed_table_says_where_it_was_measured() -> None:
    found = json.loads(dispatch.MEASURED.read_text())
    assert {row["device"] for row in found["rows"]} == set(found["environments"])
    for environment in found["environments"].values():
        assert {"cpu", "versions", "commit", "date"} <= set(environment)
    assert {row["family"] for row in found["rows"] if row["device"] == "cpu"} == {"softmin_dense", "softmin_stream"}


def test_the_dispatcher_asks_whether_it_is_wise_before_whether_it_is_able() -> None:
    asked: list[str] = []

    def reason_unavailable(_: Workload) -> str | None:
        asked.append("able")
        return None

    slow = Implementation("compile", reason_unavailable, lambda _: "too small", lambda _: 1)
    last = Implementation("eager", lambda _: None, lambda _: None, lambda _: 2)
    workload = Workload(CPU, torch.float32, (2, 2))
    assert dispatch.select((slow, last), "auto", workload).function == 2
    assert asked == []
    assert dispatch.select((slow, last), "compile", workload).function == 1
    assert asked == ["able"]


def test_without_a_compiler_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler.shutil, "which", lambda _: None)
    compiler.failure.cache_clear()
    with pytest.raises(ValueError, match=r"no C\+\+ compiler: install g\+\+ or set CXX"):
        softmin_dense.choose("compile", Workload(CPU, torch.float32, (9, 9)))
    compiler.failure.cache_clear()


def test_each_compilation_is_announced_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: function)  # what is said costs no compilation
    twice = compiler.compile_function(lambda x: x * 2)
    with caplog.at_level("INFO", "torchgw"):
        for dtype in (torch.float32, torch.float64, torch.float64):
            twice(torch.ones(5, dtype=dtype))
    said = [record.getMessage() for record in caplog.records if record.name == "torchgw"]
    assert [("float32" in line, "float64" in line, "cache" in line) for line in said] == [(1, 0, 1), (0, 1, 1)]


def test_a_compiler_that_fails_its_trial_is_reported() -> None:
    def trial(_: str) -> None:
        raise RuntimeError("no linker\n  second line\nthird line")

    assert compiler.failure("cpu", trial) == "torch.compile failed on a trial: RuntimeError: no linker second line"


def test_an_error_of_a_kernel_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> torch.Tensor:
        raise RuntimeError("launch failed")

    broken = Kernel(failing, failing, failing)  # type: ignore[arg-type]
    chain = (
        Implementation("triton", lambda _: None, lambda _: None, lambda _: broken),
        Implementation("eager", lambda _: None, lambda _: None, lambda _: DENSE),
    )
    monkeypatch.setattr(softmin_dense, "FAMILY", chain)
    X, Y = (np.random.default_rng(seed).normal(size=(30, 2)) for seed in (0, 1))
    with pytest.raises(RuntimeError, match="launch failed"):
        gw_align(X, Y, distances="euclidean", random_state=0)

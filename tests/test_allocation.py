"""Memory that ends is a `MemoryError` that says what to do, whoever asked for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torchgw import GWOptions, Progress, align, cli, epsilon_path, gw_align, gw_loss, gw_neighbours, gw_pairwise
from torchgw.couplings.low_rank import LowRankCoupling
from torchgw.datasets import make_spiral
from torchgw.results.out_of_sample import Unseen
from torchgw.runtime.caller import allocating
from torchgw.strategies import within_memory

X = make_spiral(60)[0]


def bare() -> None:
    raise MemoryError


def native() -> None:
    raise MemoryError("std::bad_alloc")


def remote() -> None:
    raise RuntimeError("a result could not be read") from RuntimeError("...\nMemoryError\n")


def device() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8 GiB\nmore")


FAILURES: list[Callable[[], object]] = [
    bare,
    native,
    remote,
    device,
    lambda: torch.empty(10**16),
    lambda: np.empty(10**17),
]


@pytest.mark.parametrize("fails", FAILURES)
def test_an_allocation_that_fails_in_a_solve_says_what_to_do(
    fails: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(align, "make_providers", lambda *_: fails())
    with pytest.raises(MemoryError, match=r"memory ran out in gw_align \([^\n]+\); torchgw.estimate.* fewer points$"):
        gw_align(X, X)


@pytest.mark.parametrize("function", [gw_pairwise, gw_neighbours])
def test_memory_that_ends_among_many_spaces_says_what_to_do_there(
    function: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{function.__module__}.read_spaces", lambda *_, **__: bare())
    with pytest.raises(MemoryError, match=rf"memory ran out in {function.__name__} \(.*; give fewer or smaller spaces"):
        function([X] * 6)


def test_refusals_and_other_errors_stay_what_they_are() -> None:
    with pytest.raises(MemoryError, match=r"^score and plan"):
        gw_align(X, X, options=GWOptions(strategy="dense", max_memory=10))
    for error in (RuntimeError("shapes cannot be multiplied"), ValueError("MemoryError")):
        with pytest.raises(type(error)) as caught, allocating("a test", "no advice"):
            raise error
        assert caught.value is error


@pytest.mark.parametrize(
    "error",
    [MemoryError(), torch.OutOfMemoryError("mine"), RuntimeError("my pool: out of memory"), FloatingPointError("mine")],
)
@pytest.mark.parametrize(
    ("function", "given"),
    [
        *((each, {"X": X[::3], "Y": X[::3]}) for each in (gw_align, gw_loss, epsilon_path)),
        (gw_pairwise, {"spaces": [X[:9], X[9:20]]}),
    ],
)
def test_what_a_callback_raises_passes_through(
    function: Callable[..., object], given: dict[str, Any], error: Exception
) -> None:
    def callback(_: Progress) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        function(**given, callback=callback, random_state=0)
    assert caught.value is error


def test_no_streaming_follows_a_solve_without_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(within_memory.SOLVERS, "dense", lambda _: bare())
    with pytest.raises(MemoryError, match="memory ran out in gw_align"):
        gw_align(X, X, epsilon=0, random_state=0)


def test_a_plan_beyond_the_memory_names_what_to_use_instead() -> None:
    n, k = 2 * 10**8, 10**8
    one = torch.ones(1, 1, dtype=torch.float64)
    plan = LowRankCoupling(one.expand(n, 1), one.expand(k, 1), torch.ones(1, dtype=torch.float64))
    with pytest.raises(MemoryError, match=r"memory ran out in the dense plan .*; use argmax\(\)"):
        _ = Unseen(plan, 0, False, 2**62).plan


def test_the_command_says_it_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", X)
    monkeypatch.setattr(align, "make_providers", lambda *_: torch.empty(10**16))
    file = str(tmp_path / "x.npy")
    assert cli.main(["align", file, file, "-o", str(tmp_path / "out.npz")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("torchgw: error: memory ran out in gw_align")
    assert said.count("\n") == 1


LIMITED = """
import re, resource
from pathlib import Path
import torch, torchgw

torch.set_num_threads(1)
x, _ = torchgw.datasets.make_spiral(5000)
y, _ = torchgw.datasets.make_swiss_roll(6000)
options = torchgw.GWOptions(strategy="dense")
held = int(re.search(r"VmSize:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (held + 200 * 2**20,) * 2)
try:
    torchgw.gw_align(x, y, epsilon=1e-2, distances="landmark", options=options, random_state=0)
except MemoryError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="what is held is read from /proc")
def test_a_process_with_too_little_memory_is_told() -> None:
    script = [sys.executable, "-W", "ignore", "-c", LIMITED]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "memory ran out in gw_align" in done.stdout

"""What is said of kernels that Triton compiles, and that a command compiles them ahead."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.problems import quietly
from tests.simulated_device import simulated_gpu
from tests.simulated_kernels import triton_stands_in
from tests.test_triton import pytestmark as where_triton_is
from tests.test_triton import run
from torchgw import cli, gw_align
from torchgw.cli import warm
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.kernels import compilations


@where_triton_is
def test_triton_tells_of_what_it_compiles_and_not_of_what_it_finds() -> None:
    run("compilations.py", "not slow")


@pytest.mark.parametrize("hook", ["listener", "hook"])
def test_whoever_was_told_before_is_told_still(
    hook: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compilations, "COMPILED", {})
    told = list[dict[str, Any]]()

    def before(**given: Any) -> bool:
        told.append(given)
        return True  # of a hook: compile nothing

    kernels = [SimpleNamespace(module=module, name="k", __name__="k") for module in ("theirs", "torchgw.kernels.x")]
    if hook == "hook":
        calls = [{"fn": kernel, "key": str(i)} for i, kernel in enumerate(kernels)]
        listen: Any = compilations._Hook(before)
    else:
        calls = [
            {"src": SimpleNamespace(fn=kernel), "metadata": {"hash": str(i)}, "cache_hit": False}
            for i, kernel in enumerate(kernels)
        ]
        listen = compilations._Listener(before)
    with caplog.at_level(logging.INFO, logger="torchgw"):
        returned = [listen(**call) for call in (*calls, *calls)]
    assert told == [*calls, *calls]
    assert all(returned) == (hook == "hook")
    assert compilations.COMPILED == {"1": "k"}
    assert len(caplog.messages) == 1


def test_a_machine_without_a_gpu_is_told_so_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["warm"]) == 2
    assert capsys.readouterr().err.startswith("torchgw: error: kernels are compiled on a machine with the GPU that")
    for device, told in (("cpu", "device must be a GPU, got 'cpu'"), ("mps", "device must be 'cpu' or 'cuda'")):
        assert cli.main(["warm", "--device", device]) == 2
        assert told in capsys.readouterr().err


def test_kernels_that_two_processes_compile_count_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(warm, "compile_cases", lambda device: [{"1": "a"}, {"1": "a", "2": "b"}])
    with simulated_gpu() as simulation, triton_stands_in(simulation):
        assert cli.main(["warm", "--json"]) == cli.main(["warm"]) == 0
    whole, _, line = capsys.readouterr().out.rpartition("}\n")
    assert json.loads(whole + "}")["compiled"] == ["a", "b"]
    assert line.startswith("compiled 2 kernels for cuda:0 in 0.0 s; later processes find them in ")


def test_a_case_solves_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def align(*_: Any, **given: Any) -> Any:
        compilations.COMPILED["new"] = str(torch.device(given["device"]))
        return SimpleNamespace(argmax=lambda: None)

    monkeypatch.setattr(warm, "COMPILED", compilations.COMPILED)
    monkeypatch.setattr(warm, "gw_align", align)
    assert warm.compile_new_kernels(20, 24, "dense", "cuda:0") == {"new": "cuda:0"}
    del compilations.COMPILED["new"]


def variants(n: int, k: int, **given: Any) -> set[Any]:
    """What a solve compiles, by name and kind of arguments."""
    X, Y = make_spiral(n)[0], make_swiss_roll(k, random_state=1)[0]
    with simulated_gpu() as simulation, triton_stands_in(simulation):
        quietly(gw_align, X, Y, device="cuda", backend="triton", random_state=0, **given)
    return {(name, kind) for name, kinds in simulation.variants.items() for kind in kinds}


@pytest.mark.slow
def test_few_kernels_are_left_to_compile_for_other_sizes() -> None:
    known = set[Any]()
    for n, k, strategy in warm.CASES:
        known |= variants(n, k, epsilon=1e-3, options=warm.GWOptions(strategy=strategy))  # type: ignore[arg-type]
    for n, k in ((300, 333), (1000, 1200)):
        assert len(variants(n, k) - known) <= 1

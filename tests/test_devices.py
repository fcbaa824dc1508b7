"""Where a solve runs when nobody says so, and what is said of devices that are not used."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.problems import quietly
from tests.simulated_device import simulated_gpu
from torchgw import GWOptions, StoppingOptions, estimate, gw_align
from torchgw.cli import info
from torchgw.request import devices
from torchgw.request.devices import pick_device, reason_unusable
from torchgw.request.limits import FULL, SMALL_PAIRS

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def gpu() -> Iterator[Any]:
    """A GPU, of which nothing is known yet."""
    for known in (devices._try_device, devices._warn):
        known.cache_clear()
    with simulated_gpu() as simulation:
        yield simulation
    for known in (devices._try_device, devices._warn):
        known.cache_clear()


def test_small_problems_stay_on_the_cpu_unless_a_device_is_named_or_holds_a_tensor(gpu: Any) -> None:
    there = torch.zeros(3, 2).to("cuda")
    for pairs, chosen in ((30 * 40, CPU), (SMALL_PAIRS, CPU), (SMALL_PAIRS + 1, CUDA), (400 * 500, CUDA)):
        assert pick_device(None, (np.zeros(3),), pairs) == chosen
        assert pick_device("cuda", (), pairs) == pick_device(None, (there,), pairs) == CUDA
        assert pick_device("cpu", (there,), pairs) == pick_device(None, (torch.zeros(3), there), pairs) == CPU
    assert estimate(100, 120).device == "cpu"
    assert estimate(400, 500).device == "cuda:0"


def test_solves_follow_that(gpu: Any) -> None:
    rng = np.random.default_rng(0)
    short = {"epsilon": 0.1, "init": [[0, 0]], "options": GWOptions(stopping=StoppingOptions(max_iter=1, min_iter=1))}
    for n, chosen in ((12, CPU), (112, CUDA)):
        found = quietly(gw_align, *rng.normal(size=(2, n, 2)), random_state=0, **short)
        assert found.coupling.device == chosen


REASONS = {
    "CUDA error: no kernel image is available for execution on the device": "unsupported",
    "CUDA error: all CUDA-capable devices are busy or unavailable": "exclusive",
}


@pytest.mark.parametrize("reason", REASONS, ids=REASONS.values())
def test_a_gpu_that_fails_is_not_used_unless_it_is_named_and_why_is_said_once(
    gpu: Any, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError(reason)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, logger="torchgw"):
        patch.setattr(devices, "_try_device", fail)
        assert pick_device(None, ()) == pick_device(None, ()) == CPU
        assert pick_device("cuda", ()) == CUDA
    (record,) = caplog.records
    assert reason in record.message
    assert "device='cuda' insists" in record.message
    assert pick_device(None, ()) == CUDA  # as soon as it works


@pytest.mark.parametrize(("free", "why"), [(FULL, None), (FULL - 1, "only 256 MiB of its memory are free")])
def test_a_gpu_that_is_full_is_not_used_while_it_is(
    gpu: Any, free: int, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 2**37))
    assert reason_unusable() == why
    assert pick_device(None, ()) == (CUDA if why is None else CPU)


@pytest.mark.parametrize(("kind", "why"), [("mps", "float64"), ("xpu", "Intel"), ("meta", "no other devices")])
def test_a_device_of_another_kind_is_refused_with_the_reason(kind: str, why: str) -> None:
    with pytest.raises(ValueError, match=rf"device must be 'cpu' or 'cuda', got '{kind}': .*{why}.*; use 'cpu'"):
        gw_align(np.eye(3)[:, :2], np.eye(3)[:, :2], device=kind)


def told() -> dict[str, str]:
    """What `torchgw info` says of devices."""
    found = info.run_info(argparse.Namespace(json=True))
    assert isinstance(found, dict)
    devices: dict[str, str] = found["devices"]
    return devices


@pytest.mark.parametrize(
    ("capability", "line"),
    [((9, 0), "a card, sm_90, 128 GiB; backend triton, steps in graphs"),
     ((7, 5), "a card, sm_75, 128 GiB; backend compile, steps in graphs")],
)  # fmt: skip
def test_info_says_in_a_line_what_runs_on_a_gpu(
    gpu: Any, capability: tuple[int, int], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr("torchgw.kernels.gpu.failure", lambda _: None)
    monkeypatch.setattr("torchgw.kernels.compiler.failure", lambda *_: None)
    assert told()["cuda:0"] == line


def test_info_says_why_a_device_is_not_used(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2**20, 2**37))
    monkeypatch.setattr("torchgw.kernels.gpu.failure", lambda _: pytest.fail("it is tried on that GPU"))
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    found = told()
    assert "not used unless device='cuda' asks for it: only 1 MiB of its memory are free" in found["cuda:0"]
    assert found["mps"] == "not used: solves end in float64, which Apple's GPUs do not have; solves run on the CPU"


def test_the_limit_on_the_pages_is_that_of_the_code() -> None:
    page = (Path(__file__).parent.parent / "docs" / "gpu.md").read_text()
    for text in (page, gw_align.__doc__ or ""):
        assert f"more than {SMALL_PAIRS:_} pairs of points".replace("_", " ") in " ".join(text.split())

"""A result for the tests that only read one; and which tests see a GPU: those that `-m gpu` asks for, and no others.

Tests that name no device are claims about the CPU, and what they start inherits the environment. GPU tests are skipped,
and say so, where there is no GPU.
"""

from __future__ import annotations

import getpass
import os
import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.problems import ROLL, SPIRAL
from torchgw import GWOptions, GWResult, SpaceOptions, gw_align

LONGEST = ("triton", "distributed", "kernels", "sharp_models", "capabilities", "memory", "fused", "checkpoint")


def sees_gpu(expression: str) -> bool:
    """Whether `-m` asks for tests that are marked `gpu`."""
    return bool(re.search(r"\bgpu\b", re.sub(r"\bnot\s+gpu\b", "", expression)))


def pytest_configure(config: pytest.Config) -> None:
    # Before any test module is imported: the devices are counted once.
    if not sees_gpu(config.option.markexpr):
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["HIP_VISIBLE_DEVICES"] = "-1"
    # torch.compile finds its compiled code again by source alone: code for wider registers gives wrong sums under a
    # capability that was set by hand.
    if capability := os.environ.get("ATEN_CPU_CAPABILITY"):
        kept = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}_{capability}"
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(kept))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The longest files first: at the end, one of several processes would be left alone with them.
    places = {f"test_{name}.py": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device, and -m gpu"))


@pytest.fixture(autouse=True)
def _interrupts() -> Iterator[None]:
    """SIGINT arrives as in a terminal: jobs that a shell puts into the background begin with it ignored."""
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def result() -> GWResult:
    options = GWOptions(spaces=SpaceOptions(k=5, n_landmarks=30))
    return gw_align(SPIRAL, ROLL, distances="landmark", epsilon=1e-3, random_state=0, options=options)

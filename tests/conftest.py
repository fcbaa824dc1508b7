"""A result for the tests that only read one; and GPU tests are skipped, and say so, where there is no GPU."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import torch

from tests.problems import ROLL, SPIRAL
from torchgw import GWOptions, GWResult, SpaceOptions, gw_align


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The longest tests first: at the end, one of several processes would be left alone with them. Those that compile
    # follow each other, so that one process does.
    items.sort(key=lambda item: item.path.name not in ("test_triton.py", "test_memory.py", "test_kernels.py"))
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


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
    return gw_align(SPIRAL, ROLL, distances="landmark", random_state=0, options=options)

"""A result for the tests that only read one; and GPU tests are skipped, and say so, where there is no GPU."""

from __future__ import annotations

import pytest
import torch

from tests.problems import ROLL, SPIRAL
from torchgw import GWOptions, GWResult, SpaceOptions, gw_align


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session")
def result() -> GWResult:
    options = GWOptions(spaces=SpaceOptions(k=5, n_landmarks=30))
    return gw_align(SPIRAL, ROLL, distances="landmark", random_state=0, options=options)

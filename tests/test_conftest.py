"""Which tests see a GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from tests.conftest import sees_gpu


@pytest.mark.parametrize(
    ("expression", "seen"),
    [
        ("not slow and not gpu and not peer and not browser", False),
        ("", False),
        ("slow", False),
        ("not gpu", False),
        ("gpu", True),
        ("gpu and not slow", True),
        ("slow or gpu", True),
    ],
)
def test_only_tests_that_are_asked_for_by_their_marker_see_a_gpu(expression: str, seen: bool) -> None:
    assert sees_gpu(expression) is seen


@pytest.mark.skipif(torch.cuda.is_available(), reason="run with -m gpu")
def test_what_these_tests_start_sees_none_either() -> None:
    assert os.environ["CUDA_VISIBLE_DEVICES"] == os.environ["HIP_VISIBLE_DEVICES"] == "-1"


@pytest.mark.slow
@pytest.mark.parametrize(("marker", "left"), [("gpu", "7"), ("not gpu", "-1")])
def test_the_environment_is_left_alone_for_gpu_tests(marker: str, left: str) -> None:
    code = "import os, pytest; pytest.main(['-q', '--collect-only', '-m', {!r}, 'tests/test_conftest.py'])"
    code += "; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "7"}
    found = subprocess.run(
        [sys.executable, "-c", code.format(marker)], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.splitlines()[-1] == left

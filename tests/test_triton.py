"""The Triton kernels without a GPU: their numbers in the interpreter, their code compiled for GPUs.

Each in a process of its own: what is decorated under the interpreter cannot be compiled later.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed (it is for Linux only)")


def run(file: str, marker: str, keyword: str = "", **variables: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | variables
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    command = [sys.executable, "-m", "pytest", f"tests/triton/{file}", "-q", "-p", "no:cacheprovider"]
    command += ["-m", marker, "-k", keyword]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def test_the_kernels_compute_what_the_oracle_does() -> None:
    run("interpret.py", "not slow", TRITON_INTERPRET="1")


@pytest.mark.slow
def test_the_kernels_compute_it_at_larger_sizes_too() -> None:
    run("interpret.py", "slow", TRITON_INTERPRET="1")


def test_the_kernels_compile_for_a_gpu_of_either_maker() -> None:
    run("ahead_of_time.py", "not slow")


@pytest.mark.slow
def test_every_variant_of_the_kernels_compiles_for_every_target() -> None:
    run("ahead_of_time.py", "slow")

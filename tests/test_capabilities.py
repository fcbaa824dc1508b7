"""Bits are equal on other processors too: the tests marked `bits`, once more with each narrower kind of registers.

torch reads ATEN_CPU_CAPABILITY when it is loaded, so each kind has a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

KINDS = ("default", "avx2", "avx512")
HERE = torch.backends.cpu.get_cpu_capability().lower()
NARROWER = KINDS[: KINDS.index(HERE)] if HERE in KINDS else ()
TESTS = Path(__file__).parent


@pytest.mark.parametrize("kind", NARROWER)
def test_bits_are_equal_with_narrower_registers(kind: str) -> None:
    files = [str(file) for file in sorted(TESTS.glob("test_*.py")) if "pytest.mark.bits" in file.read_text("utf-8")]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "bits", "-p", "no:cacheprovider", *files]
    environment = os.environ | {"ATEN_CPU_CAPABILITY": kind, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=TESTS.parent, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.bits
def test_registers_are_those_asked_for() -> None:
    assert os.environ.get("ATEN_CPU_CAPABILITY", HERE) == HERE

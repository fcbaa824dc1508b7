"""What is said of compilations: see tests/test_compilations.py, which runs this in a process without an interpreter."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from tests.triton.targets import compiled_for
from torchgw.kernels import compilations, triton_kernels


def test_the_first_kernel_is_announced_and_one_on_disk_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    compilations.watch_compilations()

    def launched(dtype: torch.dtype) -> None:
        triton_kernels.one_kernel.device_caches.clear()  # as a new process has none
        with caplog.at_level(logging.INFO, logger="torchgw"), compiled_for("sm_90"):
            triton_kernels.one_kernel[(1,)]((torch.zeros(1, dtype=dtype),), ONE=(1.0,))

    for dtype, count in ((torch.float32, 1), (torch.float64, 2), (torch.float32, 2)):
        launched(dtype)
        assert list(compilations.COMPILED.values()) == ["one_kernel"] * count
        (said,) = caplog.messages
        assert said.startswith("compiling Triton kernels, once; the next process finds them on disk, in ")
        assert said.endswith(str(tmp_path))

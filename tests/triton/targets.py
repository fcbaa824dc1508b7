"""Compiling every launch of a Triton kernel for a GPU that is not here, and reading what the compiler made of it.

``with compiled_for("sm_90") as made: host_function(cpu tensors)`` leaves in ``made`` each kernel that would have been
launched, compiled as the launch itself would specialise it. It replaces private parts of triton, so it belongs to one
version of it; a process that interprets kernels cannot use it.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_89": GPUTarget("cuda", 89, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "sm_120": GPUTarget("cuda", 120, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
KIBIBYTES = {"sm_80": 163, "sm_89": 99, "sm_90": 227, "sm_100": 227, "sm_120": 99, "gfx942": 64}  # of shared memory
MATRIX_INSTRUCTION = {
    "sm_80": "mma.sync",
    "sm_89": "mma.sync",
    "sm_90": "wgmma",
    "sm_100": "tcgen05",
    "sm_120": "mma.sync",
    "gfx942": "v_mfma",
}


class _Device:
    """What a launch asks of the active device, answered for a target without one."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> str:
        return str(self.target.arch)

    def get_current_stream(self, device: object = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


@contextlib.contextmanager
def compiled_for(name: str) -> Iterator[list[Any]]:
    """Turn launches into compilations for the target ``name``."""
    active, run, made = driver._active, JITFunction.run, []

    def compile_only(self: Any, *given: Any, grid: Any, warmup: bool, **more: Any) -> Any:
        kernel = run(self, *given, grid=grid, warmup=True, **more)
        made.append(kernel)
        return kernel

    driver.set_active(_Device(TARGETS[name]))
    JITFunction.run = compile_only
    try:
        yield made
    finally:
        driver._active, JITFunction.run = active, run


def resources(kernel: Any) -> dict[str, Any]:
    """Registers, bytes spilled to memory, shared memory and matrix instructions of a compiled kernel."""
    found: dict[str, Any] = {"name": kernel.metadata.name, "shared": kernel.metadata.shared}
    if "ptx" in kernel.asm:
        log = _ptxas(kernel.asm["ptx"])
        found["registers"] = int(re.search(r"Used (\d+) registers", log)[1])  # type: ignore[index]
        found["spilled"] = sum(map(int, re.findall(r"(\d+) bytes (?:stack frame|spill stores|spill loads)", log)))
        pattern = r"(wgmma\.mma_async\S+|mma\.sync\S+|tcgen05\.mma\S+)"
        found["matrix"] = sorted(set(re.findall(pattern, kernel.asm["ptx"])))
    else:
        text = kernel.asm["amdgcn"]

        def number(key: str) -> int:
            return int(re.search(rf"^[\s-]*\.{key}:\s+(\d+)", text, re.M)[1])  # type: ignore[index]

        found["registers"] = number("vgpr_count")
        # Scalar registers spill to lanes of vector ones, not to memory.
        found["spilled"] = number("vgpr_spill_count") + number("private_segment_fixed_size")
        found["matrix"] = sorted(set(re.findall(r"(v_mfma_\w+)", text)))
    return found


def _ptxas(ptx: str) -> str:
    arch = re.search(r"^\.target (\w+)", ptx, re.M)[1]  # type: ignore[index]
    program = get_ptxas(int(re.search(r"\d+", arch)[0])).path  # type: ignore[index]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.ptx"
        file.write_text(ptx)
        done = subprocess.run(
            [program, "-v", f"--gpu-name={arch}", str(file), "-o", os.devnull],
            capture_output=True,
            text=True,
            check=True,
        )
    return done.stderr

"""What the Triton kernels of all families need to know of a device."""

from __future__ import annotations

import os
import struct
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from torchgw.kernels.compiler import missing, summarise_error
from torchgw.kernels.dispatch import Workload, slower_than_eager
from torchgw.runtime.caller import out_of_memory

OLDEST = (8, 0)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def reason_unavailable(workload: Workload) -> str | None:
    """Why no Triton kernel can run this workload."""
    if not has_package("triton"):
        return "the package triton is not installed"
    if uses_interpreter():
        return None
    if workload.device.type != "cuda":
        return f"Triton kernels need a GPU, the tensors are on {workload.device.type!r}"
    if workload.dtype not in DTYPES:
        return f"no Triton kernel for {workload.dtype}"
    if torch.version.hip is None and torch.cuda.get_device_capability(workload.device) < OLDEST:
        return f"Triton kernels need compute capability {OLDEST[0]}.{OLDEST[1]} or newer"
    return failure(workload.device)


@cache
def failure(device: torch.device) -> str | None:
    """Launch the smallest kernel on the device; the reason if that fails. Once per process and device.

    Triton builds its launchers with a C compiler at the first launch. A machine may have Triton and a GPU, but no
    compiler, no headers of Python, or a driver that is too old. Triton before 3.4 does not
    take the tuples that kernels are given.
    """
    from torchgw.kernels import compilations, triton_kernels

    compilations.watch_compilations()
    out = torch.zeros(1, dtype=torch.float32, device=device)
    try:
        with activate_device(out):
            triton_kernels.one_kernel[(1,)]((out,), ONE=(1.0,))
    except Exception as error:
        if out_of_memory(error):
            raise
        return missing("CC") or f"Triton failed on a trial: {summarise_error(error)}"
    return None


@cache
def has_package(package: str) -> bool:
    """Whether a package is there; looked for once, as that reads folders."""
    return find_spec(package) is not None


def uses_interpreter() -> bool:
    """Whether Triton runs its kernels in Python, on the CPU (TRITON_INTERPRET=1)."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def reason_to_avoid(family: str, workload: Workload) -> str | None:
    """Why ``auto`` should not take a Triton kernel that could run: it is interpreted, or measured to be slow."""
    if uses_interpreter():
        return "Triton's interpreter is for tests"
    return slower_than_eager("triton", family, workload)


def activate_device(tensor: Tensor) -> AbstractContextManager[object]:
    """Makes the tensor's device the one that kernels are launched on."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


@cache
def processors(device: torch.device) -> int:
    """Multiprocessors of the device; a token number where there is none."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def is_amd() -> bool:
    """Whether this torch drives AMD devices, whose wavefronts have 64 lanes and which have no tf32x3."""
    return torch.version.hip is not None


def float_bits(number: float) -> int:
    """A float64 number as the integer that has its bits, which is how kernels take one: on some versions of Triton a
    number arrives as float32, an integer on all as it is."""
    return int(struct.unpack("<q", struct.pack("<d", number))[0])


def power_of_two(n: int) -> int:
    """The least power of two that is at least ``n``."""
    return 1 << max(n - 1, 0).bit_length()


def count_blocks(n: int, size: int) -> int:
    """The number of blocks of ``size`` that cover ``n``."""
    return -(-n // size)

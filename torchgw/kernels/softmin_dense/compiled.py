"""The reference formula through torch.compile, when a compiler is there and the first call's cost can be repaid."""

from __future__ import annotations

import logging
import os
import shutil
from functools import cache

import torch
from torch import Tensor

from torchgw.kernels.dispatch import Request
from torchgw.kernels.softmin_dense.reference import FLOOR, LOWEST_EXPONENT, SoftminDense

logger = logging.getLogger("torchgw")


def unable(request: Request) -> str | None:
    """Why this device has no working compiler, or None."""
    return _broken_compiler(request.device.type)


def unwise(request: Request) -> str | None:
    """On the CPU the blocked reference is as fast as compiled code, without its seconds of compilation."""
    if request.device.type == "cpu":
        return "on the CPU the eager kernel is as fast and needs no compilation"
    return None


@cache
def build() -> SoftminDense:
    """The compiled callable; shapes are dynamic, so new sizes do not compile again."""
    over_columns = torch.compile(_over_columns, dynamic=True)
    over_rows = torch.compile(_over_rows, dynamic=True)

    def softmin_dense(score: Tensor, bias: Tensor, axis: int) -> Tensor:
        result: Tensor = over_columns(score, bias) if axis == 1 else over_rows(score, bias)
        return result

    return softmin_dense


def _over_columns(score: Tensor, bias: Tensor) -> Tensor:
    return _logsumexp2(score + bias[None, :], 1)


def _over_rows(score: Tensor, bias: Tensor) -> Tensor:
    return _logsumexp2(score + bias[:, None], 0)


def _logsumexp2(exponent: Tensor, axis: int) -> Tensor:
    highest = exponent.amax(axis, keepdim=True).clamp_min(FLOOR)
    total = (exponent - highest).clamp_min(LOWEST_EXPONENT).exp2().sum(axis)
    out = total.log2() + highest.squeeze(axis)
    return torch.where(out < FLOOR / 2, -torch.inf, out)


@cache
def _broken_compiler(device_type: str) -> str | None:
    """Compile and run the kernel on a tiny score; the reason if that fails. Once per process and device type."""
    if device_type == "cpu" and not any(shutil.which(c) for c in (os.environ.get("CXX", "g++"), "g++", "clang++")):
        return "torch.compile needs a C++ compiler on the path (g++ or clang++), none found"
    logger.info("torch.compile: trying the compiler for %s (a few seconds once, then from its cache)", device_type)
    score = torch.zeros(3, 2, device=device_type)
    try:
        # Only this trial is guarded: a kernel that compiled and then fails in a solve raises there.
        build()(score, torch.zeros(2, device=device_type), 1)
    except Exception as error:
        return f"torch.compile failed on a trial: {type(error).__name__}: {str(error).splitlines()[0]}"
    return None

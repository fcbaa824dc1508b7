"""The reference formula through torch.compile, when a compiler is there and the first call's cost can be repaid."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from torchgw.kernels import compiler
from torchgw.kernels.dispatch import Workload
from torchgw.kernels.kernel import Kernel, in_two_reads
from torchgw.kernels.logsumexp import logsumexp2_
from torchgw.kernels.softmin_dense import reference


@cache
def build() -> Kernel:
    """The compiled kernel; sizes are dynamic and nothing else varies, so there are two compilations a dtype."""
    over_columns, over_rows = compiler.compiled(_over_columns), compiler.compiled(_over_rows)

    def softmin(score: Tensor, bias: Tensor, axis: int) -> Tensor:
        if min(score.shape) < 2:  # a size of one would be compiled for itself
            return reference.softmin(score, bias, axis)
        result: Tensor = over_columns(score, bias) if axis == 1 else over_rows(score, bias)
        return result

    return Kernel(softmin, in_two_reads(softmin), reference.absorb)


def unable(workload: Workload) -> str | None:
    """Why this device has no working compiler, or None; compiles the kernel, the first time."""
    return compiler.failure(workload.device.type, _trial)


def _trial(device_type: str) -> None:
    build().softmin(torch.zeros(3, 2, device=device_type), torch.zeros(2, device=device_type), 1)


def _over_columns(score: Tensor, bias: Tensor) -> Tensor:
    return logsumexp2_(score + bias[None, :], 1)


def _over_rows(score: Tensor, bias: Tensor) -> Tensor:
    return logsumexp2_(score + bias[:, None], 0)

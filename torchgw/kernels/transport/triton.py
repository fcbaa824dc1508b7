"""The Triton implementation of reading a plan: host side, with the kernels of the streaming softmin."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from torchgw.kernels import gpu
from torchgw.kernels.softmin_stream.triton import blocks, launch, prepare, tile
from torchgw.kernels.transport import reference
from torchgw.kernels.transport.reference import Transport

__all__ = ["blocks", "build", "unable"]

unable = gpu.unable

LEAST_VALUES, MOST_VALUES = 16, 64
MOST_PASSES = 8


@cache
def build(dot: str = "") -> Transport:
    """The implementation with products in ``dot``, see `dispatch.Request`; loads triton."""
    from torchgw.kernels.softmin_stream import triton_kernels

    kernels: Any = triton_kernels

    def apply(A: Tensor, B: Tensor, f: Tensor, g: Tensor, V: Tensor) -> Tensor:
        A, B = prepare(A, B)
        n, d = len(A), V.shape[1]
        values = min(max(gpu.power_of_two(d), LEAST_VALUES), MOST_VALUES)
        V = torch.nn.functional.pad(V, (0, -d % values)).contiguous()
        out, arguments = V.new_empty(n, V.shape[1]), _launch(A, dot)
        grid = (gpu.divided(n, arguments["ROWS"]), V.shape[1] // values)
        kernels.apply_kernel[grid](
            A, B, f, g, V, out, n, len(B), A.shape[1], V.shape[1],
            VALUES=values, PRODUCT=arguments["DOT"], **arguments,
        )  # fmt: skip
        return out[:, :d]

    def best(
        A: Tensor, B: Tensor, g: Tensor, before: tuple[Tensor, Tensor] | None, seed: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        n, arguments = len(A), _launch(A, dot)
        value, index = g.new_empty(n), torch.empty(n, dtype=torch.int32, device=g.device)
        before_value, before_index = before or (value, index)
        kernels.largest_kernel[(gpu.divided(n, arguments["ROWS"]),)](
            A, B, g, before_value, before_index, index if seed is None else seed, value, index, n, len(B), A.shape[1],
            NOISY=seed is not None, AFTER=before is not None, **arguments,
        )  # fmt: skip
        return value, index

    def largest(A: Tensor, B: Tensor, g: Tensor, count: int) -> tuple[Tensor, Tensor]:
        if count > MOST_PASSES:  # each pass finds one; many are found faster in stored blocks
            return reference.largest(A, B, g, count)
        A, B = prepare(A, B)
        found = [best(A, B, g, None, None)]
        for _ in range(count - 1):
            found.append(best(A, B, g, found[-1], None))
        return torch.stack([value for value, _ in found], 1), torch.stack([index for _, index in found], 1).long()

    def sample(A: Tensor, B: Tensor, g: Tensor, generator: torch.Generator) -> Tensor:
        A, B = prepare(A, B)
        seed = torch.randint(2**31 - 1, (1,), generator=generator, device=g.device, dtype=torch.int64)
        return best(A, B, g, None, seed)[1].long()

    return Transport(apply, largest, sample)


def _launch(A: Tensor, dot: str) -> dict[str, Any]:
    return launch(tile(A.shape[1], A.dtype, dot), dot, A.dtype)

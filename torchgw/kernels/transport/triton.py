"""The Triton implementation of reading a plan: host side, with the kernels of the streaming softmin."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from torchgw.kernels import gpu
from torchgw.kernels.softmin_stream.triton import blocks, launch, prepare, tile
from torchgw.kernels.transport.reference import Transport

__all__ = ["blocks", "build", "unable"]

unable = gpu.unable

LEAST_VALUES, MOST_VALUES = 16, 64


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
        with gpu.active(A):
            kernels.apply_kernel[grid](
                A, B, f.contiguous(), g.contiguous(), V, out, n, len(B), A.shape[1], V.shape[1],
                VALUES=values, PRODUCT=arguments["DOT"], **arguments,
            )  # fmt: skip
        return out[:, :d]

    def following(
        A: Tensor, B: Tensor, g: Tensor, before: tuple[Tensor, Tensor], seed: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        # The generator of the noise takes registers: half the columns keep every target from spilling.
        n, arguments = len(A), _launch(A, dot) | {"COLUMNS": 32}
        value, index = g.new_empty(n), torch.empty(n, dtype=torch.int32, device=g.device)
        with gpu.active(A):
            kernels.largest_kernel[(gpu.divided(n, arguments["ROWS"]),)](
                A, B, g.contiguous(), *before, index if seed is None else seed, value, index, n, len(B), A.shape[1],
                NOISY=seed is not None, **arguments,
            )  # fmt: skip
        return value, index

    def from_the_top(A: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        return g.new_full((len(A),), torch.inf), torch.full((len(A),), -1, dtype=torch.int32, device=g.device)

    def largest(A: Tensor, B: Tensor, g: Tensor, count: int) -> tuple[Tensor, Tensor]:
        if count > len(B):
            raise ValueError(f"count must be at most K = {len(B)}, got {count}")
        A, B = prepare(A, B)
        found, last = [], from_the_top(A, g)
        for _ in range(count):
            last = following(A, B, g, last, None)
            found.append(last)
        return torch.stack([value for value, _ in found], 1), torch.stack([index for _, index in found], 1).long()

    def sample(A: Tensor, B: Tensor, g: Tensor, generator: torch.Generator) -> Tensor:
        A, B = prepare(A, B)
        seed = torch.randint(2**31 - 1, (1,), generator=generator, device=g.device, dtype=torch.int64)
        return following(A, B, g, from_the_top(A, g), seed)[1].long()

    return Transport(apply, largest, sample)


def _launch(A: Tensor, dot: str) -> dict[str, Any]:
    return launch(tile(A.shape[1], A.dtype, dot), dot, A.dtype)

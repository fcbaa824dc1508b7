"""The dispatch chain that the softmin families share: Triton, torch.compile, eager."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torchgw.kernels import gpu, measured
from torchgw.kernels.blocks import block_rows
from torchgw.kernels.dispatch import Implementation, Reason, Request, no_blocks
from torchgw.kernels.kernel import Kernel

Build = Callable[[Request], Kernel]
Blocks = Callable[[Request], dict[str, int]]


def rows(request: Request) -> dict[str, int]:
    """The block size of implementations that work in blocks of rows."""
    return {"rows": block_rows(*request.shape, request.device)}


def softmin_family(
    name: str,
    triton: tuple[Build, Blocks],
    compiled: tuple[Reason, Build],
    eager: Kernel,
    compiled_blocks: Blocks = no_blocks,
) -> tuple[Implementation[Kernel], ...]:
    """The implementations of the family ``name`` in their order: builders with their blocks, or with why not."""
    slow = partial(measured.slower_than_eager, "compile", name)
    return (
        Implementation("triton", gpu.unable, partial(gpu.unwise, name), *triton),
        Implementation("compile", compiled[0], slow, compiled[1], compiled_blocks),
        Implementation("eager", lambda _: None, lambda _: None, lambda _: eager, rows),
    )

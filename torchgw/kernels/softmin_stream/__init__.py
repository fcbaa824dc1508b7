"""Row and column logsumexp of a product A B^T that is never stored: the dispatch chain of this family."""

from __future__ import annotations

from functools import partial

from torchgw.kernels import gpu, measured
from torchgw.kernels.blocks import block_rows
from torchgw.kernels.dispatch import Implementation, Request, Selection, select
from torchgw.kernels.kernel import Kernel
from torchgw.kernels.softmin_stream import compiled, reference, triton

NAME = "softmin_stream"

FAMILY: tuple[Implementation[Kernel], ...] = (
    Implementation(
        "triton",
        triton.unable,
        partial(gpu.unwise, NAME),
        lambda request: triton.build(request.dot),
        triton.blocks,
    ),
    Implementation(
        "compile",
        compiled.unable,
        partial(measured.slower_than_eager, "compile", NAME),
        lambda _: compiled.build(),
        lambda request: {"rows": block_rows(*request.shape, request.device)},
    ),
    Implementation(
        "eager",
        lambda _: None,
        lambda _: None,
        lambda _: reference.KERNEL,
        lambda request: {"rows": block_rows(*request.shape, request.device)},
    ),
)


def choose(backend: str, request: Request) -> Selection[Kernel]:
    """The implementation that runs this request; see `dispatch.select`."""
    return select(FAMILY, backend, request)

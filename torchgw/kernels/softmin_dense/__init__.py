"""Row and column logsumexp of a stored score: the dispatch chain of this family."""

from __future__ import annotations

from functools import partial

from torchgw.kernels import measured
from torchgw.kernels.blocks import block_rows
from torchgw.kernels.dispatch import Implementation, Request, Selection, select
from torchgw.kernels.kernel import Kernel
from torchgw.kernels.softmin_dense import compiled, reference, triton

NAME = "softmin_dense"
slower = measured.slower_than_eager

FAMILY: tuple[Implementation[Kernel], ...] = (
    Implementation("triton", triton.unable, partial(slower, "triton", NAME), lambda _: triton.build(), triton.blocks),
    Implementation(
        "compile",
        compiled.unable,
        partial(slower, "compile", NAME),
        lambda _: compiled.build(),
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

"""What is read of a plan T = 2^(A B^T + f + g) without storing it: the dispatch chain of this family."""

from __future__ import annotations

from functools import partial

from torchgw.kernels import gpu
from torchgw.kernels.dispatch import Implementation, Request, Selection, select
from torchgw.kernels.transport import reference, triton
from torchgw.kernels.transport.reference import Transport

NAME = "transport"

FAMILY: tuple[Implementation[Transport], ...] = (
    Implementation(
        "triton", triton.unable, partial(gpu.unwise, NAME), lambda request: triton.build(request.dot), triton.blocks
    ),
    Implementation("eager", lambda _: None, lambda _: None, lambda _: reference.TRANSPORT),
)


def choose(backend: str, request: Request) -> Selection[Transport]:
    """The implementation that runs this request; see `dispatch.select`."""
    return select(FAMILY, backend, request)

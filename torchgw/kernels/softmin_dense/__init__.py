"""Row and column logsumexp of a stored score: the dispatch chain of this family."""

from __future__ import annotations

from torchgw.kernels.dispatch import Implementation, Request, Selection, select
from torchgw.kernels.softmin_dense import compiled, reference, triton
from torchgw.kernels.softmin_dense.reference import SoftminDense

FAMILY: tuple[Implementation[SoftminDense], ...] = (
    Implementation("triton", triton.unable, lambda _: None, triton.build),
    Implementation("compile", compiled.unable, compiled.unwise, compiled.build),
    Implementation("eager", lambda _: None, lambda _: None, lambda: reference.softmin_dense),
)


def choose(backend: str, request: Request) -> Selection[SoftminDense]:
    """The implementation that runs this request; see `dispatch.select`."""
    return select(FAMILY, backend, request)

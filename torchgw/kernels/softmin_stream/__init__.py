"""Row and column logsumexp of a product A B^T that is never stored: the dispatch chain of this family."""

from __future__ import annotations

from torchgw.kernels.dispatch import Request, Selection, select
from torchgw.kernels.family import rows, softmin_family
from torchgw.kernels.kernel import Kernel
from torchgw.kernels.softmin_stream import compiled, reference, triton

FAMILY = softmin_family(
    "softmin_stream",
    triton=(lambda request: triton.build(request.dot), triton.blocks),
    compiled=(compiled.unable, lambda _: compiled.build()),
    eager=reference.KERNEL,
    compiled_blocks=rows,
)


def choose(backend: str, request: Request) -> Selection[Kernel]:
    """The implementation that runs this request; see `dispatch.select`."""
    return select(FAMILY, backend, request)

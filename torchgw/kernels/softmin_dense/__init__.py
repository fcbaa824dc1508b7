"""Row and column logsumexp of a stored score: the dispatch chain of this family."""

from __future__ import annotations

from torchgw.kernels.dispatch import Request, Selection, select
from torchgw.kernels.family import softmin_family
from torchgw.kernels.kernel import Kernel
from torchgw.kernels.softmin_dense import compiled, reference, triton

FAMILY = softmin_family(
    "softmin_dense",
    triton=(lambda _: triton.build(), triton.blocks),
    compiled=(compiled.unable, lambda _: compiled.build()),
    eager=reference.KERNEL,
)


def choose(backend: str, request: Request) -> Selection[Kernel]:
    """The implementation that runs this request; see `dispatch.select`."""
    return select(FAMILY, backend, request)

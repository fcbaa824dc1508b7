"""Row and column logsumexp of a stored score: the dispatch chain of this family."""

from __future__ import annotations

from functools import partial

from torchgw.kernels import compiler, gpu
from torchgw.kernels.blocks import rows
from torchgw.kernels.dispatch import Implementation, Selection, Workload, select, slower_than_eager
from torchgw.kernels.kernel import Kernel
from torchgw.kernels.softmin_dense import reference, triton

NAME = "softmin_dense"
SLOWER = partial(slower_than_eager, "compile", NAME)

FAMILY: tuple[Implementation[Kernel], ...] = (
    Implementation(
        "triton", gpu.reason_unavailable, partial(gpu.reason_to_avoid, NAME), lambda _: triton.build(), triton.blocks
    ),
    Implementation(
        "compile", partial(compiler.reason_unavailable, reference.trial), SLOWER, lambda _: reference.compile_kernel()
    ),
    Implementation("eager", lambda _: None, lambda _: None, lambda _: reference.KERNEL, rows),
)


def choose(backend: str, workload: Workload) -> Selection[Kernel]:
    """The implementation that runs this workload; see `dispatch.select`."""
    return select(FAMILY, backend, workload)

"""Row and column logsumexp of a product A B^T that is never stored: the dispatch chain of this family."""

from __future__ import annotations

from functools import partial

from torchgw.kernels import compiler, gpu
from torchgw.kernels.blocks import rows
from torchgw.kernels.dispatch import Implementation, Selection, Workload, select, slower_than_eager
from torchgw.kernels.kernel import Kernel
from torchgw.kernels.softmin_stream import reference, triton

NAME = "softmin_stream"
SLOWER = partial(slower_than_eager, "compile", NAME)

FAMILY: tuple[Implementation[Kernel], ...] = (
    Implementation(
        "triton",
        gpu.reason_unavailable,
        partial(gpu.reason_to_avoid, NAME),
        lambda workload: triton.build(workload.dot),
        triton.blocks,
    ),
    Implementation(
        "compile",
        partial(compiler.reason_unavailable, reference.trial),
        SLOWER,
        lambda _: reference.compile_kernel(),
        rows,
    ),
    Implementation("eager", lambda _: None, lambda _: None, lambda _: reference.KERNEL, rows),
)


def choose(backend: str, workload: Workload) -> Selection[Kernel]:
    """The implementation that runs this workload; see `dispatch.select`."""
    return select(FAMILY, backend, workload)

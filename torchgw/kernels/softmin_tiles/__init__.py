"""Softmins and reading of a score A B^T on the tiles that are kept: the dispatch chain of this family."""

from __future__ import annotations

from functools import partial

from torchgw.kernels import gpu
from torchgw.kernels.dispatch import Implementation, Selection, Workload, select
from torchgw.kernels.softmin_tiles import reference, triton
from torchgw.kernels.softmin_tiles.tile_kernel import PlanProducts, TileKernel

__all__ = ["FAMILY", "PlanProducts", "TileKernel", "choose"]

NAME = "softmin_tiles"

FAMILY: tuple[Implementation[TileKernel], ...] = (
    Implementation(
        "triton",
        gpu.reason_unavailable,
        partial(gpu.reason_to_avoid, NAME),
        lambda workload: triton.build(workload.dot),
        triton.blocks,
    ),
    Implementation("eager", lambda _: None, lambda _: None, lambda _: TileKernel(reference.softmin, reference.read)),
)


def choose(backend: str, workload: Workload) -> Selection[TileKernel]:
    """The implementation that runs this workload; see `dispatch.select`.

    Nothing of this family is compiled: where the compiler is asked for, the eager implementation serves.
    """
    return select(FAMILY, "eager" if backend == "compile" else backend, workload)

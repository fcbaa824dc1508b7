"""Graphs of nearest neighbours on a device: the dispatch chain of this family."""

from __future__ import annotations

from functools import partial

from torchgw.kernels import gpu
from torchgw.kernels.dispatch import Implementation, Selection, Workload, select
from torchgw.kernels.neighbour_graphs import triton
from torchgw.kernels.neighbour_graphs.graphs import GraphKernels

NAME = "neighbour_graphs"

FAMILY: tuple[Implementation[GraphKernels | None], ...] = (
    Implementation("triton", triton.reason_unavailable, partial(gpu.reason_to_avoid, NAME), lambda _: triton.build()),
    Implementation("eager", lambda _: None, lambda _: None, lambda _: None),
)


def choose(backend: str, workload: Workload) -> Selection[GraphKernels | None]:
    """The implementation that runs this workload; see `dispatch.select`.

    The eager one is None, and serves where the compiler is asked for: trees and searches that go from point to point
    are SciPy's on the CPU.
    """
    return select(FAMILY, "eager" if backend == "compile" else backend, workload)

"""Shortest paths in graphs on a device: the dispatch chain of this family."""

from __future__ import annotations

from functools import partial

from torchgw.kernels import gpu
from torchgw.kernels.dispatch import Implementation, Selection, Workload, select
from torchgw.kernels.shortest_paths import triton
from torchgw.kernels.shortest_paths.searches import Searches

NAME = "shortest_paths"

FAMILY: tuple[Implementation[Searches | None], ...] = (
    Implementation(
        "triton", triton.reason_unavailable, partial(gpu.reason_to_avoid, NAME), lambda _: triton.build(), triton.blocks
    ),
    Implementation("eager", lambda _: None, lambda _: None, lambda _: None),
)


def choose(backend: str, workload: Workload) -> Selection[Searches | None]:
    """The implementation that runs this workload; see `dispatch.select`.

    The eager one is None, and serves where the compiler is asked for: searches go through a graph point by point, so
    what plain torch cannot do better is left to SciPy on the CPU.
    """
    return select(FAMILY, "eager" if backend == "compile" else backend, workload)

"""Batches of small balanced transport problems, each by one program: the dispatch chain of this family."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

from torch import Tensor

from torchgw.kernels import gpu
from torchgw.kernels.dispatch import Implementation, Selection, Workload, select
from torchgw.kernels.small_transport import reference, triton
from torchgw.kernels.small_transport.reference import IterationCounts

NAME = "small_transport"

Solve: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor, Tensor]]


class SmallTransport(NamedTuple):
    """What the family does; see `torchgw.kernels.small_transport.reference`.

    solve : plans of scores, from warm potentials.
    scalings : what brings kernels to their masses.
    """

    solve: Solve
    scalings: Callable[[Tensor, Tensor, Tensor, IterationCounts], tuple[Tensor, Tensor]]


EAGER = SmallTransport(reference.solve, reference.scalings)

FAMILY: tuple[Implementation[SmallTransport], ...] = (
    Implementation(
        "triton",
        triton.reason_unavailable,
        partial(gpu.reason_to_avoid, NAME),
        lambda _: SmallTransport(*triton.build()),
        triton.blocks,
    ),
    Implementation("eager", lambda _: None, lambda _: None, lambda _: EAGER),
)


def choose(backend: str, workload: Workload) -> Selection[SmallTransport]:
    """The implementation that runs this workload; see `dispatch.select`.

    The eager one serves where the compiler is asked for, of which this family has none, and where problems are too
    large for the Triton kernel: their sizes are those of a search, which no user asked for.
    """
    other = backend == "compile" or (backend == "triton" and triton.reason_unavailable(workload) is not None)
    return select(FAMILY, "eager" if other else backend, workload)

"""Keys that sort points along the directions of largest variance of their cells: the dispatch chain of this family."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from torch import Tensor

from torchgw.kernels import gpu
from torchgw.kernels.dispatch import Implementation, Selection, Workload, select
from torchgw.kernels.principal_directions import reference, triton
from torchgw.runtime.ranks import Ranks

NAME = "principal_directions"

Keys: TypeAlias = Callable[[Tensor, Tensor, Tensor, int, Ranks], Tensor]

FAMILY: tuple[Implementation[Keys], ...] = (
    Implementation("triton", triton.reason_unavailable, partial(gpu.reason_to_avoid, NAME), lambda _: triton.build()),
    Implementation("eager", lambda _: None, lambda _: None, lambda _: reference.keys),
)


def choose(backend: str, workload: Workload) -> Selection[Keys]:
    """The implementation that runs this workload, whose rank is the number of features; see `dispatch.select`.

    The eager one serves where the compiler is asked for, of which this family has none, and where a Triton program
    could not hold the features of a cell: their number is that of the distances' factors, which no user asked for.
    """
    other = backend == "compile" or (backend == "triton" and triton.reason_unavailable(workload) is not None)
    return select(FAMILY, "eager" if other else backend, workload)

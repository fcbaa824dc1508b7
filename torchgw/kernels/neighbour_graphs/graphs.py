"""What a family of kernels for graphs of nearest neighbours does."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

UNDECIDED, STAYS, CUT = 0, 1, 2
AT_ONCE, SEARCH_BYTES = 2**24, 24  # distances that are searched at once, and the bytes of one
TOLD = 256  # edges that were cut, of which the ends are told along with their number


class CsrEdges(NamedTuple):
    """The rows of a symmetric CSR matrix of N points on a device, and behind them entries that belong to none.

    pointer : (N + 1,) int32, where rows begin.
    row, target : (E,) int32, both ends of each entry.
    length : (E,) float64.
    mutual : (E,) int8, whether both ends count each other among their nearest.
    """

    pointer: Tensor
    row: Tensor
    target: Tensor
    length: Tensor
    mutual: Tensor


class DoubtfulEdges(NamedTuple):
    """Edges of a graph in doubt, shortest first, in lists with room for all entries of the graph.

    rank : (E,) int32, the place in this list of each entry of the graph, or -1.
    length : (E,) float64, infinite behind the last.
    low, high : (E,) int32, their ends.
    state : (E,) int32: `UNDECIDED`, `STAYS` or `CUT`.
    label : (N,) int32, leads from each point, step by step, to the first of those that edges beside the list join it
        with.
    """

    rank: Tensor
    length: Tensor
    low: Tensor
    high: Tensor
    state: Tensor
    label: Tensor


class GraphKernels(NamedTuple):
    """Neighbour graphs and their short cuts on a device; see `torchgw.kernels.neighbour_graphs.reference`.

    neighbours : the edges from each point to those nearest to it, and those in doubt.
    join_parts : those of them that join parts, and the number of parts.
    decide_edges : those of them that have a short way round.
    finish_graph : the graph without the others.
    """

    neighbours: Callable[[Tensor, int, Tensor | None], tuple[CsrEdges, DoubtfulEdges]]
    join_parts: Callable[[CsrEdges, DoubtfulEdges], Tensor]
    decide_edges: Callable[[Tensor, CsrEdges, DoubtfulEdges, float], None]
    finish_graph: Callable[[CsrEdges, DoubtfulEdges, Tensor], Tensor]

"""Points in an order in which the cells of every resolution are runs of consecutive ones.

Each cell is halved across its direction of largest variance, so a level of the hierarchy has cells of nearly equal
numbers of points that are as round as halving allows. Replaced by the mean of its points, a cell is a quadrature node
of second order for any smooth function of the features: the linear part of the error cancels within the cell.

Source: the cells are those of a principal-direction divisive partition, D. Boley, "Principal direction divisive
partitioning", 1998, with medians for balance.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchgw.kernels import principal_directions
from torchgw.kernels.blocks import blocks, points_at_once
from torchgw.kernels.dispatch import Workload
from torchgw.kernels.sums import add_by_label, round_sums
from torchgw.kernels.tiles import inverse_permutation
from torchgw.persist.codec import storable
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.runtime.ranks import ALONE, Ranks
from torchgw.runtime.transfer import to_device

BLOCK_POINTS = 2**16


@dataclass(frozen=True)
class Hierarchy:
    """Nested partitions of N points into runs of one order.

    Attributes
    ----------
    order : (N,), position to point.
    levels : for each level, coarsest first, the positions (cells + 1,) at which its cells begin and end.
    """

    order: Tensor
    levels: tuple[Tensor, ...]

    @property
    def rank(self) -> Tensor:
        """Position of each point in the order, (N,)."""
        return inverse_permutation(self.order)

    def level(self, n_cells: int) -> int:
        """The first level with at least so many cells, or the last."""
        return next((i for i, ends in enumerate(self.levels) if len(ends) > n_cells), len(self.levels) - 1)

    def cells(self, level: int) -> Cells:
        """The cells of one level."""
        ends = self.levels[level]
        return Cells(_labels(self.order, ends), len(ends) - 1)


@storable
@dataclass(frozen=True)
class Cells:
    """A partition of N points.

    Attributes
    ----------
    label : (N,), the cell of each point.
    count : the number of cells.
    """

    label: Tensor
    count: int

    def split(self, groups: Tensor) -> Cells:
        """The cells, cut so that no cell has points of two ``groups`` (N,)."""
        _, label = torch.unique(self.label * (groups.max() + 1) + groups, return_inverse=True)
        return Cells(label, int(label.max()) + 1)

    def sums(self, values: Tensor) -> Tensor:
        """Sums over the cells, (count, ...) from (N, ...)."""
        return add_by_label(values.new_zeros((self.count, *values.shape[1:])), self.label, values)

    @as_cuda_graph()
    def means(self, values: Tensor, mass: Tensor, ranks: Ranks = ALONE) -> Tensor:
        """Averages (count, d) of values (N, d), the ranks' shares, weighted by ``mass`` (N,) > 0, summed in the wider
        of both precisions."""
        norm = self.sums(mass)
        out = values.new_zeros(self.count, values.shape[1], dtype=torch.promote_types(values.dtype, mass.dtype))
        label, weight = ranks.own(self.label), ranks.own(mass)
        for where in blocks(len(values), points_at_once(values.shape[1], values.device, BLOCK_POINTS)):
            add_by_label(out, label[where], values[where] * weight[where, None])
        return round_sums(ranks.sum(out) / norm[:, None], values.dtype)

    def nearest(self, values: Tensor, centres: Tensor, ranks: Ranks = ALONE) -> Tensor:
        """For each cell the index of its point whose values (N, d), the ranks' shares, are closest to the centre,
        (count,)."""
        size = points_at_once(values.shape[1], values.device, BLOCK_POINTS)
        labels = torch.split(ranks.own(self.label), size)
        distance = torch.cat(
            [
                (block - centres[label]).square().sum(1)
                for block, label in zip(torch.split(values, size), labels, strict=True)
            ]
        )
        distance = ranks.all_gather(distance, len(self.label))
        order = torch.argsort(distance, stable=True)
        order = order[torch.argsort(self.label[order], stable=True)]
        first = torch.searchsorted(self.label[order], torch.arange(self.count, device=order.device))
        return order[first]


def bisect(
    features: Tensor, n_cells: int, unit: int = 1, backend: str = "eager", n: int | None = None, ranks: Ranks = ALONE
) -> Hierarchy:
    """Halve until there are at least ``n_cells`` cells, or a cell for each point.

    Parameters
    ----------
    features : (N, d).
    unit : while a cell has more than ``unit`` points it is cut at a multiple of it, so that runs of ``unit`` points in
        the order never straddle two cells.
    backend : of `torchgw.kernels.principal_directions`.
    n, ranks : N, where the features are the ranks' shares.

    Notes
    -----
    O(N (d + log N)) for each of log2(n_cells) levels; directions come from at most 32 points of each cell. On a GPU a
    level is two launches: one that finds keys, and one that sorts them.
    """
    n = len(features) if n is None else n
    levels = _levels(n, n_cells, unit)  # where cells end depends on their numbers alone, so the host knows
    held = torch.split(to_device(torch.cat(levels), features.device), [len(ends) for ends in levels])
    largest = tuple(int(ends.diff().max()) for ends in levels[:-1])
    workload = Workload(features.device, features.dtype, (n, n_cells), features.shape[1])
    return Hierarchy(_halve_cells(features, held[:-1], largest, backend, workload, ranks), held)


@as_cuda_graph()
def _halve_cells(
    features: Tensor,
    levels: tuple[Tensor, ...],
    largest: tuple[int, ...],
    backend: str,
    workload: Workload,
    ranks: Ranks,
) -> Tensor:
    """The order (N,) in which the cells of all levels, which have so many points at the most, are halved."""
    keys = principal_directions.choose(backend, workload).function
    order = torch.arange(workload.shape[0], device=features.device)
    for ends, size in zip(levels, largest, strict=True):
        order = torch.argsort(keys(features, order, ends, size, ranks), stable=True)
    return order


@as_cuda_graph()
def _labels(order: Tensor, ends: Tensor) -> Tensor:
    """The cell (N,) of each point, of cells that begin and end at these positions of the order."""
    number = torch.arange(len(ends) - 1, device=ends.device)
    label = torch.repeat_interleave(number, ends.diff(), output_size=len(order))
    by_point = torch.empty_like(label)
    by_point[order] = label
    return by_point


def _levels(n: int, n_cells: int, unit: int) -> list[Tensor]:
    """Where the cells of each level begin and end, from one cell to ``n_cells`` at least, or to one for each point."""
    levels = [torch.tensor([0, n], device="cpu")]
    while len(levels[-1]) - 1 < min(n_cells, n):
        levels.append(torch.unique(torch.cat((levels[-1], _cuts(levels[-1], unit)))))
    return levels


def _cuts(ends: Tensor, unit: int) -> Tensor:
    """Where the cells [ends, next end) of more than one point are halved."""
    first, size = ends[:-1], ends[1:] - ends[:-1]
    half = torch.where(size > unit, ((size + unit) // (2 * unit)).clamp_min(1) * unit, size // 2)
    return (first + half)[size > 1]

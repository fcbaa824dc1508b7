"""Keys that sort points along the direction of largest variance of their cell, in plain torch: the eager backend and
the oracle.

    x_m = the features of the points at (m + 1/2) / 32 of a cell's run, less their mean,  m = 0 ... 31
    u <- X^T X u, normalised, three times, from x_31 - x_0
    key_i = the bits of cell_i + 0.999 (<x_i, u> - low) / (high - low),  low and high the ends of all <x_i, u>

The bits of float64 numbers that are not negative rise, as integers, with the numbers, and integers are sorted faster.

Source: D. Boley, "Principal direction divisive partitioning", 1998.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchgw.kernels.blocks import block_rows
from torchgw.runtime.ranks import ALONE, Ranks

POWER_ITERATIONS = 3
SAMPLED_POINTS = 32
SMALLEST_NORM = 1e-30


def keys(features: Tensor, order: Tensor, ends: Tensor, largest: int, ranks: Ranks = ALONE) -> Tensor:
    """Integers (N,) that rise with the coordinate along the direction of a point's cell, and from cell to cell.

    Parameters
    ----------
    features : (N, d), the ranks' shares.
    order, ends : (N,), position to point, and (cells + 1,), the positions where cells begin and end.
    largest : the number of points of the largest cell.
    """
    n, direction = len(order), directions(*collect_sample(features, order, ends, ranks))
    cell = torch.empty_like(order)
    number = torch.arange(len(direction), device=order.device)
    cell[order] = torch.repeat_interleave(number, ends.diff(), output_size=n)
    step = block_rows(len(features), features.shape[1], features.device)
    parts = zip(torch.split(features, step), torch.split(ranks.own(cell), step), strict=True)
    along = torch.cat([(rows * direction[which]).sum(1) for rows, which in parts])
    along = ranks.all_gather(along.to(torch.float64, copy=True), n)
    low, high = along.aminmax()
    along.sub_(low).mul_(0.999).div_((high - low).clamp_min(torch.finfo(along.dtype).tiny)).add_(cell)
    return along.view(torch.int64)


def collect_sample(features: Tensor, order: Tensor, ends: Tensor, ranks: Ranks) -> tuple[Tensor, Tensor, Tensor]:
    """Features, order and ends of cells with the same directions, all of them here."""
    if ranks.count == 1:
        return features, order, ends
    sample = order[positions(ends)]
    every = torch.arange(sample.numel() + 1, device=ends.device)
    return ranks.gather(features, len(order), sample.flatten()), every[:-1], every[:: sample.shape[1]]


def directions(features: Tensor, order: Tensor, ends: Tensor) -> Tensor:
    """Unit vectors (cells, d), zero where all points of a cell are one.

    Parameters
    ----------
    features : (N, d).
    order, ends : (N,), position to point, and (cells + 1,), the positions where cells begin and end.
    """
    sample = features[order[positions(ends)]]
    sample = sample - sample.mean(1, keepdim=True)
    direction = (sample[:, -1] - sample[:, 0])[..., None]
    for _ in range(POWER_ITERATIONS):
        direction = sample.mT @ (sample @ direction)
        direction = direction / torch.linalg.vector_norm(direction, dim=1, keepdim=True).clamp_min(SMALLEST_NORM)
    return direction[..., 0]


def positions(ends: Tensor) -> Tensor:
    """The positions (cells, 32) in the order of the points that stand for each cell."""
    steps = (torch.arange(SAMPLED_POINTS, dtype=torch.float32, device=ends.device) + 0.5) / SAMPLED_POINTS
    return ends[:-1, None] + (steps * ends.diff()[:, None]).long()

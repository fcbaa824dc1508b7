"""Mass of a plan between groups of points, without its entries.

    M_rc = sum over i in group r, j in group c of T_ij

is the sum over r of the rows of T E, where E (K, C) says which column is in which group.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from torchgw.types import Array, Coupling

PIECE = 2**24  # elements of a product that are held at once


def carried(coupling: Coupling, codes: Array, groups: int, axis: int) -> Iterator[tuple[int, Tensor]]:
    """Pieces (first group, mass (n, groups of the piece)), float64 on the CPU, that points get from groups of others.

    ``codes`` (m,) are the groups of the points that axis ``axis`` of the plan runs over; -1 is none.
    """
    like = coupling.rows(torch.tensor([0])).detach()
    index = torch.from_numpy(codes)
    step = max(1, PIECE // max(coupling.shape))
    for first in range(0, groups, step):
        here = torch.arange(first, min(first + step, groups))
        membership = (index[:, None] == here).to(like)
        yield first, coupling.apply(membership, axis).detach().double().cpu()


def between(coupling: Coupling, rows: Array, n_rows: int, columns: Array, n_columns: int) -> Array:
    """M (n_rows, n_columns), float64; O(N K n_columns) time, O((N + K) n_columns) memory in pieces of up to 128 MiB.

    Points with the code -1 belong to no group.
    """
    kept = torch.from_numpy(rows >= 0)
    group = torch.from_numpy(rows)[kept]
    found = torch.zeros(n_rows, n_columns, dtype=torch.float64)
    for first, mass in carried(coupling, columns, n_columns, axis=1):
        found[:, first : first + mass.shape[1]].index_add_(0, group, mass[kept])
    return found.numpy()


def most(coupling: Coupling, codes: Array, groups: int) -> Array:
    """For each target point (K,) the group of source points, of ``groups``, that sends it most mass; -1 without any.

    O(N K groups) time, memory as for `between`.
    """
    best = torch.zeros(coupling.shape[1], dtype=torch.float64)
    found = torch.full((coupling.shape[1],), -1)
    for first, mass in carried(coupling, codes, groups, axis=0):
        largest = mass.max(1)
        found = torch.where(largest.values > best, largest.indices + first, found)
        best = torch.maximum(best, largest.values)
    return found.numpy()

"""Hop distances of a matrix that is the adjacency of a graph: most of its entries are equal, the others are edges.

As distances such a matrix is nearly flat, and says little of where a point lies; the number of edges between two points
does. So a search may go by hops and end on the matrix itself.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

UNREACHED = 1.5
MOST_PRODUCTS = 3


def hop_distances(D: Tensor) -> Tensor | None:
    """Edges between points (N, N) over the largest number of them, for D (N, N); None where D is no adjacency.

    Edges are the entries off the diagonal that differ from what more than half of the others are. Parts that no edge
    joins are half as far again as the furthest points of one part. O(N E) work on the CPU, or a few products of
    matrices (N, N) where points have more than sqrt(N) edges each and lie near each other.
    """
    edges = (D.median() != D).fill_diagonal_(False)
    count = int(edges.sum())
    if count == 0 or 2 * count > len(D) * (len(D) - 1):
        return None
    hops = _from_all(edges | edges.T) if count > len(D) ** 1.5 else None
    hops = _from_each(edges).to(D.device) if hops is None else hops
    hops[hops.isinf()] = UNREACHED * hops[hops.isfinite()].max()
    return (hops / hops.max()).to(D)


def _from_all(edges: Tensor) -> Tensor | None:
    """Float64 hops by a breadth-first search from all points at once, a product for each hop beyond the first; None
    where it takes more than a few. Infinite between parts."""
    hops = torch.where(edges, 1.0, torch.inf).to(torch.float64).fill_diagonal_(0.0)
    step = edges.float()
    last = step
    for hop in range(2, MOST_PRODUCTS + 2):
        fresh = (last @ step > 0) & hops.isinf()
        hops[fresh] = hop
        if not fresh.any() or hops.isfinite().all():
            return hops
        last = fresh.float()
    return None


def _from_each(edges: Tensor) -> Tensor:
    """Float64 hops by a search from each point, infinite between parts."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import shortest_path

    found: np.ndarray = shortest_path(csr_array(edges.cpu().numpy()), unweighted=True, directed=False)
    return torch.from_numpy(found)

"""Hop distances of a matrix that is the adjacency of a graph: most of its entries are equal, the others are edges.

As distances such a matrix is nearly flat, and says little of where a point lies; the number of edges between two points
does. So a search may go by hops and end on the matrix itself.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

UNREACHED = 1.5


def hop_distances(D: Tensor) -> Tensor | None:
    """Edges between points (N, N) over the largest number of them, for D (N, N); None where D is no adjacency.

    Edges are the entries off the diagonal that differ from what more than half of the others are. Parts that no edge
    joins are half as far again as the furthest points of one part. O(N E) work, on the CPU.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import shortest_path

    edges = (D.median() != D).fill_diagonal_(False)
    count = int(edges.sum())
    if count == 0 or 2 * count > len(D) * (len(D) - 1):
        return None
    hops = shortest_path(csr_array(edges.cpu().numpy()), unweighted=True, directed=False)
    reached = np.isfinite(hops)
    hops[~reached] = UNREACHED * hops[reached].max()
    return torch.from_numpy(hops / hops.max()).to(D)

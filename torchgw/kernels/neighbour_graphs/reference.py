"""Neighbour graphs and their short cuts by plain torch and SciPy, an edge after the other: the oracle.

What a short cut is, `torchgw.spaces.graph` says. The lists of this family have room for 2 N k entries, whatever
there is of them, so that no number is waited for; what lies behind the last is infinitely long.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchgw.kernels.neighbour_graphs.graphs import CUT, STAYS, TOLD, UNDECIDED, CsrEdges, DoubtfulEdges

PAIRS = 2**24


def neighbours(points: Tensor, k: int, order: Tensor | None = None) -> tuple[CsrEdges, DoubtfulEdges]:
    """The edges from each of the points (N, D), float64, to the k others nearest to it, of equally near ones the first;
    ``order`` (N,) is one in which points near each other come near each other, which changes nothing but the time it
    takes. In doubt are those that are not mutual, and whose ends share no neighbour through edges that are."""
    edges = edges_of(keys_of(nearest(points, k)), points)
    return edges, list_doubtful(edges, doubtful_lengths(edges))


def nearest(points: Tensor, k: int) -> Tensor:
    """The k others (N, k) nearest to each point, in order of their numbers."""
    found = []
    for part in torch.split(torch.arange(len(points), device=points.device), max(1, PAIRS // len(points))):
        distance = torch.cdist(points[part], points, compute_mode="donot_use_mm_for_euclid_dist")
        distance[part - part[0], part] = torch.inf
        last = distance.topk(k, largest=False).values[:, -1:]
        nearer, ties = distance < last, distance == last
        kept = nearer | (ties & (ties.cumsum(1) <= k - nearer.sum(1, keepdim=True)))
        found.append(kept.nonzero()[:, 1].view(-1, k))
    return torch.cat(found)


def keys_of(neighbour: Tensor) -> Tensor:
    """i N + j (2 N k,) for each edge between points i and j of such lists (N, k), in both directions."""
    n, k = neighbour.shape
    other, one = neighbour.flatten(), torch.arange(n, device=neighbour.device).repeat_interleave(k)
    return torch.cat((one * n + other, other * n + one))


def edges_of(keys: Tensor, points: Tensor) -> CsrEdges:
    """The edges of such keys."""
    n = len(points)
    key, count = torch.unique(keys, return_counts=True)
    row, target = key // n, key % n
    pointer = torch.searchsorted(key, torch.arange(n + 1, device=keys.device) * n)
    length = (points[row] - points[target]).square().sum(1).sqrt()
    left = len(keys) - len(key)
    padded = torch.nn.functional.pad
    one, other = (padded(end.int(), (0, left)) for end in (row, target))
    mutual = padded((count > 1).to(torch.int8), (0, left), value=1)
    return CsrEdges(pointer.int(), one, other, padded(length, (0, left), value=torch.inf), mutual)


def doubtful_lengths(edges: CsrEdges) -> Tensor:
    """The lengths (E,) of edges in doubt, infinite for all others, and from later points to earlier ones."""
    near = _neighbours(edges, edges.mutual != 0)
    found = torch.full_like(edges.length, torch.inf)
    asked = ((edges.mutual == 0) & (edges.row < edges.target)).nonzero()[:, 0]
    for entry, i, j in zip(*(part.tolist() for part in (asked, edges.row[asked], edges.target[asked])), strict=True):
        if near[i].keys().isdisjoint(near[j]):
            found[entry] = edges.length[entry]
    return found


def _neighbours(edges: CsrEdges, kept: Tensor) -> list[dict[int, float]]:
    """The neighbours of each point by the edges that are ``kept`` (E,), with their lengths."""
    near: list[dict[int, float]] = [{} for _ in range(len(edges.pointer) - 1)]
    which = (kept & edges.length.isfinite()).nonzero()[:, 0]
    for i, j, length in zip(*(part[which].tolist() for part in edges[1:4]), strict=True):
        near[i][j] = length
    return near


def list_doubtful(edges: CsrEdges, waiting: Tensor) -> DoubtfulEdges:
    """The list of the edges that have a finite length in ``waiting`` (E,), see `doubtful_lengths`."""
    length, order = waiting.sort(stable=True)
    low, high = edges.row[order], edges.target[order]
    rank, n = torch.full_like(low, -1), len(edges.pointer) - 1
    key = edges.row.long() * n + edges.target
    key[edges.length.isinf()] = n * n
    which = length.isfinite().nonzero()[:, 0]
    for one, other in ((low, high), (high, low)):
        rank[torch.searchsorted(key, one[which].long() * n + other[which])] = which.int()
    return DoubtfulEdges(rank, length, low, high, torch.zeros_like(low), label_parts(edges, waiting))


def label_parts(edges: CsrEdges, waiting: Tensor) -> Tensor:
    """The first point (N,) of the part of each, int32, by the edges whose ``waiting`` (E,) is infinite."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    n = len(edges.pointer) - 1
    kept = ((edges.row < edges.target) & waiting.isinf()).nonzero()[:, 0]
    one, other = (end[kept].cpu().numpy() for end in (edges.row, edges.target))
    of = torch.from_numpy(connected_components(csr_matrix((one >= 0, (one, other)), shape=(n, n)))[1])
    first = torch.full((n,), n).scatter_reduce_(0, of.long(), torch.arange(n), "amin")
    return first[of].to(edges.pointer)


def join_parts(edges: CsrEdges, doubtful: DoubtfulEdges) -> Tensor:
    """The number of parts (1,) of the graph; edges of the list which join two that neither those beside it nor those
    before them do, stay."""
    from scipy.cluster.hierarchy import DisjointSet

    parts, label = DisjointSet(set(doubtful.label.tolist())), doubtful.label.tolist()
    which = doubtful.length.isfinite().nonzero()[:, 0]
    for turn, i, j in zip(which.tolist(), doubtful.low[which].tolist(), doubtful.high[which].tolist(), strict=True):
        if parts.merge(label[i], label[j]):
            doubtful.state[turn] = STAYS
    return edges.pointer.new_full((1,), parts.n_subsets)


def decide_edges(points: Tensor, edges: CsrEdges, doubtful: DoubtfulEdges, factor: float) -> None:
    """Decides of the others: those stay that have a way round at most so many times as long, by edges beside the list
    and those that stay before them. No edge is shorter than the straight line between its ends, by the coordinates
    ``points`` (N, D), of which there may be none."""
    import heapq

    near = _neighbours(edges, doubtful.rank < 0)
    which = doubtful.length.isfinite().nonzero()[:, 0]
    turns = (part[which].tolist() for part in doubtful[1:4])
    for turn, length, i, j in zip(which.tolist(), *turns, strict=True):
        if doubtful.state[turn] == UNDECIDED:
            distance, heap = {i: 0.0}, [(0.0, i)]
            while heap and j not in distance:
                reached, node = heapq.heappop(heap)
                for other, step in near[node].items() if reached == distance[node] else ():
                    if reached + step <= factor * length and reached + step < distance.get(other, torch.inf):
                        distance[other] = reached + step
                        heapq.heappush(heap, (reached + step, other))
            doubtful.state[turn] = STAYS if j in distance else CUT
        if doubtful.state[turn] == STAYS:
            near[i][j] = near[j][i] = length


def finish_graph(edges: CsrEdges, doubtful: DoubtfulEdges, size: Tensor) -> Tensor:
    """The edges get the unit ``size`` (), and those that were cut become loops of infinite length. How many of the list
    are undecided, and are cut, and of the first of these, in any order, place and both ends (2 + 3 `TOLD`,) int32.
    With the undecided ones count those between points that coincide, of which the CPU takes one."""
    state = doubtful.state[doubtful.rank.clamp_min(0).long()]
    gone = (doubtful.rank >= 0) & (state == CUT)
    edges.target.copy_(torch.where(gone, edges.row, edges.target))
    edges.length.mul_(size).masked_fill_(gone, torch.inf)
    known = doubtful.length.isfinite()
    cut = (known & (doubtful.state == CUT)).nonzero()[:, 0]
    told = edges.target.new_zeros(2 + 3 * TOLD)
    told[:2] = torch.stack([(known & (doubtful.state == kind)).sum() for kind in (UNDECIDED, CUT)])
    told[0] += (edges.length == 0).sum()
    first = torch.stack((cut, doubtful.low[cut], doubtful.high[cut]), 1)[:TOLD].flatten()
    told[2 : 2 + len(first)] = first
    return told

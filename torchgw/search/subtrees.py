"""How alike the trees are that hang from the nodes of two very sparse graphs, by messages between pairs of edges.

    m(i -> j, k -> l) = max(0, w (1 + M - |c - c'|)),    M = sum over matched children of m(i' -> i, k' -> k)

for directed edges i -> j and k -> l, whose children are the c and c' edges into i and k from elsewhere, and whose
weights agree by w, 1 where they are the same. It is how many edges the trees beyond have in common, less those of each
node that stay alone, so that neither grows by what is on one side only. In place of the best matching of children
stands the smaller of the sums over either side of each child's best: no less, and the same where those differ. All
edges into two nodes together say how alike these are.

Sources: L. Ganassali, M. Lelarge, L. Massoulie, "Correlation detection in trees for planted graph alignment", 2022;
G. Piccioli, G. Semerjian, G. Sicuro, L. Zdeborova, "Aligning random graphs with a sub-tree similarity message-passing
algorithm", 2022 (messages along edges that do not turn back); D. Matula, "Subtree isomorphism in O(n^(5/2))", 1978 (the
recursion on trees).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SHARPENED = 3  # power of the agreement of two weights: a wrong one is nearly a missing edge
WORK_PER_PAIR, MOST_WORK = 50, 50_000_000  # entries of messages that a round reads, for each pair of nodes, and in all


@dataclass(frozen=True, eq=False)
class Families:
    """Parents and their children.

    membership : (parents, children), sparse, ones where they belong together.
    """

    membership: Tensor

    @classmethod
    def of(cls, related: Tensor) -> Families:
        """Of a matrix (parents, children) of ones and zeros."""
        return cls(related.to_sparse())

    @property
    def parent(self) -> Tensor:
        """Index of each child's (m,), once for each of its parents."""
        return self.membership.indices()[0]

    @property
    def sizes(self) -> Tensor:
        """Children of each parent (parents,)."""
        return torch.bincount(self.parent, minlength=self.membership.shape[0]).to(self.membership.dtype)

    def largest_messages(self, m: Tensor) -> Tensor:
        """The largest of messages (children, n) among each parent's, (parents, n), zero where it has none."""
        found = m.new_zeros((self.membership.shape[0], m.shape[1]))
        children = m[self.membership.indices()[1]]
        return found.scatter_reduce_(0, self.parent[:, None].expand_as(children), children, "amax")


@dataclass(frozen=True, eq=False)
class TreeEdges:
    """The edges of a graph in both directions.

    values : of each, there and back (E, 2).
    children : the edges that each comes after.
    incoming : the edges into each node.
    """

    values: Tensor
    children: Families
    incoming: Families

    @classmethod
    def of(cls, D: Tensor) -> TreeEdges:
        """Of a matrix (N, N) that is zero where there is no edge."""
        tail, head = _adjacency_mask(D).nonzero(as_tuple=True)
        beyond = (tail[:, None] == head) & (head[:, None] != tail)
        into = torch.arange(len(D), device=D.device)[:, None] == head
        return cls(torch.stack((D[tail, head], D[head, tail]), 1), Families.of(beyond.to(D)), Families.of(into.to(D)))


def compare_subtrees(X: Tensor, Y: Tensor, depth: int, most_work: int = MOST_WORK) -> Tensor | None:
    """How alike the trees of that depth are, (N, K), around the nodes of two graphs, matrices (N, N) and (K, K), zero
    where there is no edge; None of graphs with no edges, or with so many that a round reads more
    than ``most_work`` entries."""
    (x, x_children), (y, y_children) = _count_edges(X), _count_edges(Y)
    if not 0 < x * y_children + y * x_children <= min(WORK_PER_PAIR * len(X) * len(Y), most_work):
        return None
    source, target = TreeEdges.of(X), TreeEdges.of(Y)
    a, b = source.values, target.values
    agree = ((a @ b.T).clamp_min(0.0) / torch.maximum(a.square().sum(1)[:, None], b.square().sum(1))) ** SHARPENED
    m = agree
    for _ in range(depth):
        last, m = m, agree * (1 + _match_subtrees(m, source.children, target.children)).clamp_min(0.0)
        if torch.equal(last, m):
            break
    return _match_subtrees(m, source.incoming, target.incoming)


def _match_subtrees(m: Tensor, x: Families, y: Families) -> Tensor:
    """Sums of messages over matched children (parents of x, parents of y), less how many stay alone."""
    found = torch.minimum(x.membership @ y.largest_messages(m.T).T, (y.membership @ x.largest_messages(m).T).T)
    return found - (x.sizes[:, None] - y.sizes).abs()


def _adjacency_mask(D: Tensor) -> Tensor:
    """Whether there is an edge between two nodes (N, N)."""
    return ((D != 0) | (D.T != 0)).fill_diagonal_(False)


def _count_edges(D: Tensor) -> tuple[int, int]:
    """Directed edges, and pairs of one and of another that comes after it without turning back."""
    degrees = _adjacency_mask(D).sum(1)
    return int(degrees.sum()), int((degrees * (degrees - 1)).sum())

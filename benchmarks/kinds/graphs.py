"""Pairs of graphs with a known correspondence: a graph by its adjacency, and a shuffled copy, some edges of it changed.

Made kinds have an average degree of six to ten whatever their size, trees apart; the real ones are those that networkx
ships. A pair knows where each node went, and which nodes no one can tell apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import networkx as nx
import numpy as np

Maker = Callable[[int, int], nx.Graph]
SHARES = (0.01, 0.05, 0.10, 0.20)  # of the edges, added or removed
SIZES = (30, 50, 75, 100, 150, 200, 250, 300, 400, 40, 60, 120, 180)  # of every made kind, and one of LARGE
LARGE = {"blocks": 1000, "preferential": 1500, "small world": 700, "geometric": 1000, "power law": 1000, "tree": 500}


@dataclass(frozen=True)
class GraphPair:
    """Two graphs of N nodes.

    kind : which graphs
    name : what was done to them
    A, B : adjacency (N, N), float64; a weight where there is an edge from i to j
    match : where node i of the first went in the second, (N,)
    """

    kind: str
    name: str
    A: np.ndarray
    B: np.ndarray
    match: np.ndarray

    @cached_property
    def symmetries(self) -> np.ndarray:
        """Classes of nodes (N,) that colour refinement of both graphs at once cannot tell apart, such as twin leaves.

        Each round colours a node by the sum over its neighbours of a random number for their colour, times one for the
        weights that the edge has in both graphs and both directions.
        """
        rng = np.random.default_rng(0)
        B = self.B[np.ix_(self.match, self.match)]
        joined = np.nonzero((self.A != 0) | (self.A.T != 0) | (B != 0) | (B.T != 0))
        weights = np.stack([M[joined] for M in (self.A, self.A.T, B, B.T)], 1)
        kinds, place = np.unique(weights, axis=0, return_inverse=True)
        edge = np.zeros_like(self.A)
        edge[joined] = rng.random(len(kinds))[place.reshape(-1)]
        colour, count = np.zeros(len(edge), dtype=int), 0
        while count < colour.max() + 1:
            count = colour.max() + 1
            sums = np.round(edge @ rng.random(count)[colour], 8)
            colour = np.unique(np.stack((colour, sums), 1), axis=0, return_inverse=True)[1].reshape(-1)
        return colour

    def right(self, matched: np.ndarray) -> float:
        """Share of nodes that are matched with their own copy, or with that of one that cannot be told from them."""
        origin = np.argsort(self.match)[matched]
        return float((self.symmetries[origin] == self.symmetries).mean())


def blocks(n: int, seed: int) -> nx.Graph:
    """Four communities, eight neighbours inside and two outside."""
    size = n / 4
    p = [[min(0.6, 8 / size) if i == j else 2 / (3 * size) for j in range(4)] for i in range(4)]
    return nx.stochastic_block_model([len(part) for part in np.array_split(range(n), 4)], p, seed=seed)


def geometric(n: int, seed: int) -> nx.Graph:
    """Points of the unit square, joined where close."""
    return nx.random_geometric_graph(n, float(np.sqrt(9 / (np.pi * n))), seed=seed)


MADE: dict[str, Maker] = {
    "blocks": blocks,
    "preferential": lambda n, seed: nx.barabasi_albert_graph(n, 4, seed=seed),
    "small world": lambda n, seed: nx.connected_watts_strogatz_graph(n, 6, 0.2, seed=seed),
    "geometric": geometric,
    "power law": lambda n, seed: nx.powerlaw_cluster_graph(n, 4, 0.3, seed=seed),
    "tree": lambda n, seed: nx.random_labeled_tree(n, seed=seed),
}
REAL: dict[str, Callable[[], nx.Graph]] = {
    "karate": nx.karate_club_graph,
    "les miserables": nx.les_miserables_graph,
    "davis": nx.davis_southern_women_graph,
    "florentine": nx.florentine_families_graph,
}


def oriented(make: Maker) -> Maker:
    """Every edge of an undirected graph given one direction at random."""

    def directed(n: int, seed: int) -> nx.DiGraph:
        rng = np.random.default_rng(seed)
        edges = [edge if rng.random() < 0.5 else edge[::-1] for edge in make(n, seed).edges]
        found = nx.DiGraph()
        found.add_nodes_from(range(n))
        found.add_edges_from(edges)
        return found

    return directed


def directed_blocks(n: int, seed: int) -> nx.DiGraph:
    """Four communities in a ring: each points at itself and, less often, at the next."""
    size = n / 4
    p = [[min(0.5, 5 / size) if i == j else 3 / size * ((i + 1) % 4 == j) for j in range(4)] for i in range(4)]
    sizes = [len(part) for part in np.array_split(range(n), 4)]
    return nx.stochastic_block_model(sizes, p, seed=seed, directed=True)


def scale_free(n: int, seed: int) -> nx.DiGraph:
    """Directed preferential attachment, without loops and multiple edges."""
    found = nx.DiGraph(nx.scale_free_graph(n, alpha=0.2, beta=0.7, gamma=0.1, seed=seed))
    found.remove_edges_from(list(nx.selfloop_edges(found)))
    return found


def citations(n: int, seed: int) -> nx.DiGraph:
    """A growing network: each node points at an earlier one and at all that this one points at, without cycles."""
    return nx.gnc_graph(n, seed=seed)


DIRECTED: dict[str, Maker] = {
    "oriented small world": oriented(MADE["small world"]),
    "oriented geometric": oriented(geometric),
    "directed blocks": directed_blocks,
    "scale free": scale_free,
    "citations": citations,
}


def adjacency(graph: nx.Graph, weight: str | None = None) -> np.ndarray:
    """The graph's matrix (N, N) in the order of its nodes, ones where ``weight`` is None."""
    return np.asarray(nx.to_numpy_array(graph, weight=weight), dtype=np.float64)


def weighted(A: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Random weights between 0.2 and 1 on the edges of a graph, the same in both directions where both are there."""
    weights = np.triu(rng.uniform(0.2, 1, A.shape), 1)
    return (A != 0) * (weights + weights.T)


def altered(A: np.ndarray, share: float, add: bool, rng: np.random.Generator) -> np.ndarray:
    """The graph with that share of its edges removed, or as many added between random nodes, weighted like the others.

    At least one edge differs.
    """
    undirected = (A == A.T).all()
    upper = np.triu(np.ones(A.shape, dtype=bool), 1) if undirected else ~np.eye(len(A), dtype=bool)
    edges = np.argwhere((A != 0) & upper)
    among = np.argwhere((A == 0) & upper) if add else edges
    count = max(1, round(share * len(edges)))
    rows, columns = among[rng.choice(len(among), count, replace=False)].T
    weights = A[tuple(edges[rng.choice(len(edges), count)].T)] if add else 0.0
    B = A.copy()
    B[rows, columns] = weights
    if undirected:
        B[columns, rows] = weights
    return B


def pair(kind: str, A: np.ndarray, share: float, add: bool, seed: int, note: str = "") -> GraphPair:
    """A graph and its altered, shuffled copy."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(A))
    B = altered(A, share, add, rng)[np.ix_(order, order)]
    name = f"{kind} {len(A)}{note}, {share:.0%} of edges {'added' if add else 'removed'}"
    return GraphPair(kind, name, A, B, np.argsort(order))


def undirected_pairs() -> Iterator[GraphPair]:
    """The hundred: fourteen of each made kind, four of each real graph. All shares with and without weights."""
    for at, (kind, make) in enumerate(MADE.items()):
        for i, n in enumerate((*SIZES, LARGE[kind])):
            turn, seed = at + i, 100 * at + i
            with_weights = turn // 4 % 2 == 1
            A = adjacency(make(n, seed))
            A = weighted(A, np.random.default_rng(seed)) if with_weights else A
            add = (turn + turn // 4 + turn // 8) % 2 == 0
            yield pair(kind, A, SHARES[turn % 4], add, seed, " weighted" if with_weights else "")
    for at, (kind, load) in enumerate(REAL.items()):
        own = nx.is_weighted(load())
        for i, share in enumerate(SHARES):
            with_weights = own and (i % 2 == 0 or kind == "les miserables")
            A = adjacency(load(), "weight" if with_weights else None)
            yield pair(kind, A, share, i % 2 == at % 2, 1000 + 10 * at + i, " weighted" if with_weights else "")


def directed_pairs() -> Iterator[GraphPair]:
    """The twenty: four of each directed kind, half of them weighted."""
    for at, (kind, make) in enumerate(DIRECTED.items()):
        for i, n in enumerate((50, 100, 200, 400)):
            seed = 2000 + 100 * at + i
            with_weights = (at + i) % 2 == 1
            A = adjacency(make(n, seed))
            A = weighted(A, np.random.default_rng(seed)) if with_weights else A
            yield pair(kind, A, SHARES[i], (at + i) // 2 % 2 == 0, seed, " weighted" if with_weights else "")

"""The automorphism of a graph that agrees with most of some wished images.

    maximise   #{t : sigma(t) = wanted(t)}    over permutations sigma with A[sigma(s), sigma(t)] = A[s, t] for all s, t

Two copies of the graph are coloured alike. Colours are refined until nodes of one colour have the same numbers of
neighbours of each colour; an automorphism maps each node to one of the same colour in the other copy. An automorphism
below a colouring therefore agrees with at most as many wishes as there are distinct wished images of the right colour.
The search gives one node at a time an image, its wished one first, and leaves a branch when its bound is no better than
the best automorphism so far.

Sources: B. McKay, A. Piperno, "Practical graph isomorphism II", 2014 (individualisation and refinement).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from torchgw.linalg.sparse_entries import entry_rows
from torchgw.types import Array

MOST_WORK = 10**9  # entries of the graph that the search reads


@dataclass(frozen=True, eq=False)
class RefinementGraph:
    """A graph as refinements read it.

    matrix : (N, N), CSR, its entries are weights.
    sides : of the edges from nodes, and of those to them where these differ: beginnings of rows (N + 1,), columns (m,),
        and a hash of each entry's weight and direction (m,).
    """

    matrix: Any
    sides: tuple[tuple[Array, Array, Array], ...]

    @classmethod
    def of(cls, adjacency: Any) -> RefinementGraph:
        """Of a matrix (N, N)."""
        found = csr_array(adjacency)
        found.eliminate_zeros()
        turned = csr_array(found.T)
        both = (found,) if (found != turned).nnz == 0 else (found, turned)
        values = np.unique(found.data)
        sides = []
        for direction, side in enumerate(both):
            kind = np.searchsorted(values, side.data) * 2 + direction + 1
            loops = np.where(entry_rows(side) == side.indices, np.uint64(1) << np.uint64(40), np.uint64(0))
            sides.append((side.indptr, side.indices, _hash_numbers(kind.astype(np.uint64) + loops)))
        return cls(found, tuple(sides))

    @property
    def entries_per_round(self) -> int:
        """Entries that a round of refinement reads."""
        return 2 * (int(self.matrix.shape[0]) + sum(len(columns) for _, columns, _ in self.sides))

    def refine(self, colour: Array) -> tuple[Array | None, int]:
        """The colours (2, N) of both copies when no round parts them any more, None if the copies then differ; and the
        rounds."""
        count, rounds = int(colour.max(initial=0)) + 1, 0
        while True:
            rounds += 1
            key = _hash_numbers(colour.astype(np.uint64) + np.uint64(1))
            seen = key.copy()
            for first, column, kind in self.sides:
                total = np.zeros((2, len(column) + 1), dtype=np.uint64)
                np.cumsum(_hash_numbers(key[:, column] + kind), axis=1, out=total[:, 1:])
                seen = _hash_numbers(seen) + total[:, first[1:]] - total[:, first[:-1]]
            names, colour = np.unique(seen, return_inverse=True)
            colour = colour.reshape(seen.shape)
            if (np.bincount(colour[0], minlength=len(names)) != np.bincount(colour[1], minlength=len(names))).any():
                return None, rounds
            if len(names) == count:
                return colour.astype(np.int32), rounds
            count = len(names)

    def is_automorphism(self, image: Array) -> bool:
        """Whether a permutation (N,) is an automorphism."""
        return bool((self.matrix[image][:, image] != self.matrix).nnz == 0)


def maximise_agreements(adjacency: Any, wanted: Array) -> tuple[int, int]:
    """How many wished images (N,), -1 where there is none, an automorphism can agree with at most: the number of the
    best one that was found, and a bound, which is the same number if the search came to its end."""
    graph = RefinementGraph.of(adjacency)
    best = int((wanted == np.arange(len(wanted))).sum())  # of the identity
    start, rounds = graph.refine(np.zeros((2, len(wanted)), dtype=np.int32))
    assert start is not None  # both copies are the same
    limit = _bound_agreements(start, wanted)
    spent = rounds * graph.entries_per_round
    branches: list[tuple[int, Iterator[tuple[Array | None, int]]]] = [(limit, iter([(start, 0)]))]
    while branches:
        bound, children = branches[-1]
        colour, rounds = next(children, (None, -1)) if bound > best else (None, -1)
        if rounds < 0:
            branches.pop()
            continue
        spent += rounds * graph.entries_per_round
        if spent > MOST_WORK:
            return best, limit
        if colour is None or (bound := _bound_agreements(colour, wanted)) <= best:
            continue
        if len(wanted) == colour.max() + 1:
            image = np.empty(len(wanted), dtype=np.int64)
            image[np.argsort(colour[0])] = np.argsort(colour[1])
            best = bound if graph.is_automorphism(image) else best
        else:
            branches.append((bound, _iterate_branches(graph, colour, wanted)))
    return best, best


def _iterate_branches(graph: RefinementGraph, colour: Array, wanted: Array) -> Iterator[tuple[Array | None, int]]:
    """Refined colours after each image of one node whose image is open, the wished one first."""
    sizes = np.bincount(colour[0])[colour[0]]
    wished = (wanted >= 0) & (colour[0] == colour[1, wanted])
    unsettled = np.flatnonzero((sizes > 1) & wished)
    unsettled = unsettled if len(unsettled) else np.flatnonzero(sizes > 1)
    node = unsettled[sizes[unsettled].argmin()]
    images = np.flatnonzero(colour[1] == colour[0, node])
    if wished[node]:
        images = np.concatenate(([wanted[node]], images[images != wanted[node]]))
    for image in images:
        chosen = colour.copy()
        chosen[0, node] = chosen[1, image] = colour.max() + 1
        yield graph.refine(chosen)


def _bound_agreements(colour: Array, wanted: Array) -> int:
    """Distinct wished images that have the colour of the node."""
    wished = (wanted >= 0) & (colour[0] == colour[1, wanted])
    return len(np.unique(wanted[wished]))


def _hash_numbers(x: Array) -> Array:
    """A permutation of 64-bit numbers without visible order (the end of SplitMix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = x ^ (x >> np.uint64(31))
    return mixed

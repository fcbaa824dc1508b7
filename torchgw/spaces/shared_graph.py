"""Neighbour graphs of points in many dimensions, of which each rank has the coordinates of its share and no others.

    each rank's points against all shares, one after the other -> neighbours and distances, on the rank that makes the
    graph -> the graph without coordinates; where it is in parts, each rank's nearest points elsewhere likewise

In many dimensions all pairs of points are looked at, which ranks divide, and from some forty on coordinates are more
than the graph. In few they are a fraction of it, and a tree has the neighbours of all points soon: one rank has them
all then. Of points that are as far from another one, which are its neighbours depends on the shares. Lists of points
that are there several times may hold nothing but copies, so the rank that makes their graph gets all coordinates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchgw.runtime.ranks import Ranks
from torchgw.spaces.edges import entry_positions
from torchgw.spaces.graph import (
    GraphInParts,
    GraphReport,
    Parts,
    build_candidate_graphs,
    finish_graph,
    graph_of_cloud,
    most_neighbours,
    nearest_elsewhere,
    stitch_once,
)
from torchgw.spaces.neighbours import TREE_DIMENSIONS, Search
from torchgw.spaces.prepare import InputSpace
from torchgw.types import Array

COORDINATES, LISTED = 2**21, 2**17  # of points that are passed together; neighbours of own ones that are sought so
ROWS = 2**15  # whose edges get their lengths together


def has_shares(space: InputSpace) -> bool:
    """Whether ranks have shares of the points of a space."""
    return space.is_points and has_many_dimensions(space.data)


def has_many_dimensions(points: Any) -> bool:
    """Whether points (N, D) have so many dimensions."""
    return len(points.shape) == 2 and points.shape[1] > TREE_DIMENSIONS


def graphs_of_shares(
    shares: dict[int, Array], spaces: Sequence[InputSpace], k: int | None, ranks: Ranks
) -> dict[int, JoinedGraph]:
    """The neighbour graphs of some of the spaces, by their numbers, each on the rank that `Ranks.scatter` gives it;
    ``shares`` are this rank's points (n, D) of theirs, which are taken out."""
    own, clouds, numbers = dict[int, JoinedGraph](), dict[int, Array](), range(len(spaces))
    lists = dict[int, NeighbourLists]()
    for number in list(shares):
        n, owner = spaces[number].size, number % ranks.count
        clouds[number], size = _unit_share(shares.pop(number), n, ranks)
        found = [ranks.collect(_to_device(part, ranks), n, owner) for part in _neighbours(clouds[number], n, k, ranks)]
        if found[0] is not None and found[1] is not None:
            lists[number] = NeighbourLists(found[0].cpu().numpy(), found[1].cpu().numpy())
            own[number] = JoinedGraph(size)
        del found

    def has_copies(number: int) -> bool:
        return number in lists and not lists[number].length.all()

    for number, copies in enumerate(ranks.scatter([partial(has_copies, number) for number in numbers])):
        if copies:
            n, owner = spaces[number].size, number % ranks.count
            every = ranks.collect(_to_device(clouds[number], ranks), n, owner)
            if every is not None:
                del lists[number]
                own[number] = WholeGraph(own[number].size, every.cpu().numpy())

    def assemble(number: int) -> None:
        if number in lists:
            own[number].begin(build_candidate_graphs(lists.pop(number), k))

    def labels_of(number: int) -> Array | None:
        return own[number].labels if number in own else None

    ranks.scatter([partial(assemble, number) for number in numbers])
    while True:
        labels = ranks.scatter([partial(labels_of, number) for number in numbers])
        if all(label is None for label in labels):
            return own
        for number, label in enumerate(labels):
            if label is not None:
                nearest = _elsewhere(clouds[number], label, ranks)
                n, owner = len(label), number % ranks.count
                distance, partner = (ranks.collect(_to_device(part, ranks), n, owner) for part in nearest)
                if distance is not None and partner is not None:
                    own[number].join(distance.cpu().numpy(), partner.cpu().numpy())


class NeighbourLists:
    """The nearest points of each, and their distances: `torchgw.spaces.graph.NeighbourSource` without coordinates.

    index, length : (N, k), nearest first.
    """

    local, points = False, None

    def __init__(self, index: Array, length: Array) -> None:
        self.index, self.length, self.size = index, length, len(index)

    def nearest(self, k: int) -> Array:
        return self.index[:, :k].copy()  # what is made of it is sorted in place

    def lengths(self, pattern: Any, k: int) -> Array:
        found = np.empty(pattern.nnz)
        for first in range(0, self.size, ROWS):
            where = slice(first, first + ROWS)
            column, length = self.index[where, :k].ravel(), self.length[where, :k].ravel()
            row = np.arange(first, min(first + ROWS, self.size), dtype=column.dtype).repeat(k)
            for ends in ((row, column), (column, row)):
                found[entry_positions(pattern, *ends)] = length
        return found


class JoinedGraph:
    """A neighbour graph, and one that it is compared with where there is one, whose components are joined step by step.

    size : what the points were divided by.
    """

    def __init__(self, size: float) -> None:
        self.size = size

    def begin(self, made: list[GraphInParts]) -> None:
        """From graphs that are in parts."""
        self.made = made
        self.graphs: list[tuple[Any, Parts, int]] = [(each.graph, each.parts, 0) for each in made]

    @property
    def labels(self) -> Array | None:
        """The component (N,) of each point in the first of these that has several; None where none has."""
        return next((label for _, (count, label), _ in self.graphs if count > 1), None)

    def join(self, distance: Array, partner: Array) -> None:
        """Add the shortest edges between these components, from each point's nearest one elsewhere."""
        number = next(number for number, (_, parts, _) in enumerate(self.graphs) if parts[0] > 1)
        graph, parts, before = self.graphs[number]
        graph, parts, added = stitch_once(graph, parts, distance, partner)
        self.graphs[number] = graph, parts, before + added

    def finish(self, k: int | None, name: str) -> tuple[Any, GraphReport]:
        """The graph and its report, as of `torchgw.spaces.graph.build_graph`."""
        return finish_graph(self.made, [(graph, added) for graph, _, added in self.graphs], self.size, k, name)


class WholeGraph(JoinedGraph):
    """The neighbour graph of all points (N, D), centred and divided by ``size``."""

    labels = None

    def __init__(self, size: float, points: Array) -> None:
        super().__init__(size)
        self.points = points

    def finish(self, k: int | None, name: str) -> tuple[Any, GraphReport]:
        return graph_of_cloud(self.points, self.size, k, name)


def _unit_share(share: Array, n: int, ranks: Ranks) -> tuple[Array, float]:
    """This rank's points of a cloud that is centred and divided by its largest coordinate, and that divisor."""
    total = np.zeros(share.shape[1])
    for rank in range(ranks.count):  # one after the other, so that the sum is that of all points in a row, to the bit
        total = ranks.scatter([partial(_add_rows, total, share)], rank)[0]
    centred = share - total / n
    largest = np.array(max(centred.max(), -centred.min()))
    size = float(ranks.most(_to_device(largest, ranks))) or 1.0
    centred /= size
    return centred, size


def _add_rows(total: Array, rows: Array) -> Array:
    """The sum (D,) of a ``total`` and of rows (n, D), in this order."""
    step = _rows_per_pass(rows.shape[1])
    for first in range(0, len(rows), step):
        total = np.vstack((total, rows[first : first + step])).sum(0)
    return total


def _neighbours(share: Array, n: int, k: int | None, ranks: Ranks) -> tuple[Array, Array]:
    """Of each of this rank's points as many nearest others as a graph may need, nearest first: their indices int32, and
    the distances."""
    most = most_neighbours(n, k)
    index, length = np.full((len(share), most), -1, dtype=np.int32), np.full((len(share), most), np.inf)
    every, rows = np.arange(n, dtype=np.int32)[ranks.share(n)], max(LISTED // (most + 1), 1)
    for start, block in _iterate_points(share, n, ranks):
        search, few = Search(block), min(most + 1, len(block))
        for first in range(0, len(share), rows):
            where = slice(first, first + rows)
            apart, near = search.with_lengths(share[where], few)
            near = near.astype(np.int32) + start
            apart[near == every[where, None]] = np.inf  # a point is no neighbour of its own
            apart, near = np.hstack((length[where], apart)), np.hstack((index[where], near))
            order = apart.argsort(1, kind="stable")[:, :most]
            index[where], length[where] = (np.take_along_axis(side, order, 1) for side in (near, apart))
    return index, length


def _elsewhere(share: Array, label: Array, ranks: Ranks) -> tuple[Array, Array]:
    """Distance to, and index of, the nearest point with another label (N,) of each of this rank's points."""
    n, own = len(label), label[ranks.share(len(label))]
    distance, partner = np.full(len(share), np.inf), np.full(len(share), -1)
    for start, block in _iterate_points(share, n, ranks):
        found, other = nearest_elsewhere(share, own, block, label[start : start + len(block)])
        better = found < distance
        distance[better], partner[better] = found[better], other[better] + start
    return distance, partner


def _iterate_points(share: Array, n: int, ranks: Ranks) -> Iterator[tuple[int, Array]]:
    """All points in runs, each with where it begins."""
    for where, (rows,) in ranks.ring((_to_device(share, ranks),), n, 1, _rows_per_pass(share.shape[1])):
        yield where.start, rows.cpu().numpy()


def _rows_per_pass(dimensions: int) -> int:
    """How many points are passed together."""
    return max(COORDINATES // dimensions, 1)


def _to_device(values: Array, ranks: Ranks) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(ranks.device)

"""Chains of exchanges along the edges of two graphs: a branch that hangs in the wrong place moves as a whole.

    sum_ij X_ij Y_s(i)s(j)  ->  max over permutations s,  one exchange of two matches after the other

Where a branch is matched with another one, exchanging the matches of two of its nodes breaks edges that only the
exchanges of their neighbours mend, so no exchange betters it. A chain begins with one that restores an edge, goes on
with the best around what it has moved, each node once, may lose on its way, and is kept up to where it has gained most.
An exchange reads the edges of two nodes alone; what it may be is as many pairs as the products of the degrees of nodes
and their matches, so that graphs should have no hubs.

Source: B. Kernighan, S. Lin, "An efficient heuristic procedure for partitioning graphs", 1970 (exchanges in chains).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from torchgw.types import Array

DEPTH = 40  # exchanges of a chain
SLACK = 8.0  # mean products of weights that a chain may lose on its way, two of them an edge
PASSES = 10
TRIED = 4  # beginnings for each node, in one pass
ROUNDING = 1e-9  # of a mean product of weights

Pair = tuple[int, int]
Edges = list[dict[int, float]]


def _edges(D: Array) -> Edges:
    """What each row of a matrix (N, N) is not zero at."""
    found: Edges = [{} for _ in D]
    for i, j in zip(*map(np.ndarray.tolist, np.nonzero(D)), strict=True):
        found[i][j] = float(D[i, j])
    return found


@dataclass(eq=False)
class _Matching:
    """A permutation between two graphs.

    X, Y : entries (N, N) that are not zero by row; their transposes beside them.
    match, place : where node i of X goes, and which node comes to j of Y.
    """

    X: tuple[Edges, Edges]
    Y: tuple[Edges, Edges]
    match: list[int]
    place: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.place = np.argsort(self.match).tolist()

    def exchange(self, r: int, s: int) -> None:
        """Let two nodes change their matches."""
        match, place = self.match, self.place
        match[r], match[s] = match[s], match[r]
        place[match[r]], place[match[s]] = r, s

    def local_value(self, r: int, s: int) -> float:
        """The part of the sum that r or s is in."""
        match, found = self.match, 0.0
        for v, other in ((r, -1), (s, r)):
            for way, (edges, matched) in enumerate(zip(self.X, self.Y, strict=True)):
                there = matched[match[v]]
                for k, weight in edges[v].items():
                    if k != other and not (way and k == v):
                        found += weight * there.get(match[k], 0.0)
        return found

    def gain(self, r: int, s: int) -> float:
        """By how much the sum grows when they change matches."""
        before = self.local_value(r, s)
        self.exchange(r, s)
        after = self.local_value(r, s)
        self.exchange(r, s)
        return after - before

    def restoring_exchanges(self, v: int, moved: set[int]) -> list[Pair]:
        """Exchanges of a neighbour of v with what goes to a neighbour of its match, unless both are neighbours of both;
        of nodes that were not ``moved``."""
        near = {k for edges in self.X for k in edges[v]} - {v}
        there = {self.place[k] for edges in self.Y for k in edges[self.match[v]]} - {v}
        pairs = ((a, b) for a in sorted(near - moved) for b in sorted(there - moved))
        return [(a, b) for a, b in pairs if a != b and not (a in there and b in near)]

    def find_improving_exchange(self, front: list[int], moved: set[int]) -> tuple[float, Pair] | None:
        """The best exchange around the last node of the front that has one with a gain, or the best around all."""
        best: tuple[float, Pair] | None = None
        for v in reversed(front):
            for pair in self.restoring_exchanges(v, moved):
                gain = self.gain(*pair)
                if best is None or gain > best[0]:
                    best = (gain, pair)
            if best is not None and best[0] > 0:
                break
        return best

    def follow_chain(self, first: Pair, slack: float, least: float) -> float:
        """Take the chain that begins with an exchange up to where it has gained most, and say how much."""
        done: list[Pair] = []
        total, most, kept = 0.0, least, 0
        step: tuple[float, Pair] | None = (self.gain(*first), first)
        while step is not None:
            total += step[0]
            self.exchange(*step[1])
            done.append(step[1])
            if total > most:
                most, kept = total, len(done)
            if total < -slack or len(done) == DEPTH:
                break
            front = [v for pair in done for v in pair]
            step = self.find_improving_exchange(front, set(front))
        for pair in reversed(done[kept:]):
            self.exchange(*pair)
        return most if kept else 0.0


def improve_by_chains(X: Array, Y: Array, order: Array, cut: Callable[[], bool] = lambda: False) -> Array:
    """The permutation (N,) after all chains that better it, until none does or it is to be ``cut``, between matrices
    (N, N) that are mostly zero; the same one where there is none."""
    unit = math.sqrt(math.prod(float(np.mean(D[D != 0] ** 2)) if D.any() else 0.0 for D in (X, Y)))
    matching = _Matching((_edges(X), _edges(X.T)), (_edges(Y), _edges(Y.T)), order.tolist())
    for _ in range(PASSES):
        starts = {tuple(sorted(pair)) for v in range(len(X)) for pair in matching.restoring_exchanges(v, set())}
        best = sorted(starts, key=lambda pair: (-matching.gain(*pair), pair))[: TRIED * len(X)]
        gained = [matching.follow_chain((r, s), SLACK * unit, ROUNDING * unit) for r, s in best if not cut()]
        if not any(gained):
            break
    return np.array(matching.match)

"""Spaces that ranks share: of the factors of its distances each rank has those of its share of the points.

A graph is searched by one rank, that of the other space by the next, which make it
of points, too; each row of landmark distances is divided among all as it is found,
so that nobody holds the distances of all points.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from torchgw.options import SpaceOptions
from torchgw.persist.codec import storable
from torchgw.runtime.caller import collecting_warnings, warn_caller
from torchgw.runtime.memory import give_back
from torchgw.runtime.ranks import Ranks
from torchgw.spaces.factored import FactoredDistances
from torchgw.spaces.farthest import landmark_count, search_landmarks
from torchgw.spaces.graph import GraphReport
from torchgw.spaces.landmark import landmark_factors, storage
from torchgw.spaces.prepare import GraphReports, InputSpace, ProviderPair, apply_scale, neighbour_graph_of
from torchgw.types import Array

AT_ONCE = 8  # rows of distances that are divided together


@storable
class SharedDistances(FactoredDistances):
    """Distances D = F diag(signs) F^T of N points, of whose factors this rank has its share.

    Every rank asks for the same rows at the same time.

    Parameters
    ----------
    share : factors (n, r) of this rank's points, of distances that are scaled.
    signs : (r,).
    scale : what they were divided by.
    n : N.
    ranks : that share the points.
    """

    def __init__(self, share: Tensor, signs: Tensor, scale: float, n: int, ranks: Ranks) -> None:
        self._F, self._signs, self.scale, self.largest = share, signs, scale, scale
        self.n, self.ranks = n, ranks

    @property
    def size(self) -> int:
        return self.n

    def rows(self, index: Tensor) -> Tensor:
        signed = self.ranks.gather(self._F, self.n, index) * self._signs
        return self.ranks.all_gather(self._F @ signed.T, self.n).T


def make_shared_providers(
    spaces: Sequence[InputSpace], options: SpaceOptions, ranks: Ranks
) -> tuple[ProviderPair, GraphReports]:
    """A provider for each of two spaces, scaled as asked, and how their neighbour graphs were made.

    Raises
    ------
    ValueError
        For distances that have no factors.
    """
    for space in spaces:
        if not (space.has_factors or space.kind == "checked"):
            raise ValueError(
                f"{space.name} must have distances with factors where processes share a solve, got {space.kind!r}: "
                f"take 'landmark' distances of points or a graph, or a provider with factors, or solve in one process"
            )
    searched = _search_landmarks([space for space in spaces if space.kind != "provider"], options, ranks)
    x, y = (next(searched) if space.kind != "provider" else (_share_provider(space, ranks), None) for space in spaces)
    return apply_scale((x[0], y[0]), options.scale), (x[1], y[1])


def _share_provider(space: InputSpace, ranks: Ranks) -> SharedDistances:
    """The share of a provider that all ranks have."""
    F, signs = space.data.factors()
    share, signs = (side.to(ranks.device, copy=True) for side in (ranks.own(F), signs))
    made = SharedDistances(share, signs, float(space.data.scale), space.size, ranks)
    made.largest = float(getattr(space.data, "largest", made.scale))
    return made


def _search_landmarks(
    spaces: list[InputSpace], options: SpaceOptions, ranks: Ranks
) -> Iterator[tuple[SharedDistances, GraphReport | None]]:
    """Landmark distances of spaces, each searched by a rank of its own as far as there are ranks."""
    own = dict[int, Iterator[tuple[int, Array]]]()

    def begin(number: int) -> tuple[int, GraphReport | None, list[tuple[str, type[Warning]]]]:
        with warnings.catch_warnings(record=True) as caught, collecting_warnings():
            warnings.simplefilter("always")
            graph, report = neighbour_graph_of(spaces[number], options)
            count = landmark_count(graph, options.n_landmarks, spaces[number].size)
            own[number] = search_landmarks(graph, count, spaces[number].kept)
        return count, report, [(str(each.message), each.category) for each in caught]

    told = ranks.scatter([partial(begin, number) for number in range(len(spaces))])
    for text, category in (warning for *_, given in told for warning in given):
        warn_caller(text, category, shown=ranks.rank == 0)
    columns = list[Tensor]()
    for space, (count, *_) in zip(spaces, told, strict=True):
        own_rows, dtype = ranks.share(space.size), getattr(torch, storage(space.size))
        columns.append(torch.empty(own_rows.stop - own_rows.start, count, dtype=dtype, device=ranks.device))
    index = {number: list[int]() for number in own}
    for first in range(0, max((count for count, *_ in told), default=0), AT_ONCE):
        # Both search before either divides: a rank that waits for the other's rows
        # would not search meanwhile.
        rows = dict[int, Tensor]()
        for number, search in own.items():
            if found := list(islice(search, AT_ONCE)):
                index[number] += [landmark for landmark, _ in found]
                rows[number] = torch.from_numpy(np.stack([distance for _, distance in found], 1))
        for number, shares in enumerate(columns):
            part = shares[:, first : first + AT_ONCE]
            if part.shape[1]:
                there = rows[number].to(ranks.device, part.dtype) if number in rows else None
                part.copy_(ranks.scatter_rows(there, spaces[number].size, part, number % ranks.count))
    chosen = ranks.scatter([partial(index.__getitem__, number) for number in range(len(spaces))])
    own.clear()
    give_back()  # what graphs took
    for space, (_, report, _), landmarks in zip(spaces, told, chosen, strict=True):
        distances = columns.pop(0)
        among = ranks.gather(distances, space.size, torch.tensor(landmarks, device=ranks.device)).double()
        factors = landmark_factors(distances, among, float(ranks.most(distances.max())), space.name, ranks)
        del distances
        yield SharedDistances(*factors, space.size, ranks), report

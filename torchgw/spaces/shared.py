"""Spaces that ranks share: of the factors of its distances each rank has those of its share of the points.

A graph is searched by one rank, that of the other space by the next, which make it of points, too, see
`torchgw.spaces.shared_graph`; each row of landmark distances is divided among all as it is found, so that nobody holds
the distances of all points.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Any

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
from torchgw.spaces.shared_graph import graphs_of_shares, has_shares
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
    def share(self) -> Tensor:
        """The factors (n, r) of this rank's points."""
        share: Tensor = self._F
        return share

    def with_share(self, share: Tensor, ranks: Ranks) -> SharedDistances:
        """The same with the share of other ranks."""
        return self._with(_F=share, ranks=ranks)

    def whole(self) -> FactoredDistances:
        """The same distances, with the factors of all points on every rank."""
        made = FactoredDistances.of(self.ranks.all_gather(self._F, self.n), self._signs, self.scale)
        made.largest = self.largest
        return made

    def __getstate__(self) -> dict[str, Any]:
        """What files keep: other ranks may go on with it."""
        return {name: value for name, value in vars(self).items() if name != "ranks"}

    def __copy__(self) -> SharedDistances:
        other = object.__new__(SharedDistances)
        vars(other).update(vars(self))
        return other

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    @property
    def size(self) -> int:
        return self.n

    def rows(self, index: Tensor) -> Tensor:
        signed = self.ranks.gather(self._F, self.n, index) * self._signs
        return self.ranks.all_gather(self._F @ signed.T, self.n).T


def make_shared_providers(
    spaces: Sequence[InputSpace], options: SpaceOptions, ranks: Ranks, shares: dict[str, Array]
) -> tuple[ProviderPair, GraphReports]:
    """A provider for each of two spaces, scaled as asked, and how their neighbour graphs were made.

    ``shares`` are this rank's points of spaces, by their names, of which it has no others; they are taken out.

    Raises
    ------
    ValueError
        For distances that have no factors.
    """
    for space in spaces:
        if not (space.has_factors or space.kind == "checked"):
            raise ValueError(
                f"{space.name} must have distances with factors where ranks share a solve, got {space.kind!r}: take "
                f"'landmark' distances of points or a graph, or a provider with factors, or solve in one process"
            )
    searched = {i: space for i, space in enumerate(spaces) if space.kind != "provider"}
    found = dict(zip(searched, _search_landmarks(list(searched.values()), options, ranks, shares), strict=True))
    made, reports = [], []
    for i, space in enumerate(spaces):
        provider, report = found[i] if i in found else (_share_provider(space, ranks), None)
        made.append(provider)
        reports.append(report)
    return apply_scale((made[0], made[1]), options.scale), (reports[0], reports[1])


def _share_provider(space: InputSpace, ranks: Ranks) -> SharedDistances:
    """The share of a provider that all ranks have."""
    F, signs = space.data.factors()
    share, signs = (side.to(ranks.device, copy=True) for side in (ranks.own(F), signs))
    made = SharedDistances(share, signs, float(space.data.scale), space.size, ranks)
    made.largest = float(getattr(space.data, "largest", made.scale))
    return made


class _LandmarkSearch:
    """The landmark search of one space, on the rank that has its graph; the others know how many rows it has."""

    def __init__(self, graph: Any, report: GraphReport | None, options: SpaceOptions, space: InputSpace) -> None:
        self.report = report
        self.count = landmark_count(graph, options.n_landmarks, space.size)
        self.index: list[int] = []
        self.found = search_landmarks(graph, self.count, space.kept)

    def next(self, dtype: torch.dtype) -> Tensor:
        """Distances (N, AT_ONCE) to the next landmarks, fewer at the end."""
        rows = list[Tensor]()
        for index, distance in islice(self.found, AT_ONCE):
            self.index.append(index)
            rows.append(torch.from_numpy(distance).to(dtype))
        return torch.stack(rows, 1)


def _search_landmarks(
    spaces: list[InputSpace], options: SpaceOptions, ranks: Ranks, shares: dict[str, Array]
) -> list[tuple[SharedDistances, GraphReport | None]]:
    """Landmark distances of spaces, each searched by a rank of its own as far as there are ranks."""
    points = {
        number: shares.pop(space.name) if space.name in shares else space.data[ranks.share(space.size)]
        for number, space in enumerate(spaces)
        if has_shares(space)
    }
    graphs, own = graphs_of_shares(points, spaces, options.k, ranks), dict[int, _LandmarkSearch]()

    def begin(number: int) -> tuple[int, GraphReport | None, list[tuple[str, type[Warning]]]]:
        with warnings.catch_warnings(record=True) as caught, collecting_warnings():
            warnings.simplefilter("always")
            made, space = graphs.pop(number, None), spaces[number]
            found = neighbour_graph_of(space, options) if made is None else made.finish(options.k, space.name)
            own[number] = _LandmarkSearch(*found, options, space)
        return own[number].count, own[number].report, [(str(each.message), each.category) for each in caught]

    numbers = range(len(spaces))
    told = ranks.scatter([partial(begin, number) for number in numbers])
    for text, category in (warning for *_, given in told for warning in given):
        warn_caller(text, category, shown=ranks.rank == 0)
    dtypes = [getattr(torch, storage(space.size)) for space in spaces]
    own_rows = [ranks.share(space.size) for space in spaces]
    columns = [
        torch.empty(own.stop - own.start, count, dtype=dtype, device=ranks.device)
        for own, (count, *_), dtype in zip(own_rows, told, dtypes, strict=True)
    ]
    for first in range(0, max((count for count, *_ in told), default=0), AT_ONCE):
        # Both search before either divides: a rank that waits for the other's rows would not search meanwhile.
        left = [min(AT_ONCE, told[number][0] - first) for number in numbers]
        rows = {number: own[number].next(dtypes[number]).to(ranks.device) for number in own if left[number] > 0}
        for number in (number for number in numbers if left[number] > 0):
            part = columns[number][:, first : first + left[number]]
            part.copy_(ranks.scatter_rows(rows.pop(number, None), spaces[number].size, part, number % ranks.count))
    chosen = ranks.scatter([lambda number=number: own[number].index for number in numbers])  # type: ignore[misc]
    own.clear()
    give_back()  # what graphs took
    found = []
    for space, (_, report, _), index in zip(spaces, told, chosen, strict=True):
        distances, at = columns.pop(0), torch.tensor(index, device=ranks.device)
        among = ranks.gather(distances, space.size, at).double()
        factors = landmark_factors(distances, among, float(ranks.most(distances.max())), space.name, ranks)
        found.append((SharedDistances(*factors, space.size, ranks), report))
        del distances
    return found

"""Quantisation of a space: landmarks, a few of its points, each with the mass of its Voronoi cell.

Which points matters. Farthest-point landmarks cover curves and surfaces best, but they are outliers, and on distances
of few values they can suggest a wrong matching that landmarks spread like the mass do not. So the coarse stage mixes
kinds.

Sources: T. Gonzalez, "Clustering to minimize the maximum intercluster distance", 1985; D. Arthur, S. Vassilvitskii,
"k-means++: the advantages of careful seeding", 2007, in rounds as in B. Bahmani et al., "Scalable k-means++", 2012.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchgw.kernels.sums import add_by_label
from torchgw.persist.codec import storable
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.spaces.scale import without_scale
from torchgw.types import DistanceProvider

KINDS = ("farthest", "spread", "random")
ROUNDS = 10
FEW = 64
# Coverage by so many: of curves up to 0.006, of surfaces and clouds in the plane 0.01 to 0.02, in 3, 5, 10 dimensions
# 0.07, 0.2, 0.35.
WIDE, SCATTERED = 0.008, 0.05
BEHIND = 1e-150  # of a weight: what is drawn when nothing else is left
LONGEST_STEP = 3.0  # of a tree between landmarks, over the radius that they cover: beyond, points are in pieces


@storable
@dataclass(frozen=True)
class Landmarks:
    """A few points of a space that stand for all.

    Attributes
    ----------
    index : (L,), of the landmarks among all points.
    rows : scaled distances (L, N) to the points of interest.
    distances : scaled distances (L, L) between landmarks.
    mass : (L,), of the Voronoi cells.
    """

    index: Tensor
    rows: Tensor
    distances: Tensor
    mass: Tensor

    @classmethod
    def all_points(cls, D: Tensor, mass: Tensor) -> Landmarks:
        """All points of a space with these distances (N, N) and masses (N,)."""
        return cls(torch.arange(len(D), device=D.device), D, D, mass)

    @property
    def without_rows(self) -> Landmarks:
        """The same without distances to other points."""
        return Landmarks(self.index, self.distances, self.distances, self.mass)

    @cached_property
    def nearest(self) -> Tensor:
        """The landmark (N,) nearest to each point."""
        return self.rows.argmin(0)

    def restrict_rows(self, index: Tensor) -> Landmarks:
        """The same landmarks, with distances to the points ``index`` only."""
        return Landmarks(self.index, self.rows[:, index], self.distances, self.mass)

    def distances_between(self, one: Tensor, other: Tensor) -> Tensor:
        """Distances (..., n) between the points ``one`` and ``other``, shapes that broadcast, by way of the landmark
        nearest to ``one``."""
        found = self.rows[self.nearest[one], other].clamp_min(0.0)
        return found.masked_fill(one == other, 0.0)


def choose_landmarks(
    space: DistanceProvider,
    mass: Tensor,
    kind: str,
    count: int,
    generator: torch.Generator,
    first: Tensor | None = None,
    named: Tensor | None = None,
) -> Landmarks:
    """At most ``count`` points, of a kind out of `KINDS`; all of them when there are not more.

    ``mass`` (N,), above zero, is in the dtype of the space; ``first`` is the index that farthest-point landmarks begin
    with. The points ``named`` are landmarks in any case, beyond the count: as many of them as that at the most.
    """
    draws: Tensor | torch.Generator | None = None
    if kind != "farthest" and len(mass) > count:
        draws = generator
        if mass.is_cuda and _has_cheap_rows(space):  # a graph draws nothing
            shape = _rounds(count) if kind == "spread" else 1, len(mass)
            draws = torch.rand(shape, generator=generator, device=mass.device, dtype=torch.float64)
    index, rows = _choose_landmarks(without_scale(space), mass, kind, count, first, draws)
    own = type(space).__module__.startswith("torchgw.")  # whose rows are finite; looking would wait for the device
    if not own and not bool(rows.isfinite().all()):
        raise ValueError(f"{type(space).__name__}.rows must give finite distances, got NaN or infinite ones")
    if named is not None:
        new = named[~torch.isin(named, index)]
        new = new[torch.linspace(0, len(new) - 1, min(len(new), count), dtype=torch.float32, device=new.device).long()]
        if len(new):
            index, rows = torch.cat((index, new)), torch.cat((rows, space.rows(new)))
    return _with_cells(index, rows, mass)


@as_cuda_graph()
def _choose_landmarks(
    space: DistanceProvider,
    mass: Tensor,
    kind: str,
    count: int,
    first: Tensor | None,
    draws: Tensor | torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """The landmarks (L,) and their rows (L, N), by uniform numbers (rounds, N) or a generator of such."""
    if len(mass) <= count:
        index = torch.arange(len(mass), device=mass.device)
        return index, space.rows(index)
    if kind == "farthest":
        return _farthest(space, mass, count, first)
    if kind == "spread":
        return _draw_by_distance(space, mass, count, draws)
    index = _without_replacement(_uniform(mass, draws, 0), mass, mass, count)
    return index, space.rows(index)


@as_cuda_graph()
def _with_cells(index: Tensor, rows: Tensor, mass: Tensor) -> Landmarks:
    """Landmarks with their rows, and the masses of their cells."""
    nearest = rows.argmin(0)
    nearest[index] = torch.arange(len(index), device=index.device)
    cells = add_by_label(torch.zeros(len(index), dtype=mass.dtype, device=mass.device), nearest, mass)
    among = rows[:, index]
    return Landmarks(index, rows, ((among + among.T) / 2).fill_diagonal_(0.0), cells)


def coverage(landmarks: Landmarks, mass: Tensor) -> Tensor:
    """Mean square distance to the nearest landmark, relative to that between two random points, ()."""
    near = landmarks.rows.amin(0).clamp_min(0.0).square() @ mass
    return mass.sum() * near / _mean_square_distance(landmarks, mass)


def choose_few_landmarks(space: DistanceProvider, mass: Tensor) -> Landmarks:
    """Those whose coverage tells what a space is like: above `WIDE` its points lie on no curve, above `SCATTERED` on no
    surface either, and cells mean little."""
    space = space.to(mass.device, mass.dtype)
    return choose_landmarks(space, mass, "farthest", FEW, torch.Generator(mass.device))


@as_cuda_graph()
def measure_coverage(sides: Sequence[tuple[Landmarks, Tensor]]) -> list[Tensor]:
    """Of each space, by landmarks and masses (N,), the coverage (), the radius () that landmarks cover, and the
    distances (L, L) between them."""
    known = list[Tensor]()
    for landmarks, mass in sides:
        known += [coverage(landmarks, mass), landmarks.rows.amin(0).max(), landmarks.distances]
    return known


def is_along_curves(sizes: Sequence[int], found: Sequence[Tensor]) -> bool:
    """Whether so many points of each space lie along a curve, by `measure_coverage` of about sixty of them, on the
    host, in one piece: the others are covered well, and a tree joins the landmarks by steps not much longer than
    each covers.

    Clusters are covered as well as a curve, but the steps between them are 4 to 40 times as long as that; of curves,
    surfaces and clouds the longest is 1.3 to 3 times (measured, 200 to 5000 points).
    """
    from scipy.sparse.csgraph import minimum_spanning_tree  # late: it takes long to import

    for size, covered, radius, distances in zip(sizes, *(found[part::3] for part in range(3)), strict=True):
        others = 1 - len(distances) / size
        if others == 0 or float(covered) > WIDE * others:
            return False
        steps = minimum_spanning_tree(distances.numpy()).data
        if not (len(steps) > 0 and float(steps.max()) <= LONGEST_STEP * float(radius)):
            return False
    return True


def unlikeness(landmarks: Landmarks, mass: Tensor) -> Tensor:
    """Mean square difference between a point's distances to all landmarks and those of its nearest landmark, relative
    to that between two random points, ().

    In a metric space it is at most the coverage. In an adjacency most distances are zero, which the coverage takes for
    nearness; only this says how little landmarks mean.
    """
    seen = landmarks.mass @ ((landmarks.rows - landmarks.distances[:, landmarks.nearest]).square() @ mass)
    return seen / _mean_square_distance(landmarks, mass)


def _mean_square_distance(landmarks: Landmarks, mass: Tensor) -> Tensor:
    """Mean square distance from the landmarks to all points, ()."""
    spread = landmarks.mass @ (landmarks.rows.square() @ mass)
    return spread.clamp_min(torch.finfo(mass.dtype).tiny)


def _farthest(space: DistanceProvider, mass: Tensor, count: int, first: Tensor | None) -> tuple[Tensor, Tensor]:
    """Those that `torchgw.spaces.farthest` finds in a graph, in a process without torch; here of any kind of space."""
    if first is None:
        first = mass.argmax()
        for _ in range(2):
            first = space.rows(first[None])[0].argmax()
    look, chosen, nearest, index = _RowReader(space), list[Tensor](), torch.full_like(mass, torch.inf), first[None]
    for _ in range(count):
        chosen.append(index)
        nearest = torch.minimum(nearest, look(index)[0]).index_fill(0, index, -1.0)
        index = nearest.argmax(0, keepdim=True)
    index = torch.cat(chosen)
    return index, look.rows(index)


def _draw_by_distance(
    space: DistanceProvider, mass: Tensor, count: int, draws: Tensor | torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Each round draws a tenth of the landmarks in proportion to mass times squared distance from those before.

    k-means++ but in ten rounds: rows of a space may each be a shortest-path search, and many at once cost less. Medoids
    of stored distances are drawn one by one (`torchgw.solvers.low_rank.group_cells`).
    """
    look, most = _RowReader(space), max(count // ROUNDS, 1)
    chosen = _without_replacement(_uniform(mass, draws, 0), mass, mass, most)
    nearest = look(chosen).amin(0)
    for turn in range(1, _rounds(count)):
        left = mass.index_fill(0, chosen, 0.0)
        weight, number = left * nearest.clamp_min(0.0).square(), min(most, count - len(chosen))
        new = _without_replacement(_uniform(mass, draws, turn), weight, left, number)
        chosen, nearest = torch.cat((chosen, new)), torch.minimum(nearest, look(new).amin(0))
    return chosen, look.rows(chosen)


def _rounds(count: int) -> int:
    """How often landmarks are drawn."""
    return -(-count // max(count // ROUNDS, 1))


def _has_cheap_rows(space: DistanceProvider) -> bool:
    """Whether rows of a space are products or copies, which a device does by itself, and no search each."""
    return space.stored or space.factors() is not None


class _RowReader:
    """Rows of a space, which are kept where each may be a search."""

    def __init__(self, space: DistanceProvider) -> None:
        self._space, self._kept = space, None if _has_cheap_rows(space) else list[Tensor]()

    def __call__(self, index: Tensor) -> Tensor:
        found = self._space.rows(index)
        if self._kept is not None:
            self._kept.append(found)
        return found

    def rows(self, index: Tensor) -> Tensor:
        """Of all points that were looked at, in turn."""
        return self._space.rows(index) if self._kept is None else torch.cat(self._kept)


def _uniform(mass: Tensor, draws: Tensor | torch.Generator | None, turn: int) -> Tensor:
    """Numbers (N,) of a turn."""
    if isinstance(draws, Tensor):
        return draws[turn]
    return torch.rand(mass.shape, generator=draws, device=mass.device, dtype=torch.float64)


def _without_replacement(uniform: Tensor, weight: Tensor, other: Tensor, count: int) -> Tensor:
    """Distinct indices (count,) drawn by uniform numbers (N,) in proportion to ``weight`` (N,): those whose exponential
    clocks of these rates ring first. Where too few of it are positive, the rest by the ``other`` weights, of which at
    least so many are."""
    rate = weight.to(torch.float64)
    if other is not weight:
        rate = torch.where(rate > 0, rate, other.to(torch.float64) * BEHIND)
    return uniform.clamp_min(1e-300).log_().div_(rate).topk(count).indices

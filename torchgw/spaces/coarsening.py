"""Coarser spaces: cells of points, each represented by its medoid, which is one of the points, or by a mean.

    farthest points | k-means++ draws | random draws  ->  medoids, each with the points that are nearest to it
    bisection, refined by k-means where points are few  ->  cells, each with the mean of its points' features

The features of a point are its distances to all points, or factors of these. A mean
of signed factors is again a point of a factored space. Cells of bisection are
halved across their direction of largest variance, so they have nearly equal numbers
of points and are as round as halving allows. The mean of such a cell is a
quadrature node of second order for any smooth function of the features: the linear
part of the error cancels within the cell.

Which points are medoids matters. Farthest points cover curves and surfaces best,
but they are outliers. On distances of few values they can suggest a wrong matching
that landmarks spread like the mass do not. The search mixes kinds.

Sources: T. Gonzalez, "Clustering to minimize the maximum intercluster distance",
1985; D. Arthur, S. Vassilvitskii, "k-means++: the advantages of careful seeding",
2007, in rounds as in B. Bahmani et al., "Scalable k-means++", 2012; D. Boley,
"Principal direction divisive partitioning", 1998, with medians for balance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from torchgw.kernels import principal_directions
from torchgw.kernels.blocks import blocks, points_at_once
from torchgw.kernels.dispatch import Workload
from torchgw.kernels.sums import add_by_label, round_sums
from torchgw.kernels.tiles import TILE, inverse_permutation
from torchgw.persist.codec import storable
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.runtime.ranks import ALONE, Ranks
from torchgw.runtime.transfer import to_device, to_host
from torchgw.spaces.farthest import farthest_in_turn
from torchgw.spaces.precomputed import PrecomputedDistances
from torchgw.spaces.scale import without_scale
from torchgw.types import DistanceProvider

KINDS = ("farthest", "spread", "random")
# Coverage by so many: of curves up to 0.006, of surfaces and clouds in the plane
# 0.01 to 0.02, in 3, 5, 10 dimensions 0.07, 0.2, 0.35.
WIDE, SCATTERED = 0.008, 0.05
# Of the variance of distances, within cells: of clouds in R^3 4 %, in R^10 13 to 35 %, in R^20 43 %, from where the
# right basin is lost now and then (measured), in R^50 and R^200 50 and 60 %; of hop counts up to 31 %.
MOST_LOST = 1 / 3
ROUNDS = 10  # of k-means
BLOCK_POINTS = 2**16


@storable
@dataclass(frozen=True)
class Cells:
    """A partition of N points.

    Attributes
    ----------
    label : (N,), the cell of each point.
    count : the number of cells.
    """

    label: Tensor
    count: int

    @classmethod
    def of(cls, keys: Tensor) -> Cells:
        """The points of equal keys (N,), in the order of these."""
        label = torch.unique(keys, return_inverse=True)[1]
        return Cells(label, int(label.max()) + 1)

    def sums(self, values: Tensor) -> Tensor:
        """Sums over the cells, (count, ...) from (N, ...)."""
        return add_by_label(values.new_zeros((self.count, *values.shape[1:])), self.label, values)

    @as_cuda_graph()
    def means(self, values: Tensor, mass: Tensor, ranks: Ranks = ALONE) -> Tensor:
        """Averages (count, d) of values (N, d), the ranks' shares, weighted by
        ``mass`` (N,) > 0, summed in the wider of both precisions."""
        norm = self.sums(mass)
        out = values.new_zeros(self.count, values.shape[1], dtype=torch.promote_types(values.dtype, mass.dtype))
        label, weight = ranks.own(self.label), ranks.own(mass)
        for where in blocks(len(values), points_at_once(values.shape[1], values.device, BLOCK_POINTS)):
            add_by_label(out, label[where], values[where] * weight[where, None])
        return round_sums(ranks.sum(out) / norm[:, None], values.dtype)

    @as_cuda_graph()
    def means_and_medoids(self, values: Tensor, mass: Tensor, ranks: Ranks = ALONE) -> tuple[Tensor, Tensor]:
        """The `means` (n, d), and for each cell its point `nearest` to it."""
        means = self.means(values, mass, ranks)
        return means, self.nearest(values, means, ranks)

    def nearest(self, values: Tensor, centres: Tensor, ranks: Ranks = ALONE) -> Tensor:
        """For each cell the index of its point whose values (N, d), the ranks'
        shares, are closest to the centre, (count,)."""
        size = points_at_once(values.shape[1], values.device, BLOCK_POINTS)
        labels = torch.split(ranks.own(self.label), size)
        distance = torch.cat(
            [
                (block - centres[label]).square().sum(1)
                for block, label in zip(torch.split(values, size), labels, strict=True)
            ]
        )
        distance = ranks.all_gather(distance, len(self.label))
        order = torch.argsort(distance, stable=True)
        order = order[torch.argsort(self.label[order], stable=True)]
        first = torch.searchsorted(self.label[order], torch.arange(self.count, device=order.device))
        return order[first]


@storable
@dataclass(frozen=True)
class Coarsening(Cells):
    """A partition of N points with masses and representatives of its n cells.

    Attributes
    ----------
    mass : (n,), of the cells.
    medoids : (n,), the most central point of each cell.
    features : (n, d), of the representatives: scaled distances (n, N) to all
        points, or factors of these.
    space : the distances between representatives; None where these are neither
        factored nor stored.
    """

    mass: Tensor
    medoids: Tensor
    features: Tensor
    space: DistanceProvider | None

    @classmethod
    def of_points(cls, D: Tensor, mass: Tensor) -> Coarsening:
        """All points of a space with these distances (N, N) and masses (N,), each a cell."""
        every = torch.arange(len(D), device=D.device)
        return cls(every, len(D), mass, every, D, PrecomputedDistances.stored_matrix(D, 1.0))

    @classmethod
    def of_means(
        cls, cells: Cells, features: Tensor, mass: Tensor, rows: Tensor | None = None, among: Tensor | None = None
    ) -> Coarsening:
        """The cells with mean distances: ``rows`` (n, N) from each to all points, and ``among`` (n, n) cells. Without
        these the features (N, d) of the points are their distances to all."""
        means, medoids = cells.means_and_medoids(features, mass)
        if rows is None or among is None:
            rows, among = means, cells.means(means.T, mass)
        between = PrecomputedDistances.stored_matrix((among + among.T) / 2, 1.0)
        return cls(cells.label, cells.count, cells.sums(mass), medoids, rows, between)

    @property
    def stored_space(self) -> PrecomputedDistances:
        """The space of the representatives, where it is stored."""
        assert isinstance(self.space, PrecomputedDistances)
        return self.space

    @property
    def distances(self) -> Tensor:
        """The distances (n, n) between representatives, where they are stored."""
        return self.stored_space.matrix

    @property
    def alone(self) -> Coarsening:
        """The representatives without the points that they stand for."""
        return replace(Coarsening.of_points(self.distances, self.mass), medoids=self.medoids)

    def means_suffice(self, variance_within: float) -> bool:
        """Whether means say enough of the points: the cells hold at most `MOST_LOST` of the variance of distances
        within them. Elsewhere medoids stand for the points, see `choose_landmarks`."""
        share, D = self.mass / self.mass.sum(), self.distances
        between = float(share @ ((D - share @ (D @ share)).square() @ share))
        return variance_within <= MOST_LOST * (variance_within + between)

    def square_error(self, mass: Tensor) -> Tensor:
        """Mean square difference () of distances to all cells from a point and from its cell, times both masses."""
        return self.mass @ ((self.features - self.distances[:, self.label]).square() @ mass)

    def restrict(self, index: Tensor) -> Coarsening:
        """The same representatives, with distances to the points ``index`` only."""
        return replace(self, label=self.label[index], features=self.features[:, index])

    def distances_between(self, one: Tensor, other: Tensor) -> Tensor:
        """Distances (..., n) between the points ``one`` and ``other``, shapes that
        broadcast, by way of the representative of ``one``."""
        found = self.features[self.label[one], other].clamp_min(0.0)
        return found.masked_fill(one == other, 0.0)


def coarsen_plan(plan: Tensor, x: Cells, y: Cells) -> Tensor:
    """The plan (n, n') between cells of both spaces that a plan (N, K) of all points is."""
    return y.sums(x.sums(plan).T).T.contiguous()


class Bisection(NamedTuple):
    """Points in an order in which cells are runs of consecutive ones.

    order : (N,), position to point.
    ends : the positions (n + 1,) at which the cells begin and end.
    """

    order: Tensor
    ends: Tensor

    @property
    def cells(self) -> Cells:
        return Cells(_label_runs(self.order, self.ends), len(self.ends) - 1)


def bisect(
    features: Tensor, n_cells: int, unit: int = 1, backend: str = "eager", n: int | None = None, ranks: Ranks = ALONE
) -> Bisection:
    """Halve until there are at least ``n_cells`` cells, or a cell for each point.

    Parameters
    ----------
    features : (N, d).
    unit : while a cell has more than ``unit`` points it is cut at a multiple of it,
        so that runs of ``unit`` points in the order never straddle two cells.
    backend : of `torchgw.kernels.principal_directions`.
    n, ranks : N, where the features are the ranks' shares.

    Notes
    -----
    O(N (d + log N)) for each of log2(n_cells) levels; directions come from at most
    32 points of each cell. On a GPU a level is two launches: one that finds keys,
    and one that sorts them.
    """
    n = len(features) if n is None else n
    levels = [torch.tensor([0, n], device="cpu")]  # where cells end depends on their numbers alone: the host knows
    while len(levels[-1]) - 1 < min(n_cells, n):
        first, size = levels[-1][:-1], levels[-1].diff()
        half = torch.where(size > unit, ((size + unit) // (2 * unit)).clamp_min(1) * unit, size // 2)
        levels.append(torch.unique(torch.cat((levels[-1], (first + half)[size > 1]))))
    held = torch.split(to_device(torch.cat(levels), features.device), [len(ends) for ends in levels])
    largest = tuple(int(ends.diff().max()) for ends in levels[:-1])
    workload = Workload(features.device, features.dtype, (n, n_cells), features.shape[1])
    return Bisection(_halve_cells(features, held[:-1], largest, backend, workload, ranks), held[-1])


@as_cuda_graph()
def _halve_cells(
    features: Tensor,
    levels: tuple[Tensor, ...],
    largest: tuple[int, ...],
    backend: str,
    workload: Workload,
    ranks: Ranks,
) -> Tensor:
    """The order (N,) in which the cells of all levels, which have so many points at the most, are halved."""
    keys = principal_directions.choose(backend, workload).function
    order = torch.arange(workload.shape[0], device=features.device)
    for ends, size in zip(levels, largest, strict=True):
        order = torch.argsort(keys(features, order, ends, size, ranks), stable=True)
    return order


def cut_cells(features: Tensor, count: int, group: Tensor | None, backend: str, n: int, ranks: Ranks = ALONE) -> Cells:
    """At least ``count`` cells of n points, none across two of the groups (N,), by `bisect`; every point, like ones
    near each other, where that is more than two thirds of them."""
    if 3 * count > 2 * n:
        return Cells(inverse_permutation(bisect(features, -(-n // TILE), TILE, backend, n, ranks).order), n)
    cells = bisect(features, count, 1, backend, n, ranks).cells
    return cells if group is None else Cells.of(cells.label * (group.max() + 1) + group)


def refine_cells(cells: Cells, features: Tensor, mass: Tensor) -> Cells:
    """k-means of features (N, d) from these cells, each then of the points nearest to its mean; empty ones vanish."""
    for _ in range(ROUNDS):
        last, means = cells, cells.means(features, mass)
        cells = Cells.of(torch.addmm(means.square().sum(1), features, means.T, alpha=-2.0).argmin(1))
        if torch.equal(cells.label, last.label):
            break
    return cells


@as_cuda_graph()
def _label_runs(order: Tensor, ends: Tensor) -> Tensor:
    """The cell (N,) of each point, of cells that begin and end at these positions of the order."""
    number = torch.arange(len(ends) - 1, device=ends.device)
    label = torch.repeat_interleave(number, ends.diff(), output_size=len(order))
    return torch.empty_like(label).index_copy_(0, order, label)


def choose_landmarks(
    space: DistanceProvider,
    mass: Tensor,
    kind: str,
    count: int,
    generator: torch.Generator,
    first: Tensor | None = None,
    named: Tensor | None = None,
) -> Coarsening:
    """At most ``count`` medoids, of a kind out of `KINDS`; all points when there are not more.

    ``mass`` (N,), above zero, is in the dtype of the space; ``first`` is the index
    that farthest points begin with. The points ``named`` are medoids in any case,
    beyond the count: as many of them as that at the most.
    """
    draws = None
    if kind != "farthest" and len(mass) > count:
        rounds = -(-count // max(count // 10, 1)) if kind == "spread" else 1
        draws = torch.rand((rounds, len(mass)), generator=generator, device=mass.device, dtype=torch.float64)
    index, rows = _choose_medoids(without_scale(space), mass, count, first, draws)
    own = type(space).__module__.startswith("torchgw.")  # whose rows are finite; looking would wait for the device
    if not own and not bool(rows.isfinite().all()):
        raise ValueError(f"{type(space).__name__}.rows must give finite distances, got NaN or infinite ones")
    if named is not None:
        new = named[~torch.isin(named, index)]
        new = new[torch.linspace(0, len(new) - 1, min(len(new), count), dtype=torch.float32, device=new.device).long()]
        if len(new):
            index, rows = torch.cat((index, new)), torch.cat((rows, space.rows(new)))
    return assign_to_medoids(index, rows, mass)


@as_cuda_graph()
def assign_to_medoids(index: Tensor, rows: Tensor, mass: Tensor) -> Coarsening:
    """The cells of points that are nearest to each medoid, with distances (n, N) from these."""
    label = rows.argmin(0).index_copy_(0, index, torch.arange(len(index), device=index.device))
    among = rows[:, index]
    space = PrecomputedDistances.stored_matrix(((among + among.T) / 2).fill_diagonal_(0.0), 1.0)
    return Coarsening(label, len(index), Cells(label, len(index)).sums(mass), index, rows, space)


@as_cuda_graph()
def _choose_medoids(
    space: DistanceProvider, mass: Tensor, count: int, first: Tensor | None, draws: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The medoids (n,) and their rows (n, N): drawn by uniform numbers (rounds, N),
    or without these each the point farthest from those before it.

    Each round draws as many in proportion to mass times squared distance from those
    before: k-means++ in few rounds, as rows of a space may each be a shortest-path
    search, and many at once cost less.
    """
    if len(mass) <= count:
        every = torch.arange(len(mass), device=mass.device)
        return every, space.rows(every)
    if draws is None:
        if first is None:
            first = mass.argmax()
            for _ in range(2):
                first = space.rows(first[None])[0].argmax()
        index, found = zip(*islice(farthest_in_turn(space.rows, first[None]), count), strict=True)
        return torch.cat(index), torch.cat(found)
    chosen, rows, nearest = mass.new_empty(0, dtype=torch.int64), list[Tensor](), torch.full_like(mass, torch.inf)
    while len(chosen) < count:
        left = mass.index_fill(0, chosen, 0.0)
        weight = left * nearest.clamp_min(0.0).square() if rows else mass
        new = _draw_distinct(draws[len(rows)], weight, left, min(-(-count // len(draws)), count - len(chosen)))
        rows.append(space.rows(new))
        chosen, nearest = torch.cat((chosen, new)), torch.minimum(nearest, rows[-1].amin(0)).index_fill(0, new, -1.0)
    return chosen, torch.cat(rows)


def _draw_distinct(uniform: Tensor, weight: Tensor, other: Tensor, count: int) -> Tensor:
    """Distinct indices (count,) drawn by uniform numbers (N,) in proportion to
    ``weight`` (N,): those whose exponential clocks of these rates ring first. Where
    too few of it are positive, the rest by the ``other`` weights, of which at least
    so many are."""
    rate = weight.to(torch.float64)
    rate = torch.where(rate > 0, rate, other.to(torch.float64) * 1e-150)
    return uniform.clamp_min(1e-300).log_().div_(rate).topk(count).indices


def coverage(landmarks: Coarsening, mass: Tensor) -> Tensor:
    """Mean square distance to the nearest landmark, relative to that between two random points, ()."""
    near = landmarks.features.amin(0).clamp_min(0.0).square() @ mass
    return mass.sum() * near / _mean_square_distance(landmarks, mass)


def unlikeness(landmarks: Coarsening, mass: Tensor) -> Tensor:
    """Mean square difference between a point's distances to all landmarks and those
    of its nearest landmark, relative to that between two random points, ().

    In a metric space it is at most the coverage. In an adjacency most distances are
    zero, which the coverage takes for nearness; only this says how little landmarks
    mean.
    """
    return landmarks.square_error(mass) / _mean_square_distance(landmarks, mass)


def _mean_square_distance(landmarks: Coarsening, mass: Tensor) -> Tensor:
    """Mean square distance from the landmarks to all points, ()."""
    spread = landmarks.mass @ (landmarks.features.square() @ mass)
    return spread.clamp_min(torch.finfo(mass.dtype).tiny)


def measure_coverage(spaces: Sequence[DistanceProvider], masses: Sequence[Tensor]) -> tuple[float, bool]:
    """The coverage by about sixty landmarks of the space that they cover worst, and
    whether the points of each space lie along a curve in one piece.

    Above `WIDE` points lie on no curve, above `SCATTERED` on no surface either, and
    cells mean little. Clusters are covered as well as a curve, but the steps of a
    tree between their landmarks are 4 to 40 times as long as the radius that these
    cover; of curves, surfaces and clouds the longest is 1.3 to 3 times, beyond are
    pieces (measured, 200 to 5000 points).
    """
    from scipy.sparse.csgraph import minimum_spanning_tree  # late: it takes long to import

    sides = [
        (choose_landmarks(space.to(mass.device, mass.dtype), mass, KINDS[0], 64, torch.Generator(mass.device)), mass)
        for space, mass in zip(spaces, masses, strict=True)
    ]
    found, along = to_host(*_read_coverage(sides)), True
    for mass, covered, radius, distances in zip(masses, *(found[part::3] for part in range(3)), strict=True):
        steps, others = minimum_spanning_tree(distances.numpy()).data, 1 - len(distances) / len(mass)
        dense = others > 0 and float(covered) <= WIDE * others
        along = along and dense and len(steps) > 0 and float(steps.max()) <= 3 * float(radius)
    return max(map(float, found[::3])), along


@as_cuda_graph()
def _read_coverage(sides: Sequence[tuple[Coarsening, Tensor]]) -> list[Tensor]:
    """Of each space, by landmarks and masses (N,), the coverage (), the radius ()
    that landmarks cover, and the distances (L, L) between them."""
    known = list[Tensor]()
    for landmarks, mass in sides:
        known += [coverage(landmarks, mass), landmarks.features.amin(0).max(), landmarks.distances]
    return known

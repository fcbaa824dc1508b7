"""Quantisation of a space: landmarks, a few of its points, each with the mass of its Voronoi cell.

Which points matters. Farthest-point landmarks cover curves and surfaces best, but they are outliers, and on distances
of few values they can suggest a wrong matching that landmarks spread like the mass do not. So the coarse stage mixes
kinds.

Sources: T. Gonzalez, "Clustering to minimize the maximum intercluster distance", 1985; D. Arthur, S. Vassilvitskii,
"k-means++: the advantages of careful seeding", 2007, in rounds as in B. Bahmani et al., "Scalable k-means++", 2012.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchgw.kernels.sums import add_by_label
from torchgw.persist.codec import storable
from torchgw.types import DistanceProvider

KINDS = ("farthest", "spread", "random")
ROUNDS = 10
FEW = 64
# Coverage by so many: of curves up to 0.006, of surfaces and clouds in the plane 0.01 to 0.02, in 3, 5, 10 dimensions
# 0.07, 0.2, 0.35.
WIDE, SCATTERED = 0.008, 0.05
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
    def every(cls, D: Tensor, mass: Tensor) -> Landmarks:
        """All points of a space with these distances (N, N) and masses (N,)."""
        return cls(torch.arange(len(D), device=D.device), D, D, mass)

    def seen_by(self, index: Tensor) -> Landmarks:
        """The same landmarks, with distances to the points ``index`` only."""
        return Landmarks(self.index, self.rows[:, index], self.distances, self.mass)

    def between(self, one: Tensor, other: Tensor) -> Tensor:
        """Distances (..., n) between the points ``one`` (n,) and ``other`` (..., n), by way of the landmark nearest to
        ``one``."""
        found = self.rows[self.rows.argmin(0)[one], other].clamp_min(0.0)
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
    """At most ``count`` points with mass, of a kind out of `KINDS`; all of them when there are not more.

    ``mass`` (N,) is in the dtype of the space; ``first`` is the index that farthest-point landmarks begin with.
    The points ``named`` are landmarks in any case, beyond the count: as many of them as that at the most.
    """
    present = torch.nonzero(mass > 0)[:, 0]
    if len(present) <= count:
        index = present
        rows = space.rows(index)
    elif kind == "farthest":
        index, rows = _farthest(space, mass, count, first)
    elif kind == "spread":
        index, rows = _spread(space, mass, count, generator)
    else:
        index = _without_replacement(mass, count, generator)
        rows = space.rows(index)
    own = type(space).__module__.startswith("torchgw.")  # whose rows are finite; looking would wait for the device
    if not own and not bool(rows.isfinite().all()):
        raise ValueError(f"{type(space).__name__}.rows must give finite distances, got NaN or infinite ones")
    if named is not None:
        new = named[(mass[named] > 0) & ~torch.isin(named, index)]
        new = new[torch.linspace(0, len(new) - 1, min(len(new), count), device=new.device).long()]
        if len(new):
            index, rows = torch.cat((index, new)), torch.cat((rows, space.rows(new)))
    nearest = rows.argmin(0)
    nearest[index] = torch.arange(len(index), device=index.device)
    cells = add_by_label(torch.zeros(len(index), dtype=mass.dtype, device=mass.device), nearest, mass)
    among = rows[:, index]
    return Landmarks(index, rows, ((among + among.T) / 2).fill_diagonal_(0.0), cells)


def coverage(landmarks: Landmarks, mass: Tensor) -> float:
    """Mean square distance to the nearest landmark, relative to that between two random points."""
    near = landmarks.rows.amin(0).clamp_min(0.0).square() @ mass
    return float(mass.sum() * near / _spread_of(landmarks, mass))


def few_landmarks(space: DistanceProvider, mass: Tensor) -> Landmarks:
    """Those whose coverage tells what a space is like: above `WIDE` its points lie on no curve, above `SCATTERED` on no
    surface either, and cells mean little."""
    space = space.to(mass.device, mass.dtype)
    return choose_landmarks(space, mass, "farthest", FEW, torch.Generator(mass.device))


def along_curve(landmarks: Landmarks, mass: Tensor) -> bool:
    """Whether the points lie along a curve in one piece, by about sixty of them: the others are covered well, and a
    tree joins the landmarks by steps that are not much longer than each covers.

    Clusters are covered as well as a curve, but the steps between them are 4 to 40 times as long as that; of curves,
    surfaces and clouds the longest is 1.3 to 3 times (measured, 200 to 5000 points).
    """
    from scipy.sparse.csgraph import minimum_spanning_tree  # late: it takes long to import

    others = 1 - len(landmarks.index) / int((mass > 0).sum())
    if others == 0 or coverage(landmarks, mass) > WIDE * others:
        return False
    steps = minimum_spanning_tree(landmarks.distances.cpu().numpy()).data
    radius = float(landmarks.rows.amin(0).masked_fill(mass <= 0, 0.0).max())
    return len(steps) > 0 and float(steps.max()) <= LONGEST_STEP * radius


def unlikeness(landmarks: Landmarks, mass: Tensor) -> float:
    """Mean square difference between a point's distances to all landmarks and those of its nearest landmark, relative
    to the distance between two random points.

    In a metric space it is at most the coverage. In an adjacency most distances are zero, which the coverage takes for
    nearness; only this says how little landmarks mean.
    """
    nearest = landmarks.rows.argmin(0)
    seen = landmarks.mass @ ((landmarks.rows - landmarks.distances[:, nearest]).square() @ mass)
    return float(seen / _spread_of(landmarks, mass))


def _spread_of(landmarks: Landmarks, mass: Tensor) -> Tensor:
    spread = landmarks.mass @ (landmarks.rows.square() @ mass)
    return spread.clamp_min(torch.finfo(mass.dtype).tiny)


def _farthest(space: DistanceProvider, mass: Tensor, count: int, first: Tensor | None) -> tuple[Tensor, Tensor]:
    """Those that `torchgw.spaces.farthest` finds in a graph, in a process without torch; here of any kind of space, and
    of the points with mass alone."""
    absent = mass <= 0
    if first is None:
        first = mass.argmax()
        for _ in range(2):
            first = space.rows(first[None])[0].masked_fill(absent, -1.0).argmax()
    index, nearest = [first[None]], torch.where(absent, -1.0, torch.inf).to(mass)
    rows: list[Tensor] = []
    while True:
        rows.append(space.rows(index[-1]))
        nearest = torch.minimum(nearest, rows[-1][0])
        nearest[index[-1]] = -1.0
        if len(rows) == count:
            return torch.cat(index), torch.cat(rows)
        index.append(nearest.argmax(0, keepdim=True))


def _spread(space: DistanceProvider, mass: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Each round draws a tenth of the landmarks in proportion to mass times squared distance from those before.

    k-means++ but in ten rounds: rows of a space may each be a shortest-path search, and many at once cost less. Medoids
    of stored distances are drawn one by one (`torchgw.solvers.low_rank.group_cells`).
    """
    index = _without_replacement(mass, max(count // ROUNDS, 1), generator)
    rows = space.rows(index)
    while len(index) < count:
        weight = mass * rows.amin(0).clamp_min(0.0).square()
        weight[index] = 0.0
        if not bool((weight > 0).any()):
            weight = mass.clone()
            weight[index] = 0.0
        new = _without_replacement(weight, min(max(count // ROUNDS, 1), count - len(index)), generator)
        if len(new):
            index, rows = torch.cat((index, new)), torch.cat((rows, space.rows(new)))
    return index, rows


def _without_replacement(weight: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Up to ``count`` distinct indices drawn in proportion to ``weight``: the largest of the Gumbel-perturbed logs."""
    count = min(count, int((weight > 0).sum()))
    uniform = torch.rand(weight.shape, generator=generator, device=weight.device, dtype=torch.float64)
    keys = weight.to(torch.float64).log() - (-uniform.clamp_min(1e-300).log()).log()
    return keys.topk(count).indices

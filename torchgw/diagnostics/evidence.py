"""Evidence that comes with a plan: the other optima, what is certain of its value, and how sure each point is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling
from torchgw.couplings.sparse import SparseCoupling
from torchgw.couplings.tiled import TiledCoupling
from torchgw.persist.codec import storable
from torchgw.runtime.keywords import hide_constructor
from torchgw.types import Array

APART = 0.1  # of the largest distance: matchings that are nearer on average are one
NEAR_TIE = 1.05  # ratio of energies up to which two basins are equally good
TINY = 1e-9  # of the largest squared distance: below it energies are rounding
SINGLE = 2.0**-22  # the same of plans that were found in float32, whose energies differ by as much


@hide_constructor
@storable
@dataclass(frozen=True, kw_only=True)
class Basin:
    """One local optimum that the coarse stage found.

    Attributes
    ----------
    energy : objective on the level it was compared on.
    count : starts that ended in it, as far as the search kept where they did. What is made of the ends of others is no
        start, so that a basin has none that only means of ends led to.
    level : "full" (all points), "subset" (weighted points), "landmarks", or "contest" (all points, where proximal
        steps ended).
    origin : what the search began from there, as "landmarks: farthest" or a view of the spaces; of several starts that
        of the lowest, what was made of ends only where no start led to it. "unknown" in files of earlier versions.
    difference : mean distance between its matches and those of the best basin, relative to the largest distance of the
        two spaces.
    matching : (N,) target index of each source point, to the resolution of the level.
    shift : (N,) the distance behind ``difference`` for each source point.
    """

    energy: float
    count: int
    level: str
    difference: float
    origin: str = "unknown"
    matching: Array | Tensor = field(repr=False, compare=False)
    shift: Array | Tensor = field(repr=False, compare=False)


def energy_ratio(best: Basin, other: Basin, unit: float) -> float:
    """Energy of the best basin over that of another one, both taken to be above rounding; ``unit`` is the largest
    squared distance."""
    tiny = TINY * unit
    return (best.energy + tiny) / (other.energy + tiny)


def is_near_tie(best: Basin, other: Basin, unit: float, factor: float = NEAR_TIE) -> bool:
    """Whether another basin, compared on the same level, has at most ``factor`` times the energy of the best one."""
    return other.level == best.level and other.energy <= factor * max(best.energy, SINGLE * unit)


@hide_constructor
@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What is certain of a plan, in the units of its value.

    Attributes
    ----------
    stationarity : Frank-Wolfe gap: to first order, no plan near this one is better by more. A plan with entropy keeps a
        gap, of at most 2 epsilon times the entropy of its rows; at ``epsilon=0`` it goes to zero. NaN where it is
        not known: where the mass is free, and for large plans whose marginals are relaxed or bounded.
    stationarity_exact : False when the gap comes from a sampled gradient.
    lower_bound : no plan at all has a smaller value: the larger of Memoli's first and second bounds under hard
        marginals, the first alone for plans of few entries, from `torchgw.gw_certify` also the third and what that
        proved, plus what each point would pay alone of a linear cost; 0 where nothing better is known.
    gap : value minus lower bound: how far from the global optimum the plan can be.
    starts : how many starts the search made, as far as it kept where they ended; 0 without a search.
    agreeing_starts : how many of them ended in the basin of the returned plan.
    """

    stationarity: float
    stationarity_exact: bool
    lower_bound: float
    gap: float
    starts: int = 0
    agreeing_starts: int = 0

    def with_counts(self, basins: Sequence[Basin]) -> Certificate:
        """The certificate with the starts of a search, which ended in these basins, the returned one first."""
        counts = [basin.count for basin in basins]
        return replace(self, starts=sum(counts), agreeing_starts=sum(counts[:1]))

    def times(self, factor: float) -> Certificate:
        """The certificate of a value that is ``factor`` times as large."""
        return replace(
            self, stationarity=self.stationarity * factor, lower_bound=self.lower_bound * factor, gap=self.gap * factor
        )

    @property
    def gap_global(self) -> float:
        """The gap over the value: by which share the optimum can be lower."""
        value = self.lower_bound + self.gap
        return self.gap / value if value > 0 else 0.0

    def __str__(self) -> str:
        bound = "no lower bound above 0 is known"
        if self.lower_bound > 0 or self.gap <= 0:
            bound = (
                f"no plan has a value below {self.lower_bound:.4g}, so this one is within {self.gap:.4g} of the "
                f"optimum, {self.gap_global:.1%} of its value"
            )
        sampled = "" if self.stationarity_exact else " (estimated)"
        near = f"to first order it cannot be improved by more than {self.stationarity:.4g}{sampled}"
        if math.isnan(self.stationarity):
            near = "how far it can be improved to first order is not known"
        searched = "no other start was tried"
        if self.starts:
            searched = f"{self.agreeing_starts} of {self.starts} starts of the search ended in its basin"
        return f"{bound}; {near}; {searched}"


@hide_constructor
@storable
@dataclass(frozen=True, kw_only=True)
class Rung:
    """One resolution of a large solve.

    Attributes
    ----------
    cells : how many cells stood for the points of either space.
    residual : L1 marginal error, relative to the mass, of its solution lifted to all points; the larger of both sides.
    residual_error : standard error of that; 0 where every point was looked at.
    n_iter, n_iter_sinkhorn : outer and inner iterations on this rung.
    seconds : spent on it, its lift and its residual.
    """

    cells: tuple[int, int]
    residual: float
    residual_error: float
    n_iter: int
    n_iter_sinkhorn: int
    seconds: float


@hide_constructor
@storable
@dataclass(frozen=True, kw_only=True)
class EpsilonStep:
    """One epsilon of a solve that lowers it by itself.

    Attributes
    ----------
    epsilon : the entropy weight.
    value : of its plan, without entropy.
    moved : share of the mass whose largest match is another than at the epsilon before; 0 for the first.
    n_iter, n_iter_sinkhorn : outer and inner iterations at this epsilon.
    seconds : spent on it, and on a next one that was not taken.
    """

    epsilon: float
    value: float
    moved: float
    n_iter: int
    n_iter_sinkhorn: int
    seconds: float


@hide_constructor
@dataclass(frozen=True)
class IssuedWarning:
    """A warning that a solve gave.

    Attributes
    ----------
    category : name of its class, as "AmbiguityWarning".
    text : what it said.
    """

    category: str
    text: str

    def __str__(self) -> str:
        return f"{self.category}: {self.text}"


@hide_constructor
@dataclass(frozen=True, repr=False)
class Confidence:
    """Three views of source points, each (N,), or (m,) for m points that were asked for.

    Attributes
    ----------
    entropy : of the point's matches, in nats: 0 for a single match, log K for no idea; exp(entropy) is the number of
        points it is effectively spread over.
    margin : 1 - second largest / largest mass in the row: 1 for a single match, 0 for a tie.
    stability : 1 minus the distance, relative to the largest of the two spaces, to where another basin sends the point,
        discounted by how much worse that basin is (best energy / its energy, as listed); the worst over all basins. 1
        where no other was found, NaN where none was looked for.

    Points without mass have NaN in the first two.
    """

    entropy: Array | Tensor
    margin: Array | Tensor
    stability: Array | Tensor

    def __repr__(self) -> str:
        means = ", ".join(f"{name} {float(side.mean()):.3g}" for name, side in vars(self).items())
        return f"Confidence({len(self.entropy)} points; means: {means})"


def confidence_values(sure: Confidence, name: str) -> Array:
    """One of the three views by its name, float64 on the CPU."""
    return np.asarray(torch.as_tensor(getattr(sure, name)).detach().cpu(), dtype=np.float64)


def entropy_and_margin(coupling: BlockCoupling, points: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Entropy and margin of all rows (N,), or of the rows ``points`` (m,); read in blocks, of a large plan on its kept
    tiles."""
    entropy, margin = (torch.empty(coupling.shape[0], dtype=coupling.dtype, device=coupling.device) for _ in range(2))
    for rows, block in _iterate_blocks(coupling, None if points is None else torch.unique(points)):
        entropy[rows], margin[rows] = _block_entropy_and_margin(block)
    return (entropy, margin) if points is None else (entropy[points], margin[points])


def _iterate_blocks(coupling: BlockCoupling, points: Tensor | None) -> Iterator[tuple[Tensor | slice, Tensor]]:
    """Some points each, with their rows or what is kept of them."""
    if isinstance(coupling, TiledCoupling):
        yield from ((rows, block) for rows, _, block, _ in coupling.row_tiles(points))
    elif isinstance(coupling, SparseCoupling):
        width = min(int(coupling.first.diff().max()) + 1, coupling.shape[1])  # and one entry without mass
        values, _ = coupling.top_k(max(width, min(2, coupling.shape[1])))
        yield (slice(None), values) if points is None else (points, values[points])
    else:
        yield from ((where if points is None else points[where], block) for where, block in coupling.blocks(points))


def _block_entropy_and_margin(block: Tensor) -> tuple[Tensor, Tensor]:
    share = block / block.sum(1, keepdim=True)
    largest = share.topk(min(2, share.shape[1]), dim=1).values
    margin = 1 - largest[:, -1] / largest[:, 0] if share.shape[1] > 1 else torch.ones_like(share[:, 0])
    return torch.special.entr(share).sum(1), margin

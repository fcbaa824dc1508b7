"""Crossing: what comes of pairs of ends keeps what both agree on, and everything else is open again.

    ends -> the lowest distinct ones -> the mean of each pair -> an end again -> ... until that betters none of them

Between landmarks ends are annealed plans. Clusters that are as good as equally far from each other can be matched in
very many ways, each an optimum of its own, and starts have only some of them right; parents that have others right
bring them together.

Source: R. Ahuja, J. Orlin, A. Tiwari, "A greedy genetic algorithm for the quadratic assignment problem", 2000.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from torchgw.persist.watch import Watch
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.runtime.transfer import to_device, to_host
from torchgw.search.anneal import (
    COLDEST,
    SAME_PLAN,
    Batch,
    CoarseBasin,
    CoolingState,
    LandmarkProblem,
    anneal_batch,
    batch_without_potentials,
    compute_product_energy,
    cool_basins,
)
from torchgw.solvers.entropic import epsilon_levels

CROSSED = "mean of two ends"
PARENTS, ROUNDS, STALE, FALL = 20, 10, 2, 0.001
HOT, COLD, LEVELS = 0.15, 0.01, 6  # of the product plan's energy
STEPS, SETTLING = (4, 8), 2
MOST_ENTRIES = 4_000_000  # of plans that are annealed together


@dataclass(frozen=True, eq=False)
class Entrant:
    """A plan among others.

    origin : what it came from.
    plan : (N, K).
    energy : the objective without its entropy.
    """

    origin: str
    plan: Tensor
    energy: float


@dataclass(frozen=True, eq=False)
class AnnealedEntrant(Entrant):
    """A plan between landmarks, rounded, with what it was annealed to.

    f, g : base-2 potentials (N,), (K,).
    """

    f: Tensor
    g: Tensor


EntrantT = TypeVar("EntrantT", bound=Entrant)


def energy_or_inf(entrant: Entrant) -> float:
    """Its energy; infinite where that is no number."""
    return entrant.energy if entrant.energy == entrant.energy else math.inf


def improve_by_offspring(
    pool: Sequence[EntrantT],
    parents: int,
    rounds: int,
    stale: int,
    fall: float,
    apart: float,
    make_offspring: Callable[[list[tuple[EntrantT, EntrantT]], list[EntrantT]], list[EntrantT]],
) -> list[EntrantT]:
    """The pool, the lowest first, with the ends that ``make_offspring`` gave.

    Parameters
    ----------
    parents : of how many distinct ends pairs are taken.
    rounds, stale : rounds at most, and how many of them may end with none that is lower by a share ``fall``.
    apart : L1 distance above which two plans are distinct.
    make_offspring : ends of pairs that were not tried before, and of whatever else is made of the parents; none ends
        the search.
    """
    pool, tried, waited = sorted(pool, key=energy_or_inf), set[frozenset[EntrantT]](), 0
    for _ in range(rounds):
        lowest = _select_distinct(pool, parents, apart)
        fresh = [pair for pair in itertools.combinations(lowest, 2) if frozenset(pair) not in tried]
        tried |= {frozenset(pair) for pair in fresh}
        found = make_offspring(fresh, lowest)
        if not found:
            break
        pool, best = sorted((*pool, *found), key=energy_or_inf), pool[0].energy
        waited = 0 if pool[0].energy < (1 - fall) * best else waited + 1
        if waited == stale:
            break
    return pool


def cross_basins(
    problem: LandmarkProblem, plans: Tensor, epsilon: float, n_kept: int, watch: Watch
) -> list[CoarseBasin]:
    """The distinct optima that crossing leads to from plans (B, L, L') between landmarks, lowest energy first, at most
    ``n_kept``. The plans are written over. No start led to any of these optima, so their counts are zero."""
    unit, mass = float(compute_product_energy(problem.without_rows)), problem.x.mass
    levels = [max(level, epsilon) for level in epsilon_levels(unit, HOT, COLD, LEVELS)]
    together = max(MOST_ENTRIES // plans[0].numel(), 1)

    def anneal_to_entrants(plans: Tensor, levels: list[float]) -> list[AnnealedEntrant]:
        found: list[AnnealedEntrant] = []
        for part in torch.split(plans, together):
            batch, energies = _anneal_to_ends(
                problem.without_rows, part, to_device(torch.tensor(levels, dtype=mass.dtype), mass.device)
            )
            found += map(AnnealedEntrant, itertools.repeat(CROSSED), batch.plan, energies.tolist(), batch.f, batch.g)
        return found

    def make_offspring(
        fresh: list[tuple[AnnealedEntrant, AnnealedEntrant]], lowest: list[AnnealedEntrant]
    ) -> list[AnnealedEntrant]:
        cut = not fresh or watch.should_skip()
        return (
            []
            if cut
            else anneal_to_entrants(torch.stack([(one.plan + other.plan) / 2 for one, other in fresh]), levels)
        )

    # Plans that were lifted are too blurred to be warmed at once: their gradients would not hold them.
    first, apart = (
        anneal_to_entrants(problem.round_plans(plans), [*levels[-1:] * SETTLING, *levels]),
        SAME_PLAN * float(mass.sum()),
    )
    pool = improve_by_offspring(first, PARENTS, ROUNDS, STALE, FALL, apart, make_offspring)
    best = _select_distinct(pool, n_kept, apart)
    plans, f, g = (torch.stack(parts) for parts in zip(*((each.plan, each.f, each.g) for each in best), strict=True))
    batch = Batch(plans, f, g, mass.new_full((len(best),), levels[-1]))
    last = max(epsilon, COLDEST * unit)
    places = torch.arange(len(best), device=mass.device)
    return cool_basins([CoolingState(problem, batch, places, levels[-1], last, places[:0])], n_kept)[0]


@as_cuda_graph()
def _anneal_to_ends(problem: LandmarkProblem, plans: Tensor, levels: Tensor) -> tuple[Batch, Tensor]:
    """What plans (B, L, L') become at temperatures (m,) in turn, in the end rounded, and their energies (B,)."""
    batch = anneal_batch(problem, batch_without_potentials(problem, plans), levels, *STEPS)
    batch = batch._replace(plan=problem.round_plans(batch.plan))
    return batch, problem.energies(batch.plan)


def _select_distinct(pool: Sequence[EntrantT], most: int, apart: float) -> list[EntrantT]:
    """At most so many of the first, whose plans differ."""
    found: list[int] = []
    far = _make_distance_function(pool)
    for place in range(len(pool)):
        if all(far(place, other) > apart for other in found):
            found.append(place)
        if len(found) == most:
            break
    return [pool[place] for place in found]


def _make_distance_function(pool: Sequence[Entrant]) -> Callable[[int, int], float]:
    """L1 distances between the plans of two places. From a GPU all come at once, whichever are asked for."""
    if not (len(pool) > 1 and pool[0].plan.is_cuda):
        return lambda one, other: float((pool[one].plan - pool[other].plan).abs().sum())
    plans = torch.stack([entrant.plan.flatten() for entrant in pool])
    (table,) = to_host(torch.cdist(plans, plans, p=1.0))
    return lambda one, other: float(table[one, other])

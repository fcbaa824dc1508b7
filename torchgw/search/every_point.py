"""Without entropy, where points are few, each of them is a landmark: starts are annealed on all points, as one batch,
to plans that are nearly optima, whose energies are compared as they are.

The lowest is gone on with from its plan and, annealed further, from its potentials; so are the others, where it hardly
stands out, and the product plan as it is.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from torchgw.options import CoarseOptions
from torchgw.search.anneal import CoarseBasin, LandmarkProblem, landmark_basins
from torchgw.search.candidate import Candidate
from torchgw.search.full_starts import FEW_PAIRS
from torchgw.search.rung import lifted
from torchgw.solvers.problem import StoredProblem
from torchgw.spaces.quantisation import Landmarks
from torchgw.types import DistanceProvider

KEPT = 8
MOST_OF_A_SPACE = 4  # times the pairs that are few
STARTS_OF_FEW = 20  # times as many as for landmarks, at most
PAIRS_AT_ONCE = 30_000  # of all starts: a batch of fewer takes as long


def is_few(problem: StoredProblem) -> bool:
    """Whether the search may take every point for a landmark: pairs of points are few, and so are those of a space."""
    n, k = len(problem.p), len(problem.q)
    return problem.sharp and problem.exact and n * k <= FEW_PAIRS and max(n, k) ** 2 <= MOST_OF_A_SPACE * FEW_PAIRS


def on_every_point(problem: StoredProblem, coarse: CoarseOptions, origin: str) -> list[Candidate]:
    """The distinct optima that starts end in, with their plans, the lowest first."""
    x, y = (_landmarks(space, mass) for space, mass in zip(problem.spaces, problem.masses, strict=True))
    between = LandmarkProblem.of(x, y, problem.model)
    most = PAIRS_AT_ONCE // (len(x.mass) * len(y.mass))
    count = min(max(coarse.n_starts // 2, most), STARTS_OF_FEW * coarse.n_starts)
    basins = landmark_basins(between, 0.0, count, KEPT, problem.generator)
    if not math.isfinite(basins[0].energy):
        raise FloatingPointError("no start has a finite objective")
    return [_candidate(problem, basin, origin) for basin in basins]


def _landmarks(space: DistanceProvider, mass: Tensor) -> Landmarks:
    """The points with mass."""
    index = torch.nonzero(mass > 0)[:, 0]
    rows = space.rows(index)
    return Landmarks(index, rows, rows[:, index], mass[index])


def _candidate(problem: StoredProblem, basin: CoarseBasin, origin: str) -> Candidate:
    (start, matching), (p, q) = lifted(problem, basin), problem.masses
    plan = p.new_zeros(len(p), len(q))
    plan[basin.source.index[:, None], basin.target.index] = basin.plan.to(p)
    start = replace(start, plan=plan)
    return Candidate(start, matching, basin.energy, basin.count, "full", True, origin=origin, annealed=True)

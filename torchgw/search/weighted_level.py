"""The level between landmarks and all points: a problem of weighted points on which what was found is compared.

    landmark basins -> a few steps on the level -> the lowest, lifted to all points

Between many points landmarks can miss the optimum altogether: spaces as round as a Gaussian cloud have a basin for each
way of turning one onto the other, and which is right only fine detail tells. Where none of theirs stands out there, the
leading modes of all points' distances are starts on the level as well, with every combination of signs: between many
points modes are known so well that one combination turns the spaces nearly right. Curves have no such doubt: their
other basins are left far behind between landmarks already.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchgw.diagnostics.evidence import APART
from torchgw.linalg.centring import factored_modes
from torchgw.objective.exact import ExactGradient
from torchgw.objective.linearise import gradient_of
from torchgw.objective.model import Model
from torchgw.search.anneal import NEAR, CoarseBasin, LandmarkSolution, is_clear_minimum
from torchgw.search.candidate import Candidate
from torchgw.search.full_starts import make_feature_starts
from torchgw.search.initial_guesses import N_MODES, SIGNS, sign_combinations
from torchgw.search.lift import lift
from torchgw.solvers.problem import StoredProblem, run_fixed_point
from torchgw.solvers.warm_start import WarmStart
from torchgw.spaces import PrecomputedDistances
from torchgw.spaces.low_rank import approximate_distances
from torchgw.spaces.quantisation import Landmarks, choose_landmarks
from torchgw.types import DistanceProvider

LEVEL_POINTS, LEVEL_STEPS, LEVEL_PAYS = 500, 8, 2
MANY_POINTS, MANY_STEPS = 1000, 2  # between many points, where one comparison on all of them costs more than this level
MODE_STEPS = 5  # from modes, which begin hot, and of what is to be told from them
DOUBT = 1.25  # between many points, of the lowest: after the first steps energies still fall by a quarter
LEFT = 1.1  # between many points, of the lowest: others are left behind, and one within it is a doubt
MODES = "modes of distances"
ROUGH = 1e-2  # tolerance of comparisons: of marginals, and relative of energies


@dataclass(frozen=True, eq=False)
class LevelCandidate:
    """A candidate as it ends on the level.

    candidate : of the search.
    warm_start : where more steps begin.
    solution : the plan and its potentials.
    energy : of that plan; infinite where it is no number.
    """

    candidate: Candidate
    warm_start: WarmStart
    solution: LandmarkSolution
    energy: float


@dataclass(frozen=True)
class WeightedLevel:
    """The intermediate resolution of the search: a problem between landmarks of both spaces.

    source, target : landmarks (n,), (k,) with their masses and distances.
    problem : the problem between them.
    whole : the problem (N, K) that it stands for.
    has_many_pairs : whether that has many pairs of points.
    """

    source: Landmarks
    target: Landmarks
    problem: StoredProblem
    whole: StoredProblem
    has_many_pairs: bool

    @classmethod
    def of(cls, whole: StoredProblem, many: bool) -> WeightedLevel | None:
        """None where there are too few points for it to pay."""
        if min(map(len, whole.masses)) < LEVEL_PAYS * LEVEL_POINTS:
            return None
        x, y = choose_landmark_pair(whole, MANY_POINTS if many else LEVEL_POINTS)
        near, far = (PrecomputedDistances.stored_matrix(side.distances, 1.0) for side in (x, y))
        p, q = (
            side.mass.to(torch.float64) * (all_of_it.sum() / side.mass.to(torch.float64).sum())
            for side, all_of_it in ((x, whole.p), (y, whole.q))
        )
        model = whole.model.restrict(x.index, y.index, p, q)
        gradient = gradient_of(model, ExactGradient(near, far, x.mass, y.mass, model.loss))
        problem = loosen_tolerances(whole) if many else whole
        return cls(x, y, replace(problem, spaces=(near, far), gradient=gradient, model=model, exact=True), whole, many)

    def solve_candidates(self, candidates: list[Candidate]) -> list[Candidate]:
        """The candidates, near ones solved here, the distinct ones lifted to all points. Between many points only the
        two lowest, and others close to the lowest, stay near."""
        found = [c for c in candidates if not c.selected or c.basin is None]
        ends = self._merge_same(
            [self._solve_candidate(c, c.basin) for c in candidates if c.selected and c.basin is not None]
        )
        beaten = len(ends) == 1 and is_clear_minimum(sorted(c.energy for c in candidates), NEAR)
        if self.has_many_pairs and not (beaten or is_clear_minimum([end.energy for end in ends], DOUBT)):
            close = [end for end in ends[: len(SIGNS)] if end.energy <= DOUBT * ends[0].energy]
            ends = self._merge_same([*map(self._continue_solve, close), *ends[len(close) :]])
            if not is_clear_minimum([end.energy for end in ends], LEFT):
                ends = self._merge_same([*ends, *self._solve_from_modes()])
        for rank, end in enumerate(ends):
            if not self.has_many_pairs or rank < 2 or end.energy <= LEFT * ends[0].energy:
                start, matching = lift_to_points(self.whole, end.solution)
                raised = replace(end.candidate, start=start, matching=matching, energy=end.energy, level="subset")
                found.append(raised)
            elif end.candidate.basin is not None:
                found.append(replace(end.candidate, selected=False))
        return found

    def _merge_same(self, ends: list[LevelCandidate]) -> list[LevelCandidate]:
        """Those whose matchings are apart, the lowest first; counts of those merged are added."""
        distances, mass = self.target.distances, self.source.mass
        least = APART * mass.sum() * distances.max()
        kept: list[LevelCandidate] = []
        matchings: list[Tensor] = []
        for end in sorted(ends, key=lambda end: end.energy):
            matching = end.solution.plan.argmax(1)
            same = [i for i, other in enumerate(matchings) if mass @ distances[matching, other] <= least]
            if not same:
                kept.append(end)
                matchings.append(matching)
                continue
            one, other = kept[same[0]].candidate, end.candidate
            merged = replace(one, count=one.count + other.count, best_of_kind=one.best_of_kind or other.best_of_kind)
            kept[same[0]] = replace(kept[same[0]], candidate=merged)
        return kept

    def _solve_candidate(self, candidate: Candidate, basin: CoarseBasin) -> LevelCandidate:
        """A candidate's basin solved on the level."""
        start, _ = lift_to_subset(basin, self.problem.model, self.whole.model, (self.source.index, self.target.index))
        epsilon = max(basin.epsilon, self.problem.epsilon)
        return self._run_steps(candidate, start, epsilon, MANY_STEPS if self.has_many_pairs else LEVEL_STEPS)

    def _continue_solve(self, end: LevelCandidate) -> LevelCandidate:
        """The end after as many steps as what begins at modes."""
        return self._run_steps(end.candidate, end.warm_start, end.solution.epsilon, MODE_STEPS - MANY_STEPS)

    def _solve_from_modes(self) -> list[LevelCandidate]:
        """What comes of the leading modes of all points; nothing where these are neither stored nor factored."""
        gradient, p, q = self.whole.quadratic, *self.whole.masses
        spaces = (gradient.source, gradient.target) if isinstance(gradient, ExactGradient) else self.whole.spaces
        x, y = (self._leading_modes(space, mass) for space, mass in zip(spaces, (p, q), strict=True))
        if x is None or y is None:
            return []
        x, y = x[self.source.index], y[self.target.index]
        starts = [
            each for signs in sign_combinations(x, y) for each in make_feature_starts(self.problem, x * signs, y, MODES)
        ]
        return [self._run_steps(each, each.start, self.problem.epsilon, MODE_STEPS) for each in starts]

    def _leading_modes(self, space: DistanceProvider, mass: Tensor) -> Tensor | None:
        factors = space.factors()
        if factors is None and isinstance(space, PrecomputedDistances):
            factors = approximate_distances(space, mass, self.whole.generator, 0.0, N_MODES).space.factors()
        return None if factors is None else factored_modes(*factors, mass, N_MODES)

    def _run_steps(self, candidate: Candidate, start: WarmStart, epsilon: float, steps: int) -> LevelCandidate:
        """Where the candidate ends after so many steps; an energy that is no number is infinite."""
        done = run_fixed_point(self.problem, start, epsilon, steps)
        end, energy = done.warm_start, done.history.cost[-1]
        assert end is not None
        assert end.epsilon is not None
        solved = LandmarkSolution(self.source, self.target, done.plan, end.f, end.g, end.epsilon)
        return LevelCandidate(candidate, end, solved, energy if energy == energy else math.inf)


def loosen_tolerances(problem: StoredProblem) -> StoredProblem:
    """The problem with tolerances that tell basins apart, which take a third of the iterations."""
    options = problem.options
    sinkhorn = replace(options.sinkhorn, tol=max(options.sinkhorn.tol, ROUGH))
    stopping = replace(options.stopping, plan_tol=max(options.stopping.plan_tol, ROUGH))
    return replace(problem, options=replace(options, sinkhorn=sinkhorn, stopping=stopping))


def lift_to_points(problem: StoredProblem, solved: LandmarkSolution) -> tuple[WarmStart, Tensor]:
    """What was solved between landmarks, lifted to all points."""
    gradient = problem.quadratic if isinstance(problem.quadratic, ExactGradient) else None
    return lift(solved, problem.model, gradient, softmin=problem.kernels.stored.softmin)


def lift_to_subset(
    basin: CoarseBasin, model: Model, whole: Model, at: tuple[Tensor, Tensor]
) -> tuple[WarmStart, Tensor]:
    """A basin lifted to the points ``at`` of both spaces, whose ``model`` is a part of the ``whole`` one."""
    source, target = (side.restrict_rows(index) for side, index in zip((basin.source, basin.target), at, strict=True))
    return lift(replace(basin, source=source, target=target), model, None, whole, at)


def choose_landmark_pair(problem: StoredProblem, count: int) -> tuple[Landmarks, Landmarks]:
    """So many landmarks of both spaces, as the mass lies."""
    named = problem.model.points or (None, None)
    x, y = (
        choose_landmarks(space, mass, "spread", count, problem.generator, named=points)
        for space, mass, points in zip((problem.source, problem.target), problem.masses, named, strict=True)
    )
    return x, y

"""The rung between landmarks and all points: a problem of weighted points on which what was found is compared.

    landmark basins -> a few steps on the rung -> the lowest, lifted to all points

Between many points landmarks can miss the optimum altogether: spaces as round as a Gaussian cloud have a basin for each
way of turning one onto the other, and which is right only fine detail tells. Where none of theirs stands out there, the
leading modes of all points' distances are starts on the rung as well, with every combination of signs: between many
points modes are known so well that one combination turns the spaces nearly right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchgw.linalg.centring import factored_modes
from torchgw.objective.exact import ExactGradient
from torchgw.objective.linearise import gradient_of
from torchgw.objective.model import Model
from torchgw.search.anneal import CoarseBasin, Solved
from torchgw.search.candidate import Candidate
from torchgw.search.full_starts import by_features
from torchgw.search.initial_guesses import N_MODES, signs_of
from torchgw.search.lift import lift
from torchgw.solvers.problem import StoredProblem, descended
from torchgw.solvers.warm_start import Start
from torchgw.spaces import PrecomputedDistances
from torchgw.spaces.quantisation import Landmarks, choose_landmarks

RUNG, RUNG_STEPS = 500, 8
MANY_RUNG, MANY_STEPS = 1000, 2  # between many points, where one comparison on all of them costs more than this rung
MODE_STEPS = 5  # from modes, which begin hot
CLOSE = 1.1  # between many points, of the lowest: others are left behind, and one within it is a doubt
MODES = "modes of distances"
ROUGH = 1e-2  # tolerance of comparisons: of marginals, and relative of energies


@dataclass(frozen=True)
class Rung:
    """The intermediate resolution of the search: a problem between landmarks of both spaces.

    source, target : landmarks (n,), (k,) with their masses and distances.
    problem : the problem between them.
    whole : the problem (N, K) that it stands for.
    many : whether that has many pairs of points.
    """

    source: Landmarks
    target: Landmarks
    problem: StoredProblem
    whole: StoredProblem
    many: bool

    @classmethod
    def of(cls, whole: StoredProblem, many: bool) -> Rung:
        x, y = spread(whole, MANY_RUNG if many else RUNG)
        near, far = (PrecomputedDistances.stored_matrix(side.distances, 1.0) for side in (x, y))
        p, q = (
            side.mass.to(torch.float64) * (all_of_it.sum() / side.mass.to(torch.float64).sum())
            for side, all_of_it in ((x, whole.p), (y, whole.q))
        )
        model = whole.model.taken(x.index, y.index, p, q)
        gradient = gradient_of(model, ExactGradient(near, far, x.mass, y.mass, model.loss))
        problem = rough(whole) if many else whole
        return cls(x, y, replace(problem, spaces=(near, far), gradient=gradient, model=model, exact=True), whole, many)

    def raised(self, candidates: list[Candidate]) -> list[Candidate]:
        """The candidates, near ones solved here and lifted to all points. Between many points only the two lowest, and
        others close to the lowest, stay near."""
        raised = [(c, *self._solved(c.basin)) for c in candidates if c.near and c.basin is not None]
        energies = sorted(energy for _, _, energy in raised)
        if self.many and not (len(energies) > 1 and energies[1] > CLOSE * energies[0]):
            raised += self._by_modes()
            energies = sorted(energy for _, _, energy in raised)
        most = max(CLOSE * energies[0], energies[min(1, len(energies) - 1)]) if self.many else math.inf
        left = [replace(c, near=False) for c, _, energy in raised if energy > most and c.basin is not None]
        found = [c for c in candidates if not c.near] + left
        for candidate, solved, energy in raised:
            if energy <= most:
                start, matching = lifted(self.whole, solved)
                found.append(replace(candidate, start=start, matching=matching, energy=energy, level="subset"))
        return found

    def _solved(self, basin: CoarseBasin) -> tuple[Solved, float]:
        """The basin solved on the rung, and its energy there."""
        start, _ = seen(basin, self.problem.model, self.whole.model, (self.source.index, self.target.index))
        epsilon = max(basin.epsilon, self.problem.epsilon)
        return self._end(start, epsilon, MANY_STEPS if self.many else RUNG_STEPS)

    def _by_modes(self) -> list[tuple[Candidate, Solved, float]]:
        """What comes of the leading modes of all points; nothing of spaces without factors."""
        gradient = self.whole.quadratic
        spaces = (gradient.source, gradient.target) if isinstance(gradient, ExactGradient) else self.whole.spaces
        left, right = (space.factors() for space in spaces)
        if left is None or right is None:
            return []
        p, q = self.whole.masses
        x = factored_modes(*left, p, N_MODES)[self.source.index]
        y = factored_modes(*right, q, N_MODES)[self.target.index]
        starts = [each for signs in signs_of(x, y) for each in by_features(self.problem, x * signs, y, MODES)]
        return [(each, *self._end(each.start, self.problem.epsilon, MODE_STEPS)) for each in starts]

    def _end(self, start: Start, epsilon: float, steps: int) -> tuple[Solved, float]:
        done = descended(self.problem, start, epsilon, steps)
        end = done.end
        assert end is not None
        assert end.epsilon is not None
        return Solved(self.source, self.target, done.plan, end.f, end.g, end.epsilon), done.history.cost[-1]


def rough(problem: StoredProblem) -> StoredProblem:
    """The problem with tolerances that tell basins apart, which take a third of the iterations."""
    options = problem.options
    sinkhorn = replace(options.sinkhorn, tol=max(options.sinkhorn.tol, ROUGH))
    stopping = replace(options.stopping, plan_tol=max(options.stopping.plan_tol, ROUGH))
    return replace(problem, options=replace(options, sinkhorn=sinkhorn, stopping=stopping))


def lifted(problem: StoredProblem, solved: Solved) -> tuple[Start, Tensor]:
    """What was solved between landmarks, lifted to all points."""
    gradient = problem.quadratic if isinstance(problem.quadratic, ExactGradient) else None
    return lift(solved, problem.model, gradient)


def seen(basin: CoarseBasin, model: Model, whole: Model, at: tuple[Tensor, Tensor]) -> tuple[Start, Tensor]:
    """A basin lifted to the points ``at`` of both spaces, whose ``model`` is a part of the ``whole`` one."""
    source, target = (side.seen_by(index) for side, index in zip((basin.source, basin.target), at, strict=True))
    return lift(replace(basin, source=source, target=target), model, None, whole, at)


def spread(problem: StoredProblem, count: int) -> tuple[Landmarks, Landmarks]:
    """So many landmarks of both spaces, as the mass lies."""
    named = problem.model.points or (None, None)
    spaces = zip((problem.source, problem.target), problem.masses, named, strict=True)
    x, y = (
        choose_landmarks(space, mass, "spread", count, problem.generator, named=points)
        for space, mass, points in spaces
    )
    return x, y

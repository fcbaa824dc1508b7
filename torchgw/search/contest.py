"""A contest of plans from several views of two graphs, on the matrices that were asked for.

    a plan from every view -> proximal steps for all of them, the lower half after each round
        -> the ends, of equal masses made sharp -> means of pairs of ends, which keep what both agree on, again
        -> the distinct ends, the lowest first, with how many plans came to each

Steps are taken on all plans at once where points are few. The product plan is never left out, so that nothing is worse
than proximal steps from it, and up to two million pairs a conditional gradient from it is among the ends as well.

Sources: K. Jamieson, A. Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization", 2016
(successive halving); R. Ahuja, J. Orlin, A. Tiwari, "A greedy genetic algorithm for the quadratic assignment problem",
2000 (crossing).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling
from torchgw.couplings.rounding import feasible
from torchgw.kernels import LOG2E
from torchgw.objective.model import mean_cost
from torchgw.runtime.threads import threads_for
from torchgw.search.anneal import basins_of
from torchgw.search.candidate import Candidate
from torchgw.search.views import COSTLY, FEW_PAIRS, VIEWS, Graph
from torchgw.solvers.assignment import AssignmentProblem, Cross
from torchgw.solvers.problem import StoredProblem
from torchgw.solvers.proximal import MIXED, STEPS, Score, levels, product_energy, proximal_steps, score_of
from torchgw.solvers.warm_start import Start

PRODUCT = "product plan"
CROSSED = "mean of two"
ROUND = (5, 10, 25)  # proximal steps
CROSSED_HOT, CROSSED_COLD, CROSSED_STEPS = 0.03, 0.01, 20
PARENTS, ROUNDS, STALE = 6, 8, 2
APART = 0.05  # of the mass, between parents
LISTED = 4


@dataclass(frozen=True, eq=False)
class Entrant:
    """A plan in the contest.

    origin : the view that it came from.
    plan : (N, K), of mass one.
    energy : the objective without its entropy.
    """

    origin: str
    plan: Tensor
    energy: float


Energies: TypeAlias = Callable[[Tensor], Tensor]
"""The objective (B,) of plans (B, N, K) without its entropy."""


def contest(problem: StoredProblem, x: Graph, y: Graph) -> list[Candidate]:
    """The distinct ends of all plans, the lowest first, at most four."""
    with threads_for(len(x.mass) * len(y.mass)):
        field = _Field.of(problem, x, y)
        entrants = field.crossed(field.ends(field.first_plans()))
    plans = torch.stack([entrant.plan for entrant in entrants])
    energies = torch.tensor([entrant.energy for entrant in entrants], dtype=torch.float64)
    return [
        _candidate(problem, entrants[group[0]], len(group), field.assignment is not None)
        for group in basins_of(plans, energies, LISTED)
    ]


@dataclass(frozen=True)
class _Field:
    """Where plans compete.

    problem : what was asked for.
    x, y : its spaces as graphs.
    unit : energy of the product plan.
    assignment : the problem between equal masses without linear cost, in float64, None for others.
    score, energies : of plans (B, N, K), all at once or one by one.
    """

    problem: StoredProblem
    x: Graph
    y: Graph
    unit: float
    assignment: AssignmentProblem | None
    score: Score
    energies: Energies

    @classmethod
    def of(cls, problem: StoredProblem, x: Graph, y: Graph) -> _Field:
        p, q, gradient = x.mass, y.mass, problem.gradient
        unit, assignment = product_energy(gradient, p, q)[0], _assignment(problem, x, y)
        few, symmetric = len(p) * len(q) <= FEW_PAIRS, x.symmetric and y.symmetric

        def energies(plans: Tensor) -> Tensor:
            found = []
            for plan in plans:
                coupling = DenseCoupling(plan)
                found.append(mean_cost(gradient(coupling, p), coupling, p, q))
            return torch.stack(found)

        if problem.model.plain:
            sides = (x.D, y.D) if assignment is None else (x.contrast, y.contrast)
            cross = Cross(*sides, symmetric) if few else Cross.of(*sides, symmetric)

            def score(plans: Tensor, epsilon: float) -> Tensor:
                found = cross(plans) if few else torch.stack([cross(plan) for plan in plans])
                found -= found.mean(-1, keepdim=True)
                return found.mul_(2 * LOG2E / epsilon)
        else:
            one = score_of(gradient, p)

            def score(plans: Tensor, epsilon: float) -> Tensor:
                return torch.stack([one(plan, epsilon) for plan in plans])

        return cls(problem, x, y, unit, assignment, score, energies)

    @property
    def few(self) -> bool:
        return len(self.x.mass) * len(self.y.mass) <= FEW_PAIRS

    def first_plans(self) -> dict[str, Tensor]:
        """The plan of each view that is worth its time."""
        costly = frozenset() if self.few else COSTLY
        watch = self.problem.watch.aside()
        return {name: view(self.x, self.y, watch) for name, view in VIEWS.items() if name not in costly}

    def ends(self, plans: dict[str, Tensor]) -> list[Entrant]:
        """Where proximal steps take them, the better half of them after each round where points are many."""
        product = plans[PRODUCT]
        alive = {name: torch.lerp(plan, product, MIXED).log2() for name, plan in plans.items()}
        epsilons, ends = levels(self.unit), list(itertools.accumulate(ROUND))
        for first, last in zip((0, *ends), ends, strict=False):
            alive = dict(zip(alive, self.steps(list(alive.values()), epsilons[first:last]), strict=True))
            if not self.few and last < STEPS:
                alive = self.better_half(alive)
        found = [self.end(name, exponent.exp2()) for name, exponent in alive.items()]
        return found if self.assignment is None else [*found, self.end(PRODUCT, product)]

    def steps(self, exponents: list[Tensor], epsilons: list[float]) -> list[Tensor]:
        """Proximal steps on all plans at once, or where points are many one by one."""
        watch, masses = self.problem.watch.aside(), (self.x.mass, self.y.mass)
        batches = [exponents] if self.few else [[each] for each in exponents]
        return [
            each
            for batch in batches
            for each in proximal_steps(self.score, torch.stack(batch), *masses, epsilons, watch)
        ]

    def better_half(self, alive: dict[str, Tensor]) -> dict[str, Tensor]:
        """The lower half by energy, and the product plan's in any case."""
        energies = {name: float(self.energies(exponent.exp2()[None])) for name, exponent in alive.items()}
        kept = sorted(alive, key=energies.__getitem__)[: math.ceil(len(alive) / 2)]
        return {name: exponent for name, exponent in alive.items() if name in kept or name == PRODUCT}

    def end(self, origin: str, plan: Tensor) -> Entrant:
        """What comes of a plan (N, K) on the marginals, made sharp where that is an assignment."""
        if self.assignment is not None:
            p = self.x.mass.double()
            return Entrant(origin, *self.assignment.optimum(feasible(plan.double(), p, p)))
        plan = feasible(plan, self.x.mass, self.y.mass)
        return Entrant(origin, plan, float(self.energies(plan[None])))

    def crossed(self, entrants: list[Entrant]) -> list[Entrant]:
        """The ends, and what means of pairs of the lowest distinct ones lead to, until that betters none of them."""
        pool, stale = sorted(entrants, key=_energy), 0
        tried: set[frozenset[Entrant]] = set()
        parents, rounds = (PARENTS, ROUNDS) if self.few else (2, 1)
        for _ in range(rounds):
            pairs = [pair for pair in itertools.combinations(_apart(pool, parents), 2) if frozenset(pair) not in tried]
            if not pairs or stale == STALE or self.problem.watch.cut():
                break
            tried |= {frozenset(pair) for pair in pairs}
            product, lowest = self.x.mass[:, None] * self.y.mass, pool[0].energy
            means = [(one.plan + other.plan).to(product.dtype) / 2 for one, other in pairs]
            exponents = [torch.lerp(mean, product, MIXED).log2() for mean in means]
            epsilons = levels(self.unit, CROSSED_HOT, CROSSED_COLD, CROSSED_STEPS)
            kids = [exponent.exp2() for exponent in self.steps(exponents, epsilons)]
            found = [self.end(CROSSED, plan) for plan in (*kids, *(means if self.assignment is not None else ()))]
            pool = sorted((*pool, *found), key=_energy)
            stale = 0 if pool[0].energy < lowest else stale + 1
        return pool


def _assignment(problem: StoredProblem, x: Graph, y: Graph) -> AssignmentProblem | None:
    """The problem between equal masses, where it is one."""
    p, q = x.mass, y.mass
    equal = len(p) == len(q) and float(p.max()) == float(p.min()) and float(q.max()) == float(q.min())
    if not (equal and problem.model.plain):
        return None
    X, Y = x.D.double(), y.D.double()
    constant = float((X.square().sum() + Y.square().sum()) / len(p) ** 2)
    return AssignmentProblem(X, Y, Cross.of(X, Y, x.symmetric and y.symmetric), constant)


def _energy(entrant: Entrant) -> float:
    return entrant.energy if entrant.energy == entrant.energy else math.inf


def _apart(pool: list[Entrant], most: int) -> list[Entrant]:
    """At most so many of the first, whose plans differ."""
    found: list[Entrant] = []
    for entrant in pool:
        if all(float((entrant.plan - other.plan).abs().sum()) > APART for other in found):
            found.append(entrant)
        if len(found) == most:
            break
    return found


def _candidate(problem: StoredProblem, entrant: Entrant, count: int, ended: bool) -> Candidate:
    """The plan of an entrant as a place to begin."""
    p, q = problem.masses
    plan = entrant.plan.to(p.dtype)
    start = Start(problem.gradient(DenseCoupling(plan), p / p.sum()), p.log2(), q.log2(), problem.epsilon)
    start = replace(start, plan=plan) if problem.sharp else start
    energy = entrant.energy if problem.sharp else math.inf
    return Candidate(start, plan.argmax(1), energy, count, "full", True, origin=entrant.origin, ended=ended)

"""A contest of plans from several views of two graphs, on the matrices that were asked for.

    a plan from every view -> proximal steps for all of them, the lower half after each round
        -> the ends, of equal masses made sharp; where they differ, the views' own plans made sharp as well
        -> means of pairs of ends, which keep what both agree on, and ends blurred where they cost most, again
        -> the distinct ends, the lowest first, with how many views led to each

Around nodes that very many edges meet in, steps forget what a view had right and conditional gradients keep it; on most
graphs it is the other way round, so ends come from both. Steps are taken on all plans at once where points are few. The
product plan is never left out, so that nothing is worse than proximal steps from it, and up to two million pairs a
conditional gradient from it is among the ends as well.

Sources: K. Jamieson, A. Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization", 2016
(successive halving); R. Ahuja, J. Orlin, A. Tiwari, "A greedy genetic algorithm for the quadratic assignment problem",
2000 (crossing).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from torchgw.couplings.rounding import make_feasible
from torchgw.diagnostics.evidence import Basin
from torchgw.kernels import LOG2E
from torchgw.kernels.logsumexp import flush_small
from torchgw.kernels.sampling import draw
from torchgw.problem.problem import StoredProblem
from torchgw.runtime.threads import threads_for
from torchgw.runtime.transfer import to_device, to_host
from torchgw.search.anneal import SAME_PLAN
from torchgw.search.candidate import Candidate, is_as_low
from torchgw.search.crossing import CROSSED, Entrant, energy_or_inf, improve_by_offspring
from torchgw.search.full_starts import PRODUCT
from torchgw.search.views import COSTLY, FEW_PAIRS, VIEWS, SpaceGraph, plan_from_cost
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.solvers.assignment import SPARSE, AssignmentProblem, Cross, plan_of_order
from torchgw.solvers.entropic import STEPS, BatchScore, epsilon_levels, make_score, product_energy, proximal_steps
from torchgw.solvers.warm_start import WarmStart

COST, EVERY = "linear cost", "all permutations"
BLURRED = "end blurred in part"
MADE = {CROSSED, BLURRED, EVERY}  # by no view
ROUND = (5, 10, 25)  # proximal steps
AGAIN_HOT, AGAIN_COLD, AGAIN_STEPS = 0.03, 0.01, 20
BLURRED_SHARES, BLURRED_HOPS, MOST_BLURRED, LEAST_PAID = (0.02, 0.05), 3, 0.6, 0.01
STALE, AGREEING, SAME_ENERGY = 3, 4, 1e-6
NUMBER = "0123456789."  # ends the names of views that differ in one alone
MOST_TRIED = 7  # points of which all permutations are tried
DIRECT_PAIRS = 250_000  # up to which the views' own plans are made sharp, without steps before
APART = 0.05  # of the mass, between parents
LISTED = 4
MIXED = 0.01  # of the product plan, in a plan from which steps begin


class ContestEffort(NamedTuple):
    """What is made of ends in each round.

    parents : ends, of which means of all pairs are taken.
    blurred : plans that are blurred in part.
    rounds : at most.
    """

    parents: int
    blurred: int
    rounds: int


EFFORTS = (ContestEffort(5, 8, 10), ContestEffort(5, 6, 5))  # up to so many pairs as these
EFFORT_PAIRS = (10_000, FEW_PAIRS)
SPARSE_EFFORT, LEAST_EFFORT = (
    ContestEffort(5, 3, 5),
    ContestEffort(2, 0, 1),
)  # beyond, where products skip zeros, and where not


def run_contest(problem: StoredProblem, x: SpaceGraph, y: SpaceGraph) -> list[Candidate]:
    """The distinct ends of all plans, the lowest first, at most four; the first knows of the others that views led to.

    Starts are the views: what is made of their ends is none.
    """
    directed = not (x.is_symmetric and y.is_symmetric)
    x, y = replace(x, has_directions=directed), replace(y, has_directions=directed)
    with threads_for(len(x.mass) * len(y.mass)):
        field = _Contest.of(problem, x, y)
        entrants = field.improve(field.run_halving(field.make_first_plans()))
    ended, groups = field.assignment is not None, _group_entrants(entrants, problem.unit)
    level = "full" if problem.has_no_entropy and ended else "contest"
    passed = tuple(_rejected_basin(problem, group, level) for group in groups[LISTED:] if _count_views(group))
    first, *others = [_make_candidate(problem, group, ended) for group in groups[:LISTED]]
    return [replace(first, rejected=passed), *others]


@dataclass(frozen=True)
class _Contest:
    """Where plans compete: no problem of its own, but what its rounds share.

    problem : what was asked for.
    x, y : its spaces as graphs.
    unit : energy of the product plan.
    assignment : the problem between equal masses without linear cost, in float64, None for others.
    score : of plans (B, N, K), all at once or one by one.
    """

    problem: StoredProblem
    x: SpaceGraph
    y: SpaceGraph
    unit: float
    assignment: AssignmentProblem | None
    score: BatchScore

    @classmethod
    def of(cls, problem: StoredProblem, x: SpaceGraph, y: SpaceGraph) -> _Contest:
        p, q, gradient = x.mass, y.mass, problem.gradient
        unit, assignment = float(product_energy(gradient, p, q)), _make_assignment(problem, x, y)
        symmetric = not x.has_directions

        score = make_score(gradient, p)
        if problem.model.is_standard:
            cross = Cross(*((x.D, y.D) if assignment is None else (x.contrast, y.contrast)), symmetric)

            def score_by_products(plans: Tensor, epsilon: float) -> Tensor:
                found = cross(plans)
                found -= found.mean(-1, keepdim=True)
                return found.mul_(2 * LOG2E / epsilon)

            score = score_by_products
        return cls(problem, x, y, unit, assignment, score)

    @cached_property
    def product(self) -> Tensor:
        """The product plan (N, K)."""
        return self.x.mass[:, None] * self.y.mass

    @property
    def is_sparse(self) -> bool:
        """Whether both graphs have few edges."""
        return all(int((side.contrast != 0).sum()) <= SPARSE * side.D.numel() for side in (self.x, self.y))

    @property
    def has_few_pairs(self) -> bool:
        return len(self.x.mass) * len(self.y.mass) <= FEW_PAIRS

    def make_first_plans(self) -> dict[str, Tensor]:
        """The plan of each view that is worth its time."""
        costly = frozenset() if self.has_few_pairs else COSTLY
        watch = self.problem.watch.detach()
        found = {name: view(self.x, self.y, watch) for name, view in VIEWS.items() if name not in costly}
        if self.problem.model.cost is not None:
            found[COST] = self.match_by_cost(self.problem.model.cost)
        return {name: plan for name, plan in found.items() if plan is not None}

    def match_by_cost(self, cost: FactoredCost) -> Tensor | None:
        """The plan (N, K) of the linear cost alone, blurred; None where it is the same for all matches."""
        given = cost.rows(slice(None))
        relative = (given - given.min()).to(self.product)
        mean = float((relative * self.product).sum())
        return plan_from_cost(relative / mean, self.x.mass, self.y.mass) if mean > 0 else None

    def run_halving(self, plans: dict[str, Tensor]) -> list[Entrant]:
        """Where proximal steps take them, the better half of them after each round where points are many, and while
        these differ, what comes of the plans themselves; of a few points also of all permutations."""
        alive = {name: self.mix_with_product(plan) for name, plan in plans.items()}
        epsilons, ends = epsilon_levels(self.unit), list(itertools.accumulate(ROUND))
        for first, last in zip((0, *ends), ends, strict=False):
            alive = dict(zip(alive, self.step_exponents(list(alive.values()), epsilons[first:last]), strict=True))
            if not self.has_few_pairs and last < STEPS:
                alive = self.keep_better_half(alive)
        named = [(name, flush_small(exponent.exp2())) for name, exponent in alive.items()]
        if self.assignment is None:
            return self.finish_plans(named)
        found = self.finish_plans([*named, (PRODUCT, self.product)])
        if len(self.product) <= MOST_TRIED:
            found += self.finish_plans([(EVERY, plan_of_order(self.assignment.best_order()))])
        if self.has_agreement(found) or self.product.numel() > DIRECT_PAIRS:
            return found
        return found + self.finish_plans([(name, plan) for name, plan in plans.items() if name != PRODUCT])

    def has_agreement(self, entrants: list[Entrant]) -> bool:
        """Whether so many ends are the lowest that it is the right one: of many points, from views of two kinds."""
        lowest = _select_lowest(entrants)
        kinds = {entrant.origin.rstrip(NUMBER) for entrant in lowest}
        return len(lowest) >= AGREEING if self.has_few_pairs else len(kinds) >= 2

    def step_exponents(self, exponents: list[Tensor], epsilons: list[float]) -> list[Tensor]:
        """Proximal steps on all plans at once, or where points are many one by one."""
        watch, masses = self.problem.watch.detach(), (self.x.mass, self.y.mass)
        batches = [exponents] if self.has_few_pairs else [[each] for each in exponents]
        return [
            each
            for batch in batches
            for each in proximal_steps(self.score, torch.stack(batch), *masses, epsilons, watch)
        ]

    def keep_better_half(self, alive: dict[str, Tensor]) -> dict[str, Tensor]:
        """The lower half by energy, and the product plan's in any case."""
        found = to_host(*(self.problem.value(flush_small(exponent.exp2())) for exponent in alive.values()))
        energies = dict(zip(alive, map(float, found), strict=True))
        kept = sorted(alive, key=energies.__getitem__)[: math.ceil(len(alive) / 2)]
        return {name: exponent for name, exponent in alive.items() if name in kept or name == PRODUCT}

    def finish_plans(self, plans: list[tuple[str, Tensor]]) -> list[Entrant]:
        """What comes of plans (N, K), by their origins, on the marginals, made sharp where that is an assignment."""
        names = [name for name, _ in plans]
        if self.assignment is not None:
            p = torch.full((len(self.x.mass),), 1 / len(self.x.mass), dtype=torch.float64)
            here = to_host(*(plan.double() for _, plan in plans))
            return [
                Entrant(name, *self.assignment.find_optimum(make_feasible(plan, p, p)))
                for name, plan in zip(names, here, strict=True)
            ]
        ends = [make_feasible(plan, self.x.mass, self.y.mass) for _, plan in plans]
        energies = map(float, to_host(*map(self.problem.value, ends)))
        return list(map(Entrant, names, ends, energies))

    def improve(self, entrants: list[Entrant]) -> list[Entrant]:
        """The ends, and those of what is made of the lowest distinct ones, until that betters none of them: means of
        pairs, which keep what both agree on, and plans that are blurred again where they cost most."""
        settled = self.has_agreement(entrants)
        if settled and not self.has_few_pairs:
            return sorted(entrants, key=energy_or_inf)
        pairs = self.product.numel()
        last = SPARSE_EFFORT if self.is_sparse else LEAST_EFFORT
        effort = next((each for each, most in zip(EFFORTS, EFFORT_PAIRS, strict=True) if pairs <= most), last)
        epsilons = epsilon_levels(self.unit, AGAIN_HOT, AGAIN_COLD, AGAIN_STEPS)

        def make_offspring(fresh: list[tuple[Entrant, Entrant]], lowest: list[Entrant]) -> list[Entrant]:
            means = [self._to_device((one.plan + other.plan) / 2) for one, other in fresh]
            blurred = [
                self.blur_costly_rows(self._to_device(lowest[each // 2 % len(lowest)].plan))
                for each in range(effort.blurred)
            ]
            if self.problem.watch.should_skip():
                return []
            if self.assignment is None:
                means = self.step_plans(means, epsilons)
            found = self.finish_plans([(CROSSED, plan) for plan in means])
            return found + self.finish_plans([(BLURRED, plan) for plan in self.step_plans(blurred, epsilons)])

        return improve_by_offspring(
            entrants, effort.parents, effort.rounds, 1 if settled else STALE, 0.0, APART, make_offspring
        )

    @cached_property
    def adjacency_mask(self) -> Tensor:
        """Which points of X have edges between them (N, N), on the host."""
        return to_host(self.x.weights != 0)[0]

    def step_plans(self, plans: list[Tensor], epsilons: list[float]) -> list[Tensor]:
        """Where steps from plans end."""
        exponents = self.step_exponents([self.mix_with_product(plan) for plan in plans], epsilons) if plans else []
        return [flush_small(each.exp2()) for each in exponents]

    def mix_with_product(self, plan: Tensor) -> Tensor:
        """Exponents (N, K) of a plan with a little of the product plan, from which steps can go anywhere."""
        return torch.lerp(plan, self.product, MIXED).log2()

    def blur_costly_rows(self, plan: Tensor) -> Tensor:
        """The plan (N, K) with all matches alike around some points, drawn by what they cost."""
        problem, p = self.problem, self.x.mass
        paid = (problem.linearize(plan).rows(slice(None)) * plan).sum(1).clamp_min_(0.0)
        weights, counts = paid + LEAST_PAID * paid.mean(), [max(round(share * len(p)), 1) for share in BLURRED_SHARES]
        which = torch.randint(2, (1,), generator=problem.generator, device=p.device)
        # From a GPU all is read at once, with more points than may be asked for.
        drawn = draw(weights, max(counts) if p.is_cuda else counts[int(which)], problem.generator)
        hops = torch.randint(1, BLURRED_HOPS + 1, (1,), generator=problem.generator, device=p.device)
        which, drawn, hops = to_host(which, drawn, hops)
        drawn = drawn[: counts[int(which)]]
        free = torch.zeros(len(p), dtype=torch.bool).index_fill_(0, drawn, True)
        for _ in range(int(hops)):
            grown = free | self.adjacency_mask[free].any(0)
            if int(grown.sum()) > MOST_BLURRED * len(p):
                break
            free = grown
        at, free = to_device(free.nonzero()[:, 0], p.device), to_device(free, p.device)
        row = torch.where(free, p, 0.0)
        return torch.where(free[:, None], (row / row.sum())[:, None] * plan[at].sum(0), plan)

    def _to_device(self, plan: Tensor) -> Tensor:
        """A plan of the host (N, K) where the problem is, in its precision."""
        return to_device(plan.to(self.product.dtype), self.product.device)


def _make_assignment(problem: StoredProblem, x: SpaceGraph, y: SpaceGraph) -> AssignmentProblem | None:
    """The problem between equal masses, where it is one."""
    p, q = x.mass, y.mass
    equal = len(p) == len(q) and float(p.max()) == float(p.min()) and float(q.max()) == float(q.min())
    if not (equal and problem.model.is_standard):
        return None
    return AssignmentProblem(x.D, y.D, not x.has_directions)


def _select_lowest(entrants: list[Entrant]) -> list[Entrant]:
    """Those that have the lowest energy."""
    lowest = min(map(energy_or_inf, entrants))
    return [entrant for entrant in entrants if entrant.energy <= (1 + SAME_ENERGY) * lowest]


def _group_entrants(entrants: list[Entrant], unit: float) -> list[list[Entrant]]:
    """Those that agree in their energies, and in their plans up to an L1 distance of half the mass; the lowest first,
    in groups and between them."""
    groups: list[list[Entrant]] = []
    for entrant in sorted(entrants, key=energy_or_inf):
        same = (
            group
            for group in groups
            if is_as_low(entrant.energy, group[0].energy, unit)
            and float((entrant.plan - group[0].plan).abs().sum()) <= SAME_PLAN
        )
        found = next(same, None)
        if found is None:
            groups.append([entrant])
        else:
            found.append(entrant)
    return groups


def _count_views(group: list[Entrant]) -> int:
    """How many views led to these ends, each by itself or by steps from it."""
    return len({entrant.origin for entrant in group} - MADE)


def _find_origin(group: list[Entrant]) -> str:
    """What the lowest of these ends came from, or where views led to them as well, of those."""
    return next((entrant.origin for entrant in group if entrant.origin not in MADE), group[0].origin)


def _rejected_basin(problem: StoredProblem, group: list[Entrant], level: str) -> Basin:
    """Ends that are not gone on from, without their difference from the best."""
    matching = to_device(group[0].plan.argmax(1), problem.p.device)
    return Basin(
        energy=group[0].energy,
        count=_count_views(group),
        level=level,
        difference=math.nan,
        origin=_find_origin(group),
        matching=matching,
        shift=torch.full_like(matching, math.nan, dtype=torch.float64),
    )


def _make_candidate(problem: StoredProblem, group: list[Entrant], ended: bool) -> Candidate:
    """The lowest plan of a group as a place to begin."""
    (p, q), count, origin = problem.masses, _count_views(group), _find_origin(group)
    plan = to_device(group[0].plan.to(p.dtype), p.device)
    start = WarmStart(problem.linearize(plan), p.log2(), q.log2(), problem.epsilon)
    start = replace(start, plan=plan) if problem.has_no_entropy else start
    energy = group[0].energy if problem.has_no_entropy else math.inf
    return Candidate(start, plan.argmax(1), energy, count, "full", True, origin=origin, is_local_optimum=ended)

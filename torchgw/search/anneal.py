"""The landmark problem: many starts as one batch, annealed together, and the basins they end in.

Half of the starts are annealed from a temperature at which the product plan is the only optimum, half from a fifth of
it, so that what a start suggests is not lost where contrasts are small. Temperatures are relative to the energy of the
product plan. Plans that agree are one basin; its count says how many starts found it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from torchgw.couplings.rounding import feasible
from torchgw.kernels import LOG2E, small_transport
from torchgw.kernels.dispatch import Workload
from torchgw.kernels.logsumexp import LOWEST_EXPONENT, logsumexp2_
from torchgw.kernels.small_transport import Solve
from torchgw.objective.exact import PairLoss
from torchgw.objective.linearise import Moments, energy, linearise, moments_of
from torchgw.objective.model import Model
from torchgw.options import CoarseOptions
from torchgw.persist.codec import storable
from torchgw.runtime.repeated import Repeated, State, own
from torchgw.runtime.threads import threads_for
from torchgw.runtime.transfer import fetched, sent
from torchgw.search.initial_guesses import SHARPNESS, random_plans, start_costs
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.sinkhorn.loop import cooled, rescale
from torchgw.sinkhorn.scaling import balance, scaled
from torchgw.sinkhorn.sides import Side, log_total, translation
from torchgw.spaces.quantisation import KINDS, Landmarks, along_curves, choose_landmarks
from torchgw.types import DistanceProvider

HOT = (0.5, 0.2, 0.1, 0.05, 0.03)
COLD = (0.1, 0.075, 0.05, 0.04, 0.03)
COLDEST = 0.005
COOLING_STEPS = 6
KEPT, SMALL_KEPT = 2, 4
SAME_PLAN = 0.5
RANDOM = 8  # starts to a random plan beside them, where a marginal may give way
FIRST_ITERATIONS = 20
SEARCH_STEPS = (4, 8)
COOLING = (4, 10)
NEAR = 2.0  # of the lowest energy: what is left behind above it
ALL = "all points"  # what landmarks are where points are few
MOST_TIMES = 30  # as many starts, where points are few: what the default landmarks are to the two points of a space


@storable
@dataclass(frozen=True)
class Solved:
    """A solved problem between landmarks.

    source, target : the landmarks.
    plan : (L, L').
    f, g : base-2 potentials (L,), (L',) of its uncentred score.
    epsilon : what they were solved at.
    """

    source: Landmarks
    target: Landmarks
    plan: Tensor
    f: Tensor
    g: Tensor
    epsilon: float


@storable
@dataclass(frozen=True)
class CoarseBasin(Solved):
    """One local optimum of a landmark problem.

    energy : F without its entropy.
    count : starts that ended in it.
    """

    energy: float
    count: int


@dataclass(frozen=True)
class Batch:
    """Problems that are annealed together.

    plan : (B, L, L').
    f, g : base-2 potentials (B, L), (B, L').
    epsilon : temperatures (B,).
    """

    plan: Tensor
    f: Tensor
    g: Tensor
    epsilon: Tensor

    def __getitem__(self, index: Tensor) -> Batch:
        return Batch(self.plan[index], self.f[index], self.g[index], self.epsilon[index])

    def kept(self) -> Batch:
        """The same in memory of its own, where steps from a graph would write over it."""
        plan, f, g = own(self.plan, self.f, self.g)
        return Batch(plan, f, g, self.epsilon)


@dataclass(frozen=True)
class LandmarkProblem:
    """The objective between landmarks, for batches of plans (B, L, L').

    x, y : landmarks with their masses and distances.
    model : of the landmarks.
    loss : of their stored distances.
    linear : beta M + P between them, or None.
    solve : of batches of linear problems under hard marginals.
    """

    x: Landmarks
    y: Landmarks
    model: Model
    loss: PairLoss
    linear: FactoredCost | None
    solve: Solve

    @classmethod
    def of(cls, x: Landmarks, y: Landmarks, model: Model, backend: str = "eager") -> LandmarkProblem:
        """``model`` is that of all points."""
        small = model.taken(x.index, y.index, x.mass, y.mass)
        loss = PairLoss.of(model.loss, x.distances, y.distances)
        workload = Workload(x.mass.device, x.distances.dtype, (len(x.mass), len(y.mass)))
        solve = small_transport.choose(backend, workload).function.solve
        return cls(x, y, small, loss, small.linear(x.distances.dtype), solve)

    @cached_property
    def valued(self) -> Repeated:
        """Plans (B, L, L') and their energies, for ``True`` rounded, in place, onto the masses."""
        kernels = "valued", self.linear is None, self.loss.symmetric, self.model.marginals
        return Repeated(self._value, kernels=kernels)

    def _value(self, rounds: bool, plans: Tensor) -> tuple[State, Tensor]:
        return (self.feasible(plans) if rounds else plans,), self.energies(plans)

    @cached_property
    def height(self) -> Tensor:
        """The product plan's energy (), float64, which temperatures are relative to; 1 where that is zero, and no plan
        is lower."""
        # Energies of small masses are almost all linear cost, whose weight divides the costs beside epsilon.
        found = self.valued(False, self.product[None]).seen[0].double().abs() / max(float(self.model.weight(1.0)), 1.0)
        return torch.where(found > torch.finfo(self.x.mass.dtype).tiny, found, 1.0)

    @property
    def unit(self) -> float:
        """Its number."""
        return float(self.height)

    @cached_property
    def shares(self) -> tuple[Tensor, Tensor]:
        """The masses (L,), (L'), of sum one."""
        return self.x.mass / self.x.mass.sum(), self.y.mass / self.y.mass.sum()

    @cached_property
    def product(self) -> Tensor:
        """The product plan (L, L') of mass one."""
        p, q = self.shares
        return p[:, None] * q

    @cached_property
    def logs(self) -> tuple[Tensor, Tensor]:
        """Base-2 logarithms of the masses."""
        return self.x.mass.log2(), self.y.mass.log2()

    @cached_property
    def balanced_levels(self) -> Repeated:
        """Plans, potentials, their epsilon and the next (plan, f, g, epsilon, epsilon), under hard marginals, to those
        at the next; the kind is so many linearisations, each solved by so many iterations."""
        _ = self.logs  # made before any graph that uses them
        return Repeated(self._level, kernels=("landmarks", self.solve, self.linear is None, self.loss.symmetric))

    def _level(self, kind: tuple[int, int], *state: Tensor) -> tuple[State, Tensor]:
        (n_outer, n_inner), (plan, f, g, before, epsilon) = kind, state
        ratio = (before / epsilon)[:, None]
        f, g = (rescale(side, own, ratio) for side, own in zip((f, g), self.logs, strict=True))
        for _ in range(n_outer):
            cost = linearise(self.model, self.loss.cost(plan, *self.model.masses), self.linear)
            plan, f, g = self.solve(cost.stored_score(epsilon), *self.logs, f, g, n_inner)
        return (plan, f, g, before, epsilon), epsilon

    def first_sides(self) -> tuple[Side, Side]:
        """Sides of a start's linear problem, which has no scale of its own to relax a marginal by."""
        total = self.model.marginals.total
        p, q = self.logs if total else (share.log2() for share in self.shares)
        return Side(p, total=total), Side(q, total=total)

    def linearised(self, plans: Tensor, epsilon: Tensor) -> tuple[Tensor, Side, Side]:
        """Scores (B, L, L') of plans at temperatures (B,), and the sides that belong to them."""
        model, rows, columns = self.model, plans.sum(-1), plans.sum(-2)
        cost = self.loss.cost(plans, rows, columns)
        moments = moments_of(model, cost, self.linear, plans, rows, columns) if model.marginals.free_mass else None
        cost = linearise(model, cost, self.linear, moments)
        sides = model.sides_of(*self.logs, epsilon, *cost.offsets(epsilon))
        return cost.stored_score(epsilon), *sides

    def feasible(self, plans: Tensor) -> Tensor:
        """Plans (B, L, L') rounded, in place, onto the masses, where these are the marginals."""
        return feasible(plans, self.x.mass, self.y.mass) if self.model.fixed else plans

    def moments(self, plans: Tensor) -> Moments:
        """Of plans (B, L, L'), with the marginals that they have."""
        rows, columns = plans.sum(-1), plans.sum(-2)
        return moments_of(self.model, self.loss.cost(plans, rows, columns), self.linear, plans, rows, columns)

    def energies(self, plans: Tensor) -> Tensor:
        """F (B,) without its entropy; never below zero, as rounding can be."""
        return energy(self.model, self.moments(plans)).clamp_min(0.0)


def coarse_basins(
    source: DistanceProvider,
    target: DistanceProvider,
    p: Tensor,
    q: Tensor,
    model: Model,
    epsilon: float,
    options: CoarseOptions,
    generator: torch.Generator,
    first: tuple[Tensor | None, Tensor | None] = (None, None),
    backend: str = "eager",
) -> dict[str, list[CoarseBasin]]:
    """The basins of each kind of landmarks, lowest energy first; masses p, q in the dtype of the spaces.

    One kind is enough where landmarks are all points, and where points lie on curves that it stands for and one of its
    basins stands out.
    """
    largest = max(len(p), len(q))
    small = largest <= options.n_landmarks
    # Where the landmarks are all points, starts cost little, and their problem is the whole problem.
    times = min(max(options.n_landmarks // largest, 1), MOST_TIMES)
    count = len(KINDS) * options.n_starts * times if small else options.n_starts
    kept = (SMALL_KEPT if small else KEPT) * options.n_basins
    found: dict[str, list[CoarseBasin]] = {}
    named = model.points or (None, None)
    # A GPU has the last kinds side by side, for which it waits once.
    for kinds in (KINDS[:1], KINDS[1:]) if p.is_cuda else [(kind,) for kind in KINDS]:
        problems = []
        for kind in kinds:
            x = choose_landmarks(source, p, kind, options.n_landmarks, generator, first[0], named[0])
            y = choose_landmarks(target, q, kind, options.n_landmarks, generator, first[1], named[1])
            problems.append(LandmarkProblem.of(x, y, model, backend))
        with threads_for(count * len(x.index) * len(y.index)):
            basins = basins_of_problems(problems, epsilon, count, kept, generator)
        if small:
            return {ALL: basins[0]}
        found |= zip(kinds, basins, strict=True)
        apart = stands_out([basin.energy for basin in basins[0]], NEAR)
        if kinds[0] == KINDS[0] and apart and along_curves([(x, p), (y, q)]):
            break
    return found


def landmark_basins(
    problem: LandmarkProblem, epsilon: float, n_starts: int, n_kept: int, generator: torch.Generator
) -> list[CoarseBasin]:
    """The distinct optima of one landmark problem, lowest energy first, at most ``n_kept``."""
    return basins_of_problems([problem], epsilon, n_starts, n_kept, generator)[0]


def basins_of_problems(
    problems: Sequence[LandmarkProblem], epsilon: float, n_starts: int, n_kept: int, generator: torch.Generator
) -> list[list[CoarseBasin]]:
    """Those of several problems, whose plans come to the host together."""
    searched = [_searched(problem, epsilon, max(n_starts - 1, 1), generator) for problem in problems]
    looks = [
        (batch.plan, problem.valued(False, batch.plan).seen) for problem, batch in zip(problems, searched, strict=True)
    ]
    groups, units = grouped(looks, n_kept, [problem.height for problem in problems])
    begun = []
    for problem, batch, group, unit in zip(problems, searched, groups, units, strict=True):
        kept, counts = [each[0] for each in group.groups], [len(each) for each in group.groups]
        if batch.plan.is_cuda:  # as many of every problem, whose kernels are warm then
            missing = n_kept - len(kept)
            kept, counts = kept + kept[:1] * missing, counts + [0] * missing
        batch = batch[sent(torch.tensor(kept), batch.plan.device)]
        begun.append((problem, batch, counts, max(COLD[-1] * unit, epsilon), max(epsilon, COLDEST * unit)))
    return cooled_basins(begun, n_kept)


def _searched(problem: LandmarkProblem, epsilon: float, count: int, generator: torch.Generator) -> Batch:
    """The product plan and `first_guesses`, annealed to the last of the temperatures."""
    batch, dtype = first_guesses(problem, count, generator), problem.x.mass.dtype
    shares = torch.tensor([HOT, COLD], dtype=torch.float64)[torch.arange(len(batch.plan)) % 2].T.contiguous()
    for step in (problem.height * sent(shares, batch.plan.device)).to(dtype).clamp_min_(epsilon):
        batch = annealed_batch(problem, batch, step, *SEARCH_STEPS)
    return batch


def cooled_basins(
    begun: Sequence[tuple[LandmarkProblem, Batch, list[int], float, float]], n_kept: int
) -> list[list[CoarseBasin]]:
    """What plans become at another temperature, of each problem lowest energy first, at most ``n_kept``.

    ``begun`` : problems, plans, how many starts had ended in each, their temperature, and that which they cool to.
    """
    ends, looks = [], []
    for problem, batch, _, now, epsilon in begun:
        now = float(torch.tensor(now, dtype=batch.epsilon.dtype))  # as it was annealed
        for fall in range(1, COOLING_STEPS + 1):
            level = torch.full_like(batch.epsilon, cooled(now, epsilon, fall / COOLING_STEPS))
            batch = annealed_batch(problem, batch, level, *COOLING)
        ended, batch = problem.valued(True, batch.plan), batch.kept()
        plans, values = own(ended.after[0], ended.seen)
        ends.append((plans, batch))
        looks.append((plans, values))
    found = []
    for (problem, _, counts, _, epsilon), (plans, batch), group in zip(
        begun, ends, grouped(looks, n_kept)[0], strict=True
    ):
        found.append(
            [
                CoarseBasin(
                    problem.x, problem.y, plans[i], batch.f[i], batch.g[i], epsilon, group.energies[i],
                    sum(counts[j] for j in each),
                )
                for each in group.groups
                for i in each[:1]
            ]
        )  # fmt: skip
    return found


def first_guesses(problem: LandmarkProblem, count: int, generator: torch.Generator) -> Batch:
    """The product plan, the plans of ``count`` start costs and, where a marginal may give way, random ones."""
    x, y = problem.x, problem.y
    score = start_costs(x.distances, y.distances, *problem.shares, count, generator).mul_(-SHARPNESS * LOG2E)
    f, g = (side.expand(count, -1) for side in problem.logs)
    row, column = problem.first_sides()
    if row.hard and column.hard:
        plan, _, _ = problem.solve(score, row.log_mass, column.log_mass, f, g, FIRST_ITERATIONS)
    else:
        plan, _, _ = _solve(score, row, column, f, g, FIRST_ITERATIONS)
    plans = [problem.product[None], plan]
    if not problem.model.fixed:
        plans.append(random_plans(problem.product, count // RANDOM, generator))
    return at_rest(problem, torch.cat(plans), 1.0)


def at_rest(problem: LandmarkProblem, plans: Tensor, epsilon: float) -> Batch:
    """Plans (B, L, L') whose potentials are not known yet."""
    f, g = (side.expand(len(plans), -1) for side in problem.logs)
    return Batch(plans, f, g, plans.new_full((len(plans),), epsilon))


def annealed_batch(problem: LandmarkProblem, batch: Batch, epsilon: Tensor, n_outer: int, n_inner: int) -> Batch:
    """``n_outer`` linearisations at temperatures ``epsilon`` (B,), each with ``n_inner`` Sinkhorn iterations; in memory
    that the next call may write over, see `Batch.kept`."""
    if problem.model.fixed:
        state = batch.plan, batch.f, batch.g, batch.epsilon, epsilon
        plan, f, g = problem.balanced_levels((n_outer, n_inner), *state).after[:3]
        return Batch(plan, f, g, epsilon)
    ratio, (log_p, log_q) = (batch.epsilon / epsilon)[:, None], problem.logs
    f, g, plan = rescale(batch.f, log_p, ratio), rescale(batch.g, log_q, ratio), batch.plan
    for _ in range(n_outer):
        score, row, column = problem.linearised(plan, epsilon)
        f, g = row.settled(plan.sum(-1), f), column.settled(plan.sum(-2), g)
        plan, f, g = _solve(score, row, column, f, g, n_inner)
    return Batch(plan, f, g, epsilon)


def _solve(score: Tensor, row: Side, column: Side, f: Tensor, g: Tensor, n_iter: int) -> tuple[Tensor, Tensor, Tensor]:
    """A half-step of each side in the log domain, the rest by scaling, where a side is not hard; plans and their
    potentials."""
    if column.relaxed:
        f = row.potential(logsumexp2_(score + g[..., None, :], -1))
    g = column.potential(logsumexp2_(score + f[..., :, None], -2))
    softmin = logsumexp2_(score + g[..., None, :], -1)
    f = row.potential(softmin)
    if row.relaxed or column.relaxed:
        t, s = translation(row, column, f, g, log_total(f + softmin))
        f, g = f + t, g + s
    kernel = (score + f[..., :, None]).add_(g[..., None, :]).clamp_min_(LOWEST_EXPONENT).exp2_()
    u, v = balance(kernel, row, column, f, g, n_iter - 1)
    plan, f, g = scaled(kernel, u, v), f + u.log2(), g + v.log2()
    if row.relaxed or column.relaxed:
        t, s = translation(row, column, f, g, plan.sum((-1, -2))[..., None].double().log2())
        plan, f, g = plan * (t + s).exp2()[..., None], f + t, g + s
    return plan, f, g


class Grouped(NamedTuple):
    """Plans that are one basin.

    groups : their places in the batch, lowest energy first in and between groups.
    energies : of all plans (B,), infinite where they are no numbers.
    """

    groups: list[list[int]]
    energies: list[float]


def basins_of(plans: Tensor, energy: Tensor, most: int) -> Grouped:
    """At most so many groups of plans (B, N, K) that agree up to an L1 distance of half their mass; of one problem,
    with counts, where `torchgw.batched.solve` has many and must not wait for each."""
    return grouped([(plans, energy)], most)[0][0]


def grouped(
    looks: Sequence[tuple[Tensor, Tensor]], most: int, numbers: Sequence[Tensor] = ()
) -> tuple[list[Grouped], list[float]]:
    """`basins_of` plans and energies of several problems, and other ``numbers`` (), in one transfer from a GPU."""
    flats, tables, energies = list[Tensor](), list[Tensor](), list[Tensor]()
    for plans, values in looks:
        flat = plans.flatten(1)
        flats.append(flat / flat.sum(1, keepdim=True).clamp_min(torch.finfo(flat.dtype).tiny))
        energies.append(torch.nan_to_num(values, nan=torch.inf))
        tables += [torch.cdist(flats[-1], flats[-1], p=1.0)] if flat.is_cuda else []
    read = list(fetched(*energies, *numbers, *tables))
    energies, read = read[: len(looks)], read[len(looks) :]
    others, tables = [float(each) for each in read[: len(numbers)]], read[len(numbers) :]
    found = []
    for place, (flat, values) in enumerate(zip(flats, energies, strict=True)):
        rest, groups = torch.argsort(values).tolist(), list[list[int]]()
        while rest and len(groups) < most:
            first = rest[0]
            same = (tables[place][first] if tables else (flat - flat[first]).abs().sum(1)).le(SAME_PLAN).tolist()
            same[first] = True  # a plan that is no number, too
            groups.append([i for i in rest if same[i]])
            rest = [i for i in rest if not same[i]]
        found.append(Grouped(groups, values.tolist()))
    return found, others


def stands_out(energies: Sequence[float], share: float) -> bool:
    """Whether the first energy of distinct basins, the lowest first, is well below another one's; one that is alone is
    below none."""
    return len(energies) > 1 and energies[1] > share * energies[0]

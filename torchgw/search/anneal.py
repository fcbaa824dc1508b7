"""The landmark problem: many starts as one batch, annealed together, and the basins they end in.

Half of the starts are annealed from a temperature at which the product plan is the only optimum, half from a fifth of
it, so that what a start suggests is not lost where contrasts are small. Temperatures are relative to the energy of the
product plan. Plans that agree are one basin; its count says how many starts found it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from torchgw.couplings.rounding import make_feasible
from torchgw.kernels import LOG2E, small_transport
from torchgw.kernels.dispatch import Workload
from torchgw.kernels.logsumexp import LOWEST_EXPONENT, logsumexp2_
from torchgw.kernels.small_transport import Solve
from torchgw.objective.exact import PairLoss
from torchgw.objective.linearise import Moments, energy, linearise, moments_of
from torchgw.objective.model import Model
from torchgw.options import CoarseOptions
from torchgw.persist.codec import storable
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.runtime.threads import threads_for
from torchgw.runtime.transfer import to_device, to_host
from torchgw.search.initial_guesses import SHARPNESS, draw_ahead, draw_random_plans, make_start_costs
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.sinkhorn.loop import interpolate_epsilon, rescale
from torchgw.sinkhorn.scaling import balance, scale_plans
from torchgw.sinkhorn.sides import MarginalConstraint, log_total, translation
from torchgw.spaces.coarsening import KINDS, Coarsening, choose_landmarks, coverage, unlikeness
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
class LandmarkSolution:
    """A solved problem between landmarks.

    source, target : the landmarks.
    plan : (L, L').
    f, g : base-2 potentials (L,), (L',) of its uncentred score.
    epsilon : what they were solved at.
    """

    source: Coarsening
    target: Coarsening
    plan: Tensor
    f: Tensor
    g: Tensor
    epsilon: float


@storable
@dataclass(frozen=True)
class CoarseBasin(LandmarkSolution):
    """One local optimum of a landmark problem.

    energy : F without its entropy.
    count : starts that ended in it.
    """

    energy: float
    count: int


class LandmarkBasins(NamedTuple):
    """What the search between landmarks found.

    kinds : the basins of each kind of landmarks, lowest energy first.
    coverage, unlikeness : of the first kind's landmarks, of the space where it is larger: they grow with dimension and
        lack of structure.
    """

    kinds: dict[str, list[CoarseBasin]]
    coverage: float
    unlikeness: float


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


@dataclass(frozen=True)
class LandmarkProblem:
    """The objective between landmarks, for batches of plans (B, L, L').

    x, y : landmarks with their masses and distances.
    model : of the landmarks.
    loss : of their stored distances.
    linear : beta M + P between them, or None.
    solve : of batches of linear problems under hard marginals.
    """

    x: Coarsening
    y: Coarsening
    model: Model
    loss: PairLoss
    linear: FactoredCost | None
    solve: Solve

    @classmethod
    def of(cls, x: Coarsening, y: Coarsening, model: Model, backend: str = "eager") -> LandmarkProblem:
        """``model`` is that of all points."""
        small = model.restrict(x.medoids, y.medoids, x.mass, y.mass)
        loss = PairLoss.of(model.loss, x.distances, y.distances)
        workload = Workload(x.mass.device, x.distances.dtype, (len(x.mass), len(y.mass)))
        solve = small_transport.choose(backend, workload).function.solve
        return cls(x, y, small, loss, small.linear(x.distances.dtype), solve)

    @property
    def without_rows(self) -> LandmarkProblem:
        """The same without what landmarks are to other points, and without what it has cached."""
        return replace(self, x=self.x.alone, y=self.y.alone)

    @cached_property
    def product_energy(self) -> Tensor:
        """The product plan's energy (), float64, which temperatures are relative to; 1 where that is zero, and no plan
        is lower."""
        return compute_product_energy(self.without_rows)

    @property
    def temperature_unit(self) -> float:
        """Its number."""
        return float(self.product_energy)

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
    def log_masses(self) -> tuple[Tensor, Tensor]:
        """Base-2 logarithms of the masses."""
        return self.x.mass.log2(), self.y.mass.log2()

    def make_start_constraints(self) -> tuple[MarginalConstraint, MarginalConstraint]:
        """Sides of a start's linear problem, which has no scale of its own to relax a marginal by."""
        total = self.model.marginals.total
        p, q = self.log_masses if total else (share.log2() for share in self.shares)
        return MarginalConstraint(p, total=total), MarginalConstraint(q, total=total)

    def linearise_plans(self, plans: Tensor, epsilon: Tensor) -> tuple[Tensor, MarginalConstraint, MarginalConstraint]:
        """Scores (B, L, L') of plans at temperatures (B,), and the sides that belong to them."""
        model, rows, columns = self.model, plans.sum(-1), plans.sum(-2)
        cost = self.loss.cost(plans, rows, columns)
        moments = moments_of(model, cost, self.linear, plans, rows, columns) if model.marginals.free_mass else None
        cost = linearise(model, cost, self.linear, moments)
        sides = model.constraints_from_logs(*self.log_masses, epsilon, *cost.offsets(epsilon))
        return cost.stored_score(epsilon), *sides

    def round_plans(self, plans: Tensor) -> Tensor:
        """Plans (B, L, L') rounded, in place, onto the masses, where these are the marginals."""
        return make_feasible(plans, self.x.mass, self.y.mass) if self.model.has_hard_marginals else plans

    def moments(self, plans: Tensor) -> Moments:
        """Of plans (B, L, L'), with the marginals that they have."""
        rows, columns = plans.sum(-1), plans.sum(-2)
        return moments_of(self.model, self.loss.cost(plans, rows, columns), self.linear, plans, rows, columns)

    def energies(self, plans: Tensor) -> Tensor:
        """F (B,) without its entropy; never below zero, as rounding can be."""
        return energy(self.model, self.moments(plans)).clamp_min(0.0)


def find_coarse_basins(
    spaces: tuple[DistanceProvider, DistanceProvider],
    masses: tuple[Tensor, Tensor],
    model: Model,
    epsilon: float,
    options: CoarseOptions,
    generator: torch.Generator,
    first: tuple[Tensor | None, Tensor | None] = (None, None),
    backend: str = "eager",
) -> LandmarkBasins:
    """The basins of each kind of landmarks; masses (N,), (K,) in the dtype of the spaces.

    One kind is enough where landmarks are all points, and where one of its basins stands out.
    """
    largest = max(map(len, masses))
    small = largest <= options.n_landmarks
    # Where the landmarks are all points, starts cost little, and their problem is the whole problem.
    times = min(max(options.n_landmarks // largest, 1), MOST_TIMES)
    count = len(KINDS) * options.n_starts * times if small else options.n_starts
    kept = (SMALL_KEPT if small else KEPT) * options.n_basins
    found, read = list[list[CoarseBasin]](), tuple[Tensor, ...]()
    for kinds in (KINDS[:1], KINDS[1:]):  # side by side, as a GPU waits once then
        problems = list[LandmarkProblem]()
        for kind in kinds:
            sides = zip(spaces, masses, first, model.points or (None, None), strict=True)
            x, y = (
                choose_landmarks(space, mass, kind, options.n_landmarks, generator, begin, points)
                for space, mass, begin, points in sides
            )
            problems.append(LandmarkProblem.of(x, y, model, backend))
        measures = [] if read else _measure_spaces(tuple(zip((x, y), masses, strict=True)))
        with threads_for(count * x.count * y.count):
            begun, told = begin_searches(problems, epsilon, count, kept, generator, measures)
            found += cool_basins(begun, kept)
        read = read or told
        if small or is_clear_minimum([basin.energy for basin in found[0]], NEAR):
            break
    named_kinds = dict(zip([ALL] if small else KINDS, found, strict=False))
    return LandmarkBasins(named_kinds, max(map(float, read[::2])), max(map(float, read[1::2])))


@as_cuda_graph()
def _measure_spaces(sides: tuple[tuple[Coarsening, Tensor], ...]) -> list[Tensor]:
    """The coverage and the unlikeness of each space."""
    return [measure(*side) for side in sides for measure in (coverage, unlikeness)]


def find_landmark_basins(
    problem: LandmarkProblem, epsilon: float, n_starts: int, n_kept: int, generator: torch.Generator
) -> list[CoarseBasin]:
    """The distinct optima of one landmark problem, lowest energy first, at most ``n_kept``."""
    return cool_basins(begin_searches([problem], epsilon, n_starts, n_kept, generator)[0], n_kept)[0]


def begin_searches(
    problems: Sequence[LandmarkProblem],
    epsilon: float,
    n_starts: int,
    n_kept: int,
    generator: torch.Generator,
    asked: Sequence[Tensor] = (),
) -> tuple[list[CoolingState], tuple[Tensor, ...]]:
    """Where starts of several problems end, at most ``n_kept`` plans of each, and what is ``asked`` for on the host,
    where landmarks of all come with it."""
    count = max(n_starts - 1, 1)
    # On a GPU the few points come to the host: eigenvectors of so small a matrix take it longer.
    few = [
        (each.x.distances, each.y.distances, *each.shares, each.product_energy, *draw_ahead(count, generator))
        for each in problems
    ]
    read, width = to_host(*(tensor for each in few for tensor in each), *asked), len(few[0])
    begun = []
    for place, problem in enumerate(problems):
        DX, DY, p, q, height, *ahead = read[place * width : (place + 1) * width]
        costs, unit = make_start_costs(DX, DY, p, q, count, generator, *ahead), float(height)
        batch, looks = _search_starts(problem, costs, unit, epsilon, n_kept, generator)
        ends = max(COLD[-1] * unit, epsilon), max(epsilon, COLDEST * unit)
        begun.append(CoolingState(problem, batch, looks.firsts, *ends, looks.label))
    return begun, read[width * len(problems) :]


def _search_starts(
    problem: LandmarkProblem, costs: Tensor, unit: float, epsilon: float, n_kept: int, generator: torch.Generator
) -> tuple[Batch, GroupLabels]:
    """The product plan, the plans of start costs and, where a marginal may give way, random ones, annealed to the last
    of the temperatures, and at most ``n_kept`` groups of them; ``unit`` is `LandmarkProblem.temperature_unit`."""
    random = (
        None
        if problem.model.has_hard_marginals
        else draw_random_plans(problem.product, len(costs) // RANDOM, generator)
    )
    size, mass = 1 + len(costs) + (0 if random is None else len(random)), problem.x.mass
    shares = torch.tensor([HOT, COLD], dtype=torch.float64)[torch.arange(size) % 2].T.contiguous()
    steps = (unit * shares).to(mass.dtype).clamp_min_(epsilon)
    return _anneal_guesses(
        problem.without_rows, to_device(costs, mass.device), random, to_device(steps, mass.device), n_kept
    )


@as_cuda_graph()
def _anneal_guesses(
    problem: LandmarkProblem, costs: Tensor, random: Tensor | None, steps: Tensor, n_kept: int
) -> tuple[Batch, GroupLabels]:
    batch = make_start_batch(problem, costs, random)
    for step in steps:
        batch = anneal_batch(problem, batch, step, *SEARCH_STEPS)
    return batch, group_plans(batch.plan, problem.energies(batch.plan), n_kept)


@as_cuda_graph()
def compute_product_energy(problem: LandmarkProblem) -> Tensor:
    """`LandmarkProblem.product_energy`."""
    # Energies of small masses are almost all linear cost, whose weight divides the costs beside epsilon.
    found = problem.energies(problem.product[None])[0].double().abs() / max(float(problem.model.weight(1.0)), 1.0)
    return torch.where(found > torch.finfo(problem.x.mass.dtype).tiny, found, 1.0)


class CoolingState(NamedTuple):
    """Plans of a landmark problem that are to be cooled.

    problem, batch : where they are; ``places`` says which of the batch.
    first_epsilon, epsilon : their temperature, and that which they cool to.
    label : which of these places each start had ended in, of a batch of starts.
    """

    problem: LandmarkProblem
    batch: Batch
    places: Tensor
    first_epsilon: float
    epsilon: float
    label: Tensor | None = None


def cool_basins(begun: Sequence[CoolingState], n_kept: int) -> list[list[CoarseBasin]]:
    """What plans become at another temperature, of each problem lowest energy first, at most ``n_kept``."""
    ends = []
    for problem, batch, places, now, epsilon, _ in begun:
        now = float(torch.tensor(now, dtype=batch.epsilon.dtype))  # as it was annealed
        falls = [interpolate_epsilon(now, epsilon, fall / COOLING_STEPS) for fall in range(1, COOLING_STEPS + 1)]
        steps = to_device(torch.tensor(falls, dtype=batch.epsilon.dtype), batch.plan.device)
        ends.append(_cool_plans(problem.without_rows, batch, places, steps, n_kept))
    found = []
    groups, labels = fetch_groups(
        [looks for _, looks in ends], [each.label for each in begun if each.label is not None]
    )
    counts = [Counter(label.tolist()) for label in labels] or [Counter[int]()] * len(begun)
    for (problem, *_, epsilon, _), (batch, _), group, starts in zip(begun, ends, groups, counts, strict=True):
        found.append(
            [
                CoarseBasin(
                    problem.x, problem.y, batch.plan[i], batch.f[i], batch.g[i], epsilon, group.energies[i],
                    sum(starts[j] for j in each),
                )
                for each in group.groups
                for i in each[:1]
            ]
        )  # fmt: skip
    return found


@as_cuda_graph()
def _cool_plans(
    problem: LandmarkProblem, batch: Batch, places: Tensor, steps: Tensor, n_kept: int
) -> tuple[Batch, GroupLabels]:
    """The plans at these places of the batch at temperatures (m,) in turn, in the end rounded, and how they compare."""
    batch = batch[places]
    for step in steps:
        batch = anneal_batch(problem, batch, step.expand_as(batch.epsilon), *COOLING)
    batch = replace(batch, plan=problem.round_plans(batch.plan))
    return batch, group_plans(batch.plan, problem.energies(batch.plan), n_kept)


def make_start_batch(problem: LandmarkProblem, costs: Tensor, random: Tensor | None) -> Batch:
    """The product plan, the plans of start costs, and random ones."""
    score, count = costs.mul(-SHARPNESS * LOG2E), len(costs)
    f, g = (side.expand(count, -1) for side in problem.log_masses)
    row, column = problem.make_start_constraints()
    if row.is_hard and column.is_hard:
        plan, _, _ = problem.solve(score, row.log_mass, column.log_mass, f, g, FIRST_ITERATIONS)
    else:
        plan, _, _ = _solve(score, row, column, f, g, FIRST_ITERATIONS)
    plans = [problem.product[None], plan]
    return batch_without_potentials(problem, torch.cat(plans if random is None else [*plans, random]), 1.0)


def batch_without_potentials(problem: LandmarkProblem, plans: Tensor, epsilon: float) -> Batch:
    """Plans (B, L, L') whose potentials are not known yet."""
    f, g = (side.expand(len(plans), -1) for side in problem.log_masses)
    return Batch(plans, f, g, plans.new_full((len(plans),), epsilon))


@as_cuda_graph()
def anneal_batch(problem: LandmarkProblem, batch: Batch, epsilon: Tensor, n_outer: int, n_inner: int) -> Batch:
    """``n_outer`` linearisations at temperatures ``epsilon`` (B,), each with ``n_inner`` Sinkhorn iterations."""
    ratio, (log_p, log_q), model = (batch.epsilon / epsilon)[:, None], problem.log_masses, problem.model
    f, g, plan = rescale(batch.f, log_p, ratio), rescale(batch.g, log_q, ratio), batch.plan
    for _ in range(n_outer):
        if model.has_hard_marginals:
            cost = linearise(model, problem.loss.cost(plan, *model.masses), problem.linear)
            plan, f, g = problem.solve(cost.stored_score(epsilon), log_p, log_q, f, g, n_inner)
            continue
        score, row, column = problem.linearise_plans(plan, epsilon)
        f, g = row.potential_from_sums(plan.sum(-1), f), column.potential_from_sums(plan.sum(-2), g)
        plan, f, g = _solve(score, row, column, f, g, n_inner)
    return Batch(plan, f, g, epsilon)


def _solve(
    score: Tensor, row: MarginalConstraint, column: MarginalConstraint, f: Tensor, g: Tensor, n_iter: int
) -> tuple[Tensor, Tensor, Tensor]:
    """A half-step of each side in the log domain, the rest by scaling, where a side is not hard; plans and their
    potentials."""
    if column.has_divergence:
        f = row.potential(logsumexp2_(score + g[..., None, :], -1))
    g = column.potential(logsumexp2_(score + f[..., :, None], -2))
    softmin = logsumexp2_(score + g[..., None, :], -1)
    f = row.potential(softmin)
    if row.has_divergence or column.has_divergence:
        t, s = translation(row, column, f, g, log_total(f + softmin))
        f, g = f + t, g + s
    kernel = (score + f[..., :, None]).add_(g[..., None, :]).clamp_min_(LOWEST_EXPONENT).exp2_()
    u, v = balance(kernel, row, column, f, g, n_iter - 1)
    plan, f, g = scale_plans(kernel, u, v), f + u.log2(), g + v.log2()
    if row.has_divergence or column.has_divergence:
        t, s = translation(row, column, f, g, plan.sum((-1, -2))[..., None].double().log2())
        plan, f, g = plan * (t + s).exp2()[..., None], f + t, g + s
    return plan, f, g


class PlanGroups(NamedTuple):
    """Plans that are one basin.

    groups : their places in the batch, lowest energy first in and between groups.
    energies : of all plans (B,), infinite where they are no numbers.
    """

    groups: list[list[int]]
    energies: list[float]


class GroupLabels(NamedTuple):
    """Groups of plans (B, N, K), see `group_plans`.

    energies : of theirs (B,), infinite where they are no numbers.
    order : their places (B,), lowest energy first.
    label : the group (B,) that each is in; as many as there are at most for the others.
    firsts : the place of the lowest of each group; a GPU, which does not know how many there are, has the first one's
        again for those that are missing.
    """

    energies: Tensor
    order: Tensor
    label: Tensor
    firsts: Tensor


@as_cuda_graph()
def group_plans(plans: Tensor, energies: Tensor, most: int) -> GroupLabels:
    """At most so many groups of plans (B, N, K) of these energies (B,): each of the lowest plan that is in none, and
    what agrees with it up to an L1 distance of half their mass."""
    energies, size = torch.nan_to_num(energies, nan=torch.inf), len(plans)
    order, flat = torch.argsort(energies), plans.flatten(1)
    flat = (flat / flat.sum(1, keepdim=True).clamp_min(torch.finfo(flat.dtype).tiny))[order]
    left = torch.arange(size, device=flat.device)  # each one's place in the order, beyond all for those in a group
    table, firsts, after = _agreement_table(flat) if flat.is_cuda else None, list[Tensor](), list[Tensor]()
    for _ in range(most):
        first = left.amin(0, keepdim=True)
        if table is not None:
            same = table.index_select(0, first)[0]
        elif int(first) < size:  # a CPU does not need the whole table
            same = (flat - flat[first]).abs().sum(1).le(SAME_PLAN).index_fill(0, first, True)
        else:
            break
        left = left.masked_fill(same, size)
        firsts.append(first)
        after.append(left)
    place, label = torch.cat(firsts), torch.empty_like(order)
    label[order] = (torch.stack(after) < size).sum(0)
    return GroupLabels(energies, order, label, order[torch.where(place < size, place, place[0])])


def _agreement_table(flat: Tensor) -> Tensor:
    """Which plans (B, N K) agree with each, and none that do with one beyond the last: (B + 1, B)."""
    same = torch.cdist(flat, flat, p=1.0).le(SAME_PLAN)
    same.fill_diagonal_(True)  # a plan that is no number agrees with itself, too
    return torch.cat((same, same.new_zeros(1, len(same))))


def group_into_basins(plans: Tensor, energy: Tensor, most: int) -> PlanGroups:
    """Groups of one problem's plans, see `group_plans`, with counts; `torchgw.batched.solve` has many and must not wait
    for each."""
    return fetch_groups([group_plans(plans, energy, most)])[0][0]


def fetch_groups(
    looks: Sequence[GroupLabels], labels: Sequence[Tensor] = ()
) -> tuple[list[PlanGroups], tuple[Tensor, ...]]:
    """The groups of several problems' plans on the host, and other ``labels``, in one transfer from a GPU."""
    read = to_host(*(tensor for each in looks for tensor in each[:3]), *labels)
    found = []
    for place in range(len(looks)):
        energies, order, label = read[3 * place : 3 * place + 3]
        groups: list[list[int]] = [[] for _ in looks[place].firsts]
        for each, group in zip(order.tolist(), label[order].tolist(), strict=True):
            if group < len(groups):
                groups[group].append(each)
        found.append(PlanGroups([group for group in groups if group], energies.tolist()))
    return found, read[3 * len(looks) :]


def is_clear_minimum(energies: Sequence[float], share: float) -> bool:
    """Whether the first energy of distinct basins, the lowest first, is well below another one's; one that is alone is
    below none."""
    return len(energies) > 1 and energies[1] > share * energies[0]

"""The landmark problem: many starts as one batch, annealed together, and the basins they end in.

Half of the starts are annealed from a temperature at which the product plan is the only optimum, half from a fifth of
it, so that what a start suggests is not lost where contrasts are small. Temperatures are relative to the energy of the
product plan. Plans that agree are one basin; its count says how many starts found it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from torchgw.couplings.rounding import make_feasible
from torchgw.kernels import LOG2E, small_transport
from torchgw.kernels.dispatch import Workload
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
from torchgw.sinkhorn.loop import interpolate_epsilon
from torchgw.sinkhorn.scaling import solve_plans
from torchgw.sinkhorn.sides import MarginalConstraint
from torchgw.solvers.entropic import take_steps
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
class CoarseBasin:
    """A solved problem between landmarks, or one local optimum of it.

    source, target : the landmarks.
    plan : (L, L').
    f, g : base-2 potentials (L,), (L',) of its uncentred score.
    epsilon : what they were solved at.
    energy : F without its entropy.
    count : starts that ended in it.
    """

    source: Coarsening
    target: Coarsening
    plan: Tensor
    f: Tensor
    g: Tensor
    epsilon: float
    energy: float = 0.0
    count: int = 0


class Batch(NamedTuple):
    """Problems that are annealed together.

    plan : (B, L, L').
    f, g : base-2 potentials (B, L), (B, L').
    epsilon : temperatures (B,).
    """

    plan: Tensor
    f: Tensor
    g: Tensor
    epsilon: Tensor


@dataclass(frozen=True)
class LandmarkProblem:
    """The objective between landmarks, for batches of plans (B, L, L'): what of a `Problem` CUDA graphs can be captured
    for, which have no generator and no watch.

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
    def shares(self) -> tuple[Tensor, Tensor]:
        """The masses (L,), (L'), of sum one."""
        return self.x.mass / self.x.mass.sum(), self.y.mass / self.y.mass.sum()

    @cached_property
    def product(self) -> Tensor:
        """The product plan (L, L') of mass one."""
        p, q = self.shares
        return p[:, None] * q

    def linearise_plans(
        self, plans: Tensor, epsilon: Tensor, f: Tensor, g: Tensor
    ) -> tuple[Tensor, MarginalConstraint, MarginalConstraint, Tensor, Tensor]:
        """Scores (B, L, L') of plans at temperatures (B,), the sides that belong to them, and warm potentials, from the
        sums of the plans where marginals may give way."""
        marginals = self.model.masses if self.model.has_hard_marginals else (plans.sum(-1), plans.sum(-2))
        cost = linearise(self.model, self.loss.cost(plans, *marginals), self.linear, plans, marginals)
        row, column = self.model.make_constraints(epsilon, cost, plans.dtype)
        if not self.model.has_hard_marginals:
            f, g = row.potential_from_sums(marginals[0], f), column.potential_from_sums(marginals[1], g)
        return cost.stored_score(epsilon), row, column, f, g

    def solve_plans(
        self, score: Tensor, row: MarginalConstraint, column: MarginalConstraint, f: Tensor, g: Tensor, n_iter: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Plans of scores (B, L, L') and their potentials after some iterations from warm ones."""
        if row.is_hard and column.is_hard:
            return self.solve(score, row.log_mass, column.log_mass, f, g, n_iter)
        return solve_plans(score, row, column, f, g, n_iter)

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
) -> tuple[dict[str, list[CoarseBasin]], float, float]:
    """The basins of each kind of landmarks, lowest energy first; masses (N,), (K,) in the dtype of the spaces. And the
    coverage and the unlikeness of the first kind, of the space where it is larger: they grow with dimension and lack
    of structure.

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
    return named_kinds, max(map(float, read[::2])), max(map(float, read[1::2]))


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
        (
            each.x.distances,
            each.y.distances,
            *each.shares,
            compute_product_energy(each.without_rows),
            *draw_ahead(count, generator),
        )
        for each in problems
    ]
    read, width = to_host(*(tensor for each in few for tensor in each), *asked), len(few[0])
    begun = []
    for place, problem in enumerate(problems):
        DX, DY, p, q, height, *ahead = read[place * width : (place + 1) * width]
        costs, unit = make_start_costs(DX, DY, p, q, count, generator, *ahead), float(height)
        random, mass = None, problem.x.mass
        if not problem.model.has_hard_marginals:
            random = draw_random_plans(problem.product, len(costs) // RANDOM, generator)
        size = 1 + len(costs) + (0 if random is None else len(random))
        shares = torch.tensor([HOT, COLD], dtype=torch.float64)[torch.arange(size) % 2].T.contiguous()
        levels = to_device((unit * shares).to(mass.dtype).clamp_min_(epsilon), mass.device)
        batch, looks = _anneal_guesses(problem.without_rows, to_device(costs, mass.device), random, levels, n_kept)
        ends = max(COLD[-1] * unit, epsilon), max(epsilon, COLDEST * unit)
        begun.append(CoolingState(problem, batch, looks.firsts, *ends, looks.label))
    return begun, read[width * len(problems) :]


@as_cuda_graph()
def _anneal_guesses(
    problem: LandmarkProblem, costs: Tensor, random: Tensor | None, levels: Tensor, n_kept: int
) -> tuple[Batch, GroupLabels]:
    """The product plan, the plans of start costs and random ones at temperatures (m, B) in turn, and at most ``n_kept``
    groups of them."""
    f, g = (side.expand(len(costs), -1) for side in problem.model.logs)
    # The linear problem of a start has no scale of its own to relax a marginal by.
    total, shares = problem.model.marginals.total, (share.log2() for share in problem.shares)
    row, column = (MarginalConstraint(side, total=total) for side in (problem.model.logs if total else shares))
    score = costs.mul(-SHARPNESS * LOG2E)
    plans = torch.cat((problem.product[None], problem.solve_plans(score, row, column, f, g, FIRST_ITERATIONS)[0]))
    plans = plans if random is None else torch.cat((plans, random))
    batch = anneal_batch(problem, batch_without_potentials(problem, plans), levels, *SEARCH_STEPS)
    return batch, group_plans(batch.plan, problem.energies(batch.plan), n_kept)


@as_cuda_graph()
def compute_product_energy(problem: LandmarkProblem) -> Tensor:
    """The product plan's energy (), float64, which temperatures are relative to; 1 where that is zero, and no plan is
    lower. The problem comes `without_rows`."""
    # Energies of small masses are almost all linear cost, whose weight divides the costs beside epsilon.
    found = problem.energies(problem.product[None])[0].double().abs() / max(float(problem.model.weight(1.0)), 1.0)
    return torch.where(found > torch.finfo(problem.x.mass.dtype).tiny, found, 1.0)


class CoolingState(NamedTuple):
    """Plans of a landmark problem that are to be cooled.

    problem, batch : where they are; ``places`` says which of the batch.
    first_epsilon, epsilon : their temperature, and that which they cool to.
    label : which of these places each start had ended in (m,).
    """

    problem: LandmarkProblem
    batch: Batch
    places: Tensor
    first_epsilon: float
    epsilon: float
    label: Tensor


def cool_basins(begun: Sequence[CoolingState], n_kept: int) -> list[list[CoarseBasin]]:
    """What plans become at another temperature, of each problem lowest energy first, at most ``n_kept``."""
    ends = []
    for problem, batch, places, first_epsilon, epsilon, _ in begun:
        first = float(torch.tensor(first_epsilon, dtype=batch.epsilon.dtype))  # as it was annealed
        falls = [interpolate_epsilon(first, epsilon, fall / COOLING_STEPS) for fall in range(1, COOLING_STEPS + 1)]
        steps = to_device(torch.tensor(falls, dtype=batch.epsilon.dtype), batch.plan.device)
        ends.append(_cool_plans(problem.without_rows, batch, places, steps, n_kept))
    labels, starts = fetch_labels([labels for _, labels in ends], [each.label for each in begun])
    return [
        [
            CoarseBasin(
                problem.x, problem.y, batch.plan[first], batch.f[first], batch.g[first], epsilon,
                float(label.energies[first]), int(torch.isin(start, torch.tensor([first, *same])).sum()),
            )
            for first, *same in label.groups
        ]
        for (problem, *_, epsilon, _), (batch, _), label, start in zip(begun, ends, labels, starts, strict=True)
    ]  # fmt: skip


@as_cuda_graph()
def _cool_plans(
    problem: LandmarkProblem, batch: Batch, places: Tensor, steps: Tensor, n_kept: int
) -> tuple[Batch, GroupLabels]:
    """The plans at these places of the batch at temperatures (m,) in turn, in the end rounded, and how they compare."""
    batch = anneal_batch(problem, Batch(*(part[places] for part in batch)), steps, *COOLING)
    batch = batch._replace(plan=problem.round_plans(batch.plan))
    return batch, group_plans(batch.plan, problem.energies(batch.plan), n_kept)


def batch_without_potentials(problem: LandmarkProblem, plans: Tensor) -> Batch:
    """Plans (B, L, L') whose potentials are not known yet."""
    f, g = (side.expand(len(plans), -1) for side in problem.model.logs)
    return Batch(plans, f, g, plans.new_ones(len(plans)))


def anneal_batch(problem: LandmarkProblem, batch: Batch, levels: Tensor, n_outer: int, n_inner: int) -> Batch:
    """Plans at temperatures (m,) or (m, B) in turn; see `torchgw.solvers.entropic.take_steps`."""
    each = levels.view(len(levels), -1).expand(-1, len(batch.plan))
    solvers = problem.linearise_plans, problem.solve_plans
    return Batch(*take_steps(*solvers, batch, each, problem.model.logs, n_outer, n_inner))


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

    @property
    def groups(self) -> list[list[int]]:
        """The places in each group, of labels on the host."""
        found: list[list[int]] = [[] for _ in self.firsts]
        for place, label in zip(self.order.tolist(), self.label[self.order].tolist(), strict=True):
            if label < len(found):
                found[label].append(place)
        return [group for group in found if group]


@as_cuda_graph()
def group_plans(plans: Tensor, energies: Tensor, most: int) -> GroupLabels:
    """At most so many groups of plans (B, N, K) of these energies (B,): each of the lowest plan that is in none, and
    what agrees with it up to an L1 distance of half their mass."""
    energies, size = torch.nan_to_num(energies, nan=torch.inf), len(plans)
    order, flat = torch.argsort(energies), plans.flatten(1)
    flat = (flat / flat.sum(1, keepdim=True).clamp_min(torch.finfo(flat.dtype).tiny))[order]
    left = torch.arange(size, device=flat.device)  # each one's place in the order, beyond all for those in a group
    firsts, after = list[Tensor](), list[Tensor]()
    for _ in range(most):
        first = left.amin(0, keepdim=True)
        if not flat.is_cuda and int(first) == size:  # a GPU does not wait to know
            break
        same = (flat - flat.index_select(0, first.clamp_max(size - 1))).abs().sum(1).le(SAME_PLAN)
        left = left.masked_fill(same | (left == first), size)  # a plan that is no number agrees with itself, too
        firsts.append(first)
        after.append(left)
    place, label = torch.cat(firsts), torch.empty_like(order)
    label[order] = (torch.stack(after) < size).sum(0)
    return GroupLabels(energies, order, label, order[torch.where(place < size, place, place[0])])


def group_into_basins(plans: Tensor, energy: Tensor, most: int) -> list[list[int]]:
    """Places of one problem's plans in the groups of `group_plans`, the lowest first in and between groups."""
    (labels,), _ = fetch_labels([group_plans(plans, energy, most)])
    return labels.groups


def fetch_labels(
    looks: Sequence[GroupLabels], others: Sequence[Tensor] = ()
) -> tuple[list[GroupLabels], tuple[Tensor, ...]]:
    """The groups of several problems' plans on the host, and ``others``, in one transfer from a GPU."""
    read = to_host(*(tensor for each in looks for tensor in each), *others)
    return [GroupLabels(*read[place : place + 4]) for place in range(0, 4 * len(looks), 4)], read[4 * len(looks) :]


def is_clear_minimum(energies: Sequence[float], share: float) -> bool:
    """Whether the first energy of distinct basins, the lowest first, is well below another one's; one that is alone is
    below none."""
    return len(energies) > 1 and energies[1] > share * energies[0]

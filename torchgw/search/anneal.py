"""The landmark problem: many starts as one batch, annealed together, and the basins they end in.

Half of the starts are annealed from a temperature at which the product plan is the only optimum, half from a fifth of
it, so that what a start suggests is not lost where contrasts are small. Temperatures are relative to the energy of the
product plan. Plans that agree are one basin; its count says how many starts found it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchgw.couplings.rounding import feasible
from torchgw.kernels import LOG2E
from torchgw.kernels.logsumexp import LOWEST_EXPONENT, logsumexp2_
from torchgw.objective.exact import PairLoss
from torchgw.objective.linearise import Moments, energy, linearise, moments_of
from torchgw.objective.model import Model
from torchgw.options import CoarseOptions
from torchgw.persist.codec import storable
from torchgw.runtime.threads import threads_for
from torchgw.search.initial_guesses import SHARPNESS, start_costs
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.sinkhorn.loop import cooled, rescale
from torchgw.sinkhorn.scaling import balance, scaled
from torchgw.sinkhorn.sides import Side, log_total, translation
from torchgw.spaces.quantisation import KINDS, Landmarks, along_curve, choose_landmarks
from torchgw.types import DistanceProvider

HOT = (0.5, 0.2, 0.1, 0.05, 0.03)
COLD = (0.1, 0.075, 0.05, 0.04, 0.03)
COLDEST = 0.005
COOLING_STEPS = 6
KEPT, SMALL_KEPT = 2, 4
SAME_PLAN = 0.5
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


@dataclass(frozen=True)
class LandmarkProblem:
    """The objective between landmarks, for batches of plans (B, L, L').

    x, y : landmarks with their masses and distances.
    model : of the landmarks.
    loss : of their stored distances.
    linear : beta M + P between them, or None.
    """

    x: Landmarks
    y: Landmarks
    model: Model
    loss: PairLoss
    linear: FactoredCost | None

    @classmethod
    def of(cls, x: Landmarks, y: Landmarks, model: Model) -> LandmarkProblem:
        """``model`` is that of all points."""
        small = model.taken(x.index, y.index, x.mass, y.mass)
        loss = PairLoss.of(model.loss, x.distances, y.distances)
        return cls(x, y, small, loss, small.linear(x.distances.dtype))

    @property
    def unit(self) -> float:
        """The product plan's energy, which temperatures are relative to."""
        # Energies of small masses are almost all linear cost, whose weight divides the costs beside epsilon.
        height = abs(float(self.energies(self.product[None]))) / max(float(self.model.weight(1.0)), 1.0)
        return max(height, torch.finfo(self.x.mass.dtype).tiny)

    @property
    def product(self) -> Tensor:
        """The product plan (L, L') of mass one."""
        p, q = self.x.mass, self.y.mass
        return (p / p.sum())[:, None] * (q / q.sum())

    def first_sides(self) -> tuple[Side, Side]:
        """Sides of a start's linear problem, which has no scale of its own to relax a marginal by."""
        total = self.model.marginals.total
        p, q = ((m if total else m / m.sum()).log2() for m in (self.x.mass, self.y.mass))
        return Side(p, total=total), Side(q, total=total)

    def linearised(self, plans: Tensor, epsilon: Tensor) -> tuple[Tensor, Side, Side]:
        """Scores (B, L, L') of plans at temperatures (B,), and the sides that belong to them."""
        model = self.model
        rows, columns = model.masses if model.fixed else (plans.sum(-1), plans.sum(-2))
        cost = self.loss.cost(plans, rows, columns)
        moments = moments_of(model, cost, self.linear, plans, rows, columns) if model.marginals.free_mass else None
        cost = linearise(model, cost, self.linear, moments)
        sides = model.sides_of(self.x.mass.log2(), self.y.mass.log2(), epsilon, *cost.offsets(epsilon))
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
) -> dict[str, list[CoarseBasin]]:
    """The basins of each kind of landmarks, lowest energy first; masses p, q in the dtype of the spaces.

    One kind is enough where landmarks are all points, and where points lie on curves that it stands for and one of its
    basins stands out.
    """
    largest = max(int((p > 0).sum()), int((q > 0).sum()))
    small = largest <= options.n_landmarks
    # Where the landmarks are all points, starts cost little, and their problem is the whole problem.
    times = min(max(options.n_landmarks // largest, 1), MOST_TIMES)
    count = len(KINDS) * options.n_starts * times if small else options.n_starts
    found: dict[str, list[CoarseBasin]] = {}
    for kind in KINDS:
        named = model.points or (None, None)
        x = choose_landmarks(source, p, kind, options.n_landmarks, generator, first[0], named[0])
        y = choose_landmarks(target, q, kind, options.n_landmarks, generator, first[1], named[1])
        kept = (SMALL_KEPT if small else KEPT) * options.n_basins
        with threads_for(count * len(x.index) * len(y.index)):
            basins = landmark_basins(LandmarkProblem.of(x, y, model), epsilon, count, kept, generator)
        if small:
            return {ALL: basins}
        found[kind] = basins
        apart = stands_out([basin.energy for basin in basins], NEAR)
        if kind == KINDS[0] and apart and along_curve(x, p) and along_curve(y, q):
            break
    return found


def landmark_basins(
    problem: LandmarkProblem, epsilon: float, n_starts: int, n_kept: int, generator: torch.Generator
) -> list[CoarseBasin]:
    """The distinct optima of one landmark problem, lowest energy first, at most ``n_kept``."""
    p, unit = problem.x.mass, problem.unit
    batch = first_guesses(problem, max(n_starts - 1, 1), generator)
    cold = torch.arange(len(batch.plan), device=p.device) % 2 == 1
    for hot_step, cold_step in zip(HOT, COLD, strict=True):
        step = torch.where(cold, p.new_tensor(cold_step * unit), p.new_tensor(hot_step * unit)).clamp_min(epsilon)
        batch = annealed_batch(problem, batch, step, *SEARCH_STEPS)
    groups = basins_of(batch.plan, problem.energies(batch.plan), n_kept)
    counts = [len(group) for group in groups]
    batch = batch[torch.tensor([group[0] for group in groups], device=p.device)]
    return cooled_basins(problem, batch, counts, max(epsilon, COLDEST * unit), n_kept)


def cooled_basins(
    problem: LandmarkProblem, batch: Batch, counts: list[int], epsilon: float, n_kept: int
) -> list[CoarseBasin]:
    """What plans of one temperature become at ``epsilon``, lowest energy first, at most ``n_kept``; so many starts had
    ended in each."""
    x, y, now = problem.x, problem.y, float(batch.epsilon[0])
    for fall in range(1, COOLING_STEPS + 1):
        level = torch.full_like(batch.epsilon, cooled(now, epsilon, fall / COOLING_STEPS))
        batch = annealed_batch(problem, batch, level, *COOLING)
    plans = problem.feasible(batch.plan.clone())
    energy = problem.energies(plans)
    values = energy.tolist()
    return [
        CoarseBasin(x, y, plans[i], batch.f[i], batch.g[i], epsilon, values[i], sum(counts[j] for j in group))
        for group in basins_of(plans, energy, n_kept)
        for i in group[:1]
    ]


def first_guesses(problem: LandmarkProblem, count: int, generator: torch.Generator) -> Batch:
    """The product plan, and the plans of ``count`` start costs."""
    x, y = problem.x, problem.y
    p, q = (side.mass / side.mass.sum() for side in (x, y))
    costs = start_costs(x.distances, y.distances, p, q, count, generator)
    log_p, log_q = x.mass.log2(), y.mass.log2()
    first = log_p.expand(count, -1), log_q.expand(count, -1)
    plan, _, _ = _solve(costs * (-SHARPNESS * LOG2E), *problem.first_sides(), *first, 20)
    return at_rest(problem, torch.cat((problem.product[None], plan)), 1.0)


def at_rest(problem: LandmarkProblem, plans: Tensor, epsilon: float) -> Batch:
    """Plans (B, L, L') whose potentials are not known yet."""
    f, g = (side.mass.log2().expand(len(plans), -1) for side in (problem.x, problem.y))
    return Batch(plans, f, g, plans.new_full((len(plans),), epsilon))


def annealed_batch(problem: LandmarkProblem, batch: Batch, epsilon: Tensor, n_outer: int, n_inner: int) -> Batch:
    """``n_outer`` linearisations at temperatures ``epsilon`` (B,), each with ``n_inner`` Sinkhorn iterations."""
    ratio = (batch.epsilon / epsilon)[:, None]
    log_p, log_q = problem.x.mass.log2(), problem.y.mass.log2()
    f, g, plan = rescale(batch.f, log_p, ratio), rescale(batch.g, log_q, ratio), batch.plan
    for _ in range(n_outer):
        score, row, column = problem.linearised(plan, epsilon)
        f, g = row.settled(plan.sum(-1), f), column.settled(plan.sum(-2), g)
        plan, f, g = _solve(score, row, column, f, g, n_inner)
    return Batch(plan, f, g, epsilon)


def _solve(score: Tensor, row: Side, column: Side, f: Tensor, g: Tensor, n_iter: int) -> tuple[Tensor, Tensor, Tensor]:
    """A half-step of each side in the log domain, the rest by scaling; plans and their potentials."""
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


def basins_of(plans: Tensor, energy: Tensor, most: int) -> list[list[int]]:
    """At most so many groups of plans that agree up to an L1 distance of half their mass, lowest energy first in and
    between groups; of one problem, with counts, where `torchgw.batched.solve` has many and must not wait for each."""
    flat = plans.flatten(1)
    flat = flat / flat.sum(1, keepdim=True).clamp_min(torch.finfo(flat.dtype).tiny)
    rest = torch.argsort(torch.nan_to_num(energy, nan=torch.inf)).tolist()
    groups: list[list[int]] = []
    while rest and len(groups) < most:
        same = ((flat - flat[rest[0]]).abs().sum(1) <= SAME_PLAN).tolist()
        same[rest[0]] = True  # a plan that is no number, too
        groups.append([i for i in rest if same[i]])
        rest = [i for i in rest if not same[i]]
    return groups


def stands_out(energies: Sequence[float], share: float) -> bool:
    """Whether the first energy of distinct basins, the lowest first, is well below another one's; one that is alone is
    below none."""
    return len(energies) > 1 and energies[1] > share * energies[0]

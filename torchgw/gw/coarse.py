"""The landmark problem: many starts as one batch, annealed together, and the basins they end in.

Half of the starts are annealed from a temperature at which the product plan is the only optimum, half from a fifth of
it, so that what a start suggests is not lost where contrasts are small. Temperatures are relative to the energy of the
product plan. Plans that agree are one basin; its count says how many starts found it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchgw.gw.landmarks import KINDS, Landmarks, choose_landmarks
from torchgw.gw.lift import Solved
from torchgw.gw.starts import start_costs
from torchgw.kernels import LOG2E
from torchgw.kernels.kernel import LOWEST_EXPONENT
from torchgw.options import CoarseOptions
from torchgw.sinkhorn.scaling import balance, feasible
from torchgw.types import DistanceProvider

HOT = (0.5, 0.2, 0.1, 0.05, 0.03)
COLD = (0.1, 0.075, 0.05, 0.04, 0.03)
COLDEST = 0.005
COOLING_STEPS = 6
START_SHARPNESS = 8.0
KEPT, SMALL_KEPT = 2, 4
SAME_PLAN = 0.5
SEARCH_STEPS = (4, 8)
COOLING = (4, 10)


@dataclass(frozen=True)
class CoarseBasin(Solved):
    """One local optimum of a landmark problem, and how many starts found it."""

    energy: float
    count: int


@dataclass(frozen=True)
class Batch:
    """Plans (B, L, L') with potentials (B, L), (B, L') at temperatures (B,)."""

    plan: Tensor
    f: Tensor
    g: Tensor
    epsilon: Tensor

    def __getitem__(self, index: Tensor) -> Batch:
        return Batch(self.plan[index], self.f[index], self.g[index], self.epsilon[index])


def coarse_basins(
    source: DistanceProvider,
    target: DistanceProvider,
    p: Tensor,
    q: Tensor,
    epsilon: float,
    options: CoarseOptions,
    generator: torch.Generator,
    first: tuple[Tensor | None, Tensor | None] = (None, None),
) -> list[list[CoarseBasin]]:
    """The basins of each kind of landmarks, lowest energy first; masses p, q in the dtype of the spaces."""
    largest = max(int((p > 0).sum()), int((q > 0).sum()))
    small = largest <= options.n_landmarks
    # Where the landmarks are all points, starts cost little, and their problem is the whole problem.
    count = len(KINDS) * options.n_starts * max(options.n_landmarks // largest, 1) if small else options.n_starts
    kinds = KINDS[:1] if small else KINDS
    found = []
    for kind in kinds:
        x = choose_landmarks(source, p, kind, options.n_landmarks, generator, first[0])
        y = choose_landmarks(target, q, kind, options.n_landmarks, generator, first[1])
        kept = (SMALL_KEPT if small else KEPT) * options.n_basins
        found.append(landmark_basins(x, y, epsilon, count, kept, generator))
    return found


def landmark_basins(
    x: Landmarks, y: Landmarks, epsilon: float, n_starts: int, n_kept: int, generator: torch.Generator
) -> list[CoarseBasin]:
    """The distinct optima of one landmark problem, lowest energy first, at most ``n_kept``."""
    DX, DY, p, q = x.distances, y.distances, x.mass, y.mass
    product = (p[:, None] * q)[None]
    unit = max(float(energies(product, DX, DY)), torch.finfo(p.dtype).tiny)
    batch = first_guesses(DX, DY, p, q, max(n_starts - 1, 1), generator)
    cold = torch.arange(len(batch.plan), device=p.device) % 2 == 1
    for hot_step, cold_step in zip(HOT, COLD, strict=True):
        step = torch.where(cold, p.new_tensor(cold_step * unit), p.new_tensor(hot_step * unit)).clamp_min(epsilon)
        batch = anneal(batch, DX, DY, p, q, step, *SEARCH_STEPS)
    groups = basins_of(batch.plan, energies(batch.plan, DX, DY))[:n_kept]
    counts = [len(group) for group in groups]
    batch = batch[torch.tensor([group[0] for group in groups], device=p.device)]
    last, now = max(epsilon, COLDEST * unit), float(batch.epsilon[0])
    for fall in range(1, COOLING_STEPS + 1):
        level = torch.full_like(batch.epsilon, float(now * (last / now) ** (fall / COOLING_STEPS)))
        batch = anneal(batch, DX, DY, p, q, level, *COOLING)
    plans = feasible(batch.plan.clone(), p, q)
    energy = energies(plans, DX, DY)
    return [
        CoarseBasin(x, y, plans[i], batch.f[i], batch.g[i], last, float(energy[i]), sum(counts[j] for j in group))
        for group in basins_of(plans, energy)
        for i in group[:1]
    ]


def first_guesses(DX: Tensor, DY: Tensor, p: Tensor, q: Tensor, count: int, generator: torch.Generator) -> Batch:
    """The product plan, and the plans of ``count`` start costs."""
    costs = start_costs(DX, DY, p, q, count, generator)
    f, g = p.log2().expand(count, -1), q.log2().expand(count, -1)
    plan, _, _ = _solve(costs * (-START_SHARPNESS * LOG2E), p, q, f, g, 20)
    plan = torch.cat(((p[:, None] * q)[None], plan))
    shape = (count + 1, -1)
    return Batch(plan, p.log2().expand(shape), q.log2().expand(shape), torch.ones_like(plan[:, 0, 0]))


def anneal(
    batch: Batch, DX: Tensor, DY: Tensor, p: Tensor, q: Tensor, epsilon: Tensor, n_outer: int, n_inner: int
) -> Batch:
    """``n_outer`` linearisations at temperatures ``epsilon`` (B,), each with ``n_inner`` Sinkhorn iterations."""
    ratio = (batch.epsilon / epsilon)[:, None]
    log_p, log_q = p.log2(), q.log2()
    f, g, plan = log_p + (batch.f - log_p) * ratio, log_q + (batch.g - log_q) * ratio, batch.plan
    for _ in range(n_outer):
        score = (DX @ plan @ DY) * (2 * LOG2E / epsilon)[:, None, None]
        plan, f, g = _solve(score, p, q, f, g, n_inner)
    return Batch(plan, f, g, epsilon)


def _solve(score: Tensor, p: Tensor, q: Tensor, f: Tensor, g: Tensor, n_iter: int) -> tuple[Tensor, Tensor, Tensor]:
    """A half-step of each side in the log domain, the rest by scaling; plans with exact rows, and their potentials."""
    g = q.log2() - _logsumexp2(score + f[..., :, None], -2)
    f = p.log2() - _logsumexp2(score + g[..., None, :], -1)
    kernel = (score + f[..., :, None]).add_(g[..., None, :]).clamp_min_(LOWEST_EXPONENT).exp2_()
    u, v = balance(kernel, p, q, n_iter - 1)
    return kernel.mul_(u[..., :, None]).mul_(v[..., None, :]), f + u.log2(), g + v.log2()


def _logsumexp2(exponent: Tensor, axis: int) -> Tensor:
    highest = exponent.amax(axis, keepdim=True)
    return (exponent - highest).clamp_min_(LOWEST_EXPONENT).exp2_().sum(axis).log2_() + highest.squeeze(axis)


def energies(plans: Tensor, DX: Tensor, DY: Tensor) -> Tensor:
    """The objective of each plan (B, L, L'), with the marginals that it has; never below zero, as rounding can be."""
    rows, columns = plans.sum(-1), plans.sum(-2)
    squares = ((rows @ DX.square()) * rows).sum(-1) + ((columns @ DY.square()) * columns).sum(-1)
    return (squares - 2 * ((DX @ plans @ DY) * plans).sum((-1, -2))).clamp_min(0.0)


def basins_of(plans: Tensor, energy: Tensor) -> list[list[int]]:
    """Groups of plans that agree up to an L1 distance of half their mass, lowest energy first in and between groups."""
    apart = torch.cdist(plans.flatten(1), plans.flatten(1), p=1.0).tolist()
    groups: list[list[int]] = []
    for i in torch.argsort(torch.nan_to_num(energy, nan=torch.inf)).tolist():
        home = next((group for group in groups if apart[i][group[0]] <= SAME_PLAN), None)
        if home is None:
            groups.append([i])
        else:
            home.append(i)
    return groups

"""Inner solvers: the transport problem of one linearised cost, solved and rounded onto its marginals.

One stores score and plan and scales the plan (`torchgw.sinkhorn.scaling`), one stores neither: its half-steps make the
score tile by tile (`torchgw.kernels.softmin_tiles`), and what leaves it is a coupling by potentials.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling, DenseCoupling
from torchgw.couplings.rounding import Rounding, round_plan, round_tiles
from torchgw.kernels.kernel import Kernel
from torchgw.kernels.shared import StreamedKernel, TileReader
from torchgw.kernels.sums import inner
from torchgw.kernels.tiles import TILE, UNIT, TiledPlan, Tiles, all_tiles, choose_tiles
from torchgw.objective.exact import ExactGradient
from torchgw.objective.linearise import Gradient
from torchgw.objective.model import Model
from torchgw.options import SinkhornOptions
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.runtime.ranks import ALONE, Ranks
from torchgw.runtime.scratch import scratches
from torchgw.runtime.transfer import to_device
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.sinkhorn.loop import SinkhornState, sinkhorn
from torchgw.sinkhorn.scaling import (
    Scaler,
    ScalingState,
    finish_scaling,
    iterate_scaling,
    solve_by_scaling,
    start_scaling,
)
from torchgw.sinkhorn.sides import LARGEST_RATIO, MarginalConstraint
from torchgw.solvers.warm_start import WarmStart, adapt_potentials

SKIPPED_FROM = 4096
# Up to that rho / epsilon sums of solved problems tell potentials better than warm ones, where both sides give way;
# where one holds, warm ones need a tenth of the iterations (measured).
SETTLED_RATIO = 3e4


Centred: TypeAlias = tuple[FactoredCost, Tensor, Tensor]
"""A centred cost, and the terms (N,), (K,) that centring takes off its score."""


Sides: TypeAlias = tuple[MarginalConstraint, MarginalConstraint]


class InnerSolution(NamedTuple):
    """A linear problem that was solved.

    coupling : the plan T (N, K), rounded onto the marginals.
    warm_start : the cost with its own potentials, which are those before rounding.
    host_numbers : what the host is to know (3,): <C, T>, the sum of the absolute terms that cancel in it, and the
        largest potential.
    next_cost : the cost that the gradient has at the plan, where a GPU has found it with the rest.
    rounding : of a stored plan.
    residual, n_iter, warm_residual : of the iteration, see `torchgw.sinkhorn.loop.SinkhornState`.
    """

    coupling: BlockCoupling
    warm_start: WarmStart
    host_numbers: Tensor
    next_cost: FactoredCost | None
    rounding: Rounding | None
    residual: Tensor | float
    n_iter: int
    warm_residual: Tensor | float


class StoredSolver:
    """Stores score and plan in the dtype of the potentials, 8 bytes for each pair in float32, and reuses both.

    Plans of a few iterations, far from their columns' marginal, are not ``rounded``: most of what they miss would be
    spread over all pairs.
    """

    def __init__(self, kernel: Kernel, model: Model, options: SinkhornOptions, rounded: bool = True) -> None:
        self.kernel, self.model, self.options, self._constraints = kernel, model, options, model.constraints
        self.rounded = rounded
        self._score, self._plan = torch.empty(0), torch.empty(0)

    def solve_linearization(
        self,
        cost: FactoredCost,
        epsilon: float,
        warm: WarmStart,
        sums: tuple[Tensor, Tensor] | None = None,
        gradient: Gradient | None = None,
    ) -> InnerSolution:
        """The plan of a cost from warm potentials of any epsilon. The marginals ``sums`` (N,), (K,) of the last plan,
        where they may give way, can tell potentials better. The ``gradient`` is the one that is asked next."""
        assert warm.epsilon is not None
        score, plan = self._memory(warm.f, len(warm.f), len(warm.g))
        ratio, at = as_graph_numbers(plan.device, warm.epsilon / epsilon, epsilon, self.model)
        start = WarmStart(cost, warm.f, warm.g)
        known, sides, first = _begin_scaling(self.kernel, self._constraints, start, ratio, at, sums, score, plan)
        scaler = Scaler(self.kernel.bind(score), *sides, plan)
        found = iterate_scaling(scaler, first, options=self.options, max_iter=self.options.exact_max_iter)
        ahead = gradient.without_scale if plan.is_cuda and isinstance(gradient, ExactGradient) else None
        terms, model = (cost.a, cost.b), self._constraints if self.rounded else None
        f, g, told, rounding, following = _finish_plan(score, plan, known, found.state, terms, model, at, ahead)
        end = WarmStart(cost, f, g, epsilon)
        return InnerSolution(DenseCoupling(plan), end, told, following, rounding, *found[1:])

    def potentials(self, A: Tensor, B: Tensor, sides: Sides, f: Tensor, g: Tensor) -> SinkhornState:
        """Only the potentials of a linear problem, from warm ones f (N,), g (K,).

        A, B : factors (N, r), (K, r) of its score -cost / epsilon, in base 2, up to row and column terms.
        sides : log masses, and the marginal model with those terms.
        """
        score, plan = self._memory(A, len(A), len(B))
        scaler = Scaler(self.kernel.bind(torch.mm(A, B.T, out=score)), *sides, plan)
        return solve_by_scaling(scaler, f, g, options=self.options, max_iter=self.options.exact_max_iter)

    def _memory(self, like: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
        """The buffers of score and plan (N, K)."""
        shape = rows, columns
        if self._score.shape != shape or self._score.dtype != like.dtype or self._score.device != like.device:
            self._score = self._plan = torch.empty(0)  # which may be the same memory
            self._score, self._plan = scratches(2, *shape, dtype=like.dtype, device=like.device)
        return self._score, self._plan


def as_graph_numbers(
    device: torch.device, ratio: float, epsilon: float, model: Model
) -> tuple[float | Tensor, float | Tensor]:
    """The numbers as a graph takes them: on a GPU, where they do not enter the sides, as tensors; a ratio of 1, which
    changes no bit, as it is."""
    if device.type != "cuda" or not model.marginals.balanced:
        return ratio, epsilon
    numbers = to_device(torch.tensor([ratio, epsilon], dtype=torch.float64), device)
    return 1.0 if ratio == 1 else numbers[0], numbers[1]


@as_cuda_graph("score", "plan")
def _begin_scaling(
    kernel: Kernel,
    model: Model,
    start: WarmStart,
    ratio: float | Tensor,
    epsilon: float | Tensor,
    sums: tuple[Tensor, Tensor] | None,
    score: Tensor,
    plan: Tensor,
) -> tuple[Centred, Sides, ScalingState]:
    """The problem of the start's cost, from its potentials of ``ratio`` times this epsilon, after its first iteration:
    the cost without a stored part, and its sides."""
    assert start.cost is not None
    centred, *shifts, f, g = adapt_potentials(start.cost, start.f, start.g, ratio, epsilon, model.logs)
    row, column = model.make_constraints(epsilon, centred, score.dtype)
    if centred.U.dtype == score.dtype:
        centred.stored_score(epsilon, score)
    else:
        score.copy_(centred.stored_score(epsilon))
    if sums is not None:
        f, g = potentials_from_sums((row, column), sums, f, g)
    first = start_scaling(kernel.bind(score), row, column, plan, f, g)
    return (replace(centred, extra=None), shifts[0], shifts[1]), (row, column), first


def potentials_from_sums(sides: Sides, sums: tuple[Tensor, Tensor], f: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Warm potentials f, g, or those that belong to the sums of the last plan where divergences hold marginals."""
    row, column = sides
    largest = SETTLED_RATIO if row.has_divergence and column.has_divergence else LARGEST_RATIO
    rows, columns = (side.to(f.dtype) for side in sums)
    return row.potential_from_sums(rows, f, largest), column.potential_from_sums(columns, g, largest)


@as_cuda_graph("plan")
def _finish_plan(
    score: Tensor,
    plan: Tensor,
    cost: Centred,
    last: ScalingState,
    terms: tuple[Tensor, Tensor],
    model: Model | None,
    epsilon: float | Tensor,
    gradient: ExactGradient | None,
) -> tuple[Tensor, Tensor, Tensor, Rounding | None, FactoredCost | None]:
    """The potentials of the cost as it was, what is told of the plan, how it is rounded onto the marginals of a model,
    if there is one, and its own cost."""
    (centred, *shifts), (f, g, largest) = cost, finish_scaling(plan, last)
    p, q = (mass.to(plan.dtype) for mass in model.masses) if model else (plan.sum(1), plan.sum(0))
    rounding = round_plan(plan, p, q, model.marginals) if model else None
    a, b, one, other = (part.to(p) for part in (centred.a, centred.b, *terms))
    value = replace(centred, a=a, b=b).expectation_from_score(inner(score, plan), epsilon, p, q)
    cancelling = one.abs() @ p + other.abs() @ q
    following = None if gradient is None else gradient.cost(DenseCoupling(plan), p)
    return f - shifts[0], g - shifts[1], torch.stack((value, cancelling, largest)), rounding, following


class StreamedSolver:
    """Stores neither. Points must be in an order in which neighbours are near; from 4096 x 4096 on, tiles without mass
    are left out, those outside of which all mass lies but the share ``omitted``."""

    def __init__(
        self,
        kernel: StreamedKernel,
        tiled: TileReader,
        model: Model,
        options: SinkhornOptions,
        omitted: float,
        ranks: Ranks = ALONE,
    ) -> None:
        self.kernel, self.tiled, self.model = kernel, tiled, model
        self.options, self.omitted, self.ranks = options, omitted, ranks

    def solve_linearization(
        self,
        cost: FactoredCost,
        epsilon: float,
        warm: WarmStart,
        sums: tuple[Tensor, Tensor] | None = None,
        gradient: Gradient | None = None,
    ) -> InnerSolution:
        """As `StoredSolver.solve_linearization`."""
        assert warm.epsilon is not None
        model, ratio = self.model, warm.epsilon / epsilon
        centred, *shifts, f, g = adapt_potentials(cost, warm.f, warm.g, ratio, epsilon, model.logs)
        A, B = centred.balanced_score(epsilon)
        sides = model.make_constraints(epsilon, centred, f.dtype)
        f, g = (f, g) if sums is None else potentials_from_sums(sides, sums, f, g)
        state = self.potentials(A, B, sides, f, g)
        tiles = self.tiles(A, B, state.f, state.g)
        (p, q), left, right = model.masses, self.ranks.own(A, UNIT), self.ranks.own(B, UNIT)
        plan = TiledPlan(left, right, state.f.double(), state.g.double(), tiles)
        rounded = round_tiles(self.tiled, plan, p, q, model.marginals, left, right)
        overlap = rounded.core.trace() + (rounded.x @ A.double()) @ (rounded.y @ B.double())
        p, q = model.masses_in(A.dtype)
        value = centred.expectation_from_score(overlap.to(A.dtype), epsilon, p, q)
        told = torch.stack((value, cost.a.abs() @ p + cost.b.abs() @ q, state.largest))
        f, g = torch._foreach_sub((state.f, state.g), shifts)
        known = state.residual, state.n_iter, state.warm_residual
        return InnerSolution(rounded.coupling(A, B), WarmStart(cost, f, g, epsilon), told, None, None, *known)

    def potentials(self, A: Tensor, B: Tensor, sides: Sides, f: Tensor, g: Tensor) -> SinkhornState:
        """As `StoredSolver.potentials`."""
        tiles, most = self.tiles(A, B, f, g), self.options.exact_max_iter
        # Where all tiles matter, the whole score is one product a pass.
        score = self.kernel.bind(A, B) if tiles.is_complete() else self.tiled.bind(A, B, tiles)
        return sinkhorn(score, *sides, f, g, options=self.options, max_iter=most)

    def tiles(self, A: Tensor, B: Tensor, f: Tensor, g: Tensor) -> Tiles:
        """The tiles that matter under these potentials."""
        if self.omitted == 0 or len(A) * len(B) <= SKIPPED_FROM**2:
            return all_tiles(len(A), len(B), TILE, A.device)
        A, B = self.ranks.own(A, UNIT), self.ranks.own(B, UNIT)
        return choose_tiles(A, B, f, g, self.model.masses, TILE, self.omitted, self.ranks)[0]


InnerSolver: TypeAlias = StoredSolver | StreamedSolver
"""Solves linear problems of a model, on the way to its epsilon."""

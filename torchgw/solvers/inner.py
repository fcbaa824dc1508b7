"""Inner solvers: the transport problem of one linearised cost, solved and rounded onto its marginals.

One stores score and plan and scales the plan (`torchgw.sinkhorn.scaling`), one stores neither: its half-steps make the
score tile by tile (`torchgw.kernels.softmin_tiles`), and what leaves it is a coupling by potentials.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling, DenseCoupling
from torchgw.couplings.rounding import round_plan, round_tiles
from torchgw.kernels import LOG2E
from torchgw.kernels.blocks import block_rows, blocks
from torchgw.kernels.kernel import Kernel
from torchgw.kernels.shared import StreamedKernel, TileReader
from torchgw.kernels.sums import inner
from torchgw.kernels.tiles import TILE, UNIT, TiledPlan, Tiles, all_tiles, choose_tiles
from torchgw.marginals import Marginals
from torchgw.objective.exact import ExactGradient
from torchgw.objective.linearise import Gradient
from torchgw.objective.model import Model
from torchgw.options import SinkhornOptions
from torchgw.persist.codec import storable
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.runtime.ranks import ALONE, Ranks
from torchgw.runtime.scratch import scratches
from torchgw.runtime.transfer import to_device
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.sinkhorn.loop import SinkhornState, sinkhorn
from torchgw.sinkhorn.scaling import (
    Scaler,
    ScalingRun,
    ScalingState,
    finish_scaling,
    iterate_and_absorb,
    iterate_scaling,
)
from torchgw.sinkhorn.sides import LARGEST_RATIO, MarginalConstraint
from torchgw.solvers.warm_start import WarmStart, adapt_potentials
from torchgw.types import Softmins

SKIPPED_FROM = 4096
# Up to that rho / epsilon sums of solved problems tell potentials better than warm ones, where both sides give way;
# where one holds, warm ones need a tenth of the iterations (measured).
SETTLED_RATIO = 3e4


@storable
class LinearProblem(NamedTuple):
    """A linear transport problem.

    A, B : factors (N, r), (K, r) of its score -cost / epsilon, in base 2, up to row and column terms.
    row, column : its sides: log masses, and the marginal model with those terms.
    extra : (N, K), added to the score, or None.
    """

    A: Tensor
    B: Tensor
    row: MarginalConstraint
    column: MarginalConstraint
    extra: Tensor | None = None

    @classmethod
    def of(
        cls, cost: FactoredCost, epsilon: float | Tensor, row: MarginalConstraint, column: MarginalConstraint
    ) -> LinearProblem:
        """The problem with this cost; its potentials are those of the score 2 U V^T log2(e) / epsilon."""
        extra = None if cost.extra is None else cost.extra * (-LOG2E / epsilon)
        return cls(*cost.balanced_score(epsilon), row, column, extra)

    def potentials_from_sums(self, sums: tuple[Tensor, Tensor], f: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """Warm potentials f, g, or those that belong to the sums of the last plan where divergences hold marginals."""
        rows, columns = (side.to(f.dtype) for side in sums)
        largest = SETTLED_RATIO if self.row.has_divergence and self.column.has_divergence else LARGEST_RATIO
        return self.row.potential_from_sums(rows, f, largest), self.column.potential_from_sums(columns, g, largest)


class InnerSolution(NamedTuple):
    """A linear problem that was solved.

    coupling : the plan T (N, K), rounded onto the marginals.
    warm_start : the cost with its own potentials.
    host_numbers : what the host is to know (3,): <C, T>, the sum of the absolute terms that cancel in it, and the
        largest potential.
    next_cost : the cost that the gradient has at the plan, where a GPU has found it with the rest.
    residual, n_iter, warm_residual : of the iteration, see `torchgw.sinkhorn.loop.SinkhornState`.
    """

    coupling: BlockCoupling
    warm_start: WarmStart
    host_numbers: Tensor
    next_cost: FactoredCost | None
    residual: Tensor | float
    n_iter: int
    warm_residual: Tensor | float


class InnerSolver(Protocol):
    """Solves linear problems of a model, on the way to its epsilon."""

    model: Model

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

    def potentials(self, linear: LinearProblem, f: Tensor, g: Tensor) -> SinkhornState:
        """Only its potentials, from warm ones f (N,), g (K,)."""


class StoredSolver:
    """Stores score and plan, 8 bytes for each pair in float32, and reuses both, with the masses in their dtype."""

    def __init__(self, kernel: Kernel, model: Model, options: SinkhornOptions) -> None:
        self.kernel, self.model, self.options, self._constraints = kernel, model, options, model.constraints
        self._score, self._plan = torch.empty(0), torch.empty(0)

    def solve_linearization(
        self,
        cost: FactoredCost,
        epsilon: float,
        warm: WarmStart,
        sums: tuple[Tensor, Tensor] | None = None,
        gradient: Gradient | None = None,
    ) -> InnerSolution:
        assert warm.epsilon is not None
        score, plan = self._memory(cost.a, len(cost.b))
        ratio, at = as_graph_numbers(cost.a.device, warm.epsilon / epsilon, epsilon, self.model)
        start = WarmStart(cost, warm.f, warm.g)
        begun = _begin_scaling(self.kernel, self._constraints, start, ratio, at, sums, score, plan)
        found, masses = self._run_scaling(begun.row, begun.column, begun.scaling), self.model.masses_in(cost.a.dtype)
        terms, marginals = (cost.a, cost.b), self.model.marginals
        ahead = gradient.without_scale if plan.is_cuda and isinstance(gradient, ExactGradient) else None
        begun = begun._replace(scaling=found.state)
        f, g, told, following = _finish_plan(score, plan, begun, terms, masses, marginals, at, ahead)
        return InnerSolution(DenseCoupling(plan), WarmStart(cost, f, g, epsilon), told, following, *found[1:])

    def potentials(self, linear: LinearProblem, f: Tensor, g: Tensor) -> SinkhornState:
        """Leaves the plan, not rounded, in the buffer."""
        score, plan = self._memory(linear.A, len(linear.B))
        first = _absorb_start(self.kernel, linear, f, g, score, plan)
        found = self._run_scaling(linear.row, linear.column, first)
        f, g, largest = finish_scaling(plan, found.state)
        return SinkhornState(f, g, found.residual, found.n_iter, found.warm_residual, largest)

    def _memory(self, like: Tensor, columns: int) -> tuple[Tensor, Tensor]:
        """The buffers of score and plan (N, K)."""
        shape = len(like), columns
        if self._score.shape != shape or self._score.dtype != like.dtype or self._score.device != like.device:
            self._score = self._plan = torch.empty(0)  # which may be the same memory
            self._score, self._plan = scratches(2, *shape, dtype=like.dtype, device=like.device)
        return self._score, self._plan

    def _run_scaling(self, row: MarginalConstraint, column: MarginalConstraint, first: ScalingState) -> ScalingRun:
        scaler = Scaler(self.kernel.bind(self._score), row, column, self._plan)
        return iterate_scaling(scaler, first, options=self.options, max_iter=self.options.exact_max_iter)


class InitialScaling(NamedTuple):
    """A linear problem of a stored score after its first iteration.

    cost : its cost, centred, without a stored part.
    shifts : row (N,) and column (K,) terms that this takes off its score.
    row, column : its sides.
    scaling : where the iteration is.
    """

    cost: FactoredCost
    shifts: tuple[Tensor, Tensor]
    row: MarginalConstraint
    column: MarginalConstraint
    scaling: ScalingState


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
) -> InitialScaling:
    """The problem of the start's cost, from its potentials of ``ratio`` times this epsilon."""
    assert start.cost is not None
    centred, *shifts, f, g = adapt_potentials(start.cost, start.f, start.g, ratio, epsilon, model.logs)
    sides = model.make_constraints(epsilon, centred, f.dtype)
    linear = LinearProblem.of(centred, epsilon, *sides)
    if sums is not None:
        f, g = linear.potentials_from_sums(sums, f, g)
    bare = replace(centred, extra=None)
    return InitialScaling(bare, (shifts[0], shifts[1]), *sides, _absorb_start(kernel, linear, f, g, score, plan))


@as_cuda_graph("score", "plan")
def _absorb_start(
    kernel: Kernel, linear: LinearProblem, f: Tensor, g: Tensor, score: Tensor, plan: Tensor
) -> ScalingState:
    """A linear problem after its first iteration, its score stored."""
    torch.mm(linear.A, linear.B.T, out=score)
    if linear.extra is not None:
        score += linear.extra
    bound, row, column = kernel.bind(score), linear.row, linear.column
    if column.has_divergence and not row.has_divergence:
        f = row.potential(bound.softmin(g, 1))
    return iterate_and_absorb(bound, row, column, plan, f, g)


@as_cuda_graph("plan")
def _finish_plan(
    score: Tensor,
    plan: Tensor,
    begun: InitialScaling,
    terms: tuple[Tensor, Tensor],
    masses: tuple[Tensor, Tensor],
    marginals: Marginals,
    epsilon: float | Tensor,
    gradient: ExactGradient | None,
) -> tuple[Tensor, Tensor, Tensor, FactoredCost | None]:
    """The potentials of the cost as it was, and what is told of the plan, which is rounded; its own cost."""
    (p, q), (f, g, largest) = masses, finish_scaling(plan, begun.scaling)
    round_plan(plan, p, q, marginals)
    value = begun.cost.expectation_from_score(_overlap(score, plan), epsilon, p, q)
    cancelling = terms[0].abs() @ p + terms[1].abs() @ q
    f, g = torch._foreach_sub((f, g), begun.shifts)
    following = None if gradient is None else gradient.cost(DenseCoupling(plan), p)
    return f, g, torch.stack((value, cancelling, largest)), following


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
        centred, *shifts, f, g = warm.adapt(cost, epsilon, self.model)
        model = self.model
        linear = LinearProblem.of(centred, epsilon, *model.make_constraints(epsilon, centred, f.dtype))
        A, B = linear.A, linear.B
        state = self.potentials(linear, *((f, g) if sums is None else linear.potentials_from_sums(sums, f, g)))
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
        return InnerSolution(rounded.coupling(A, B), WarmStart(cost, f, g, epsilon), told, None, *known)

    def potentials(self, linear: LinearProblem, f: Tensor, g: Tensor) -> SinkhornState:
        assert linear.extra is None, "what streams has factors"
        score, most = self.score(linear.A, linear.B, f, g), self.options.exact_max_iter
        return sinkhorn(score, linear.row, linear.column, f, g, options=self.options, max_iter=most)

    def score(self, A: Tensor, B: Tensor, f: Tensor, g: Tensor) -> Softmins:
        """The score on the tiles that matter under these potentials; the whole, one product a pass, if all do."""
        tiles = self.tiles(A, B, f, g)
        return self.kernel.bind(A, B) if tiles.is_complete() else self.tiled.bind(A, B, tiles)

    def tiles(self, A: Tensor, B: Tensor, f: Tensor, g: Tensor) -> Tiles:
        """The tiles that matter under these potentials."""
        if self.omitted == 0 or len(A) * len(B) <= SKIPPED_FROM**2:
            return all_tiles(len(A), len(B), TILE, A.device)
        A, B = self.ranks.own(A, UNIT), self.ranks.own(B, UNIT)
        return choose_tiles(A, B, f, g, self.model.masses, TILE, self.omitted, self.ranks)[0]


def _overlap(score: Tensor, plan: Tensor) -> Tensor:
    """<score, plan>, in blocks that stay in the cache."""
    total, (n, k) = score.new_zeros(()), score.shape
    for where in blocks(n, block_rows(n, k, score.device)):
        total += inner(score[where], plan[where])
    return total

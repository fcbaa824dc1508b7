"""The end of every solve: the last problem solved in float64 to full tolerance, and rounded onto exact marginals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from torchgw import ranges
from torchgw.couplings.blocks import DenseCoupling
from torchgw.couplings.potential import PotentialCoupling
from torchgw.couplings.rounding import round_to_marginals
from torchgw.kernels.kernel import Kernel
from torchgw.kernels.precision import reach, unsafe
from torchgw.marginals import Marginals
from torchgw.objective.model import Model
from torchgw.options import GWOptions, SinkhornOptions
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.runtime.scratch import own, scratch
from torchgw.runtime.transfer import AsyncNumbers
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.sinkhorn.scaling import Scaler, finish_scaling, iterate_and_absorb, iterate_scaling
from torchgw.solvers.inner import InitialScaling, as_graph_numbers
from torchgw.solvers.solution import Solution
from torchgw.solvers.warm_start import WarmStart, adapt_potentials


def finish(solution: Solution, epsilon: float, model: Model, kernel: Kernel, options: SinkhornOptions) -> Solution:
    """A solution whose last problem is solved in float64: its plan is feasible, and stored even where its coupling is
    by potentials.

    O(N K) memory, 16 bytes for each pair of points.

    Raises
    ------
    FloatingPointError
        When the potentials are so large that float64 cannot add them up to exact marginals.
    """
    end = solution.warm_start
    assert end is not None
    assert end.cost is not None
    assert end.epsilon is not None
    cost, (p, q) = end.cost, model.masses
    score, plan = (scratch(len(p), len(q), dtype=p.dtype, device=p.device) for _ in range(2))
    ratio, at = as_graph_numbers(p.device, end.epsilon / epsilon, epsilon, model)
    low_rank = cost.extra is None and cost.U.shape[1] < min(len(p), len(q)) // 2
    start = WarmStart(cost, end.f, end.g)
    begun = _begin_scaling(kernel, model.constraints, start, ratio, at, low_rank, score, plan)
    scaler = Scaler(kernel.bind(score), begun.row, begun.column, plan)
    found = iterate_scaling(scaler, begun.scaling, options=options, max_iter=options.final_max_iter)
    begun = begun._replace(scaling=found.state)
    rounded, f, g, numbers = _finish_plan(plan, begun, p, q, model.marginals, at)
    largest, *missed = AsyncNumbers(numbers).values()
    check_potentials(largest, epsilon)
    residual = max(missed, default=0.0) if model.has_hard_marginals else max([*missed, found.residual])
    del score, scaler
    plan = own(plan)
    return replace(
        solution,
        coupling=rounded if low_rank else DenseCoupling(plan, f, g),
        stored=DenseCoupling(plan),
        warm_start=WarmStart(cost, f, g, epsilon),  # widened when the matrices of this solve are gone
        marginal_residual=residual,
        n_iter_sinkhorn=solution.n_iter_sinkhorn + found.n_iter,
    )


@as_cuda_graph("score", "plan")
def _begin_scaling(
    kernel: Kernel,
    model: Model,
    start: WarmStart,
    ratio: float | Tensor,
    epsilon: float | Tensor,
    low_rank: bool,
    score: Tensor,
    plan: Tensor,
) -> InitialScaling:
    """The problem of the start's cost, from its potentials of ``ratio`` times this epsilon, its score a product where
    it is ``low_rank``."""
    assert start.cost is not None
    centred, row, column, f, g = adapt_potentials(start.cost, start.f, start.g, ratio, epsilon, model.logs)
    one, other = model.make_constraints(epsilon, centred, torch.float64)
    warm = PotentialCoupling(*centred.balanced_score(epsilon), f, g).to(torch.float64)
    if low_rank:
        torch.mm(warm.A, warm.B.T, out=score)
    else:
        score.copy_(centred.stored_score(epsilon))
    bound, f = kernel.bind(score), warm.f
    if other.has_divergence and not one.has_divergence:
        f = one.potential(bound.softmin(warm.g, 1))
    scaled = iterate_and_absorb(bound, one, other, plan, f, warm.g)
    return InitialScaling(replace(centred, extra=None), (row, column), one, other, scaled)


@as_cuda_graph("plan")
def _finish_plan(
    plan: Tensor, begun: InitialScaling, p: Tensor, q: Tensor, marginals: Marginals, epsilon: float | Tensor
) -> tuple[PotentialCoupling, Tensor, Tensor, Tensor]:
    """The rounded coupling, the potentials (N,), (K,) of the cost as it was, and the largest potential beside the
    marginal errors that there were (m,)."""
    f, g, largest = finish_scaling(plan, begun.scaling)
    A, B = begun.cost.balanced_score(epsilon)
    factored = PotentialCoupling(A.double(), B.double(), f, g)
    rounded, missed = round_to_marginals(factored, p, q, DenseCoupling(plan), marginals)
    assert rounded.x is not None
    assert rounded.y is not None
    plan.mul_((rounded.f - f).nan_to_num(nan=0.0).exp2()[:, None])
    plan.mul_((rounded.g - g).nan_to_num(nan=0.0).exp2()).addr_(rounded.x, rounded.y)
    return rounded, f - begun.shifts[0], g - begun.shifts[1], torch.cat((largest[None], missed))


def precision_warning(cost: FactoredCost, epsilon: float, options: GWOptions) -> str | None:
    """Why float32 could not carry the scores that the loop worked on, or None."""
    return start_precision_check(cost, epsilon, options)()


def start_precision_check(cost: FactoredCost, epsilon: float, options: GWOptions) -> Callable[[], str | None]:
    """What says so once the device has come to it."""
    if not options.mixed_precision:
        return lambda: None
    reading, rank = AsyncNumbers(_reach(replace(cost, extra=None))), cost.U.shape[1]
    return lambda: unsafe(reading.values()[0] / epsilon, rank)


@as_cuda_graph()
def _reach(cost: FactoredCost) -> Tensor:
    """How far the scores of the factors of a cost reach (1,), times epsilon."""
    A, B = cost.centre_factors(1.0)[0].balanced_score(1.0)
    return reach(A, B)[None]


def check_potentials(largest: float, epsilon: float) -> None:
    """Refuse to return a plan whose potentials float64 cannot add up: its marginals could not be made exact."""
    if largest > ranges.LARGEST_RATIO:
        raise FloatingPointError(
            f"epsilon = {epsilon:g} is too small: cost / epsilon reaches {largest:.1e}, beyond what float64 resolves"
        )

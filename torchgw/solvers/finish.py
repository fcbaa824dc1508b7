"""The end of every solve: the last problem solved in float64 to full tolerance, and rounded onto exact marginals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from torchgw import ranges
from torchgw.couplings.blocks import DenseCoupling
from torchgw.couplings.potential import PotentialCoupling
from torchgw.couplings.rounding import round_to_marginals
from torchgw.kernels.kernel import Kernel
from torchgw.kernels.precision import reach, unsafe
from torchgw.objective.model import Model
from torchgw.options import GWOptions, SinkhornOptions
from torchgw.runtime.transfer import AsyncNumbers
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.sinkhorn.scaling import Scaler, scaling
from torchgw.solvers.solution import Solution
from torchgw.solvers.warm_start import Start


def finish(solution: Solution, epsilon: float, model: Model, kernel: Kernel, options: SinkhornOptions) -> Solution:
    """A solution whose last problem is solved in float64: its plan is feasible, and stored even where its coupling is
    by potentials.

    O(N K) memory, 16 bytes for each pair of points.

    Raises
    ------
    FloatingPointError
        When the potentials are so large that float64 cannot add them up to exact marginals.
    """
    end = solution.end
    assert end is not None
    assert end.cost is not None
    cost, (p, q), (centred, row, column, f, g) = end.cost, model.masses, end.at(end.cost, epsilon, model)
    start = PotentialCoupling(*centred.balanced_score(epsilon), f, g).to(torch.float64)
    low_rank = cost.extra is None and start.A.shape[1] < min(len(p), len(q)) // 2
    score = start.A @ start.B.T if low_rank else centred.stored_score(epsilon).to(torch.float64)
    plan = torch.empty_like(score)
    sides, most = model.sides(epsilon, centred, torch.float64), options.final_max_iter
    state = scaling(Scaler(kernel.on(score), *sides, plan), start.f, start.g, options=options, max_iter=most)
    largest = AsyncNumbers(state.largest[None])
    solved = PotentialCoupling(start.A, start.B, state.f, state.g)
    rounded, residual = round_to_marginals(solved, p, q, DenseCoupling(plan), model.marginals)
    require_resolved(largest.values()[0], epsilon)
    assert rounded.x is not None
    assert rounded.y is not None
    plan.mul_((rounded.f - state.f).nan_to_num(nan=0.0).exp2()[:, None])
    plan.mul_((rounded.g - state.g).nan_to_num(nan=0.0).exp2()).addr_(rounded.x, rounded.y)
    f, g = state.f - row, state.g - column
    residual = residual if model.fixed else max(residual, float(state.residual))
    return replace(
        solution,
        coupling=rounded if low_rank else DenseCoupling(plan, f, g),
        stored=DenseCoupling(plan),
        end=Start(cost, f, g, epsilon),  # widened when the matrices of this solve are gone
        marginal_residual=residual,
        n_iter_sinkhorn=solution.n_iter_sinkhorn + state.n_iter,
    )


def precision_warning(cost: FactoredCost, epsilon: float, options: GWOptions) -> str | None:
    """Why float32 could not carry the scores that the loop worked on, or None."""
    return watched_precision(cost, epsilon, options)()


def watched_precision(cost: FactoredCost, epsilon: float, options: GWOptions) -> Callable[[], str | None]:
    """What says so once the device has come to it."""
    if not options.mixed_precision:
        return lambda: None
    A, B = cost.centred(epsilon)[0].balanced_score(epsilon)
    reading, rank = AsyncNumbers(reach(A, B)[None]), A.shape[1]
    return lambda: unsafe(reading.values()[0], rank)


def require_resolved(largest: float, epsilon: float) -> None:
    """Refuse to return a plan whose potentials float64 cannot add up: its marginals could not be made exact."""
    if largest > ranges.LARGEST_RATIO:
        raise FloatingPointError(
            f"epsilon = {epsilon:g} is too small: cost / epsilon reaches {largest:.1e}, beyond what float64 resolves"
        )

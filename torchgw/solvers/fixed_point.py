"""The fixed-point iteration with the exact gradient: each linearised problem is solved, rounded, and linearised anew.

    cost C(T) -> score -C / epsilon -> Sinkhorn scaling from the last potentials -> T, rounded onto its marginals

Rounding before the gradient is what keeps few iterations stable: gradient and objective then belong to a feasible plan,
however far Sinkhorn came. The loop ends when the last potentials already solved the new cost and the objective stopped
falling. From a good start that takes three iterations.

Solving each linearisation to its end is a descent where the quadratic part is concave between plans, as squared losses
of distances are under hard marginals; otherwise two plans can be each other's answer. Then the next cost is taken at
T + s (S - T) instead of S, with s halved whenever two consecutive steps point in opposite directions, by `DampedStep`:
the fixed points are the same. Between matrices that are no distances, as adjacencies, the value of a plan tells where
the loop would end: where two swap, it is more than the cost that each was found for says.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling, DenseCoupling
from torchgw.diagnostics.status import Status
from torchgw.kernels.sums import inner as inner_product
from torchgw.losses import SQUARE
from torchgw.objective.linearise import Gradient, ModelGradient
from torchgw.objective.model import mean_cost
from torchgw.options import GWOptions
from torchgw.persist.codec import storable
from torchgw.runtime.transfer import AsyncNumbers
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.sinkhorn.loop import anneal_epsilon, epsilon_at
from torchgw.solvers.finish import check_potentials
from torchgw.solvers.inner import InnerSolver
from torchgw.solvers.iterate import Check, Loop, iterate
from torchgw.solvers.solution import PlanState, Solution
from torchgw.solvers.warm_start import WarmStart

logger = logging.getLogger("torchgw")

CHANGE_TOLERANCE = 10.0
FLAT = 10
SMALLEST_STEP = 1 / 64
# Where two plans swap: share of a plan's value that the cost which it was found for lacks, and of its mass that moves.
SWAPS = 0.01


@storable
@dataclass(frozen=True)
class DampedStep:
    """Damped steps between plans.

    plan : T (N, K), at which the next cost is taken.
    direction : S - T (N, K) of the last step, None before the first.
    step : s in (0, 1].
    """

    plan: Tensor
    direction: Tensor | None = None
    step: float = 1.0

    def step_towards(self, solution: Tensor) -> DampedStep:
        """The next step, towards S (N, K), which is not kept; the memory of this one's tensors is donated to it."""
        direction, step = solution - self.plan, self.step
        if self.direction is not None and float(inner_product(direction, self.direction)) < 0:
            step = max(step / 2, SMALLEST_STEP)
        return DampedStep(self.plan.add_(direction, alpha=step), direction, step)


@storable
@dataclass(frozen=True, kw_only=True)
class FixedPoint(PlanState):
    """Where the fixed-point iteration stands.

    coupling : the plan, rounded, in the solver's memory.
    next : the cost to solve next, None where it is still to be taken at ``coupling``.
    values : objective of each of the last `FLAT` + 1 iterations.
    marginals : row and column sums (N,), (K,) of the plan that ``next`` was taken at, where they may give way.
    damped : damped steps, where plans need them.
    last_change : the larger of the L1 column residual that the last warm potentials had and of ``marginals``' change.
    """

    next: FactoredCost | None = None
    values: tuple[float, ...] = ()
    marginals: tuple[Tensor, Tensor] | None = None
    damped: DampedStep | None = None


def descend(
    gradient: Gradient,
    start: WarmStart,
    inner: InnerSolver,
    options: GWOptions,
    loop: Loop,
    by_value: bool = False,
    resolved: bool = False,
    metric: bool = True,
) -> Solution:
    """Run from ``start``, in its dtype, with the gradient of the objective of the inner solver's model, at its epsilon.

    A start whose potentials belong to no epsilon is annealed from above, any other from its own epsilon, halved at each
    iteration. ``inner`` solves the transport problems and says what memory that takes. ``by_value`` ends it when the
    objective is still, wherever the potentials are. Between spaces that are not ``metric`` two plans may swap, which is
    looked for.

    Raises
    ------
    FloatingPointError
        Where potentials must be ``resolved``, when they are no numbers, or too large to make a plan of in the end.
    """
    assert loop.max_iter is not None
    model, epsilon = inner.model, inner.model.epsilon
    dtype, plan_tol = start.f.dtype, options.stopping.plan_tol
    row, column = (mass.to(dtype) for mass in model.masses)
    annealing = replace(options.annealing, n_iter=min(options.annealing.n_iter, loop.max_iter - 1))
    # Between plans with the same marginals the quadratic part of a squared loss is concave, and whole steps descend.
    concave = model.has_hard_marginals and model.loss is SQUARE
    nothing = row.new_zeros(())

    def evaluate(at: BlockCoupling) -> tuple[FactoredCost, Tensor]:
        """The cost at a plan, and the objective there without its entropy."""
        if isinstance(gradient, ModelGradient):
            return gradient.evaluate(at, row)
        found = gradient(at, row)
        return found, mean_cost(found, at, row, column)

    def begin() -> FixedPoint:
        cost = gradient(start.coupling(), row) if start.cost is None else start.cost
        first = start.epsilon or epsilon_at(0, epsilon, annealing)
        return FixedPoint(warm_start=WarmStart(cost, start.f, start.g, first), next=cost)

    def step(state: FixedPoint) -> tuple[FixedPoint, Check, Status | None]:
        cost = state.next
        if cost is None:
            assert state.coupling is not None
            cost = gradient(state.coupling, row)
        now = anneal_epsilon(state.n_iter, epsilon, start.epsilon, annealing)
        found = inner.solve_linearization(cost, now, state.warm_start, state.marginals, gradient)
        coupling, end = found.coupling, found.warm_start
        following, marginals, damped = None, None, state.damped
        change, moved, evaluates = nothing, nothing, isinstance(gradient, ModelGradient) or damped is not None
        (energy, *known), told = found.host_numbers, found.host_numbers
        if evaluates:
            at = coupling
            if (damped is not None or not concave) and isinstance(coupling, DenseCoupling):
                damped = DampedStep(coupling.plan.clone()) if damped is None else damped.step_towards(coupling.plan)
                at = DenseCoupling(damped.plan)
                moved = nothing if damped.direction is None else damped.direction.abs().sum() / row.sum()
            following, energy = evaluate(at)
            if not model.has_hard_marginals:
                marginals = model.marginals_of(at)
                change = _marginal_distance(state.marginals, marginals)
        # All that the host is to know of the iteration, in one wait.
        residuals = [each for each in (found.residual, found.warm_residual) if isinstance(each, Tensor)]
        if evaluates or residuals:
            told = torch.stack((energy, *known, change, moved, *residuals))
        reading, ahead = AsyncNumbers(told), found.next_cost
        if reading.overlaps and following is ahead is None:  # the next cost, on a GPU while the host waits
            ahead = gradient(coupling, row)
        value, cancelling, largest, *read = reading.values()
        changed, swapped = (read.pop(0), read.pop(0)) if read else (0.0, 0.0)
        residual, warm_residual = (
            read.pop(0) if isinstance(each, Tensor) else each for each in (found.residual, found.warm_residual)
        )
        if resolved:
            check_potentials(largest, epsilon)
        # Below the rounding of the terms that cancel in it, a change of the value means nothing.
        noise = 4 * torch.finfo(dtype).eps * cancelling
        still, values = plan_tol * abs(value) + noise, (*state.values, value)[-FLAT - 1 :]
        # Plans whose marginals may give way can slide for long at almost the same value, and two can swap at the same.
        flat = plan_tol > 0 and len(values) > FLAT and abs(values[0] - value) <= still
        last_change = max(warm_residual, changed)
        length = 1.0 if damped is None else damped.step
        same = by_value or (swapped <= SWAPS and last_change <= CHANGE_TOLERANCE * options.sinkhorn.tol * length)
        held = now == epsilon and len(values) > 1 and abs(values[-2] - value) <= still
        settled = held and (same or (flat and evaluates))
        looked_at = held and not metric and (same or (flat and state.n_iter % FLAT == 0))
        if looked_at and not evaluates and isinstance(coupling, DenseCoupling):
            following, energy = evaluate(coupling)
            if float(energy) - value > max(still, SWAPS * float(energy)):
                logger.info("two plans swap, the value is %.3g instead of %.3g: steps are damped", energy, value)
                settled, damped, value = False, DampedStep(coupling.plan.clone()), float(energy)
                values = (value,)
        state = FixedPoint(
            n_iter=state.n_iter + 1,
            n_iter_sinkhorn=state.n_iter_sinkhorn + found.n_iter,
            warm_start=end,
            coupling=coupling,
            next=ahead if following is None else following,
            values=values,
            marginals=marginals,
            damped=damped,
            last_change=last_change,
        )
        return state, Check(value, residual, now), Status.SETTLED if settled else None

    state, status = iterate(FixedPoint, step, begin, loop, options.stopping.max_iter)
    return Solution.of(state, status, loop.history)


def _marginal_distance(old: tuple[Tensor, Tensor] | None, new: tuple[Tensor, Tensor]) -> Tensor:
    """L1 distance of the marginals of two plans, which tells of relaxed ones what warm potentials do not."""
    if old is None:
        return new[0].new_full((), torch.inf)
    return torch.maximum(*((one - other).abs().sum() for one, other in zip(old, new, strict=True)))

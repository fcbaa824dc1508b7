"""From an entropic plan to one with exact marginals and an exact value, which no plan nearby betters much.

The plan is rounded onto the marginals, its value computed in float64. Entropic potentials mostly show at once, for a
whole batch of pairs, that the Frank-Wolfe gap is small. Where they do not, conditional gradients follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchgw.batched.space import PreparedSpace
from torchgw.couplings.rounding import make_feasible
from torchgw.diagnostics.status import History
from torchgw.objective.bounds import consistent_bound, frank_wolfe_gap
from torchgw.objective.exact import ExactGradient
from torchgw.persist.watch import Watch
from torchgw.solvers.conditional_gradient import DenseProgram, conditional_gradient
from torchgw.solvers.iterate import Loop
from torchgw.spaces import PrecomputedDistances

MOST_STEPS = 20


@dataclass(frozen=True)
class PairPlan:
    """A plan between the points that have mass.

    plan : T (N, K), with exact marginals.
    value : the objective, in squared units of the scaled distances.
    gap : a bound on the Frank-Wolfe gap, over the value.
    marginal_error : L1 distances of both marginals from the masses, added; that of a `GWResult` is the larger one.
    """

    plan: Tensor
    value: float
    gap: float
    marginal_error: float

    @classmethod
    def of(cls, x: PreparedSpace, y: PreparedSpace, plan: Tensor, value: float, gap: float) -> PairPlan:
        """From the gap itself; a value that is nothing but rounding is zero."""
        rows, columns = plan.sum(1) - torch.from_numpy(x.mass), plan.sum(0) - torch.from_numpy(y.mass)
        error = float(rows.abs().sum() + columns.abs().sum())
        if value <= x.rounding + y.rounding:
            return cls(plan, 0.0, 0.0, error)
        return cls(plan, value, gap / value, error)


def polish_product_plan(x: PreparedSpace, y: PreparedSpace, tol: float) -> PairPlan:
    """PairPlan from the product plan: where the points of one of the spaces coincide, all plans are equally good."""
    plan = torch.from_numpy(x.mass)[:, None] * torch.from_numpy(y.mass)
    return polish(x, y, plan, torch.zeros(y.size, dtype=torch.float64), tol)


def polish_batch(
    sides: Sequence[tuple[PreparedSpace, PreparedSpace]], plans: Tensor, duals: Tensor, tol: float
) -> list[PairPlan]:
    """Plans (B, n, k), filled up, with column potentials (B, k) in units of cost, on the CPU in float64, polished."""
    spaces = [[pair[side] for pair in sides] for side in (0, 1)]
    (DX, p), (DY, q) = (_stack_spaces(own, size) for own, size in zip(spaces, plans.shape[1:], strict=True))
    plans = make_feasible(torch.nan_to_num(plans), p, q)
    DTD = torch.bmm(torch.bmm(DX, plans), DY)  # as `ExactGradient`, of many pairs without mixing them
    energies = -2 * (DTD * plans).sum((1, 2))
    lowest, b = consistent_bound(-2 * DTD, p, q, torch.nan_to_num(duals))
    found = []
    for row, ((x, y), energy, most) in enumerate(
        zip(sides, energies.tolist(), frank_wolfe_gap(energies, lowest).tolist(), strict=True)
    ):
        value, plan = x.mean_square + y.mean_square + energy, plans[row, : x.size, : y.size]
        if most <= tol * value or value <= x.rounding + y.rounding:
            found.append(PairPlan.of(x, y, plan, value, most))
        else:
            found.append(polish(x, y, plan, b[row, : y.size], tol))
    return found


def _stack_spaces(spaces: list[PreparedSpace], size: int) -> tuple[Tensor, Tensor]:
    """Distances (B, size, size) and masses (B, size), filled up with zeros."""
    D, mass = (torch.zeros(len(spaces), *shape, dtype=torch.float64) for shape in ((size, size), (size,)))
    for row, space in enumerate(spaces):
        n = space.size
        D[row, :n, :n], mass[row, :n] = torch.from_numpy(space.distances), torch.from_numpy(space.mass)
    return D, mass


def polish(x: PreparedSpace, y: PreparedSpace, plan: Tensor, dual: Tensor, tol: float) -> PairPlan:
    """A plan (N, K) whose gap is at most ``tol`` times its value, or which steps no longer better.

    From a feasible one and column potentials (K,) of -2 D_X T D_Y. O(N K (N + K)) for each step, and a linear program.
    """
    p, q = torch.from_numpy(x.mass), torch.from_numpy(y.mass)
    spaces = [PrecomputedDistances.stored_matrix(torch.from_numpy(side.distances), 1.0) for side in (x, y)]
    gradient = ExactGradient(spaces[0], spaces[1], p, q)
    loop = Loop(Watch(), History(), MOST_STEPS, tol, x.rounding + y.rounding)
    program = DenseProgram(gradient, p, q)
    found, _ = conditional_gradient(program, plan, dual + gradient.b, loop, bound_ends=True)
    return PairPlan.of(x, y, found.plan, found.value, found.gap)

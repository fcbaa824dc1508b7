"""From a solved problem on landmarks to all points: potentials by one half-step each, and the cost of the plan.

With the landmarks' plan T and potentials f, g at epsilon, a point x sees the landmarks of the other space through the
score S(x, b) = 2 sum D_X(x, a) T_ab' D_Y(b', b) / epsilon, and f(x) = log p(x) - log sum_b exp(S(x, b) + g_b). At small
epsilon a Sinkhorn solve from nothing would need thousands of iterations to find these potentials.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torchgw.costs import FactoredCost
from torchgw.gw.gradient import ExactGradient
from torchgw.gw.landmarks import Landmarks
from torchgw.gw.start import Start
from torchgw.kernels import LOG2E
from torchgw.kernels.softmin_dense.reference import softmin
from torchgw.kernels.step import half_step


@dataclass(frozen=True)
class Solved:
    """A plan (L, L') between landmarks, with base-2 potentials at ``epsilon``."""

    source: Landmarks
    target: Landmarks
    plan: Tensor
    f: Tensor
    g: Tensor
    epsilon: float


def lift_potentials(solved: Solved, log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """f (N,), g (K,) of all points, and for each source point the index of the target landmark it sends most to (N,).

    O(N L L' + K L L') work, O(N L' + K L) memory.
    """
    x, y, unit = solved.source, solved.target, 2 * LOG2E / solved.epsilon
    to_y = x.rows.T @ (solved.plan @ y.distances) * unit
    to_x = y.rows.T @ (solved.plan.T @ x.distances) * unit
    f = half_step(log_p, softmin(to_y, solved.g, 1), 1.0)
    g = half_step(log_q, softmin(to_x, solved.f, 1), 1.0)
    return f, g, y.index[(to_y + solved.g).argmax(1)]


def lift(solved: Solved, log_p: Tensor, log_q: Tensor, gradient: ExactGradient | None) -> tuple[Start, Tensor]:
    """Where the loop on all points begins, and the matching (N,) onto target landmarks.

    ``gradient`` gives the cost at the rank of the spaces' factors; without it the rank is that of the landmarks.
    """
    f, g, matching = lift_potentials(solved, log_p, log_q)
    x, y = solved.source, solved.target
    if gradient is not None:
        cost = gradient.of_points(x.index, y.index, solved.plan)
    else:
        a, b = solved.plan.sum(1) @ x.rows.square(), solved.plan.sum(0) @ y.rows.square()
        cost = FactoredCost(a, b, x.rows.T @ solved.plan, y.rows.T.contiguous())
    return Start(cost, f, g, solved.epsilon), matching

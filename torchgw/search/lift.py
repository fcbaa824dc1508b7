"""From a solved problem on landmarks to all points: potentials by one half-step each, and the cost of the plan.

With the landmarks' plan T and potentials f, g at epsilon, a point x sees the landmarks of the other space through the
score S(x, b) = 2 sum D_X(x, a) T_ab' D_Y(b', b) / epsilon, and f(x) = log p(x) - log sum_b exp(S(x, b) + g_b). At small
epsilon a Sinkhorn solve from nothing would need thousands of iterations to find these potentials.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from torch import Tensor

from torchgw.kernels.softmin_dense.reference import softmin
from torchgw.objective.exact import ExactGradient, PairLoss
from torchgw.objective.linearise import weights_of
from torchgw.objective.model import Model
from torchgw.search.anneal import LandmarkProblem, Solved
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.solvers.warm_start import Start

Points: TypeAlias = tuple[Tensor, Tensor]


def lift(
    solved: Solved, model: Model, gradient: ExactGradient | None, whole: Model | None = None, at: Points | None = None
) -> tuple[Start, Tensor]:
    """Where the loop on all points begins, and the matching (N,) onto target landmarks.

    ``gradient`` gives the cost at the rank of the spaces' factors; without it the rank is that of the landmarks. Where
    not all points are lifted to, ``at`` are the indices of those that are, and ``whole`` is the model of all.
    O(N L L' + K L L') work, O(N L' + K L) memory.
    """
    x, y, plan, epsilon = solved.source, solved.target, solved.plan, solved.epsilon
    between = LandmarkProblem.of(x, y, whole or model)
    loss = PairLoss.of(model.loss, x.rows.T, y.rows.T)
    seen = loss.cost(plan, plan.sum(1), plan.sum(0))
    quadratic = replace(seen, V=seen.V.contiguous())
    if gradient is not None:
        factored = gradient.of_points(x.index, y.index, plan)
        quadratic = factored if model.fixed else replace(quadratic, U=factored.U, V=factored.V)
    moments = between.moments(plan) if model.marginals.free_mass else None
    weights = weights_of(between.model, moments)
    cost = quadratic if model.plain else weights.applied(quadratic, model.linear(seen.U.dtype))
    row, column = model.sides(epsilon, cost, seen.U.dtype)

    def score(U: Tensor, V: Tensor, rows: Tensor | slice, columns: Tensor | slice) -> Tensor:
        """The score between some points and landmarks, up to row and column terms."""
        part = FactoredCost(U.new_zeros(len(U)), V.new_zeros(len(V)), U, V)
        return weights.applied(part, None if linear is None else linear.taken(rows, columns)).stored_score(epsilon)

    linear, every = (whole or model).linear(seen.U.dtype), (slice(None), slice(None))
    to_y = score(seen.U, between.loss.h2, (at or every)[0], y.index)
    to_x = score(between.loss.h1 @ plan, seen.V, x.index, (at or every)[1])
    f = row.potential(softmin(to_y, solved.g, 1))
    g = column.potential(softmin(to_x, solved.f, 0))
    return Start(cost, f, g, epsilon), y.index[(to_y + solved.g).argmax(1)]

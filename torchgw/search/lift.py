"""From a solved problem on landmarks to all points: potentials by one half-step each, and the cost of the plan.

With the landmarks' plan T and potentials f, g at epsilon, a point x sees the landmarks of the other space through the
score S(x, b) = 2 sum D_X(x, a) T_ab' D_Y(b', b) / epsilon, and f(x) = log p(x) - log sum_b exp(S(x, b) + g_b). At small
epsilon a Sinkhorn solve from nothing would need thousands of iterations to find these potentials.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from torch import Tensor

from torchgw.kernels.softmin_dense.reference import softmin
from torchgw.losses import loss_factors
from torchgw.objective.exact import ExactGradient, PairLoss
from torchgw.objective.linearise import weights_of
from torchgw.objective.model import Model
from torchgw.problem.problem import StoredProblem
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.search.anneal import CoarseBasin, LandmarkProblem
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.solvers.inner import as_graph_numbers
from torchgw.solvers.warm_start import WarmStart

Points: TypeAlias = tuple[Tensor, Tensor]


def lift(
    solved: CoarseBasin,
    model: Model,
    gradient: ExactGradient | None,
    whole: Model | None = None,
    at: Points | None = None,
    softmin: Callable[..., Tensor] = softmin,
) -> tuple[WarmStart, Tensor]:
    """Where the loop on all points begins, and the matching (N,) onto target landmarks.

    ``gradient`` gives the cost at the rank of the spaces' factors; without it the rank is that of the landmarks. Where
    not all points are lifted to, ``at`` are the indices of those that are, and ``whole`` is the model of all. The
    ``softmin`` is of stored scores.
    O(N L L' + K L L') work, O(N L' + K L) memory.
    """
    _, epsilon = as_graph_numbers(solved.plan.device, 1.0, solved.epsilon, model)
    # A graph serves every epsilon, which comes as a tensor beside.
    ends = CoarseBasin(solved.source, solved.target, solved.plan, solved.f, solved.g, 0.0)
    exact = None if gradient is None else gradient.without_scale
    model, whole = (replace(each, epsilon=0.0) if each.is_standard else each for each in (model, whole or model))
    cost, f, g, matching = _lift_potentials(ends, epsilon, model, exact, whole, at, softmin)
    return WarmStart(cost, f, g, solved.epsilon), matching


def lift_to_points(problem: StoredProblem, solved: CoarseBasin) -> tuple[WarmStart, Tensor]:
    """What was solved between landmarks, lifted to all points."""
    gradient = problem.quadratic if isinstance(problem.quadratic, ExactGradient) else None
    return lift(solved, problem.model, gradient, softmin=problem.kernels.stored.softmin)


@as_cuda_graph()
def _lift_potentials(
    solved: CoarseBasin,
    epsilon: float | Tensor,
    model: Model,
    gradient: ExactGradient | None,
    whole: Model,
    at: Points | None,
    softmin: Callable[..., Tensor],
) -> tuple[FactoredCost, Tensor, Tensor, Tensor]:
    """The cost, potentials and matching of what was solved between landmarks at this epsilon."""
    x, y, plan, f, g = solved.source, solved.target, solved.plan, solved.f, solved.g
    small = whole.restrict(x.medoids, y.medoids, x.mass, y.mass)
    factored = None if gradient is None else gradient.cost_between_points(x.medoids, y.medoids, plan)
    if factored is not None and model.has_hard_marginals:
        near, far = loss_factors(model.loss, x.features.T, y.features.T)
        U, V, quadratic = near @ plan, far, factored
    else:
        seen = PairLoss.of(model.loss, x.features.T, y.features.T).cost(plan, plan.sum(1), plan.sum(0))
        U, V, quadratic = seen.U, seen.V, replace(seen, V=seen.V.contiguous())
        quadratic = quadratic if factored is None else replace(quadratic, U=factored.U, V=factored.V)
    moments = LandmarkProblem.of(x, y, whole).moments(plan) if model.marginals.free_mass else None
    weights = weights_of(small, moments)
    cost = quadratic if model.is_standard else weights.combine_costs(quadratic, model.linear(U.dtype))
    held = model.has_hard_marginals  # whatever the epsilon, which a graph may not read
    row, column = model.make_constraints(epsilon if held else float(epsilon), cost, U.dtype)

    def score(U: Tensor, V: Tensor, rows: Tensor | slice, columns: Tensor | slice) -> Tensor:
        """The score between some points and landmarks, up to row and column terms."""
        part = FactoredCost(U.new_empty(len(U)), V.new_empty(len(V)), U, V)
        return weights.combine_costs(part, None if linear is None else linear.restrict(rows, columns)).stored_score(
            epsilon
        )

    linear, every = whole.linear(U.dtype), (slice(None), slice(None))
    D, E = loss_factors(model.loss, x.distances, y.distances)
    to_y = score(U, E, (at or every)[0], y.medoids)
    to_x = score(D @ plan, V, x.medoids, (at or every)[1])
    matching = y.medoids[(to_y + g).argmax(1)]
    f, g = row.potential(softmin(to_y, g, 1)), column.potential(softmin(to_x, f, 0))
    return cost, f, g, matching

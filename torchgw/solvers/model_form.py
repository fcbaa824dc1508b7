"""The objective without entropy of any model with hard masses, as a
quadratic form on a polytope.

    F(T) = <C(T), T>,    C(T) = alpha Q(T) + L / 2 + <L, T> / (2 W),    L = beta M + P,

is linear in plans of one mass W and self-adjoint, so that conditional
gradients between vertices need no other formula: what is linear in F is as
good as quadratic. Q(T) is the cost of the quadratic part.

The polytopes are

    T 1 = p, T^T 1 = q                  transport plans
    T 1 = p                             each row goes where it costs least (semi-relaxed; of the other side, transposed)
    T 1 <= p, T^T 1 <= q, sum T = m     transport plans with one more row and column, which take what is left (partial):
                                        they cost nothing, and each other too much

Sources: L. Chapel, M. Alaya, G. Gasso, "Partial optimal transport with
applications on positive-unlabeled learning", 2020 (the further points); C.
Vincent-Cuaz et al., "Semi-relaxed Gromov-Wasserstein divergence with
applications on graphs", 2022.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling
from torchgw.couplings.rounding import round_plan
from torchgw.couplings.sparse import SparseCoupling
from torchgw.marginals import Partial
from torchgw.objective.exact import ExactGradient
from torchgw.objective.model import Model
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.solvers.conditional_gradient import DenseProgram

APART = 2.0  # times the largest cost: what both further points cost each other


def make_search_models(model: Model) -> list[Model]:
    """Models by which what leads to one is searched for. Under a free
    marginal it is the model itself, and a partial one with room for the
    largest mass everywhere: beside others, points that all can take say
    little."""
    (p, q), (row, column) = model.masses, model.marginals.weights
    if min(row, column) > 0:
        return [model]
    held, free = (p, q) if column == 0 else (q, p)
    room = torch.maximum(free * (held.sum() / free.sum()), held.amax())
    p, q = (held, room) if column == 0 else (room, held)
    return [model, replace(model, p=p, q=q, marginals=Partial(float(held.sum())))]


class ModelForm(DenseProgram):
    """F, over the plans that a model allows, seen as rows with hard masses.

    model : with the masses p (N,), q (K,), hard or free or only bounded;
        those of the form are its rows and columns'.
    quadratic : C(T) of the quadratic part, in float64.
    exact : whether vertices are the best ones.
    """

    def __init__(self, model: Model, quadratic: ExactGradient, exact: bool = False) -> None:
        (p, q), (row, column), total = model.masses, model.marginals.weights, model.marginals.total
        self.model, self.quadratic, self.has_slack_points = model, quadratic, total is not None
        self.has_free_rows = total is None and row < math.inf
        if total is not None:  # one more row and column take what is left
            rows, columns = ((side.sum() - total).clamp_min(0.0)[None] for side in (q, p))
            p, q = torch.cat((p, rows)), torch.cat((q, columns))
        elif self.has_free_rows:
            p, q = q, p
        super().__init__(None, p, q, exact=exact, free=total is None and min(row, column) < math.inf)

    @cached_property
    def linear(self) -> Tensor | None:
        """L, of the form's plans; None where there is neither M nor P. A
        constraint costs more than the longest cycle of exchanges can save,
        which no price of one pair does."""
        given = self.model.linear(torch.float64)
        if given is None:
            return None
        if self.model.penalty is not None and self.model.strength == math.inf:
            longest = min(len(self.model.p), len(self.model.q)) - 1.0
            given = FactoredCost.weighted_sum([given, self.model.penalty.to(torch.float64)], [1.0, longest])
        return self._extend_costs(given.rows(slice(None)))

    def extend(self, plan: Tensor) -> Tensor:
        """A plan (N, K) as one of the form's, rounded onto the masses; what
        is given is written to."""
        (p, q), marginals = self.model.masses, self.model.marginals
        plan.mul_((marginals.total or 1.0) / plan.sum().clamp_min(torch.finfo(plan.dtype).tiny))
        round_plan(plan, p, q, marginals)
        if not self.has_slack_points:
            return plan.T.contiguous() if self.has_free_rows else plan
        whole = torch.nn.functional.pad(plan, (0, 1, 0, 1))
        whole[:-1, -1], whole[-1, :-1] = (p - plan.sum(1)).clamp_min(0.0), (q - plan.sum(0)).clamp_min(0.0)
        return whole

    def restrict(self, plan: Tensor) -> Tensor:
        """The plan (N, K) that one of the form's stands for."""
        n, k = len(self.model.p), len(self.model.q)
        return plan.T.contiguous() if self.has_free_rows else plan[:n, :k].contiguous()

    def extend_duals(self, dual: Tensor) -> Tensor:
        """Potentials of the form's columns, from column potentials (K,) of
        a linear problem of the model; where a side is free, nothing reads
        them."""
        dual = dual * float(self.model.weight(1.0))
        return torch.cat((dual, dual.amax()[None])) if self.has_slack_points else dual

    def restrict_duals(self, duals: Tensor) -> Tensor:
        """Column potentials (K,) of the model's linear problem, from those
        of the form's columns."""
        if self.free:
            return torch.zeros_like(self.model.q)
        return duals[: len(self.model.q)] / float(self.model.weight(1.0))

    def linearise(self, plan: Tensor | SparseCoupling) -> Tensor:
        stands = DenseCoupling(self.restrict(plan)) if isinstance(plan, Tensor) else self._restrict_coupling(plan)
        rows, columns = stands.marginal(1).to(self.p), stands.marginal(0).to(self.p)
        cost = self.quadratic(stands, rows, None if self.model.has_hard_marginals else columns).rows(slice(None))
        cost = self._extend_costs(cost * self.model.alpha)
        if self.linear is not None:
            cost += self.linear / 2
        return self._add_constants(cost, self._constant(plan))

    def change(self, vertex: SparseCoupling, plan: Tensor, cost: Tensor) -> Tensor:
        corner, stands, exact = self._restrict_coupling(vertex), DenseCoupling(self.restrict(plan)), self.quadratic
        found = exact.change_by_rows(corner, stands.plan)
        if found is None:
            return self.linearise(vertex).sub_(cost)
        if not self.model.has_hard_marginals:
            rows, columns = (corner.marginal(axis) - stands.marginal(axis) for axis in (1, 0))
            a, b = exact.means(rows, columns)
            found.add_(a[:, None]).add_(b)
        found = self._extend_costs(found.mul_(self.model.alpha))
        return self._add_constants(found, self._constant(vertex) - self._constant(plan))

    def _constant(self, plan: Tensor | SparseCoupling) -> float:
        """<L, T> / (2 W)."""
        if self.linear is None:
            return 0.0
        return float(self.inner(self.linear, plan)) / (2 * float(self.p.sum()))

    def _extend_costs(self, cost: Tensor) -> Tensor:
        """Costs (N, K) as those of the form's plans, zero for slack points."""
        if self.has_slack_points:
            return torch.nn.functional.pad(cost, (0, 1, 0, 1))
        return cost.T.contiguous() if self.has_free_rows else cost

    def _add_constants(self, cost: Tensor, constant: float) -> Tensor:
        """Costs of the form's plans, with that of both slack points, and a
        constant; they are written to."""
        if self.has_slack_points:
            cost[-1, -1] = APART * cost.abs().amax()
        return cost.add_(constant)

    def _restrict_coupling(self, plan: SparseCoupling) -> SparseCoupling:
        """The plan (N, K) that one of the form's with few entries stands
        for."""
        n, k = len(self.model.p), len(self.model.q)
        matrix = plan.matrix.T.tocsr() if self.has_free_rows else plan.matrix[:n, :k]
        return SparseCoupling.of(matrix, plan.device)

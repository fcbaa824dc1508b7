"""The objective without entropy of any model with hard masses, as a quadratic form on a polytope.

    F(T) = <C(T), T>,    C(T) = alpha Q(T) + L / 2 + (<L, T> / 2 + c) / W,    L = beta M + P,

is linear in plans of one mass W and self-adjoint, so that conditional gradients between vertices need no other formula:
what is linear in F, or a constant c, is as good as quadratic. Q(T) is the cost of the quadratic part.

The polytopes are

    T 1 = p, T^T 1 = q                  transport plans
    T 1 = p                             each row goes where it costs least (semi-relaxed; of the other side, transposed)
    T 1 <= p, T^T 1 <= q, sum T = m     transport plans with one more row and column, which take what is left (partial):
                                        they cost nothing, and each other too much
    T 1 <= p, T^T 1 <= q                the same with room for all in both, which cost each other nothing either
                                        (total variation)

By total variation a mass m saves r = rho_x + rho_y for what it is: C(T) has - alpha r m too, L has - beta r, and c is
what it costs to match nothing, beyond what masses of unequal sums cost at least.

Sources: L. Chapel, M. Alaya, G. Gasso, "Partial optimal transport with applications on positive-unlabeled learning",
2020 (the further points); C. Vincent-Cuaz et al., "Semi-relaxed Gromov-Wasserstein divergence with applications on
graphs", 2022; Y. Bai et al., "Efficient solvers for partial Gromov-Wasserstein", 2025 (total variation).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling
from torchgw.couplings.rounding import round_plan
from torchgw.couplings.sparse import SparseCoupling
from torchgw.marginals import Partial, Unbalanced
from torchgw.objective.exact import ExactGradient
from torchgw.objective.leading import MatchingGradient
from torchgw.objective.model import Model
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.solvers.frank_wolfe import FreeColumns, Polytope, TransportPlans
from torchgw.types import Coupling

SHARES = (1.0, 0.7)  # of the mass, of partial plans that lead to those of total variation (measured)
APART = 2.0  # times the largest cost: what both further points cost each other


def make_continuation_models(model: Model, gain: float) -> list[Model]:
    """Models that lead to one, itself last. By total variation they begin with one by which matches at random, which
    cost about what there is to ``gain``, are worth it, and each next is half as generous: beside matches that are wrong
    the right ones cost much as well, and judged at once all would be left."""
    if not model.marginals.varied:
        return [model]
    count = math.ceil(math.log2(max(gain / sum(model.marginals.weights), 1.0)))
    (x, y), factors = model.marginals.weights, (2.0**power for power in range(count, 0, -1))
    return [*(replace(model, marginals=Unbalanced(f * x, f * y, "tv")) for f in factors), model]


def make_search_models(model: Model) -> list[Model]:
    """Models by which what leads to one is searched for. Under a free marginal it is the model itself, and a partial
    one with room for the largest mass everywhere: beside others, points that all can take say little. By total
    variation they are partial, of all the mass that there can be, which becomes one, and of less, for outliers."""
    (p, q), (row, column) = model.masses, model.marginals.weights
    if model.marginals.varied:
        most = float(torch.minimum(p.sum(), q.sum()))
        whole = replace(model, p=p / most, q=q / most, beta=model.beta / most, strength=model.strength / most)
        whole = replace(whole, log_mass_scale=model.log_mass_scale + math.log(most))
        return [replace(whole, marginals=Partial(share)) for share in SHARES]
    if min(row, column) > 0:
        return [model]
    held, free = (p, q) if column == 0 else (q, p)
    room = torch.maximum(free * (held.sum() / free.sum()), held.amax())
    p, q = (held, room) if column == 0 else (room, held)
    return [model, replace(model, p=p, q=q, marginals=Partial(float(held.sum())))]


@dataclass(frozen=True)
class ModelForm:
    """F, and the plans that a model allows, seen as rows with hard masses.

    model : with the masses p (N,), q (K,), hard or free or only bounded.
    exact : C(T) of the quadratic part, in float64; of plans of few entries where that takes less.
    """

    model: Model
    exact: ExactGradient | MatchingGradient

    @cached_property
    def linear(self) -> Tensor | None:
        """L (N, K); None where there is neither M nor P. A constraint costs more than the longest cycle of exchanges
        can save, which no price of one pair does, or a mass for what it is."""
        given = self.model.linear(torch.float64)
        if given is None:
            return None
        if self.model.penalty is not None and self.model.strength == math.inf:
            longest = min(len(self.model.p), len(self.model.q)) - 1.0
            given = FactoredCost.weighted_sum([given, self.model.penalty.to(torch.float64)], [1.0, longest])
        return given.rows(slice(None)) - self.model.beta * self.mass_worth

    @property
    def mass_worth(self) -> float:
        """r, what a mass is worth."""
        return sum(self.model.marginals.weights) if self.model.marginals.varied else 0.0

    @property
    def has_slack_points(self) -> bool:
        """Whether one more row and column take what is left."""
        return self.model.marginals.total is not None or self.model.marginals.varied

    @property
    def has_free_rows(self) -> bool:
        """Whether it is the rows that are free."""
        return self.has_free_side and self.model.marginals.weights[0] < math.inf

    def make_polytope(self, exact: bool, rough: bool = False) -> Polytope:
        """Those of the form, see `torchgw.solvers.frank_wolfe.TransportPlans`."""
        return FreeColumns(*self.masses) if self.has_free_side else TransportPlans(*self.masses, exact, rough)

    @property
    def has_free_side(self) -> bool:
        """Whether one side is."""
        return min(self.model.marginals.weights) < math.inf and not self.has_slack_points

    @cached_property
    def masses(self) -> tuple[Tensor, Tensor]:
        """Of the form's rows and columns."""
        (p, q), total = self.model.masses, self.model.marginals.total or 0.0
        if not self.has_slack_points:
            return (q, p) if self.has_free_rows else (p, q)
        left = ((side.sum() - total).clamp_min(0.0)[None] for side in (q, p))
        return torch.cat((p, next(left))), torch.cat((q, next(left)))

    def extend(self, plan: Tensor) -> Tensor:
        """A plan (N, K) as one of the form's, rounded onto the masses; what is given is written to."""
        (p, q), marginals = self.model.masses, self.model.marginals
        total = self._largest_mass if marginals.varied else marginals.total or 1.0
        plan.mul_(total / plan.sum().clamp_min(torch.finfo(plan.dtype).tiny))
        round_plan(plan, p, q, marginals)
        if not self.has_slack_points:
            return plan.T.contiguous() if self.has_free_rows else plan
        whole = torch.nn.functional.pad(plan, (0, 1, 0, 1))
        whole[:-1, -1], whole[-1, :-1] = (p - plan.sum(1)).clamp_min(0.0), (q - plan.sum(0)).clamp_min(0.0)
        if self.model.marginals.varied:
            whole[-1, -1] = plan.sum()
        return whole

    def best_single_pair(self) -> Tensor:
        """The plan (N, K) of the pair that saves most alone: by total variation without a linear cost that is lower
        than no plan at all, which conditional gradients cannot leave."""
        p, q = self.model.masses
        mass = torch.minimum(p[:, None], q)
        saved = self.model.alpha * self.mass_worth * mass
        worth = mass * (saved if self.linear is None else saved - self.linear)
        found = torch.zeros_like(worth)
        found.view(-1)[worth.argmax()] = 1.0
        return found

    def restrict(self, plan: Tensor) -> Tensor:
        """The plan (N, K) that one of the form's stands for."""
        n, k = len(self.model.p), len(self.model.q)
        return plan.T.contiguous() if self.has_free_rows else plan[:n, :k].contiguous()

    def extend_duals(self, dual: Tensor) -> Tensor:
        """Potentials of the form's columns, from column potentials (K,) of a linear problem of the model."""
        if self.has_free_side:
            return torch.zeros_like(self.masses[1])
        dual = dual * self._weight
        return torch.cat((dual, dual.amax()[None])) if self.has_slack_points else dual

    def restrict_duals(self, duals: Tensor) -> Tensor:
        """Column potentials (K,) of the model's linear problem, from those of the form's columns."""
        if self.has_free_side:
            return torch.zeros_like(self.model.q)
        own = duals[: len(self.model.q)] / self._weight
        return own - duals[-1] / self._weight if self.model.marginals.varied else own

    @property
    def _weight(self) -> float:
        return float(self.model.weight(1.0))

    def __call__(self, coupling: Coupling, p: Tensor, q: Tensor | None = None) -> FactoredCost:
        """C(T) (stored) of one of the form's plans."""
        plan = self._restrict_coupling(coupling)
        rows, columns = plan.marginal(1).to(p), plan.marginal(0).to(p)
        cost = (
            self.exact(plan, rows, None if self.model.has_hard_marginals else columns).rows(slice(None))
            * self.model.alpha
        )
        if self.mass_worth > 0:
            cost -= self.model.alpha * self.mass_worth * rows.sum()
        if self.linear is not None:
            cost += self.linear / 2
        return FactoredCost.from_matrix(self._pad_costs(cost).add_(self._constant(plan)))

    def change(self, vertex: SparseCoupling, plan: Tensor, cost: Tensor) -> Tensor:
        """C(S) - C(T) (N, K) of two of the form's plans, the first of few entries, from C(T)."""
        corner, stands = self._restrict_coupling(vertex), DenseCoupling(self.restrict(plan))
        assert isinstance(corner, SparseCoupling)
        exact = self.exact
        found = exact.cross(corner, stands.plan) if isinstance(exact, MatchingGradient) else None
        if found is None:
            return self(vertex, self.masses[0]).rows(slice(None)).sub_(cost)
        if not self.model.has_hard_marginals:
            rows, columns = (corner.marginal(axis) - stands.marginal(axis) for axis in (1, 0))
            a, b = exact.means(rows, columns)
            found.add_(a[:, None] - self.mass_worth * rows.sum()).add_(b)
        found *= self.model.alpha
        return self._pad_costs(found).add_(self._constant(corner) - self._constant(stands))

    def _constant(self, plan: DenseCoupling | SparseCoupling) -> float:
        """(<L, T> / 2 + c) / W of a plan (N, K)."""
        found = self._empty_plan_value
        if self.linear is not None and isinstance(plan, SparseCoupling):
            found += float(plan.mass @ self.linear[plan.row, plan.column]) / 2
        elif self.linear is not None and isinstance(plan, DenseCoupling):
            found += float((plan.plan * self.linear).sum()) / 2
        return found / float(self.masses[0].sum())

    @property
    def _largest_mass(self) -> float:
        """The largest mass of a plan that total variation holds."""
        return float(torch.minimum(self.model.p.sum(), self.model.q.sum()))

    @cached_property
    def unavoidable_cost(self) -> float:
        """What masses of unequal sums cost at least by total variation. It is no part of the form: it would make a
        gap look small."""
        if not self.model.marginals.varied:
            return 0.0
        rows, columns = (side * (self._largest_mass / float(side.sum())) for side in self.model.masses)
        return float(self.model.divergences(rows, columns))

    @cached_property
    def _empty_plan_value(self) -> float:
        """c, what F is of no plan at all, beyond what it is at least."""
        rows, columns = (torch.zeros_like(side) for side in self.model.masses)
        return (
            float(self.model.divergences(rows, columns)) - self.unavoidable_cost if self.model.marginals.varied else 0.0
        )

    def _pad_costs(self, cost: Tensor) -> Tensor:
        """Costs (N, K) as those of the form's plans."""
        if self.has_slack_points:
            largest = cost.abs().amax()
            cost = torch.nn.functional.pad(cost, (0, 1, 0, 1))
            cost[-1, -1] = 0.0 if self.model.marginals.varied else APART * largest
        return cost.T.contiguous() if self.has_free_rows else cost

    def _restrict_coupling(self, coupling: Coupling) -> DenseCoupling | SparseCoupling:
        """The plan (N, K) of few entries where that of the form has few."""
        n, k = len(self.model.p), len(self.model.q)
        if not isinstance(coupling, SparseCoupling):
            return DenseCoupling(self.restrict(coupling.to_dense()))
        matrix = coupling.matrix.T.tocsr() if self.has_free_rows else coupling.matrix[:n, :k]
        return SparseCoupling.of(matrix, coupling.device)

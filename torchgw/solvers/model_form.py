"""The objective without entropy of any model with hard masses, as a quadratic form on a polytope.

    F(T) = <C(T), T>,    C(T) = alpha Q(T) + (m(T) L + <L, T>) / (2 m),    m(T) = sum T,    L = beta M + P,

is linear in T and self-adjoint, so that conditional gradients between vertices need no other formula: where all plans
have the mass m, what is linear in F is as good as quadratic. Q(T) is the cost of the quadratic part.

The polytopes are

    T 1 = p, T^T 1 = q                  transport plans
    T 1 = p                             each row goes where it costs least (semi-relaxed; of the other side, transposed)
    T 1 <= p, T^T 1 <= q, sum T = m     transport plans with one more row and column, which take what is left (partial):
                                        they cost nothing, and each other too much

Sources: L. Chapel, M. Alaya, G. Gasso, "Partial optimal transport with applications on positive-unlabeled learning",
2020 (the further points); C. Vincent-Cuaz et al., "Semi-relaxed Gromov-Wasserstein divergence with applications on
graphs", 2022.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling
from torchgw.couplings.rounding import rounded
from torchgw.couplings.sparse import SparseCoupling
from torchgw.objective.exact import ExactGradient
from torchgw.objective.leading import MatchingGradient
from torchgw.objective.model import Model
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.solvers.frank_wolfe import FreeColumns, Polytope, TransportPlans
from torchgw.types import Coupling

APART = 2.0  # times the largest cost: what both further points cost each other


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
        can save, which no price of one pair does."""
        given = self.model.linear(torch.float64)
        if given is None:
            return None
        if self.model.penalty is not None and self.model.strength == math.inf:
            longest = min(len(self.model.p), len(self.model.q)) - 1.0
            given = FactoredCost.weighted_sum([given, self.model.penalty.to(torch.float64)], [1.0, longest])
        return given.rows(slice(None))

    @property
    def turned(self) -> bool:
        """Whether it is the rows that are free."""
        return self.model.marginals.weights[0] < math.inf

    def plans(self, exact: bool, rough: bool = False) -> Polytope:
        """Those of the form, see `torchgw.solvers.frank_wolfe.TransportPlans`."""
        return FreeColumns(*self.masses) if self.free else TransportPlans(*self.masses, exact, rough)

    @property
    def free(self) -> bool:
        """Whether one side is."""
        return min(self.model.marginals.weights) < math.inf

    @cached_property
    def masses(self) -> tuple[Tensor, Tensor]:
        """Of the form's rows and columns."""
        (p, q), total = self.model.masses, self.model.marginals.total
        if total is None:
            return (q, p) if self.turned else (p, q)
        left = ((side.sum() - total).clamp_min(0.0)[None] for side in (q, p))
        return torch.cat((p, next(left))), torch.cat((q, next(left)))

    def entered(self, plan: Tensor) -> Tensor:
        """A plan (N, K) as one of the form's, rounded onto the masses; what is given is written to."""
        (p, q), total = self.model.masses, self.model.marginals.total
        plan.mul_((p > 0)[:, None]).mul_(q > 0)
        plan.mul_((total or 1.0) / plan.sum().clamp_min(torch.finfo(plan.dtype).tiny))
        plan = rounded(plan, p, q, self.model.marginals)
        if total is None:
            return plan.T.contiguous() if self.turned else plan
        whole = torch.nn.functional.pad(plan, (0, 1, 0, 1))
        whole[:-1, -1], whole[-1, :-1] = (p - plan.sum(1)).clamp_min(0.0), (q - plan.sum(0)).clamp_min(0.0)
        return whole

    def left(self, plan: Tensor) -> Tensor:
        """The plan (N, K) that one of the form's stands for."""
        n, k = len(self.model.p), len(self.model.q)
        return plan.T.contiguous() if self.turned else plan[:n, :k].contiguous()

    def duals(self, dual: Tensor) -> Tensor:
        """Potentials of the form's columns, from column potentials (K,) of a linear problem of the model."""
        if self.free:
            return torch.zeros_like(self.masses[1])
        dual = dual * self._weight
        return dual if self.model.marginals.total is None else torch.cat((dual, dual.amax()[None]))

    def dual(self, duals: Tensor) -> Tensor:
        """Column potentials (K,) of the model's linear problem, from those of the form's columns."""
        return torch.zeros_like(self.model.q) if self.free else duals[: len(self.model.q)] / self._weight

    @property
    def _weight(self) -> float:
        return float(self.model.weight(1.0))

    def __call__(self, coupling: Coupling, p: Tensor, q: Tensor | None = None) -> FactoredCost:
        """C(T) (stored) of one of the form's plans."""
        plan = self._stands_for(coupling)
        rows, columns = plan.marginal(1).to(p), plan.marginal(0).to(p)
        cost = self.exact(plan, rows, None if self.model.fixed else columns).rows(slice(None)) * self.model.alpha
        if self.linear is not None:
            cost += (self.linear + self._mean(plan)) / 2
        return FactoredCost.stored(self._padded(cost))

    def change(self, vertex: SparseCoupling, plan: Tensor, cost: Tensor) -> Tensor:
        """C(S) - C(T) (N, K) of two of the form's plans, the first of few entries, from C(T)."""
        corner, stands = self._stands_for(vertex), DenseCoupling(self.left(plan))
        assert isinstance(corner, SparseCoupling)
        exact = self.exact
        found = exact.cross(corner, stands.plan) if isinstance(exact, MatchingGradient) else None
        if found is None:
            return self(vertex, self.masses[0]).rows(slice(None)).sub_(cost)
        if not self.model.fixed:
            rows, columns = (corner.marginal(axis) - stands.marginal(axis) for axis in (1, 0))
            a, b = exact.means(rows, columns)
            found.add_(a[:, None]).add_(b)
        found *= self.model.alpha
        if self.linear is not None:
            found += (self._mean(corner) - self._mean(stands)) / 2
        return self._padded(found)

    def _mean(self, plan: DenseCoupling | SparseCoupling) -> Tensor:
        """<L, T> / m of a plan (N, K)."""
        assert self.linear is not None
        if isinstance(plan, SparseCoupling):
            return plan.mass @ self.linear[plan.row, plan.column] / plan.mass.sum()
        return (plan.plan * self.linear).sum() / plan.plan.sum()

    def _padded(self, cost: Tensor) -> Tensor:
        """Costs (N, K) as those of the form's plans."""
        if self.model.marginals.total is not None:
            cost = torch.nn.functional.pad(cost, (0, 1, 0, 1))
            cost[-1, -1] = APART * cost.abs().amax()
        return cost.T.contiguous() if self.turned else cost

    def _stands_for(self, coupling: Coupling) -> DenseCoupling | SparseCoupling:
        """The plan (N, K) of few entries where that of the form has few."""
        n, k = len(self.model.p), len(self.model.q)
        if not isinstance(coupling, SparseCoupling):
            return DenseCoupling(self.left(coupling.to_dense()))
        matrix = coupling.matrix.T.tocsr() if self.turned else coupling.matrix[:n, :k]
        return SparseCoupling.of(matrix, coupling.device)

"""The curvature of the objective around a plan: what a change W of the plan adds to the cost that it solves.

Half the second derivative of F (see `torchgw.gw.model`) is that of the linear transport problem with the weight w, which
`torchgw.sinkhorn.implicit` inverts, and

    B W = alpha [C(W) + <l, W> + (rho_x + rho_y + epsilon) <1, W> + <1, W> l],
    l = sum rho log(mu / p) + epsilon log(T / p q^T),

where all but C(W), the linearised quadratic part, is for free masses only; there l = -Chat, because T is stationary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchgw.costs import FactoredCost
from torchgw.couplings import DenseCoupling
from torchgw.gw.gradient import ExactGradient
from torchgw.gw.model import Model, mean_cost
from torchgw.sinkhorn.implicit import Answer


@dataclass(frozen=True)
class Curvature:
    """B around a plan whose mass is free only where ``level`` = l is given. ``quadratic`` has the spaces' distances."""

    quadratic: ExactGradient
    model: Model
    level: FactoredCost | None

    @property
    def small(self) -> bool:
        """Whether B W follows from a few numbers of W, because both spaces have factors."""
        return self.factors is not None

    @property
    def factors(self) -> tuple[Tensor, Tensor] | None:
        """F (N, r), G (K, s) of both spaces, or None."""
        left, right = self.quadratic.source.factors(), self.quadratic.target.factors()
        return None if left is None or right is None else (left[0], right[0])

    def read(self, answer: Answer) -> Tensor:
        """The numbers of W that `of` needs, in one vector."""
        W, parts = answer.change, []
        if self.factors is None:
            assert isinstance(W, DenseCoupling)
            return W.plan.flatten()
        F, G = self.factors
        parts = [(F.T @ W.apply(G, 1)).flatten()]
        if not self.model.fixed:
            parts += [answer.rows, answer.columns]
        if self.level is not None:
            parts += [mean_cost(self.level, W, answer.rows, answer.columns)[None]]
        return torch.cat(parts)

    def of(self, read: Tensor) -> FactoredCost:
        """B W, from what was read of W."""
        model = self.model
        rows, columns = (torch.zeros_like(mass).to(read) for mass in model.masses)
        n, k = len(rows), len(columns)
        if self.factors is None:
            stored = DenseCoupling(read.view(n, k))
            if not model.fixed:
                rows, columns = stored.marginal(1), stored.marginal(0)
            cost = self.quadratic(stored, rows, columns)
            level = None if self.level is None else mean_cost(self.level, stored, rows, columns)
        else:
            size = self.factors[0].shape[1] * self.factors[1].shape[1]
            if not model.fixed:
                rows, columns = read[size : size + n], read[size + n : size + n + k]
            cost = self.quadratic.of_core(read[:size].view(self.factors[0].shape[1], -1), rows, columns)
            level = None if self.level is None else read[-1]
        if self.level is None or level is None:
            return FactoredCost.weighted_sum([cost], [model.alpha])
        mass = rows.sum()
        constant = level + (sum(model.marginals.weights) + model.epsilon) * mass
        found = FactoredCost.weighted_sum([cost, self.level], [model.alpha, model.alpha * mass])
        return replace(found, a=found.a + model.alpha * constant)


def level_of(cost: FactoredCost, model: Model) -> FactoredCost | None:
    """l from the cost Chat of the model at its solution, where the mass is free."""
    if not model.marginals.free_mass:
        return None
    found = FactoredCost.weighted_sum([cost], [-1.0])
    return replace(found, a=found.a - model.epsilon * model.logarithm)


"""Where the outer loop begins: a cost to solve first, and potentials to solve it from."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling
from torchgw.couplings.potential import PotentialCoupling
from torchgw.kernels import LN2
from torchgw.kernels.logsumexp import flush_small
from torchgw.kernels.softmin_stream.reference import softmin
from torchgw.objective.linearise import Gradient, linearise
from torchgw.objective.model import Model
from torchgw.objective.sampled import Anchors, sampled_cost
from torchgw.persist.codec import storable
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.sinkhorn.loop import rescale
from torchgw.types import DistanceProvider


@storable
@dataclass(frozen=True)
class WarmStart:
    """A linearised cost and dual potentials to go on from.

    cost : (N, K), in units of the scaled squared distances; None where it is to be taken from ``coupling``.
    f, g : base-2 potentials (N,), (K,) of the score 2 U V^T log2(e) / epsilon, with U and V of the cost as they are.
    epsilon : theirs; None where they carry nothing, and annealing begins at its own first value.
    plan : (N, K), which the cost belongs to, where conditional gradients are to begin from it.
    """

    cost: FactoredCost | None
    f: Tensor
    g: Tensor
    epsilon: float | None = None
    plan: Tensor | None = None

    def to(self, dtype: torch.dtype) -> WarmStart:
        """The same in another precision."""
        cost = None if self.cost is None else self.cost.to(dtype)
        return replace(self, cost=cost, f=self.f.to(dtype), g=self.g.to(dtype))

    def adapt(
        self, cost: FactoredCost, epsilon: float, model: Model
    ) -> tuple[FactoredCost, Tensor, Tensor, Tensor, Tensor]:
        """A cost centred, the row (N,) and column (K,) terms that this takes off its score, and the potentials (N,),
        (K,) as warm ones of it at ``epsilon``."""
        assert self.epsilon is not None
        return adapt_potentials(cost, self.f, self.g, self.epsilon / epsilon, epsilon, model.logs)

    def column_dual(self, q: Tensor) -> Tensor:
        """Column potentials (K,) of the linear problem in units of cost, float64; q (K,) are the masses."""
        assert self.cost is not None
        assert self.epsilon is not None
        return self.cost.column_dual(self.g, q, self.epsilon).to(torch.float64)

    def coupling(self) -> PotentialCoupling | DenseCoupling:
        """The plan these potentials stand for under the cost; without a cost, 2^(f + g)."""
        if self.cost is None or self.epsilon is None:
            return PotentialCoupling(self.f.new_zeros(len(self.f), 1), self.g.new_zeros(len(self.g), 1), self.f, self.g)
        centred, row, column = self.cost.centre_factors(self.epsilon)
        return coupling_of(centred, self.f + row, self.g + column, self.epsilon)

    def with_row_sums(self, log_p: Tensor) -> WarmStart:
        """The start with the row sums p (N,), given as base-2 logarithms: potentials lifted one by one can stand for
        plans of any mass, from which no anchors should be drawn. As it is without a cost, or with a stored part."""
        if self.cost is None or self.epsilon is None or self.cost.extra is not None:
            return self
        centred, row, column = self.cost.centre_factors(self.epsilon)
        f = log_p - softmin(*centred.balanced_score(self.epsilon), self.g + column, 1)
        return WarmStart(self.cost, f - row, self.g, self.epsilon)

    def dense_plan(self, model: Model) -> Tensor:
        """The plan (N, K) of the potentials of one side, with the masses of the other where these are hard, or the
        smaller ones: both sides' may overflow where they were lifted one by one."""
        assert self.cost is not None
        assert self.epsilon is not None
        part = model.marginals.total is not None and float(model.q.sum()) < float(model.p.sum())
        turned = part or model.marginals.weights[0] < math.inf
        cost, g, mass = (self.cost.T, self.f, model.q) if turned else (self.cost, self.g, model.p)
        centred, _, column = cost.centre_factors(self.epsilon)
        exponent = centred.stored_score(self.epsilon).add_(g + column).mul_(LN2)
        plan = exponent.softmax(1).mul_(mass[:, None])
        return plan.T if turned else plan


def adapt_potentials(
    cost: FactoredCost,
    f: Tensor,
    g: Tensor,
    ratio: float | Tensor,
    epsilon: float | Tensor,
    logs: tuple[Tensor, Tensor],
) -> tuple[FactoredCost, Tensor, Tensor, Tensor, Tensor]:
    """`WarmStart.adapt` of potentials of ``ratio`` times this epsilon, with the base-2 logarithms of the masses."""
    centred, row, column = cost.centre_factors(epsilon)
    f, g = (rescale(side, log, ratio) for side, log in zip((f, g), logs, strict=True))
    f, g = torch._foreach_add((f, g), (row, column))
    return centred, row, column, f, g


def coupling_of(
    cost: FactoredCost, f: Tensor, g: Tensor, epsilon: float, score: Tensor | None = None
) -> PotentialCoupling | DenseCoupling:
    """The plan of a centred cost and its potentials, stored where the cost has a stored part, from the stored ``score``
    (N, K) where there is one, which is kept."""
    if cost.extra is None:
        return PotentialCoupling(*cost.balanced_score(epsilon), f, g)
    score = cost.stored_score(epsilon) if score is None else score
    return DenseCoupling(flush_small((score + f[:, None]).add_(g).exp2_()))


def product_start(log_p: Tensor, log_q: Tensor) -> WarmStart:
    """The product plan of mass one: no information about the matching."""
    return WarmStart(None, log_p - log_p.exp2().sum().log2(), log_q - log_q.exp2().sum().log2())


def plan_start(plan: Tensor, gradient: Gradient, log_p: Tensor, log_q: Tensor, epsilon: float) -> WarmStart:
    """From a plan (N, K) of the user's, scaled to mass one; its marginals need not hold."""
    coupling = DenseCoupling(plan / plan.sum())
    return WarmStart(gradient(coupling, coupling.marginal(1)), log_p, log_q, epsilon)


def pairs_start(
    pairs: Tensor, source: DistanceProvider, target: DistanceProvider, log_p: Tensor, log_q: Tensor, model: Model
) -> WarmStart:
    """From matching pairs (m, 2): each point is matched by its distances to them."""
    cost = sampled_cost(source, target, Anchors(pairs[:, 0], pairs[:, 1]))
    cost = linearise(model, cost, model.linear(cost.U.dtype))
    return WarmStart(cost, log_p, log_q, model.epsilon)

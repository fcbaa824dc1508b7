"""Where the outer loop begins: a cost to solve first, and potentials to solve it from."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling
from torchgw.couplings.potential import PotentialCoupling
from torchgw.kernels.logsumexp import flush_small
from torchgw.kernels.softmin_dense import reference as softmin_dense
from torchgw.kernels.softmin_stream import reference as softmin_stream
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

    def column_dual(self, q: Tensor) -> Tensor:
        """Column potentials (K,) of the linear problem in units of cost, float64; q (K,) are the masses."""
        assert self.cost is not None
        assert self.epsilon is not None
        return self.cost.column_dual(self.g, q, self.epsilon).to(torch.float64)

    def coupling(self) -> PotentialCoupling | DenseCoupling:
        """The plan these potentials stand for under the cost, stored where this has a stored part; without a cost,
        2^(f + g)."""
        if self.cost is None or self.epsilon is None:
            return PotentialCoupling(self.f.new_zeros(len(self.f), 1), self.g.new_zeros(len(self.g), 1), self.f, self.g)
        centred, row, column = self.cost.centre_factors(self.epsilon)
        f, g = self.f + row, self.g + column
        if centred.extra is None:
            return PotentialCoupling(*centred.balanced_score(self.epsilon), f, g)
        return DenseCoupling(flush_small(centred.stored_score(self.epsilon).add_(f[:, None]).add_(g).exp2_()))

    def with_row_sums(self, log_p: Tensor) -> WarmStart:
        """The start with the row sums p (N,), given as base-2 logarithms: potentials lifted one by one can stand for
        plans of any mass, from which no anchors should be drawn. As it is without a cost."""
        if self.cost is None or self.epsilon is None:
            return self
        centred, row, column = self.cost.centre_factors(self.epsilon)
        if centred.extra is None:
            sums = softmin_stream.softmin(*centred.balanced_score(self.epsilon), self.g + column, 1)
        else:
            sums = softmin_dense.softmin(centred.stored_score(self.epsilon), self.g + column, 1)
        return WarmStart(self.cost, log_p - sums - row, self.g, self.epsilon)

    def dense_plan(self, model: Model) -> Tensor:
        """The plan (N, K) of the potentials of one side, with the masses of the other where these are hard, or the
        smaller ones: both sides' may overflow where they were lifted one by one."""
        assert self.cost is not None
        part = model.marginals.total is not None and float(model.q.sum()) < float(model.p.sum())
        turned = part or model.marginals.weights[0] < math.inf
        start = WarmStart(self.cost.T, self.g, self.f, self.epsilon) if turned else self
        plan = start.with_row_sums(model.logs[turned].to(self.f)).coupling().to_dense()
        return plan.T if turned else plan


def adapt_potentials(
    cost: FactoredCost,
    f: Tensor,
    g: Tensor,
    ratio: float | Tensor,
    epsilon: float | Tensor,
    logs: tuple[Tensor, Tensor],
) -> tuple[FactoredCost, Tensor, Tensor, Tensor, Tensor]:
    """A cost centred, the row (N,) and column (K,) terms that this takes off its score, and potentials (N,), (K,) of
    ``ratio`` times this epsilon as warm ones of it, with the base-2 logarithms of the masses."""
    centred, row, column = cost.centre_factors(epsilon)
    f, g = (rescale(side, log, ratio) for side, log in zip((f, g), logs, strict=True))
    f, g = torch._foreach_add((f, g), (row, column))
    return centred, row, column, f, g


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

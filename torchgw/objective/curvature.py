"""The curvature of the objective around a plan: what a change W of the plan adds to the cost that it solves.

Half the second derivative of F (see `torchgw.objective.model`) is that of the linear transport problem with the weight
w, which `torchgw.sinkhorn.implicit` inverts, and

    B W = alpha [C(W) + <l, W> + (rho_x + rho_y + epsilon) <1, W> + <1, W> l],
    l = sum rho log(mu / p) + epsilon log(T / p q^T),

where all but C(W), the linearised quadratic part, is for free masses only; there l = -Chat, because T is stationary.
With S the response of the linear problem, an outer iteration moves T + W to T - S B W / w. So

    (I + S B / w) W = R

is solved both by Newton's method for the fixed point (R what an iteration still moves) and by its adjoint. The numbers
that B reads of W are all that GMRES needs: the r r' ones of F^T W G where both spaces have factors F and G, with the
sums of W if marginals give way; otherwise all of W.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling, DenseCoupling
from torchgw.linalg.linear_systems import LinearSolution, gmres
from torchgw.objective.exact import ExactGradient
from torchgw.objective.model import Model, mean_cost
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.sinkhorn.implicit import Response

RESTART, RESTART_STORED = 100, 20


@dataclass(frozen=True)
class Curvature:
    """B around a plan.

    quadratic : C(W), with the distances of both spaces.
    model : with the weights and the marginal model.
    level : l (N, K) where the mass of the plan is free, else None.
    whole : whether a stored W is read as it is, even where both spaces have factors.
    """

    quadratic: ExactGradient
    model: Model
    level: FactoredCost | None
    whole: bool = False

    @property
    def factors(self) -> tuple[Tensor, Tensor] | None:
        """F (N, r), G (K, r') where W is read through them."""
        left, right = self.quadratic.source.factors(), self.quadratic.target.factors()
        return None if self.whole or left is None or right is None else (left[0], right[0])

    def compress_coupling(self, W: BlockCoupling, row_sums: Tensor, column_sums: Tensor) -> Tensor:
        """The numbers of W, whose sums these are, that `cost_of` needs, in one vector."""
        if self.factors is None:
            assert isinstance(W, DenseCoupling)
            return W.plan.flatten()
        F, G = self.factors
        parts = [(F.T @ W.apply(G, 1)).flatten()]
        if not self.model.has_hard_marginals:
            parts += [row_sums, column_sums]
        if self.level is not None:
            parts += [mean_cost(self.level, W, row_sums, column_sums)[None]]
        return torch.cat(parts)

    def cost_of(self, read: Tensor, factor: float = 1.0) -> FactoredCost:
        """B W times a factor, from what was read of W."""
        if self.factors is not None:
            return self.to_cost(factor * self.multiply(read))
        model, weight = self.model, self.model.alpha * factor
        W = DenseCoupling(read.view(len(model.p), len(model.q)))
        if model.has_hard_marginals:
            rows, columns = (torch.zeros_like(mass).to(read) for mass in model.masses)
        else:
            rows, columns = W.marginal(1), W.marginal(0)
        cost = self.quadratic(W, rows, columns)
        if self.level is None:
            return FactoredCost.weighted_sum([cost], [weight])
        mass, level = rows.sum(), mean_cost(self.level, W, rows, columns)
        found = FactoredCost.weighted_sum([cost, self.level], [weight, weight * mass])
        return replace(found, a=found.a + weight * (level + model.growth * mass))

    def multiply(self, read: Tensor) -> Tensor:
        """B W, from what was read of W, as the numbers that `to_cost` makes a cost of: <W', B W> is their inner product
        with what is read of W'."""
        if self.factors is None:
            return self.cost_of(read).rows(slice(None)).flatten()
        left, right = self.quadratic.source.factors(), self.quadratic.target.factors()
        assert left is not None
        assert right is not None
        s, t = left[1], right[1]
        core, rows, columns, level = self.parts(read)
        parts = [(-2 * s[:, None] * core * t).flatten()]
        if not self.model.has_hard_marginals:
            a, b = self.quadratic.means(rows, columns)
            mass = rows.sum()
            parts += [a if self.level is None else a + level + self.model.growth * mass, b]
            parts += [] if self.level is None else [mass[None]]
        return self.model.alpha * torch.cat(parts)

    def to_cost(self, numbers: Tensor) -> FactoredCost:
        """The cost (N, K) whose mean over any W is the inner product of the numbers with what is read of W."""
        if self.factors is None:
            return FactoredCost.from_matrix(numbers.view(len(self.model.p), len(self.model.q)))
        (F, G), (core, rows, columns, level) = self.factors, self.parts(numbers)
        U, V = (F @ core / -2, G) if F.shape[1] >= G.shape[1] else (F, G @ core.T / -2)
        found = FactoredCost(rows, columns, U, V)
        return found if self.level is None else FactoredCost.weighted_sum([found, self.level], [1.0, level])

    def subtract_terms(self, numbers: Tensor, row: Tensor, column: Tensor) -> Tensor:
        """The numbers whose cost is less by row (N,) and column (K,) terms, where they have these."""
        if self.factors is None:
            return (numbers.view(len(row), len(column)) - row[:, None] - column).flatten()
        found = numbers.clone()
        _, rows, columns, _ = self.parts(found)  # which lie in its memory, where there are any
        rows -= row
        columns -= column
        return found

    @property
    def size(self) -> int:
        """How many numbers are read."""
        n, k = len(self.model.p), len(self.model.q)
        if self.factors is None:
            return n * k
        F, G = self.factors
        return F.shape[1] * G.shape[1] + (0 if self.model.has_hard_marginals else n + k) + (self.level is not None)

    def parts(self, read: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """F^T W G (r, r'), the sums (N,), (K,) of W and <l, W> () of numbers that were read through factors; zeros of
        those that are not."""
        assert self.factors is not None
        (F, G), n, k = self.factors, len(self.model.p), len(self.model.q)
        size = F.shape[1] * G.shape[1]
        core, rest = read[:size].view(F.shape[1], G.shape[1]), read[size:]
        if self.model.has_hard_marginals:
            return core, read.new_zeros(n), read.new_zeros(k), read.new_zeros(())
        return core, rest[:n], rest[n : n + k], rest[n + k :].sum()

    def solve(self, respond: Response, right: Tensor, tol: float, max_iter: int) -> LinearSolution:
        """(I + S B / w) W = R in terms of what is read of W and R."""
        weight = float(self.model.weight(respond.sums[0].sum()))

        def operator(y: Tensor) -> Tensor:
            found = respond(self.cost_of(y, 1 / weight))
            return y + self.compress_coupling(found.change, found.rows, found.columns)

        restart = RESTART_STORED if self.factors is None else RESTART
        least = 50 * torch.finfo(right.dtype).eps
        return gmres(operator, right, tol=max(tol, least), max_iter=max_iter, restart=restart)


def level_of(cost: FactoredCost, model: Model) -> FactoredCost | None:
    """l from the cost Chat of the model at its solution, where the mass is free."""
    if not model.marginals.free_mass:
        return None
    found = FactoredCost.weighted_sum([cost], [-1.0])
    return replace(found, a=found.a - model.epsilon * model.log_mass_scale)

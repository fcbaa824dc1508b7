"""The second derivative of the objective around a plan: its curvature B, and
the Hessian A as an operator.

Half the second derivative of F (see `torchgw.objective.model`) at a plan T is w
L + B: L that of the linear transport problem, of the entropy and the
divergences of marginals,

    <W, L W> = epsilon sum W^2 / T + sum rho (sums of W)^2 / mu,    w its weight,

which `torchgw.sinkhorn.implicit` inverts, and what a change W of the plan adds
to the cost that it solves,

    B W = alpha [C(W) + <l, W> + (rho_x + rho_y + epsilon) <1, W> + <1, W> l],
    l = sum rho log(mu / p) + epsilon log(T / p q^T),

where all but C(W), the linearised quadratic part, is for free masses only;
there l = -Chat, because T is stationary. With S the inverse of L on the changes
that are allowed, the response of the linear problem, an outer iteration moves T
+ W to T - S B W / w. So

    (I + S B / w) W = R

is solved both by Newton's method for the fixed point (R what an iteration still
moves) and by its adjoint. The numbers that B reads of W are all that GMRES
needs: E W, the r r' ones of F^T W G where both spaces have factors F and G,
with the sums of W if marginals give way; otherwise all of W.

Relative to w L the second derivative is the operator

    A = 1 + S B / w,

which is self-adjoint in <W, W'> = <W, w L W'>. Its eigenvalues are numbers
without unit: 1 where distances say nothing, above it where they hold a match,
near zero along a continuous symmetry, and negative at a saddle, from which F
falls both ways. The fixed-point iteration multiplies what is left of an
eigenvector by 1 minus its eigenvalue.

All of A - 1 lies in E W, and B = E^T Z E. So changes are W = S E^T v / w with a
vector v of as many numbers, of which

    M v = E W,    A v = v + Z M v,    <v, v'> = v^T M v'.

A step costs one answer of the linear problem to a cost. Directions that B does
not read have the eigenvalue 1.

Where both spaces have factors, an answer is W = T o (F c G^T + a 1^T + 1 b^T) /
epsilon, and all that is asked of it are sums over the plan of products of
factors,

    T G,    T^T F,    Q = sum_ij T_ij (f_i f_i^T) x (g_j g_j^T),
    F^T W G = (Q c + F^T diag(a) T G + ...) / epsilon.

Of a plan that is not stored they are taken once, r (r + 1) / 2 products with it
for the smaller rank, and a step is left with the system for a and b alone: no
entry of the plan is looked at again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling, DenseCoupling
from torchgw.kernels.blocks import blocks
from torchgw.linalg.linear_systems import LinearSolution, gmres
from torchgw.objective.exact import ExactGradient
from torchgw.objective.model import Model, mean_cost
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.sinkhorn.implicit import PlanSensitivity, Response

RESTART, RESTART_STORED = 100, 20
FLAT = 0.05  # an eigenvalue up to which a plan slides next to free of cost, and whose sign a solve may leave open
PAIRS_AT_ONCE, POINTS_AT_ONCE = 256, 2**13  # products of factors that the plan is multiplied with, and points


@dataclass(frozen=True)
class Curvature:
    """B around a plan.

    quadratic : C(W), with the distances of both spaces.
    model : with the weights and the marginal model.
    level : l (N, K) where the mass of the plan is free, else None.
    whole : whether a stored W is read as it is, even where both spaces have
        factors.
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
        """The numbers of W, whose sums these are, that `cost_of` needs, in one
        vector."""
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
        """B W, from what was read of W, as the numbers that `to_cost` makes a
        cost of: <W', B W> is their inner product with what is read of W'."""
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
        """The cost (N, K) whose mean over any W is the inner product of the
        numbers with what is read of W."""
        if self.factors is None:
            return FactoredCost.from_matrix(numbers.view(len(self.model.p), len(self.model.q)))
        (F, G), (core, rows, columns, level) = self.factors, self.parts(numbers)
        U, V = (F @ core / -2, G) if F.shape[1] >= G.shape[1] else (F, G @ core.T / -2)
        found = FactoredCost(rows, columns, U, V)
        return found if self.level is None else FactoredCost.weighted_sum([found, self.level], [1.0, level])

    def subtract_terms(self, numbers: Tensor, row: Tensor, column: Tensor) -> Tensor:
        """The numbers whose cost is less by row (N,) and column (K,) terms,
        where they have these."""
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
        """F^T W G (r, r'), the sums (N,), (K,) of W and <l, W> () of numbers
        that were read through factors; zeros of those that are not."""
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


class FactorMoments(NamedTuple):
    """Sums of products of factors F (N, r), G (K, r') over a plan.

    TG, TtF : T G (N, r') and T^T F (K, r).
    fourth : Q (r (r + 1) / 2, r' (r' + 1) / 2), between pairs of columns of F
        and of G.
    """

    TG: Tensor
    TtF: Tensor
    fourth: Tensor

    @classmethod
    def of(cls, plan: BlockCoupling, F: Tensor, G: Tensor) -> FactorMoments:
        """O((N + K) r) memory."""
        axis = 1 if G.shape[1] <= F.shape[1] else 0
        few, many = (G, F) if axis == 1 else (F, G)
        (first, second), (one, other) = (torch.triu_indices(*2 * [side.shape[1]]).to(F.device) for side in (few, many))
        fourth = F.new_zeros(len(first), len(one))
        for pairs in blocks(len(first), PAIRS_AT_ONCE):
            images = plan.apply(few[:, first[pairs]] * few[:, second[pairs]], axis)
            for points in blocks(len(many), POINTS_AT_ONCE):
                fourth[pairs] += images[points].T @ (many[points][:, one] * many[points][:, other])
        fourth = fourth.T if axis == 1 else fourth
        return cls(plan.apply(G, 1), plan.apply(F, 0), fourth.contiguous())

    def times(self, core: Tensor) -> Tensor:
        """F^T (T o F c G^T) G (r, r') for c (r, r')."""
        left, right = _pairs(self.TtF), _pairs(self.TG)
        found = [(self.fourth[pair][:, right] * core[:, None]).sum((0, 2)) for pair in left]
        return torch.stack(found)


def _pairs(factor: Tensor) -> Tensor:
    """The number of each pair of columns, whichever comes first, (r, r)."""
    r = factor.shape[1]
    one, other = torch.triu_indices(r, r)
    found = torch.empty(r, r, dtype=torch.int64)
    found[one, other] = found[other, one] = torch.arange(len(one))
    return found.to(factor.device)


@dataclass(frozen=True)
class Hessian:
    """A around a plan; see the head of this file and
    `torchgw.linalg.operators.Operator`.

    curvature : B.
    respond : S of the plan.
    weight : w.
    """

    curvature: Curvature
    respond: Response
    weight: float

    @property
    def size(self) -> int:
        return 0 if self.respond.empty else self.curvature.size

    @property
    def device(self) -> torch.device:
        return self.curvature.model.p.device

    @property
    def dtype(self) -> torch.dtype:
        return self.curvature.quadratic.a.dtype

    @cached_property
    def _free_diagonal(self) -> Tensor:
        """The diagonal (n,) of M if no marginal were held."""
        plan, (mu, nu), factors = self.respond.plan, self.respond.sums, self.curvature.factors
        if factors is None:
            assert isinstance(plan, DenseCoupling)
            parts = [plan.plan.flatten()]
        else:
            F, G = (side.square() for side in factors)
            parts = [(F.T @ plan.apply(G, 1)).flatten()]
            parts += [] if self.curvature.model.has_hard_marginals else [mu, nu]
            parts += [] if self.curvature.level is None else [mu.new_zeros(1)]
        return torch.cat(parts) / (self.respond.epsilon * self.weight)

    def squared_norm_floor(self, V: Tensor) -> Tensor:
        return self.respond.tol * (self._free_diagonal @ V.square())

    def change(self, v: Tensor) -> PlanSensitivity:
        """W of a vector (n,), with its sums."""
        return self.respond(self.curvature.to_cost(v / self.weight))

    @cached_property
    def moments(self) -> FactorMoments | None:
        """Of a plan that is not stored, where B reads its products with factors
        and nothing of its entropy; of one that is, fewer products than these
        sums take are enough."""
        factors, stored = self.curvature.factors, isinstance(self.respond.plan, DenseCoupling)
        if factors is None or stored or self.curvature.level is not None:
            return None
        return FactorMoments.of(self.respond.plan, *factors)

    def metric(self, V: Tensor) -> tuple[Tensor, Tensor]:
        found = [self._read(v) if self.moments is None else self._by_moments(v) for v in V.T]
        return torch.stack([vector for vector, _ in found], 1), torch.stack([dual for _, dual in found], 1)

    def _read(self, v: Tensor) -> tuple[Tensor, Tensor]:
        found = self.change(v)
        read = self.curvature.compress_coupling(found.change, found.rows, found.columns)
        return self._remove_multipliers(v, found.a, found.b, found.c), read

    def _remove_multipliers(self, v: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """The vector less the multipliers of marginals that hold, which change
        nothing: they are no part of w L W."""
        h, k = self.respond.stiffness
        return self.curvature.subtract_terms(v, self.weight * (a * (h == 1) + c), self.weight * b * (k == 1))

    def _by_moments(self, v: Tensor) -> tuple[Tensor, Tensor]:
        assert self.moments is not None
        assert self.curvature.factors is not None
        (F, G), respond, fixed = self.curvature.factors, self.respond, self.curvature.model.has_hard_marginals
        core, row, column, _ = self.curvature.parts(v / self.weight)
        inner_rows = (F * (self.moments.TG @ core.T)).sum(1)
        inner_columns = (G * (self.moments.TtF @ core)).sum(1)

        def sums(row: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
            (mu, nu), plan = respond.sums, respond.plan
            one, other = inner_rows + row * mu, inner_columns + column * nu
            return one + plan.apply(column[:, None], 1)[:, 0], other + plan.apply(row[:, None], 0)[:, 0]

        a, b, c = respond.solve(*((inner_rows, inner_columns) if fixed else sums(row, column)))
        row, column = row - a - c, column - b
        product = self.moments.times(core) + (F * row[:, None]).T @ self.moments.TG
        product = product + self.moments.TtF.T @ (G * column[:, None])
        read = [product.flatten()] if fixed else [product.flatten(), *sums(row, column)]
        return self._remove_multipliers(v, a, b, c), torch.cat(read) / respond.epsilon

    def image(self, V: Tensor, U: Tensor) -> Tensor:
        return V + torch.stack([self.curvature.multiply(u) for u in U.T], 1)

    def isotropic(self, count: int, generator: torch.Generator) -> Tensor:
        """Vectors (n, count) of changes that are drawn alike in all directions,
        where these are read entry by entry."""
        plan, model = self.respond.plan, self.curvature.model
        assert self.curvature.factors is None
        assert isinstance(plan, DenseCoupling)
        n, k = plan.shape
        z = torch.randn(count, n, k, generator=generator, dtype=self.dtype, device=self.device)
        found = z.mul_(torch.where(plan.plan > 0, (model.epsilon * self.weight / plan.plan).sqrt(), 0.0))
        for axis, (rho, sums) in enumerate(zip(model.marginals.weights, self.respond.sums, strict=True)):
            if 0 < rho < math.inf:
                noise = torch.randn(count, len(sums), generator=generator, dtype=self.dtype, device=self.device)
                found += (noise * torch.where(sums > 0, (rho * self.weight / sums).sqrt(), 0.0)).unsqueeze(2 - axis)
        return found.view(count, -1).T

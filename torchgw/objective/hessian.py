"""The Hessian of the objective on the changes of a plan that its marginal model allows, as an operator.

Half the second derivative of F at a plan T is w L + B: L that of the linear transport problem, of the entropy and the
divergences of marginals,

    <W, L W> = epsilon sum W^2 / T + sum rho (sums of W)^2 / mu,    w its weight,

and B the curvature of the quadratic part (`torchgw.objective.curvature`). Relative to w L it is the operator

    A = 1 + S B / w,    S the inverse of L on the changes that are allowed (`torchgw.sinkhorn.implicit`),

which is self-adjoint in <W, W'> = <W, w L W'>. Its eigenvalues are numbers without unit: 1 where distances say nothing,
above it where they hold a match, near zero along a continuous symmetry, and negative at a saddle, from which F falls
both ways. The fixed-point iteration multiplies what is left of an eigenvector by 1 minus its eigenvalue.

All of A - 1 lies in what B reads of W, E W (the r r' numbers of F^T W G where both spaces have factors, else W itself),
and B = E^T Z E. So changes are W = S E^T v / w with a vector v of as many numbers, of which

    M v = E W,    A v = v + Z M v,    <v, v'> = v^T M v'.

A step costs one answer of the linear problem to a cost. Directions that B does not read have the eigenvalue 1.

Where both spaces have factors, an answer is W = T o (F c G^T + a 1^T + 1 b^T) / epsilon, and all that is asked of it
are sums over the plan of products of factors,

    T G,    T^T F,    Q = sum_ij T_ij (f_i f_i^T) x (g_j g_j^T),    F^T W G = (Q c + F^T diag(a) T G + ...) / epsilon.

Of a plan that is not stored they are taken once, r (r + 1) / 2 products with it for the smaller rank, and a step is
left with the system for a and b alone: no entry of the plan is looked at again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling, DenseCoupling
from torchgw.kernels.blocks import blocks
from torchgw.objective.curvature import Curvature
from torchgw.sinkhorn.implicit import PlanSensitivity, Response

FLAT = 0.05  # an eigenvalue up to which a plan slides next to free of cost, and whose sign a solve may leave open
PAIRS_AT_ONCE, POINTS_AT_ONCE = 256, 2**13  # products of factors that the plan is multiplied with, and points


class FactorMoments(NamedTuple):
    """Sums of products of factors F (N, r), G (K, r') over a plan.

    TG, TtF : T G (N, r') and T^T F (K, r).
    fourth : Q (r (r + 1) / 2, r' (r' + 1) / 2), between pairs of columns of F and of G.
    left, right : which pair two columns are, (r, r) and (r', r').
    """

    TG: Tensor
    TtF: Tensor
    fourth: Tensor
    left: Tensor
    right: Tensor

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
        return cls(plan.apply(G, 1), plan.apply(F, 0), fourth.contiguous(), _pairs(F), _pairs(G))

    def times(self, core: Tensor) -> Tensor:
        """F^T (T o F c G^T) G (r, r') for c (r, r')."""
        found = [(self.fourth[pair][:, self.right] * core[:, None]).sum((0, 2)) for pair in self.left]
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
    """A around a plan; see the head of this file and `torchgw.linalg.operators.Operator`.

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
        """Of a plan that is not stored, where B reads its products with factors and nothing of its entropy; of one that
        is, fewer products than these sums take are enough."""
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
        """The vector less the multipliers of marginals that hold, which change nothing: they are no part of w L W."""
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
        """Vectors (n, count) of changes that are drawn alike in all directions, where these are read entry by entry."""
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

"""The objective around the quadratic part: masses, marginal model, linear cost,
and what they make of its gradient.

    F(T) = alpha [quad(T) + sum rho KL(mu x mu | p x p) + epsilon KL(T x T | (p q^T) x (p q^T))]
         + beta [<M, T> + sum rho KL(mu | p) + epsilon KL(T | p q^T)] + <P, T>

over the two marginals mu of T; beta is 1 - alpha over the scale of the masses,
P holds the penalties of pairs. The derivative of F is in
`torchgw.objective.linearise`. The divergences, over leading batch dimensions,
are

    KL(x | a)                 = sum x log(x / a) - x + a                              of marginals
    KL(T | p q^T)             = <T, log(T / p q^T)> - sum T + sum p sum q             of plans
    <T, log(T / p q^T)>       = sum T log T - <T 1, log p> - <T^T 1, log q>           (relative entropy)
    KL(x (x) x | a (x) a)     = 2 m KL(x | a) + (m - sum a)^2,    m = sum x

Sources: T. Vayer et al., "Optimal transport for structured data with
application on graphs", 2019 (fused); T. Sejourne, F.-X. Vialard, G. Peyre, "The
unbalanced Gromov-Wasserstein distance", 2021; A. Thual et al., "Aligning
individual brains with fused unbalanced Gromov-Wasserstein", 2022 (both).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling
from torchgw.kernels.sums import inner
from torchgw.losses import SQUARE, SeparableLoss
from torchgw.marginals import Balanced, Marginals, damping
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.runtime.ranks import ALONE, Ranks
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.sinkhorn.sides import MarginalConstraint
from torchgw.spaces.coarsening import Cells
from torchgw.types import Carrier, Coupling

HARD_COSTS, HARD_EPSILONS = 2.0, 100.0
LARGEST_COMPARED_RHO = 300.0  # of epsilon
SMALLEST_RHO = 1e-20  # that epsilon over it is a number in float32; below, a marginal is free
BALANCED = Balanced()

Constraints: TypeAlias = tuple[MarginalConstraint, MarginalConstraint]


class Values(NamedTuple):
    """F of a plan without its entropy, and its parts, in units of the scaled
    squared distance.

    quadratic : Q(T).
    linear : <M, T>.
    penalty : the divergences of the marginals, weighed as in F, and <P, T> of
        soft rules.
    total : alpha Q(T) + beta <M, T> + penalty.
    violation : mass on pairs that break a rule.
    """

    quadratic: float
    linear: float
    penalty: float
    total: float
    violation: float = 0.0


@dataclass(frozen=True)
class Model:
    """The objective but for the distances; costs, epsilon and rho in units of
    the scaled squared distance.

    p, q : masses (N,), (K,), float64, divided by a scale so that plans have a
        mass of about one.
    epsilon : weight of the entropy.
    marginals : the marginal model, with its rho or total mass.
    alpha, beta : weights of the quadratic and the linear part.
    cost : M (N, K), or None.
    loss : L of two distances.
    penalty : P (N, K), what the rules of a supervision add, or None.
    strength : of its rules as asked for, infinite where they are constraints,
        which are no part of any value.
    price : of its rules as solved for.
    log_mass_scale : log of the scale of the masses.
    points : indices (n,), (k,) that rules name, or None.
    groups : labels (N,), (K,) of points that cells must not mix.
    ranks : those that share the factors of the costs.
    """

    p: Tensor
    q: Tensor
    epsilon: float
    marginals: Marginals = BALANCED
    alpha: float = 1.0
    beta: float = 0.0
    cost: FactoredCost | None = None
    penalty: FactoredCost | None = None
    loss: SeparableLoss = SQUARE
    log_mass_scale: float = 0.0
    strength: float = math.inf
    price: float = 1.0
    points: tuple[Tensor, Tensor] | None = None
    groups: tuple[Tensor, Tensor] | None = None
    ranks: Ranks = ALONE

    @property
    def is_standard(self) -> bool:
        """Whether the objective is quadratic and squared alone, under hard
        marginals of mass one."""
        return all((self.has_hard_marginals, self.alpha == 1.0, self.penalty is None, self.loss is SQUARE))

    @property
    def has_hard_marginals(self) -> bool:
        """Whether both marginals are those that were asked for."""
        return self.marginals.balanced

    @property
    def masses(self) -> tuple[Tensor, Tensor]:
        return self.p, self.q

    @property
    def constraints(self) -> Model:
        """The masses and how they hold, which sides of linear problems are made
        of: no cost, and no epsilon, which a graph would be captured for."""
        return Model(self.p, self.q, epsilon=0.0, marginals=self.marginals)

    @cached_property
    def logs(self) -> tuple[Tensor, Tensor]:
        """Base-2 logarithms of the masses."""
        return self.p.log2(), self.q.log2()

    @cached_property
    def _in_dtypes(self) -> dict[torch.dtype, tuple[tuple[Tensor, Tensor], Constraints]]:
        """Masses, and the sides of a balanced problem, in dtypes that were
        asked for before."""
        return {}

    def _in_dtype(self, dtype: torch.dtype) -> tuple[tuple[Tensor, Tensor], Constraints]:
        """The masses, and the sides of a balanced problem, made once for each dtype."""
        if dtype not in self._in_dtypes:
            row, column = (MarginalConstraint(side.to(dtype)) for side in self.logs)
            masses = self.p.to(dtype), self.q.to(dtype)
            self._in_dtypes[dtype] = masses, (row, column)
        return self._in_dtypes[dtype]

    def masses_in(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The masses in a dtype."""
        return self._in_dtype(dtype)[0]

    def average_cost(self, cost: FactoredCost, rows: Cells, columns: Cells) -> FactoredCost:
        """A cost between cells of points: every factor, of which ranks may have
        their shares, replaced by its mean."""
        assert cost.extra is None  # stored costs are for the dense strategy alone
        a, b = rows.means(cost.a[:, None], self.p)[:, 0], columns.means(cost.b[:, None], self.q)[:, 0]
        return FactoredCost(a, b, rows.means(cost.U, self.p, self.ranks), columns.means(cost.V, self.q, self.ranks))

    def coarsen(self, rows: Cells, columns: Cells) -> Model:
        """The coarsened model: masses summed, costs averaged within cells."""
        p, q, cost, penalty = _average_over_cells(self, rows, columns)
        points = self.points
        if points is not None:
            points = torch.unique(rows.label[points[0]]), torch.unique(columns.label[points[1]])
        return replace(self, p=p, q=q, cost=cost, penalty=penalty, points=points, groups=None, ranks=ALONE)

    def to(self, device: torch.device) -> Model:
        """The same objective on another device."""
        cost, penalty = (None if each is None else each.to(device) for each in (self.cost, self.penalty))
        points, groups = (
            None if pair is None else (pair[0].to(device), pair[1].to(device)) for pair in (self.points, self.groups)
        )
        return replace(
            self, p=self.p.to(device), q=self.q.to(device), cost=cost, penalty=penalty, points=points, groups=groups
        )

    def share_factors(self, ranks: Ranks) -> Model:
        """The same objective, of whose costs' factors each rank has its share."""
        if ranks.count == 1:
            return self
        cost, penalty = (
            None if each is None else replace(each, U=ranks.own(each.U).clone(), V=ranks.own(each.V).clone())
            for each in (self.cost, self.penalty)
        )
        return replace(self, cost=cost, penalty=penalty, ranks=ranks)

    def with_epsilon(self, epsilon: float) -> Model:
        """The same objective with another entropy weight, and the penalty that
        stands for a constraint there."""
        found = replace(self, epsilon=epsilon)
        if self.penalty is None:
            return found
        price = min(found.hard_penalty, self.strength)
        return replace(found, price=price, penalty=FactoredCost.weighted_sum([self.penalty], [price / self.price]))

    def restrict(self, rows: Tensor, columns: Tensor, p: Tensor, q: Tensor) -> Model:
        """The restriction of the model to some points, given by their indices
        (n,), (k,), with masses of their own."""
        cost, penalty = (None if each is None else each.restrict(rows, columns) for each in (self.cost, self.penalty))
        return replace(self, p=p, q=q, cost=cost, penalty=penalty, points=None, groups=None)

    def linear(self, dtype: torch.dtype) -> FactoredCost | None:
        """beta M + P, None where there is neither."""
        ends = ((self.cost, self.beta), (self.penalty, 1.0))
        parts = [(side, w) for side, w in ends if side is not None and w > 0]
        if not parts:
            return None
        return FactoredCost.weighted_sum([side.to(dtype) for side, _ in parts], [w for _, w in parts])

    def make_constraints(self, epsilon: float | Tensor, cost: FactoredCost, dtype: torch.dtype) -> Constraints:
        """Both sides of the linear problem with this cost, in the gauge of the
        score 2 U V^T log2(e) / epsilon; those of a balanced problem are the
        same for every cost and epsilon."""
        if self.has_hard_marginals:
            return self._in_dtype(dtype)[1]
        log_p, log_q = (side.to(dtype) for side in self.logs)
        return self.constraints_from_logs(log_p, log_q, epsilon, *cost.offsets(epsilon))

    def constraints_from_logs(
        self, log_p: Tensor, log_q: Tensor, epsilon: float | Tensor, row_offset: Tensor, column_offset: Tensor
    ) -> Constraints:
        """Sides of these masses, whose costs have these row (..., N) and column
        (..., K) terms in units of the score.

        ``epsilon`` may be one number for each problem of a batch.
        """
        (row, column), total = self.marginals.weights, self.marginals.total
        return (
            _make_constraint(log_p, row, epsilon, row_offset, total),
            _make_constraint(log_q, column, epsilon, column_offset, total),
        )

    def marginals_of(self, coupling: Coupling) -> tuple[Tensor, Tensor]:
        """Row and column sums of a coupling; those asked for where they hold."""
        if self.has_hard_marginals:
            return self.p, self.q
        return coupling.marginal(1).to(self.p), coupling.marginal(0).to(self.q)

    def values(self, quadratic: float, coupling: Coupling) -> Values:
        """The parts of F without its entropy, for a plan whose quadratic part is
        known."""
        rows, columns = self.marginals_of(coupling)
        linear, broken = (
            0.0 if cost is None else float(mean_cost(cost, coupling, rows, columns))
            for cost in (self.cost, self.penalty)
        )
        return self.values_from_parts(quadratic, linear, broken, rows, columns)

    def total(self, quadratic: Tensor | float, penalty: Tensor | float, linear: Tensor | float) -> Tensor | float:
        """F (...) without its entropy, from Q(T), the weighed divergences, and
        the linear parts as they are weighed."""
        return self.alpha * quadratic + penalty + linear

    def values_from_parts(
        self, quadratic: float, linear: float, broken: float, rows: Tensor, columns: Tensor
    ) -> Values:
        """The parts of F for a plan with these marginals, <M, T> and <P, T>."""
        violation = max(broken, 0.0) / self.price
        penalty = 0.0 if self.has_hard_marginals else max(float(self.divergences(rows, columns)), 0.0)
        penalty += 0.0 if self.strength == math.inf else self.strength * violation
        total = float(self.total(quadratic, penalty, self.beta * linear))
        return Values(quadratic, linear, penalty, total, violation)

    @property
    def hard_penalty(self) -> float:
        """The penalty that stands for a constraint: beyond all other costs, and
        2^-70 at this epsilon."""
        largest = 2 * self.alpha * largest_loss(self.loss)
        if self.cost is not None:
            largest += self.beta * largest_entry(self.cost)
        return HARD_COSTS * largest + HARD_EPSILONS * float(self.weight(1.0)) * self.epsilon

    @property
    def growth(self) -> float:
        """How fast the divergences and the entropy grow with the logarithm of a
        plan's mass, per unit of mass."""
        return sum(self.marginals.weights) + self.epsilon

    def weight(self, mass: float | Tensor) -> float | Tensor:
        """w = alpha m + beta / 2 (...), the weight of the linear problem around
        plans of mass m."""
        return self.alpha * mass + self.beta / 2

    def entropy_term(self, plan: Tensor, epsilon: float) -> Tensor:
        """What the entropy adds to F () of a plan (N, K) at an epsilon; of
        plans of mass one under hard marginals, up to a constant."""
        p, q = (mass.to(plan) for mass in self.masses)
        entropy = relative_entropy(negentropy(plan), plan.sum(1), plan.sum(0), p, q)
        if self.has_hard_marginals:
            return 2 * float(self.weight(1.0)) * epsilon * entropy
        m, free = plan.sum(), self.marginals.free_mass
        reference = p.sum() * q.sum() * (math.exp(self.log_mass_scale) if free else 1.0)
        divergence = entropy - m * (self.log_mass_scale if free else 0.0) - m + reference
        return epsilon * (self.alpha * product_divergence(divergence, m, reference) + self.beta * divergence)

    def divergences(self, rows: Tensor, columns: Tensor, capped: bool = False) -> Tensor:
        """The divergences of relaxed marginals in F, for marginals (..., N),
        (..., K) of plans.

        ``capped`` bounds their weights, so that the marginal residual of an
        unfinished solve does not dominate a comparison of plans.
        """
        most = LARGEST_COMPARED_RHO * self.epsilon if capped else math.inf
        single, double = divergences(self.marginals, rows, columns, self.p.to(rows), self.q.to(columns), most)
        return self.alpha * double + self.beta * single


@as_cuda_graph()
def _average_over_cells(
    model: Model, rows: Cells, columns: Cells
) -> tuple[Tensor, Tensor, FactoredCost | None, FactoredCost | None]:
    """Masses, cost and penalty between cells."""
    p, q = (
        sums * (mass.sum() / sums.sum())
        for sums, mass in ((rows.sums(model.p), model.p), (columns.sums(model.q), model.q))
    )
    cost, penalty = (
        None if each is None else model.average_cost(each, rows, columns) for each in (model.cost, model.penalty)
    )
    return p, q, cost, penalty


def kl(x: Tensor, a: Tensor) -> Tensor:
    """KL(x | a) (...) of measures (..., N). Entries beyond the support of a
    count as x log x. It can be differentiated, as all that follow, also where
    entries are zero."""
    # Entry by entry the terms are not negative: of nearly equal measures
    # nothing cancels in the sum.
    return (x * (_positive(x) / _positive(a)).log() + a - x).sum(-1)


def product_divergence(divergence: Tensor, mass: Tensor, reference: Tensor) -> Tensor:
    """KL(x (x) x | a (x) a) from KL(x | a), the mass of x and that of a, all (...)."""
    return 2 * mass * divergence + (mass - reference).square()


def negentropy(plan: Tensor | BlockCoupling) -> Tensor:
    """sum T log T (...) of a stored plan (..., N, K), or of one that is read in
    blocks of rows."""
    if isinstance(plan, Tensor):
        # The logarithm of zero is only kept out where it would be
        # differentiated: that is another pass.
        found: Tensor = torch.special.xlogy(plan, _positive(plan) if plan.requires_grad else plan).sum((-1, -2))
        return found
    total = torch.zeros((), dtype=torch.float64, device=plan.device)
    for _, block in plan.blocks():
        total += torch.special.xlogy(block, block).sum()
    return total


def relative_entropy(negentropy: Tensor, rows: Tensor, columns: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """<T, log(T / p q^T)> (...) from sum T log T and the marginals (..., N),
    (..., K)."""
    return negentropy - (rows * _positive(p).log()).sum(-1) - (columns * _positive(q).log()).sum(-1)


def _positive(values: Tensor) -> Tensor:
    """The values, 1 for those that are zero: its logarithm, and the derivative
    of that, are multiplied by zero."""
    return torch.where(values > 0, values, 1.0)


def divergences(
    marginals: Marginals, rows: Tensor, columns: Tensor, p: Tensor, q: Tensor, most: float = math.inf
) -> tuple[Tensor, Tensor]:
    """sum rho KL(mu | a) and sum rho KL(mu x mu | a x a) (...) over the relaxed
    marginals mu (..., N), (..., K), each weight rho capped at ``most``."""
    single = double = rows.new_zeros(())
    for rho, sums, mass in zip(marginals.weights, (rows, columns), (p, q), strict=True):
        if 0 < rho < math.inf:
            found = kl(sums, mass)
            single = single + min(rho, most) * found
            double = double + min(rho, most) * product_divergence(found, sums.sum(-1), mass.sum(-1))
    return single, double


def _make_constraint(
    log_mass: Tensor, rho: float, epsilon: float | Tensor, offset: Tensor, total: float | None
) -> MarginalConstraint:
    """One side, whose marginal the divergence of weight rho holds; infinite is
    exactly."""
    offset = offset.to(log_mass.dtype)
    if rho == math.inf or rho < SMALLEST_RHO:
        return MarginalConstraint(log_mass, float(rho == math.inf), offset, total)
    if isinstance(epsilon, Tensor):
        weak = (epsilon / rho)[..., None]
        return MarginalConstraint(log_mass, 1 / (1 + weak), offset, total, weak)
    return MarginalConstraint(log_mass, damping(rho, epsilon), offset, total)


def largest_loss(loss: SeparableLoss) -> float:
    """The largest of a loss between distances of 0 and 1, with steps of a
    hundredth; NaN where it is no number."""
    distances = torch.linspace(0.0, 1.0, 101, dtype=torch.float64)
    values = loss(distances[:, None], distances)
    return max(float(values.detach().numpy().max()), 0.0)


def largest_entry(cost: FactoredCost) -> float:
    """No entry of the cost is above this."""
    found = float(cost.a.max() + cost.b.max())
    if cost.U.shape[1]:
        found += 2 * float(cost.U.norm(dim=1).max() * cost.V.norm(dim=1).max())
    return found if cost.extra is None else found + float(cost.extra.max())


@as_cuda_graph()
def mean_cost(cost: FactoredCost, plan: Tensor | Carrier, rows: Tensor, columns: Tensor) -> Tensor:
    """<C, T> (...) of a stored plan (..., N, K) or a coupling: a product with
    the factors of C and, where it has a stored part, a pass over the plan."""
    wide = cost.to(rows.dtype)
    cross: Tensor | float = 0.0
    if wide.U.shape[-1]:
        V = wide.V.to(plan.dtype) if isinstance(plan, BlockCoupling) else wide.V
        TV = plan @ V if isinstance(plan, Tensor) else plan.apply(V, 1)
        cross = (wide.U * TV).sum((-1, -2))
    found = wide.expectation(cross, rows, columns)
    if wide.extra is None:
        return found
    if isinstance(plan, Tensor):
        return found + (wide.extra * plan).sum((-1, -2))
    assert isinstance(plan, BlockCoupling)
    for where, block in plan.blocks():
        found = found + inner(wide.extra[where], block.to(found))
    return found

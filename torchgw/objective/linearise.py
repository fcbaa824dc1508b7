"""The linearised cost of the whole objective: what an outer iteration solves a
transport problem for.

Half the derivative of F (see `torchgw.objective.model`) at a plan T in the
direction S is, with the weight w = alpha m + beta / 2 and m = sum T, w times a
linear problem in S,

    <Chat, S> + sum rho KL(S's marginal | p) + epsilon KL(S | p q^T),
    Chat = (alpha (C(T) + k) + (beta M + P) / 2) / w,
    k = sum rho <mu, log(mu / p)> + epsilon <T, log(T / p q^T)>,

so epsilon and rho mean the same for every alpha: 1 is pure Gromov-Wasserstein,
0 linear transport of M. The constant k matters only where the mass of the plan
is free. There T is first scaled to c T, at which F is lowest along its ray; c
has a closed form but for one Newton iteration. Without it, masses of two
iterations would alternate around their geometric mean.

Everything holds over leading batch dimensions, of stored plans as of couplings
that are read in blocks.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling
from torchgw.objective.model import Model, kl, mean_cost, negentropy, relative_entropy
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.types import Coupling

NEWTON_STEPS = 20


class Gradient(Protocol):
    """The seam between the loop and the way its cost is found."""

    def __call__(self, coupling: Coupling, p: Tensor, q: Tensor | None = None) -> FactoredCost:
        """Linearised cost of ``coupling`` with row marginal ``p``; ``q`` is its
        column marginal where the two are not those that were asked for."""


class Moments(NamedTuple):
    """What F and its derivative need of a plan T beside C(T), in units of the
    scaled squared distance.

    rows, columns : the marginals of T, (..., N) and (..., K).
    quadratic : <C(T), T> (...).
    linear : <beta M + P, T> (...); 0.0 where there is neither M nor P.
    entropy : <T, log(T / p q^T)> (...), without unit; 0.0 where the mass is not
        free.
    """

    rows: Tensor
    columns: Tensor
    quadratic: Tensor
    linear: Tensor | float
    entropy: Tensor | float


class Weights(NamedTuple):
    """Chat = quadratic C(T) + linear (beta M + P) + shift, each a number or (...).

    quadratic : alpha c / w.
    linear : 1 / (2 w).
    shift : alpha k / w - epsilon log(scale of the masses).
    """

    quadratic: float | Tensor
    linear: float | Tensor
    shift: float | Tensor

    @classmethod
    def of(
        cls, model: Model, mass: float | Tensor = 1.0, constant: float | Tensor = 0.0, ray: float | Tensor = 1.0
    ) -> Weights:
        """Of a plan c T of this mass and constant k, c = ``ray``."""
        weight = model.weight(mass)
        offset = model.epsilon * model.log_mass_scale if model.marginals.free_mass else 0.0
        return cls(model.alpha * ray / weight, 0.5 / weight, model.alpha * constant / weight - offset)

    def combine_costs(self, raw: FactoredCost, linear: FactoredCost | None) -> FactoredCost:
        """Chat from C(T) and beta M + P."""
        costs, weights = [raw], [self.quadratic]
        if linear is not None:
            costs, weights = [raw, linear], [self.quadratic, self.linear]
        found, shift = FactoredCost.weighted_sum(costs, weights), self.shift
        return replace(found, a=found.a + (shift[..., None] if isinstance(shift, Tensor) and shift.ndim else shift))


def moments_of(
    model: Model, raw: FactoredCost, linear: FactoredCost | None, plan: Tensor | Coupling, rows: Tensor, columns: Tensor
) -> Moments:
    """Of a plan with these marginals, from C(T) and beta M + P: a product with
    the factors of each, and where the mass is free a pass over the plan."""
    value = 0.0 if linear is None else mean_cost(linear, plan, rows, columns)
    entropy: Tensor | float = 0.0
    if model.marginals.free_mass:
        assert isinstance(plan, Tensor | BlockCoupling)
        p, q = (mass.to(rows) for mass in model.masses)
        entropy = relative_entropy(negentropy(plan).to(rows), rows, columns, p, q)
    return Moments(rows, columns, mean_cost(raw, plan, rows, columns), value, entropy)


def weights_of(model: Model, moments: Moments | None = None) -> Weights:
    """Those of the plan that was read, scaled to where F is lowest on its ray
    if its mass is free; without moments those of a plan of mass one and k =
    0."""
    if moments is None or not model.marginals.free_mass:
        return Weights.of(model)
    m = moments.rows.sum(-1)
    p, q = (mass.to(moments.rows) for mass in model.masses)
    k = torch.as_tensor(model.epsilon * (moments.entropy - m * model.log_mass_scale))
    for rho, sums, mass in zip(model.marginals.weights, (moments.rows, moments.columns), (p, q), strict=True):
        k = k + rho * (kl(sums, mass) + m - mass.sum(-1))
    growth = model.growth * m
    log_c = minimise_on_ray(model.alpha, model.beta, moments.quadratic, moments.linear, k, growth, m)
    c = log_c.exp()
    return Weights.of(model, c * m, c * (k + growth * log_c), c)


def linearise(
    model: Model,
    raw: FactoredCost,
    linear: FactoredCost | None,
    plan: Tensor | Coupling | None = None,
    marginals: tuple[Tensor, ...] = (),
) -> FactoredCost:
    """Chat from C(T) and beta M + P; the plan and its marginals matter where
    its mass is free, without them it counts as one of mass one and k = 0."""
    if model.is_standard:
        return raw
    moments = None
    if plan is not None and model.marginals.free_mass:
        moments = moments_of(model, raw, linear, plan, *marginals)
    return weights_of(model, moments).combine_costs(raw, linear)


def minimise_on_ray(
    alpha: float, beta: float, quadratic: Tensor, linear: Tensor | float, base: Tensor, growth: Tensor, m: Tensor
) -> Tensor:
    """log c (...) of the multiple c T of a plan of mass m and constant k =
    ``base`` at which F is lowest.

    ``growth`` = (sum rho + epsilon) m is how k / c grows with u = log c. The
    root u of alpha e^u (2 Q + 4 m (k + growth u)) + linear + beta (k + growth
    u), by Newton's method.
    """
    u = -(quadratic + 2 * m * base) / (2 * m * growth) if beta == 0 else torch.zeros_like(m)
    if beta == 0 and not isinstance(linear, Tensor):
        return u
    for _ in range(NEWTON_STEPS):
        bracket = 2 * quadratic + 4 * m * (base + growth * u)
        value = alpha * u.exp() * bracket + linear + beta * (base + growth * u)
        slope = alpha * u.exp() * (bracket + 4 * m * growth) + beta * growth
        u = u - (value / slope.clamp_min(torch.finfo(u.dtype).tiny)).clamp(-1.0, 1.0)
    return u


def energy(model: Model, moments: Moments) -> Tensor:
    """F (...) without its entropy, to compare plans that are not solved to the end."""
    penalty = model.divergences(moments.rows, moments.columns, capped=True)
    return torch.as_tensor(model.total(moments.quadratic, penalty, moments.linear))


def evaluate(gradient: Gradient, coupling: Coupling, p: Tensor, q: Tensor) -> tuple[FactoredCost, Tensor]:
    """The cost of a coupling by the gradient of the objective, and F of it ()
    without its entropy; masses p (N,), q (K,) as hard marginals have them."""
    if not isinstance(gradient, ModelGradient):
        cost = gradient(coupling, p)
        return cost, mean_cost(cost, coupling, p, q)
    model, (raw, linear, marginals) = gradient.model, gradient.parts(coupling, p.dtype)
    moments = moments_of(model, raw, linear, coupling, *marginals)
    return weights_of(model, moments).combine_costs(raw, linear), energy(model, moments)


def gradient_of(model: Model, quadratic: Gradient) -> Gradient:
    """The cost Chat of couplings, from that of the quadratic part."""
    return quadratic if model.is_standard else ModelGradient(quadratic, model)


class ModelGradient:
    """The cost of the whole objective, from the gradient of its quadratic part."""

    def __init__(self, quadratic: Gradient, model: Model) -> None:
        self.quadratic, self.model = quadratic, model
        self._linear = cache(model.linear)

    def __call__(self, coupling: Coupling, p: Tensor, q: Tensor | None = None) -> FactoredCost:
        raw, linear, marginals = self.parts(coupling, p.dtype)
        return linearise(self.model, raw, linear, coupling, marginals)

    def parts(
        self, coupling: Coupling, dtype: torch.dtype
    ) -> tuple[FactoredCost, FactoredCost | None, tuple[Tensor, Tensor]]:
        """C(T), beta M + P, and the marginals of a coupling."""
        rows, columns = (side.to(dtype) for side in self.model.marginals_of(coupling))
        raw = self.quadratic(coupling, rows, None if self.model.has_hard_marginals else columns)
        return raw, self._linear(raw.U.dtype), (rows, columns)

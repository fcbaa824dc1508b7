"""The linearised cost of a plan: what an outer iteration solves a transport problem for.

A gradient is a callable from the current coupling to a `FactoredCost`. The exact one is, for marginals p and q,

    C = (D_X o D_X) p 1^T + 1 ((D_Y o D_Y) q)^T - 2 D_X T D_Y,

whose last term needs one product of T with the factors of a space that has them, D = F diag(s) F^T, so that the rank of
C is the smaller of the two; where neither has any, D_X T is stored. The sampled one is its unbiased estimate

    C_ij = mean_m (D_X[i, i_m] - D_Y[j, j_m])^2,   (i_m, j_m) ~ T.

Sources: G. Peyre, M. Cuturi, J. Solomon, "Gromov-Wasserstein averaging of kernel and distance matrices", 2016;
M. Scetbon, G. Peyre, M. Cuturi, "Linear-time Gromov Wasserstein distances using low rank couplings and costs", 2022
(factored distances); T. Kerdoncuff, R. Emonet, M. Sebban, "Sampled Gromov Wasserstein", 2021; here all anchors share
one batch of rows.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from torchgw.costs import FactoredCost
from torchgw.gw.anchors import Anchors, refresh, sample_anchors
from torchgw.gw.landmarks import choose_landmarks
from torchgw.options import SamplingOptions
from torchgw.spaces import PrecomputedDistances
from torchgw.spaces.landmark import signed_factors
from torchgw.types import Carrier, Coupling, DistanceProvider


class Gradient(Protocol):
    """The seam between the loop and the way its cost is found."""

    def __call__(self, coupling: Coupling, p: Tensor) -> FactoredCost:
        """Linearised cost of ``coupling``, whose row marginal is ``p``."""


class ExactGradient:
    """The gradient itself, for couplings with marginals p (N,) and q (K,).

    Spaces without factors are stored as matrices, so construction may take all graph searches.
    """

    def __init__(self, source: DistanceProvider, target: DistanceProvider, p: Tensor, q: Tensor) -> None:
        self.source, self.target = (
            space if space.factors() is not None else PrecomputedDistances.of(space, p.device)
            for space in (source, target)
        )
        self.a, self.b = mean_squares(self.source, p), mean_squares(self.target, q)

    def __call__(self, coupling: Coupling, p: Tensor) -> FactoredCost:
        left, right = self.source.factors(), self.target.factors()
        if left is not None and right is not None:
            (F, s), (G, t) = left, right
            core = s[:, None] * (F.T @ coupling.apply(G, 1)) * t
            narrow = F.shape[1] <= G.shape[1]
            U, V = (F, G @ core.T) if narrow else (F @ core, G)
        elif left is not None:
            F, s = left
            U, V = F * s, product(self.target, coupling.apply(F, 0))
        elif right is not None:
            G, t = right
            U, V = product(self.source, coupling.apply(G, 1)), G * t
        else:
            # The cheaper order of D_X T D_Y: the product that is left has the smaller inner dimension.
            plan = coupling.to_dense().to(p.dtype)
            D, E = dense(self.source), dense(self.target)
            U, V = (D, E @ plan.T) if plan.shape[0] <= plan.shape[1] else (D @ plan, E)
        return FactoredCost(self.a, self.b, U, V)

    def of_points(self, rows: Tensor, columns: Tensor, T: Tensor) -> FactoredCost:
        """The cost of a plan T (L, L') that lives on a few points of each space, given by their indices."""
        left, right = self.source.factors(), self.target.factors()
        if left is not None and right is not None:
            (F, s), (G, t) = left, right
            return self._with(F @ (s[:, None] * (F[rows].T @ T @ G[columns]) * t), G)
        return self._with(self.source.rows(rows).T @ T, self.target.rows(columns).T)

    def _with(self, U: Tensor, V: Tensor) -> FactoredCost:
        return FactoredCost(self.a, self.b, U, V)


def dense(space: DistanceProvider) -> Tensor:
    """The stored matrix of a space that has one."""
    assert isinstance(space, PrecomputedDistances)
    return space.matrix


def product(space: DistanceProvider, V: Tensor) -> Tensor:
    """D V (N, d) by the factors or the stored matrix."""
    factors = space.factors()
    if factors is None:
        return dense(space) @ V
    F, signs = factors
    return (F * signs) @ (F.T @ V)


def mean_squares(space: DistanceProvider, mass: Tensor) -> Tensor:
    """(D o D) mass (N,), the squared eccentricities."""
    factors = space.factors()
    if factors is None:
        return dense(space).square() @ mass
    return factored_mean_squares(*factors, mass)


def factored_mean_squares(F: Tensor, signs: Tensor, mass: Tensor) -> Tensor:
    """(D o D) mass (N,) for D = F diag(signs) F^T, O(N r^2)."""
    signed = F * signs
    return ((signed @ (F.T @ (F * mass[:, None]))) * signed).sum(1)


def sampled_cost(source: DistanceProvider, target: DistanceProvider, anchors: Anchors) -> FactoredCost:
    """The factored cost of given anchor pairs, O((N + K) M) memory."""
    root = len(anchors.rows) ** 0.5
    U, V = source.rows(anchors.rows), target.rows(anchors.columns)
    U, V = U.T / root, V.T / root
    return FactoredCost(U.square().sum(1), V.square().sum(1), U, V)


class Control(NamedTuple):
    """Factored distances F diag(s) F^T near a space's own, and their mean squares under its masses (N,)."""

    F: Tensor
    signs: Tensor
    mean_squares: Tensor


def landmark_control(space: DistanceProvider, mass: Tensor, count: int, generator: torch.Generator) -> Control:
    """Signed Nystrom factors from ``count`` farthest-point landmarks; O(N count) memory, ``count`` rows."""
    chosen = choose_landmarks(space, mass, "farthest", count, generator)
    F, signs = (
        torch.from_numpy(side).to(mass)
        for side in signed_factors(chosen.rows.T.double().cpu().numpy(), chosen.index.cpu().numpy())
    )
    return Control(F, signs, factored_mean_squares(F, signs, mass))


class SampledGradient:
    """Draws anchors from each coupling it is called with and renews those it holds.

    With controls, the landmarks' factored distances D~ give their part of the gradient exactly, and the anchors sample
    only what is missing, D_X D_Y - D~_X D~_Y: the error falls by one to two orders of magnitude at equal anchors.
    """

    def __init__(
        self,
        source: DistanceProvider,
        target: DistanceProvider,
        options: SamplingOptions,
        generator: torch.Generator,
        controls: tuple[Control, Control] | None = None,
    ) -> None:
        self.source, self.target = source, target
        self.options, self.generator, self.controls = options, generator, controls
        self.anchors: Anchors | None = None

    def __call__(self, coupling: Coupling, p: Tensor) -> FactoredCost:
        fresh = sample_anchors(coupling, p, self.options.n_anchors, self.generator)
        old = self.anchors
        self.anchors = fresh if old is None else refresh(old, fresh, self.options.step, self.generator)
        cost = sampled_cost(self.source, self.target, self.anchors)
        return cost if self.controls is None else controlled(cost, self.anchors, coupling, *self.controls)


def controlled(cost: FactoredCost, anchors: Anchors, coupling: Carrier, x: Control, y: Control) -> FactoredCost:
    """The sampled cost with the landmarks' part of it replaced by its expectation; the rank grows by theirs."""
    i, j, m = anchors.rows, anchors.columns, len(anchors.rows)
    expected = x.F.T @ coupling.apply(y.F, 1)
    core = x.signs[:, None] * (expected - x.F[i].T @ y.F[j] / m) * y.signs
    near_x, near_y = (side.F @ (side.F[index] * side.signs).T for side, index in ((x, i), (y, j)))
    return FactoredCost(
        cost.a + x.mean_squares - near_x.square().mean(1),
        cost.b + y.mean_squares - near_y.square().mean(1),
        torch.cat((x.F @ core, cost.U), dim=1),
        torch.cat((y.F, cost.V), dim=1),
    )

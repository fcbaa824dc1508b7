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

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from torchgw.losses import SQUARE, SeparableLoss
from torchgw.objective.anchors import Anchors, refresh, sample_anchors
from torchgw.options import SamplingOptions
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.spaces import PrecomputedDistances
from torchgw.spaces.landmark import signed_factors
from torchgw.spaces.representatives import choose_landmarks
from torchgw.types import Carrier, Coupling, DistanceProvider


class Gradient(Protocol):
    """The seam between the loop and the way its cost is found."""

    def __call__(self, coupling: Coupling, p: Tensor, q: Tensor | None = None) -> FactoredCost:
        """Linearised cost of ``coupling`` with row marginal ``p``; ``q`` is its column marginal where the two are not
        those that were asked for."""


class ExactGradient:
    """The gradient itself, for couplings with marginals p (N,) and q (K,) unless it is told others.

    Spaces without factors are stored as matrices, so construction may take all graph searches. Losses other than the
    square need the matrices of both spaces.
    """

    def __init__(
        self, source: DistanceProvider, target: DistanceProvider, p: Tensor, q: Tensor, loss: SeparableLoss = SQUARE
    ) -> None:
        self.loss, self.sides = loss, (source, target)
        if loss is SQUARE:
            self.source, self.target = (
                space if space.factors() is not None else PrecomputedDistances.of(space, p.device)
                for space in (source, target)
            )
        else:
            # -2 U V^T is to be -h1(D_X) T h2(D_Y)^T.
            self.sides = x, y = PrecomputedDistances.of(source, p.device), PrecomputedDistances.of(target, p.device)
            self.source = PrecomputedDistances.stored_matrix(loss.h1(x.matrix) / 2, x.scale)
            self.target = PrecomputedDistances.stored_matrix(loss.h2(y.matrix), y.scale)
        self.a, self.b = self.means(p, q)

    def means(self, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """The row (N,) and column (K,) terms of the cost of a plan with these marginals."""
        if self.loss is SQUARE:
            return mean_squares(self.source, p), mean_squares(self.target, q)
        x, y = self.sides
        return self.loss.f1(dense(x)) @ p, self.loss.f2(dense(y)) @ q

    def __call__(self, coupling: Coupling, p: Tensor, q: Tensor | None = None) -> FactoredCost:
        a, b = (self.a, self.b) if q is None else self.means(p, q)
        left, right = self.source.factors(), self.target.factors()
        if left is not None and right is not None:
            return self._of_core(left[0].T @ coupling.apply(right[0], 1), a, b)
        if left is not None:
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
        return FactoredCost(a, b, U, V)

    def of_core(self, product: Tensor, p: Tensor, q: Tensor) -> FactoredCost:
        """The cost from F^T T G, where both spaces have factors F and G, and from the marginals of T."""
        return self._of_core(product, *self.means(p, q))

    def _of_core(self, product: Tensor, a: Tensor, b: Tensor) -> FactoredCost:
        left, right = self.source.factors(), self.target.factors()
        assert left is not None
        assert right is not None
        (F, s), (G, t) = left, right
        core = s[:, None] * product * t
        narrow = F.shape[1] <= G.shape[1]
        U, V = (F, G @ core.T) if narrow else (F @ core, G)
        return FactoredCost(a, b, U, V)

    def of_points(self, rows: Tensor, columns: Tensor, T: Tensor) -> FactoredCost:
        """The cost of a plan T (L, L') that lives on a few points of each space, given by their indices, up to row and
        column terms: those are of the masses that were asked for."""
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

    def under(self, mass: Tensor) -> Control:
        """The same under other masses."""
        return self._replace(mean_squares=factored_mean_squares(self.F, self.signs, mass))


def landmark_control(space: DistanceProvider, mass: Tensor, count: int, generator: torch.Generator) -> Control:
    """Signed Nystrom factors from ``count`` farthest-point landmarks; O(N count) memory, ``count`` rows."""
    chosen = choose_landmarks(space, mass, "farthest", count, generator)
    F, signs = (
        torch.from_numpy(side).to(mass)
        for side in signed_factors(chosen.rows.T.double().cpu().numpy(), chosen.index.cpu().numpy())
    )
    return Control(F, signs, factored_mean_squares(F, signs, mass))


class Sample(NamedTuple):
    """The cost of one draw of anchors, a 1^T + 1 b^T - 2 (F core G^T + U V^T), with F and G of the controls."""

    a: Tensor
    b: Tensor
    core: Tensor | None
    U: Tensor
    V: Tensor

    def cost(self, controls: tuple[Control, Control] | None) -> FactoredCost:
        """The factored cost; the rank is that of the controls and the number of anchors."""
        if self.core is None or controls is None:
            return FactoredCost(self.a, self.b, self.U, self.V)
        x, y = controls
        return FactoredCost(self.a, self.b, torch.cat((x.F @ self.core, self.U), 1), torch.cat((y.F, self.V), 1))


class SampledGradient:
    """Draws anchors from each coupling it is called with and renews those it holds.

    With controls, the landmarks' factored distances D~ give their part of the gradient exactly, and the anchors sample
    only what is missing, D_X D_Y - D~_X D~_Y: the error falls by one to two orders of magnitude at equal anchors.

    With ``options.cost_ema`` the cost is an exponential moving average of those of the last iterations, a window of
    weighted anchors, so that it stays factored. Costs are those of the plan scaled to mass one.
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
        self.window: deque[Sample] = deque(maxlen=options.ema_window)

    def __call__(self, coupling: Coupling, p: Tensor, q: Tensor | None = None) -> FactoredCost:
        fresh = sample_anchors(coupling, p, self.options.n_anchors, self.generator)
        old = self.anchors
        self.anchors = fresh if old is None else refresh(old, fresh, self.options.step, self.generator)
        cost = sampled_cost(self.source, self.target, self.anchors)
        found = Sample(cost.a, cost.b, None, cost.U, cost.V)
        if self.controls is not None:
            controls, mass = self.controls, 1.0 if q is None else p.sum()
            if q is not None:
                controls = self.controls[0].under(p / mass), self.controls[1].under(q / mass)
            found = controlled(cost, self.anchors, coupling, *controls, mass)
        self.window.append(found)
        return averaged(self.window, self.options.cost_ema).cost(self.controls)


def averaged(window: Sequence[Sample], newest: float) -> Sample:
    """The exponential moving average of samples, the last one with the weight ``newest`` before the sum is made one."""
    if len(window) == 1:
        return window[0]
    weights = [newest * (1 - newest) ** age for age in reversed(range(len(window)))]
    shares = [weight / sum(weights) for weight in weights]
    parts = list(zip(window, shares, strict=True))
    cores = [share * sample.core for sample, share in parts if sample.core is not None]
    return Sample(
        torch.stack([share * sample.a for sample, share in parts]).sum(0),
        torch.stack([share * sample.b for sample, share in parts]).sum(0),
        torch.stack(cores).sum(0) if cores else None,
        torch.cat([share * sample.U for sample, share in parts], 1),
        torch.cat([sample.V for sample, _ in parts], 1),
    )


def controlled(
    cost: FactoredCost, anchors: Anchors, coupling: Carrier, x: Control, y: Control, mass: float | Tensor = 1.0
) -> Sample:
    """The sampled cost with the landmarks' part of it replaced by its expectation; the rank grows by theirs.

    Per unit of the plan's ``mass``, as anchors see it.
    """
    i, j, m = anchors.rows, anchors.columns, len(anchors.rows)
    expected = x.F.T @ coupling.apply(y.F, 1) / mass
    core = x.signs[:, None] * (expected - x.F[i].T @ y.F[j] / m) * y.signs
    near_x, near_y = (side.F @ (side.F[index] * side.signs).T for side, index in ((x, i), (y, j)))
    return Sample(
        cost.a + x.mean_squares - near_x.square().mean(1),
        cost.b + y.mean_squares - near_y.square().mean(1),
        core,
        cost.U,
        cost.V,
    )

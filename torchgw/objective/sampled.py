"""The linearised quadratic part of a plan, estimated without bias from pairs
drawn from it.

    C_ij = mean_m (D_X[i, i_m] - D_Y[j, j_m])^2,   (i_m, j_m) ~ T,

with all anchors (i_m, j_m) sharing one batch of rows. A pair has the
probability T_ij: the row from the row marginal, then the column from that row,
so only M rows of the plan are ever formed. Renewing each pair with probability
``step`` gives, in expectation, the anchors of the plan (1 - step) T_old + step
T_new: momentum on the plan with O(M) memory and rows that a cache still holds.

Source: T. Kerdoncuff, R. Emonet, M. Sebban, "Sampled Gromov Wasserstein", 2021.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from torchgw.kernels.sampling import draw
from torchgw.objective.exact import factored_mean_squares
from torchgw.objective.linearise import Gradient, ModelGradient
from torchgw.options import SamplingOptions
from torchgw.persist.codec import storable
from torchgw.runtime.ranks import ALONE, Ranks
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.spaces.low_rank import nystrom_factors
from torchgw.types import Coupling, DistanceProvider


@storable
class Anchors(NamedTuple):
    """Pairs (i_m, j_m) of points.

    rows : i (M,), int64.
    columns : j (M,), int64.
    """

    rows: Tensor
    columns: Tensor


def sample_anchors(coupling: Coupling, row_marginal: Tensor, count: int, generator: torch.Generator) -> Anchors:
    """``count`` independent pairs from the plan. A plan without mass yields
    uniform pairs."""
    rows = draw(row_marginal, count, generator)
    return Anchors(rows, coupling.sample_columns(rows, generator))


def refresh(old: Anchors, new: Anchors, step: float, generator: torch.Generator) -> Anchors:
    """Each pair of ``old`` replaced by its counterpart in ``new`` with
    probability ``step``."""
    coin = torch.rand(old.rows.shape, generator=generator, dtype=torch.float32, device=old.rows.device) < step
    return Anchors(torch.where(coin, new.rows, old.rows), torch.where(coin, new.columns, old.columns))


def sampled_cost(source: DistanceProvider, target: DistanceProvider, anchors: Anchors) -> FactoredCost:
    """The factored cost of given anchor pairs, O((N + K) M) memory."""
    root = len(anchors.rows) ** 0.5
    U, V = source.rows(anchors.rows), target.rows(anchors.columns)
    U, V = U.T / root, V.T / root
    return FactoredCost(U.square().sum(1), V.square().sum(1), U, V)


class Control(NamedTuple):
    """Factored distances D~ = F diag(s) F^T near a space's own.

    F : (N, r).
    signs : s (r,), 1 or -1.
    mean_squares : (D~ o D~) m (N,) under the masses m of the space.
    """

    F: Tensor
    signs: Tensor
    mean_squares: Tensor

    def with_mass(self, mass: Tensor, ranks: Ranks = ALONE) -> Control:
        """The same under other masses."""
        return self._replace(mean_squares=factored_mean_squares(self.F, self.signs, mass, ranks))


def landmark_control(space: DistanceProvider, mass: Tensor, count: int, generator: torch.Generator) -> Control:
    """Signed Nystrom factors from ``count`` farthest-point landmarks; O(N
    count) memory, ``count`` rows."""
    F, signs = nystrom_factors(space, mass, count, generator)
    return Control(F, signs, factored_mean_squares(F, signs, mass))


@storable
class Sample(NamedTuple):
    """The cost of one draw of anchors, a 1^T + 1 b^T - 2 (U V^T + F core G^T),
    with F and G of the controls.

    anchored : a 1^T + 1 b^T - 2 U V^T (N, K), with the row and column terms of
        all, U (N, M), V (K, M) of M anchors.
    core : (r, r'), None without controls.
    """

    anchored: FactoredCost
    core: Tensor | None

    def cost(self, controls: tuple[Control, Control] | None) -> FactoredCost:
        """The factored cost; the rank is that of the controls and the number of
        anchors."""
        if self.core is None or controls is None:
            return self.anchored
        (x, y), own = controls, self.anchored
        return replace(own, U=torch.cat((x.F @ self.core, own.U), 1), V=torch.cat((y.F, own.V), 1))


class SampledGradient:
    """Draws anchors from each coupling it is called with and renews those it holds.

    With controls, the landmarks' factored distances D~ give their part of the
    gradient exactly, and the anchors sample only what is missing, D_X D_Y -
    D~_X D~_Y: the error falls by one to two orders of magnitude at equal
    anchors.

    With ``options.cost_ema`` the cost is an exponential moving average of those
    of the last iterations, a window of weighted anchors, so that it stays
    factored; of plans scaled to mass one, whatever the mass of the last.
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
        self.anchors = (
            fresh if self.anchors is None else refresh(self.anchors, fresh, self.options.step, self.generator)
        )
        cost = sampled_cost(self.source, self.target, self.anchors)
        found = Sample(cost, None)
        if self.controls is not None:
            controls, mass = self.controls, 1.0 if q is None else p.sum()
            if q is not None:
                controls = self.controls[0].with_mass(p / mass), self.controls[1].with_mass(q / mass)
            expected = controls[0].F.T @ coupling.apply(controls[1].F, 1) / mass
            found = apply_control(cost, self.anchors, expected, *controls)
        self.window.append(found)
        average = average_samples(self.window, self.options.cost_ema).cost(self.controls)
        return average if q is None else FactoredCost.weighted_sum([average], [p.sum()])


def average_samples(window: Sequence[Sample], newest: float) -> Sample:
    """The exponential moving average of samples, the last one with the weight
    ``newest`` before the sum is made one."""
    weights = [(1 - newest) ** age for age in reversed(range(len(window)))]
    shares = [weight / sum(weights) for weight in weights]
    cores = [share * sample.core for sample, share in zip(window, shares, strict=True) if sample.core is not None]
    anchored = FactoredCost.weighted_sum([sample.anchored for sample in window], shares)
    return Sample(anchored, torch.stack(cores).sum(0) if cores else None)


def apply_control(cost: FactoredCost, anchors: Anchors, expected: Tensor, x: Control, y: Control) -> Sample:
    """The sampled cost with the landmarks' part of it replaced by its
    expectation; the rank grows by theirs.

    ``expected`` is F^T T G (r, r') of the controls' factors, for the plan T
    over its mass.
    """
    i, j, m = anchors.rows, anchors.columns, len(anchors.rows)
    core = x.signs[:, None] * (expected - x.F[i].T @ y.F[j] / m) * y.signs
    near_x, near_y = (side.F @ (side.F[index] * side.signs).T for side, index in ((x, i), (y, j)))
    a = cost.a + x.mean_squares - near_x.square().mean(1)
    b = cost.b + y.mean_squares - near_y.square().mean(1)
    return Sample(replace(cost, a=a, b=b), core)


Memory: TypeAlias = "tuple[Anchors | None, list[Sample]] | None"
NOTHING: Memory = (None, [])


def memory_of(gradient: Gradient) -> Memory:
    """What `restore_memory` needs to repeat the gradient's next call; None for
    an exact gradient."""
    inner = gradient.quadratic if isinstance(gradient, ModelGradient) else gradient
    return (inner.anchors, list(inner.window)) if isinstance(inner, SampledGradient) else None


def restore_memory(gradient: Gradient, memory: Memory) -> None:
    """Put a gradient into the state that `memory_of` found."""
    inner = gradient.quadratic if isinstance(gradient, ModelGradient) else gradient
    if isinstance(inner, SampledGradient) and memory is not None:
        inner.anchors = memory[0]
        inner.window = deque(memory[1], inner.window.maxlen)

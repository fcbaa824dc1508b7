"""One side of a transport problem: its half-step, from the softmins under the other side's potential.

With masses m (N,), a cost a_i that belongs to the row alone, and x_i = offset_i - softmin_i the potential under which
row i would have mass m_i,

    hard marginal               f = log2 m + x - offset
    Kullback-Leibler, weight rho    f = log2 m + tau x - offset,        tau = rho / (rho + epsilon)
    at most m, a total asked    f = log2 m + min(level, x) - offset,    sum_i m_i min(1, 2^(level - x_i)) = total

in base-2 logarithms, the entropy being relative to the product of the masses. The offset is the row term of the cost in
the units of the score: under a hard marginal it cancels, under others it matters and enters here, so that no kernel
ever sees it. Masses may carry leading batch dimensions.

Sources: L. Chizat, G. Peyre, B. Schmitzer, F.-X. Vialard, "Scaling algorithms for unbalanced optimal transport
problems", 2018; J.-D. Benamou et al., "Iterative Bregman projections for regularized transportation problems", 2015
(partial transport). The rows and the total are projected onto together here, which is exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property

import torch
from torch import Tensor

from torchgw.kernels import LN2
from torchgw.kernels.kernel import half_step
from torchgw.kernels.logsumexp import logsumexp2
from torchgw.kernels.sums import cumulative_logsumexp, cumulative_sum
from torchgw.persist.codec import storable

SMALLEST_SUM = 2.0**-90
LARGEST_RATIO, FREE_RATIO = 300.0, 1e15


@storable
@dataclass(frozen=True)
class MarginalConstraint:
    """A marginal with its masses and its model: hard, relaxed by a divergence, or bounded.

    Attributes
    ----------
    log_mass : log2 m (..., N); -inf for points without mass.
    tau : damping rho / (rho + epsilon) of a relaxed marginal, a number or a tensor that broadcasts.
    offset : row term of the cost (..., N) in bits, zero where None.
    total : mass of the plan where the marginal is only bounded, else None.
    weak : epsilon / rho = 1 / tau - 1 where ``tau`` is a tensor that may not resolve it.
    """

    log_mass: Tensor
    tau: float | Tensor = 1.0
    offset: Tensor | None = None
    total: float | None = None
    weak: Tensor | None = None

    @cached_property
    def mass(self) -> Tensor:
        """The masses."""
        return self.log_mass.exp2()

    @cached_property
    def empty(self) -> Tensor:
        """The points without mass."""
        return torch.isneginf(self.log_mass)

    @cached_property
    def positive_mass(self) -> Tensor:
        """The masses, the smallest normal number for points without: over sums that are absorbed as zero it is 1."""
        return torch.where(self.empty, _tiny(self.log_mass.dtype), self.mass)

    @cached_property
    def ratio(self) -> float | Tensor:
        """epsilon / rho; 0 for a hard or a bounded side, infinite for a free one."""
        if self.weak is not None or self.is_hard or self.total is not None:
            return 0.0 if self.weak is None else self.weak
        return (1 - self.tau) / self.tau if isinstance(self.tau, Tensor) or self.tau else torch.inf

    @cached_property
    def is_hard(self) -> bool:
        """Whether the marginal holds exactly after a half-step."""
        return self.total is None and not isinstance(self.tau, Tensor) and self.tau == 1.0

    def potential(self, softmin: Tensor) -> Tensor:
        """The half-step; -inf for points without mass."""
        if self.is_hard:
            return half_step(self.log_mass, softmin, self.empty)
        if self.total is None:
            new = self.log_mass - self.tau * softmin - self._slack * self._offset(softmin)
        else:
            x = self._offset(softmin) - softmin
            new = self.log_mass + torch.minimum(self._level(x), x) - self._offset(softmin)
        return torch.where(self.empty, self.log_mass, new)

    def scaling(self, f: Tensor, sums: Tensor) -> Tensor:
        """The scaling u that takes f to the half-step, from the sums of a plan in which f is absorbed.

        1 for points without mass, whose sums are zero once their potential is absorbed; under a relaxed marginal also
        for those that keep so little that a stored plan does not carry it.
        """
        if self.is_hard:
            return self.positive_mass / sums.clamp_min(_tiny(sums.dtype))
        if self.total is None:
            kept = self.log_mass - self._slack * (f + self._offset(f))
            new = (kept - self.tau * sums.log2()).exp2()
        else:
            shifted = f + self._offset(f)
            logs = sums.log2()
            level = self._level(shifted - logs)
            new = (self.log_mass + torch.minimum(level - shifted, -logs)).exp2()
        return torch.where((sums > SMALLEST_SUM) & ~self.empty, new, 1.0)

    @property
    def has_divergence(self) -> bool:
        """Whether a divergence holds the marginal."""
        return self.total is None and not self.is_hard

    def restrict(self, index: Tensor) -> MarginalConstraint:
        """The same marginal on some of the points."""
        return replace(self, log_mass=self.log_mass[index], offset=None if self.offset is None else self.offset[index])

    def sums_after_step(self, softmin: Tensor, weight: Tensor) -> Tensor:
        """The sums (n,) of the plan after a half-step; each point stands for the mass ``weight`` (n,) of all points."""
        if self.total is None:
            return (self.potential(softmin) + softmin).exp2()
        x = self._offset(softmin) - softmin
        level = water_level(x, weight, self.total)
        return (self.log_mass + torch.minimum(level - x, torch.zeros_like(x))).exp2()

    def potential_from_sums(self, sums: Tensor, otherwise: Tensor, largest: float = LARGEST_RATIO) -> Tensor:
        """The potential that belongs to sums (..., N) of a solved plan where a divergence holds the marginal.

        Half-steps take long to find it where the entropy is weak against the divergence: a shift of a row's potential
        against that of its matches hardly shows in the plan. ``otherwise`` is returned for other marginals, and where
        rho / epsilon is above ``largest``: there what sums are off by would be many bits. The default is for sums that
        a few iterations have left.
        """
        if not self.has_divergence:
            return otherwise
        inverse = torch.as_tensor(1 / self.ratio, dtype=sums.dtype, device=sums.device)
        price = inverse * (self.log_mass - sums.clamp_min(torch.finfo(sums.dtype).tiny).log2())
        found = torch.where(self.empty, self.log_mass, self.log_mass + price - self._offset(sums))
        return torch.where(inverse <= largest, found, otherwise)

    def level_of(self, potential: Tensor) -> tuple[Tensor, float | Tensor]:
        """log2 sum_i m_i 2^(-phi_i / r) (..., 1) in float64, and r = rho / epsilon; r = 0 for a hard side."""
        free = not isinstance(self.ratio, Tensor) and self.ratio > FREE_RATIO
        ratio = 0.0 if free else self.ratio
        phi = (potential + self._offset(potential) - self.log_mass).double()
        exponent = torch.where(self.empty, -torch.inf, self.log_mass.double() - ratio * phi)
        level = logsumexp2(exponent, -1, keepdim=True)
        return level, 0.0 if free or self.is_hard else 1 / ratio

    @property
    def _slack(self) -> float | Tensor:
        """1 - tau."""
        return 1 - self.tau if self.weak is None else self.weak * self.tau

    def _offset(self, like: Tensor) -> Tensor:
        return like.new_zeros(()) if self.offset is None else self.offset

    def _level(self, x: Tensor) -> Tensor:
        assert self.total is not None
        return water_level(x, self.mass, self.total)


@cache
def _tiny(dtype: torch.dtype) -> float:
    """The smallest normal number; kept, because every half-step asks for it."""
    return torch.finfo(dtype).tiny


def log_total(exponent: Tensor) -> Tensor:
    """log2 sum_i 2^(x_i) (..., 1) in float64, which no potentials of a start overflow."""
    exponent = exponent.double().masked_fill(exponent.isnan(), -torch.inf)  # of points without mass
    return logsumexp2(exponent, -1, keepdim=True)


def translation(
    row: MarginalConstraint, column: MarginalConstraint, f: Tensor, g: Tensor, log_mass: Tensor
) -> tuple[Tensor, Tensor]:
    """The best constants (..., 1) to add to f and to g, in closed form, where a divergence holds a side.

    Half-steps alone approach them by a factor tau each, which is slow for weak entropies. With cost potentials phi =
    f + offset - log2 m, r = tau / (1 - tau) of each side, infinite for a hard one, and log2 of the mass (..., 1) of the
    plan, the dual objective is highest over both constants t, s where

        log2 sum_i m_i 2^(-phi_i / r) - t / r  =  the same of the other side with s  =  log2 mass + t + s.

    Source: T. Sejourne, F.-X. Vialard, G. Peyre, "Faster unbalanced optimal transport: translation invariant Sinkhorn
    and 1-D Frank-Wolfe", 2022.
    """
    (level_x, r_x), (level_y, r_y) = row.level_of(f), column.level_of(g)
    if row.is_hard:
        level, s = level_x, r_y * (level_y - level_x)
    elif column.is_hard:
        level = level_y
        s = level - log_mass - r_x * (level_x - level_y)
    else:
        level = (log_mass + r_x * level_x + r_y * level_y) / (1 + r_x + r_y)
        s = r_y * (level_y - level)
    # Whatever s is off by after rounding, t makes up for it, so the mass is right.
    return (level - log_mass - s).to(f.dtype), s.to(f.dtype)


def water_level(x: Tensor, mass: Tensor, total: float) -> Tensor:
    """The level (..., 1) with sum_i mass_i min(1, 2^(level - x_i)) = total, for x (..., N); O(N log N).

    Where ``total`` is all mass or more, the highest x of a point with mass.
    """
    mass = torch.where(torch.isfinite(x), mass, 0.0).expand_as(x)
    x = torch.where(mass > 0, x, torch.inf)
    x, order = x.sort(dim=-1)
    mass = mass.gather(-1, order)
    below = cumulative_sum(mass, -1)
    # log2 of what lies above each point, at level zero.
    bits = torch.where(mass > 0, mass.log2() - x, -torch.inf)
    above = cumulative_logsumexp((bits * LN2).flip(-1), -1).flip(-1) / LN2
    above = torch.cat((above[..., 1:], torch.full_like(above[..., :1], -torch.inf)), dim=-1)
    reached = below + torch.where(torch.isneginf(above), 0.0, (x + above).exp2())
    full = ((reached <= total) & (mass > 0)).sum(-1, keepdim=True)
    last = (full - 1).clamp_min(0)
    filled = torch.where(full > 0, below.gather(-1, last), 0.0)
    rest = torch.where(full > 0, above.gather(-1, last), logsumexp2(bits, -1, keepdim=True))
    level = (total - filled).clamp_min(torch.finfo(x.dtype).tiny).log2() - rest
    # Where full points have all of the total, next to nothing is left for others, and the level is no lower for it.
    least = x.gather(-1, last)
    return torch.where(torch.isneginf(rest), least, torch.where(full > 0, torch.maximum(level, least), level))


def column_change(new: Tensor, old: Tensor, softmin: Tensor) -> Tensor:
    """The L1 distance of the column sums under ``old`` from those under ``new``, which a half-step made."""
    reached = torch.where(torch.isneginf(new), new, new + softmin).exp2()
    off = reached * (torch.nan_to_num(old - new).exp2() - 1).abs()
    return off.masked_fill(reached == 0, 0.0).sum()

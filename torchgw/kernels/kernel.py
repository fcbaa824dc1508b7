"""What an implementation of a softmin family offers, and its binding to the operands of one score.

    softmin(..., bias, axis)    axis 1:  out_i = log2 sum_j 2^(S_ij + bias_j)
                                axis 0:  out_j = log2 sum_i 2^(S_ij + bias_i)

    sweep(..., g, log_p, f, weight)     one iteration under hard marginals but for the last step of g:
                                f' = f + weight (log_p - softmin(g, 1) - f)   and   softmin(f', 0)

    absorb(..., f, g, out)      out_ij = 2^(S_ij + f_i + g_j), at least 2^-120; zero where f or g is -inf

A sweep needs each entry of the score once, because the exponentials of the row softmin are, up to a factor for each
row, the plan whose columns the second softmin sums. Marginal errors need no kernel of their own: the row sums of the
plan are 2^(f + softmin(g, 1)) and its column sums 2^(g + softmin(f, 0)), which a sweep returns.

    rescaled(mass, sums, old, weight)   old (mass / sums / old)^weight, of a plan that is scaled

In a sweep, factors and sums are kept within what float32 holds, so a potential that is more than 120 bits off moves by
about that much at a time. Under hard marginals every column ends with its mass, so where the iteration ends is
unchanged; under relaxed ones a column may end with less than 2^-120, so those take two softmins. g may be -inf only
where the column has no mass.

The half-step is that of a hard marginal, with the mass inside the potential: f = log2 p - log2 sum_j 2^(S_ij + g_j),
and the same for g with rows and columns exchanged. Only a fused Triton kernel has this rule a second time, and is
tested against it. Those of other marginal models take softmins as they come, see `torchgw.sinkhorn.sides`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchgw.types import Score

HIGHEST_EXPONENT = 100.0

Softmin = Callable[..., Tensor]
Sweep = Callable[..., tuple[Tensor, Tensor]]
Absorb = Callable[..., Tensor]
Operands = tuple[Any, ...]


def update_scaling(mass: Tensor, sums: Tensor, old: Tensor, weight: float) -> Tensor:
    """The scaling (..., N) that brings sums, of a plan without it, to the masses, over-relaxed for weights above 1."""
    new = mass / sums.clamp_min(torch.finfo(sums.dtype).tiny)
    return new if weight == 1.0 else old * (new / old) ** weight


@dataclass(frozen=True)
class Kernel:
    """One implementation of a family, or, with the operands in place, a `torchgw.types.Score`.

    softmin, sweep, absorb : see the head of this file; they take the operands of the score first, unless in place.
    prepare : brings the operands into the form that these take, once a score; None where they take any.
    update_scaling : see there; it takes no operands.
    """

    softmin: Softmin
    sweep: Sweep
    absorb: Absorb
    prepare: Callable[..., Operands] | None = None
    update_scaling: Callable[[Tensor, Tensor, Tensor, float], Tensor] = update_scaling

    def bind(self, *operands: Tensor) -> Score:
        """The score with these operands."""
        given = operands if self.prepare is None else self.prepare(*operands)
        softmin, sweep, absorb = (
            partial(self.softmin, *given),
            partial(self.sweep, *given),
            partial(self.absorb, *given),
        )
        return Kernel(softmin, sweep, absorb, update_scaling=self.update_scaling)


def half_step(log_mass: Tensor, softmin: Tensor, empty: Tensor | None = None) -> Tensor:
    """The next potential of a side with masses 2^log_mass; -inf for points without mass, the ``empty`` ones."""
    empty = torch.isneginf(log_mass) if empty is None else empty
    return torch.where(empty, log_mass, log_mass - softmin)


def relax(old: Tensor, new: Tensor, weight: float) -> Tensor:
    """old + weight (new - old), over-relaxed for weights above 1; -inf, which both have at the same points, stays."""
    if weight == 1.0:
        return new
    return torch.where(torch.isneginf(new), new, old + weight * (new - old))


def two_softmins(softmin: Softmin, g: Tensor, log_p: Tensor, f: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """What a sweep returns, by two softmins (bias, axis)."""
    f = relax(f, half_step(log_p, softmin(g, 1)), weight)
    return f, softmin(f, 0)


def make_two_read_sweep(softmin: Softmin) -> Sweep:
    """The sweep of an implementation that has nothing better than two softmins."""

    def sweep(*given: Any) -> tuple[Tensor, Tensor]:
        *operands, g, log_p, f, weight = given
        return two_softmins(partial(softmin, *operands), g, log_p, f, weight)

    return sweep

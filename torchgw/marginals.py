"""Marginal models: what is asked of the plan's row and column sums.

With masses p (N,), q (K,) and KL(x | a) = sum x log(x / a) - x + a, an objective F gains

    Balanced()                  T 1 = p and T^T 1 = q
    SemiRelaxed(rho, side)      one of the two, and rho KL of the other
    Unbalanced(rho_x, rho_y)    rho_x KL(T 1 | p) + rho_y KL(T^T 1 | q)
    Partial(mass)               T 1 <= p, T^T 1 <= q, sum T = mass

For the quadratic part of the objective the divergences are those of the squared measures, KL(T 1 x T 1 | p x p) and so
on: then scaling all masses scales the whole objective (T. Sejourne, F.-X. Vialard, G. Peyre, "The unbalanced
Gromov-Wasserstein distance: conic formulation and relaxation", 2021). Between measures of mass one that is twice KL.
"""

from __future__ import annotations

import math
from dataclasses import InitVar, dataclass

import torch
from torch import Tensor

from torchgw import ranges, validate
from torchgw.persist.codec import storable

SIDE = "side ('x' is the source, 'y' the target)"


@dataclass(frozen=True)
class Marginals:
    """Base of the models. ``weights`` are those of the row and the column divergence, infinite for a hard marginal;
    ``total`` is the mass of a plan whose marginals are only bounded."""

    @property
    def weights(self) -> tuple[float, float]:
        return math.inf, math.inf

    @property
    def total(self) -> float | None:
        return None

    @property
    def free_mass(self) -> bool:
        """Whether the mass of the plan is not given."""
        return max(self.weights) < math.inf

    @property
    def balanced(self) -> bool:
        return self.total is None and min(self.weights) == math.inf

    def damping(self, epsilon: float) -> tuple[float, float]:
        """Factors tau of the row and the column half-step at ``epsilon``; 1 is a hard marginal."""
        one, other = (damping(rho, epsilon) for rho in self.weights)
        return one, other


@dataclass(frozen=True)
class Balanced(Marginals):
    """Both marginals hold exactly: T 1 = p and T^T 1 = q. Masses of equal sum."""


@dataclass(frozen=True)
class SemiRelaxed(Marginals):
    """One marginal holds exactly, the other is held by a divergence.

    Parameters
    ----------
    rho : weight of the divergence, in units of the scaled squared distances, like epsilon; 0 leaves the marginal free,
        infinity makes it hard.
    side : "x" or "y", the one that is relaxed.

    Notes
    -----
    The plan has the mass of the other side; that of the relaxed side is scaled to it. POT's semi-relaxed solvers are
    ``SemiRelaxed(0.0, "y")``.
    """

    rho: float = 0.0
    side: str = "y"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", validate.real("rho", self.rho, least=0.0, infinite=True))
        ranges.price("rho", self.rho, "makes the marginal hard", least=0.0)
        object.__setattr__(self, "side", validate.choice(SIDE, self.side, ("x", "y")))

    @property
    def weights(self) -> tuple[float, float]:
        return (self.rho, math.inf) if self.side == "x" else (math.inf, self.rho)


@dataclass(frozen=True)
class Unbalanced(Marginals):
    """Both marginals are held by divergences; masses need not have equal sums.

    Parameters
    ----------
    rho_x, rho_y : weights of the two divergences, in units of the scaled squared distances, > 0. A smaller weight
        leaves more points without a match: about those whose cost exceeds it. Infinity makes a marginal hard.
    divergence : "kl", the only one that is available.

    Raises
    ------
    ValueError
        When a weight is not positive, or for another divergence, such as "tv" (total variation).

    Notes
    -----
    The sums of p and q matter: the entropy compares the plan with ``p q^T``, whose mass is the product of both
    sums, so an epsilon that is not small beside rho_x and rho_y draws the mass of the plan towards it. Masses of sum 1
    avoid that.

    The objective is that of Sejourne, Vialard and Peyre (2021), whose divergences and entropy are those of the squared
    measures; POT's ``fused_unbalanced_gromov_wasserstein`` with ``divergence="kl"`` and fugw have it too, with two
    plans that may differ where this has one. ott-jax has these divergences by default, with
    ``rho = epsilon tau / (1 - tau)``; its plans differ, because its entropy is relative to the counting measure and it
    scales the divergences by the mass.
    """

    rho_x: float
    rho_y: float
    divergence: InitVar[str] = "kl"

    def __post_init__(self, divergence: str) -> None:
        if divergence != "kl":
            raise ValueError(
                f"divergence must be 'kl', got {divergence!r}; total variation and others are not available: use "
                "Partial(mass), by which points are matched or left out, or Unbalanced(rho_x, rho_y) by KL"
            )
        for name in ("rho_x", "rho_y"):
            object.__setattr__(self, name, validate.real(name, getattr(self, name), above=0.0, infinite=True))
            ranges.price(name, getattr(self, name), "makes a marginal hard, SemiRelaxed(0.0) leaves it free")

    @property
    def weights(self) -> tuple[float, float]:
        return self.rho_x, self.rho_y


@dataclass(frozen=True)
class Partial(Marginals):
    """Exactly ``mass`` is transported, and no point gives or takes more than it has.

    Parameters
    ----------
    mass : in the units of p and q, above 0 and at most the smaller of their sums.
    """

    mass: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "mass", validate.real("mass", self.mass, above=0.0))

    @property
    def total(self) -> float | None:
        return self.mass


def damping(rho: float, epsilon: float) -> float:
    """tau = rho / (rho + epsilon), the factor of a half-step whose marginal a divergence of weight rho holds."""
    return 1.0 if rho == math.inf else rho / (rho + epsilon)


MARGINALS = {kind.__name__: storable(kind) for kind in (Balanced, SemiRelaxed, Unbalanced, Partial)}


def mass_scales(marginals: Marginals, p: Tensor, q: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The scale of a plan's mass, and what the masses of either side are divided by, from their sums p and q ()."""
    if marginals.total is not None:
        scale = torch.minimum(torch.minimum(p, q), p.new_tensor(marginals.total))
    elif marginals.free_mass:
        scale = (p * q).sqrt()
    else:
        return p if marginals.weights[0] == math.inf else q, (p, q)
    return scale, (scale, scale)

"""How large and how small numbers may be: what floats do not carry through a solve is refused before it starts.

Distances are divided by a scale of their own and masses by their sum, so both may have any size whose squares are
floats. What is not scaled must suit float32, in which a solve begins: gradients are squares of distances, and are
squared again.
"""

from __future__ import annotations

import math
import sys

import numpy as np

from torchgw.types import Array

LARGEST = 1e150
SMALLEST = 1e-300
LARGEST_SCALED = 1e9
LARGEST_SHARE = 1e9
LEAST_WEIGHT = 1e-30

LARGEST_EPSILON, LEAST_EPSILON = 1e30, 1e-30  # beyond them scores of costs near one soon leave float32
RESOLUTION = 1e-8
LARGEST_RATIO = RESOLUTION / sys.float_info.epsilon
NEGLIGIBLE_SHARE = 2.0**-80
LEAST_ENTRY = 2.0**-100


def sizes(name: str, largest: float, least: float = SMALLEST, most: float = LARGEST) -> None:
    """Numbers of which the largest is divided out; they may all be zero."""
    if largest > most:
        raise ValueError(f"{name} must stay below {most:g}, got {largest:g}; rescale it")
    if 0 < largest < least:
        raise ValueError(f"{name} must reach {least:g} or be zero, got no more than {largest:g}; rescale it")


def masses(name: str, found: Array) -> Array:
    """Non-negative masses (n,) whose sum has a square, which multiplies values; changed in place.

    Those below 2^-80 of the sum become zero. Together they are less than its rounding, and kernels clamp entries of a
    plan at 2^-120, which is more than a point of much less mass has for each of its partners.
    """
    with np.errstate(over="ignore"):
        total = float(found.sum())
    if not 1 / LARGEST <= total <= LARGEST:
        span = f"[{1 / LARGEST:g}, {LARGEST:g}]"
        raise ValueError(f"{name} must have a positive sum within {span}, got {total:g}; rescale it")
    found[found < NEGLIGIBLE_SHARE * total] = 0.0
    return found


def shares(sums: tuple[float, float], scale: float) -> None:
    """The sums of p and q beside the mass ``scale`` that a plan has."""
    largest, smallest = max(sums), min(sums)
    if largest > LARGEST_SHARE * scale or smallest * LARGEST_SHARE < scale:
        raise ValueError(
            f"p and q must have sums within a factor of {LARGEST_SHARE:g} of the mass of the plan, about {scale:.3g}, "
            f"got {sums[0]:.3g} and {sums[1]:.3g}; rescale one of them"
        )


def reference(sums: tuple[float, float]) -> None:
    """The sums of p and q where an objective is differentiated. Their product is the mass that the entropy compares a
    plan of free mass with, of which the objective has the square; a derivative is larger by the inverse of a size."""
    if sums[0] * sums[1] > LARGEST:
        raise ValueError(
            f"p and q must have sums whose product is at most {LARGEST:g} where gradients are asked "
            f"for, got {sums[0]:.3g} and {sums[1]:.3g}; rescale them"
        )


def remaining_mass(mass: float, value: float, scale: float, pairs: int, marginals: object) -> None:
    """What is left of a mass of one where it is free, and the value of its plan times the square of ``scale``, the mass
    that was divided out. Kernels take entries of 2^-120 and of nothing for the same."""
    if mass < pairs * LEAST_ENTRY:
        raise FloatingPointError(
            f"marginals = {marginals!r} must leave a plan of some mass, got {mass:.1e} of that of p and q: any match "
            f"costs more than its mass is worth; raise rho_x, rho_y or epsilon"
        )
    if math.isfinite(value) and not math.isfinite(value * scale**2):
        raise FloatingPointError(
            f"p and q must have sums that leave a plan with a finite value, got a mass of {mass * scale:.1e}, towards "
            f"the product of both sums, with which the entropy compares it; rescale them"
        )


def price(name: str, value: float, infinite: str, least: float = 1 / LARGEST_SCALED**2) -> None:
    """What a unit of mass costs, beside squared distances; or infinite."""
    most = LARGEST_SCALED**2
    if 0 < value < least or most < value < math.inf:
        raise ValueError(f"{name} must be within [{least:g}, {most:g}], got {value:g}; math.inf {infinite}")


def scaled_distances(name: str, largest: float, scale: float) -> None:
    """Distances divided by a scale that the user gave, of which something is left."""
    if largest > LARGEST_SCALED * scale:
        raise ValueError(
            f"options.spaces.scale must be at least {largest / LARGEST_SCALED:.3g}, a {LARGEST_SCALED:g}th of the "
            f"largest distance of {name}, {largest:.3g}, got {scale:g}"
        )
    if 0 < largest < scale / LARGEST_SCALED:
        raise ValueError(
            f"options.spaces.scale must be at most {LARGEST_SCALED:g} times the largest distance of {name}, "
            f"{largest:.3g}, got {scale:g}"
        )


def provider_distances(name: str, largest: float) -> None:
    """Distances as a provider of the user's serves them."""
    if largest > LARGEST_SCALED:
        raise ValueError(f"{name}.rows must be divided by {name}.scale, up to {LARGEST_SCALED:g}, got {largest:g}")


def cost(largest: float) -> None:
    """A linear cost whose entries are at most ``largest`` in the units of squared distances."""
    if not largest <= LARGEST_SCALED**2:
        raise ValueError(
            f"cost must be at most {LARGEST_SCALED**2:g} beside squared distances of at most 1, as alpha weighs them, "
            f"got {largest:g}; rescale it, or take a larger alpha; pairs are forbidden by supervision="
        )


def outliers(largest: float, cheapest: float, epsilon: float, typical: float | None, tol: float) -> None:
    """Entries of a linear cost up to ``largest``, where no plan costs less than ``cheapest``.

    The mass up to ``tol`` that is moved to give a plan its marginals may come to lie on any of them. It must not cost
    more than what decides about a plan: the cheapest matches, the entropy, and distances, whose largest squared is the
    unit. Where ``typical`` is given there are no distances, and entries are large only beside typical ones.
    Costs whose matches cost something pass; a few huge entries, which stand for forbidden pairs, do not.
    """
    if largest * tol > cheapest + epsilon + (1.0 if typical is None else typical):
        among = "in units of the largest squared distance" if typical is None else f"among others of {typical:.3g}"
        raise ValueError(
            f"cost must have no entries so large that options.sinkhorn.tol = {tol:g} of the mass on them costs more "
            f"than epsilon and all matches, got {largest:.3g} {among}, beside matches of {cheapest:.3g}; divide cost "
            f"by a number, lower tol, or forbid pairs by supervision="
        )


def loss(name: str, largest: float) -> None:
    """A loss whose ``largest`` value is between distances of 0 and 1."""
    if not math.isfinite(largest):
        raise ValueError(
            f"options.loss = {name!r} must be finite between scaled distances of 0 and 1, got {largest}; for example "
            f"take logarithms of distances that are clamped from below"
        )


def weight(beta: float, largest: float) -> None:
    """The weight of a linear cost in a solve of masses of sum one, and what it makes of the largest entry."""
    if beta > 0 and not LEAST_WEIGHT <= beta * max(largest, 1.0) <= 1 / LEAST_WEIGHT:
        raise ValueError(
            f"p and q must have sums beside which a cost can be weighed, (1 - alpha) / sum within "
            f"[{LEAST_WEIGHT:g}, {1 / LEAST_WEIGHT:g}], got {beta:g}; rescale them"
        )


def epsilon_ratio(what: str, largest: float, epsilon: float, advice: str, most: float = LARGEST_RATIO) -> None:
    """Costs up to ``largest``, which float64 can add up in units of ``epsilon`` where that is above zero."""
    if largest > most * epsilon > 0:
        raise FloatingPointError(
            f"epsilon = {epsilon:g} is too small for {what}: their ratio reaches {largest / epsilon:.1e}, beyond what "
            f"float64 resolves; {advice}"
        )

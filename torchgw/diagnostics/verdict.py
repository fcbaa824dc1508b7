"""Whether a matching can be trusted, judged from what its solve knows, without any truth.

The value of the product plan (``chance``) is what a plan has that knows nothing. A matching is convincing if

    value <= h chance,    distance correlation >= 1 - h,    energy of the best other matching > 1.25 energy of this one

(3 times where points may be left out), the solve converged after a search, and gave no warning. h is 0.1, and a third
if Memoli's lower bound is below a tenth of the value: then both spaces have the same distributions of distances, and
the rest of the value is noise of single distances, as between graphs, and no difference of shape. Points far away from
all others make chance or the value large, and the distance correlation does not count them: at 0.95 it is enough
without the value. A linear cost that weighs more than half can decide a matching against all distances, so then it is
not asked for. A matching whose value is above a third of chance is no better than chance, unless its distance
correlation is 0.9 or more. All others are doubtful.

The numbers were chosen on other draws of the problems of ``benchmarks/verdict.py`` than those that are measured.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Protocol

from torchgw.diagnostics.evidence import TINY, Basin, Certificate, IssuedWarning, energy_ratio, is_near_tie
from torchgw.diagnostics.status import Status
from torchgw.marginals import Marginals

CLEAR, MEANINGLESS = 0.1, 1 / 3  # of the product plan's value
ALIKE = 0.1  # of the value: a lower bound below it says that distances are distributed alike
RIVAL, RIVAL_OF_PARTS = 1.25, 3.0  # times the energy: a part fits a whole in many more places than a whole does
PROVEN = 1e-12  # of the largest squared distance: a gap that is rounding
AGREED = 0.95  # distance correlation, at which the value may be large
DISTANCES_DECIDE = 0.5  # alpha from which on
HARMLESS = ("CheckpointWarning", "OutOfMemoryWarning")  # which say how a plan was found, not what it is worth


class Verdict(Enum):
    """Whether a matching can be trusted. The text says so in a sentence."""

    CONVINCING = "This matching can be trusted as far as the distances can."
    DOUBTFUL = "Check this matching before you use it."
    CHANCE = "Do not use this matching: it is no better than chance."

    def __str__(self) -> str:
        return self.value


class VerdictInput(Protocol):
    """What a verdict depends on; each member as `torchgw.GWResult` says."""

    @property
    def status(self) -> Status: ...
    @property
    def value(self) -> float: ...
    @property
    def value_error(self) -> float: ...
    @property
    def chance(self) -> float: ...
    @property
    def distance_correlation(self) -> float: ...
    @property
    def basins(self) -> tuple[Basin, ...]: ...
    @property
    def rival(self) -> Basin | None: ...
    @property
    def certificate(self) -> Certificate: ...
    @property
    def warnings(self) -> tuple[IssuedWarning, ...]: ...
    @property
    def marginals(self) -> Marginals: ...
    @property
    def alpha(self) -> float: ...
    @property
    def unit(self) -> float: ...


def judge(result: VerdictInput) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict, and the reasons for it in sentences: all doubts, or what speaks for a convincing matching."""
    ratio, most, correlation = value_over_chance(result), convincing_share(result), result.distance_correlation
    tiny, found = TINY * result.unit, list_doubts(result)
    if not (result.alpha < DISTANCES_DECIDE or correlation >= 1 - most or result.value <= tiny):
        found = (explain_correlation(result), *found)
    if not (ratio <= most or (result.chance > tiny and correlation >= AGREED)):
        found = (explain_value(result, ratio), *found)
    if result.chance > tiny and ratio > MEANINGLESS and not correlation >= 1 - CLEAR:
        return Verdict.CHANCE, found
    if found:
        return Verdict.DOUBTFUL, found
    return Verdict.CONVINCING, (explain_value(result, ratio), explain_rivals(result))


def value_over_chance(result: VerdictInput) -> float:
    """The value over that of the product plan: 0 for copies, 1 for a plan that knows nothing, or where the product plan
    is as good as any; NaN where its value is not known. A sampled value counts with two standard errors."""
    if result.chance <= TINY * result.unit:
        return 1.0
    return (result.value + 2 * result.value_error) / result.chance


def list_doubts(result: VerdictInput) -> tuple[str, ...]:
    """Every reason but the value not to trust the matching."""
    found, covered = [], list(HARMLESS)
    if not result.status.converged:
        found.append(f"The solve did not converge: {result.status.value}.")
        covered.append("ConvergenceWarning")
    proven = result.certificate.gap <= PROVEN * result.unit
    if result.alpha > 0 and not result.basins and not proven:
        found.append("The solve tried no other start, so the matching is as right as the start.")
    rival, factor = result.rival, least_rival_ratio(result)
    if rival is not None and is_near_tie(result.basins[0], rival, result.unit, factor):
        more = 1 / energy_ratio(result.basins[0], rival, result.unit) - 1
        found.append(
            f"Another matching has an energy {f'only {more:.0%} higher' if more >= 0.005 else 'as low'}, and its "
            f"matches lie {rival.difference:.0%} of the largest distance away on average; a convincing best one has no "
            f"other within {factor - 1:.0%}."
        )
        covered.append("AmbiguityWarning")
    kinds = dict.fromkeys(warning.category for warning in result.warnings)
    found += [
        f"The solve gave {'an' if kind[0] in 'AEIOU' else 'a'} {kind}; result.warnings has its text."
        for kind in kinds
        if kind not in covered
    ]
    return tuple(found)


def least_rival_ratio(result: VerdictInput) -> float:
    """The least energy of the best other matching, over that of the best one, if the best is convincing."""
    return RIVAL if result.marginals.balanced else RIVAL_OF_PARTS


def convincing_share(result: VerdictInput) -> float:
    """The share of the product plan's value up to which a value is convincing."""
    alike = result.marginals.balanced and result.certificate.lower_bound < ALIKE * result.value
    return MEANINGLESS if alike else CLEAR


def explain_value(result: VerdictInput, ratio: float) -> str:
    """How far the value is from that of a plan that knows nothing."""
    if result.chance <= TINY * result.unit:
        return "All plans have the same value, so the distances cannot tell matchings apart."
    if not ratio >= 0:
        return "The value of the product plan is not known, as for a file of an earlier version."
    text = f"The value is {ratio:.2g} of that of the product plan"
    most, found = convincing_share(result), result.distance_correlation
    if ratio <= most:
        return f"{text}."
    if found >= AGREED:
        return f"{text}, but the distance correlation is {found:.2g}: only distances to a few points differ."
    return f"{text}; a convincing value is at most {most:.2g} of it here."


def explain_correlation(result: VerdictInput) -> str:
    """How little distances of matched points agree, those of points far away from all others left out."""
    if math.isnan(result.distance_correlation):
        few = "fewer than eight points give mass, all are equally far apart, or the file is of an earlier version"
        return f"The distance correlation is not known: {few}."
    return (
        f"The distance correlation of points and their matches is {result.distance_correlation:.2g}, less two standard "
        f"errors; a convincing one is at least {1 - convincing_share(result):.2g} here."
    )


def explain_rivals(result: VerdictInput) -> str:
    """What is known of other matchings, where none is near in energy."""
    if result.certificate.gap <= PROVEN * result.unit:
        return "No plan at all has a lower value, by proof."
    if result.alpha == 0:
        return "The problem is linear, so it has no other optimum."
    if result.rival is None:
        return "The search found no other matching that was worth a comparison on all points."
    times = 1 / energy_ratio(result.basins[0], result.rival, result.unit)
    return f"The best other matching has {f'{times:.3g}' if times < 1000 else 'more than 1000'} times the energy."

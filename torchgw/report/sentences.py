"""A result's summary and certificates, in sentences that need no knowledge of the library."""

from __future__ import annotations

import math

from torchgw.diagnostics.evidence import energy_ratio, is_near_tie
from torchgw.diagnostics.verdict import PROVEN, least_rival_ratio
from torchgw.marginals import Partial
from torchgw.report.result_protocol import ReportInput


def summary(result: ReportInput, spread: float) -> list[str]:
    """What was matched, how clear the choice was, and how well the masses hold.

    ``spread`` is the number of target points that the mass of a source point is effectively on, exp(entropy), for the
    median point.
    """
    n, k = result.shape
    value = f"{result.value:.4g}" if result.value_exact else f"{result.value:.4g} ± {result.value_error:.1g}"
    return [
        f"Matched {n:,} source points with {k:,} target points, at a Gromov-Wasserstein value of {value}."
        if result.alpha == 1
        else f"Matched {n:,} source points with {k:,} target points, at an objective of {value}.",
        chance(result),
        ambiguity(result),
        f"The mass of a typical point is on about {max(spread, 1.0):.0f} of {k:,} target points.",
        masses(result),
    ]


def chance(result: ReportInput) -> str:
    """The value of the product plan; the verdict has its ratio to that of the result."""
    if math.isnan(result.chance):
        return "The value of the product plan, which spreads every point over all others, is not known."
    return f"The product plan, which spreads every point over all others, has {result.chance:.4g}."


def ambiguity(result: ReportInput) -> str:
    """The basins of the search, and the gap of energy between the best two."""
    count, rival = len(result.basins), result.rival
    if result.alpha == 0:
        return "The problem is linear, so it has one optimum."
    if not count:
        return "No search over starting points was made, so other matchings may be as good."
    if count == 1:
        return "The search found one matching and no other."
    found = f"The search found {count} distinct matchings"
    if rival is None:
        return f"{found}; the best was the only one good enough to be compared on all points."
    lower = max(1 - energy_ratio(result.basins[0], rival, result.unit), 0.0)
    if result.ambiguous:
        return (
            f"{found}, and the choice is ambiguous: the best is only {lower:.1%} lower than another, whose matches lie "
            f"{rival.difference:.0%} of the largest distance away on average."
        )
    close = is_near_tie(result.basins[0], rival, result.unit, least_rival_ratio(result))
    told = "which is too little to be sure" if close else "so the objective tells them apart"
    return f"{found}; the best is {lower:.0%} lower than the next, {told}."


def masses(result: ReportInput) -> str:
    """The marginal error, under the marginals that were asked for."""
    error = f"to {result.marginal_error:.0e}" if result.marginal_error > 0 else "exactly"
    if isinstance(result.marginals, Partial):
        return f"A mass of {result.marginals.mass:.4g} was to move; bounds and total hold {error}."
    if result.marginals.free_mass:
        moved = float(result.coupling.marginal(1).sum())
        return f"The masses of both sides may give way; the plan moves {moved:.4g}."
    if not result.marginals.balanced:
        return f"The masses of one side may give way; those of the other hold {error}."
    return f"The masses of all points hold {error}."


def certainties(result: ReportInput) -> tuple[list[str], list[str]]:
    """What the certificate proves of the plan, and what it leaves open."""
    certificate, nothing, sure, open_ = result.certificate, PROVEN * result.unit, [], []
    if certificate.gap <= nothing:
        sure.append(f"No plan at all has a value below {certificate.lower_bound:.4g}, which this one has.")
    elif certificate.lower_bound > 0:
        sure.append(
            f"No plan at all has a value below {certificate.lower_bound:.4g}, so the value {result.value:.4g} is "
            f"within {certificate.gap:.4g} of the best possible one."
        )
    else:
        open_.append("How far the value is from the best possible one: no lower bound above 0 is known.")
    if math.isnan(certificate.stationarity):
        open_.append("How far plans near this one could be better.")
    else:
        text = f"to first order, no plan near this one has a value lower by more than {certificate.stationarity:.4g}"
        if result.epsilon > 0:
            text += "; a plan with entropy keeps such a gap, of at most 2 epsilon times the entropy of its rows"
        if certificate.stationarity_exact:
            sure.append(f"{text[0].upper()}{text[1:]}.")
        else:
            open_.append(f"By an estimate from samples: {text}.")
    if result.omitted_mass > 0:
        sure.append(f"What was left out of the plan for speed is at most {result.omitted_mass:.1e} of its mass.")
    if result.value_exact:
        sure.append("The value counts all pairs of points.")
    else:
        open_.append(f"The value: it is a mean over sampled pairs, with a standard error of {result.value_error:.2g}.")
    if result.alpha > 0 and certificate.gap > nothing:
        open_.append(global_optimality(sum(basin.count for basin in result.basins)))
    return sure, open_


def global_optimality(starts: int) -> str:
    """The evidence of a search over starts for global optimality."""
    if starts:
        kept = f"the search kept {starts} solved starts"
        return f"That no better matching exists far from this one: {kept}, which is evidence and no proof."
    return "That no better matching exists far from this one: there was no search."

"""What `gw_align` warns of when it is done: one table, each kind of warning with its text for results that need it."""

from __future__ import annotations

import math
from collections.abc import Callable

from torchgw.diagnostics.evidence import entropy_and_margin
from torchgw.diagnostics.status import Status
from torchgw.kernels.sampling import sample_evenly
from torchgw.request.combinations import Fact, facts_of, find_exclusion
from torchgw.request.request import SHARP, Request
from torchgw.results.result import GWResult
from torchgw.runtime.caller import warn_caller
from torchgw.solvers.solution import CertifiedSolution
from torchgw.spaces.prepare import ON_GRAPHS
from torchgw.types import (
    AmbiguityWarning,
    ConvergenceWarning,
    PrecisionWarning,
    RegularizationWarning,
    SamplingWarning,
    SupervisionWarning,
    TorchGWWarning,
    is_graph,
)

BROKEN = 1e-3
LOOKED_AT = 100  # points whose matches are counted
MANY = 2.0  # matches from which on a plan is blurred, of a point or of the share of one that each target has
MUCH = 0.02  # of what there is to gain: an epsilon above it blurs where there is anything to tell apart
MISSED = 0.05  # of what there is to gain, that a plan may have left
DOZENS = 12  # basins from which on, with few starts each, there is little structure rather than a symmetry


def warn(result: GWResult, solution: CertifiedSolution, request: Request, shown: bool = True) -> None:
    """All warnings of a result, which the caller of `gw_align` is shown at its own line, on one of several ranks."""
    for kind, text_of in WARNINGS.items():
        text = text_of(result, solution, request)
        if text:
            warn_caller(text, kind, shown)


def explain_precision(result: GWResult, solution: CertifiedSolution, request: Request) -> str:
    """Why float32 did not carry the scores, or rounding does not tell points apart, where that is so."""
    text = solution.precision_warning or ""
    text = f"{text}; or {SHARP}" if text and request.allows_no_entropy else text
    return "; ".join(filter(None, (request.precision_loss, text)))


def explain_status(result: GWResult, solution: CertifiedSolution, request: Request) -> str:
    """How the solve ended, and what to change, where it did not converge."""
    if result.converged:
        return ""
    tiny = request.allows_no_entropy and result.epsilon > 0 and result.status is Status.MAX_ITER
    return (
        f"{result.status.value}{f', or {SHARP}' if tiny else ''} "
        f"(marginal residual {result.marginal_residual:.1e} after {result.n_iter} iterations)"
    )


def explain_violation(result: GWResult, solution: CertifiedSolution, request: Request) -> str:
    """How much mass is on forbidden pairs, where it is more than rounding leaves there."""
    mass = float(result.coupling.marginal(1).sum()) if result.constrained else 0.0
    if not result.violation > (BROKEN + 2 * result.marginal_residual) * mass > 0:
        return ""
    return (
        f"{result.violation / mass:.1%} of the mass is on pairs that supervision= forbids: the masses leave it no "
        f"other place; relax the marginals (SemiRelaxed, Unbalanced or Partial), or give the rules a strength"
    )


def explain_ambiguity(result: GWResult, solution: CertifiedSolution, request: Request) -> str:
    """Which two matchings are as good as each other, and how to break the tie."""
    rival = result.rival
    if rival is None or not result.ambiguous:
        return ""
    far = f"{rival.difference:.0%} of" if rival.difference <= 1 else f"{rival.difference:.3g} times"
    blurred = "" if result.epsilon == 0 else "; if epsilon is so large that plans hardly differ, lower it"
    with_rules = facts_of(request.requested_options, request.epsilon) | {"supervision": Fact("rules", "")}
    more = "Known pairs or labels (supervision=), a feature of both sides (cost=, alpha=0.99), "
    if find_exclusion(with_rules) is not None:  # solved for distances alone
        more = ""
    scattered = len(result.basins) >= DOZENS and sum(basin.count for basin in result.basins) < 2 * len(result.basins)
    cause = "a symmetry?"
    if scattered and 2 * result.basins[0].count < DOZENS:
        cause = f"{len(result.basins)} basins with few starts each: little structure, and there may be much lower ones"
        if any(space.kind in ON_GRAPHS and not is_graph(space.data) for space in request.spaces):
            cause += ", or other distances are needed, as 'euclidean' for points in many dimensions"
    return (
        f"the matching is ambiguous: two basins have energies {result.basins[0].energy:.4g} and "
        f"{rival.energy:.4g}, and send points {far} the largest distance apart on average ({cause}); "
        f"result.basins lists both. {more}{'a' if more else 'A'} plan or pairs to begin with (init=), or masses p "
        f"and q can break the tie{blurred}"
    )


def explain_smoothing(result: GWResult, solution: CertifiedSolution, request: Request) -> str:
    """Which epsilon to take, where a given one blurs what a smaller one would tell apart."""
    gain, left = result.gain, solution.certificate.gap / float(request.model.weight(1.0))
    given = not result.path and result.strategy != "low-rank" and request.gradient_mode is None
    if not (given and result.epsilon > MUCH * gain and left > MISSED * gain):
        return ""
    points, weight = sample_evenly(solution.marginals[0], LOOKED_AT)
    matches = math.exp(float(weight @ entropy_and_margin(solution.coupling, points)[0].to(weight)))
    rows, columns = result.shape
    if matches < MANY * max(columns / rows, 1.0):
        return ""
    return (
        f"the plan is blurred: a point has {matches:.3g} matches on average, and epsilon = {result.epsilon:g} is "
        f"{result.epsilon / gain:.2g} times what matching can gain; take epsilon='auto', and result.soft() for "
        f"a soft plan in the basin that it finds"
    )


def explain_sampling(result: GWResult, solution: CertifiedSolution, request: Request) -> str:
    """Why the gradient was sampled, where that was not asked for, and what to pass instead."""
    if result.gradient != "sampled" or request.requested_options.gradient == "sampled":
        return ""
    remedy = (
        "points with distances='landmark' or EuclideanDistances(points, squared=True) have factors, for which it is "
        "exact"
    )
    if any(space.kind in ("matrix", "adjacency") for space in request.spaces):
        way = "options.gradient='exact'" if result.strategy == "dense" else "options.strategy='dense'"
        remedy = f"{way} has exact ones, with an options.max_memory that suffices"
    return (
        f"the gradient was sampled, so the optimum may be a worse one: {result.gradient_passed_over}; {remedy}, and "
        f"options.gradient='sampled' says that sampling is meant"
    )


WARNINGS: dict[type[TorchGWWarning], Callable[[GWResult, CertifiedSolution, Request], str]] = {
    PrecisionWarning: explain_precision,
    ConvergenceWarning: explain_status,
    SamplingWarning: explain_sampling,
    SupervisionWarning: explain_violation,
    AmbiguityWarning: explain_ambiguity,
    RegularizationWarning: explain_smoothing,
}

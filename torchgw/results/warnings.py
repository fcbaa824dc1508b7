"""What `gw_align` warns of when it is done, and what it advises against an epsilon that is too small."""

from __future__ import annotations

import math

from torchgw.diagnostics.status import Status
from torchgw.marginals import Marginals
from torchgw.results.result import GWResult
from torchgw.runtime.caller import warn_caller
from torchgw.types import AmbiguityWarning, ConvergenceWarning, PrecisionWarning, SupervisionWarning

BROKEN = 1e-3
SHARP = "take epsilon=0 for the optimum without entropy"


def against_small_epsilon(sharp: bool) -> str:
    """What to do about an epsilon that is too small; ``sharp`` says whether the problem may have none."""
    return f"raise epsilon, or {SHARP}" if sharp else "raise epsilon"


def against_weights(marginals: Marginals) -> str:
    """What else to do where a solve ended in no numbers, as far as weights of divergences can be the reason.

    Potentials grow with weights beyond 1, the largest squared distance; below it a plan loses its mass."""
    if any(1 < rho < math.inf for rho in marginals.weights):
        return f"; or change {marginals!r}: lower weights above 1, or math.inf for a hard marginal"
    return f"; or change {marginals!r}: raise weights" if marginals.free_mass else ""


def warn_of(result: GWResult, strain: str | None, sharp: bool) -> None:
    """All warnings of a result, which the caller of `gw_align` is shown at its own line."""
    warn_if_strained(strain, sharp)
    warn_unless_converged(result, sharp)
    warn_if_broken(result)
    warn_if_ambiguous(result)


def warn_if_strained(strain: str | None, sharp: bool) -> None:
    """Say that float32 did not carry the scores."""
    if strain is not None:
        warn_caller(f"{strain}{f'; or {SHARP}' if sharp else ''}", PrecisionWarning)


def warn_unless_converged(result: GWResult, sharp: bool) -> None:
    """Say what happened and what to change."""
    if not result.converged:
        tiny = sharp and result.epsilon > 0 and result.status is Status.MAX_ITER
        warn_caller(
            f"{result.status.value}{f', or {SHARP}' if tiny else ''} "
            f"(marginal residual {result.marginal_residual:.1e} after {result.n_iter} iterations)",
            ConvergenceWarning,
        )


def warn_if_broken(result: GWResult) -> None:
    """Say that masses leave more on forbidden pairs than rounding would."""
    if not result.constrained:
        return
    mass = float(result.coupling.marginal(1).sum())
    if result.violation > (BROKEN + 2 * result.marginal_residual) * mass:
        warn_caller(
            f"{result.violation / mass:.1%} of the mass is on pairs that supervision= forbids: the masses leave it no "
            f"other place; relax the marginals (SemiRelaxed, Unbalanced or Partial), or give the rules a strength",
            SupervisionWarning,
        )


def warn_if_ambiguous(result: GWResult) -> None:
    """Say that two different matchings are as good as each other, and how to break the tie."""
    if result.ambiguous:
        rival = result.rival
        assert rival is not None
        far = f"{rival.difference:.0%} of" if rival.difference <= 1 else f"{rival.difference:.3g} times"
        blurred = "" if result.epsilon == 0 else "; if epsilon is so large that plans hardly differ, lower it"
        more = "Known pairs or labels (supervision=), a feature of both sides (cost=, alpha=0.99), "
        if result.epsilon == 0 or result.strategy == "low-rank":  # for distances alone
            more = ""
        warn_caller(
            f"the matching is ambiguous: two basins have energies {result.basins[0].energy:.4g} and "
            f"{rival.energy:.4g}, and send points {far} the largest distance apart on average (a symmetry?); "
            f"result.basins lists both. {more}{'a' if more else 'A'} plan or pairs to begin with (init=), or masses p "
            f"and q can break the tie{blurred}",
            AmbiguityWarning,
        )

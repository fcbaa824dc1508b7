"""What `gw_align` warns of when it is done."""

from __future__ import annotations

from torchgw.caller import warn_caller
from torchgw.result import GWResult
from torchgw.types import AmbiguityWarning, ConvergenceWarning, SupervisionWarning

BROKEN = 1e-3


def warn_unless_converged(result: GWResult) -> None:
    """Say what happened and what to change."""
    if not result.converged:
        warn_caller(
            f"{result.status.value} "
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
        warn_caller(
            f"the matching is ambiguous: two basins have energies {result.basins[0].energy:.4g} and "
            f"{rival.energy:.4g}, and send points {far} the target's scale apart on average (a symmetry?); "
            f"result.basins lists both. Known pairs or labels (supervision=), a plan or pairs to begin with (init=), a "
            f"feature of both sides (cost=, alpha=0.99), or masses p and q can break the tie{blurred}",
            AmbiguityWarning,
        )

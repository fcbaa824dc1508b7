"""What a solve hands to `gw_align`, whatever its strategy."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling
from torchgw.diagnostics.evidence import Basin, Certificate, Rung
from torchgw.diagnostics.status import History, Status
from torchgw.objective.model import Values
from torchgw.objective.value import Objective
from torchgw.solvers.warm_start import Start


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A feasible coupling of mass one and all that is known of it.

    ``marginals`` are its row and column sums (N,), (K,); ``residual`` the L1 error that rounding removed; ``omitted`` a
    bound on the mass that tiles which were not evaluated could hold, ``evaluated`` the share of pairs that were;
    ``gradient`` is "exact" or "sampled", that of the last cost; ``strain`` says why float32 could not carry the scores
    on the way, where it could not; ``end`` has the last cost and the float64 potentials that solve it, where there are
    any, and ``moved`` is how far a fixed point was that was asked for, relative.
    """

    coupling: BlockCoupling
    marginals: tuple[Tensor, Tensor]
    gradient: str
    residual: float
    status: Status
    strain: str | None
    n_iter: int
    n_iter_sinkhorn: int
    history: History
    objective: Objective
    values: Values
    certificate: Certificate
    basins: tuple[Basin, ...]
    end: Start | None = None
    moved: float = 0.0
    ladder: tuple[Rung, ...] = ()
    omitted: float = 0.0
    evaluated: float = 1.0
    seconds: dict[str, float]

    def as_told(self, mass: float, alpha: float) -> dict[str, Any]:
        """What a result takes over, for plans of this mass."""
        values = self.values
        return {
            "coupling": self.coupling.times(mass),
            "value": values.total * mass**2,
            "value_quad": values.quadratic * mass**2 if alpha > 0 else math.nan,
            "value_linear": values.linear * mass,
            "value_penalty": values.penalty * mass**2,
            "violation": values.violation * mass,
            "value_exact": self.objective.exact,
            "value_error": alpha * self.objective.error * mass**2,
            "marginal_residual": self.residual,
            "omitted_mass": self.omitted,
            "evaluated": self.evaluated,
            "ladder": self.ladder,
            "certificate": self.certificate.times(mass**2),
            "basins": tuple(replace(basin, energy=basin.energy * mass**2) for basin in self.basins),
            "gradient": self.gradient,
            "n_iter": self.n_iter,
            "n_iter_sinkhorn": self.n_iter_sinkhorn,
            "history": replace(self.history, cost=[cost * mass**2 for cost in self.history.cost]),
        }

"""What a solve hands to `gw_align`, whatever its strategy."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torchgw.couplings import BlockCoupling
from torchgw.evidence import Basin, Certificate, Rung
from torchgw.gw.model import Values
from torchgw.gw.objective import Objective
from torchgw.gw.start import Start
from torchgw.status import History, Status

CERTIFICATE_ANCHORS = 1000
ROUNDING_ERROR = 1e-10


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

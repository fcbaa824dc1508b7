"""What comes out of a loop, and of a solve, whatever its strategy."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling, DenseCoupling
from torchgw.diagnostics.evidence import Basin, Certificate, EpsilonStep, Rung
from torchgw.diagnostics.status import History, Status
from torchgw.objective.certify import Objective
from torchgw.objective.model import Values
from torchgw.objective.sampled import Memory
from torchgw.persist.codec import storable
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.solvers.iterate import State
from torchgw.solvers.warm_start import WarmStart


@storable
@dataclass(frozen=True, kw_only=True)
class EntropicState(State):
    """Where an entropic descent stands (`torchgw.solvers.entropic`); what its `Solution` is made of.

    warm_start : the last cost solved and its dual potentials; at first, those to begin from.
    coupling : the plan that solves it, rounded, in the solver's memory; None at first.
    last_change : relative change in the last iteration, by which the loop judges that it has settled: the larger of the
        L1 column residual that the last warm potentials had and of the change of ``marginals``; of Newton's method,
        |y' - y| / |y'|.
    next : the cost to solve next, None where it is still to be taken at ``coupling``.
    origin : what ``next`` was taken at instead of ``coupling``: T (N, K) of steps between plans, y of Newton's method.
    direction : S - T (N, K) of the last step between plans.
    length : s () of that step.
    values : objective of each of the last iterations.
    marginals : row and column sums (N,), (K,) of the plan that ``next`` was taken at, where they may give way.
    sampler : anchors and averaged costs that a sampled gradient goes on from.
    """

    warm_start: WarmStart
    coupling: BlockCoupling | None = None
    last_change: float = 0.0
    next: FactoredCost | None = None
    origin: Tensor | None = None
    direction: Tensor | None = None
    length: Tensor | None = None
    values: tuple[float, ...] = ()
    marginals: tuple[Tensor, Tensor] | None = None
    sampler: Memory = None


@storable
@dataclass(frozen=True, kw_only=True)
class Solution:
    """Where a loop ended.

    coupling : the plan (N, K) of mass one; None where it was let go for its memory.
    warm_start : the last cost and the dual potentials that solve it, to go on from; None where there are none.
    status : why it ended.
    n_iter, n_iter_sinkhorn : outer iterations, and inner ones over all of them.
    history : cost, marginal residual, epsilon and seconds at every check.
    last_change : relative change in the last iteration, by which the loop judges that it has settled.
    energy : the objective of the plan without its entropy; NaN where it is not evaluated.
    marginal_residual : L1 marginal residual before rounding.
    dual : column potentials (K,) of the linearised problem, in units of cost.
    precision_warning : why float32 could not carry the scores on the way, where it could not.
    stored : the plan once more, where ``coupling`` has it by its potentials alone.
    path : the epsilons that a solve lowered by itself, ending with its own.
    cost : the exact C(T) (N, K) of the quadratic part in float64, where the loop ended with it.
    basins : local optima that the search found, the best first.
    ladder : the rungs of a solve that streamed, or began between cells.
    seconds : of each phase.
    """

    coupling: BlockCoupling | None
    warm_start: WarmStart | None
    status: Status
    n_iter: int
    n_iter_sinkhorn: int
    history: History
    last_change: float = 0.0
    energy: float = math.nan
    marginal_residual: float = 0.0
    dual: Tensor | None = None
    precision_warning: str | None = None
    stored: DenseCoupling | None = None
    path: tuple[EpsilonStep, ...] = ()
    cost: FactoredCost | None = None
    basins: tuple[Basin, ...] = ()
    ladder: tuple[Rung, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, state: EntropicState, status: Status, history: History) -> Solution:
        """Where a loop over plans ended."""
        return cls(
            coupling=state.coupling,
            warm_start=state.warm_start,
            status=status,
            n_iter=state.n_iter,
            n_iter_sinkhorn=state.n_iter_sinkhorn,
            history=history,
            last_change=state.last_change,
        )

    @property
    def next_start(self) -> WarmStart:
        """The warm start of what goes on from a solution that has one."""
        assert self.warm_start is not None
        return self.warm_start

    @property
    def plan(self) -> Tensor:
        """The plan (N, K) where it is stored."""
        found = self.coupling if self.stored is None else self.stored
        assert isinstance(found, DenseCoupling)
        return found.plan

    @property
    def matching(self) -> Tensor:
        """The target index (N,) that has most of the mass of each source point."""
        found = self.coupling if self.stored is None else self.stored
        assert found is not None
        return found.argmax(1)

    def with_certificate(
        self,
        marginals: tuple[Tensor, Tensor],
        quadratic: Objective,
        values: Values,
        certificate: Certificate,
        times: tuple[float, float, float],
        **more: Any,
    ) -> CertifiedSolution:
        """The same with what is known of its plan. ``times`` are those when the search began, when it ended, and when
        the solve ended."""
        began, searched, solved = times
        seconds = {"search": searched - began, "solve": solved - searched, "finish": time.perf_counter() - solved}
        known = {entry.name: getattr(self, entry.name) for entry in fields(Solution)}
        known |= {"value_exact": quadratic.exact, "value_error": quadratic.error, "certificate": certificate}
        return CertifiedSolution(**known | {"marginals": marginals, "values": values, "seconds": seconds} | more)

    def add_iterations(self, earlier: Solution) -> Solution:
        """This one, with the iterations of another one that it went on from, and what is known of that search."""
        return replace(
            self,
            n_iter=earlier.n_iter + self.n_iter,
            n_iter_sinkhorn=earlier.n_iter_sinkhorn + self.n_iter_sinkhorn,
            basins=earlier.basins,
            ladder=earlier.ladder,
            seconds=earlier.seconds,
        )


@dataclass(frozen=True, kw_only=True)
class CertifiedSolution(Solution):
    """A feasible coupling and all that is known of it.

    coupling : the plan (N, K), on the marginals.
    marginals : its row and column sums (N,), (K,).
    gradient : "exact", "sampled", or "leading factors", that of the last cost.
    values : all parts of the objective.
    value_exact, value_error : whether the quadratic part is exact, and its standard error where it is sampled.
    certificate : stationarity gap and lower bound.
    omitted : bound on the mass of the tiles that were not evaluated.
    evaluated : share of pairs in tiles that were.
    """

    coupling: BlockCoupling
    marginals: tuple[Tensor, Tensor]
    gradient: str
    values: Values
    value_exact: bool
    value_error: float
    certificate: Certificate
    omitted: float = 0.0
    evaluated: float = 1.0

"""Soft answers of sharp results: candidates, confidence and a result of its own, read of the soft plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Self, cast

import torch
from torch import Tensor

from torchgw import validate
from torchgw.couplings.blocks import BlockCoupling, as_block_coupling
from torchgw.couplings.low_rank import LowRankCoupling
from torchgw.couplings.rounding import residuals
from torchgw.diagnostics.evidence import Certificate
from torchgw.marginals import Marginals
from torchgw.objective.model import Model
from torchgw.options import GWOptions
from torchgw.results.matches import MatchMixin
from torchgw.runtime.caller import warn_caller
from torchgw.runtime.surroundings import isolate_methods
from torchgw.solvers.soft_plan import COOLING_OPTIONS, SoftPlan, soften, value_of
from torchgw.spaces.out_of_sample import KnownPoints, LandmarkRows
from torchgw.types import Array, ConvergenceWarning, Coupling

SMALL_ROWS = 256  # of a soft plan that are read at once


@isolate_methods
class SoftPlanMixin(MatchMixin):
    """A plan whose candidates are those of its soft plan, where it has no entropy to rank them."""

    marginals: Marginals
    certificate: Certificate
    alpha: float
    supervised: bool
    options: GWOptions
    known: tuple[KnownPoints, KnownPoints] | None
    model: Model | None
    sharp: BlockCoupling | None

    def soft(self, epsilon: float | None = None) -> Self:
        """The soft plan of a sharp result: one linear entropic problem on the cost C(T) at its plan T.

        Its plan ranks all pairs, so `top_k`, `confidence`, `push`, `pull` and `torchgw.curvature` tell more of it than
        of a matching. It has the marginals of T: a point that T leaves out has no candidates.

        Parameters
        ----------
        epsilon : entropy of the soft plan, > 0, in units of the scaled squared distances. None takes 0.004 of the
            median, over all points, of a point's mean cost less its cost in T. A result with entropy is then returned
            as it is. Far smaller values leave masses of 0, which rank nothing.

        Returns
        -------
        GWResult
            With the soft plan, its epsilon, value and marginal errors. What the solve found stays: basins, lower bound,
            status, history. The stationarity gap is NaN: the plan solves the problem at T, not at itself.

        Raises
        ------
        ValueError
            For a result that keeps no distances: one of several ranks, or of a file without points. Save
            ``result.soft()`` for these.
        MemoryError
            Where costs without factors take more than ``options.max_memory``.

        Notes
        -----
        O(N K) memory, and time for each of some hundred iterations, where the matrices fit ``options.max_memory``.
        Beyond that, costs with factors are multiplied anew in each iteration. Results of strategy "sparse" have
        candidates only among pairs whose neighbours are matched, O(number of these).

        Examples
        --------
        >>> import numpy as np, torchgw
        >>> X = np.random.default_rng(0).normal(size=(40, 3))
        >>> sharp = torchgw.gw_align(X, X + 0.01, distances="euclidean", random_state=0)
        >>> sharp.epsilon, sharp.soft().epsilon > 0, sharp.soft().top_k(3)[1].shape
        (0.0, True, (40, 3))
        """
        if epsilon is None and self.epsilon > 0:
            return self
        found = self._soft_plan if epsilon is None else self._soften(validate.real("epsilon", epsilon, above=0.0))
        model, known = self._problem
        if model is None or not (self.model is not None or self.marginals.balanced):
            raise ValueError(
                "the value of a soft plan needs the masses that were asked for, which files do not keep of relaxed "
                "marginals: call soft() on the result of gw_align, and save what it returns; candidates are read by "
                "top_k(k) and confidence()"
            )
        x, y = known
        if not found.residual <= COOLING_OPTIONS.tol:
            warn_caller(
                f"the soft plan is off the masses of its points by {found.residual:.1g} of the mass at epsilon "
                f"{found.epsilon:.3g}; take a larger one, or soft() without one",
                ConvergenceWarning,
            )
        mass = math.exp(model.log_mass_scale)
        values, exact, error = value_of(found, (x.space, y.space), model, self.max_memory)
        rows, columns = (found.coupling.marginal(axis).cpu().double() for axis in (1, 0))
        missed = residuals(rows, columns, model.p * mass, model.q * mass, self.marginals)
        total, certificate = values.total * mass**2, self.certificate
        made: Self = replace(
            cast(Any, self),
            coupling=found.coupling,
            epsilon=found.epsilon,
            value=total,
            value_quad=values.quadratic * mass**2 if model.alpha > 0 else math.nan,
            value_linear=values.linear * mass,
            value_penalty=values.penalty * mass**2,
            violation=values.violation * mass,
            value_exact=exact,
            value_error=model.alpha * error * mass**2,
            marginal_error=max(missed.tolist(), default=0.0),
            marginal_residual=found.residual,
            certificate=replace(certificate, stationarity=math.nan, gap=total - certificate.lower_bound),
            path=(),
            sharp=self.sharp or self.coupling,
            differentiated=None,
        )
        return made

    @cached_property
    def _problem(self) -> tuple[Model | None, Sequence[KnownPoints]]:
        """The objective, on the CPU, and the two spaces that the soft plan is found for; no objective where none can
        be. A file with points keeps that of distances alone: its masses are those of the plan."""
        known = self.known or ()
        if self.model is not None:
            return self.model.to(torch.device("cpu")), known
        every = known and not any(isinstance(side.made, LandmarkRows) for side in known)
        alone = self.alpha == 1 and not self.supervised and self.options.loss == "square"
        if not (every and alone):
            return None, known
        rows, columns = (self.coupling.marginal(axis).cpu().double() for axis in (1, 0))
        mass = float(rows.sum())
        return Model(rows / mass, columns / mass, 0.0, log_mass_scale=math.log(mass)), known

    @property
    def _ranking(self) -> Coupling:
        """What ranks candidates: the soft plan of a plan without entropy, where there are distances. A plan of low rank
        spreads over all pairs by itself."""
        sharp = self.epsilon == 0 and not isinstance(self.coupling, LowRankCoupling)
        return self._soft_plan.coupling if sharp and self._problem[0] is not None else self.coupling

    @cached_property
    def _soft_plan(self) -> SoftPlan:
        """The soft plan at the default epsilon, found once."""
        return self._soften(None)

    def _soften(self, epsilon: float | None) -> SoftPlan:
        model, known = self._problem
        if model is None:
            raise ValueError(
                "the soft plan of a sharp result needs the distances, which several ranks and files without points do "
                "not keep, nor files of a cost, of rules or of another loss: call soft() on the result of gw_align in "
                "one process, and save what it returns, or save the result with save(path, points=True); the sharp "
                "plan itself is read by argmax(), matching() and result.coupling"
            )
        x, y = known
        return soften(as_block_coupling(self.coupling, "soft"), (x.space, y.space), model, epsilon, self.max_memory)

    def top_k(self, k: int) -> tuple[Array | Tensor, Array | Tensor]:
        """Masses and target indices of the k best candidates of each source point, both (N, k), the best first.

        With entropy they are the largest entries of the plan. Without it the first candidate is the match, as `argmax`
        has it, and the others follow by their mass in the soft plan, see `soft`. All masses are those of the soft plan
        then, so the first need not be the largest; ``top_k(1)`` has the match with its own mass. A result without
        distances, of a file without points or of several ranks, has the candidates of its plan alone.

        Parameters
        ----------
        k : how many of each row, 1 to K.
        """
        validate.integer("k", k, least=1, most=self.shape[1])
        if k == 1 or self._ranking is self.coupling:
            return super().top_k(k)
        values, index = _with_match(self._soft_plan.coupling, self.coupling.argmax(1), k)
        return self._to_user_array(values), self._to_user_array(index)

    def _margin(self, points: Tensor | None) -> Tensor:
        """1 - runner-up's mass / match's mass in the soft plan, 0 where this prefers another; of all or some points."""
        match = self.coupling.argmax(1)
        mass, _ = _with_match(self._soft_plan.coupling, match if points is None else match[points], 2, points)
        return (1 - mass[:, 1] / mass[:, 0]).clamp(min=0.0)

    def _find_matches_and_runners_up(self, value: Tensor, index: Tensor) -> tuple[Tensor, Tensor, float]:
        if self.shape[1] == 1 or self._ranking is self.coupling:
            return super()._find_matches_and_runners_up(value, index)
        mass, index = _with_match(self._soft_plan.coupling, self.coupling.argmax(1), 2)
        return mass.double().cpu(), index.cpu(), self._soft_plan.epsilon


def _with_match(soft: BlockCoupling, match: Tensor, k: int, points: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Masses and columns (N, k) of the largest entries of each row of a soft plan, after that of the match (N,); (m, k)
    of the rows ``points`` (m,) with the matches (m,)."""
    first = match[:, None]
    values, index = soft.top_k(k, points)
    held = index == first
    missing = ~held.any(1)
    held[missing, -1] = True  # the match takes the place of the last candidate
    order = (~held).to(torch.int8).argsort(dim=1, stable=True)
    values, index = values.gather(1, order), index.gather(1, order)
    lost = torch.nonzero(missing)[:, 0]
    index[lost, 0] = first[lost, 0]
    for where in torch.split(lost, SMALL_ROWS):
        values[where, 0] = (
            soft.rows(where if points is None else points[where]).gather(1, first[where])[:, 0].to(values)
        )
    return values, index

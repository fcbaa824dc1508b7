"""A Gromov-Wasserstein problem at any resolution: spaces, masses, model, and how it is to
be solved."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling, DenseCoupling
from torchgw.kernels.kernel import Kernel
from torchgw.kernels.precision import loop_dtype
from torchgw.kernels.shared import RankSharedTiles, SharedKernel, StreamedKernel, TileReader
from torchgw.kernels.softmin_tiles import TileKernel
from torchgw.marginals import Marginals
from torchgw.objective.certify import sampled_objective
from torchgw.objective.exact import ExactGradient
from torchgw.objective.linearise import Gradient, ModelGradient, evaluate, gradient_of
from torchgw.objective.model import Model
from torchgw.objective.sampled import SampledGradient, landmark_control, memory_of, restore_memory
from torchgw.options import GWOptions
from torchgw.persist.watch import Watch
from torchgw.runtime.ranks import Ranks, ranks_of
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.spaces.coarsening import Coarsening
from torchgw.types import DistanceProvider

Result = TypeVar("Result")
ProblemT = TypeVar("ProblemT", bound="Problem")

SHARP_START = 2.5e-4  # of the largest squared distance, where annealing to zero begins
AUTO_START = 0.01  # of what there is to gain, where an epsilon that is left to the solve begins
STRAY_SHARE = 0.1  # of epsilon, that marginals which are not solved to the end may add to the objective


@dataclass(frozen=True)
class Kernels:
    """The implementations that a solve uses.

    backend : the one that was asked for.
    stored : of scores (N, K) that are stored.
    streamed : of scores that are products, which are not, between points that all ranks
        have.
    tiled : of products on kept tiles.
    """

    backend: str
    stored: Kernel
    streamed: StreamedKernel
    tiled: TileReader

    @property
    def local_kernel(self) -> Kernel:
        """Of scores that are products, of one rank."""
        return self.streamed.kernel if isinstance(self.streamed, SharedKernel) else self.streamed

    def share(self, ranks: Ranks) -> Kernels:
        """The same with passes over all pairs that ranks share."""
        if ranks.count == 1 or not (isinstance(self.streamed, Kernel) and isinstance(self.tiled, TileKernel)):
            return self
        return replace(self, streamed=SharedKernel(self.streamed, ranks), tiled=RankSharedTiles(self.tiled, ranks))


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is asked for.

    spaces : distances between the N source points and between the K target points.
    model : masses p (N,), q (K,), epsilon, marginal model and linear cost, on the device to
        use.
    exact : whether gradients are exact where a plan is stored, and all distances of a space
        may be computed where it has no factors.
    unit : the largest squared distance.
    kernels, options, generator : how to solve.
    watch : follows the solve.
    init : where to start instead of the search: a plan (N, K), matching pairs (m, 2) of
        integers, or None.
    tol : relative change in the last iteration that the fixed point is solved to in the
        end, None for no fixed point.
    energy_scale : what there is to gain over the product plan, in units of epsilon.
    curves : whether what was given as points lies on curves, where that was looked at.
    auto : whether epsilon is left to the solve.
    sharpens : whether it ends at zero, from the plan that is solved first.
    """

    spaces: tuple[DistanceProvider, DistanceProvider]
    model: Model
    exact: bool
    unit: float
    kernels: Kernels
    options: GWOptions
    generator: torch.Generator
    watch: Watch
    init: Tensor | None = None
    tol: float | None = None
    energy_scale: float = math.nan
    curves: bool = False
    auto: bool = False
    sharpens: bool = False

    @classmethod
    def of(cls: type[ProblemT], problem: Problem, **more: Any) -> ProblemT:
        """The same problem with what else this kind has, or with other members."""
        return cls(**{entry.name: getattr(problem, entry.name) for entry in fields(Problem)} | more)

    @property
    def p(self) -> Tensor:
        return self.model.p

    @property
    def q(self) -> Tensor:
        return self.model.q

    @property
    def masses(self) -> tuple[Tensor, Tensor]:
        """The masses in the loop's dtype."""
        return self.model.masses_in(loop_dtype(self.options.mixed_precision))

    @property
    def has_no_entropy(self) -> bool:
        """Whether the optimum without entropy is asked for."""
        return self.model.epsilon == 0

    @property
    def epsilon(self) -> float:
        """The epsilon asked for; without entropy, that from which annealing to zero begins."""
        by_gain = self.auto or not self.model.is_standard
        return self.model.epsilon or (AUTO_START * self.energy_scale if by_gain else SHARP_START * self.unit)

    @property
    def ranks(self) -> Ranks:
        """Those that share the spaces, and the solve."""
        return ranks_of(self.spaces[0])

    def coarsen(self, x: Coarsening, y: Coarsening) -> StoredProblem:
        """The same problem between cells whose distances are factored or stored, with its
        exact gradient."""
        assert x.space is not None
        assert y.space is not None
        small = Problem.of(self, spaces=(x.space, y.space), model=self.model.coarsen(x, y), exact=True)
        return StoredProblem.of(small, gradient=make_gradient(small))

    def stage(self, name: str, compute: Callable[[], Result]) -> Result:
        """The result of a stage, see `torchgw.persist.watch`."""
        return self.watch.stage(name, compute)


@dataclass(frozen=True, kw_only=True)
class StoredProblem(Problem):
    """A problem whose plans (N, K) are stored; its spaces serve the loop's dtype.

    gradient : of the whole objective; a sampled one has a state.
    wide : that of the quadratic part in float64, for fixed points and optima without
        entropy.
    """

    gradient: Gradient
    wide: ExactGradient | None = None

    def stage(self, name: str, compute: Callable[[], Result]) -> Result:
        """The result of a stage; the state of a sampled gradient is kept with it."""
        result, memory = super().stage(name, lambda: (compute(), memory_of(self.gradient)))
        restore_memory(self.gradient, memory)
        return result

    def with_epsilon(self, epsilon: float) -> StoredProblem:
        """The same problem with another entropy weight, and the tolerances that this asks
        for."""
        model, options = self.model.with_epsilon(epsilon), tolerances_for(self.options, epsilon, self.model.marginals)
        return replace(self, model=model, options=options, gradient=gradient_of(model, self.quadratic))

    def linearize(self, plan: Tensor | BlockCoupling) -> FactoredCost:
        """The cost of the linear problem around a plan (N, K)."""
        return self.gradient(DenseCoupling(plan) if isinstance(plan, Tensor) else plan, self.masses[0])

    def value(self, plan: Tensor | BlockCoupling) -> Tensor:
        """F () of a plan (N, K) without its entropy; where gradients are sampled, by sampled pairs."""
        coupling, (p, q) = DenseCoupling(plan) if isinstance(plan, Tensor) else plan, self.masses
        if self.exact:
            return evaluate(self.gradient, coupling, p, q)[1]
        rows = self.model.marginals_of(coupling)[0].to(p)
        quadratic = float(sampled_objective(coupling, rows, *self.spaces, self.generator).value)
        return torch.tensor(self.model.values(quadratic, coupling).total, dtype=torch.float64)

    @property
    def quadratic(self) -> Gradient:
        """The gradient of the quadratic part alone."""
        return self.gradient.quadratic if isinstance(self.gradient, ModelGradient) else self.gradient


def tolerances_for(options: GWOptions, epsilon: float, marginals: Marginals) -> GWOptions:
    """The options with tolerances at which a strong divergence adds at most a tenth of
    epsilon to the objective.

    What is left of a residual r under a finite weight rho is no marginal that rounding
    could mend, but about rho r^2 of the objective.
    """
    stiffest = max((rho for rho in marginals.weights if rho < math.inf), default=0.0)
    if stiffest == 0 or epsilon == 0:
        return options
    most = max(math.sqrt(STRAY_SHARE * float(epsilon) / stiffest), sys.float_info.min)
    sinkhorn = replace(options.sinkhorn, tol=min(options.sinkhorn.tol, most))
    ladder = replace(options.ladder, marginal_tol=min(options.ladder.marginal_tol, most))
    return replace(options, sinkhorn=sinkhorn, ladder=ladder)


def make_gradient(problem: Problem) -> Gradient:
    """The exact gradient, or the sampled one with landmark control variates; of the model's
    objective."""
    model, (p, q), sampling, generator = problem.model, problem.masses, problem.options.sampling, problem.generator
    if problem.exact:
        return gradient_of(model, ExactGradient(*problem.spaces, p, q, model.loss))
    controls = None
    if sampling.n_control > 0:
        x, y = (
            landmark_control(space, mass / mass.sum(), sampling.n_control, generator)
            for space, mass in zip(problem.spaces, (p, q), strict=True)
        )
        controls = x, y
    return gradient_of(model, SampledGradient(*problem.spaces, sampling, generator, controls))

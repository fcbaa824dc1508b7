"""What is asked of a solve, and the same with stored plans."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchgw.diagnostics.status import History
from torchgw.kernels.kernel import Kernel
from torchgw.kernels.precision import loop_dtype
from torchgw.kernels.shared import RankSharedTiles, SharedKernel, StreamedKernel, TileReader
from torchgw.kernels.softmin_tiles import TileKernel
from torchgw.losses import SQUARE
from torchgw.marginals import Marginals
from torchgw.objective.exact import ExactGradient
from torchgw.objective.linearise import Gradient, ModelGradient, gradient_of
from torchgw.objective.model import Model
from torchgw.objective.sampled import SampledGradient, landmark_control, memory_of, restore_memory
from torchgw.options import GWOptions
from torchgw.persist.watch import Watch
from torchgw.runtime.ranks import Ranks, ranks_of
from torchgw.runtime.threads import threads_for
from torchgw.runtime.transfer import to_host
from torchgw.solvers.entropic import descend
from torchgw.solvers.inner import StoredSolver
from torchgw.solvers.iterate import Loop
from torchgw.solvers.linear_oracle import equal_masses
from torchgw.solvers.model_form import make_search_models
from torchgw.solvers.solution import Solution
from torchgw.solvers.warm_start import WarmStart
from torchgw.spaces import PrecomputedDistances
from torchgw.spaces.low_rank import approximate_distances
from torchgw.types import DistanceProvider, is_metric, multiplies

Result = TypeVar("Result")
ProblemT = TypeVar("ProblemT", bound="Problem")

SHARP_START = 2.5e-4  # of the largest squared distance, where annealing to zero begins
AUTO_START = 0.01  # of what there is to gain, where an epsilon that is left to the solve begins
# Multiplications of products of stored distances with a plan, from which factors near the distances pay, and between
# unequal masses without entropy; the residual that these factors should leave, and may leave, in each case.
SLOW_WORK, VERTEX_WORK = {"cpu": 4e10, "cuda": 4e12}, 5e9
RESIDUAL, SHARP_RESIDUAL, MOST_LEFT = 0.02, 0.0025, 0.05
STRAY_SHARE = 0.1  # of epsilon, that marginals which are not solved to the end may add to the objective


@dataclass(frozen=True)
class Kernels:
    """The implementations that a solve uses.

    backend : the one that was asked for.
    stored : of scores (N, K) that are stored.
    streamed : of scores that are products, which are not, between points that all ranks have.
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
    model : masses p (N,), q (K,), epsilon, marginal model and linear cost, on the device to use.
    exact : whether gradients are exact where a plan is stored, and all distances of a space may be computed where it
        has no factors.
    unit : the largest squared distance.
    kernels, options, generator : how to solve.
    watch : follows the solve.
    init : where to start instead of the search: a plan (N, K), matching pairs (m, 2) of integers, or None.
    tol : relative change in the last iteration that the fixed point is solved to in the end, None for no fixed point.
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
    def source(self) -> DistanceProvider:
        return self.spaces[0]

    @property
    def target(self) -> DistanceProvider:
        return self.spaces[1]

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
    def lowers_epsilon(self) -> bool:
        """Whether epsilon falls on from where it begins, while that sharpens the plan."""
        falls = self.auto and self.exact and not self.curves and self.tol is None
        return falls and not (self.has_no_entropy or self.sharpens)

    @property
    def ranks(self) -> Ranks:
        """Those that share the spaces, and the solve."""
        return ranks_of(self.source)

    def run_on_first(self, task: Callable[[], Result]) -> Result:
        """The result of a task that the first rank does, with the random state and the cancellation that it leaves."""
        result, state, stopped = self.ranks.run_on_first(
            lambda: (task(), self.generator.get_state(), self.watch.should_stop)
        )
        self.generator.set_state(state)
        if stopped:
            self.watch.stop()
        return result

    def stage(self, name: str, compute: Callable[[], Result]) -> Result:
        """The result of a stage, see `torchgw.persist.watch`."""
        return self.watch.stage(name, compute)


@dataclass(frozen=True, kw_only=True)
class StoredProblem(Problem):
    """A problem whose plans (N, K) are stored; its spaces serve the loop's dtype.

    gradient : of the whole objective; a sampled one has a state.
    wide : that of the quadratic part in float64, for fixed points and optima without entropy.
    """

    gradient: Gradient
    wide: ExactGradient | None = None

    def stage(self, name: str, compute: Callable[[], Result]) -> Result:
        """The result of a stage; the state of a sampled gradient is kept with it."""
        result, memory = super().stage(name, lambda: (compute(), memory_of(self.gradient)))
        restore_memory(self.gradient, memory)
        return result

    def with_epsilon(self, epsilon: float) -> StoredProblem:
        """The same problem with another entropy weight, and the tolerances that this asks for."""
        model, options = self.model.with_epsilon(epsilon), tolerances_for(self.options, epsilon, self.model.marginals)
        return replace(self, model=model, options=options, gradient=gradient_of(model, self.quadratic))

    @property
    def search_problems(self) -> list[StoredProblem]:
        """The same problem by the models that a search is by, the first of which is annealed, too."""
        models = make_search_models(self.model)
        return [self if model is self.model else replace(self, model=model).with_epsilon(0.0) for model in models]

    @property
    def quadratic(self) -> Gradient:
        """The gradient of the quadratic part alone."""
        return self.gradient.quadratic if isinstance(self.gradient, ModelGradient) else self.gradient

    def inner_at(self, epsilon: float) -> StoredSolver:
        """A solver of this problem's linearisations on the way to an epsilon, with buffers of its own."""
        return StoredSolver(self.kernels.stored, replace(self.model, epsilon=epsilon), self.options.sinkhorn)


def run_fixed_point(problem: StoredProblem, start: WarmStart, epsilon: float, steps: int) -> Solution:
    """The solution after at most ``steps`` fixed-point iterations from ``start``, without callback and journal."""
    loop = Loop(problem.watch.detach(), History(), steps)
    with threads_for(len(problem.p) * len(problem.q)):
        return descend(problem.gradient, start, problem.inner_at(epsilon), problem.options, loop)


def tolerances_for(options: GWOptions, epsilon: float, marginals: Marginals) -> GWOptions:
    """The options with tolerances at which a strong divergence adds at most a tenth of epsilon to the objective.

    What is left of a residual r under a finite weight rho is no marginal that rounding could mend, but about rho r^2 of
    the objective.
    """
    stiffest = max((rho for rho in marginals.weights if rho < math.inf), default=0.0)
    if stiffest == 0 or epsilon == 0:
        return options
    most = max(math.sqrt(STRAY_SHARE * float(epsilon) / stiffest), sys.float_info.min)
    sinkhorn = replace(options.sinkhorn, tol=min(options.sinkhorn.tol, most))
    ladder = replace(options.ladder, marginal_tol=min(options.ladder.marginal_tol, most))
    return replace(options, sinkhorn=sinkhorn, ladder=ladder)


def make_gradient(problem: Problem) -> Gradient:
    """The exact gradient, or the sampled one with landmark control variates; of the model's objective."""
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


def products_are_slow(problem: Problem, work: float | None = None) -> bool:
    """Whether the exact gradient takes products of stored metrics with a plan of more than so many multiplications, by
    default so many that they take most of a solve."""
    (n, k), device = (space.size for space in problem.spaces), problem.p.device.type
    metrics = all(map(is_metric, problem.spaces)) and not any(map(multiplies, problem.spaces))
    slow = n * k * (n + k) > (SLOW_WORK.get(device, SLOW_WORK["cpu"]) if work is None else work)
    return slow and metrics and problem.exact and problem.model.loss is SQUARE


def approximate_spaces(
    problem: Problem, residual: float, accepted: float, most: int | None = None
) -> tuple[DistanceProvider, DistanceProvider] | None:
    """The spaces, those without factors by factors that leave at most a ``residual`` of their distances, or the
    ``most`` of them; None where those of one leave more than what is ``accepted``."""
    found = list[DistanceProvider]()
    for space, mass in zip(problem.spaces, problem.model.masses, strict=True):
        if space.factors() is None:
            narrow = space.to(mass.device, loop_dtype(problem.options.mixed_precision))
            stored = PrecomputedDistances.of(narrow, mass.device)
            space, left = approximate_distances(stored, mass, problem.generator, residual, most)
            if left > accepted:
                return None
        found.append(space)
    return found[0], found[1]


def make_surrogate(problem: StoredProblem) -> StoredProblem | None:
    """The same problem with the gradient of factors near the distances, where products of these take long; without
    entropy between unequal masses, whose vertices are found without matrices then, from less on."""
    model, options = problem.model, problem.options
    equal = equal_masses(*(mass.numpy() for mass in to_host(*model.masses)))
    vertices = problem.has_no_entropy and model.is_standard and not equal
    if any(space.factors() is not None for space in problem.spaces) or not products_are_slow(
        problem, VERTEX_WORK if vertices else None
    ):
        return None
    accepted = math.inf if products_are_slow(problem) else MOST_LEFT
    spaces = approximate_spaces(problem, SHARP_RESIDUAL if vertices else RESIDUAL, accepted)
    if spaces is None:
        return None
    wide = [space.to(problem.p.device, torch.float64) for space in spaces]
    own = None if problem.wide is None else ExactGradient(wide[0], wide[1], *model.masses)
    narrow = ExactGradient(*spaces, *model.masses_in(loop_dtype(options.mixed_precision)))
    return replace(problem, gradient=gradient_of(model, narrow), wide=own)

"""What a dense solve works on, and a basin on its way through the search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from torchgw.kernels.kernel import Kernel
from torchgw.kernels.precision import loop_dtype
from torchgw.objective.exact import ExactGradient
from torchgw.objective.linearise import Gradient, ModelGradient, gradient_of
from torchgw.objective.model import Model
from torchgw.objective.sampled import SampledGradient, landmark_control, memory_of, recall
from torchgw.options import GWOptions
from torchgw.persist.codec import storable
from torchgw.persist.watch import Watch
from torchgw.runtime.threads import threads_for
from torchgw.search.anneal import CoarseBasin
from torchgw.solvers.fixed_point import descend
from torchgw.solvers.inner import StoredInner
from torchgw.solvers.solution import Solution
from torchgw.solvers.warm_start import Start
from torchgw.types import DistanceProvider

Result = TypeVar("Result")


@dataclass(frozen=True)
class Problem:
    """Two spaces in the loop's dtype, the gradient of the objective around them, and how to solve.

    ``unit`` is the largest squared distance; ``sharp`` says that ``epsilon`` is only where annealing to zero begins.
    """

    source: DistanceProvider
    target: DistanceProvider
    gradient: Gradient
    model: Model
    epsilon: float
    sharp: bool
    kernel: Kernel
    options: GWOptions
    generator: torch.Generator
    watch: Watch = field(default_factory=Watch)
    unit: float = 1.0

    def stage(self, name: str, compute: Callable[[], Result]) -> Result:
        """The result of a stage, see `torchgw.persist.watch`; what the gradient remembers is kept with it."""
        result, memory = self.watch.stage(name, lambda: (compute(), memory_of(self.gradient)))
        recall(self.gradient, memory)
        return result

    @property
    def p(self) -> Tensor:
        return self.model.p

    @property
    def q(self) -> Tensor:
        return self.model.q

    @property
    def quadratic(self) -> Gradient:
        """The gradient of the quadratic part alone."""
        return self.gradient.quadratic if isinstance(self.gradient, ModelGradient) else self.gradient

    @property
    def masses(self) -> tuple[Tensor, Tensor]:
        """The masses in the dtype of the spaces."""
        dtype = loop_dtype(self.options.mixed_precision)
        return self.p.to(dtype), self.q.to(dtype)

    @property
    def inner(self) -> StoredInner:
        """A solver of this problem's linearisations, with buffers of its own."""
        return StoredInner(self.kernel, self.model, self.options.sinkhorn)

    @property
    def exact(self) -> bool:
        return isinstance(self.quadratic, ExactGradient)


@storable
@dataclass(frozen=True)
class Candidate:
    """A basin on its way: where to start on all points, its matching (N,), and its energy on the level reached.

    ``near`` says that it is among the lowest of its kind of landmarks, ``leading`` that it is the lowest.
    """

    start: Start
    matching: Tensor
    energy: float
    count: int
    level: str
    near: bool
    leading: bool = False
    basin: CoarseBasin | None = None


def descended(problem: Problem, start: Start, epsilon: float, steps: int) -> Solution:
    given = problem.gradient, start, problem.model, epsilon, problem.inner, problem.options, problem.watch.aside()
    with threads_for(len(problem.p) * len(problem.q)):
        return descend(*given, max_iter=steps)


def make_gradient(
    source: DistanceProvider,
    target: DistanceProvider,
    model: Model,
    exact: bool,
    options: GWOptions,
    generator: torch.Generator,
) -> Gradient:
    """The exact gradient, or the sampled one with landmark control variates, of the model's objective."""
    masses = [mass.to(loop_dtype(options.mixed_precision)) for mass in model.masses]
    if exact:
        return gradient_of(model, ExactGradient(source, target, masses[0], masses[1], model.loss))
    count = options.sampling.n_control
    if count == 0:
        return gradient_of(model, SampledGradient(source, target, options.sampling, generator))
    x, y = (
        landmark_control(space, mass / mass.sum(), count, generator)
        for space, mass in zip((source, target), masses, strict=True)
    )
    return gradient_of(model, SampledGradient(source, target, options.sampling, generator, (x, y)))
